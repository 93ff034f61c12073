"""An aggregate over rows that come and go: what a row adds to its group is taken away with it.

Counts and sums of whole numbers are added to and subtracted from; sums of doubles too, in a form
that is exact. For all else a group keeps the values of its rows with how often each is there, and
is aggregated anew from them when it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, validity_of, values_of
from penstock.errors import StateOverflow
from penstock.expressions.frame import row_error
from penstock.expressions.stored_values import as_stored, of_stored, stored_type
from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import BIGINT, DataType, Field, Schema, arrow_schema, arrow_type
from penstock.kernels.block import Block, BlockSpec
from penstock.kernels.hashing import hash_columns
from penstock.operators.aggregate import Aggregate
from penstock.operators.contract import Batches, Operator, Prepared, Tools
from penstock.operators.exact_sums import places_of, total_of
from penstock.operators.front import Fusion, failures
from penstock.operators.groups import key_columns
from penstock.operators.shown import Shown, weighed
from penstock.operators.specs import (
    WEIGHT_FIELD,
    Accumulator,
    AggregateCall,
    AggregateSpec,
    SessionSpec,
    all_arguments,
    column_of,
    counted_arguments,
    is_running,
    summed_arguments,
)
from penstock.operators.windows import Windows
from penstock.state.columns import PANE_NAME, KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState
from penstock.state.loops import Hashes

_LOW = 0xFFFFFFFF
_PANE_LOWEST = -(1 << 63)
_ONCE_IS_ENOUGH = frozenset({"min", "max"})  # of values that are there more than once
_NUMBER = "number"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a batch, each once for every window that it is in."""

    keys: list[pa.Array]
    windows: Numbers  # 0 without windows
    arguments: list[pa.Array]
    weights: Numbers

    def taken(self, rows: Numbers, windows: Numbers) -> _Rows:
        places = pa.array(rows)
        return _Rows(
            [key.take(places) for key in self.keys],
            windows,
            [argument.take(places) for argument in self.arguments],
            self.weights[rows],
        )


