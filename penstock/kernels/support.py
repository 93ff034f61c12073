"""Which expressions a compiled loop can compute."""

from __future__ import annotations

from penstock.expressions.tree import Call, Expression, walk
from penstock.kernels.columns import is_fixed_width


def node_supported(expression: Expression) -> bool:
    """Whether this node alone is within a kernel's reach, whatever its arguments are."""
    if not is_fixed_width(expression.type):
        return False
    if not isinstance(expression, Call):
        return True
    compiled = expression.row.compiled
    return compiled is not None and compiled.when(expression)


def numba_supported(expression: Expression) -> bool:
    """Whether the whole expression can be part of a compiled loop."""
    return all(node_supported(node) for node in walk(expression))


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of a condition that must all be true."""
    if isinstance(expression, Call) and expression.function == "and":
        return tuple(part for arg in expression.args for part in conjuncts(arg))
    return (expression,)
