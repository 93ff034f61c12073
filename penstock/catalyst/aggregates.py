"""The aggregates inside the expressions of an aggregation's result, each found and named once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.catalyst.expressions import ExpressionReader
from penstock.catalyst.interval_expressions import interval_of, micros_of, months_of
from penstock.catalyst.jvm import JvmNode, java_classes, scala_items, scala_option
from penstock.catalyst.literals import internal_value
from penstock.catalyst.refusals import EXPRESSION_REASONS
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.tree import Column, Expression, Literal, call, cast, literal
from penstock.expressions.types import BIGINT, INT, DataType, decimal_type
from penstock.operators.aggregate_functions import AGGREGATES, AggregateFunction
from penstock.operators.registers import options_of, precision_of
from penstock.operators.specs import AggregateCall
from penstock.operators.totals import SUM_DIGITS

Naming = Callable[[str], str]

# Aggregates of intervals are those of what these count, other than of which one it is.
_COUNTING = ("Sum", "Average", "Percentile", "PercentileDisc", "ApproximatePercentile")
_LISTS = ("CollectList", "CollectSet")
_PASSING = ("first", "last", "collect_list")  # over nulls
_PIVOT = "PivotFirst"

_BY_CLASS: Mapping[tuple[str, bool], AggregateFunction] = {
    (row.catalyst, row.fails): row for row in AGGREGATES.values()
}


@dataclass(frozen=True)
class SeveralDistinct:
    """What Spark's optimizer has made of distinct values of several columns, read backwards.

    Rows are expanded, once for each set of columns and once for what is not distinct, with a number
    (`gid`). An inner aggregation by all of them leaves distinct values, an outer one aggregates
    them where the number says so. `regular` has the inner aggregates of what is not distinct,
    `filters` what the conditions of FILTER are, by attribute of the inner aggregation; `decimals`
    by attribute of the expansion what it has the digits of.
    """

    number: int  # the attribute of gid
    regular: Mapping[int, JvmNode]
    filters: Mapping[int, JvmNode]
    decimals: Mapping[int, JvmNode]

    @staticmethod
    def found(node: JvmNode) -> tuple[SeveralDistinct, JvmNode] | None:
        """The Expand under two aggregations that were one, and how to read these; else None."""
        inner = node.children[0]
        if inner.kind != "Aggregate" or inner.children[0].kind != "Expand":
            return None
        expand = inner.children[0]
        keys = [each.expr_id for each in inner.nodes("groupingExpressions") if _is_attribute(each)]
        outer = {each.expr_id for each in node.nodes("groupingExpressions") if _is_attribute(each)}
        numbers = [
            each.expr_id
            for each in expand.output
            if str(each.read("name")) == "gid" and each.expr_id in keys
        ]
        if len(numbers) != 1 or numbers[0] in outer:
            return None
        regular: dict[int, JvmNode] = {}
        filters: dict[int, JvmNode] = {}
        for result in inner.nodes("aggregateExpressions"):
            if result.kind != "Alias":
                continue
            value = result.children[0]
            regular[result.expr_id] = value
            if value.kind == "AggregateExpression" and value.children[0].kind == "Max":
                filters[result.expr_id] = value.children[0].children[0]
        return SeveralDistinct(numbers[0], regular, filters, _decimals(expand)), expand

    def conditions(self, condition: JvmNode) -> list[JvmNode]:
        """What a FILTER asks for beside the number."""
        if condition.kind == "And":
            return [each for child in condition.children for each in self.conditions(child)]
        if condition.kind == "EqualTo" and condition.children[0].expr_id == self.number:
            return []
        return [self.filters[condition.expr_id]]


def _decimals(expand: JvmNode) -> dict[int, JvmNode]:
    """What Spark's optimizer adds up by digits, by the attribute of these."""
    projections = [scala_items(each) for each in scala_items(expand.read("projections"))]
    found = {}
    for attribute, *items in zip(expand.output, *projections, strict=True):
        digits = [item for item in map(JvmNode, items) if item.kind == "UnscaledValue"]
        if digits:
            found[attribute.expr_id] = digits[0].children[0]
    return found


def _is_attribute(node: JvmNode) -> bool:
    return node.kind == "AttributeReference"


