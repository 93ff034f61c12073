"""The keyed state behind an aggregate: partials go in, rows of accumulators come out.

Counts, integers, decimals, minima and maxima depend on the set of rows alone. A sum of doubles adds
the rows of a batch in their order, and then the batches in theirs: what a marker has committed
never changes, but work that is redone after a crash in other batches may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.expressions.types import DataType, arrow_type
from penstock.expressions.vectors import arrow_column
from penstock.kernels.block import Partials
from penstock.kernels.columns import is_fixed_width
from penstock.kernels.hashing import hash_columns
from penstock.operators.specs import (
    PANE_COLUMN,
    ROWS_COLUMN,
    Accumulator,
    AggregateSpec,
    NamedExpression,
    PartialAggregateSpec,
    SessionSpec,
    accumulators_of,
)
from penstock.state.columns import KeyColumn, MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

SESSION_COLUMNS = (
    ValueColumn("begin", pa.int64(), MergeRule.MIN),
    ValueColumn("end", pa.int64(), MergeRule.MAX),
    ValueColumn("before", pa.int64(), MergeRule.LAST),
)


def state_schema(spec: AggregateSpec) -> StateSchema:
    """Keys k0, k1, … and accumulators a0, a1, …: names that no query can collide with.

    Of a session also when it begins and ends, and when the one before it began.
    """
    values = value_columns(accumulators_of(spec.aggregates))
    is_session = isinstance(spec.window, SessionSpec)
    return StateSchema(key_columns(spec), (*values, *(SESSION_COLUMNS if is_session else ())))


def key_columns(spec: AggregateSpec) -> tuple[KeyColumn, ...]:
    return tuple(
        KeyColumn(f"k{index}", arrow_type(key.type)) for index, (_, key) in enumerate(spec.keys)
    )


def value_columns(accumulators: Sequence[Accumulator]) -> tuple[ValueColumn, ...]:
    return tuple(
        ValueColumn(
            f"a{index}",
            arrow_type(accumulator.type),
            _rule(accumulator),
            tuple(f"a{accumulators.index(other)}" for other in accumulator.reads),
        )
        for index, accumulator in enumerate(accumulators)
    )


def _rule(accumulator: Accumulator) -> MergeRule:
    if accumulator.merge == "add":
        return MergeRule.SUM if accumulator.nullable else MergeRule.COUNT
    return MergeRule(accumulator.merge)


def key_arrays(partials: Partials, keys: Sequence[NamedExpression]) -> list[pa.Array]:
    """The keys of partials as columns; texts keep the codes that their batch has given them."""
    arrays = []
    for index, (_, key) in enumerate(keys):
        words = np.ascontiguousarray(partials.words[:, index])
        valid = partials.null_words >> index & 1 == 0
        arrays.append(_key_array(words, valid, key.type, partials.dictionaries[index]))
    return arrays


def _key_array(
    words: NDArray[np.int64],
    valid: NDArray[np.bool_],
    data_type: DataType,
    dictionary: pa.Array | None,
) -> pa.Array:
    if dictionary is not None:
        codes = pa.array(words.astype(np.int32), mask=~valid)
        return pa.DictionaryArray.from_arrays(codes, dictionary)
    assert is_fixed_width(data_type)
    if data_type.is_fractional:
        return arrow_column(words.view(np.float64), valid, data_type)
    return arrow_column(words, valid, data_type)


def partials_batch(partials: Partials, spec: PartialAggregateSpec) -> pa.RecordBatch:
    """Partials as a batch for an exchange: keys, pane, rows, accumulators."""
    columns = key_arrays(partials, spec.grouped_by)
    if spec.window is not None:
        columns.append(pa.array(partials.panes))
    columns.append(pa.array(partials.rows))
    columns += _value_arrays(partials, accumulators_of(spec.aggregates))
    schema = pa.schema(
        [
            pa.field(field.name, column.type, nullable=field.nullable)
            for field, column in zip(spec.schema, columns, strict=True)
        ]
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value_arrays(partials: Partials, accumulators: Sequence[Accumulator]) -> list[pa.Array]:
    return [
        arrow_column(values, valid, accumulator.type)
        for accumulator, values, valid in zip(
            accumulators, partials.values, partials.validity, strict=True
        )
    ]


def with_the_one_group(partials: Partials, spec: AggregateSpec | PartialAggregateSpec) -> Partials:
    """An aggregate without keys and window has one group, also if no row has reached it.

    Spark gives that row once there was input, though it held no row, or a filter has dropped all.
    """
    if len(partials.rows) or not spec.has_one_group:
        return partials
    nothing = np.zeros(1, np.int64)
    return replace(
        partials,
        words=np.empty((1, 0), np.int64),
        null_words=nothing,
        panes=nothing,
        hashes=hash_columns([], 1),
        values=[np.zeros(1, values.dtype) for values in partials.values],
        validity=[
            np.zeros(1, np.bool_) if accumulator.nullable else None
            for accumulator in accumulators_of(spec.aggregates)
        ],
        rows=nothing,
    )


def merge_nothing(state: KeyedState, spec: AggregateSpec) -> None:
    """Make the one group of an aggregate without keys and window, of no rows."""
    values = of_no_rows(accumulators_of(spec.aggregates), 1)
    state.merge([], np.zeros(1, np.int64), values, hash_columns([], 1))


def of_no_rows(accumulators: Sequence[Accumulator], count: int) -> list[pa.Array]:
    """The accumulators of so many groups that have no rows."""
    return [
        pa.array([None if each.nullable else 0] * count, arrow_type(each.type))
        for each in accumulators
    ]


def merge_partials(state: KeyedState, spec: AggregateSpec, partials: Partials) -> None:
    """Add what a kernel found to the state."""
    if not len(partials.rows):
        return
    if any(dictionary is not None for dictionary in partials.dictionaries):
        values = _value_arrays(partials, accumulators_of(spec.aggregates))
        keys = key_arrays(partials, spec.keys)
        state.merge(keys, partials.panes, values, partials.hashes)
        return
    bits = None
    if any(valid is not None for valid in partials.validity):
        bits = np.zeros(len(partials.rows), np.int64)
        for index, valid in enumerate(partials.validity):
            bits |= (1 if valid is None else valid.astype(np.int64)) << index
    state.merge_words(
        partials.words, partials.null_words, partials.panes, partials.values, bits, partials.hashes
    )


def open_partials(
    spec: AggregateSpec, batch: pa.RecordBatch, closed_pane: int
) -> tuple[pa.RecordBatch, int]:
    """Partials of an exchange whose pane is not closed, and how many rows the others stand for."""
    if spec.window is None:
        return batch, 0
    open_ = batch.column(PANE_COLUMN).to_numpy() > closed_pane
    if open_.all():
        return batch, 0
    late = int(batch.column(ROWS_COLUMN).to_numpy()[~open_].sum())
    return batch.filter(pa.array(open_)), late


def groups_of(
    spec: AggregateSpec, batch: pa.RecordBatch
) -> tuple[list[pa.Array], NDArray[np.int64]]:
    """Keys and panes of partials that came through an exchange."""
    panes: NDArray[np.int64] = np.zeros(batch.num_rows, np.int64)
    if spec.window is not None:
        panes = batch.column(PANE_COLUMN).to_numpy()
    return batch.columns[: len(spec.keys)], panes


def merge_batch(state: KeyedState, spec: AggregateSpec, batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Add partials that came through an exchange; return their panes."""
    keys, panes = groups_of(spec, batch)
    if batch.num_rows:
        # After the keys come the pane, if there is one, and the number of rows.
        values = batch.columns[len(spec.keys) + (spec.window is not None) + 1 :]
        state.merge(keys, panes, values, hash_columns(keys, batch.num_rows))
    return panes
