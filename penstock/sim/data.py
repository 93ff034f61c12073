"""The input of a simulated query: rows as plain values, and a source that hands them out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.connectors.contract import Offset, Source, SourceBatch, check_offset, check_rows_max

SECOND_US = 1_000_000
FIRST_US = 1_600_002_000 * SECOND_US  # a multiple of an hour: windows start where one expects

COLUMNS = (
    "rid bigint not null, k string, g bigint, v bigint, d bigint, ts timestamp, u timestamp, "
    "words array<string>"
)
ARROW_SCHEMA = pa.schema(
    [
        pa.field("rid", pa.int64(), nullable=False),
        pa.field("k", pa.string()),
        pa.field("g", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("d", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("u", pa.timestamp("us", tz="UTC")),
        pa.field("words", pa.list_(pa.string())),
    ]
)
WORDS = ("dam", "gate", "pipe", "sluice", "turbine", "weir", "ωμέγα", "")


class Row(NamedTuple):
    """One input row; `rid` names it among all rows of all feeds."""

    rid: int
    k: str | None
    g: int | None
    v: int | None
    d: int | None
    ts: int | None
    u: int  # another time, of which no watermark speaks
    words: tuple[str, ...] | None


Feed = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Disorder:
    """How far rows of a feed may be behind the greatest time before them, and how many are."""

    jitter_us: int
    stragglers: float  # share of rows that come later than any jitter


def make_feed(rng: random.Random, number: int, rows: int, disorder: Disorder) -> Feed:
    """Rows of one feed, in the order in which they arrive."""
    time_us = FIRST_US + rng.randrange(5 * SECOND_US)
    feed = []
    for index in range(rows):
        time_us += rng.choice((0, SECOND_US // 4, SECOND_US, 2 * SECOND_US))
        at_us = time_us - (rng.randrange(disorder.jitter_us) if disorder.jitter_us else 0)
        if rng.random() < disorder.stragglers:
            at_us -= rng.randrange(4, 20) * SECOND_US
        feed.append(
            Row(
                rid=number * 10_000 + index,
                k=rng.choice(("ann", "bob", "cyd", "dee", None)),
                g=rng.choice((0, 1, 2, 7, -3, None)),
                v=rng.choice((None, 0, 1, 5, -9, rng.randrange(1_000))),
                d=rng.choice((1, 2, 3, 1, 2, 0)),
                ts=None if rng.random() < 0.02 else at_us,
                u=FIRST_US + rng.randrange(40) * SECOND_US,
                words=None
                if rng.random() < 0.05
                else tuple(rng.choice(WORDS) for _ in range(rng.randrange(4))),
            )
        )
    return tuple(feed)


def part_of(feed: Sequence[Row], part: int, parts: int) -> Feed:
    """The rows that vertex `part` of `parts` reads, in its order."""
    return tuple(feed[part::parts])


def to_arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as one batch of all columns."""
    columns = [
        pa.array([row[at] for row in rows], field.type) for at, field in enumerate(ARROW_SCHEMA)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def watermarks_of(rows: Sequence[Row]) -> list[int]:
    """By offset: the least time at or after it, the greatest and a bit where there is none."""
    bounds = [max((row.ts for row in rows if row.ts is not None), default=FIRST_US) + 1]
    for row in reversed(rows):
        bounds.append(bounds[-1] if row.ts is None else min(bounds[-1], row.ts))
    return bounds[::-1]


class SimulatedSource(Source):
    """Rows that arrive when the simulation says so; the offset is the number of the next row."""

    def __init__(
        self,
        rows: pa.RecordBatch,
        watermarks: Sequence[int],
        schema: pa.Schema,
        arrived: Callable[[], int],
    ) -> None:
        self.schema = schema
        self._rows = rows.select(schema.names)
        self._watermarks = watermarks
        self._arrived = arrived

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        total = self._rows.num_rows
        first = check_offset(offset, 0, total)
        end = min(first + rows_max, self._arrived(), total)
        if end <= first:
            idle = first < total
            return SourceBatch(None, first, not idle, idle=idle, nothing_yet=idle and not first)
        more = end < min(self._arrived(), total)
        rows = self._rows.slice(first, end - first)
        bound_us = self._watermarks[end]
        return SourceBatch(rows, end, ended=end >= total, watermark_us=bound_us, more=more)
