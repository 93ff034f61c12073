"""Columns of a Parquet file as columns of a Spark schema: which may be which, and how.

The rule is Spark's for files and schemas that differ, where it keeps the values what they are. It
also reads a time as the number behind it, or cuts an integer off; such files are refused. A column
without any value is read as every type, of which Spark reads some.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.rejects import Misfit

# Before these days two calendars differ; of old times, where zones had other distances.
_FIRST_DAY = pa.scalar(-141_427, pa.int32())  # 1582-10-15
_FIRST_US = -2_208_988_800_000_000  # 1900-01-01

_SMALL = {
    pa.int8(): (pa.int8(),),
    pa.int16(): (pa.int8(), pa.int16(), pa.uint8()),
    pa.int32(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()),
}
_WIDENED: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.bool_(): (pa.bool_(),),
    **_SMALL,
    pa.int64(): (*_SMALL[pa.int32()], pa.int64(), pa.uint32()),
    pa.float32(): (pa.float32(),),
    pa.float64(): (*_SMALL[pa.int32()], pa.float32(), pa.float64()),
    pa.date32(): (pa.date32(), pa.date64()),
    pa.duration("us"): (pa.duration("us"), pa.int64()),  # which is all that Parquet knows of it
}
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
FIXED_BYTES_MAX = 8_192


def place_of(name: str, there: Sequence[str], case_sensitive: bool) -> int:
    """Return where a file has a column, -1 if it has none; raise Misfit if it has two."""
    places = _places_of(name, tuple(there), case_sensitive)
    if len(places) > 1:
        raise Misfit(f"the file has the column {name} twice")
    return places[0] if places else -1


@lru_cache(maxsize=1_024)  # the files of a folder mostly have the same columns
def _places_of(name: str, there: tuple[str, ...], case_sensitive: bool) -> list[int]:
    if case_sensitive:
        return [place for place, found in enumerate(there) if found == name]
    wanted = name.lower()
    return [place for place, found in enumerate(there) if found.lower() == wanted]


def type_misfit(found: pa.DataType, wanted: pa.DataType, case_sensitive: bool) -> str | None:
    """Return why values of one type are never read as the other, None if they are."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return None  # pandas writes a column so that has no value in a file, whatever its type
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        return _struct_misfit(found, wanted, case_sensitive)
    if pa.types.is_map(wanted) and pa.types.is_map(found):
        return type_misfit(found.key_type, wanted.key_type, case_sensitive) or type_misfit(
            found.item_type, wanted.item_type, case_sensitive
        )
    if pa.types.is_list(wanted) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return type_misfit(found.value_type, wanted.value_type, case_sensitive)
    if pa.types.is_fixed_size_binary(found) and found.byte_width > FIXED_BYTES_MAX:
        return f"values of more than {FIXED_BYTES_MAX} bytes each"
    return None if _keeps(found, wanted) else "Spark does not read the one as the other"


def _struct_misfit(found: pa.DataType, wanted: pa.DataType, case_sensitive: bool) -> str | None:
    names = [field.name for field in found]
    common = 0
    for field in wanted:
        try:
            place = place_of(field.name, names, case_sensitive)
        except Misfit as misfit:
            return str(misfit)
        if place < 0:
            continue
        common += 1
        why = type_misfit(found.field(place).type, field.type, case_sensitive)
        if why is not None:
            return f"field {field.name}: {why}"
    return None if common else "the two have no field in common"


def _keeps(found: pa.DataType, wanted: pa.DataType) -> bool:
    if wanted in _WIDENED:
        return found in _WIDENED[wanted]
    if pa.types.is_decimal128(wanted):
        return _decimal_keeps(found, wanted)
    if pa.types.is_timestamp(wanted):
        if pa.types.is_timestamp(found):
            return bool(found.unit != "ns")
        return found == pa.date32() and wanted.tz is None
    if wanted == pa.string():
        return found in _TEXTS or found in _BYTES
    if wanted == pa.binary():
        fixed = bool(pa.types.is_fixed_size_binary(found))
        return fixed or found in _TEXTS or found in _BYTES
    return False


def _decimal_keeps(found: pa.DataType, wanted: pa.DataType) -> bool:
    before: int = wanted.precision - wanted.scale
    if found in (pa.int8(), pa.int16(), pa.int32()):
        return before >= 10
    if found == pa.int64():
        return before >= 20
    if found == pa.uint64():
        return bool(wanted == pa.decimal128(20, 0))
    if not pa.types.is_decimal(found):
        return False
    return bool(wanted.scale >= found.scale and before >= found.precision - found.scale)


