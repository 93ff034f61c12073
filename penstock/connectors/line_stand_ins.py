"""The loops over lines and texts written with NumPy: what runs until they are compiled.

They give what the compiled loops give, for lines and texts as programs write them. Where one meets
anything else (a quoted CSV field, a time without its seconds, a number of twenty digits) it returns
NotImplemented, and the batch waits for the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.connectors.line_kernels import (
    BACKSLASH,
    BLANK,
    BRACE_CLOSE,
    BRACE_OPEN,
    BRACKET_CLOSE,
    BRACKET_OPEN,
    FEW_FIELDS,
    JSON_DEPTH_MAX,
    MANY_FIELDS,
    NEWLINE,
    NOT_AN_OBJECT,
    PLAIN,
    QUOTE,
    RETURN,
    SPACE,
    TAB,
    TRAILING,
    UNFINISHED,
)
from penstock.connectors.text_kernels import (
    DAY_US,
    MINUS,
    PLUS,
    POINT,
    UNTIL_MONTH,
    ZERO,
    ZONE_MINUTES_MAX,
)
from penstock.loops import Bytes, FlagRows, Flags, ReadBytes, RowNumbers, Rows, Words

WHITE_MAX = 64  # spaces before or behind an object
INTEGER_DIGITS_MAX = 18  # any number of so many fits 64 bits
FRACTION_DIGITS_MAX = 9
DAY_CHARACTERS, SECOND_CHARACTERS = len("2024-02-29"), len("2024-02-29 10:00:00")

# Only these change what a JSON line is.
_STRUCTURE = np.zeros(256, np.bool_)
_STRUCTURE[[QUOTE, BACKSLASH, BRACE_OPEN, BRACE_CLOSE, BRACKET_OPEN, BRACKET_CLOSE]] = True
_DEPTH = np.zeros(256, np.int64)
_DEPTH[[BRACE_OPEN, BRACKET_OPEN]], _DEPTH[[BRACE_CLOSE, BRACKET_CLOSE]] = 1, -1
_WHITE = np.zeros(256, np.bool_)
_WHITE[[SPACE, TAB, RETURN]] = True


# --- lines ----------------------------------------------------------------------------------------


def find_lines(data: ReadBytes, lines_max: int, complete: bool) -> tuple[Words, Words, int]:
    """Where lines begin and end, and how many bytes they use."""
    ends = np.flatnonzero(data == NEWLINE)
    widths = np.ones(ends.size, np.int64)
    returns = np.flatnonzero(data == RETURN)
    if returns.size:
        if returns[-1] + 1 == data.size and not complete:
            returns = returns[:-1]  # a newline may follow that belongs to this line's end
        is_newline = np.zeros(data.size + 1, np.bool_)
        is_newline[ends] = True
        has_newline = is_newline[returns + 1]
        is_newline[returns[has_newline] + 1] = False
        ends = np.concatenate([np.flatnonzero(is_newline), returns])
        widths = np.ones(ends.size, np.int64)
        widths[ends.size - returns.size :] += has_newline
        order = np.argsort(ends)
        ends, widths = ends[order], widths[order]
    ends, widths = ends[:lines_max], widths[:lines_max]
    begins = np.concatenate([np.zeros(1, np.int64), ends + widths])
    used = int(begins[-1])
    if complete and ends.size < lines_max and used < data.size:
        return begins, np.append(ends, data.size), data.size
    return begins[:-1], ends, used


def gather(data: ReadBytes, begins: Words, ends: Words) -> tuple[Bytes, RowNumbers]:
    """Texts in one run of bytes, with Arrow's offsets."""
    sizes = ends - begins
    offsets = np.zeros(begins.size + 1, np.int32)
    offsets[1:] = np.cumsum(sizes)
    if not begins.size:
        return np.empty(0, np.uint8), offsets
    gaps = begins[1:] - ends[:-1]
    if (gaps >= 0).all():
        lengths = np.stack([sizes, np.append(gaps, 0)], axis=1).ravel()
        is_text = np.repeat(np.resize([True, False], lengths.size), lengths)
        return data[begins[0] : ends[-1]][is_text], offsets
    places = np.repeat(begins - offsets[:-1], sizes)
    return data[np.arange(places.size) + places], offsets


def pack_lines(data: ReadBytes, starts: Words, ends: Words) -> Bytes:
    """Lines in one run of bytes, each followed by a newline."""
    copied, offsets = gather(data, starts, ends)
    packed = np.full(copied.size + starts.size, NEWLINE, np.uint8)
    is_text = np.ones(packed.size, np.bool_)
    is_text[offsets[1:] + np.arange(starts.size)] = False
    packed[is_text] = copied
    return packed


