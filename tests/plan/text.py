"""Plans as indented text, printed and read back: the form of test cases.

    query hot parallelism 4
      write stream hot_auctions
        aggregate append by auction window ts 10 seconds every 2 seconds as window: count(*) as bids
          watermark ts 1 second
            filter (price > 100L)
              scan stream bids (auction bigint, price bigint, ts timestamp)

A write stands before the reader of its stream, so an internal scan shows only names of columns, and
`merge partials` shows no grouping: both are the writer's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ExpressionError, PlanError
from penstock.expressions.durations import parse_duration, show_duration
from penstock.expressions.types import Field, Schema, parse_type
from penstock.operators.specs import (
    HOWS,
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    JoinSpec,
    NamedExpression,
    PartialAggregateSpec,
    ProjectSpec,
    SparkColumn,
    SparkSpec,
    StaticJoinSpec,
    WatermarkSpec,
    WindowSpec,
    column_of,
)
from penstock.plan.explain import show_call, show_join, show_named, show_static_join, show_window
from penstock.plan.joins import Equality, join
from penstock.plan.nodes import (
    Exchange,
    Relation,
    Scan,
    SourceRef,
    Step,
    StreamRef,
    UnionAll,
    aggregate,
    children,
    scan,
    spec_of,
    step,
    walk,
)
from penstock.plan.query import Query, Write
from penstock.stages.program import ConnectorSpec, connector_spec
from penstock.stages.settings import Settings
from penstock.testing.columns import Reference
from penstock.testing.plans import parse_schema
from tests.plan.expression_text import Cursor, take_expression, take_operand

INDENT = "  "


# --- plan -> text ---------------------------------------------------------------------------------


def print_query(query: Query) -> str:
    """The whole query, one node per line."""
    lines = [_query_line(query)]
    for write in query.writes:
        lines.append(INDENT + _write_line(write))
        lines.extend(_relation_lines(write.child, 2))
    return "\n".join(lines) + "\n"


def print_relation(relation: Relation) -> str:
    """One relation and what is below it."""
    return "\n".join(_relation_lines(relation, 0)) + "\n"


def node_line(relation: Relation) -> str:
    """One node without its children."""
    shown = relation.spec if isinstance(relation, Step) else relation
    return _PRINTERS[type(shown)](shown)


def _relation_lines(relation: Relation, level: int) -> list[str]:
    lines = [INDENT * level + node_line(relation)]
    for child in children(relation):
        lines.extend(_relation_lines(child, level + 1))
    return lines


def _query_line(query: Query) -> str:
    line = f"query {query.name}"
    if query.parallelism != 1:
        line += f" parallelism {query.parallelism}"
    for setting in ("late_stream", "dead_letter_stream"):
        if getattr(query.settings, setting) is not None:
            line += f" {setting} {getattr(query.settings, setting)}"
    if not query.settings.push_up:
        line += " whole"
    return line


def _write_line(write: Write) -> str:
    kind = "internal" if write.target.internal else "stream"
    line = f"write {kind} {_stream_text(write.target)}"
    if write.partition_by:
        line += f" by {', '.join(write.partition_by)}"
    if write.vertices != 1:
        line += f" vertices {write.vertices}"
    if write.trunk is not None:
        line += f" trunk {_depth(write.child, write.trunk)}"
    return line + (f" cohort {write.cohort}" if write.cohort else "")


def _depth(node: Relation, trunk: Relation) -> int:
    """How many steps lead from a trunk to what is written."""
    return 0 if node == trunk else 1 + _depth(*children(node), trunk)


def _stream_text(stream: StreamRef) -> str:
    return stream.name + (f"[{stream.substreams}]" if stream.substreams != 1 else "")


def _connector_text(spec: ConnectorSpec) -> str:
    return spec.connector + (f" {spec.options_json}" if spec.options else "")


def _scan_line(scan: Scan) -> str:
    if isinstance(scan.relation, SourceRef):
        parts = scan.relation.partitions
        shown = "" if parts == 1 else f" partitions {'any' if parts is None else parts}"
        return (
            f"scan source {_connector_text(scan.relation.spec)} {show_columns(scan.schema)}{shown}"
        )
    streams = ", ".join(_stream_text(stream) for stream in scan.relation)
    if any(stream.internal for stream in scan.relation):
        return f"scan internal {streams} ({', '.join(f.name for f in scan.schema)})"
    timed = f" event time {', '.join(scan.event_time)}" if scan.event_time else ""
    return f"scan stream {streams} {show_columns(scan.schema)}{timed}"


def show_columns(schema: Schema) -> str:
    """Columns as a scan declares them."""
    shown = [f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in schema]
    return f"({', '.join(shown)})"


def _grouping_text(spec: AggregateSpec | PartialAggregateSpec) -> str:
    text = f" by {show_named(spec.keys)}" if spec.keys else ""
    if spec.window is not None:
        text += f" window {show_window(spec.window)}"
    return f"{text}: {', '.join(show_call(call) for call in spec.aggregates)}"


def _aggregate_line(spec: AggregateSpec) -> str:
    if spec.merge_partials:
        return f"merge partials {spec.mode}{_changes_text(spec)}"
    return f"aggregate {spec.mode}{_changes_text(spec)}{_grouping_text(spec)}"


def _changes_text(spec: AggregateSpec) -> str:
    return " changes" if spec.changes else ""


def _generate_line(spec: GenerateSpec) -> str:
    line = f"explode {spec.expression} as {spec.output}"
    if spec.position is not None:
        line += f" position {spec.position}"
    return line + (" outer" if spec.outer else "")


def _spark_line(spec: SparkSpec) -> str:
    shown = [
        f"{each.text} of {', '.join(each.input_names)} as {each.result.name} {each.result.type}"
        for each in spec.columns
    ]
    return f"spark {' and '.join(shown)}"


_PRINTERS: dict[type, Callable[[Any], str]] = {
    Scan: _scan_line,
    FilterSpec: lambda spec: f"filter {spec.condition}",
    ProjectSpec: lambda spec: f"project {show_named(spec.columns)}",
    GenerateSpec: _generate_line,
    SparkSpec: _spark_line,
    WatermarkSpec: lambda spec: f"watermark {spec.column} {show_duration(spec.delay_us)}",
    PartialAggregateSpec: lambda spec: f"partial aggregate{_grouping_text(spec)}",
    AggregateSpec: _aggregate_line,
    JoinSpec: show_join,
    StaticJoinSpec: show_static_join,
    UnionAll: lambda node: "union",
    Exchange: lambda node: f"exchange{' by ' + ', '.join(node.keys) if node.keys else ''}",
}


# --- text -> plan ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    """One line and the lines that stand below it."""

    text: str
    level: int
    below: list[_Line] = field(default_factory=list)


def parse_query(text: str) -> Query:
    """The query of a text in the form that `print_query` gives."""
    roots = _outline(text)
    if len(roots) != 1 or not roots[0].text.startswith("query "):
        raise PlanError("a plan's text starts with one line 'query <name>'", text=text[:200])
    reader = _Reader()
    for line in roots[0].below:
        reader.writes.append(reader.write(line))
    cursor = Cursor(roots[0].text)
    cursor.expect("query")
    name, parallelism = cursor.name(), 1
    settings: dict[str, Any] = {}
    while cursor.next.kind == "word":
        option = cursor.take("word")
        if option == "parallelism":
            parallelism = cursor.number()
        elif option in ("late_stream", "dead_letter_stream"):
            settings[option] = cursor.name()
        elif option == "whole":
            settings["push_up"] = False
        else:
            raise cursor.error(f"there is no option {option!r}")
    cursor.end()
    return Query(name, tuple(reader.writes), parallelism, Settings(**settings))


def _outline(text: str) -> list[_Line]:
    roots: list[_Line] = []
    path: list[_Line] = []
    for row in text.splitlines():
        if not row.strip():
            continue
        spaces = len(row) - len(row.lstrip(" "))
        line = _Line(row.strip(), spaces // len(INDENT))
        if spaces % len(INDENT) or line.level > len(path):
            raise PlanError(f"indentation of {row!r:.120}: two spaces per level", text=row[:200])
        del path[line.level :]
        (path[-1].below if path else roots).append(line)
        path.append(line)
    return roots


class _Reader:
    """Reads lines in order; keeps the writes read so far, because internal scans refer to them."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def write(self, line: _Line) -> Write:
        child = self._only_child(line)
        cursor = _after(line.text, "write")
        kind = cursor.take("word")
        if kind not in ("stream", "internal"):
            raise cursor.error("write what? stream or internal was expected")
        target = _take_stream(cursor, kind == "internal")
        keys = tuple(_take_names(cursor)) if cursor.accept("by") else ()
        vertices = cursor.number() if cursor.accept("vertices") else 1
        steps = cursor.number() if cursor.accept("trunk") else None
        cohort = cursor.number() if cursor.accept("cohort") else 0
        cursor.end()
        trunk = None if steps is None else child
        for _ in range(steps or 0):
            assert trunk is not None
            (trunk,) = children(trunk)
        return Write(child, target, keys, vertices, trunk=trunk, cohort=cohort)

    def relation(self, line: _Line) -> Relation:
        word = line.text.split(" ", 1)[0]
        read = _READERS.get(word)
        if read is None:
            raise PlanError(f"{line.text!r:.120}: there is no node {word!r}", text=line.text[:200])
        return read(self, line)

    def _only_child(self, line: _Line) -> Relation:
        if len(line.below) != 1:
            raise PlanError(f"{line.text!r:.120} needs one line below it, two spaces further right")
        return self.relation(line.below[0])

    def writer_of(self, stream: str) -> Write:
        for write in self.writes:
            if write.stream == stream:
                return write
        raise PlanError(f"internal stream {stream!r} is read before a line that writes it")

    def scan(self, line: _Line) -> Relation:
        # The columns' types hold brackets of their own: cut them off before the rest is read.
        text, options = _cut_connector(line.text)
        match = re.fullmatch(r"(scan .*?) ?\((.*)\)(| partitions \w+| event time .+)", text)
        if match is None:
            raise PlanError(f"{line.text!r:.120}: columns in brackets were expected")
        head, columns, tail = match.groups()
        cursor = _after(head, "scan")
        kind = cursor.take("word")
        if kind == "source":
            source = SourceRef(connector_spec(cursor.name(), **options), _partitions(tail))
            return scan(source, parse_schema(columns))
        streams = [_take_stream(cursor, kind == "internal")]
        while cursor.accept(","):
            streams.append(_take_stream(cursor, kind == "internal"))
        cursor.end()
        if kind == "internal":
            return self._internal_scan(streams, [name.strip() for name in columns.split(",")])
        timed = tail.removeprefix(" event time ").split(", ") if tail else []
        return scan(tuple(streams), parse_schema(columns), tuple(timed))

    def _internal_scan(self, streams: list[StreamRef], names: list[str]) -> Scan:
        written = self.writer_of(streams[0].name).child
        fields = {f.name: f for f in written.schema}
        timed = tuple(name for name in written.event_time if name in names)
        return scan(tuple(streams), tuple(fields[name] for name in names), timed)

    def filter(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "filter")
        condition = take_expression(cursor)
        cursor.end()
        return step(FilterSpec(condition.resolve(child.schema, "filter")), child)

    def project(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "project")
        columns = _take_named(cursor, child.schema, "project")
        cursor.end()
        return step(ProjectSpec(columns), child)

    def explode(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "explode")
        expression = take_expression(cursor).resolve(child.schema, "explode")
        cursor.expect("as")
        output = cursor.name()
        position = cursor.name() if cursor.accept("position") else None
        outer = cursor.accept("outer")
        cursor.end()
        return step(GenerateSpec(expression, output, outer, position), child)

    def spark(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "spark")
        columns = [_take_spark(cursor, child.schema)]
        while cursor.accept("and"):
            columns.append(_take_spark(cursor, child.schema))
        cursor.end()
        return step(SparkSpec(tuple(columns)), child)

    def watermark(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "watermark")
        column, delay_us = cursor.name(), _take_duration(cursor)
        cursor.end()
        return step(WatermarkSpec(column, delay_us), child)

    def join(self, line: _Line) -> Relation:
        left, right = (self.relation(below) for below in line.below)
        cursor = Cursor(line.text)
        how = cursor.take("word")
        cursor.expect("join")
        equal = []
        if cursor.accept("on"):
            equal.append(_take_equality(cursor, left.schema, right.schema))
            while cursor.accept(","):
                equal.append(_take_equality(cursor, left.schema, right.schema))
        condition = None
        if cursor.accept("where"):
            condition = take_expression(cursor).resolve((*left.schema, *right.schema), "join")
        cursor.end()
        return join(how, left, right, equal, condition)

    def union(self, line: _Line) -> Relation:
        return UnionAll(tuple(self.relation(below) for below in line.below))

    def exchange(self, line: _Line) -> Relation:
        cursor = _after(line.text, "exchange")
        keys = tuple(_take_names(cursor)) if cursor.accept("by") else ()
        cursor.end()
        return Exchange(self._only_child(line), keys)

    def partial(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "partial aggregate")
        return step(_take_grouping(cursor, child.schema), child)

    def aggregate(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "aggregate")
        mode, changes = cursor.take("word"), cursor.accept("changes")
        return aggregate(_take_grouping(cursor, child.schema), child, mode, changes=changes)

    def merge(self, line: _Line) -> Relation:
        child = self._only_child(line)
        cursor = _after(line.text, "merge partials")
        mode, changes = cursor.take("word"), cursor.accept("changes")
        cursor.end()
        return aggregate(self._partial_below(child), child, mode, True, changes)

    def _partial_below(self, relation: Relation) -> PartialAggregateSpec:
        for node in walk(relation):
            spec = spec_of(node)
            if isinstance(spec, PartialAggregateSpec):
                return spec
            if isinstance(node, Scan) and not isinstance(node.relation, SourceRef):
                return self._partial_below(self.writer_of(node.relation[0].name).child)
        raise PlanError("merge partials: no partial aggregate feeds it")


