"""Entries by key: the values, lists and maps that functions of people keep, in their own classes.

A key has entries under names of their own: one (a value), numbers in order (a list), what people
choose (a map). Within the process an entry is a tuple of Python's values, because that is what a
function asks for, one key at a time; it is never changed, only replaced. Wherever entries leave the
process (changes, pictures) they are typed columns.

An entry may be kept until a moment, by which it is found again. One thread uses a state. What was
changed since `begin` can be taken back until the next `begin`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import python_values
from penstock.errors import StateError
from penstock.names import check_name
from penstock.state.bound import MemoryBound
from penstock.state.contract import KeyRange, Picture, State

Key = tuple[Any, ...]
Hashes = NDArray[np.uint32]

VALUE = ()  # under which a key that has a single value has it
COPY_ENTRIES_MAX = 1 << 15
ENTRY_BYTES = 300  # of a key with an entry, beside what the values themselves need
_DUE_SPARE = 1 << 10
_CHANGE, _UNTIL, _VALUE, _NAME = "__change", "__until", "value", "name"


class Entry(NamedTuple):
    """What is kept under a name, if it is more than the name, and until when."""

    value: tuple[Any, ...] | None
    until: int | None
    bytes: int


class ChangeKind(IntEnum):
    """What a row of a change batch does. The numbers are in the log: never reuse one."""

    PUT = 0  # this entry is there
    DELETE = 1  # this entry is gone


@dataclass(frozen=True)
class EntryKind:
    """The columns of entries, and how tuples become columns and tuples again.

    A name is a tuple of the values of `name`; those of a list are numbers, those of single values
    have none.
    """

    key: pa.Schema
    name: pa.Schema
    value: pa.Schema
    hashes_of: Callable[[Sequence[pa.Array], int], Hashes]  # of keys: who owns an entry

    def snapshot_schema(self) -> pa.Schema:
        keys = [pa.field(f"k{at}", each.type) for at, each in enumerate(self.key)]
        return pa.schema(
            [
                *keys,
                *([pa.field(_NAME, pa.struct(list(self.name)))] if len(self.name) else []),
                pa.field(_VALUE, pa.struct(list(self.value))),
                pa.field(_UNTIL, pa.int64()),
            ]
        )

    def change_schema(self) -> pa.Schema:
        return self.snapshot_schema().insert(0, pa.field(_CHANGE, pa.int8()))


class EntryState(State):
    """The entries of one state, and everything the runtime does with them."""

    def __init__(self, name: str, kind: EntryKind, *, bytes_max: int) -> None:
        self.name = check_name(name, "state")
        self.kind = kind
        self.bytes_max = bytes_max
        self._bound = MemoryBound(name, bytes_max)
        self._forget_all()

    def _forget_all(self) -> None:
        self._groups: dict[Key, dict[Key, Entry]] = {}
        # Since the last `begin` or picture, which share the entries of all other keys:
        self._own: set[Key] = set()
        self._before: dict[Key, dict[Key, Entry] | None] = {}  # what to put back
        self._noted: list[tuple[Key, Key]] = []  # changes that were none at `begin`
        self._changed: dict[tuple[Key, Key], None] = {}
        self._due: list[tuple[int, int, Key, Key]] = []  # a heap; what is not so any more is passed
        self._pushed = 0
        self._entries = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._entries

    def memory_bytes(self) -> int:
        return self._bytes

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: Key, name: Key = VALUE) -> Entry | None:
        group = self._groups.get(key)
        return None if group is None else group.get(name)

    def of(self, key: Key) -> list[tuple[Key, Entry]]:
        """The entries of a key, in the order in which they came."""
        return list(self._groups.get(key, {}).items())

    def next_number(self, key: Key) -> int:
        """The number under which the next element of a key's list is kept."""
        group = self._groups.get(key)
        return next(reversed(group))[0] + 1 if group else 0

    # --- changing ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on changes can be taken back."""
        self._before, self._noted, self._own = {}, [], set()

    def take_back(self) -> None:
        """Become what it was at `begin`."""
        for key, before in self._before.items():
            now = self._groups.pop(key, {})
            self._count(now, -1)
            if before is not None:
                self._groups[key] = before
                self._count(before, 1)
                for name in before:
                    self.remember_due(key, name)
        for place in self._noted:
            self._changed.pop(place, None)
        self.begin()

    def _count(self, group: Mapping[Key, Entry], sign: int) -> None:
        self._entries += sign * len(group)
        self._bytes += sign * sum(entry.bytes for entry in group.values())

    def put(
        self, key: Key, name: Key, value: tuple[Any, ...] | None, until: int | None = None
    ) -> None:
        size = ENTRY_BYTES + (0 if value is None else _size(value))
        self._bound.grant(size, self._bytes)
        self._change(key, name, Entry(value, until, size))

    def delete(self, key: Key, name: Key = VALUE) -> None:
        if self.get(key, name) is not None:
            self._change(key, name, None)

    def clear(self, key: Key) -> None:
        """Remove all entries of a key."""
        for name in list(self._groups.get(key, ())):
            self._change(key, name, None)

    def clear_all(self) -> None:
        """Remove all entries of all keys."""
        for key in list(self._groups):
            self.clear(key)

    def _change(self, key: Key, name: Key, entry: Entry | None) -> None:
        self._before.setdefault(key, self._groups.get(key))
        self._set(key, name, entry)
        if (key, name) not in self._changed:
            self._changed[key, name] = None
            self._noted.append((key, name))

    def _set(self, key: Key, name: Key, entry: Entry | None) -> None:
        group = self._groups.get(key, {})
        if key not in self._own:
            group = self._groups[key] = dict(group)
            self._own.add(key)
        elif not group:
            self._groups[key] = group
        before = group.pop(name, None) if entry is None else group.get(name)
        if before is not None:
            self._entries -= 1
            self._bytes -= before.bytes
        if entry is None:
            if not group:
                del self._groups[key]
            return
        group[name] = entry
        self._entries += 1
        self._bytes += entry.bytes
        if entry.until is not None:
            self.remember_due(key, name)

    # --- until when -------------------------------------------------------------------------------

    def remember_due(self, key: Key, name: Key) -> None:
        """Have an entry found by its moment, again if it was found before."""
        entry = self.get(key, name)
        if entry is None or entry.until is None:
            return
        self._pushed += 1
        heapq.heappush(self._due, (entry.until, self._pushed, key, name))
        if len(self._due) > 4 * self._entries + _DUE_SPARE:
            self._due = [each for each in self._due if self._is_due(*each)]
            heapq.heapify(self._due)

    def _is_due(self, until: int, _: int, key: Key, name: Key) -> bool:
        entry = self.get(key, name)
        return entry is not None and entry.until == until

    def first_due(self) -> int | None:
        """The earliest moment until which an entry is kept."""
        while self._due and not self._is_due(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, before: int) -> list[tuple[int, Key, Key]]:
        """The entries that are kept until less than this, by moment, then key, then name.

        They are there as before, but are found no more.
        """
        found: dict[tuple[int, Key, Key], None] = {}
        while self._due and self._due[0][0] < before:
            due = heapq.heappop(self._due)
            if self._is_due(*due):
                found[(due[0], due[2], due[3])] = None
        return sorted(found, key=lambda each: (each[0], _order(each[1]), _order(each[2])))

    # --- changes ----------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> pa.RecordBatch | None:
        """Return what changed since the last call, None if nothing did."""
        self.begin()
        if not self._changed:
            return None
        changed, self._changed = self._changed, {}
        groups, nothing = self._groups, dict[Key, Entry]()
        found = [(key, name, groups.get(key, nothing).get(name)) for key, name in changed]
        kinds = [int(entry is None) for _, _, entry in found]  # ChangeKind's numbers
        batch = _columns(self.kind, found)
        return pa.RecordBatch.from_arrays(
            [pa.array(kinds, pa.int8()), *batch.columns], schema=self.kind.change_schema()
        )

    def apply_changes(self, changes: pa.RecordBatch, only: KeyRange | None = None) -> None:
        """Do again what changes say. What is applied is not captured again."""
        changes = self._fitted(changes, self.kind.change_schema())
        kinds = changes.column(_CHANGE).to_numpy()
        unknown = set(kinds.tolist()) - set(ChangeKind)
        if unknown:
            raise StateError(
                f"changes of state {self.name!r} hold a kind of change that this version does not "
                f"know: {sorted(unknown)}",
                state=self.name,
            )
        self._take(changes.select(changes.schema.names[1:]), kinds, only)

    def removals(self, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        changes = self._fitted(changes, self.kind.change_schema())
        kinds = changes.column(_CHANGE).to_numpy()
        return changes.filter(pa.array(kinds != ChangeKind.PUT)) if kinds.any() else None

    def as_changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kinds = pa.array(np.full(rows.num_rows, ChangeKind.PUT, np.int8))
        return pa.RecordBatch.from_arrays([kinds, *rows.columns], schema=self.kind.change_schema())

    def empty(self) -> Self:
        return type(self)(self.name, self.kind, bytes_max=self.bytes_max)

    def _take(
        self, batch: pa.RecordBatch, kinds: NDArray[np.int8] | None, only: KeyRange | None
    ) -> None:
        mine = None
        if only is not None:
            hashes = self.kind.hashes_of(batch.columns[: len(self.kind.key)], batch.num_rows)
            mine = (hashes >= only[0]) & (hashes < only[1])
        for at, (key, name, value, until) in enumerate(_tuples(self.kind, batch)):
            if mine is not None and not mine[at]:
                continue
            if kinds is not None and kinds[at] == ChangeKind.DELETE:
                if self.get(key, name) is not None:
                    self._set(key, name, None)
                continue
            size = ENTRY_BYTES + (0 if value is None else _size(value))
            self._bound.grant(size, self._bytes)
            self._set(key, name, Entry(value, until, size))

    # --- pictures, restoring, partitioning --------------------------------------------------------

    def begin_snapshot(self) -> EntryPicture:
        """Begin a picture of the entries as they are now; it belongs to the marker just written."""
        self._refuse_changes("a snapshot begins")
        return self._picture()

    def _picture(self) -> EntryPicture:
        self.begin()
        return EntryPicture(self.kind, dict(self._groups))

    def restore(self, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None) -> None:
        """Replace everything by what a picture holds; `only` takes one range of key hashes."""
        self._forget_all()
        for batch in batches:
            self._take(self._fitted(batch, self.kind.snapshot_schema()), None, only)

    def partition(self, ranges: Sequence[KeyRange]) -> list[Self]:
        """Return one new state per range of key hashes; each entry must fall into exactly one."""
        self._refuse_changes("it is partitioned")
        parts = []
        for each in ranges:
            part = self.empty()
            part.restore(self._picture().batches(), each)
            parts.append(part)
        if sum(map(len, parts)) != len(self):
            raise StateError(
                f"ranges {list(ranges)} do not give each entry of state {self.name!r} one owner",
                state=self.name,
            )
        return parts

    def scan(self) -> pa.RecordBatch:
        """All entries, in the order in which their keys came."""
        batches = list(EntryPicture(self.kind, self._groups).batches())
        return pa.concat_batches(batches) if batches else _columns(self.kind, [])

    def merge_from(self, other: Self) -> None:
        """Take over all entries of a state with other keys; they count as changes of this one."""
        if other.kind.snapshot_schema() != self.kind.snapshot_schema():
            raise StateError(
                f"states {self.name!r} and {other.name!r} have different columns", state=self.name
            )
        twice = self._groups.keys() & other._groups.keys()
        if twice:
            raise StateError(
                f"{len(twice)} keys of state {other.name!r} are in state {self.name!r} too: only "
                "states with different keys can be put together",
                state=self.name,
            )
        for key, group in other._groups.items():
            for name, entry in group.items():
                self.put(key, name, entry.value, entry.until)

    def _refuse_changes(self, what: str) -> None:
        if self.has_changes:
            raise StateError(
                f"state {self.name!r} has changes that were not taken: {what} at a marker, right "
                "after take_changes",
                state=self.name,
            )

    def _fitted(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        """What was kept as it is kept now: values may have got columns and wider numbers since."""
        if batch.schema.names == wanted.names:
            if batch.schema.types == wanted.types:
                return batch
            at = wanted.names.index(_VALUE)
            value = _grown(batch.column(at), self.kind.value)
            if value is not None and batch.schema.set(at, wanted.field(at)).types == wanted.types:
                return batch.set_column(at, wanted.field(at), value)
        raise StateError(
            f"state {self.name!r} has columns {_shown(wanted)}; what is to be applied has "
            f"{_shown(batch.schema)}",
            state=self.name,
        )


class EntryPicture(Picture):
    """A state at one moment. There is nothing left to copy: `batches` may be used from a thread.

    It shares the entries of a key with the state, which copies them before it changes them.
    """

    def __init__(self, kind: EntryKind, groups: dict[Key, dict[Key, Entry]]) -> None:
        self._kind = kind
        self._groups = groups

    def copy_some(self) -> bool:
        return True

    def abandon(self) -> None:
        self._groups = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the entries, a bounded number at a time."""
        entries = (
            (key, name, entry)
            for key, group in self._groups.items()
            for name, entry in group.items()
        )
        while found := list(islice(entries, COPY_ENTRIES_MAX)):
            yield _columns(self._kind, found)


# --- tuples and columns ---------------------------------------------------------------------------


def _columns(kind: EntryKind, entries: Sequence[tuple[Key, Key, Entry | None]]) -> pa.RecordBatch:
    """Entries as columns; those that are gone have no value."""
    keys, names, found = zip(*entries, strict=True) if entries else ((), (), ())
    columns = tuple_columns(keys, kind.key)
    if len(kind.name):
        columns.append(_structs(names, kind.name))
    columns.append(_structs([None if each is None else each.value for each in found], kind.value))
    columns.append(pa.array([None if each is None else each.until for each in found], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, schema=kind.snapshot_schema())


def _structs(tuples: Sequence[tuple[Any, ...] | None], schema: pa.Schema) -> pa.Array:
    missing = pa.array([each is None for each in tuples], pa.bool_())
    if not len(schema):
        nothing = pa.array([{}] * len(tuples), pa.struct([]))
        return pa.nulls(len(tuples), pa.struct([])) if missing.true_count else nothing
    blank = (None,) * len(schema)
    columns = tuple_columns([blank if each is None else each for each in tuples], schema)
    return pa.StructArray.from_arrays(columns, fields=list(schema), mask=missing)


def _grown(values: pa.StructArray, schema: pa.Schema) -> pa.StructArray | None:
    """Values under their names in a schema with some of them, others, or wider numbers.

    None if there is none of them, or one does not fit.
    """
    known = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    if known.keys().isdisjoint(schema.names):
        return None
    columns = []
    for field in schema:
        column = known.get(field.name, pa.nulls(len(values), field.type))
        if column.type != field.type:
            kinds = (pa.types.is_signed_integer, pa.types.is_floating)
            is_wider = any(is_(column.type) and is_(field.type) for is_ in kinds)
            if not is_wider or column.type.bit_width > field.type.bit_width:
                return None
        columns.append(column.cast(field.type))
    return pa.StructArray.from_arrays(columns, fields=list(schema), mask=values.is_null())


def tuple_columns(tuples: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    """Tuples of whole numbers for times and dates, and Python's own values else, as columns."""
    parts = zip(*tuples, strict=True) if tuples else [()] * len(schema)
    return [
        pa.array(values, storage_type(field.type)).cast(field.type)
        for values, field in zip(parts, schema, strict=True)
    ]


def column_tuples(columns: Sequence[pa.Array], count: int) -> list[tuple[Any, ...]]:
    """The same tuples of columns."""
    if not columns:
        return [()] * count
    parts = [python_values(column.cast(storage_type(column.type))) for column in columns]
    return list(zip(*parts, strict=True))


def storage_type(kind: pa.DataType) -> pa.DataType:
    """How values of a type are kept in a process: times and dates, nested ones too, as numbers."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(storage_type(kind.key_type), storage_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(storage_type(field.type)) for field in kind])
    return kind


def _tuples(
    kind: EntryKind, batch: pa.RecordBatch
) -> Iterator[tuple[Key, Key, tuple[Any, ...] | None, int | None]]:
    count = batch.num_rows
    keys = column_tuples(batch.columns[: len(kind.key)], count)
    names: list[tuple[Any, ...]] = [VALUE] * count
    if len(kind.name):
        names = column_tuples(batch.column(_NAME).flatten(), count)
    values = column_tuples(batch.column(_VALUE).flatten(), count)
    missing = batch.column(_VALUE).is_null().to_pylist()
    untils = batch.column(_UNTIL).to_pylist()
    for key, name, value, is_missing, until in zip(
        keys, names, values, missing, untils, strict=True
    ):
        yield key, name, None if is_missing else value, until


def _size(value: tuple[Any, ...]) -> int:
    """About how many bytes values need."""
    size = 0
    for each in value:
        if isinstance(each, str | bytes):
            size += 50 + len(each)
        elif isinstance(each, list | tuple):
            size += 60 + _size(tuple(each))
        elif isinstance(each, dict):
            size += 200 + _size((*each, *each.values()))
        else:
            size += 32
    return size


def _order(key: Key) -> list[tuple[bool, Any]]:
    """By what keys are ordered, whatever is null in them."""
    return [(each is not None, 0 if each is None else each) for each in key]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