@dataclass
class CallCollector:
    """The aggregates of one aggregation, each computed once whoever asks for it."""

    inputs: ExpressionReader
    name: Naming
    calls: list[AggregateCall] = field(default_factory=list)
    rewritten: SeveralDistinct | None = None

    def is_one(self, node: JvmNode) -> bool:
        """Whether an expression is one aggregate and nothing more, as the user wrote it."""
        if self.rewritten is None or node.kind != "AggregateExpression":
            return is_aggregate(node)
        arguments = node.children[0].children
        if not arguments or not _is_attribute(arguments[0]):
            return is_aggregate(node)
        return is_aggregate(self.rewritten.regular.get(arguments[0].expr_id, node))

    def column(self, node: JvmNode, of: str | None = None) -> Expression:
        """The column of an aggregate inside a larger expression, that of the column `of`."""
        function = _function_of(node)
        name = str(function.read("prettyName"))
        with self._read_for(of):
            if self.is_one(node):
                return self._named(node, name)
            return self._pivoted(function) if function.kind == _PIVOT else self._total(node, name)

    def _total(self, node: JvmNode, name: str) -> Expression:
        """A sum, average or percentile of intervals, or an aggregate of nothing but nulls."""
        try:
            data_type = spark_type(node.read("dataType"))
            function = _function_of(node)
            if _is_of_nulls(function):
                return literal(_OF_NULLS.get(function.kind), data_type)
            asked = self._read(node)
            total = asked.function.replace("avg", "sum")
            found: Expression = self._given(replace(asked, function=total), name)
            if total != asked.function:
                count = self._given(replace(asked, function="count"), name)
                found = call("divide_micros", found, count)
            if data_type.is_months:
                return call("interval_of_months", _as(found, INT), to=str(data_type))
            return interval_of(_as(found, BIGINT), data_type)
        except ExpressionError as error:
            raise self.inputs.refuse(node, error.message) from error

    def _pivoted(self, function: JvmNode) -> Expression:
        """An array with the value of each constant of a column: its last that is not null."""
        pivot, value = (self.inputs.read(child) for child in function.children)
        found = []
        for constant in scala_items(function.read("pivotColumnValues")):
            known = literal(internal_value(constant, pivot.type), pivot.type)
            of_constant = _if(call("eq_null_safe", pivot, known), value)
            asked = AggregateCall("last", of_constant, "", ignores_nulls=True)
            found.append(self._given(asked, "pivot"))
        return call("array", *found)

    def named(self, node: JvmNode, name: str) -> Column:
        """The column of an aggregate, under this name if nobody asked for it before."""
        with self._read_for(name):
            return self._named(node, name)

    @contextmanager
    def _read_for(self, column: str | None) -> Iterator[None]:
        """What is refused meanwhile is refused for this output column."""
        inputs, self.inputs = self.inputs, replace(self.inputs, column=column)
        try:
            yield
        finally:
            self.inputs = inputs

    def _named(self, node: JvmNode, name: str) -> Column:
        try:
            asked = self._read(node)
            _check_type(asked, node)
            return self._given(asked, name)
        except ExpressionError as error:
            raise self.inputs.refuse(node, error.message) from error

    def _given(self, asked: AggregateCall, name: str) -> Column:
        for known in self.calls:
            if replace(asked, name=known.name) == known:
                return _column(known)
        self.calls.append(replace(asked, name=self.name(name)))
        return _column(self.calls[-1])

    def _read(self, node: JvmNode) -> AggregateCall:
        """The aggregate, without a name yet."""
        aggregate = _aggregate_expression(node)
        point = node if node.kind == "MakeDecimal" else None
        function, *conditions = aggregate.children
        if self.rewritten is None:
            return self._call(function, conditions, bool(aggregate.read("isDistinct")), point)
        if function.children and function.children[0].kind == "AttributeReference":
            inner = self.rewritten.regular.get(function.children[0].expr_id)
            if inner is not None:
                function, *conditions = inner.children
                return self._call(function, conditions, False, point)
        return self._call(function, self.rewritten.conditions(conditions[0]), True, point)

    def _call(
        self,
        function: JvmNode,
        conditions: Sequence[JvmNode],
        is_distinct: bool,
        point: JvmNode | None,
    ) -> AggregateCall:
        """The aggregate of a function; `point` puts the point back into a sum of digits."""
        row = self._row(function)
        if is_distinct and row.counts_rows:
            asked = self._distinct_count(function)
        else:
            argument, second = self._arguments(function, row, point)
            options = _OPTIONS[row.name](function) if row.name in _OPTIONS else ()
            ignores = row.name in _PASSING and bool(function.read("ignoreNulls"))
            name = row.name
            if name in ("min", "max") and argument is not None and argument.type.is_collated:
                name, second = f"{name}_by", self.inputs.read_key(function.children[0])
            asked = AggregateCall(name, argument, "", second, ignores, is_distinct, options=options)
        return asked if not conditions else self._where(self.inputs.read(conditions[0]), asked)

    def _distinct_count(self, function: JvmNode) -> AggregateCall:
        first, *more = (self.inputs.read_key(child) for child in function.children)
        return AggregateCall("count", first, "", is_distinct=True, more=tuple(more))

    def _arguments(
        self, function: JvmNode, row: AggregateFunction, point: JvmNode | None
    ) -> tuple[Expression | None, Expression | None]:
        if row.counts_rows:
            return self._counted(function), None
        first, *rest = function.children
        if point is not None:
            known = {} if self.rewritten is None else self.rewritten.decimals
            is_known = _is_attribute(first) and first.expr_id in known
            summed = known[first.expr_id] if is_known else first.children[0]
            return self._summed_digits(point, summed), None
        second = self.inputs.read_key(rest[0]) if row.second in ("order", "pair") else None
        is_told_apart = row.collects == "registers"
        argument = self.inputs.read_key(first) if is_told_apart else self.inputs.read(first)
        if row.catalyst == "ListAgg":
            by = [self.inputs.read(item.children[0]) for item in _own_order(function)]
            names = [f"v{at}" for at in range(len(by) + 1)]
            return (call("struct", argument, *by, names=names) if by else argument), None
        if not row.fails and row.catalyst in _LISTS:
            return call("struct", argument, names=["v"]), None
        if row.catalyst in _COUNTING and argument.type.is_interval:
            argument = micros_of(argument)
        elif row.catalyst in _COUNTING and argument.type.is_months:
            argument = months_of(argument)
        return argument, second

    def _where(self, condition: Expression, asked: AggregateCall) -> AggregateCall:
        """An aggregate of the rows that a FILTER lets through: of the others it gets nulls."""
        if asked.row.name in ("first", "last"):
            counted = _if(condition, literal(1, INT))
            return self._guarded(condition, replace(asked, second=counted))
        if asked.row.second == "order":
            assert asked.second is not None
            asked = replace(asked, second=_if(condition, asked.second))
        return self._guarded(condition, asked)

    @staticmethod
    def _guarded(condition: Expression, asked: AggregateCall) -> AggregateCall:
        counted = literal(1, INT) if asked.argument is None else asked.argument
        return replace(asked, argument=_if(condition, counted))

    def _summed_digits(self, node: JvmNode, argument: JvmNode) -> Expression:
        """What was summed by its digits: Spark leaves out a cast to a longer decimal."""
        summed = self.inputs.read(argument)
        digits = int(node.read("precision")) - SUM_DIGITS
        if summed.type.scale != int(node.read("scale")) or digits < summed.type.precision:
            raise self.inputs.refuse(node, "this sum of decimals is not known")
        longer = decimal_type(digits, summed.type.scale)
        return summed if summed.type == longer else cast(summed, longer)

    def _row(self, function: JvmNode) -> AggregateFunction:
        """The aggregate of the table, by Spark's class and by what it does on overflow."""
        row = _BY_CLASS.get((function.kind, True))
        if row is None:
            known = ", ".join(AGGREGATES)
            reason = EXPRESSION_REASONS.get(str(function.handle.getClass().getSimpleName()))
            raise self.inputs.refuse(
                function,
                reason or f"{function.kind} is not among the aggregates that are run here: {known}",
            )
        if row.ansi is None:
            return row
        found = function.read(row.ansi)
        if isinstance(found, bool):
            return _BY_CLASS[function.kind, found]
        mode = str((found.evalMode() if row.ansi == "evalContext" else found).toString())
        if mode not in _FAILS:
            reason = "sums that wrap around on overflow are not run: set spark.sql.ansi.enabled"
            raise self.inputs.refuse(function, reason)
        return _BY_CLASS[function.kind, _FAILS[mode]]

    def _counted(self, function: JvmNode) -> Expression | None:
        """What is counted: rows, or rows in which none of the arguments is null."""
        arguments = [self.inputs.read(child) for child in function.children]
        varying = [arg for arg in arguments if not isinstance(arg, Literal) or arg.value is None]
        if not varying:
            return None
        if len(varying) == 1:
            return varying[0]
        present = [call("is_not_null", arg) for arg in varying]
        condition: Expression = present[0]
        for other in present[1:]:
            condition = call("and", condition, other)
        return call("if", condition, literal(1, INT), literal(None, INT))


