"""The closed table of aggregates: what each takes, keeps per group, and gives in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import validity_of
from penstock.expressions.stored_values import of_stored
from penstock.expressions.types import (
    ARITHMETIC_DIGITS_MAX,
    BIGINT,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    STRING,
    DataType,
    array_type,
    decimal_type,
)
from penstock.expressions.vectors import arrow_column
from penstock.kernels.accumulators import LIMBS, Part
from penstock.kernels.columns import is_fixed_width
from penstock.operators.item_results import (
    Gather,
    approximate_percentiles,
    as_set,
    discrete_percentiles,
    joined,
    listed,
    most_often,
    multiplied,
    percentiles,
    with_nulls,
)
from penstock.operators.registers import estimated
from penstock.operators.totals import SUM_DIGITS, Total, as_doubles

AVERAGE_DIGITS = 4  # an average of decimals has so many more digits behind the point

Finish = Callable[[Sequence[pa.Array], DataType, DataType], pa.Array]  # of argument and result


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """One row of the table: all that is known of an aggregate.

    `refusal` says what an argument must be, if it is not. `accumulators` names what is kept per
    group, of `ACCUMULATORS`, and of which arguments; `finish` makes their columns the column of the
    result. The second argument is none, another one to `order` by, another one of which both count
    in a `pair` or neither, or the `place` of a row in the order of processing. `catalyst` is
    Spark's class; where it has two rows its field `ansi` tells whether it `fails`: where a result
    has no room, or, of lists, where a value is null, which it passes over.

    What does not fit a line per group is collected: the distinct `values` of a group with their
    counts, the values at the `places` of its rows, or `registers`; `gather` makes items the result.
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
    ansi: str | None = None
    fails: bool = True
    collects: Literal["none", "values", "places", "registers"] = "none"
    gather: Gather | None = None


# --- what they take and give ----------------------------------------------------------------------


def _anything(_argument: DataType) -> None:
    return None


def _numeric(argument: DataType) -> str | None:
    return None if argument.is_numeric else "needs a number, {argument} is {type}"


def _by_bytes(argument: DataType) -> str | None:
    """What is equal if its bytes are."""
    return "of {type} would go by bytes, not by the collation" if argument.has_collation else None


def ordered(argument: DataType) -> str | None:
    """Maps have no order, and are not equal to each other, in Spark."""
    if (refusal := _by_bytes(argument)) is not None:
        return refusal
    below = [argument.element, *(field.type for field in argument.fields)]
    if argument.kind == "map" or any(each is not None and ordered(each) for each in below):
        return "of {type} is not supported: maps have no order"
    return None


def _approximable(argument: DataType) -> str | None:
    if argument.kind in ("date", "timestamp", "timestamp_ntz"):
        return None
    if argument.is_decimal and argument.precision > ARITHMETIC_DIGITS_MAX:
        return f"is not supported of more than {ARITHMETIC_DIGITS_MAX} digits: cast {{argument}}"
    return _numeric(argument)


def _whole(argument: DataType) -> str | None:
    return None if argument.is_integer else "needs a whole number, {argument} is {type}"


def _double(argument: DataType) -> str | None:
    return None if argument == DOUBLE else "needs a double, {argument} is {type}: cast it"


def _wrapped(argument: DataType) -> str | None:
    """A struct of a value that may be null."""
    return None if len(argument.fields) == 1 else "takes {argument} in a struct, not as {type}"


def _texts(argument: DataType) -> str | None:
    """A text, alone or in a struct before what it is ordered by."""
    if _text_of_wrapped(argument) == STRING:
        return None
    return "needs texts, {argument} is {type}: cast it to string"


def _list_of_wrapped(argument: DataType) -> DataType:
    return array_type(argument.fields[0].type)


def _text_of_wrapped(argument: DataType) -> DataType:
    return argument.fields[0].type if argument.fields else argument


def _bigint(_argument: DataType) -> DataType:
    return BIGINT


def _always_double(_argument: DataType) -> DataType:
    return DOUBLE


def _itself(argument: DataType) -> DataType:
    return argument


