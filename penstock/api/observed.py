"""What a query observes of its rows: kept under its markers, told once with its progress."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.catalyst.observed import Observation
from penstock.expressions.types import arrow_schema
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.punit import decode_record
from penstock.log.record import START, Position
from penstock.operators.chain import Chain
from penstock.operators.observe import kept_rows
from penstock.operators.specs import OBSERVED, AggregateSpec, ObserveSpec
from penstock.runtime.backlog import take_over_sink
from penstock.stages.program import Program, observed_stream
from penstock.stages.tags import marker_tag, substream_tag


class Observed:
    """Follows the stream of what vertices have kept, and aggregates it for the next entry.

    How far entries have told it is stored: what a driver that was killed has not told, the next one
    tells with its first entry. One that is killed while it tells an entry may tell it again.
    """

    def __init__(
        self, log: Log, program: Program, observations: Sequence[Observation], run: int
    ) -> None:
        self._log = log
        stream = observed_stream(program.query)
        self._tags = (substream_tag(stream, 0), marker_tag(stream))
        self._asked = {each.name: each for each in observations}
        self._specs = {  # as vertices keep it, by digest: branches of a union may differ in nulls
            spec.digest: spec
            for stage in program.stages
            for spec in stage.specs
            if isinstance(spec, ObserveSpec) and spec.name in self._asked
        }
        self._progress = take_over_sink(log, stream, run)
        facts = self._progress.facts
        self._reader = CommittedReader(log, self._tags, facts.resume or None, facts.done)
        self._chains: dict[str, Chain] = {}  # of those of which something was kept
        self._shown = (START, START)  # up to which marker, and where to read on, at the last rows
        self._telling = threading.Lock()

    def take(self) -> bool:
        """Take what is committed by now; whether there was any."""
        found = False
        while (release := self._reader.take()) is not None:
            for record in release.records:
                rows = decode_record(record)
                for digest, body in zip(*(each.to_pylist() for each in rows.columns), strict=True):
                    if (spec := self._specs.get(digest)) is not None:
                        self._add(spec, kept_rows(spec, body))
                        found = True
        return found

    def _add(self, spec: ObserveSpec, kept: pa.RecordBatch) -> None:
        asked = self._asked[spec.name]
        if spec.name not in self._chains:
            self._chains[spec.name] = Chain([(asked.spec.kept, ())], asked.ended_by, None)
        schema = arrow_schema(asked.spec.kept)
        self._chains[spec.name].process(pa.RecordBatch.from_arrays(kept.columns, schema=schema))

    def rows(self) -> dict[str, Row]:
        """What was taken since the last call, by observation; of no rows what aggregates give."""
        found = {name: self._row(each) for name, each in self._asked.items()}
        self._shown = (self._reader.consumed, self._reader.resume)
        self._chains.clear()
        return found

    def _row(self, asked: Observation) -> Row:
        chain = self._chains.get(asked.name) or _of_no_rows(asked)
        (batch,) = chain.on_commit()
        table = pa.Table.from_batches([batch])
        (values,) = ArrowTableToRowsConversion.convert(table, from_arrow_schema(table.schema))
        return Row(*asked.metrics)(*values)

    def told(self) -> None:
        """Store that what was shown has been told; it can leave the log."""
        with self._telling:
            facts, (done, resume) = self._progress.facts, self._shown
            if done <= facts.done:
                return
            moved = replace(facts, done=done, resume=max(facts.resume, resume))
            self._progress = self._progress.move(self._log, moved)
        for tag in self._tags:
            if resume > self._log.trimmed(tag):
                self._log.trim(tag, Position(resume))


def _of_no_rows(asked: Observation) -> Chain:
    """What aggregates the rows themselves, and has had none."""
    aggregate, *steps = asked.ended_by
    assert isinstance(aggregate, AggregateSpec)
    schema = asked.spec.read or OBSERVED  # any columns: a batch has some
    chain = Chain([(schema, ())], (replace(aggregate, merge_partials=False), *steps), None)
    chain.begin_input()
    return chain


def json_of(rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """Observed rows as the JSON of a progress has them."""
    return {name: _json(row) for name, row in rows.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _json(each) for name, each in zip(value.__fields__, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, date | datetime | timedelta) else value
