"""A picture of a state at one moment, taken in small pieces while the state goes on changing.

Why the picture is exact. When it begins, every live row lies below `ROWS_USED` at a place that it
keeps for as long as it lives. `copy_some` walks these places once. Before a row ahead of the walk
is changed or freed for the first time, its old content is put aside and its place is marked, and a
row that is born at a place ahead of the walk is marked at birth. The walk copies what is live and
not marked. So each row of the beginning is either copied as it was, or was put aside as it was,
and nothing younger is taken.

Why exact and not merely fuzzy. Changes are absolute values, so a fuzzy copy plus all changes since
its beginning would also end in the right state, but only if every change that the copy has already
seen was committed. After a crash between the copy and the next marker the copy would hold work that
no marker covers. An exact picture is worth what its marker says, whatever happens next.

The cost to the state is one comparison per touched row, and a copied row at its first change.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import StateError
from penstock.loops import Words
from penstock.state.columns import RowsAsArrow
from penstock.state.contract import Picture
from penstock.state.rows import RowTable
from penstock.state.strings import StringView

COPY_ROWS_MAX = 65_536


class Snapshot(Picture):
    """One running or finished picture. A state has at most one running.

    `copy_some` and `abandon` belong to the thread that changes the state. Once `copy_some` has
    returned True, `batches` may be used from any one thread.
    """

    def __init__(self, table: RowTable, strings: StringView, arrow: RowsAsArrow) -> None:
        self._table = table
        self._strings = strings
        self._arrow = arrow
        self._pieces: list[Words] = []
        self._is_running = True
        self.is_complete = False
        table.begin_copy(self._pieces.append)

    def copy_some(self, rows_max: int = COPY_ROWS_MAX) -> bool:
        """Look at up to `rows_max` further rows; return whether the picture is complete."""
        assert rows_max > 0
        if not self._is_running:
            return self.is_complete
        if self._table.copy_left:
            piece = self._table.copy_some(rows_max)
            if len(piece):
                self._pieces.append(piece)
        if not self._table.copy_left:
            self._table.end_copy()
            self._is_running, self.is_complete = False, True
        return self.is_complete

    def abandon(self) -> None:
        """Give up a running picture; a complete one only frees its memory."""
        if self._is_running:
            self._table.end_copy()
            self._is_running = False
        self.is_complete = False
        self._pieces.clear()

    @property
    def nbytes(self) -> int:
        """What the picture holds beside the state's own memory."""
        saved = self._table.saved_bytes if self._is_running else 0
        return sum(piece.nbytes for piece in self._pieces) + saved

    @property
    def row_count(self) -> int:
        return sum(len(piece) for piece in self._pieces)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, a bounded number per batch, for a checkpoint or for `restore`."""
        if not self.is_complete:
            raise StateError("this snapshot is not complete: call copy_some until it returns True")
        for piece in self._pieces:
            for first in range(0, len(piece), COPY_ROWS_MAX):
                yield self._arrow.snapshot(piece[first : first + COPY_ROWS_MAX], self._strings)
