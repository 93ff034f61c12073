"""Joins: rows of two sides that belong together, and how long event time keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Expression
from penstock.expressions.types import BOOLEAN, Field, Schema
from penstock.operators.specs.by_spark import SparkColumn, inputs_of
from penstock.operators.specs.spec import (
    WEIGHT_FIELD,
    Binder,
    Spec,
    bound_if_any,
    by,
    check_columns,
    check_distinct,
    check_room,
    column_names,
    is_key_type,
    refuse,
    without_weight,
)

HOWS = ("inner", "left", "right", "full", "semi", "anti")
LEFT, RIGHT = 0, 1  # the ports


@dataclass(frozen=True, slots=True)
class JoinKey:
    """A column of each side that must be equal: NaN to NaN, null to nothing or to null."""

    left: Expression
    right: Expression
    null_safe: bool = False

    def of(self, side: int) -> Expression:
        return self.left if side == LEFT else self.right


@dataclass(frozen=True, slots=True)
class JoinMatch:
    """Which rows of two sides belong together: equal keys, and a condition on both.

    Columns of the two sides have names of their own.
    """

    keys: tuple[JoinKey, ...]
    condition: Expression | None = None

    def expressions(self) -> list[Expression]:
        keys = [side for key in self.keys for side in (key.left, key.right)]
        return keys + ([] if self.condition is None else [self.condition])

    def bound(self, bind: Binder) -> JoinMatch:
        keys = (JoinKey(bind(key.left), bind(key.right), key.null_safe) for key in self.keys)
        return JoinMatch(tuple(keys), bound_if_any(self.condition, bind))

    def key_names(self, side: int) -> tuple[str, ...]:
        """The columns of a side whose hash decides where a row goes."""
        return column_names(key.of(side) for key in self.keys)

    def check(self, left: Schema, right: Schema) -> None:
        check_distinct(tuple(field.name for field in (*left, *right)))
        for key in self.keys:
            check_columns(key.left, left)
            check_columns(key.right, right)
            if key.left.type != key.right.type:
                raise refuse(
                    f"{key.left} is {key.left.type} and {key.right} is {key.right.type}: "
                    "a join compares values of one type"
                )
            if not is_key_type(key.left.type):
                raise refuse(f"joining by {key.left} of type {key.left.type} is not supported")
        check_room(len(self.keys), "keys of a join")
        if self.condition is not None:
            check_columns(self.condition, (*left, *right))
            if self.condition.type != BOOLEAN:
                raise refuse(f"a join needs a boolean, {self.condition} is {self.condition.type}")


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A time of a row, and how far the watermark may pass it before the row can match nothing."""

    time: Expression
    plus_us: int


@dataclass(frozen=True, slots=True)
class JoinSide:
    """What event time means to the rows of one side.

    A row is late if the watermark has reached its `time`; where that is the last instant of a
    window (`is_instant`), if it has passed it. A row is forgotten when the watermark has reached
    the first of its `limits`; without any it is kept for ever.
    """

    time: Expression | None = None
    is_instant: bool = False
    limits: tuple[TimeLimit, ...] = ()

    def expressions(self) -> list[Expression]:
        return [*([] if self.time is None else [self.time]), *(each.time for each in self.limits)]

    def bound(self, bind: Binder) -> JoinSide:
        limits = (TimeLimit(bind(each.time), each.plus_us) for each in self.limits)
        return replace(self, time=bound_if_any(self.time, bind), limits=tuple(limits))


