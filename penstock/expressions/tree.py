"""Expressions as an immutable, typed, hashable tree: built, changed, written as JSON and read."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions.functions import check_call
from penstock.expressions.nodes import (
    EPOCH,
    EPOCH_DATE,
    MICROSECOND,
    Call,
    Column,
    Expression,
    Literal,
    children,
    columns_of,
    may_fail,
    walk,
)
from penstock.expressions.types import INTEGER_BITS, DataType, parse_type

__all__ = [
    "Call",
    "Column",
    "Expression",
    "Literal",
    "call",
    "cast",
    "children",
    "column",
    "columns_of",
    "from_json",
    "literal",
    "may_fail",
    "transform",
    "try_cast",
    "walk",
]

TREE_DEPTH_MAX = 200  # read back from a program: bounded before the recursion that walks it


# --- builders -------------------------------------------------------------------------------------


def column(name: str, data_type: DataType | str, nullable: bool = True) -> Column:
    """A column reference; the type may be given as text."""
    return Column(name, _as_type(data_type), nullable)


def literal(value: Any, data_type: DataType | str) -> Literal:
    """A checked constant; also takes dates, datetimes (aware for timestamp), ints for decimals."""
    data_type = _as_type(data_type)
    return Literal(None if value is None else _plain(value, data_type), data_type)


def call(function: str, *args: Expression, **options: Any) -> Call:
    """A typed call, or an ExpressionError that says which operand or option does not fit."""
    checked = check_call(
        function, [arg.type for arg in args], [arg.nullable for arg in args], options
    )
    return Call(checked.row, tuple(args), checked.type, checked.nullable, checked.options)


def cast(arg: Expression, data_type: DataType | str, time_zone: str | None = None) -> Call:
    """An ANSI cast; the session's time zone is needed between zoned and unzoned types."""
    return _cast("cast", arg, data_type, time_zone)


def try_cast(arg: Expression, data_type: DataType | str, time_zone: str | None = None) -> Call:
    """A cast that gives null where `cast` would fail."""
    return _cast("try_cast", arg, data_type, time_zone)


def _cast(function: str, arg: Expression, data_type: DataType | str, time_zone: str | None) -> Call:
    options: dict[str, Any] = {"to": str(_as_type(data_type))}
    if time_zone is not None:
        options["time_zone"] = time_zone
    return call(function, arg, **options)


def _as_type(data_type: DataType | str) -> DataType:
    return parse_type(data_type) if isinstance(data_type, str) else data_type


# --- changing -------------------------------------------------------------------------------------


