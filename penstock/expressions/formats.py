"""Times written and read by a pattern such as yyyy-MM-dd HH:mm:ss, as java.time does it.

Understood are the letters y M d D E H h k K m s S a in the widths whose text does not depend on
more than the time itself, quoted text, and marks. Other patterns are refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.errors import ExpressionError
from penstock.expressions.dates import (
    DAYS,
    MONTHS,
    SHORT_DAYS,
    SHORT_MONTHS,
    days_of_parts,
    weekday,
)
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.printing import digits_text, joined_text, with_nulls, year_text
from penstock.expressions.times import civil, first_days, wall_times
from penstock.expressions.types import TIMESTAMP
from penstock.expressions.vectors import arrow_column
from penstock.expressions.zones import DAY_US, SECOND_US, load_zone

_FRACTION_DIGITS = 6
_NANOSECOND_DIGITS = 9
_TOKEN = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z'\[\]{}#])")


@dataclass(frozen=True, slots=True)
class Token:
    """One part of a pattern: a field such as yyyy, or text that stands for itself."""

    field: str = ""
    text: str = ""


@lru_cache(maxsize=256)
def tokens_of(pattern: str) -> tuple[Token, ...]:
    """The parts of a pattern; an ExpressionError where it is not one of those understood."""
    found: list[Token] = []
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            raise _refuse(pattern, f"{pattern[at]!r} is not understood")
        quoted, field, _, mark = match.groups()
        if field is not None:
            found.append(Token(field=field))
        else:
            found.append(Token(text=mark if mark else (quoted.replace("''", "'") or "'")))
        at = match.end()
    return tuple(found)


def _refuse(pattern: str, reason: str) -> ExpressionError:
    return ExpressionError(
        f"the pattern {pattern!r:.200} of a time cannot be used here: {reason}",
        pattern=pattern[:200],
    )


def check_written(pattern: str) -> str:
    """A pattern that times can be written by."""
    for token in tokens_of(pattern):
        if token.field and token.field not in _WRITTEN and not _is_fraction(token):
            raise _refuse(pattern, f"{token.field} is not understood")
    return pattern


def check_read(pattern: str) -> str:
    """A pattern that times can be read by."""
    reading_of(pattern)
    return pattern


def _is_fraction(token: Token) -> bool:
    return set(token.field) == {"S"} and len(token.field) <= _NANOSECOND_DIGITS


# --- written --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wall:
    """The calendar and the clock on the wall, for every row."""

    days: Vector
    of_day_us: Vector

    def date(self, part: int) -> Vector:
        return civil(self.days)[part]

    @property
    def hour(self) -> Vector:
        return self.of_day_us // (3600 * SECOND_US)

    @property
    def day_of_year(self) -> Vector:
        year = self.date(0)
        found: Vector = self.days - first_days(year, np.ones_like(year)) + 1
        return found


def _number(width: int, part: Callable[[_Wall], Vector]) -> Callable[[_Wall], pa.Array]:
    return lambda wall: digits_text(part(wall), width)


def _name(names: tuple[str, ...], part: Callable[[_Wall], Vector]) -> Callable[[_Wall], pa.Array]:
    return lambda wall: pa.array(names).take(pa.array(part(wall)))


def _minute(wall: _Wall) -> Vector:
    found: Vector = wall.of_day_us // (60 * SECOND_US) % 60
    return found


def _second(wall: _Wall) -> Vector:
    found: Vector = wall.of_day_us // SECOND_US % 60
    return found


_HALF_DAYS = ("AM", "PM")
_WRITTEN: Mapping[str, Callable[[_Wall], pa.Array]] = {
    "yyyy": lambda wall: year_text(wall.date(0)),
    "yy": _number(2, lambda wall: np.abs(wall.date(0)) % 100),
    "MM": _number(2, lambda wall: wall.date(1)),
    "M": _number(1, lambda wall: wall.date(1)),
    "MMM": _name(SHORT_MONTHS, lambda wall: wall.date(1) - 1),
    "MMMM": _name(MONTHS, lambda wall: wall.date(1) - 1),
    "dd": _number(2, lambda wall: wall.date(2)),
    "d": _number(1, lambda wall: wall.date(2)),
    "D": _number(1, lambda wall: wall.day_of_year),
    "DDD": _number(3, lambda wall: wall.day_of_year),
    "E": _name(SHORT_DAYS, lambda wall: weekday(wall.days)),
    "EE": _name(SHORT_DAYS, lambda wall: weekday(wall.days)),
    "EEE": _name(SHORT_DAYS, lambda wall: weekday(wall.days)),
    "EEEE": _name(DAYS, lambda wall: weekday(wall.days)),
    "a": _name(_HALF_DAYS, lambda wall: wall.hour // 12),
    "HH": _number(2, lambda wall: wall.hour),
    "H": _number(1, lambda wall: wall.hour),
    "hh": _number(2, lambda wall: (wall.hour + 11) % 12 + 1),
    "h": _number(1, lambda wall: (wall.hour + 11) % 12 + 1),
    "kk": _number(2, lambda wall: (wall.hour + 23) % 24 + 1),
    "k": _number(1, lambda wall: (wall.hour + 23) % 24 + 1),
    "KK": _number(2, lambda wall: wall.hour % 12),
    "K": _number(1, lambda wall: wall.hour % 12),
    "mm": _number(2, _minute),
    "m": _number(1, _minute),
    "ss": _number(2, _second),
    "s": _number(1, _second),
}


def _fraction(wall: _Wall, width: int) -> pa.Array:
    digits = digits_text(wall.of_day_us % SECOND_US, _FRACTION_DIGITS)
    return pc.utf8_rpad(pc.utf8_slice_codeunits(digits, 0, width), width, "0")


def text_by_pattern(days: Vector, of_day: Vector, valid: Mask, pattern: str) -> pa.Array:
    """Times of the wall clock by a pattern that was checked."""
    wall = _Wall(np.where(valid, days, 0), np.where(valid, of_day, 0))
    parts: list[pa.Array] = [pa.repeat("", len(valid))]
    for token in tokens_of(pattern):
        if not token.field:
            parts.append(pa.repeat(token.text, len(valid)))
        elif _is_fraction(token):
            parts.append(_fraction(wall, len(token.field)))
        else:
            parts.append(_WRITTEN[token.field](wall))
    return with_nulls(joined_text(*parts), valid)


def date_format(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    wall = wall_times(args[0], node.option("time_zone"))
    return text_by_pattern(*wall, validity_of(args[0]), node.option("pattern"))


def from_unixtime(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    micros = values_of(args[0]) * SECOND_US  # wraps, as Spark's
    wall = load_zone(node.option("time_zone")).wall_times(micros)
    return text_by_pattern(*wall, validity_of(args[0]), node.option("pattern"))


# --- read -----------------------------------------------------------------------------------------

# What each field is read by. Fields of a fixed width may stand side by side.
_READ: Mapping[str, tuple[str, str, bool]] = {
    "yyyy": ("year", r"[0-9]{4}|[+][0-9]{5,9}|-[0-9]{4,9}", True),
    "yy": ("short_year", "[0-9]{2}", True),
    "MM": ("month", "[0-9]{2}", True),
    "M": ("month", "[0-9]{1,19}", False),
    "MMM": ("month_name", f"(?i:{'|'.join(SHORT_MONTHS)})", True),
    "dd": ("day", "[0-9]{2}", True),
    "d": ("day", "[0-9]{1,19}", False),
    "HH": ("hour", "[0-9]{2}", True),
    "H": ("hour", "[0-9]{1,19}", False),
    "hh": ("half_hour", "[0-9]{2}", True),
    "h": ("half_hour", "[0-9]{1,19}", False),
    "a": ("half", "(?i:AM|PM)", True),
    "mm": ("minute", "[0-9]{2}", True),
    "m": ("minute", "[0-9]{1,19}", False),
    "ss": ("second", "[0-9]{2}", True),
    "s": ("second", "[0-9]{1,19}", False),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A pattern as a regular expression with named groups."""

    regex: str
    groups: frozenset[str]


