"""The partial aggregate: rows become accumulators per key and pane before an exchange."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import RowError
from penstock.kernels.block import Block, StepRows
from penstock.operators.groups import partials_batch, with_the_one_group
from penstock.operators.reduction import Reduction
from penstock.operators.specs import PartialAggregateSpec


class PartialGroups:
    """Groups each batch by itself, as long as that leaves fewer rows than it takes."""

    def __init__(self, spec: PartialAggregateSpec, block: Block) -> None:
        self._spec = spec
        self._block = block
        self.reduction = Reduction()

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        partials = self._block.aggregate(
            batch, collect_bad=collect_bad, alone=self.reduction.is_poor
        )
        grouped = with_the_one_group(partials, self._spec)
        rows = partials_batch(grouped, self._spec)
        if not partials.bad_rows:  # else it runs once more, without them
            self.reduction.note(int(grouped.rows.sum()), rows.num_rows)
        return StepRows(
            rows, max_event_time_us=partials.max_event_time_us, bad_rows=partials.bad_rows
        )

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        return self._block.row_errors(batch, rows)

    def explain(self) -> list[tuple[str, str]]:
        return self._block.explain()

    def ask_for_kernels(self) -> None:
        self._block.ask_for_kernels()
