"""The aggregates inside the expressions of an aggregation's result, each found and named once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.catalyst.expressions import ExpressionReader
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError
from penstock.expressions.tree import Column, Expression, Literal, call, cast, literal
from penstock.expressions.types import INT, decimal_type
from penstock.operators.aggregate_functions import AGGREGATES, SUM_DIGITS, AggregateFunction
from penstock.operators.specs import AggregateCall

Naming = Callable[[str], str]

_BY_CLASS: Mapping[str, AggregateFunction] = {row.catalyst: row for row in AGGREGATES.values()}


@dataclass
class CallCollector:
    """The aggregates of one aggregation, each computed once whoever asks for it."""

    inputs: ExpressionReader
    name: Naming
    calls: list[AggregateCall] = field(default_factory=list)

    def column(self, node: JvmNode) -> Expression:
        """The column of an aggregate inside a larger expression."""
        function = _function_of(node)
        return self.named(node, str(function.read("prettyName")))

    def named(self, node: JvmNode, name: str) -> Column:
        """The column of an aggregate, under this name if nobody asked for it before."""
        function, argument = self._read(node)
        for known in self.calls:
            if (known.function, known.argument) == (function, argument):
                return _column(known)
        try:
            added = AggregateCall(function, argument, self.name(name))
            _check_type(added, node)
        except ExpressionError as error:
            raise self.inputs.refuse(node, error.message) from error
        self.calls.append(added)
        return _column(added)

    def _read(self, node: JvmNode) -> tuple[str, Expression | None]:
        aggregate = _aggregate_expression(node)
        if aggregate.read("isDistinct"):
            raise self.inputs.refuse(aggregate, "distinct aggregates are not run here yet")
        if len(aggregate.children) > 1:
            raise self.inputs.refuse(aggregate, "aggregates with a FILTER are not run here yet")
        function = aggregate.children[0]
        row = _BY_CLASS.get(function.kind)
        if row is None:
            known = ", ".join(AGGREGATES)
            raise self.inputs.refuse(
                function, f"{function.kind} is not among the aggregates that are run here: {known}"
            )
        self._check_mode(function, row)
        if row.counts_rows:
            return row.name, self._counted(function)
        argument = function.children[0]
        if node.kind == "MakeDecimal":
            return row.name, self._summed_digits(node, argument.children[0])
        return row.name, self.inputs.read(argument)

    def _summed_digits(self, node: JvmNode, argument: JvmNode) -> Expression:
        """What was summed by its digits: Spark leaves out a cast to a longer decimal."""
        summed = self.inputs.read(argument)
        digits = int(node.read("precision")) - SUM_DIGITS
        if summed.type.scale != int(node.read("scale")) or digits < summed.type.precision:
            raise self.inputs.refuse(node, "this sum of decimals is not known")
        longer = decimal_type(digits, summed.type.scale)
        return summed if summed.type == longer else cast(summed, longer)

    def _check_mode(self, function: JvmNode, row: AggregateFunction) -> None:
        if row.ansi is None:
            return
        found = function.read(row.ansi)
        mode = found.evalMode() if row.ansi == "evalContext" else found
        if str(mode.toString()) != "ANSI":
            reason = "sums that become null on overflow (try_sum, try_avg) are not run here"
            raise self.inputs.refuse(function, reason)

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


def is_aggregate(node: JvmNode) -> bool:
    """Whether an expression is one aggregate and nothing more."""
    if node.kind == "MakeDecimal":
        return node.children[0].kind == "AggregateExpression"
    return node.kind == "AggregateExpression"


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
