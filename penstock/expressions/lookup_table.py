"""A static table of (key, value) pairs that remembers its hash and its search structure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class LookupTable(tuple[tuple[Any, Any], ...]):
    """An immutable tuple of pairs; large ones are hashed and sorted once, not once per batch."""

    @cached_property
    def _hash(self) -> int:
        return tuple.__hash__(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _sorted(self) -> tuple[Indices, Indices]:
        keys = np.array([key for key, _ in self], dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def find(self, keys: Indices) -> Indices:
        """For each integer key the index of its pair, -1 if the table has none."""
        known, order = self._sorted
        if known.size == 0:
            return np.full(keys.shape, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, keys), known.size - 1)
        return np.where(known[at] == keys, order[at], -1)
