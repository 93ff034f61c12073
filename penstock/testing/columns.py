"""Column expressions by name, before their types are known: `col("price") * 2 > lit(3)`.

They are resolved against the schema of the relation they are used on. Coercion is minimal: a
constant takes the type of the operand beside it, and `/` divides whole numbers as doubles, as Spark
does. Anything else must fit as it is, or be cast.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ExpressionError, InvalidArgument
from penstock.expressions.tree import Expression, call, cast, column, literal
from penstock.expressions.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    Schema,
    decimal_type,
    parse_type,
)
from penstock.plan.nodes import field_of

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "int_divide", "remainder", "pmod"})


class ColumnExpression:
    """What the operators build; equality builds a comparison, so compare texts to compare trees."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def resolve(self, schema: Schema, node: str) -> Expression:
        """The typed tree over this schema; `node` says in errors where the expression stands."""
        raise NotImplementedError

    def __add__(self, other: Any) -> ColumnExpression:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> ColumnExpression:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> ColumnExpression:
        return apply("subtract", self, other)

    def __rsub__(self, other: Any) -> ColumnExpression:
        return apply("subtract", other, self)

    def __mul__(self, other: Any) -> ColumnExpression:
        return apply("multiply", self, other)

    def __rmul__(self, other: Any) -> ColumnExpression:
        return apply("multiply", other, self)

    def __truediv__(self, other: Any) -> ColumnExpression:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> ColumnExpression:
        return apply("divide", other, self)

    def __mod__(self, other: Any) -> ColumnExpression:
        return apply("remainder", self, other)

    def __neg__(self) -> ColumnExpression:
        return apply("negate", self)

    def __eq__(self, other: object) -> ColumnExpression:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: object) -> ColumnExpression:  # type: ignore[override]
        return apply("ne", self, other)

    def __lt__(self, other: Any) -> ColumnExpression:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> ColumnExpression:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> ColumnExpression:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> ColumnExpression:
        return apply("ge", self, other)

    def __and__(self, other: Any) -> ColumnExpression:
        return apply("and", self, other)

    def __or__(self, other: Any) -> ColumnExpression:
        return apply("or", self, other)

    def __invert__(self) -> ColumnExpression:
        return negated(self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            "a column has no truth value: use & | ~ instead of and, or, not, with brackets around "
            "each comparison"
        )

    def __getitem__(self, key: str | int) -> ColumnExpression:
        if isinstance(key, str):
            return apply("get_field", self, name=key)
        return apply("get_item", self, key)

    def is_null(self) -> ColumnExpression:
        return apply("is_null", self)

    def is_not_null(self) -> ColumnExpression:
        return apply("is_not_null", self)

    def is_in(self, *values: Any) -> ColumnExpression:
        return apply("in", self, *values)

    def cast(self, to: str, time_zone: str | None = None) -> ColumnExpression:
        check_argument(isinstance(to, str), "cast", "to", to, "the name of a type")
        options = {"to": to} if time_zone is None else {"to": to, "time_zone": time_zone}
        return apply("cast", self, **options)

    def alias(self, name: str) -> Named:
        check_name_given(name, "alias", "name")
        return Named(name, self)


@dataclass(frozen=True, slots=True, eq=False)
class Reference(ColumnExpression):
    """A column by name."""

    name: str

    def resolve(self, schema: Schema, node: str) -> Expression:
        found = field_of(schema, self.name, node)
        return column(found.name, found.type, found.nullable)


