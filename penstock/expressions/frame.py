"""The rows under evaluation: a batch or some of its rows, and the failures found so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrays import Mask, validity_of
from penstock.errors import ExpressionError, RowError
from penstock.expressions.nodes import (
    Arguments,
    Call,
    Column,
    Expression,
    Literal,
    columns_of,
    may_fail,
)
from penstock.expressions.types import arrow_type
from penstock.expressions.vectors import arrow_column


class Failures:
    """Which rows of one batch failed, and what came first at each of them."""

    def __init__(self, rows: int) -> None:
        self.bad: Mask = np.zeros(rows, dtype=np.bool_)
        self._causes: list[tuple[str, str]] = []
        self._cause_of = np.zeros(rows, np.int64)

    def add(self, rows: npt.NDArray[np.int64], reason: str, expression: Expression) -> None:
        self._cause_of[rows[~self.bad[rows]]] = len(self._causes)
        self._causes.append((reason, str(expression)))
        self.bad[rows] = True

    def cause(self, row: int) -> tuple[str, str]:
        """Why a row failed, and where."""
        return self._causes[int(self._cause_of[row])]

    @property
    def first(self) -> RowError | None:
        """The error of the first row that failed."""
        if not self.bad.any():
            return None
        row = int(self.bad.argmax())
        return row_error(row, *self.cause(row))


def row_error(row: int, reason: str, expression: str) -> RowError:
    """What is said of a row that failed."""
    return RowError(
        f"row {row}: {reason} in {expression:.500}; correct the row, guard the expression "
        "(try_cast, nullif, a filter), or name a dead-letter stream",
        row=row,
        reason=reason,
        expression=expression[:10_000],
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows to evaluate on. Branches narrow it, so that rows not taken cannot fail."""

    batch: pa.RecordBatch
    rows: npt.NDArray[np.int64] | None  # index in the original batch of each row, None: the same
    failures: Failures

    @property
    def num_rows(self) -> int:
        return int(self.batch.num_rows)

    def value(self, expression: Expression) -> pa.Array:
        if isinstance(expression, Column):
            return self.column(expression)
        if isinstance(expression, Literal):
            return literal_array(expression, self.num_rows)
        return expression.row.evaluate(expression, self.arguments(expression), self)

    def arguments(self, node: Call) -> list[pa.Array]:
        """The arguments in Spark's order, as the function's row says."""
        wanted = node.row.arguments
        if wanted is Arguments.BY_FUNCTION:
            return []
        if wanted is Arguments.ALL:
            return [self.value(arg) for arg in node.args]
        order = list(range(len(node.args)))
        if wanted is Arguments.UNTIL_NULL_FROM_RIGHT:
            order.reverse()
        there: Mask = np.ones(self.num_rows, dtype=np.bool_)
        values: dict[int, pa.Array] = {}
        for index in order:
            arg = node.args[index]
            values[index] = self.value_on(arg, there) if may_fail(arg) else self.value(arg)
            if values[index].null_count:
                there = there & validity_of(values[index])
        return [values[index] for index in range(len(node.args))]

    def value_on(self, expression: Expression, taken: Mask) -> pa.Array:
        """The value on the taken rows; null elsewhere, where nothing is computed."""
        if taken.all():
            return self.value(expression)
        indices = np.cumsum(taken) - 1
        computed = self._narrow(taken, expression).value(expression)
        return computed.take(pa.array(indices, mask=~taken))

    def _narrow(self, taken: Mask, expression: Expression) -> Frame:
        """The taken rows, with the columns that an expression reads."""
        kept = np.flatnonzero(taken)
        rows = kept if self.rows is None else self.rows[kept]
        read = {column.name for column in columns_of(expression)}
        names = [name for name in self.batch.schema.names if name in read]
        batch = self.batch.select(names) if names else self.batch
        return Frame(batch.take(pa.array(kept)), rows, self.failures)

    def fail(self, bad: Mask, reason: str, expression: Expression) -> None:
        """Record that these rows of the frame failed."""
        if bad.any():
            at = np.flatnonzero(bad)
            self.failures.add(at if self.rows is None else self.rows[at], reason, expression)

    def column(self, column: Column) -> pa.Array:
        index = self.batch.schema.get_field_index(column.name)
        if index < 0:
            raise ExpressionError(
                f"column {column.name!r:.200} is not in the batch, or twice: it has "
                f"{', '.join(self.batch.schema.names)[:500]}",
                column=column.name,
            )
        array = self.batch.column(index)
        wanted = arrow_type(column.type)
        if array.type.equals(wanted):
            return array
        if pa.types.is_dictionary(array.type) and array.type.value_type.equals(wanted):
            return array.dictionary_decode()
        if pa.types.is_timestamp(array.type) and array.type.unit == "us" and array.type.tz:
            return array.cast(wanted)
        raise ExpressionError(
            f"column {column.name!r:.200} is {array.type} in the batch, the plan says {wanted}",
            column=column.name,
            found=str(array.type),
            wanted=str(wanted),
        )


def literal_array(literal: Literal, rows: int) -> pa.Array:
    """A constant as an array of that many rows."""
    data_type = literal.type
    if literal.value is None or not rows:  # no list repeats no times
        return pa.nulls(rows, arrow_type(data_type))
    if data_type.is_interval or data_type.kind in ("date", "timestamp", "timestamp_ntz"):
        return arrow_column(np.full(rows, literal.value, dtype=np.int64), None, data_type)
    return pa.repeat(pa.scalar(literal.value, type=arrow_type(data_type)), rows)
