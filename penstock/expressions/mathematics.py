"""Rounding and real functions, to the last bit of Java's."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.expressions import strict_math
from penstock.expressions.arithmetic import both_valid, out_of_range, overflow_reason
from penstock.expressions.decimals import (
    half_up_quotient,
    largest,
    numbers_of,
    power_of_ten,
    with_room,
)
from penstock.expressions.digits import digits_of_doubles
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.vectors import arrow_column

_FAST_SCALED_MAX = float(1 << 40)
_FAST_TIE_MARGIN = 0.01
_BIGINT_BOUND = float(1 << 63)


def floor_or_ceil(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    operand = node.args[0].type
    values, valid = numbers_of(args[0]), validity_of(args[0])
    if operand.is_decimal:
        unit = power_of_ten(operand.scale)
        (values,) = with_room(int(unit), values)
        whole = values // unit if node.function == "floor" else -((-values) // unit)
        return arrow_column(whole, valid, node.type)
    if operand.is_integer:
        return args[0]
    whole = np.floor(values) if node.function == "floor" else np.ceil(values)
    beyond = (whole >= _BIGINT_BOUND) | (whole < -_BIGINT_BOUND)
    frame.fail(beyond & valid, overflow_reason(node.type), node)
    return arrow_column(saturated(whole), valid, node.type)


def saturated(values: Vector) -> Vector:
    """Doubles to bigint as Java converts: NaN to 0, what is too large to the nearest bigint."""
    limits = np.iinfo(np.int64)
    inside = (values >= -_BIGINT_BOUND) & (values < _BIGINT_BOUND)
    whole = np.where(inside, values, 0.0).astype(np.int64)
    whole = np.where(values >= _BIGINT_BOUND, limits.max, whole)
    return np.where(values < -_BIGINT_BOUND, limits.min, whole)


def round_half_up(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    operand, scale = node.args[0].type, int(node.option("scale"))
    values, valid = numbers_of(args[0]), validity_of(args[0])
    if operand.is_fractional:
        rounded = _round_doubles(values.astype(np.float64), valid, scale)
        return arrow_column(rounded, valid, node.type)
    if operand.is_decimal:
        rounded = _round_decimals(values, operand.scale, scale)
        bad = np.abs(rounded) >= power_of_ten(node.type.precision)
        frame.fail(bad & valid, overflow_reason(node.type), node)
        return arrow_column(np.where(bad, 0, rounded), valid, node.type)
    if scale >= 0:
        return args[0]
    wide, bad = _round_integers(values.astype(np.int64), -scale)
    frame.fail((bad | out_of_range(wide, node.type)) & valid, overflow_reason(node.type), node)
    return arrow_column(wide, valid, node.type)


def _round_decimals(values: Vector, operand_scale: int, scale: int) -> Vector:
    """At `scale` digits after the point; to tens and up for a negative one, with scale 0 then."""
    if scale >= operand_scale:
        return values
    unit = 10 ** (operand_scale - scale)
    (values,) = with_room(max(unit, largest(values) * 10 ** max(-scale, 0)), values)
    rounded = half_up_quotient(values, np.full(1, unit, values.dtype))
    return rounded * power_of_ten(-scale) if scale < 0 else rounded


def _round_integers(values: Vector, digits: int) -> tuple[Vector, Mask]:
    unit = int(power_of_ten(digits))
    down = values // unit * unit  # below by less than a unit; wraps only under the lowest values
    wrapped = down > values
    above = values - down
    up = np.where(values < 0, above > unit // 2, above >= unit - unit // 2)
    result = np.where(up, down + unit, down)
    bad = (wrapped & ~up) | (up & ~wrapped & (result < down))
    return result, bad


def _round_doubles(values: Vector, valid: Mask, scale: int) -> Vector:
    """HALF_UP of the shortest text of each double; ties and large values are settled by the text,
    all others by scaling, whose error is far below the margin kept around ties."""
    factor = float(10 ** abs(scale))
    magnitude = np.abs(values) * factor if scale >= 0 else np.abs(values) / factor
    tie = np.abs(magnitude - np.floor(magnitude) - 0.5) < _FAST_TIE_MARGIN
    fast = (magnitude < _FAST_SCALED_MAX) & ~tie
    whole = np.floor(magnitude + 0.5)
    result = np.copysign(whole / factor if scale >= 0 else whole * factor, values)
    slow = np.flatnonzero(~fast & valid & np.isfinite(values))
    if slow.size:
        scaled, is_whole = digits_of_doubles(values[slow]).scaled(scale)  # no digit to be cut off
        text = pc.binary_join_element_wise(pa.array(scaled).cast(pa.string()), f"E{-scale}", "")
        rounded = text.cast(pa.float64()).to_numpy()
        result[slow] = np.where(is_whole, values[slow], rounded)
    result = np.where(np.isfinite(values), result, values)
    return result + 0.0  # a decimal has no negative zero


def real_function(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    values, valid = values_of(args[0]), validity_of(args[0])
    with np.errstate(all="ignore"):
        if node.function == "sqrt":
            return arrow_column(np.sqrt(values), valid, node.type)
        if node.function == "exp":
            return arrow_column(strict_math.exp(values), valid, node.type)
        if node.function == "expm1":
            return arrow_column(strict_math.expm1(values), valid, node.type)
        if node.function == "log1p":
            return arrow_column(strict_math.log1p(values), valid & ~(values <= -1), node.type)
        # ln of zero or less is null, not an error
        return arrow_column(strict_math.ln(values), valid & ~(values <= 0), node.type)


_LN_2 = float(strict_math.ln(np.array([2.0]))[0])


def logarithm(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Null of zero and less."""
    values = values_of(args[0])
    with np.errstate(all="ignore"):
        if node.function == "log10":
            found = strict_math.log10(values)
        else:
            found = strict_math.ln(values) / _LN_2
    return arrow_column(found, validity_of(args[0]) & ~(values <= 0), node.type)


