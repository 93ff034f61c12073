"""Deduplication: the first row of each key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Expression
from penstock.expressions.types import Schema
from penstock.operators.specs.spec import (
    Binder,
    Spec,
    bound_if_any,
    by,
    check_columns,
    check_keys,
    column_names,
    refuse,
)


@dataclass(frozen=True, slots=True)
class DeduplicateSpec(Spec):
    """Lets the first row of each key through.

    Where a watermark speaks of a column of the rows (`time`), rows that are not after it are late;
    if that is the last instant of a window (`is_instant`), rows that are before it.
    If that column is one of the keys, keys are forgotten once the watermark has passed them. With
    `within_us` a key is forgotten once the watermark has passed the time of its first row by so
    much. Else keys are kept for ever.
    """

    op: ClassVar[str] = "deduplicate"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "deduplicate"
    mode: ClassVar[str] = "append"
    changes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    keys: tuple[Expression, ...]  # columns
    time: Expression | None = None  # a column
    within_us: int | None = None
    is_instant: bool = False

    def __post_init__(self) -> None:
        if self.within_us is not None and (self.time is None or self.within_us < 0):
            raise refuse("keys are forgotten after a span of a time that a watermark speaks of")

    def expressions(self) -> list[Expression]:
        return [*self.keys, *([] if self.time is None else [self.time])]

    def bound(self, bind: Binder) -> DeduplicateSpec:
        return replace(self, keys=tuple(map(bind, self.keys)), time=bound_if_any(self.time, bind))

    @property
    def key_names(self) -> tuple[str, ...]:
        return column_names(self.keys)

    @property
    def time_name(self) -> str:
        assert self.time is not None
        (name,) = column_names([self.time])
        return name

    @property
    def forgets(self) -> bool:
        return self.within_us is not None or (self.time is not None and self.time in self.keys)

    @property
    def drops_late(self) -> bool:
        return self.time is not None

    @property
    def title(self) -> str:
        return f"distinct{by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        facts = {"distinct": self.keys, "late_by": self.time, "within_us": self.within_us}
        return facts | ({"is_instant": True} if self.is_instant else {})

    def output_schema(self, input_schema: Schema) -> Schema:
        for column in self.expressions():
            check_columns(column, input_schema)
        check_keys(self.keys, "distinct")
        return input_schema
