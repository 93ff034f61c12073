"""Rule: projections in a row become one, and a projection that changes nothing goes."""

from __future__ import annotations

from collections import Counter

from penstock.expressions.tree import Column, Expression, Literal, transform, walk
from penstock.operators.specs import NamedExpression
from penstock.plan.nodes import Project, Relation, column_refs
from penstock.plan.query import Query, rewrite_query


def fuse_projections(query: Query) -> Query:
    """Put the inner expressions into the outer ones, if none would be computed more than once."""
    return rewrite_query(query, _fused)


def _fused(node: Relation) -> Relation:
    if not isinstance(node, Project):
        return node
    if isinstance(node.child, Project) and _is_simple(node.columns, node.child.columns):
        inner = dict(node.child.columns)
        columns = tuple((name, _inlined(item, inner)) for name, item in node.columns)
        return _fused(Project(node.child.child, columns))
    return node.child if node.columns == column_refs(node.child.schema) else node


def _is_simple(outer: tuple[NamedExpression, ...], inner: tuple[NamedExpression, ...]) -> bool:
    uses = Counter(
        part.name for _, item in outer for part in walk(item) if isinstance(part, Column)
    )
    return all(isinstance(item, Column | Literal) or uses[name] <= 1 for name, item in inner)


def _inlined(expression: Expression, inner: dict[str, Expression]) -> Expression:
    def change(part: Expression) -> Expression:
        return inner[part.name] if isinstance(part, Column) else part

    return transform(expression, change)
