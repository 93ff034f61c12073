"""Files and their parts are dealt out by size: fairly, and the same way for ever."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.folder_registry import KnownFiles
from penstock.connectors.folder_shares import (
    FILE_COST_BYTES,
    Dealing,
    FoundFile,
    Share,
    even_begins,
    packed_begins,
)
from penstock.testing.memory_log import MemoryLog

MIB = 1 << 20


def dealt(shares: Sequence[Share], readers: int) -> list[list[int]]:
    """The numbers that each reader finds, one after the other."""
    hands = []
    for reader in range(readers):
        dealing, hand, number = Dealing(shares, reader, readers), [], -1
        while (found_next := dealing.next(number + 1)) is not None:
            hand.append(number := found_next)
        hands.append(hand)
    return hands


@given(st.lists(st.integers(0, 10 * FILE_COST_BYTES), max_size=40), st.integers(1, 5))
def test_shares_are_dealt_by_size_once_and_for_ever(sizes: list[int], readers: int) -> None:
    registry = MemoryLog()
    files = [FoundFile(f"{number}", size) for number, size in enumerate(sizes)]
    known = KnownFiles(registry, "files")
    known.add(files[: len(files) // 2])
    early = dealt(known.shares, readers)
    known.add(files)
    hands = dealt(known.shares, readers)
    assert sorted(number for hand in hands for number in hand) == list(range(len(files)))
    assert [[n for n in hand if n < len(files) // 2] for hand in hands] == early
    loads = [sum(sizes[n] + FILE_COST_BYTES for n in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(sizes, default=0) + FILE_COST_BYTES


def test_what_can_be_cut_anywhere_is_cut_evenly() -> None:
    for size, begins in [(0, (0,)), (10, (0,)), (11, (0, 5)), (100, tuple(range(0, 100, 10)))]:
        assert even_begins(FoundFile("a", size), 10) == begins


@given(
    st.lists(st.lists(st.integers(0, 200 * MIB), max_size=12), max_size=12),
    st.integers(1, 100 * MIB),
    st.integers(1, 5),
)
def test_parts_of_whole_pieces_are_dealt_fairly(
    files: list[list[int]], part_bytes: int, readers: int
) -> None:
    """Nobody has more than their fair share and one part: one piece, or what is within bounds."""
    shares: list[Share] = []
    for number, pieces in enumerate(files):
        *begins, size = accumulate(pieces, initial=0)
        file = FoundFile(f"{number}", size, 0, packed_begins(begins, size, part_bytes))
        parts = [Share(file, part) for part in range(file.parts)]
        assert {part.begin_byte for part in parts} <= {0, *begins}
        for part in parts:
            assert part.size_bytes <= part_bytes or part.size_bytes in pieces
        shares += parts
    for hand in (dealt(shares, n) for n in (1, readers)):
        assert sorted(number for numbers in hand for number in numbers) == list(range(len(shares)))
    costs = [share.size_bytes + FILE_COST_BYTES for share in shares]
    loads = [sum(costs[number] for number in hand) for hand in dealt(shares, readers)]
    assert max(loads) <= sum(costs) / readers + max(costs, default=0)
