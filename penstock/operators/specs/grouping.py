"""Groups: windows, aggregates, their partials, and how the mode emits them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import pyarrow as pa

from penstock.errors import StateOverflow
from penstock.expressions.durations import show_duration
from penstock.expressions.tree import Column, Expression, call, columns_of, literal
from penstock.expressions.types import (
    BIGINT,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    array_type,
    struct_type,
)
from penstock.json_codec import canonical_json
from penstock.kernels.accumulators import ACCUMULATORS, AccumulatorFunction, Part
from penstock.kernels.columns import is_fixed_width
from penstock.operators.aggregate_functions import AGGREGATES, AggregateFunction, ordered
from penstock.operators.specs.rows import SPAN_US_MAX
from penstock.operators.specs.spec import (
    MODES,
    WEIGHT_FIELD,
    Binder,
    NamedExpression,
    Spec,
    bound_named,
    by,
    check_columns,
    check_distinct,
    check_room,
    column_of,
    is_key_type,
    is_weighted,
    refuse,
    without_weight,
)

PANE_COLUMN = "__pane"
BEGIN_COLUMN = "__begin"
ROWS_COLUMN = "__rows"
PLACE = Column("__place", BIGINT, False)  # of a row, in the order in which an operator takes rows
OVERLAP_MAX = 10_000  # windows that one row is in; Spark makes a projection for each
OBSERVED = (  # of the stream of what a query observes: which observation, and what it has kept
    Field("observation", STRING, False),
    Field("kept", DataType("binary"), False),
)
_TIME_MAX = (1 << 63) - 1
_COUNTS = frozenset({"rows", "count"})
_SUMS = frozenset({"sum", "sum_high", "sum_low"})


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Windows [k*slide + start, k*slide + start + size); each a run of equal panes."""

    time: Expression
    size_us: int
    slide_us: int
    start_us: int = 0
    output: str = "window"

    def __post_init__(self) -> None:
        if not (0 < self.slide_us <= self.size_us):
            raise refuse(
                f"a window needs 0 < slide <= size, got slide "
                f"{show_duration(self.slide_us)} and size {show_duration(self.size_us)}"
            )
        if not 0 <= self.start_us < self.slide_us:
            raise refuse(
                f"a window's start offset lies in [0, slide), got "
                f"{show_duration(self.start_us)} with slide {show_duration(self.slide_us)}"
            )
        if self.size_us > SPAN_US_MAX:
            raise refuse(
                f"a window is at most {show_duration(SPAN_US_MAX)} long, so that its ends are "
                f"times of 64 bits; this one has {show_duration(self.size_us)}"
            )
        if self.size_us > self.slide_us * OVERLAP_MAX:
            raise refuse(
                f"a row lies in at most {OVERLAP_MAX:,} windows that overlap; here in "
                f"{-(-self.size_us // self.slide_us):,}: take a longer slide"
            )

    @property
    def times_us(self) -> tuple[int, int]:
        """The first and the last time all of whose windows, and their neighbours, fit 64 bits."""
        first = -(_TIME_MAX // self.slide_us)  # begins within 64 bits, with any offset
        last = (_TIME_MAX - self.start_us - self.size_us) // self.slide_us  # ends within them
        return first * self.slide_us + self.start_us + self.size_us, (
            last * self.slide_us + self.start_us - 1
        )

    @property
    def pane_us(self) -> int:
        return math.gcd(self.size_us, self.slide_us)

    @property
    def panes_per_window(self) -> int:
        return self.size_us // self.pane_us

    @property
    def panes_per_slide(self) -> int:
        return self.slide_us // self.pane_us

    @property
    def event_time(self) -> Expression:
        """What a watermark must speak of to end these windows."""
        return self.time

    @property
    def keys(self) -> tuple[NamedExpression, ...]:
        """What partials are grouped by, beside the pane of their time."""
        return ()

    @property
    def type(self) -> DataType:
        return _window_type(self.time)

    def expressions(self) -> list[Expression]:
        return [self.time]

    def bound(self, bind: Binder) -> WindowSpec:
        return replace(self, time=bind(self.time))

    def check(self, input_schema: Schema) -> None:
        _check_time(self.time, input_schema)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Sessions: a row of a key lasts from `begin` to `end`; rows that overlap or touch are one.

    Rows that do not end after they begin are no concern of it: a filter stands before.
    """

    begin: Expression
    end: Expression
    output: str = "session_window"

    # Partials are one per end, so that each is late as its rows are.
    pane_us: ClassVar[int] = 1
    start_us: ClassVar[int] = 0
    times_us: ClassVar[tuple[int, int]] = (1 - _TIME_MAX, _TIME_MAX - 1)

    @property
    def time(self) -> Expression:
        return self.end

    @property
    def event_time(self) -> Expression:
        return self.begin

    @property
    def keys(self) -> tuple[NamedExpression, ...]:
        return ((BEGIN_COLUMN, self.begin),)

    @property
    def type(self) -> DataType:
        return _window_type(self.begin)

    def expressions(self) -> list[Expression]:
        return [self.begin, self.end]

    def bound(self, bind: Binder) -> SessionSpec:
        return replace(self, begin=bind(self.begin), end=bind(self.end))

    def check(self, input_schema: Schema) -> None:
        _check_time(self.begin, input_schema)
        _check_time(self.end, input_schema)


def _window_type(time: Expression) -> DataType:
    kind = time.type if time.type.kind == "timestamp_ntz" else TIMESTAMP
    return struct_type((Field("start", kind), Field("end", kind)))


def _check_time(time: Expression, input_schema: Schema) -> None:
    check_columns(time, input_schema)
    if time.type.kind not in ("timestamp", "timestamp_ntz"):
        raise refuse(f"a window needs a timestamp, {time} is {time.type}")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One running value of a group: a function of `ACCUMULATORS` and what it runs over."""

    function: str
    argument: Expression | None
    second: Expression | None = None

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments)) or '*'})"

    @property
    def row(self) -> AccumulatorFunction:
        return ACCUMULATORS[self.function]

    @property
    def arguments(self) -> tuple[Expression, ...]:
        return tuple(each for each in (self.argument, self.second) if each is not None)

    @property
    def type(self) -> DataType:
        return self.row.type(self.argument)

    @property
    def merge(self) -> str:
        """How two of them become one: `add`, or a rule of the state."""
        return self.row.merge

    @property
    def nullable(self) -> bool:
        return self.row.nullable

    @property
    def in_loop(self) -> bool:
        """Whether a loop over a batch keeps it before it reaches a state."""
        return self.row.in_loop(self.argument)

    @property
    def reads(self) -> tuple[Accumulator, ...]:
        """The others that say how two of these merge."""
        return tuple(_accumulator(part, self.arguments) for part in self.row.reads)

    @property
    def depth(self) -> int:
        """How far others are read by others."""
        return max((1 + other.depth for other in self.reads), default=0)


