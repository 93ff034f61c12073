"""Evaluation of expressions over Arrow batches, with the values and the errors that Spark gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import RowError
from penstock.expressions import (
    arithmetic,
    branches,
    casts,
    comparison,
    mathematics,
    nested,
    strings,
    times,
)
from penstock.expressions.frame import Failures, Frame
from penstock.expressions.functions import FUNCTIONS
from penstock.expressions.tree import Call, Column, Expression, Literal, columns_of, walk
from penstock.expressions.vectors import Mask, valid_rows

Eager = Callable[[Call, list[pa.Array], Frame], pa.Array]
Lazy = Callable[[Call, Frame], pa.Array]

# Functions that decide themselves on which rows their arguments are computed.
_LAZY: Mapping[str, Lazy] = {
    "and": branches.and_or,
    "or": branches.and_or,
    "coalesce": branches.coalesce,
    "if": branches.case,
    "case": branches.case,
    "nullif": branches.nullif,
    "in": comparison.contained_in,
}
# Functions that look at all arguments even if one is null.
_ALL_ARGUMENTS = frozenset({"greatest", "least", "eq_null_safe", "struct", "array", "concat_ws"})
# Functions that compute their right argument first, to see a zero.
_RIGHT_FIRST = frozenset({"divide", "int_divide", "remainder", "pmod"})
# Functions that may fail a row.
_FAILING = frozenset(
    {"add", "subtract", "multiply", "negate", "abs", "cast", "round", "get_item", "lpad", "rpad",
     "timestamp_seconds", "timestamp_millis", "floor", "ceil"}
) | _RIGHT_FIRST  # fmt: skip

_EAGER: Mapping[str, Eager] = {
    **dict.fromkeys(("add", "subtract", "multiply"), arithmetic.add_subtract_multiply),
    "divide": arithmetic.divide,
    "int_divide": arithmetic.int_divide,
    "remainder": arithmetic.remainder,
    "pmod": arithmetic.pmod,
    **dict.fromkeys(("negate", "abs"), arithmetic.negate_or_abs),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), comparison.compare),
    "eq_null_safe": comparison.eq_null_safe,
    **dict.fromkeys(("greatest", "least"), comparison.greatest_or_least),
    "not": branches.negation,
    **dict.fromkeys(("is_null", "is_not_null"), branches.null_test),
    "is_nan": branches.nan_test,
    **dict.fromkeys(("cast", "try_cast"), casts.cast),
    "length": strings.length,
    "substring": strings.substring,
    "concat": strings.concat,
    "concat_ws": strings.concat_ws,
    **dict.fromkeys(("upper", "lower"), strings.change_case),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), strings.trim),
    "replace": strings.replace,
    **dict.fromkeys(("lpad", "rpad"), strings.pad),
    **dict.fromkeys(("starts_with", "ends_with"), strings.starts_or_ends_with),
    "contains": strings.contains,
    "like": strings.like,
    "rlike": strings.rlike,
    "split": strings.split,
    **dict.fromkeys(("floor", "ceil"), mathematics.floor_or_ceil),
    "round": mathematics.round_half_up,
    **dict.fromkeys(("sqrt", "exp", "ln"), mathematics.real_function),
    "pow": mathematics.power,
    **dict.fromkeys(("year", "month", "day", "day_of_week"), times.date_part),
    **dict.fromkeys(("hour", "minute", "second"), times.time_part),
    "date_trunc": times.date_trunc,
    "date_add": times.date_add,
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), times.unix_time),
    **dict.fromkeys(
        ("timestamp_seconds", "timestamp_millis", "timestamp_micros"), times.timestamp_from
    ),
    "struct": nested.make_struct,
    "get_field": nested.get_field,
    "array": nested.make_array,
    "get_item": nested.get_item,
    "size": nested.size,
    "lookup": nested.lookup,
}
assert set(_EAGER) | set(_LAZY) == set(FUNCTIONS), "every function of the table can be evaluated"


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The value of an expression on every row; a RowError names the first row that fails."""
    arrays, _, first_error = evaluate_rows([expression], batch)
    if first_error is not None:
        raise first_error
    return arrays[0]


def evaluate_rows(
    expressions: Sequence[Expression], batch: pa.RecordBatch
) -> tuple[list[pa.Array], Mask, RowError | None]:
    """The values, the rows on which any expression failed, and the error of the first such row.

    Values of a failed row mean nothing: drop the row (or send it to the dead-letter stream). The
    values of all other rows are final, nothing needs to be computed again.
    """
    arrays, failures = evaluate_with_failures(expressions, batch)
    return arrays, failures.bad, failures.first


def evaluate_with_failures(
    expressions: Sequence[Expression], batch: pa.RecordBatch
) -> tuple[list[pa.Array], Failures]:
    """As `evaluate_rows`, with the cause of every failure."""
    failures = Failures(batch.num_rows)
    frame = Frame(batch, None, failures, _value)
    with np.errstate(all="ignore"):  # every overflow that matters is checked by hand
        arrays = [_by_dictionary(expression, frame) for expression in expressions]
    return arrays, failures


def _by_dictionary(expression: Expression, frame: Frame) -> pa.Array:
    """The value, found once for each distinct text where it depends on one column that has codes.

    Not of what may fail: then the rows that do are to be known.
    """
    names = {column.name for column in columns_of(expression)}
    coded = names.intersection(
        field.name for field in frame.batch.schema if pa.types.is_dictionary(field.type)
    )
    if len(names) != 1 or not coded or isinstance(expression, Column) or may_fail(expression):
        return _value(expression, frame)
    (name,) = coded
    column = frame.batch.column(name)
    values = column.dictionary
    if len(values) > len(column):
        return _value(expression, frame)
    with_null = pa.concat_arrays([values, pa.nulls(1, values.type)])
    distinct = pa.RecordBatch.from_arrays([with_null], [name])
    found = _value(expression, Frame(distinct, None, Failures(len(with_null)), _value))
    return found.take(column.indices.fill_null(len(values)))


def may_fail(expression: Expression) -> bool:
    """Whether some row could make this expression fail."""
    return any(isinstance(node, Call) and node.function in _FAILING for node in walk(expression))


def _value(expression: Expression, frame: Frame) -> pa.Array:
    if isinstance(expression, Column):
        return frame.column(expression)
    if isinstance(expression, Literal):
        return comparison.literal_array(expression, frame.num_rows)
    lazy = _LAZY.get(expression.function)
    if lazy is not None:
        return lazy(expression, frame)
    return _EAGER[expression.function](expression, _arguments(expression, frame), frame)


def _arguments(node: Call, frame: Frame) -> list[pa.Array]:
    """The arguments in Spark's order: once one is null, the later ones are not computed."""
    if node.function in _ALL_ARGUMENTS:
        return [frame.value(arg) for arg in node.args]
    order = list(range(len(node.args)))
    if node.function in _RIGHT_FIRST:
        order.reverse()
    there: Mask = np.ones(frame.num_rows, dtype=np.bool_)
    values: dict[int, pa.Array] = {}
    for index in order:
        arg = node.args[index]
        values[index] = frame.value_on(arg, there) if may_fail(arg) else frame.value(arg)
        if values[index].null_count:
            there = there & valid_rows(values[index])
    return [values[index] for index in range(len(node.args))]
