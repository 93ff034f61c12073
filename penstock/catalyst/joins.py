"""One Join node: two sides, which of their rows belong together, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce

from penstock.catalyst.by_spark import SparkColumns, SparkExpressions, culprit_of
from penstock.catalyst.expressions import ExpressionReader, attribute_ids, conjuncts
from penstock.catalyst.jvm import JvmNode, new_attribute, scala_option
from penstock.catalyst.refusals import reason_for, unsupported
from penstock.catalyst.rows import Names, SparkRows, filtered, made, selected
from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Column, Expression, call, transform
from penstock.operators.specs import NamedExpression, SparkColumn
from penstock.plan.joins import Equality, join
from penstock.plan.nodes import Relation, column_refs

_HOWS: Mapping[str, str] = {
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT OUTER": "left",
    "RIGHT OUTER": "right",
    "FULL OUTER": "full",
    "LEFT SEMI": "semi",
    "LEFT ANTI": "anti",
}
_NORMALIZED = frozenset({"KnownFloatingPointNormalized", "NormalizeNaNAndZero"})
_CHOOSING = frozenset({"If", "CaseWhen", "Coalesce"})
_NO_COLUMNS = (
    "only Spark can compute it of two rows, and it reads what is no column of theirs; compute that "
    "in a column before the join"
)
_EQUALITIES: Mapping[str, bool] = {"EqualTo": False, "EqualNullSafe": True}


def read_join(
    node: JvmNode, left: SparkRows, right: SparkRows, session_zone: str, known: SparkExpressions
) -> SparkRows:
    """The join of two sides that were read; `known` collects what Spark computes."""
    how = join_type(node)
    left = shown(left) if how in ("right", "full") else left
    right = apart(left, shown(right) if how in ("left", "full") else right)
    reader = _ConditionReader(node, (left, right), session_zone, known)
    equal, condition = reader.read()
    decided = () if how == "inner" else reader.decided()
    left, right = reader.sides()
    relation = made(
        node, lambda: join(how, left.relation, right.relation, equal, condition, decided)
    )
    rows = joined(relation, left, right if how not in ("semi", "anti") else None)
    return rows if decided else decided_behind(node, rows, reader.of_pairs, session_zone, known)


def join_type(node: JvmNode) -> str:
    kind = str(node.read("joinType").sql())
    if kind not in _HOWS:
        raise unsupported(node.kind, f"a join of the type {kind} is not run here")
    return _HOWS[kind]


def shown(rows: SparkRows) -> SparkRows:
    """A side that rows may lack, all its columns computed: what is computed of nulls is no null."""
    names = Names(rows.names)
    added: list[NamedExpression] = []
    columns: dict[int, Expression] = {}
    for expr_id, expression in rows.columns.items():
        columns[expr_id] = expression
        if not isinstance(expression, Column):
            name = names.give("column")
            added.append((name, expression))
            columns[expr_id] = Column(name, expression.type, expression.nullable)
    if not added:
        return rows
    relation = selected(rows.relation, (*column_refs(rows.relation.schema), *added))
    return SparkRows(relation, columns, {}, rows.spans)


def apart(left: SparkRows, right: SparkRows) -> SparkRows:
    """The right side, its columns under names that the left side does not have."""
    names = Names(left.names | right.names)
    new = {
        field.name: names.give(field.name) if field.name in left.names else field.name
        for field in right.relation.schema
    }
    columns = tuple(
        (new[field.name], Column(field.name, field.type, field.nullable))
        for field in right.relation.schema
    )
    relation = selected(right.relation, columns)
    return _renamed(right, relation, lambda column: replace(column, name=new[column.name]))


class _ConditionReader:
    """Reads the condition of a join.

    What is not known here and reads one side is computed by Spark before the join. What reads both
    Spark decides, behind an inner join and within others: that are the parts `of_pairs`.
    """

    def __init__(
        self,
        node: JvmNode,
        sides: tuple[SparkRows, SparkRows],
        session_zone: str,
        known: SparkExpressions,
    ) -> None:
        left, right = sides
        both = SparkRows(
            left.relation,
            {**left.columns, **right.columns},
            {**left.windows, **right.windows},
        )
        self._node = node
        self._sides = sides
        self._ids = [frozenset(item.expr_id for item in side.output) for side in node.children]
        self._by_spark = [SparkColumns(known) for _ in sides]
        self._readers = [
            side.expressions(node.kind, session_zone, by_spark)
            for side, by_spark in zip(sides, self._by_spark, strict=True)
        ]
        self._pairs = both.expressions(node.kind, session_zone)
        self._known = known
        self.of_pairs: list[JvmNode] = []

    def read(self) -> tuple[list[Equality], Expression | None]:
        """The equalities between the sides, and what else must hold of two rows."""
        condition = scala_option(self._node.read("condition"))
        equal: list[Equality] = []
        others: list[Expression] = []
        for part in () if condition is None else conjuncts(JvmNode(condition)):
            equality = self._equality(part)
            if equality is not None:
                equal.append(equality)
            elif (other := self._other(part)) is not None:
                others.append(other)
        rest = reduce(lambda one, other: call("and", one, other), others) if others else None
        return equal, rest

    def sides(self) -> tuple[SparkRows, SparkRows]:
        """The sides with what Spark computes of them."""
        left, right = (
            side.with_columns(by_spark)
            for side, by_spark in zip(self._sides, self._by_spark, strict=True)
        )
        return left, right

    def _equality(self, part: JvmNode) -> Equality | None:
        if part.kind not in _EQUALITIES:
            return None
        one, other = part.children
        for first, second in ((one, other), (other, one)):
            if _is_of(first, self._ids[0]) and _is_of(second, self._ids[1]):
                sides = [
                    reader.read(_key(side))
                    for reader, side in zip(self._readers, (first, second), strict=True)
                ]
                return sides[0], sides[1], _EQUALITIES[part.kind]
        return None

    def _other(self, part: JvmNode) -> Expression | None:
        """What must hold of two rows, None if it is decided behind the join."""
        sides = list(zip(self._readers, self._ids, strict=True))
        found = pair_condition(part, self._pairs, sides)
        if found is None:
            self.of_pairs.append(part)
        return found

    def decided(self) -> tuple[SparkColumn, ...]:
        """The parts that Spark decides, of columns that both sides have."""
        return decided_by_spark(self.of_pairs, self._pairs, self._known)


Side = tuple[ExpressionReader, Set[int]]  # who reads it, and the attributes that it has


def pair_condition(
    part: JvmNode, pairs: ExpressionReader, sides: Sequence[Side]
) -> Expression | None:
    """What must hold of two rows; None if only Spark can tell.

    What is not known here and reads one of the sides becomes a column of it.
    """
    try:
        return pairs.read(part)
    except UnsupportedPlan as refusal:
        made_before: dict[int, Expression] = {}
        changed = _with_columns(part, sides, made_before)
        with_those = replace(pairs, columns={**pairs.columns, **made_before})
        try:
            return with_those.read(changed)
        except UnsupportedPlan:
            if (culprit := culprit_of(part)) is not None:
                raise pairs.refuse(culprit, reason_for(culprit)) from refusal
    return None


def _with_columns(
    node: JvmNode, sides: Sequence[Side], made_before: dict[int, Expression]
) -> JvmNode:
    """The expression with columns in the place of what Spark computes of one side."""
    for reader, ids in sides:
        if _is_of(node, ids):
            attribute = new_attribute(node)
            made_before[attribute.expr_id] = reader.read(node)
            return attribute
    if node.kind in _CHOOSING or not attribute_ids(node):
        return node  # what is not chosen is not computed: it might fail
    below = [_with_columns(child, sides, made_before) for child in node.children]
    return node.with_children(below)


def decided_by_spark(
    parts: Sequence[JvmNode], pairs: ExpressionReader, known: SparkExpressions
) -> tuple[SparkColumn, ...]:
    """Parts of a condition as flags that Spark computes of two rows."""
    by_spark = SparkColumns(known)
    reader = replace(pairs, by_spark=by_spark)
    for part in parts:
        reader.read(part)
        if by_spark.inputs:
            raise pairs.refuse(part, _NO_COLUMNS)
    return tuple(by_spark.columns)


def decided_behind(
    node: JvmNode,
    rows: SparkRows,
    parts: Sequence[JvmNode],
    session_zone: str,
    known: SparkExpressions,
) -> SparkRows:
    """The rows of an inner join that meet the parts of its condition that Spark decides."""
    for part in parts:
        by_spark = SparkColumns(known)
        holds = rows.expressions(node.kind, session_zone, by_spark).read(part)
        rows = filtered(node, rows.with_columns(by_spark), holds)
    return rows


def _key(expression: JvmNode) -> JvmNode:
    """What Spark compares, before it makes one of all NaNs, and of both zeros: so does a key."""
    while expression.kind in _NORMALIZED:
        expression = expression.children[0]
    return expression


def _is_of(expression: JvmNode, side: Set[int]) -> bool:
    """Whether it is computed of columns of one side, of one at least."""
    ids = attribute_ids(expression)
    return bool(ids) and ids <= side


def joined(relation: Relation, left: SparkRows, right: SparkRows | None) -> SparkRows:
    """The rows of a join; without a right side those of the left one."""
    sides = [left] if right is None else [left, right]
    fields = {field.name: field for field in relation.schema}

    def found(column: Column) -> Column:
        """As nullable as the join has made it."""
        return replace(column, nullable=fields[column.name].nullable)

    rows = [_renamed(side, relation, found) for side in sides]
    return SparkRows(
        relation,
        {expr_id: column for side in rows for expr_id, column in side.columns.items()},
        {expr_id: window for side in rows for expr_id, window in side.windows.items()},
        {expr_id: span for side in rows for expr_id, span in side.spans.items()},
    )


def _renamed(rows: SparkRows, relation: Relation, new: Callable[[Column], Column]) -> SparkRows:
    def change(expression: Expression) -> Expression:
        return new(expression) if isinstance(expression, Column) else expression

    return SparkRows(
        relation,
        {expr_id: transform(column, change) for expr_id, column in rows.columns.items()},
        {
            expr_id: replace(window, time=transform(window.time, change))
            for expr_id, window in rows.windows.items()
        },
        rows.spans,
    )