_READERS: dict[str, Callable[[_Reader, _Line], Relation]] = {
    "scan": _Reader.scan,
    "filter": _Reader.filter,
    "project": _Reader.project,
    "explode": _Reader.explode,
    "spark": _Reader.spark,
    "watermark": _Reader.watermark,
    "union": _Reader.union,
    **dict.fromkeys(HOWS, _Reader.join),
    "exchange": _Reader.exchange,
    "partial": _Reader.partial,
    "aggregate": _Reader.aggregate,
    "merge": _Reader.merge,
}


def _after(text: str, words: str) -> Cursor:
    cursor = Cursor(text)
    for word in words.split():
        cursor.expect(word)
    return cursor


def _cut_connector(text: str) -> tuple[str, dict[str, Any]]:
    """Take a connector's JSON options out of a line, before the rest is cut into tokens."""
    start = text.find("{")
    if start < 0:
        return text, {}
    try:
        options, end = json.JSONDecoder().raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"{text!r:.200}: the options are not JSON", text=text[:200]) from error
    return text[:start].rstrip() + text[end:], options


def _partitions(tail: str) -> int | None:
    if not tail:
        return 1
    cursor = _after(tail, "partitions")
    return None if cursor.accept("any") else cursor.number()


def _take_stream(cursor: Cursor, internal: bool) -> StreamRef:
    name, substreams = cursor.name(), 1
    while cursor.accept("."):
        name += f".{cursor.take('word', 'number')}"
    if cursor.accept("["):
        substreams = cursor.number()
        cursor.expect("]")
    return StreamRef(name, substreams, internal)