def _if(condition: Expression, value: Expression) -> Expression:
    return call("if", condition, value, literal(None, value.type))


def _own_order(function: JvmNode) -> list[JvmNode]:
    """What texts are ordered by, if not by themselves alone."""
    order = list(function.nodes("orderExpressions"))
    is_own = len(order) == 1 and order[0].children[0].handle.semanticEquals(
        function.children[0].handle
    )
    return [] if is_own else order


def _between_texts(function: JvmNode) -> tuple[Any, ...]:
    """The text between texts, and of each that they are ordered by how."""
    between = function.children[1].handle.eval(None)
    turns: list[bool] = []
    for item in function.nodes("orderExpressions"):
        turns.append(str(item.read("direction").toString()) == "Descending")
        turns.append(str(item.read("nullOrdering").toString()) == "NullsFirst")
    return "" if between is None else str(between.toString()), *turns


def _fractions(function: JvmNode, other: str) -> tuple[Any, ...]:
    """Whether there is a list of fractions, its accuracy or if they go backwards, and these."""
    found = function.node("percentageExpression").handle.eval(None)
    is_list = hasattr(found, "toDoubleArray")
    fractions = [float(each) for each in (found.toDoubleArray() if is_list else [found])]
    number = function.node(other).handle
    if other == "accuracyExpression":
        return is_list, int(number.eval(None)), *fractions
    if not number.foldable() or int(number.eval(None)) != 1:
        raise ExpressionError("a percentile of values with frequencies is not run here")
    if function.kind == "PercentileDisc" and bool(function.read("legacyCalculation")):
        raise ExpressionError("set spark.sql.legacy.percentileDiscCalculation to false")
    return is_list, bool(function.read("reverse")), *fractions


