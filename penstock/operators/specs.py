"""What each operator of a chain does, as plain frozen values that travel as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import pyarrow as pa

from penstock.errors import ExpressionError
from penstock.expressions.durations import MICROSECONDS, show_duration
from penstock.expressions.tree import Column, Expression, columns_of, from_json
from penstock.expressions.types import (
    ARITHMETIC_DIGITS_MAX,
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    struct_type,
)
from penstock.json_codec import Reader, fields_of, list_of, read_as, record_of
from penstock.kernels.accumulators import ACCUMULATORS, AccumulatorFunction
from penstock.operators.aggregate_functions import AGGREGATES, AggregateFunction
from penstock.state.columns import COLUMNS_MAX

MODES = ("append", "update", "complete")
PANE_COLUMN = "__pane"
ROWS_COLUMN = "__rows"
SPAN_US_MAX = 13_000_000 * MICROSECONDS["day"]  # of windows and delays: below 2**60, of 63 bits
OVERLAP_MAX = 10_000  # windows that one row is in; Spark makes a projection for each
_TIME_MAX = (1 << 63) - 1
KEY_KINDS_REFUSED = frozenset({"array", "struct", "map", "binary"})


def _refuse(message: str, **details: Any) -> ExpressionError:
    return ExpressionError(message, **details)


def field_named(schema: Schema, name: str) -> Field:
    """The field of that name; an ExpressionError that lists what there is."""
    for field in schema:
        if field.name == name:
            return field
    known = ", ".join(field.name for field in schema)
    raise _refuse(f"there is no column {name!r}; the input has: {known}", column=name)


def check_columns(expression: Expression, schema: Schema) -> None:
    """Every column that the expression reads must be in the schema, with the same type."""
    for column in columns_of(expression):
        field = field_named(schema, column.name)
        if field.type != column.type:
            raise _refuse(
                f"column {column.name!r} is read as {column.type} in {expression}, "
                f"but the input has it as {field.type}",
                column=column.name,
            )


class Spec:
    """An operator of a chain: in JSON its name and its fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return {"op": _NAMES[type(self)], **fields_of(self)}


@dataclass(frozen=True, slots=True)
class FilterSpec(Spec):
    """Keeps the rows for which the condition is true (not false, not null)."""

    condition: Expression

    def output_schema(self, input_schema: Schema) -> Schema:
        check_columns(self.condition, input_schema)
        if self.condition.type != BOOLEAN:
            raise _refuse(f"a filter needs a boolean, {self.condition} is {self.condition.type}")
        return input_schema


NamedExpression = tuple[str, Expression]


