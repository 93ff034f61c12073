"""The closed table of aggregates: what each takes, keeps per group, and gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import validity_of
from penstock.expressions.types import BIGINT, DOUBLE, DataType, decimal_type
from penstock.expressions.vectors import arrow_column

SUM_DIGITS = 10  # a sum of decimals has so many more digits before the point
AVERAGE_DIGITS = 4  # an average of decimals has so many more digits behind the point
_LOW = 0xFFFFFFFF
_SCALED_MAX = ((1 << 62) - 1) // (2 * 10**AVERAGE_DIGITS)

Numbers = NDArray[np.int64]
Finish = Callable[[Sequence[pa.Array], DataType], pa.Array]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """One row of the table: all that is known of an aggregate.

    `refusal` says what an argument must be, if it is not. `accumulators` names what is kept per
    group, of `ACCUMULATORS`; `finish` makes their columns the column of the result. A decimal gets
    `more_digits`. `catalyst` is Spark's class; `ansi` is its field that must say that overflow is
    an error.
    """

    name: str
    catalyst: str
    result: Callable[[DataType], DataType]
    accumulators: Callable[[DataType], tuple[str, ...]]
    finish: Finish
    refusal: Callable[[DataType], str | None]
    nullable: bool = True
    counts_rows: bool = False  # if it has no argument
    more_digits: int = 0
    ansi: str | None = None


# --- what they take and give ----------------------------------------------------------------------


def _anything(_argument: DataType) -> None:
    return None


def _numeric(argument: DataType) -> str | None:
    return None if argument.is_numeric else "needs a number, {argument} is {type}"


def _ordered(argument: DataType) -> str | None:
    if argument.is_nested or argument.kind in ("string", "binary"):
        return "of {type} is not supported: use a number, boolean or time"
    return None


def _bigint(_argument: DataType) -> DataType:
    return BIGINT


def _itself(argument: DataType) -> DataType:
    return argument


def _sum_type(argument: DataType) -> DataType:
    if argument.is_decimal:
        return decimal_type(argument.precision + SUM_DIGITS, argument.scale)
    return DOUBLE if argument.is_fractional else BIGINT


def _average_type(argument: DataType) -> DataType:
    if argument.is_decimal:
        digits = argument.precision + AVERAGE_DIGITS
        return decimal_type(digits, argument.scale + AVERAGE_DIGITS)
    return DOUBLE


# --- what they keep -------------------------------------------------------------------------------


def _one(name: str) -> Callable[[DataType], tuple[str, ...]]:
    return lambda _argument: (name,)


def _parts_of_average(argument: DataType) -> tuple[str, ...]:
    if argument.kind == "bigint" or argument.is_decimal:
        return ("sum_high", "sum_low", "count")
    return ("sum", "count")


# --- how they end ---------------------------------------------------------------------------------


def _counted(columns: Sequence[pa.Array], _result: DataType) -> pa.Array:
    return pa.array(_numbers(columns[0]), pa.int64())


def _kept(columns: Sequence[pa.Array], result: DataType) -> pa.Array:
    values, valid = _numbers(columns[0]), validity_of(columns[0])
    return arrow_column(values != 0 if result.kind == "boolean" else values, valid, result)


def _averaged(columns: Sequence[pa.Array], result: DataType) -> pa.Array:
    *parts, counts = map(_numbers, columns)
    valid = counts > 0
    divisors = np.where(valid, counts, 1)
    if result.is_decimal:
        return arrow_column(_half_up(parts[0], parts[1], divisors), valid, result)
    total = parts[0] if len(parts) == 1 else _as_doubles(parts[0], parts[1])
    with np.errstate(all="ignore"):
        return arrow_column(total / divisors, valid, DOUBLE)


def _numbers(column: pa.Array) -> NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy()
    return values


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
    scaled = np.where(small, total, 0) * 10**AVERAGE_DIGITS
    result: Numbers = np.sign(scaled) * ((2 * np.abs(scaled) + counts) // (2 * counts))
    large = np.flatnonzero(~small)
    if large.size:  # beyond 64 bits: as integers of any size
        high, low, counts = (part[large].astype(object) for part in (high, low, counts))
        whole = ((high << 32) + low) * 10**AVERAGE_DIGITS
        size = (2 * np.abs(whole) + counts) // (2 * counts)
        result[large] = np.where(whole >= 0, size, -size).astype(np.int64)
    return result


# --- the table ------------------------------------------------------------------------------------

_TABLE = (
    AggregateFunction(
        "count", "Count", _bigint, _one("count"), _counted, _anything,
        nullable=False, counts_rows=True,
    ),
    AggregateFunction(
        "sum", "Sum", _sum_type, _one("sum"), _kept, _numeric,
        more_digits=SUM_DIGITS, ansi="evalContext",
    ),
    AggregateFunction(
        "avg", "Average", _average_type, _parts_of_average, _averaged, _numeric,
        more_digits=AVERAGE_DIGITS, ansi="evalMode",
    ),
    AggregateFunction("min", "Min", _itself, _one("min"), _kept, _ordered),
    AggregateFunction("max", "Max", _itself, _one("max"), _kept, _ordered),
)  # fmt: skip
AGGREGATES: Mapping[str, AggregateFunction] = {row.name: row for row in _TABLE}
