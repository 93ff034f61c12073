"""Python functions as steps of a chain: columns of rows, rows of rows, batches of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import pyarrow as pa

from penstock.errors import ExpressionError, RowError
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import StepRows
from penstock.kernels.columns import plain
from penstock.operators.contract import Tools
from penstock.operators.python_functions import PYTHON_CONDITION, Failure, PythonFunction
from penstock.operators.specs import PythonCall, PythonRowsSpec, PythonSpec


class _Calls:
    """Calls the functions of one step, each once for a batch, and keeps why rows of it failed.

    Rows that are made up, to have the rest of a chain ready, reach no function.
    """

    def __init__(self, calls: Sequence[PythonCall], tools: Tools) -> None:
        self._calls = calls
        self._tools = tools
        self._causes: dict[int, tuple[Failure, PythonCall]] = {}  # by row of the last batch

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        return [self._error(row) for row in rows]

    def explain(self) -> list[tuple[str, str]]:
        return [(call.text, "python") for call in self._calls]

    def ask_for_kernels(self) -> None:
        """It has none."""

    def _function(self, call: PythonCall) -> PythonFunction:
        if self._tools.python is None:
            raise ExpressionError(
                f"{call.text:.200} is a Python function, and there is no code here: only slots of "
                "the driver that planned the query have it"
            )
        return self._tools.python.of(call)

    def _is_idle(self, batch: pa.RecordBatch) -> bool:
        """Whether there is nothing to call a function for."""
        self._causes = {}
        return self._tools.is_rehearsal or not batch.num_rows

    def _note(self, failures: Mapping[int, Failure], call: PythonCall) -> None:
        for row, failure in failures.items():
            self._causes.setdefault(row, (failure, call))

    def _bad_rows(self, collect_bad: bool) -> tuple[int, ...]:
        bad_rows = tuple(sorted(self._causes))
        if bad_rows and not collect_bad:
            raise self._error(bad_rows[0])
        return bad_rows

    def _error(self, row: int) -> RowError:
        failure, call = self._causes[row]
        return RowError(
            f"row {row}: {failure.reason} in Python function {call.text:.500}; correct the row or "
            f"the function, or name a dead-letter stream\n{failure.trace}".rstrip(),
            row=row,
            reason=failure.reason,
            expression=call.text[:10_000],
            traceback=failure.trace,
            condition=PYTHON_CONDITION,
        )


class PythonColumns(_Calls):
    """Adds columns that functions give."""

    def __init__(self, spec: PythonSpec, input_schema: Schema, tools: Tools) -> None:
        super().__init__(spec.calls, tools)
        self._spec = spec
        self.made = spec.output_schema(input_schema)  # the columns that come out
        self._schema = arrow_schema(self.made)

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        is_idle = self._is_idle(batch)
        added: list[pa.Array] = []
        for column in self._spec.columns:
            kind = self._schema.field(column.result.name).type
            if is_idle:
                added.append(pa.nulls(batch.num_rows, kind))
                continue
            function, rows = self._function(column.call), _inputs(batch, column.call)
            values, failures = function.column(rows, kind, first_only=not collect_bad)
            self._note(failures, column.call)
            added.append(values)
        bad_rows = self._bad_rows(collect_bad)
        kept = None
        if bad_rows:
            kept = np.setdiff1d(np.arange(batch.num_rows), bad_rows)
            batch = batch.take(pa.array(kept))
            added = [values.take(pa.array(kept)) for values in added]
        columns = [*map(plain, batch.columns), *added]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return StepRows(made, kept, None, bad_rows)


class PythonRows(_Calls):
    """Makes rows: some of each row, which are repeated beside them, or a batch of a batch."""

    def __init__(
        self, spec: PythonRowsSpec, input_schema: Schema, read: Set[str], tools: Tools
    ) -> None:
        super().__init__(spec.calls, tools)
        self._spec = spec
        kept = tuple(field for field in input_schema if field.name in read)
        self._repeated = [field.name for field in kept] if spec.repeats else []
        self.made = spec.added_to(kept)  # the columns that come out
        self._schema = arrow_schema(self.made)
        self._outputs = arrow_schema(spec.outputs)

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        if self._is_idle(batch):
            return StepRows(
                _no_rows(self._schema), np.zeros(0, np.int64), ends=np.zeros(0, np.int64)
            )
        function, rows = self._function(self._spec.call), _inputs(batch, self._spec.call)
        if not self._spec.repeats:
            return StepRows(function.batches(rows, self._outputs), has_origins=False)
        made, ends, failures = function.table(rows, self._outputs, first_only=not collect_bad)
        self._note(failures, self._spec.call)
        bad_rows = self._bad_rows(collect_bad)
        counts = np.diff(ends, prepend=0)
        parents = pa.array(np.repeat(np.arange(batch.num_rows), counts))
        columns = [plain(batch.column(name)).take(parents) for name in self._repeated]
        exploded = pa.RecordBatch.from_arrays([*columns, *made.columns], schema=self._schema)
        return StepRows(exploded, None, None, bad_rows, ends)


def _inputs(batch: pa.RecordBatch, call: PythonCall) -> pa.RecordBatch:
    """What a function is to see; without arguments only how many rows there are."""
    if not call.inputs:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["rows"])
    columns = [plain(batch.column(name)) for name in call.input_names]
    return pa.RecordBatch.from_arrays(columns, names=[f"_{at}" for at in range(len(columns))])


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
