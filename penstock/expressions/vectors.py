"""Columns by our types, and texts changed all at once, without a loop over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, fixed_column, text_column, texts_of
from penstock.expressions.types import DataType, arrow_type

_SURROGATES = (0xDC80, 0xDCFF)  # of bytes that are no text


def arrow_column(values: Vector, valid: Mask | None, data_type: DataType) -> pa.Array:
    """The column of a type; decimals come as scaled integers."""
    return fixed_column(arrow_type(data_type), values, valid)


def byte_offsets(array: pa.Array) -> Vector:
    """Where each text begins in its bytes, and where the last ends."""
    return texts_of(array)[0].astype(np.int64)


def string_slices(array: pa.Array, begins: Vector, ends: Vector, valid: Mask) -> pa.Array:
    """New strings cut from the bytes of `array`'s data at absolute byte positions, row by row."""
    lengths = np.where(valid, np.maximum(ends - begins, 0), 0)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # byte k of the output comes from begins[row] + (k - offsets[row])
    shift = np.repeat(begins - offsets[:-1], lengths)
    data = texts_of(array)[1][np.arange(offsets[-1]) + shift]
    return text_column(pa.string(), offsets, data, valid)


def changed_at_once(text: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """Texts, none of them null, changed as one, with zero characters in between.

    `change` leaves these alone and makes none, so that they show where each text ends.
    """
    if len(text) == 0:
        return text
    changed = pa.array([change(_joined(text))])
    ends = _ends(text, texts_of(changed)[1])
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