class ChangingAggregate(Operator):
    """Groups rows by keys and window; the state has a row for each group that has rows."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        self.name = name
        self.spec = spec
        (fusion,) = fusions
        self._tools = tools
        assert not isinstance(spec.window, SessionSpec)
        self._windows = None if spec.window is None else Windows(spec.window)
        calls = spec.aggregates
        self._arguments = {each: place for place, each in enumerate(all_arguments(calls))}
        self._block = Block(BlockSpec(fusion.schema, (), self._outputs()), tools.cache)
        states = [
            KeyedState(each, schema, bytes_max=tools.state_bytes_max)
            for each, schema in state_schemas(name, spec).items()
        ]
        by_name = {state.name: state for state in states}
        self.states = by_name
        self.state = by_name[name]
        self._columns = {column.name: at for at, column in enumerate(self.state.schema.values)}
        self._shown = Shown(self.state, len(calls))
        self._schema = arrow_schema(spec.groups_schema)
        values, sums = by_name.get(f"{name}_values"), by_name.get(f"{name}_sums")
        self._kept = None if values is None else _KeptValues(values, _kept_calls(spec), tools)
        self._doubles = None if sums is None else _DoubleSums(sums)
        doubles = [each for each in summed_arguments(calls) if each.type.is_fractional]
        self._double_places = {argument: place for place, argument in enumerate(doubles)}
        self._watermark_us: int | None = None
        self._next_number = 0

    def _outputs(self) -> tuple[tuple[str, Expression], ...]:
        spec = self.spec
        found = [(f"k{at}", key) for at, (_, key) in enumerate(spec.keys)]
        found += [(f"v{at}", argument) for at, argument in enumerate(self._arguments)]
        if spec.weighted:
            found.append(("weight", column_of(WEIGHT_FIELD)))
        return tuple(
            found if self._windows is None else [("time", self._windows.spec.time), *found]
        )

    def progress(self) -> list[int | None]:
        return [self._watermark_us, self._next_number]

    def restore_progress(self, progress: Any) -> None:
        self._watermark_us, self._next_number = (None, 0) if progress is None else progress
        self._shown.forget()

    def blocks(self) -> Sequence[Block]:
        return (self._block,)

    # --- input ------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        made = self._block.run(batch, collect_bad)
        bad = failures(self._block, batch, made.bad_rows)
        rows = self._rows(made.batch)
        if self._windows is None:
            return Prepared(rows, bad=bad)
        times = made.batch.column("time")
        times_us, valid = values_of(times.cast(pa.int64())), validity_of(times)
        first_us, last_us = self._windows.spec.times_us
        outside = valid & ((times_us < first_us) | (times_us > last_us))
        for row in np.flatnonzero(outside).tolist():
            reason = f"a window of the time {times_us[row]} us would lie beyond 64 bits"
            error = row_error(made.origin(row), reason, str(self._windows.spec.time))
            if not collect_bad:
                raise error
            bad.setdefault(made.origin(row), error)
        rows, late = self._in_windows(rows, times_us, valid & ~outside, watermark_us)
        late_batch = None
        if self._tools.want_late and late.any():
            late_batch = batch.take(
                pa.array([made.origin(row) for row in np.flatnonzero(late).tolist()])
            )
        return Prepared(rows, int(late.sum()), late_batch, bad=bad)

    def _rows(self, made: pa.RecordBatch) -> _Rows:
        keys = [made.column(f"k{at}") for at in range(len(self.spec.keys))]
        arguments = [made.column(f"v{at}") for at in range(len(self._arguments))]
        weights = np.ones(made.num_rows, np.int64)
        if self.spec.weighted:
            weights = values_of(made.column("weight")).astype(np.int64)
        return _Rows(keys, np.zeros(made.num_rows, np.int64), arguments, weights)

    def _in_windows(
        self, rows: _Rows, times_us: Numbers, timed: Mask, watermark_us: int | None
    ) -> tuple[_Rows, Mask]:
        """Each row once for every window that it is in and that is open; and which are in none."""
        assert self._windows is not None
        spec = self._windows.spec
        panes = (np.where(timed, times_us, 0) - spec.start_us) // spec.pane_us
        last = panes // spec.panes_per_slide
        first = (panes - spec.panes_per_window) // spec.panes_per_slide + 1
        closed = self._last_closed(watermark_us)
        if closed is not None:
            first = np.maximum(first, closed + 1)
        counts = np.where(timed, np.maximum(last - first + 1, 0), 0)
        repeated = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(repeated)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows.taken(repeated, first[repeated] + within), timed & (counts == 0)

    def _last_closed(self, watermark_us: int | None) -> int | None:
        known = [mark for mark in (watermark_us, self._watermark_us) if mark is not None]
        if self._windows is None or not self.spec.forgets or not known:
            return None
        return self._windows.last_closed(max(known))

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: _Rows = prepared.rows
        count = len(rows.windows)
        if not self.spec.keys and self.spec.window is None:
            self._touch_the_one_group()
        if count:
            self._shown.note(rows.keys, rows.windows)
            hashes = hash_columns(rows.keys, count)
            self._merge(rows.keys, rows.windows, hashes, self._deltas(rows))
            numbers = self._numbers(rows)
            if self._kept is not None:
                self._kept.merge(rows.arguments, numbers, rows.weights, hashes, self._arguments)
            for argument, place in self._double_places.items():
                assert self._doubles is not None
                column = rows.arguments[self._arguments[argument]]
                self._doubles.merge(place, column, numbers, rows.weights, hashes)
        return ()

    def _touch_the_one_group(self) -> None:
        """Without keys and window there is one group, also if no row has reached it."""
        one: Numbers = np.zeros(1, np.int64)
        self._shown.note([], one)
        names = [column.name for column in self.state.schema.values[len(self.spec.aggregates) : -1]]
        self._merge([], one, hash_columns([], 1), dict.fromkeys(names, one))

    def _deltas(self, rows: _Rows) -> dict[str, Numbers]:
        """By column of the state what each row adds to its group, or takes from it."""
        deltas = {"rows": rows.weights}
        for place in self._arguments.values():
            column = rows.arguments[place]
            if f"n{place}" not in self._columns:
                continue
            weights = np.where(validity_of(column), rows.weights, 0)
            deltas[f"n{place}"] = weights
            if f"h{place}" in self._columns:
                numbers = values_of(column).astype(np.int64)
                deltas[f"h{place}"] = (numbers >> 32) * weights
                deltas[f"l{place}"] = (numbers & _LOW) * weights
        return deltas

    def _merge(
        self, keys: list[pa.Array], windows: Numbers, hashes: Hashes, deltas: dict[str, Numbers]
    ) -> None:
        count = len(windows)
        values = [pa.nulls(count, column.type) for column in self.state.schema.values]
        for name, delta in deltas.items():
            values[self._columns[name]] = pa.array(delta)
        # A group takes the number of its first row; the others are left out.
        numbers = np.arange(self._next_number, self._next_number + count)
        self._next_number += count
        values[self._columns[_NUMBER]] = pa.array(numbers)
        self.state.merge(keys, windows, values, hashes)

    def _numbers(self, rows: _Rows) -> Numbers:
        values, _ = self.state.get(rows.keys, rows.windows)
        numbers: Numbers = values[self._columns[_NUMBER]].to_numpy()
        return numbers

    # --- output -----------------------------------------------------------------------------------

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        """Emit what is left to say of the windows that are over, and forget them."""
        before = self._last_closed(None)
        if self._watermark_us is not None and watermark_us <= self._watermark_us:
            return ()
        self._watermark_us = watermark_us
        if not self.spec.keys and self.spec.window is None and not len(self.state):
            self._touch_the_one_group()
        last = self._last_closed(None)
        if last is None or last == before:
            return ()
        emitted = self._changes(last)
        if self._kept is not None or self._doubles is not None:
            closed = self.state.rows(_PANE_LOWEST, last).column(_NUMBER).to_numpy()
            for part in (self._kept, self._doubles):
                if part is not None:
                    part.state.delete_in(np.sort(closed))
        self.state.drop_panes(last)
        return emitted

    def owes_whole_result(self) -> bool:
        is_whole = self.spec.mode == "complete" and not self.spec.changes
        return is_whole and self.state.has_changes

    def on_commit(self) -> Batches:
        owes_whole = self.owes_whole_result()
        emitted = self._changes(None)
        if not owes_whole:
            return emitted
        rows = self.state.scan()
        return (self._finished(rows),) if rows.num_rows else ()

    def _changes(self, window_upto: int | None) -> Batches:
        """What has become of the groups that were touched: those that went, those that came."""
        self._settle(window_upto)
        changes = self._shown.take(window_upto)
        found = [(changes.come, 1)]
        if self.spec.changes:
            found.insert(0, (changes.gone, -1))
        batches = [(self._finished(rows), weight) for rows, weight in found if rows.num_rows]
        if not self.spec.changes:
            return tuple(batch for batch, _ in batches)
        return tuple(weighed(batch, weight) for batch, weight in batches)

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the state, or of what was shown of it, as rows of the output."""
        keys = len(self.spec.keys)
        columns = list(rows.columns[:keys])
        if self._windows is not None:
            columns.insert(0, self._windows.column(rows.column(PANE_NAME).to_numpy()))
        results = rows.columns[keys + 1 : keys + 1 + len(self.spec.aggregates)]
        columns += shown_results(results, self.spec.aggregates)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    # --- results ----------------------------------------------------------------------------------

    def _settle(self, window_upto: int | None) -> None:
        """Compute the results of touched groups; a group that has no row is none."""
        touched = self._shown.touched(window_upto)
        if not touched.num_rows:
            return
        keys: list[pa.Array] = touched.columns[: len(self.spec.keys)]
        windows = touched.column(PANE_NAME).to_numpy()
        values, there = self.state.get(keys, windows)
        is_one_group = not self.spec.keys and self.spec.window is None
        alive = there & (is_one_group | (values[self._columns["rows"]].fill_null(0).to_numpy() > 0))
        if not alive.all():
            gone = pa.array(~alive)
            self.state.delete([key.filter(gone) for key in keys], windows[~alive])
            keys = [key.filter(pa.array(alive)) for key in keys]
            values = [value.filter(pa.array(alive)) for value in values]
            windows = windows[alive]
        if not len(windows):
            return
        numbers = values[self._columns[_NUMBER]].to_numpy()
        kept = {} if self._kept is None else self._kept.results(numbers)
        for at, call in enumerate(self.spec.aggregates):
            column = kept[call.name] if call.name in kept else self._running(call, values, numbers)
            values[at] = as_stored(column, call.type)
        self.state.put(keys, windows, values, hash_columns(keys, len(windows)))

    def _running(self, call: AggregateCall, values: list[pa.Array], numbers: Numbers) -> pa.Array:
        """The result of a call that is added to and subtracted from."""
        parts = [self._part(call, each, values, numbers) for each in call.accumulators]
        return call.finish(call.accumulators, parts)

    def _part(
        self, call: AggregateCall, part: Accumulator, values: list[pa.Array], numbers: Numbers
    ) -> pa.Array:
        if part.argument is None:
            return values[self._columns["rows"]]
        place = self._arguments[part.argument]
        counts = values[self._columns[f"n{place}"]]
        if part.function == "count":
            return counts
        valid = counts.to_numpy() > 0
        if part.argument.type.is_fractional:
            assert self._doubles is not None
            totals = self._doubles.totals(self._double_places[part.argument], numbers)
            return pa.array(totals, mask=~valid)
        high, low = values[self._columns[f"h{place}"]], values[self._columns[f"l{place}"]]
        if part.function == "sum":
            return self._whole_sum(call, high.to_numpy(), low.to_numpy(), valid)
        return pa.array((high if part.function == "sum_high" else low).to_numpy(), mask=~valid)

    def _whole_sum(self, call: AggregateCall, high: Numbers, low: Numbers, valid: Mask) -> pa.Array:
        high = high + (low >> 32)
        if ((high < -(1 << 31)) | (high >= 1 << 31)).any():
            raise StateOverflow(
                f"{call.name} in state {self.name!r} leaves 64 bits: cast the argument to a wider "
                "type or to double",
                state=self.name,
                column=call.name,
            )
        return pa.array((high << 32) + (low & _LOW), mask=~valid)


