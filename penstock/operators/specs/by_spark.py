"""Columns that only Spark can compute: what identifies them, and never how they are computed."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class SparkSpec(Spec):
    """Adds columns to a row that Spark computes, in the driver: it is where the vertex must be."""

    op: ClassVar[str] = "spark"
    columns: tuple[SparkColumn, ...]

    def expressions(self) -> list[Expression]:
        return [column for each in self.columns for column in each.inputs]

    def bound(self, bind: Binder) -> SparkSpec:
        return SparkSpec(
            tuple(replace(each, inputs=tuple(map(bind, each.inputs))) for each in self.columns)
        )

    def output_schema(self, input_schema: Schema) -> Schema:
        for column in self.expressions():
            if not isinstance(column, Column):
                raise refuse(f"Spark takes columns, and {column} is none")
            check_columns(column, input_schema)
        schema = (*input_schema, *(each.result for each in self.columns))
        check_distinct(tuple(field.name for field in schema))
        return schema
