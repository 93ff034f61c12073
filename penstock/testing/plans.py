"""A fluent way to write plans in tests, benchmarks and the simulator, with no Spark at all.

bids = scan_stream("bids", "auction bigint, price bigint, ts timestamp")
hot = (bids.filter(col("price") > 100)
           .with_watermark("ts", "1 second")
           .group_by("auction", window=window("ts", "10 seconds", "2 seconds"))
           .agg(count().alias("bids"), max_("price").alias("top")))
plan = query("hot", hot.to_stream("hot_auctions"), parallelism=4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, TypeVar

from penstock.errors import ExpressionError, PlanError
from penstock.expressions.durations import parse_duration
from penstock.expressions.tree import Expression
from penstock.expressions.types import Field, Schema, parse_type
from penstock.operators.specs import (
    AggregateCall,
    FilterSpec,
    GenerateSpec,
    NamedExpression,
    PartialAggregateSpec,
    ProjectSpec,
    SessionSpec,
    WatermarkSpec,
    WindowSpec,
)
from penstock.plan.nodes import (
    Relation,
    SourceRef,
    StreamRef,
    UnionAll,
    scan,
    step,
)
from penstock.plan.nodes import aggregate as aggregate_over
from penstock.plan.query import Query, Write
from penstock.stages.program import ConnectorSpec, connector_spec
from penstock.stages.settings import Settings
from penstock.testing.columns import (
    ColumnExpression,
    Named,
    Reference,
    apply,
    as_column,
    check_argument,
    check_name_given,
    col,
)

SomeColumn = str | ColumnExpression | Named


def scan_stream(name: str, schema: str | Schema, substreams: int = 1) -> Draft:
    """Rows of a stream of the log."""
    _check_count(substreams, "scan_stream", "substreams")
    return Draft(scan((StreamRef(name, substreams),), parse_schema(schema)))


def scan_source(
    source: str | ConnectorSpec,
    schema: str | Schema,
    partitions: int | None = 1,
    **options: Any,
) -> Draft:
    """Rows of a connector, given by name and options."""
    if partitions is not None:
        _check_count(partitions, "scan_source", "partitions")
    spec = connector_spec(source, **options) if isinstance(source, str) else source
    _check_kind(spec, ConnectorSpec, "scan_source", "source", "a connector or its name")
    return Draft(scan(SourceRef(spec, partitions), parse_schema(schema)))


def query(
    name: str, *writes: Write, parallelism: int = 1, settings: Settings | None = None
) -> Query:
    """A query of one or more writes."""
    for write in writes:
        _check_kind(write, Write, "query", "writes", "what to_stream gives")
    if settings is not None:
        _check_kind(settings, Settings, "query", "settings", "Settings")
    return Query(name, writes, parallelism, settings or Settings())


@dataclass(frozen=True, slots=True)
class Draft:
    """A relation to go on from; every method gives a new one."""

    relation: Relation

    @property
    def schema(self) -> Schema:
        return self.relation.schema

    def filter(self, condition: ColumnExpression) -> Draft:
        return Draft(step(FilterSpec(self._typed(condition, "filter")), self.relation))

    def select(self, *columns: SomeColumn) -> Draft:
        named = tuple(self._named(column, "select") for column in columns)
        return Draft(step(ProjectSpec(named), self.relation))

    def with_column(self, name: str, column: ColumnExpression) -> Draft:
        """The same columns, with one more or one replaced."""
        check_name_given(name, "with_column", "name")
        added = (name, self._typed(column, "with_column"))
        kept: list[NamedExpression] = [
            added if f.name == name else (f.name, self._typed(col(f.name), "with_column"))
            for f in self.schema
        ]
        if all(f.name != name for f in self.schema):
            kept.append(added)
        return Draft(step(ProjectSpec(tuple(kept)), self.relation))

    def explode(
        self, array: SomeColumn, output: str, outer: bool = False, position: str | None = None
    ) -> Draft:
        check_name_given(output, "explode", "output")
        _check_kind(outer, bool, "explode", "outer", "True or False")
        if position is not None:
            check_name_given(position, "explode", "position")
        expression = self._named(array, "explode")[1]
        return Draft(step(GenerateSpec(expression, output, outer, position), self.relation))

    def union(self, *others: Draft) -> Draft:
        for other in others:
            _check_kind(other, Draft, "union", "others", "rows to add")
        return Draft(UnionAll((self.relation, *(other.relation for other in others))))

    def with_watermark(self, column: str, delay: str | int) -> Draft:
        return Draft(step(WatermarkSpec(column, parse_duration(delay)), self.relation))

    def group_by(
        self, *keys: SomeColumn, window: WindowColumn | SessionColumn | None = None
    ) -> Grouped:
        if window is not None:
            kinds = WindowColumn | SessionColumn
            _check_kind(window, kinds, "group_by", "window", "what window() or session() gives")
        named = tuple(self._named(key, "group_by") for key in keys)
        spec = window.resolve(self.schema) if window is not None else None
        return Grouped(self.relation, named, spec)

    def to_stream(self, name: str, substreams: int = 1, partition_by: Sequence[str] = ()) -> Write:
        """Write a stream; of one that is there, say how many substreams it has, and by which keys
        rows find theirs."""
        return Write(self.relation, StreamRef(name, substreams), tuple(partition_by))

    def _typed(self, column: Any, node: str) -> Expression:
        return _checked(node, lambda: as_column(column).resolve(self.schema, node))

    def _named(self, column: SomeColumn, node: str) -> NamedExpression:
        named = _as_named(column, node)
        return (named.name, self._typed(named.expression, node))


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows by key and window, waiting for their aggregates."""

    relation: Relation
    keys: tuple[NamedExpression, ...]
    window: WindowSpec | SessionSpec | None

    def agg(self, *calls: AggregateColumn, mode: str = "append") -> Draft:
        for call in calls:
            _check_kind(call, AggregateColumn, "agg", "calls", "aggregates such as count()")
        resolved = tuple(call.resolve(self.relation.schema) for call in calls)
        grouping = PartialAggregateSpec(self.keys, self.window, resolved)
        return Draft(aggregate_over(grouping, self.relation, mode))


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A window over a time column, not yet resolved."""

    time: SomeColumn
    size_us: int
    slide_us: int
    start_us: int
    output: str

    def resolve(self, schema: Schema) -> WindowSpec:
        time = _as_named(self.time, "window").expression
        return _checked(
            "window",
            lambda: WindowSpec(
                time.resolve(schema, "window"),
                self.size_us,
                self.slide_us,
                self.start_us,
                self.output,
            ),
        )


def window(
    time: SomeColumn,
    size: str | int,
    slide: str | int | None = None,
    start: str | int = 0,
    output: str = "window",
) -> WindowColumn:
    """Tumbling windows of a size, or hopping ones if a slide is given."""
    check_name_given(output, "window", "output")
    size_us = parse_duration(size)
    slide_us = size_us if slide is None else parse_duration(slide)
    return WindowColumn(time, size_us, slide_us, parse_duration(start), output)


@dataclass(frozen=True, slots=True)
class SessionColumn:
    """Sessions over a time column, not yet resolved."""

    time: SomeColumn
    gap_us: int | ColumnExpression
    output: str

    def resolve(self, schema: Schema) -> SessionSpec:
        begin = _as_named(self.time, "session").expression
        micros = apply("unix_micros", begin) + self.gap_us
        end = apply("timestamp_micros", micros)
        return _checked(
            "session",
            lambda: SessionSpec(
                begin.resolve(schema, "session"), end.resolve(schema, "session"), self.output
            ),
        )


def session(
    time: SomeColumn, gap: str | int | ColumnExpression, output: str = "session_window"
) -> SessionColumn:
    """Sessions that end when no row comes within the gap, which a column may say per row."""
    check_name_given(output, "session", "output")
    gap_us = gap if isinstance(gap, ColumnExpression) else parse_duration(gap)
    return SessionColumn(time, gap_us, output)


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """An aggregate of a column, not yet resolved."""

    function: str
    argument: SomeColumn | None
    name: str

    def alias(self, name: str) -> AggregateColumn:
        check_name_given(name, "alias", "name")
        return replace(self, name=name)

    def resolve(self, schema: Schema) -> AggregateCall:
        if self.argument is None:
            return _checked("agg", lambda: AggregateCall(self.function, None, self.name))
        argument = _as_named(self.argument, "agg").expression
        return _checked(
            "agg",
            lambda: AggregateCall(self.function, argument.resolve(schema, "agg"), self.name),
        )


def aggregate(function: str, argument: SomeColumn | None = None) -> AggregateColumn:
    """An aggregate by the name of its function; a count without argument counts rows."""
    shown = argument if isinstance(argument, str) else ""
    return AggregateColumn(function, argument, f"{function}({shown})" if shown else function)


def count(argument: SomeColumn | None = None) -> AggregateColumn:
    return aggregate("count", argument)


def sum_(argument: SomeColumn) -> AggregateColumn:
    return aggregate("sum", argument)


def avg(argument: SomeColumn) -> AggregateColumn:
    return aggregate("avg", argument)


def min_(argument: SomeColumn) -> AggregateColumn:
    return aggregate("min", argument)


def max_(argument: SomeColumn) -> AggregateColumn:
    return aggregate("max", argument)


def parse_schema(schema: str | Schema) -> Schema:
    """Columns from text such as 'auction bigint not null, tags array<string>'."""
    if not isinstance(schema, str):
        is_schema = isinstance(schema, tuple) and all(isinstance(f, Field) for f in schema)
        check_argument(is_schema, "parse_schema", "schema", schema, "a text such as 'a int'")
        return schema
    return tuple(_parse_field(part) for part in _split_commas(schema))


def _split_commas(text: str) -> list[str]:
    """The parts between commas that stand outside brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == "'"
        depth += 0 if quoted else (character in "([<") - (character in ")]>")
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _parse_field(text: str) -> Field:
    name, _, rest = text.partition(" ")
    words = rest.strip()
    required = words.lower().endswith(" not null")
    if not name or not words:
        raise PlanError(
            f"{text!r:.80} is not a column: write a name and a type, as in 'price bigint not null'"
        )
    return Field(name, parse_type(words[: -len(" not null")] if required else words), not required)


