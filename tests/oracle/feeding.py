"""How rows reach a stream, and how far event time had come when each of them was judged.

A delivery is what one marker of the writer covers. A round is some deliveries that are all there
before the engine looks: whoever reads the stream commits once for each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

Round = list[pa.RecordBatch]
Predicate = Callable[[dict[str, Any]], bool]

SECOND_US = 1_000_000


def cut_into_rounds(rows: pa.RecordBatch, rng: random.Random) -> list[Round]:
    """The rows in deliveries of random sizes, some of them empty, and these in rounds."""
    edges = sorted(rng.randrange(rows.num_rows + 1) for _ in range(rng.randrange(3, 14)))
    edges += rng.sample(edges, 1)  # one delivery at least is empty
    waiting = [
        rows.slice(low, high - low) for low, high in pairwise([0, *sorted(edges), rows.num_rows])
    ]
    rounds = []
    while waiting:
        count = rng.choice((1, 1, 2, 3))
        rounds.append(waiting[:count])
        del waiting[:count]
    return rounds


def always(_row: dict[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Lateness:
    """Which rows come after the last window that they belong to, in plain Python.

    `counted` says which rows the watermark sees, where a filter stands before it.
    """

    delay_us: int
    size_us: int
    slide_us: int
    start_us: int = 0
    time: str = "ts"
    counted: Predicate = always

    def marks_us(self, rounds: Sequence[Round]) -> list[int | None]:
        """For each row, how far the watermark had come: what is there by then is judged alike."""
        marks: list[int | None] = []
        mark_us: int | None = None
        for deliveries in rounds:
            rows = [row for batch in deliveries for row in plain_rows(batch)]
            marks += [mark_us] * len(rows)
            times = [
                row[self.time] for row in rows if row[self.time] is not None and self.counted(row)
            ]
            if times:
                seen_us = max(times) - self.delay_us
                mark_us = seen_us if mark_us is None else max(mark_us, seen_us)
        return marks

    def late_rows(
        self, rounds: Sequence[Round], marks: Sequence[int | None]
    ) -> list[dict[str, Any]]:
        """The rows all of whose windows had ended by the mark under which they came."""
        rows = [row for deliveries in rounds for batch in deliveries for row in plain_rows(batch)]
        return [
            row
            for row, mark_us in zip(rows, marks, strict=True)
            if mark_us is not None
            and row[self.time] is not None
            and self.counted(row)
            and self._last_end_us(row[self.time]) <= mark_us
        ]

    def _last_end_us(self, at_us: int) -> int:
        return at_us - (at_us - self.start_us) % self.slide_us + self.size_us


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python values, times in microseconds."""
    columns = {
        field.name: (column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    values = [column.to_pylist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
