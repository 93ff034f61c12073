"""One Aggregate node: what rows are grouped by, what is aggregated, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.catalyst.aggregates import CallCollector, SeveralDistinct
from penstock.catalyst.by_spark import SparkColumns, SparkExpressions
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.rows import (
    Names,
    SparkRows,
    filtered,
    is_session,
    is_struct,
    is_watermarked,
    made,
    named,
    selected,
)
from penstock.catalyst.time_expressions import shifted_time
from penstock.catalyst.windows import PendingWindow, Span
from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Column, Expression, call, literal
from penstock.expressions.types import VOID
from penstock.operators.specs import (
    AggregateCall,
    DeduplicateSpec,
    NamedExpression,
    PartialAggregateSpec,
    ProjectSpec,
    SessionSpec,
    WindowSpec,
    column_of,
)
from penstock.plan.event_time import watermark_ends
from penstock.plan.keys import as_key, of_key
from penstock.plan.nodes import Relation, aggregate, column_refs, step


class AggregateReader:
    """Keys, window and aggregates of one Aggregate node, then what is computed from them."""

    def __init__(
        self,
        node: JvmNode,
        rows: SparkRows,
        session_zone: str,
        mode: str,
        spark: SparkExpressions,
        rewritten: SeveralDistinct | None = None,
        results: str = "aggregateExpressions",
    ) -> None:
        """`spark` collects what Spark computes; `rewritten` says what the node was, `results` where
        it has its aggregates."""
        self.node, self.rows, self.spark = node, rows, spark
        self.session_zone, self.mode = session_zone, mode
        self.names = Names()
        self.results = node.nodes(results)
        self.by_spark = SparkColumns(spark)  # of the rows that are grouped
        self.inputs = rows.expressions(node.kind, session_zone, self.by_spark)
        self.calls = CallCollector(self.inputs, self.names.give, rewritten=rewritten)
        self.keys: list[NamedExpression] = []
        self.shown: list[NamedExpression] = []  # of keys that others stand for
        self.window: WindowSpec | SessionSpec | None = None
        self.span: Span | None = None
        self.conditions: tuple[JvmNode, ...] = ()
        self.columns: dict[int, Expression] = {}
        self.window_id: int | None = None
        self.timed_key: str | None = None  # the column of a watermark
        self.is_watermarked = False  # whether Spark ends the windows with a watermark

    def add(self, expression: JvmNode) -> None:
        """One thing that rows are grouped by."""
        expr_id = expression.expr_id if expression.kind == "AttributeReference" else None
        if expr_id is not None and expr_id in self.rows.windows:
            self._group_by_window(expression, self.rows.windows[expr_id])
        elif expr_id is not None and expr_id in self.rows.spans:
            self._group_by_closed(expression, self.rows.spans[expr_id])
        elif expr_id is not None and is_session(expression):
            self._group_by_session(expression)
        else:
            self._group_by_key(expression)

    def _group_by_session(self, expression: JvmNode) -> None:
        found = self.inputs.read(expression)
        if is_struct(found):
            begin, end = found.args
        else:
            begin, end = (call("get_field", found, name=name) for name in ("start", "end"))
        self._begin_window(expression, lambda name: SessionSpec(begin, end, name))

    def _group_by_window(self, expression: JvmNode, window: PendingWindow) -> None:
        if not window.span.is_even and not window.bounded:
            raise unsupported(
                self.node.kind, "the end of the window is not checked", expression=expression
            )
        self._set_window(expression, window.time, window.span, window.span)
        self.conditions = window.conditions

    def _group_by_closed(self, expression: JvmNode, span: Span) -> None:
        """A window that an earlier aggregate made: its last instant lies in one slide of it.

        So grouping by windows of that one slide is grouping by the window itself.
        """
        end = call("get_field", self.inputs.read(expression), name="end")
        own = Span(span.slide_us, span.slide_us, (span.start_us + span.size_us) % span.slide_us)
        self._set_window(expression, shifted_time(end, -1), own, span)

    def _set_window(self, expression: JvmNode, time: Expression, span: Span, shown: Span) -> None:
        numbers = (span.size_us, span.slide_us, span.start_us)
        self._begin_window(expression, lambda name: WindowSpec(time, *numbers, name))
        self.span = shown

    def _begin_window(
        self, expression: JvmNode, make: Callable[[str], WindowSpec | SessionSpec]
    ) -> None:
        if self.window is not None:
            raise unsupported(
                self.node.kind, "rows are grouped by two windows", expression=expression
            )
        name = self.names.give(self._shown_name(expression))
        self.window = made(self.node, lambda: make(name), expression)
        self.window_id = expression.expr_id
        self.is_watermarked = is_watermarked(expression)
        self.columns[expression.expr_id] = Column(name, self.window.type, False)

    def _group_by_key(self, expression: JvmNode) -> None:
        name = self._shown_name(expression)
        key = self.inputs.read(expression, name)
        told_apart = self.inputs.read_key(expression, name)
        if told_apart != key:
            self._group_by_other(expression, name, key, told_apart)
            return
        is_column = expression.kind == "AttributeReference"
        if is_column and self.mode != "complete" and is_watermarked(expression):
            self.timed_key = name
        given = self.names.give(name)
        # Of maps Spark's optimizer has sorted the entries.
        kept = made(self.node, lambda: as_key(key, maps=True), expression)
        self.keys.append((given, kept))
        if is_column:
            shown = of_key(Column(given, kept.type, kept.nullable), key.type)
            self.columns[expression.expr_id] = shown

    def _group_by_other(
        self, expression: JvmNode, name: str, key: Expression, told_apart: Expression
    ) -> None:
        """By what tells values apart: the group shows the first one that came."""
        self.keys.append((self.names.give("key"), told_apart))
        if key.type == VOID:
            shown: Expression = literal(None, VOID)
        else:
            given = self.names.give(name)
            self.shown.append((given, key))
            shown = Column(given, key.type, True)
        if expression.kind == "AttributeReference":
            self.columns[expression.expr_id] = shown

    def _end_by_key(self) -> None:
        """Where no window ends a group, a key does that is an event time.

        A group of time t is over when the watermark has reached t: it is the group of the window of
        a microsecond that ends there. Rows without a time are in no group that ever ends.
        """
        if self.timed_key is not None and (self.mode == "update" or self.window is not None):
            raise unsupported(
                self.node.kind,
                "rows are grouped by the column of withWatermark itself, whose groups end with the "
                "watermark; here they do in append mode, and without a window beside it: group by "
                "window() alone, or use outputMode complete",
                column=self.timed_key,
            )
        if self.mode != "append" or self.window is not None:
            return
        timed = self.rows.relation.event_time
        for at, (name, key) in enumerate(self.keys):
            is_time = key.type.kind in ("timestamp", "timestamp_ntz")
            if isinstance(key, Column) and key.name in timed and is_time:
                self.window = WindowSpec(shifted_time(key, -1), 1, 1, 0, self.names.give("instant"))
                del self.keys[at]
                instant = Column(self.window.output, self.window.type, False)
                ended = call("get_field", instant, name="end")
                self.columns = {
                    expr_id: ended if column == Column(name, key.type, key.nullable) else column
                    for expr_id, column in self.columns.items()
                }
                self.is_watermarked = True
                return

    def _shown_name(self, expression: JvmNode) -> str:
        """What the result calls a key: `groupBy((a % 5).alias("k"))` reaches us in two steps."""
        if expression.kind != "AttributeReference":
            return expression.text
        for result in self.results:
            name, value = named(result)
            if value.kind == "AttributeReference" and value.expr_id == expression.expr_id:
                return name
        return str(expression.read("name"))

    def finish(self) -> SparkRows:
        self._end_by_key()
        direct, others = self._split_results()
        outputs: dict[int, Expression] = {}
        for result, value in direct:
            name = str(result.read("name"))
            outputs[result.expr_id] = self.calls.named(value, name)
        by_spark = SparkColumns(self.spark)  # of the groups
        expressions = replace(
            self.inputs, columns=self.columns, hidden={}, aggregates=self.calls, by_spark=by_spark
        )
        computed = {
            result.expr_id: expressions.read(value, str(result.read("name")))
            for result, value in others
        }
        relation = self._first_rows() if self._is_distinct else self._aggregate()
        rows = SparkRows(relation, {**self.columns, **outputs})
        rows = self._window_as_shown(rows)
        rows = self._with_conditions(rows)
        return self._with_results(rows.with_columns(by_spark), computed)

    def _split_results(
        self,
    ) -> tuple[list[tuple[JvmNode, JvmNode]], list[tuple[JvmNode, JvmNode]]]:
        direct, others = [], []
        for result in self.results:
            value = named(result)[1]
            if self.calls.is_one(value):
                direct.append((result, value))
            elif result.expr_id not in self.columns:
                others.append((result, value))
        return direct, others

    @property
    def _is_distinct(self) -> bool:
        """Whether nothing is aggregated in groups that never end: they never change either."""
        is_plain = self.window is None and not self.calls.calls and bool(self.keys)
        return is_plain and self.mode == "append" and not self.is_watermarked

    def _first_rows(self) -> Relation:
        """Distinct rows, each when it comes first."""
        rows = self.by_spark.added_to(self.rows.relation)
        shown = tuple((name, _with_one_zero(key)) for name, key in self.keys)
        keys = made(self.node, lambda: selected(rows, (*shown, *self.shown)))
        spec = DeduplicateSpec(tuple(map(column_of, keys.schema[: len(shown)])))
        return made(self.node, lambda: step(spec, keys))

    def _aggregate(self) -> Relation:
        firsts = (AggregateCall("first", key, name) for name, key in self.shown)
        self.calls.calls += firsts
        if not self.calls.calls:  # grouping alone: count something, so that there is a state
            self.calls.calls.append(AggregateCall("count", None, self.names.give("rows")))
        if self.mode == "append" and not self.is_watermarked:
            raise self._endless()
        rows = self.by_spark.added_to(self.rows.relation)
        spec = PartialAggregateSpec(tuple(self.keys), self.window, tuple(self.calls.calls))
        aggregated = made(self.node, lambda: aggregate(spec, rows, self.mode))
        here = watermark_ends(self.window, rows.event_time)
        if self.mode != "complete" and here != self.is_watermarked:
            raise self._judged_otherwise(here)
        return aggregated

    def _endless(self) -> UnsupportedPlan:
        """Append mode where no group ever ends."""
        reason = (
            "append mode needs a time window here, because a group without one never ends; add "
            "window() over the column of withWatermark"
        )
        if self.window is not None:
            reason = (
                f"append mode needs a watermark on the window's time {self.window.event_time}: "
                "withWatermark on that very column, which may be renamed but not computed with"
            )
        return UnsupportedPlan(
            f"{self.node.kind}: {reason}, or use outputMode update or complete. Structured "
            "Streaming asks for the same",
            node=self.node.kind,
        )

    def _judged_otherwise(self, here: bool) -> UnsupportedPlan:
        """Spark and this plan differ in whether a watermark ends the windows."""
        assert self.window is not None
        reason = (
            "Spark sees no watermark on it, though it is the column of one; call withWatermark "
            "after it was computed"
            if here
            else "Spark judges rows by a watermark that only a part of them has; call withWatermark"
            " on every side of a union, or after it"
        )
        return unsupported(
            self.node.kind,
            f"which rows are late for a window of {self.window.event_time}: {reason}",
        )

    def _window_as_shown(self, rows: SparkRows) -> SparkRows:
        """Give a window that was grouped by its last slide its whole length again."""
        window, span, expr_id = self.window, self.span, self.window_id
        if not isinstance(window, WindowSpec) or span is None or expr_id is None:
            return rows
        if span.size_us == window.size_us:
            return rows
        end = call("get_field", Column(window.output, window.type, False), name="end")
        whole = call("struct", shifted_time(end, -span.size_us), end, names=["start", "end"])
        columns = tuple(
            (name, whole if name == window.output else column)
            for name, column in column_refs(rows.relation.schema)
        )
        relation = made(self.node, lambda: step(ProjectSpec(columns), rows.relation))
        return replace(rows, relation=relation)

    def _with_conditions(self, rows: SparkRows) -> SparkRows:
        """What was asked of the window before it was there."""
        for condition in self.conditions:
            by_spark = SparkColumns(self.spark)
            read = rows.expressions(self.node.kind, self.session_zone, by_spark).read(condition)
            rows = filtered(self.node, rows.with_columns(by_spark), read)
        return rows

    def _with_results(self, rows: SparkRows, computed: Mapping[int, Expression]) -> SparkRows:
        """Exactly the columns of Spark's node, in its order and under its names."""
        names, columns, spans = Names(), dict[int, Expression](), dict[int, Span]()
        outputs: list[NamedExpression] = []
        for result in self.results:
            if result.expr_id in columns:
                continue
            value = computed.get(result.expr_id, rows.columns.get(result.expr_id))
            assert value is not None, "every result is a key, an aggregate or computed"
            name = names.give(str(result.read("name")))
            outputs.append((name, value))
            columns[result.expr_id] = Column(name, value.type, value.nullable)
            if self.span is not None and value == self._window_column:
                spans[result.expr_id] = self.span
        if not outputs:  # only that there are groups matters to whoever reads this
            return SparkRows(rows.relation, {})
        relation = made(self.node, lambda: selected(rows.relation, tuple(outputs)))
        return SparkRows(relation, columns, {}, spans)

    @property
    def _window_column(self) -> Column | None:
        return None if self.window is None else Column(self.window.output, self.window.type, False)


def _with_one_zero(key: Expression) -> Expression:
    """A key as a group shows it: -0.0 is 0.0. (The bytes of nested ones have only that.)"""
    if key.type.kind not in {"float", "double"}:
        return key
    return call("add", key, literal(0.0, key.type))