@dataclass(frozen=True, slots=True, eq=False)
class Constant(ColumnExpression):
    """A value; without a type it takes that of the operand beside it, else the plainest one."""

    value: Any
    type: DataType | None = None

    def resolve(self, schema: Schema, node: str) -> Expression:
        return literal(self.value, self.type or _plain_type(self.value))

    def beside(self, function: str, anchor: DataType) -> Expression:
        """The literal, typed to stand beside an operand of a type."""
        if self.type is not None:
            return literal(self.value, self.type)
        if self.value is None:
            return literal(None, anchor)
        if anchor.is_decimal and isinstance(self.value, int | decimal.Decimal):
            exact = _plain_decimal(self.value)
            return literal(self.value, exact if function in ARITHMETIC else anchor)
        whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        if whole and anchor.is_integer and function == "divide":
            return literal(self.value, DOUBLE)
        if (whole and anchor.is_numeric) or (
            isinstance(self.value, float) and anchor.is_fractional
        ):
            return literal(self.value, anchor)
        return literal(self.value, _plain_type(self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Application(ColumnExpression):
    """A function of the closed table, applied."""

    function: str
    args: tuple[ColumnExpression, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def resolve(self, schema: Schema, node: str) -> Expression:
        resolved: list[Expression | None] = [
            None if isinstance(arg, Constant) else arg.resolve(schema, node) for arg in self.args
        ]
        anchor = _anchor(self.function, resolved)
        typed: list[Expression] = []
        for arg, known in zip(self.args, resolved, strict=True):
            if known is not None:
                typed.append(known)
            elif isinstance(arg, Constant) and anchor is not None:
                typed.append(arg.beside(self.function, anchor))
            else:
                typed.append(arg.resolve(schema, node))
        if self.function == "divide":
            typed = [cast(arg, DOUBLE) if arg.type.is_integer else arg for arg in typed]
        return call(self.function, *typed, **self.options)


@dataclass(frozen=True, slots=True)
class Named:
    """An output column: a name and what it holds."""

    name: str
    expression: ColumnExpression


def col(name: str) -> ColumnExpression:
    """A column of the relation, by name."""
    return Reference(name)


def lit(value: Any, data_type: str | None = None) -> ColumnExpression:
    """A constant, of a stated type if one is needed."""
    return Constant(value, None if data_type is None else parse_type(data_type))


def apply(function: str, *args: Any, **options: Any) -> ColumnExpression:
    """Any function of the expression table, on columns and plain values."""
    check_name_given(function, "apply", "function")
    return Application(function, tuple(as_column(arg) for arg in args), options)


def negated(condition: ColumnExpression) -> ColumnExpression:
    """NOT of a condition; of an equality it is the inequality, which prints itself the same way."""
    if isinstance(condition, Application) and condition.function == "eq":
        return apply("ne", *condition.args)
    return apply("not", condition)


def check_argument(holds: bool, call: str, argument: str, value: Any, wanted: str) -> None:
    """Refuse an argument of a public call by its name."""
    if not holds:
        raise InvalidArgument(
            f"{call}: {argument} is {value!r:.80}; {wanted} is expected", argument=argument
        )


def check_name_given(name: Any, call: str, argument: str) -> None:
    check_argument(isinstance(name, str) and name != "", call, argument, name, "a name")


def as_column(value: Any) -> ColumnExpression:
    """The value itself if it is a column expression, else a constant."""
    return value if isinstance(value, ColumnExpression) else Constant(value)


def _anchor(function: str, resolved: Sequence[Expression | None]) -> DataType | None:
    """The type that untyped constants of a call follow: its first operand of a known type."""
    candidates = resolved
    if function == "if":
        candidates = resolved[1:]
    elif function == "case":
        values = list(resolved[1::2])
        candidates = [*values, resolved[-1]] if len(resolved) % 2 else values
    return next((arg.type for arg in candidates if arg is not None), None)


def _plain_type(value: Any) -> DataType:
    if isinstance(value, decimal.Decimal):
        return _plain_decimal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return INT if -(1 << 31) <= value < 1 << 31 else BIGINT
    if isinstance(value, datetime.datetime):
        return TIMESTAMP_NTZ if value.tzinfo is None else TIMESTAMP
    for python_type, data_type in _PLAIN_TYPES:
        if isinstance(value, python_type):
            return data_type
    raise ExpressionError(
        f"{value!r:.200} is not a constant here: give its type, as in lit(None, 'bigint')",
        value=repr(value)[:200],
    )


_PLAIN_TYPES: tuple[tuple[type, DataType], ...] = (
    (bool, BOOLEAN),
    (float, DOUBLE),
    (str, STRING),
    (bytes, BINARY),
    (datetime.date, DATE),
)


def _plain_decimal(value: int | decimal.Decimal) -> DataType:
    exact = decimal.Decimal(value).as_tuple()
    exponent = exact.exponent if isinstance(exact.exponent, int) else 0
    scale = max(0, -exponent)
    digits = max(len(exact.digits) + max(0, exponent), scale, 1)
    return decimal_type(digits, scale)
