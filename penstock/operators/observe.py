"""Observing rows on their way: what they amount to is kept beside them, and nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import RowError
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import Block, StepRows
from penstock.kernels.columns import plain
from penstock.operators.groups import partials_batch
from penstock.operators.specs import OBSERVED, WEIGHT_COLUMN, ObserveSpec

_OBSERVED = arrow_schema(OBSERVED)


class Observe:
    """Keeps the partials of the batch that it was run for last, or the columns that are read."""

    def __init__(self, spec: ObserveSpec, input_schema: Schema, block: Block | None) -> None:
        """`block` makes the partials; None: rows are kept."""
        self.spec = spec
        self.made = input_schema
        self._block = block
        self._kept: pa.RecordBatch | None = None

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        """A batch that is run again, without rows that failed, counts as it was run last."""
        self._kept = None
        rows, places = batch, None
        if WEIGHT_COLUMN in batch.schema.names:  # of rows that change, the new ones are shown
            came = pc.greater(batch.column(WEIGHT_COLUMN), 0)
            rows, places = batch.filter(came), np.flatnonzero(came)
        if not rows.num_rows:
            return StepRows(batch)
        if self._block is None:
            names = [field.name for field in self.spec.kept]
            columns = [plain(rows.column(name)) for name in names]
            self._kept = pa.RecordBatch.from_arrays(columns, names)
            return StepRows(batch)
        partials = self._block.aggregate(rows, collect_bad=collect_bad, alone=False)
        self._kept = partials_batch(partials, self.spec.partial)
        bad = partials.bad_rows
        if places is not None:
            bad = tuple(int(places[row]) for row in bad)
        return StepRows(batch, bad_rows=bad)

    def take(self) -> pa.RecordBatch | None:
        """What was kept, once."""
        kept, self._kept = self._kept, None
        return kept

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        assert self._block is not None, "rows that are kept do not fail"
        return self._block.row_errors(batch, rows)

    def explain(self) -> list[tuple[str, str]]:
        return [] if self._block is None else self._block.explain()

    def ask_for_kernels(self) -> None:
        if self._block is not None:
            self._block.ask_for_kernels()


def observed_rows(spec: ObserveSpec, kept: pa.RecordBatch) -> pa.RecordBatch:
    """What was kept, as the stream of what a query observes has it."""
    body = kept.serialize().to_pybytes()
    columns = [pa.array([spec.digest], pa.string()), pa.array([body], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_OBSERVED)


def kept_rows(spec: ObserveSpec, body: bytes) -> pa.RecordBatch:
    """What was kept, back from the stream."""
    return pa.ipc.read_record_batch(pa.py_buffer(body), arrow_schema(spec.kept))
