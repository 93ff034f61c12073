"""Strings as codes: each distinct one of a batch has a number, found in one pass over the bytes.

A coded column is Arrow's dictionary array. Texts that are split only to be grouped by their pieces
are coded as they are split: no list of pieces is made, and no piece copied that was seen before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import text_column, texts_of, validity_of
from penstock.loops import (
    Bytes,
    ReadBytes,
    ReadFlags,
    ReadOffsets,
    RowNumbers,
    Rows,
    allocating_loop,
    inlined,
    loop,
)

# What is known of a distinct piece: where it was first seen, and its first sixteen bytes. Of a
# piece at hand also its hash, the place of its code, and who may be its like.
START, SIZE, HEAD, NECK, COLUMNS = range(5)
HASH, PLACE, SEEN, BLOCK_COLUMNS = range(COLUMNS, COLUMNS + 4)

NO_SEPARATOR = -1
BLOCK_PIECES = 256
CACHED_ENTRIES = 2048  # more are worth looking ahead for
ENTRIES_FIRST = 1024
SLOTS_PER_ENTRY = 2

_HASH_SHIFT = 32
_CODE_MASK = (1 << 32) - 1


@inlined
def _eight_bytes(data: Any, at: Any) -> Any:
    """Eight bytes as a word. With an unsigned index the compiler makes one load of them."""
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(data[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@inlined
def _up_to_eight(data: Any, at: Any, size: Any) -> Any:
    """As many bytes as there are, eight at most, as a word."""
    eight = np.uint64(8)
    if at + eight <= np.uint64(data.size):
        word = _eight_bytes(data, at)
        if size < eight:
            beyond = eight * (eight - size)
            word = np.uint64(0) if size == 0 else word << beyond >> beyond
        return word
    word = np.uint64(0)
    for byte in range(min(size, eight)):
        word |= np.uint64(data[at + np.uint64(byte)]) << (eight * np.uint64(byte))
    return word


@inlined
def _mix(state: Any, word: Any) -> Any:
    state = (state ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return state ^ (state >> np.uint64(32))


@inlined
def _hash(data: Any, start: Any, size: Any, head: Any, neck: Any) -> Any:
    state = _mix(size, head)
    if size <= np.uint64(8):
        state *= np.uint64(0xBF58476D1CE4E5B9)
        return np.int64(state >> np.uint64(33))
    state = _mix(state, neck)
    at, left = start + np.uint64(8), size - np.uint64(8)
    while left > np.uint64(8):
        at += np.uint64(8)
        left -= np.uint64(8)
        state = _mix(state, _up_to_eight(data, at, left))
    state *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(state >> np.uint64(33))


@inlined
def _same_tail(data: Any, here: Any, there: Any, size: Any) -> Any:
    """Whether two pieces are alike behind their first sixteen bytes."""
    left = size
    here += np.uint64(8)
    there += np.uint64(8)
    while left > np.uint64(16):
        here += np.uint64(8)
        there += np.uint64(8)
        left -= np.uint64(8)
        rest = left - np.uint64(8)
        if _up_to_eight(data, here, rest) != _up_to_eight(data, there, rest):
            return False
    return True


@inlined
def _piece_end(data: Any, at: Any, end: Any, separators: Any) -> Any:
    """Where the piece that begins here ends: before a separator, or with its text."""
    ones = np.uint64(0x0101010101010101)
    while at < end and at + np.uint64(8) <= np.uint64(data.size):
        word = _eight_bytes(data, at) ^ separators
        found = ((word - ones) & ~word) >> np.uint64(7) & ones
        if found:
            # One in each byte below the lowest that is a separator, then their sum.
            before = ((found & (~found + np.uint64(1))) - np.uint64(1)) & ones
            return min(at + (before * ones >> np.uint64(56)), end)
        at += np.uint64(8)
    while at < end and data[at] != separators & np.uint64(255):
        at += np.uint64(1)
    return min(at, end)


@inlined
def _cut(
    offsets: Any, data: Any, valid: Any, is_split: Any, separators: Any, row: Any, at: Any,
    piece: Any, block: Any, ends: Any,
) -> Any:  # fmt: skip
    """The next pieces, a block of them at most.

    `at` is where the next piece of the row begins, or 0 if none of its pieces is done.
    """
    cut = 0
    while row < ends.size and cut < BLOCK_PIECES:
        end = np.uint64(offsets[row + 1])
        at = max(at, np.uint64(offsets[row]))
        is_over = not valid[row]
        if is_over and not is_split:
            piece += 1  # a null stays a row
        while not is_over and cut < BLOCK_PIECES:
            stop = _piece_end(data, at, end, separators) if is_split else end
            size = stop - at
            head, neck = _up_to_eight(data, at, size), np.uint64(0)
            if size > np.uint64(8):
                neck = _up_to_eight(data, at + np.uint64(8), size - np.uint64(8))
            block[cut, START] = np.int64(at)
            block[cut, SIZE] = np.int64(size)
            block[cut, HEAD] = np.int64(head)
            block[cut, NECK] = np.int64(neck)
            block[cut, HASH] = _hash(data, at, size, head, neck)
            block[cut, PLACE] = piece
            cut += 1
            piece += 1
            at = stop + np.uint64(1)
            is_over = stop == end
        if is_over:
            ends[row] = piece
            row += 1
            at = np.uint64(0)
    return row, at, piece, cut


@inlined
def _look_ahead(block: Any, cut: Any, slots: Any, entries: Any) -> Any:
    """Read what the pieces of a block will be compared with, one independent of the other."""
    mask = slots.size - 1
    for at in range(cut):
        block[at, SEEN] = slots[block[at, HASH] & mask] & _CODE_MASK
    touched = np.int64(0)
    for at in range(cut):
        touched ^= entries[block[at, SEEN], HEAD]
    block[0, SEEN] = touched  # used, so that the compiler does not leave it out


@inlined
def _code(data: Any, block: Any, cut: Any, slots: Any, entries: Any, count: Any, codes: Any) -> Any:
    """Code a block of pieces; return how many distinct ones there are by now."""
    mask = slots.size - 1
    for at in range(cut):
        size, head, neck = block[at, SIZE], block[at, HEAD], block[at, NECK]
        start = np.uint64(block[at, START])
        key_hash = block[at, HASH]
        slot = key_hash & mask
        code = np.int64(0)
        while slots[slot] != 0:
            if slots[slot] >> _HASH_SHIFT == key_hash:
                code = slots[slot] & _CODE_MASK
                if (
                    entries[code, HEAD] == head
                    and entries[code, NECK] == neck
                    and entries[code, SIZE] == size
                    and _same_tail(data, start, np.uint64(entries[code, START]), np.uint64(size))
                ):
                    break
                code = np.int64(0)
            slot = (slot + 1) & mask
        if code == 0:
            count += 1
            code = count
            slots[slot] = (key_hash << _HASH_SHIFT) | code
            for column in range(COLUMNS):
                entries[code, column] = block[at, column]
        codes[block[at, PLACE]] = code - 1
    return count


@inlined
def _move(entries: Any, count: Any, slots: Any, more_entries: Any, more: Any) -> Any:
    for code in range(count + 1):
        for column in range(COLUMNS):
            more_entries[code, column] = entries[code, column]
    mask = more.size - 1
    for entry in slots:
        if entry != 0:
            slot = (entry >> _HASH_SHIFT) & mask
            while more[slot] != 0:
                slot = (slot + 1) & mask
            more[slot] = entry


@allocating_loop
def _code_pieces(
    offsets: ReadOffsets,
    data: ReadBytes,
    valid: ReadFlags,
    separator: int,
    codes: RowNumbers,
    ends: RowNumbers,
) -> Rows:
    """Code the pieces of each text, or the whole text where the separator is no byte.

    Return what is known of the distinct ones behind a line with their number. `ends` gets how many
    pieces there are up to each row.
    """
    entries = np.zeros((ENTRIES_FIRST, COLUMNS), np.int64)
    slots = np.zeros(ENTRIES_FIRST * SLOTS_PER_ENTRY, np.int64)
    block = np.empty((BLOCK_PIECES, BLOCK_COLUMNS), np.int64)
    is_split = separator != NO_SEPARATOR
    separators = np.uint64(separator) * np.uint64(0x0101010101010101)
    row, at, piece, count = np.int64(0), np.uint64(0), np.int64(0), np.int64(0)
    while row < ends.size:
        row, at, piece, cut = _cut(
            offsets, data, valid, is_split, separators, row, at, piece, block, ends
        )
        if count + cut >= entries.shape[0]:
            more_entries = np.empty((entries.shape[0] * 2, COLUMNS), np.int64)
            more_slots = np.zeros(slots.size * 2, np.int64)
            _move(entries, count, slots, more_entries, more_slots)
            entries, slots = more_entries, more_slots
        if count > CACHED_ENTRIES:
            _look_ahead(block, cut, slots, entries)
        count = _code(data, block, cut, slots, entries, count, codes)
    entries[0, SIZE] = count
    return entries


@loop
def _gather(data: ReadBytes, entries: Rows, out: Bytes) -> None:
    """The distinct pieces, one behind the other."""
    used = 0
    for entry in range(entries.shape[0]):
        start = entries[entry, START]
        for byte in range(entries[entry, SIZE]):
            out[used + byte] = data[start + byte]
        used += entries[entry, SIZE]


def coded(texts: pa.Array) -> pa.DictionaryArray:
    """Strings or binary values as codes, numbered in the order in which they appear.

    Those that have codes already keep them.
    """
    if pa.types.is_dictionary(texts.type):
        return texts
    codes = np.zeros(len(texts), np.int32)
    dictionary = _distinct(texts, NO_SEPARATOR, codes, np.empty(len(texts), np.int32))
    valid = validity_of(texts)
    indices = pa.array(codes, mask=None if texts.null_count == 0 else ~valid)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def coded_pieces(texts: pa.Array, separator: int) -> pa.ListArray:
    """The pieces of each text between these bytes, coded; null where the text is."""
    at, data = texts_of(texts)
    separators = np.count_nonzero(data[at[0] : at[-1]] == separator)
    codes = np.empty(len(texts) + separators, np.int32)
    offsets = np.zeros(len(texts) + 1, np.int32)
    dictionary = _distinct(texts, separator, codes, offsets[1:])
    pieces = pa.DictionaryArray.from_arrays(pa.array(codes[: offsets[-1]]), dictionary)
    mask = None if texts.null_count == 0 else pa.array(~validity_of(texts))
    return pa.ListArray.from_arrays(pa.array(offsets), pieces, mask=mask)


def _distinct(texts: pa.Array, separator: int, codes: RowNumbers, ends: RowNumbers) -> pa.Array:
    """Code the pieces; return the distinct ones."""
    offsets, data = texts_of(texts)
    entries = _code_pieces(offsets, data, validity_of(texts), separator, codes, ends)
    entries = entries[1 : entries[0, SIZE] + 1]
    at = np.zeros(len(entries) + 1, np.int32)
    np.cumsum(entries[:, SIZE], out=at[1:])
    distinct = np.empty(at[-1], np.uint8)
    _gather(data, entries, distinct)
    return text_column(texts.type, at, distinct)
