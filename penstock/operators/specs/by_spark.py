"""Columns that only Spark can compute: what identifies them, and never how they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import Field, Schema
from penstock.operators.specs.spec import (
    Binder,
    Spec,
    check_columns,
    check_distinct,
    column_names,
    refuse,
)


@dataclass(frozen=True, slots=True)
class SparkColumn:
    """One column that Spark computes of others, which it takes in this order.

    `digest` is that of Spark's expression with everything that its result depends on; `text` is the
    expression for people. What runs is in the memory of the driver that planned the query, under
    the digest.
    """

    result: Field
    inputs: tuple[Expression, ...]  # columns
    text: str
    digest: str

    @property
    def input_names(self) -> tuple[str, ...]:
        return column_names(self.inputs)

    def bound(self, bind: Binder) -> SparkColumn:
        return replace(self, inputs=tuple(map(bind, self.inputs)))


def inputs_of(columns: Sequence[SparkColumn]) -> list[Expression]:
    """All that Spark is given for these columns."""
    return [column for each in columns for column in each.inputs]


@dataclass(frozen=True, slots=True)
class SparkSpec(Spec):
    """Adds columns to a row that Spark computes."""

    op: ClassVar[str] = "spark"
    columns: tuple[SparkColumn, ...]

    def expressions(self) -> list[Expression]:
        return inputs_of(self.columns)

    def bound(self, bind: Binder) -> SparkSpec:
        return SparkSpec(tuple(each.bound(bind) for each in self.columns))

    @property
    def is_on_driver(self) -> bool:
        return True

    def output_schema(self, input_schema: Schema) -> Schema:
        for column in self.expressions():
            if not isinstance(column, Column):
                raise refuse(f"Spark takes columns, and {column} is none")
            check_columns(column, input_schema)
        schema = (*input_schema, *(each.result for each in self.columns))
        check_distinct(tuple(field.name for field in schema))
        return schema