def _take_names(cursor: Cursor) -> list[str]:
    names = [cursor.name()]
    while cursor.accept(","):
        names.append(cursor.name())
    return names


def _take_named(cursor: Cursor, schema: Schema, node: str) -> tuple[NamedExpression, ...]:
    columns: list[NamedExpression] = []
    while not columns or cursor.accept(","):
        expression = take_expression(cursor)
        if cursor.accept("as"):
            name = cursor.name()
        elif isinstance(expression, Reference):
            name = expression.name
        else:
            raise cursor.error("a computed column needs a name: add 'as <name>'")
        columns.append((name, expression.resolve(schema, node)))
    return tuple(columns)


def _take_equality(cursor: Cursor, left: Schema, right: Schema) -> Equality:
    one, null_safe = take_operand(cursor), cursor.accept("<=>")
    if not null_safe:
        cursor.expect("=")
    other = take_operand(cursor)
    return one.resolve(left, "join"), other.resolve(right, "join"), null_safe


def _take_spark(cursor: Cursor, schema: Schema) -> SparkColumn:
    """A function's name stands for its text and for its digest."""
    function = cursor.name()
    cursor.expect("of")
    fields = {f.name: f for f in schema}
    inputs = tuple(column_of(fields[name]) for name in _take_names(cursor))
    cursor.expect("as")
    result = Field(cursor.name(), parse_type(cursor.take("word")), True)
    return SparkColumn(result, inputs, function, function)


