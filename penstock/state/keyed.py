"""Keyed state: named, typed, columnar rows by (key, pane), owned by the runtime.

Values of a row are absolute wherever they leave the state (changes, snapshots), so applying a
change twice is applying it once. A batch of changes is applied in this order: evictions (one row
for all panes up to one), deletions, then new values; within one batch nothing else matters,
because only rows that are live when the changes are taken appear with values.

Columns of strings are kept as numbers of interned strings; the numbers never leave the process.
One thread uses a state. Calls either succeed or raise and leave the rows as they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import fixed_column, is_text
from penstock.errors import StateError, StateOverflow, StateTooLarge
from penstock.loops import RowNumbers, Words
from penstock.names import check_name
from penstock.state import tables
from penstock.state.bound import MemoryBound
from penstock.state.columns import (
    CHANGE_NAME,
    HASH_NAME,
    PANE_LOWEST,
    PANE_NAME,
    KeyColumn,
    RowsAsArrow,
    StateSchema,
    ValueColumn,
    bit_words,
    check_schema,
    to_words,
)
from penstock.state.contract import ChangeKind, KeyRange, State
from penstock.state.overlaps import Overlap, window_lines
from penstock.state.rows import Overflow, RowTable, WordRows
from penstock.state.snapshot import COPY_ROWS_MAX, Snapshot
from penstock.state.strings import StringPool

BYTES_MAX_DEFAULT = 1 << 30
_STRINGS_COLLECT_MIN = 1024


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """What a state holds and has done since it was made."""

    rows: int
    panes: int
    strings: int
    bytes: int
    snapshot_bytes: int
    rows_merged: int
    rows_evicted: int


class KeyedState(State):
    """The rows of one state, and everything the runtime does with them."""

    def __init__(
        self, name: str, schema: StateSchema, *, bytes_max: int = BYTES_MAX_DEFAULT
    ) -> None:
        self.name = check_name(name, "state")
        self.schema = schema
        self.bytes_max = bytes_max
        self._strings = StringPool()
        bound = MemoryBound(name, bytes_max)
        self._table = RowTable(len(schema.keys), schema.values, self._strings, bound)
        self._arrow = RowsAsArrow(schema)
        self._evicted_upto: int | None = None
        # Whoever writes it away holds it: a picture may be as large as the state.
        self._snapshot: weakref.ref[Snapshot] | None = None
        columns: list[KeyColumn | ValueColumn] = [*schema.keys, *schema.values]
        self._string_columns = [at for at, column in enumerate(columns) if is_text(column.type)]
        self._strings_kept = 0
        self._rows_merged = 0
        self._rows_evicted = 0

    def __len__(self) -> int:
        return len(self._table)

    def memory_bytes(self) -> int:
        """Return the bytes that `bytes_max` bounds: all tables, lists and interned strings."""
        return self._table.bytes_used

    def statistics(self) -> StateStatistics:
        """Return what the state holds and has done."""
        snapshot = None if self._snapshot is None else self._snapshot()
        return StateStatistics(
            rows=len(self),
            panes=self._table.panes().size,
            strings=len(self._strings),
            bytes=self.memory_bytes(),
            snapshot_bytes=snapshot.nbytes if snapshot is not None else 0,
            rows_merged=self._rows_merged,
            rows_evicted=self._rows_evicted,
        )

    # Writing -----------------------------------------------------------------------------------

    def merge(
        self,
        keys: Sequence[pa.Array],
        panes: Words | None,
        values: Sequence[pa.Array],
        hashes: NDArray[np.uint32] | None = None,
    ) -> None:
        """Merge rows into the state by the columns' rules, in the order given.

        Without `panes` all rows are in pane 0. `hashes` decide who owns a row when the state is
        partitioned, and must be a function of the key; without them all are 0.
        """
        before = len(self._strings)
        try:
            self._merge(self._input(keys, panes, values, hashes))
        except (StateTooLarge, StateOverflow):
            self._strings.truncate(before)
            raise

    def merge_words(
        self,
        words: Words,
        null_words: Words | None,
        panes: Words | None,
        values: Words | Sequence[NDArray[np.int64] | NDArray[np.float64]],
        validity: Words | None = None,
        hashes: NDArray[np.uint32] | None = None,
    ) -> None:
        """Merge rows that are words already: what a compiled kernel hands over, with no Arrow.

        `words` is rows × key columns, C order, 0 where null, floats normalised (NaN one pattern,
        no -0.0) and kept as bits; bit i of a row's `null_words` says that key i is null. `values`
        is the same for the value columns, or one array per column; bit i of `validity` says that
        value i is not null. Not for states that have string columns.
        """
        if self._string_columns:
            raise StateError(
                f"state {self.name!r} has string columns, which have no words outside: use merge",
                state=self.name,
            )
        rows = words.shape[0]
        value_count = len(self.schema.values)
        packed = values if isinstance(values, np.ndarray) else _pack(values, rows)
        if words.shape != (rows, len(self.schema.keys)) or packed.shape != (rows, value_count):
            raise StateError(
                f"state {self.name!r} takes {len(self.schema.keys)} key and {value_count} value "
                f"words per row; got arrays of shape {words.shape} and {packed.shape}",
                state=self.name,
            )
        all_valid = (1 << value_count) - 1
        self._merge(
            WordRows(
                words=_ready(words, np.int64, rows),
                nulls=_ready(null_words, np.int64, rows),
                panes=_ready(panes, np.int64, rows),
                hashes=_ready(hashes, np.uint32, rows),
                values=_ready(packed, np.int64, rows),
                valid=np.full(rows, all_valid, np.int64)
                if validity is None
                else _ready(validity, np.int64, rows),
            )
        )

    def put(
        self,
        keys: Sequence[pa.Array],
        panes: Words | None,
        values: Sequence[pa.Array],
        hashes: NDArray[np.uint32] | None = None,
    ) -> None:
        """Set rows to these values, whatever they were."""
        self._put(keys, panes, values, hashes, captured=True)

    def add(
        self,
        keys: Sequence[pa.Array],
        panes: Words | None,
        values: Sequence[pa.Array],
        hashes: NDArray[np.uint32] | None = None,
    ) -> NDArray[np.bool_]:
        """Make the rows that are not there; return which of the input made one, each once."""
        before = len(self._strings)
        try:
            return self._table.add(self._input(keys, panes, values, hashes), captured=True)
        except StateTooLarge:
            self._strings.truncate(before)
            raise

    def delete(self, keys: Sequence[pa.Array], panes: Words | None = None) -> int:
        """Remove single rows; return how many there were."""
        words, nulls = self._find_words(keys, None if panes is None else len(panes))
        found = self._table.find(words, nulls, _ready(panes, np.int64, len(words)))
        rows = np.unique(found[found >= 0])
        if rows.size:
            self._table.delete(rows)
            self._give_back()
        return int(rows.size)

    def delete_in(self, panes: Words) -> int:
        """Remove the rows of these panes, which are in order, one by one; return how many."""
        rows = self._table.in_these(panes)
        if rows.size:
            self._table.delete(rows)
            self._give_back()
        return int(rows.size)

    def delete_upto(self, column: str, limit: int) -> int:
        """Remove the rows in which a column of whole numbers is at most the limit; how many."""
        rows = self._table.upto(self._place(column), limit)
        if rows.size:
            self._table.delete(rows)
            self._give_back()
        return int(rows.size)

    def drop_panes(self, pane_upto: int) -> int:
        """Remove the rows of all panes up to this one; return how many there were."""
        if pane_upto < self._table.pane_min:
            return 0
        count = self._evict(pane_upto)
        if count:
            evicted = self._evicted_upto
            self._evicted_upto = pane_upto if evicted is None else max(evicted, pane_upto)
        return count

    def clear(self) -> None:
        """Forget everything, pending changes included."""
        self._refuse_while_copying("clear")
        self._table.clear()
        self._strings.truncate(0)
        self._strings_kept = 0
        self._evicted_upto = None

    def _evict(self, pane_upto: int) -> int:
        count = self._table.free_panes(PANE_LOWEST, pane_upto)
        self._rows_evicted += count
        if count:
            self._give_back()
        return count

    def _merge(self, rows: WordRows) -> None:
        overflow = self._table.merge(rows, captured=True)
        if overflow:
            line = np.zeros((1, tables.KEYS + len(self.schema.keys)), np.int64)
            line[0, tables.NULLS] = rows.nulls[overflow.at]
            line[0, tables.PANE] = rows.panes[overflow.at]
            line[0, tables.KEYS :] = rows.words[overflow.at]
            raise self._overflow(line, overflow)
        self._rows_merged += rows.panes.size

    def _overflow(self, line: Words, overflow: Overflow) -> StateOverflow:
        at, column = overflow.at, self.schema.values[overflow.column]
        key = self._show_key(line)
        return StateOverflow(
            f"{column.rule} of column {column.name!r} ({column.type}) in state {self.name!r} "
            f"overflows for key {key} at input row {at}. Nothing was changed. Cast the column to a "
            "wider type",
            state=self.name,
            column=column.name,
            key=key,
            row=at,
        )

    def _show_key(self, line: Words) -> str:
        columns = self._arrow.keys(line, self._strings.view())
        shown = [
            f"{key.name}={column[0].as_py()!r}"
            for key, column in zip(self.schema.keys, columns, strict=True)
        ]
        return f"({', '.join([*shown, f'pane={line[0, tables.PANE]}'])})"

    def _put(
        self,
        keys: Sequence[pa.Array],
        panes: Words | None,
        values: Sequence[pa.Array],
        hashes: NDArray[np.uint32] | None,
        captured: bool,
    ) -> None:
        before = len(self._strings)
        try:
            self._table.put(self._input(keys, panes, values, hashes), captured)
        except StateTooLarge:
            self._strings.truncate(before)
            raise

    # Reading -----------------------------------------------------------------------------------

    def get(
        self, keys: Sequence[pa.Array], panes: Words | None = None
    ) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """Return the value columns of each key, nulls where it has no row, and which have one."""
        words, nulls = self._find_words(keys, None if panes is None else len(panes))
        rows = self._table.find(words, nulls, _ready(panes, np.int64, len(words)))
        found = rows >= 0
        width = tables.KEYS + len(self.schema.keys) + len(self.schema.values)
        lines: Words = np.zeros((rows.size, width), np.int64)
        lines[found] = self._table.lines(rows[found])
        return self._arrow.values(lines, self._strings.view()), found

    def panes(self) -> Words:
        """Return the panes that have rows, in order."""
        return self._table.panes()

    def rows(self, pane_from: int, pane_to: int) -> pa.RecordBatch:
        """Return the rows of some panes, both ends included, by pane, then key."""
        if pane_to < self._table.pane_min:
            return self._arrow.rows(self._table.lines(_NO_ROWS), self._strings.view())
        return self._ordered(self._table.in_panes(pane_from, pane_to))

    def rows_in(self, panes: Words) -> pa.RecordBatch:
        """Return the rows of these panes, which are in order, by pane, then key."""
        return self._ordered(self._table.in_these(panes))

    def rows_upto(self, column: str, limit: int) -> pa.RecordBatch:
        """Return the rows in which a column of whole numbers is at most the limit, ordered."""
        return self._ordered(self._table.upto(self._place(column), limit))

    def _place(self, column: str) -> int:
        return [value.name for value in self.schema.values].index(column)

    def scan(self) -> pa.RecordBatch:
        """Return all rows, by pane, then key."""
        return self._ordered(self._table.live())

    def changed_rows(self) -> pa.RecordBatch:
        """Return the rows changed since the changes were last taken, by pane, then key."""
        return self._ordered(self._table.peek_changed())

    def window_rows(
        self, windows: Words, overlap: Overlap, only_changed: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these windows, merged by key, by window, then key.

        The windows are in order. Panes merge in their order, so `first` is the earliest pane's
        value. A row's pane is the number of its window. With `only_changed` a window has only the
        keys with a row that was changed since the changes were last taken. The state must not
        change before all are taken.
        """
        rows = self._table.in_these(overlap.panes_under(windows, self._table.panes()))
        order = self._order(rows, pane_first=False)
        rows = rows if order is None else rows[order]
        for found, overflow in window_lines(self._table, rows, windows, overlap, only_changed):
            if overflow is not None:
                raise self._overflow(found, overflow)
            if len(found):
                yield self._arrow.rows(found, self._strings.view())

    def _ordered(self, rows: RowNumbers) -> pa.RecordBatch:
        # Order first, copy once: whole rows are the expensive part.
        order = self._order(rows)
        lines = self._table.lines(rows if order is None else rows[order])
        return self._arrow.rows(lines, self._strings.view())

    def _order(self, rows: RowNumbers, pane_first: bool = True) -> NDArray[np.intp] | None:
        table = self._table
        return self._arrow.order(
            lambda word: table.words(rows, word), rows.size, self._strings.ranks, pane_first
        )

    # Changes -----------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` may have something."""
        return self._table.has_changes or self._evicted_upto is not None

    def take_changes(self) -> pa.RecordBatch | None:
        """Return what changed since the last call, None if nothing did.

        The cost is that of the changed rows, however large the state; the eviction of whole panes
        is one row.
        """
        lines = self._table.lines(self._table.take_changed())
        kinds = np.full(len(lines), ChangeKind.PUT, np.int8)
        deleted = self._table.take_deleted()
        if deleted or self._evicted_upto is not None:
            removed = self._removed_lines(deleted, lines.shape[1])
            removed_kinds = np.full(len(removed), ChangeKind.DELETE, np.int8)
            if self._evicted_upto is not None:
                removed_kinds[0] = ChangeKind.EVICT
            lines = np.concatenate([removed, lines])
            kinds = np.concatenate([removed_kinds, kinds])
            self._evicted_upto = None
        if not len(lines):
            return None
        return self._arrow.changes(lines, kinds, self._strings.view())

    def _removed_lines(self, deleted: Sequence[Words], width: int) -> Words:
        evicted: Words = np.zeros((0 if self._evicted_upto is None else 1, width), np.int64)
        if self._evicted_upto is not None:
            evicted[0, tables.NULLS] = (1 << len(self.schema.keys)) - 1
            evicted[0, tables.PANE] = self._evicted_upto
        removed: Words = np.concatenate([evicted, *deleted])
        removed[:, tables.VALID] = 0
        removed[:, tables.KEYS + len(self.schema.keys) :] = 0
        return removed

    def discard_changes(self) -> None:
        """Forget which rows changed: a checkpoint holds them all, or nobody will ask."""
        self._table.take_changed()
        self._table.take_deleted()
        self._evicted_upto = None

    def apply_changes(self, changes: pa.RecordBatch, only: KeyRange | None = None) -> None:
        """Apply what `take_changes` returned, here or elsewhere; `only` takes one range of hashes.

        What is applied is not captured again: it comes from a log that has it.
        """
        check_schema(self.name, changes, self.schema.change_schema)
        self._refuse_while_copying("apply changes")
        kinds = changes.column(CHANGE_NAME).to_numpy()
        if kinds.size and (kinds.min() < ChangeKind.PUT or kinds.max() > ChangeKind.EVICT):
            raise StateError(
                f"changes of state {self.name!r} hold a kind of change that this version does not "
                f"know: {sorted(set(kinds.tolist()))}",
                state=self.name,
            )
        if kinds.any():
            evicted = changes.column(PANE_NAME).to_numpy()[kinds == ChangeKind.EVICT]
            if evicted.size:
                self._evict(int(evicted.max()))
            self._apply_deletes(changes.filter(pa.array(kinds == ChangeKind.DELETE)))
            changes = changes.filter(pa.array(kinds == ChangeKind.PUT))
        self._put_batch(changes, only, captured=False)

    def removals(self, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        kinds = changes.column(CHANGE_NAME).to_numpy()
        return changes.filter(pa.array(kinds != ChangeKind.PUT)) if kinds.any() else None

    def as_changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kinds = fixed_column(pa.int8(), np.full(rows.num_rows, ChangeKind.PUT, np.int8))
        return pa.RecordBatch.from_arrays([*rows.columns, kinds], schema=self.schema.change_schema)

    def _apply_deletes(self, deletes: pa.RecordBatch) -> None:
        words, nulls = self._find_words(deletes.columns[: len(self.schema.keys)], len(deletes))
        panes = _ready(deletes.column(PANE_NAME).to_numpy(), np.int64, len(deletes))
        found = self._table.find(words, nulls, panes)
        self._table.free(np.unique(found[found >= 0]))

    # Snapshots, restoring, partitioning --------------------------------------------------------

    def begin_snapshot(self) -> Snapshot:
        """Begin a picture of the rows as they are now; it belongs to the marker just written.

        Changes must have been taken: otherwise the picture would hold what no marker covers.
        """
        self._refuse_while_copying("begin another snapshot")
        if self.has_changes:
            raise StateError(
                f"state {self.name!r} has changes that were not taken: a snapshot begins at a "
                "marker, right after take_changes",
                state=self.name,
            )
        snapshot = Snapshot(self._table, self._strings.view(), self._arrow)
        self._snapshot = weakref.ref(snapshot)
        return snapshot

    def restore(self, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None) -> None:
        """Replace everything by what a snapshot holds; `only` takes one range of key hashes."""
        self.clear()
        if isinstance(batches, Sequence) and only is None:
            self._table.reserve(sum(batch.num_rows for batch in batches))
        for batch in batches:
            check_schema(self.name, batch, self.schema.snapshot_schema)
            self._put_batch(batch, only, captured=False)

    def partition(self, ranges: Sequence[KeyRange]) -> list[Self]:
        """Return one new state per range of key hashes; each row must fall into exactly one."""
        if self.has_changes:
            raise StateError(
                f"state {self.name!r} has changes that were not taken: partition it at a marker",
                state=self.name,
            )
        lines = self._table.lines(self._table.live())
        hashes = lines[:, tables.META] & tables.HASH_MASK
        owners = [(hashes >= low) & (hashes < high) for low, high in ranges]
        if not (np.sum(owners, axis=0) == 1).all():
            raise StateError(
                f"ranges {list(ranges)} do not give each row of state {self.name!r} one owner",
                state=self.name,
            )
        return [self._part(lines[owned]) for owned in owners]

    def _part(self, lines: Words) -> Self:
        part = self.empty()
        part.restore(self._snapshot_batches(lines))
        return part

    def empty(self) -> Self:
        return type(self)(self.name, self.schema, bytes_max=self.bytes_max)

    def merge_from(self, other: Self) -> None:
        """Take over all rows of a state with other keys; they count as changes of this one."""
        if other.schema != self.schema:
            raise StateError(
                f"states {self.name!r} and {other.name!r} have different columns", state=self.name
            )
        batches = list(other._snapshot_batches(other._table.lines(other._table.live())))
        for batch in batches:
            keys = batch.columns[: len(self.schema.keys)]
            words, nulls = self._find_words(keys, len(batch))
            panes = _ready(batch.column(PANE_NAME).to_numpy(), np.int64, len(batch))
            found = self._table.find(words, nulls, panes) >= 0
            if found.any():
                raise StateError(
                    f"{int(found.sum())} rows of state {other.name!r} are in state {self.name!r} "
                    "too: only states with different keys can be put together",
                    state=self.name,
                )
        self._table.reserve(len(other))
        for batch in batches:
            self._put_batch(batch, None, captured=True)

    def _snapshot_batches(self, lines: Words) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(lines), COPY_ROWS_MAX):
            yield self._arrow.snapshot(lines[first : first + COPY_ROWS_MAX], self._strings.view())

    def _put_batch(self, batch: pa.RecordBatch, only: KeyRange | None, captured: bool) -> None:
        if only is not None:
            hashes = batch.column(HASH_NAME).to_numpy().astype(np.int64)
            batch = batch.filter(pa.array((hashes >= only[0]) & (hashes < only[1])))
        keys = len(self.schema.keys)
        self._put(
            batch.columns[:keys],
            batch.column(PANE_NAME).to_numpy(),
            batch.columns[keys + 2 : keys + 2 + len(self.schema.values)],
            batch.column(HASH_NAME).to_numpy(),
            captured,
        )

    def _refuse_while_copying(self, what: str) -> None:
        if self._table.is_copying:
            raise StateError(
                f"cannot {what} while a snapshot of state {self.name!r} is running: finish it with "
                "copy_some or abandon it",
                state=self.name,
            )

    # Columns to words --------------------------------------------------------------------------

    def _input(
        self,
        keys: Sequence[pa.Array],
        panes: Words | None,
        values: Sequence[pa.Array],
        hashes: NDArray[np.uint32] | None,
    ) -> WordRows:
        self._collect_strings()
        count = _row_count(keys, panes, values)
        keys = self._checked(self.schema.keys, keys, count)
        values = self._checked(self.schema.values, values, count)
        return WordRows(
            words=self._words(keys, count, normalise=True),
            nulls=bit_words(keys, count, when_valid=False),
            panes=_ready(panes, np.int64, count),
            hashes=_ready(hashes, np.uint32, count),
            values=self._words(values, count, normalise=False),
            valid=bit_words(values, count, when_valid=True),
        )

    def _words(self, columns: Sequence[pa.Array], count: int, normalise: bool) -> Words:
        words: Words = np.empty((count, len(columns)), np.int64)
        for index, column in enumerate(columns):
            if _is_text(column):
                words[:, index] = self._strings.intern(column, self._table.grant)
            else:
                words[:, index] = to_words(column, normalise)
        return words

    def _find_words(
        self, keys: Sequence[pa.Array], count: int | None = None
    ) -> tuple[Words, Words]:
        """Words and null bits of keys that are only looked up; unknown strings match nothing."""
        count = _row_count(keys, None, ()) if count is None else count
        keys = self._checked(self.schema.keys, keys, count)
        words: Words = np.empty((count, len(keys)), np.int64)
        for index, column in enumerate(keys):
            words[:, index] = (
                self._strings.find(column) if _is_text(column) else to_words(column, True)
            )
        return words, bit_words(keys, count, when_valid=False)

    def _checked(
        self,
        columns: Sequence[KeyColumn | ValueColumn],
        arrays: Sequence[pa.Array],
        count: int,
    ) -> list[pa.Array]:
        if len(arrays) != len(columns):
            raise StateError(
                f"state {self.name!r} has columns {[column.name for column in columns]}; "
                f"got {len(arrays)} arrays",
                state=self.name,
            )
        return [
            self._one(column, array, count) for column, array in zip(columns, arrays, strict=True)
        ]

    def _one(self, column: KeyColumn | ValueColumn, array: pa.Array, count: int) -> pa.Array:
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        kind = array.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            # Only what rows have is interned, or little more.
            is_wide = len(array.dictionary) > count
            if not is_text(kind) or is_wide or array.dictionary.null_count:
                array = array.dictionary_decode()
        if kind != column.type or len(array) != count:
            raise StateError(
                f"column {column.name!r} of state {self.name!r} takes {count} values of type "
                f"{column.type}; got {len(array)} of type {kind}",
                state=self.name,
                column=column.name,
            )
        return array

    # Memory ------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        if self._table.compact():
            self._collect_strings(at_least=0)

    def _collect_strings(self, at_least: int = _STRINGS_COLLECT_MIN) -> None:
        """Forget strings that no row refers to, once there may be as many as are in use."""
        count = len(self._strings)
        grown = max(at_least, len(self) // 4)
        if count <= 2 * self._strings_kept + grown or self._table.is_copying:
            return
        used = np.zeros(count, np.bool_)
        self._table.strings_used(self._string_columns, used)
        self._table.rename_strings(self._string_columns, self._strings.keep(used))
        self._strings_kept = len(self._strings)


_NO_ROWS = np.empty(0, np.int32)

T = TypeVar("T", bound=np.generic)


def _is_text(column: pa.Array) -> bool:
    return is_text(column.type) or bool(pa.types.is_dictionary(column.type))


def _row_count(keys: Sequence[pa.Array], panes: Words | None, values: Sequence[pa.Array]) -> int:
    if panes is not None:
        return len(panes)
    if not keys and not values:
        raise StateError(
            "rows without key columns and values need panes, to say how many there are"
        )
    return len(keys[0]) if keys else len(values[0])


def _ready(array: NDArray[T] | None, kind: type[T], rows: int) -> NDArray[T]:
    """An array as the loops take it: of this type, contiguous, writable; zeros for None."""
    if array is None:
        return np.zeros(rows, kind)
    if array.shape[0] != rows:
        raise StateError(f"expected {rows} rows, got an array of {array.shape[0]}")
    if array.dtype == kind and array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.array(array, dtype=kind, order="C")


def _pack(columns: Sequence[NDArray[np.int64] | NDArray[np.float64]], rows: int) -> Words:
    packed: Words = np.empty((rows, len(columns)), np.int64)
    for index, column in enumerate(columns):
        packed[:, index] = column.view(np.int64) if column.dtype == np.float64 else column
    return packed
