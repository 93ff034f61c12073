"""The running numbers of a group: how each begins, takes a value in, and merges with another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.arrays import Vector
from penstock.expressions.emitter import INT64_MAX, INT64_MIN, Emitter, unbounded, wrapping
from penstock.expressions.tree import Expression
from penstock.expressions.types import INTEGER_BITS, DataType
from penstock.state.stand_ins import fold_greatest, fold_least

_LOW = 0xFFFFFFFF

Rows = NDArray[np.int64]
Fold = Callable[[Vector, Rows, Vector], None]


@dataclass(frozen=True, slots=True)
class Total:
    """Where a loop takes values of a type in: the group's number, and the exit if it overflows."""

    emit: Emitter
    place: str
    type: DataType
    overflow: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AccumulatorFunction:
    """One row of the table: a kind of running number.

    It is held as bigint (integers, scaled decimals, times), and as double where `of_doubles` says
    so and its argument is one. `initial` is what any first value replaces or adds to unchanged, for
    each of the two. `write` writes a loop's lines for one value, `fold` does the same for many.
    """

    name: str
    fold: Fold
    write: Callable[[Total, str], None] | None  # None: the loop's own number of rows
    merge: str = "add"  # how two of them become one: add, min or max
    nullable: bool = True
    of_doubles: bool = False
    initial: tuple[int, float] = (0, 0)
    may_overflow: bool = False

    def is_double(self, argument: Expression | None) -> bool:
        return self.of_doubles and argument is not None and argument.type.is_fractional

    def dtype(self, argument: Expression | None) -> str:
        return "float64" if self.is_double(argument) else "int64"

    def first(self, argument: Expression | None) -> int | float:
        return self.initial[self.is_double(argument)]

    def first_code(self, argument: Expression | None) -> str:
        first = self.first(argument)
        return str(first) if math.isfinite(first) else unbounded(first)


# --- one value, in a compiled loop ----------------------------------------------------------------


def _count(into: Total, _code: str) -> None:
    into.emit.line(f"{into.place} += 1")


def _sum(into: Total, code: str) -> None:
    emit, total = into.emit, into.place
    if into.type.is_fractional or INTEGER_BITS.get(into.type.kind, 64) < 64:
        emit.line(f"{total} += {code}")  # narrow integers cannot wrap within one batch
        return
    wrapped = emit.let(wrapping(total, "+", code), "total")
    with emit.block(f"if (({total} ^ {wrapped}) & ({code} ^ {wrapped})) < 0:"):
        into.overflow()
    emit.line(f"{total} = {wrapped}")


def _sum_high(into: Total, code: str) -> None:
    into.emit.line(f"{into.place} += np.int64({code}) >> 32")


def _sum_low(into: Total, code: str) -> None:
    into.emit.line(f"{into.place} += np.int64({code}) & {_LOW}")


def _min(into: Total, code: str) -> None:
    _extreme(into, code, "<", f"{into.place} != {into.place}")


def _max(into: Total, code: str) -> None:
    _extreme(into, code, ">", f"{code} != {code}")


def _extreme(into: Total, code: str, sign: str, nan: str) -> None:
    """NaN is greater than every number: a minimum leaves it, a maximum takes it."""
    fractional = into.type.is_fractional
    value = code if fractional else f"np.int64({code})"
    test = f"{value} {sign} {into.place}" + (f" or {nan}" if fractional else "")
    with into.emit.block(f"if {test}:"):
        into.emit.line(f"{into.place} = {value}")


# --- many values, in NumPy ------------------------------------------------------------------------


def _fold_count(totals: Vector, owners: Rows, _numbers: Vector) -> None:
    np.add.at(totals, owners, 1)


def _fold_sum(totals: Vector, owners: Rows, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers)  # one after the other, as the compiled loop adds


def _fold_sum_high(totals: Vector, owners: Rows, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers >> 32)


def _fold_sum_low(totals: Vector, owners: Rows, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers & _LOW)


def _fold_min(totals: Vector, owners: Rows, numbers: Vector) -> None:
    (fold_least if totals.dtype.kind == "f" else np.minimum.at)(totals, owners, numbers)


def _fold_max(totals: Vector, owners: Rows, numbers: Vector) -> None:
    (fold_greatest if totals.dtype.kind == "f" else np.maximum.at)(totals, owners, numbers)


# --- the table ------------------------------------------------------------------------------------

_TABLE = (
    AccumulatorFunction("rows", _fold_count, None, nullable=False),
    AccumulatorFunction("count", _fold_count, _count, nullable=False),
    AccumulatorFunction("sum", _fold_sum, _sum, of_doubles=True, may_overflow=True),
    # The upper and lower 32 bits apart, so that an average of bigints never overflows.
    AccumulatorFunction("sum_high", _fold_sum_high, _sum_high),
    AccumulatorFunction("sum_low", _fold_sum_low, _sum_low),
    AccumulatorFunction(
        "min", _fold_min, _min, merge="min", of_doubles=True, initial=(INT64_MAX, math.nan)
    ),
    AccumulatorFunction(
        "max", _fold_max, _max, merge="max", of_doubles=True, initial=(INT64_MIN, -math.inf)
    ),
)
ACCUMULATORS: Mapping[str, AccumulatorFunction] = {row.name: row for row in _TABLE}
