"""How many values differ, about: HyperLogLog++ over Spark's hash, with Spark's tables.

A value's hash names a register by its first bits, and is worth the place of the first 1 among the
others; of all values of a register the greatest worth is kept. The tables come from Spark, for the
one precision that is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Doubles, Numbers, values_of
from penstock.expressions.spark_hash import XXHASH64
from penstock.expressions.types import DataType
from penstock.operators.item_results import Items, Options

_NEAREST = 6  # raw estimates that a bias is the average of
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}


def registers_of(values: pa.Array, precision: int) -> tuple[pa.Array, pa.Array]:
    """The register of each value, and what it is worth there."""
    hashes = XXHASH64.of_rows([values], len(values)).view(np.uint64)
    registers = (hashes >> np.uint64(64 - precision)).astype(np.int64)
    rest = hashes << np.uint64(precision) | np.uint64(1 << (precision - 1))
    worth = np.ones(len(values), np.int64)
    for bits in (32, 16, 8, 4, 2, 1):
        is_zero = rest >> np.uint64(64 - bits) == 0
        worth += np.where(is_zero, bits, 0)
        rest = np.where(is_zero, rest << np.uint64(bits), rest)
    return pa.array(registers), pa.array(worth)


def estimated(items: Items, options: Options, _result: DataType) -> pa.Array:
    """The number of values that differ, of the registers that each group has."""
    precision, threshold, size, *tables = options
    count = 1 << precision
    worth = 0.5 ** values_of(items.values[0])
    used = np.bincount(items.owners, minlength=items.groups)
    unused = (count - used).astype(np.float64)
    inverse = unused + np.bincount(items.owners, weights=worth, minlength=items.groups)
    alpha = _ALPHA.get(precision, 0.7213 / (1.0 + 1.079 / count))
    raw = alpha * count * count / inverse
    better = raw
    if size:
        bias = _bias(raw, np.array(tables[:size]), np.array(tables[size:]))
        better = np.where(raw < 5.0 * count, raw - bias, raw)
    with np.errstate(divide="ignore"):
        linear = count * np.log(count / unused)
    is_few = (linear <= threshold) if size else np.zeros(items.groups, np.bool_)
    is_linear = (unused > 0) & (is_few | (raw <= 2.5 * count))
    return pa.array(np.floor(np.where(is_linear, linear, better) + 0.5).astype(np.int64))


def _bias(raw: Doubles, estimates: Doubles, biases: Doubles) -> Doubles:
    """What raw estimates are wrong by, of the nearest ones that were measured."""
    low = np.maximum(_place(raw, estimates) - _NEAREST + 1, 0)
    padded = np.append(estimates, np.inf)
    while True:
        high = np.minimum(low + _NEAREST, len(estimates))
        nearer = (raw - padded[high]) ** 2 < (raw - estimates[low]) ** 2
        if not nearer.any():
            break
        low = low + nearer
    total, padded = np.zeros(len(raw)), np.append(biases, np.zeros(_NEAREST))
    for step in range(_NEAREST):  # in this order: as Spark rounds it
        total += padded[low + step]
    found: Doubles = total / (high - low)
    return found


def _place(raw: Doubles, estimates: Doubles) -> Numbers:
    """Where Java's search by halves ends: not all estimates are in order."""
    low = np.zeros(len(raw), np.int64)
    high = np.full(len(raw), len(estimates) - 1)
    place = np.full(len(raw), -1)
    while (searching := (low <= high) & (place < 0)).any():
        middle = (low + high) >> 1
        found = estimates[middle]
        place = np.where(searching & (found == raw), middle, place)
        low = np.where(searching & (found < raw), middle + 1, low)
        high = np.where(searching & (found > raw), middle - 1, high)
    return np.where(place < 0, low, place)


def precision_of(deviation: float) -> int:
    """How many bits name a register, for this relative standard deviation."""
    return int(np.ceil(2.0 * np.log(1.106 / deviation) / np.log(2.0)))


def options_of(precision: int, thresholds: Any, estimates: Any, biases: Any) -> Options:
    """What the estimate is told: of the tables what is for this precision, if there is some."""
    at = precision - 4
    if at >= len(thresholds):
        return precision, 0.0, 0
    raw, wrong = (tuple(map(float, table[at])) for table in (estimates, biases))
    return precision, float(thresholds[at]), len(raw), *raw, *wrong
