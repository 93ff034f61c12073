"""Columns with codes: what a batch keeps of texts that many batches share."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.columns import plain_batch, with_own_texts
from penstock.kernels.hashing import hash_columns

TEXTS = pa.array([f"text-{number}" for number in range(20)])


def coded(codes: list[int | None]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), TEXTS)
    return pa.record_batch({"n": pa.array(range(len(codes)), pa.int64()), "key": column})


CODES = st.lists(st.none() | st.integers(0, 19), max_size=60)


@given(codes=CODES, start=st.integers(0, 60))
def test_rows_stay_what_they_are(codes: list[int | None], start: int) -> None:
    batch = coded(codes).slice(start)
    for changed in (plain_batch(batch), with_own_texts(batch)):
        assert changed.to_pylist() == batch.to_pylist()
        assert changed.schema.names == batch.schema.names
    assert plain_batch(batch).schema.field("key").type == pa.string()


@given(codes=CODES)
def test_codes_hash_as_their_texts_do(codes: list[int | None]) -> None:
    batch = coded(codes)
    keys, values = batch.columns, plain_batch(batch).columns
    assert (hash_columns(keys, len(codes)) == hash_columns(values, len(codes))).all()


def test_codes_of_no_text_hash_as_nulls_do() -> None:
    nothing = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), TEXTS[:0])
    nulls = pa.nulls(2, pa.string())
    assert (hash_columns([nothing], 2) == hash_columns([nulls], 2)).all()


@pytest.mark.parametrize(
    ("codes", "kept"),
    [
        ([3, 7, 3, 7], ["text-3", "text-7"]),
        ([7, None, 7, 3, 3], ["text-3", "text-7"]),
        ([*range(20)] * 2, TEXTS.to_pylist()),
        ([3] * 16 * 20, TEXTS.to_pylist()),  # to look for those that occur costs more
        ([None] * 4, []),
        ([3, 7, 3], None),  # texts that hardly repeat are cheaper as they are
        ([], []),
    ],
)
def test_only_texts_of_the_batch_are_kept(codes: list[int | None], kept: list[str] | None) -> None:
    column = with_own_texts(coded(codes)).column("key")
    if kept is None:
        assert column.type == pa.string()
    else:
        assert column.dictionary.to_pylist() == kept
