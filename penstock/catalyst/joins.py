"""One Join node: two sides, which of their rows belong together, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce

from penstock.catalyst.expressions import attribute_ids, conjuncts
from penstock.catalyst.jvm import JvmNode, scala_option
from penstock.catalyst.refusals import unsupported
from penstock.catalyst.rows import Names, SparkRows, made, selected
from penstock.expressions.tree import Column, Expression, call, transform
from penstock.operators.specs import NamedExpression
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
_EQUALITIES: Mapping[str, bool] = {"EqualTo": False, "EqualNullSafe": True}


def read_join(node: JvmNode, left: SparkRows, right: SparkRows, session_zone: str) -> SparkRows:
    """The join of two sides that were read."""
    how = join_type(node)
    left = shown(left) if how in ("right", "full") else left
    right = apart(left, shown(right) if how in ("left", "full") else right)
    equal, condition = join_condition(node, left, right, session_zone)
    relation = made(node, lambda: join(how, left.relation, right.relation, equal, condition))
    return joined(relation, left, right if how not in ("semi", "anti") else None)


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


def join_condition(
    node: JvmNode, left: SparkRows, right: SparkRows, session_zone: str
) -> tuple[list[Equality], Expression | None]:
    """The equalities between the sides, and what else must hold of two rows."""
    condition = scala_option(node.read("condition"))
    if condition is None:
        return [], None
    both = SparkRows(
        left.relation,
        {**left.columns, **right.columns},
        {**left.windows, **right.windows},
    )
    expressions = both.expressions(node.kind, session_zone)
    ids = [frozenset(item.expr_id for item in side.output) for side in node.children]
    equal: list[Equality] = []
    others: list[Expression] = []
    for part in conjuncts(JvmNode(condition)):
        if part.kind in _EQUALITIES:
            one, other = part.children
            for first, second in ((one, other), (other, one)):
                if _is_of(first, ids[0]) and _is_of(second, ids[1]):
                    sides = [expressions.read(_key(side)) for side in (first, second)]
                    equal.append((sides[0], sides[1], _EQUALITIES[part.kind]))
                    break
            else:
                others.append(expressions.read(part))
        else:
            others.append(expressions.read(part))
    rest = reduce(lambda one, other: call("and", one, other), others) if others else None
    return equal, rest


def _key(expression: JvmNode) -> JvmNode:
    """What Spark compares, before it makes one of all NaNs, and of both zeros: so does a key."""
    while expression.kind in _NORMALIZED:
        expression = expression.children[0]
    return expression


def _is_of(expression: JvmNode, side: frozenset[int]) -> bool:
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
