"""Texts to values by Spark's rules, compiled.

Every function takes a run of bytes and the places of the texts in it, and returns values and which
of them are one. Where Spark's rule leads to a value that is not the same on every day or machine,
or to a zone by its name, the text is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import Bytes, Flags, ReadBytes, RowNumbers, Words, inlined, unlocked_loop

MINUS, PLUS, POINT, COMMA, COLON, SPACE = (np.uint8(ord(char)) for char in "-+.,: ")
ZERO, NINE, DELETE = np.uint8(ord("0")), np.uint8(ord("9")), np.uint8(0x7F)

DAY_US = 86_400_000_000
ZONE_MINUTES_MAX = 18 * 60
DATE_YEAR_DIGITS_MAX, TIME_YEAR_DIGITS_MAX = 7, 6
EXPONENT_MAX = 100_000
IS_NAN, IS_INFINITE = 1, 2
NAN, INFINITY = b"nan", b"inf"  # as Arrow reads them
UNTIL_MONTH = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365])


@unlocked_loop
def integers(
    data: ReadBytes, begins: Words, ends: Words, low: int, high: int
) -> tuple[Words, Flags]:
    """A sign or none, and digits."""
    values = np.zeros(begins.size, np.int64)
    fits = np.zeros(begins.size, np.bool_)
    for row in range(begins.size):
        index, end = begins[row], ends[row]
        negative = index < end and data[index] == MINUS
        if index < end and (negative or data[index] == PLUS):
            index += 1
        good = index < end
        value = np.int64(0)  # kept negative: there is one more number on that side
        while index < end and good:
            digit = np.int64(data[index]) - 48
            good = 0 <= digit <= 9 and value >= (low + digit) // 10 - 1
            if good:
                following = value * 10 - digit
                good = following <= value and following >= low
                value = following
            index += 1
        if good and not negative:
            good = value >= -high
            value = -value
        values[row] = value
        fits[row] = good and low <= value <= high
    return values, fits


@unlocked_loop
def booleans(data: ReadBytes, begins: Words, ends: Words) -> tuple[Flags, Flags]:
    """`true` or `false`, in whatever case."""
    values = np.zeros(begins.size, np.bool_)
    fits = np.zeros(begins.size, np.bool_)
    for row in range(begins.size):
        if _is_word(data, begins[row], ends[row], b"true"):
            values[row] = fits[row] = True
        else:
            fits[row] = _is_word(data, begins[row], ends[row], b"false")
    return values, fits


@unlocked_loop
def dates(data: ReadBytes, begins: Words, ends: Words) -> tuple[RowNumbers, Flags]:
    """`[+-]year[-month[-day]]`; behind a day, a space or `T` and anything."""
    days = np.zeros(begins.size, np.int32)
    fits = np.zeros(begins.size, np.bool_)
    for row in range(begins.size):
        index, end = _trimmed(data, begins[row], ends[row])
        year, month, day, index = _date(data, index, end, DATE_YEAR_DIGITS_MAX)
        if index >= 0:
            # Behind year or month alone nothing may follow, which _date has seen to.
            days[row] = _days(year, month, day)
            fits[row] = True
    return days, fits


@unlocked_loop
def timestamps(data: ReadBytes, begins: Words, ends: Words, zoned: bool) -> tuple[Words, Flags]:
    """A date, and perhaps a time of day and, if `zoned`, a zone: Z, UTC, GMT or a distance."""
    micros = np.zeros(begins.size, np.int64)
    fits = np.zeros(begins.size, np.bool_)
    for row in range(begins.size):
        index, end = _trimmed(data, begins[row], ends[row])
        year, month, day, index = _date(data, index, end, TIME_YEAR_DIGITS_MAX)
        if index < 0:
            continue
        within, zone_minutes = 0, 0
        if index < end:
            within, zone_minutes, index = _time_of_day(data, index + 1, end, zoned)
            if index < 0:
                continue
        days = _days(year, month, day)
        if -106_751_990 < days < 106_751_990:  # so that no sum below leaves 64 bits
            micros[row] = days * DAY_US + within - zone_minutes * 60_000_000
            fits[row] = True
    return micros, fits


@unlocked_loop
def float_texts(data: ReadBytes, begins: Words, ends: Words) -> tuple[Bytes, RowNumbers, Flags]:
    """Rewrite numbers of Java's grammar into the plain one that Arrow reads."""
    offsets = np.zeros(begins.size + 1, np.int32)
    fits = np.zeros(begins.size, np.bool_)
    size = 0
    for row in range(begins.size):
        size += max(ends[row] - begins[row], 4)
    written = np.empty(size, np.uint8)
    at = 0
    for row in range(begins.size):
        index, end = begins[row], ends[row]
        while index < end and data[index] <= SPACE:
            index += 1
        while index < end and data[end - 1] <= SPACE:
            end -= 1
        negative = index < end and data[index] == MINUS
        if index < end and (negative or data[index] == PLUS):
            index += 1
        special = _special(data, begins[row], ends[row], index, end)
        if special:
            fits[row] = True
            if negative:
                written[at] = MINUS
                at += 1
            for place in range(3):
                written[at] = NAN[place] if special == IS_NAN else INFINITY[place]
                at += 1
        else:
            if index < end and data[end - 1] in (68, 70, 100, 102):  # D F d f
                end -= 1
            if _is_number(data, index, end):
                fits[row] = True
                if negative:
                    written[at] = MINUS
                    at += 1
                for place in range(index, end):
                    written[at] = data[place]
                    at += 1
        if not fits[row]:
            written[at] = ZERO
            at += 1
        offsets[row + 1] = at
    return written[:at], offsets, fits