def _registers(function: JvmNode) -> tuple[Any, ...]:
    """How many bits name a register, and Spark's tables for it."""
    tables = java_classes().org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper
    return options_of(
        precision_of(float(function.read("relativeSD"))),
        tables.THRESHOLDS(),
        tables.RAW_ESTIMATE_DATA(),
        tables.BIAS_DATA(),
    )


def _tie(function: JvmNode) -> tuple[Any, ...]:
    """Which of the values that are most often is asked for."""
    is_least = scala_option(function.read("reverseOpt"))
    return () if is_least is None else ("least" if is_least else "greatest",)


# What aggregates give of nulls alone, if that is no null.
_OF_NULLS: Mapping[str, Any] = {
    "Count": 0, "HyperLogLogPlusPlus": 0, "CollectList": (), "CollectSet": ()
}  # fmt: skip
_FAILS = {"ANSI": True, "TRY": False}  # by Spark's mode: whether a result without room does

# What functions of items are told beside their argument.
_OPTIONS: Mapping[str, Callable[[JvmNode], tuple[Any, ...]]] = {
    "listagg": _between_texts,
    "percentile": lambda function: _fractions(function, "frequencyExpression"),
    "percentile_disc": lambda function: _fractions(function, "frequencyExpression"),
    "percentile_approx": lambda function: _fractions(function, "accuracyExpression"),
    "mode": _tie,
    "approx_count_distinct": _registers,
}


def is_aggregate(node: JvmNode) -> bool:
    """Whether an expression is one aggregate and nothing more."""
    if node.kind == "MakeDecimal":
        return node.children[0].kind == "AggregateExpression"
    if node.kind != "AggregateExpression" or node.children[0].kind == _PIVOT:
        return False
    return not _counts_intervals(node) and not _is_of_nulls(_function_of(node))


def _is_of_nulls(function: JvmNode) -> bool:
    """Whether it is of values that are never there."""
    return any(str(each.read("dataType").typeName()) == "void" for each in function.children[:1])


def _counts_intervals(node: JvmNode) -> bool:
    """Whether it is of intervals, and computed of their microseconds or months."""
    return _function_of(node).kind in _COUNTING and "interval" in str(
        node.read("dataType").typeName()
    )


def _as(found: Expression, data_type: DataType) -> Expression:
    return found if found.type == data_type else cast(found, data_type)


def _aggregate_expression(node: JvmNode) -> JvmNode:
    return node.children[0] if node.kind == "MakeDecimal" else node


def _function_of(node: JvmNode) -> JvmNode:
    return _aggregate_expression(node).children[0]


def _column(known: AggregateCall) -> Column:
    return Column(known.name, known.type, known.nullable)


def _check_type(made: AggregateCall, node: JvmNode) -> None:
    expected = spark_type(node.read("dataType"))
    if made.type != expected:
        raise ExpressionError(f"it has type {expected} in Spark and {made.type} here")
