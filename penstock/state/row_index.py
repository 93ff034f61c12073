"""The compiled loops of a row store: rows by key, newest first, and who matches whom.

A key is a line of words. A slot of the hash table is 0, or 31 bits of hash above (row + 1) of the
newest row of a key; `nexts` leads from a row to the next older one of its key, as row + 1, or to 0.
Dead rows are taken out of these lists when somebody walks past them, each once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loops import Flags, Rows, Words, inlined, loop

HASH_MASK = (1 << 32) - 1


@inlined
def _key_hash(words: Any, row: Any) -> Any:
    state = np.uint64(0x2545F4914F6CDD1D)
    for column in range(words.shape[1]):
        state = (state ^ np.uint64(words[row, column])) * np.uint64(0x9E3779B97F4A7C15)
        state = state ^ (state >> np.uint64(32))
    state = (state ^ (state >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(state >> np.uint64(33))


@inlined
def _is_same(words: Any, row: Any, others: Any, other: Any) -> Any:
    for column in range(words.shape[1]):  # noqa: SIM110 (no generators in compiled loops)
        if words[row, column] != others[other, column]:
            return False
    return True


@inlined
def _find(slots: Any, words: Any, others: Any, other: Any, key_hash: Any) -> Any:
    """The slot of a key, or the empty one where it would go, as -1 - slot."""
    mask = slots.size - 1
    slot = key_hash & mask
    while True:
        entry = slots[slot]
        if entry == 0:
            return -1 - slot
        if entry >> 32 == key_hash and _is_same(words, (entry & HASH_MASK) - 1, others, other):
            return slot
        slot = (slot + 1) & mask


@loop
def link_rows(slots: Words, nexts: Words, words: Rows, linked: Flags, first: int, end: int) -> None:
    """Put rows in the lists of their keys; there is a slot for each."""
    for row in range(first, end):
        nexts[row] = 0
        if not linked[row]:
            continue
        key_hash = _key_hash(words, row)
        slot = _find(slots, words, words, row, key_hash)
        if slot < 0:
            slot = -1 - slot
        else:
            nexts[row] = slots[slot] & HASH_MASK
        slots[slot] = key_hash << 32 | (row + 1)


@loop
def count_matches(
    slots: Words,
    nexts: Words,
    words: Rows,
    live: Flags,
    keys: Rows,
    linked: Flags,
    heads: Words,
    counts: Words,
) -> None:
    """How many live rows each key has, and the newest of them, as row + 1."""
    for at in range(counts.size):
        heads[at] = 0
        counts[at] = 0
        if not linked[at]:
            continue
        key_hash = _key_hash(keys, at)
        slot = _find(slots, words, keys, at, key_hash)
        if slot < 0:
            continue
        row = (slots[slot] & HASH_MASK) - 1
        while not live[row] and nexts[row] != 0:
            row = nexts[row] - 1
        slots[slot] = key_hash << 32 | (row + 1)  # the last one stays, dead or not: it has the key
        if not live[row]:
            continue
        heads[at] = row + 1
        counts[at] = 1
        while nexts[row] != 0:
            older = nexts[row] - 1
            if live[older]:
                counts[at] += 1
                row = older
            else:
                nexts[row] = nexts[older]


@loop
def fill_matches(
    nexts: Words, heads: Words, ends: Words, first: int, end: int, ats: Words, rows: Words
) -> None:
    """Write the pairs of some keys, the oldest row of each first; `ends` are their last places."""
    base = ends[first - 1] if first > 0 else 0
    for at in range(first, end):
        place = ends[at] - base
        row = heads[at]
        while row != 0:
            place -= 1
            ats[place] = at
            rows[place] = row - 1
            row = nexts[row - 1]
