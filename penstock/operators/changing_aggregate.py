"""An aggregate over rows that come and go: what a row adds to its group is taken away with it.

Counts and sums of whole numbers are added to and subtracted from; sums of doubles too, in a form
that is exact. For all else a group keeps the values of its rows with how often each is there, and
is aggregated anew from them when it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Doubles, Mask, Numbers, validity_of, values_of
from penstock.errors import StateOverflow
from penstock.expressions.stored_values import as_stored
from penstock.expressions.tree import Expression
from penstock.kernels.hashing import hash_columns
from penstock.loops import Hashes
from penstock.operators.changing import (
    NUMBER,
    Anew,
    ChangingGroups,
    WeightedRows,
    add_rows,
    as_kept,
    delete_zeros,
    kept_schema,
    result_columns,
)
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.exact_sums import places_of, total_of
from penstock.operators.front import Fusion
from penstock.operators.groups import key_columns
from penstock.operators.shown import Changes, Shown
from penstock.operators.specs import (
    Accumulator,
    AggregateCall,
    AggregateSpec,
    SessionSpec,
    all_arguments,
    counted_arguments,
    is_running,
    summed_arguments,
)
from penstock.operators.windows import Windows, panes_of_rows
from penstock.state.columns import (
    PANE_LOWEST,
    PANE_NAME,
    KeyColumn,
    MergeRule,
    StateSchema,
    ValueColumn,
)
from penstock.state.keyed import KeyedState

_LOW = 0xFFFFFFFF


class ChangingAggregate(ChangingGroups):
    """Groups rows by keys and window; the state has a row for each group that has rows."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        assert not isinstance(spec.window, SessionSpec)
        self._windows = None if spec.window is None else Windows(spec.window)
        times = () if spec.window is None else (("time", spec.window.time),)
        super().__init__(name, spec, fusions, tools, state_schemas(name, spec), times)
        self._columns = {column.name: at for at, column in enumerate(self.state.schema.values)}
        self._shown = Shown(self.state, len(spec.aggregates))
        values, sums = self.states.get(f"{name}_values"), self.states.get(f"{name}_sums")
        self._kept = None if values is None else _KeptValues(values, _kept_calls(spec), tools)
        self._doubles = None if sums is None else _DoubleSums(sums)
        doubles = [each for each in summed_arguments(spec.aggregates) if each.type.is_fractional]
        self._double_places = {argument: place for place, argument in enumerate(doubles)}

    @property
    def _counts(self) -> KeyedState:
        return self.state

    def restore_progress(self, progress: Any) -> None:
        super().restore_progress(progress)
        self._shown.forget()

    # --- input ------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        made, rows, bad = self._computed(batch, collect_bad)
        if self._windows is None:
            return Prepared((rows, np.zeros(made.batch.num_rows, np.int64)), bad=bad)
        window, times = self._windows.spec, made.batch.column("time")
        panes, timed = panes_of_rows(window, made, times, window.time, collect_bad, bad)
        first, last = self._windows.windows_of(panes)
        closed = self._last_closed(self._newest(watermark_us))
        if closed is not None:
            first = np.maximum(first, closed + 1)
        counts = np.where(timed, np.maximum(last - first + 1, 0), 0)
        # Each row stands once for every open window that it is in; one that is in none is late.
        repeated = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(repeated)) - np.repeat(np.cumsum(counts) - counts, counts)
        late = timed & (counts == 0)
        late_rows = self._late_rows(batch, made, late)
        kept = (rows.take(repeated), first[repeated] + within)
        return Prepared(kept, int(late.sum()), late_rows, bad=bad)

    def _last_closed(self, watermark_us: int | None) -> int | None:
        """The last window that a watermark has ended; None: no window ends."""
        if self._windows is None or not self.spec.forgets or watermark_us is None:
            return None
        return self._windows.last_closed(watermark_us)

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: WeightedRows
        rows, windows = prepared.rows
        if self.spec.has_one_group:
            self._touch_the_one_group()
        if len(windows):
            self._shown.note(rows.keys, windows)
            hashes = hash_columns(rows.keys, len(windows))
            self._merge(rows.keys, windows, hashes, self._deltas(rows))
            values, _ = self.state.get(rows.keys, windows)
            numbers = values[self._columns[NUMBER.name]].to_numpy()
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

    def _deltas(self, rows: WeightedRows) -> dict[str, Numbers]:
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
        values = [pa.nulls(len(windows), column.type) for column in self.state.schema.values]
        for name, delta in deltas.items():
            values[self._columns[name]] = pa.array(delta)
        values[self._columns[NUMBER.name]] = self._new_numbers(len(windows))
        self.state.merge(keys, windows, values, hashes)

    # --- output -----------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit what is left to say of the windows that are over, and forget them."""
        if self.spec.has_one_group and not len(self.state):
            self._touch_the_one_group()
        last = self._last_closed(watermark_us)
        if last is None or last == self._last_closed(before_us):
            return ()
        emitted = self._emitted(self._changes(last))
        if self._kept is not None or self._doubles is not None:
            closed = self.state.rows(PANE_LOWEST, last).column(NUMBER.name).to_numpy()
            for part in (self._kept, self._doubles):
                if part is not None:
                    part.state.delete_in(np.sort(closed))
        self.state.drop_panes(last)
        return emitted

    def _changes(self, window_upto: int | None = None) -> Changes:
        self._settle(window_upto)
        return self._shown.take(window_upto)

    def _window_column(self, rows: pa.RecordBatch) -> pa.Array | None:
        if self._windows is None:
            return None
        return self._windows.column(rows.column(PANE_NAME).to_numpy())

    # --- results ----------------------------------------------------------------------------------

    def _settle(self, window_upto: int | None) -> None:
        """Compute the results of touched groups; a group that has no row is none."""
        touched = self._shown.touched(window_upto)
        if not touched.num_rows:
            return
        keys: list[pa.Array] = touched.columns[: len(self.spec.keys)]
        windows = touched.column(PANE_NAME).to_numpy()
        values, there = self.state.get(keys, windows)
        rows = values[self._columns["rows"]].fill_null(0).to_numpy()
        alive = there & (self.spec.has_one_group | (rows > 0))
        if not alive.all():
            gone = pa.array(~alive)
            self.state.delete([key.filter(gone) for key in keys], windows[~alive])
            keys = [key.filter(pa.array(alive)) for key in keys]
            values = [value.filter(pa.array(alive)) for value in values]
            windows = windows[alive]
        if not len(windows):
            return
        numbers = values[self._columns[NUMBER.name]].to_numpy()
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


def _groups_schema(spec: AggregateSpec) -> StateSchema:
    """Keys; of each group its results as they were last shown, then what they are made of."""
    calls = spec.aggregates
    arguments = all_arguments(calls)
    names = [f"n{arguments.index(each)}" for each in counted_arguments(calls)]
    for argument in summed_arguments(calls):
        if not argument.type.is_fractional:
            names += [f"h{arguments.index(argument)}", f"l{arguments.index(argument)}"]
    counted = [ValueColumn(name, pa.int64(), MergeRule.COUNT) for name in (*names, "rows")]
    return StateSchema(key_columns(spec), (*result_columns(calls), *counted, NUMBER))


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
            delete_zeros(self.state, keys, groups)

    def totals(self, which: int, numbers: Numbers) -> Doubles:
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


_SUMS_SCHEMA = StateSchema(
    (KeyColumn("sum", pa.int64()), KeyColumn("place", pa.int64())),
    (ValueColumn("amount", pa.int64(), MergeRule.COUNT),),
)
