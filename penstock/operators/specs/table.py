"""Tables: the newest row of each key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Expression
from penstock.expressions.types import BOOLEAN, Schema
from penstock.operators.specs.spec import (
    WEIGHT_FIELD,
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
class TableSpec(Spec):
    """A row replaces the one of its key; one for which `removed` is true only takes it away.

    With `changes` rows come and go; without, those that come are shown.
    """

    op: ClassVar[str] = "table"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "table"
    mode: ClassVar[str] = "update"
    fuses: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    drops_late: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    keys: tuple[Expression, ...]  # columns
    removed: Expression | None = None
    changes: bool = False

    def expressions(self) -> list[Expression]:
        return [*self.keys, *([] if self.removed is None else [self.removed])]

    def bound(self, bind: Binder) -> TableSpec:
        removed = bound_if_any(self.removed, bind)
        return replace(self, keys=tuple(map(bind, self.keys)), removed=removed)

    @property
    def key_names(self) -> tuple[str, ...]:
        return column_names(self.keys)

    @property
    def title(self) -> str:
        return f"table{by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        """What its state stands for; which columns its rows have, the stage says."""
        return {"table": self.keys, "removed": self.removed}

    def output_schema(self, input_schema: Schema) -> Schema:
        for expression in self.expressions():
            check_columns(expression, input_schema)
        check_keys(self.keys, "a table by")
        if self.removed is not None and self.removed.type != BOOLEAN:
            raise refuse(f"what removes a row is a boolean, {self.removed} is {self.removed.type}")
        return (*input_schema, WEIGHT_FIELD) if self.changes else input_schema
