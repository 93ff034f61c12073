"""Which columns kernels take and how, and columns of codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrays import Vector, decimal_words, validity_of, values_of
from penstock.expressions.types import ARITHMETIC_DIGITS_MAX, INTERVAL_KINDS, MONTHS_KINDS, DataType

TEXT_REPEATS_MIN = 2  # how often a text occurs on the average, where codes are worth their while
TEXT_REPEATS_MANY = 16  # where texts that do not occur cost less than to look for them

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
    **dict.fromkeys(INTERVAL_KINDS, np.int64),
    **dict.fromkeys(MONTHS_KINDS, np.int32),
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


def raw_values(array: pa.Array) -> Vector:
    """The values as a loop takes them, not to be written: of a decimal both words, one by one."""
    if pa.types.is_decimal(array.type):
        return read_only(decimal_words(array).reshape(-1))
    return read_only(values_of(array))


def read_only(vector: Vector) -> Vector:
    vector.flags.writeable = False
    return vector


def plain(column: pa.Array) -> pa.Array:
    """The column with its values, where it may have come as codes of them."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def plain_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, with values in place of all codes."""
    columns = [plain(batch.column(name)) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    if known * TEXT_REPEATS_MANY <= len(column):
        return column
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
