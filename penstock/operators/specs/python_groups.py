"""Functions over the rows of a key and what they keep for it: what identifies them, never code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Expression
from penstock.expressions.types import Field, Schema
from penstock.operators.specs.python import PythonCall
from penstock.operators.specs.spec import (
    Binder,
    Spec,
    bound_if_any,
    by,
    check_columns,
    check_distinct,
    check_keys,
    column_names,
    refuse,
)

CLOCKS = ("none", "processing", "event")
VARIABLES = ("value", "list", "map")


@dataclass(frozen=True, slots=True)
class StateVariable:
    """What a function keeps for each key under one name: a value, a list, or a map by `key`.

    With `ttl_ms` an entry is forgotten so long after it was written.
    """

    name: str
    kind: str
    value: tuple[Field, ...]
    key: tuple[Field, ...] = ()
    ttl_ms: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in VARIABLES or (self.kind == "map") != bool(self.key):
            raise refuse(f"state {self.name!r:.80} is a {self.kind!r:.80} of unknown shape")
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise refuse(f"state {self.name!r:.80} is kept for {self.ttl_ms} ms, which is no time")


@dataclass(frozen=True, slots=True)
class InitialState:
    """Rows of a static side that a processor is given once, before the rows of its first batch.

    `keys` are what the keys of its rows are, over columns of the side; `key_names` are those
    columns, and `shown` all that a processor sees, in their order.
    """

    side: str
    side_schema: tuple[Field, ...]
    keys: tuple[Expression, ...]
    key_names: tuple[str, ...]
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PythonGroupsSpec(Spec):
    """Gives the rows of each key to a Python function, beside what it keeps for that key.

    With `is_processor` it is an object of the query with variables and timers of its own; else a
    function with one value for each key, and a timeout. Both are called again when time has come
    as far as they asked for, by one of the clocks. Rows that are not after the watermark in `time`
    are late. `event_time` is the column of the output of which the watermark speaks.
    """

    op: ClassVar[str] = "python_groups"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "groups"
    mode: ClassVar[str] = "append"
    changes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    forgets: ClassVar[bool] = False
    keys: tuple[Expression, ...]  # columns
    call: PythonCall
    outputs: tuple[Field, ...]
    variables: tuple[StateVariable, ...]
    clock: str = "none"
    is_processor: bool = False
    watermarked: bool = False
    time: Expression | None = None  # a column
    event_time: str | None = None
    initial: InitialState | None = None
    given_up: tuple[str, ...] = ()  # states that it has for no key any more

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise refuse(f"a function goes by one of the clocks {', '.join(CLOCKS)}")
        names = [variable.name for variable in self.variables]
        if len(set(names)) < len(names):
            raise refuse(f"states of a function need distinct names, not {', '.join(names):.200}")

    @property
    def hands_on(self) -> bool:
        return False

    @property
    def calls(self) -> tuple[PythonCall, ...]:
        return (self.call,)

    def expressions(self) -> list[Expression]:
        return [*self.keys, *self.call.inputs, *([] if self.time is None else [self.time])]

    def bound(self, bind: Binder) -> PythonGroupsSpec:
        return replace(
            self,
            keys=tuple(map(bind, self.keys)),
            call=self.call.bound(bind),
            time=bound_if_any(self.time, bind),
        )

    @property
    def key_names(self) -> tuple[str, ...]:
        return column_names(self.keys)

    @property
    def drops_late(self) -> bool:
        return self.time is not None

    @property
    def title(self) -> str:
        return f"python{by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        # The columns of values may become more (`stages/compare.py`).
        variables = [replace(each, value=()) for each in self.variables]
        return {"python": self.keys, "variables": variables, "clock": self.clock}

    def output_schema(self, input_schema: Schema) -> Schema:
        self.call.check(input_schema)
        for column in self.expressions():
            check_columns(column, input_schema)
        check_keys(self.keys, "groups by")
        check_distinct(tuple(field.name for field in self.outputs))
        return self.outputs
