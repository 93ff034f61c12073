"""Sessions of rows that come and go, or that somebody counts on before they are over.

A row that comes may join two sessions, and one that goes may leave two. So the rows of each key are
kept with how often each is there, and the sessions of a key whose rows have changed are made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, no_rows, validity_of, values_of
from penstock.expressions.stored_values import as_stored
from penstock.kernels.hashing import hash_columns
from penstock.operators.changing import (
    NUMBER,
    Anew,
    ChangingGroups,
    WeightedRows,
    add_rows,
    as_kept,
    kept_schema,
    result_columns,
)
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.groups import key_columns
from penstock.operators.sessions import beginnings, session_column
from penstock.operators.shown import Changes, same_values
from penstock.operators.specs import AggregateSpec, SessionSpec
from penstock.state.columns import PANE_NAME, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

_BEGIN, _END = "begin", "end"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a batch, and from when to when each lasts."""

    rows: WeightedRows
    begins: Numbers
    ends: Numbers

    def take(self, rows: Numbers) -> _Rows:
        return _Rows(self.rows.take(rows), self.begins[rows], self.ends[rows])


def session_states(name: str, spec: AggregateSpec) -> dict[str, StateSchema]:
    """By name all states of the operator, that of its sessions first.

    A key has a number, which is the pane of its sessions and of its rows.
    """
    begin, end = KeyColumn(_BEGIN, pa.int64()), KeyColumn(_END, pa.int64())
    results = result_columns(spec.aggregates)
    ends = ValueColumn(_END, pa.int64(), MergeRule.FIRST)
    rows = ValueColumn("rows", pa.int64(), MergeRule.COUNT)
    keys = key_columns(spec)
    return {
        name: StateSchema((*keys, begin), (*results, ends)),
        f"{name}_keys": StateSchema(keys, (NUMBER, rows)),
        f"{name}_rows": kept_schema(spec.aggregates, begin, end),
    }


