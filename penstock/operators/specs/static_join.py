"""The join with a static side: rows that Spark computed once, looked up by each row of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.expressions.tree import Column, Expression, transform
from penstock.expressions.types import BOOLEAN, DataType, Field, Schema
from penstock.kernels.columns import is_fixed_width
from penstock.operators.specs.by_spark import SparkColumn, inputs_of
from penstock.operators.specs.join import JoinKey
from penstock.operators.specs.spec import (
    Binder,
    NamedExpression,
    Spec,
    check_columns,
    check_distinct,
    refuse,
)

STATIC_HOWS = ("inner", "left", "semi", "anti", "existence")


def can_be_looked_up(data_type: DataType) -> bool:
    """Whether an equality of this type is a key; else it is a condition on each pair of rows."""
    return is_fixed_width(data_type) or data_type.kind in ("string", "binary")


@dataclass(frozen=True, slots=True)
class StaticJoinSpec(Spec):
    """Joins each row with the rows of a static side that have its keys and meet a condition.

    The left of a key is of the rows, its right a column of the static side; `how` is the join's
    with the rows on the left: `existence` adds a flag, named `exists`, whether there is such a row.
    `columns` are those of the static side that are added, or that the condition reads where none
    are added, under names that the rows have not.
    """

    op: ClassVar[str] = "static_join"
    side: str
    how: str
    keys: tuple[JoinKey, ...]
    columns: tuple[NamedExpression, ...]
    condition: Expression | None = None
    exists: str | None = None
    decided: tuple[SparkColumn, ...] = ()  # parts of the condition, by Spark, of pairs that meet it

    def __post_init__(self) -> None:
        if self.how not in STATIC_HOWS:
            raise refuse(f"there is no static join {self.how!r}; known: {', '.join(STATIC_HOWS)}")
        if (self.how == "existence") != (self.exists is not None):
            raise refuse("an existence join, and no other, names the column of its flag")
        statics = [*(key.right for key in self.keys), *(column for _, column in self.columns)]
        for each in statics:
            if not isinstance(each, Column):
                raise refuse(f"{each} is not a column of static side {self.side}")

    def expressions(self) -> list[Expression]:
        read = [*(key.left for key in self.keys), *inputs_of(self.decided)]
        return read if self.condition is None else [*read, self.condition]

    def bound(self, bind: Binder) -> StaticJoinSpec:
        added = dict(self.columns)

        def change(part: Expression) -> Expression:
            is_own = not isinstance(part, Column) or part.name in added
            return part if is_own else bind(part)

        keys = tuple(replace(key, left=bind(key.left)) for key in self.keys)
        condition = None if self.condition is None else transform(self.condition, change)
        decided = tuple(each.bound(change) for each in self.decided)
        return replace(self, keys=keys, condition=condition, decided=decided)

    @property
    def is_on_driver(self) -> bool:
        return bool(self.decided)

    @property
    def adds_columns(self) -> bool:
        return self.how in ("inner", "left")

    @property
    def side_schema(self) -> Schema:
        """What it reads of the static side, under the names of that."""
        read = [*(key.right for key in self.keys), *(column for _, column in self.columns)]
        found = {e.name: Field(e.name, e.type, e.nullable) for e in read if isinstance(e, Column)}
        return tuple(found.values())

    def output_schema(self, input_schema: Schema) -> Schema:
        for key in self.keys:
            check_columns(key.left, input_schema)
            if key.left.type != key.right.type or not can_be_looked_up(key.left.type):
                raise refuse(
                    f"{key.left} of type {key.left.type} cannot be looked up in {key.right} of "
                    f"type {key.right.type}"
                )
        pairs = (*input_schema, *(Field(n, e.type, e.nullable) for n, e in self.columns))
        check_distinct(tuple(field.name for field in pairs))
        for column in inputs_of(self.decided):
            check_columns(column, pairs)
        if self.condition is not None:
            check_columns(self.condition, pairs)
            if self.condition.type != BOOLEAN:
                raise refuse(f"a join needs a boolean, {self.condition} is {self.condition.type}")
        schema = self.added_to(input_schema)
        check_distinct(tuple(field.name for field in schema))
        return schema

    def added_to(self, kept: Schema) -> Schema:
        """The columns of the output, if these are kept of the rows."""
        if self.exists is not None:
            return (*kept, Field(self.exists, BOOLEAN, False))
        if not self.adds_columns:
            return kept
        outer = self.how == "left"
        return (*kept, *(Field(n, e.type, e.nullable or outer) for n, e in self.columns))
