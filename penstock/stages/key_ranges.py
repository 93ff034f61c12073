"""The 32-bit space of key hashes, and how it is shared out among the vertices of a stage."""

from __future__ import annotations

from itertools import pairwise

from penstock.state.contract import KeyRange

KEY_SPACE = 1 << 32

WHOLE_KEY_SPACE: KeyRange = (0, KEY_SPACE)


def split_key_space(parts: int) -> tuple[KeyRange, ...]:
    """Cut the space into ranges whose sizes differ by at most one; range i is part i's."""
    assert 1 <= parts <= KEY_SPACE
    edges = [part * KEY_SPACE // parts for part in range(parts + 1)]
    return tuple(pairwise(edges))
