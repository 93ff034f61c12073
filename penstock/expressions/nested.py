"""Structs, arrays and static tables: building them and reaching into them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import validity_of, values_of
from penstock.expressions.frame import Frame
from penstock.expressions.lookup_table import LookupTable
from penstock.expressions.nodes import Call
from penstock.expressions.types import INT, arrow_type, parse_type
from penstock.expressions.vectors import arrow_column


def make_struct(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pa.StructArray.from_arrays(args, fields=list(arrow_type(node.type)))


def get_field(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return pc.struct_field(args[0], [args[0].type.get_field_index(node.option("name"))])


def make_array(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    rows, width = frame.num_rows, len(args)
    # the arguments one after the other, then taken row by row
    order = np.arange(rows * width).reshape(width, rows).T.reshape(-1)
    items = pa.concat_arrays(args).take(pa.array(order))
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), items).cast(arrow_type(node.type))


def get_item(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """The element at a 0-based index; an index outside the array is an error."""
    lists, indices = args[0], values_of(args[1]).astype(np.int64)
    valid = validity_of(lists) & validity_of(args[1])
    starts = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    outside = (indices < 0) | (indices >= np.diff(starts))
    frame.fail(outside & valid, "index outside the array", node)
    at = pa.array(starts[:-1] + indices, mask=~valid | outside)
    return lists.values.take(at)


def size(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    lengths = np.diff(args[0].offsets.to_numpy(zero_copy_only=False))
    return arrow_column(lengths, validity_of(args[0]), INT)


def lookup(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    table = node.option("table")
    assert isinstance(table, LookupTable)
    key_type, value_type = node.args[0].type, parse_type(node.option("value_type"))
    if key_type.kind == "string":
        at = pc.index_in(args[0], value_set=table.column(0, key_type), skip_nulls=True)
    else:
        found = table.find(values_of(args[0]).astype(np.int64))
        at = pa.array(found, mask=(found < 0) | ~validity_of(args[0]))
    return table.column(1, value_type).take(at)