def transform(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The tree rebuilt bottom-up with `change` applied to each node; calls are checked again."""
    if isinstance(expression, Call):
        args = tuple(transform(arg, change) for arg in expression.args)
        if args != expression.args:
            expression = call(expression.function, *args, **dict(expression.options))
    return change(expression)


def inline(expression: Expression, columns: Mapping[str, Expression]) -> Expression:
    """The expression with each column replaced by what it stands for."""
    return transform(
        expression, lambda node: columns.get(node.name, node) if isinstance(node, Column) else node
    )


# --- values of literals ---------------------------------------------------------------------------

_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _plain(value: Any, data_type: DataType) -> Any:
    kind = data_type.kind
    plain: Any = None
    if data_type.is_months:
        plain = value if _is_int(value, 32) else None
    elif kind == "boolean" and isinstance(value, bool):
        plain = value
    elif kind in INTEGER_BITS and _is_int(value, INTEGER_BITS[kind]):
        plain = int(value)
    elif kind in ("float", "double") and isinstance(value, int | float):
        plain = _float(float(value), kind)
    elif kind == "decimal" and isinstance(value, int | decimal.Decimal):
        plain = _decimal(value, data_type)
    elif ((kind == "string" or data_type.is_collated) and isinstance(value, str)) or (
        kind == "binary" and isinstance(value, bytes)
    ):
        plain = value
    elif kind == "date":
        plain = _days(value)
    elif kind in ("timestamp", "timestamp_ntz"):
        plain = _micros(value, zoned=kind == "timestamp")
    elif data_type.is_interval:
        plain = _length_us(value)
    elif kind == "array" and isinstance(value, list | tuple):
        assert data_type.element is not None
        element = data_type.element
        plain = tuple(None if item is None else _plain(item, element) for item in value)
    if plain is None:
        raise ExpressionError(
            f"{value!r:.200} is not a value of type {data_type}",
            value=repr(value)[:200],
            type=str(data_type),
        )
    return plain


def _is_int(value: Any, bits: int) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    )


def _float(value: float, kind: str) -> float:
    if kind == "double" or not math.isfinite(value):
        return value
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def _decimal(value: int | decimal.Decimal, data_type: DataType) -> decimal.Decimal | None:
    exact = decimal.Decimal(value)
    if isinstance(value, bool) or not exact.is_finite():
        return None
    context = decimal.Context(
        prec=data_type.precision, traps=[decimal.Inexact, decimal.InvalidOperation]
    )
    try:
        return exact.quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=context)
    except (decimal.InvalidOperation, decimal.Inexact):
        return None


def _days(value: Any) -> int | None:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (value - EPOCH_DATE).days
    return value if _is_int(value, 32) else None


def _micros(value: Any, zoned: bool) -> int | None:
    if isinstance(value, datetime.datetime):
        if (value.tzinfo is not None) != zoned:
            return None
        return (value - (_EPOCH_UTC if zoned else EPOCH)) // MICROSECOND
    return value if _is_int(value, 64) else None


def _length_us(value: Any) -> int | None:
    if isinstance(value, datetime.timedelta):
        return value // MICROSECOND
    return value if _is_int(value, 64) else None


# --- JSON -----------------------------------------------------------------------------------------


def from_json(node: Mapping[str, Any]) -> Expression:
    """The tree of a dictionary; an ExpressionError for anything outside the closed tables."""
    return _from_json(node, depth=0)


def _from_json(node: Any, depth: int) -> Expression:
    if depth > TREE_DEPTH_MAX:
        raise ExpressionError(
            f"the expression is nested deeper than {TREE_DEPTH_MAX}", depth_max=TREE_DEPTH_MAX
        )
    if not isinstance(node, Mapping):
        raise _malformed(node)
    keys = frozenset(node)
    if keys == {"column", "type", "nullable"}:
        name, nullable = node["column"], node["nullable"]
        if not isinstance(name, str) or not isinstance(nullable, bool):
            raise _malformed(node)
        return Column(name, parse_type(node["type"]), nullable)
    if keys == {"literal", "type"}:
        data_type = parse_type(node["type"])
        return literal(_value_from_json(node["literal"], data_type), data_type)
    if keys in ({"call", "args"}, {"call", "args", "options"}):
        return _call_from_json(node, depth)
    raise _malformed(node)


def _call_from_json(node: Mapping[str, Any], depth: int) -> Call:
    function, args, options = node["call"], node["args"], node.get("options", {})
    if (
        not isinstance(function, str)
        or not isinstance(args, list)
        or not isinstance(options, Mapping)
        or not all(isinstance(key, str) for key in options)
    ):
        raise _malformed(node)
    return call(function, *[_from_json(arg, depth + 1) for arg in args], **options)


def _malformed(node: Any) -> ExpressionError:
    return ExpressionError(
        f"{node!r:.200} is not an expression: a column, a literal or a call was expected; "
        "the program is damaged or was written by another version",
        node=repr(node)[:200],
    )


def _value_from_json(value: Any, data_type: DataType) -> Any:
    try:
        if value is None:
            return None
        if data_type.kind in ("float", "double") and isinstance(value, str):
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
        if data_type.kind == "decimal":
            return decimal.Decimal(value) if isinstance(value, str) else value
        if data_type.kind == "binary":
            return base64.b64decode(value, validate=True)
        if data_type.kind == "array" and isinstance(value, list):
            assert data_type.element is not None
            return [_value_from_json(item, data_type.element) for item in value]
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise ExpressionError(
            f"{value!r:.200} is not the JSON form of a {data_type}",
            value=repr(value)[:200],
            type=str(data_type),
        ) from error
    return value