@lru_cache(maxsize=256)
def reading_of(pattern: str) -> Reading:
    """How a pattern is read; an ExpressionError where it is not understood."""
    out: list[str] = []
    groups: list[str] = []
    open_ended = False
    for token in tokens_of(pattern):
        if not token.field:
            out.append(f"(?i:{re.escape(token.text)})")
            open_ended = False
            continue
        if _is_fraction(token):
            name, text, fixed = "fraction", f"[0-9]{{1,{len(token.field)}}}", False
        elif token.field in _READ:
            name, text, fixed = _READ[token.field]
        else:
            raise _refuse(pattern, f"{token.field} is not understood")
        if open_ended:
            raise _refuse(pattern, f"nothing tells where the field before {token.field} ends")
        out.append(f"(?P<{name}>{text})")
        groups.append(name)
        open_ended = not fixed
    known = frozenset(groups)
    if len(groups) != len(known) or len(known & {"year", "short_year"}) > 1:
        raise _refuse(pattern, "a field stands in it twice")
    if len(known & {"month", "month_name"}) > 1 or len(known & {"hour", "half_hour"}) > 1:
        raise _refuse(pattern, "a field stands in it twice")
    if ("half_hour" in known) != ("half" in known):
        raise _refuse(pattern, "h and a belong together")
    return Reading(rf"\A{''.join(out)}\z", known)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read: the groups of every row."""

    groups: pa.Array
    known: frozenset[str]

    def number(self, name: str, default: int) -> Vector:
        if name not in self.known:
            return np.full(len(self.groups), default, np.int64)
        text = pc.utf8_ltrim(pc.struct_field(self.groups, name).fill_null(str(default)), "+")
        too_long = pc.greater(pc.utf8_length(text), 18)
        found: Vector = pc.if_else(too_long, "-1", text).cast(pa.int64()).to_numpy()
        return found

    def place(self, name: str, names: tuple[str, ...]) -> Vector:
        text = pc.ascii_lower(pc.struct_field(self.groups, name))
        at = pc.index_in(text, value_set=pa.array([each.lower() for each in names]))
        found: Vector = at.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def year(self) -> Vector:
        if "short_year" in self.known:
            return 2000 + self.number("short_year", 0)
        return self.number("year", 1970)

    def month(self) -> Vector:
        if "month_name" in self.known:
            return self.place("month_name", SHORT_MONTHS) + 1
        return self.number("month", 1)

    def hour(self) -> tuple[Vector, Mask]:
        if "half_hour" not in self.known:
            hour = self.number("hour", 0)
            return hour, (hour < 0) | (hour > 23)
        hour = self.number("half_hour", 12)
        half = self.place("half", _HALF_DAYS)
        return hour % 12 + 12 * half, (hour < 1) | (hour > 12)

    def fraction_us(self) -> Vector:
        if "fraction" not in self.known:
            return np.zeros(len(self.groups), np.int64)
        text = pc.utf8_rpad(pc.struct_field(self.groups, "fraction").fill_null("0"), 6, "0")
        found: Vector = pc.utf8_slice_codeunits(text, 0, 6).cast(pa.int64()).to_numpy()
        return found


def parsed_time(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """The time that a text says; one that the pattern does not describe fails, or gives null."""
    reading = reading_of(node.option("pattern"))
    groups = pc.extract_regex(args[0], pattern=reading.regex)
    found = _Found(groups, reading.groups)
    days, bad = days_of_parts(found.year(), found.month(), found.number("day", 1))
    hour, bad_hour = found.hour()
    minute, second = found.number("minute", 0), found.number("second", 0)
    bad = bad | bad_hour | (minute < 0) | (minute > 59) | (second < 0) | (second > 59)
    limit = np.iinfo(np.int64).max // DAY_US - 2
    bad = bad | ~validity_of(groups) | (np.abs(days) > limit)
    seconds = (np.where(bad, 0, hour) * 60 + np.where(bad, 0, minute)) * 60
    local = np.where(bad, 0, days) * DAY_US + found.fraction_us()
    local = local + (seconds + np.where(bad, 0, second)) * SECOND_US
    if node.type == TIMESTAMP:
        local = load_zone(node.option("time_zone")).to_utc(local)
    valid = validity_of(args[0])
    if node.function == "parse_time":
        frame.fail(bad & valid, "the pattern does not describe this text", node)
    return arrow_column(local, valid & ~bad, node.type)
