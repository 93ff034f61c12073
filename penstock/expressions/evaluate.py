"""Evaluation of expressions over Arrow batches, with the values and the errors that Spark gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask
from penstock.errors import RowError
from penstock.expressions.frame import Failures, Frame
from penstock.expressions.nodes import Column, Expression, columns_of, may_fail


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The value of an expression on every row; a RowError names the first row that fails."""
    arrays, _, first_error = evaluate_rows([expression], batch)
    if first_error is not None:
        raise first_error
    return arrays[0]


def evaluate_rows(
    expressions: Sequence[Expression], batch: pa.RecordBatch
) -> tuple[list[pa.Array], Mask, RowError | None]:
    """The values, the rows on which any expression failed, and the error of the first such row.

    Values of a failed row mean nothing: drop the row (or send it to the dead-letter stream). The
    values of all other rows are final, nothing needs to be computed again.
    """
    arrays, failures = evaluate_with_failures(expressions, batch)
    return arrays, failures.bad, failures.first


def evaluate_with_failures(
    expressions: Sequence[Expression], batch: pa.RecordBatch
) -> tuple[list[pa.Array], Failures]:
    """As `evaluate_rows`, with the cause of every failure."""
    failures = Failures(batch.num_rows)
    frame = Frame(batch, None, failures)
    with np.errstate(all="ignore"):  # every overflow that matters is checked by hand
        arrays = [_by_dictionary(expression, frame) for expression in expressions]
    return arrays, failures


def _by_dictionary(expression: Expression, frame: Frame) -> pa.Array:
    """The value, found once for each distinct text where it depends on one column that has codes.

    Not of what may fail: then the rows that do are to be known.
    """
    names = {column.name for column in columns_of(expression)}
    coded = names.intersection(
        field.name for field in frame.batch.schema if pa.types.is_dictionary(field.type)
    )
    if len(names) != 1 or not coded or isinstance(expression, Column) or may_fail(expression):
        return frame.value(expression)
    (name,) = coded
    column = frame.batch.column(name)
    values = column.dictionary
    if len(values) > len(column):
        return frame.value(expression)
    with_null = pa.concat_arrays([values, pa.nulls(1, values.type)])
    distinct = pa.RecordBatch.from_arrays([with_null], [name])
    found = Frame(distinct, None, Failures(len(with_null))).value(expression)
    return found.take(column.indices.fill_null(len(values)))
