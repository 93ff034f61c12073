"""Decimals of up to 18 digits as scaled 64-bit integers: scaling and HALF_UP rounding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector
from penstock.expressions.digits import digits_of_doubles
from penstock.expressions.types import DataType, decimal_type
from penstock.expressions.vectors import arrow_column

_EXACT_DOUBLE = 1 << 53
_FAST_SCALED_MAX = float(1 << 40)
_FAST_TIE_MARGIN = 0.01  # far above what scaling a double below 2**40 can be wrong by


def power_of_ten(exponent: int) -> np.int64:
    return np.int64(10**exponent)


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
        room = power_of_ten(target.precision - steps) if target.precision >= steps else np.int64(1)
        bad: Mask = (values >= room) | (values <= -room)
        return np.where(bad, 0, values) * power_of_ten(steps), bad
    rounded = half_up_quotient(values, np.full(1, power_of_ten(-steps)))
    return rounded, (rounded >= bound) | (rounded <= -bound)


def scaled_from_doubles(values: Vector, valid: Mask, scale: int) -> tuple[Vector, Mask]:
    """HALF_UP of each double's shortest decimal text at `scale`, as integers; and where that is
    beyond 64 bits or not finite.

    Away from ties plain scaling is right. Near them, and for large values, the text decides: the
    only way to agree with a conversion that goes through text.
    """
    with np.errstate(all="ignore"):
        magnitude = np.abs(values) * float(10**scale)
        whole = np.floor(magnitude + 0.5)
        tie = np.abs(magnitude - np.floor(magnitude) - 0.5) < _FAST_TIE_MARGIN
        fast = (magnitude < _FAST_SCALED_MAX) & ~tie
        result = np.where(fast, np.copysign(whole, values), 0.0).astype(np.int64)
    bad = np.zeros(values.shape, dtype=np.bool_)
    slow = np.flatnonzero(~fast & valid)
    if slow.size:
        result[slow], bad[slow] = digits_of_doubles(values[slow]).scaled(scale)
        bad[slow] |= ~np.isfinite(values[slow])
    return result, bad


def doubles_from_scaled(values: Vector, valid: Mask, scale: int) -> Vector:
    """The nearest double to each decimal: one correctly rounded division where that is exact."""
    with np.errstate(all="ignore"):
        result = values / float(10**scale)
    wide = np.flatnonzero((np.abs(values) >= _EXACT_DOUBLE) & valid)
    if wide.size:
        text = arrow_column(values[wide], None, decimal_type(18, scale)).cast(pa.string())
        result[wide] = text.cast(pa.float64()).to_numpy()
    return result