def _accumulator(part: Part, arguments: Sequence[Expression]) -> Accumulator:
    name, *places = part
    return Accumulator(name, *(arguments[place] for place in places))


@dataclass(frozen=True, slots=True)
class Collection:
    """Items of a group: distinct values, each with its count; values at places of rows; registers.

    Of registers there are as many as their `bits` can number.
    """

    kind: Literal["values", "places", "registers"]
    arguments: tuple[Expression, ...]
    bits: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of {', '.join(map(str, self.arguments[-1:]))}"

    @property
    def keys(self) -> tuple[DataType, ...]:
        """Of what tells one item from another."""
        if self.kind == "values":
            return tuple(each.type for each in self.arguments)
        return (BIGINT,)

    @property
    def value(self) -> DataType:
        """Of what an item has."""
        return self.arguments[1].type if self.kind == "places" else BIGINT


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate of the output: a function of `AGGREGATES`; count without argument: of rows."""

    function: str
    argument: Expression | None
    name: str
    second: Expression | None = None  # of functions of a place: null where a row does not count
    ignores_nulls: bool = False  # of functions that go by the place of a row
    is_distinct: bool = False  # equal values of a group count once
    more: tuple[Expression, ...] = ()  # what a distinct count looks at beside its argument
    options: tuple[Any, ...] = ()  # what a function of items is told

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or self.function not in AGGREGATES:
            raise refuse(f"there is no aggregate {self.function!r}; known: {', '.join(AGGREGATES)}")
        if self.argument is not None:
            self._check_argument(self.argument, self.row.refusal)
        elif not self.row.counts_rows:
            raise refuse(f"{self.function} needs an argument")
        is_asked = self.row.second in ("order", "pair")
        if (self.second is not None) != is_asked and self.row.second != "place":
            raise refuse(f"{self.function} has another number of arguments")
        if self.second is not None and is_asked:
            refusal = ordered if self.row.second == "order" else self.row.refusal
            self._check_argument(self.second, refusal)
        if self.is_distinct and not (self.argument is not None and self._can_be_distinct):
            raise refuse(f"{self.function} of distinct values is not supported")
        if self.row.collects == "registers" and not self.options:
            raise refuse(f"{self.function} needs to be told how many registers there are")
        if self.more and not (self.is_distinct and self.row.counts_rows):
            raise refuse(f"{self.function} has another number of arguments")
        if self.collection is not None and self.collection.kind == "values":
            for each in self.collection.arguments:
                self._check_argument(each, ordered)

    @property
    def _can_be_distinct(self) -> bool:
        return self.row.second == "none" or self.row.collects != "none"

    def bound(self, bind: Binder) -> AggregateCall:
        if self.argument is None:
            return self
        second = None if self.second is None else bind(self.second)
        more = tuple(map(bind, self.more))
        return replace(self, argument=bind(self.argument), second=second, more=more)

    @property
    def row(self) -> AggregateFunction:
        return AGGREGATES[self.function]

    def _check_argument(
        self, argument: Expression, judge: Callable[[DataType], str | None]
    ) -> None:
        refusal = judge(argument.type)
        if refusal is not None:
            shown = refusal.format(argument=argument, type=argument.type)
            raise refuse(f"{self.function} {shown}")

    @property
    def type(self) -> DataType:
        """Spark's result type."""
        if self.argument is None:
            return BIGINT
        result = self.row.result(self.argument.type)
        return array_type(result) if self.options and self.options[0] is True else result

    @property
    def nullable(self) -> bool:
        return self.row.nullable

    def expressions(self) -> list[Expression]:
        """What it reads of a row."""
        return [each for each in (self.argument, self.second, *self.more) if each is not None]

    @property
    def collection(self) -> Collection | None:
        """The items that must be kept per group to compute it."""
        if self.argument is None:
            return None
        if self.row.collects == "registers":  # equal values are one there in any case
            return Collection("registers", (self.argument,), self.options[0])
        if self.is_distinct or self.row.collects == "values":
            return Collection("values", (self.argument, *self.more))
        if self.row.collects == "places":
            return Collection("places", (PLACE, self.argument))
        return None

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """What its accumulators run over."""
        if self.argument is None:
            return ()
        if self.row.second == "place":
            place = _where_present(PLACE, self.argument if self.ignores_nulls else PLACE)
            counts = PLACE if self.second is None else self.second
            return self.argument, _where_present(place, counts)
        if self.second is None:
            return (self.argument,)
        if self.row.second == "pair":
            one, other = self.argument, self.second
            return _where_present(one, other), _where_present(other, one)
        return self.argument, self.second

    @cached_property  # asked for with every piece of output
    def accumulators(self) -> tuple[Accumulator, ...]:
        """What must be kept per group to compute it, beside items."""
        if self.argument is None:
            return (Accumulator("rows", None),)
        if self.collection is not None:
            return ()
        parts, arguments = self.row.accumulators(self.argument.type), self.arguments
        return tuple(_accumulator(part, arguments) for part in parts)

    def finish(self, accumulators: Sequence[Accumulator], columns: Sequence[pa.Array]) -> pa.Array:
        """The column of the result, from the columns of all accumulators of the groups."""
        own = [columns[accumulators.index(needed)] for needed in self.accumulators]
        try:
            return self.row.finish(own, getattr(self.argument, "type", BIGINT), self.type)
        except OverflowError as error:
            raise StateOverflow(
                f"aggregate: {self.function} {self.name!r} has no room in its type, {self.type}; "
                f"cast {self.argument} to a wider type or to double, or use try_{self.function}, "
                "which gives null there",
                column=self.name,
            ) from error


