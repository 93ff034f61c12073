"""The closed table of aggregates: what each takes, keeps per group, and gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import validity_of
from penstock.expressions.types import (
    BIGINT,
    DOUBLE,
    DataType,
    array_type,
    arrow_type,
    decimal_type,
)
from penstock.expressions.vectors import arrow_column
from penstock.kernels.accumulators import Part
from penstock.kernels.columns import is_fixed_width

SUM_DIGITS = 10  # a sum of decimals has so many more digits before the point
AVERAGE_DIGITS = 4  # an average of decimals has so many more digits behind the point
_LOW = 0xFFFFFFFF
_TEXTS = frozenset({"string", "binary"})
_SCALED_MAX = ((1 << 62) - 1) // (2 * 10**AVERAGE_DIGITS)

Numbers = NDArray[np.int64]
Finish = Callable[[Sequence[pa.Array], DataType], pa.Array]
Options = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """What so many groups have collected, by group: of each item its group, keys and values."""

    owners: Numbers
    groups: int
    keys: list[pa.Array]
    values: list[pa.Array]

    @property
    def ends(self) -> Numbers:
        """Where the items of each group end."""
        counted: Numbers = np.cumsum(np.bincount(self.owners, minlength=self.groups))
        return counted


Gather = Callable[[Items, Options, DataType], pa.Array]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """One row of the table: all that is known of an aggregate.

    `refusal` says what an argument must be, if it is not. `accumulators` names what is kept per
    group, of `ACCUMULATORS`, and of which arguments; `finish` makes their columns the column of the
    result. The second argument is none, another one to `order` by, another one of which both count
    in a `pair` or neither, or the `place` of a row in the order of processing. A decimal gets
    `more_digits`. `catalyst` is Spark's class; `ansi` is its field that must say that overflow is
    an error.

    What does not fit a line per group is collected: the distinct `values` of a group with their
    counts, or the values at the `places` of its rows; `gather` makes items the result.
    """

    name: str
    catalyst: str
    result: Callable[[DataType], DataType]
    accumulators: Callable[[DataType], tuple[Part, ...]]
    finish: Finish
    refusal: Callable[[DataType], str | None]
    nullable: bool = True
    counts_rows: bool = False  # if it has no argument
    second: Literal["none", "order", "pair", "place"] = "none"
    more_digits: int = 0
    ansi: str | None = None
    collects: Literal["none", "values", "places"] = "none"
    gather: Gather | None = None


# --- what they take and give ----------------------------------------------------------------------


def _anything(_argument: DataType) -> None:
    return None


def _numeric(argument: DataType) -> str | None:
    return None if argument.is_numeric else "needs a number, {argument} is {type}"


def ordered(argument: DataType) -> str | None:
    if argument.is_nested or not (is_fixed_width(argument) or argument.kind in _TEXTS):
        return "of {type} is not supported: use a number, boolean, time, string or binary"
    return None


def _approximable(argument: DataType) -> str | None:
    if argument.kind in ("date", "timestamp", "timestamp_ntz"):
        return None
    return _numeric(argument)


def _whole(argument: DataType) -> str | None:
    return None if argument.is_integer else "needs a whole number, {argument} is {type}"


def _double(argument: DataType) -> str | None:
    return None if argument == DOUBLE else "needs a double, {argument} is {type}: cast it"


def _bigint(_argument: DataType) -> DataType:
    return BIGINT


def _always_double(_argument: DataType) -> DataType:
    return DOUBLE


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


def _parts(*parts: Part) -> Callable[[DataType], tuple[Part, ...]]:
    return lambda _argument: parts


def _one(name: str) -> Callable[[DataType], tuple[Part, ...]]:
    return _parts((name, 0))


def _parts_of_average(argument: DataType) -> tuple[Part, ...]:
    if argument.kind == "bigint" or argument.is_decimal:
        return ("sum_high", 0), ("sum_low", 0), ("count", 0)
    return ("sum", 0), ("count", 0)


# --- how they end ---------------------------------------------------------------------------------


def _counted(columns: Sequence[pa.Array], _result: DataType) -> pa.Array:
    return pa.array(_numbers(columns[0]), pa.int64())


def _kept(columns: Sequence[pa.Array], result: DataType) -> pa.Array:
    if not is_fixed_width(result):
        return columns[0]
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


def _from_moments(
    formula: Callable[..., NDArray[np.float64]], count_min: int = 1, spreads: int = 0
) -> Finish:
    """Of the number of values, then the rest; null below so many, or where spreads are zero.

    Spark would divide by zero there, and gives null; `spreads` are the first of the rest.
    """

    def finish(columns: Sequence[pa.Array], _result: DataType) -> pa.Array:
        counts, *rest = (_numbers(column).astype(np.float64) for column in columns)
        valid = counts >= count_min
        for spread in rest[:spreads]:
            valid &= spread != 0
        with np.errstate(all="ignore"):
            return arrow_column(formula(counts, *rest), valid, DOUBLE)

    return finish


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


# --- what is made of items ------------------------------------------------------------------------


def _listed(items: Items, _options: Options, result: DataType) -> pa.Array:
    column = (items.values or items.keys)[0]
    offsets = pa.array(np.append(0, items.ends).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, column, type=arrow_type(result))


def _set(items: Items, options: Options, result: DataType) -> pa.Array:
    return _listed(replace(items, values=[]), options, result)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Of each group its values in order: how many there are, and which has a rank."""

    items: Items
    reached: Numbers  # how many values there are up to each item, those of groups before included
    before: Numbers  # how many groups before have
    counts: Numbers

    @classmethod
    def of(cls, items: Items) -> _Ranks:
        reached = np.cumsum(_numbers(items.values[0]))
        totals = np.append(0, reached)[np.append(0, items.ends)]
        return cls(items, reached, totals[:-1], np.diff(totals))

    def at(self, ranks: Numbers) -> pa.Array:
        """The value of each group at a rank from 0; null where the group has none."""
        places = np.searchsorted(self.reached, self.before + ranks, side="right")
        return self.items.keys[0].take(pa.array(places, mask=self.counts == 0))


