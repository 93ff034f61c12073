"""Spark's batch result beside ours: the same rows as a DataFrame that stands, and exact values."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]


def static_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows as a DataFrame that does not stream. Times travel as integers, read in UTC."""
    arrays, selected = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        is_time = pa.types.is_timestamp(field.type)
        arrays.append(column.cast(pa.int64()) if is_time else column)
        name = f"`{field.name}`"
        instant = f"timestamp_micros({name})" if is_time else name
        if is_time and field.type.tz is None:
            instant = f"cast({instant} as timestamp_ntz)"
        selected.append(f"{instant} AS {name}")
    table = pa.table(arrays, names=rows.schema.names)
    zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        return session.createDataFrame(table).selectExpr(*selected)
    finally:
        session.conf.set("spark.sql.session.timeZone", str(zone))


# --- values ---------------------------------------------------------------------------------------


def plain(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows as values that compare exactly: times as numbers, doubles by their bits."""
    columns = [plain_column(column) for column in table.columns]
    return list(zip(*columns, strict=True))


def plain_column(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in plain_column(chunk)]
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_struct(column.type):
        members = [plain_column(column.field(index)) for index in range(column.type.num_fields)]
        valid = column.is_valid().to_pylist()
        rows = zip(*members, strict=True)
        return [row if here else None for row, here in zip(rows, valid, strict=True)]
    if pa.types.is_map(column.type):
        return plain_column(_as_lists(column))
    if pa.types.is_list(column.type):
        items, ends = plain_column(column.flatten()), np.cumsum(_lengths(column)).tolist()
        valid = column.is_valid().to_pylist()
        spans = zip([0, *ends], ends, valid, strict=False)
        return [tuple(items[low:high]) if here else None for low, high, here in spans]
    return [_plain_value(value) for value in column.to_pylist()]


def _as_lists(maps: pa.MapArray) -> pa.ListArray:
    """Maps as arrays of pairs, in their order."""
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    valid = maps.is_valid().to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(maps.offsets, pairs, mask=pa.array(~valid))


def _lengths(column: pa.ListArray) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = column.value_lengths().fill_null(0).to_numpy()
    return lengths


def _plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return value


def same_type(ours: pa.DataType, theirs: pa.DataType) -> bool:
    """Whether two Arrow types hold the same values, whatever Spark calls a time zone."""
    if pa.types.is_timestamp(ours) and pa.types.is_timestamp(theirs):
        return (ours.tz is None) == (theirs.tz is None)
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        members = zip(ours, theirs, strict=True)
        return all(a.name == b.name and same_type(a.type, b.type) for a, b in members)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        return same_type(ours.value_type, theirs.value_type)
    if pa.types.is_map(ours) and pa.types.is_map(theirs):
        return same_type(ours.key_type, theirs.key_type) and same_type(
            ours.item_type, theirs.item_type
        )
    return bool(ours.equals(theirs))


# --- whole results --------------------------------------------------------------------------------


def as_mode(rows: list[Row], mode: str, keys: int, groups: int) -> list[Row]:
    """What the committed rows of a query amount to, as Spark defines its output modes.

    In update mode a group is sent again when it changes: its last row counts. In complete mode all
    of them are sent again: the last `groups` rows count.
    """
    if mode == "update":
        return list({row[:keys]: row for row in rows}.values())
    return rows[-groups:] if mode == "complete" and groups else rows


def as_multiset(rows: Sequence[Row]) -> Counter[str]:
    """Rows without an order. The sign of a zero is no matter where equal values are grouped."""
    return Counter(json.dumps(row, default=str).replace("-0x0.0p+0", "0x0.0p+0") for row in rows)


def differences(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """The rows that only one side has, a few of each; empty if there are none."""
    mine, other = as_multiset(ours), as_multiset(theirs)
    only_mine, only_other = mine - other, other - mine
    if not only_mine and not only_other:
        return ""
    shown = [f"only here: {row}" for row in sorted(only_mine)[:6]]
    shown += [f"only in Spark: {row}" for row in sorted(only_other)[:6]]
    counts = f"{only_mine.total()} rows only here, {only_other.total()} only in Spark"
    return "\n".join([counts, *shown])
