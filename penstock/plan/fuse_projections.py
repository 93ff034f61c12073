"""Rule: projections in a row become one, and a projection that changes nothing goes."""

from __future__ import annotations

from collections import Counter

from penstock.expressions.tree import Column, Literal, inline, walk
from penstock.operators.specs import NamedExpression, ProjectSpec
from penstock.plan.nodes import Relation, Step, column_refs, step
from penstock.plan.query import Query, rewrite_query


def fuse_projections(query: Query) -> Query:
    """Put the inner expressions into the outer ones, if none would be computed more than once."""
    return rewrite_query(query, _fused)


def _fused(node: Relation) -> Relation:
    if not isinstance(node, Step) or not isinstance(node.spec, ProjectSpec):
        return node
    child, outer = node.child, node.spec.columns
    if isinstance(child, Step) and isinstance(child.spec, ProjectSpec):
        inner = child.spec.columns
        if _is_simple(outer, inner):
            columns = tuple((name, inline(item, dict(inner))) for name, item in outer)
            return _fused(step(ProjectSpec(columns), child.child))
    return child if outer == column_refs(child.schema) else node


def _is_simple(outer: tuple[NamedExpression, ...], inner: tuple[NamedExpression, ...]) -> bool:
    uses = Counter(
        part.name for _, item in outer for part in walk(item) if isinstance(part, Column)
    )
    return all(isinstance(item, Column | Literal) or uses[name] <= 1 for name, item in inner)