def shown_results(columns: Sequence[pa.Array], calls: Sequence[AggregateCall]) -> list[pa.Array]:
    """Results of the state as they are shown."""
    pairs = zip(columns, calls, strict=True)
    return [of_stored(column, call.type) for column, call in pairs]


def _groups_schema(spec: AggregateSpec) -> StateSchema:
    """Keys; of each group its results as they were last shown, then what they are made of."""
    calls = spec.aggregates
    arguments = all_arguments(calls)
    names = [f"n{arguments.index(each)}" for each in counted_arguments(calls)]
    for argument in summed_arguments(calls):
        if not argument.type.is_fractional:
            names += [f"h{arguments.index(argument)}", f"l{arguments.index(argument)}"]
    counted = [ValueColumn(name, pa.int64(), MergeRule.COUNT) for name in (*names, "rows")]
    number = ValueColumn(_NUMBER, pa.int64(), MergeRule.FIRST)
    return StateSchema(key_columns(spec), (*result_columns(calls), *counted, number))


def state_schemas(name: str, spec: AggregateSpec) -> dict[str, StateSchema]:
    """By name all states of the operator, that of its groups first."""
    schemas = {name: _groups_schema(spec)}
    if kept := _kept_calls(spec):
        schemas[f"{name}_values"] = kept_schema(kept)
    if any(each.type.is_fractional for each in summed_arguments(spec.aggregates)):
        schemas[f"{name}_sums"] = _SUMS_SCHEMA
    return schemas


