"""Which expressions a compiled loop can compute, which can fail, and which need no branch."""

from __future__ import annotations

from dataclasses import replace

from penstock.expressions.evaluate import may_fail
from penstock.expressions.tree import Call, Column, Expression, Literal, walk
from penstock.expressions.types import DataType
from penstock.kernels.columns import is_fixed_width

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ALWAYS = frozenset(
    {
        *COMPARISONS,
        "eq_null_safe", "in", "greatest", "least", "and", "or", "not", "is_null", "is_not_null",
        "is_nan", "coalesce", "if", "case", "nullif", "add", "subtract", "multiply", "negate",
        "abs", "sqrt", "unix_seconds", "unix_millis", "unix_micros", "timestamp_seconds",
        "timestamp_millis", "timestamp_micros",
    }
)  # fmt: skip
_BRANCHLESS = frozenset(
    {
        *COMPARISONS,
        "eq_null_safe", "in", "and", "or", "not", "is_null", "is_not_null", "is_nan", "add",
        "subtract", "multiply", "unix_micros", "timestamp_micros",
    }
)  # fmt: skip
_EXACT_DOUBLE_DIGITS = 15  # a scaled integer of so many digits and its scale are exact doubles


def _is_positive_literal(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is not None and expression.value > 0


def _cast_supported(source: DataType, target: DataType) -> bool:
    if source == target:
        return True
    if source.is_integer:
        return target.is_numeric or target.kind == "boolean"
    if source.kind == "boolean":
        return target.is_integer or target.is_fractional
    if source.is_fractional:
        return target.is_fractional
    if source.is_decimal and target.kind == "double":
        return source.precision <= _EXACT_DOUBLE_DIGITS
    return (source.is_decimal and target.is_decimal) or (
        source.kind == "timestamp" and target.kind == "bigint"
    )


def _call_supported(call: Call) -> bool:
    function, first = call.function, call.args[0].type
    if function in ("int_divide", "remainder"):
        return not first.is_decimal
    if function == "pmod":
        return first.is_integer and _is_positive_literal(call.args[1])
    if function == "divide":
        return first.kind == "double"
    if function == "lookup":
        return first.is_integer
    if function == "cast":
        return _cast_supported(first, call.type)
    if function in ("in", "nullif"):
        # Later arguments are not evaluated for every row, so here they must not be able to fail.
        return not any(can_fail(arg) for arg in call.args[1:])
    return function in _ALWAYS


def node_supported(expression: Expression) -> bool:
    """Whether this node alone is within a kernel's reach, whatever its arguments are."""
    if not is_fixed_width(expression.type):
        return False
    if isinstance(expression, Call):
        return _call_supported(expression)
    return isinstance(expression, Column | Literal)


def numba_supported(expression: Expression) -> bool:
    """Whether the whole expression can be part of a compiled loop."""
    return all(node_supported(node) for node in walk(expression))


def _node_can_fail(node: Expression) -> bool:
    if not isinstance(node, Call) or not may_fail(replace(node, args=())):
        return False
    if node.function in ("add", "subtract", "multiply", "negate", "abs"):
        return node.type.is_integer  # decimal results are typed so that they always fit
    if node.function == "cast":
        source, target = node.args[0].type, node.type
        widening = source.is_integer and (target.is_fractional or target.kind == "boolean")
        return not (source == target or widening or source.kind == "boolean")
    return True


def can_fail(expression: Expression) -> bool:
    """Whether some row could raise a RowError; errs on the side of yes."""
    return any(_node_can_fail(node) for node in walk(expression))


def is_branchless(expression: Expression) -> bool:
    """Whether it is worth computing for every row without looking: cheap, and it cannot fail."""
    return not can_fail(expression) and all(
        node.function in _BRANCHLESS for node in walk(expression) if isinstance(node, Call)
    )


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of a condition that must all be true."""
    if isinstance(expression, Call) and expression.function == "and":
        return tuple(part for arg in expression.args for part in conjuncts(arg))
    return (expression,)
