"""Calendar arithmetic: months and weeks, differences, dates and times made from their parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.expressions.arithmetic import (
    both_valid,
    overflow_reason,
    truncated_quotient,
    wide_add,
)
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.times import (
    civil,
    first_days,
    joined_micros,
    local_micros,
    truncated_day,
    wall_times,
)
from penstock.expressions.types import BIGINT, DATE, TIMESTAMP
from penstock.expressions.vectors import arrow_column
from penstock.expressions.zones import DAY_US, SECOND_US, folded, load_zone

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SHORT_MONTHS = tuple(name[:3] for name in MONTHS)
SHORT_DAYS = tuple(name[:3] for name in DAYS)
_DAYS_OF_31 = 31.0  # Spark's month, where two dates are not the same day of theirs
_THURSDAY_FROM_MONDAY = 3
_YEARS = (-999_999_999, 999_999_999)  # of java.time.LocalDate
_INT = np.iinfo(np.int32)
_DAY_S = DAY_US // SECOND_US


def weekday(days: Vector) -> Vector:
    """0 for Monday; 1970-01-01 was a Thursday."""
    found: Vector = (days + _THURSDAY_FROM_MONDAY) % 7
    return found


def _days(array: pa.Array) -> Vector:
    return values_of(array).astype(np.int64)


def calendar_part(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Parts that follow from the date alone: of a quarter, a year, an ISO week."""
    days = _days(args[0])
    year, month, _ = civil(days)
    if node.function == "quarter":
        part = (month - 1) // 3 + 1
    elif node.function == "day_of_year":
        part = days - first_days(year, np.ones_like(month)) + 1
    else:
        # The year and the week of a date are those of its week's Thursday.
        thursday = days - weekday(days) + _THURSDAY_FROM_MONDAY
        year = civil(thursday)[0]
        first = first_days(year, np.ones_like(year))
        part = year if node.function == "year_of_week" else (thursday - first) // 7 + 1
    return arrow_column(part, validity_of(args[0]), node.type)


