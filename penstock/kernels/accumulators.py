"""The running values of a group: how each begins, takes a value in, and merges with another.

Some are kept by a compiled loop over a batch before they reach a state, as numbers. Of the others
each row's own value goes to the state, which merges it by the rule that the row of the table names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Numbers, Vector, decimal_words, fixed_column, validity_of, values_of
from penstock.expressions.emitter import INT64_MAX, INT64_MIN, Emitter, unbounded, wrapping
from penstock.expressions.stored_values import as_stored, stored_type
from penstock.expressions.tree import Expression
from penstock.expressions.types import BIGINT, DOUBLE, INTEGER_BITS, DataType, from_arrow
from penstock.kernels.columns import is_fixed_width
from penstock.state.stand_ins import fold_greatest, fold_least

_LOW = 0xFFFFFFFF
LIMBS = ("limb_0", "limb_1", "limb_2", "limb_3")  # of decimals of more than 18 digits
LIMB_HIGHEST = 3

Fold = Callable[[Vector, Numbers, Vector], None]
Part = tuple[str, *tuple[int, ...]]  # an accumulator of the arguments at these places


@dataclass(frozen=True, slots=True)
class LoopTotal:
    """Where a loop takes values of a type in: the group's number, and the exit if it overflows."""

    emit: Emitter
    place: str
    type: DataType
    overflow: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AccumulatorFunction:
    """One row of the table: a kind of running value.

    It is held as bigint (integers, scaled decimals, times), as double where `of_doubles` says so
    and its argument is one, and as texts and bytes where `of_texts` says so and it is no number.
    `initial` is what any first value replaces or adds to unchanged, for bigint and double. `write`
    writes a loop's lines for one value, `fold` does the same for many; without `fold` no loop keeps
    it. `of_row` gives what single rows are worth, of its arguments. To merge two of them the state
    may have to know others, as they were before: `reads`.
    """

    name: str
    fold: Fold | None
    write: Callable[[LoopTotal, str], None] | None = None
    of_row: Callable[[Sequence[pa.Array], DataType], pa.Array] | None = None
    merge: str = "add"  # how two of them become one: add, or a rule of the state
    nullable: bool = True
    of_doubles: bool = False
    of_texts: bool = False
    initial: tuple[int, float] = (0, 0)
    may_overflow: bool = False
    reads: tuple[Part, ...] = ()

    def is_double(self, argument: Expression | None) -> bool:
        return self.of_doubles and argument is not None and argument.type.is_fractional

    def is_text(self, argument: Expression | None) -> bool:
        return self.of_texts and argument is not None and not is_fixed_width(argument.type)

    def in_loop(self, argument: Expression | None) -> bool:
        """Whether a loop keeps it before it reaches a state."""
        return self.fold is not None and not self.is_text(argument)

    def type(self, argument: Expression | None) -> DataType:
        if argument is not None and self.is_text(argument):
            return stored_type(argument.type)
        return DOUBLE if self.is_double(argument) else BIGINT

    def dtype(self, argument: Expression | None) -> str:
        return "float64" if self.is_double(argument) else "int64"

    def first(self, argument: Expression | None) -> int | float:
        return self.initial[self.is_double(argument)]

    def first_code(self, argument: Expression | None) -> str:
        first = self.first(argument)
        return str(first) if math.isfinite(first) else unbounded(first)

    def rows(self, arguments: Sequence[pa.Array], kind: DataType) -> pa.Array:
        """What each row is worth by itself."""
        make = _of_itself if self.of_row is None else self.of_row
        return make(arguments, kind)


# --- one value, in a compiled loop ----------------------------------------------------------------


def _count(into: LoopTotal, _code: str) -> None:
    into.emit.line(f"{into.place} += 1")


def _sum(into: LoopTotal, code: str) -> None:
    emit, total = into.emit, into.place
    if into.type.is_fractional or INTEGER_BITS.get(into.type.kind, 64) < 64:
        emit.line(f"{total} += {code}")  # narrow integers cannot wrap within one batch
        return
    wrapped = emit.let(wrapping(total, "+", code), "total")
    with emit.block(f"if (({total} ^ {wrapped}) & ({code} ^ {wrapped})) < 0:"):
        into.overflow()
    emit.line(f"{total} = {wrapped}")


def _sum_high(into: LoopTotal, code: str) -> None:
    into.emit.line(f"{into.place} += np.int64({code}) >> 32")


def _sum_low(into: LoopTotal, code: str) -> None:
    into.emit.line(f"{into.place} += np.int64({code}) & {_LOW}")


def _min(into: LoopTotal, code: str) -> None:
    _extreme(into, code, "<", f"{into.place} != {into.place}")


def _max(into: LoopTotal, code: str) -> None:
    _extreme(into, code, ">", f"{code} != {code}")


def _extreme(into: LoopTotal, code: str, sign: str, nan: str) -> None:
    """NaN is greater than every number: a minimum leaves it, a maximum takes it."""
    fractional = into.type.is_fractional
    value = code if fractional else f"np.int64({code})"
    test = f"{value} {sign} {into.place}" + (f" or {nan}" if fractional else "")
    with into.emit.block(f"if {test}:"):
        into.emit.line(f"{into.place} = {value}")


# --- many values, in NumPy ------------------------------------------------------------------------


def _fold_count(totals: Vector, owners: Numbers, _numbers: Vector) -> None:
    np.add.at(totals, owners, 1)


def _fold_sum(totals: Vector, owners: Numbers, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers)  # one after the other, as the compiled loop adds


