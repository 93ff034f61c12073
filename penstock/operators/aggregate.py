"""An aggregate as a vertex runs it: partials into state, and rows out as its mode says."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expressions.types import arrow_schema
from penstock.kernels.block import PANE_NONE, Block, Partials
from penstock.operators.contract import Batches, Prepared, Tools
from penstock.operators.front import Fusion, failures
from penstock.operators.groups import (
    groups_of,
    key_arrays,
    merge_batch,
    merge_nothing,
    merge_partials,
    of_no_rows,
    open_partials,
    state_schema,
    with_the_one_group,
)
from penstock.operators.items import KeptItems
from penstock.operators.late import LateRows
from penstock.operators.row_groups import GroupRows, RowGroups
from penstock.operators.shown import Changes, Shown, weighed
from penstock.operators.sliding import SlidingWindows
from penstock.operators.specs import AggregateSpec, SessionSpec, accumulators_of
from penstock.operators.timed import TimedOperator
from penstock.operators.windows import Windows, overlap_of
from penstock.state.columns import PANE_NAME
from penstock.state.keyed import KeyedState


class Grouped(TimedOperator):
    """Groups rows by keys, over its own keyed state of accumulators.

    What survives a crash is the state, the watermark, and how many rows there were if that matters.
    """

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        """`fusions` are what stands right before it, if it computes that too."""
        self.name = name
        self.spec = spec
        self.state = KeyedState(name, state_schema(spec), bytes_max=tools.state_bytes_max)
        self._items = KeptItems(name, spec, tools.state_bytes_max, overlap_of(spec.window))
        self.states = {name: self.state, **self._items.states}
        self._accumulators = accumulators_of(spec.aggregates)
        self._schema = arrow_schema(spec.groups_schema)
        self._groups: _Groups | RowGroups | None = None
        self._place = 0  # of the next row, in the order of processing
        if spec.fuses:
            make = _Groups if spec.partial.in_loop else RowGroups
            self._groups = make(fusions[0], spec, tools)

    def progress(self) -> Any:
        return [self._watermark_us, self._place]

    def restore_progress(self, progress: Any) -> None:
        self._watermark_us, self._place = progress or (None, 0)

    def blocks(self) -> Sequence[Block]:
        return () if self._groups is None else (self._groups.block,)

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        newest, closed_pane = self._newest(watermark_us), PANE_NONE
        if newest is not None and self.spec.forgets:
            closed_pane = self._closed_pane(newest)
        if self._groups is None:
            rows, late_rows = open_partials(self.spec, batch, closed_pane)
            return Prepared(rows, late_rows)
        return self._groups.prepare(batch, closed_pane, collect_bad, self._place)

    @abstractmethod
    def _closed_pane(self, watermark_us: int) -> int:
        """Rows of this pane and before are late by a watermark that ends groups."""

    @abstractmethod
    def _window_column(self, rows: pa.RecordBatch) -> pa.Array | None:
        """The windows of rows of the state, as structs of start and end."""

    def owes_whole_result(self) -> bool:
        return self.spec.shows_whole and self.state.has_changes

    def _emitted(self, rows: pa.RecordBatch) -> Batches:
        if not rows.num_rows:
            return ()
        return (self._finished(rows),)

    def of_no_rows(self, keys: list[pa.Array], count: int) -> pa.RecordBatch:
        """What would be emitted of groups that have no rows."""
        values = of_no_rows(self._accumulators, count)
        columns = [*keys, pa.array(np.zeros(count, np.int64)), *values]
        schema = self.state.schema.row_schema
        return self._finished(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of accumulators as rows of the output."""
        keys = len(self.spec.keys)
        columns = list(rows.columns[:keys])
        window = self._window_column(rows)
        if window is not None:
            columns.insert(0, window)
        accumulated = rows.columns[keys + 1 :]
        of_items = self._items.finish(rows)
        for aggregate in self.spec.aggregates:
            column = of_items.get(aggregate.name)
            if column is None:
                column = aggregate.finish(self._accumulators, accumulated)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class Aggregate(Grouped):
    """Groups by keys and windows that are equally long, or by keys alone."""

    def __init__(
        self, name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        super().__init__(name, spec, fusions, tools)
        assert not isinstance(spec.window, SessionSpec)
        self._windows = None if spec.window is None else Windows(spec.window)
        self._sliding: SlidingWindows | None = None
        if self._windows is not None and not self._windows.is_tumbling:
            self._sliding = SlidingWindows(spec, self._windows, self.state)
        self._shown = Shown(self.state, len(self._accumulators)) if spec.changes else None

    def restore_progress(self, progress: Any) -> None:
        super().restore_progress(progress)
        if self._sliding is not None:
            self._sliding.forget()
        if self._shown is not None:
            self._shown.forget()

    # --- input ------------------------------------------------------------------------------------

    def process(self, port: int, prepared: Prepared) -> Batches:
        if isinstance(prepared.rows, GroupRows):
            rows, panes = prepared.rows, prepared.rows.panes
            if self._shown is not None:
                self._shown.note(rows.keys, panes)
            self.state.merge(rows.keys, panes, rows.values, rows.hashes)
            self._items.merge(rows.keys, panes, rows.hashes, rows.items)
            self._place += rows.places
        elif isinstance(prepared.rows, Partials):
            partials = with_the_one_group(prepared.rows, self.spec)
            if self._shown is not None:
                self._shown.note(key_arrays(partials, self.spec.keys), partials.panes)
            merge_partials(self.state, self.spec, partials)
            panes = partials.panes
        else:
            if self._shown is not None:
                self._shown.note(*groups_of(self.spec, prepared.rows))
            panes = merge_batch(self.state, self.spec, prepared.rows)
        if self._sliding is not None and panes.size:
            self._sliding.touched(int(panes.min()))
        return ()

    def _closed_pane(self, watermark_us: int) -> int:
        assert self._windows is not None
        return self._windows.closed_pane(watermark_us)

    # --- output -----------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit the windows that are over, and forget them."""
        if self.spec.has_one_group and not len(self.state):
            # There was input, or it has ended, and no row of it came as far as here.
            if self._shown is not None:
                self._shown.note([], np.zeros(1, np.int64))
            merge_nothing(self.state, self.spec)
        if self._windows is None or not self.spec.forgets:
            return ()
        last = self._windows.last_closed(watermark_us)
        if before_us is not None and last == self._windows.last_closed(before_us):
            return ()  # most watermarks close nothing
        batches = self._closed(before_us, last) if self.spec.mode == "append" else ()
        if self._shown is not None:
            batches = self._changed(self._shown.take(last))
        elif self.spec.mode == "update":
            batches = self._updates(self._first_open(before_us), last)
        closed_pane = self._windows.closed_pane(watermark_us)
        if self._sliding is not None:
            self._sliding.drop_upto(closed_pane)
        self.state.drop_panes(closed_pane)
        self._items.drop_panes(closed_pane)
        return batches

    def on_commit(self) -> Batches:
        """Emit, in update mode, what changed since the last commit; in complete mode everything."""
        if self._shown is not None:
            return self._changed(self._shown.take())
        if self.spec.mode == "append" or not self.state.has_changes:
            return ()
        if self.spec.mode == "update":
            return self._updates(self._first_open(self._watermark_us), None)
        if self._sliding is None:
            return self._emitted(self.state.scan())
        panes = self.state.panes()
        first, last = self._span(panes)
        return self._window_batches(first, last)

    def _first_open(self, watermark_us: int | None) -> int | None:
        if self._windows is None or watermark_us is None or not self.spec.forgets:
            return None
        return self._windows.last_closed(watermark_us) + 1

    def _closed(self, before_us: int | None, last: int) -> Batches:
        assert self._windows is not None
        if self._sliding is None:
            return self._emitted(self.state.rows(PANE_NONE, max(last, PANE_NONE)))
        panes = self.state.panes()
        if not panes.size:
            return ()
        first, newest = self._span(panes)
        begin = self._first_open(before_us)
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

    def _changed(self, changes: Changes) -> Batches:
        """The rows that go, then those that come."""
        found = ((changes.gone, -1), (changes.come, 1))
        return tuple(
            weighed(self._finished(rows), weight) for rows, weight in found if rows.num_rows
        )

    def _window_column(self, rows: pa.RecordBatch) -> pa.Array | None:
        if self._windows is None:
            return None
        return self._windows.column(rows.column(PANE_NAME).to_numpy())


class _Groups:
    """Rows of a batch as groups, by one loop with what stands before; and the late ones as rows."""

    def __init__(self, fusion: Fusion, spec: AggregateSpec, tools: Tools) -> None:
        self.block = Block(fusion.aggregation(spec), tools.cache)
        self._late = LateRows(fusion, tools)
        self._want_late = tools.want_late

    def prepare(
        self, batch: pa.RecordBatch, closed_pane: int, collect_bad: bool, _place: int
    ) -> Prepared:
        partials = self.block.aggregate(batch, closed_pane, self._want_late, collect_bad)
        bad = failures(self.block, batch, partials.bad_rows)
        late = None
        if partials.late_mask is not None:
            places = np.flatnonzero(partials.late_mask)
            late, failing = self._late.of(batch, places, collect_bad)
            bad |= {row: error for row, error in failing.items() if row not in bad}
        return Prepared(partials, partials.late_rows, late, partials.max_event_time_us, bad)