class _KeptValues:
    """The values of the rows of each group, with how often each is there."""

    def __init__(self, state: KeyedState, calls: Sequence[AggregateCall], tools: Tools) -> None:
        self.state = state
        self._anew = Anew(state.name, calls, tools)

    def merge(
        self,
        arguments: list[pa.Array],
        numbers: Numbers,
        weights: Numbers,
        hashes: Hashes,
        places: dict[Expression, int],
    ) -> None:
        """Rows of these groups came, or went."""
        values = [as_kept(arguments[places[each]], each.type) for each in self._anew.arguments]
        add_rows(self.state, values, numbers, weights, hashes)

    def results(self, numbers: Numbers) -> dict[str, pa.Array]:
        """By call the results of these groups."""
        kept = self.state.rows_in(np.unique(numbers))
        return self._anew.results(
            kept.column(PANE_NAME).to_numpy(), kept.columns[: len(self._anew.arguments)],
            kept.column("count").to_numpy(), numbers,
        )  # fmt: skip


class Anew:
    """Aggregates of groups, computed from all of their rows."""

    def __init__(self, name: str, calls: Sequence[AggregateCall], tools: Tools) -> None:
        self.arguments = all_arguments(calls)
        self._repeats = not all(call.function in _ONCE_IS_ENOUGH for call in calls)
        fields = [Field(f"v{at}", each.type, True) for at, each in enumerate(self.arguments)]
        self._schema: Schema = (Field(_NUMBER, BIGINT, False), *fields)
        shown = {each: column_of(field) for each, field in zip(self.arguments, fields, strict=True)}
        renamed = tuple(call.bound(lambda each: shown[each]) for call in calls)
        number: tuple[str, Expression] = (_NUMBER, Column(_NUMBER, BIGINT, False))
        spec = AggregateSpec((number,), None, renamed, "complete")
        fusion = Fusion(self._schema)
        self._operator = partial(Aggregate, name, spec, [fusion], replace(tools, want_late=False))
        self._names = [call.name for call in calls]

    def results(
        self, owners: Numbers, kept: Sequence[pa.Array], counts: Numbers, groups: Numbers
    ) -> dict[str, pa.Array]:
        """By call the results of these groups; of each kept row whose it is, and how often."""
        pairs = zip(kept, self.arguments, strict=True)
        columns = [pa.array(owners), *(of_kept(column, each.type) for column, each in pairs)]
        if self._repeats:
            places = pa.array(np.repeat(np.arange(len(counts)), counts))
            columns = [column.take(places) for column in columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._schema))
        operator = self._operator()
        operator.process(0, operator.prepare(0, batch, None, False))
        emitted = operator.on_commit()
        if not emitted:  # the one group without keys, which has no row
            emitted = (operator.of_no_rows([pa.array(groups)], len(groups)),)
        (found,) = emitted
        at = pa.array(np.searchsorted(found.column(_NUMBER).to_numpy(), groups))
        return {name: found.column(name).take(at) for name in self._names}


