"""Text read as numbers, booleans, dates and times, by the grammar of Spark's ANSI casts.

Every function gives the values and the rows whose text is not one; rows that are null are neither.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, decimal_words, true_rows, validity_of
from penstock.errors import ExpressionError
from penstock.expressions.decimals import power_of_ten
from penstock.expressions.digits import digits_of_text
from penstock.expressions.times import first_days, joined_micros
from penstock.expressions.types import DOUBLE, DataType
from penstock.expressions.vectors import changed_at_once
from penstock.expressions.zones import DAY_US, SECOND_US, load_zone

Read = tuple[Vector, Mask]

_JAVA_SPACE = "".join(map(chr, range(1, 33)))
_SPACE_AND_CONTROL = _JAVA_SPACE + "\x7f"
_TRUE_WORDS = ["t", "true", "y", "yes", "1"]
_FALSE_WORDS = ["f", "false", "n", "no", "0"]


def _trimmed(text: pa.Array, characters: str = _SPACE_AND_CONTROL) -> pa.Array:
    """Without white space and control characters at both ends."""
    if true_rows(pc.match_substring(text, pattern="\0")).any():
        # Arrow ends its list of characters at a zero.
        ends = f"[{re.escape(characters)}\\x00]+"
        return pc.replace_substring_regex(text, pattern=rf"\A{ends}|{ends}\z", replacement="")
    return pc.utf8_trim(text, characters=characters)


def _matches(text: pa.Array, pattern: str) -> Mask:
    return true_rows(pc.match_substring_regex(text, pattern=pattern))


def integers_of_text(text: pa.Array) -> Read:
    """[+-]digits as bigint."""
    trimmed = _trimmed(text)
    valid = validity_of(trimmed)
    good = _matches(trimmed, r"\A[+-]?[0-9]+\z")
    # without zeros in front: a number of more than 19 digits is beyond 64 bits
    plain = pc.replace_substring_regex(
        trimmed, pattern=r"\A\+?(-?)0*([0-9]+)\z", replacement=r"\1\2"
    )
    good &= _matches(plain, r"\A-?[0-9]{1,19}\z")
    wide = _masked(plain, good).cast(pa.decimal128(19, 0)).fill_null(0)
    words = decimal_words(wide)
    good &= words[:, 1] == words[:, 0] >> 63
    return np.where(good, words[:, 0], 0), valid & ~good


def _masked(text: pa.Array, kept: Mask) -> pa.Array:
    return pc.if_else(pa.array(kept), text, pa.scalar(None, pa.string()))


_JAVA_NUMBER = r"\A[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?\z"
_JAVA_HEX_NUMBER = (
    r"\A[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?\z"
)
# In any case, but for a NaN with a sign.
_WORDS = (
    (("inf", "+inf", "infinity", "+infinity"), math.inf),
    (("-inf", "-infinity"), -math.inf),
    (("nan",), math.nan),
)
_SIGNED_NANS = ("+NaN", "-NaN")
_DOUBLE_POWERS, _FLOAT_POWERS = 300, 36  # well within the range of the type


def floats_of_text(text: pa.Array, target: DataType) -> Read:
    """By Java's grammar, or a word for infinity or NaN.

    Only hexadecimal numbers, and those near the bounds of the type, are read row by row.
    """
    trimmed = _trimmed(text, _JAVA_SPACE)
    is_number, is_hex = _matches(trimmed, _JAVA_NUMBER), _matches(trimmed, _JAVA_HEX_NUMBER)
    bare = pc.replace_substring_regex(
        _masked(trimmed, is_number), pattern=r"\A\+|[dDfF]\z", replacement=""
    )
    number = digits_of_text(bare)
    bound = _DOUBLE_POWERS if target == DOUBLE else _FLOAT_POWERS
    is_zero = number.is_number & true_rows(pc.equal(number.digits, ""))
    inside = number.is_number & ~is_zero & (np.abs(number.powers) <= bound)
    arrow = pa.float64() if target == DOUBLE else pa.float32()
    values = _masked(bare, inside).cast(arrow).fill_null(0).to_numpy().copy()
    values[is_zero & number.is_negative] = -0.0
    bad = validity_of(text) & ~is_number & ~is_hex
    lowered = pc.ascii_lower(trimmed)
    for words, value in _WORDS:
        rows = bad & true_rows(pc.is_in(lowered, value_set=pa.array(words)))
        values[rows] = value
        bad &= ~rows
    signed = bad & true_rows(pc.is_in(trimmed, value_set=pa.array(_SIGNED_NANS)))
    values[signed] = math.nan
    for row in np.flatnonzero(is_hex | is_number & ~inside & ~is_zero):
        values[row] = _float_of_text(trimmed[row].as_py(), target)
    return values, bad & ~signed


def _float_of_text(trimmed: str, target: DataType) -> float:
    digits = trimmed.rstrip("dDfF")
    if "x" in digits.lower():
        try:
            return _rounded(float.fromhex(digits), target)
        except OverflowError:
            return -math.inf if digits.startswith("-") else math.inf
    value = float(digits)
    if target == DOUBLE or not math.isfinite(value) or value == 0:
        return value
    try:
        return float(pa.scalar(digits.lstrip("+")).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        return _rounded(value, target)


def _rounded(value: float, target: DataType) -> float:
    with np.errstate(over="ignore"):
        return value if target == DOUBLE else float(np.float32(value))


def decimals_of_text(text: pa.Array, target: DataType) -> Read:
    """Rounded HALF_UP to the type's scale; the digits of any script count."""
    trimmed = _trimmed(text, _JAVA_SPACE)
    if not pc.all(pc.string_is_ascii(trimmed)).as_py():
        there = trimmed.fill_null("")
        trimmed = changed_at_once(there, lambda whole: whole.translate(_ascii_digits()))
    number = digits_of_text(trimmed)
    scaled, beyond = number.scaled(target.scale, target.precision)
    fits = number.is_number & ~beyond & (np.abs(scaled) < power_of_ten(target.precision))
    return np.where(fits, scaled, 0), validity_of(text) & ~fits


