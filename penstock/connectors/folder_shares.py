"""Who of several readers reads which files and parts of files.

What was noted of a file when it was found decides, so that all of them agree, for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

PARTS_MAX = 1 << 16
# Opening a file costs as much as reading so much of one. Another number here, or another rule in
# `Dealing`, deals the files of running queries anew: it needs a new REGISTRY_VERSION.
FILE_COST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was found. One in several parts has to stay so until all are read."""

    name: str
    size_bytes: int = 0
    mtime_ns: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """What is read by one reader: a file, or a part of one."""

    file: FoundFile
    part: int = 0

    @property
    def begin_byte(self) -> int:
        """Where the part begins in the file as it was found."""
        return self.file.size_bytes * self.part // self.file.parts

    @property
    def end_byte(self) -> int | None:
        """Where it ends; None: with the file."""
        if self.part + 1 == self.file.parts:
            return None
        return self.file.size_bytes * (self.part + 1) // self.file.parts


class Dealing:
    """Which shares are those of one of several readers.

    Each goes to whoever has the fewest bytes so far: the list decides it, and never anew.
    """

    def __init__(self, shares: Sequence[Share], reader: int, readers: int) -> None:
        self._shares = shares
        self._reader = reader
        self._loads = [(0, number) for number in range(readers)]
        heapify(self._loads)
        self._dealt = 0
        self._mine: list[int] = []

    def next(self, number: int) -> int | None:
        """Return the first of this reader's shares from a number on, None if there is none yet."""
        while self._dealt < len(self._shares):
            load, reader = self._loads[0]
            file = self._shares[self._dealt].file
            cost = file.size_bytes // file.parts + FILE_COST_BYTES
            heapreplace(self._loads, (load + cost, reader))
            if reader == self._reader:
                self._mine.append(self._dealt)
            self._dealt += 1
        place = bisect_left(self._mine, number)
        return self._mine[place] if place < len(self._mine) else None
