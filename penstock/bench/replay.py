"""A source of buffers made beforehand and replayed in cycles, with timestamps that go on rising."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa
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
    """Row i has the values of row i mod n of the buffers, and the time i * ROW_US."""

    def __init__(self, ads: Ads, schema: pa.Schema) -> None:
        self.schema = schema
        columns: dict[str, NDArray[Any]] = {"ad": ads.ad, "event": ads.event, "price": ads.price}
        names = [name for name in schema.names if name != "ts"]
        self._times = schema.get_field_index("ts")
        self._buffers = [
            [pa.array(columns[name][index]) for name in names] for index in range(BUFFERS)
        ]

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, None)
        number, begin = divmod(first, BUFFER_ROWS)
        end = first + min(check_rows_max(rows_max), BUFFER_ROWS - begin)
        columns = [c.slice(begin, end - first) for c in self._buffers[number % BUFFERS]]
        columns.insert(self._times, _times(first, end, self.schema.types[self._times]))
        return SourceBatch(pa.RecordBatch.from_arrays(columns, schema=self.schema), end, more=True)


def _times(first: int, end: int, kind: pa.DataType) -> pa.Array:
    """The times of some rows, in memory that Arrow's pool has at hand from batches before."""
    buffer = pa.allocate_buffer((end - first) * 8)
    _fill(np.frombuffer(buffer, np.int64), first * ROW_US, ROW_US)
    return pa.Array.from_buffers(kind, end - first, [None, buffer])


@numba.njit(cache=False)
def _fill(numbers: NDArray[np.int64], first: int, step: int) -> None:
    for index in range(numbers.size):
        numbers[index] = first + index * step


class KeySource(Source):
    """The keys 0, 1, … one row each, and again from 0; without end, all at the same time."""

    def __init__(self, keys: int, schema: pa.Schema) -> None:
        self.schema = schema
        self.keys = keys

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        first = check_offset(offset, 0, None)
        count = check_rows_max(rows_max)
        keys = np.arange(first, first + count) % self.keys
        columns = [pa.array(keys), pa.array(np.zeros(count, np.int64)).view(self.schema.types[1])]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return SourceBatch(rows, first + count, more=True)