def judge_json(data: ReadBytes, starts: Words, ends: Words) -> Bytes | Any:
    """Whether each line is one object by its brackets."""
    if (starts[1:] <= ends[:-1]).any():
        return NotImplemented
    block = data[: ends.max(initial=0)]
    places = np.flatnonzero(_STRUCTURE[block])
    counts = np.diff(np.searchsorted(places, ends), prepend=0)
    lines = np.repeat(np.arange(starts.size), counts)
    inside = places >= starts[lines]
    places, lines = places[inside], lines[inside]
    chars = block[places]
    if (escaping := chars == BACKSLASH).any():
        unescaped = ~escaping & ~_are_escaped(places, places[escaping])
        quotes = np.cumsum((chars == QUOTE) & unescaped)
        in_text = _of_their_line(quotes, lines) & 1 == 1
        if not in_text[escaping].all():
            return NotImplemented  # outside of texts it escapes nothing
        chars = np.where(unescaped, chars, np.uint8(0))
    else:
        in_text = _of_their_line(np.cumsum(chars == QUOTE), lines) & 1 == 1
    depths = _of_their_line(np.cumsum(np.where(in_text, 0, _DEPTH[chars])), lines)
    if depths.max(initial=0) > JSON_DEPTH_MAX:
        return NotImplemented
    closing = np.flatnonzero((depths == 0) & ~in_text & (_DEPTH[chars] < 0))
    closing = closing[np.diff(lines[closing], prepend=-1) != 0]  # the first of each line
    behind = np.full(starts.size, -1, np.int64)
    behind[lines[closing]] = places[closing] + 1
    return _verdicts(data, starts, ends, behind)


def _are_escaped(places: Words, backslashes: Words) -> Flags:
    """Which places follow a backslash that is not escaped itself."""
    begins_run = np.diff(backslashes, prepend=-2) != 1
    numbers = np.arange(backslashes.size)
    run_begins = np.maximum.accumulate(np.where(begins_run, numbers, 0))
    escaping = backslashes[(numbers - run_begins) % 2 == 0]
    found = np.minimum(np.searchsorted(escaping, places - 1), escaping.size - 1)
    return np.asarray(escaping[found] == places - 1)


def _of_their_line(counted: Words, lines: Words) -> Words:
    """Running sums over all places, as sums from the first place of each line on."""
    before = np.concatenate([np.zeros(1, np.int64), counted[:-1]])
    firsts = np.flatnonzero(np.diff(lines, prepend=-1))
    own: Words = counted - np.repeat(before[firsts], np.diff(firsts, append=lines.size))
    return own


def _verdicts(data: ReadBytes, starts: Words, ends: Words, behind: Words) -> Bytes | Any:
    """What lines are, some of which are closed; `behind` is where, -1 if nowhere."""
    verdicts = np.full(starts.size, PLAIN, np.uint8)
    if (begins := _without_white(data, starts, ends)) is None:
        return NotImplemented
    blank = begins == ends
    verdicts[blank] = BLANK
    opened = ~blank
    opened[opened] = data[begins[opened]] == BRACE_OPEN
    verdicts[~opened & ~blank] = NOT_AN_OBJECT
    verdicts[opened & (behind < 0)] = UNFINISHED
    closed = np.flatnonzero(opened & (behind >= 0))
    finishes = _without_white(data, behind[closed], ends[closed])
    if finishes is None:
        return NotImplemented
    verdicts[closed[finishes < ends[closed]]] = TRAILING
    return verdicts


def _without_white(data: ReadBytes, starts: Words, ends: Words) -> Words | None:
    """Where texts begin behind white space; None if some have a lot of it."""
    at = starts.copy()
    waiting = np.flatnonzero(at < ends)
    for _ in range(WHITE_MAX):
        waiting = waiting[_WHITE[data[at[waiting]]]]
        if not waiting.size:
            return at
        at[waiting] += 1
        waiting = waiting[at[waiting] < ends[waiting]]
    return None


def blank_lines(data: ReadBytes, starts: Words, ends: Words) -> Flags:
    """Which lines have nothing but spaces and control characters."""
    blank: Flags = starts == ends
    blank[~blank] = data[starts[~blank]] <= SPACE
    doubtful = np.flatnonzero(blank)
    if doubtful.size:
        visible = np.append(np.flatnonzero(data > SPACE), data.size)
        following = visible[np.searchsorted(visible, starts[doubtful])]
        blank[doubtful] = following >= ends[doubtful]
    return blank


