"""Arrow arrays seen as NumPy vectors of values and validity, and back, without a loop over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.types import DataType, arrow_type

Vector = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_SURROGATES = (0xDC80, 0xDCFF)  # of bytes that are no text
_DTYPES: dict[str, str] = {
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "date": "int32",
    "timestamp": "int64",
    "timestamp_ntz": "int64",
}


def values_of(array: pa.Array, data_type: DataType) -> Vector:
    """The fixed-width values; what stands under a null is arbitrary. Decimals as scaled int64."""
    if data_type.kind == "boolean":
        return true_rows(array)
    buffer = array.buffers()[1]
    if data_type.kind == "decimal":
        if buffer is None:
            return np.zeros(len(array), dtype=np.int64)
        words = np.frombuffer(buffer, dtype=np.int64)
        # up to 18 digits the low word is the whole value
        return words[2 * array.offset : 2 * (array.offset + len(array)) : 2]
    dtype = np.dtype(_DTYPES[data_type.kind])
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    count = array.offset + len(array)
    return np.frombuffer(buffer, dtype=dtype, count=count)[array.offset :]


def true_rows(array: pa.Array) -> Mask:
    """Where a boolean array is true (not false, not null)."""
    filled = array.fill_null(False) if array.null_count else array
    rows: Mask = filled.to_numpy(zero_copy_only=False)
    return rows


def valid_rows(array: pa.Array) -> Mask:
    """Where an array is not null."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    rows: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return rows


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    if valid is None or bool(valid.all()):
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def array_from(values: Vector, valid: Mask | None, data_type: DataType) -> pa.Array:
    """The Arrow array of fixed-width values; decimals come as scaled int64."""
    if data_type.kind == "boolean":
        data = pa.py_buffer(np.packbits(values.astype(np.bool_), bitorder="little").tobytes())
    elif data_type.kind == "decimal":
        words = np.empty((len(values), 2), dtype=np.int64)
        words[:, 0] = values
        words[:, 1] = values.astype(np.int64) >> 63
        data = pa.py_buffer(words)
    else:
        dtype = np.dtype(_DTYPES[data_type.kind])
        data = pa.py_buffer(np.ascontiguousarray(values.astype(dtype, copy=False)))
    return pa.Array.from_buffers(arrow_type(data_type), len(values), [_bitmap(valid), data])


def string_slices(array: pa.Array, begins: Vector, ends: Vector, valid: Mask) -> pa.Array:
    """New strings cut from the bytes of `array`'s data at absolute byte positions, row by row."""
    lengths = np.where(valid, np.maximum(ends - begins, 0), 0)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # byte k of the output comes from begins[row] + (k - offsets[row])
    shift = np.repeat(begins - offsets[:-1], lengths)
    data = data_bytes(array)[np.arange(offsets[-1]) + shift]
    return string_array(offsets, data, valid)


def string_array(offsets: Vector, data: npt.NDArray[np.uint8], valid: Mask) -> pa.Array:
    """The strings that lie one behind the other in these bytes."""
    buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def changed_at_once(text: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """Texts, none of them null, changed as one, with zero characters in between.

    `change` leaves these alone and makes none, so that they show where each text ends.
    """
    if len(text) == 0:
        return text
    changed = pa.array([change(_joined(text))])
    ends = _ends(text, data_bytes(changed))
    begins = np.append(0, ends[:-1] + 1)
    return string_slices(changed, begins, ends, np.ones(len(text), np.bool_))


def broken_texts(data: pa.Array) -> Mask:
    """Which of these bytes, none of them null, are not UTF-8."""
    # What cannot be decoded becomes a surrogate of its own, which no text has.
    whole = _joined(data).decode("utf-8", "surrogateescape")
    codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), np.uint32)
    broken = np.zeros(len(data), np.bool_)
    places = np.flatnonzero((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1]))
    broken[np.searchsorted(_ends(data, codes), places)] = True
    return broken


def _joined(rows: pa.Array) -> Any:
    """All rows with a zero in between, as one value."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(lists, b"\0" if pa.types.is_binary(rows.type) else "\0")[0].as_py()


def _ends(rows: pa.Array, joined: Vector) -> Vector:
    """Where each row ends in what has become of them together, if no zero has come or gone."""
    zeros = np.append(np.flatnonzero(joined == 0), len(joined))
    own = pc.count_substring(rows, "\0").to_numpy().astype(np.int64)
    ends: Vector = zeros[np.cumsum(own + 1) - 1]
    return ends


def data_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes behind a string or binary array."""
    buffer = array.buffers()[2]
    if buffer is None:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(buffer, dtype=np.uint8)


def byte_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Where each row of a string or binary array begins in its data, and where the last ends."""
    buffer = array.buffers()[1]
    if buffer is None or len(buffer) == 0:
        return np.zeros(len(array) + 1, dtype=np.int64)
    count = array.offset + len(array) + 1
    return np.frombuffer(buffer, dtype=np.int32, count=count)[array.offset :].astype(np.int64)