@dataclass(frozen=True, slots=True)
class JoinSpec(Spec):
    """Joins the rows of two ports as they come, whichever comes first.

    inner: pairs. left, right, full: pairs, and rows of that side, or of both, that match nothing,
    when it is sure. semi: rows of the left side, at their first match. anti: those without, when it
    is sure. The output has the left columns, then the right ones; of semi and anti the left ones.
    It may have the columns `times` as event time, `behind_us` behind the watermark.

    Of pairs that match, Spark has the last word where parts of the condition are `decided` by it.
    Sides that are `tables` have rows that come and go. Rows of a stream meet those that a table
    has when they come; of two tables pairs come and go, and are emitted so with `changes`.
    """

    op: ClassVar[str] = "join"
    ports: ClassVar[int] = 2
    word: ClassVar[str] = "join"
    fuses: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    how: str
    match: JoinMatch
    left: JoinSide = JoinSide()
    right: JoinSide = JoinSide()
    times: tuple[str, ...] = ()
    behind_us: int = 0
    tables: tuple[bool, bool] = (False, False)
    changes: bool = False
    decided: tuple[SparkColumn, ...] = ()

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise refuse(f"there is no join {self.how!r}; known: {', '.join(HOWS)}")
        if any(self.tables):
            self._check_tables()
            return
        for side in (LEFT, RIGHT):
            if self.waits_for(side) and not self.side(side).limits:
                raise refuse(
                    f"the {self.how} join must know when a row of its "
                    f"{('left', 'right')[side]} side can match nothing any more, and no watermark "
                    "tells it: define one on the "
                    "other side, and a range of time between both in the condition"
                )

    def _check_tables(self) -> None:
        """A table cannot wait for rows of a stream: they are not kept."""
        for side in (LEFT, RIGHT):
            is_right_of = self.waits_for(side) or (side == LEFT and not self.shows_right)
            if is_right_of and self.tables[side] and not self.tables[1 - side]:
                raise refuse(
                    f"the {self.how} join of a table with a stream: which rows of the table match "
                    "nothing is never sure; put the stream on the other side, or read it as a "
                    "table, too"
                )

    @property
    def mode(self) -> str:
        """Of two tables the result is one."""
        return "update" if all(self.tables) else "append"

    def side(self, side: int) -> JoinSide:
        return self.left if side == LEFT else self.right

    def waits_for(self, side: int) -> bool:
        """Whether rows of a side that match nothing are results, once that is sure."""
        return self.how in (("left", "full", "anti") if side == LEFT else ("right", "full"))

    @property
    def shows_right(self) -> bool:
        return self.how not in ("semi", "anti")

    def expressions(self) -> list[Expression]:
        return [
            *self.match.expressions(), *self.left.expressions(), *self.right.expressions(),
            *inputs_of(self.decided),
        ]  # fmt: skip

    def bound(self, bind: Binder) -> JoinSpec:
        left, right = self.left.bound(bind), self.right.bound(bind)
        decided = tuple(each.bound(bind) for each in self.decided)
        return replace(self, match=self.match.bound(bind), left=left, right=right, decided=decided)

    @property
    def is_on_driver(self) -> bool:
        return bool(self.decided)

    @property
    def keys(self) -> tuple[JoinKey, ...]:
        return self.match.keys

    @property
    def forgets(self) -> bool:
        """Whether rows of both sides leave the state some time."""
        return bool(self.left.limits and self.right.limits)

    @property
    def drops_late(self) -> bool:
        return self.left.time is not None or self.right.time is not None

    @property
    def title(self) -> str:
        return f"{self.how}_join{by(self.match.key_names(LEFT))}"

    @property
    def meaning(self) -> dict[str, Any]:
        """What its states stand for; which columns their rows have, the stage says."""
        facts = {"join": self.how, "match": self.match, "sides": [self.left, self.right]}
        more = {"tables": self.tables} if any(self.tables) else {}
        return facts | more | ({"decided": self.decided} if self.decided else {})

    def output_schema(self, *inputs: Schema) -> Schema:
        left, right = map(without_weight, inputs)
        self.match.check(left, right)
        for column in inputs_of(self.decided):
            check_columns(column, (*left, *right))
        for side, schema in ((self.left, left), (self.right, right)):
            for expression in side.expressions():
                check_columns(expression, schema)
        fields = tuple(self._fields(left, right))
        return (*fields, WEIGHT_FIELD) if self.changes else fields

    def _fields(self, left: Schema, right: Schema) -> Iterator[Field]:
        for field in left:
            yield replace(field, nullable=field.nullable or self.waits_for(RIGHT))
        for field in right if self.shows_right else ():
            lacks = self.how in ("left", "full")
            yield replace(field, nullable=field.nullable or lacks)