def cut_csv(
    data: ReadBytes, starts: Words, ends: Words, width: int, delimiter: int, escape: int
) -> tuple[Rows, Rows, FlagRows, Bytes] | Any:
    """Where the fields of lines without any quote stand."""
    if starts.size and (data[starts[0] : ends[-1]] == QUOTE).any():
        return NotImplemented
    places = np.append(np.flatnonzero(data == delimiter), data.size)
    firsts = np.searchsorted(places, starts)
    counts = np.searchsorted(places, ends) - firsts
    begins = np.zeros((width, starts.size), np.int64)
    finishes = np.zeros((width, starts.size), np.int64)
    for field in range(width):
        has = counts >= field
        begins[field, has] = places[firsts[has] + field - 1] + 1 if field else starts[has]
        is_last = counts[has] == field
        finishes[field, has] = np.where(
            is_last, ends[has], places[np.where(is_last, 0, firsts[has] + field)]
        )
    verdicts = np.full(starts.size, PLAIN, np.uint8)
    verdicts[counts + 1 < width], verdicts[counts + 1 > width] = FEW_FIELDS, MANY_FIELDS
    return begins, finishes, np.zeros((width, starts.size), np.bool_), verdicts


# --- texts ----------------------------------------------------------------------------------------


def integers(
    data: ReadBytes, begins: Words, ends: Words, low: int, high: int
) -> tuple[Words, Flags] | Any:
    """A sign or none, and digits."""
    at, there = begins.copy(), np.flatnonzero(begins < ends)
    negative = np.zeros(begins.size, np.bool_)
    negative[there] = data[at[there]] == MINUS
    at[there] += negative[there] | (data[at[there]] == PLUS)
    if (ends - at).max(initial=0) > INTEGER_DIGITS_MAX:
        return NotImplemented
    fits, values = at < ends, np.zeros(begins.size, np.int64)
    waiting = np.flatnonzero(fits)
    while waiting.size:
        digits = data[at[waiting]] - ZERO  # what is none is greater than nine
        values[waiting] = values[waiting] * 10 + digits
        fits[waiting] &= digits <= 9
        at[waiting] += 1
        waiting = waiting[at[waiting] < ends[waiting]]
    values = np.where(negative, -values, values)
    return values, fits & (low <= values) & (values <= high)


def booleans(data: ReadBytes, begins: Words, ends: Words) -> tuple[Flags, Flags]:
    """`true` or `false`, in whatever case."""
    values = _are_word(data, begins, ends, b"true")
    return values, values | _are_word(data, begins, ends, b"false")


def _are_word(data: ReadBytes, begins: Words, ends: Words, word: bytes) -> Flags:
    found: Flags = ends - begins == len(word)
    for place, char in enumerate(word):
        found[found] = data[begins[found] + place] | 0x20 == char
    return found


def dates(data: ReadBytes, begins: Words, ends: Words) -> tuple[RowNumbers, Flags] | Any:
    """`year-month-day` in ten characters; behind them nothing, or a space or `T` and anything."""
    there = np.flatnonzero(begins < ends)
    days, fits = np.zeros(begins.size, np.int32), np.zeros(begins.size, np.bool_)
    dated = _days(data, begins[there], ends[there])
    if dated is None:
        return NotImplemented
    fits[there] = dated[1]
    days[there] = np.where(dated[1], dated[0], 0)
    return days, fits


def timestamps(
    data: ReadBytes, begins: Words, ends: Words, zoned: bool
) -> tuple[Words, Flags] | Any:
    """Such a date, and perhaps `hours:minutes:seconds`, their fraction, and Z or `+hours:minutes`.

    What stands there in this form and is no time is none for the compiled loop as well.
    """
    micros, fits = np.zeros(begins.size, np.int64), np.zeros(begins.size, np.bool_)
    there = np.flatnonzero(begins < ends)
    begins, ends = begins[there], ends[there]
    dated = _days(data, begins, ends)
    if dated is None:
        return NotImplemented
    days, good = dated
    within = np.zeros(there.size, np.int64)
    timed = np.flatnonzero(ends - begins > DAY_CHARACTERS)
    of_day = _time_of_day(data, begins[timed] + DAY_CHARACTERS + 1, ends[timed], zoned)
    if of_day is None:
        return NotImplemented
    within[timed], good[timed] = of_day[0], good[timed] & of_day[1]
    fits[there] = good
    micros[there] = np.where(good, days * DAY_US + within, 0)
    return micros, fits


def _two_digits(data: ReadBytes, at: Words) -> Words | None:
    tens, ones = data[at] - ZERO, data[at + 1] - ZERO
    if (tens > 9).any() or (ones > 9).any():
        return None
    return tens.astype(np.int64) * 10 + ones


