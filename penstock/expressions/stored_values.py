"""Values that a state holds as bytes, which compare as the values do: nested ones, wide decimals.

A decimal is its sixteen bytes, the highest first. Of a nested value there are bytes for its order,
then those of `key_values` that it is read from again, then how many these are. In order, a null
comes first, numbers are big-endian, texts and arrays end with what is less than all that could
follow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import (
    Vector,
    decimal_words,
    is_text,
    texts_of,
    validity_buffer,
    validity_of,
    values_of,
)
from penstock.expressions.key_values import (
    fixed_bytes,
    joined,
    listed,
    read,
    spread,
    where_present,
    written,
)
from penstock.expressions.types import ARITHMETIC_DIGITS_MAX, BINARY, DataType, arrow_type

_MARKS = pa.array([b"\0", b"\1"], pa.binary())
_ITEM, _END, _NOTHING = (pa.scalar(each, pa.binary()) for each in (b"\1", b"\0", b""))
_SIZE = np.dtype("<i4")
_DECIMAL_BYTES = 16
_TOP = np.uint64(1 << 63)


def is_in_bytes(data_type: DataType) -> bool:
    """Whether a state holds such values as bytes."""
    is_wide = data_type.is_decimal and data_type.precision > ARITHMETIC_DIGITS_MAX
    return is_wide or data_type.is_nested


def stored_type(data_type: DataType) -> DataType:
    """What a state holds of a type."""
    return BINARY if is_in_bytes(data_type) else data_type


def as_stored(array: pa.Array, data_type: DataType, one_zero: bool = False) -> pa.Array:
    """The column as a state holds it; with `one_zero` -0.0 is 0.0, as where rows are grouped."""
    if not is_in_bytes(data_type):
        return array
    if data_type.is_decimal:
        return where_present(array, fixed_bytes(_wide(array)))
    value = written(array, one_zero)
    sizes = fixed_bytes(np.diff(texts_of(value)[0]).astype(_SIZE))
    whole = pc.binary_join_element_wise(_ordered(array), value, sizes, _NOTHING)
    return where_present(array, whole)


def of_stored(array: pa.Array, data_type: DataType) -> pa.Array:
    """The values of a column that a state has held."""
    if not is_in_bytes(data_type):
        return array
    kind, valid = arrow_type(data_type), validity_of(array)
    offsets, data = texts_of(array)
    ends = offsets[1:].astype(np.int64)[valid]
    if data_type.is_decimal:
        words = _numbers_at(data, ends - _DECIMAL_BYTES, np.dtype(">u8"), 2)
        pairs = np.stack([words[:, 1], words[:, 0] ^ _TOP], axis=1)
        buffers = [validity_buffer(None), pa.py_buffer(np.ascontiguousarray(pairs))]
        return spread(pa.Array.from_buffers(kind, len(ends), buffers), valid)
    sizes = _numbers_at(data, ends - _SIZE.itemsize, _SIZE, 1)[:, 0]
    values, _ = read(kind, data, ends - _SIZE.itemsize - sizes.astype(np.int64))
    return spread(values, valid)


def _numbers_at(data: Vector, at: Vector, kind: np.dtype[np.generic], count: int) -> Vector:
    taken = data[at[:, None] + np.arange(kind.itemsize * count)]
    numbers: Vector = np.ascontiguousarray(taken).view(kind).reshape(-1, count)
    return numbers.astype(kind.newbyteorder("="))


# --- order ----------------------------------------------------------------------------------------


def _ordered(array: pa.Array) -> pa.Array:
    """Bytes of each value that compare as the values do, of which none begins another."""
    marks = _MARKS.take(pa.array(validity_of(array).astype(np.int8)))
    return pc.binary_join_element_wise(marks, *_parts(array), _NOTHING)


def _parts(array: pa.Array) -> list[pa.Array]:
    kind = array.type
    if pa.types.is_struct(kind):
        return [_ordered(pc.struct_field(array, [at])) for at in range(kind.num_fields)]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        items = listed(array)
        marked = pc.binary_join_element_wise(_ITEM, _ordered(items.values), _NOTHING)
        return [joined(items, marked), _END]
    if is_text(kind):
        texts = array.cast(pa.binary()).fill_null(_NOTHING)
        return [pc.replace_substring(texts, b"\0", b"\0\xff"), _END, _END]
    return [fixed_bytes(_wide(array) if pa.types.is_decimal(kind) else _sortable(array))]


def _wide(array: pa.Array) -> Vector:
    """Both words of decimals, the upper one first, as bytes that compare."""
    words = decimal_words(array).view(np.uint64)
    sortable = np.stack([words[:, 1] ^ _TOP, words[:, 0]], axis=1)
    return np.where(validity_of(array)[:, None], sortable, 0).astype(">u8")


def _sortable(array: pa.Array) -> Vector:
    """Numbers as unsigned ones, big-endian, in the same order; NaN is the greatest."""
    values = values_of(array)
    bits = np.dtype(f"u{values.itemsize}")
    top = bits.type(1 << (8 * values.itemsize - 1))
    if values.dtype.kind == "f":
        plain = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype).view(bits)
        numbers = np.where(plain & top, ~plain, plain ^ top)
    else:
        numbers = values.view(bits) ^ top
    return np.where(validity_of(array), numbers, bits.type(0)).astype(bits.newbyteorder(">"))
