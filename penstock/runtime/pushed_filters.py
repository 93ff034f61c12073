"""The filters right above a source, in the terms in which it may pass rows over."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from penstock.connectors.parquet_statistics import AllOf, AnyOf, ColumnTest, Condition, Value
from penstock.expressions.tree import Call, Column, Expression, Literal
from penstock.operators.specs import FilterSpec

_SWAPPED = MappingProxyType({"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"})
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})


def pushed_condition(chain: Iterable[Any]) -> Condition | None:
    """What a row must be to pass the filters that a chain begins with; None: that says nothing.

    A filter behind anything else is not looked at. Where Spark leaves it above a watermark, that
    hears of every row, and so does ours.
    """
    first = takewhile(lambda spec: isinstance(spec, FilterSpec), chain)
    return _all_of([_condition(spec.condition) for spec in first])


def _condition(node: Expression) -> Condition | None:
    if not isinstance(node, Call):
        return None
    if node.function == "and":
        return _all_of([_condition(arg) for arg in node.args])
    if node.function == "or":
        return _any_of([_condition(arg) for arg in node.args])
    column, *others = node.args
    if node.function in ("is_null", "is_not_null"):
        return ColumnTest(column.name, node.function) if isinstance(column, Column) else None  # type: ignore[arg-type]
    if node.function == "in":
        return _any_of([_compared("eq", column, other) for other in others])
    if node.function in _SWAPPED:
        if isinstance(column, Literal):
            return _compared(_SWAPPED[node.function], others[0], column)
        return _compared(node.function, column, others[0])
    return None


def _compared(kind: Any, column: Expression, other: Expression) -> Condition | None:
    if not isinstance(column, Column) or not isinstance(other, Literal):
        return None
    value = _value(other)
    return (
        None if column.type != other.type or value is None else ColumnTest(column.name, kind, value)
    )


def _value(constant: Literal) -> Value | None:
    kind, value = constant.type.kind, constant.value
    if value is None:
        return None
    if kind in _INTEGERS or kind in ("date", "timestamp", "timestamp_ntz"):
        return int(value)
    if kind == "string":
        return str(value).encode()
    if kind == "decimal":
        sign, digits, exponent = value.as_tuple()
        assert exponent == -constant.type.scale
        unscaled = int("".join(map(str, digits)))
        return -unscaled if sign else unscaled
    return None


def _all_of(parts: list[Condition | None]) -> Condition | None:
    known = tuple(part for part in parts if part is not None)
    return AllOf(known) if len(known) > 1 else known[0] if known else None


def _any_of(parts: list[Condition | None]) -> Condition | None:
    known = tuple(part for part in parts if part is not None)
    return AnyOf(known) if known and len(known) == len(parts) else None
