"""Intervals of days to seconds: counts of microseconds, multiplied and divided by fractions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector, values_of
from penstock.expressions.arithmetic import ZERO_DIVISOR, both_valid, overflow_reason
from penstock.expressions.decimals import fitted, half_up_quotient, numbers_of, rounded_product
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.types import DECIMAL_DIGITS_MAX, INTERVAL, arrow_type, decimal_type
from penstock.expressions.vectors import arrow_column

_WHOLE = decimal_type(DECIMAL_DIGITS_MAX, 0)
_BOUND = 1 << 63


def retyped(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The same count under another type."""
    return args[0].view(arrow_type(node.type))


def multiply(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    micros, number = values_of(args[0]), numbers_of(args[1])
    kind = node.args[1].type
    if kind.is_decimal:
        exact = rounded_product(micros.astype(object), number.astype(object))
        return _whole(node, exact, kind.scale, both_valid(args), frame)
    with np.errstate(all="ignore"):
        return _rounded(node, micros.astype(np.float64) * number, both_valid(args), frame)


def divide(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    micros, number, valid = values_of(args[0]), numbers_of(args[1]), both_valid(args)
    kind = node.args[1].type
    zero = number == 0
    frame.fail(zero & valid, ZERO_DIVISOR, node)
    number = np.where(zero, np.ones(1, number.dtype), number)
    if kind.is_fractional:
        with np.errstate(all="ignore"):
            return _rounded(node, micros.astype(np.float64) / number, valid & ~zero, frame)
    scale = DECIMAL_DIGITS_MAX if kind.is_decimal else 0  # Spark rounds there, and then once more
    wide = micros.astype(object) * 10 ** (scale + kind.scale if scale else 0)
    return _whole(node, half_up_quotient(wide, number.astype(object)), scale, valid & ~zero, frame)


def _whole(node: Call, exact: Vector, scale: int, valid: Mask, frame: Frame) -> pa.Array:
    """Half up to whole microseconds."""
    found, bad = fitted(exact, scale, _WHOLE)
    bad = bad | (found >= _BOUND) | (found < -_BOUND)
    return _kept(node, np.where(bad, 0, found).astype(np.int64), bad.astype(np.bool_), valid, frame)


def _rounded(node: Call, product: Vector, valid: Mask, frame: Frame) -> pa.Array:
    """Half away from zero, as Java's libraries round doubles."""
    even = np.rint(product)
    is_tie = np.abs(product - even) == 0.5
    found = np.where(is_tie, product + np.copysign(0.5, product), even)
    fits = (found >= -float(_BOUND)) & (found < float(_BOUND))
    return _kept(node, np.where(fits, found, 0).astype(np.int64), ~fits, valid, frame)


def _kept(node: Call, found: Vector, bad: Mask, valid: Mask, frame: Frame) -> pa.Array:
    frame.fail(bad & valid, overflow_reason(INTERVAL), node)
    return arrow_column(found, valid & ~bad, node.type)
