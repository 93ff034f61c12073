"""What groups keep beyond one line each: their values, each with its count, or their rows in order.

Items of all groups lie in a keyed state of their own, under the key of their group and one more:
the value itself, or the place of the row. So they are changed, pictured, restored and forgotten
like all state, one by one, and those of overlapping windows merge as panes do. Groups without a
window keep theirs under the hash of their key in place of a pane: so those of a group are found
without looking at the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import validity_of
from penstock.expressions.types import arrow_type
from penstock.kernels.hashing import Hashes, hash_columns
from penstock.operators.aggregate_functions import Items
from penstock.operators.groups import key_columns, value_columns
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    Collection,
    accumulators_of,
    collections_of,
)
from penstock.state.columns import PANE_NAME, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from penstock.state.overlaps import Overlap

Numbers = NDArray[np.int64]


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
            KeyedState(f"{name}_items{at}", _schema(spec, collection), bytes_max=bytes_max)
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
        """Add rows: for each collection its columns."""
        if self._spec.window is None:
            panes = hashes.astype(np.int64)
        for state, collection, own in zip(self._own, self._collections, columns, strict=True):
            there = np.logical_and.reduce([validity_of(column) for column in own])
            if not there.any():
                continue
            chosen = None if there.all() else pa.array(there)
            of_rows = [*keys, *own]
            if chosen is not None:
                of_rows = [column.filter(chosen) for column in of_rows]
            key_count = len(keys) + collection.keys
            values = of_rows[key_count:]
            if collection.kind == "values":
                values = [pa.array(np.ones(np.count_nonzero(there), np.int64))]
            state.merge(of_rows[:key_count], panes[there], values, hashes[there])

    def drop_panes(self, pane_upto: int) -> None:
        """Forget the items of panes up to this one."""
        for state in self._own:
            state.drop_panes(pane_upto)

    def finish(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of the aggregates that items make, for rows of groups."""
        if not self._own:
            return {}
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
            none = pa.RecordBatch.from_pylist([], state.schema.row_schema)
            rows = pa.concat_batches([none, *state.window_rows(panes, self._overlap)])
        key_count = len(self._spec.keys)
        (numbers,), found = self._numbering.get(
            rows.columns[:key_count], rows.column(PANE_NAME).to_numpy()
        )
        owners = numbers.fill_null(-1).to_numpy()
        order = np.argsort(owners, kind="stable")[np.count_nonzero(~found) :]
        taken = pa.array(order)
        keys = [column.take(taken) for column in rows.columns[key_count:][: collection.keys]]
        values = [column.take(taken) for column in rows.columns[key_count + collection.keys + 1 :]]
        return Items(owners[order], groups, keys, values)

    def _column(self, call: AggregateCall, found: Sequence[Items]) -> pa.Array:
        assert call.collection is not None
        items = found[self._collections.index(call.collection)]
        if not call.is_distinct:
            assert call.row.gather is not None
            return call.row.gather(items, call.options, call.type)
        return _of_distinct(call, items)


def _of_distinct(call: AggregateCall, items: Items) -> pa.Array:
    """An aggregate over the distinct values of each group, of which each counts once."""
    every = replace(call, is_distinct=False, more=())
    accumulators = accumulators_of((every,))
    owner = KeyColumn("group", pa.int64())
    lines = KeyedState("distinct", StateSchema((owner,), value_columns(accumulators)))
    nothing = [
        pa.array([None if each.nullable else 0] * items.groups, arrow_type(each.type))
        for each in accumulators
    ]
    lines.put([pa.array(np.arange(items.groups))], None, nothing)
    if items.owners.size:
        worth = [each.row.rows(items.keys[:1], each.type) for each in accumulators]
        lines.merge([pa.array(items.owners)], None, worth)
    return every.finish(accumulators, lines.scan().columns[2:])


def _schema(spec: AggregateSpec, collection: Collection) -> StateSchema:
    keys = [arrow_type(each.type) for each in collection.arguments[: collection.keys]]
    values = [arrow_type(each.type) for each in collection.arguments[collection.keys :]]
    own = tuple(KeyColumn(f"i{at}", kind) for at, kind in enumerate(keys))
    if collection.kind == "values":
        kept: tuple[ValueColumn, ...] = (ValueColumn("count", pa.int64(), MergeRule.COUNT),)
    else:
        kept = tuple(ValueColumn(f"v{at}", kind, MergeRule.FIRST) for at, kind in enumerate(values))
    return StateSchema((*key_columns(spec), *own), kept)