def _check_kind(value: Any, kind: type | UnionType, call: str, argument: str, wanted: str) -> None:
    check_argument(isinstance(value, kind), call, argument, value, wanted)


def _check_count(value: Any, call: str, argument: str) -> None:
    is_count = type(value) is int and value >= 1
    check_argument(is_count, call, argument, value, "a number from 1 on")


def _as_named(column: SomeColumn, node: str) -> Named:
    if isinstance(column, str):
        return Named(column, Reference(column))
    if isinstance(column, Named):
        return column
    if isinstance(column, Reference):
        return Named(column.name, column)
    if isinstance(column, ColumnExpression):
        if node in ("select", "group_by"):
            raise PlanError(f"{node}: name the column with .alias(...)", node=node)
        return Named(node, column)
    raise PlanError(f"{node}: {column!r:.80} is neither a column nor the name of one", node=node)


T = TypeVar("T")


def _checked(node: str, make: Callable[[], T]) -> T:
    """Run a builder of typed expressions; its error becomes one that names the node."""
    try:
        return make()
    except ExpressionError as error:
        raise PlanError(f"{node}: {error.message}", **{"node": node, **error.details}) from error


__all__: Sequence[str] = (
    "AggregateColumn", "Draft", "Grouped", "SessionColumn", "WindowColumn", "aggregate", "avg",
    "col", "count", "max_", "min_", "parse_schema", "query", "scan_source", "scan_stream",
    "session", "sum_", "window",
)  # fmt: skip
