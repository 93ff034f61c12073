"""Texts searched for another text on each row: compiled loops over the bytes of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, text_column, texts_of
from penstock.loops import Bytes, Flags, ReadBytes, ReadFlags, Words, inlined, loop


@inlined
def _place(text: Any, at: Any, end: Any, parts: Any, part: Any, part_end: Any) -> Any:
    """Where the part is next, or -1."""
    while at + part_end - part <= end:
        byte = np.int64(0)
        while part + byte < part_end and text[at + byte] == parts[part + byte]:
            byte += 1
        if part + byte == part_end:
            return at
        at += 1
    return np.int64(-1)


@loop
def _contain(
    offsets: Words, text: ReadBytes, part_offsets: Words, parts: ReadBytes, found: Flags
) -> None:
    for row in range(found.size):
        place = _place(
            text, offsets[row], offsets[row + 1], parts, part_offsets[row], part_offsets[row + 1]
        )
        found[row] = place >= 0


@loop
def _replace(
    offsets: Words,
    text: ReadBytes,
    part_offsets: Words,
    parts: ReadBytes,
    new_offsets: Words,
    news: ReadBytes,
    valid: ReadFlags,
    ends: Words,
    out: Bytes,
) -> None:
    """Write the changed texts one behind the other; without room only tell where they would end."""
    used = np.int64(0)
    for row in range(ends.size):
        at, end = offsets[row], offsets[row + 1]
        part, part_end = part_offsets[row], part_offsets[row + 1]
        while valid[row] and at < end:
            place = np.int64(-1)
            if part < part_end:
                place = _place(text, at, end, parts, part, part_end)
            stop = end if place < 0 else place
            for byte in range(at, stop if out.size else at):
                out[used + byte - at] = text[byte]
            used += stop - at
            at = end
            if place >= 0:
                new = new_offsets[row]
                size = new_offsets[row + 1] - new
                for byte in range(size if out.size else 0):
                    out[used + byte] = news[new + byte]
                used += size
                at = place + part_end - part
        ends[row] = used


def _bytes_of(array: pa.Array) -> tuple[Words, ReadBytes]:
    offsets, data = texts_of(array)
    return offsets.astype(np.int64), data


def each_contains(text: pa.Array, part: pa.Array) -> Mask:
    """Whether each text has its part; of no meaning where one of them is null."""
    found = np.zeros(len(text), np.bool_)
    _contain(*_bytes_of(text), *_bytes_of(part), found)
    return found


def each_replaced(text: pa.Array, part: pa.Array, new: pa.Array, valid: Mask) -> pa.Array:
    """Each text with its new one wherever its part is; an empty part is nowhere."""
    arguments = (*_bytes_of(text), *_bytes_of(part), *_bytes_of(new), valid)
    offsets = np.zeros(len(text) + 1, np.int64)
    _replace(*arguments, offsets[1:], np.empty(0, np.uint8))
    changed = np.empty(offsets[-1], np.uint8)
    _replace(*arguments, offsets[1:], changed)
    return text_column(pa.string(), offsets, changed, valid)