@cache
def _ascii_digits() -> dict[int, str]:
    digits = (code for code in range(128, sys.maxunicode + 1) if chr(code).isdecimal())
    return {code: str(unicodedata.decimal(chr(code))) for code in digits}


def booleans_of_text(text: pa.Array) -> Read:
    words = pc.ascii_lower(_trimmed(text))
    yes = true_rows(pc.is_in(words, value_set=pa.array(_TRUE_WORDS)))
    no = true_rows(pc.is_in(words, value_set=pa.array(_FALSE_WORDS)))
    return yes, ~yes & ~no & validity_of(text)


# --- dates and times ------------------------------------------------------------------------------

_DATE = (
    r"(?s)\A(?P<sign>[+-]?)(?P<year>[0-9]{4,7})"
    r"(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?\z"
)
_TIMESTAMP = (
    r"(?s)\A(?P<sign>[+-]?)(?P<year>[0-9]{4,6})"
    r"(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[ T](?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})"
    r"(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*))?(?P<zone>[^0-9.].*)?)?)?)?)?)?\z"
)
_DAYS_BOUND = 1 << 31
_MONTHS, _HOURS, _SIXTY = 12, 24, 60


def _groups(text: pa.Array, pattern: str) -> tuple[pa.StructArray, Mask]:
    groups = pc.extract_regex(_trimmed(text), pattern=pattern)
    return groups, validity_of(groups)


def _number(groups: pa.StructArray, name: str, absent: int) -> Vector:
    part = pc.struct_field(groups, name)
    part = pc.if_else(pc.equal(part, ""), str(absent), part).fill_null(str(absent))
    numbers: Vector = part.cast(pa.int64()).to_numpy()
    return numbers


def _days(groups: pa.StructArray, good: Mask) -> tuple[Vector, Mask]:
    """Days of the date parts, and where they form a date."""
    year = _number(groups, "year", 1970)
    negative = true_rows(pc.equal(pc.struct_field(groups, "sign"), "-"))
    month, day = _number(groups, "month", 1), _number(groups, "day", 1)
    good = good & (month >= 1) & (month <= _MONTHS) & (day >= 1)
    year, month = np.where(negative, -year, year), np.where(good, month, 1)
    first, following = first_days(year, month), first_days(year, month + 1)
    good = good & (day <= following - first)
    return first + day - 1, good


def dates_of_text(text: pa.Array) -> Read:
    """yyyy, yyyy-[m]m or yyyy-[m]m-[d]d; after a space or T anything, which is ignored."""
    groups, matched = _groups(text, _DATE)
    days, good = _days(groups, matched)
    good = good & (days >= -_DAYS_BOUND) & (days < _DAYS_BOUND)
    return np.where(good, days, 0), validity_of(text) & ~good


def micros_of_text(text: pa.Array, zone: str | None) -> Read:
    """A date, or date and time with an optional zone after the seconds; `zone` None ignores it.

    A bare time of day, which Spark completes with today's date, is refused: the result would
    depend on when a row is processed, and replay could not repeat it.
    """
    groups, matched = _groups(text, _TIMESTAMP)
    days, good = _days(groups, matched)
    hour, minute, second = (_number(groups, part, 0) for part in ("hour", "minute", "second"))
    good = good & (hour < _HOURS) & (minute < _SIXTY) & (second < _SIXTY)
    fraction = pc.utf8_slice_codeunits(pc.struct_field(groups, "fraction"), 0, 6)
    fraction = pc.utf8_rpad(fraction, 6, "0").fill_null("0").cast(pa.int64()).to_numpy()
    seconds = days * (DAY_US // SECOND_US) + hour * 3600 + minute * 60 + second
    offsets, known = _zone_offsets(seconds, pc.struct_field(groups, "zone").fill_null(""), zone)
    shift, fraction_shift = offsets // SECOND_US, offsets % SECOND_US
    assert not fraction_shift.any(), "offsets are whole seconds"
    micros, beyond = joined_micros(seconds - shift, fraction)
    good = good & known & ~beyond
    return np.where(good, micros, 0), validity_of(text) & ~good


def _zone_offsets(seconds: Vector, names: pa.Array, default: str | None) -> tuple[Vector, Mask]:
    """Offsets of wall times, each in the zone its text names, and where that is a zone."""
    known = np.ones(len(seconds), np.bool_)
    offsets = np.zeros(len(seconds), np.int64)
    for name in names.unique().to_pylist():
        rows = true_rows(pc.equal(names, name))
        zone = default if name == "" else zone_of_text(name)
        if name != "" and zone is None:
            known[rows] = False
        elif default is not None and zone is not None:
            offsets[rows] = load_zone(zone).wall_offsets(seconds[rows])
    return offsets, known


_ZONE_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?")


def zone_of_text(text: str) -> str | None:
    """The zone that the end of a timestamp names, None if it is none."""
    name = text.strip(" ")
    if name in ("Z", "UTC", "GMT", "UT"):
        return "UTC"
    offset = _ZONE_OFFSET.fullmatch(name)
    if offset is not None:
        name = f"{offset.group(1)}{offset.group(2):>02}:{offset.group(3) or '':>02}"
    try:
        return load_zone(name).name
    except ExpressionError:
        return None
