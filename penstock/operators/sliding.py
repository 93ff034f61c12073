"""Hopping windows put together from panes, each at a cost that does not grow with their overlap.

Counts and exact sums keep one running row per key: the panes that a window gains are added, those
it loses are subtracted. Where that would be wrong (minimum, maximum) or inexact (sums of doubles)
a window is merged anew from its panes, in the order of the panes. Either way the result is a
function of the panes alone. The running rows are a by-product: they are never saved, and rebuilt
from the panes after a restart or when a pane that they hold has changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.operators.groups import key_columns
from penstock.operators.specs import AggregateSpec, accumulators_of
from penstock.operators.windows import Windows
from penstock.state.columns import MergeRule, StateSchema, ValueColumn
from penstock.state.keyed import KeyedState

_PANES = "panes"  # in how many panes of the window a key occurs


class SlidingWindows:
    """Walks closed windows in order and yields their rows: keys, pane, accumulators."""

    def __init__(self, spec: AggregateSpec, windows: Windows, state: KeyedState) -> None:
        self._windows = windows
        self._state = state
        self._keys = len(spec.keys)
        self._accumulators = accumulators_of(spec.aggregates)
        self.is_invertible = all(
            accumulator.merge == "add" and accumulator.type.is_integer
            for accumulator in self._accumulators
        )
        self._running_schema = self._schema(spec)
        self._running: KeyedState | None = None
        self._first, self._last = 0, -1  # the panes that the running rows hold, both included

    def _schema(self, spec: AggregateSpec) -> StateSchema:
        """Beside each sum: in how many panes it is not null, since a sum can come back to zero."""
        values = [ValueColumn(_PANES, pa.int64(), MergeRule.COUNT)]
        for index in range(len(self._accumulators)):
            values.append(ValueColumn(f"a{index}", pa.int64(), MergeRule.COUNT))
            values.append(ValueColumn(f"n{index}", pa.int64(), MergeRule.COUNT))
        return StateSchema(key_columns(spec), tuple(values))

    def forget(self) -> None:
        """The panes are not what they were: rebuild before the next window."""
        self._running = None

    def touched(self, pane_min: int) -> None:
        """Rows were added to panes from this one on; forget if the running rows hold one."""
        if pane_min <= self._last:
            self.forget()

    def drop_upto(self, pane: int) -> None:
        """The state is about to drop the panes up to this one."""
        if self._running is not None:
            self._shrink(pane + 1)

    def rows(self, first: int, last: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each window from first to last that has any, in order of window and key."""
        panes, _ = self._state.panes()
        window = first
        while window <= last:
            nearest = panes[np.searchsorted(panes, self._windows.panes_of(window)[0]) :]
            if not nearest.size:
                return
            window = max(window, self._windows.windows_of(int(nearest[0]))[0])
            if window > last:
                return
            rows = self._of(window)
            if rows.num_rows:
                yield window, rows
            window += 1

    def _of(self, window: int) -> pa.RecordBatch:
        if not self.is_invertible:
            return self._state.window_rows(*self._windows.panes_of(window))
        self._move_to(window)
        return self._read()

    def _move_to(self, window: int) -> None:
        begin, end = self._windows.panes_of(window)
        if self._running is None or begin < self._first:
            self._restart(begin)
        self._shrink(begin)
        self._add(self._last + 1, end, 1)
        self._last = end

    def _restart(self, begin: int) -> None:
        self._running = KeyedState("running", self._running_schema, bytes_max=self._state.bytes_max)
        self._first, self._last = begin, begin - 1

    def _shrink(self, begin: int) -> None:
        """Subtract the panes before this one."""
        if begin > self._last:
            self._restart(begin)
        elif begin > self._first:
            self._add(self._first, begin - 1, -1)
            self._first = begin

    def _add(self, pane_from: int, pane_to: int, sign: int) -> None:
        """Add or subtract the rows of some panes."""
        assert self._running is not None
        rows = self._state.rows(pane_from, pane_to)
        if not rows.num_rows:
            return
        values = [pa.array(np.full(rows.num_rows, sign, np.int64))]
        for column in rows.columns[self._keys + 1 :]:
            there = np.asarray(column.is_valid()).astype(np.int64)
            values.append(pa.array(sign * column.fill_null(0).to_numpy()))
            values.append(pa.array(sign * there))
        self._running.merge(rows.columns[: self._keys], None, values)
        self._running.discard_changes()

    def _read(self) -> pa.RecordBatch:
        assert self._running is not None
        rows = self._running.scan()
        gone = rows.column(_PANES).to_numpy() == 0
        if gone.any():
            if self._keys:
                self._running.delete(rows.filter(pa.array(gone)).columns[: self._keys])
                self._running.discard_changes()
            rows = rows.filter(pa.array(~gone))
        columns = rows.columns[: self._keys + 1]
        for index, accumulator in enumerate(self._accumulators):
            total = rows.column(f"a{index}").to_numpy()
            there = rows.column(f"n{index}").to_numpy() > 0
            columns.append(pa.array(total, mask=~there if accumulator.nullable else None))
        return pa.RecordBatch.from_arrays(columns, schema=self._state.schema.row_schema)
