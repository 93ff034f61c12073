"""Dealing rows out by key: which rows go to which of several key ranges, in one pass each."""

from __future__ import annotations

import numpy as np

from penstock.loops import Hashes, Words, allocating_loop


@allocating_loop
def _deal(hashes: Hashes, parts: int, ends: Words, order: Words) -> None:
    """A counting sort, which keeps the order of rows that go to the same part."""
    owners = np.empty(hashes.size, np.uint16)
    count = np.uint64(parts)
    for row in range(hashes.size):
        # The part whose range holds the hash, as stages/key_ranges.py cuts them.
        owner = np.uint16(((np.uint64(hashes[row]) + 1) * count - 1) >> np.uint64(32))
        owners[row] = owner
        ends[owner] += 1
    at = 0
    for part in range(ends.size):  # for now where each part begins
        at, ends[part] = at + ends[part], at
    for row in range(hashes.size):
        place = ends[owners[row]]
        order[place] = row
        ends[owners[row]] = place + 1


def deal(hashes: Hashes, parts: int) -> tuple[Words, Words]:
    """The rows ordered by the part of the key space that owns them, and where each part ends."""
    ends = np.zeros(parts, np.int64)
    order = np.empty(hashes.size, np.int64)
    _deal(hashes, parts, ends, order)
    return order, ends
