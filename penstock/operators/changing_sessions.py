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

from penstock.arrays import Mask, Numbers, validity_of, values_of
from penstock.expressions.stored_values import as_stored
from penstock.expressions.tree import Expression
from penstock.expressions.types import arrow_schema
from penstock.kernels.block import Block, BlockSpec
from penstock.kernels.hashing import hash_columns
from penstock.operators.changing_aggregate import (
    Anew,
    add_rows,
    as_kept,
    kept_schema,
    result_columns,
    shown_results,
)
from penstock.operators.contract import Batches, Operator, Prepared, Tools
from penstock.operators.front import Fusion, failures
from penstock.operators.groups import key_columns
from penstock.operators.sessions import beginnings, session_column
from penstock.operators.shown import same_values, weighed
from penstock.operators.specs import (
    WEIGHT_FIELD,
    AggregateSpec,
    SessionSpec,
    all_arguments,
    column_of,
)
from penstock.state.columns import PANE_NAME, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

_BEGIN, _END, _NUMBER = "begin", "end", "number"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a batch."""

    keys: list[pa.Array]
    begins: Numbers
    ends: Numbers
    arguments: list[pa.Array]
    weights: Numbers

    def chosen(self, rows: Mask) -> _Rows:
        flags = pa.array(rows)
        return _Rows(
            [key.filter(flags) for key in self.keys],
            self.begins[rows],
            self.ends[rows],
            [argument.filter(flags) for argument in self.arguments],
            self.weights[rows],
        )


def session_states(name: str, spec: AggregateSpec) -> dict[str, StateSchema]:
    """By name all states of the operator, that of its sessions first.

    A key has a number, which is the pane of its sessions and of its rows.
    """
    begin, end = KeyColumn(_BEGIN, pa.int64()), KeyColumn(_END, pa.int64())
    results = result_columns(spec.aggregates)
    ends = ValueColumn(_END, pa.int64(), MergeRule.FIRST)
    number = ValueColumn(_NUMBER, pa.int64(), MergeRule.FIRST)
    rows = ValueColumn("rows", pa.int64(), MergeRule.COUNT)
    keys = key_columns(spec)
    return {
        name: StateSchema((*keys, begin), (*results, ends)),
        f"{name}_keys": StateSchema(keys, (number, rows)),
        f"{name}_rows": kept_schema(spec.aggregates, begin, end),
    }


class ChangingSessions(Operator):
    """Groups rows by keys and sessions; a session that changes goes, and another one comes."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        self.name = name
        self.spec = spec
        (fusion,) = fusions
        assert isinstance(spec.window, SessionSpec)
        self._session = spec.window
        self._want_late = tools.want_late
        self._arguments = all_arguments(spec.aggregates)
        self._block = Block(BlockSpec(fusion.schema, (), self._outputs()), tools.cache)
        states = [
            KeyedState(each, schema, bytes_max=tools.state_bytes_max)
            for each, schema in session_states(name, spec).items()
        ]
        self.states = {state.name: state for state in states}
        self.state, self._keys, self._rows = states
        number = ValueColumn(_NUMBER, pa.int64(), MergeRule.FIRST)
        # Of the keys whose rows have changed since the last commit, which leaves none.
        self._touched = KeyedState("touched", StateSchema(key_columns(spec), (number,)))
        self._anew = Anew(name, spec.aggregates, tools)
        self._schema = arrow_schema(spec.groups_schema)
        self._watermark_us: int | None = None
        self._next_number = 0

    def _outputs(self) -> tuple[tuple[str, Expression], ...]:
        found = [(_BEGIN, self._session.begin), (_END, self._session.end)]
        found += [(f"k{at}", key) for at, (_, key) in enumerate(self.spec.keys)]
        found += [(f"v{at}", argument) for at, argument in enumerate(self._arguments)]
        return (*found, *([("weight", column_of(WEIGHT_FIELD))] if self.spec.weighted else []))

    def progress(self) -> list[int | None]:
        return [self._watermark_us, self._next_number]

    def restore_progress(self, progress: Any) -> None:
        self._watermark_us, self._next_number = (None, 0) if progress is None else progress
        self._touched.clear()

    def blocks(self) -> Sequence[Block]:
        return (self._block,)

    # --- input ------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        made = self._block.run(batch, collect_bad)
        bad = failures(self._block, batch, made.bad_rows)
        times = [made.batch.column(name) for name in (_BEGIN, _END)]
        begins, ends = (values_of(each.cast(pa.int64())).astype(np.int64) for each in times)
        timed = validity_of(times[0]) & validity_of(times[1])
        weights = np.ones(made.batch.num_rows, np.int64)
        if self.spec.weighted:
            weights = values_of(made.batch.column("weight")).astype(np.int64)
        every = _Rows(
            [made.batch.column(f"k{at}") for at in range(len(self.spec.keys))],
            begins,
            ends,
            [made.batch.column(f"v{at}") for at in range(len(self._arguments))],
            weights,
        )
        known = [mark for mark in (watermark_us, self._watermark_us) if mark is not None]
        late: Mask = np.zeros(len(begins), np.bool_)
        if known and self.spec.forgets:
            late = timed & (ends <= max(known))
            if (late & (weights < 0)).any():
                late &= ~((weights < 0) & self._are_kept(every))
        kept = every.chosen(timed & ~late)
        late_rows = None
        if self._want_late and late.any():
            origins = [made.origin(row) for row in np.flatnonzero(late).tolist()]
            late_rows = batch.take(pa.array(origins))
        return Prepared(kept, int(late.sum()), late_rows, made.max_event_time_us, bad)

    def _are_kept(self, rows: _Rows) -> Mask:
        """Which rows are there: while their session is open they may go, however old they are."""
        nowhere = np.zeros(len(rows.begins), np.int64)
        (number, _), known = self._keys.get(rows.keys, nowhere)
        _, found = self._rows.get(self._kept(rows), number.fill_null(0).to_numpy())
        return known & found

    def _kept(self, rows: _Rows) -> list[pa.Array]:
        """What tells rows of a key apart."""
        pairs = zip(rows.arguments, self._arguments, strict=True)
        values = [as_kept(column, each.type) for column, each in pairs]
        return [pa.array(rows.begins), pa.array(rows.ends), *values]

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: _Rows = prepared.rows
        count = len(rows.begins)
        if not count:
            return ()
        nowhere = np.zeros(count, np.int64)
        hashes = hash_columns(rows.keys, count)
        # A key takes the number of its first row; the others are left out.
        numbers = np.arange(self._next_number, self._next_number + count)
        self._next_number += count
        self._keys.merge(rows.keys, nowhere, [pa.array(numbers), pa.array(rows.weights)], hashes)
        (number, _), _ = self._keys.get(rows.keys, nowhere)
        self._touched.add(rows.keys, nowhere, [number])
        add_rows(self._rows, self._kept(rows), number.to_numpy(), rows.weights, hashes)
        return ()

    # --- output -----------------------------------------------------------------------------------

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        """Emit what is left to say of the sessions that are over, and forget them."""
        if self._watermark_us is not None and watermark_us <= self._watermark_us:
            return ()
        self._watermark_us = watermark_us
        if not self.spec.forgets:
            return ()
        emitted = self._settled()
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

    def owes_whole_result(self) -> bool:
        is_whole = self.spec.mode == "complete" and not self.spec.changes
        return is_whole and self._keys.has_changes

    def on_commit(self) -> Batches:
        owes_whole = self.owes_whole_result()
        emitted = self._settled()
        if not owes_whole:
            return emitted
        rows = self.state.scan()
        return (self._finished(rows),) if rows.num_rows else ()

    def _settled(self) -> Batches:
        """What has become of the sessions of touched keys: those that went, those that came."""
        touched = self._touched.scan()
        if not touched.num_rows:
            return ()
        self._touched.clear()
        keys = touched.columns[: len(self.spec.keys)]
        numbers = touched.column(_NUMBER).to_numpy()
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
        found = [(come, 1)]
        if self.spec.changes:
            found.insert(0, (gone, -1))
        batches = [(self._finished(rows), weight) for rows, weight in found if rows.num_rows]
        if not self.spec.changes:
            return tuple(batch for batch, _ in batches)
        return tuple(weighed(batch, weight) for batch, weight in batches)

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
        columns = [column.take(pa.array(order)) for column in rows.columns]
        kept = columns[2 : 2 + len(self._arguments)]
        counts = rows.column("count").to_numpy()[order]
        results = {}
        if count:
            results = self._anew.results(of_row, kept, counts, np.arange(count))
        by_number = np.argsort(numbers)
        at = by_number[np.searchsorted(numbers[by_number], owners[places])]
        reached = np.maximum.reduceat(ends, places) if count else ends
        schema = self.state.schema.row_schema
        made = [
            *(key.take(pa.array(at)) for key in keys),
            pa.array(begins[places]),
            pa.array(owners[places]),
            *(as_stored(results[call.name], call.type) for call in self.spec.aggregates if count),
        ]
        if not count:
            return pa.RecordBatch.from_pylist([], schema)
        return pa.RecordBatch.from_arrays([*made, pa.array(reached)], schema=schema)

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

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the state as rows of the output."""
        results = [rows.column(f"r{at}") for at in range(len(self.spec.aggregates))]
        columns = [
            session_column(self._session, rows),
            *rows.columns[: len(self.spec.keys)],
            *shown_results(results, self.spec.aggregates),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _among(pairs: Numbers, others: Numbers) -> Mask:
    """Which of the pairs are among the others."""
    _, codes = np.unique(np.concatenate([pairs, others]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    return np.isin(codes[: len(pairs)], codes[len(pairs) :])
