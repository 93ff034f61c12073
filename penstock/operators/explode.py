"""Explode: one row per element of an array."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import pyarrow as pa

from penstock.arrays import Numbers
from penstock.errors import RowError
from penstock.expressions.evaluate import evaluate_rows, evaluate_with_failures
from penstock.expressions.frame import row_error
from penstock.expressions.regex import plain_text
from penstock.expressions.tree import Call, Expression
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import StepRows
from penstock.kernels.coding import coded_pieces
from penstock.kernels.columns import plain
from penstock.operators.specs import GenerateSpec


class Explode:
    """One row per element of an array, with those columns that are read behind it.

    Elements that rows are grouped by are coded as they are found, where a text is split into them.
    """

    def __init__(
        self, spec: GenerateSpec, input_schema: Schema, read: Set[str], is_key: bool
    ) -> None:
        self._spec = spec
        self._repeated = [field.name for field in input_schema if field.name in read]
        kept = tuple(field for field in input_schema if field.name in read)
        self.made = spec.added_to(kept)  # the columns that come out
        self._schema = arrow_schema(self.made)
        self._separator = _separator(spec.expression) if is_key else None

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        expression = self._spec.expression
        if self._separator is not None:
            assert isinstance(expression, Call)
            expression = expression.args[0]
        (values,), bad, error = evaluate_rows([expression], batch)
        bad_rows: tuple[int, ...] = ()
        kept: Numbers | None = None
        if error is not None:
            if not collect_bad:
                raise error
            bad_rows = tuple(np.flatnonzero(bad).tolist())
            kept = np.flatnonzero(~bad)
            values = values.take(pa.array(kept))
            batch = batch.take(pa.array(kept))
        lists = values if self._separator is None else coded_pieces(values, self._separator)
        return self._exploded(lists, batch, kept, bad_rows)

    def _exploded(
        self,
        lists: pa.ListArray,
        batch: pa.RecordBatch,
        kept: Numbers | None,
        bad_rows: tuple[int, ...],
    ) -> StepRows:
        lengths = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)
        repeats = np.maximum(lengths, 1) if self._spec.outer else lengths
        ends = np.cumsum(repeats)
        columns = []
        if self._repeated:
            parents = pa.array(np.repeat(np.arange(len(lists)), repeats))
            columns = [plain(batch.column(name)).take(parents) for name in self._repeated]
        elements = lists.flatten()  # leaves out null lists, whatever lies under them
        if self._spec.outer or self._spec.position is not None:
            empty = np.repeat(lengths == 0, repeats)
            places = np.arange(empty.size) - np.repeat(ends - repeats, repeats)
            if self._spec.position is not None:
                columns.append(pa.array(places.astype(np.int32), mask=empty))
            if self._spec.outer:
                starts = np.repeat(np.cumsum(lengths) - lengths, repeats)
                found = pa.array(np.where(empty, 0, starts + places), mask=empty)
                elements = elements.take(found)
        columns.append(elements)
        element = self._schema.field(len(columns) - 1).with_type(elements.type)
        schema = self._schema.set(len(columns) - 1, element)
        exploded = pa.RecordBatch.from_arrays(columns, schema=schema)
        return StepRows(exploded, kept, None, bad_rows, ends)

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        some = batch.take(pa.array(rows, pa.int64()))
        _, failures = evaluate_with_failures([self._spec.expression], some)
        return [row_error(row, *failures.cause(place)) for place, row in enumerate(rows)]

    def explain(self) -> list[tuple[str, str]]:
        return [(f"explode({self._spec.expression})", "arrow")]

    def ask_for_kernels(self) -> None:
        """It has none."""


def _separator(expression: Expression) -> int | None:
    """The one byte that a text is split at, if the expression does so."""
    if not isinstance(expression, Call) or expression.function != "split":
        return None
    text = plain_text(expression.option("pattern"))
    return ord(text) if text is not None and len(text) == 1 and text.isascii() else None
