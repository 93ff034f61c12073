"""Finding, judging and packing the lines of a block of bytes, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

NEWLINE, RETURN, SPACE, TAB = (np.uint8(ord(char)) for char in "\n\r \t")
QUOTE, BACKSLASH = np.uint8(ord('"')), np.uint8(ord("\\"))
BRACE_OPEN, BRACE_CLOSE, BRACKET_OPEN, BRACKET_CLOSE = (np.uint8(ord(char)) for char in "{}[]")

# What a look at a line's bytes says about it.
PLAIN, BLANK, ODD, NOT_AN_OBJECT, UNFINISHED, TRAILING, UNQUOTED = range(7)


@njit(cache=True)
def find_lines(data, lines_max, complete):  # type: ignore[no-untyped-def]
    """Return where lines begin and end (without their line ends), and how many bytes they use.

    `complete`: nothing follows the data, so that what stands behind the last line end is a line.
    """
    starts = np.empty(min(lines_max, data.size), np.int64)
    ends = np.empty(starts.size, np.int64)
    lines = begin = 0
    for index in range(data.size):
        if lines == lines_max:
            break
        if data[index] == NEWLINE:
            starts[lines] = begin
            ends[lines] = index - 1 if index > begin and data[index - 1] == RETURN else index
            lines += 1
            begin = index + 1
    if complete and lines < lines_max and begin < data.size:
        starts[lines] = begin
        ends[lines] = data.size
        lines += 1
        begin = data.size
    return starts[:lines], ends[:lines], begin


@njit(cache=True)
def pack_lines(data, starts, ends, picks, separate):  # type: ignore[no-untyped-def]
    """Copy some lines into one run of bytes, each followed by a newline if `separate`."""
    size = 0
    for pick in picks:
        size += ends[pick] - starts[pick] + separate
    packed = np.empty(size, np.uint8)
    offsets = np.empty(picks.size + 1, np.int32)
    offsets[0] = at = 0
    for row in range(picks.size):
        for index in range(starts[picks[row]], ends[picks[row]]):
            packed[at] = data[index]
            at += 1
        if separate:
            packed[at] = NEWLINE
            at += 1
        offsets[row + 1] = at
    return packed, offsets


@njit(cache=True)
def judge_json(data, starts, ends):  # type: ignore[no-untyped-def]
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
            while 0 <= index < end and _is_white(data[index]):
                index += 1
            verdicts[line] = UNFINISHED if index < 0 else TRAILING if index < end else PLAIN
    return verdicts


@njit(cache=True)
def judge_csv(data, starts, ends, delimiter):  # type: ignore[no-untyped-def]
    """Say of each line whether it is empty, leaves a quote open, or is odd.

    A parser would let an open quote run on over the line end, and may end a row at a return.
    """
    verdicts = np.zeros(starts.size, np.uint8)
    for line in range(starts.size):
        if starts[line] == ends[line]:
            verdicts[line] = BLANK
        at_field_start, in_quotes = True, False
        index = starts[line]
        while index < ends[line]:
            char = data[index]
            if char == RETURN:
                verdicts[line] = ODD
            if in_quotes:
                if char == QUOTE:
                    # Two in a row are one inside the value.
                    if index + 1 < ends[line] and data[index + 1] == QUOTE:
                        index += 1
                    else:
                        in_quotes = False
            else:
                in_quotes = at_field_start and char == QUOTE
                at_field_start = char == delimiter
            index += 1
        if in_quotes:
            verdicts[line] = UNQUOTED
    return verdicts


@njit(cache=True)
def _is_white(char):  # type: ignore[no-untyped-def]
    return char in (SPACE, TAB, RETURN)


@njit(cache=True)
def _object_end(data, index, end):  # type: ignore[no-untyped-def]
    """Return the index behind the bracket that closes the one at `index`, or -1."""
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
        elif char in (BRACE_CLOSE, BRACKET_CLOSE):
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return -1
