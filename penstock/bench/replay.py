"""A source of buffers made beforehand and replayed in cycles, with timestamps that go on rising."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.connectors.contract import Offset, Source, SourceBatch, check_offset, check_rows_max

BUFFERS = 16
BUFFER_ROWS = 1 << 18
ROW_US = 10  # between a row and the next


class Ads:
    """Advertisement events: which ad, what happened to it (0 to 2), what it cost."""

    def __init__(self, seed: int, ads: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (BUFFERS, BUFFER_ROWS)
        self.ad = rng.integers(0, ads, shape).astype(np.int32)
        self.event = rng.integers(0, 3, shape).astype(np.int32)
        self.price = rng.integers(1, 1000, shape)
        self.time_us: NDArray[np.int64] = np.arange(BUFFERS * BUFFER_ROWS).reshape(shape) * ROW_US
        self.cycle_us = BUFFERS * BUFFER_ROWS * ROW_US


class ReplaySource(Source):
    """Row i is row i mod n of the buffers; each cycle is later than the one before it."""

    def __init__(self, ads: Ads, schema: pa.Schema, rows: int | None = None) -> None:
        self.schema = schema
        self._end = rows
        columns: dict[str, NDArray[Any]] = {
            "ad": ads.ad,
            "event": ads.event,
            "price": ads.price,
            "ts": ads.time_us,
        }
        self._buffers = [
            [pa.array(columns[name][index]) for name in schema.names] for index in range(BUFFERS)
        ]
        self._times = schema.get_field_index("ts")
        self._cycle_us = ads.cycle_us

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, self._end)
        number, begin = divmod(first, BUFFER_ROWS)
        cycle, index = divmod(number, BUFFERS)
        count = min(check_rows_max(rows_max), BUFFER_ROWS - begin)
        if self._end is not None:
            count = min(count, self._end - first)
        columns = [column.slice(begin, count) for column in self._buffers[index]]
        later = pc.add(columns[self._times], cycle * self._cycle_us)
        columns[self._times] = later.view(self.schema.field(self._times).type)
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        ended = self._end is not None and first + count >= self._end
        return SourceBatch(batch, first + count, ended=ended)


class KeySource(Source):
    """The keys 0, 1, … one row each, and again from 0; without end, all at the same time."""

    def __init__(self, keys: int, schema: pa.Schema) -> None:
        self.schema = schema
        self._keys = keys

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, None)
        count = check_rows_max(rows_max)
        keys = np.arange(first, first + count) % self._keys
        columns = [pa.array(keys), pa.array(np.zeros(count, np.int64)).view(self.schema.types[1])]
        return SourceBatch(pa.RecordBatch.from_arrays(columns, schema=self.schema), first + count)