def _percentiles(items: Items, options: Options, result: DataType) -> pa.Array:
    """Between two values as far as the fraction lies between their ranks, as Spark does it."""
    is_list, *fractions = options
    ranks = _Ranks.of(items)
    columns = []
    for fraction in fractions:
        position = np.maximum(ranks.counts - 1, 0) * fraction
        low, high = np.floor(position), np.ceil(position)
        one, other = (
            _numbers(ranks.at(rank.astype(np.int64)).cast(pa.float64(), safe=False))
            for rank in (low, high)
        )
        with np.errstate(invalid="ignore"):
            between = one + (position - low) * (other - one)
        columns.append(np.where((low == high) | (one == other), one, between))
    if not is_list:
        return arrow_column(columns[0], ranks.counts > 0, result)
    values = pa.array(np.stack(columns, axis=1).reshape(-1))
    return _lists_of(values, ranks.counts > 0, len(columns), result)


def _approximate(items: Items, options: Options, result: DataType) -> pa.Array:
    """The exact ranks, which lie within Spark's error; with few rows Spark has none."""
    is_list, accuracy, *fractions = options
    ranks = _Ranks.of(items)
    columns = []
    for fraction in fractions:
        rank = np.ceil(fraction * ranks.counts).astype(np.int64) - 1
        if fraction <= 1 / accuracy:
            rank = np.zeros_like(rank)
        elif fraction >= 1 - 1 / accuracy:
            rank = ranks.counts - 1
        columns.append(ranks.at(np.maximum(rank, 0)))
    if not is_list:
        return columns[0]
    taken = np.arange(items.groups * len(columns)).reshape(len(columns), -1).T.reshape(-1)
    values = pa.concat_arrays(columns).take(pa.array(taken))
    return _lists_of(values, ranks.counts > 0, len(columns), result)


def _lists_of(values: pa.Array, valid: NDArray[np.bool_], size: int, result: DataType) -> pa.Array:
    """Lists of one size, null where they are not valid."""
    sizes = np.where(valid, size, 0)
    kept = values.filter(pa.array(np.repeat(valid, size)))
    offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
    mask = pa.array(~valid)
    return pa.ListArray.from_arrays(offsets, kept, type=arrow_type(result), mask=mask)


def _most_often(items: Items, options: Options, result: DataType) -> pa.Array:
    """The value that a group has most often; of several the least, or the greatest if asked for."""
    counts = _numbers(items.values[0])
    tie = np.arange(counts.size) * (1 if options == ("greatest",) else -1)
    order = np.lexsort((tie, counts, items.owners))
    sizes = np.bincount(items.owners, minlength=items.groups)
    places = order[np.maximum(items.ends - 1, 0)] if counts.size else items.ends
    return items.keys[0].take(pa.array(places, mask=sizes == 0))


