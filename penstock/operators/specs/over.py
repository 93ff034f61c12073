"""Window functions: what each row is given by the rows of its partition around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.expressions.tree import Column, Expression, Literal
from penstock.expressions.types import DOUBLE, INT, DataType, Field, Schema
from penstock.operators.specs.grouping import AggregateCall
from penstock.operators.specs.spec import (
    Binder,
    Spec,
    by,
    check_columns,
    check_distinct,
    is_key_type,
    refuse,
)

RANKS = ("row_number", "rank", "dense_rank")  # those that the best rows of a partition are asked by
_TYPES: dict[str, DataType] = {
    **dict.fromkeys((*RANKS, "ntile"), INT),
    "percent_rank": DOUBLE,
    "cume_dist": DOUBLE,
}
_VALUES = ("lag", "lead", "first", "last", "nth")


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows around a row, both ends included; None: to the end of the partition.

    Those of `rows` are so many rows away; of others the value that they are ordered by is so far
    away, in its unit (days, microseconds), and 0 are rows of equal order.
    """

    rows: bool
    low: int | None
    high: int | None

    @property
    def by_value(self) -> bool:
        """Whether it goes by how far values are apart."""
        return not self.rows and any((self.low, self.high))


WHOLE = Frame(True, None, None)


@dataclass(frozen=True, slots=True)
class Order:
    """One column that the rows of a partition are ordered by."""

    column: Column
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class OverCall:
    """One window function: a rank, the value of another row, or an aggregate over a frame.

    `number` is how many rows away (lag, lead), which row of a frame (nth), how many parts (ntile).
    """

    function: str
    name: str
    argument: Expression | None = None
    frame: Frame = WHOLE
    number: int = 1
    default: Literal | None = None
    ignores_nulls: bool = False
    second: Expression | None = None  # of an aggregate, as its options
    options: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.function in _VALUES and not isinstance(self.argument, Column):
            raise refuse(f"{self.function} takes a column here, not {self.argument}")
        if self.ignores_nulls and self.function in ("lag", "lead") and not self.number:
            raise refuse(f"{self.function} that passes over nulls is that of another row")
        if self.is_aggregate:
            _ = self.aggregate  # one of the table, or it is refused there

    @property
    def is_rank(self) -> bool:
        return self.function in _TYPES

    @property
    def is_aggregate(self) -> bool:
        return not self.is_rank and self.function not in _VALUES

    @property
    def aggregate(self) -> AggregateCall:
        asked = (self.function, self.argument, self.name, self.second, self.ignores_nulls)
        return AggregateCall(*asked, options=self.options)

    @property
    def back(self) -> int | None:
        """How many rows before a row it looks at; None: all, or some behind it too."""
        if self.function == "lag":
            return self.number if self.number >= 0 and not self.ignores_nulls else None
        if self.is_rank or self.function == "lead" or not self.frame.rows:
            return None
        if self.frame.low is None or self.frame.high is None or self.frame.high > 0:
            return None
        return max(0, -self.frame.low)

    @property
    def field(self) -> Field:
        if self.is_rank:
            return Field(self.name, _TYPES[self.function], False)
        if self.is_aggregate:
            return Field(self.name, self.aggregate.type, self.aggregate.nullable)
        assert self.argument is not None
        return Field(self.name, self.argument.type, True)

    def bound(self, bind: Binder) -> OverCall:
        if self.argument is None:
            return self
        second = None if self.second is None else bind(self.second)
        return replace(self, argument=bind(self.argument), second=second)

    def expressions(self) -> list[Expression]:
        """What it reads of a row."""
        return [each for each in (self.argument, self.second) if each is not None]


@dataclass(frozen=True, slots=True)
class OverSpec(Spec):
    """Adds window functions to rows, which wait until event time has passed them.

    A row is passed when the watermark is `after_us` or more behind its `time`. Where the partitions
    are windows that event time ends, all rows of one are passed at once. Else (`is_running`) rows
    come out in the order of time, and functions look at some rows before them. `best` says that
    rows beyond so many, by one of the calls, are not asked for.
    """

    op: ClassVar[str] = "over"
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "over"
    mode: ClassVar[str] = "append"
    fuses: ClassVar[bool] = False
    changes: ClassVar[bool] = False
    forgets: ClassVar[bool] = True
    drops_late: ClassVar[bool] = True
    partition: tuple[Column, ...]
    order: tuple[Order, ...]
    calls: tuple[OverCall, ...]
    time: Column
    after_us: int = 0
    is_running: bool = False
    best: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        for call in self.calls:
            if call.frame.by_value and not (len(self.order) == 1 and _has_distance(self.order[0])):
                raise refuse(
                    f"{call.name}: a frame that goes by how far values are away needs rows that "
                    "are ordered by one whole number, date or timestamp; order by one, or use "
                    "rowsBetween()"
                )
        if not self.is_running:
            return
        for call in self.calls:
            if call.back is None:
                raise refuse(
                    f"{call.name}: {call.function} over partitions that never end: it may look at "
                    "a bounded number of rows before its own (ROWS BETWEEN n PRECEDING AND CURRENT "
                    "ROW, lag), or the rows are partitioned by a window that a watermark ends"
                )
        first = self.order[0] if self.order else None
        if first is None or first.column.name != self.time.name or first.descending:
            raise refuse(
                f"rows are ordered by event time ({self.time}) first, ascending, where the "
                "partitions never end"
            )

    @property
    def keys(self) -> tuple[Column, ...]:
        return self.partition

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.partition)

    @property
    def back(self) -> int:
        """How many rows of a partition that never ends are kept when they have been passed."""
        return max((call.back or 0 for call in self.calls), default=0) if self.is_running else 0

    def expressions(self) -> list[Expression]:
        read: list[Expression] = [*self.partition, *(each.column for each in self.order)]
        read += [each for call in self.calls for each in call.expressions()]
        return [*read, self.time]

    def bound(self, bind: Binder) -> OverSpec:
        return replace(
            self,
            partition=tuple(_column(bind(column)) for column in self.partition),
            order=tuple(replace(each, column=_column(bind(each.column))) for each in self.order),
            calls=tuple(call.bound(bind) for call in self.calls),
            time=_column(bind(self.time)),
        )

    @property
    def title(self) -> str:
        return f"{self.calls[0].function}{by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        waits = {"time": self.time, "after_us": self.after_us, "back": self.back}
        if self.best is not None:
            waits["best"] = self.best
        return {"partition": self.partition, "order": self.order, **waits}

    def output_schema(self, input_schema: Schema) -> Schema:
        for expression in self.expressions():
            check_columns(expression, input_schema)
        for column in (*self.partition, *(each.column for each in self.order)):
            if not is_key_type(column.type):
                raise refuse(f"partitions and order by {column} of type {column.type}")
        schema = (*input_schema, *(call.field for call in self.calls))
        check_distinct(tuple(field.name for field in schema))
        return schema


def _has_distance(order: Order) -> bool:
    kind = order.column.type
    return kind.is_integer or kind.kind in ("date", "timestamp", "timestamp_ntz")


def _column(expression: Expression) -> Column:
    assert isinstance(expression, Column)
    return expression
