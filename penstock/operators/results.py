"""Accumulators turned into the values of aggregates, with Spark's types and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.expressions.types import DOUBLE
from penstock.kernels.columns import arrow_column, validity_of
from penstock.operators.specs import Accumulator, AggregateCall

_LOW = 0xFFFFFFFF
_AVERAGE_DIGITS = 4  # an average of decimals has so many more digits behind the point
_SCALED_MAX = ((1 << 62) - 1) // (2 * 10**_AVERAGE_DIGITS)

Numbers = NDArray[np.int64]


def finished(
    aggregate: AggregateCall, accumulators: Sequence[Accumulator], columns: Sequence[pa.Array]
) -> pa.Array:
    """The column of one aggregate, from the columns of all accumulators."""
    own = [columns[accumulators.index(needed)] for needed in aggregate.accumulators]
    numbers = [_numbers(column) for column in own]
    if aggregate.function == "count":
        return pa.array(numbers[0], pa.int64())
    if aggregate.function == "avg":
        return _average(aggregate, numbers)
    valid = validity_of(own[0])
    if aggregate.type.kind == "boolean":
        return arrow_column(numbers[0] != 0, valid, aggregate.type)
    return arrow_column(numbers[0], valid, aggregate.type)


def _numbers(column: pa.Array) -> NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy()
    return values


def _average(aggregate: AggregateCall, numbers: list[NDArray[Any]]) -> pa.Array:
    *parts, counts = numbers
    valid = counts > 0
    divisors = np.where(valid, counts, 1)
    if aggregate.type.is_decimal:
        rounded = _half_up(parts[0], parts[1], divisors)
        return arrow_column(rounded, valid, aggregate.type)
    total = parts[0] if len(parts) == 1 else _as_doubles(parts[0], parts[1])
    with np.errstate(all="ignore"):
        return arrow_column(total / divisors, valid, DOUBLE)


def _as_doubles(high: Numbers, low: Numbers) -> NDArray[np.float64]:
    """high * 2^32 + low, rounded once where it fits 64 bits."""
    high, low = high + (low >> 32), low & _LOW
    fits = (high >= -(1 << 31)) & (high < 1 << 31)
    exact = (np.where(fits, high, 0) << 32) + low
    return np.where(fits, exact.astype(np.float64), high * 4294967296.0 + low)


def _half_up(high: Numbers, low: Numbers, counts: Numbers) -> Numbers:
    """The sum / count with four more digits, ties away from zero; exact for sums of any size."""
    high, low = high + (low >> 32), low & _LOW
    total = (high << 32) + low
    small = (high >= -(1 << 15)) & (high < 1 << 15) & (np.abs(total) < _SCALED_MAX)
    scaled = np.where(small, total, 0) * 10**_AVERAGE_DIGITS
    result: Numbers = np.sign(scaled) * ((2 * np.abs(scaled) + counts) // (2 * counts))
    large = np.flatnonzero(~small)
    if large.size:  # beyond 64 bits: as integers of any size
        high, low, counts = (part[large].astype(object) for part in (high, low, counts))
        whole = ((high << 32) + low) * 10**_AVERAGE_DIGITS
        size = (2 * np.abs(whole) + counts) // (2 * counts)
        result[large] = np.where(whole >= 0, size, -size).astype(np.int64)
    return result
