"""How many rows a step takes, by what becomes of them.

A row may be three hundred windows. They are all made by the step that took it, or by the one that
lets event time go on behind it: of a quarter of a million rows that would be a minute in which
nothing is committed and a slot seems to stand still.

Only what comes of the rows decides, and no clock: event time goes on with each step of a source, so
rows are late by how many a step takes, and the same input should find the same rows late.
"""

from __future__ import annotations

ROWS_MIN = 1 << 10  # in a step, if the user wants no less: what it costs itself must not count
MADE_MAX = 1 << 22  # rows that a step should make


class Stride:
    """Of one vertex: it takes so few rows that a step makes not too many."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._taken = self._made = 0.0  # the older, the less they count

    def note(self, taken: int, made: int) -> None:
        """What a step took and made; nothing, if it found nothing."""
        if taken or made:
            self._taken = self._taken / 2 + taken
            self._made = self._made / 2 + made

    def rows(self) -> int:
        """How many the next step takes."""
        if not self._made:
            return self._rows_max
        fitting = int(MADE_MAX * self._taken / self._made)
        return min(self._rows_max, max(ROWS_MIN, fitting))