def _sum_type(argument: DataType) -> DataType:
    if argument.is_decimal:
        return _bounded(argument.precision + SUM_DIGITS, argument.scale)
    return DOUBLE if argument.is_fractional else BIGINT


def _average_type(argument: DataType) -> DataType:
    if argument.is_decimal:
        return _bounded(argument.precision + AVERAGE_DIGITS, argument.scale + AVERAGE_DIGITS)
    return DOUBLE


def _bounded(precision: int, scale: int) -> DataType:
    return decimal_type(min(precision, DECIMAL_DIGITS_MAX), min(scale, DECIMAL_DIGITS_MAX))


# --- what they keep -------------------------------------------------------------------------------


def _parts(*parts: Part) -> Callable[[DataType], tuple[Part, ...]]:
    return lambda _argument: parts


def _one(name: str) -> Callable[[DataType], tuple[Part, ...]]:
    return _parts((name, 0))


_HALVES: tuple[Part, ...] = (("sum_high", 0), ("sum_low", 0))
_QUARTERS: tuple[Part, ...] = tuple((name, 0) for name in reversed(LIMBS))


def _exact(argument: DataType) -> tuple[Part, ...]:
    """The parts of a sum that never leaves its room, the highest first."""
    return _HALVES if is_fixed_width(argument) else _QUARTERS


def _parts_of_sum(argument: DataType, fails: bool = True) -> tuple[Part, ...]:
    """One number, where it has room for the result and may fail when it has none."""
    is_one = _sum_type(argument).precision <= ARITHMETIC_DIGITS_MAX and fails
    return (("sum", 0),) if is_one or argument.is_fractional else _exact(argument)


def _parts_of_average(argument: DataType) -> tuple[Part, ...]:
    if argument.kind == "bigint" or argument.is_decimal:
        return *_exact(argument), ("count", 0)
    return ("sum", 0), ("count", 0)


# --- how they end ---------------------------------------------------------------------------------


def _counted(columns: Sequence[pa.Array], _argument: DataType, _result: DataType) -> pa.Array:
    return pa.array(_numbers(columns[0]), pa.int64())


def _kept(columns: Sequence[pa.Array], _argument: DataType, result: DataType) -> pa.Array:
    if not is_fixed_width(result):
        return of_stored(columns[0], result)
    values, valid = _numbers(columns[0]), validity_of(columns[0])
    return arrow_column(values != 0 if result.kind == "boolean" else values, valid, result)


def _summed(
    columns: Sequence[pa.Array], argument: DataType, result: DataType, fails: bool = True
) -> pa.Array:
    if len(columns) == 1 and not result.is_decimal:  # it failed where it had no room
        return _kept(columns, argument, result)
    total = Total([_numbers(part) for part in reversed(columns)])
    return total.column(validity_of(columns[0]), result, fails)


def _averaged(
    columns: Sequence[pa.Array], argument: DataType, result: DataType, fails: bool = True
) -> pa.Array:
    *parts, counts = map(_numbers, columns)
    if result.is_decimal:
        return Total(parts[::-1]).averages(counts, argument, result, fails)
    total = parts[0] if len(parts) == 1 else as_doubles(*parts)
    with np.errstate(all="ignore"):
        return arrow_column(total / np.where(counts > 0, counts, 1), counts > 0, DOUBLE)


