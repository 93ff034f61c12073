"""Nested values as keys: one row of bytes for all values that Spark groups together, and back.

Of every value there is a mark, 1 or 0 of null, then what is below: a number its bytes, all zero
under null, with one NaN and one zero; a text its length and its bytes; a struct its members; an
array its length and its items; a map its length and its entries. The bytes decide which vertex owns
a key, and states are kept by them: so the form never changes, and a test freezes it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import (
    Bytes,
    Mask,
    Numbers,
    Vector,
    decimal_words,
    fixed_column,
    is_text,
    storage,
    text_column,
    texts_of,
    validity_buffer,
    validity_of,
    values_of,
)
from penstock.expressions.frame import Frame
from penstock.expressions.lists import Items, entries_of, items_of
from penstock.expressions.nodes import Call
from penstock.expressions.types import arrow_type

_MARKS = pa.array([b"\0", b"\1"], pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_LENGTH = np.dtype("<i4")
_DECIMAL_BYTES = 16


def key_bytes(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The bytes that stand for a value; a null has none."""
    return where_present(args[0], written(args[0]))


def where_present(values: pa.Array, data: pa.Array) -> pa.Array:
    """The bytes of the values that are there; a null has none."""
    return pc.if_else(pa.array(validity_of(values)), data, pa.scalar(None, pa.binary()))


def of_key_bytes(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The value that bytes stand for."""
    offsets, data = texts_of(args[0])
    # No value is no bytes. Rows that are made up, to load what a program needs, have such keys.
    valid = validity_of(args[0]) & (np.diff(offsets) > 0)
    begins = offsets[:-1].astype(np.int64)[valid]
    return spread(read(arrow_type(node.type), data, begins)[0], valid)


def spread(values: pa.Array, valid: Mask) -> pa.Array:
    """The values in the rows that have one, null in the others."""
    return values if valid.all() else values.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


# --- writing --------------------------------------------------------------------------------------


def written(array: pa.Array, one_zero: bool = True) -> pa.Array:
    """The bytes of each value, null or not; with `one_zero` -0.0 is 0.0, as where rows are grouped.

    There is one NaN in any case.
    """
    marks = _MARKS.take(pa.array(validity_of(array).astype(np.int8)))
    return pc.binary_join_element_wise(marks, *_parts(array, one_zero), _NOTHING)


def _parts(array: pa.Array, one_zero: bool) -> list[pa.Array]:
    if pa.types.is_struct(array.type):  # members of a null are null
        members = range(array.type.num_fields)
        return [written(pc.struct_field(array, [at]), one_zero) for at in members]
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        items = listed(array)
        lengths = fixed_bytes(items.lengths.astype(_LENGTH))
        return [lengths, joined(items, written(items.values, one_zero))]
    if is_text(array.type):
        texts = array.cast(pa.binary()).fill_null(_NOTHING)
        sizes = np.diff(texts_of(texts)[0])
        return [fixed_bytes(sizes.astype(_LENGTH)), texts]
    return [fixed_bytes(_numbers(array, one_zero))]


def listed(array: pa.Array) -> Items:
    """The items of arrays, or the entries of maps."""
    if not pa.types.is_map(array.type):
        return items_of(array)
    keys, values = entries_of(array)
    entries = pa.StructArray.from_arrays([keys.values, values.values], names=["key", "value"])
    return replace(keys, values=entries)


def joined(items: Items, data: pa.Array) -> pa.Array:
    """The bytes of each row's items, one behind the other."""
    offsets = pa.array(np.append(0, items.ends).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, data), _NOTHING)


def _numbers(array: pa.Array, one_zero: bool) -> Vector:
    if pa.types.is_decimal(array.type):
        return np.where(validity_of(array)[:, None], decimal_words(array), 0)
    values = values_of(array)
    if values.dtype.kind == "f":
        numbers = values + 0.0 if one_zero else values
        values = np.where(np.isnan(values), np.nan, numbers).astype(values.dtype)
    return np.where(validity_of(array), values, np.zeros(1, values.dtype))


