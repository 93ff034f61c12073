"""Builders for Catalyst's intervals of days to seconds: all are arithmetic with microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from penstock.catalyst.place import Builder, Place
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.tree import Call, Expression, Literal, call, cast, literal
from penstock.expressions.types import (
    BIGINT,
    DOUBLE,
    INT,
    INTERVAL_FIELDS_US,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    decimal_type,
)

UTC_ZONES = frozenset({"UTC", "Etc/UTC", "Z", "GMT"})
# Functions of the table that take intervals as they take whole numbers.
ARITHMETIC = frozenset({"add", "subtract", "negate", "abs", "int_divide"})
_MICROS_DIGITS = decimal_type(8, 0)
_MICROSECOND = literal(Decimal("0.000001"), decimal_type(6, 6))


def micros_of(interval: Expression) -> Expression:
    """The microseconds of an interval."""
    return _number_of(interval, "micros", BIGINT)


def interval_of(micros: Expression, data_type: DataType) -> Expression:
    """The interval of so many microseconds."""
    return call("interval_of_micros", micros, to=str(data_type))


def months_of(interval: Expression) -> Expression:
    """The months of an interval of years and months."""
    return _number_of(interval, "months", INT)


def _number_of(interval: Expression, unit: str, data_type: DataType) -> Expression:
    if isinstance(interval, Literal):
        return literal(interval.value, data_type)
    if isinstance(interval, Call) and interval.function == f"interval_of_{unit}":
        return interval.args[0]
    return call(f"interval_{unit}", interval)


def whole(number: Expression) -> Expression:
    """A whole number as one of 64 bits."""
    if isinstance(number, Literal):
        return literal(number.value, BIGINT)
    return number if number.type == BIGINT else cast(number, BIGINT)


def _units(number: Expression, field: str) -> Expression:
    return call("multiply", whole(number), literal(INTERVAL_FIELDS_US[field], BIGINT))


# --- times and intervals --------------------------------------------------------------------------


def _subtract_times(place: Place) -> Expression:
    """How far two clocks on the wall are apart, other than the instants where clocks change."""
    end, start = (_local_micros(place, time) for time in place.args())
    return interval_of(call("subtract", end, start), spark_type(place.read("dataType")))


def _local_micros(place: Place, time: Expression) -> Expression:
    if time.type == TIMESTAMP and place.zone() not in UTC_ZONES:
        time = cast(time, TIMESTAMP_NTZ, time_zone=place.zone())
    return call("unix_micros", time)


def _subtract_dates(place: Place) -> Expression:
    end, start = (cast(call("unix_date", day), BIGINT) for day in place.args())
    return interval_of(
        _units(call("subtract", end, start), "day"), spark_type(place.read("dataType"))
    )


def _make(place: Place) -> Expression:
    *whole, seconds = place.args()
    micros = _unscaled(seconds)
    for number, field in zip(whole, INTERVAL_FIELDS_US, strict=False):
        micros = call("add", micros, _units(number, field))
    return interval_of(micros, spark_type(place.read("dataType")))


def _unscaled(seconds: Expression) -> Expression:
    """The digits of a decimal with six behind the point."""
    if isinstance(seconds, Literal) and seconds.value is not None:
        return literal(int(seconds.value.scaleb(seconds.type.scale)), BIGINT)
    million = literal(INTERVAL_FIELDS_US["second"], decimal_type(7, 0))
    return cast(call("multiply", seconds, million), BIGINT)


# --- intervals and numbers ------------------------------------------------------------------------


def _multiplied(place: Place) -> Expression:
    interval, number = place.args()
    micros = micros_of(interval)
    if number.type.is_integer:
        product = call("multiply", micros, whole(number))
    else:
        product = call("multiply_micros", micros, _fraction(number))
    return interval_of(product, spark_type(place.read("dataType")))


def _divided(place: Place) -> Expression:
    interval, number = place.args()
    divisor = whole(number) if number.type.is_integer else _fraction(number)
    quotient = call("divide_micros", micros_of(interval), divisor)
    return interval_of(quotient, spark_type(place.read("dataType")))


def _fraction(number: Expression) -> Expression:
    return number if number.type.is_decimal or number.type == DOUBLE else cast(number, DOUBLE)


def _field(field: str, above: str | None, data_type: DataType) -> Builder:
    """So many of a field, less those that make one of the field above."""

    def build(place: Place) -> Expression:
        micros = micros_of(place.arg(0))
        if above is not None:
            micros = call("remainder", micros, literal(INTERVAL_FIELDS_US[above], BIGINT))
        count = call("int_divide", micros, literal(INTERVAL_FIELDS_US[field], BIGINT))
        return cast(count, data_type)

    return build


def _seconds(place: Place) -> Expression:
    """With the fraction: the digits of a decimal with six behind the point."""
    minute = literal(INTERVAL_FIELDS_US["minute"], BIGINT)
    micros = call("remainder", micros_of(place.arg(0)), minute)
    return cast(call("multiply", cast(micros, _MICROS_DIGITS), _MICROSECOND), decimal_type(8, 6))


# --- casts ----------------------------------------------------------------------------------------


def cast_interval(arg: Expression, target: DataType, mode: str) -> Expression | None:
    """A cast from or to an interval that is arithmetic; None: of or to texts."""
    source = arg.type
    if source == target or source.kind == "string" or target.kind == "string":
        return None
    if target.is_interval and source.is_interval:
        return interval_of(_cut(micros_of(arg), target.interval_fields[1]), target)
    if target.is_interval and source.is_integer:
        micros = _units(arg, target.interval_fields[1])
        return interval_of(call("null_on_error", micros) if mode == "TRY" else micros, target)
    if source.is_interval and target.is_integer:
        unit = literal(INTERVAL_FIELDS_US[source.interval_fields[1]], BIGINT)
        count = call("int_divide", micros_of(arg), unit)
        return call("try_cast" if mode == "TRY" else "cast", count, to=str(target))
    raise ExpressionError(f"a cast from {source} to {target} is not known here")


def _cut(micros: Expression, field: str) -> Expression:
    """Without what is shorter than one of the field."""
    if field == "second":
        return micros
    unit = literal(INTERVAL_FIELDS_US[field], BIGINT)
    return call("subtract", micros, call("remainder", micros, unit))


INTERVAL_BUILDERS: Mapping[str, Builder] = {
    "SubtractTimestamps": _subtract_times,
    "SubtractDates": _subtract_dates,
    "MakeDTInterval": _make,
    "MultiplyDTInterval": _multiplied,
    "DivideDTInterval": _divided,
    "ExtractANSIIntervalDays": _field("day", None, INT),
    "ExtractANSIIntervalHours": _field("hour", "day", TINYINT),
    "ExtractANSIIntervalMinutes": _field("minute", "hour", TINYINT),
    "ExtractANSIIntervalSeconds": _seconds,
}
