"""The parts of a call that are not expressions (patterns, zones, types), each with its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from penstock.errors import ExpressionError
from penstock.expressions.regex import (
    match_pattern,
    replacement_text,
    search_pattern,
    split_pattern,
)
from penstock.expressions.types import parse_type
from penstock.expressions.zones import check_zone

Option = Union[bool, int, float, str, None, tuple["Option", ...]]  # noqa: UP007 (names itself)
REQUIRED: Any = object()
PATTERN_CHARACTERS_MAX = 10_000
SCALE_DIGITS_MAX = 18
DATE_UNITS = (
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond",
    "microsecond",
)  # fmt: skip
DAY_UNITS = ("year", "quarter", "month", "week")
DAYS_OF_WEEK = 7
SHA2_BITS = (224, 256, 384, 512)


@dataclass(frozen=True, slots=True)
class OptionRule:
    """How to check one option, and what stands for it when it is absent."""

    check: Callable[[Any], Any]
    default: Any


def _refuse(what: str, value: Any) -> ExpressionError:
    return ExpressionError(f"{value!r:.200} is not {what}", value=repr(value)[:200])


def check_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > PATTERN_CHARACTERS_MAX:
        raise _refuse(f"a text of at most {PATTERN_CHARACTERS_MAX} characters", value)
    return value


def check_type_text(value: Any) -> str:
    return str(parse_type(value))


def check_time_zone(value: Any) -> str:
    return check_zone(value)


def check_escape(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in "%_":
        raise _refuse("an escape of one character other than % and _", value)
    return value


def check_limit(value: Any) -> int:
    if value != -1 or isinstance(value, bool):
        raise _refuse("a limit that is supported: only -1 (all parts)", value)
    return -1


def check_scale(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > SCALE_DIGITS_MAX:
        raise _refuse(f"a number of digits from -{SCALE_DIGITS_MAX} to {SCALE_DIGITS_MAX}", value)
    return value


def check_whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse("a whole number", value)
    return value


def check_replaced_pattern(value: Any) -> str:
    """A regular expression whose matches are taken, within what Java and RE2 mean alike."""
    match_pattern(check_text(value))
    return str(value)


def check_replacement(value: Any) -> str:
    replacement_text(check_text(value))
    return str(value)


def check_sha2_bits(value: Any) -> int:
    if value not in SHA2_BITS or isinstance(value, bool):
        raise _refuse(f"a number of bits: {', '.join(map(str, SHA2_BITS))}", value)
    return int(value)


def check_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise _refuse("a list of names", value)
    return tuple(value)


def check_date_unit(value: Any) -> str:
    unit = value.lower() if isinstance(value, str) else ""
    if unit not in DATE_UNITS:
        raise _refuse(f"a unit of time: {', '.join(DATE_UNITS)}", value)
    return unit


def check_day_unit(value: Any) -> str:
    unit = check_date_unit(value)
    if unit not in DAY_UNITS:
        raise _refuse(f"a unit of days: {', '.join(DAY_UNITS)}", value)
    return unit


def check_weekday(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < DAYS_OF_WEEK:
        raise _refuse("a day of the week, Monday as 0", value)
    return value


def check_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse("true or false", value)
    return value


def check_match_pattern(value: Any) -> str:
    """A regular expression to search for, within what Java and RE2 mean alike."""
    search_pattern(check_text(value))
    return str(value)


def check_split_pattern(value: Any) -> str:
    """A regular expression to split at, within what Java and RE2 mean alike."""
    split_pattern(check_text(value))
    return str(value)