def _check_distinct(names: tuple[str, ...]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise _refuse(f"output columns need distinct names, repeated: {', '.join(repeated)}")


@dataclass(frozen=True, slots=True)
class ProjectSpec(Spec):
    """Replaces the columns of a row by these expressions."""

    columns: tuple[NamedExpression, ...]

    def output_schema(self, input_schema: Schema) -> Schema:
        for _, expression in self.columns:
            check_columns(expression, input_schema)
        _check_distinct(tuple(name for name, _ in self.columns))
        return tuple(Field(name, e.type, e.nullable) for name, e in self.columns)


@dataclass(frozen=True, slots=True)
class GenerateSpec(Spec):
    """Explode: one output row per element of an array, the other columns repeated.

    `outer` keeps a row with a null element where the array is empty or null. `position` names an
    optional column with the element's index.
    """

    expression: Expression
    output: str
    outer: bool = False
    position: str | None = None

    def output_schema(self, input_schema: Schema) -> Schema:
        check_columns(self.expression, input_schema)
        element = self.expression.type.element
        if self.expression.type.kind != "array" or element is None:
            raise _refuse(f"explode needs an array, {self.expression} is {self.expression.type}")
        schema = self.added_to(input_schema)
        _check_distinct(tuple(field.name for field in schema))
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
    """Names the event-time column; the watermark is the greatest time seen here minus the delay."""

    column: str
    delay_us: int

    def output_schema(self, input_schema: Schema) -> Schema:
        field = field_named(input_schema, self.column)
        if field.type.kind not in ("timestamp", "timestamp_ntz"):
            raise _refuse(
                f"a watermark needs a timestamp, column {self.column!r} is {field.type}",
                column=self.column,
            )
        if not 0 <= self.delay_us <= SPAN_US_MAX:
            raise _refuse(
                f"the watermark's delay is {show_duration(self.delay_us)}; it is at least 0 and at "
                f"most {show_duration(SPAN_US_MAX)}"
            )
        return input_schema


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
            raise _refuse(
                f"a window needs 0 < slide <= size, got slide "
                f"{show_duration(self.slide_us)} and size {show_duration(self.size_us)}"
            )
        if not 0 <= self.start_us < self.slide_us:
            raise _refuse(
                f"a window's start offset lies in [0, slide), got "
                f"{show_duration(self.start_us)} with slide {show_duration(self.slide_us)}"
            )
        if self.size_us > SPAN_US_MAX:
            raise _refuse(
                f"a window is at most {show_duration(SPAN_US_MAX)} long, so that its ends are "
                f"times of 64 bits; this one has {show_duration(self.size_us)}"
            )
        if self.size_us > self.slide_us * OVERLAP_MAX:
            raise _refuse(
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
    def type(self) -> DataType:
        time = self.time.type if self.time.type.kind == "timestamp_ntz" else TIMESTAMP
        return struct_type((Field("start", time), Field("end", time)))

    def check(self, input_schema: Schema) -> None:
        check_columns(self.time, input_schema)
        if self.time.type.kind not in ("timestamp", "timestamp_ntz"):
            raise _refuse(f"a window needs a timestamp, {self.time} is {self.time.type}")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One running number of a group: a function of `ACCUMULATORS` and what it runs over."""

    function: str
    argument: Expression | None

    @property
    def row(self) -> AccumulatorFunction:
        return ACCUMULATORS[self.function]

    @property
    def type(self) -> DataType:
        return DOUBLE if self.row.is_double(self.argument) else BIGINT

    @property
    def merge(self) -> str:
        """How two of them become one: `add`, `min` or `max`."""
        return self.row.merge

    @property
    def nullable(self) -> bool:
        return self.row.nullable


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of the output: a function of `AGGREGATES`; count without argument: of rows."""

    function: str
    argument: Expression | None
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or self.function not in AGGREGATES:
            raise _refuse(
                f"there is no aggregate {self.function!r}; known: {', '.join(AGGREGATES)}"
            )
        if self.argument is not None:
            self._check_argument(self.argument.type)
        elif not self.row.counts_rows:
            raise _refuse(f"{self.function} needs an argument")

    @property
    def row(self) -> AggregateFunction:
        return AGGREGATES[self.function]

    def _check_argument(self, argument: DataType) -> None:
        refusal = self.row.refusal(argument)
        if refusal is not None:
            raise _refuse(
                f"{self.function} {refusal.format(argument=self.argument, type=argument)}"
            )
        digits = argument.precision + self.row.more_digits
        if argument.is_decimal and digits > ARITHMETIC_DIGITS_MAX:
            raise _refuse(
                f"{self.function} of {argument} needs {digits} digits, "
                f"the most is {ARITHMETIC_DIGITS_MAX}: cast the argument to fewer digits"
            )

    @property
    def type(self) -> DataType:
        """Spark's result type."""
        return BIGINT if self.argument is None else self.row.result(self.argument.type)

    @property
    def nullable(self) -> bool:
        return self.row.nullable

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """What must be kept per group to compute it."""
        if self.argument is None:
            return (Accumulator("rows", None),)
        names = self.row.accumulators(self.argument.type)
        return tuple(Accumulator(name, self.argument) for name in names)

    def finish(self, accumulators: Sequence[Accumulator], columns: Sequence[pa.Array]) -> pa.Array:
        """The column of the result, from the columns of all accumulators of the groups."""
        own = [columns[accumulators.index(needed)] for needed in self.accumulators]
        return self.row.finish(own, self.type)


def accumulators_of(aggregates: tuple[AggregateCall, ...]) -> tuple[Accumulator, ...]:
    """The distinct accumulators of all aggregates, in order of first use."""
    return tuple(dict.fromkeys(a for call in aggregates for a in call.accumulators))


def _check_room(needed: int, what: str) -> None:
    if needed > COLUMNS_MAX:
        raise _refuse(
            f"an aggregation has at most {COLUMNS_MAX} {what}; this one needs {needed}: "
            "compute some of them in another query",
            needed=needed,
        )


def _check_grouping(
    keys: tuple[NamedExpression, ...],
    window: WindowSpec | None,
    aggregates: tuple[AggregateCall, ...],
    input_schema: Schema,
) -> None:
    for name, key in keys:
        check_columns(key, input_schema)
        if key.type.kind in KEY_KINDS_REFUSED:
            raise _refuse(f"grouping by {name!r} of type {key.type} is not supported", column=name)
    _check_room(len(keys), "keys")
    _check_room(len(accumulators_of(aggregates)), "running numbers, an average more than one")
    if window is not None:
        window.check(input_schema)
    for aggregate in aggregates:
        if aggregate.argument is not None:
            check_columns(aggregate.argument, input_schema)


@dataclass(frozen=True, slots=True)
class PartialAggregateSpec(Spec):
    """Before an exchange: rows become accumulators per (key, pane), merged on the other side."""

    fuses: ClassVar[bool] = True  # one loop computes it and what stands right before it
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | None
    aggregates: tuple[AggregateCall, ...]

    @property
    def key_names(self) -> tuple[str, ...]:
        """The columns whose hash decides where a partial goes."""
        return tuple(name for name, _ in self.keys)

    @property
    def schema(self) -> Schema:
        """Keys, pane (if windowed), number of rows, then one column per accumulator."""
        fields = [Field(name, key.type, key.nullable) for name, key in self.keys]
        if self.window is not None:
            fields.append(Field(PANE_COLUMN, BIGINT, False))
        fields.append(Field(ROWS_COLUMN, BIGINT, False))
        for index, accumulator in enumerate(accumulators_of(self.aggregates)):
            fields.append(Field(f"__a{index}", accumulator.type, accumulator.nullable))
        return tuple(fields)

    def output_schema(self, input_schema: Schema) -> Schema:
        _check_grouping(self.keys, self.window, self.aggregates, input_schema)
        _check_distinct(tuple(field.name for field in self.schema))
        return self.schema

    @property
    def title(self) -> str:
        """What people would call it."""
        functions = [call.function for call in self.aggregates] or ["keys"]
        what = "windows" if self.window is not None else functions[0]
        return f"partial_{what}{_by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        """What partials, or a state of them, stand for."""
        values = [[each.function, each.argument] for each in accumulators_of(self.aggregates)]
        return {"keys": self.keys, "window": self.window, "values": values}


def _by(names: Sequence[str]) -> str:
    return f"_by_{'_'.join(names)}" if names else ""


@dataclass(frozen=True, slots=True)
class AggregateSpec(Spec):
    """Groups by keys and window, and emits as the mode says.

    append: each window once, when the watermark passes its end. update: the groups that changed,
    at each commit. complete: every group, at each commit. The output has the window (a struct of
    start and end) first, then the keys, then the aggregates. With `merge_partials` the input is
    what a PartialAggregateSpec of the same keys, window and aggregates wrote. Only a watermark that
    speaks of the window's time (`is_watermarked`) ends windows and makes rows late.
    """

    ports: ClassVar[int] = 1
    word: ClassVar[str] = "aggregate"  # its states are named after it
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | None
    aggregates: tuple[AggregateCall, ...]
    mode: str = "append"
    merge_partials: bool = False
    is_watermarked: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise _refuse(f"there is no mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.mode == "append" and self.window is None:
            raise _refuse("an aggregate in append mode needs a window: without one it never ends")
        if self.mode == "append" and not self.is_watermarked:
            raise _refuse(
                "an aggregate in append mode needs a watermark on its window's time: without one "
                "no window ever ends"
            )
        if self.window is None and self.is_watermarked:
            raise _refuse("a watermark ends the windows of an aggregate, and it has none")

    @property
    def fuses(self) -> bool:
        """Whether one loop computes it and what stands right before it."""
        return not self.merge_partials

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
        return self.partial.meaning | facts

    @property
    def partial(self) -> PartialAggregateSpec:
        return PartialAggregateSpec(self.keys, self.window, self.aggregates)

    @property
    def schema(self) -> Schema:
        fields = [Field(name, key.type, key.nullable) for name, key in self.keys]
        if self.window is not None:
            fields.insert(0, Field(self.window.output, self.window.type, False))
        for aggregate in self.aggregates:
            fields.append(Field(aggregate.name, aggregate.type, aggregate.nullable))
        return tuple(fields)

    def output_schema(self, input_schema: Schema) -> Schema:
        if self.merge_partials:
            self._check_partials(input_schema)
        else:
            _check_grouping(self.keys, self.window, self.aggregates, input_schema)
        _check_distinct(tuple(field.name for field in self.schema))
        return self.schema

    def _check_partials(self, input_schema: Schema) -> None:
        expected = [(field.name, field.type) for field in self.partial.schema]
        found = [(field.name, field.type) for field in input_schema]
        if expected != found:
            shown = ", ".join(f"{name} {kind}" for name, kind in expected)
            raise _refuse(f"partials to merge have the columns: {shown}; the input differs")


@dataclass(frozen=True, slots=True)
class DeduplicateSpec(Spec):
    """Lets the first row of each key through.

    Where a watermark speaks of a column of the rows (`time`), rows that are not after it are late.
    If that column is one of the keys, keys are forgotten once the watermark has passed them. With
    `within_us` a key is forgotten once the watermark has passed the time of its first row by so
    much. Else keys are kept for ever.
    """

    ports: ClassVar[int] = 1
    word: ClassVar[str] = "deduplicate"
    mode: ClassVar[str] = "append"
    fuses: ClassVar[bool] = False
    keys: tuple[Expression, ...]  # columns
    time: Expression | None = None  # a column
    within_us: int | None = None

    def __post_init__(self) -> None:
        if self.within_us is not None and (self.time is None or self.within_us < 0):
            raise _refuse("keys are forgotten after a span of a time that a watermark speaks of")

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(column.name for key in self.keys for column in columns_of(key))

    @property
    def time_name(self) -> str:
        assert self.time is not None
        (column,) = columns_of(self.time)
        return column.name

    @property
    def forgets(self) -> bool:
        return self.within_us is not None or (self.time is not None and self.time in self.keys)

    @property
    def drops_late(self) -> bool:
        return self.time is not None

    @property
    def title(self) -> str:
        return f"distinct{_by(self.key_names)}"

    @property
    def meaning(self) -> dict[str, Any]:
        return {"distinct": self.keys, "late_by": self.time, "within_us": self.within_us}

    def output_schema(self, input_schema: Schema) -> Schema:
        for column in (*self.keys, *([] if self.time is None else [self.time])):
            check_columns(column, input_schema)
        for key in self.keys:
            if key.type.kind in KEY_KINDS_REFUSED:
                raise _refuse(f"distinct {key} of type {key.type} is not supported")
        _check_room(len(self.keys), "keys")
        return input_schema


StatelessSpec = FilterSpec | ProjectSpec | GenerateSpec | WatermarkSpec | PartialAggregateSpec
StatefulSpec = AggregateSpec | DeduplicateSpec
OperatorSpec = StatelessSpec | StatefulSpec


def _named(node: Any) -> NamedExpression:
    name, expression = node
    return read_as(str, name, "name"), from_json(expression)


def _optional(reader: Reader) -> Reader:
    return lambda node: None if node is None else reader(node)


_GROUPING: dict[str, Any] = {
    "keys": list_of(_named),
    "window": _optional(record_of(WindowSpec, time=from_json)),
    "aggregates": list_of(record_of(AggregateCall, argument=_optional(from_json))),
}
# The name of each operator in JSON, its class, and what reads those fields that hold expressions.
_OPERATORS: tuple[tuple[str, type[Spec], dict[str, Any]], ...] = (
    ("filter", FilterSpec, {"condition": from_json}),
    ("project", ProjectSpec, {"columns": list_of(_named)}),
    ("generate", GenerateSpec, {"expression": from_json}),
    ("watermark", WatermarkSpec, {}),
    ("partial_aggregate", PartialAggregateSpec, _GROUPING),
    ("aggregate", AggregateSpec, _GROUPING),
    ("deduplicate", DeduplicateSpec, {"keys": list_of(from_json), "time": _optional(from_json)}),
)
_NAMES = {kind: name for name, kind, _ in _OPERATORS}
_READERS = {name: record_of(kind, **own) for name, kind, own in _OPERATORS}


def spec_from_json(node: Mapping[str, Any]) -> OperatorSpec:
    """The operator of a dictionary; an ExpressionError for one outside the closed table."""
    op = node.get("op") if isinstance(node, Mapping) else None
    if op not in _READERS:
        raise _refuse(
            f"{op!r} is not an operator; known: {', '.join(_READERS)}; the program is damaged "
            "or was written by another version",
            op=str(op)[:200],
        )
    try:
        fields = {name: value for name, value in node.items() if name != "op"}
        spec: OperatorSpec = _READERS[op](fields)
    except (TypeError, ValueError) as error:
        raise _refuse(
            f"the {op} operator of the program is malformed: {error}", op=str(op)
        ) from error
    return spec


def is_stateful(spec: OperatorSpec) -> TypeGuard[StatefulSpec]:
    """Whether an operator keeps something between batches that a result depends on."""
    return isinstance(spec, StatefulSpec)


def operator_name(spec: StatefulSpec, index: int) -> str:
    """What the operator with state at this place of a chain is called, and its state after it."""
    return f"{spec.word}{index}"


def cut_at_state(
    specs: Sequence[OperatorSpec],
) -> tuple[tuple[StatelessSpec, ...], tuple[OperatorSpec, ...]]:
    """What stands before the first operator with state, and the rest."""
    first = next((at for at, spec in enumerate(specs) if is_stateful(spec)), len(specs))
    front = tuple(spec for spec in specs[:first] if not isinstance(spec, StatefulSpec))
    return front, tuple(specs[first:])


def chain_schema(specs: Sequence[OperatorSpec], input_schema: Schema) -> Schema:
    """The schema after these operators, each checked against what the one before it gives."""
    schema = input_schema
    for spec in specs:
        schema = spec.output_schema(schema)
    return schema


def expressions_of(spec: OperatorSpec) -> list[Expression]:
    """All that an operator computes of a row of its input."""
    if isinstance(spec, FilterSpec):
        return [spec.condition]
    if isinstance(spec, ProjectSpec):
        return [item for _, item in spec.columns]
    if isinstance(spec, GenerateSpec):
        return [spec.expression]
    if isinstance(spec, WatermarkSpec):
        return []
    if isinstance(spec, DeduplicateSpec):
        return [*spec.keys, *([] if spec.time is None else [spec.time])]
    read = [key for _, key in spec.keys]
    read += [call.argument for call in spec.aggregates if call.argument is not None]
    return read + ([] if spec.window is None else [spec.window.time])


def columns_read(specs: Sequence[OperatorSpec], schema: Schema, keep_late: bool) -> frozenset[str]:
    """Which of these columns the operators read, or hand on to whoever comes behind them.

    Where late rows are kept they leave an aggregate with all their columns.
    """
    read: set[str] = set()
    for spec in specs:
        if keep_late and isinstance(spec, AggregateSpec):
            break
        read.update(*map(_names_in, expressions_of(spec)))
        if isinstance(spec, WatermarkSpec):
            read.add(spec.column)
        elif not isinstance(spec, FilterSpec | GenerateSpec | DeduplicateSpec):
            return frozenset(read)
    return frozenset(field.name for field in schema)


def _names_in(expression: Expression) -> set[str]:
    return {column.name for column in columns_of(expression)}


def column_of(field: Field) -> Column:
    return Column(field.name, field.type, field.nullable)