def as_type(column: pa.Array, wanted: pa.DataType, case_sensitive: bool) -> pa.Array:
    """Return a column as another type; an ArrowInvalid names the first value that does not fit."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), wanted)
    if pa.types.is_struct(wanted):
        names = [field.name for field in column.type]
        children = []
        for field in wanted:
            place = place_of(field.name, names, case_sensitive)
            if place < 0:
                children.append(pa.nulls(len(column), field.type))
            else:
                children.append(as_type(column.field(place), field.type, case_sensitive))
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=_nulls(column))
    if pa.types.is_map(wanted):
        offsets, begin, size = _places(column)
        keys = as_type(column.keys.slice(begin, size), wanted.key_type, case_sensitive)
        items = as_type(column.items.slice(begin, size), wanted.item_type, case_sensitive)
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_nulls(column))
    if pa.types.is_list(wanted):
        offsets, begin, size = _places(column)
        values = as_type(column.values.slice(begin, size), wanted.value_type, case_sensitive)
        return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=_nulls(column))
    return column if column.type == wanted else pc.cast(column, wanted)


def as_codes(column: pa.Array, wanted: pa.DataType) -> pa.DictionaryArray | None:
    """Return a column of codes as codes of the type wanted; None: it has none, or not of such."""
    if not pa.types.is_dictionary(column.type):
        return None
    try:
        values = column.dictionary.cast(wanted)
        return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), values)
    except pa.ArrowInvalid:
        return None  # of a value that may belong to none of these rows


def decoded_bytes(rows: pa.RecordBatch) -> np.ndarray | None:
    """Return how many bytes each row's texts need once they are built, None if none are to be."""
    total = None
    for column in rows.columns:
        sizes = _decoded(column)
        if sizes is not None:
            total = sizes if total is None else total + sizes
    return total


def stored_texts(column: pa.Array) -> list[pa.Array]:
    """Return the dictionaries of texts that a column is, or that are inside it."""
    if pa.types.is_dictionary(column.type):
        return [column.dictionary]
    return [texts for part in _inside(column) for texts in stored_texts(part)]


def decoded_bytes_most(rows: pa.RecordBatch) -> int:
    """Return a bound of what `decoded_bytes` adds up to, found without a look at the rows."""
    stored = (c.dictionary for c in rows.columns if pa.types.is_dictionary(c.type))
    return sum(map(longest_text, stored)) * int(rows.num_rows)


def longest_text(texts: pa.Array) -> int:
    """Return how many bytes the longest text has."""
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _inside(column: pa.Array) -> list[pa.Array]:
    """Return the columns that a nested one is made of, whole, however it is sliced."""
    if pa.types.is_struct(column.type):
        return [column.field(place) for place in range(column.type.num_fields)]
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return [column.values]
    return []


def _decoded(column: pa.Array) -> np.ndarray | None:
    if pa.types.is_dictionary(column.type):
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        taken = lengths.take(column.indices).fill_null(0)
        return np.asarray(taken.to_numpy(zero_copy_only=False))
    inside = _inside(column)
    if pa.types.is_struct(column.type):
        parts = [_decoded(part) for part in inside]
        known = [part for part in parts if part is not None]
        return np.sum(known, axis=0) if known else None
    if not inside:
        return None
    offsets, begin, size = _places(column)
    total = None
    for values in inside:
        sizes = _decoded(values.slice(begin, size))
        if sizes is not None:
            ends = np.concatenate([[0], np.cumsum(sizes)])[offsets.to_numpy()]
            total = np.diff(ends) + (0 if total is None else total)
    return total


def is_time_inside(wanted: pa.DataType) -> bool:
    """Say whether a nested type holds dates or times."""
    if not pa.types.is_nested(wanted):
        return False
    kinds = [wanted.field(place).type for place in range(wanted.num_fields)]
    return any(pa.types.is_temporal(kind) or is_time_inside(kind) for kind in kinds)


def is_before_the_calendar(column: pa.Array) -> np.ndarray:
    """Return which values are so old that they mean another day in the old calendar."""
    if column.type == pa.date32():
        old = pc.less(column.cast(pa.int32()), _FIRST_DAY)
    elif pa.types.is_timestamp(column.type):
        old = pc.less(column.cast(pa.int64()), _FIRST_US)
    else:
        return np.zeros(len(column), np.bool_)
    return np.asarray(old.fill_null(False).to_numpy(zero_copy_only=False))


def _places(column: pa.Array) -> tuple[pa.Array, int, int]:
    """Return a list column's offsets from 0 on, and which range of its values they speak of."""
    offsets = column.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    return pa.array((offsets - begin).astype(np.int32)), begin, end - begin


def _nulls(column: pa.Array) -> pa.Array | None:
    return pc.is_null(column) if column.null_count else None