def add_rows(
    state: KeyedState, values: list[pa.Array], groups: Numbers, weights: Numbers, hashes: Hashes
) -> None:
    """Count rows of groups that come, and those that go, of which none may be left."""
    state.merge(values, groups, [pa.array(weights)], hashes)
    went = weights < 0
    if went.any():
        gone = pa.array(went)
        _delete_zeros(state, [value.filter(gone) for value in values], groups[went])


class _DoubleSums:
    """Of each group sums of doubles, in places of 32 bits."""

    def __init__(self, state: KeyedState) -> None:
        self.state = state

    def merge(
        self, which: int, column: pa.Array, numbers: Numbers, weights: Numbers, hashes: Hashes
    ) -> None:
        valid = np.flatnonzero(validity_of(column))
        values = values_of(column).astype(np.float64)[valid]
        for rows, places, amounts in places_of(values):
            of_rows = valid[rows]
            keys = [pa.array(np.full(len(rows), which, np.int64)), pa.array(places)]
            groups = numbers[of_rows]
            delta = pa.array(amounts * weights[of_rows])
            self.state.merge(keys, groups, [delta], hashes[of_rows])
            _delete_zeros(self.state, keys, groups)

    def totals(self, which: int, numbers: Numbers) -> NDArray[np.float64]:
        """One of the sums of each of these groups."""
        kept = self.state.rows_in(np.unique(numbers))
        own = kept.filter(pc.equal(kept.column("sum"), which))
        groups = own.column(PANE_NAME).to_numpy()
        begins = np.searchsorted(groups, numbers).tolist()
        ends = np.searchsorted(groups, numbers, side="right").tolist()
        places, amounts = own.column("place").to_pylist(), own.column("amount").to_pylist()
        return np.array(
            [
                total_of(places[begin:end], amounts[begin:end])
                for begin, end in zip(begins, ends, strict=True)
            ]
        )


def _kept_calls(spec: AggregateSpec) -> list[AggregateCall]:
    return [call for call in spec.aggregates if not is_running(call)]


def kept_schema(calls: Sequence[AggregateCall], *more: KeyColumn) -> StateSchema:
    """Of rows that groups keep: how often each is there."""
    kinds = [_kept_type(each.type) for each in all_arguments(calls)]
    keys = tuple(KeyColumn(f"v{at}", kind) for at, kind in enumerate(kinds))
    return StateSchema((*more, *keys), (ValueColumn("count", pa.int64(), MergeRule.COUNT),))


def result_columns(calls: Sequence[AggregateCall]) -> tuple[ValueColumn, ...]:
    """Of groups as they were last shown."""
    return tuple(
        ValueColumn(f"r{at}", arrow_type(stored_type(call.type)), MergeRule.FIRST)
        for at, call in enumerate(calls)
    )


_SUMS_SCHEMA = StateSchema(
    (KeyColumn("sum", pa.int64()), KeyColumn("place", pa.int64())),
    (ValueColumn("amount", pa.int64(), MergeRule.COUNT),),
)


_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def _kept_type(data_type: DataType) -> pa.DataType:
    """A value is kept bit by bit, for -0.0 goes where -0.0 came; as a key it would be 0.0."""
    kind = arrow_type(stored_type(data_type))
    return _BITS.get(kind, kind)


def as_kept(column: pa.Array, data_type: DataType) -> pa.Array:
    return as_stored(column, data_type).view(_kept_type(data_type))


def of_kept(column: pa.Array, data_type: DataType) -> pa.Array:
    return of_stored(column.view(arrow_type(stored_type(data_type))), data_type)


def _delete_zeros(state: KeyedState, keys: list[pa.Array], groups: Numbers) -> None:
    (amounts,), found = state.get(keys, groups)
    nothing = found & (amounts.fill_null(0).to_numpy() == 0)
    if nothing.any():
        state.delete([key.filter(pa.array(nothing)) for key in keys], groups[nothing])
