"""Which expressions a compiled loop can compute."""

from __future__ import annotations

from functools import partial, reduce

from penstock.expressions.tree import Call, Expression, call, walk
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


def loosened(condition: Expression) -> Expression | None:
    """What a loop can say of a condition that is Arrow's: true wherever the condition is.

    Parts that only Arrow can compute count as true in it. None: nothing is left that may be false.
    Only of conditions that cannot fail, or rows would be dropped that are to fail.
    """
    if not isinstance(condition, Call) or condition.function not in ("and", "or"):
        return condition if numba_supported(condition) else None
    parts = [loosened(part) for part in condition.args]
    kept = [part for part in parts if part is not None]
    if not kept or (condition.function == "or" and len(kept) < len(parts)):
        return None
    return reduce(partial(call, condition.function), kept)
