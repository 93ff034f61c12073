"""The logical plan: scans, unions, exchanges, and steps, which say what they do by a spec.

Every relation has a `schema` and its `event_time`: the columns that the watermark speaks of. Where
it stands at a time, a row with an earlier one there is late. Nodes are immutable and check their
types when they are built. `plan/query.py` holds what stands above them: writes and the query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, Union

from penstock.errors import ExpressionError, PlanError, UnknownColumn, UnsupportedPlan
from penstock.expressions.tree import Column, Expression, transform
from penstock.expressions.types import Field, Schema, parse_type
from penstock.names import check_any_name
from penstock.operators.specs import (
    AggregateSpec,
    Binder,
    DeduplicateSpec,
    JoinSpec,
    LimitSpec,
    NamedExpression,
    OperatorSpec,
    OverSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonGroupsSpec,
    SessionSpec,
    SortSpec,
    TableSpec,
    WatermarkSpec,
    WindowSpec,
    is_weighted,
)
from penstock.plan.event_time import EventTime, event_time_after, watermark_ends
from penstock.stages.program import ConnectorSpec, shape, show_schema

T = TypeVar("T")


# --- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceRef:
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

    `event_time` is what their writers' watermarks speak of. Made by `scan`.
    """

    relation: SourceRef | tuple[StreamRef, ...]
    schema: Schema
    event_time: EventTime = ()

    def __post_init__(self) -> None:
        _check_names(self.schema, self.label)
        for name in self.event_time:
            field_of(self.schema, name, self.label)

    @property
    def label(self) -> str:
        if isinstance(self.relation, SourceRef):
            return f"scan of {self.relation}"
        return f"scan of stream {', '.join(stream.name for stream in self.relation)}"


@dataclass(frozen=True)
class Step:
    """An operator over its inputs. Made by `step`, which fits the spec to them."""

    inputs: tuple[Relation, ...]
    spec: OperatorSpec

    def __post_init__(self) -> None:
        _ = self.schema  # what does not fit together is refused where it is put together

    @property
    def child(self) -> Relation:
        """The input of an operator that has one."""
        (child,) = self.inputs
        return child

    @cached_property
    def schema(self) -> Schema:
        schemas = [relation.schema for relation in self.inputs]
        return _checked(self.spec.op, lambda: self.spec.output_schema(*schemas))

    @cached_property
    def event_time(self) -> EventTime:
        if isinstance(self.spec, JoinSpec):
            names = {field.name for field in self.schema}
            return tuple(name for name in self.spec.times if name in names)
        return event_time_after(self.spec, self.child.event_time)


@dataclass(frozen=True)
class UnionAll:
    """The rows of all inputs, which have the same columns in the same order."""

    inputs: tuple[Relation, ...]

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

    @cached_property
    def schema(self) -> Schema:
        columns = zip(*(relation.schema for relation in self.inputs), strict=True)
        return tuple(Field(c[0].name, c[0].type, any(f.nullable for f in c)) for c in columns)

    @property
    def event_time(self) -> EventTime:
        """As in Spark, that of the first input: its watermark judges the rows of all."""
        return self.inputs[0].event_time


@dataclass(frozen=True, slots=True)
class Exchange:
    """Brings the rows of equal keys together; without keys, all rows."""

    child: Relation
    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.keys:
            field_of(self.child.schema, name, "exchange")

    @property
    def schema(self) -> Schema:
        return self.child.schema

    @property
    def event_time(self) -> EventTime:
        return self.child.event_time


Relation = Union[Scan, Step, UnionAll, Exchange]  # noqa: UP007 (the classes refer to it by name)


# --- building -------------------------------------------------------------------------------------


def scan(
    relation: SourceRef | tuple[StreamRef, ...], schema: Schema, event_time: EventTime = ()
) -> Scan:
    """A scan of these columns."""
    # A type's text leaves out what nested members say about nulls: keep what travels.
    plain = tuple(Field(f.name, parse_type(str(f.type)), f.nullable) for f in schema)
    return Scan(relation, plain, event_time)