def _from_moments(
    formula: Callable[..., NDArray[np.float64]], count_min: int = 1, spreads: int = 0
) -> Finish:
    """Of the number of values, then the rest; null below so many, or where spreads are zero.

    Spark would divide by zero there, and gives null; `spreads` are the first of the rest.
    """

    def finish(columns: Sequence[pa.Array], _argument: DataType, _result: DataType) -> pa.Array:
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
        "sum", "Sum", _sum_type, _parts_of_sum, _summed, _numeric, ansi="evalContext"
    ),
    AggregateFunction(
        "try_sum", "Sum", _sum_type, partial(_parts_of_sum, fails=False),
        partial(_summed, fails=False), _numeric, ansi="evalContext", fails=False,
    ),
    AggregateFunction(
        "avg", "Average", _average_type, _parts_of_average, _averaged, _numeric, ansi="evalMode"
    ),
    AggregateFunction(
        "try_avg", "Average", _average_type, _parts_of_average, partial(_averaged, fails=False),
        _numeric, ansi="evalMode", fails=False,
    ),
    AggregateFunction("min", "Min", _itself, _one("min"), _kept, ordered),
    AggregateFunction("max", "Max", _itself, _one("max"), _kept, ordered),
    AggregateFunction(
        "min_by", "MinBy", _itself, _parts(("of_least", 0, 1)), _kept, _anything, second="order"
    ),
    AggregateFunction(
        "max_by", "MaxBy", _itself, _parts(("of_greatest", 0, 1)), _kept, _anything, second="order"
    ),
    AggregateFunction(
        "first", "First", _itself, _parts(("of_least", 0, 1)), _kept, _anything, second="place"
    ),
    AggregateFunction(
        "last", "Last", _itself, _parts(("of_greatest", 0, 1)), _kept, _anything, second="place"
    ),
    AggregateFunction(
        "collect_list", "CollectList", array_type, _parts(), _kept, _anything,
        nullable=False, second="place", collects="places", gather=listed, ansi="ignoreNulls",
    ),
    AggregateFunction(
        "collect_list_with_nulls", "CollectList", _list_of_wrapped, _parts(), _kept, _wrapped,
        nullable=False, second="place", collects="places", gather=with_nulls(listed),
        ansi="ignoreNulls", fails=False,
    ),
    AggregateFunction(
        "collect_set", "CollectSet", array_type, _parts(), _kept, ordered,
        nullable=False, collects="values", gather=as_set, ansi="ignoreNulls",
    ),
    AggregateFunction(
        "collect_set_with_nulls", "CollectSet", _list_of_wrapped, _parts(), _kept, _wrapped,
        nullable=False, collects="values", gather=with_nulls(as_set), ansi="ignoreNulls",
        fails=False,
    ),
    AggregateFunction(
        "listagg", "ListAgg", _text_of_wrapped, _parts(), _kept, _texts,
        second="place", collects="places", gather=joined,
    ),
    AggregateFunction(
        "product", "Product", _always_double, _parts(), _kept, _double,
        second="place", collects="places", gather=multiplied,
    ),
    AggregateFunction(
        "percentile", "Percentile", _always_double, _parts(), _kept, _numeric,
        collects="values", gather=percentiles,
    ),
    AggregateFunction(
        "percentile_disc", "PercentileDisc", _always_double, _parts(), _kept, _numeric,
        collects="values", gather=discrete_percentiles,
    ),
    AggregateFunction(
        "percentile_approx", "ApproximatePercentile", _itself, _parts(), _kept, _approximable,
        collects="values", gather=approximate_percentiles,
    ),
    AggregateFunction(
        "mode", "Mode", _itself, _parts(), _kept, ordered, collects="values", gather=most_often
    ),
    AggregateFunction(
        "approx_count_distinct", "HyperLogLogPlusPlus", _bigint, _parts(), _kept, _by_bytes,
        nullable=False, collects="registers", gather=estimated,
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
    _spread("regr_m2", "RegrReplacement", lambda n, m2: m2),
    _of_pairs("regr_sxy", "RegrSXY", lambda n, c: c, _BOTH),
    _of_pairs(
        "regr_r2", "RegrR2", lambda n, x, y, c: np.where(y == 0, 1.0, (c / np.sqrt(x * y)) ** 2),
        _OTHER, _SECOND, _BOTH, spreads=1,
    ),
    _of_pairs("regr_slope", "RegrSlope", lambda n, x, c: c / x, _OTHER, _BOTH, spreads=1),
    _of_pairs(
        "regr_intercept", "RegrIntercept",
        lambda n, x, c, mean_y, mean_x: mean_y - c / x * mean_x,
        _OTHER, _BOTH, ("mean", 0), ("mean", 1), spreads=1,
    ),
)  # fmt: skip
AGGREGATES: Mapping[str, AggregateFunction] = {row.name: row for row in _TABLE}
