"""An aggregate as a vertex runs it: partials into state, and rows out as its mode says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import StateOverflow
from penstock.expressions.types import arrow_schema
from penstock.kernels.block import PANE_NONE, Partials
from penstock.operators.groups import StateProvider, merge_batch, merge_partials, state_schema
from penstock.operators.results import finished
from penstock.operators.sliding import SlidingWindows
from penstock.operators.specs import AggregateSpec, accumulators_of
from penstock.operators.windows import Windows
from penstock.state.columns import PANE_NAME
from penstock.state.keyed import KeyedState

Batches = tuple[pa.RecordBatch, ...]


class Aggregator:
    """One aggregate over its own keyed state.

    The runtime's order of calls between two markers: any number of merges, `on_watermark` when the
    watermark rose, `on_commit`; then it takes the state's changes. What survives a crash is the
    state and `watermark_us`.
    """

    def __init__(self, name: str, spec: AggregateSpec, provide: StateProvider) -> None:
        self.name = name
        self.spec = spec
        self.state: KeyedState = provide(name, state_schema(spec))
        self.watermark_us: int | None = None
        self._accumulators = accumulators_of(spec.aggregates)
        self._windows = None if spec.window is None else Windows(spec.window)
        self._sliding: SlidingWindows | None = None
        if self._windows is not None and not self._windows.is_tumbling:
            self._sliding = SlidingWindows(spec, self._windows, self.state)
        self._schema = arrow_schema(spec.schema)

    def restore(self, watermark_us: int | None) -> None:
        """The state was restored to a marker; this is what the marker knew beside it."""
        self.watermark_us = watermark_us
        if self._sliding is not None:
            self._sliding.forget()

    # --- input ------------------------------------------------------------------------------------

    def closed_pane(self, watermark_us: int | None) -> int:
        """Rows of this pane and before are late, by the newer of this mark and the last one."""
        if not self.spec.forgets or self._windows is None:
            return PANE_NONE
        known = [mark for mark in (watermark_us, self.watermark_us) if mark is not None]
        return self._windows.closed_pane(max(known) if known else None)

    def merge(self, partials: Partials) -> None:
        merge_partials(self.state, self.spec, partials)
        self._touched(partials.panes)

    def merge_batch(self, batch: pa.RecordBatch, watermark_us: int | None) -> int:
        """Merge partials of an exchange; return how many rows of theirs were late."""
        late, panes = merge_batch(self.state, self.spec, batch, self.closed_pane(watermark_us))
        self._touched(panes)
        return late

    def _touched(self, panes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if self._sliding is not None and panes.size:
            self._sliding.touched(int(panes.min()))

    # --- output -----------------------------------------------------------------------------------

    def on_watermark(self, watermark_us: int) -> Batches:
        """Emit what the watermark finishes, and forget it."""
        before = self.watermark_us
        if before is not None and watermark_us <= before:
            return ()
        self.watermark_us = watermark_us
        if self._windows is None or not self.spec.forgets:
            return ()
        last = self._windows.last_closed(watermark_us)
        if before is not None and last == self._windows.last_closed(before):
            return ()  # most watermarks close nothing
        batches = self._closed(before, last) if self.spec.mode == "append" else ()
        if self.spec.mode == "update":
            batches = self._updates(self._first_open(before), last)
        closed_pane = self._windows.closed_pane(watermark_us)
        if self._sliding is not None:
            self._sliding.drop_upto(closed_pane)
        self.state.drop_panes(closed_pane)
        return batches

    def on_commit(self) -> Batches:
        """Emit, in update mode, what changed since the last commit; in complete mode everything."""
        if self.spec.mode == "append" or not self.state.has_changes:
            return ()
        if self.spec.mode == "update":
            return self._updates(self._first_open(self.watermark_us), None)
        if self._sliding is None:
            return self._emitted(self.state.scan())
        panes, _ = self.state.panes()
        first, last = self._span(panes)
        return self._window_batches(first, last)

    def _first_open(self, watermark_us: int | None) -> int | None:
        if self._windows is None or watermark_us is None or not self.spec.forgets:
            return None
        return self._windows.last_closed(watermark_us) + 1

    def _closed(self, before: int | None, last: int) -> Batches:
        assert self._windows is not None
        if self._sliding is None:
            return self._emitted(self.state.rows(PANE_NONE, max(last, PANE_NONE)))
        panes, _ = self.state.panes()
        if not panes.size:
            return ()
        first, newest = self._span(panes)
        begin = self._first_open(before)
        return self._window_batches(
            first if begin is None else max(first, begin), min(last, newest)
        )

    def _span(self, panes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
        """The first and the last window that any of these panes is in."""
        assert self._windows is not None
        if not panes.size:
            return 0, -1
        first, _ = self._windows.windows_of(int(panes[0]))
        _, last = self._windows.windows_of(int(panes[-1]))
        return first, last

    def _window_batches(self, first: int, last: int) -> Batches:
        assert self._sliding is not None
        # All of them before the state changes; only the accumulators are let go one by one.
        return tuple(map(self._finished, self._sliding.rows(first, last)))

    def _updates(self, first: int | None, last: int | None) -> Batches:
        """Changed groups, of the windows from first to last; None: without bound."""
        changed = self.state.changed_rows()
        if self._windows is None or not changed.num_rows:
            return self._emitted(changed)
        panes = changed.column(PANE_NAME).to_numpy()
        lowest, highest = self._span(np.sort(panes))
        first = lowest if first is None else max(first, lowest)
        last = highest if last is None else min(last, highest)
        if self._sliding is None:
            inside = (panes >= first) & (panes <= last)
            return self._emitted(changed.filter(pa.array(inside)))
        overlap = self._windows.overlap
        windows = overlap.windows_over(np.unique(panes), first, last)
        rows = self.state.window_rows(windows, overlap, only_changed=True)
        return tuple(map(self._finished, rows))

    def _emitted(self, rows: pa.RecordBatch) -> Batches:
        if not rows.num_rows:
            return ()
        return (self._finished(rows),)

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of accumulators as rows of the output; their pane is their window."""
        keys = len(self.spec.keys)
        columns = list(rows.columns[:keys])
        if self._windows is not None:
            columns.insert(0, self._windows.column(rows.column(PANE_NAME).to_numpy()))
        accumulated = rows.columns[keys + 1 :]
        for aggregate in self.spec.aggregates:
            column = finished(aggregate, self._accumulators, accumulated)
            self._check_digits(aggregate.name, column)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _check_digits(self, name: str, column: pa.Array) -> None:
        """A decimal sum is kept in 64 bits, which hold a little more than its 18 digits."""
        if not pa.types.is_decimal(column.type):
            return
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise StateOverflow(
                f"{name} ({column.type}) in state {self.name!r} has more digits than its type: "
                "cast the argument to a wider type or to double",
                state=self.name,
                column=name,
            ) from error
