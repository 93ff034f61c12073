"""Hopping windows put together from panes: many at once by the state, few from running totals.

The state reads all panes of the windows it is asked for. Where few windows close at a time, that
would be mostly panes it has read before. So counts and exact sums then keep a running total per
key: the panes that a window gains are added, those it loses are subtracted. For minima and maxima
that would be wrong, and for sums of doubles inexact. Either way the result is a function of the
panes alone. The running totals are a by-product: they are never saved, and rebuilt from the panes
after a restart or when a pane that they hold has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.arrays import Numbers
from penstock.operators.groups import key_columns
from penstock.operators.specs import AggregateSpec, accumulators_of
from penstock.operators.windows import Windows
from penstock.state.columns import MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

WINDOWS_SHARE_MAX = 4  # totals serve as long as windows share more than 1 - 1/4 of their panes
CELLS_AT_ONCE_MAX = 1 << 20
_SAFE_SUM = float(1 << 62)  # totals below this cannot leave 64 bits, whatever the rounding
_SLOTS_FREE = 1024


@dataclass
class _Running:
    """Totals of the panes first to last, both included, one line per key that was seen in them.

    A line has in how many panes the key occurs, then for each accumulator its sum and in how many
    panes it is not null: a sum that comes back to zero is not the same as no value.
    """

    slots: KeyedState
    totals: Numbers
    first: int
    last: int
    order: pa.RecordBatch | None = None  # keys in their order, with their lines

    @property
    def lines(self) -> int:
        return len(self.totals)


class SlidingWindows:
    """Walks closed windows in order and gives their rows."""

    def __init__(self, spec: AggregateSpec, windows: Windows, state: KeyedState) -> None:
        self._windows = windows
        self._state = state
        self._keys = len(spec.keys)
        self._accumulators = accumulators_of(spec.aggregates)
        self.is_invertible = all(
            accumulator.merge == "add" and accumulator.type.is_integer
            for accumulator in self._accumulators
        )
        line = ValueColumn("line", pa.int64(), MergeRule.FIRST)
        self._slots_schema = StateSchema(key_columns(spec), (line,))
        self._width = 1 + 2 * len(self._accumulators)
        self._running: _Running | None = None

    def forget(self) -> None:
        """The panes are not what they were: rebuild before the next window."""
        self._running = None

    def touched(self, pane_min: int) -> None:
        """Rows were added to panes from this one on; forget if the running totals hold one."""
        if self._running is not None and pane_min <= self._running.last:
            self.forget()

    def drop_upto(self, pane: int) -> None:
        """The state is about to drop the panes up to this one."""
        running = self._running
        if running is None or pane < running.first:
            return
        # What windows lose was subtracted with them; only a jump over empty windows comes here.
        self.forget()

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The rows of the windows from first to last, by window, then key; their pane is it."""
        overlap = self._windows.overlap
        windows = overlap.windows_over(self._state.panes(), first, last)
        totalled = self._running_rows(windows) if self._is_for_totals(windows) else None
        if totalled is None:
            yield from self._state.window_rows(windows, overlap)
        elif totalled.num_rows:
            yield totalled

    def _is_for_totals(self, windows: Numbers) -> bool:
        count = windows.size
        if not self.is_invertible or not count or windows[-1] - windows[0] >= count:
            return False
        lines = 1 if self._running is None else self._running.lines
        few = count * WINDOWS_SHARE_MAX <= self._windows.spec.panes_per_window
        return few and count * lines * self._width <= CELLS_AT_ONCE_MAX

    # --- running totals ---------------------------------------------------------------------------

    def _running_rows(self, windows: Numbers) -> pa.RecordBatch | None:
        """Rows of some windows in a row; None if their sums might leave 64 bits."""
        window, count = int(windows[0]), windows.size
        begin, _ = self._windows.panes_of(window)
        last_begin, end = self._windows.panes_of(window + count - 1)
        running = self._running
        if running is None or begin < running.first or begin > running.last:
            slots = KeyedState("lines", self._slots_schema, bytes_max=self._state.bytes_max)
            empty = np.zeros((0 if self._keys else 1, self._width), np.int64)
            running = self._running = _Running(slots, empty, begin, begin - 1)
        # Each pane is added where its first window is, and subtracted behind its last one. So the
        # panes that the next window loses are read now, together with the others.
        kept_from = min(last_begin + self._windows.spec.panes_per_slide, end + 1)
        entering = self._state.rows(running.last + 1, end)
        leaving = self._state.rows(running.first, kept_from - 1)
        moving = pa.concat_batches([entering, leaving])
        lines, values = self._lines_of(running, moving), self._values(moving)
        first_in, last_in = self._windows_of(moving)
        came = entering.num_rows
        values[came:] *= -1
        at = np.maximum(np.concatenate([first_in[:came], last_in[came:] + 1]) - window, 0)
        if not self._is_safe(running.totals, values):
            self.forget()
            return None
        steps = np.zeros((count + 1, running.lines, self._width), np.int64)
        np.add.at(steps, (at, lines), values)
        steps[0] += running.totals
        totals = np.cumsum(steps, axis=0, out=steps)
        running.totals = totals[-1].copy()
        running.first, running.last = kept_from, end
        rows = self._batch(running, totals[:-1], window, entering.schema)
        self._forget_if_sparse(running)
        return rows

    def _forget_if_sparse(self, running: _Running) -> None:
        """Mostly keys that are gone: start again with those that are there."""
        live = np.count_nonzero(running.totals[:, 0])
        if running.lines > 2 * live + _SLOTS_FREE:
            self.forget()

    def _windows_of(self, rows: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """The first and the last window of each row."""
        spec = self._windows.spec
        panes: Numbers = rows.column(self._keys).to_numpy()
        first = (panes - spec.panes_per_window) // spec.panes_per_slide + 1
        return first, panes // spec.panes_per_slide

    def _values(self, rows: pa.RecordBatch) -> Numbers:
        values = np.empty((rows.num_rows, self._width), np.int64)
        values[:, 0] = 1
        for index, column in enumerate(rows.columns[self._keys + 1 :]):
            values[:, 1 + 2 * index] = column.fill_null(0).to_numpy()
            values[:, 2 + 2 * index] = np.asarray(column.is_valid())
        return values

    @staticmethod
    def _is_safe(*parts: Numbers) -> bool:
        reach = sum(np.abs(part.astype(np.float64)).sum(axis=0) for part in parts)
        return bool((reach < _SAFE_SUM).all())

    def _lines_of(self, running: _Running, rows: pa.RecordBatch) -> Numbers:
        """The line of each row's key; new keys get new lines."""
        if not self._keys or not rows.num_rows:
            return np.zeros(rows.num_rows, np.int64)
        keys = rows.columns[: self._keys]
        (lines,), found = running.slots.get(keys)
        if not found.all():
            self._add_lines(running, rows.filter(pa.array(~found)).columns[: self._keys])
            (lines,), _ = running.slots.get(keys)
        numbers: Numbers = lines.to_numpy()
        return numbers

    def _add_lines(self, running: _Running, keys: list[pa.Array]) -> None:
        """Lines for new keys, which may repeat; the first occurrence of each decides the order."""
        known = len(running.totals)
        candidates = pa.array(known + np.arange(len(keys[0])))
        running.slots.merge(keys, None, [candidates])
        entered = running.slots.changed_rows()
        given = entered.column("line").to_numpy()
        ranks = np.empty(len(given), np.int64)
        ranks[np.argsort(given)] = np.arange(len(given))
        running.slots.put(entered.columns[: self._keys], None, [pa.array(known + ranks)])
        running.slots.discard_changes()
        running.order = None
        room = np.zeros((len(given), self._width), np.int64)
        running.totals = np.concatenate([running.totals, room])

    def _batch(
        self, running: _Running, totals: Numbers, window: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        """The keys that are in each window, in the order of keys, with their accumulators."""
        if running.order is None:
            running.order = running.slots.scan()
        lines = running.order.column("line").to_numpy() if self._keys else np.zeros(1, np.int64)
        steps, places = np.nonzero(totals[:, lines, 0] > 0)
        own = totals[steps, lines[places]]
        columns = (
            list(running.order.take(pa.array(places)).columns[: self._keys]) if self._keys else []
        )
        columns.append(pa.array(window + steps))
        for index, accumulator in enumerate(self._accumulators):
            missing = own[:, 2 + 2 * index] == 0 if accumulator.nullable else None
            columns.append(pa.array(np.ascontiguousarray(own[:, 1 + 2 * index]), mask=missing))
        return pa.RecordBatch.from_arrays(columns, schema=schema)
