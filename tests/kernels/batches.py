"""Random batches full of nulls, extremes and special floats, and how to compare results exactly."""

from __future__ import annotations

import decimal
import math
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from penstock.expressions.types import INTEGER_BITS, DataType, Schema, arrow_schema
from penstock.expressions.vectors import arrow_column
from penstock.kernels.columns import is_fixed_width

_FLOATS = [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 1e300, 5e-324, 2.5, 0.1]
_TEXTS = ["", "a", "b", "ab", "héé", "0123456789", "12", "-3", "x" * 20]


def random_value(random: Random, data_type: DataType) -> Any:
    """A value of a type as a kernel sees it: decimals scaled, times as numbers; often extreme."""
    if data_type.kind == "boolean":
        return random.random() < 0.5
    if data_type.is_fractional:
        if data_type.kind == "float":
            return float(np.float32(random.choice([0.1, -0.0, math.nan, math.inf, 3.5, -2.0])))
        return random.choice(_FLOATS) if random.random() < 0.7 else random.uniform(-100, 100)
    if data_type.kind == "string":
        return random.choice(_TEXTS)
    bits = INTEGER_BITS.get(data_type.kind, 32 if data_type.kind == "date" else 62)
    most = (1 << (bits - 1)) - 1
    least = -most - 1 if data_type.is_integer else -most
    if data_type.is_decimal:
        most = 10**data_type.precision - 1
        least = -most
    kind = random.random()
    if kind < 0.3:
        return random.choice([least, most, least + 1, most - 1, least // 2, most // 2])
    return random.randint(-9, 9) if kind < 0.8 else random.randint(least, most)


def column_of(values: list[Any], data_type: DataType) -> pa.Array:
    if not is_fixed_width(data_type):
        return pa.array(values, pa.string())
    valid = np.array([value is not None for value in values], np.bool_)
    filled = [0 if value is None else value for value in values]
    dtype = {"boolean": np.bool_, "float": np.float32, "double": np.float64}
    numbers = np.array(filled, dtype.get(data_type.kind, np.int64))
    return arrow_column(numbers, valid, data_type)


def random_batch(
    random: Random, schema: Schema, rows: int, null_share: float = 0.0
) -> pa.RecordBatch:
    columns = []
    for field in schema:
        share = null_share if field.nullable else 0.0
        values = [
            None if random.random() < share else random_value(random, field.type)
            for _ in range(rows)
        ]
        columns.append(column_of(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


@st.composite
def batches(
    draw: st.DrawFn,
    schema: Schema,
    rows_max: int = 40,
    null_shares: tuple[float, ...] = (0.0, 0.2, 0.8),
) -> pa.RecordBatch:
    """A batch of the schema, with or without nulls; a slice, as offsets are easy to get wrong."""
    random = Random(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, rows_max))
    null_share = draw(st.sampled_from(null_shares))
    first = draw(st.integers(0, 9))
    return random_batch(random, schema, first + count, null_share).slice(first)


def bits_of(array: pa.Array) -> list[Any]:
    """Values for exact comparison: floats by their bits, but one NaN."""
    if pa.types.is_temporal(array.type):  # Python's own dates end where Spark's do not
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    plain = array.to_pylist()
    if pa.types.is_floating(array.type):
        return [
            None if v is None else ("nan" if math.isnan(v) else np.float64(v).tobytes())
            for v in plain
        ]
    return plain


# A seed does not shrink: finding one that fails is all the search there is.
SEEDED = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def decimals(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)