def calendar_name(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    days = _days(args[0])
    is_month = node.function == "month_name"
    at = civil(days)[1] - 1 if is_month else weekday(days)
    names = pa.array(SHORT_MONTHS if is_month else SHORT_DAYS)
    return names.take(pa.array(at, mask=~validity_of(args[0])))


def last_day(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    year, month, _ = civil(_days(args[0]))
    return arrow_column(first_days(year, month + 1) - 1, validity_of(args[0]), DATE)


def next_day(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The first date after each one that falls on the weekday."""
    days = _days(args[0])
    ahead = (int(node.option("weekday")) - weekday(days) - 1) % 7 + 1
    return arrow_column(days + ahead, validity_of(args[0]), DATE)


def trunc(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return arrow_column(
        truncated_day(_days(args[0]), node.option("unit")), validity_of(args[0]), DATE
    )


# --- months ---------------------------------------------------------------------------------------


def _months_later(days: Vector, months: Vector) -> Vector:
    """The same day of a later month, its last one where it has fewer days."""
    year, month, day = civil(days)
    count = (year * 12 + month - 1) + months
    year, month = count // 12, count % 12 + 1
    first = first_days(year, month)
    found: Vector = first + np.minimum(day, first_days(year, month + 1) - first) - 1
    return found


def add_months(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    valid = both_valid(args)
    days = _months_later(_days(args[0]), values_of(args[1]).astype(np.int64))
    bad = (days < _INT.min) | (days > _INT.max)
    frame.fail(bad & valid, overflow_reason(DATE), node)
    return arrow_column(np.where(bad, 0, days), valid, DATE)


def add_months_to_time(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """The same time of the day, on the wall where the zone matters."""
    zone = node.option("time_zone")
    days, of_day = wall_times(args[0], zone)
    later = _months_later(days, values_of(args[1]).astype(np.int64))
    return _at_time_of_day(node, args, frame, later, of_day, zone)


def add_length(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Microseconds later: its whole days on the wall, the rest as time that passes."""
    zone = node.option("time_zone")
    length_us = values_of(args[1])
    if zone is None:
        moved, bad = wide_add(values_of(args[0]), length_us)
        frame.fail(bad & both_valid(args), overflow_reason(node.type), node)
        return arrow_column(moved, both_valid(args), node.type)
    whole = truncated_quotient(length_us, np.full(1, DAY_US))
    rest_us = length_us - whole * DAY_US
    days, of_day = wall_times(args[0], zone)
    return _at_time_of_day(node, args, frame, days + whole, of_day, zone, rest_us)


def _at_time_of_day(
    node: Call,
    args: list[pa.Array],
    frame: Frame,
    days: Vector,
    of_day: Vector,
    zone: str | None,
    later_us: Vector | int = 0,
) -> pa.Array:
    """Only the instant itself must be in range: its wall time need not be, nor what leads to it."""
    valid = both_valid(args)
    local_s = days * _DAY_S + of_day // SECOND_US
    offsets = 0 if zone is None else _moved_offsets(local_s, args[0], zone)
    rest_us = of_day % SECOND_US + later_us - offsets
    micros, bad = joined_micros(local_s + rest_us // SECOND_US, rest_us % SECOND_US)
    frame.fail(bad & valid, overflow_reason(node.type), node)
    return arrow_column(micros, valid, node.type)


def _moved_offsets(local_s: Vector, before: pa.Array, zone_name: str) -> Vector:
    """The offset at a wall time that was moved: its old one where both would do."""
    zone = load_zone(zone_name)
    offsets = zone.offsets_at(values_of(before))
    same = zone.offsets_at(folded(local_s) - offsets) == offsets
    return np.where(same, offsets, zone.wall_offsets(local_s))


def months_between(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Whole months between two last days or equal days of a month, else a 31st of one per day."""
    zone = load_zone(node.option("time_zone"))
    left, right = (zone.to_local(values_of(arg)) for arg in args)
    (year1, month1, day1), (year2, month2, day2) = civil(left // DAY_US), civil(right // DAY_US)
    months = ((year1 * 12 + month1) - (year2 * 12 + month2)).astype(np.float64)
    last1 = first_days(year1, month1 + 1) - left // DAY_US == 1
    last2 = first_days(year2, month2 + 1) - right // DAY_US == 1
    whole = (day1 == day2) | (last1 & last2)
    passed1, passed2 = (
        (values_of(arg) - days * DAY_US + zone.day_start_offsets(days)) // SECOND_US
        for arg, days in zip(args, (left // DAY_US, right // DAY_US), strict=True)
    )
    seconds = (day1 - day2) * _DAY_S + passed1 - passed2
    parts = months + seconds / (_DAYS_OF_31 * _DAY_S)
    if node.option("rounded"):
        parts = np.floor(parts * 1e8 + 0.5) / 1e8
    return arrow_column(np.where(whole, months, parts), both_valid(args), node.type)


# --- differences ----------------------------------------------------------------------------------


def date_diff(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    # wraps, as Spark's
    return arrow_column(values_of(args[0]) - values_of(args[1]), both_valid(args), node.type)


_PER_UNIT_US = {
    "microsecond": 1, "millisecond": 1_000, "second": SECOND_US, "minute": 60 * SECOND_US,
    "hour": 3600 * SECOND_US, "day": DAY_US, "week": 7 * DAY_US,
}  # fmt: skip
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


def timestamp_diff(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Whole units on the wall from the first time to the second, cut off towards zero."""
    zone = node.option("time_zone")
    start, end = (
        local_micros(arg, each.type, zone) for arg, each in zip(args, node.args, strict=True)
    )
    unit = node.option("unit")
    if unit in _MONTHS:
        found = truncated_quotient(_whole_months(start, end), np.full(1, _MONTHS[unit]))
    else:
        found = truncated_quotient(end - start, np.full(1, _PER_UNIT_US[unit]))
    return arrow_column(found, both_valid(args), BIGINT)


def _whole_months(start: Vector, end: Vector) -> Vector:
    """By the day of the month, after a day is taken off for a time of the day not reached."""
    first, last = start // DAY_US, end // DAY_US
    earlier, later = end % DAY_US < start % DAY_US, end % DAY_US > start % DAY_US
    last = last - ((last > first) & earlier) + ((last < first) & later)
    (year1, month1, day1), (year2, month2, day2) = civil(first), civil(last)
    before, after = (year1 * 12 + month1) * 32 + day1, (year2 * 12 + month2) * 32 + day2
    return truncated_quotient(after - before, np.full(1, 32))


# --- made from parts ------------------------------------------------------------------------------


def days_of_parts(year: Vector, month: Vector, day: Vector) -> tuple[Vector, Mask]:
    """Days since 1970, and where there is no such date."""
    real = (month >= 1) & (month <= 12) & (year >= _YEARS[0]) & (year <= _YEARS[1])
    first = first_days(np.where(real, year, 1970), np.where(real, month, 1))
    following = first_days(np.where(real, year, 1970), np.where(real, month, 1) + 1)
    real = real & (day >= 1) & (day <= following - first)
    return first + day - 1, ~real


def make_date(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    valid = both_valid(args)
    days, bad = days_of_parts(*(values_of(arg).astype(np.int64) for arg in args))
    frame.fail(bad & valid, "no such date", node)
    bad = bad | (days < _INT.min) | (days > _INT.max)
    frame.fail(bad & valid, overflow_reason(DATE), node)
    return arrow_column(np.where(bad, 0, days), valid, DATE)


def make_timestamp(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """From year, month, day, hour, minute and decimal seconds; 60 seconds are the next minute."""
    valid = both_valid(args)
    year, month, day, hour, minute = (values_of(arg).astype(np.int64) for arg in args[:5])
    seconds_us = values_of(args[5])
    days, bad = days_of_parts(year, month, day)
    bad = bad | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    bad = bad | (seconds_us < 0) | (seconds_us > 60 * SECOND_US)
    frame.fail(bad & valid, "no such time", node)
    local = days * DAY_US + (hour * 60 + minute) * 60 * SECOND_US + seconds_us
    local = np.where(bad | ~valid, 0, local)
    zone = node.option("time_zone")
    return arrow_column(local if zone is None else load_zone(zone).to_utc(local), valid, node.type)


def unix_date(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Days since 1970 as a number, and back."""
    return arrow_column(values_of(args[0]), validity_of(args[0]), node.type)


def shifted_by_zone(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A UTC wall time as that of a zone, or the other way round, whatever the session's zone is."""
    zone = load_zone(node.option("zone"))
    micros = values_of(args[0])
    moved = zone.to_local(micros) if node.function == "from_utc_timestamp" else zone.to_utc(micros)
    return arrow_column(moved, validity_of(args[0]), TIMESTAMP)
