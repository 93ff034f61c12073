"""Chance and time of one run: one generator, one clock, and a record of all that was decided."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from penstock.testing.clock import ManualClock


class Schedule:
    """Everything random comes from here, so a seed gives the same run every time, to the byte."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"schedule {seed}")
        self.clock = ManualClock()
        self.depth = 0  # how many are held up in the middle of an action: for people
        self.lines: list[str] | None = None  # the schedule as text, if somebody wants it
        self.faults: Counter[str] = Counter()
        self.sometimes: Counter[str] = Counter()
        self._trace = hashlib.sha256()

    def gap(self, mean: int) -> int:
        """How many chances pass until the next of something that happens once in `mean`."""
        return self.rng.randint(1, 2 * mean)

    def note(self, *what: object) -> None:
        line = " ".join(map(str, what))
        self._trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(f"{self.clock.monotonic_s():9.4f} {'  ' * self.depth}{line}")

    def trace(self) -> hashlib._Hash:
        """A copy of the running hash of everything noted so far."""
        return self._trace.copy()
