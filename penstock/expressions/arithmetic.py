"""Arithmetic with ANSI errors: integers of each width, floats, decimals as scaled integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.expressions.decimals import (
    align,
    fitted,
    half_up_quotient,
    largest,
    numbers_of,
    power_of_ten,
    rounded_product,
    with_room,
)
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.types import (
    ARITHMETIC_DIGITS_MAX,
    DECIMAL_DIGITS_MAX,
    INTEGER_BITS,
    DataType,
)
from penstock.expressions.vectors import arrow_column

ZERO_DIVISOR = "division by zero"
_HALF_WORD = 1 << 31  # a product of factors below this cannot overflow 64 bits


def overflow_reason(data_type: DataType) -> str:
    return f"{data_type} overflow"


def both_valid(args: list[pa.Array]) -> Mask:
    valid = validity_of(args[0])
    for arg in args[1:]:
        valid = valid & validity_of(arg)
    return valid


def out_of_range(values: Vector, data_type: DataType) -> Mask:
    """Where 64-bit values do not fit a narrower integer type."""
    bound = 1 << (INTEGER_BITS[data_type.kind] - 1)
    if data_type.kind == "bigint":
        return np.zeros(values.shape, dtype=np.bool_)
    outside: Mask = (values < -bound) | (values >= bound)
    return outside


def wide_add(left: Vector, right: Vector) -> tuple[Vector, Mask]:
    result = left + right
    return result, ((left ^ result) & (right ^ result)) < 0


def _wide_subtract(left: Vector, right: Vector) -> tuple[Vector, Mask]:
    result = left - right
    return result, ((left ^ right) & (left ^ result)) < 0


def _wide_multiply(left: Vector, right: Vector) -> tuple[Vector, Mask]:
    result = left * right
    small = (
        (left < _HALF_WORD) & (left >= -_HALF_WORD) & (right < _HALF_WORD) & (right >= -_HALF_WORD)
    )
    bad = np.zeros(result.shape, dtype=np.bool_)
    if not small.all():
        rows = np.flatnonzero(~small & (left != 0) & (right != 0))
        a, b, r = left[rows], right[rows], result[rows]
        lowest = np.iinfo(np.int64).min
        negated = (a == -1) & (b == lowest) | (b == -1) & (a == lowest)
        divisor = np.where(negated, 1, a)
        bad[rows] = negated | (~negated & ((r // divisor != b) | (r % divisor != 0)))
    return result, bad


_WIDE = {"add": wide_add, "subtract": _wide_subtract, "multiply": _wide_multiply}
_PLAIN = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


def add_subtract_multiply(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    left_type, right_type = (arg.type for arg in node.args)
    if node.type.precision > ARITHMETIC_DIGITS_MAX:
        return _wide_decimals(node, args, frame)
    left, right = values_of(args[0]), values_of(args[1])
    valid = both_valid(args)
    if node.type.is_fractional:
        return arrow_column(_PLAIN[node.function](left, right), valid, node.type)
    if node.type.is_decimal:
        if node.function != "multiply":
            left = left * power_of_ten(node.type.scale - left_type.scale)
            right = right * power_of_ten(node.type.scale - right_type.scale)
        # the result type has room for every sum or product of its operand types
        return arrow_column(_PLAIN[node.function](left, right), valid, node.type)
    wide, bad = _WIDE[node.function](left.astype(np.int64), right.astype(np.int64))
    bad = (bad | out_of_range(wide, node.type)) & valid
    frame.fail(bad, overflow_reason(node.type), node)
    return arrow_column(wide, valid, node.type)


def _wide_decimals(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """The exact result, then rounded to the type's scale, which may be smaller."""
    left_type, right_type = (arg.type for arg in node.args)
    left, right = numbers_of(args[0]), numbers_of(args[1])
    if node.function == "multiply":
        exact, scale = rounded_product(left, right), left_type.scale + right_type.scale
    else:
        scale = max(left_type.scale, right_type.scale)
        factors = [10 ** (scale - side.scale) for side in (left_type, right_type)]
        bound = largest(left) * factors[0] + largest(right) * factors[1]
        left, right = with_room(max(bound, *factors), left, right)
        exact = _PLAIN[node.function](left * factors[0], right * factors[1])
    return _fitted_decimals(node, exact, scale, both_valid(args), frame)


