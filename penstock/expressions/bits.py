"""Bits of integers: logic, shifts, counts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.arrays import Vector, validity_of, values_of
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.frame import Frame
from penstock.expressions.nodes import Call
from penstock.expressions.types import INT, INTEGER_BITS
from penstock.expressions.vectors import arrow_column

_LOGIC = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}


def bit_logic(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    combined = _LOGIC[node.function](values_of(args[0]), values_of(args[1]))
    return arrow_column(combined, both_valid(args), node.type)


def bit_not(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return arrow_column(~values_of(args[0]), validity_of(args[0]), node.type)


def shift(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """By the lowest bits of the distance, as many as the width needs."""
    values = values_of(args[0])
    width = INTEGER_BITS[node.type.kind]
    distance = values_of(args[1]).astype(values.dtype) & (width - 1)
    if node.function == "shift_left":
        moved: Vector = np.left_shift(values, distance)
    elif node.function == "shift_right":
        moved = np.right_shift(values, distance)
    else:
        unsigned = np.dtype(f"uint{width}")
        moved = np.right_shift(values.view(unsigned), distance.view(unsigned)).view(values.dtype)
    return arrow_column(moved, both_valid(args), node.type)


def bit_count(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Ones among 64 bits: a negative number has those of its sign."""
    wide = values_of(args[0]).astype(np.int64).view(np.uint64)
    return arrow_column(np.bitwise_count(wide), validity_of(args[0]), INT)


def get_bit(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    values, places = values_of(args[0]), values_of(args[1]).astype(np.int64)
    width = INTEGER_BITS[node.args[0].type.kind]
    valid = both_valid(args)
    outside = (places < 0) | (places >= width)
    frame.fail(outside & valid, f"a bit that {node.args[0].type} does not have", node)
    bits = (values.astype(np.int64) >> np.where(outside, 0, places)) & 1
    return arrow_column(bits, valid, node.type)
