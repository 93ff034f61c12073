"""Persisting alone (Fig. 8): rows arrive from a program, are stored, and acknowledged.

`needed` stores the columns that a query needs, of the rows that pass its filter; `whole` all that
arrives; both by a query of Penstock that computes nothing else, the columns compressed as it sees
fit. `prototype` stores all that arrives and flushes before it acknowledges (`flushing.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame

from penstock.api.query import StreamingQuery
from penstock.api.writer import writeStream
from penstock.bench.crew import Crew
from penstock.bench.report import rounded, say
from penstock.bench.scabbard.engines import Input, Way, in_its_way, log_for
from penstock.bench.scabbard.flushing import send_to_prototype, serve
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.sending import Rows, Sent, reader_options, send_to_query
from penstock.bench.scabbard.setting import Setting
from penstock.bench.sessions import wait_compiled
from penstock.connectors import producer_wire as wire
from penstock.log.contract import Log
from penstock.log.record import START, RecordKind
from penstock.runtime.queries import needed_query

QUERIES_SHOWN = ("cm1", "sg1", "lrb1", "ysb", "sm")
FILTERS: Mapping[str, str] = MappingProxyType({"cm2": "eventType = 3", "ysb": "event_type = 0"})
WARMUP_S = 1.0
PAGE = 4_096


def measure(setting: Setting) -> dict[str, Any]:
    """Rows a second and the latency of acknowledgements, by query and way."""
    seconds, found = setting.args.seconds, {}
    with Crew(2, answer_s_max=600) as crew:
        for query in setting.queries(QUERIES_SHOWN):
            folder = setting.scratch(f"persistence-{query.name}")
            given = setting.given(query, folder)
            rows = Rows(str(given.path), given.made.period_us)
            figures = {}
            for name in ("needed", "whole"):
                kept = _Kept(setting, query, given, name == "needed", folder / name)
                figures[name] = _told(*kept.run(crew, rows, seconds), query)
            port = free_port()
            path = str(folder / "prototype")
            written, sent = crew.run(
                [(serve, port, path), (send_to_prototype, port, rows, seconds)]
            )
            figures["prototype"] = _told(sent, written / sent.rows[-1], query)
            for name, each in figures.items():
                say(f"{query.name}: {name} {each['rows_per_s']:,.0f} rows/s acknowledged")
            found[query.name] = figures
    return found


def _told(sent: Sent, bytes_per_row: float, query: WindowQuery) -> dict[str, float]:
    p50_ms, p95_ms = sent.latencies_ms()
    return {
        "rows_per_s": rounded(sent.rows_per_s()),
        "mb_per_s": rounded(sent.rows_per_s() * query.row_bytes / 1e6),
        "p50_ms": rounded(p50_ms),
        "p95_ms": rounded(p95_ms),
        "bytes_per_row": rounded(bytes_per_row),
    }


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.create_server((wire.HOST, 0)) as free:
        return int(free.getsockname()[1])


class _Kept:
    """A query that stores what comes."""

    def __init__(
        self, setting: Setting, query: WindowQuery, given: Input, is_needed: bool, folder: Path
    ) -> None:
        self._spark = setting.spark
        self._query = query
        self._given = given
        self._is_needed = is_needed
        self._folder = folder
        self._way = Way(slots=1, codec=setting.args.codec)

    def run(self, crew: Crew, rows: Rows, seconds: float) -> tuple[Sent, float]:
        """What was sent, and how many bytes each row took."""
        with log_for(self._spark, self._folder, self._way) as attached:
            port, token = free_port(), self._folder / "token"
            name = f"kept_{self._query.name}"
            reader = self._spark.readStream.format("producers")
            schema = self._spark.read.parquet(str(self._given.path)).schema
            arrived = reader.schema(schema).options(**reader_options(port, token)).load()
            writer = writeStream(self._stored(arrived)).queryName(name)
            running: StreamingQuery = in_its_way(writer, self._way).toStream(name).start()
            try:
                task = (send_to_query, port, str(token), rows)
                crew.run([(task[0], "first", *task[1:], WARMUP_S)])
                wait_compiled(None)
                before = _stored_bytes(attached.log, name)
                (sent,) = crew.run([(task[0], "second", *task[1:], seconds)])
                taken = _stored_bytes(attached.log, name) - before
                if (error := running.exception()) is not None:
                    raise error
            finally:
                running.stop()
        return sent, taken / sent.rows[-1]

    def _stored(self, arrived: DataFrame) -> DataFrame:
        if not self._is_needed:
            return arrived
        if (condition := FILTERS.get(self._query.name)) is not None:
            arrived = arrived.filter(condition)
        return arrived.select("ts", *self._query.columns)


def _stored_bytes(log: Log, stream: str) -> int:
    """Of all rows that the vertices of a query have written."""
    program = needed_query(log, stream).program
    tags = [tag for vertex in program.vertices for tag in vertex.written_tags]
    found, after = 0, START
    while records := list(log.read(tags, after, PAGE)):
        found += sum(len(each.body) for each in records if each.kind is RecordKind.DATA)
        after = records[-1].position
    return found


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield whether persisting what is needed is faster than flushing all that comes."""
    for query, figures in found.items():
        is_faster = figures["needed"]["rows_per_s"] > figures["prototype"]["rows_per_s"]
        yield f"{query}_faster_than_flushing_first", is_faster
