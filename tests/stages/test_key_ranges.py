"""The key space is shared out without gap or overlap, evenly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.stages.key_ranges import KEY_SPACE, WHOLE_KEY_SPACE, owner_of, split_key_space

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


@given(PARTS, HASHES)
def test_the_owner_is_the_range_that_holds_the_hash(parts: int, key_hash: int) -> None:
    low, high = split_key_space(parts)[owner_of(key_hash, parts)]
    assert low <= key_hash < high


@given(PARTS)
def test_owners_at_the_edges(parts: int) -> None:
    for index, (low, high) in enumerate(split_key_space(parts)):
        assert owner_of(low, parts) == index
        assert owner_of(high - 1, parts) == index


def test_one_part_owns_everything() -> None:
    assert split_key_space(1) == (WHOLE_KEY_SPACE,)