def _where_present(value: Expression, guard: Expression) -> Expression:
    """The value, but null where the guard is."""
    if not guard.nullable:
        return value
    return call("if", call("is_not_null", guard), value, literal(None, value.type))


def accumulators_of(aggregates: tuple[AggregateCall, ...]) -> tuple[Accumulator, ...]:
    """The distinct accumulators of all aggregates, in order of first use.

    What others read comes after them: a state merges one column after the other.
    """
    found: dict[Accumulator, None] = {}
    waiting = [a for call in aggregates for a in call.accumulators]
    while waiting:
        found.update(dict.fromkeys(waiting))
        waiting = [other for a in waiting for other in a.reads if other not in found]
    return tuple(sorted(found, key=lambda a: -a.depth))


def collections_of(aggregates: tuple[AggregateCall, ...]) -> tuple[Collection, ...]:
    """The distinct collections of all aggregates, in order of first use."""
    found = (call.collection for call in aggregates)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _check_grouping(
    keys: tuple[NamedExpression, ...],
    window: WindowSpec | SessionSpec | None,
    aggregates: tuple[AggregateCall, ...],
    input_schema: Schema,
) -> None:
    for name, key in keys:
        check_columns(key, input_schema)
        if not is_key_type(key.type):
            raise refuse(f"grouping by {name!r} of type {key.type} is not supported", column=name)
    check_room(len(keys), "keys")
    check_room(len(accumulators_of(aggregates)), "running numbers, an average more than one")
    if window is not None:
        window.check(input_schema)
    for aggregate in aggregates:
        for argument in aggregate.expressions():
            check_columns(argument, input_schema)