def _fitted_decimals(node: Call, exact: Vector, scale: int, valid: Mask, frame: Frame) -> pa.Array:
    found, bad = fitted(exact, scale, node.type)
    frame.fail(bad & valid, overflow_reason(node.type), node)
    return arrow_column(np.where(bad, 0, found), valid, node.type)


def _wide_quotients(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Rounded at 38 digits behind the point first, and then once more, as Spark does it."""
    left_type, right_type = (arg.type for arg in node.args)
    left, right = numbers_of(args[0]), numbers_of(args[1])
    valid = both_valid(args)
    right = _nonzero(right, valid, node, frame).astype(object)
    more = DECIMAL_DIGITS_MAX - left_type.scale + right_type.scale
    exact = half_up_quotient(left.astype(object) * 10**more, right)
    return _fitted_decimals(node, exact, DECIMAL_DIGITS_MAX, valid, frame)


def _nonzero(right: Vector, valid: Mask, node: Call, frame: Frame) -> Vector:
    """The divisors, with 1 in place of the zeros, which fail where both operands are there."""
    zero = right == 0
    frame.fail(zero & valid, ZERO_DIVISOR, node)
    return np.where(zero, np.ones(1, dtype=right.dtype), right)


def divide(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    if any(arg.type.precision > ARITHMETIC_DIGITS_MAX for arg in (node, *node.args)):
        return _wide_quotients(node, args, frame)
    left_type, right_type = (arg.type for arg in node.args)
    left, right = values_of(args[0]), values_of(args[1])
    valid = both_valid(args)
    right = _nonzero(right, valid, node, frame)
    if not node.type.is_decimal:
        return arrow_column(left / right, valid, node.type)
    numerator = left * power_of_ten(node.type.scale - left_type.scale + right_type.scale)
    return arrow_column(half_up_quotient(numerator, right), valid, node.type)


def _aligned(node: Call, args: list[pa.Array]) -> tuple[Vector, Vector]:
    left_type, right_type = (arg.type for arg in node.args)
    left, right = values_of(args[0]), values_of(args[1])
    if left_type.is_decimal:
        return align(left, left_type.scale, right, right_type.scale)
    return left, right


def int_divide(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    left, right = (side.astype(np.int64) for side in _aligned(node, args))
    valid = both_valid(args)
    right = _nonzero(right, valid, node, frame)
    overflow = (left == np.iinfo(np.int64).min) & (right == -1)
    frame.fail(overflow & valid, overflow_reason(node.type), node)
    return arrow_column(truncated_quotient(left, np.where(overflow, 1, right)), valid, node.type)


def truncated_quotient(left: Vector, right: Vector) -> Vector:
    """Integer division towards zero; NumPy's goes down."""
    down = left // right
    inexact = (down * right != left) & ((left < 0) != (right < 0))
    quotient: Vector = down + inexact
    return quotient


def _signed_remainder(left: Vector, right: Vector) -> Vector:
    """The remainder with the sign of the dividend, like Java's."""
    if left.dtype.kind != "f":
        right = np.where(right == -1, np.ones(1, dtype=right.dtype), right)
    return np.fmod(left, right)


def remainder(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    left, right = _aligned(node, args)
    valid = both_valid(args)
    right = _nonzero(right, valid, node, frame)
    return arrow_column(_signed_remainder(left, right), valid, node.type)


def pmod(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    left, right = _aligned(node, args)
    valid = both_valid(args)
    right = _nonzero(right, valid, node, frame)
    if node.type.kind in ("tinyint", "smallint"):
        left, right = left.astype(np.int32), right.astype(np.int32)  # as Java promotes them
    first = _signed_remainder(left, right)
    result = np.where(first < 0, _signed_remainder(first + right, right), first)
    if node.type.is_decimal:
        # the type has the digits of a remainder, which a divisor added to it can exceed
        bad = np.abs(result) >= power_of_ten(node.type.precision)
        frame.fail(bad & valid, overflow_reason(node.type), node)
        result = np.where(bad, 0, result)
    return arrow_column(result, valid, node.type)


def negate_or_abs(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    values, valid = numbers_of(args[0]), validity_of(args[0])
    if node.type.is_integer:
        bad = valid & (values == np.iinfo(values.dtype).min)
        frame.fail(bad, overflow_reason(node.type), node)
    return arrow_column(
        np.negative(values) if node.function == "negate" else np.abs(values), valid, node.type
    )
