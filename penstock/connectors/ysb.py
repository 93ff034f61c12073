"""Advertisement events of the Yahoo streaming benchmark, as a function of the row's number.

Row i is about ad i mod 1000, of type i mod 5; what happened is i mod 3 (0 is a view). Its time is
i / rate after the start. So all columns but the time repeat: they are made once, and a read takes a
slice of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.connectors.contract import (
    READ_ROWS_MAX,
    DealtSource,
    Offset,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.errors import InvalidArgument

ADS = 1000
AD_TYPES = 5
EVENT_TYPES = 3
PERIOD = ADS * EVENT_TYPES  # rows after which all columns but the time begin again
RATE = 10_000
RATE_MAX = 1_000_000
START_US = 1_600_002_000_000_000
TIME_COLUMN = "event_time"

YSB_SCHEMA = pa.schema(
    [
        pa.field("ad_id", pa.int32(), nullable=False),
        pa.field("ad_type", pa.int32(), nullable=False),
        pa.field("event_type", pa.int32(), nullable=False),
        pa.field(TIME_COLUMN, pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
_REPEATING = {"ad_id": ADS, "ad_type": AD_TYPES, "event_type": EVENT_TYPES}


class YsbSource(DealtSource):
    """Rows by their number, without end or `rows_total` of them; all are there at once."""

    def __init__(
        self,
        rate: int = RATE,
        rows_total: int | None = None,
        columns: Sequence[str] | None = None,
        rows_at_once: int = READ_ROWS_MAX,
    ) -> None:
        """`rate` is rows per second of event time; `rows_at_once` bounds a read."""
        if not 1 <= rate <= RATE_MAX or 1_000_000 % rate:
            raise InvalidArgument(f"rate is {rate}, possible are divisors of {RATE_MAX:,}")
        if rows_total is not None and rows_total < 0:
            raise InvalidArgument(f"rows_total is {rows_total}, below 0", rows_total=rows_total)
        names = list(YSB_SCHEMA.names if columns is None else columns)
        unknown = [name for name in names if name not in YSB_SCHEMA.names]
        if unknown:
            known = ", ".join(YSB_SCHEMA.names)
            raise InvalidArgument(f"there is no column {unknown[0]!r}; possible are {known}")
        self.schema = pa.schema([YSB_SCHEMA.field(name) for name in names])
        self._row_us = 1_000_000 // rate
        self._end = rows_total
        self._rows_at_once = min(rows_at_once, READ_ROWS_MAX)

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = min(check_rows_max(rows_max), self._rows_at_once)
        row = check_offset(offset, self._first, self._end, self._stride)
        left = rows_max if self._end is None else max(0, -(-(self._end - row) // self._stride))
        count = min(rows_max, left)
        following = row + count * self._stride
        ended = self._end is not None and following >= self._end
        watermark_us = START_US + following * self._row_us
        batch = self._batch(row, count) if count else None
        return SourceBatch(batch, following, ended, watermark_us, more=not ended)

    def _batch(self, row: int, count: int) -> pa.RecordBatch:
        begin = (row - self._first) // self._stride % PERIOD
        columns = [
            self._times(row, count)
            if field.name == TIME_COLUMN
            else self._repeating[field.name].slice(begin, count)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _times(self, row: int, count: int) -> pa.Array:
        """In memory that Arrow's pool has at hand from batches before: new pages would cost more
        than the numbers in them."""
        buffer = pa.allocate_buffer(count * 8)
        first_us = START_US + row * self._row_us
        np.add(self._steps_us[:count], first_us, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(YSB_SCHEMA.field(TIME_COLUMN).type, count, [None, buffer])

    @cached_property
    def _repeating(self) -> dict[str, pa.Array]:
        numbers = self._first + np.arange(PERIOD + self._rows_at_once) * self._stride
        return {
            name: pa.array((numbers % _REPEATING[name]).astype(np.int32))
            for name in self.schema.names
            if name != TIME_COLUMN
        }

    @cached_property
    def _steps_us(self) -> np.ndarray:
        return np.arange(self._rows_at_once) * (self._stride * self._row_us)

    def _copy(self) -> YsbSource:
        return YsbSource(
            1_000_000 // self._row_us, self._end, self.schema.names, self._rows_at_once
        )