def _numbers(data: ReadBytes, begins: Words, form: str) -> list[Words] | None:
    """The two-digit numbers at the places of 0 in a form, whose other characters stand there."""
    numbers: list[Words] = []
    for place, char in enumerate(form):
        if char == "0":
            if (found := _two_digits(data, begins + place)) is None:
                return None
            numbers.append(found)
        elif char != " " and (data[begins + place] != ord(char)).any():
            return None
    return numbers


def _days(data: ReadBytes, begins: Words, ends: Words) -> tuple[Words, Flags] | None:
    """Days since 1970-01-01, and which of them are; None if a text has another form."""
    if (ends - begins).min(initial=DAY_CHARACTERS) < DAY_CHARACTERS:
        return None
    longer = begins[ends - begins > DAY_CHARACTERS] + DAY_CHARACTERS
    if not np.isin(data[longer], np.frombuffer(b" T", np.uint8)).all():
        return None
    if (found := _numbers(data, begins, "0 0 -0 -0")) is None:
        return None
    century, year, month, day = found
    year += century * 100
    is_leap = (year % 4 == 0) & (year % 100 != 0) | (year % 400 == 0)
    good = (month >= 1) & (month <= 12)
    month = np.where(good, month, 1)
    last = UNTIL_MONTH[month + 1] - UNTIL_MONTH[month] + ((month == 2) & is_leap)
    good &= (day >= 1) & (day <= last)
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719_162
    return days + UNTIL_MONTH[month] + ((month > 2) & is_leap) + day - 1, good


def _time_of_day(
    data: ReadBytes, begins: Words, ends: Words, zoned: bool
) -> tuple[Words, Flags] | None:
    """Microseconds since midnight in UTC, and which of them are; None as above."""
    size = SECOND_CHARACTERS - DAY_CHARACTERS - 1
    if (ends - begins).min(initial=size) < size:
        return None
    if (found := _numbers(data, begins, "0 :0 :0 ")) is None:
        return None
    hours, minutes, seconds = found
    good = (hours <= 23) & (minutes <= 59) & (seconds <= 59)
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    at = begins + size
    waiting = np.flatnonzero(at < ends)
    waiting = waiting[data[at[waiting]] == POINT]
    unit = 100_000
    for _ in range(FRACTION_DIGITS_MAX + 1):
        at[waiting] += 1
        waiting = waiting[at[waiting] < ends[waiting]]
        digits = data[at[waiting]] - ZERO
        micros[waiting] += np.where(digits <= 9, digits, 0) * np.int64(unit)
        waiting, unit = waiting[digits <= 9], unit // 10
    if waiting.size:
        return None
    rest = np.flatnonzero(at < ends)
    if not zoned:
        last = data[ends[rest] - 1]
        if not ((last - ZERO <= 9) | (last == ord("Z"))).all():
            return None  # blanks at the end are no zone
        good[rest] = False
        return micros, good
    rest = rest[(ends[rest] - at[rest] != 1) | (data[at[rest]] != ord("Z"))]
    if (ends[rest] - at[rest] != len("+01:00")).any():
        return None
    signs = data[at[rest]]
    if not np.isin(signs, np.frombuffer(b"+-", np.uint8)).all():
        return None
    if (found := _numbers(data, at[rest], " 0 :0 ")) is None:
        return None
    zone_hours, zone_minutes = found
    zone = zone_hours * 60 + zone_minutes
    good[rest] &= (zone_minutes <= 59) & (zone <= ZONE_MINUTES_MAX)
    micros[rest] -= np.where(signs == MINUS, -zone, zone) * 60_000_000
    return micros, good


def float_texts(
    data: ReadBytes, begins: Words, ends: Words
) -> tuple[Bytes, RowNumbers, Flags] | Any:
    """Numbers of digits, with a point or none and a minus or none, are plain as they are."""
    written, offsets = gather(data, begins, ends)
    is_sign, is_point = written == MINUS, written == POINT
    is_first = np.zeros(written.size + 1, np.bool_)
    is_first[offsets[:-1]] = True
    is_digit = written - ZERO <= 9
    if not (is_digit | is_point | is_sign & is_first[:-1]).all():
        return NotImplemented
    points, digits = (
        np.diff(np.concatenate([[0], np.cumsum(which)])[offsets]) for which in (is_point, is_digit)
    )
    there = begins < ends
    if (points[there] > 1).any() or (digits[there] < 1).any():
        return NotImplemented
    return written, offsets, there


Loops = MappingProxyType[str, Callable[..., Any]]

LINES: Loops = MappingProxyType(
    {
        stand_in.__name__: stand_in
        for stand_in in (find_lines, pack_lines, judge_json, blank_lines, cut_csv)
    }
)
TEXTS: Loops = MappingProxyType(
    {
        stand_in.__name__: stand_in
        for stand_in in (gather, integers, booleans, dates, timestamps, float_texts)
    }
)
