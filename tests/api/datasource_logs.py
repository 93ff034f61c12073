"""Logs that the data source's tests read: written by several producers, some of which died."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.config import LogConfig
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.log import punit
from penstock.log.contract import Log, take_over
from penstock.log.local import open_log
from penstock.log.record import Fence, Position, RecordKind
from penstock.runtime.markers import Marker
from penstock.runtime.outputs import Outputs
from penstock.runtime.streams import StreamReader, create_stream
from penstock.stages.tags import marker_tag, substream_tag, vertex_tag
from penstock.testing.clock import ManualClock

STREAM = "events"
PROCESS = LogConfig(durability="process")  # nothing here is about power cuts
START_US = 1_700_000_000_000_000
COMMIT_US = 1_000_000  # the clock moves on by this much with every commit


def columns(*named: tuple[str, str], required: tuple[str, ...] = ()) -> Schema:
    return tuple(Field(name, parse_type(kind), name not in required) for name, kind in named)


EVENTS = columns(
    ("id", "bigint"),
    ("name", "string"),
    ("price", "decimal(10,2)"),
    ("ratio", "double"),
    ("single", "float"),
    ("at", "timestamp"),
    ("local", "timestamp_ntz"),
    ("day", "date"),
    ("flag", "boolean"),
    ("small", "smallint"),
    ("raw", "binary"),
    ("tags", "array<string>"),
    ("place", "struct<x:int,y:string>"),
    ("counts", "map<string,bigint>"),
    required=("id",),
)

_NAMES = ["ada", "bob", "Zoë", "", "abc%", "an\nb", None]
_RATIOS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25, None]


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows whose values are a function of their id, with nulls in every column but that."""
    return pa.RecordBatch.from_pylist(
        [_row(number) for number in range(first, first + count)], schema=arrow_schema(EVENTS)
    )


def _row(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    day = datetime.date(2024, 1, 1) + datetime.timedelta(days=number % 40)
    moment = datetime.datetime(2024, 1, 1, 12) + datetime.timedelta(microseconds=number * 777_777)
    values: dict[str, Any] = {
        "name": chance.choice(_NAMES),
        "price": Decimal(chance.randrange(-500, 500)) / 100,
        "ratio": chance.choice(_RATIOS),
        "single": chance.choice(_RATIOS),
        "at": moment.replace(tzinfo=datetime.UTC),
        "local": moment,
        "day": day,
        "flag": number % 2 == 0,
        "small": chance.randrange(-5, 5),
        "raw": bytes([number % 7]),
        "tags": ["t", None][: number % 3],
        "place": {"x": number, "y": None},
        "counts": [("k", number)],
    }
    absent = {name for name in values if chance.random() < 0.2}
    return {"id": number} | {name: None if name in absent else v for name, v in values.items()}


class Writer:
    """A producer that appends early, commits, or dies, as it is told."""

    def __init__(self, log: Log, stream: str, producer: str) -> None:
        self._log = log
        self._stream = stream
        self._producer = producer
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._instance = take_over(self._log, self._producer)
        fence = Fence(self._producer, self._instance)
        self._outputs = Outputs(self._log, fence, punit.Codec.NONE)

    def append(self, batch: pa.RecordBatch) -> None:
        """Rows that are in the log and not committed."""
        self._outputs.add(RecordKind.DATA, substream_tag(self._stream, 0), batch)
        self._outputs.append_early()

    def commit(self) -> Position:
        self._epoch += 1
        marker = Marker(vertex=self._producer, instance=self._instance, epoch=self._epoch)
        tags = (vertex_tag(self._producer), marker_tag(self._stream))
        return self._outputs.commit(tags, marker.encode())

    def die(self) -> None:
        """What is not committed stays behind; the next instance begins."""
        self._begin()


@dataclass
class Scenario:
    """A log, and what of it must be seen as of each marker."""

    path: str
    clock: ManualClock
    markers: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)  # ids as of each marker

    def note(self, position: Position, ids: list[int]) -> None:
        self.markers.append(position)
        self.times_us.append(self.clock.now_us())
        self.seen.append(sorted([*(self.seen[-1] if self.seen else []), *ids]))

    @property
    def ids(self) -> list[int]:
        return self.seen[-1]


def eventful(path: Path, units: int = 60, seed: int = 7) -> Scenario:
    """Three producers whose appends, commits and deaths interleave at random."""
    chance = random.Random(seed)
    clock = ManualClock(START_US)
    scenario = Scenario(str(path), clock)
    log = open_log(path, create=True, config=PROCESS, clock=clock)
    create_stream(log, "other", columns(("id", "bigint")))
    create_stream(log, STREAM, EVENTS)
    writers = [Writer(log, STREAM, name) for name in ("left", "middle", "right")]
    open_ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for unit in range(units):
        which = chance.randrange(3)
        count = chance.randrange(1, 9)
        writers[which].append(rows(unit * 10, count))
        open_ids[which] += range(unit * 10, unit * 10 + count)
        if chance.random() < 0.4:
            clock.advance(COMMIT_US / 1e6)
            scenario.note(writers[which].commit(), open_ids[which])
            open_ids[which] = []
        elif chance.random() < 0.2:
            writers[which].die()
            open_ids[which] = []
    # Leftovers: of a producer that never comes back, and of one that was rows away from a commit.
    Writer(log, STREAM, "lost").append(rows(10_000, 5))
    writers[0].append(rows(20_000, 5))
    log.close()
    return scenario


def committed_ids(path: str, stream: str = STREAM) -> list[int]:
    """What a reader of the log itself sees."""
    with open_log(path, read_only=True) as log:
        return sorted(StreamReader(log, stream).read_all().column("id").to_pylist())
