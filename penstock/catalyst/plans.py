"""Catalyst's plan nodes in ours: one visible table from class name to reader.

A reader gives rows. Columns are named after their attributes as far as names go; two attributes of
one name get numbers. Whoever needs exact columns selects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from penstock.catalyst.aggregates import SeveralDistinct
from penstock.catalyst.by_spark import SparkColumns, SparkExpressions
from penstock.catalyst.expressions import ExpressionReader, attribute_ids, conjuncts
from penstock.catalyst.fed_sources import FedSource, fed_source
from penstock.catalyst.generators import read_generator
from penstock.catalyst.grouping import AggregateReader
from penstock.catalyst.joins import read_join
from penstock.catalyst.jvm import JvmNode, java_number, scala_items
from penstock.catalyst.literals import read_literal
from penstock.catalyst.observed import Observation, observation
from penstock.catalyst.over import OverReader, ordered
from penstock.catalyst.place import INPUT_FILE
from penstock.catalyst.python_functions import PythonBundle, PythonReader
from penstock.catalyst.refusals import placed, refused_node, unsupported
from penstock.catalyst.relations import (
    ScanOrigin,
    SubstreamCount,
    attribute_value,
    input_file,
    read_relation,
    spark_may_read,
)
from penstock.catalyst.rows import (
    Names,
    SparkRows,
    filtered,
    is_session,
    is_struct,
    made,
    named,
    selected,
)
from penstock.catalyst.session import SessionFacts
from penstock.catalyst.state_variables import STATE, Variable, variables_of
from penstock.catalyst.static_sides import StaticSide, initial_state, static_join, static_value
from penstock.catalyst.tables import read_mark, table_by
from penstock.catalyst.windows import (
    PendingWindow,
    Span,
    sliding_span,
    tumbling_span,
    window_struct,
)
from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Call, Column, Expression, Literal, call, literal
from penstock.expressions.types import BOOLEAN, INT, Field
from penstock.operators.specs import (
    DeduplicateSpec,
    GenerateSpec,
    InitialState,
    LimitSpec,
    NamedExpression,
    Order,
    ProjectSpec,
    PythonCall,
    PythonGroupsSpec,
    SortSpec,
    SortStep,
    WatermarkSpec,
)
from penstock.plan.join_times import is_last_instant
from penstock.plan.keys import as_key
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    Step,
    UnionAll,
    changing,
    check_appended,
    column_refs,
    rewrite,
    spec_of,
    step,
    walk,
)

DAYS_PER_MONTH = 31  # Spark's, for the delay of a watermark
DAY_US = 86_400_000_000
_WITHIN = frozenset({"DeduplicateWithinWatermark"})
_NAMING = frozenset({"Project", "Filter"})  # where Spark's users ask for the names of files
# Spark's words for what a function over groups goes by.
_CLOCKS: Mapping[str, str] = {
    "NoTimeout": "none",
    "ProcessingTimeTimeout": "processing",
    "EventTimeTimeout": "event",
    "NoTime": "none",
    "ProcessingTime": "processing",
    "EventTime": "event",
}


class PlanReader:
    """Reads one plan; remembers the scans and the static sides that it found, in order."""

    def __init__(
        self,
        session: SessionFacts,
        output_mode: str,
        substreams: SubstreamCount,
        feeds: str | None = None,
    ) -> None:
        """`feeds` is the query for which Spark reads what is not read here; None: it is refused."""
        self.session = session
        self._feeds = feeds
        self.fed: dict[str, FedSource] = {}  # by stream
        self.output_mode = output_mode
        self.substreams = substreams
        self.scans: list[ScanOrigin] = []
        self.spark: SparkExpressions = {}  # what Spark computes, by digest
        self.statics: dict[str, StaticSide] = {}
        self.python = PythonBundle()
        self.observed: dict[str, Observation] = {}
        self._functions = PythonReader(session, self.spark, self.python)
        self._names_files = False  # whether somebody above asks for the names of files
        self._sessions: set[int] = set()  # attributes that are some and are not marked so
        self._refusal: UnsupportedPlan | None = None

    def read(self, node: JvmNode) -> SparkRows:
        reader = _READERS.get(node.kind)
        if reader is None:
            self._refusal = placed(refused_node(node), node)
            raise self._refusal
        if node.kind in _NAMING and "input_file_name()" in str(node.read("expressions").toString()):
            self._names_files = True
        try:
            return reader(self, node)
        except UnsupportedPlan as refusal:
            if refusal is self._refusal:  # of a node below, which has told where
                raise
            self._refusal = placed(refusal, node)
            raise self._refusal from refusal

    def exact(self, rows: SparkRows, output: Sequence[JvmNode], names: Sequence[str]) -> Relation:
        """The relation with exactly these attributes, under these names."""
        columns = tuple(
            (name, self._visible(rows, attribute))
            for name, attribute in zip(names, output, strict=True)
        )
        return selected(rows.relation, columns)

    def _visible(self, rows: SparkRows, attribute: JvmNode) -> Expression:
        reader = rows.expressions("result", self.session.time_zone)
        return reader.read(attribute, str(attribute.read("name")))

    def _expressions(
        self, node: JvmNode, rows: SparkRows, by_spark: SparkColumns | None = None
    ) -> ExpressionReader:
        return rows.expressions(node.kind, self.session.time_zone, by_spark)

    # --- leaves and what changes no row ---

    def relation(self, node: JvmNode) -> SparkRows:
        origin = self._origin(node)
        self.scans.append(origin)
        columns = {
            attribute.expr_id: attribute_value(node, attribute, origin.scan)
            for attribute in node.output
        }
        if self._names_files:
            columns[INPUT_FILE] = input_file(origin.scan)
        if (table := origin.table) is not None:
            return SparkRows(made(node, lambda: step(table, origin.scan)), columns)
        return SparkRows(origin.scan, columns)

    def _origin(self, node: JvmNode) -> ScanOrigin:
        try:
            return read_relation(node, self.session, self.substreams, self._names_files)
        except UnsupportedPlan as refusal:
            # Which file a row is of is lost on the way through a stream.
            if self._feeds is None or self._names_files or not spark_may_read(node, refusal):
                raise
            fed, origin = fed_source(node, self._feeds, refusal, self.substreams)
            self.fed[fed.stream] = fed
            return origin

    def pass_on(self, node: JvmNode) -> SparkRows:
        return self.read(node.children[0])

    def observe(self, node: JvmNode) -> SparkRows:
        """What `observe` asks for, or `as_table` has marked."""
        name = str(node.read("name"))
        marked = read_mark(name)
        if marked is not None:
            return self._table(node, marked)
        rows = self.read(node.children[0])
        if name in self.observed:
            raise unsupported(
                "CollectMetrics",
                f"observe({name!r}) stands on two ways: each row would count twice",
            )
        if self.output_mode == "complete" and (what := changing(rows.relation)) is not None:
            reason = f"observe({name!r}) stands on {what}, whose rows come again with each commit"
            raise unsupported("CollectMetrics", reason)
        spark: SparkExpressions = {}
        zone = self.session.time_zone
        found = AggregateReader(node, rows, zone, "complete", spark, results="metrics").finish()
        if spark:
            raise unsupported("CollectMetrics", f"only Spark can compute observe({name!r})")
        names, metrics = Names(), node.nodes("metrics")
        called = tuple(str(item.read("name")) for item in metrics)
        columns = tuple(
            (names.give(each), found.columns[item.expr_id])
            for each, item in zip(called, metrics, strict=True)
        )
        shown = made(node, lambda: selected(found.relation, columns))
        self.observed[name] = observed = observation(name, called, shown, rows.relation)
        return replace(rows, relation=made(node, lambda: step(observed.spec, rows.relation)))

    def _table(self, node: JvmNode, marked: tuple[list[str], str | None]) -> SparkRows:
        """Rows that replace each other, in the order of one reader."""
        rows = self.read(node.children[0])
        names = Names()
        given = [(names.give(str(item.read("name"))), item) for item in node.output]
        relation = selected(
            rewrite(rows.relation, _in_one_part),
            tuple((name, self._visible(rows, item)) for name, item in given),
        )
        columns = {
            item.expr_id: Column(field.name, field.type, field.nullable)
            for (_, item), field in zip(given, relation.schema, strict=True)
        }
        by_name = {str(item.read("name")).lower(): columns[item.expr_id] for item in node.output}

        def found(name: str) -> Column:
            if name.lower() not in by_name:
                known = ", ".join(field.name for field in relation.schema)
                raise unsupported("as_table", f"the columns are {known}", column=name)
            return by_name[name.lower()]

        flag = None if marked[1] is None else found(marked[1])
        if flag is not None and flag.type != BOOLEAN:
            reason = f"the flag that deletes is {flag.type}; it is a boolean column"
            raise unsupported("as_table", reason, column=flag.name)
        spec = table_by([found(name) for name in marked[0]], flag, list(columns.values()))
        check_appended(relation, spec.title.replace("_", " "))
        return SparkRows(made(node, lambda: step(spec, relation)), columns)

    # --- rows one by one ---

    def _below(self, node: JvmNode) -> SparkRows:
        """The rows that a node reads, with the values of static subqueries that it asks for."""
        rows = self.read(node.children[0])
        if not scala_items(node.read("subqueries")):
            return rows
        for each in node.nodes("expressions"):
            column = str(each.read("name")) if each.kind == "Alias" else None
            for part in each.walk():
                if part.kind == "ScalarSubquery" and part.expr_id not in rows.columns:
                    rows, side = static_value(node, rows, part, column)
                    self.statics[side.name] = side
        return rows

    def filter(self, node: JvmNode) -> SparkRows:
        """As a whole if all of it is known; else part by part, in their order.

        One may be there to keep rows away from the next.
        """
        rows = self._below(node)
        overlapping = rows.overlapping
        if not overlapping:
            with suppress(UnsupportedPlan):
                known = self._expressions(node, rows).read(node.node("condition"))
                return filtered(node, rows, known)
        condition: Expression | None = None
        for part in conjuncts(node.node("condition")):
            if attribute_ids(part) & overlapping:
                rows = self._window_condition(node, rows, part)
                continue
            by_spark = SparkColumns(self.spark)
            read = self._expressions(node, rows, by_spark).read(part)
            if by_spark.columns and condition is not None:
                rows, condition = filtered(node, rows, condition), None
            rows = rows.with_columns(by_spark)
            condition = read if condition is None else call("and", condition, read)
        return rows if condition is None else filtered(node, rows, condition)

    def _window_condition(self, node: JvmNode, rows: SparkRows, part: JvmNode) -> SparkRows:
        """A condition on a window that is not there yet: keep it until it is, if it can wait."""
        asked = attribute_ids(part)
        for expr_id, window in rows.windows.items():
            if expr_id not in asked:
                continue
            if asked == {expr_id}:
                kept = window if _is_never_null(part) else _with_condition(window, part)
                return _with_window(rows, expr_id, kept)
            bound = self._bound(node, rows, part, expr_id, window)
            if bound is not None:
                return _with_window(rows, expr_id, bound)
        raise unsupported(
            node.kind,
            "a condition on both the window and other columns stands before the aggregate",
            expression=part,
        )

    def _bound(
        self, node: JvmNode, rows: SparkRows, part: JvmNode, expr_id: int, window: PendingWindow
    ) -> PendingWindow | None:
        """`time >= window.start` or `time < window.end`, which Spark adds to uneven windows."""
        ordinal = {"GreaterThanOrEqual": 0, "LessThan": 1}.get(part.kind)
        if ordinal is None:
            return None
        time, member = part.children
        if (
            member.kind != "GetStructField"
            or int(member.read("ordinal")) != ordinal
            or member.children[0].kind != "AttributeReference"
            or member.children[0].expr_id != expr_id
            or self._expressions(node, rows).read(time) != window.time
        ):
            return None
        # The lower bound holds for every window of the family; the upper one makes the difference.
        return replace(window, bounded=window.bounded or ordinal == 1)

    def project(self, node: JvmNode) -> SparkRows:
        return self._projected(node, self._below(node), node.nodes("projectList"))

    def _projected(self, node: JvmNode, rows: SparkRows, items: Sequence[JvmNode]) -> SparkRows:
        by_spark = SparkColumns(self.spark)
        expressions, names = self._expressions(node, rows, by_spark), Names()
        outputs: list[NamedExpression] = []
        columns: dict[int, Expression] = {}
        windows: dict[int, PendingWindow] = {}
        spans: dict[int, Span] = {}
        sessions: dict[int, Expression] = {}
        for item in items:
            if item.expr_id in columns or item.expr_id in windows:
                continue
            name, value = named(item)
            if value.kind == "CreateNamedStruct" and self._is_session(item):
                # begin and end apart, because Spark may have to compute one of them
                fields = [str(field.read("value").toString()) for field in value.children[0::2]]
                parts = [expressions.read(part, name) for part in value.children[1::2]]
                sessions[item.expr_id] = call("struct", *parts, names=fields)
                continue
            window = self._pending(rows, value, expressions)
            if window is not None:
                windows[item.expr_id] = window
                continue
            expression = expressions.read(value, name)
            if self._is_session(item) and is_struct(expression):
                sessions[item.expr_id] = expression  # passed on: not grouped by yet
                continue
            if item is value and isinstance(expression, Column):
                name = expression.name  # passed on: it keeps the name that it has here
            given = names.give(name)
            outputs.append((given, expression))
            columns[item.expr_id] = Column(given, expression.type, expression.nullable)
            if value.kind == "AttributeReference" and value.expr_id in rows.spans:
                spans[item.expr_id] = rows.spans[value.expr_id]
        if INPUT_FILE in rows.columns:
            columns[INPUT_FILE] = _carried(rows.columns[INPUT_FILE], outputs, names)
        for expr_id, window in windows.items():
            windows[expr_id] = replace(window, time=_carried(window.time, outputs, names))
            _show_window(columns, expr_id, windows[expr_id])
        for expr_id, struct in sessions.items():
            columns[expr_id] = _in_parts(struct, outputs, names)
        if not outputs:
            return replace(rows, columns=columns, windows=windows, spans=spans)
        below = by_spark.added_to(rows.relation)
        relation = made(node, lambda: selected(below, tuple(outputs)))
        return SparkRows(relation, columns, windows, spans)

    def _pending(
        self, rows: SparkRows, value: JvmNode, expressions: ExpressionReader
    ) -> PendingWindow | None:
        """The window that an output column stands for: one passed on, or one computed here."""
        if value.kind == "AttributeReference":
            return rows.windows.get(value.expr_id)
        found = tumbling_span(value)
        if found is None:
            return None
        span, time = found
        return PendingWindow(expressions.read(time), span)

    def generate(self, node: JvmNode) -> SparkRows:
        rows = self.read(node.children[0])
        generator = node.node("generator")
        by_spark = SparkColumns(self.spark)
        outputs = node.nodes("generatorOutput")
        column = str(outputs[-1].read("name")) if outputs else None
        expressions = replace(self._expressions(node, rows, by_spark), column=column)
        made_of = read_generator(generator, expressions)
        rows = rows.with_columns(by_spark)
        columns = dict(rows.columns)
        if made_of.array is None:
            found = zip(outputs, made_of.columns, strict=True)
            return replace(rows, columns=columns | {item.expr_id: one for item, one in found})
        array, names = made_of.array, Names(rows.names)
        given = [names.give(str(item.read("name"))) for item in outputs]
        position = given[0] if made_of.has_position else None
        spec = GenerateSpec(array, given[-1], bool(node.read("outer")), position)
        relation = made(node, lambda: step(spec, rows.relation), generator)
        added = {field.name: Column(field.name, field.type, True) for field in relation.schema}
        values = made_of.columns_of(added[given[-1]])
        if position is not None:
            values.insert(0, replace(added[position], nullable=spec.outer))
        for item, value in zip(outputs, values, strict=True):
            columns[item.expr_id] = value
        return replace(rows, relation=relation, columns=columns)

    def union(self, node: JvmNode) -> SparkRows:
        """Where all sides have the same windows, or sessions, these are made of their times."""
        self._note_sessions(node)
        sides = [(self.read(child), child.output) for child in node.children]
        names, inputs = Names(), [list[NamedExpression]() for _ in sides]

        def united(name: str, values: Sequence[Expression]) -> Column:
            given = names.give(name)
            for side, value in zip(inputs, values, strict=True):
                side.append((given, value))
            return Column(given, values[0].type, any(value.nullable for value in values))

        columns: dict[int, Expression] = {}
        windows: dict[int, PendingWindow] = {}
        spans: dict[int, Span] = {}
        for index, item in enumerate(node.output):
            name = str(item.read("name"))
            items = [(rows, output[index]) for rows, output in sides]
            window = _common_window(items)
            sessions = _sessions(items) if self._is_session(item) else None
            if window is not None:
                times = [rows.windows[each.expr_id].time for rows, each in items]
                windows[item.expr_id] = replace(window, time=united(name, times))
                _show_window(columns, item.expr_id, windows[item.expr_id])
            elif sessions is not None:
                fields = sessions[0].option("names")
                members = zip(fields, *(struct.args for struct in sessions), strict=True)
                parts = [united(f"session_{field}", values) for field, *values in members]
                columns[item.expr_id] = call("struct", *parts, names=fields)
            else:
                columns[item.expr_id] = united(name, [self._visible(*each) for each in items])
                closed = {rows.spans.get(each.expr_id) for rows, each in items}
                if len(closed) == 1 and (span := closed.pop()) is not None:
                    spans[item.expr_id] = span
        if not node.output:  # only the number of rows matters
            united("column", [literal(1, INT)] * len(sides))
        relation = made(
            node,
            lambda: UnionAll(
                tuple(
                    selected(rows.relation, tuple(its))
                    for (rows, _), its in zip(sides, inputs, strict=True)
                )
            ),
        )
        return SparkRows(relation, columns, windows, spans)

    def _note_sessions(self, union: JvmNode) -> None:
        """Where Spark computes sessions below a union, it marks those of the first input alone."""
        for child in union.children:
            both = zip(union.output, child.output, strict=True)
            self._sessions.update(its.expr_id for item, its in both if self._is_session(item))

    def _is_session(self, item: JvmNode) -> bool:
        return item.expr_id in self._sessions or is_session(item)

    def watermark(self, node: JvmNode) -> SparkRows:
        rows = self.read(node.children[0])
        attribute = node.node("eventTime")
        name = str(attribute.read("name"))
        column = self._expressions(node, rows).read(attribute, name)
        if not isinstance(column, Column):
            raise unsupported(node.kind, "a watermark needs a column of the rows", column=name)
        spec = WatermarkSpec(column.name, _delay_us(node))
        relation = made(node, lambda: step(spec, rows.relation), attribute)
        return replace(rows, relation=relation)

    def expand(self, node: JvmNode) -> SparkRows:
        """Several projections of each row: of windows that overlap, or of grouping sets."""
        rows = self.read(node.children[0])
        projections = [
            [JvmNode(item) for item in scala_items(projection)]
            for projection in scala_items(node.read("projections"))
        ]
        structs = [
            index for index, item in enumerate(projections[0]) if item.kind == "CreateNamedStruct"
        ]
        if len(structs) != 1:
            return self._grouping_sets(node, rows, projections)
        at = structs[0]
        found = sliding_span([projection[at] for projection in projections])
        if found is None or not _same_apart_from(at, projections):
            return self._grouping_sets(node, rows, projections)
        span, time = found
        by_spark = SparkColumns(self.spark)
        expressions = self._expressions(node, rows, by_spark)
        window = PendingWindow(expressions.read(time), span)
        columns: dict[int, Expression] = {}
        for index, (attribute, item) in enumerate(zip(node.output, projections[0], strict=True)):
            if index != at:
                columns[attribute.expr_id] = expressions.read(item)
        relation = by_spark.added_to(rows.relation)
        return SparkRows(relation, columns, {node.output[at].expr_id: window})

    def _grouping_sets(
        self, node: JvmNode, rows: SparkRows, projections: Sequence[Sequence[JvmNode]]
    ) -> SparkRows:
        """Each row once for each projection: repeated with its number, which then decides."""
        by_spark, names = SparkColumns(self.spark), Names(rows.names)
        expressions = self._expressions(node, rows, by_spark)
        numbers = [literal(number, INT) for number in range(len(projections))]
        spec = GenerateSpec(call("array", *numbers), names.give("projection"))
        number = Column(spec.output, INT, True)
        outputs: list[NamedExpression] = []
        columns: dict[int, Expression] = {}
        windows: dict[int, PendingWindow] = {}
        names = Names()
        for attribute, *items in zip(node.output, *projections, strict=True):
            pending = {rows.windows.get(item.expr_id) for item in items if _is_attribute(item)}
            window = next(iter(pending)) if len(pending) == 1 else None
            if window is not None and all(map(_is_attribute, items)):
                windows[attribute.expr_id] = window
                continue
            name = str(attribute.read("name"))
            value = _by_number(number, [expressions.read(item, name) for item in items])
            given = names.give(name)
            outputs.append((given, value))
            columns[attribute.expr_id] = Column(given, value.type, value.nullable)
        for expr_id, window in windows.items():
            windows[expr_id] = replace(window, time=_carried(window.time, outputs, names))
            _show_window(columns, expr_id, windows[expr_id])
        repeated = made(node, lambda: step(spec, by_spark.added_to(rows.relation)))
        relation = made(node, lambda: selected(repeated, tuple(outputs)))
        return SparkRows(relation, columns, windows)

    def _before_expanding(self, node: JvmNode) -> SparkRows:
        """Rows before they are expanded for distinct values; attributes are what they may be."""
        rows = self.read(node.children[0])
        by_spark = SparkColumns(self.spark)
        expressions = self._expressions(node, rows, by_spark)
        columns = dict(rows.columns)
        projections = [scala_items(each) for each in scala_items(node.read("projections"))]
        for attribute, *items in zip(node.output, *projections, strict=True):
            known = attribute.expr_id in columns or attribute.expr_id in rows.windows
            values = [item for item in map(JvmNode, items) if not _is_null(item)]
            if values and not known:
                columns[attribute.expr_id] = expressions.read(values[0])
        return replace(rows, relation=by_spark.added_to(rows.relation), columns=columns)

    def python_columns(self, node: JvmNode) -> SparkRows:
        return self._functions.columns(node, self.read(node.children[0]))

    def python_table(self, node: JvmNode) -> SparkRows:
        return self._functions.table(node, self.read(node.children[0]))

    def python_batches(self, node: JvmNode) -> SparkRows:
        return self._functions.batches(node, self.read(node.children[0]))

    # --- groups ---

    def python_groups(self, node: JvmNode) -> SparkRows:
        """A function with a state for each key, or a processor with states of its own."""
        rows = self.read(node.children[0])
        is_processor = node.kind == "TransformWithStateInPySpark"
        self._check_function(node, rows, is_processor)
        if is_processor:
            keys = node.children[0].output[: int(node.read("groupingAttributesLen"))]
            found = self._functions.processor(node)
            variables, given_up = variables_of(node, found, self.session.handle)
        else:
            given_up = ()
            keys = node.nodes("groupingAttributes")
            variables = {STATE: Variable("value", str(node.read("stateType").json()))}
        initial = self._initial_state(node) if is_processor else None
        clock = _CLOCKS[str(node.read("timeMode" if is_processor else "timeout").toString())]
        declared = made(
            node, lambda: tuple(each.declared(name) for name, each in variables.items())
        )
        if clock != "processing" and any(each.ttl_ms is not None for each in declared):
            raise unsupported(
                node.kind, "states with a time to live go by the clock: use timeMode ProcessingTime"
            )
        time = _time_of(rows.relation, []) if clock == "event" else None

        def spec(
            by: tuple[Expression, ...], function: PythonCall, outputs: tuple[Field, ...]
        ) -> PythonGroupsSpec:
            return PythonGroupsSpec(
                by,
                function,
                outputs,
                declared,
                clock,
                is_processor,
                watermarked=bool(rows.relation.event_time),
                time=time,
                initial=initial,
                given_up=given_up,
            )

        return self._functions.groups(node, rows, keys, variables, spec)

    def _initial_state(self, node: JvmNode) -> InitialState | None:
        if not node.read("hasInitialState"):
            return None
        found, side = initial_state(node, int(node.read("initGroupingAttrsLen")))
        self.statics[side.name] = side
        return found

    def python_maps(self, node: JvmNode) -> SparkRows:
        """The rows of each key to a function, batch by batch as they come: it keeps nothing."""
        rows = self.read(node.children[0])

        def spec(
            by: tuple[Expression, ...], function: PythonCall, outputs: tuple[Field, ...]
        ) -> PythonGroupsSpec:
            return PythonGroupsSpec(by, function, outputs, ())

        keys = node.nodes("groupingAttributes")
        return self._functions.groups(node, rows, keys, {}, spec, "output")

    def _check_function(self, node: JvmNode, rows: SparkRows, is_processor: bool) -> None:
        """What Spark refuses too, and what is not run here."""
        function = node.node("functionExpr")
        mode = str(node.read("outputMode").toString()).lower()
        is_other = mode != self.output_mode and (mode, self.output_mode) != ("append", "complete")
        if is_other and not is_processor:
            reason = f"the function is for {mode} mode and the query is in {self.output_mode} mode"
            raise unsupported(
                node.kind, f"{reason}; Structured Streaming asks for the same", expression=function
            )
        clock = _CLOCKS[str(node.read("timeMode" if is_processor else "timeout").toString())]
        if clock == "event" and not rows.relation.event_time:
            raise unsupported(
                node.kind,
                "it goes by event time, and no watermark speaks of its rows: use withWatermark()",
                expression=function,
            )

    def event_time_column(self, node: JvmNode) -> SparkRows:
        """The column of what a processor gives of which the watermark speaks further on."""
        rows = self.read(node.children[0])
        attribute = node.node("eventTime")
        column = self._expressions(node, rows).read(attribute, str(attribute.read("name")))
        spec = spec_of(rows.relation)
        if not isinstance(spec, PythonGroupsSpec) or not isinstance(column, Column):
            raise refused_node(node)
        assert isinstance(rows.relation, Step)
        told = replace(spec, event_time=column.name)
        below = rows.relation.child
        return replace(rows, relation=made(node, lambda: step(told, below), attribute))

    def deduplicate(self, node: JvmNode) -> SparkRows:
        """The first row of each key. Rows behind the watermark are late, whatever the keys are."""
        rows = self.read(node.children[0])
        if self._is_distinct_of_changing(node, rows):
            return self._grouped(node, rows, node.nodes("keys"), results="keys")
        by_spark = SparkColumns(self.spark)
        expressions = self._expressions(node, rows, by_spark)
        read = [
            (attribute, expressions.read_key(attribute, str(attribute.read("name"))))
            for attribute in node.nodes("keys")
        ]
        rows = rows.with_columns(by_spark)
        names, computed = Names(rows.names), list[NamedExpression]()
        keys: list[Column] = []
        for attribute, key in read:
            # A window that rows lie in, which its end stands for; or what Spark put elsewhere.
            is_window = attribute.expr_id in rows.windows
            found = call("get_field", key, name="end") if is_window else key
            # Spark compares maps as they are here: only where it groups does it sort their entries.
            value = made(node, partial(as_key, found, maps=True), attribute)
            if not isinstance(value, Column):
                computed.append((names.give("key"), value))
                value = Column(computed[-1][0], value.type, value.nullable)
            keys.append(value)
        if computed:
            columns = (*column_refs(rows.relation.schema), *computed)
            rows = replace(rows, relation=made(node, lambda: selected(rows.relation, columns)))
        by = _time_of(rows.relation, keys)
        within_us = self._delay_below(node, rows) if node.kind in _WITHIN else None
        is_instant = by is not None and is_last_instant(rows.relation, by)
        spec = DeduplicateSpec(tuple(keys), by, within_us, is_instant)
        return replace(rows, relation=made(node, lambda: step(spec, rows.relation)))

    def _is_distinct_of_changing(self, node: JvmNode, rows: SparkRows) -> bool:
        """Whether whole rows that come and go are to be told apart: each is a group of its own."""
        keys = {key.expr_id for key in node.nodes("keys")}
        is_whole = node.kind not in _WITHIN and keys == {each.expr_id for each in node.output}
        return is_whole and self.output_mode != "append" and changing(rows.relation) is not None

    def _delay_below(self, node: JvmNode, rows: SparkRows) -> int:
        """Of the watermark that the query defines: so long a key is remembered."""
        specs = map(spec_of, walk(rows.relation))
        delays = [spec.delay_us for spec in specs if isinstance(spec, WatermarkSpec)]
        if not delays or not rows.relation.event_time:
            raise unsupported(node.kind, "it needs withWatermark() in the same query, before it")
        return delays[0]

    def join(self, node: JvmNode) -> SparkRows:
        streams = [bool(child.read("isStreaming")) for child in node.children]
        if not all(streams):
            return self._static_join(node, is_left=streams[0])
        left, right = (self.read(child) for child in node.children)
        return read_join(node, left, right, self.session.time_zone, self.spark)

    def _static_join(self, node: JvmNode, is_left: bool) -> SparkRows:
        stream, static = node.children if is_left else reversed(node.children)
        zone = self.session.time_zone
        rows, side = static_join(node, self.read(stream), static, is_left, zone, self.spark)
        self.statics[side.name] = side
        return rows

    def window(self, node: JvmNode) -> SparkRows:
        """Functions over partitions; Spark may have put before it that only the best are wanted."""
        (child,) = node.children
        limit = child if child.kind == "WindowGroupLimit" else None
        rows = self.read(child if limit is None else limit.children[0])
        return OverReader(node, rows, self.session.time_zone).finish(limit)

    def sort(self, node: JvmNode) -> SparkRows:
        """In complete mode, behind an aggregate; an order within partitions has no meaning here."""
        rows = self.read(node.children[0])
        if not node.read("global"):
            return rows
        by_spark = SparkColumns(self.spark)
        expressions = self._expressions(node, rows, by_spark)
        items = [(item, expressions.read_key(item.children[0])) for item in node.nodes("order")]
        rows = rows.with_columns(by_spark)
        names, added, order = Names(rows.names), list[NamedExpression](), list[Order]()
        for item, found in items:
            value = found
            if not isinstance(value, Column):
                added.append((names.give("order"), value))
                value = Column(added[-1][0], value.type, value.nullable)
            order.append(ordered(item, value))
        if added:
            columns = (*column_refs(rows.relation.schema), *added)
            rows = replace(rows, relation=made(node, lambda: selected(rows.relation, columns)))
        return self._whole(node, rows, SortStep(tuple(order)))

    def limit(self, node: JvmNode) -> SparkRows:
        """Of a whole result in complete mode; else the first rows that come."""
        rows = self.read(node.children[0])
        count = self._row_count(node, "limitExpr")
        if self.output_mode == "complete":
            return self._whole(node, rows, SortStep(limit=count))
        if self.output_mode != "append":
            raise unsupported(node.kind, "limits are for append and complete mode")
        return replace(rows, relation=made(node, lambda: step(LimitSpec(count), rows.relation)))

    def offset(self, node: JvmNode) -> SparkRows:
        rows = self.read(node.children[0])
        return self._whole(node, rows, SortStep(offset=self._row_count(node, "offsetExpr")))

    def _row_count(self, node: JvmNode, field: str) -> int:
        found = read_literal(node.node(field)) if node.node(field).kind == "Literal" else None
        if not isinstance(found, Literal) or not isinstance(found.value, int):
            raise unsupported(node.kind, "a constant number of rows is needed")
        return found.value

    def _whole(self, node: JvmNode, rows: SparkRows, added: SortStep) -> SparkRows:
        """A further step of what sorts and cuts a whole result."""
        if self.output_mode != "complete" or changing(rows.relation) is None:
            raise refused_node(node)
        return replace(rows, relation=made(node, lambda: _sorted(rows.relation, added)))

    def aggregate(self, node: JvmNode) -> SparkRows:
        rewritten = SeveralDistinct.found(node)
        if rewritten is None:
            several, rows = None, self._below(node)
        else:
            several, rows = rewritten[0], self._before_expanding(rewritten[1])
        return self._grouped(node, rows, node.nodes("groupingExpressions"), several)

    def _grouped(
        self,
        node: JvmNode,
        rows: SparkRows,
        keys: Iterable[JvmNode],
        rewritten: SeveralDistinct | None = None,
        results: str = "aggregateExpressions",
    ) -> SparkRows:
        zone = self.session.time_zone
        grouping = AggregateReader(
            node, rows, zone, self.output_mode, self.spark, rewritten, results
        )
        for key in keys:
            grouping.add(key)
        return grouping.finish()


# --- small steps ----------------------------------------------------------------------------------


def _sorted(relation: Relation, added: SortStep) -> Relation:
    """A result with a further step; projections leave its order, and how many rows it has."""
    if isinstance(relation, Step):
        spec = relation.spec
        if isinstance(spec, SortSpec):
            return step(SortSpec((*spec.steps, added)), relation.child)
        if isinstance(spec, ProjectSpec) and not added.order:
            return step(spec, _sorted(relation.child, added))
    return step(SortSpec((added,)), relation)


def _in_one_part(relation: Relation) -> Relation:
    """A scan whose rows keep the order in which they are read: which is newer only that tells."""
    if isinstance(relation, Scan) and isinstance(relation.relation, SourceRef):
        return replace(relation, relation=replace(relation.relation, partitions=1))
    return relation


def _time_of(relation: Relation, keys: Sequence[Column]) -> Column | None:
    """The time by which rows are late: a key if one is an event time, else what there is."""
    timed = [
        Column(found.name, found.type, found.nullable)
        for found in relation.schema
        if found.name in relation.event_time and found.type.kind in ("timestamp", "timestamp_ntz")
    ]
    return next((column for column in timed if column in keys), timed[0] if timed else None)


def _carried(
    time: Expression, outputs: list[NamedExpression], names: Names, called: str = "window_time"
) -> Expression:
    """Make sure that a projection carries the time of a window, and say where."""
    for name, expression in outputs:
        if expression == time:
            return Column(name, time.type, time.nullable)
    name = names.give(time.name if isinstance(time, Column) else called)
    outputs.append((name, time))
    return Column(name, time.type, time.nullable)


def _in_parts(struct: Expression, outputs: list[NamedExpression], names: Names) -> Expression:
    """A session with its begin and its end as columns: so loops can compute and compare them."""
    assert isinstance(struct, Call)
    fields = struct.option("names")
    parts = [
        _carried(part, outputs, names, f"session_{name}")
        for name, part in zip(fields, struct.args, strict=True)
    ]
    return call("struct", *parts, names=fields)


def _show_window(columns: dict[int, Expression], expr_id: int, window: PendingWindow) -> None:
    """A window beside others can also be used as a value."""
    if not window.span.overlaps and window.time.type.kind == "timestamp":
        columns[expr_id] = window_struct(window)


def _common_window(items: Sequence[tuple[SparkRows, JvmNode]]) -> PendingWindow | None:
    """The windows that a column stands for on every side of a union, if they are the same."""
    found = [rows.windows.get(item.expr_id) for rows, item in items]
    first = found[0]
    if first is None or first.conditions:
        return None
    same = all(window and replace(window, time=first.time) == first for window in found)
    return first if same else None


def _sessions(items: Sequence[tuple[SparkRows, JvmNode]]) -> list[Call] | None:
    """The sessions that rows begin on every side of a union, if a column stands for these."""
    found = [rows.columns.get(item.expr_id) for rows, item in items]
    structs = [each for each in found if is_struct(each)]
    return structs if len(structs) == len(items) else None


def _is_never_null(part: JvmNode) -> bool:
    """`window IS NOT NULL` and the same of its fields: Spark infers them, and they always hold."""
    if part.kind != "IsNotNull":
        return False
    value = part.children[0]
    value = value.children[0] if value.kind == "GetStructField" else value
    return value.kind == "AttributeReference"


def _with_condition(window: PendingWindow, part: JvmNode) -> PendingWindow:
    return replace(window, conditions=(*window.conditions, part))


def _with_window(rows: SparkRows, expr_id: int, window: PendingWindow) -> SparkRows:
    return replace(rows, windows={**rows.windows, expr_id: window})


def _same_apart_from(at: int, projections: Sequence[Sequence[JvmNode]]) -> bool:
    """Whether all projections pass on the same columns besides the one at an index."""
    passed = []
    for projection in projections:
        others = [item for index, item in enumerate(projection) if index != at]
        if any(item.kind != "AttributeReference" for item in others):
            return False
        passed.append([item.expr_id for item in others])
    return all(ids == passed[0] for ids in passed)


def _is_null(item: JvmNode) -> bool:
    return item.kind == "Literal" and item.read("value") is None


def _is_attribute(item: JvmNode) -> bool:
    return item.kind == "AttributeReference"


def _by_number(number: Column, values: Sequence[Expression]) -> Expression:
    """The value of the projection that has a number; those that are equal are asked for once."""
    *others, chosen = dict.fromkeys(values)
    for other in others:
        tests = [
            call("eq", number, literal(at, INT))
            for at, value in enumerate(values)
            if value == other
        ]
        is_other: Expression = tests[0]
        for test in tests[1:]:
            is_other = call("or", is_other, test)
        chosen = call("if", is_other, other, chosen)
    return chosen


def _delay_us(node: JvmNode) -> int:
    """A watermark's delay, in whole milliseconds as Spark takes it."""
    delay = node.read("delay")
    days = java_number(delay, "months") * DAYS_PER_MONTH + java_number(delay, "days")
    delay_us = days * DAY_US + java_number(delay, "microseconds")
    return delay_us // 1_000 * 1_000


