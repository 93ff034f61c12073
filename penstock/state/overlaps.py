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

from penstock.state import tables
from penstock.state.rows import Overflow, RowTable
from penstock.state.tables import Words

ROWS_AT_ONCE_MAX = 1 << 18


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


def window_lines(
    table: RowTable, lines: Words, windows: Words, overlap: Overlap, only_changed: bool
) -> Iterator[tuple[Words, Overflow | None]]:
    """The lines of these windows by window, then key; a line's pane is the number of its window.

    `lines` are those of all panes under the windows, by key, then pane. With `only_changed` a
    window has only the keys that have changed in one of its panes. A sum that overflows ends it.
    """
    prefixes, suffixes = lines.copy(), lines.copy()
    changed = np.zeros(len(lines) + 1 if only_changed else 0, np.int64)
    if only_changed:
        np.cumsum(lines[:, tables.META] & tables.DIRTY != 0, out=changed[1:])
    merging = (*table.rules, *table.strings)
    tables.fold_blocks(lines, prefixes, suffixes, table.keys, overlap.per_window, *merging)

    def walk(some: Words, places: Words, out: Words) -> int:
        return tables.walk_windows(
            lines, prefixes, suffixes, changed, table.keys, some, overlap.per_window,
            overlap.per_slide, places, out, *merging,
        )  # fmt: skip

    counts = np.zeros(windows.size, np.int64)
    walk(windows, counts, lines[:0])
    ends = np.concatenate([[0], np.cumsum(counts)])
    first = 0
    while first < windows.size:
        last = int(np.searchsorted(ends, ends[first] + ROWS_AT_ONCE_MAX, side="right")) - 1
        last = max(first + 1, last)
        out = np.empty((ends[last] - ends[first], lines.shape[1]), np.int64)
        row = walk(windows[first:last], ends[first:last] - ends[first], out)
        if row >= 0:
            yield out[row : row + 1], Overflow(row, int(out[row, tables.LINK]) - 1)
            return
        yield out, None
        first = last
