"""Comparison in Spark's order: NaN equals NaN and is greatest, -0.0 equals 0.0, text by bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, true_rows, validity_of, values_of
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.frame import Frame, literal_array
from penstock.expressions.nodes import Call, Literal
from penstock.expressions.types import BOOLEAN, DataType
from penstock.expressions.vectors import arrow_column

_ARROW_NAMES = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def compared(function: str, left: pa.Array, right: pa.Array, data_type: DataType) -> pa.Array:
    """One of eq ne lt le gt ge over two arrays of one type; null where either side is."""
    if not data_type.is_fractional:
        return pc.call_function(_ARROW_NAMES[function], [left, right])
    rows = _compared_floats(function, values_of(left), values_of(right))
    return arrow_column(rows, both_valid([left, right]), BOOLEAN)


def _compared_floats(function: str, left: Vector, right: Vector) -> Mask:
    if function in ("gt", "le"):
        swapped = _compared_floats("lt", right, left)
        return swapped if function == "gt" else ~swapped
    left_nan, right_nan = np.isnan(left), np.isnan(right)
    if function in ("eq", "ne"):
        equal: Mask = (left == right) | (left_nan & right_nan)
        return equal if function == "eq" else ~equal
    less: Mask = (left < right) | (~left_nan & right_nan)
    return less if function == "lt" else ~less


def compare(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return compared(node.function, args[0], args[1], node.args[0].type)


def eq_null_safe(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    equal = compared("eq", args[0], args[1], node.args[0].type).fill_null(False)
    both_null = pc.and_(args[0].is_null(), args[1].is_null())
    return pc.or_(equal, both_null)


def contained_in(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    """value IN (items): null if the value is null, or if nothing matches and some item is null."""
    value = frame.value(node.args[0])
    items = node.args[1:]
    if all(isinstance(item, Literal) for item in items) and not node.args[0].type.is_fractional:
        return _in_literals(value, node)
    found = arrow_column(np.zeros(len(value), np.bool_), validity_of(value), BOOLEAN)
    for item in items:
        # an item is only computed where the value is there and no earlier item matched
        open_rows = validity_of(value) & ~true_rows(found)
        candidate = frame.value_on(item, open_rows)
        found = pc.or_kleene(found, compared("eq", value, candidate, node.args[0].type))
    return pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_()))


def _in_literals(value: pa.Array, node: Call) -> pa.Array:
    arrays = [literal_array(item, 1) for item in node.args[1:] if isinstance(item, Literal)]
    known = pa.concat_arrays(arrays)
    found = pc.is_in(value, value_set=known.drop_null(), skip_nulls=True)
    unknown = value.is_null()
    if known.null_count:
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def greatest_or_least(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The extreme of the arguments that are not null; of equal ones the first."""
    better = "gt" if node.function == "greatest" else "lt"
    best = args[0]
    for candidate in args[1:]:
        wins = compared(better, candidate, best, node.type).fill_null(False)
        wins = pc.or_(wins, best.is_null())
        best = pc.if_else(wins, candidate, best)
    return best
