"""Builders for Catalyst's dates and times: units and formats are constants, zones the session's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.catalyst.interval_expressions import UTC_ZONES, micros_of, months_of, whole
from penstock.catalyst.jvm import JvmNode, java_number
from penstock.catalyst.literals import constant_value
from penstock.catalyst.place import Builder, Place
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.tree import Call, Expression, call, cast, literal
from penstock.expressions.types import BIGINT, INT, TIMESTAMP, TIMESTAMP_NTZ

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

_UNIT_NAMES: Mapping[str, str] = {
    "yyyy": "year", "yy": "year", "mm": "month", "mon": "month", "dd": "day",
}  # fmt: skip
_WEEKDAYS: Mapping[str, int] = {
    name: number
    for number, names in enumerate(
        ("MO MON MONDAY", "TU TUE TUESDAY", "WE WED WEDNESDAY", "TH THU THURSDAY",
         "FR FRI FRIDAY", "SA SAT SATURDAY", "SU SUN SUNDAY")
    )
    for name in names.split()
}  # fmt: skip
_UNIT_MONTHS: Mapping[str, int] = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_UNIT_US: Mapping[str, int] = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": SECOND_US, "MINUTE": 60 * SECOND_US,
    "HOUR": 3600 * SECOND_US, "DAY": DAY_US, "DAYOFYEAR": DAY_US, "WEEK": 7 * DAY_US,
}  # fmt: skip


def _unit(place: Place, index: int) -> str:
    given = str(place.constant(index, "the unit")).lower()
    return _UNIT_NAMES.get(given, given)


def _date_trunc(place: Place) -> Expression:
    return call("date_trunc", place.arg(1), unit=_unit(place, 0), time_zone=place.zone())


def _trunc(place: Place) -> Expression:
    return call("trunc", place.arg(0), unit=_unit(place, 1))


def _date_sub(place: Place) -> Expression:
    days = place.constant(1, "the number of days")
    return call("date_add", place.arg(0), literal(-days, INT))


def _date_add(place: Place) -> Expression:
    days = place.arg(1)
    return call("date_add", place.arg(0), days if days.type == INT else cast(days, INT))


def _weekday(place: Place) -> Expression:
    """Monday is 0; our days of the week begin with Sunday as 1."""
    shifted = call("add", call("day_of_week", place.arg(0)), literal(5, INT))
    return call("remainder", shifted, literal(7, INT))


def _next_day(place: Place) -> Expression:
    name = str(place.constant(1, "the day of the week")).upper()
    if name not in _WEEKDAYS:
        raise ExpressionError(f"{name!r:.40} is not a day of the week")
    return call("next_day", place.arg(0), weekday=_WEEKDAYS[name])


def _months_between(place: Place) -> Expression:
    rounded = place.constant(2, "whether it is rounded")
    return call(
        "months_between", place.arg(0), place.arg(1), rounded=rounded, time_zone=place.zone()
    )


def _constant_interval(node: JvmNode) -> int | None:
    """The microseconds or months of a constant interval; None if it is none."""
    sign = 1
    if node.kind == "UnaryMinus":
        node, sign = node.children[0], -1
    length = node.read("value") if node.kind == "Literal" else None
    return sign * length if isinstance(length, int) else None


def _months(place: Place, node: JvmNode) -> Expression:
    """The months of an interval of years and months, which is arithmetic with whole numbers."""
    known = _constant_interval(node)
    if known is not None:
        return literal(known, INT)
    if node.kind == "MakeYMInterval":
        years, months = (whole(place.read_node(child)) for child in node.children)
        of_years = call("multiply", years, literal(_UNIT_MONTHS["YEAR"], BIGINT))
        return cast(call("add", of_years, months), INT)
    if node.kind == "MultiplyYMInterval":
        interval, number = node.children
        times = place.read_node(number)
        if times.type.is_integer:
            return cast(call("multiply", whole(_months(place, interval)), whole(times)), INT)
    if node.kind == "UnaryMinus":
        return call("negate", _months(place, node.children[0]))
    found = place.read_node(node)
    if not found.type.is_months:
        raise ExpressionError("this interval of years and months is not known here")
    return months_of(found)


def _add_interval(place: Place) -> Expression:
    """A length of time; below a day it is the same in every time zone."""
    if str(place.node.children[1].read("dataType").typeName()) == "interval":
        return _add_calendar(place, place.arg(0), place.node.children[1])
    arg, length_us = place.arg(0), _constant_interval(place.node.children[1])
    if arg.type == TIMESTAMP and length_us is not None and abs(length_us) < DAY_US:
        return shifted_time(arg, length_us)
    known = length_us is not None
    length = literal(length_us, BIGINT) if known else micros_of(place.arg(1))
    if not known and arg.type == TIMESTAMP and place.zone() in UTC_ZONES:
        return _add_micros(place, arg, length)
    return call("add_length", arg, length, **place.zone_for(arg))


def _add_calendar(place: Place, time: Expression, interval: JvmNode) -> Expression:
    """An interval of months, days and microseconds, as the gaps of sessions are, or a choice."""
    if interval.kind == "Literal":
        return _add_parts(place, time, interval.read("value"))
    if interval.kind in ("CaseWhen", "If"):
        pairs, *_ = divmod(len(interval.children), 2)
        args: list[Expression] = []
        for at in range(pairs):
            condition, length = interval.children[2 * at : 2 * at + 2]
            args += [place.read_node(condition), _add_calendar(place, time, length)]
        if len(interval.children) > 2 * pairs:
            args.append(_add_calendar(place, time, interval.children[-1]))
        return call("case", *args)
    if interval.kind == "MakeInterval":
        return _add_made(place, time, interval)
    raise ExpressionError(
        "an interval that differs from row to row is a choice between constants here (when, case), "
        "or make_interval() of whole hours, minutes and seconds"
    )


def _add_parts(place: Place, time: Expression, interval: Any) -> Expression:
    """Months first, then days, both as the calendar of the time zone has them, then the rest."""
    if interval is None:
        return literal(None, time.type)
    zone = place.zone_for(time)
    months, days, rest_us = (
        java_number(interval, part) for part in ("months", "days", "microseconds")
    )
    if months:
        time = call("add_months_to_time", time, literal(months, INT), **zone)
    if days:
        time = call("add_length", time, literal(days * DAY_US, BIGINT), **zone)
    return _add_micros(place, time, literal(rest_us, BIGINT)) if rest_us else time


def _add_micros(place: Place, time: Expression, length: Expression) -> Expression:
    if time.type == TIMESTAMP:
        return call("timestamp_micros", call("add", call("unix_micros", time), length))
    return call("add_length", time, length, **place.zone_for(time))


def _add_made(place: Place, time: Expression, interval: JvmNode) -> Expression:
    *calendar, hours, minutes, seconds = interval.children
    if seconds.kind == "Cast":  # to six digits behind the point
        (seconds,) = seconds.children
    parts = [place.read_node(part) for part in (hours, minutes, seconds)]
    whole = all(part.type.is_integer for part in parts)
    if not whole or any(part.kind != "Literal" or part.read("value") != 0 for part in calendar):
        raise ExpressionError("make_interval() is of whole hours, minutes and seconds here")
    total: Expression = literal(0, BIGINT)
    for part, unit in zip(parts, ("HOUR", "MINUTE", "SECOND"), strict=True):
        length = part if part.type == BIGINT else cast(part, BIGINT)
        total = call("add", total, call("multiply", length, literal(_UNIT_US[unit], BIGINT)))
    return _add_micros(place, time, total)


def shifted_time(time: Expression, by_us: int) -> Expression:
    """A timestamp moved by a number of microseconds."""
    moved = call("add", call("unix_micros", time), literal(by_us, BIGINT))
    return call("timestamp_micros", moved)


def _add_months_to_time(place: Place) -> Expression:
    arg = place.arg(0)
    return call(
        "add_months_to_time", arg, _months(place, place.node.children[1]), **place.zone_for(arg)
    )


def _add_months_to_date(place: Place) -> Expression:
    return call("add_months", place.arg(0), _months(place, place.node.children[1]))


def _timestamp_add(place: Place) -> Expression:
    quantity, time = place.args()
    unit = str(place.read("unit")).upper()
    if unit in _UNIT_MONTHS:
        months = call("multiply", quantity, literal(_UNIT_MONTHS[unit], BIGINT))
        return call("add_months_to_time", time, cast(months, INT), **place.zone_for(time))
    if unit not in _UNIT_US:
        raise ExpressionError(f"the unit {unit} is not known here")
    length = call("multiply", quantity, literal(_UNIT_US[unit], BIGINT))
    if time.type == TIMESTAMP and _UNIT_US[unit] < DAY_US:
        return call("timestamp_micros", call("add", call("unix_micros", time), length))
    return call("add_length", time, length, **place.zone_for(time))


def _timestamp_diff(place: Place) -> Expression:
    start, end = place.args()
    unit = str(place.read("unit")).lower()
    return call("timestamp_diff", start, end, unit=unit, **place.zone_for(start, end))


def _unix_timestamp(place: Place) -> Expression:
    """Whole seconds cut off towards 1970, other than unix_seconds, which rounds down."""
    arg = place.arg(0)
    if arg.type.kind == "string":
        arg = _parsed(place, arg, TIMESTAMP.kind)
    elif arg.type.kind == "date":
        arg = cast(arg, TIMESTAMP, time_zone=place.zone())
    elif arg.type != TIMESTAMP:
        raise ExpressionError(f"only timestamps are taken here, not {arg.type}: cast it first")
    return call("int_divide", call("unix_micros", arg), literal(SECOND_US, BIGINT))


def _parsed(place: Place, text: Expression, kind: str) -> Call:
    function = "parse_time" if place.read("failOnError") else "try_parse_time"
    pattern = place.constant(1, "the pattern")
    zone = {} if kind == TIMESTAMP_NTZ.kind else {"time_zone": place.zone()}
    return call(function, text, pattern=pattern, **zone)


def _get_timestamp(place: Place) -> Expression:
    text = place.arg(0)
    if text.type.kind != "string":
        raise ExpressionError(f"only texts are read here, not {text.type}")
    return _parsed(place, text, spark_type(place.read("dataType")).kind)


def _date_format(place: Place) -> Expression:
    pattern = place.constant(1, "the pattern")
    return call("date_format", place.arg(0), pattern=pattern, time_zone=place.zone())


def _from_unixtime(place: Place) -> Expression:
    pattern = place.constant(1, "the pattern")
    return call("from_unixtime", place.arg(0), pattern=pattern, time_zone=place.zone())


def _make_timestamp(place: Place) -> Expression:
    place.require_ansi("failOnError")
    args = place.args()
    if len(args) != 6:
        raise ExpressionError("only the session's time zone is known here")
    zoned = spark_type(place.read("dataType")) == TIMESTAMP
    return call("make_timestamp", *args, **({"time_zone": place.zone()} if zoned else {}))


def _shifted_by_zone(function: str) -> Builder:
    def build(place: Place) -> Expression:
        return call(function, place.arg(0), zone=place.constant(1, "the time zone"))

    return build


def _convert_timezone(place: Place) -> Expression:
    source, target, time = place.args()
    instant = cast(time, TIMESTAMP, time_zone=constant_value(source, "the time zone"))
    return cast(instant, TIMESTAMP_NTZ, time_zone=constant_value(target, "the time zone"))


def _precise_conversion(place: Place) -> Expression:
    """How windows go between times and microseconds."""
    arg = place.arg(0)
    target = spark_type(place.read("toType"))
    if isinstance(arg, Call) and arg.function in ("unix_micros", "timestamp_micros"):
        (inner,) = arg.args
        if inner.type == target:  # there and back
            return inner
    return call("timestamp_micros" if target.kind == "timestamp" else "unix_micros", arg)


TIME_BUILDERS: Mapping[str, Builder] = {
    "WeekDay": _weekday,
    "TruncTimestamp": _date_trunc,
    "TruncDate": _trunc,
    "DateAdd": _date_add,
    "DateSub": _date_sub,
    "NextDay": _next_day,
    "MonthsBetween": _months_between,
    "TimestampAddInterval": _add_interval,
    "TimestampAddYMInterval": _add_months_to_time,
    "DateAddYMInterval": _add_months_to_date,
    "TimestampAdd": _timestamp_add,
    "TimestampDiff": _timestamp_diff,
    "UnixTimestamp": _unix_timestamp,
    "ToUnixTimestamp": _unix_timestamp,
    "GetTimestamp": _get_timestamp,
    "DateFormatClass": _date_format,
    "FromUnixTime": _from_unixtime,
    "make_timestamp": _make_timestamp,
    "FromUTCTimestamp": _shifted_by_zone("from_utc_timestamp"),
    "ToUTCTimestamp": _shifted_by_zone("to_utc_timestamp"),
    "ConvertTimezone": _convert_timezone,
    "PreciseTimestampConversion": _precise_conversion,
}
