"""Which row groups of a Parquet file hold no row that a condition lets through.

Their statistics say so, if they are there and of a kind whose order is beyond doubt: signed
integers, dates, times, small decimals, and texts. Floats are not: what is said of them may leave
NaN out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_footer import DAMAGE, read_footer

_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6  # how values are stored
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())

Value = int | bytes  # as Parquet orders them: days, microseconds, unscaled digits, UTF-8


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A column compared with a constant, or looked at for nulls."""

    column: str
    kind: Literal["eq", "lt", "le", "gt", "ge", "is_null", "is_not_null"]
    value: Value = 0


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part has to be true; there may be others besides that nobody could express."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the parts has to be true."""

    parts: tuple[Condition, ...]


Condition = ColumnTest | AllOf | AnyOf


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a column in a row group: of its values, if it has any, and of its nulls."""

    least: Value | None
    most: Value | None
    nulls: int | None
    rows: int


def excludes(condition: Condition, bounds: Callable[[str], Bounds | None]) -> bool:
    """Say whether a condition is true of no row, by what is known of the columns."""
    if isinstance(condition, AllOf):
        return any(excludes(part, bounds) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return all(excludes(part, bounds) for part in condition.parts)
    known = bounds(condition.column)
    if known is None:
        return False
    if condition.kind == "is_null":
        return known.nulls == 0
    if known.nulls == known.rows:
        return True  # no comparison is true of a null
    if condition.kind == "is_not_null" or known.least is None or known.most is None:
        return False
    least, most, value = known.least, known.most, condition.value
    if isinstance(value, int) != isinstance(least, int):
        return False
    outside: Mapping[str, bool] = {
        "eq": value < least or most < value,  # type: ignore[operator]
        "lt": least >= value,  # type: ignore[operator]
        "le": least > value,  # type: ignore[operator]
        "gt": most <= value,  # type: ignore[operator]
        "ge": most < value,  # type: ignore[operator]
    }
    return outside[condition.kind]


def excluded_groups(
    file: OpenFile,
    condition: Condition,
    columns: Mapping[str, tuple[str, pa.DataType, pa.DataType]],
    group_rows: Sequence[int],
) -> list[bool]:
    """Say of each row group whether it may be passed over.

    `columns`: of each column that is wanted and there, its name and type in the file, and the type
    that is wanted. Whatever is missing, damaged or unknown, the row group is read.
    """
    nothing = [False] * len(group_rows)
    try:
        footer = read_footer(file)
        groups = footer[4]
        if [group[3] for group in groups] != list(group_rows):
            return nothing
        return [_is_excluded(group, footer.get(7, []), condition, columns) for group in groups]
    except DAMAGE:
        return nothing


def _is_excluded(
    group: Mapping[int, Any],
    orders: Sequence[Any],
    condition: Condition,
    columns: Mapping[str, tuple[str, pa.DataType, pa.DataType]],
) -> bool:
    def bounds(name: str) -> Bounds | None:
        if name not in columns:
            return None
        there, found, wanted = columns[name]
        if pa.types.is_nested(found):
            return None  # an empty list is no null, though it has no value
        for place, chunk in enumerate(group[1]):
            about = chunk.get(3, {})
            if about.get(3) == [there.encode()]:
                is_ordered = place < len(orders) and orders[place] == {1: {}}
                statistics = about.get(12, {})
                least = most = None
                if is_ordered and 5 in statistics and 6 in statistics:
                    least = _value(statistics[6], about[1], found, wanted)
                    most = _value(statistics[5], about[1], found, wanted)
                if least is not None and most is not None and least > most:  # type: ignore[operator]
                    return None
                return Bounds(least, most, statistics.get(3), group[3])
        return None

    return excludes(condition, bounds)


def _value(raw: bytes, stored: int, found: pa.DataType, wanted: pa.DataType) -> Value | None:
    """Return a stored value in the terms of the wanted type, None if they are not the file's."""
    if stored == _BYTE_ARRAY:
        return raw if found in _TEXTS and wanted in _TEXTS else None
    if (stored, len(raw)) not in ((_INT32, 4), (_INT64, 8)):
        return None
    value = int.from_bytes(raw, "little", signed=True)
    if found in _SIGNED and wanted in _SIGNED:
        return value
    if found == wanted and (found == pa.date32() or pa.types.is_decimal128(found)):
        return value
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted) and wanted.unit == "us":
        return {"us": value, "ms": value * 1_000}.get(found.unit)
    return None
