"""Numbered rows at a fixed rate, like Spark's `rate` source, as a function of the offset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.clock import Clock
from penstock.connectors.contract import (
    DealtSource,
    Offset,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.errors import InvalidArgument

RATE_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
    ]
)
_SECOND_US = 1_000_000
RATE_MAX = 1_000_000_000


class RateSource(DealtSource):
    """Rows (timestamp, value): value = offset, timestamp = start + value / rate.

    With a clock, a row can be read from its own timestamp on; without one, all rows are there.
    """

    schema = RATE_SCHEMA

    def __init__(
        self,
        rows_per_s: int,
        start_us: int,
        rows_total: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 1 <= rows_per_s <= RATE_MAX:
            raise InvalidArgument(
                f"rows_per_s is {rows_per_s}, 1 to {RATE_MAX} is possible", rows_per_s=rows_per_s
            )
        if rows_total is not None and rows_total < 0:
            raise InvalidArgument(f"rows_total is {rows_total}, below 0", rows_total=rows_total)
        self._rows_per_s = rows_per_s
        self._start_us = start_us
        self._end = rows_total
        self._clock = clock

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        value = check_offset(offset, self._first, self._end, self._stride)
        due = self._due_end()
        end = due if self._end is None else min(due, self._end) if due is not None else self._end
        available = rows_max if end is None else max(0, -(-(end - value) // self._stride))
        rows = min(rows_max, available)
        following = value + rows * self._stride
        ended = self._end is not None and following >= self._end
        watermark_us = self._timestamp_us(following)
        if not rows:
            return SourceBatch(None, value, ended, watermark_us, idle=not ended)
        values = np.arange(value, following, self._stride, dtype=np.int64)
        more = rows < available if end is not None else True
        return SourceBatch(self._batch(values), following, ended, watermark_us, more=more)

    def _batch(self, values: np.ndarray) -> pa.RecordBatch:
        seconds, rest = np.divmod(values, self._rows_per_s)
        times = self._start_us + seconds * _SECOND_US + rest * _SECOND_US // self._rows_per_s
        columns = [
            pa.array(times).view(RATE_SCHEMA.field("timestamp").type),
            pa.array(values),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)

    def _timestamp_us(self, value: int) -> int:
        return self._start_us + value * _SECOND_US // self._rows_per_s

    def _due_end(self) -> int | None:
        """Return the first value whose time has not come, or None without a clock."""
        if self._clock is None:
            return None
        elapsed_us = self._clock.now_us() - self._start_us
        return max(0, -(-(elapsed_us + 1) * self._rows_per_s // _SECOND_US))

    def _copy(self) -> RateSource:
        return RateSource(self._rows_per_s, self._start_us, self._end, self._clock)
