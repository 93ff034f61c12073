"""Columns taken apart and put together again are the same, wherever in memory they begin."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.arrays import (
    fixed_column,
    is_text,
    python_values,
    storage,
    text_column,
    texts_of,
    true_rows,
    validity_of,
    values_of,
)

DAY = datetime.date(2024, 2, 29)
FIXED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None, True] * 5),
    (pa.int8(), [1, None, -128, 127]),
    (pa.int16(), [1, None, -(1 << 15)]),
    (pa.int32(), [1, None, -(1 << 31)]),
    (pa.int64(), [1, None, -(1 << 63)]),
    (pa.uint32(), [1, None, (1 << 32) - 1]),
    (pa.float32(), [0.5, None, -0.0]),
    (pa.float64(), [0.5, None, float("inf")]),
    (pa.decimal128(18, 2), [decimal.Decimal("1.25"), None, decimal.Decimal("-99999999999999.99")]),
    (pa.date32(), [DAY, None]),
    (pa.timestamp("us"), [datetime.datetime(1, 1, 1), None]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None]),
    (pa.duration("us"), [datetime.timedelta(-1), None]),
]  # fmt: skip
TEXTS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


def slices(array: pa.Array) -> list[pa.Array]:
    return [array.slice(start) for start in range(len(array) + 1)]


@pytest.mark.parametrize(("kind", "values"), FIXED, ids=str)
def test_a_fixed_column_comes_back(kind: pa.DataType, values: list[Any]) -> None:
    for array in slices(pa.array(values, kind)):
        again = fixed_column(kind, values_of(array), validity_of(array))
        again.validate(full=True)
        assert again.equals(array)
        assert values_of(array).size == len(array)


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_a_text_column_comes_back(kind: pa.DataType) -> None:
    for array in slices(pa.array([b"ab", None, b"", "ä".encode()], kind)):
        again = text_column(kind, *texts_of(array), validity_of(array))
        again.validate(full=True)
        assert again.equals(array)
        assert is_text(kind)
        assert storage(kind) is None


@pytest.mark.parametrize("kind", [kind for kind, _ in FIXED] + TEXTS, ids=str)
def test_a_column_of_nulls_and_one_of_nothing(kind: pa.DataType) -> None:
    for count in (0, 3):
        array = pa.nulls(count, kind)
        assert validity_of(array).tolist() == [False] * count
        if is_text(kind):
            offsets, data = texts_of(array)
            assert (offsets.tolist(), data[:0].tolist()) == ([0] * (count + 1), [])
        else:
            assert values_of(array).shape == (count,)


def test_what_is_true_is_not_null() -> None:
    # A null over a bit that is set: what stands there has no meaning.
    bits = [pa.py_buffer(b"\x02"), pa.py_buffer(b"\x07")]
    array = pa.Array.from_buffers(pa.bool_(), 3, bits)
    assert true_rows(array).tolist() == [False, True, False]


def test_nothing_is_copied() -> None:
    array = pa.array([1, 2, 3])
    assert np.shares_memory(values_of(array), values_of(array.slice(1)))


def test_codes_are_valid_where_their_texts_are() -> None:
    codes = pa.array([0, None, 1], pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"]))
    assert validity_of(column).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *FIXED,
        *((kind, [b"\0ab" if "binary" in str(kind) else "ä", None]) for kind in TEXTS),
        (pa.uint64(), [(1 << 64) - 1, None]),
        (pa.list_(pa.int32()), [[1, None], None, []]),
        (pa.null(), [None, None]),
    ],
)
def test_values_for_python_are_those_that_arrow_gives(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    for part in (column, column.slice(1), column.slice(1, 0), column.drop_null()):
        found, wanted = python_values(part), part.to_pylist()
        assert list(map(repr, found)) == list(map(repr, wanted))
