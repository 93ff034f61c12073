"""What aggregates over rows that come and go have in common: rows with weights in, changes out.

A group, or the key of sessions, has a number, under which what it keeps of its rows is found. What
cannot be taken away from a result is computed anew, from all rows that are left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, values_of
from penstock.errors import RowError
from penstock.expressions.stored_values import as_stored, of_stored, stored_type
from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import BIGINT, DataType, Field, Schema, arrow_schema, arrow_type
from penstock.kernels.block import Block, BlockSpec, StepRows
from penstock.loops import Hashes
from penstock.operators.aggregate import Aggregate
from penstock.operators.contract import Batches, Tools
from penstock.operators.front import Fusion, failures
from penstock.operators.shown import Changes, weighed
from penstock.operators.specs import (
    WEIGHT_FIELD,
    AggregateCall,
    AggregateSpec,
    NamedExpression,
    all_arguments,
    column_of,
)
from penstock.operators.timed import TimedOperator
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

NUMBER = ValueColumn("number", pa.int64(), MergeRule.FIRST)

_ONCE_IS_ENOUGH = frozenset({"min", "max"})  # of values that are there more than once


@dataclass(frozen=True, slots=True)
class WeightedRows:
    """Rows of a batch: what groups them, what is aggregated, and whether each comes or goes."""

    keys: list[pa.Array]
    arguments: list[pa.Array]
    weights: Numbers

    def take(self, rows: Numbers) -> WeightedRows:
        places = pa.array(rows)
        return WeightedRows(
            [key.take(places) for key in self.keys],
            [argument.take(places) for argument in self.arguments],
            self.weights[rows],
        )


class ChangingGroups(TimedOperator):
    """Groups whose rows come and go; at a commit so do their own, where that is wanted."""

    states: Mapping[str, KeyedState]

    def __init__(
        self,
        name: str,
        spec: AggregateSpec,
        fusions: Sequence[Fusion],
        tools: Tools,
        schemas: Mapping[str, StateSchema],
        times: Sequence[NamedExpression],
    ) -> None:
        """`schemas` are of all states, by name; `times` are what says when a row is."""
        self.name = name
        self.spec = spec
        (fusion,) = fusions
        self._want_late = tools.want_late
        self._arguments = {each: at for at, each in enumerate(all_arguments(spec.aggregates))}
        computed = [*times, *((f"k{at}", key) for at, (_, key) in enumerate(spec.keys))]
        computed += [(f"v{at}", argument) for argument, at in self._arguments.items()]
        if spec.weighted:
            computed.append(("weight", column_of(WEIGHT_FIELD)))
        self._block = Block(BlockSpec(fusion.schema, (), tuple(computed)), tools.cache)
        self.states = {
            each: KeyedState(each, schema, bytes_max=tools.state_bytes_max)
            for each, schema in schemas.items()
        }
        self.state = self.states[name]
        self._schema = arrow_schema(spec.groups_schema)
        self._next_number = 0

    def progress(self) -> list[int | None]:
        return [self._watermark_us, self._next_number]

    def restore_progress(self, progress: Any) -> None:
        self._watermark_us, self._next_number = (None, 0) if progress is None else progress

    def blocks(self) -> Sequence[Block]:
        return (self._block,)

    # --- input ------------------------------------------------------------------------------------

    def _computed(
        self, batch: pa.RecordBatch, collect_bad: bool
    ) -> tuple[StepRows, WeightedRows, dict[int, RowError]]:
        """What is read of a batch, its rows, and those that fail."""
        made = self._block.run(batch, collect_bad)
        columns, count = made.batch, made.batch.num_rows
        weights = np.ones(count, np.int64)
        if self.spec.weighted:
            weights = values_of(columns.column("weight")).astype(np.int64)
        keys = [columns.column(f"k{at}") for at in range(len(self.spec.keys))]
        arguments = [columns.column(f"v{at}") for at in range(len(self._arguments))]
        bad = failures(self._block, batch, made.bad_rows)
        return made, WeightedRows(keys, arguments, weights), bad

    def _late_rows(
        self, batch: pa.RecordBatch, made: StepRows, late: Mask
    ) -> pa.RecordBatch | None:
        """These rows as they came, where they are wanted."""
        if not self._want_late or not late.any():
            return None
        return batch.take(pa.array([made.origin(row) for row in np.flatnonzero(late).tolist()]))

    def _new_numbers(self, count: int) -> pa.Array:
        """One for each row; that of its first row is taken by a group, the others are left out."""
        numbers = np.arange(self._next_number, self._next_number + count)
        self._next_number += count
        return pa.array(numbers)

    # --- output -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _counts(self) -> KeyedState:
        """The state that each row changes at once: how many there are."""

    @abstractmethod
    def _changes(self, window_upto: int | None = None) -> Changes:
        """What has become of the groups that were touched, of windows up to one."""

    @abstractmethod
    def _window_column(self, rows: pa.RecordBatch) -> pa.Array | None:
        """The windows of rows of the state, as structs of start and end."""

    def owes_whole_result(self) -> bool:
        return self.spec.shows_whole and self._counts.has_changes

    def on_commit(self) -> Batches:
        owes_whole = self.owes_whole_result()
        changes = self._changes()
        if not owes_whole:
            return self._emitted(changes)
        rows = self.state.scan()
        return (self._finished(rows),) if rows.num_rows else ()

    def _emitted(self, changes: Changes) -> Batches:
        """The rows that go, if that is to be said, then those that come."""
        come = (self._finished(changes.come),) if changes.come.num_rows else ()
        if not self.spec.changes:
            return come
        gone = (self._finished(changes.gone),) if changes.gone.num_rows else ()
        return (*(weighed(rows, -1) for rows in gone), *(weighed(rows, 1) for rows in come))

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the state, or of what was shown of it, as rows of the output."""
        window = self._window_column(rows)
        results = [rows.column(f"r{at}") for at in range(len(self.spec.aggregates))]
        columns = [
            *([] if window is None else [window]),
            *rows.columns[: len(self.spec.keys)],
            *shown_results(results, self.spec.aggregates),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def shown_results(columns: Sequence[pa.Array], calls: Sequence[AggregateCall]) -> list[pa.Array]:
    """Results of the state as they are shown."""
    pairs = zip(columns, calls, strict=True)
    return [of_stored(column, call.type) for column, call in pairs]


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


class Anew:
    """Aggregates of groups, computed from all of their rows."""

    def __init__(self, name: str, calls: Sequence[AggregateCall], tools: Tools) -> None:
        self.arguments = all_arguments(calls)
        self._repeats = not all(call.function in _ONCE_IS_ENOUGH for call in calls)
        fields = [Field(f"v{at}", each.type, True) for at, each in enumerate(self.arguments)]
        self._schema: Schema = (Field(NUMBER.name, BIGINT, False), *fields)
        shown = {each: column_of(field) for each, field in zip(self.arguments, fields, strict=True)}
        renamed = tuple(call.bound(lambda each: shown[each]) for call in calls)
        number: tuple[str, Expression] = (NUMBER.name, Column(NUMBER.name, BIGINT, False))
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
        at = pa.array(np.searchsorted(found.column(NUMBER.name).to_numpy(), groups))
        return {name: found.column(name).take(at) for name in self._names}


def add_rows(
    state: KeyedState, values: list[pa.Array], groups: Numbers, weights: Numbers, hashes: Hashes
) -> None:
    """Count rows of groups that come, and those that go, of which none may be left."""
    state.merge(values, groups, [pa.array(weights)], hashes)
    went = weights < 0
    if went.any():
        gone = pa.array(went)
        delete_zeros(state, [value.filter(gone) for value in values], groups[went])


_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def _kept_type(data_type: DataType) -> pa.DataType:
    """A value is kept bit by bit, for -0.0 goes where -0.0 came; as a key it would be 0.0."""
    kind = arrow_type(stored_type(data_type))
    return _BITS.get(kind, kind)


def as_kept(column: pa.Array, data_type: DataType) -> pa.Array:
    return as_stored(column, data_type).view(_kept_type(data_type))


def of_kept(column: pa.Array, data_type: DataType) -> pa.Array:
    return of_stored(column.view(arrow_type(stored_type(data_type))), data_type)


def delete_zeros(state: KeyedState, keys: list[pa.Array], groups: Numbers) -> None:
    (amounts,), found = state.get(keys, groups)
    nothing = found & (amounts.fill_null(0).to_numpy() == 0)
    if nothing.any():
        state.delete([key.filter(pa.array(nothing)) for key in keys], groups[nothing])
