"""The key space is shared out without gap or overlap, evenly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.dealing import deal
from penstock.stages.key_ranges import KEY_SPACE, WHOLE_KEY_SPACE, split_key_space

PARTS = st.integers(1, 5_000)
HASHES = st.integers(0, KEY_SPACE - 1)


@given(PARTS)
def test_ranges_cover_the_space_evenly(parts: int) -> None:
    ranges = split_key_space(parts)
    assert len(ranges) == parts
    assert ranges[0][0] == 0
    assert ranges[-1][1] == KEY_SPACE
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    sizes = {high - low for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1


@given(PARTS, st.lists(HASHES, max_size=20))
def test_rows_are_dealt_to_the_range_that_holds_their_hash(parts: int, found: list[int]) -> None:
    ranges = split_key_space(parts)
    edges = [edge for low, high in ranges[:5] + ranges[-5:] for edge in (low, high - 1)]
    hashes = np.array([*found, *edges], np.uint32)
    order, ends = deal(hashes, parts)
    assert sorted(order.tolist()) == list(range(hashes.size))
    begins = [0, *ends.tolist()[:-1]]
    for (low, high), begin, end in zip(ranges, begins, ends.tolist(), strict=True):
        rows = order[begin:end]
        assert all(low <= int(each) < high for each in hashes[rows])
        assert sorted(rows.tolist()) == rows.tolist()


def test_one_part_owns_everything() -> None:
    assert split_key_space(1) == (WHOLE_KEY_SPACE,)
