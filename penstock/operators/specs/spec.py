"""What all specs share: their JSON, their expressions, and the checks of columns and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

from penstock.errors import ExpressionError
from penstock.expressions.tree import Column, Expression, columns_of
from penstock.expressions.types import VOID, DataType, Field, Schema
from penstock.json_codec import fields_of
from penstock.state.columns import COLUMNS_MAX

MODES = ("append", "update", "complete")
# Rows that change carry it: 1 where a row comes, -1 where one goes that came before.
WEIGHT_COLUMN = "__weight"
WEIGHT_FIELD = Field(WEIGHT_COLUMN, DataType("tinyint"), False)

NamedExpression = tuple[str, Expression]
Binder = Callable[[Expression], Expression]


class Spec:
    """An operator of a chain: in JSON its name and its fields."""

    __slots__ = ()
    op: ClassVar[str]  # its name in JSON
    keeps_rows: ClassVar[bool] = False  # whole ones: its state depends on which columns they have

    @property
    def hands_on(self) -> bool:
        """Whether columns that it does not read are there behind it."""
        return True

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op, **fields_of(self)}

    def expressions(self) -> list[Expression]:
        """All that it computes of a row of its input."""
        return []

    def bound(self, bind: Binder) -> Self:
        """The same, with each of these expressions as `bind` gives it."""
        return self

    @property
    def is_on_driver(self) -> bool:
        """Whether Spark computes a part of it, in the driver, which must host it then."""
        return False


def refuse(message: str, **details: Any) -> ExpressionError:
    return ExpressionError(message, **details)


def field_named(schema: Schema, name: str) -> Field:
    """The field of that name; an ExpressionError that lists what there is."""
    for field in schema:
        if field.name == name:
            return field
    known = ", ".join(field.name for field in schema)
    raise refuse(f"there is no column {name!r}; the input has: {known}", column=name)


def check_columns(expression: Expression, schema: Schema) -> None:
    """Every column that the expression reads must be in the schema, with the same type."""
    for column in columns_of(expression):
        field = field_named(schema, column.name)
        if field.type != column.type:
            raise refuse(
                f"column {column.name!r} is read as {column.type} in {expression}, "
                f"but the input has it as {field.type}",
                column=column.name,
            )


def check_distinct(names: tuple[str, ...]) -> None:
    """Columns of an output have names of their own."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise refuse(f"output columns need distinct names, repeated: {', '.join(repeated)}")


def check_room(needed: int, what: str) -> None:
    """A state has room for so many columns."""
    if needed > COLUMNS_MAX:
        raise refuse(
            f"an aggregation has at most {COLUMNS_MAX} {what}; this one needs {needed}: "
            "compute some of them in another query",
            needed=needed,
        )


def by(names: Sequence[str]) -> str:
    """How a title names keys."""
    return f"_by_{'_'.join(names)}" if names else ""


def bound_named(columns: tuple[NamedExpression, ...], bind: Binder) -> tuple[NamedExpression, ...]:
    return tuple((name, bind(expression)) for name, expression in columns)


def column_names(expressions: Iterable[Expression]) -> tuple[str, ...]:
    """The columns that these read, in order."""
    return tuple(column.name for each in expressions for column in columns_of(each))


def bound_if_any(expression: Expression | None, bind: Binder) -> Expression | None:
    return None if expression is None else bind(expression)


def is_key_type(data_type: DataType) -> bool:
    """Whether a state can tell values of a type apart as they are."""
    is_plain = not data_type.is_nested and data_type != VOID
    return is_plain and not data_type.is_collated


def check_keys(keys: Sequence[Expression], what: str) -> None:
    """Keys are values that a state can tell apart, and not too many."""
    for key in keys:
        if not is_key_type(key.type):
            raise refuse(f"{what} {key} of type {key.type} is not supported")
    check_room(len(keys), "keys")


def names_in(expression: Expression) -> set[str]:
    return {column.name for column in columns_of(expression)}


def column_of(field: Field) -> Column:
    return Column(field.name, field.type, field.nullable)


def without_weight(schema: Schema) -> Schema:
    """The columns that people see."""
    return tuple(field for field in schema if field.name != WEIGHT_COLUMN)


def is_weighted(schema: Schema) -> bool:
    """Whether rows of these columns come and go."""
    return any(field.name == WEIGHT_COLUMN for field in schema)
