"""Files and their parts are dealt out by size: fairly, and the same way for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.folder_registry import KnownFiles, MemoryRegistry
from penstock.connectors.folder_shares import FILE_COST_BYTES, Dealing, FoundFile


def dealt(known: KnownFiles, readers: int) -> list[list[int]]:
    """The numbers that each reader finds, one after the other."""
    hands = []
    for reader in range(readers):
        dealing, hand, number = Dealing(known.shares, reader, readers), [], -1
        while (found_next := dealing.next(number + 1)) is not None:
            hand.append(number := found_next)
        hands.append(hand)
    return hands


@given(st.lists(st.integers(0, 10 * FILE_COST_BYTES), max_size=40), st.integers(1, 5))
def test_shares_are_dealt_by_size_once_and_for_ever(sizes: list[int], readers: int) -> None:
    registry = MemoryRegistry()
    files = [FoundFile(f"{number}", size) for number, size in enumerate(sizes)]
    known = KnownFiles(registry, "files")
    known.add(files[: len(files) // 2])
    early = dealt(known, readers)
    known.add(files)
    hands = dealt(known, readers)
    assert sorted(number for hand in hands for number in hand) == list(range(len(files)))
    assert [[n for n in hand if n < len(files) // 2] for hand in hands] == early
    loads = [sum(sizes[n] + FILE_COST_BYTES for n in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(sizes, default=0) + FILE_COST_BYTES
