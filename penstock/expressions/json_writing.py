"""Structs, arrays and maps written as JSON texts, as Spark's to_json writes them: column by column.

In a struct what is null is left out; in an array or a map it is written.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, texts_of, validity_of, values_of
from penstock.expressions.casts import text_of
from penstock.expressions.formats import text_by_pattern
from penstock.expressions.frame import Frame
from penstock.expressions.lists import Items, entries_of, items_of
from penstock.expressions.nodes import Call
from penstock.expressions.printing import digits_text, joined_text, with_nulls
from penstock.expressions.types import STRING, DataType, array_type
from penstock.expressions.zones import SECOND_US, load_zone

_TIME_PATTERN = "yyyy-MM-dd'T'HH:mm:ss.SSS"
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SPACE = ord(" ")


def to_json(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return _json(args[0], node.args[0].type, node.option("time_zone"))


def _json(array: pa.Array, data_type: DataType, zone: str | None) -> pa.Array:
    """The text of each value, null where that is null."""
    if data_type.kind == "struct":
        return _objects(array, data_type, zone)
    if data_type.element is not None:
        items = items_of(array)
        texts = _json(items.values, data_type.element, zone).fill_null("null")
        return joined_text("[", _joined(items, texts), "]")
    if data_type.value is not None:
        names, values = entries_of(array)
        texts = _json(values.values, data_type.value, zone).fill_null("null")
        return joined_text("{", _joined(names, joined_text(quoted(names.values), ":", texts)), "}")
    if data_type == STRING:
        return quoted(array)
    if data_type.kind == "timestamp":
        assert zone is not None
        return joined_text('"', _times(values_of(array), validity_of(array), zone), '"')
    text = text_of(array, data_type)
    if data_type.kind == "date":
        return joined_text('"', text, '"')
    if data_type.kind == "double":  # what is no number is a text in JSON
        finite = np.isfinite(values_of(array)) | ~validity_of(array)
        return (
            text
            if finite.all()
            else pc.if_else(pa.array(finite), text, joined_text('"', text, '"'))
        )
    return text


def _objects(array: pa.Array, data_type: DataType, zone: str | None) -> pa.Array:
    members = [
        joined_text(quoted(pa.array([field.name]))[0], ":", _json(column, field.type, zone))
        for column, field in zip(array.flatten(), data_type.fields, strict=True)
    ]
    # Arrow leaves out rows that have none at all: here each has an empty one first.
    first = pa.repeat("", len(array))
    inside = pc.binary_join_element_wise(first, *members, ",", null_handling="skip")
    inside = pc.utf8_slice_codeunits(inside, 1)
    return with_nulls(joined_text("{", inside, "}"), validity_of(array))


def _joined(items: Items, texts: pa.Array) -> pa.Array:
    """The texts of each row's items with commas in between."""
    lists = Items(texts, items.lengths, items.valid).array(array_type(STRING))
    return pc.binary_join(lists, ",")


def quoted(texts: pa.Array) -> pa.Array:
    """Texts between quotes, with escapes where JSON must have them."""
    offsets, data = texts_of(texts)
    written = data[offsets[0] : offsets[-1]] if len(texts) else data[:0]
    present = np.bincount(written, minlength=256) > 0
    if present[ord("\\")]:
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if present[ord('"')]:
        texts = pc.replace_substring(texts, '"', '\\"')
    for code in np.flatnonzero(present[:_SPACE]):
        escape = _SHORT.get(chr(code), f"\\u{code:04X}")
        texts = pc.replace_substring(texts, chr(code), escape)
    return joined_text('"', texts, '"')


def _times(micros: Vector, valid: Mask, zone: str) -> pa.Array:
    """Up to the millisecond, with the distance to UTC."""
    found = load_zone(zone)
    seconds = np.where(valid, found.offsets_at(micros) // SECOND_US, 0)
    ahead = np.abs(seconds)
    distance = joined_text(
        pc.if_else(pa.array(seconds < 0), "-", "+"),
        digits_text(ahead // 3600, 2),
        ":",
        digits_text(ahead // 60 % 60, 2),
    )
    if (ahead % 60).any():  # of times before there were zones
        odd = joined_text(distance, ":", digits_text(ahead % 60, 2))
        distance = pc.if_else(pa.array(ahead % 60 > 0), odd, distance)
    distance = pc.if_else(pa.array(seconds == 0), "Z", distance)
    return joined_text(text_by_pattern(*found.wall_times(micros), valid, _TIME_PATTERN), distance)