def _fold_sum_high(totals: Vector, owners: Numbers, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers >> 32)


def _fold_sum_low(totals: Vector, owners: Numbers, numbers: Vector) -> None:
    np.add.at(totals, owners, numbers & _LOW)


def _fold_min(totals: Vector, owners: Numbers, numbers: Vector) -> None:
    (fold_least if totals.dtype.kind == "f" else np.minimum.at)(totals, owners, numbers)


def _fold_max(totals: Vector, owners: Numbers, numbers: Vector) -> None:
    (fold_greatest if totals.dtype.kind == "f" else np.maximum.at)(totals, owners, numbers)


# --- the values of single rows --------------------------------------------------------------------


def _of_itself(arguments: Sequence[pa.Array], kind: DataType) -> pa.Array:
    argument = arguments[0]
    if kind not in (BIGINT, DOUBLE):
        return as_stored(argument, from_arrow(argument.type))
    arrow = pa.int64() if kind == BIGINT else pa.float64()
    return fixed_column(arrow, values_of(argument), validity_of(argument))


def _of_presence(arguments: Sequence[pa.Array], _kind: DataType) -> pa.Array:
    return fixed_column(pa.int64(), validity_of(arguments[0]))


def _of_high(arguments: Sequence[pa.Array], _kind: DataType) -> pa.Array:
    argument = arguments[0]
    return fixed_column(pa.int64(), _wide(argument) >> 32, validity_of(argument))


def _of_low(arguments: Sequence[pa.Array], _kind: DataType) -> pa.Array:
    argument = arguments[0]
    return fixed_column(pa.int64(), _wide(argument) & _LOW, validity_of(argument))


def _wide(argument: pa.Array) -> NDArray[np.int64]:
    return values_of(argument).astype(np.int64, copy=False)


def _of_limb(limb: int, arguments: Sequence[pa.Array], _kind: DataType) -> pa.Array:
    """One of the four 32 bits of a decimal, of which the highest have the sign."""
    argument = arguments[0]
    words = decimal_words(argument)[:, limb // 2]
    words = words >> 32 * (limb % 2)
    if limb < LIMB_HIGHEST:
        words = words & _LOW
    return fixed_column(pa.int64(), words, validity_of(argument))


def _of_distance(arguments: Sequence[pa.Array], _kind: DataType) -> pa.Array:
    """How far single values are from their means: nothing; not a number if they are not finite."""
    distance, valid = np.zeros(len(arguments[0])), np.ones(len(arguments[0]), np.bool_)
    with np.errstate(invalid="ignore"):
        for argument in arguments:
            distance += values_of(argument) - values_of(argument)
            valid &= validity_of(argument)
    return fixed_column(pa.float64(), distance, valid)


# --- the table ------------------------------------------------------------------------------------

_NUMBER: Part = ("count", 0)
_MEAN: Part = ("mean", 0)
_TABLE = (
    AccumulatorFunction("rows", _fold_count, None, nullable=False),
    AccumulatorFunction("count", _fold_count, _count, _of_presence, nullable=False),
    AccumulatorFunction("sum", _fold_sum, _sum, of_doubles=True, may_overflow=True),
    # The upper and lower 32 bits apart, so that an average of bigints never overflows.
    AccumulatorFunction("sum_high", _fold_sum_high, _sum_high, _of_high),
    AccumulatorFunction("sum_low", _fold_sum_low, _sum_low, _of_low),
    *(
        AccumulatorFunction(name, None, of_row=partial(_of_limb, limb))
        for limb, name in enumerate(LIMBS)
    ),
    AccumulatorFunction(
        "min", _fold_min, _min, merge="min", of_doubles=True, of_texts=True,
        initial=(INT64_MAX, math.nan),
    ),
    AccumulatorFunction(
        "max", _fold_max, _max, merge="max", of_doubles=True, of_texts=True,
        initial=(INT64_MIN, -math.inf),
    ),
    AccumulatorFunction("bit_and", None, merge="and"),
    AccumulatorFunction("bit_or", None, merge="or"),
    AccumulatorFunction("bit_xor", None, merge="xor"),
    AccumulatorFunction("mean", None, merge="mean", of_doubles=True, reads=(_NUMBER,)),
    AccumulatorFunction(
        "moment_2", None, of_row=_of_distance, merge="moment 2", of_doubles=True,
        reads=(_NUMBER, _MEAN),
    ),
    AccumulatorFunction(
        "moment_3", None, of_row=_of_distance, merge="moment 3", of_doubles=True,
        reads=(_NUMBER, _MEAN, ("moment_2", 0)),
    ),
    AccumulatorFunction(
        "moment_4", None, of_row=_of_distance, merge="moment 4", of_doubles=True,
        reads=(_NUMBER, _MEAN, ("moment_2", 0), ("moment_3", 0)),
    ),
    AccumulatorFunction(
        "comoment", None, of_row=_of_distance, merge="comoment", of_doubles=True,
        reads=(_NUMBER, _MEAN, ("mean", 1)),
    ),
    AccumulatorFunction(
        "of_least", None, merge="of least", of_doubles=True, of_texts=True, reads=(("min", 1),)
    ),
    AccumulatorFunction(
        "of_greatest", None, merge="of greatest", of_doubles=True, of_texts=True,
        reads=(("max", 1),),
    ),
)  # fmt: skip
ACCUMULATORS: Mapping[str, AccumulatorFunction] = {row.name: row for row in _TABLE}
