"""The logical plan: small immutable nodes that check their types when they are built.

Every relation has a `schema` and its `event_time`: the columns that the watermark speaks of. Where
it stands at a time, a row with an earlier one there is late.
`plan/query.py` holds what stands above them: writes and the query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Union

from penstock.errors import ExpressionError, PlanError, UnsupportedPlan
from penstock.expressions.tree import Call, Column, Expression, Literal, transform
from penstock.expressions.types import Field, Schema, parse_type
from penstock.names import check_any_name
from penstock.operators.specs import (
    PANE_COLUMN,
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    NamedExpression,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    WatermarkSpec,
    WindowSpec,
)
from penstock.plan.columns import unknown_column
from penstock.stages.program import ConnectorSpec, shape, show_schema

EventTime = tuple[str, ...]


# --- leaves ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A connector to read from, in at most `partitions` parts side by side; None: any number."""

    spec: ConnectorSpec
    partitions: int | None = 1

    def __str__(self) -> str:
        return f"source {self.spec}"


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream of the log, and how many substreams it has."""

    name: str
    substreams: int = 1
    internal: bool = False

    def __post_init__(self) -> None:
        check_any_name(self.name, "stream")


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads the columns of `schema` from a source or from streams, rows of all streams alike.

    `event_time` is what their writers' watermarks speak of.
    """

    relation: Source | tuple[StreamRef, ...]
    schema: Schema
    event_time: EventTime = ()

    def __post_init__(self) -> None:
        # A type's text leaves out what nested members say about nulls: keep what travels.
        plain = tuple(Field(f.name, parse_type(str(f.type)), f.nullable) for f in self.schema)
        object.__setattr__(self, "schema", plain)
        _check_names(plain, self.label)
        for name in self.event_time:
            field_of(plain, name, self.label)

    @property
    def label(self) -> str:
        if isinstance(self.relation, Source):
            return f"scan of {self.relation}"
        return f"scan of stream {', '.join(stream.name for stream in self.relation)}"


# --- operators ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the rows whose condition is true."""

    child: Relation
    condition: Expression
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _bind(self, "condition", _binder(self))
        _finish(self, self.child.event_time)

    @property
    def label(self) -> str:
        return f"filter {self.condition}"

    @property
    def spec(self) -> FilterSpec:
        return FilterSpec(self.condition)


@dataclass(frozen=True, slots=True)
class Project:
    """Replaces the columns by named expressions."""

    child: Relation
    columns: tuple[NamedExpression, ...]
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bind = _binder(self)
        _bind(self, "columns", lambda columns: _bind_named(columns, bind))
        if not self.columns:
            raise PlanError("project: a relation needs at least one column", node="project")
        timed = self.child.event_time
        _finish(self, tuple(name for name, item in self.columns if carries_time(item, timed)))

    @property
    def label(self) -> str:
        return f"project {', '.join(name for name, _ in self.columns)}"

    @property
    def spec(self) -> ProjectSpec:
        return ProjectSpec(self.columns)


