"""Filters that Spark pushes down, as expressions with Spark's own rules for nulls and NaN."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as pushed

from penstock.arrays import no_rows
from penstock.errors import StreamError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import Expression, call, column, literal
from penstock.expressions.types import DataType, Schema, arrow_schema

_COMPARISONS: dict[type[pushed.Filter], str] = {
    pushed.EqualTo: "eq",
    pushed.EqualNullSafe: "eq_null_safe",
    pushed.GreaterThan: "gt",
    pushed.GreaterThanOrEqual: "ge",
    pushed.LessThan: "lt",
    pushed.LessThanOrEqual: "le",
    pushed.StringStartsWith: "starts_with",
    pushed.StringEndsWith: "ends_with",
    pushed.StringContains: "contains",
}
_NULL_CHECKS: dict[type[pushed.Filter], str] = {
    pushed.IsNull: "is_null",
    pushed.IsNotNull: "is_not_null",
}


def as_expression(filter: pushed.Filter, schema: Schema) -> Expression | None:
    """The filter over these columns, None where Spark had better evaluate it itself."""
    try:
        expression = _translate(filter, schema)
        if expression is not None:
            evaluate(
                expression, no_rows(arrow_schema(schema))
            )  # what cannot be computed must fail here
    except (StreamError, pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return expression


def _translate(filter: pushed.Filter, schema: Schema) -> Expression | None:
    if isinstance(filter, pushed.Not):
        child = _translate(filter.child, schema)
        return None if child is None else call("not", child)
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    field = next((f for f in schema if (f.name,) == attribute), None)
    if field is None:  # inside a struct, or a kind of filter that is newer than this code
        return None
    operand = column(field.name, field.type, field.nullable)
    if type(filter) in _NULL_CHECKS:
        return call(_NULL_CHECKS[type(filter)], operand)
    if field.type.is_nested:
        return None
    if isinstance(filter, pushed.In):
        return call("in", operand, *(_literal(value, field.type) for value in filter.value))
    function = _COMPARISONS.get(type(filter))
    if function is None:
        return None
    return call(function, operand, _literal(getattr(filter, "value"), field.type))  # noqa: B009


def _literal(value: Any, of: DataType) -> Expression:
    # A bool is an int to Python: a filter of another type than its column is not ours to guess.
    if value is not None and isinstance(value, bool) != (of.kind == "boolean"):
        raise ValueError(f"{value!r} is not of type {of}")
    return literal(bytes(value) if isinstance(value, bytearray) else value, of)


def matching(batch: pa.RecordBatch, filters: Iterable[Expression]) -> pa.RecordBatch:
    """The rows for which every filter is true; null is not."""
    masks = [evaluate(each, batch) for each in filters]
    if not masks or not batch.num_rows:
        return batch
    return batch.filter(reduce(pa.compute.and_kleene, masks))
