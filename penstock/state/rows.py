"""The arrays of one state: rows, their hash table, their pane lists, and how these grow and shrink.

Rows stay where they are while they live, so a snapshot can walk them piece by piece. Freed rows are
used again; `compact` moves rows together when most are free, never while a snapshot is running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StateTooLarge
from penstock.loops import Bytes, Floats, RowNumbers, Words
from penstock.state import tables
from penstock.state.bound import MemoryBound
from penstock.state.columns import MergeRule, ValueColumn, rule_codes, value_range
from penstock.state.expiry import Expiry
from penstock.state.strings import StringPool

PANE_MIN_NONE = (1 << 63) - 1
_ROWS_MAX = (1 << 31) - 2  # a slot has 32 bits for a row
_ROWS_FIRST = 64
_SLOTS_FIRST = 128
_PANES_FIRST = 16
_PANE_BYTES = tables.PANE_COLUMNS * 8
_COMPACT_ROWS_MIN = 1024
_SAVED_ROWS_MIN = 4096
_PEAK_MARGIN = 0.99  # magnitudes are added as floats: stay clear of their rounding
_NO_ROWS: RowNumbers = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class WordRows:
    """Rows on their way into a table, already words."""

    words: Words  # rows × key columns
    nulls: Words  # bit i: key i is null
    panes: Words
    hashes: NDArray[np.uint32]
    values: Words  # rows × value columns
    valid: Words  # bit i: value i is not null

    def only(self, chosen: NDArray[np.bool_]) -> WordRows:
        return WordRows(
            self.words[chosen],
            self.nulls[chosen],
            self.panes[chosen],
            self.hashes[chosen],
            self.values[chosen],
            self.valid[chosen],
        )


@dataclass(frozen=True, slots=True)
class Overflow:
    """The input row and the value column at which a sum would leave its range."""

    at: int
    column: int


class RowTable:
    """Rows by (key, pane). Knows words only; Arrow, strings' bytes and names are its owner's."""

    def __init__(
        self, keys: int, values: Sequence[ValueColumn], strings: StringPool, bound: MemoryBound
    ) -> None:
        self.keys = keys
        self._strings = strings
        self._bound = bound
        ranges = [value_range(value.type) for value in values]
        self._rules: Words = np.array(rule_codes(values), np.int64)
        self._lows: Words = np.array([low for low, _ in ranges], np.int64)
        self._highs: Words = np.array([high for _, high in ranges], np.int64)
        self._limits: Floats = _PEAK_MARGIN * np.array([high for _, high in ranges], np.float64)
        self._initial = sum(
            1 << index for index, value in enumerate(values) if value.rule is MergeRule.COUNT
        )
        self._sums = bool((self._rules == tables.SUM_INT).any())
        self.width = tables.KEYS + keys + len(values)
        self._row_bytes = self.width * 8 + 5  # with its share of the list of changes
        self._on_saved: Callable[[Words], None] | None = None
        self._ahead: Words = np.empty(tables.LOOK_AHEAD + 1, np.int64)
        self._saved: Words = np.empty((0, self.width), np.int64)
        self._deleted: list[Words] = []
        self.clear()

    def clear(self) -> None:
        """Forget all rows and pending changes. Not while a snapshot is running."""
        assert self._on_saved is None
        self._counters: Words = np.zeros(tables.COUNTERS, np.int64)
        self._counters[tables.PANE_MIN] = PANE_MIN_NONE
        self._store: Words = np.empty((0, self.width), np.int64)
        self._slots: Words = np.zeros(2, np.int64)
        self._panes: Words = np.zeros((2, tables.PANE_COLUMNS), np.int64)
        self._panes_in_order: tuple[NDArray[np.intp], Words] | None = None  # where it is known
        self._dirty: RowNumbers = np.empty(0, np.int32)
        self._peaks: Floats = np.zeros(self._rules.size)
        self._deleted.clear()
        self.expiry: tuple[int, Expiry] | None = None  # by which value; once somebody asks

    def __len__(self) -> int:
        return int(self._counters[tables.ROWS_LIVE])

    @property
    def bytes_used(self) -> int:
        """What the bound is about: all arrays and lists, and the strings that rows refer to."""
        own = self._store.nbytes + self._slots.nbytes + self._panes.nbytes + self._dirty.nbytes
        return own + sum(lines.nbytes for lines in self._deleted) + self._strings.nbytes

    def grant(self, bytes_more: int) -> None:
        """Return if so much more may be used; raise `StateTooLarge` if not."""
        self._bound.grant(bytes_more, self.bytes_used)

    @property
    def _bytes_spare(self) -> int:
        return self._bound.bytes_max - self.bytes_used

    @property
    def has_changes(self) -> bool:
        return bool(self._counters[tables.DIRTY_COUNT]) or bool(self._deleted)

    @property
    def pane_min(self) -> int:
        """No live row is in a lower pane."""
        return int(self._counters[tables.PANE_MIN])

    @property
    def rules(self) -> tuple[Words, Words, Words, Floats]:
        """How values merge, as the loops take it: rules, lowest and highest values, scratch."""
        return self._rules, self._lows, self._highs, np.zeros(self._rules.size)

    @property
    def strings(self) -> tuple[Bytes, Words]:
        """The strings that rows refer to, as the loops take them."""
        return self._strings.arena, self._strings.starts

    # Merging -----------------------------------------------------------------------------------

    def merge(self, rows: WordRows, captured: bool) -> Overflow | None:
        """Merge rows by the columns' rules: all of them, or none (StateTooLarge or an Overflow)."""
        if self._fits(rows.panes.size) and not self._may_overflow(rows):
            self._run(rows, tables.MERGE, captured, _NO_ROWS)
            return None
        return self._merge_carefully(rows, captured)

    def put(self, rows: WordRows, captured: bool) -> None:
        """Set rows to absolute values: all of them, or none and StateTooLarge."""
        if not self._fits(rows.panes.size):
            self._resolve(rows, captured)  # from here on every row exists: nothing can fail
        self._run(rows, tables.PUT, captured, _NO_ROWS)

    def add(self, rows: WordRows, captured: bool) -> NDArray[np.bool_]:
        """Make the rows that are not there, and set these; return which. All, or StateTooLarge."""
        made = self._resolve(rows, captured) < 0
        if rows.values.shape[1] and made.any():
            self._run(rows.only(made), tables.PUT, captured, _NO_ROWS)
        return made

    def _run(self, rows: WordRows, mode: int, captured: bool, rows_out: RowNumbers) -> None:
        if not captured:
            self.expiry = None  # nobody will be told of them
        self._panes_in_order = None
        counters = self._counters
        counters[tables.NEXT] = 0
        while True:
            self._make_room_for_traces(rows.panes.size - int(counters[tables.NEXT]))
            reason = tables.merge_rows(
                self._store,
                self._slots,
                self._panes,
                counters,
                self._dirty,
                self._saved,
                rows.words,
                rows.nulls,
                rows.panes,
                rows.hashes,
                rows.values,
                rows.valid,
                self._rules,
                self._lows,
                self._highs,
                self._peaks,
                self._initial,
                self._strings.arena,
                self._strings.starts,
                mode,
                captured,
                rows_out,
                self._ahead,
            )
            if reason == tables.DONE:
                return
            self._make_room(reason)

    def _may_overflow(self, rows: WordRows) -> bool:
        if not self._sums:
            return False
        return tables.may_overflow(rows.values, rows.valid, self._rules, self._peaks, self._limits)

    def _resolve(self, rows: WordRows, captured: bool) -> RowNumbers:
        """Find or make all rows, or none; new ones come as -1 - row and have no values yet."""
        found: RowNumbers = np.empty(rows.panes.size, np.int32)
        try:
            self._run(rows, tables.RESOLVE, captured, found)
        except StateTooLarge:
            self._take_back(found[: self._counters[tables.NEXT]])
            raise
        return found

    def _take_back(self, found: RowNumbers) -> None:
        self.free(-1 - found[found < 0])

    def _merge_carefully(self, rows: WordRows, captured: bool) -> Overflow | None:
        """Merge into copies of the rows and put these in place only if nothing overflowed."""
        found = self._resolve(rows, captured)
        is_new = found < 0
        numbers, places = np.unique(np.where(is_new, -1 - found, found), return_inverse=True)
        lines = self.lines(numbers.astype(np.int32))
        fresh = np.zeros(numbers.size, np.bool_)
        fresh[places[is_new]] = True
        peaks = self._peaks.copy()
        at, column = tables.merge_into(
            lines,
            places.astype(np.int32),
            fresh,
            rows.values,
            rows.valid,
            self._rules,
            self._lows,
            self._highs,
            peaks,
            self._strings.arena,
            self._strings.starts,
        )
        if at >= 0:
            self._take_back(found)
            return Overflow(at, column)
        self._make_room_for_traces(numbers.size)
        self._peaks = peaks
        tables.replace_values(
            self._store,
            self._counters,
            self._dirty,
            self._saved,
            numbers.astype(np.int32),
            lines,
            tables.KEYS + self.keys,
            captured,
        )
        return None

    # Reading -----------------------------------------------------------------------------------

    def find(self, words: Words, nulls: Words, panes: Words) -> RowNumbers:
        """Return the row of each key, -1 where there is none."""
        return tables.find_rows(self._store, self._slots, words, nulls, panes)

    def lines(self, rows: RowNumbers) -> Words:
        """Return copies of rows."""
        return self._store.take(rows, axis=0)  # several times faster than indexing

    def words(self, rows: RowNumbers, word: int) -> Words:
        """Return one word of each row."""
        return np.asarray(self._store[rows, word])

    def live(self) -> RowNumbers:
        """Return all live rows."""
        used = int(self._counters[tables.ROWS_USED])
        return np.flatnonzero(self._store[:used, tables.META] & tables.LIVE).astype(np.int32)

    def panes(self) -> Words:
        """Return the panes that have rows, in order."""
        return self._pane_order()[1]

    def in_panes(self, pane_from: int, pane_to: int) -> RowNumbers:
        """Return the rows of some panes, both ends included, pane by pane in order."""
        entries, _ = self._pane_order()
        return self._walk(entries[self._span(pane_from, pane_to)])

    def in_these(self, panes: Words) -> RowNumbers:
        """Return the rows of these panes, which are in order."""
        entries, ids = self._pane_order()
        at = np.searchsorted(ids, panes)
        at = at[at < ids.size]
        return self._walk(entries[at[ids[at] == panes[: at.size]]])

    def _walk(self, entries: NDArray[np.intp]) -> RowNumbers:
        total = int(self._panes[entries, tables.PANE_COUNT].sum())
        return tables.walk_panes(self._store, self._panes[entries, tables.PANE_HEAD], total)

    def _pane_order(self) -> tuple[NDArray[np.intp], Words]:
        """Where the panes that have rows stand in their table, in order, and which they are.

        A watermark asks for it several times, and there may be a pane for every ten rows.
        """
        if self._panes_in_order is None:
            entries = np.flatnonzero(self._panes[:, tables.PANE_COUNT] > 0)
            ids = self._panes[entries, tables.PANE_ID]
            order = np.argsort(ids)
            self._panes_in_order = entries[order], ids[order]
        return self._panes_in_order

    def _span(self, pane_from: int, pane_to: int) -> slice:
        """Where some panes stand in their order, both ends included."""
        _, ids = self._pane_order()
        first, end = np.searchsorted(ids, pane_from), np.searchsorted(ids, pane_to, side="right")
        return slice(int(first), int(end))

    # Changes -----------------------------------------------------------------------------------

    def take_changed(self) -> RowNumbers:
        """Return the live rows changed since the last call, each once."""
        changed = tables.take_dirty(self._store, self._counters, self._dirty)
        if self.expiry is not None:
            self._note_moments(*self.expiry, changed)
        return changed

    def take_deleted(self) -> list[Words]:
        """Return the lines that `delete` has removed since the last call."""
        taken, self._deleted = self._deleted, []
        return taken

    def peek_changed(self) -> RowNumbers:
        """Return what `take_changed` would, and leave it there."""
        tables.list_dirty(self._store, self._counters, self._dirty)
        return self._dirty[: self._counters[tables.DIRTY_COUNT]].copy()

    # Removing ----------------------------------------------------------------------------------

    def upto(self, value: int, limit: int) -> RowNumbers:
        """The live rows in which a value, which is a whole number, is at most the limit.

        It costs as much as there are such rows, and rows that have changed since it was last asked.
        """
        if self.expiry is None or self.expiry[0] != value:
            self.expiry = (value, Expiry())
            self._note_moments(*self.expiry, self.live())
        _, expiry = self.expiry
        self._note_moments(value, expiry, self.peek_changed())
        rows = expiry.take(limit)
        rows = rows[self._store[rows, tables.META] & tables.LIVE != 0]
        self._note_moments(value, expiry, rows)
        low = self._store[rows, tables.KEYS + self.keys + value] <= limit
        found: RowNumbers = rows[self._has_value(rows, value) & low]
        return found

    def _note_moments(self, value: int, expiry: Expiry, rows: RowNumbers) -> None:
        rows = rows[self._has_value(rows, value)]
        expiry.note(rows, self._store[rows, tables.KEYS + self.keys + value])

    def _has_value(self, rows: RowNumbers, value: int) -> NDArray[np.bool_]:
        return np.asarray(self._store[rows, tables.VALID] >> value & 1 == 1)

    def delete(self, rows: RowNumbers) -> None:
        """Remove single rows, and keep them as changes."""
        lines = self.lines(rows)
        self.grant(lines.nbytes)
        self._deleted.append(lines)
        self.free(rows)

    def free(self, rows: RowNumbers) -> None:
        """Remove single rows."""
        self._panes_in_order = None
        self._make_room_for_saved(rows.size)
        tables.free_rows(
            self._store,
            self._slots,
            self._panes,
            self._counters,
            self._saved,
            rows,
            self.keys,
            True,
            True,
        )

    def free_panes(self, pane_from: int, pane_to: int) -> int:
        """Remove all rows of some panes, both ends included; return how many there were."""
        rows = self.in_panes(pane_from, pane_to)
        if not rows.size:
            return 0
        one_by_one = rows.size * 2 < len(self)
        self._make_room_for_saved(rows.size)
        tables.free_rows(
            self._store,
            self._slots,
            self._panes,
            self._counters,
            self._saved,
            rows,
            self.keys,
            one_by_one,
            False,
        )
        gone = self._span(pane_from, pane_to)
        entries, panes = self._pane_order()
        self._panes[entries[gone], tables.PANE_HEAD] = 0
        self._panes[entries[gone], tables.PANE_COUNT] = 0
        panes = np.delete(panes, gone)
        self._panes_in_order = np.delete(entries, gone), panes
        self._counters[tables.PANE_MIN] = panes[0] if panes.size else PANE_MIN_NONE
        if not one_by_one and not self.compact():
            self.fill_slots(self._slots.size)
        return int(rows.size)

    def compact(self) -> bool:
        """Move the rows together and give memory back, if most of it is unused; return whether."""
        live, used = len(self), int(self._counters[tables.ROWS_USED])
        capacity = self._store.shape[0]
        if self._on_saved or capacity < _COMPACT_ROWS_MIN or live * 4 > capacity:
            return False
        store = _new_store(max(_ROWS_FIRST, live * 2), self.width)
        panes, self._counters[tables.PANES_USED] = self._live_panes()
        panes[:, tables.PANE_HEAD] = 0
        panes[:, tables.PANE_COUNT] = 0
        moved: RowNumbers = np.empty(used, np.int32)
        tables.compact_rows(self._store, used, store, panes, moved)
        self._list_changed(moved[self.peek_changed()], store.shape[0])
        self.expiry = None  # rows have other numbers
        self._panes_in_order = None
        self._store, self._panes = store, panes
        self._counters[tables.ROWS_USED] = live
        self._counters[tables.FREE_HEAD] = 0
        self.fill_slots(_slots_for(live))
        return True

    def fill_slots(self, size: int) -> None:
        """Build the hash table anew from the rows."""
        self._slots = np.zeros(size, np.int64)
        used = int(self._counters[tables.ROWS_USED])
        tables.fill_slots(self._store, self._slots, used, self.keys)

    # Strings -----------------------------------------------------------------------------------

    def rename_strings(self, columns: Sequence[int], numbers: Words) -> None:
        """Replace the string numbers of some columns (keys first), in all lines."""
        rows = self.live()
        for column in columns:
            at = rows[_has(self._store[rows], column, self.keys)]
            word = tables.KEYS + column
            self._store[at, word] = numbers[self._store[at, word]]
        for lines in self._deleted:
            for column in self._keys_among(columns):
                has, word = _has(lines, column, self.keys), tables.KEYS + column
                lines[has, word] = numbers[lines[has, word]]
        self.fill_slots(self._slots.size)  # the numbers are part of the hashed words

    def strings_used(self, columns: Sequence[int], used: NDArray[np.bool_]) -> None:
        """Mark the numbers of all strings that live rows and the keys of deleted ones have."""
        _mark_strings(self.lines(self.live()), columns, self.keys, used)
        for lines in self._deleted:
            _mark_strings(lines, self._keys_among(columns), self.keys, used)

    def _keys_among(self, columns: Sequence[int]) -> list[int]:
        return [column for column in columns if column < self.keys]

    # Snapshots ---------------------------------------------------------------------------------

    def begin_copy(self, on_saved: Callable[[Words], None]) -> None:
        """From here on `copy_some` and `on_saved` together get every row as it is now, once."""
        assert self._on_saved is None
        self._on_saved = on_saved
        self._counters[tables.COPY_NEXT] = 0
        self._counters[tables.COPY_END] = self._counters[tables.ROWS_USED]

    @property
    def is_copying(self) -> bool:
        return self._on_saved is not None

    def copy_some(self, rows_max: int) -> Words:
        """Look at the next rows and return those that are still as they were."""
        left = int(self._counters[tables.COPY_END] - self._counters[tables.COPY_NEXT])
        out: Words = np.empty((min(rows_max, left), self.width), np.int64)
        return out[: tables.copy_live(self._store, self._counters, out)]

    @property
    def copy_left(self) -> int:
        """How many rows `copy_some` has still to look at."""
        return int(self._counters[tables.COPY_END] - self._counters[tables.COPY_NEXT])

    def end_copy(self) -> None:
        """Hand over what changes had to save; if rows were left to copy, they are left out."""
        first, end = self._counters[tables.COPY_NEXT], self._counters[tables.COPY_END]
        self._store[first:end, tables.META] &= ~tables.SAVED
        self._flush_saved()
        self._on_saved = None
        self._saved = np.empty((0, self.width), np.int64)
        self._counters[tables.COPY_NEXT] = self._counters[tables.COPY_END] = 0

    @property
    def saved_bytes(self) -> int:
        return self._saved.nbytes

    def _flush_saved(self) -> None:
        count = int(self._counters[tables.SAVED_COUNT])
        if count and self._on_saved:
            self._on_saved(self._saved[:count])
        self._counters[tables.SAVED_COUNT] = 0

    # Room --------------------------------------------------------------------------------------

    def reserve(self, rows: int) -> None:
        """Make room for so many further rows at once, as a restore needs it."""
        needed = len(self) + rows
        if needed > self._store.shape[0]:
            self._resize_store(needed)
        if needed > self._slots.size * 6 // 10:
            self._grow_slots(_slots_for(needed))

    def _fits(self, rows: int) -> bool:
        """Whether so many rows can come, even if all are new, without a refusal on the way."""
        live = len(self)
        capacity, slots, panes = self._store.shape[0], self._slots.size, self._panes.shape[0]
        needed = live + rows
        if (
            needed <= capacity
            and needed <= slots * 6 // 10
            and self._counters[tables.PANES_USED] + rows <= panes * 6 // 10
        ):
            return True
        panes_used = int(self._counters[tables.PANES_USED]) + rows
        capacity_after = max(capacity, 2 * needed, _ROWS_FIRST)
        more = (
            (capacity_after - capacity) * self._row_bytes
            + max(0, _SLOTS_FIRST - slots, _slots_for(needed) * 2 - slots) * 8
            + max(0, _PANES_FIRST - panes, _slots_for(panes_used) * 2 - panes) * _PANE_BYTES
        )
        return more <= self._bytes_spare and needed < _ROWS_MAX

    def _make_room(self, reason: int) -> None:
        if reason == tables.ROWS_FULL:
            capacity = self._store.shape[0]
            more = min(max(_ROWS_FIRST, capacity), _ROWS_MAX - capacity)
            affordable = self._bytes_spare // self._row_bytes
            if more > affordable:  # not more rows than have slots, which must grow first
                more = max(1, min(affordable, self._slots.size * 6 // 10 - capacity))
            self._resize_store(capacity + more)
        elif reason == tables.SLOTS_FULL:
            self._grow_slots(max(_SLOTS_FIRST, self._slots.size * 2))
        else:
            assert reason == tables.PANES_FULL
            self._grow_panes()

    def _resize_store(self, capacity: int) -> None:
        more = capacity - self._store.shape[0]
        self.grant(more * self._row_bytes)
        store = _new_store(capacity, self.width)
        used = int(self._counters[tables.ROWS_USED])
        store[:used] = self._store[:used]
        self._store = store
        dirty: RowNumbers = np.empty(capacity + _stale_max(capacity), np.int32)
        dirty[: self._dirty.size] = self._dirty
        self._dirty = dirty

    def _grow_slots(self, size: int) -> None:
        self.grant((size - self._slots.size) * 8)
        slots: Words = np.zeros(size, np.int64)
        tables.grow_slots(self._slots, slots)
        self._slots = slots

    def _grow_panes(self) -> None:
        panes, count = self._live_panes()
        self.grant(panes.nbytes - self._panes.nbytes)
        self._panes = panes
        self._panes_in_order = None
        self._counters[tables.PANES_USED] = count

    def _live_panes(self) -> tuple[Words, int]:
        """A pane table without the panes that are empty, and with room for as many again."""
        count = int((self._panes[:, tables.PANE_COUNT] > 0).sum())
        size = max(_PANES_FIRST, _slots_for(2 * count + 1))
        panes: Words = np.zeros((size, tables.PANE_COLUMNS), np.int64)
        return panes, tables.grow_panes(self._panes, panes)

    def _make_room_for_traces(self, rows: int) -> None:
        """Room on the list of changes, and for a running snapshot's before-images."""
        # Apart from stale entries the list has each row once, and it is longer than the store: so
        # rows that are there can change however full the bound is.
        if self._counters[tables.DIRTY_STALE] > self._dirty.size - self._store.shape[0]:
            self._list_changed(self.peek_changed(), self._store.shape[0])
        self._make_room_for_saved(rows)

    def _list_changed(self, changed: RowNumbers, capacity: int) -> None:
        """Make these rows the list of changes, with room for a store of this capacity."""
        self._dirty = np.empty(capacity + _stale_max(capacity), np.int32)
        self._dirty[: changed.size] = changed
        self._counters[tables.DIRTY_COUNT] = changed.size
        self._counters[tables.DIRTY_STALE] = 0

    def _make_room_for_saved(self, rows: int) -> None:
        if self._on_saved is None:
            return
        needed = min(rows, self.copy_left)
        if int(self._counters[tables.SAVED_COUNT]) + needed > self._saved.shape[0]:
            self._flush_saved()
            self._saved = np.empty((max(needed, _SAVED_ROWS_MIN), self.width), np.int64)


def _has(lines: Words, column: int, keys: int) -> NDArray[np.bool_]:
    """Which rows have a value in a column, counted with the keys first."""
    if column < keys:
        return np.asarray(lines[:, tables.NULLS] >> column & 1 == 0)
    return np.asarray(lines[:, tables.VALID] >> (column - keys) & 1 == 1)


def _mark_strings(lines: Words, columns: Sequence[int], keys: int, used: NDArray[np.bool_]) -> None:
    """Mark the numbers of all strings that these rows refer to."""
    for column in columns:
        used[lines[_has(lines, column, keys), tables.KEYS + column]] = True


def _new_store(rows: int, width: int) -> Words:
    """Rows that begin on a cache line, so that eight words of a row touch one line, not two."""
    words: Words = np.zeros(rows * width + 7, np.int64)  # the flags of unused rows say so
    first = -words.ctypes.data % 64 // 8
    return words[first : first + rows * width].reshape(rows, width)


def _stale_max(capacity: int) -> int:
    """How many stale entries the list of changes may have before it is cleaned."""
    return capacity // 4


def _slots_for(rows: int) -> int:
    """A power of two that holds so many rows at no more than the load that the loops allow."""
    return max(2, 1 << ((rows + 1) * 10 // 6).bit_length())