@dataclass(frozen=True, slots=True)
class Generate:
    """Explode: one row per element of an array, the other columns repeated."""

    child: Relation
    expression: Expression
    output: str
    outer: bool = False
    position: str | None = None
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _bind(self, "expression", _binder(self))
        _finish(self, self.child.event_time)

    @property
    def label(self) -> str:
        return f"explode {self.expression}"

    @property
    def spec(self) -> GenerateSpec:
        return GenerateSpec(self.expression, self.output, self.outer, self.position)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Says that rows come at most `delay_us` after the greatest time of a column seen before."""

    child: Relation
    column: str
    delay_us: int
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        field_of(self.child.schema, self.column, self.label)
        self._check_only()
        _finish(self, (self.column,))

    def _check_only(self) -> None:
        """Two on one way would both bound the time, by the slower: no vertex keeps two."""
        for node in walk(self.child):
            if isinstance(node, Watermark):
                raise UnsupportedPlan(
                    f"{self.label}: the rows have a watermark on {node.column} already; keep one "
                    "of the two",
                    node=self.label,
                    column=self.column,
                )

    @property
    def label(self) -> str:
        return f"watermark {self.column}"

    @property
    def spec(self) -> WatermarkSpec:
        return WatermarkSpec(self.column, self.delay_us)


@dataclass(frozen=True, slots=True)
class UnionAll:
    """The rows of all inputs, which have the same columns in the same order."""

    inputs: tuple[Relation, ...]
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise PlanError("union: at least one input is needed", node="union")
        first, *others = self.inputs
        for other in others:
            if shape(other.schema) != shape(first.schema):
                raise PlanError(
                    f"union: the inputs differ: {show_schema(first.schema)} and "
                    f"{show_schema(other.schema)}; select the same names and types on each side",
                    node="union",
                )
        columns = zip(*(relation.schema for relation in self.inputs), strict=True)
        schema = tuple(Field(c[0].name, c[0].type, any(f.nullable for f in c)) for c in columns)
        object.__setattr__(self, "schema", schema)
        timed = [
            name
            for name in first.event_time
            if all(name in other.event_time for other in self.inputs)
        ]
        object.__setattr__(self, "event_time", tuple(timed))

    @property
    def label(self) -> str:
        return "union"


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """Accumulators per key and pane, for an Aggregate with `merge_partials` after an exchange."""

    child: Relation
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | None
    aggregates: tuple[AggregateCall, ...]
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _bind_grouping(self)
        timed = self.window is not None and carries_time(self.window.time, self.child.event_time)
        _finish(self, (PANE_COLUMN,) if timed else ())

    @property
    def label(self) -> str:
        return f"partial aggregate {_show_calls(self.aggregates)}"

    @property
    def spec(self) -> PartialAggregateSpec:
        return PartialAggregateSpec(self.keys, self.window, self.aggregates)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups by keys and window, and emits as the mode says.

    With `merge_partials` the child delivers what a PartialAggregate made, and the expressions speak
    of the columns that the partial aggregate read.
    """

    child: Relation
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | None
    aggregates: tuple[AggregateCall, ...]
    mode: str = "append"
    merge_partials: bool = False
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.merge_partials:
            _bind_grouping(self)
        self._check_mode()
        _check_appended(self.child, self.label)
        append = self.mode == "append" and self.window is not None
        _finish(self, (self.window.output,) if append and self.window is not None else ())

    @property
    def is_watermarked(self) -> bool:
        """Whether the watermark speaks of the window's time; else none of its groups ever ends."""
        if self.window is None:
            return False
        if self.merge_partials:
            return PANE_COLUMN in self.child.event_time
        return carries_time(self.window.time, self.child.event_time)

    def _check_mode(self) -> None:
        if self.mode != "append":
            return
        if self.window is None:
            raise UnsupportedPlan(
                f"{self.label}: append mode needs a time window, because a group without one never "
                "ends; add a window, or use update or complete mode",
                node=self.label,
            )
        if not self.is_watermarked:
            raise UnsupportedPlan(
                f"{self.label}: append mode needs a watermark on the window's time "
                f"{self.window.time}, which must be the watermark's own column; add a watermark "
                "before it, or use update or complete mode",
                node=self.label,
            )

    @property
    def label(self) -> str:
        return f"aggregate {_show_calls(self.aggregates)}"

    @property
    def spec(self) -> AggregateSpec:
        return AggregateSpec(
            self.keys,
            self.window,
            self.aggregates,
            self.mode,
            self.merge_partials,
            self.is_watermarked,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """Brings the rows of equal keys together; without keys, all rows."""

    child: Relation
    keys: tuple[str, ...]
    schema: Schema = field(init=False, repr=False, compare=False)
    event_time: EventTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in self.keys:
            field_of(self.child.schema, name, "exchange")
        object.__setattr__(self, "schema", self.child.schema)
        object.__setattr__(self, "event_time", self.child.event_time)

    @property
    def label(self) -> str:
        return f"exchange by {', '.join(self.keys) or 'nothing'}"


Relation = Union[  # noqa: UP007 (the classes above refer to it by name)
    Scan, Filter, Project, Generate, Watermark, UnionAll, PartialAggregate, Aggregate, Exchange
]
Operator = Filter | Project | Generate | Watermark | PartialAggregate | Aggregate
STATELESS = (Filter, Project, Generate, Watermark)


# --- walking --------------------------------------------------------------------------------------


def children(relation: Relation) -> tuple[Relation, ...]:
    """The relations right below one."""
    if isinstance(relation, Scan):
        return ()
    return relation.inputs if isinstance(relation, UnionAll) else (relation.child,)


def with_children(relation: Relation, below: tuple[Relation, ...]) -> Relation:
    """The same node over other inputs, checked again."""
    if below == children(relation):
        return relation
    if isinstance(relation, Scan):
        return relation
    if isinstance(relation, UnionAll):
        return UnionAll(below)
    return replace(relation, child=below[0])


def rewrite(relation: Relation, change: Callable[[Relation], Relation]) -> Relation:
    """The tree rebuilt from the leaves up with `change` applied to each node."""
    below = tuple(rewrite(child, change) for child in children(relation))
    return change(with_children(relation, below))


def walk(relation: Relation) -> list[Relation]:
    """The relation and everything below it, parents first."""
    found = [relation]
    for child in children(relation):
        found.extend(walk(child))
    return found


def scans_of(relation: Relation) -> list[Scan]:
    return [node for node in walk(relation) if isinstance(node, Scan)]


def stream_names(scan: Scan) -> tuple[str, ...]:
    """The streams that a scan reads, none if it reads a source."""
    if isinstance(scan.relation, Source):
        return ()
    return tuple(stream.name for stream in scan.relation)


def column_refs(schema: Schema) -> tuple[NamedExpression, ...]:
    """The columns of a schema as the columns of a projection that changes nothing."""
    return tuple((f.name, Column(f.name, f.type, f.nullable)) for f in schema)


def carries_time(expression: Expression, event_time: EventTime) -> bool:
    """Whether what the watermark says of its columns holds for what an expression gives.

    It holds for the column itself and for the end of a window that the watermark has closed; also
    for a microsecond before that end, which is the last instant inside the window. A window's start
    lies behind the watermark, and so may anything that is computed from a time.
    """
    if isinstance(expression, Column):
        return expression.name in event_time
    if not isinstance(expression, Call):
        return False
    if _is_end(expression, event_time):
        return True
    if expression.function == "struct":  # the same windows, shown with another start
        members = dict(zip(expression.option("names"), expression.args, strict=True))
        return set(members) == {"start", "end"} and _is_end(members["end"], event_time)
    return _is_end(_before_last_instant(expression), event_time)


def _is_end(expression: Expression | None, event_time: EventTime) -> bool:
    return (
        isinstance(expression, Call)
        and expression.function == "get_field"
        and expression.option("name") == "end"
        and carries_time(expression.args[0], event_time)
    )


def _before_last_instant(expression: Call) -> Expression | None:
    """x of timestamp_micros(unix_micros(x) - 1), or + -1."""
    moved = expression.args[0] if expression.function == "timestamp_micros" else None
    if not isinstance(moved, Call) or moved.function not in ("add", "subtract"):
        return None
    micros, by = moved.args
    if not isinstance(by, Literal) or by.value != (-1 if moved.function == "add" else 1):
        return None
    if not isinstance(micros, Call) or micros.function != "unix_micros":
        return None
    return micros.args[0]


# --- checks ---------------------------------------------------------------------------------------


def _binder(node: Operator) -> Callable[[Expression], Expression]:
    """Give columns the nullability of the input, once they are found there with their type."""
    schema = node.child.schema

    def change(expression: Expression) -> Expression:
        if not isinstance(expression, Column):
            return expression
        found = field_of(schema, expression.name, _kind(node))
        if found.type != expression.type:
            raise PlanError(
                f"{_kind(node)}: column {found.name!r} is {found.type}, not {expression.type}",
                node=_kind(node),
                column=found.name,
            )
        return Column(found.name, found.type, found.nullable)

    return lambda expression: transform(expression, change)


def _bind(node: Any, attribute: str, change: Callable[[Any], Any]) -> None:
    object.__setattr__(node, attribute, change(getattr(node, attribute)))


def _bind_named(
    columns: tuple[NamedExpression, ...], bind: Callable[[Expression], Expression]
) -> tuple[NamedExpression, ...]:
    return tuple((name, bind(expression)) for name, expression in columns)


def _bind_grouping(node: PartialAggregate | Aggregate) -> None:
    bind = _binder(node)
    _bind(node, "keys", lambda keys: _bind_named(keys, bind))
    if node.window is not None:
        _bind(node, "window", lambda window: replace(window, time=bind(window.time)))
    _bind(node, "aggregates", lambda calls: tuple(_bind_call(call, bind) for call in calls))


def _bind_call(call: AggregateCall, bind: Callable[[Expression], Expression]) -> AggregateCall:
    return call if call.argument is None else replace(call, argument=bind(call.argument))


def _finish(node: Operator, event_time: EventTime) -> None:
    """Compute the schema with the operator's own checks, as an error that names the node."""
    try:
        spec: OperatorSpec = node.spec
        schema = spec.output_schema(node.child.schema)
    except ExpressionError as error:
        raise PlanError(
            f"{_kind(node)}: {error.message}", **{"node": _kind(node), **error.details}
        ) from error
    object.__setattr__(node, "schema", schema)
    object.__setattr__(node, "event_time", event_time)


def _check_appended(child: Relation, label: str) -> None:
    """An aggregate over rows that are sent again when they change would count them twice."""
    for node in walk(child):
        if isinstance(node, Aggregate) and node.mode != "append":
            raise UnsupportedPlan(
                f"{label} stands on {node.label} in {node.mode} mode, whose rows are sent again "
                "when they change; use append mode below another aggregate",
                node=label,
            )


def _kind(node: Relation) -> str:
    return type(node).__name__.lower()


def _show_calls(calls: tuple[AggregateCall, ...]) -> str:
    return ", ".join(call.name for call in calls)


def field_of(schema: Schema, name: str, node: str) -> Field:
    for candidate in schema:
        if candidate.name == name:
            return candidate
    raise unknown_column(name, node, schema)


def _check_names(schema: Schema, label: str) -> None:
    names = [f.name for f in schema]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise PlanError(
            f"{label}: columns need distinct names, and there must be one; repeated: {repeated}",
            node=label,
        )
