"""A row store: whole rows by key, in the order of their arrival, forgotten in bulk by time.

Rows are kept as Arrow columns in chunks that are only ever appended to, beside arrays with what is
known of each row: its number for ever (`id`), until when it is kept, a mark. Where its place in
these is changes only when most places are dead and the rest is moved together. So a picture is what
chunks and arrays hold now, with a copy of two flags per row; nothing else of it can change.

A batch of changes is applied in this order: evictions (all rows kept until one moment, or less),
deletions, marks, then new rows. One thread uses a store. Calls either succeed or raise and leave
the rows as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, no_rows
from penstock.errors import StateError
from penstock.loops import Hashes
from penstock.names import check_name
from penstock.state import row_index
from penstock.state.bound import MemoryBound
from penstock.state.columns import check_schema
from penstock.state.contract import ChangeKind, KeyRange, Picture, State

NEVER = (1 << 63) - 1  # until when rows are kept that time does not end
CHUNK_ROWS_MAX = 1 << 16
PAIRS_MAX = 1 << 20  # that are looked at together, unless one row has more
_FAN = 16  # so many chunks of one size become one
_BLOCK = 1 << 12  # rows that are known by the first of them to go
_ROWS_FIRST = 1 << 10
_COMPACT_ROWS_MIN = 1 << 13


_NO_IDS: Numbers = np.empty(0, np.int64)
_CHANGE, _ID, _UNTIL, _MARKED = "__change", "__id", "__until", "__marked"


class Keys(NamedTuple):
    """The keys of rows: equal words, equal keys. Rows that are not linked match nothing."""

    words: Numbers  # rows × words
    linked: Mask


@dataclass(frozen=True)
class RowKind:
    """The rows of a store: their columns, and what their keys are."""

    schema: pa.Schema
    keys_of: Callable[[pa.RecordBatch], Keys]
    hashes_of: Callable[[pa.RecordBatch], Hashes]  # which decide who owns a row

    def snapshot_schema(self) -> pa.Schema:
        own = [
            pa.field(_ID, pa.int64()),
            pa.field(_UNTIL, pa.int64()),
            pa.field(_MARKED, pa.bool_()),
        ]
        return pa.schema([*own, *(field.with_nullable(True) for field in self.schema)])

    def change_schema(self) -> pa.Schema:
        return self.snapshot_schema().insert(0, pa.field(_CHANGE, pa.int8()))


class RowStore(State):
    """The rows of one state, and everything the runtime does with them."""

    def __init__(self, name: str, kind: RowKind, *, bytes_max: int) -> None:
        self.name = check_name(name, "state")
        self.kind = kind
        self.bytes_max = bytes_max
        self._bound = MemoryBound(name, bytes_max)
        self._forget_all()

    def _forget_all(self) -> None:
        words = self.kind.keys_of(no_rows(self.kind.schema)).words.shape[1]
        self._words: Numbers = np.empty((0, words), np.int64)
        self._linked: Mask = np.empty(0, np.bool_)
        self._ids: Numbers = np.empty(0, np.int64)
        self._until: Numbers = np.empty(0, np.int64)
        self._marked: Mask = np.empty(0, np.bool_)
        self._live: Mask = np.empty(0, np.bool_)
        self._nexts: Numbers = np.empty(0, np.int64)
        self._first_until: Numbers = np.empty(0, np.int64)  # of each block
        self._slots: Numbers = np.zeros(2, np.int64)
        self._chunks: list[pa.RecordBatch] = []
        self._starts: list[int] = []  # of the chunks
        self._chunk_bytes = 0
        self._used = 0
        self._rows = 0
        self._new_from = 0  # rows from here on are changes
        self._deleted: list[Numbers] = []  # ids
        self._marks: list[Numbers] = []  # ids
        self._evicted_upto: int | None = None

    def __len__(self) -> int:
        return self._rows

    def memory_bytes(self) -> int:
        arrays = (
            self._words, self._linked, self._ids, self._until, self._marked, self._live,
            self._nexts, self._first_until, self._slots, *self._deleted, *self._marks,
        )  # fmt: skip
        return self._chunk_bytes + sum(array.nbytes for array in arrays)

    # --- looking up -------------------------------------------------------------------------------

    def matches(self, keys: Keys) -> Iterator[tuple[Numbers, Numbers]]:
        """The rows of each key, the oldest first: places in `keys` and rows, many at a time.

        The store must not change before all are taken; the numbers of rows hold until it does.
        """
        count = len(keys.words)
        heads: Numbers = np.empty(count, np.int64)
        counts: Numbers = np.empty(count, np.int64)
        row_index.count_matches(
            self._slots, self._nexts, self._words, self._live, keys.words, keys.linked, heads,
            counts,
        )  # fmt: skip
        ends = np.cumsum(counts)
        first, done = 0, 0
        while first < count and done < ends[-1]:
            end = max(first + 1, int(np.searchsorted(ends, done + PAIRS_MAX, side="right")))
            pairs = int(ends[end - 1]) - done
            ats: Numbers = np.empty(pairs, np.int64)
            rows: Numbers = np.empty(pairs, np.int64)
            row_index.fill_matches(self._nexts, heads, ends, first, end, ats, rows)
            if pairs:
                yield ats, rows
            first, done = end, int(ends[end - 1])

    def take(self, rows: Numbers, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """These rows, in this order; of all columns or of some."""
        chunks = self._chunks if names is None else [c.select(names) for c in self._chunks]
        if not chunks:
            schema = self.kind.schema
            return no_rows(schema if names is None else pa.schema([schema.field(n) for n in names]))
        at = np.searchsorted(self._starts, rows, side="right") - 1
        first = int(at[0]) if at.size else 0
        if at.size == 0 or (at == first).all():
            return chunks[first].take(pa.array(rows - self._starts[first]))
        order = np.argsort(at, kind="stable")
        ordered = at[order]
        edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), rows.size]
        pieces = []
        for start, end in pairwise(edges):
            chunk = int(ordered[start])
            pieces.append(
                chunks[chunk].take(pa.array(rows[order[start:end]] - self._starts[chunk]))
            )
        together = pa.concat_batches(pieces)
        if (np.diff(at) >= 0).all():
            return together
        places = np.empty(rows.size, np.int64)
        places[order] = np.arange(rows.size)
        return together.take(pa.array(places))

    def is_marked(self, rows: Numbers) -> Mask:
        return self._marked[rows]

    def expired(self, upto: int) -> Numbers:
        """The rows that are kept until this moment, or less, in the order of their arrival."""
        blocks = np.flatnonzero(self._first_until[: -(-self._used // _BLOCK)] <= upto)
        rows = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        rows = rows[rows < self._used]
        found: Numbers = rows[self._live[rows] & (self._until[rows] <= upto)]
        return found

    def scan(self) -> pa.RecordBatch:
        """All rows, in the order of their arrival."""
        return self.take(self._alive())

    def described(self) -> pa.RecordBatch:
        """All rows, as `scan` has them, behind what is known of each."""
        alive = self._alive()
        return self._described(self.take(alive), alive)

    def _alive(self) -> Numbers:
        return np.flatnonzero(self._live[: self._used])

    # --- changing ---------------------------------------------------------------------------------

    def insert(
        self,
        rows: pa.RecordBatch,
        keys: Keys,
        until: Numbers | None = None,
        marked: Mask | None = None,
    ) -> None:
        """Add rows, each kept until a moment; without one, for ever."""
        first = int(self._ids[self._used - 1]) + 1 if self._used else 0
        ids = np.arange(first, first + rows.num_rows)
        self._append(rows, keys, ids, until, marked)

    def mark(self, rows: Numbers) -> None:
        """Mark rows, for ever."""
        rows = rows[~self._marked[rows]]
        if rows.size:
            self._marked[rows] = True
            self._marks.append(self._ids[rows[rows < self._new_from]])

    def delete(self, rows: Numbers) -> None:
        """Remove single rows."""
        self._deleted.append(self._ids[rows[rows < self._new_from]])
        self._free(rows)
        self._compact_if_due()

    def evict(self, upto: int) -> int:
        """Remove the rows that are kept until this moment, or less; return how many there were."""
        rows = self.expired(upto)
        if not rows.size:
            return 0
        if rows[0] < self._new_from:
            known = self._evicted_upto
            self._evicted_upto = upto if known is None else max(known, upto)
        self._free(rows)
        self._compact_if_due()
        return int(rows.size)

    def _free(self, rows: Numbers) -> None:
        self._live[rows] = False
        self._rows -= rows.size
        for block in np.unique(rows // _BLOCK).tolist():
            self._note_first(block)

    def _note_first(self, block: int) -> None:
        its = slice(block * _BLOCK, min((block + 1) * _BLOCK, self._used))
        until = self._until[its][self._live[its]]
        self._first_until[block] = until.min() if until.size else NEVER

    def _append(
        self,
        rows: pa.RecordBatch,
        keys: Keys,
        ids: Numbers,
        until: Numbers | None,
        marked: Mask | None,
    ) -> None:
        count = rows.num_rows
        if not count:
            return
        self._bound.grant(rows.nbytes + self._growth(count), self.memory_bytes())
        self._make_room(count)
        first, end = self._used, self._used + count
        self._words[first:end] = keys.words
        self._linked[first:end] = keys.linked
        self._ids[first:end] = ids
        self._until[first:end] = NEVER if until is None else until
        self._marked[first:end] = False if marked is None else marked
        self._live[first:end] = True
        self._used, self._rows = end, self._rows + count
        for block in range(first // _BLOCK, (end - 1) // _BLOCK + 1):
            self._note_first(block)
        row_index.link_rows(self._slots, self._nexts, self._words, self._linked, first, end)
        self._starts.append(first)
        self._chunks.append(rows)
        self._chunk_bytes += rows.nbytes
        self._join_chunks()

    def _join_chunks(self) -> None:
        """Make one chunk of many small ones, so that a row is copied few times, and not often."""
        while len(self._chunks) >= _FAN:
            last = self._chunks[-_FAN:]
            total = sum(chunk.num_rows for chunk in last)
            alike = max(chunk.num_rows for chunk in last) < _FAN * last[-1].num_rows
            if not alike or total > CHUNK_ROWS_MAX:
                return
            self._chunk_bytes -= sum(chunk.nbytes for chunk in last)
            self._chunks[-_FAN:] = [pa.concat_batches(last)]
            self._starts[-_FAN:] = self._starts[-_FAN : -_FAN + 1]
            self._chunk_bytes += self._chunks[-1].nbytes

    # --- room -------------------------------------------------------------------------------------

    def _growth(self, count: int) -> int:
        """How many bytes more the arrays need for so many rows more."""
        capacity, slots = self._sizes(count)
        per_row = self._words.shape[1] * 8 + 8 + 8 + 8 + 1 + 1 + 1
        return int((capacity - self._ids.size) * per_row + (slots - self._slots.size) * 8)

    def _sizes(self, count: int) -> tuple[int, int]:
        needed = self._used + count
        capacity = self._ids.size
        if needed > capacity:
            capacity = -(-max(needed, capacity * 3 // 2, _ROWS_FIRST) // _BLOCK) * _BLOCK
        slots = self._slots.size
        while needed * 10 > slots * 6:
            slots *= 2
        return capacity, slots

    def _make_room(self, count: int) -> None:
        capacity, slots = self._sizes(count)
        if capacity > self._ids.size:
            for name in ("_words", "_linked", "_ids", "_until", "_marked", "_live", "_nexts"):
                setattr(self, name, _longer(getattr(self, name), self._used, capacity))
            first: Numbers = np.full(capacity // _BLOCK, NEVER, np.int64)
            first[: self._first_until.size] = self._first_until
            self._first_until = first
        if slots > self._slots.size:
            self._link_all(slots)

    def _link_all(self, slots: int) -> None:
        self._slots = np.zeros(slots, np.int64)
        row_index.link_rows(self._slots, self._nexts, self._words, self._linked, 0, self._used)

    def _compact_if_due(self) -> None:
        dead = self._used - self._rows
        if dead > self._rows and self._used >= _COMPACT_ROWS_MIN:
            self._keep(self._alive())

    def _keep(self, rows: Numbers) -> None:
        """Move these rows together, in this order, and forget all others."""
        pieces = [
            self.take(rows[first : first + CHUNK_ROWS_MAX])
            for first in range(0, rows.size, CHUNK_ROWS_MAX)
        ]
        words, linked = self._words[rows], self._linked[rows]
        ids, until, marked = self._ids[rows], self._until[rows], self._marked[rows]
        new = int((rows < self._new_from).sum())
        pending = (self._deleted, self._marks, self._evicted_upto)
        self._forget_all()
        self._deleted, self._marks, self._evicted_upto = pending
        first = 0
        for piece in pieces:
            its = slice(first, first + piece.num_rows)
            self._append(piece, Keys(words[its], linked[its]), ids[its], until[its], marked[its])
            first = its.stop
        self._new_from = new

    # --- changes ----------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        removed = any(ids.size for ids in (*self._deleted, *self._marks))
        is_new = bool(self._live[self._new_from : self._used].any())
        return removed or is_new or self._evicted_upto is not None

    def take_changes(self) -> pa.RecordBatch | None:
        """Return what changed since the last call, None if nothing did."""
        if not self.has_changes:
            self._new_from = self._used
            return None
        pieces = []
        if self._evicted_upto is not None:
            pieces.append(self._removal(ChangeKind.EVICT, until=np.array([self._evicted_upto])))
        deleted = np.concatenate([_NO_IDS, *self._deleted])
        marked = self._ids[self._find(np.concatenate([_NO_IDS, *self._marks]))]  # if still there
        for kind, ids in ((ChangeKind.DELETE, deleted), (ChangeKind.MARK, marked)):
            if ids.size:
                pieces.append(self._removal(kind, ids))
        new = self._new_from + np.flatnonzero(self._live[self._new_from : self._used])
        if new.size:
            pieces.append(self.as_changes(self._described(self.take(new), new)))
        self.discard_changes()
        return pa.concat_batches(pieces) if pieces else None

    def discard_changes(self) -> None:
        self._new_from = self._used
        self._deleted, self._marks, self._evicted_upto = [], [], None

    def _removal(
        self, kind: ChangeKind, ids: Numbers | None = None, until: Numbers | None = None
    ) -> pa.RecordBatch:
        schema = self.kind.change_schema()
        count = len(ids if ids is not None else until if until is not None else ())
        given: dict[str, Any] = {_CHANGE: np.full(count, kind, np.int8), _ID: ids, _UNTIL: until}
        columns = [
            pa.nulls(count, field.type)
            if given.get(field.name) is None
            else pa.array(given[field.name], field.type)
            for field in schema
        ]
        return _batch(columns, schema)

    def _described(self, rows: pa.RecordBatch, numbers: Numbers) -> pa.RecordBatch:
        own = [pa.array(each[numbers]) for each in (self._ids, self._until, self._marked)]
        return _batch([*own, *rows.columns], self.kind.snapshot_schema())

    def apply_changes(self, changes: pa.RecordBatch, only: KeyRange | None = None) -> None:
        """Do again what changes say. What is applied is not captured again."""
        check_schema(self.name, changes, self.kind.change_schema())
        kinds = changes.column(_CHANGE).to_numpy()
        unknown = set(kinds.tolist()) - set(ChangeKind)
        if unknown:
            raise StateError(
                f"changes of state {self.name!r} hold a kind of change that this version does not "
                f"know: {sorted(unknown)}",
                state=self.name,
            )
        if kinds.any():
            evicted = changes.filter(pa.array(kinds == ChangeKind.EVICT)).column(_UNTIL)
            if len(evicted):
                self.evict(int(evicted.to_numpy().max()))
            self.delete(self._find(_ids_of(changes, kinds == ChangeKind.DELETE)))
            self.mark(self._find(_ids_of(changes, kinds == ChangeKind.MARK)))
            changes = changes.filter(pa.array(kinds == ChangeKind.PUT))
        self._put(changes.select(changes.schema.names[1:]), only)
        self.discard_changes()

    def removals(self, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        kinds = changes.column(_CHANGE).to_numpy()
        return changes.filter(pa.array(kinds != ChangeKind.PUT)) if kinds.any() else None

    def as_changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kinds = pa.array(np.full(rows.num_rows, ChangeKind.PUT, np.int8))
        return _batch([kinds, *rows.columns], self.kind.change_schema())

    def empty(self) -> Self:
        return type(self)(self.name, self.kind, bytes_max=self.bytes_max)

    def _find(self, ids: Numbers) -> Numbers:
        """The live rows that have one of these ids."""
        known = self._ids[: self._used]
        rows = np.searchsorted(known, ids)
        rows = np.unique(rows[rows < self._used])
        found: Numbers = rows[np.isin(known[rows], ids) & self._live[rows]]
        return found

    def _put(self, described: pa.RecordBatch, only: KeyRange | None) -> None:
        """Add rows under their ids; those that are there already are as they are said to be."""
        rows = _batch(described.columns[3:], self.kind.schema)
        if only is not None and rows.num_rows:
            hashes = self.kind.hashes_of(rows)
            mine = pa.array((hashes >= only[0]) & (hashes < only[1]))
            described, rows = described.filter(mine), rows.filter(mine)
        if not rows.num_rows:
            return
        ids = described.column(_ID).to_numpy()
        last = int(self._ids[self._used - 1]) if self._used else -1
        is_sorted = ids[0] > last and (np.diff(ids) > 0).all()
        if not is_sorted:
            _, newest = np.unique(ids[::-1], return_index=True)
            keep = np.sort(ids.size - 1 - newest)
            described, rows, ids = described.take(keep), rows.take(keep), ids[keep]
            self._free(self._find(ids))
        marked = described.column(_MARKED).to_numpy(zero_copy_only=False)
        until = described.column(_UNTIL).to_numpy()
        self._append(rows, self.kind.keys_of(rows), ids, until, marked)
        if not is_sorted:
            alive = self._alive()
            self._keep(alive[np.argsort(self._ids[alive], kind="stable")])

    # --- pictures, restoring, partitioning --------------------------------------------------------

    def begin_snapshot(self) -> RowPicture:
        """Begin a picture of the rows as they are now; it belongs to the marker just written."""
        self._refuse_changes("a snapshot begins")
        return self._picture()

    def _picture(self) -> RowPicture:
        used = self._used
        return RowPicture(
            self.kind,
            tuple(self._chunks),
            self._ids[:used],
            self._until[:used],
            self._marked[:used].copy(),
            self._live[:used].copy(),
        )

    def restore(self, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None) -> None:
        """Replace everything by what a picture holds; `only` takes one range of key hashes."""
        self._forget_all()
        for batch in batches:
            check_schema(self.name, batch, self.kind.snapshot_schema())
            self._put(batch, only)
        self.discard_changes()

    def partition(self, ranges: Sequence[KeyRange]) -> list[Self]:
        """Return one new store per range of key hashes; each row must fall into exactly one."""
        self._refuse_changes("it is partitioned")
        parts = []
        for each in ranges:
            part = self.empty()
            part.restore(self._picture().batches(), each)
            parts.append(part)
        if sum(map(len, parts)) != len(self):
            raise StateError(
                f"ranges {list(ranges)} do not give each row of state {self.name!r} one owner",
                state=self.name,
            )
        return parts

    def merge_from(self, other: Self) -> None:
        """Take over all rows of a store with other keys; they count as changes of this one."""
        if other.kind.schema != self.kind.schema:
            raise StateError(
                f"states {self.name!r} and {other.name!r} have different columns", state=self.name
            )
        alive = other._alive()
        for first in range(0, alive.size, CHUNK_ROWS_MAX):
            some = alive[first : first + CHUNK_ROWS_MAX]
            keys = Keys(other._words[some], other._linked[some])
            self.insert(other.take(some), keys, other._until[some], other._marked[some])

    def _refuse_changes(self, what: str) -> None:
        if self.has_changes:
            raise StateError(
                f"state {self.name!r} has changes that were not taken: {what} at a marker, right "
                "after take_changes",
                state=self.name,
            )


class RowPicture(Picture):
    """A store at one moment. There is nothing left to copy: `batches` may be used from a thread."""

    def __init__(
        self,
        kind: RowKind,
        chunks: tuple[pa.RecordBatch, ...],
        ids: Numbers,
        until: Numbers,
        marked: Mask,
        live: Mask,
    ) -> None:
        self._kind = kind
        self._chunks = chunks
        self._ids, self._until, self._marked, self._live = ids, until, marked, live

    def copy_some(self) -> bool:
        return True

    def abandon(self) -> None:
        self._chunks = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, chunk by chunk."""
        schema, first = self._kind.snapshot_schema(), 0
        for chunk in self._chunks:
            its = slice(first, first + chunk.num_rows)
            first = its.stop
            live = self._live[its]
            own = [pa.array(each[its][live]) for each in (self._ids, self._until, self._marked)]
            rows = chunk if live.all() else chunk.filter(pa.array(live))
            if rows.num_rows:
                yield _batch([*own, *rows.columns], schema)


def _longer(array: NDArray[Any], used: int, capacity: int) -> NDArray[Any]:
    grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def _ids_of(changes: pa.RecordBatch, chosen: Mask) -> Numbers:
    ids: Numbers = changes.column(_ID).filter(pa.array(chosen)).to_numpy()
    return ids


def _batch(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
