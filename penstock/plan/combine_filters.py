"""Rule: two filters in a row become one, where that cannot change which rows fail."""

from __future__ import annotations

from penstock.expressions.tree import call, may_fail
from penstock.operators.specs import FilterSpec
from penstock.plan.nodes import Relation, Step, step
from penstock.plan.query import Query, rewrite_query


def combine_filters(query: Query) -> Query:
    """Join the conditions of adjacent filters with AND if the upper one cannot fail.

    The first filter may be there to keep away rows on which the second would fail.
    """
    return rewrite_query(query, _combined)


def _combined(node: Relation) -> Relation:
    if not isinstance(node, Step) or not isinstance(node.spec, FilterSpec):
        return node
    if not isinstance(node.child, Step) or not isinstance(node.child.spec, FilterSpec):
        return node
    upper, lower = node.spec, node.child.spec
    if may_fail(upper.condition):
        return node
    return step(FilterSpec(call("and", lower.condition, upper.condition)), node.child.child)