def counts_only(call: AggregateCall) -> bool:
    """Whether a result says how many rows there are, or values."""
    if call.collection is not None:
        return False
    return call.second is None and {part.function for part in call.accumulators} <= _COUNTS


def is_running(call: AggregateCall) -> bool:
    """Whether a result is a function of counts and sums, from which rows can be taken away."""
    if counts_only(call):
        return True
    is_number = call.argument is not None and is_fixed_width(call.argument.type)
    return (
        is_number
        and call.collection is None
        and call.second is None
        and {part.function for part in call.accumulators} <= _COUNTS | _SUMS
    )


def all_arguments(calls: Sequence[AggregateCall]) -> list[Expression]:
    """What the calls read, each once."""
    return list(dict.fromkeys(each for call in calls for each in call.expressions()))


def counted_arguments(calls: Sequence[AggregateCall]) -> list[Expression]:
    """The arguments of which it is counted how many come and go."""
    return all_arguments([call for call in calls if is_running(call)])


def summed_arguments(calls: Sequence[AggregateCall]) -> list[Expression]:
    """The arguments that are added up where they come, and taken away where they go."""
    return all_arguments([call for call in calls if is_running(call) and not counts_only(call)])


@dataclass(frozen=True, slots=True)
class PartialAggregateSpec(Spec):
    """Before an exchange: rows become accumulators per (key, pane), merged on the other side."""

    op: ClassVar[str] = "partial_aggregate"
    hands_on: ClassVar[bool] = False
    fuses: ClassVar[bool] = True  # one loop computes it and what stands right before it
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | SessionSpec | None
    aggregates: tuple[AggregateCall, ...]

    def expressions(self) -> list[Expression]:
        read = [key for _, key in self.keys]
        read += [argument for call in self.aggregates for argument in call.expressions()]
        return read + ([] if self.window is None else self.window.expressions())

    def bound(self, bind: Binder) -> PartialAggregateSpec:
        window = None if self.window is None else self.window.bound(bind)
        calls = tuple(call.bound(bind) for call in self.aggregates)
        return PartialAggregateSpec(bound_named(self.keys, bind), window, calls)

    @property
    def in_loop(self) -> bool:
        """Whether a loop computes it; else rows go to the state one by one, and travel as rows."""
        in_loop = (accumulator.in_loop for accumulator in accumulators_of(self.aggregates))
        return all(in_loop) and not collections_of(self.aggregates)

    @property
    def has_one_group(self) -> bool:
        """Whether there is one group only, which is there also if no row has reached it."""
        return not self.keys and self.window is None

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns whose hash decides where a partial goes."""
        return tuple(name for name, _ in self.keys)

    @property
    def grouped_by(self) -> tuple[NamedExpression, ...]:
        """The keys, and what a window adds to them."""
        return self.keys if self.window is None else (*self.keys, *self.window.keys)

    @property
    def schema(self) -> Schema:
        """Keys, pane (if windowed), number of rows, then one column per accumulator."""
        fields = [Field(name, key.type, key.nullable) for name, key in self.grouped_by]
        if self.window is not None:
            fields.append(Field(PANE_COLUMN, BIGINT, False))
        fields.append(Field(ROWS_COLUMN, BIGINT, False))
        for index, accumulator in enumerate(accumulators_of(self.aggregates)):
            fields.append(Field(f"__a{index}", accumulator.type, accumulator.nullable))
        return tuple(fields)

    def output_schema(self, input_schema: Schema) -> Schema:
        _check_grouping(self.keys, self.window, self.aggregates, input_schema)
        check_distinct(tuple(field.name for field in self.schema))
        return self.schema

    @property
    def title(self) -> str:
        """What people would call it."""
        functions = [call.function for call in self.aggregates] or ["keys"]
        what = functions[0]
        if self.window is not None:
            what = "sessions" if isinstance(self.window, SessionSpec) else "windows"
        return f"partial_{what}{by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        """What partials, or a state of them, stand for."""
        values = [
            [each.function, each.argument, *each.arguments[1:]]
            for each in accumulators_of(self.aggregates)
        ]
        items = [
            [each.kind, *each.arguments, *([each.bits] if each.bits else [])]
            for each in collections_of(self.aggregates)
        ]
        kept = {"values": values} | ({"items": items} if items else {})
        return {"keys": self.keys, "window": self.window} | kept


@dataclass(frozen=True, slots=True)
class ObserveSpec(Spec):
    """Rows pass as they are; what they amount to, batch by batch, goes beside them to the driver.

    What is kept of a batch are partials, where a loop makes these, else the columns that are read.
    """

    op: ClassVar[str] = "observe"
    name: str
    aggregates: tuple[AggregateCall, ...]

    @property
    def partial(self) -> PartialAggregateSpec:
        return PartialAggregateSpec((), None, self.aggregates)

    @property
    def kept(self) -> Schema:
        """The columns of what is kept of a batch."""
        return self.partial.schema if self.partial.in_loop else self.read

    @property
    def read(self) -> Schema:
        """The columns that its aggregates read."""
        read = {column.name: column for each in self.expressions() for column in columns_of(each)}
        return tuple(Field(name, each.type, each.nullable) for name, each in read.items())

    @property
    def digest(self) -> str:
        """What tells apart what was kept for other aggregates under the same name."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()[:16]

    def expressions(self) -> list[Expression]:
        return self.partial.expressions()

    def bound(self, bind: Binder) -> ObserveSpec:
        return replace(self, aggregates=tuple(call.bound(bind) for call in self.aggregates))

    def output_schema(self, input_schema: Schema) -> Schema:
        self.partial.output_schema(without_weight(input_schema))
        return input_schema


