"""Operators on rows one by one: filter, project, explode, and the name of the event time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.expressions.durations import MICROSECONDS, show_duration
from penstock.expressions.tree import Expression
from penstock.expressions.types import BOOLEAN, INT, Field, Schema
from penstock.operators.specs.spec import (
    Binder,
    NamedExpression,
    Spec,
    bound_named,
    check_columns,
    check_distinct,
    field_named,
    refuse,
)

SPAN_US_MAX = 13_000_000 * MICROSECONDS["day"]  # of windows and delays: below 2**60, of 63 bits


@dataclass(frozen=True, slots=True)
class FilterSpec(Spec):
    """Keeps the rows for which the condition is true (not false, not null)."""

    op: ClassVar[str] = "filter"
    condition: Expression

    def expressions(self) -> list[Expression]:
        return [self.condition]

    def bound(self, bind: Binder) -> FilterSpec:
        return FilterSpec(bind(self.condition))

    def output_schema(self, input_schema: Schema) -> Schema:
        check_columns(self.condition, input_schema)
        if self.condition.type != BOOLEAN:
            raise refuse(f"a filter needs a boolean, {self.condition} is {self.condition.type}")
        return input_schema


@dataclass(frozen=True, slots=True)
class ProjectSpec(Spec):
    """Replaces the columns of a row by these expressions."""

    op: ClassVar[str] = "project"
    hands_on: ClassVar[bool] = False
    columns: tuple[NamedExpression, ...]

    def expressions(self) -> list[Expression]:
        return [item for _, item in self.columns]

    def bound(self, bind: Binder) -> ProjectSpec:
        return ProjectSpec(bound_named(self.columns, bind))

    def output_schema(self, input_schema: Schema) -> Schema:
        for _, expression in self.columns:
            check_columns(expression, input_schema)
        check_distinct(tuple(name for name, _ in self.columns))
        return tuple(Field(name, e.type, e.nullable) for name, e in self.columns)


@dataclass(frozen=True, slots=True)
class GenerateSpec(Spec):
    """Explode: one output row per element of an array, the other columns repeated.

    `outer` keeps a row with a null element where the array is empty or null. `position` names an
    optional column with the element's index.
    """

    op: ClassVar[str] = "generate"
    expression: Expression
    output: str
    outer: bool = False
    position: str | None = None

    def expressions(self) -> list[Expression]:
        return [self.expression]

    def bound(self, bind: Binder) -> GenerateSpec:
        return replace(self, expression=bind(self.expression))

    def output_schema(self, input_schema: Schema) -> Schema:
        check_columns(self.expression, input_schema)
        element = self.expression.type.element
        if self.expression.type.kind != "array" or element is None:
            raise refuse(f"explode needs an array, {self.expression} is {self.expression.type}")
        schema = self.added_to(input_schema)
        check_distinct(tuple(field.name for field in schema))
        return schema

    def added_to(self, repeated: Schema) -> Schema:
        """The columns of the output, if these are repeated."""
        assert self.expression.type.element is not None
        added: tuple[Field, ...] = (Field(self.output, self.expression.type.element, True),)
        if self.position is not None:
            added = (Field(self.position, INT, self.outer), *added)
        return (*repeated, *added)


@dataclass(frozen=True, slots=True)
class WatermarkSpec(Spec):
    """Names the event-time column; the watermark is the greatest time seen here minus the delay.

    One that stands above a union is in each of its branches, under one number in `union`: together
    they are one watermark.
    """

    op: ClassVar[str] = "watermark"
    column: str
    delay_us: int
    union: int | None = None

    def output_schema(self, input_schema: Schema) -> Schema:
        field = field_named(input_schema, self.column)
        if field.type.kind not in ("timestamp", "timestamp_ntz"):
            raise refuse(
                f"a watermark needs a timestamp, column {self.column!r} is {field.type}",
                column=self.column,
            )
        if not 0 <= self.delay_us <= SPAN_US_MAX:
            raise refuse(
                f"the watermark's delay is {show_duration(self.delay_us)}; it is at least 0 and at "
                f"most {show_duration(SPAN_US_MAX)}"
            )
        return input_schema
