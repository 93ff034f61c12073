"""Rows on their way through the plan: a relation, and which column holds which attribute."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard, TypeVar

from penstock.catalyst.by_spark import SparkColumns
from penstock.catalyst.expressions import ExpressionReader
from penstock.catalyst.jvm import JvmNode
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.windows import PendingWindow, Span
from penstock.errors import ExpressionError, PlanError, UnsupportedPlan
from penstock.expressions.tree import Call, Expression
from penstock.operators.specs import FilterSpec, NamedExpression, ProjectSpec
from penstock.plan.nodes import Relation, column_refs, step

_SLIDING = "a window that overlaps others has a value only once an aggregate has grouped by it"

_NUMBERED = re.compile(r"^(_common_expr)_\d+$")  # Spark counts them through its whole life

_WATERMARK_MARK = "spark.watermarkDelayMs"
_SESSION_MARK = "spark.sessionWindow"

T = TypeVar("T")


@dataclass(frozen=True)
class SparkRows:
    """A relation, and where the attributes of Spark's node are in it, by exprId.

    `windows` are asked for and not grouped by yet; `spans` are columns that hold windows which an
    aggregate has made. A relation may carry more columns than Spark's node.
    """

    relation: Relation
    columns: Mapping[int, Expression]
    windows: Mapping[int, PendingWindow] = field(default_factory=dict)
    spans: Mapping[int, Span] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {column.name for column in self.relation.schema}

    @property
    def overlapping(self) -> set[int]:
        """The windows that have no value yet."""
        return {expr_id for expr_id in self.windows if expr_id not in self.columns}

    def expressions(
        self, label: str, session_zone: str, by_spark: SparkColumns | None = None
    ) -> ExpressionReader:
        """A reader of expressions over these rows; `label` names the plan node in errors.

        What it finds `by_spark` must be added to the rows before its expressions are used.
        """
        hidden = dict.fromkeys(self.overlapping, _SLIDING)
        return ExpressionReader(label, self.columns, session_zone, hidden, by_spark=by_spark)

    def with_columns(self, by_spark: SparkColumns) -> SparkRows:
        """These rows, with what Spark computes of them."""
        return replace(self, relation=by_spark.added_to(self.relation))


class Names:
    """Gives out names for the columns of one relation, each once.

    The names are a function of the query alone: a restarted driver has to find the same program,
    and Spark's own numbers go on counting for as long as its JVM lives.
    """

    def __init__(self, taken: set[str] | None = None) -> None:
        self.taken = set() if taken is None else set(taken)

    def give(self, name: str) -> str:
        """The name itself if it is free; names with two underscores are the engine's own."""
        wanted = _NUMBERED.sub(r"\1", name)
        if not wanted or wanted.startswith("__"):
            wanted = f"{wanted.lstrip('_')}#"
        free, number = wanted, 2
        while free in self.taken:
            free, number = f"{wanted}#{number}", number + 1
        self.taken.add(free)
        return free


def made(node: JvmNode, make: Callable[[], T], expression: JvmNode | None = None) -> T:
    """Build a part of our plan; what does not fit there is refused here."""
    try:
        return make()
    except UnsupportedPlan:
        raise
    except (PlanError, ExpressionError) as error:
        column = error.details.get("column")
        raise unsupported(
            node.kind,
            error.message,
            expression=expression,
            column=None if column is None else str(column),
        ) from error


def named(item: JvmNode) -> tuple[str, JvmNode]:
    """The name of an output column and what it holds; an attribute holds itself."""
    value = item.children[0] if item.kind == "Alias" else item
    return str(item.read("name")), value


def is_watermarked(attribute: JvmNode) -> bool:
    """Whether Spark judges by a column which rows are late.

    Its analyser marks the column of withWatermark, and what merely renames it or is a window of it.
    """
    return bool(attribute.read("metadata").contains(_WATERMARK_MARK))


def is_session(column: JvmNode) -> bool:
    """Whether Spark's analyser marked a column as a session window."""
    return bool(column.read("metadata").contains(_SESSION_MARK))


def is_struct(expression: Expression | None) -> TypeGuard[Call]:
    """Whether an expression makes a struct of its members, which are known so."""
    return isinstance(expression, Call) and expression.function == "struct"


def selected(relation: Relation, columns: tuple[NamedExpression, ...]) -> Relation:
    """A projection, left out where it would change nothing."""
    if columns == column_refs(relation.schema):
        return relation
    return step(ProjectSpec(columns), relation)


def filtered(node: JvmNode, rows: SparkRows, condition: Expression) -> SparkRows:
    return replace(rows, relation=made(node, lambda: step(FilterSpec(condition), rows.relation)))