def logarithm_to_base(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    base, values = (values_of(arg) for arg in args)
    valid = both_valid(args) & ~(values <= 0) & ~(base <= 0)
    with np.errstate(all="ignore"):
        return arrow_column(strict_math.ln(values) / strict_math.ln(base), valid, node.type)


_DEGREES, _RADIANS = 57.29577951308232, 0.017453292519943295  # what Java multiplies by
_FACTORIALS = np.array([math.factorial(number) for number in range(21)], np.int64)


def exact_function(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """What every processor computes alike."""
    values = values_of(args[0])
    if node.function == "rint":
        found = np.rint(values)
    elif node.function == "signum":
        found = np.where((values == 0) | np.isnan(values), values, np.sign(values))
    else:
        found = values * (_DEGREES if node.function == "degrees" else _RADIANS)
    return arrow_column(found, validity_of(args[0]), node.type)


def factorial(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Null where it does not fit, and of negative numbers."""
    values = values_of(args[0])
    known = (values >= 0) & (values < len(_FACTORIALS))
    found = _FACTORIALS[np.where(known, values, 0)]
    return arrow_column(found, validity_of(args[0]) & known, node.type)


def width_bucket(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Which of so many equal parts between two bounds a value lies in; null without any."""
    value, one, other, count = (values_of(arg) for arg in args)
    is_known = np.isfinite(one) & np.isfinite(other) & (one != other) & ~np.isnan(value)
    valid = both_valid(args) & is_known & (count > 0) & (count < np.iinfo(np.int64).max)
    with np.errstate(all="ignore"):
        upwards = one < other
        along = np.where(upwards, value - one, one - value)  # from the first bound on
        span = np.where(upwards, other - one, one - other)
        within = saturated(count.astype(np.float64) * along / span) + 1
        before = np.where(upwards, value < one, value > one)
        behind = np.where(upwards, value >= other, value <= other)
    found = np.where(before, 0, np.where(behind, count + 1, within))
    return arrow_column(found, valid, node.type)


def power(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    left, right = (values_of(arg) for arg in args)
    with np.errstate(all="ignore"):
        return arrow_column(strict_math.power(left, right), both_valid(args), node.type)