# --- the table ------------------------------------------------------------------------------------

_COUNT: Part = ("count", 0)
_SECOND: Part = ("moment_2", 0)
_OTHER: Part = ("moment_2", 1)
_BOTH: Part = ("comoment", 0, 1)


def _spread(
    name: str,
    catalyst: str,
    formula: Callable[..., NDArray[np.float64]],
    *more: Part,
    least: int = 1,
) -> AggregateFunction:
    """An aggregate of the central moments of doubles."""
    finish = _from_moments(formula, least, spreads=1 if more else 0)
    parts = _parts(_COUNT, _SECOND, *more)
    return AggregateFunction(name, catalyst, _always_double, parts, finish, _double)


def _of_pairs(
    name: str,
    catalyst: str,
    formula: Callable[..., NDArray[np.float64]],
    *parts: Part,
    least: int = 1,
    spreads: int = 0,
) -> AggregateFunction:
    """An aggregate of pairs of doubles, none of them null."""
    finish = _from_moments(formula, least, spreads)
    kept = _parts(_COUNT, *parts)
    return AggregateFunction(name, catalyst, _always_double, kept, finish, _double, second="pair")


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
    AggregateFunction("min", "Min", _itself, _one("min"), _kept, ordered),
    AggregateFunction("max", "Max", _itself, _one("max"), _kept, ordered),
    AggregateFunction(
        "min_by", "MinBy", _itself, _parts(("of_least", 0, 1)), _kept, ordered, second="order"
    ),
    AggregateFunction(
        "max_by", "MaxBy", _itself, _parts(("of_greatest", 0, 1)), _kept, ordered, second="order"
    ),
    AggregateFunction(
        "first", "First", _itself, _parts(("of_least", 0, 1)), _kept, ordered, second="place"
    ),
    AggregateFunction(
        "last", "Last", _itself, _parts(("of_greatest", 0, 1)), _kept, ordered, second="place"
    ),
    AggregateFunction(
        "collect_list", "CollectList", array_type, _parts(), _kept, ordered,
        nullable=False, second="place", collects="places", gather=_listed,
    ),
    AggregateFunction(
        "collect_set", "CollectSet", array_type, _parts(), _kept, ordered,
        nullable=False, collects="values", gather=_set,
    ),
    AggregateFunction(
        "percentile", "Percentile", _always_double, _parts(), _kept, _numeric,
        collects="values", gather=_percentiles,
    ),
    AggregateFunction(
        "percentile_approx", "ApproximatePercentile", _itself, _parts(), _kept, _approximable,
        collects="values", gather=_approximate,
    ),
    AggregateFunction(
        "mode", "Mode", _itself, _parts(), _kept, ordered, collects="values", gather=_most_often
    ),
    AggregateFunction("bit_and", "bit_and", _itself, _one("bit_and"), _kept, _whole),
    AggregateFunction("bit_or", "bit_or", _itself, _one("bit_or"), _kept, _whole),
    AggregateFunction("bit_xor", "bit_xor", _itself, _one("bit_xor"), _kept, _whole),
    _spread("var_pop", "VariancePop", lambda n, m2: m2 / n),
    _spread("var_samp", "VarianceSamp", lambda n, m2: m2 / (n - 1), least=2),
    _spread("stddev_pop", "StddevPop", lambda n, m2: np.sqrt(m2 / n)),
    _spread("stddev_samp", "StddevSamp", lambda n, m2: np.sqrt(m2 / (n - 1)), least=2),
    _spread(
        "skewness", "Skewness",
        lambda n, m2, m3: np.sqrt(n) * m3 / np.sqrt(m2 * m2 * m2), ("moment_3", 0),
    ),
    _spread(
        "kurtosis", "Kurtosis", lambda n, m2, m4: n * m4 / (m2 * m2) - 3.0, ("moment_4", 0)
    ),
    _of_pairs("covar_pop", "CovPopulation", lambda n, c: c / n, _BOTH),
    _of_pairs("covar_samp", "CovSample", lambda n, c: c / (n - 1), _BOTH, least=2),
    _of_pairs(
        "corr", "Corr", lambda n, x, y, c: c / np.sqrt(x * y), _SECOND, _OTHER, _BOTH,
        least=2, spreads=2,
    ),
)  # fmt: skip
AGGREGATES: Mapping[str, AggregateFunction] = {row.name: row for row in _TABLE}
