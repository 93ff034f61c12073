"""A Window node: functions over the rows of a partition, which event time must end or order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.catalyst.aggregates import CallCollector, is_aggregate
from penstock.catalyst.interval_expressions import UTC_ZONES
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.literals import read_literal
from penstock.catalyst.nested_expressions import member_of
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.rows import Names, SparkRows, is_watermarked, made, named
from penstock.catalyst.spark_types import spark_type
from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Column, Expression, Literal, call
from penstock.expressions.types import INTERVAL_FIELDS_US
from penstock.operators.specs import (
    RANKS,
    WHOLE,
    Frame,
    NamedExpression,
    Order,
    OverCall,
    OverSpec,
    ProjectSpec,
)
from penstock.plan.event_time import carries_time
from penstock.plan.nodes import column_refs, step

_RANKS: Mapping[str, str] = {
    "RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank", "NTile": "ntile",
    "PercentRank": "percent_rank", "CumeDist": "cume_dist",
}  # fmt: skip
_MOVED: Mapping[str, str] = {"Lag": "lag", "Lead": "lead"}
_OF_FRAME: Mapping[str, str] = {"First": "first", "Last": "last"}
OVER_KINDS = frozenset({*_RANKS, *_MOVED, "NthValue"})
INSTANT_US = 1  # rows of one time are all there when the watermark is behind it


class OverReader:
    """Partition, order and functions of one node, over columns that its rows have or get."""

    def __init__(self, node: JvmNode, rows: SparkRows, session_zone: str) -> None:
        self.node, self.rows = node, rows
        self.inputs = rows.expressions(node.kind, session_zone)
        self.names = Names(rows.names)
        self.added: list[NamedExpression] = []
        self.calls: list[OverCall] = []
        self.partition: list[Column] = []
        self.structs: dict[int, Expression] = {}  # windows, of columns that the rows have now
        self.time: Column | None = None
        self.after_us = 0

    def finish(self, limit: JvmNode | None) -> SparkRows:
        """The rows with what their functions give; `limit` is what Spark says of the best ones."""
        for expression in self.node.nodes("partitionSpec"):
            self._partition_by(expression)
        order = tuple(self._order(item) for item in self.node.nodes("orderSpec"))
        is_running = self.time is None
        if is_running:
            self._order_by_time(order)
        given = {
            result.expr_id: self._result(*named(result))
            for result in self.node.nodes("windowExpressions")
        }
        calls = tuple(self.calls)
        best = None if limit is None or is_running else self._best(limit, calls)
        assert self.time is not None
        parts = (tuple(self.partition), order, calls, self.time, self.after_us, is_running, best)
        below = self.rows.relation
        if self.added:
            columns = (*column_refs(below.schema), *self.added)
            below = made(self.node, lambda: step(ProjectSpec(columns), below))
        relation = made(self.node, lambda: step(OverSpec(*parts), below))
        columns_now = {**self.rows.columns, **self.structs, **given}
        windows = {at: each for at, each in self.rows.windows.items() if at not in self.structs}
        return replace(self.rows, relation=relation, columns=columns_now, windows=windows)

    def _column(self, expression: Expression, name: str) -> Column:
        """A column of the rows with this value, added if there is none."""
        if isinstance(expression, Column):
            return expression
        for known, value in self.added:
            if value == expression:
                return Column(known, value.type, value.nullable)
        given = self.names.give(name)
        self.added.append((given, expression))
        return Column(given, expression.type, expression.nullable)

    def _partition_by(self, expression: JvmNode) -> None:
        name = str(expression.read("name")) if expression.kind == "AttributeReference" else "key"
        found = self.inputs.read(expression, name)
        event_time = self.rows.relation.event_time
        if found.type.kind != "struct":
            column = self._column(found, name)
            if column.name in event_time and column.type.kind in ("timestamp", "timestamp_ntz"):
                self.time, self.after_us = column, INSTANT_US
            self.partition.append(column)
            return
        fields = [field.name for field in found.type.fields]
        if fields != ["start", "end"]:
            raise unsupported(
                self.node.kind, "rows are partitioned by a struct", expression=expression
            )
        parts = [member_of(found, field) for field in fields]
        start, end = (
            self._column(part, f"{name}_{field}") for part, field in zip(parts, fields, strict=True)
        )
        self.partition += [start, end]
        self.structs[expression.expr_id] = call("struct", start, end, names=fields)
        is_timed = end.name in event_time or self._is_timed(expression, found)
        if is_watermarked(expression) and is_timed:
            self.time, self.after_us = end, 0

    def _is_timed(self, expression: JvmNode, found: Expression) -> bool:
        """Whether event time ends the windows of a column."""
        event_time = self.rows.relation.event_time
        window = self.rows.windows.get(expression.expr_id)
        return carries_time(found if window is None else window.time, event_time)

    def _order(self, item: JvmNode) -> Order:
        (child,) = item.children[:1]
        column = self._column(self.inputs.read(child), "order")
        return ordered(item, column)

    def _order_by_time(self, order: tuple[Order, ...]) -> None:
        first = order[0].column if order else None
        if first is None or first.name not in self.rows.relation.event_time:
            raise UnsupportedPlan(
                f"{self.node.kind}: rows are ranked once no more of their partition can come: "
                "partition by a window() over the column of withWatermark, or order by that column "
                "first, and use append mode. Structured Streaming runs neither",
                node=self.node.kind,
            )
        self.time, self.after_us = first, INSTANT_US

    def _result(self, name: str, value: JvmNode) -> Expression:
        """A window function, or what Spark's optimizer has made of some."""
        if value.kind == "WindowExpression":
            return self._given(value, name)
        return replace(self.inputs, aggregates=self).read(value, name)

    def column(self, node: JvmNode, of: str | None = None) -> Expression:
        """What a window function gives, inside a larger expression."""
        return self._given(node, of or "value")

    def _given(self, node: JvmNode, name: str) -> Expression:
        window = node.children[0] if node.kind == "MakeDecimal" else node
        function, definition = window.children
        frame = self._frame(definition)
        if function.kind == "AggregateExpression":
            inner = function.children[0]
            if inner.kind not in _OF_FRAME or len(function.children) != 1:
                asked = function if window is node else node.with_children([function])
                return made(self.node, lambda: self._aggregate(asked, name, frame), function)
        given = self.names.give(name)
        found = made(self.node, lambda: self._made(function, given, frame), function)
        self.calls.append(found)
        return Column(given, found.field.type, found.field.nullable)

    def _aggregate(self, node: JvmNode, name: str, frame: Frame) -> Expression:
        collector = CallCollector(self.inputs, self.names.give)
        found = collector.named(node, name) if is_aggregate(node) else collector.column(node)
        for each in collector.calls:
            asked = OverCall(
                each.function, each.name, each.argument, frame,
                ignores_nulls=each.ignores_nulls, second=each.second, options=each.options,
            )  # fmt: skip
            if asked.aggregate != each:
                raise unsupported(
                    self.node.kind, f"{each.function} is not run over partitions", expression=node
                )
            self.calls.append(asked)
        return found

    def _made(self, function: JvmNode, name: str, frame: Frame) -> OverCall:
        if function.kind in _RANKS:
            number = 1
            if function.kind == "NTile":
                number = self._number(function.children[0])
            return OverCall(_RANKS[function.kind], name, number=number)
        if function.kind in _MOVED or function.kind == "NthValue":
            column = self._column(self.inputs.read(function.children[0]), "value")
            number = self._number(function.children[1])
            ignores = bool(function.read("ignoreNulls"))
            if function.kind == "NthValue":
                return OverCall("nth", name, column, frame, number, ignores_nulls=ignores)
            default = self._default(function.children[2], column)
            return OverCall(_MOVED[function.kind], name, column, WHOLE, number, default, ignores)
        if function.kind != "AggregateExpression":
            raise unsupported(
                self.node.kind, f"{function.kind} is not run over partitions", expression=function
            )
        inner = function.children[0]
        column = self._column(self.inputs.read(inner.children[0]), "value")
        ignores = bool(inner.read("ignoreNulls"))
        return OverCall(_OF_FRAME[inner.kind], name, column, frame, ignores_nulls=ignores)

    def _frame(self, definition: JvmNode) -> Frame:
        node = definition.node("frameSpecification")
        rows = str(node.read("frameType").toString()) == "RowFrame"
        low, high = (self._bound(node.node(end), rows) for end in ("lower", "upper"))
        return Frame(rows, low, high)

    def _bound(self, node: JvmNode, rows: bool) -> int | None:
        kind = node.kind.rstrip("$")
        if kind in ("UnboundedPreceding", "UnboundedFollowing"):
            return None
        if kind == "CurrentRow":
            return 0
        value = node.read("value") if node.kind == "Literal" else None
        if not isinstance(value, int) or not (rows or self._is_distance(node, value)):
            raise unsupported(
                self.node.kind,
                "frames count rows, or go by whole numbers, days or intervals of time",
                expression=node,
            )
        return value

    def _is_distance(self, node: JvmNode, value: int) -> bool:
        """Whether values are as far away as their numbers: a day may be longer than another."""
        if not spark_type(node.read("dataType")).is_interval:
            return True
        zone = self.inputs.session_zone
        return zone in UTC_ZONES or abs(value) < INTERVAL_FIELDS_US["day"]

    def _number(self, node: JvmNode) -> int:
        sign = 1
        if node.kind == "UnaryMinus":
            (node,), sign = node.children, -1
        value = read_literal(node) if node.kind == "Literal" else None
        if not isinstance(value, Literal) or not isinstance(value.value, int):
            raise unsupported(self.node.kind, "a constant number is needed", expression=node)
        return sign * value.value

    def _default(self, node: JvmNode, column: Column) -> Literal | None:
        if node.kind == "Literal" and node.read("value") is None:
            return None  # of any type, or of none
        found = self.inputs.read(node)
        if not isinstance(found, Literal) or found.type != column.type:
            raise unsupported(self.node.kind, "the default is a constant here", expression=node)
        return found

    def _best(self, limit: JvmNode, calls: tuple[OverCall, ...]) -> tuple[str, int] | None:
        function = _RANKS.get(limit.node("rankLikeFunction").kind)
        for each in calls:
            if each.function == function and function in RANKS:
                return each.name, int(limit.read("limit"))
        return None


def ordered(item: JvmNode, column: Column) -> Order:
    """A SortOrder by a column that has its value."""
    descending = str(item.read("direction").toString()) == "Descending"
    return Order(column, descending, str(item.read("nullOrdering").toString()) == "NullsFirst")