@unlocked_loop
def decimal_texts(
    data: ReadBytes, begins: Words, ends: Words, precision: int, scale: int
) -> tuple[Bytes, RowNumbers, Flags]:
    """Rewrite numbers with exactly `scale` digits behind the point, rounded half up."""
    offsets = np.zeros(begins.size + 1, np.int32)
    fits = np.zeros(begins.size, np.bool_)
    written = np.empty(begins.size * (precision + 3) + 64, np.uint8)
    digits = np.empty(precision + 2, np.uint8)
    at = 0
    for row in range(begins.size):
        index, end = begins[row], ends[row]
        negative = index < end and data[index] == MINUS
        if index < end and (negative or data[index] == PLUS):
            index += 1
        good, point, exponent = _decimal_parts(data, index, end)
        count = 0
        if good:
            good, count = _unscaled(data, index, end, point + exponent + scale, precision, digits)
        begin = at
        if good:
            if negative:
                written[at] = MINUS
                at += 1
            for place in range(max(count, scale + 1)):
                left = max(count, scale + 1) - place  # digits still to be written
                if left == scale:
                    written[at] = POINT
                    at += 1
                skipped = max(count, scale + 1) - count
                written[at] = ZERO if place < skipped else ZERO + digits[place - skipped]
                at += 1
        else:
            at = begin
            written[at] = ZERO
            at += 1
        fits[row] = good
        offsets[row + 1] = at
    return written[:at], offsets, fits


@unlocked_loop
def base64_bytes(data: ReadBytes, begins: Words, ends: Words) -> tuple[Bytes, RowNumbers, Flags]:
    """Decode base64 with its padding."""
    offsets = np.zeros(begins.size + 1, np.int32)
    fits = np.zeros(begins.size, np.bool_)
    size = 0
    for row in range(begins.size):
        size += (ends[row] - begins[row]) // 4 * 3 + 3
    decoded = np.empty(size, np.uint8)
    at = 0
    for row in range(begins.size):
        begin, end = begins[row], ends[row]
        good = (end - begin) % 4 == 0
        padding = 0
        while padding < 2 and end - padding > begin and data[end - padding - 1] == 61:  # =
            padding += 1
        group, first = 0, at
        for index in range(begin, end - padding):
            code = _base64_code(data[index])
            if code < 0:
                good = False
                break
            group = group << 6 | code
            if (index - begin) % 4 == 3:
                for shift in (16, 8, 0):
                    decoded[at] = group >> shift & 255
                    at += 1
                group = 0
        if good and padding == 1:
            decoded[at] = group >> 10 & 255
            decoded[at + 1] = group >> 2 & 255
            at += 2
        elif good and padding == 2:
            decoded[at] = group >> 4 & 255
            at += 1
        if not good:
            at = first
        fits[row] = good
        offsets[row + 1] = at
    return decoded[:at], offsets, fits


@unlocked_loop
def gather(data: ReadBytes, begins: Words, ends: Words) -> tuple[Bytes, RowNumbers]:
    """Copy texts into one run of bytes, with Arrow's offsets."""
    offsets = np.zeros(begins.size + 1, np.int32)
    size = 0
    for row in range(begins.size):
        size += ends[row] - begins[row]
        offsets[row + 1] = size
    copied = np.empty(size, np.uint8)
    at = 0
    for row in range(begins.size):
        for index in range(begins[row], ends[row]):
            copied[at] = data[index]
            at += 1
    return copied, offsets


