"""Whether aggregating before an exchange pays, decided by what it gave on the rows seen last."""

from __future__ import annotations

LOOK_ROWS = 1 << 15  # aggregated before it is judged
PASS_ROWS = 1 << 20  # passed on as they are before it is tried again
POOR = 0.8  # as many groups per row save the exchange less than finding them costs


class Reduction:
    """Judges a partial aggregate: where nearly every row is a group, rows go on one by one.

    A row alone is a partial too, so the result is the same whatever is decided, and the decision
    need not outlive the process.
    """

    def __init__(self) -> None:
        self.rows_passed = 0
        self._rows = self._groups = 0  # since the last judgement
        self._left = 0  # rows to pass on before the next look

    @property
    def is_poor(self) -> bool:
        return self._left > 0

    def note(self, rows: int, groups: int) -> None:
        """The last batch had so many rows, and gave so many partials."""
        if self._left:
            self.rows_passed += rows
            self._left = max(0, self._left - rows)
            return
        self._rows += rows
        self._groups += groups
        if self._rows >= LOOK_ROWS:
            self._left = PASS_ROWS if self._groups > POOR * self._rows else 0
            self._rows = self._groups = 0