class ChangingSessions(ChangingGroups):
    """Groups rows by keys and sessions; a session that changes goes, and another one comes."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        assert isinstance(spec.window, SessionSpec)
        self._session = spec.window
        times = ((_BEGIN, spec.window.begin), (_END, spec.window.end))
        super().__init__(name, spec, fusions, tools, session_states(name, spec), times)
        self._keys, self._rows = self.states[f"{name}_keys"], self.states[f"{name}_rows"]
        # Of the keys whose rows have changed since the last commit, which leaves none.
        self._touched = KeyedState("touched", StateSchema(key_columns(spec), (NUMBER,)))
        self._anew = Anew(name, spec.aggregates, tools)

    @property
    def _counts(self) -> KeyedState:
        return self._keys

    def restore_progress(self, progress: Any) -> None:
        super().restore_progress(progress)
        self._touched.clear()

    # --- input ------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        made, rows, bad = self._computed(batch, collect_bad)
        times = [made.batch.column(name) for name in (_BEGIN, _END)]
        begins, ends = (values_of(each.cast(pa.int64())).astype(np.int64) for each in times)
        timed = validity_of(times[0]) & validity_of(times[1])
        every = _Rows(rows, begins, ends)
        newest = self._newest(watermark_us)
        late: Mask = np.zeros(len(begins), np.bool_)
        if newest is not None and self.spec.forgets:
            late = timed & (ends <= newest)
            goes = rows.weights < 0
            if (late & goes).any():
                late &= ~(goes & self._are_kept(every))
        kept = every.take(np.flatnonzero(timed & ~late))
        late_rows = self._late_rows(batch, made, late)
        return Prepared(kept, int(late.sum()), late_rows, bad=bad)

    def _are_kept(self, rows: _Rows) -> Mask:
        """Which rows are there: while their session is open they may go, however old they are."""
        nowhere = np.zeros(len(rows.begins), np.int64)
        (number, _), known = self._keys.get(rows.rows.keys, nowhere)
        _, found = self._rows.get(self._kept(rows), number.fill_null(0).to_numpy())
        return known & found

    def _kept(self, rows: _Rows) -> list[pa.Array]:
        """What tells rows of a key apart."""
        pairs = zip(rows.rows.arguments, self._arguments, strict=True)
        values = [as_kept(column, each.type) for column, each in pairs]
        return [pa.array(rows.begins), pa.array(rows.ends), *values]

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: _Rows = prepared.rows
        keys, weights = rows.rows.keys, rows.rows.weights
        count = len(weights)
        if not count:
            return ()
        nowhere = np.zeros(count, np.int64)
        hashes = hash_columns(keys, count)
        self._keys.merge(keys, nowhere, [self._new_numbers(count), pa.array(weights)], hashes)
        (number, _), _ = self._keys.get(keys, nowhere)
        self._touched.add(keys, nowhere, [number])
        add_rows(self._rows, self._kept(rows), number.to_numpy(), weights, hashes)
        return ()

    # --- output -----------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit what is left to say of the sessions that are over, and forget them."""
        if not self.spec.forgets:
            return ()
        emitted = self._emitted(self._changes())
        ended = self.state.rows_upto(_END, watermark_us)
        if ended.num_rows:
            self._forget(ended)
            self.state.delete_upto(_END, watermark_us)
        return emitted

    def _forget(self, ended: pa.RecordBatch) -> None:
        """Take the rows of these sessions away, and keys that have no others."""
        numbers, begins, ends = self._times(ended)
        rows = self._rows.rows_in(np.unique(numbers))
        row_numbers, row_begins, _ = self._times(rows)
        order = np.lexsort((begins, numbers))
        times, ranks = np.unique(begins, return_inverse=True)
        width = times.size + 1
        row_ranks = np.searchsorted(times, row_begins, side="right") - 1
        places = numbers[order] * width + ranks[order]
        at = np.searchsorted(places, row_numbers * width + row_ranks, side="right") - 1
        inside = (at >= 0) & (row_ranks >= 0)
        inside &= (numbers[order][at] == row_numbers) & (row_begins < ends[order][at])
        gone = rows.filter(pa.array(inside))
        if not gone.num_rows:
            return
        self._rows.delete(
            gone.columns[: len(self._rows.schema.keys)], gone.column(PANE_NAME).to_numpy()
        )
        owners = pa.array(order[at[inside]])
        keys = [column.take(owners) for column in ended.columns[: len(self.spec.keys)]]
        count, nowhere = gone.num_rows, np.zeros(gone.num_rows, np.int64)
        less = pa.array(-gone.column("count").to_numpy())
        unchanged = pa.nulls(count, pa.int64())
        self._keys.merge(keys, nowhere, [unchanged, less], hash_columns(keys, count))
        self._drop_empty(keys, nowhere)

    def _drop_empty(self, keys: list[pa.Array], nowhere: Numbers) -> None:
        (_, rows), found = self._keys.get(keys, nowhere)
        empty = found & (rows.fill_null(0).to_numpy() == 0)
        if empty.any():
            self._keys.delete([key.filter(pa.array(empty)) for key in keys], nowhere[empty])

    def _changes(self, window_upto: int | None = None) -> Changes:
        """Those of all windows: a session that is over is told as it was made."""
        touched = self._touched.scan()
        if not touched.num_rows:
            nothing = no_rows(self.state.schema.row_schema)
            return Changes(nothing, nothing)
        self._touched.clear()
        keys = touched.columns[: len(self.spec.keys)]
        numbers = touched.column(NUMBER.name).to_numpy()
        before = self.state.rows_in(np.sort(numbers))
        now = self._made(keys, numbers)
        same = self._same(now)
        come = now.filter(pa.array(~same))
        gone = before.filter(pa.array(~_among(self._pairs(before), self._pairs(now)[same])))
        width = len(self.state.schema.keys)
        if gone.num_rows:
            self.state.delete(gone.columns[:width], gone.column(PANE_NAME).to_numpy())
        if come.num_rows:
            hashes = hash_columns(come.columns[: width - 1], come.num_rows)
            panes = come.column(PANE_NAME).to_numpy()
            self.state.put(come.columns[:width], panes, come.columns[width + 1 :], hashes)
        self._drop_empty(keys, np.zeros(len(numbers), np.int64))
        return Changes(gone, come)

    def _made(self, keys: list[pa.Array], numbers: Numbers) -> pa.RecordBatch:
        """The sessions of these keys, as rows of the state, from all of their rows."""
        rows = self._rows.rows_in(np.sort(numbers))
        owners, begins, ends = self._times(rows)
        order = np.lexsort((begins, owners))
        owners, begins, ends = owners[order], begins[order], ends[order]
        _, firsts = beginnings(owners, begins, ends)
        places = np.flatnonzero(firsts)
        of_row = np.cumsum(firsts) - 1
        count = len(places)
        if not count:
            return no_rows(self.state.schema.row_schema)
        columns = [column.take(pa.array(order)) for column in rows.columns]
        kept = columns[2 : 2 + len(self._arguments)]
        counts = rows.column("count").to_numpy()[order]
        results = self._anew.results(of_row, kept, counts, np.arange(count))
        by_number = np.argsort(numbers)
        at = pa.array(by_number[np.searchsorted(numbers[by_number], owners[places])])
        made = [
            *(key.take(at) for key in keys),
            pa.array(begins[places]),
            pa.array(owners[places]),
            *(as_stored(results[call.name], call.type) for call in self.spec.aggregates),
            pa.array(np.maximum.reduceat(ends, places)),
        ]
        return pa.RecordBatch.from_arrays(made, schema=self.state.schema.row_schema)

    def _same(self, now: pa.RecordBatch) -> Mask:
        """Which sessions are as they were."""
        width = len(self.state.schema.keys)
        values, found = self.state.get(now.columns[:width], now.column(PANE_NAME).to_numpy())
        same: Mask = found
        for one, other in zip(values, now.columns[width + 1 :], strict=True):
            same = same & same_values(one, other)
        return same

    def _times(self, rows: pa.RecordBatch) -> tuple[Numbers, Numbers, Numbers]:
        """Of rows of a state the number of their key, and from when to when they last."""
        number, begin, end = (rows.column(name).to_numpy() for name in (PANE_NAME, _BEGIN, _END))
        return number, begin, end

    def _pairs(self, rows: pa.RecordBatch) -> Numbers:
        number, begin, _ = self._times(rows)
        return np.stack([number, begin], axis=1)

    def _window_column(self, rows: pa.RecordBatch) -> pa.Array:
        return session_column(self._session, rows)


def _among(pairs: Numbers, others: Numbers) -> Mask:
    """Which of the pairs are among the others."""
    _, codes = np.unique(np.concatenate([pairs, others]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    return np.isin(codes[: len(pairs)], codes[len(pairs) :])
