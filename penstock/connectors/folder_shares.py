"""Who of several readers reads which files and parts of files.

What was noted of a file when it was found decides, so that all of them agree, for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise

PARTS_MAX = 1 << 16
# Opening a file costs as much as reading so much of one. Another number here, or another rule in
# `Owners`, deals the files of running queries anew: it needs a new REGISTRY_VERSION.
FILE_COST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was found. One in several parts has to stay so until all are read."""

    name: str
    size_bytes: int = 0
    mtime_ns: int = 0
    begins: tuple[int, ...] = (0,)  # at which byte each part does

    @property
    def parts(self) -> int:
        """How many there are, at least one."""
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Share:
    """What is read by one reader: a file, or a part of one."""

    file: FoundFile
    part: int = 0

    @property
    def begin_byte(self) -> int:
        """Where the part begins in the file as it was found."""
        return self.file.begins[self.part]

    @property
    def end_byte(self) -> int | None:
        """Where it ends; None: with the file."""
        following = self.part + 1
        return None if following == self.file.parts else self.file.begins[following]

    @property
    def size_bytes(self) -> int:
        """How much there is to read in it."""
        end = self.end_byte
        return (self.file.size_bytes if end is None else end) - self.begin_byte


def even_begins(file: FoundFile, part_bytes: int) -> tuple[int, ...]:
    """Where equal parts of a file begin that can be cut anywhere."""
    size = file.size_bytes
    parts = min(max(-(-size // part_bytes), 1), PARTS_MAX)
    return tuple(size * part // parts for part in range(parts))


def packed_begins(pieces: Sequence[int], size_bytes: int, part_bytes: int) -> tuple[int, ...]:
    """Where parts of a file begin that can be cut where pieces of it do: `pieces`, in order.

    A part has one piece, or as many as are within `part_bytes` together.
    """
    begins = [0]
    for piece, end in pairwise((*pieces, size_bytes)):
        if end - begins[-1] > part_bytes and piece > begins[-1] and len(begins) < PARTS_MAX:
            begins.append(piece)
    return tuple(begins)


class Owners:
    """Whose each share is: of whoever had the fewest bytes before it.

    The list decides it, and never anew.
    """

    def __init__(self, shares: Sequence[Share], readers: int) -> None:
        self._shares = shares
        self._loads = [(0, number) for number in range(readers)]
        heapify(self._loads)
        self._owners: list[int] = []

    def __getitem__(self, number: int) -> int:
        while len(self._owners) <= number:
            load, reader = self._loads[0]
            cost = self._shares[len(self._owners)].size_bytes + FILE_COST_BYTES
            heapreplace(self._loads, (load + cost, reader))
            self._owners.append(reader)
        return self._owners[number]


class Dealing:
    """Which shares are those of one of several readers."""

    def __init__(self, shares: Sequence[Share], reader: int, readers: int) -> None:
        self._shares = shares
        self._reader = reader
        self._owners = Owners(shares, readers)
        self._dealt = 0
        self._mine: list[int] = []

    def next(self, number: int) -> int | None:
        """Return the first of this reader's shares from a number on, None if there is none yet."""
        while self._dealt < len(self._shares):
            if self._owners[self._dealt] == self._reader:
                self._mine.append(self._dealt)
            self._dealt += 1
        place = bisect_left(self._mine, number)
        return self._mine[place] if place < len(self._mine) else None
