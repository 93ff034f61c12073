"""Rows of overlapping windows, merged from panes at a cost that does not grow with the overlap.

Time is cut into blocks as long as a window, at multiples of that length. So a window reaches into
two blocks at most: it has the end of one and the beginning of the next. All ends and beginnings of
blocks are merged once for each key, and a window is one merge more. That holds for every merge
rule, since nothing is subtracted. Blocks lie where they lie, whoever asks for which windows: a
window's row depends on its panes alone, down to the last bit of a sum of doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.loops import RowNumbers, Words
from penstock.state import tables
from penstock.state.rows import Overflow, RowTable

ROWS_AT_ONCE_MAX = 1 << 18  # that are put together before they are handed out,
LINES_PER_ROW = 4  # or one for so many lines of the state, so that these are not merged often
LINES_AT_ONCE_MAX = 1 << 17  # of the state, that are merged at a time


@dataclass(frozen=True, slots=True)
class Overlap:
    """Window k has the panes k*per_slide to k*per_slide + per_window - 1, both included."""

    per_window: int
    per_slide: int

    def windows_over(self, panes: Words, first: int, last: int) -> Words:
        """The windows from first to last that cover any of these panes, which are in order.

        The cost is that of the windows found, however far apart the panes are.
        """
        lowest = np.maximum((panes - self.per_window) // self.per_slide + 1, first)
        highest = np.minimum(panes // self.per_slide, last)
        reached = np.maximum.accumulate(highest)
        lowest[1:] = np.maximum(lowest[1:], reached[:-1] + 1)
        counts = np.maximum(highest - lowest + 1, 0)
        ends = np.cumsum(counts)
        inside = np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - counts, counts)
        windows: Words = np.repeat(lowest, counts) + inside
        return windows

    def panes_under(self, windows: Words, panes: Words) -> Words:
        """Those of the panes that any of these windows covers; both are in order."""
        lowest = (panes - self.per_window) // self.per_slide + 1
        nearest = np.searchsorted(windows, lowest)
        covered = windows[np.minimum(nearest, max(windows.size - 1, 0))] if windows.size else lowest
        return panes[(nearest < windows.size) & (covered <= panes // self.per_slide)]


@dataclass(slots=True)
class _Slice:
    """Lines of some keys, and all beginnings and ends of their blocks once they are folded."""

    lines: Words
    changed: Words  # how many of the lines before each one have; nothing if that does not matter
    prefixes: Words
    suffixes: Words


class _Slices:
    """Rows by key, then pane, some keys at a time."""

    def __init__(
        self, table: RowTable, rows: RowNumbers, overlap: Overlap, only_changed: bool
    ) -> None:
        self._table = table
        self._overlap = overlap
        self._only_changed = only_changed
        self._merging = (*table.rules, *table.strings)
        self._slices = list(self._cut(rows))
        self._whole = self._folded(rows) if len(self._slices) == 1 else None

    def _cut(self, rows: RowNumbers) -> Iterator[RowNumbers]:
        """Cut the rows where keys end, into slices that are small, unless one key has more."""
        key = [tables.NULLS, *range(tables.KEYS, tables.KEYS + self._table.keys)]
        size = LINES_AT_ONCE_MAX
        while rows.size > size:
            words = np.stack([self._table.words(rows[: size + 1], word) for word in key])
            ends = np.flatnonzero((words[:, 1:] != words[:, :-1]).any(axis=0)) + 1
            if not ends.size:
                size *= 2
                continue
            yield rows[: ends[-1]]
            rows, size = rows[ends[-1] :], LINES_AT_ONCE_MAX
        yield rows

    def counts(self, windows: Words) -> Words:
        """How many lines each window has."""
        counts: Words = np.zeros(windows.size, np.int64)
        for rows in self._slices:
            some = self._whole or self._unfolded(rows)
            self._walk(some, windows, counts, some.lines[:0])
        return counts

    def write(self, windows: Words, places: Words, out: Words) -> int:
        """Write the lines at each window's place; return where a sum left its range, or -1."""
        for rows in self._slices:
            some = self._whole or self._folded(self._under(windows, rows))
            row = self._walk(some, windows, places, out)
            if row >= 0:
                return row
        return -1

    def _under(self, windows: Words, rows: RowNumbers) -> RowNumbers:
        """The rows from the first pane under these windows to the last.

        What these windows need of a block is all there: its end, or its beginning.
        """
        first = windows[0] * self._overlap.per_slide
        end = windows[-1] * self._overlap.per_slide + self._overlap.per_window
        panes = self._table.words(rows, tables.PANE)
        under: RowNumbers = rows[(panes >= first) & (panes < end)]
        return under

    def _folded(self, rows: RowNumbers) -> _Slice:
        some = self._unfolded(rows)
        some.prefixes, some.suffixes = some.lines.copy(), some.lines.copy()
        tables.fold_blocks(
            some.lines, some.prefixes, some.suffixes, self._table.keys,
            self._overlap.per_window, *self._merging,
        )  # fmt: skip
        return some

    def _unfolded(self, rows: RowNumbers) -> _Slice:
        lines = self._table.lines(rows)
        changed: Words = np.zeros(len(lines) + 1 if self._only_changed else 0, np.int64)
        if self._only_changed:
            np.cumsum(lines[:, tables.META] & tables.DIRTY != 0, out=changed[1:])
        return _Slice(lines, changed, lines, lines)

    def _walk(self, some: _Slice, windows: Words, places: Words, out: Words) -> int:
        return tables.walk_windows(
            some.lines, some.prefixes, some.suffixes, some.changed, self._table.keys, windows,
            self._overlap.per_window, self._overlap.per_slide, places, out, *self._merging,
        )  # fmt: skip


def window_lines(
    table: RowTable, rows: RowNumbers, windows: Words, overlap: Overlap, only_changed: bool
) -> Iterator[tuple[Words, Overflow | None]]:
    """The lines of these windows by window, then key; a line's pane is the number of its window.

    `rows` are those of all panes under the windows, by key, then pane. With `only_changed` a
    window has only the keys that have changed in one of its panes. A sum that overflows ends it.

    Windows are handed out in pieces, keys are folded in slices. Where there are several slices,
    each piece folds again what lies under its windows. Any two pieces that follow each other have
    more rows than one may have: so all pieces together fold no more than `rows`, and for each row
    that they have 2 * LINES_PER_ROW.

    Beside the state this takes a slice, which is small unless one key has very many panes, and a
    piece: ROWS_AT_ONCE_MAX rows, or a LINES_PER_ROW-th of `rows`, or one window, which is whole
    however many keys it has.
    """
    at_once = max(ROWS_AT_ONCE_MAX, rows.size // LINES_PER_ROW)
    slices = _Slices(table, rows, overlap, only_changed)
    ends = np.concatenate([[0], np.cumsum(slices.counts(windows))])
    first = 0
    while first < windows.size:
        last = int(np.searchsorted(ends, ends[first] + at_once, side="right")) - 1
        last = max(first + 1, last)
        out = np.empty((ends[last] - ends[first], table.width), np.int64)
        row = slices.write(windows[first:last], ends[first:last] - ends[first], out)
        if row >= 0:
            yield out[row : row + 1], Overflow(row, int(out[row, tables.LINK]) - 1)
            return
        yield out, None
        first = last