def _take_duration(cursor: Cursor) -> int:
    return parse_duration(f"{cursor.number()} {cursor.take('word')}")


def _take_grouping(cursor: Cursor, schema: Schema) -> PartialAggregateSpec:
    keys = _take_named(cursor, schema, "aggregate") if cursor.accept("by") else ()
    try:
        window = _take_window(cursor, schema) if cursor.accept("window") else None
        cursor.expect(":")
        calls = [_take_call(cursor, schema)]
        while cursor.accept(","):
            calls.append(_take_call(cursor, schema))
    except ExpressionError as error:
        raise PlanError(f"aggregate: {error.message}", **error.details) from error
    cursor.end()
    return PartialAggregateSpec(keys, window, tuple(calls))


def _take_window(cursor: Cursor, schema: Schema) -> WindowSpec:
    time = take_expression(cursor).resolve(schema, "window")
    size_us = _take_duration(cursor)
    slide_us = _take_duration(cursor) if cursor.accept("every") else size_us
    start_us = _take_duration(cursor) if cursor.accept("from") else 0
    output = cursor.name() if cursor.accept("as") else "window"
    return WindowSpec(time, size_us, slide_us, start_us, output)


def _take_call(cursor: Cursor, schema: Schema) -> AggregateCall:
    function = cursor.name()
    cursor.expect("(")
    argument = None
    if not cursor.accept("*"):
        argument = take_expression(cursor).resolve(schema, "aggregate")
    cursor.expect(")")
    name = cursor.name() if cursor.accept("as") else function
    return AggregateCall(function, argument, name)
