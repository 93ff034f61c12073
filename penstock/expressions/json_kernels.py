"""One value found in each of many JSON texts and written as Spark writes it, compiled.

Only what is beyond doubt is done here: texts that are JSON by the letter, and values that are
written back as they stand, but for spaces and simple escapes. Every other text is left to others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import Bytes, ReadBytes, Rows, Words, inlined, unlocked_loop

FOUND, MISSING, ODD = range(3)
BY_NAME, BY_INDEX = range(2)  # what a step of a path goes by
TEXT_BYTES_MAX = 50_000  # no name is longer in Spark's parser
_DEPTH_MAX = 60
_NUMBER_BYTES_MAX = 1_000
# Numbers with a point that Java writes as they were read: of so many digits, so many before it.
_DIGITS_MAX, _WHOLE_DIGITS_MAX = 15, 7
_QUOTE, _BACKSLASH, _SLASH, _COMMA, _COLON, _MINUS, _POINT = (np.uint8(ord(c)) for c in '"\\/,:-.')
_BRACE_OPEN, _BRACE_CLOSE, _BRACKET_OPEN, _BRACKET_CLOSE = (np.uint8(ord(c)) for c in "{}[]")
_ZERO, _NINE, _SPACE, _F, _N, _U = (np.uint8(ord(c)) for c in "09 fnu")
_E_SMALL, _E_LARGE, _PLUS = (np.uint8(ord(c)) for c in "eE+")
_A_SMALL, _A_LARGE, _F_LARGE = (np.uint8(ord(c)) for c in "aAF")
_FOUR_BYTES = np.uint8(0xF0)
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))

_ASCII = 0x80
_IS_WHITE, _OPENS = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_IS_WHITE[[ord(char) for char in " \t\n\r"]] = True
_OPENS[[_BRACE_OPEN, _BRACKET_OPEN]] = True
_MEANT_BY = np.zeros(256, np.uint8)  # what a character means behind a backslash
for _escape, _meant in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True):
    _MEANT_BY[ord(_escape)] = ord(_meant)


@unlocked_loop
def find_values(
    data: ReadBytes, begins: Words, ends: Words, steps: Rows, names: ReadBytes, last: bool
) -> tuple[Bytes, Words, Bytes]:
    """Follow a path in each text: the values in a row, where each ends, and verdicts.

    A step is what it goes by, and an index or the begin and end of a name. Of values at the same
    path the first counts, or the last.
    """
    written = np.empty((ends - begins).sum(), np.uint8)
    finishes = np.zeros(begins.size, np.int64)
    verdicts = np.zeros(begins.size, np.uint8)
    is_object = np.zeros(_DEPTH_MAX + 1, np.bool_)
    is_on_path = np.zeros(_DEPTH_MAX + 1, np.bool_)
    places = np.zeros(_DEPTH_MAX + 1, np.int64)
    at = 0
    for row in range(begins.size):
        verdict, at = _find_value(
            data, begins[row], ends[row], steps, names, last, written, at,
            is_object, is_on_path, places,
        )  # fmt: skip
        verdicts[row] = verdict
        finishes[row] = at
    return written[:at], finishes, verdicts


@inlined
def _find_value(
    data: Any,
    index: Any,
    end: Any,
    steps: Any,
    names: Any,
    last: Any,
    written: Any,
    first: Any,
    is_object: Any,
    is_on_path: Any,
    places: Any,
) -> Any:
    if end - index > TEXT_BYTES_MAX:
        return ODD, first
    at = first
    depth, copied_from = 0, -1
    found = is_skipped = False
    is_match, by_name = True, False
    while True:
        # --- a value begins here ---
        while index < end and _IS_WHITE[data[index]]:
            index += 1
        if index >= end:
            return ODD, first
        char = data[index]
        is_target = is_match and depth == steps.shape[0] and not is_skipped
        is_copied = copied_from >= 0
        if is_target:
            if by_name and char == _N:
                is_target = False  # a member that is null counts as missing
            else:
                at = first
                found = True
                is_skipped = not last
        if _OPENS[char]:
            depth += 1
            if depth > _DEPTH_MAX:
                return ODD, first
            is_object[depth] = char == _BRACE_OPEN
            is_on_path[depth] = is_match and not is_target and depth <= steps.shape[0]
            places[depth] = -1
            if is_target:
                copied_from = depth
            if copied_from >= 0:
                written[at] = char
                at += 1
            index += 1
            is_empty = True
        else:
            is_empty = False
            if depth == 0 and char != _QUOTE:
                return ODD, first
            if char == _QUOTE:
                index, at = _string(data, index, end, written, at, is_target, is_copied, last)
            elif char == _MINUS or (_ZERO <= char <= _NINE):
                index, at = _number(data, index, end, written, at, is_target or is_copied)
            else:
                index, at = _word(data, index, end, written, at, is_target or is_copied)
            if index < 0:
                return ODD, first
            if depth == 0:
                break
        # --- what may stand behind it: the next value, or ends ---
        has_more = False
        while depth > 0:
            while index < end and _IS_WHITE[data[index]]:
                index += 1
            if index >= end:
                return ODD, first
            char = data[index]
            closing = _BRACE_CLOSE if is_object[depth] else _BRACKET_CLOSE
            if char == closing:
                index += 1
                if copied_from >= 0:
                    written[at] = char
                    at += 1
                    if depth == copied_from:
                        copied_from = -1
                depth -= 1
                is_empty = False
                continue
            if not is_empty:
                if char != _COMMA:
                    return ODD, first
                index += 1
                if copied_from >= 0:
                    written[at] = char
                    at += 1
            has_more = True
            break
        if not has_more:
            break
        # --- where the next value stands ---
        places[depth] += 1
        is_match = is_on_path[depth] and not is_skipped
        by_name = is_object[depth]
        if by_name:
            while index < end and _IS_WHITE[data[index]]:
                index += 1
            if index >= end or data[index] != _QUOTE:
                return ODD, first
            begin = index + 1
            index, at = _string(data, index, end, written, at, False, copied_from >= 0, last)
            if index < 0:
                return ODD, first
            if is_match:
                if _has_escape(data, begin, index - 1):
                    return ODD, first
                is_match = _is_name(data, begin, index - 1, steps, depth - 1, names)
            while index < end and _IS_WHITE[data[index]]:
                index += 1
            if index >= end or data[index] != _COLON:
                return ODD, first
            index += 1
            if copied_from >= 0:
                written[at] = _COLON
                at += 1
        elif is_match:
            is_match = steps[depth - 1, 0] == BY_INDEX and steps[depth - 1, 1] == places[depth]
    if not found:
        return MISSING, first
    return FOUND, at


@inlined
def _is_name(data: Any, begin: Any, end: Any, steps: Any, step: Any, names: Any) -> Any:
    if steps[step, 0] != BY_NAME or end - begin != steps[step, 2] - steps[step, 1]:
        return False
    for offset in range(end - begin):
        if data[begin + offset] != names[steps[step, 1] + offset]:
            return False
    return True


@inlined
def _has_escape(data: Any, begin: Any, end: Any) -> Any:
    found = False
    for index in range(begin, end):
        found |= data[index] == _BACKSLASH
    return found


@inlined
def _string(
    data: Any, index: Any, end: Any, written: Any, at: Any, raw: Any, copied: Any, last: Any
) -> Any:
    """Behind the string that begins here, -1 if it is odd; written plain if `raw`, or as JSON."""
    index += 1
    if copied:
        written[at] = _QUOTE
        at += 1
    while index < end:
        char = data[index]
        index += 1
        if char == _QUOTE:
            if copied:
                written[at] = _QUOTE
                at += 1
            return index, at
        if char < _SPACE or (copied and char >= _FOUR_BYTES):
            return -1, at
        if char == _BACKSLASH:
            if index >= end:
                return -1, at
            char = data[index]
            index += 1
            if char == _U:
                code = _code(data, index, end)
                index += 4
                is_half = 0xD800 <= code < 0xE000
                if code < 0 or (is_half and (raw or copied or last)):
                    return -1, at
                if copied and code < _ASCII:
                    return -1, at  # some of them are escaped again
                if raw or copied:
                    at = _write_character(code, written, at)
                continue
            meant = _MEANT_BY[char]
            if meant == 0:
                return -1, at
            if copied and char != _SLASH:
                written[at] = _BACKSLASH
                at += 1
            if raw:
                char = meant
        if raw or copied:
            written[at] = char
            at += 1
    return -1, at


@inlined
def _code(data: Any, index: Any, end: Any) -> Any:
    """The number of four hexadecimal digits, negative if there are not four."""
    if index + 4 > end:
        return np.int64(-1)
    code = np.int64(0)
    for place in range(index, index + 4):
        char = data[place]
        digit = np.int64(-1)
        if _ZERO <= char <= _NINE:
            digit = np.int64(char) - np.int64(_ZERO)
        elif _A_SMALL <= char <= _F:
            digit = np.int64(char) - np.int64(_A_SMALL) + 10
        elif _A_LARGE <= char <= _F_LARGE:
            digit = np.int64(char) - np.int64(_A_LARGE) + 10
        if digit < 0:
            return np.int64(-1)
        code = code * 16 + digit
    return code


@inlined
def _write_character(code: Any, written: Any, at: Any) -> Any:
    """In UTF-8; it takes less room than its escape."""
    if code < 0x80:
        written[at] = code
        return at + 1
    if code < 0x800:
        written[at] = 0xC0 | (code >> 6)
        written[at + 1] = 0x80 | (code & 0x3F)
        return at + 2
    written[at] = 0xE0 | (code >> 12)
    written[at + 1] = 0x80 | ((code >> 6) & 0x3F)
    written[at + 2] = 0x80 | (code & 0x3F)
    return at + 3


@inlined
def _number(data: Any, index: Any, end: Any, written: Any, at: Any, copied: Any) -> Any:
    """As `_string`. A number that is copied must be one that Java writes as it stands here."""
    begin = index
    if data[index] == _MINUS:
        index += 1
    whole = index
    while index < end and _ZERO <= data[index] <= _NINE:
        index += 1
    digits = index - whole
    if digits == 0 or (digits > 1 and data[whole] == _ZERO):
        return -1, at
    is_below_one = data[whole] == _ZERO
    fraction = 0
    if index < end and data[index] == _POINT:
        index += 1
        while index < end and _ZERO <= data[index] <= _NINE:
            index += 1
        fraction = index - whole - digits - 1
        if fraction == 0:
            return -1, at
    if copied and fraction == 0 and is_below_one and whole > begin:
        return -1, at
    if copied and fraction > 0:
        ends_in_zero = data[index - 1] == _ZERO and (fraction > 1 or is_below_one)
        begins_in_zero = is_below_one and data[whole + 2] == _ZERO
        is_long = digits > _WHOLE_DIGITS_MAX or digits + fraction > _DIGITS_MAX
        if ends_in_zero or begins_in_zero or is_long:
            return -1, at
    if index < end and (data[index] == _E_SMALL or data[index] == _E_LARGE):
        if copied:
            return -1, at
        index += 1
        if index < end and (data[index] == _MINUS or data[index] == _PLUS):
            index += 1
        power = index
        while index < end and _ZERO <= data[index] <= _NINE:
            index += 1
        if index == power:
            return -1, at
    if index - begin > _NUMBER_BYTES_MAX:
        return -1, at
    if copied:
        for place in range(begin, index):
            written[at] = data[place]
            at += 1
    return index, at


@inlined
def _word(data: Any, index: Any, end: Any, written: Any, at: Any, copied: Any) -> Any:
    word = _NULL
    if data[index] == _TRUE[0]:
        word = _TRUE
    elif data[index] == _FALSE[0]:
        word = _FALSE
    if end - index < word.size:
        return -1, at
    for offset in range(word.size):
        if data[index + offset] != word[offset]:
            return -1, at
        if copied:
            written[at] = word[offset]
            at += 1
    return index + word.size, at
