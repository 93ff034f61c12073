"""Rows of a table by a moment that each has: those that are over are found without the others.

A row is queued once, under the moment that it had then. It may have a later one by now, or be
another row: whoever takes it looks, and queues it again. Queued rows lie in sorted runs, each at
least twice as long as the next, so a row is sorted a logarithmic number of times.
"""

from __future__ import annotations

import numpy as np

from penstock.loops import RowNumbers, Words

NEVER = (1 << 63) - 1


class Expiry:
    """Row numbers in the order of their moments."""

    def __init__(self) -> None:
        self._runs: list[tuple[Words, RowNumbers]] = []  # moments in order, and whose they are
        self._queued: Words = np.empty(0, np.int64)  # by row: under which moment, or never
        self.rows_moved = 0  # so far, into runs and out of them

    def note(self, rows: RowNumbers, moments: Words) -> None:
        """Queue rows, unless they are under a moment that comes no later."""
        if not rows.size:
            return
        if (more := int(rows.max()) + 1 - self._queued.size) > 0:
            room = np.full(max(more, self._queued.size), NEVER)
            self._queued = np.concatenate([self._queued, room])
        is_sooner = moments < self._queued[rows]
        if not is_sooner.any():
            return
        rows, moments = rows[is_sooner], moments[is_sooner]
        self._queued[rows] = moments
        order = np.argsort(moments, kind="stable")
        self._runs.append((moments[order], rows[order]))
        self.rows_moved += rows.size
        while len(self._runs) > 1 and self._runs[-2][0].size < 2 * self._runs[-1][0].size:
            self._join_last_two()

    def _join_last_two(self) -> None:
        (moments, rows), (more, its) = self._runs.pop(-2), self._runs.pop()
        moments, rows = np.concatenate([moments, more]), np.concatenate([rows, its])
        order = np.argsort(moments, kind="stable")
        self._runs.append((moments[order], rows[order]))
        self.rows_moved += rows.size

    def take(self, upto: int) -> RowNumbers:
        """The rows that are queued under this moment or an earlier one, each once; now they are
        not."""
        found: list[RowNumbers] = []
        for at, (moments, rows) in enumerate(self._runs):
            end = int(np.searchsorted(moments, upto, side="right"))
            if end:
                found.append(rows[:end])
                self._runs[at] = (moments[end:], rows[end:])
        if not found:
            return np.empty(0, np.int32)
        self._runs = [run for run in self._runs if run[0].size]
        taken: RowNumbers = np.unique(np.concatenate(found))
        self._queued[taken] = NEVER
        self.rows_moved += sum(rows.size for rows in found)
        return taken
