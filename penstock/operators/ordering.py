"""Spark's order of values, as numbers that sort as they do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Numbers, validity_of
from penstock.kernels.columns import plain

if TYPE_CHECKING:
    from penstock.operators.specs import Order


def order_levels(rows: pa.RecordBatch, order: Sequence[Order]) -> list[Numbers]:
    """Numbers by which rows are in this order, the weightiest first."""
    return [
        level
        for each in order
        for level in levels(rows.column(each.column.name), each.descending, each.nulls_first)
    ]


def sorted_places(levels_: Sequence[Numbers], count: int) -> Numbers:
    """Where the rows of an order were before; equal ones stay as they were."""
    order: Numbers = np.lexsort(levels_[::-1]) if levels_ else np.arange(count)
    return order


def levels(column: pa.Array, descending: bool = False, nulls_first: bool = True) -> list[Numbers]:
    """Numbers that are ordered as the values of a column are, in Spark's order: NaN is greatest.

    Structs go by their fields, arrays by their elements; what is null within them is least.
    """
    column = plain(column)
    found = [_turned(level, descending) for level in _values(column)]
    if not column.null_count:
        return found
    there = validity_of(column)
    found = [np.where(there, level, 0) for level in found]
    return [there.astype(np.int64) * (1 if nulls_first else -1), *found]


def _values(column: pa.Array) -> list[Numbers]:
    """Of what is there, the least first."""
    if pa.types.is_struct(column.type):
        return [level for field in column.flatten() for level in levels(field)]
    if pa.types.is_floating(column.type):
        wide = column.fill_null(0).to_numpy().astype(np.float64) + 0.0  # no -0.0
        words = np.where(np.isnan(wide), np.nan, wide).view(np.int64)
        return [np.where(words < 0, words ^ np.int64((1 << 63) - 1), words)]
    if pa.types.is_list(column.type):
        column = _by_elements(column)
    return [pc.rank(column, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)]


def _by_elements(column: pa.ListArray) -> pa.Array:
    """Bytes that are ordered as arrays are: a number for each element, and the shorter is less."""
    elements = column.flatten()  # without those of nulls
    of_elements = levels(elements)
    order = sorted_places(of_elements, len(elements))
    differs = np.zeros(len(elements), np.int64)
    for level in of_elements:
        differs[1:] |= level[order][1:] != level[order][:-1]
    numbers = np.empty(len(elements), ">u8")
    numbers[order] = np.cumsum(differs)
    data = numbers.tobytes()
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy()) * numbers.itemsize
    begins = [0, *ends.tolist()]
    texts = [data[begin:end] for begin, end in pairwise(begins)]
    return pa.array(texts, pa.binary())


def _turned(values: Numbers, descending: bool) -> Numbers:
    return ~values if descending else values