def step(spec: OperatorSpec, *inputs: Relation) -> Step:
    """An operator over inputs, its columns found there and as nullable as they are there."""
    if isinstance(spec, JoinSpec):
        for side, is_table in zip(inputs, spec.tables, strict=True):
            if not is_table:
                check_appended(side, f"{spec.how} join")
        return Step(inputs, spec.bound(_binder(inputs, spec.op)))
    (child,) = inputs
    if isinstance(spec, AggregateSpec):
        return aggregate(spec.partial, child, spec.mode, spec.merge_partials, spec.changes)
    if isinstance(spec, WatermarkSpec):
        _check_watermark(spec, child)
    if isinstance(spec, DeduplicateSpec):
        names = spec.key_names
        grouped = "group by these columns, or use append mode below it"
        check_appended(child, f"distinct {', '.join(names)}", names[0] if names else None, grouped)
    if isinstance(spec, LimitSpec):
        check_appended(child, f"limit {spec.rows}")
    if isinstance(spec, OverSpec):
        (name, *_) = (call.name for call in spec.calls)
        check_appended(child, f"window function {name}", name)
    if isinstance(spec, PythonGroupsSpec):
        check_appended(child, f"Python function {spec.call.text:.200} over groups")
    if isinstance(spec, ProjectSpec) and not spec.columns:
        raise PlanError("project: a relation needs at least one column", node="project")
    return Step(inputs, spec.bound(_binder(inputs, spec.op)))


def aggregate(
    grouping: PartialAggregateSpec,
    child: Relation,
    mode: str = "append",
    merge_partials: bool = False,
    changes: bool = False,
) -> Step:
    """The aggregate of a grouping; its input shows whether a watermark ends its windows.

    It also shows whether rows come and go.

    With `merge_partials` the input is what a partial aggregate made, and the expressions speak of
    the columns that the partial aggregate read.
    """
    if not merge_partials:
        grouping = grouping.bound(_binder((child,), "aggregate"))
    label = _aggregate_label(grouping)
    watermarked = watermark_ends(grouping.window, child.event_time, merge_partials)
    if mode == "append":
        _check_append_mode(grouping.window, watermarked, label)
    parts = (grouping.keys, grouping.window, grouping.aggregates)
    weighted = is_weighted(child.schema)
    spec = _checked(
        label,
        lambda: AggregateSpec(*parts, mode, merge_partials, watermarked, weighted, changes),
    )
    return Step((child,), spec)


# --- walking --------------------------------------------------------------------------------------


def children(relation: Relation) -> tuple[Relation, ...]:
    """The relations right below one."""
    if isinstance(relation, Scan):
        return ()
    return (relation.child,) if isinstance(relation, Exchange) else relation.inputs


def with_children(relation: Relation, below: tuple[Relation, ...]) -> Relation:
    """The same node over other inputs, checked again."""
    if below == children(relation):
        return relation
    if isinstance(relation, Scan):
        return relation
    if isinstance(relation, UnionAll):
        return UnionAll(below)
    if isinstance(relation, Exchange):
        return Exchange(below[0], relation.keys)
    return step(relation.spec, *below)


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


def in_one_stage(relation: Relation) -> list[Relation]:
    """The relations that run in one stage with this one: down to scans and exchanges."""
    found = [relation]
    if not isinstance(relation, Exchange):
        for child in children(relation):
            found.extend(in_one_stage(child))
    return found


def producers(relation: Relation, parallelism: int) -> int:
    """How many vertices make its rows; two stands for several."""
    nodes = in_one_stage(relation)
    if any(isinstance(node, UnionAll) for node in nodes):
        return 2
    leaf = nodes[-1]
    if not isinstance(leaf, Scan):
        return 1
    if isinstance(leaf.relation, SourceRef):
        return min(parallelism, leaf.relation.partitions or parallelism)
    return min(parallelism, max(stream.substreams for stream in leaf.relation))


def spec_of(relation: Relation) -> OperatorSpec | None:
    """What a step does; None of other nodes."""
    return relation.spec if isinstance(relation, Step) else None


def is_on_driver(relation: Relation) -> bool:
    """Whether it is a step of which Spark computes a part."""
    return isinstance(relation, Step) and relation.spec.is_on_driver


def scans_of(relation: Relation) -> list[Scan]:
    return [node for node in walk(relation) if isinstance(node, Scan)]


def stream_names(scan: Scan) -> tuple[str, ...]:
    """The streams that a scan reads, none if it reads a source."""
    if isinstance(scan.relation, SourceRef):
        return ()
    return tuple(stream.name for stream in scan.relation)


