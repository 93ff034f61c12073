"""Rule: two filters in a row become one, where that cannot change which rows fail."""

from __future__ import annotations

from penstock.expressions.evaluate import may_fail
from penstock.expressions.tree import call
from penstock.plan.nodes import Filter, Relation
from penstock.plan.query import Query, rewrite_query


def combine_filters(query: Query) -> Query:
    """Join the conditions of adjacent filters with AND if the upper one cannot fail.

    The first filter may be there to keep away rows on which the second would fail.
    """
    return rewrite_query(query, _combined)


def _combined(node: Relation) -> Relation:
    if isinstance(node, Filter) and isinstance(node.child, Filter) and not may_fail(node.condition):
        return Filter(node.child.child, call("and", node.child.condition, node.condition))
    return node
