"""Arrow columns as the plain arrays that kernels take, and back, copied only if they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.expressions.types import ARITHMETIC_DIGITS_MAX, DataType, arrow_type

Array = NDArray[Any]
Flags = NDArray[np.bool_]

TEXT_REPEATS_MIN = 2  # how often a text occurs on the average, where codes are worth their while

_DTYPES: dict[str, Any] = {
    "boolean": np.bool_,
    "tinyint": np.int8,
    "smallint": np.int16,
    "int": np.int32,
    "bigint": np.int64,
    "float": np.float32,
    "double": np.float64,
    "decimal": np.int64,
    "date": np.int32,
    "timestamp": np.int64,
    "timestamp_ntz": np.int64,
}


def is_fixed_width(data_type: DataType) -> bool:
    """Whether values of this type are numbers to a kernel."""
    if data_type.is_decimal:
        return data_type.precision <= ARITHMETIC_DIGITS_MAX
    return data_type.kind in _DTYPES


def dtype_of(data_type: DataType) -> np.dtype[Any]:
    """The element type of a kernel's array; a decimal is its scaled integer."""
    dtype: np.dtype[Any] = np.dtype(_DTYPES[data_type.kind])
    return dtype


def values_per_row(data_type: DataType) -> int:
    """Arrow keeps a decimal in 16 bytes; kernels read the lower word of each pair."""
    return 2 if data_type.is_decimal else 1


def raw_values(array: pa.Array, data_type: DataType) -> Array:
    """The read-only values buffer of a column, sliced to its rows; undefined where null."""
    buffer = array.buffers()[1]
    count, offset = len(array), array.offset
    if buffer is None or count == 0:
        values: Array = np.zeros(count * values_per_row(data_type), dtype_of(data_type))
    elif data_type.kind == "boolean":
        values = _unpacked(buffer, offset, count)
    else:
        width = values_per_row(data_type)
        dtype = dtype_of(data_type)
        values = np.frombuffer(buffer, dtype, count * width, offset * width * dtype.itemsize)
    values.flags.writeable = False
    return values


def values_of(array: pa.Array, data_type: DataType) -> Array:
    """One value per row, a decimal as its scaled integer; undefined where null."""
    raw = raw_values(array, data_type)
    return raw[::2] if data_type.is_decimal else raw


def validity_of(array: pa.Array) -> Flags:
    """True where the column has a value, as a read-only array."""
    buffer = array.buffers()[0]
    if buffer is None or array.null_count == 0:
        valid: Flags = np.ones(len(array), np.bool_)
    else:
        valid = _unpacked(buffer, array.offset, len(array))
    valid.flags.writeable = False
    return valid


def _unpacked(buffer: pa.Buffer, offset: int, count: int) -> Flags:
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + count + 7) // 8 - first, first)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[offset - 8 * first :][:count].view(np.bool_)


def _packed(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def arrow_column(values: Array, valid: Flags | None, data_type: DataType) -> pa.Array:
    """A column of that type over the values; the arrays must not be written to afterwards."""
    count = len(values)
    nulls = None if valid is None or valid.all() else _packed(valid)
    if data_type.kind == "boolean":
        data = _packed(values.astype(np.bool_, copy=False))
    elif data_type.is_decimal:
        wide = np.empty((count, 2), np.int64)
        wide[:, 0] = values
        np.right_shift(wide[:, 0], 63, out=wide[:, 1])
        data = pa.py_buffer(wide)
    else:
        contiguous = np.ascontiguousarray(values.astype(dtype_of(data_type), copy=False))
        data = pa.py_buffer(contiguous)
    return pa.Array.from_buffers(arrow_type(data_type), count, [nulls, data])


def plain(column: pa.Array) -> pa.Array:
    """The column with its values, where it may have come as codes of them."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with values in place of all codes."""
    return _each_coded(batch, plain)


def with_own_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with those coded texts only that it has itself; with values, if they are many."""
    return _each_coded(batch, _own_texts)


def _each_coded(batch: pa.RecordBatch, change: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
    for place, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            column = change(batch.column(place))
            batch = batch.set_column(place, field.with_type(column.type), column)
    return batch


def _own_texts(column: pa.DictionaryArray) -> pa.Array:
    known, codes = len(column.dictionary), column.indices
    used = np.zeros(known, np.bool_)
    used[codes.drop_null()] = True
    count = int(np.count_nonzero(used))
    if count * TEXT_REPEATS_MIN > len(column):
        return plain(column)
    if count == known:
        return column
    numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
    mask = None if codes.null_count == 0 else ~validity_of(codes)
    own = pa.array(numbers[codes.fill_null(0)], mask=mask)
    return pa.DictionaryArray.from_arrays(own, column.dictionary.filter(pa.array(used)))


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array of a column that may have come in chunks."""
    if isinstance(column, pa.ChunkedArray):
        merged = column.combine_chunks()
        return merged.chunk(0) if isinstance(merged, pa.ChunkedArray) else merged
    return column
