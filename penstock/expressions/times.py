"""Dates and timestamps: calendar parts in a time zone, truncation, conversion to numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.expressions.arithmetic import both_valid, overflow_reason
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.types import BIGINT, DATE, TIMESTAMP, DataType
from penstock.expressions.vectors import arrow_column
from penstock.expressions.zones import DAY_US, SECOND_US, Zone, load_zone

MILLISECOND_US = 1_000
_UNIT_US = {
    "hour": 3600 * SECOND_US,
    "minute": 60 * SECOND_US,
    "second": SECOND_US,
    "millisecond": MILLISECOND_US,
    "microsecond": 1,
}
_PER_UNIT = {"seconds": SECOND_US, "millis": MILLISECOND_US, "micros": 1}
_THURSDAY_TO_MONDAY = 3  # 1970-01-01 was a Thursday
_THURSDAY_FROM_SUNDAY = 4


def local_micros(array: pa.Array, data_type: DataType, zone: str | None) -> Vector:
    """Wall-clock microseconds of a timestamp in the zone, or of an unzoned one as it stands."""
    micros: Vector = values_of(array)
    return micros if zone is None else load_zone(zone).to_local(micros)


def wall_times(array: pa.Array, zone: str | None) -> tuple[Vector, Vector]:
    """Days and microseconds of the day in the zone, or of an unzoned time as it stands."""
    micros: Vector = values_of(array)
    if zone is None:
        return micros // DAY_US, micros % DAY_US
    return load_zone(zone).wall_times(micros)


def local_days(array: pa.Array, data_type: DataType, zone: str | None) -> Vector:
    """Days since 1970-01-01 on the calendar of the zone."""
    if data_type == DATE:
        return values_of(array).astype(np.int64)
    return wall_times(array, zone)[0]


def civil(days: Vector) -> tuple[Vector, Vector, Vector]:
    """(year, month, day) of days since 1970-01-01, proleptic Gregorian."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    years = months.astype("datetime64[Y]")
    year = years.astype(np.int64) + 1970
    month = months.astype(np.int64) - years.astype("datetime64[M]").astype(np.int64) + 1
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    return year, month, day


def first_days(year: Vector, month: Vector) -> Vector:
    """Days since 1970-01-01 of the first of each month; month 13 is the next January."""
    months = ((year - 1970) * 12 + (month - 1)).astype("datetime64[M]")
    days: Vector = months.astype("datetime64[D]").astype(np.int64)
    return days


def joined_micros(seconds: Vector, fraction_us: Vector) -> tuple[Vector, Mask]:
    """Whole seconds and the microseconds after them as one number, and where that is too large."""
    limits = np.iinfo(np.int64)
    high_s, high_us = divmod(limits.max, SECOND_US)
    low_s, low_us = divmod(limits.min, SECOND_US)
    bad = (seconds > high_s) | (seconds == high_s) & (fraction_us > high_us)
    bad = bad | (seconds < low_s) | (seconds == low_s) & (fraction_us < low_us)
    return np.where(bad, 0, seconds * SECOND_US + fraction_us), bad


def date_part(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    days = local_days(args[0], node.args[0].type, node.option("time_zone"))
    if node.function == "day_of_week":
        part = (days + _THURSDAY_FROM_SUNDAY) % 7 + 1
    else:
        part = civil(days)[("year", "month", "day").index(node.function)]
    return arrow_column(part, validity_of(args[0]), node.type)


def time_part(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    of_day = wall_times(args[0], node.option("time_zone"))[1]
    part = of_day // _UNIT_US[node.function]
    if node.function != "hour":
        part = part % 60
    return arrow_column(part, validity_of(args[0]), node.type)


def second_with_fraction(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Microseconds of the minute, which are the digits of a decimal with six behind the point."""
    of_day = wall_times(args[0], node.option("time_zone"))[1]
    return arrow_column(of_day % _UNIT_US["minute"], validity_of(args[0]), node.type)


def date_trunc(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    unit, zone = node.option("unit"), load_zone(node.option("time_zone"))
    micros = values_of(args[0])
    if unit in ("second", "millisecond", "microsecond"):
        # these do not depend on a zone
        truncated = micros - micros % _UNIT_US[unit]
    elif unit in ("hour", "minute"):
        truncated = _truncated_in_day(micros, zone, _UNIT_US[unit])
    else:
        days = truncated_day(zone.to_local(micros) // DAY_US, unit)
        truncated = days * DAY_US - zone.day_start_offsets(days)
    return arrow_column(truncated, validity_of(args[0]), node.type)


def _truncated_in_day(micros: Vector, zone: Zone, unit_us: int) -> Vector:
    """The wall time cut to the unit, at the same offset if that one applies there too."""
    offsets = zone.offsets_at(micros)
    local = micros + offsets
    cut = local - local % unit_us
    same = zone.offsets_at(cut - offsets) == offsets
    return np.where(same, cut - offsets, zone.to_utc(cut))


def truncated_day(days: Vector, unit: str) -> Vector:
    """The first day of each date's week, month, quarter or year."""
    if unit == "day":
        return days
    if unit == "week":
        mondays: Vector = days - (days + _THURSDAY_TO_MONDAY) % 7
        return mondays
    year, month, _ = civil(days)
    first_month = {"year": np.ones_like(month), "quarter": (month - 1) // 3 * 3 + 1}
    return first_days(year, first_month.get(unit, month))


def date_add(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    days = values_of(args[0]) + values_of(args[1])  # wraps, as Spark's
    return arrow_column(days, both_valid(args), DATE)


def unix_time(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Whole seconds, milliseconds or microseconds since 1970, rounded down."""
    per_unit = _PER_UNIT[node.function.removeprefix("unix_")]
    return arrow_column(values_of(args[0]) // per_unit, validity_of(args[0]), BIGINT)


def timestamp_from(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    per_unit = _PER_UNIT[node.function.removeprefix("timestamp_")]
    values = values_of(args[0]).astype(np.int64)
    valid = validity_of(args[0])
    limits = np.iinfo(np.int64)
    bad = (values > limits.max // per_unit) | (values < -(-limits.min // per_unit))
    frame.fail(bad & valid, overflow_reason(BIGINT), node)
    return arrow_column(np.where(bad, 0, values) * per_unit, valid, TIMESTAMP)