@inlined
def _base64_code(char: Any) -> Any:
    if 65 <= char <= 90:  # A to Z
        return np.int64(char) - 65
    if 97 <= char <= 122:  # a to z
        return np.int64(char) - 71
    if ZERO <= char <= NINE:
        return np.int64(char) + 4
    return 62 if char == PLUS else 63 if char == 47 else -1  # /


@inlined
def _special(data: Any, begin: Any, end: Any, number_begin: Any, number_end: Any) -> Any:
    """Say whether a text is a number that has no digits, and which."""
    if _is_same(data, number_begin, number_end, b"NaN"):
        return IS_NAN
    if _is_same(data, number_begin, number_end, b"Infinity"):
        return IS_INFINITE
    # These are Spark's own words, for which no space and no other sign is left out.
    if _is_same(data, begin, end, b"Inf") or _is_same(data, begin, end, b"-Inf"):
        return IS_INFINITE
    return 0


@inlined
def _is_same(data: Any, begin: Any, end: Any, word: Any) -> Any:
    if end - begin != len(word):
        return False
    for place in range(len(word)):  # noqa: SIM110 (a generator is not compiled)
        if data[begin + place] != word[place]:
            return False
    return True


@inlined
def _is_word(data: Any, begin: Any, end: Any, word: Any) -> Any:
    if end - begin != len(word):
        return False
    for place in range(len(word)):
        char = data[begin + place]
        if char != word[place] and char != word[place] - 32:
            return False
    return True


@inlined
def _trimmed(data: Any, begin: Any, end: Any) -> Any:
    """Leave out spaces and control characters at both ends."""
    while begin < end and (data[begin] <= SPACE or data[begin] == DELETE):
        begin += 1
    while begin < end and (data[end - 1] <= SPACE or data[end - 1] == DELETE):
        end -= 1
    return begin, end


@inlined
def _number(data: Any, index: Any, end: Any, digits_max: Any) -> Any:
    """Return a number, how many digits it has (one too many if more than may be), and its end."""
    return _digits(data, index, end, digits_max + 1)


@inlined
def _digits(data: Any, index: Any, end: Any, digits_max: Any) -> Any:
    value = digits = 0
    while index < end and ZERO <= data[index] <= NINE and digits < digits_max:
        value = value * 10 + int(data[index]) - 48
        digits += 1
        index += 1
    return value, digits, index


@inlined
def _date(data: Any, index: Any, end: Any, year_digits_max: Any) -> Any:
    """Return year, month, day and the index behind; -1 if there is no date.

    What may stand behind is nothing, or, behind a day, a space or a T.
    """
    sign = 1
    if index < end and (data[index] == MINUS or data[index] == PLUS):
        sign = -1 if data[index] == MINUS else 1
        index += 1
    year, digits, index = _number(data, index, end, year_digits_max)
    if not 4 <= digits <= year_digits_max:
        return 0, 0, 0, -1
    year *= sign
    month = day = 1
    for part in range(2):
        if index == end:
            return year, month, day, index
        if data[index] != MINUS:
            return 0, 0, 0, -1
        value, digits, index = _number(data, index + 1, end, 2)
        if not 1 <= digits <= 2:
            return 0, 0, 0, -1
        if part == 0:
            month = value
            if not 1 <= month <= 12:
                return 0, 0, 0, -1
        else:
            day = value
    last = UNTIL_MONTH[month + 1] - UNTIL_MONTH[month] + (month == 2 and _is_leap(year))
    if not 1 <= day <= last:
        return 0, 0, 0, -1
    if index < end and data[index] != SPACE and data[index] != 84:  # T
        return 0, 0, 0, -1
    return year, month, day, index


@inlined
def _time_of_day(data: Any, index: Any, end: Any, zoned: Any) -> Any:
    """Return microseconds, minutes east of UTC and the index behind; -1 if it is no time."""
    within = 0
    for part in range(3):
        value, digits, index = _number(data, index, end, 2)
        if not 1 <= digits <= 2 or value > (23 if part == 0 else 59):
            return 0, 0, -1
        within = within * 60 + value
        if part < 2:
            if index == end:
                within *= 60 if part == 1 else 3600
                return within * 1_000_000, 0, index
            if data[index] != COLON:
                return 0, 0, -1
            index += 1
    within *= 1_000_000
    if index < end and data[index] == POINT:
        index += 1
        unit = 100_000
        while index < end and ZERO <= data[index] <= NINE:
            within += (int(data[index]) - 48) * unit
            unit //= 10
            index += 1
    if index == end:
        return within, 0, index
    minutes, index = _zone(data, index, end)
    return within, minutes, index if zoned else -1