def column_refs(schema: Schema) -> tuple[NamedExpression, ...]:
    """The columns of a schema as the columns of a projection that changes nothing."""
    return tuple((f.name, Column(f.name, f.type, f.nullable)) for f in schema)


# --- checks ---------------------------------------------------------------------------------------


def _binder(inputs: Sequence[Relation], kind: str) -> Binder:
    """Give columns the nullability of the input, once they are found there with their type."""
    schema = tuple(field for relation in inputs for field in relation.schema)

    def change(expression: Expression) -> Expression:
        if not isinstance(expression, Column):
            return expression
        found = field_of(schema, expression.name, kind)
        if found.type != expression.type:
            raise PlanError(
                f"{kind}: column {found.name!r} is {found.type}, not {expression.type}",
                node=kind,
                column=found.name,
            )
        return Column(found.name, found.type, found.nullable)

    return lambda expression: transform(expression, change)


def _checked(kind: str, make: Callable[[], T]) -> T:
    """What a spec's own checks let through; else an error that names the node."""
    try:
        return make()
    except ExpressionError as error:
        raise PlanError(f"{kind}: {error.message}", **{"node": kind, **error.details}) from error


def _check_watermark(spec: WatermarkSpec, child: Relation) -> None:
    """One on each way: Spark refuses a second where the first still speaks of the rows.

    Where it does not, Spark lets both bound the time, and behind an aggregate, which waits for
    the second one to come, neither ever rises: no vertex keeps two.
    """
    label = f"watermark {spec.column}"
    field_of(child.schema, spec.column, label)
    for below in map(spec_of, walk(child)):
        if isinstance(below, WatermarkSpec):
            known = f"the rows have a watermark on {below.column} already"
            if child.event_time:
                why = f"{known}, which speaks of {child.event_time[0]} here: Structured Streaming "
                why += "does not redefine one either"
            else:
                why = f"{known}, and two on one way would both bound the time"
            raise UnsupportedPlan(
                f"{label}: {why}; keep one of the two", node=label, column=spec.column
            )


def _check_append_mode(
    window: WindowSpec | SessionSpec | None, watermarked: bool, label: str
) -> None:
    if window is None:
        raise UnsupportedPlan(
            f"{label}: append mode needs a time window, because a group without one never "
            "ends; add a window, or use update or complete mode",
            node=label,
        )
    if not watermarked:
        raise UnsupportedPlan(
            f"{label}: append mode needs a watermark on the window's time "
            f"{window.event_time}, which must be the watermark's own column; add a watermark "
            "before it, or use update or complete mode",
            node=label,
        )


def check_appended(
    child: Relation,
    label: str,
    column: str | None = None,
    way_out: str = "use append mode below it",
) -> None:
    """What keeps the rows that it has seen does not take rows that come and go."""
    below = changing(child)
    if below is not None:
        raise UnsupportedPlan(
            f"{label} stands on {below}, whose rows come and go; {way_out}",
            **({"node": label} | ({} if column is None else {"column": column})),
        )


def changing(relation: Relation) -> str | None:
    """What makes rows of a relation come and go, None if they only come."""
    spec = spec_of(relation)
    if isinstance(spec, AggregateSpec):
        return None if spec.mode == "append" else f"{_aggregate_label(spec)} in {spec.mode} mode"
    if isinstance(spec, SortSpec):
        return "a sorted or limited result in complete mode"
    if isinstance(spec, TableSpec):
        return f"a table by {', '.join(spec.key_names)}"
    if isinstance(spec, JoinSpec):
        return None if spec.mode == "append" else f"a {spec.how} join of tables"
    return next(filter(None, map(changing, children(relation))), None)


def _aggregate_label(spec: PartialAggregateSpec | AggregateSpec) -> str:
    return f"aggregate {', '.join(call.name for call in spec.aggregates)}"


def field_of(schema: Schema, name: str, node: str) -> Field:
    """The column of that name; an error that names the node and lists what there is."""
    for candidate in schema:
        if candidate.name == name:
            return candidate
    available = [candidate.name for candidate in schema]
    raise UnknownColumn(
        f"{node}: there is no column {name!r}; there are {', '.join(available) or 'none'}",
        column=name,
        node=node,
        available=available,
    )


def _check_names(schema: Schema, label: str) -> None:
    names = [f.name for f in schema]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise PlanError(
            f"{label}: columns need distinct names, and there must be one; repeated: {repeated}",
            node=label,
        )
