"""Finding, judging, cutting and packing the lines of a block of bytes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import (
    Bytes,
    FlagRows,
    Flags,
    ReadBytes,
    Rows,
    Words,
    inlined,
    unlocked_loop,
)

NEWLINE, RETURN, SPACE, TAB = (np.uint8(ord(char)) for char in "\n\r \t")
QUOTE, BACKSLASH = np.uint8(ord('"')), np.uint8(ord("\\"))
BRACE_OPEN, BRACE_CLOSE, BRACKET_OPEN, BRACKET_CLOSE = (np.uint8(ord(char)) for char in "{}[]")

# What a look at a line's bytes says about it.
PLAIN, BLANK, NOT_UTF8, NOT_AN_OBJECT, UNFINISHED, TRAILING, TOO_DEEP = range(7)
UNQUOTED, LOOSE_QUOTE, FEW_FIELDS, MANY_FIELDS = range(7, 11)

JSON_DEPTH_MAX = 1_000  # Spark's parser has the same bound


@unlocked_loop
def find_lines(data: ReadBytes, lines_max: int, complete: bool) -> tuple[Words, Words, int]:
    """Return where lines begin and end (without their line ends), and how many bytes they use.

    A line ends with a newline, a return, or both. `complete`: nothing follows the data, so that
    what stands behind the last line end is a line.
    """
    starts = np.empty(min(lines_max, data.size), np.int64)
    ends = np.empty(starts.size, np.int64)
    lines = begin = index = 0
    while index < data.size and lines < lines_max:
        if data[index] == NEWLINE or data[index] == RETURN:
            end = index
            if data[index] == RETURN:
                if index + 1 == data.size and not complete:
                    break  # a newline may follow that belongs to this line's end
                if index + 1 < data.size and data[index + 1] == NEWLINE:
                    index += 1
            starts[lines] = begin
            ends[lines] = end
            lines += 1
            begin = index + 1
        index += 1
    if complete and lines < lines_max and begin < data.size:
        starts[lines] = begin
        ends[lines] = data.size
        lines += 1
        begin = data.size
    return starts[:lines], ends[:lines], begin


@unlocked_loop
def pack_lines(data: ReadBytes, starts: Words, ends: Words) -> Bytes:
    """Copy lines into one run of bytes, each followed by a newline."""
    packed = np.empty((ends - starts).sum() + starts.size, np.uint8)
    at = 0
    for line in range(starts.size):
        for index in range(starts[line], ends[line]):
            packed[at] = data[index]
            at += 1
        packed[at] = NEWLINE
        at += 1
    return packed


@unlocked_loop
def judge_json(data: ReadBytes, starts: Words, ends: Words) -> Bytes:
    """Say of each line whether it is one object by its brackets, which a parser may rely on."""
    verdicts = np.zeros(starts.size, np.uint8)
    for line in range(starts.size):
        index, end = starts[line], ends[line]
        while index < end and _is_white(data[index]):
            index += 1
        if index == end:
            verdicts[line] = BLANK
        elif data[index] != BRACE_OPEN:
            verdicts[line] = NOT_AN_OBJECT
        else:
            index = _object_end(data, index, end)
            if index < 0:
                verdicts[line] = TOO_DEEP if index == -2 else UNFINISHED
            else:
                while index < end and _is_white(data[index]):
                    index += 1
                verdicts[line] = TRAILING if index < end else PLAIN
    return verdicts


@unlocked_loop
def judge_utf8(data: ReadBytes, starts: Words, ends: Words, verdicts: Bytes) -> None:
    """Set the verdict of each line that is not UTF-8."""
    for line in range(starts.size):
        if not _is_utf8(data, starts[line], ends[line]):
            verdicts[line] = NOT_UTF8


@unlocked_loop
def blank_lines(data: ReadBytes, starts: Words, ends: Words) -> Flags:
    """Say of each line whether it has nothing but spaces and control characters."""
    blank = np.ones(starts.size, np.bool_)
    for line in range(starts.size):
        for index in range(starts[line], ends[line]):
            if data[index] > SPACE:
                blank[line] = False
                break
    return blank


@unlocked_loop
def cut_csv(
    data: ReadBytes, starts: Words, ends: Words, width: int, delimiter: int, escape: int
) -> tuple[Rows, Rows, FlagRows, Bytes]:
    """Cut lines into fields: where each one's value stands, whether it holds escapes, verdicts.

    A field is quoted if it begins with a quote. What a quote inside it means is taken only where it
    is beyond doubt: the escape before a quote or before itself, and the quote that ends the field.
    """
    lines = starts.size
    begins = np.zeros((width, lines), np.int64)
    finishes = np.zeros((width, lines), np.int64)
    escaped = np.zeros((width, lines), np.bool_)
    verdicts = np.zeros(lines, np.uint8)
    for line in range(lines):
        index, end = starts[line], ends[line]
        field = 0
        while True:
            has_escapes = False
            if index < end and data[index] == QUOTE:
                begin = index + 1
                finish, index, has_escapes = _quoted_end(data, begin, end, delimiter, escape)
                if finish < 0:
                    verdicts[line] = UNQUOTED if finish == -1 else LOOSE_QUOTE
                    break
            else:
                begin = index
                while index < end and data[index] != delimiter:
                    index += 1
                finish = index
            if field < width:
                begins[field, line] = begin
                finishes[field, line] = finish
                escaped[field, line] = has_escapes
            field += 1
            if index >= end:
                break
            index += 1  # the delimiter; what follows is a field, if only an empty one
        if verdicts[line] == PLAIN and field != width:
            verdicts[line] = FEW_FIELDS if field < width else MANY_FIELDS
    return begins, finishes, escaped, verdicts


@unlocked_loop
def unescape(
    data: ReadBytes, begins: Words, finishes: Words, escaped: Flags, escape: int
) -> tuple[Bytes, Words, Words]:
    """Copy texts, those that are `escaped` without what stands before a quote or itself."""
    size = 0
    for row in range(begins.size):
        size += finishes[row] - begins[row]
    copied = np.empty(size, np.uint8)
    new_begins = np.empty(begins.size, np.int64)
    new_finishes = np.empty(begins.size, np.int64)
    at = 0
    for row in range(begins.size):
        new_begins[row] = at
        index = begins[row]
        while index < finishes[row]:
            if escaped[row] and data[index] == escape and index + 1 < finishes[row]:
                following = data[index + 1]
                if following == QUOTE or following == escape:  # noqa: SIM109, PLR1714 (two types)
                    index += 1
            copied[at] = data[index]
            at += 1
            index += 1
        new_finishes[row] = at
    return copied[:at], new_begins, new_finishes


@inlined
def _is_utf8(data: Any, begin: Any, end: Any) -> Any:
    """Say whether bytes are UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF."""
    index = begin
    while index < end:
        first = data[index]
        if first < 0x80:
            index += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if index + more >= end:
            return False
        if not low <= data[index + 1] <= high:
            return False
        for place in range(2, more + 1):
            if not 0x80 <= data[index + place] <= 0xBF:
                return False
        index += more + 1
    return True


@inlined
def _is_white(char: Any) -> Any:
    return char in (SPACE, TAB, RETURN)


@inlined
def _quoted_end(data: Any, index: Any, end: Any, delimiter: Any, escape: Any) -> Any:
    """Return where a quoted value ends, where its field ends, and whether escapes are in it.

    -1: it is not closed. -2: a quote that neither is escaped nor ends the field.
    """
    has_escapes = False
    while index < end:
        char = data[index]
        if char == escape and index + 1 < end:
            following = data[index + 1]
            if following == QUOTE or (following == escape and escape != QUOTE):
                has_escapes = True
                index += 2
                continue
        if char == QUOTE:
            behind = index + 1
            while behind < end and data[behind] <= SPACE and data[behind] != delimiter:
                behind += 1
            if behind < end and data[behind] != delimiter:
                return -2, behind, has_escapes
            return index, behind, has_escapes
        index += 1
    return -1, index, has_escapes


@inlined
def _object_end(data: Any, index: Any, end: Any) -> Any:
    """Return the index behind the bracket that closes the one at `index`.

    -1: there is none. -2: brackets inside it go too deep.
    """
    depth = 0
    in_text = False
    while index < end:
        char = data[index]
        if in_text:
            if char == BACKSLASH:
                index += 1
            elif char == QUOTE:
                in_text = False
        elif char == QUOTE:
            in_text = True
        elif char in (BRACE_OPEN, BRACKET_OPEN):
            depth += 1
            if depth > JSON_DEPTH_MAX:
                return -2
        elif char in (BRACE_CLOSE, BRACKET_CLOSE):
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return -1
