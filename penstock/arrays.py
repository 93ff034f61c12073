"""Arrow arrays as NumPy vectors, and back: copied only if they must be, and never row by row.

A column is its values (of a decimal the lower of its two words, which up to 18 digits is all of
it), its validity, and for texts the offsets into their bytes. What stands under a null has no
meaning. Vectors may lie over memory of Arrow: nobody writes to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Vector = NDArray[Any]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

_lib = pa.lib
_STORAGE: Mapping[int, np.dtype[Any]] = {
    _lib.Type_INT8: np.dtype(np.int8),
    _lib.Type_INT16: np.dtype(np.int16),
    _lib.Type_INT32: np.dtype(np.int32),
    _lib.Type_INT64: np.dtype(np.int64),
    _lib.Type_UINT8: np.dtype(np.uint8),
    _lib.Type_UINT16: np.dtype(np.uint16),
    _lib.Type_UINT32: np.dtype(np.uint32),
    _lib.Type_UINT64: np.dtype(np.uint64),
    _lib.Type_FLOAT: np.dtype(np.float32),
    _lib.Type_DOUBLE: np.dtype(np.float64),
    _lib.Type_DATE32: np.dtype(np.int32),
    _lib.Type_DATE64: np.dtype(np.int64),
    _lib.Type_TIME32: np.dtype(np.int32),
    _lib.Type_TIME64: np.dtype(np.int64),
    _lib.Type_TIMESTAMP: np.dtype(np.int64),
    _lib.Type_DURATION: np.dtype(np.int64),
}
_LARGE = frozenset({_lib.Type_LARGE_STRING, _lib.Type_LARGE_BINARY})
_TEXTS = _LARGE | {_lib.Type_STRING, _lib.Type_BINARY}
_WORD = (1 << 64) - 1
_NO_BYTES: Bytes = np.frombuffer(b"\0", np.uint8)[:0]  # as if it were over memory of Arrow


def storage(kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy type of Arrow's buffer, None if the column is not a plain array of numbers."""
    return _STORAGE.get(kind.id)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is offsets and bytes."""
    return kind.id in _TEXTS


def is_large(kind: pa.DataType) -> bool:
    """Whether a text's offsets have 64 bits."""
    return kind.id in _LARGE


# --- Arrow to NumPy -------------------------------------------------------------------------------


def values_of(array: pa.Array) -> Vector:
    """One fixed-width value per row."""
    kind = array.type.id
    if kind == _lib.Type_DECIMAL128:
        return decimal_words(array)[:, 0]
    count, buffer = len(array), array.buffers()[1]
    if kind == _lib.Type_BOOL:
        return np.zeros(count, np.bool_) if buffer is None else _unpacked(array, buffer)
    dtype = _STORAGE[kind]
    if buffer is None or count == 0:
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, array.offset * dtype.itemsize)


def decimal_words(array: pa.Array) -> NDArray[np.int64]:
    """The lower and the upper word of each decimal."""
    count, buffer = len(array), array.buffers()[1]
    if buffer is None or count == 0:
        return np.zeros((count, 2), np.int64)
    return np.frombuffer(buffer, np.int64, 2 * count, 16 * array.offset).reshape(count, 2)


def validity_of(array: pa.Array) -> Mask:
    """True where the column has a value."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    buffer = array.buffers()[0]
    if buffer is None:  # of a dictionary's null values, or all of it
        return np.asarray(array.is_valid())
    return _unpacked(array, buffer)


def true_rows(array: pa.Array) -> Mask:
    """Where a boolean array is true (not false, not null)."""
    values: Mask = values_of(array)
    return values & validity_of(array) if array.null_count else values


def _unpacked(array: pa.Array, buffer: pa.Buffer) -> Mask:
    offset, count = array.offset, len(array)
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + count + 7) // 8 - first, first)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[offset - 8 * first :][:count].view(np.bool_)


def texts_of(array: pa.Array) -> tuple[Vector, Bytes]:
    """Where each text begins, and the last one ends, in the bytes behind all of them."""
    width = np.dtype(np.int64 if is_large(array.type) else np.int32)
    _, offsets, data = array.buffers()
    content = _NO_BYTES if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
    if len(array) == 0:
        return np.frombuffer(bytes(8), width, 1), content
    begins = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)
    return begins, content


# --- NumPy to Arrow -------------------------------------------------------------------------------


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns without any row."""
    return pa.RecordBatch.from_pylist([], schema)


def packed(flags: Mask) -> pa.Buffer:
    """Flags as Arrow's bits."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def validity_buffer(valid: Mask | None) -> pa.Buffer | None:
    """Arrow's validity bitmap, None if everything is valid."""
    return None if valid is None or valid.all() else packed(valid)


def fixed_column(kind: pa.DataType, values: Vector, valid: Mask | None = None) -> pa.Array:
    """A column of fixed-width values; the arrays must not be written to afterwards."""
    dtype = _STORAGE.get(kind.id)
    if dtype is not None:
        data = pa.py_buffer(np.ascontiguousarray(values.astype(dtype, copy=False)))
    elif kind.id == _lib.Type_BOOL:
        data = packed(values.astype(np.bool_, copy=False))
    elif values.dtype == np.object_:
        return _wide_decimals(kind, values, valid)
    else:
        low = values.astype(np.int64, copy=False)
        return decimal_column(kind, low, low >> 63, valid)
    return pa.Array.from_buffers(kind, len(values), [validity_buffer(valid), data])


def _wide_decimals(kind: pa.DataType, values: Vector, valid: Mask | None) -> pa.Array:
    """Decimals of Python's integers, which may have more digits than 64 bits hold."""
    low = (values & _WORD).astype(np.uint64).view(np.int64)
    return decimal_column(kind, low, (values >> 64).astype(np.int64), valid)


def decimal_column(kind: pa.DataType, low: Numbers, high: Numbers, valid: Mask | None) -> pa.Array:
    """Decimals of their two words."""
    words = np.empty((len(low), 2), np.int64)
    words[:, 0], words[:, 1] = low, high
    buffers = [validity_buffer(valid), pa.py_buffer(words)]
    return pa.Array.from_buffers(kind, len(low), buffers)


def text_column(
    kind: pa.DataType, offsets: Vector, data: Bytes, valid: Mask | None = None
) -> pa.Array:
    """The texts that lie one behind the other in these bytes."""
    width = np.int64 if is_large(kind) else np.int32
    begins = np.ascontiguousarray(offsets.astype(width, copy=False))
    buffers = [validity_buffer(valid), pa.py_buffer(begins), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column as `to_pylist` has them; of simple types at once, not one by one."""
    kind = column.type
    is_float = pa.types.is_floating(kind) and not pa.types.is_float16(kind)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_float:
        if not column.null_count:
            return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        filled = column.fill_null(False if pa.types.is_boolean(kind) else 0)
        values: list[Any] = filled.to_numpy(zero_copy_only=False).tolist()
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[at] = None
        return values
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]
