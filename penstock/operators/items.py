"""What groups keep beyond one line each: their values, each with its count, or their rows in order.

Items of all groups lie in a keyed state of their own, under the key of their group and one more:
the value itself, or the place of the row. So they are changed, pictured, restored and forgotten
like all state, one by one, and those of overlapping windows merge as panes do. Groups without a
window keep theirs under the hash of their key in place of a pane: so those of a group are found
without looking at the others. Items of sessions stay under the begin of their row, whatever becomes
of the session that it lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.arrays import Numbers, no_rows, validity_of
from penstock.expressions.stored_values import as_stored, of_stored, stored_type
from penstock.expressions.types import arrow_type
from penstock.kernels.hashing import hash_columns
from penstock.loops import Hashes
from penstock.operators.groups import key_columns, of_no_rows, value_columns
from penstock.operators.item_results import Items
from penstock.operators.registers import registers_of
from penstock.operators.specs import (
    Accumulator,
    AggregateCall,
    AggregateSpec,
    Collection,
    SessionSpec,
    accumulators_of,
    collections_of,
)
from penstock.state.columns import (
    PANE_LOWEST,
    PANE_NAME,
    KeyColumn,
    MergeRule,
    StateSchema,
    ValueColumn,
)
from penstock.state.keyed import KeyedState
from penstock.state.overlaps import Overlap

_GROUP = KeyColumn("group", pa.int64())


class KeptItems:
    """The items of all groups of an aggregate, a state for each collection."""

    def __init__(
        self, name: str, spec: AggregateSpec, bytes_max: int, overlap: Overlap | None = None
    ) -> None:
        """`overlap` says how panes make windows, where windows overlap."""
        self._spec = spec
        self._overlap = overlap
        self._collections = collections_of(spec.aggregates)
        self._own = [
            KeyedState(
                f"{name}_items{at}", _schema(key_columns(spec), collection), bytes_max=bytes_max
            )
            for at, collection in enumerate(self._collections)
        ]
        self.states = {state.name: state for state in self._own}
        number = ValueColumn("number", pa.int64(), MergeRule.FIRST)
        self._numbering = KeyedState("groups", StateSchema(key_columns(spec), (number,)))

    def merge(
        self,
        keys: Sequence[pa.Array],
        panes: Numbers,
        hashes: Hashes,
        columns: Sequence[Sequence[pa.Array]],
    ) -> None:
        """Add rows: for each collection its columns. In sessions a row's pane is its begin."""
        if self._spec.window is None:
            panes = hashes.astype(np.int64)
        for state, collection, own in zip(self._own, self._collections, columns, strict=True):
            there = np.logical_and.reduce([validity_of(column) for column in own])
            if not there.any():
                continue
            of_rows = [*keys, *own]
            if not there.all():
                of_rows = [column.filter(pa.array(there)) for column in of_rows]
            items = stored_items(collection, of_rows[len(keys) :])
            of_items = [*of_rows[: len(keys)], *items[:-1]]
            state.merge(of_items, panes[there], items[-1:], hashes[there])

    def drop_panes(self, pane_upto: int) -> None:
        """Forget the items of panes up to this one."""
        for state in self._own:
            state.drop_panes(pane_upto)

    def forget(self, sessions: pa.RecordBatch) -> None:
        """Forget the items of these sessions, which are rows of the groups' state."""
        if not self._own:
            return
        groups = self._sessions(sessions)
        for state in self._own:
            rows, owners = groups.members(state)
            gone = rows.filter(pa.array(owners >= 0))
            if gone.num_rows:
                keys = gone.columns[: len(state.schema.keys)]
                state.delete(keys, gone.column(PANE_NAME).to_numpy())

    def finish(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of the aggregates that items make, for rows of groups."""
        if not self._own:
            return {}
        if isinstance(self._spec.window, SessionSpec):
            groups = self._sessions(rows)
            found = [self._merged(at, groups, rows.num_rows) for at in range(len(self._own))]
        else:
            keys = rows.columns[: len(self._spec.keys)]
            panes = rows.column(PANE_NAME).to_numpy()
            if self._spec.window is None:
                panes = hash_columns(keys, rows.num_rows).astype(np.int64)
            self._numbering.clear()
            self._numbering.put(keys, panes, [pa.array(np.arange(rows.num_rows))])
            wanted = np.unique(panes)
            found = [self._items(at, wanted, rows.num_rows) for at in range(len(self._own))]
        calls = [call for call in self._spec.aggregates if call.collection is not None]
        return {call.name: self._column(call, found) for call in calls}

    def _items(self, at: int, panes: Numbers, groups: int) -> Items:
        """The items of the numbered groups, by group, then item."""
        state, collection = self._own[at], self._collections[at]
        if self._overlap is None:
            rows = state.rows_in(panes)
        else:
            none = no_rows(state.schema.row_schema)
            rows = pa.concat_batches([none, *state.window_rows(panes, self._overlap)])
        key_count = len(self._spec.keys)
        (numbers,), found = self._numbering.get(
            rows.columns[:key_count], rows.column(PANE_NAME).to_numpy()
        )
        owners = numbers.fill_null(-1).to_numpy()
        order = np.argsort(owners, kind="stable")[np.count_nonzero(~found) :]
        columns = rows.drop_columns([PANE_NAME]).columns[key_count:]
        taken = [column.take(pa.array(order)) for column in columns]
        return _read(collection, owners[order], groups, taken)

    def _sessions(self, rows: pa.RecordBatch) -> _SessionGroups:
        begins, ends = (rows.column(name).to_numpy() for name in ("begin", "end"))
        return _SessionGroups(self._numbering, rows.columns[: len(self._spec.keys)], begins, ends)

    def _merged(self, at: int, groups: _SessionGroups, count: int) -> Items:
        """The items of these sessions, by session, then item: those of all its rows together."""
        state, collection = self._own[at], self._collections[at]
        rows, owners = groups.members(state)
        own = owners >= 0
        columns = rows.drop_columns([PANE_NAME]).columns[len(self._spec.keys) :]
        chosen = [column.filter(pa.array(own)) for column in columns]
        return merged_items(collection, owners[own], count, chosen)

    def _column(self, call: AggregateCall, found: Sequence[Items]) -> pa.Array:
        assert call.collection is not None
        items = found[self._collections.index(call.collection)]
        if call.row.gather is None:
            return _of_distinct(call, items)
        if call.is_distinct and call.row.collects != "registers":
            once = pa.array(np.ones(items.owners.size, np.int64))
            items = replace(items, values=[once] if call.row.collects == "values" else items.keys)
        return call.row.gather(items, call.options, call.type)


class _SessionGroups:
    """Sessions by their keys and times: whose an item is, by its key and the begin of its row."""

    def __init__(
        self, numbering: KeyedState, keys: list[pa.Array], begins: Numbers, ends: Numbers
    ) -> None:
        self._numbering, self._width = numbering, len(keys)
        numbering.clear()
        nowhere = np.zeros(len(begins), np.int64)
        numbering.add(keys, nowhere, [pa.array(np.arange(len(begins)))])
        (first,), _ = numbering.get(keys, nowhere)
        numbers = first.to_numpy()
        self._order = np.lexsort((begins, numbers))
        self._numbers, self._ends = numbers[self._order], ends[self._order]
        self._times = np.unique(begins)
        self._places = self._place(numbers, begins)[self._order]
        self._end = int(ends.max(initial=PANE_LOWEST))

    def _place(self, numbers: Numbers, times: Numbers) -> Numbers:
        """Pairs of a key's number and a time as one number, in the order of both."""
        ranks = np.searchsorted(self._times, times, side="right")
        return numbers * (self._times.size + 1) + ranks

    def members(self, state: KeyedState) -> tuple[pa.RecordBatch, Numbers]:
        """Rows of a state that may lie in these sessions, and the session of each; -1: none."""
        rows = state.rows(PANE_LOWEST, self._end)
        begins = rows.column(PANE_NAME).to_numpy()
        nowhere = np.zeros(rows.num_rows, np.int64)
        (number,), found = self._numbering.get(rows.columns[: self._width], nowhere)
        numbers = number.fill_null(-1).to_numpy()
        at = np.searchsorted(self._places, self._place(numbers, begins), side="right") - 1
        inside = found & (at >= 0)
        inside &= (self._numbers[at] == numbers) & (begins < self._ends[at])
        return rows, np.where(inside, self._order[at], -1)


def merged_items(
    collection: Collection, owners: Numbers, groups: int, columns: Sequence[pa.Array]
) -> Items:
    """Stored items of so many groups, those of a group with equal keys as one; in their order."""
    *keys, value = columns
    merged = KeyedState("merged", _schema((_GROUP,), collection))
    merged.merge([pa.array(owners), *keys], None, [value])
    group, *found = merged.scan().drop_columns([PANE_NAME]).columns
    return _read(collection, group.to_numpy(), groups, found)


def _read(
    collection: Collection, owners: Numbers, groups: int, columns: Sequence[pa.Array]
) -> Items:
    """Keys and values of items as they were before a state held them."""
    types = (*collection.keys, collection.value)
    *keys, value = map(of_stored, columns, types)
    return Items(owners, groups, keys, [value])


def _of_distinct(call: AggregateCall, items: Items) -> pa.Array:
    """An aggregate over the distinct values of each group, of which each counts once."""
    every = replace(call, is_distinct=False, more=())
    accumulators = accumulators_of((every,))
    worth = [each.row.rows(items.keys[:1], each.type) for each in accumulators]
    return every.finish(accumulators, merged_lines(accumulators, items.owners, items.groups, worth))


def merged_lines(
    accumulators: Sequence[Accumulator], owners: Numbers, groups: int, worth: Sequence[pa.Array]
) -> list[pa.Array]:
    """The accumulators of so many groups, of what each of their rows is worth, in their order."""
    lines = KeyedState("lines", StateSchema((_GROUP,), value_columns(accumulators)))
    lines.put([pa.array(np.arange(groups))], None, of_no_rows(accumulators, groups))
    if owners.size:
        lines.merge([pa.array(owners)], None, worth)
    return list(lines.scan().columns[2:])


def stored_items(collection: Collection, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The keys and the value of an item for each row, as a state holds them."""
    if collection.kind == "registers":
        return [*registers_of(columns[0], collection.bits)]
    if collection.kind == "places":
        return [columns[0], as_stored(columns[1], collection.value)]
    pairs = zip(columns, collection.keys, strict=True)
    keys = [as_stored(column, kind, one_zero=True) for column, kind in pairs]
    return [*keys, pa.array(np.ones(len(columns[0]), np.int64))]


_RULES = {"values": MergeRule.COUNT, "places": MergeRule.FIRST, "registers": MergeRule.MAX}


def _schema(groups: tuple[KeyColumn, ...], collection: Collection) -> StateSchema:
    own = tuple(
        KeyColumn(f"i{at}", arrow_type(stored_type(kind)))
        for at, kind in enumerate(collection.keys)
    )
    kind = arrow_type(stored_type(collection.value))
    value = ValueColumn("value", kind, _RULES[collection.kind])
    return StateSchema((*groups, *own), (value,))
