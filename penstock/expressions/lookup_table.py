"""A static table of (key, value) pairs that remembers its hash and its search structure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Numbers
from penstock.expressions.types import DataType, arrow_type


class LookupTable(tuple[tuple[Any, Any], ...]):
    """An immutable tuple of pairs; large ones are hashed and sorted once, not once per batch."""

    @cached_property
    def _hash(self) -> int:
        return tuple.__hash__(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _sorted(self) -> tuple[Numbers, Numbers]:
        keys = np.array([key for key, _ in self], dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @cached_property
    def _columns(self) -> dict[tuple[int, DataType], pa.Array]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        # what is remembered stays behind: hashes of text differ between processes
        return (LookupTable, (tuple(self),))

    def column(self, index: int, data_type: DataType) -> pa.Array:
        """The keys (0) or the values (1) of all pairs."""
        known = self._columns.get((index, data_type))
        if known is None:
            known = pa.array([pair[index] for pair in self], arrow_type(data_type))
            self._columns[index, data_type] = known
        return known

    def find(self, keys: Numbers) -> Numbers:
        """For each integer key the index of its pair, -1 if the table has none."""
        known, order = self._sorted
        if known.size == 0:
            return np.full(keys.shape, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, keys), known.size - 1)
        return np.where(known[at] == keys, order[at], -1)
