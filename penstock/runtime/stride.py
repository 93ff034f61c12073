"""How many rows a step takes, by what becomes of them.

A row may be thirty windows, or three hundred. They are all made by the step that took it, or by the
one that lets event time go on behind it; a step of a quarter of a million rows would be a minute in
which nothing is committed and a slot seems to stand still.
"""

from __future__ import annotations

ROWS_MIN = 1 << 10  # in a step, if the user wants no less: what it costs itself must not count


class Stride:
    """Of one vertex: it takes so few rows that a step makes no more than it may take."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._taken = self._made = 0.0  # the older, the less they count

    def note(self, taken: int, made: int) -> None:
        """What a step took and made; nothing, if it found nothing."""
        if taken or made:
            self._taken = self._taken / 2 + taken
            self._made = self._made / 2 + made

    def rows(self, made_max: int) -> int:
        """How many the next step takes, if it is to make no more than so many."""
        least = min(ROWS_MIN, self._rows_max)
        if not self._made:
            return max(least, min(self._rows_max, made_max))
        fitting = int(min(self._rows_max, made_max) * self._taken / self._made)
        return max(least, min(self._rows_max, fitting))
