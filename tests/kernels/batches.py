"""Random batches full of nulls, extremes and special floats, and how to compare results exactly."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.expressions.types import INTEGER_BITS, DataType, Schema, arrow_schema
from penstock.kernels.columns import arrow_column, is_fixed_width

_FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), -float("inf"), 1e300]),
    st.floats(width=32, allow_nan=True),
)


def values_for(data_type: DataType) -> st.SearchStrategy[Any]:
    """Values of a type as a kernel sees them: decimals scaled, times as numbers."""
    if data_type.kind == "boolean":
        return st.booleans()
    if data_type.is_fractional:
        return _FLOATS
    if data_type.is_decimal:
        most = 10**data_type.precision - 1
        return st.one_of(st.sampled_from([0, 1, -1, most, -most]), st.integers(-most, most))
    if data_type.kind == "string":
        return st.sampled_from(["", "a", "b", "ab", "héé", "0123456789", "x" * 20])
    bits = INTEGER_BITS.get(data_type.kind, 32 if data_type.kind == "date" else 62)
    most = (1 << (bits - 1)) - 1
    near = st.sampled_from([0, 1, -1, 2, 3, 7, most, -most, most - 1])
    lowest = st.just(-most - 1) if data_type.is_integer else near
    return st.one_of(near, st.integers(-20, 20), st.integers(-most, most), lowest)


def column_of(values: list[Any], data_type: DataType) -> pa.Array:
    if not is_fixed_width(data_type):
        return pa.array(values, pa.string())
    valid = np.array([value is not None for value in values], np.bool_)
    filled = [0 if value is None else value for value in values]
    dtype = {"boolean": np.bool_, "float": np.float32, "double": np.float64}
    numbers = np.array(filled, dtype.get(data_type.kind, np.int64))
    return arrow_column(numbers, valid, data_type)


@st.composite
def batches(draw: st.DrawFn, schema: Schema, rows_max: int = 30) -> pa.RecordBatch:
    """A batch of the schema; about half of them have no nulls at all."""
    count = draw(st.integers(0, rows_max))
    has_nulls = draw(st.booleans())
    columns = []
    for field in schema:
        values = values_for(field.type)
        if has_nulls and field.nullable:
            values = st.one_of(st.none(), values)
        columns.append(column_of(draw(st.lists(values, min_size=count, max_size=count)), field.type))
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))
    first = draw(st.integers(0, count))  # a slice: offsets are where buffers go wrong
    return batch.slice(first)


def bits_of(array: pa.Array) -> list[Any]:
    """Values for exact comparison: floats by their bits, but one NaN."""
    plain = array.to_pylist()
    if pa.types.is_floating(array.type):
        return [None if v is None else ("nan" if v != v else np.float64(v).tobytes()) for v in plain]
    return plain


def decimals(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)
