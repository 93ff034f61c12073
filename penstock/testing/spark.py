"""Python functions in the place of Spark's, for programs that run without a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask
from penstock.expressions.types import arrow_type
from penstock.operators.specs import SparkColumn


class StandInSpark:
    """Computes columns row by row: a digest is the name of a function of the inputs' values.

    A row for which a function raises is one that fails.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions

    def compute(
        self, columns: Sequence[SparkColumn], rows: pa.RecordBatch
    ) -> tuple[list[pa.Array], Mask]:
        bad: Mask = np.zeros(rows.num_rows, np.bool_)
        values: list[list[Any]] = [[] for _ in columns]
        for at, row in enumerate(rows.to_pylist()):
            for column, made in zip(columns, values, strict=True):
                try:
                    made.append(self._value(column, row))
                except ArithmeticError:
                    made.append(None)
                    bad[at] = True
        pairs = zip(values, columns, strict=True)
        return [pa.array(made, arrow_type(column.result.type)) for made, column in pairs], bad

    def failure(self, columns: Sequence[SparkColumn], row: pa.RecordBatch) -> tuple[str, str]:
        for column in columns:
            try:
                self._value(column, row.to_pylist()[0])
            except ArithmeticError as error:
                return str(error), column.text
        raise AssertionError("a row fails that was computed")

    def _value(self, column: SparkColumn, row: dict[str, Any]) -> Any:
        return self._functions[column.digest](*(row[name] for name in column.input_names))
