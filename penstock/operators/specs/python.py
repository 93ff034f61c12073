"""Steps that call Python functions of the query: what identifies a function, never its code."""

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
class PythonCall:
    """A call of a function: its columns in order, and what it is called.

    `digest` is that of the code with everything that its result depends on. The code itself comes
    with the task of the slot that runs it, under the digest.
    """

    inputs: tuple[Expression, ...]  # columns
    text: str
    digest: str
    deterministic: bool = True

    @property
    def input_names(self) -> tuple[str, ...]:
        return column_names(self.inputs)

    def bound(self, bind: Binder) -> PythonCall:
        return replace(self, inputs=tuple(map(bind, self.inputs)))

    def check(self, schema: Schema) -> None:
        for column in self.inputs:
            if not isinstance(column, Column):
                raise refuse(f"a Python function takes columns, and {column} is none")
            check_columns(column, schema)


@dataclass(frozen=True, slots=True)
class PythonColumn:
    """A column that holds what a function gives of each row."""

    result: Field
    call: PythonCall


@dataclass(frozen=True, slots=True)
class PythonSpec(Spec):
    """Adds columns to a row that Python functions give."""

    op: ClassVar[str] = "python"
    columns: tuple[PythonColumn, ...]

    @property
    def calls(self) -> tuple[PythonCall, ...]:
        return tuple(each.call for each in self.columns)

    def expressions(self) -> list[Expression]:
        return [column for call in self.calls for column in call.inputs]

    def bound(self, bind: Binder) -> PythonSpec:
        columns = (replace(each, call=each.call.bound(bind)) for each in self.columns)
        return PythonSpec(tuple(columns))

    def output_schema(self, input_schema: Schema) -> Schema:
        for call in self.calls:
            call.check(input_schema)
        schema = (*input_schema, *(each.result for each in self.columns))
        check_distinct(tuple(field.name for field in schema))
        return schema


@dataclass(frozen=True, slots=True)
class PythonRowsSpec(Spec):
    """Makes rows by a Python function.

    With `repeats` each row gives some, none or many, which have its columns too; else a batch of
    rows gives others, and nobody knows which came of which.
    """

    op: ClassVar[str] = "python_rows"
    call: PythonCall
    outputs: tuple[Field, ...]
    repeats: bool

    @property
    def calls(self) -> tuple[PythonCall, ...]:
        return (self.call,)

    @property
    def hands_on(self) -> bool:
        return self.repeats

    def expressions(self) -> list[Expression]:
        return list(self.call.inputs)

    def bound(self, bind: Binder) -> PythonRowsSpec:
        return replace(self, call=self.call.bound(bind))

    def output_schema(self, input_schema: Schema) -> Schema:
        self.call.check(input_schema)
        return self.added_to(input_schema)

    def added_to(self, repeated: Schema) -> Schema:
        """The columns of the output, if these are repeated."""
        schema = (*repeated, *self.outputs) if self.repeats else self.outputs
        check_distinct(tuple(field.name for field in schema))
        return schema
