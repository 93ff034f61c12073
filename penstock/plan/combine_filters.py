"""Rule: two filters in a row become one, where that cannot change which rows fail."""

from __future__ import annotations

from penstock.expressions.tree import Call, Expression, call, walk
from penstock.plan.nodes import Filter, Query, Relation, rewrite_query

# These give a value for every input. Arithmetic, casts and array access can fail on a row, and the
# first filter may be there to keep exactly such rows away from the second.
SAFE_FUNCTIONS = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "eq_null_safe", "in", "and", "or", "not", "is_null",
        "is_not_null", "is_nan", "coalesce", "if", "case", "nullif", "greatest", "least", "length",
        "upper", "lower", "trim", "ltrim", "rtrim", "starts_with", "ends_with", "contains", "like",
        "get_field", "year", "month", "day", "hour", "minute", "second", "day_of_week", "lookup",
    }
)  # fmt: skip


def combine_filters(query: Query) -> Query:
    """Join the conditions of adjacent filters with AND if the upper one cannot fail."""
    return rewrite_query(query, _combined)


def cannot_fail(expression: Expression) -> bool:
    """Whether an expression has a value for every row."""
    return all(
        node.function in SAFE_FUNCTIONS for node in walk(expression) if isinstance(node, Call)
    )


def _combined(node: Relation) -> Relation:
    if isinstance(node, Filter) and isinstance(node.child, Filter) and cannot_fail(node.condition):
        return Filter(node.child.child, call("and", node.child.condition, node.condition))
    return node