_READERS: Mapping[str, Callable[[PlanReader, JvmNode], SparkRows]] = {
    "StreamingRelationV2": PlanReader.relation,
    "StreamingRelation": PlanReader.relation,
    # Where rows are computed is not Spark's business here, and order between them has no meaning.
    "Repartition": PlanReader.pass_on,
    "RepartitionByExpression": PlanReader.pass_on,
    "RebalancePartitions": PlanReader.pass_on,
    "LocalLimit": PlanReader.pass_on,  # a global one stands above it
    "CollectMetrics": PlanReader.observe,
    "Filter": PlanReader.filter,
    "Project": PlanReader.project,
    "Generate": PlanReader.generate,
    "Union": PlanReader.union,
    "EventTimeWatermark": PlanReader.watermark,
    "Expand": PlanReader.expand,
    "BatchEvalPython": PlanReader.python_columns,
    "ArrowEvalPython": PlanReader.python_columns,
    "BatchEvalPythonUDTF": PlanReader.python_table,
    "ArrowEvalPythonUDTF": PlanReader.python_table,
    "MapInPandas": PlanReader.python_batches,
    "MapInArrow": PlanReader.python_batches,
    "FlatMapGroupsInPandas": PlanReader.python_maps,
    "FlatMapGroupsInArrow": PlanReader.python_maps,
    "FlatMapGroupsInPandasWithState": PlanReader.python_groups,
    "TransformWithStateInPySpark": PlanReader.python_groups,
    "UpdateEventTimeWatermarkColumn": PlanReader.event_time_column,
    "Aggregate": PlanReader.aggregate,
    "Join": PlanReader.join,
    "Window": PlanReader.window,
    "Deduplicate": PlanReader.deduplicate,
    "DeduplicateWithinWatermark": PlanReader.deduplicate,
    "Sort": PlanReader.sort,
    "GlobalLimit": PlanReader.limit,
    "Offset": PlanReader.offset,
}

NODE_KINDS = frozenset(_READERS)
