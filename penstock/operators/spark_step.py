"""Columns that Spark computes: the rows of a batch go there and come back as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import ExpressionError, RowError
from penstock.expressions.frame import row_error
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import StepRows
from penstock.kernels.columns import plain
from penstock.operators.contract import SparkEvaluator
from penstock.operators.specs import SparkColumn, SparkSpec


class SparkStep:
    """Adds columns that Spark computes, a batch at a time."""

    def __init__(self, spec: SparkSpec, input_schema: Schema, spark: SparkEvaluator | None) -> None:
        """Without Spark nothing can be run, but looked at."""
        self._spec = spec
        self._spark = spark
        self.made = spec.output_schema(input_schema)  # the columns that come out
        self._schema = arrow_schema(self.made)
        self._read = sorted({name for each in spec.columns for name in each.input_names})

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        added, bad = self._evaluator.compute(self._spec.columns, self._inputs(batch))
        kept = None
        bad_rows: tuple[int, ...] = ()
        if bad.any():
            bad_rows = tuple(np.flatnonzero(bad).tolist())
            if not collect_bad:
                raise self.row_errors(batch, bad_rows[:1])[0]
            kept = np.flatnonzero(~bad)
            batch = batch.take(pa.array(kept))
            added = [column.take(pa.array(kept)) for column in added]
        columns = [*map(plain, batch.columns), *added]
        return StepRows(
            pa.RecordBatch.from_arrays(columns, schema=self._schema), kept, None, bad_rows
        )

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        inputs = self._inputs(batch)
        return [
            row_error(row, *self._evaluator.failure(self._spec.columns, inputs.slice(row, 1)))
            for row in rows
        ]

    def explain(self) -> list[tuple[str, str]]:
        return [(column.text, "spark") for column in self._spec.columns]

    def ask_for_kernels(self) -> None:
        """It has none."""

    def _inputs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What Spark is to see; of rows without any such column only how many there are."""
        if not self._read:
            return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["rows"])
        columns = [plain(batch.column(name)) for name in self._read]
        return pa.RecordBatch.from_arrays(columns, names=self._read)

    @property
    def _evaluator(self) -> SparkEvaluator:
        if self._spark is None:
            raise no_session(self._spec.columns)
        return self._spark


def no_session(columns: Sequence[SparkColumn]) -> ExpressionError:
    """Nobody is here who could compute these columns."""
    return ExpressionError(
        f"{columns[0].text:.200} is computed by Spark, and there is no session here: only the "
        "driver that planned the query can host it"
    )
