"""A table: the newest row of each key, in a row store; and how rows of a store are taken back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, true_rows
from penstock.errors import StateError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.types import arrow_schema, arrow_type
from penstock.kernels.columns import combined, plain_rows
from penstock.operators.contract import Batches, Operator, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.join import Pairs
from penstock.operators.shown import same_values, weighed
from penstock.operators.specs import LEFT, JoinKey, JoinMatch, TableSpec
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from penstock.state.row_store import Keys, RowKind, RowStore

_NO_ROWS: Numbers = np.empty(0, np.int64)


class Table(Operator):
    """Keeps a row for each key; of the rows of a batch the last one of each key counts."""

    def __init__(self, name: str, spec: TableSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._spec = spec
        schema = fusions[0].schema
        self._schema = arrow_schema(schema)
        match = JoinMatch(tuple(JoinKey(key, key, null_safe=True) for key in spec.keys))
        self._pairs = Pairs(match, [schema, schema], tools)
        kind = RowKind(self._schema, *self._pairs.readers(LEFT))
        self._store = RowStore(name, kind, bytes_max=tools.state_bytes_max)
        self.states = {name: self._store}
        keys = (KeyColumn(f"k{at}", arrow_type(key.type)) for at, key in enumerate(spec.keys))
        last = ValueColumn("last", pa.int64(), MergeRule.LAST)
        self._last = KeyedState(f"{name}_last", StateSchema(tuple(keys), (last,)))

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        return Prepared(plain_rows(batch, self._schema))

    def process(self, port: int, prepared: Prepared) -> Batches:
        batch: pa.RecordBatch = prepared.rows
        if not batch.num_rows:
            return ()
        rows = batch.take(pa.array(self._newest(batch)))
        found = self._pairs.find(LEFT, rows, self._pairs.keys(LEFT, rows), self._store, False, {})
        replaced = np.concatenate([_NO_ROWS, *(others for _, others in found)])
        gone = self._store.take(replaced)
        if replaced.size:
            self._store.delete(replaced)
        come = rows.filter(pa.array(~self._removed(rows)))
        self._store.insert(come, self._pairs.keys(LEFT, come))
        if not self._spec.changes:
            return (come,) if come.num_rows else ()
        emitted = ((gone, -1), (come, 1))
        return tuple(weighed(some, weight) for some, weight in emitted if some.num_rows)

    def _newest(self, batch: pa.RecordBatch) -> Numbers:
        """The last row of each key, in the order of the batch."""
        keys = [batch.column(name) for name in self._spec.key_names]
        self._last.clear()
        self._last.merge(keys, None, [pa.array(np.arange(batch.num_rows))])
        newest: Numbers = np.sort(self._last.scan().column("last").to_numpy())
        return newest

    def _removed(self, rows: pa.RecordBatch) -> Mask:
        if self._spec.removed is None:
            return np.zeros(rows.num_rows, np.bool_)
        return true_rows(combined(evaluate(self._spec.removed, rows)))


def taken_back(store: RowStore, rows: pa.RecordBatch, keys: Keys) -> Numbers:
    """The rows of a store that go: those that are as these are."""
    ats, taken = found_again(store, rows, keys)
    if ats.size != rows.num_rows:
        raise StateError(
            f"{rows.num_rows - ats.size} rows go that state {store.name!r} does not have: the rows "
            "that come and go do not fit together, please report this",
            state=store.name,
        )
    return taken


def found_again(store: RowStore, rows: pa.RecordBatch, keys: Keys) -> tuple[Numbers, Numbers]:
    """Which of these rows a store has, and rows of the store that are as they are, in its order."""
    ats, found = _NO_ROWS, _NO_ROWS
    for candidates in store.matches(keys):
        same = _same_rows(rows.take(pa.array(candidates[0])), store.take(candidates[1]))
        ats = np.concatenate([ats, candidates[0][same]])
        found = np.concatenate([found, candidates[1][same]])
    return _one_of_each(ats, found, rows.num_rows)


def _one_of_each(ats: Numbers, found: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """A row of the store for each row that goes: of several that are alike any will do."""
    chosen, firsts = np.unique(ats, return_index=True)
    taken = np.unique(found[firsts])
    if chosen.size == count == taken.size:
        return chosen, taken
    used: set[int] = set()
    done: set[int] = set()
    for at, row in zip(ats.tolist(), found.tolist(), strict=True):
        if at not in done and row not in used:
            used.add(row)
            done.add(at)
    return np.array(sorted(done), np.int64), np.array(sorted(used), np.int64)


def _same_rows(one: pa.RecordBatch, other: pa.RecordBatch) -> Mask:
    same: Mask = np.ones(one.num_rows, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        same &= same_values(left, right)
    return same