@dataclass(frozen=True, slots=True)
class AggregateSpec(Spec):
    """Groups by keys and window, and emits as the mode says.

    append: each window once, when the watermark passes its end. update: the groups that changed,
    at each commit. complete: every group, at each commit. The output has the window (a struct of
    start and end) first, then the keys, then the aggregates. With `merge_partials` the input is
    what a PartialAggregateSpec of the same keys, window and aggregates wrote. Only a watermark that
    speaks of the window's time (`is_watermarked`) ends windows and makes rows late.

    Where rows of the input are `weighted` they come and go. With `changes` so do those that it
    emits, at each commit, whatever else the mode would show: the row of a group that came last
    goes, and the new one comes, if there is one.
    """

    op: ClassVar[str] = "aggregate"
    hands_on: ClassVar[bool] = False
    ports: ClassVar[int] = 1
    word: ClassVar[str] = "aggregate"  # its states are named after it
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | SessionSpec | None
    aggregates: tuple[AggregateCall, ...]
    mode: str = "append"
    merge_partials: bool = False
    is_watermarked: bool = False
    weighted: bool = False
    changes: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise refuse(f"there is no mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.mode == "append" and (self.weighted or self.changes):
            raise refuse(
                "an aggregate in append mode emits each group once, when it is final: groups of "
                "rows that come and go are not; use update or complete mode"
            )
        if self.merge_partials and self.by_rows:
            raise refuse("rows that come and go are aggregated one by one, not as partials")
        if self.mode == "append" and self.window is None:
            raise refuse("an aggregate in append mode needs a window: without one it never ends")
        if self.mode == "append" and not self.is_watermarked:
            raise refuse(
                "an aggregate in append mode needs a watermark on its window's time: without one "
                "no window ever ends"
            )
        if self.window is None and self.is_watermarked:
            raise refuse("a watermark ends the windows of an aggregate, and it has none")

    def expressions(self) -> list[Expression]:
        """Where it merges partials they were computed before."""
        weight: list[Expression] = [column_of(WEIGHT_FIELD)] if self.weighted else []
        return [*self.partial.expressions(), *weight]

    def bound(self, bind: Binder) -> AggregateSpec:
        part = self.partial.bound(bind)
        return replace(self, keys=part.keys, window=part.window, aggregates=part.aggregates)

    @property
    def fuses(self) -> bool:
        """Whether one loop computes it and what stands right before it."""
        return not self.merge_partials and not self.by_rows

    @property
    def by_rows(self) -> bool:
        """Whether it keeps groups from which single rows can go, or whole results that can."""
        window = self.window
        is_one = window is None or (
            isinstance(window, WindowSpec) and window.size_us == window.slide_us
        )
        is_line = is_one and not collections_of(self.aggregates)
        return self.weighted or (self.changes and not is_line)

    @property
    def has_one_group(self) -> bool:
        return self.partial.has_one_group

    @property
    def shows_whole(self) -> bool:
        """Whether it emits all groups at a commit, where one has changed."""
        return self.mode == "complete" and not self.changes

    @property
    def forgets(self) -> bool:
        """Whether the watermark ends windows; complete mode keeps every group for ever."""
        return self.is_watermarked and self.mode != "complete"

    @property
    def drops_late(self) -> bool:
        return self.forgets

    @property
    def title(self) -> str:
        """What people would call it."""
        return self.partial.title.removeprefix("partial_")

    @property
    def meaning(self) -> dict[str, Any]:
        """What its state stands for: under another one it would be another state."""
        facts = {"mode": self.mode, "merges": self.merge_partials, "forgets": self.forgets}
        changing = {"weighted": self.weighted, "changes": self.changes}
        return (
            self.partial.meaning | facts | {word: True for word, is_so in changing.items() if is_so}
        )

    @property
    def partial(self) -> PartialAggregateSpec:
        return PartialAggregateSpec(self.keys, self.window, self.aggregates)

    @property
    def schema(self) -> Schema:
        """Of what it emits."""
        return (*self.groups_schema, WEIGHT_FIELD) if self.changes else self.groups_schema

    @property
    def groups_schema(self) -> Schema:
        """Of its groups: window, keys, aggregates."""
        fields = [Field(name, key.type, key.nullable) for name, key in self.keys]
        if self.window is not None:
            fields.insert(0, Field(self.window.output, self.window.type, False))
        for aggregate in self.aggregates:
            fields.append(Field(aggregate.name, aggregate.type, aggregate.nullable))
        return tuple(fields)

    def output_schema(self, input_schema: Schema) -> Schema:
        if self.weighted != is_weighted(input_schema):
            raise refuse(
                "the weights of rows that come and go reach the aggregate, or there are none"
            )
        if self.merge_partials:
            self._check_partials(input_schema)
        else:
            _check_grouping(self.keys, self.window, self.aggregates, input_schema)
        if (
            self.by_rows
        ):  # a result each, what it is made of, the number of rows and that of a group
            counted, summed = counted_arguments(self.aggregates), summed_arguments(self.aggregates)
            needed = len(self.aggregates) + len(counted) + 2 * len(summed) + 2
            check_room(needed, "results and running numbers, where rows come and go")
        check_distinct(tuple(field.name for field in self.schema))
        return self.schema

    def _check_partials(self, input_schema: Schema) -> None:
        expected = [(field.name, field.type) for field in self.partial.schema]
        found = [(field.name, field.type) for field in input_schema]
        if expected != found:
            shown = ", ".join(f"{name} {kind}" for name, kind in expected)
            raise refuse(f"partials to merge have the columns: {shown}; the input differs")
