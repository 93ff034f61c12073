"""Texts of files as columns of values: which texts are values of a type is Spark's rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import fixed_column, text_column, texts_of, validity_of
from penstock.connectors import line_kernels, text_kernels

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


@dataclass(frozen=True)
class Texts:
    """Where the texts of a column stand in a run of bytes, and which of them there are."""

    data: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    there: np.ndarray

    @classmethod
    def of(cls, column: pa.Array) -> Texts:
        """Take a string column apart; nothing is copied."""
        offsets, content = texts_of(column)
        places = offsets.astype(np.int64)
        return cls(content, places[:-1], places[1:], validity_of(column))

    def unescaped(self, escaped: np.ndarray, escape: int) -> Texts:
        """Return texts of CSV fields, some of them with escapes, without these."""
        data, begins, ends = line_kernels.unescape(
            self.data, self.begins, self.ends, escaped, escape
        )
        return Texts(data, begins, ends, self.there)


def can_be_text(kind: pa.DataType) -> bool:
    """Say whether `values_of` knows a type."""
    return (
        kind in _INTEGERS
        or kind in (pa.bool_(), pa.float32(), pa.float64(), pa.date32(), pa.string())
        or pa.types.is_decimal128(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


def values_of(texts: Texts, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return texts as a column, and which of those that are there are no value of the type."""
    data, begins, ends = texts.data, texts.begins, texts.ends
    if kind == pa.string():
        copied, offsets = text_kernels.gather(data, begins, ends)
        return text_column(kind, offsets, copied, texts.there), np.zeros(begins.size, np.bool_)
    values: np.ndarray
    if kind in _INTEGERS:
        high = (1 << (_INTEGERS[kind] - 1)) - 1
        values, fits = text_kernels.integers(data, begins, ends, -high - 1, high)
    elif kind == pa.bool_():
        values, fits = text_kernels.booleans(data, begins, ends)
    elif kind == pa.date32():
        values, fits = text_kernels.dates(data, begins, ends)
    elif pa.types.is_timestamp(kind):
        values, fits = text_kernels.timestamps(data, begins, ends, kind.tz is not None)
    else:
        return _rewritten(texts, kind)
    return fixed_column(kind, values, texts.there & fits), texts.there & ~fits


def bytes_of(texts: Texts) -> tuple[pa.Array, np.ndarray]:
    """Return what base64 texts encode, and which of those that are there are none."""
    decoded, offsets, fits = text_kernels.base64_bytes(texts.data, texts.begins, texts.ends)
    return text_column(pa.binary(), offsets, decoded, texts.there & fits), texts.there & ~fits


def _rewritten(texts: Texts, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Read numbers through a plain text that Arrow rounds as Java does."""
    if pa.types.is_decimal128(kind):
        written, offsets, fits = text_kernels.decimal_texts(
            texts.data, texts.begins, texts.ends, kind.precision, kind.scale
        )
    else:
        written, offsets, fits = text_kernels.float_texts(texts.data, texts.begins, texts.ends)
    plain = text_column(pa.string(), offsets, written, texts.there & fits)
    return pc.cast(plain, kind), texts.there & ~fits