@inlined
def _zone(data: Any, index: Any, end: Any) -> Any:
    """Return minutes east of UTC and the index behind; -1 if it is none of the zones known here."""
    while index < end and data[index] <= SPACE:
        index += 1
    if _is_same(data, index, end, b"Z") or _is_same(data, index, end, b"UTC"):
        return 0, end
    if _is_same(data, index, end, b"GMT"):
        return 0, end
    if index == end or (data[index] != MINUS and data[index] != PLUS):
        return 0, -1
    sign = -1 if data[index] == MINUS else 1
    hours, hour_digits, behind = _digits(data, index + 1, end, 2)
    minutes = 0
    if behind < end:
        if data[behind] == COLON:
            behind += 1
        elif hour_digits != 2:
            return 0, -1
        minutes, minute_digits, behind = _number(data, behind, end, 2)
        if minute_digits != 2 or behind != end:
            return 0, -1
    if not 1 <= hour_digits <= 2 or minutes > 59 or hours * 60 + minutes > ZONE_MINUTES_MAX:
        return 0, -1
    return sign * (hours * 60 + minutes), end


@inlined
def _is_leap(year: Any) -> Any:
    return (year % 4 == 0 and year % 100 != 0) or year % 400 == 0


@inlined
def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01, in the calendar of today carried back."""
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719_162
    return days + UNTIL_MONTH[month] + (month > 2 and _is_leap(year)) + day - 1


@inlined
def _is_number(data: Any, index: Any, end: Any) -> Any:
    """Digits with at most one point, and an exponent or none."""
    digits = points = 0
    while index < end and (data[index] == POINT or ZERO <= data[index] <= NINE):
        points += data[index] == POINT
        digits += data[index] != POINT
        index += 1
    if not digits or points > 1:
        return False
    return index == end or _exponent_end(data, index, end)[1] == end


@inlined
def _exponent_end(data: Any, index: Any, end: Any) -> Any:
    """Return an exponent and the index behind it, -1 if there is none."""
    if data[index] not in (69, 101):  # E e
        return 0, -1
    index += 1
    negative = index < end and data[index] == MINUS
    if index < end and (negative or data[index] == PLUS):
        index += 1
    value = digits = 0
    while index < end and ZERO <= data[index] <= NINE:
        value = min(value * 10 + int(data[index]) - 48, EXPONENT_MAX)
        digits += 1
        index += 1
    return (-value if negative else value), index if digits else -1


@inlined
def _decimal_parts(data: Any, index: Any, end: Any) -> Any:
    """Return whether it is a number, how many digits precede its point, and its exponent."""
    before = digits = points = 0
    while index < end and (data[index] in (POINT, COMMA) or ZERO <= data[index] <= NINE):
        if data[index] == POINT:
            points += 1
        elif data[index] != COMMA:  # thousands: Spark leaves them out
            digits += 1
            before += points == 0
        index += 1
    if not digits or points > 1:
        return False, 0, 0
    if index == end:
        return True, before, 0
    exponent, behind = _exponent_end(data, index, end)
    return behind == end and abs(exponent) < EXPONENT_MAX, before, exponent


@inlined
def _unscaled(data: Any, index: Any, end: Any, keep: Any, precision: Any, digits: Any) -> Any:
    """Put the digits of the rounded number into `digits`; return whether they fit, how many.

    `keep`: how many of the number's digits, leading zeros included, stand before the rounding.
    """
    count = seen = 0
    round_up = False
    while index < end:
        char = data[index]
        index += 1
        if char in (POINT, COMMA):
            continue
        if char > NINE:
            break
        if seen == keep:
            round_up = char >= 53  # 5
            break
        if seen > keep:
            break
        seen += 1
        if count or char != ZERO:
            if count == precision:
                return False, 0
            digits[count] = char - ZERO
            count += 1
    while count and seen < keep:
        if count == precision:
            return False, 0
        digits[count] = 0
        count += 1
        seen += 1
    if round_up:
        place = count - 1
        while place >= 0 and digits[place] == 9:
            digits[place] = 0
            place -= 1
        if place >= 0:
            digits[place] += 1
        else:
            for back in range(count, 0, -1):
                digits[back] = digits[back - 1]
            digits[0] = 1
            count += 1
            if count > precision:
                return False, 0
    return True, count
