"""Rows on their way into groups one by one, where no loop keeps what is accumulated.

One block computes keys, time and arguments; what each row is worth by itself then goes to the
state, which merges row after row by its rules. So the order of processing is that of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers
from penstock.expressions.tree import Expression, columns_of
from penstock.expressions.types import Field, arrow_type
from penstock.kernels.block import Block, BlockSpec, StepRows
from penstock.kernels.columns import combined, plain
from penstock.kernels.hashing import hash_columns
from penstock.loops import Hashes
from penstock.operators.contract import Prepared, Tools
from penstock.operators.front import Fusion, failures
from penstock.operators.groups import of_no_rows
from penstock.operators.late import LateRows
from penstock.operators.specs import (
    PLACE,
    Accumulator,
    AggregateSpec,
    PartialAggregateSpec,
    accumulators_of,
    collections_of,
)
from penstock.operators.windows import panes_of_rows


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows by key and pane, with the accumulators that each is worth."""

    keys: list[pa.Array]
    panes: Numbers
    hashes: Hashes
    values: list[pa.Array]
    items: list[list[pa.Array]]  # of each collection
    places: int  # how many the batch had, also of rows that are not here

    def batch(self, spec: PartialAggregateSpec) -> pa.RecordBatch:
        """As partials of one row each."""
        ones = pa.array(np.ones(len(self.panes), np.int64))
        panes = [] if spec.window is None else [pa.array(self.panes)]
        columns = [*self.keys, *panes, ones, *self.values]
        return pa.RecordBatch.from_arrays(columns, names=[field.name for field in spec.schema])


class RowGroups:
    """Makes rows of a batch what a state merges."""

    def __init__(self, fusion: Fusion, spec: AggregateSpec, tools: Tools) -> None:
        self._spec = spec
        self._accumulators = accumulators_of(spec.aggregates)
        self._keys = [fusion.inlined(key) for _, key in spec.partial.grouped_by]
        self._time = None if spec.window is None else fusion.inlined(spec.window.time)
        self._arguments = [
            [fusion.inlined(argument) for argument in accumulator.arguments]
            for accumulator in self._accumulators
        ]
        self._collections = [
            [fusion.inlined(argument) for argument in collection.arguments]
            for collection in collections_of(spec.aggregates)
        ]
        wanted = [*self._keys, *chain(*self._arguments, *self._collections)]
        if self._time is not None:
            wanted.insert(0, self._time)
        self._names = {expression: f"x{at}" for at, expression in enumerate(dict.fromkeys(wanted))}
        self._has_places = any(PLACE in columns_of(each) for each in self._names)
        schema = (*fusion.schema, *([_PLACE_FIELD] if self._has_places else []))
        outputs = tuple((name, expression) for expression, name in self._names.items())
        filters = tuple(fusion.filters)
        self.block = Block(BlockSpec(schema, filters, outputs, fusion.event_time), tools.cache)
        self._late = LateRows(fusion, tools)

    def prepare(
        self, batch: pa.RecordBatch, closed_pane: int, collect_bad: bool, place: int
    ) -> Prepared:
        """What a batch brings, whose first row has this place; and which of its rows are late."""
        given = self._with_places(batch, place) if self._has_places else batch
        made = self.block.run(given, collect_bad)
        bad = failures(self.block, given, made.bad_rows)
        if self._time is None:
            rows = self._grouped(made.batch, np.zeros(made.batch.num_rows, np.int64), batch)
            return Prepared(rows, 0, None, made.max_event_time_us, bad)
        assert self._spec.window is not None
        times = made.batch.column(self._names[self._time])
        panes, is_timed = panes_of_rows(
            self._spec.window, made, times, self._time, collect_bad, bad
        )
        is_late = is_timed & (panes <= closed_pane)
        late, failing = self._late.of(batch, _origins(made, is_late), collect_bad)
        bad |= {row: error for row, error in failing.items() if row not in bad}
        stays = is_timed & ~is_late
        rows = self._grouped(made.batch.filter(pa.array(stays)), panes[stays], batch)
        count = int(np.count_nonzero(is_late))
        return Prepared(rows, count, late, made.max_event_time_us, bad)

    def _with_places(self, batch: pa.RecordBatch, place: int) -> pa.RecordBatch:
        places = pa.array(np.arange(place, place + batch.num_rows))
        columns, names = [*batch.columns, places], [*batch.schema.names, PLACE.name]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _grouped(self, rows: pa.RecordBatch, panes: Numbers, batch: pa.RecordBatch) -> GroupRows:
        keys = [combined(rows.column(self._names[key])) for key in self._keys]
        if self._spec.has_one_group and not rows.num_rows:
            return self._one_group(batch.num_rows)
        values = [
            self._worth(accumulator, arguments, rows)
            for accumulator, arguments in zip(self._accumulators, self._arguments, strict=True)
        ]
        items = [self._columns(arguments, rows) for arguments in self._collections]
        hashes = hash_columns(keys, len(panes))
        return GroupRows(keys, panes, hashes, values, items, batch.num_rows)

    def _worth(
        self, accumulator: Accumulator, arguments: Sequence[Expression], rows: pa.RecordBatch
    ) -> pa.Array:
        if not arguments:
            return pa.array(np.ones(rows.num_rows, np.int64))
        return accumulator.row.rows(self._columns(arguments, rows), accumulator.type)

    def _columns(self, arguments: Sequence[Expression], rows: pa.RecordBatch) -> list[pa.Array]:
        return [plain(combined(rows.column(self._names[each]))) for each in arguments]

    def _one_group(self, places: int) -> GroupRows:
        """An aggregate without keys and window has one group, also if no row has reached it."""
        values = of_no_rows(self._accumulators, 1)
        items = [
            [pa.nulls(1, arrow_type(each.type)) for each in arguments]
            for arguments in self._collections
        ]
        return GroupRows([], np.zeros(1, np.int64), hash_columns([], 1), values, items, places)


_PLACE_FIELD = Field(PLACE.name, PLACE.type, PLACE.nullable)


def _origins(made: StepRows, chosen: Mask) -> Numbers:
    """The input rows that these rows come from."""
    rows = np.flatnonzero(chosen)
    return rows if made.rows is None else made.rows[rows]
