"""Decimals as scaled integers: scaling and HALF_UP rounding.

Integers have 64 bits where that is enough, which their type or their values tell; else they are
Python's, exact at any length and slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector, decimal_words, validity_of, values_of
from penstock.expressions.digits import digits_of_doubles
from penstock.expressions.types import ARITHMETIC_DIGITS_MAX, DataType, decimal_type
from penstock.expressions.vectors import arrow_column

_EXACT_DOUBLE = 1 << 53
_FAST_SCALED_MAX = float(1 << 40)
_FAST_TIE_MARGIN = 0.01  # far above what scaling a double below 2**40 can be wrong by


_WORD_BOUND = 1 << 63
_LEAST_WORD = np.iinfo(np.int64).min


def power_of_ten(exponent: int) -> Any:
    """As 64 bits, or as Python's integer beyond them."""
    power = 10**exponent
    return np.int64(power) if power < _WORD_BOUND else power


def numbers_of(array: pa.Array) -> Vector:
    """The scaled integers of decimals, or the values of another column."""
    if not pa.types.is_decimal(array.type) or array.type.precision <= ARITHMETIC_DIGITS_MAX:
        return values_of(array)
    words = decimal_words(array)
    valid = validity_of(array)
    low, high = words[:, 0], words[:, 1]
    # Of the least number 64 bits hold no magnitude, and no opposite.
    if (((low >> 63) == high) & (low != _LEAST_WORD) | ~valid).all():
        return np.where(valid, low, 0)
    whole = (high.astype(object) << 64) + low.view(np.uint64).astype(object)
    return np.where(valid, whole, 0)


def with_room(bound: int, *numbers: Vector) -> tuple[Vector, ...]:
    """The same integers, as Python's unless everything up to the bound has 64 bits."""
    if bound < _WORD_BOUND:
        return numbers
    return tuple(each.astype(object) for each in numbers)


def largest(numbers: Vector) -> int:
    """The largest magnitude, 0 of none."""
    if not len(numbers):
        return 0
    return max(abs(int(numbers.max())), abs(int(numbers.min())))


def fitted(values: Vector, scale: int, target: DataType) -> tuple[Vector, Mask]:
    """`rescale` for integers of any length."""
    steps = target.scale - scale
    bound = max(largest(values) * 10 ** max(steps, 0), 10**target.precision, 10 ** abs(steps))
    (roomy,) = with_room(bound, values)
    return rescale(roomy, scale, target)


_SIGNIFICANT_DIGITS = 38


def rounded_product(left: Vector, right: Vector) -> Vector:
    """Products, HALF_UP at 38 significant digits where they have more."""
    left, right = with_room(largest(left) * largest(right), left, right)
    product = left * right
    most = largest(product)
    for digits in range(_SIGNIFICANT_DIGITS + 1, len(str(most)) + 1):
        unit = 10 ** (digits - _SIGNIFICANT_DIGITS)
        size = np.abs(product)
        long = (size >= 10 ** (digits - 1)) & (size < 10**digits)
        if long.any():
            rounded = half_up_quotient(product, np.full(1, unit, object)) * unit
            product = np.where(long, rounded, product)
    return product


def align(left: Vector, left_scale: int, right: Vector, right_scale: int) -> tuple[Vector, Vector]:
    """Both sides at the larger scale."""
    scale = max(left_scale, right_scale)
    return left * power_of_ten(scale - left_scale), right * power_of_ten(scale - right_scale)


def half_up_quotient(numerator: Vector, denominator: Vector) -> Vector:
    """The nearest integer to each quotient, ties away from zero."""
    top, bottom = np.abs(numerator), np.abs(denominator)
    quotient = top // bottom
    left_over = top - quotient * bottom
    quotient = quotient + (left_over >= bottom - left_over)
    nearest: Vector = np.where((numerator < 0) != (denominator < 0), -quotient, quotient)
    return nearest


def rescale(values: Vector, scale: int, target: DataType) -> tuple[Vector, Mask]:
    """Values of one scale at the target's, HALF_UP, and where they do not fit its precision."""
    bound = power_of_ten(target.precision)
    steps = target.scale - scale
    if steps >= 0:
        # compare before multiplying: the product could wrap around
        room = power_of_ten(max(target.precision - steps, 0))
        bad: Mask = (values >= room) | (values <= -room)
        return np.where(bad, 0, values) * power_of_ten(steps), bad
    rounded = half_up_quotient(values, np.full(1, power_of_ten(-steps), values.dtype))
    return rounded, (rounded >= bound) | (rounded <= -bound)


def scaled_from_doubles(values: Vector, valid: Mask, target: DataType) -> tuple[Vector, Mask]:
    """HALF_UP of each double's shortest decimal text at the target's scale, as integers; and where
    that has too many digits or is not finite.

    Away from ties plain scaling is right. Near them, and for large values, the text decides: the
    only way to agree with a conversion that goes through text.
    """
    scale = target.scale
    with np.errstate(all="ignore"):
        magnitude = np.abs(values) * float(10**scale)
        whole = np.floor(magnitude + 0.5)
        tie = np.abs(magnitude - np.floor(magnitude) - 0.5) < _FAST_TIE_MARGIN
        fast = (magnitude < _FAST_SCALED_MAX) & ~tie
        result = np.where(fast, np.copysign(whole, values), 0.0).astype(np.int64)
    bad = np.zeros(values.shape, dtype=np.bool_)
    slow = np.flatnonzero(~fast & valid)
    if slow.size:
        found, bad[slow] = digits_of_doubles(values[slow]).scaled(scale, target.precision)
        if found.dtype == np.object_:
            result = result.astype(object)
        result[slow] = found
        bad[slow] |= ~np.isfinite(values[slow])
    return result, bad


def doubles_from_scaled(values: Vector, valid: Mask, scale: int) -> Vector:
    """The nearest double to each decimal: one correctly rounded division where that is exact."""
    if values.dtype == np.object_:
        wide_type = decimal_type(_SIGNIFICANT_DIGITS, scale)
        text = arrow_column(values, None, wide_type).cast(pa.string())
        found: Vector = text.cast(pa.float64()).to_numpy()
        return found
    with np.errstate(all="ignore"):
        result = values / float(10**scale)
    wide = np.flatnonzero((np.abs(values) >= _EXACT_DOUBLE) & valid)
    if wide.size:
        text = arrow_column(values[wide], None, decimal_type(18, scale)).cast(pa.string())
        result[wide] = text.cast(pa.float64()).to_numpy()
    return result
