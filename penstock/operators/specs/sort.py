"""Sorting and cutting: whole results in an order, or the first rows of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import Schema
from penstock.operators.specs.over import Order
from penstock.operators.specs.spec import Binder, Spec, check_columns, refuse, without_weight


@dataclass(frozen=True, slots=True)
class SortStep:
    """Rows in an order, or as they are; of these the first ones are left out, or kept alone."""

    order: tuple[Order, ...] = ()
    offset: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.offset < 0 or (self.limit is not None and self.limit < 0):
            raise refuse(f"offset {self.offset} and limit {self.limit} are at least 0")


@dataclass(frozen=True, slots=True)
class SortSpec(Spec):
    """The whole result at each commit, after these steps in turn; its rows come and go."""

    op: ClassVar[str] = "sort"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "sort"
    mode: ClassVar[str] = "complete"
    changes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    drops_late: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    keys: ClassVar[tuple[Expression, ...]] = ()
    key_names: ClassVar[tuple[str, ...]] = ()
    steps: tuple[SortStep, ...]

    def expressions(self) -> list[Expression]:
        return [each.column for step in self.steps for each in step.order]

    def bound(self, bind: Binder) -> SortSpec:
        return replace(self, steps=tuple(_bound(step, bind) for step in self.steps))

    @property
    def title(self) -> str:
        return "sort" if self.expressions() else "limit"

    @property
    def meaning(self) -> dict[str, Any]:
        """What its state stands for: the rows, however they are sorted."""
        return {"sorted": True}

    def output_schema(self, input_schema: Schema) -> Schema:
        for expression in self.expressions():
            check_columns(expression, input_schema)
            if expression.type.kind == "map" or expression.type.has_collation:
                raise refuse(f"order by {expression} of type {expression.type} has no meaning")
        return without_weight(input_schema)


@dataclass(frozen=True, slots=True)
class LimitSpec(Spec):
    """Lets the first rows through, in the order of processing, and none after them."""

    op: ClassVar[str] = "limit"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "limit"
    mode: ClassVar[str] = "append"
    changes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    drops_late: ClassVar[bool] = False
    keys: ClassVar[tuple[Expression, ...]] = ()
    key_names: ClassVar[tuple[str, ...]] = ()
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise refuse(f"a limit of {self.rows} rows: at least 0 are let through")

    @property
    def title(self) -> str:
        return "limit"

    @property
    def meaning(self) -> dict[str, Any]:
        return {"limit": self.rows}

    def output_schema(self, input_schema: Schema) -> Schema:
        return input_schema


def _bound(step: SortStep, bind: Binder) -> SortStep:
    order = []
    for each in step.order:
        column = bind(each.column)
        assert isinstance(column, Column)
        order.append(replace(each, column=column))
    return replace(step, order=tuple(order))
