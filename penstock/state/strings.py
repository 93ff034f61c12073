"""Interned strings of one state: bytes in one arena, each distinct string once, known by a number.

Numbers are an inner matter of a running state: snapshots and changes carry the real strings.
Numbers in use never change, except by `keep`, which also gives back the room of unused strings.
The arena is append-only and replaced, never resized, so a view taken earlier stays readable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import is_large, text_column, texts_of, validity_of
from penstock.errors import StateError
from penstock.loops import Bytes, Words
from penstock.state import tables

_OFFSET_MAX = (1 << 31) - 1
_RANKED_PER_ROW = 4  # with so many more strings than rows to order, only the latter are ranked

Validity = NDArray[np.bool_] | None  # None: everything is valid
Grant = Callable[[int], None]  # asked before more bytes are taken; raises to refuse them


@dataclass(frozen=True, slots=True)
class StringView:
    """The strings of a pool as they were at one moment; readable from another thread."""

    arena: Bytes
    starts: Words

    def to_arrow(self, ids: Words, valid: Validity, kind: pa.DataType) -> pa.Array:
        """Return the strings with these numbers as an Arrow array."""
        ids = np.ascontiguousarray(ids)
        valid = np.ones(ids.size, np.bool_) if valid is None else valid
        offsets = np.zeros(ids.size + 1, np.int64)
        tables.string_ends(self.starts, ids, valid, offsets[1:])
        if not is_large(kind) and offsets[-1] > _OFFSET_MAX:
            raise StateError(
                f"{ids.size} rows hold {offsets[-1]} bytes of strings, more than one Arrow batch "
                f"of type {kind} can: read fewer rows at once or use a large_{kind} column",
                bytes=int(offsets[-1]),
            )
        out = np.empty(int(offsets[-1]), np.uint8)
        tables.copy_strings(self.arena, self.starts, ids, valid, out)
        return text_column(kind, offsets, out, valid)


class StringPool:
    """A growing set of distinct byte strings, numbered from 0 in the order of arrival."""

    def __init__(self) -> None:
        self._counters: Words = np.zeros(tables.STRING_COUNTERS, np.int64)
        self._arena: Bytes = np.empty(0, np.uint8)
        self._starts: Words = np.zeros(2, np.int64)  # two: nulls look up number 0
        self._slots: Words = np.zeros(2, np.int64)
        self._ranks: Words = np.empty(0, np.int64)  # of all strings, once asked for

    def __len__(self) -> int:
        return int(self._counters[tables.STRINGS])

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes + self._starts.nbytes + self._slots.nbytes

    @property
    def arena(self) -> Bytes:
        return self._arena

    @property
    def starts(self) -> Words:
        return self._starts

    def view(self) -> StringView:
        """Return the strings of this moment."""
        return StringView(self._arena, self._starts)

    def intern(self, array: pa.Array, grant: Grant) -> Words:
        """Return the number of each string, 0 for nulls, adding those that are new."""
        return self._numbers(array, grant)

    def find(self, array: pa.Array) -> Words:
        """Return the number of each string, -1 for those that are not here."""
        return self._numbers(array, None)

    def _numbers(self, array: pa.Array, grant: Grant | None) -> Words:
        if pa.types.is_dictionary(array.type):
            if len(array.dictionary) == 0:
                return np.zeros(len(array), np.int64)
            numbers = self._numbers(array.dictionary, grant)
            return np.where(validity_of(array), numbers[array.indices.fill_null(0)], 0)
        ids = np.empty(len(array), np.int64)
        offsets, data = texts_of(array)
        offsets = offsets.astype(np.int64)
        valid = validity_of(array)
        self._counters[tables.STRING_NEXT] = 0
        while True:
            reason = tables.intern(
                offsets,
                data,
                valid,
                self._arena,
                self._starts,
                self._slots,
                self._counters,
                ids,
                grant is not None,
            )
            if reason == tables.DONE:
                return ids
            assert grant is not None
            at = self._counters[tables.STRING_NEXT]
            self._make_room(reason, int(offsets[at + 1] - offsets[at]), grant)

    def _make_room(self, reason: int, string_bytes: int, grant: Grant) -> None:
        if reason == tables.SLOTS_FULL:
            size = max(64, self._slots.size * 2)
            grant((size - self._slots.size) * 8)
            slots: Words = np.zeros(size, np.int64)
            tables.grow_slots(self._slots, slots)
            self._slots = slots
        elif reason == tables.STRINGS_FULL:
            size = max(64, self._starts.size * 2)
            grant((size - self._starts.size) * 8)
            starts: Words = np.empty(size, np.int64)
            starts[: self._starts.size] = self._starts
            self._starts = starts
        else:
            size = max(1024, self._arena.size * 2, self._arena.size + string_bytes)
            grant(size - self._arena.size)
            arena: Bytes = np.empty(size, np.uint8)
            used = int(self._counters[tables.STRING_BYTES])
            arena[:used] = self._arena[:used]
            self._arena = arena

    def ranks(self, ids: Words) -> Words:
        """Return words whose order is that of the strings with these numbers."""
        known = len(self)
        if known > _RANKED_PER_ROW * ids.size:
            distinct, places = np.unique(ids, return_inverse=True)
            return _ranked(self.view(), distinct)[places]
        if self._ranks.size < known or not known:
            self._ranks = _ranked(self.view(), np.arange(max(known, 1)))
        return self._ranks[ids]

    def truncate(self, count: int) -> None:
        """Forget the strings numbered `count` and above, which nothing may use."""
        if count < len(self):
            self._rebuild(np.arange(len(self)) < count)

    def keep(self, used: NDArray[np.bool_]) -> Words:
        """Forget the strings that are not used; return the new number of each old one."""
        assert used.size == len(self)
        numbers: Words = np.cumsum(used) - 1
        self._rebuild(used)
        return numbers

    def _rebuild(self, used: NDArray[np.bool_]) -> None:
        # With room for more, but never more than there was: nobody is asked for it.
        ids = np.flatnonzero(used).astype(np.int64)
        starts: Words = np.zeros(min(ids.size + ids.size // 2 + 2, self._starts.size), np.int64)
        np.cumsum(self._starts[ids + 1] - self._starts[ids], out=starts[1 : ids.size + 1])
        total = int(starts[ids.size])
        arena: Bytes = np.empty(min(total + total // 2, self._arena.size), np.uint8)
        tables.copy_strings(self._arena, self._starts, ids, np.ones(ids.size, np.bool_), arena)
        size = 2
        while size * 6 // 10 <= ids.size and size < self._slots.size:
            size *= 2
        slots: Words = np.zeros(size, np.int64)
        tables.fill_string_slots(arena, starts, ids.size, slots)
        self._arena, self._starts, self._slots = arena, starts, slots
        self._counters[tables.STRINGS] = ids.size
        self._counters[tables.STRING_BYTES] = total
        self._ranks = self._ranks[:0]


def _ranked(strings: StringView, ids: Words) -> Words:
    """The place of each of these different strings in their order."""
    ranks = np.empty(ids.size, np.int64)
    texts = strings.to_arrow(ids, None, pa.large_binary())
    ranks[pc.sort_indices(texts).to_numpy()] = np.arange(ids.size)
    return ranks
