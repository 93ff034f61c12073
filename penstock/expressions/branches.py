"""Logic and branches: three-valued, and evaluated only on the rows that Spark would evaluate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, true_rows, validity_of
from penstock.expressions.comparison import compared
from penstock.expressions.decimals import numbers_of
from penstock.expressions.frame import Failures, Frame
from penstock.expressions.nodes import Arguments, Call, Expression, is_branchless, may_fail
from penstock.expressions.types import BOOLEAN, arrow_type
from penstock.expressions.vectors import arrow_column


def and_or(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    """The right side is not computed where the left one already decides, if it costs or can fail.

    To look the other rows out would cost more than what is cheap.
    """
    left = frame.value(node.args[0])
    if is_branchless(node.args[1]):
        right = frame.value(node.args[1])
    else:
        deciding = pc.invert(left) if node.function == "and" else left
        right = frame.value_on(node.args[1], ~true_rows(deciding))
    combine = pc.and_kleene if node.function == "and" else pc.or_kleene
    return combine(left, right)


def negation(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.invert(args[0])


def null_test(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return args[0].is_null() if node.function == "is_null" else args[0].is_valid()


def nan_test(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.is_nan(args[0]).fill_null(False)


def coalesce(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    result = frame.value(node.args[0])
    for arg in node.args[1:]:
        if result.null_count == 0:
            break
        missing = ~validity_of(result)
        result = _chosen(missing, frame.value_on(arg, missing), result)
    return result


def case(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    """if and case: each condition on the rows still undecided, each value on the rows it won."""
    args = node.args
    has_else = len(args) % 2 == 1
    pairs = list(zip(args[0::2], args[1::2], strict=False))
    undecided = np.ones(frame.num_rows, dtype=np.bool_)
    result = pa.nulls(frame.num_rows, arrow_type(node.type))
    for condition, value in pairs:
        taken = true_rows(frame.value_on(condition, undecided)) & undecided
        result = _branch(frame, value, taken, result)
        undecided = undecided & ~taken
    return _branch(frame, args[-1], undecided, result) if has_else else result


def _branch(frame: Frame, value: Expression, taken: Mask, result: pa.Array) -> pa.Array:
    if not taken.any():
        return result
    return _chosen(taken, frame.value_on(value, taken), result)


def _chosen(taken: Mask, chosen: pa.Array, otherwise: pa.Array) -> pa.Array:
    if taken.all():
        return chosen
    return pc.if_else(arrow_column(taken, None, BOOLEAN), chosen, otherwise)


def null_on_error(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    inner = node.args[0]
    if not isinstance(inner, Call):
        return frame.value(inner)
    args = _operands_of(inner, frame)
    own = Failures(frame.num_rows)
    result = inner.row.evaluate(inner, args, Frame(frame.batch, None, own))
    return _without(result, own)


def _operands_of(node: Call, frame: Frame) -> list[pa.Array]:
    """The arguments; no dividend where the divisor is 0, as the division is null there."""
    if node.row.arguments is not Arguments.UNTIL_NULL_FROM_RIGHT or not may_fail(node.args[0]):
        return frame.arguments(node)
    divisor = frame.value(node.args[1])
    divides = validity_of(divisor) & (numbers_of(divisor) != 0).astype(np.bool_)
    return [frame.value_on(node.args[0], divides), divisor]


def try_eval(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    own = Failures(frame.num_rows)
    return _without(Frame(frame.batch, None, own).value(node.args[0]), own)


def _without(result: pa.Array, failures: Failures) -> pa.Array:
    """Null on the rows that failed."""
    if not failures.bad.any():
        return result
    return _chosen(~failures.bad, result, pa.nulls(len(result), result.type))


def nullif(node: Call, _args: list[pa.Array], frame: Frame) -> pa.Array:
    left = frame.value(node.args[0])
    right = frame.value_on(node.args[1], validity_of(left))
    equal = compared("eq", left, right, node.type).fill_null(False)
    return pc.if_else(equal, pa.scalar(None, left.type), left)
