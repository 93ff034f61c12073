"""What neither a compiled loop nor Arrow can compute is computed by Spark: under which name.

A column, condition, key or argument that holds anything unknown goes to Spark as a whole. So what
is computed only on a condition stays behind it, and errors are those that Spark raises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.catalyst.jvm import TEXT_CHARACTERS_MAX, JvmNode, new_attribute
from penstock.catalyst.place import AggregateCalls
from penstock.catalyst.refusals import draws_lots, reason_for
from penstock.catalyst.spark_types import spark_type
from penstock.errors import ExpressionError, UnsupportedPlan
from penstock.expressions.tree import Column, Expression
from penstock.expressions.types import Field
from penstock.operators.specs import NamedExpression, ProjectSpec, SparkColumn, SparkSpec, column_of
from penstock.plan.nodes import Relation, column_refs, step

PREFIX = "__spark_"  # of columns; the digest follows, and so is a part of what a state means
_DIGEST_CHARACTERS = 16
# Classes and traits of Catalyst whose kinds are no function of one row, by their simple names.
_NO_FUNCTIONS: Mapping[str, str] = {
    "Nondeterministic": "it gives another value each time it is computed",
    "AggregateFunction": "it is an aggregate",
    "WindowFunction": "it is a function over a window",
    "Generator": "it makes rows",
    "PlanExpression": "it is a subquery",
    "PythonFuncExpression": "it is a Python function",
    "Unevaluable": "it stands for something that Spark replaces before it runs a query",
}
_ATTRIBUTE = "AttributeReference"
# What a text of Catalyst's holds that another planning of the same query would have otherwise:
# numbers of attributes and variables, the identity of a JVM, the addresses of objects.
_CHANGING = re.compile(r'#\d+L?|"exprId":\{[^{}]*\}|@[0-9a-f]{4,16}\b')
_NUMBERED = re.compile(r"\b([xyz])_\d+\b")  # variables of lambda functions written in Python


def not_by_spark(kind: str, ancestors: Set[str]) -> str | None:
    """Why a class of expressions cannot be computed by Spark of one row; None: it can.

    `ancestors` are the simple names of all classes and traits that it extends.
    """
    if kind == _ATTRIBUTE:
        return None
    return next((why for name, why in _NO_FUNCTIONS.items() if name in ancestors), None)


def culprit_of(node: JvmNode) -> JvmNode | None:
    """The part of an expression for which Spark cannot compute it of one row, each time alike."""
    for part in node.walk():
        if not_by_spark(part.kind, part.ancestors) is not None or draws_lots(part):
            return part
    if node.read("deterministic"):
        return None
    return next(part for part in node.walk() if _is_source_of_chance(part))


def _is_source_of_chance(node: JvmNode) -> bool:
    return not node.read("deterministic") and all(c.read("deterministic") for c in node.children)


@dataclass(frozen=True)
class SparkExpression:
    """A Catalyst expression, and the attributes that it is given, in order."""

    node: JvmNode
    attributes: tuple[Any, ...]  # handles


SparkExpressions = dict[str, SparkExpression]  # by digest


@dataclass
class SparkColumns:
    """The columns of one relation that Spark computes; `known` collects those of the query."""

    known: SparkExpressions
    columns: list[SparkColumn] = field(default_factory=list)
    inputs: list[NamedExpression] = field(default_factory=list)  # that are no columns themselves

    def column(
        self,
        node: JvmNode,
        reach: Mapping[int, Expression],
        aggregates: AggregateCalls | None,
        refusal: UnsupportedPlan,
        refuse: Callable[[JvmNode, str], UnsupportedPlan],
    ) -> Column:
        """The column of an expression that was refused; the refusal stands if Spark cannot."""
        prepared, given = _without_aggregates(node, aggregates, refusal.details.get("column"))
        if (culprit := culprit_of(prepared)) is not None:
            raise refuse(culprit, reason_for(culprit)) from refusal
        try:
            data_type = spark_type(node.read("dataType"))
        except ExpressionError as error:
            raise refuse(node, error.message) from refusal
        attributes = {part.expr_id: part for part in prepared.walk() if part.kind == _ATTRIBUTE}
        found = [given.get(expr_id, reach.get(expr_id)) for expr_id in attributes]
        inputs = tuple(self._input(value) for value in found if value is not None)
        if len(inputs) < len(found):
            raise refusal
        digest = _digest(prepared, tuple(attributes), inputs)
        result = Field(f"{PREFIX}{digest}", data_type, bool(node.read("nullable")))
        column = SparkColumn(result, inputs, _shown(node), digest)
        if column not in self.columns:
            self.columns.append(column)
        handles = tuple(part.handle for part in attributes.values())
        self.known[digest] = SparkExpression(prepared, handles)
        return column_of(result)

    def added_to(self, relation: Relation) -> Relation:
        """The relation with these columns, where there are any."""
        if not self.columns:
            return relation
        if self.inputs:
            made = (*column_refs(relation.schema), *self.inputs)
            relation = step(ProjectSpec(made), relation)
        there = {known.name for known in relation.schema}
        missing = tuple(each for each in self.columns if each.result.name not in there)
        return step(SparkSpec(missing), relation) if missing else relation

    def _input(self, value: Expression) -> Column:
        """What Spark is given: a column, or one that is made for it."""
        if isinstance(value, Column):
            return value
        for name, made in self.inputs:
            if made == value:
                return Column(name, value.type, value.nullable)
        digest = hashlib.sha256(str(value).encode()).hexdigest()[:_DIGEST_CHARACTERS]
        self.inputs.append((f"{PREFIX}of_{digest}", value))
        return self._input(value)


def _without_aggregates(
    node: JvmNode, aggregates: AggregateCalls | None, column: str | None
) -> tuple[JvmNode, dict[int, Expression]]:
    """An expression over groups with new attributes in the place of its aggregates."""
    if aggregates is None:
        return node, {}
    given: dict[int, Expression] = {}

    def replaced(part: JvmNode) -> JvmNode:
        if _is_aggregate(part):
            attribute = new_attribute(part)
            given[attribute.expr_id] = aggregates.column(part, column)
            return attribute
        below = [replaced(child) for child in part.children]
        if all(new is old for new, old in zip(below, part.children, strict=True)):
            return part
        return part.with_children(below)

    return replaced(node), given


def _is_aggregate(node: JvmNode) -> bool:
    if node.kind == "MakeDecimal":
        return node.children[0].kind == "AggregateExpression"
    return node.kind == "AggregateExpression"


def _shown(node: JvmNode) -> str:
    """For people, the same however often it is planned; SQL has no names for variables."""
    if "lambda" not in node.text:
        return node.text
    return _stable(str(node.handle.toString()))[:TEXT_CHARACTERS_MAX]


def _digest(node: JvmNode, attributes: Sequence[int], inputs: Sequence[Expression]) -> str:
    """Of all that the expression's result depends on: its text, its tree with every option, its
    constants, and which columns it is given; the same however often the same query is planned."""
    places = {expr_id: place for place, expr_id in enumerate(attributes)}
    parts = list(node.walk())
    facts = [*map(_stable, _texts(node))]
    facts += [_constant(part) for part in parts if part.kind == "Literal"]
    facts += [str(places[part.expr_id]) for part in parts if part.kind == _ATTRIBUTE]
    facts += [f"{column} {column.type}" for column in inputs]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _constant(node: JvmNode) -> str:
    text = str(node.handle.toString())
    return _stable(text) if node.read("dataType").typeName() == "object" else text


def _texts(node: JvmNode) -> Iterator[str]:
    yield str(node.handle.toString())
    yield str(node.read("dataType").json())
    try:
        yield str(node.handle.toJSON())
    except (Py4JError, PySparkException):
        return  # an option that has no JSON; the text tells it


def _stable(text: str) -> str:
    return _NUMBERED.sub(r"\1", _CHANGING.sub("", text))