def fixed_bytes(values: Vector) -> pa.Array:
    """Each row of numbers as its bytes."""
    width = values.itemsize * (values.shape[1] if values.ndim > 1 else 1)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())


# --- reading --------------------------------------------------------------------------------------


def read(kind: pa.DataType, data: Bytes, at: Numbers) -> tuple[pa.Array, Numbers]:
    """The values that begin at these places, and where they end."""
    valid = data[at] == 1
    at = at + 1
    if pa.types.is_struct(kind):
        members = []
        for member in kind:
            values, at = read(member.type, data, at)
            members.append(values)
        mask = pa.array(~valid)
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=mask), at
    if pa.types.is_list(kind):
        return _read_lists(kind, data, at, valid)
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        lists, at = _read_lists(pa.list_(entries), data, at, valid)
        keys, values = (lists.values.field(place) for place in range(2))
        maps = pa.MapArray.from_arrays(
            lists.offsets, keys, values, type=kind, mask=pa.array(~valid)
        )
        return maps, at
    if is_text(kind):
        lengths, at = _read_lengths(data, at)
        ends = np.cumsum(lengths)
        begins = np.repeat(at - ends + lengths, lengths)
        texts = data[begins + np.arange(begins.size)]
        return text_column(kind, np.append(0, ends), texts, valid), at + lengths
    width = _number_bytes(kind)
    taken = _gathered(data, at, width)
    if pa.types.is_decimal(kind):
        buffers = [validity_buffer(valid), pa.py_buffer(taken)]
        return pa.Array.from_buffers(kind, len(at), buffers), at + width
    numbers = taken.view(storage(kind) or np.bool_).reshape(-1)
    return fixed_column(kind, numbers, valid), at + width


def _read_lists(
    kind: pa.DataType, data: Bytes, at: Numbers, valid: Mask
) -> tuple[pa.Array, Numbers]:
    lengths, at = _read_lengths(data, at)
    width = _constant_bytes(kind.value_type)
    rows = np.repeat(np.arange(lengths.size), lengths)
    places = np.arange(rows.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    if width is not None:
        values, _ = read(kind.value_type, data, at[rows] + places * width)
        at = at + lengths * width
    else:
        values, at = _read_one_by_one(kind.value_type, data, at, lengths)
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=pa.array(~valid)), at


def _read_one_by_one(
    kind: pa.DataType, data: Bytes, at: Numbers, lengths: Numbers
) -> tuple[pa.Array, Numbers]:
    """The first items of all rows, then the second ones: each begins where the last one ends."""
    parts: list[pa.Array] = [pa.array([], kind)]
    owners: list[Numbers] = [np.empty(0, np.int64)]
    at = at.copy()
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > place)
        values, at[rows] = read(kind, data, at[rows])
        parts.append(values)
        owners.append(rows)
    order = np.argsort(np.concatenate(owners), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order)), at


def _read_lengths(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    taken = _gathered(data, at, _LENGTH.itemsize)
    return taken.view(_LENGTH).reshape(-1).astype(np.int64), at + _LENGTH.itemsize


def _gathered(data: Bytes, at: Numbers, width: int) -> Bytes:
    taken: Bytes = np.ascontiguousarray(data[at[:, None] + np.arange(width)])
    return taken


def _number_bytes(kind: pa.DataType) -> int:
    if pa.types.is_decimal(kind):
        return _DECIMAL_BYTES
    return np.dtype(storage(kind) or np.bool_).itemsize


def _constant_bytes(kind: pa.DataType) -> int | None:
    """How many bytes every value of this type takes, if that is one number."""
    if pa.types.is_list(kind) or pa.types.is_map(kind) or is_text(kind):
        return None
    if not pa.types.is_struct(kind):
        return 1 + _number_bytes(kind)
    members = [_constant_bytes(member.type) for member in kind]
    known = [width for width in members if width is not None]
    return 1 + sum(known) if len(known) == len(members) else None
