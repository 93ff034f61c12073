"""The key hash decides who owns a key: its values are frozen, and all ways to compute it agree."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expressions.tree import column
from penstock.expressions.types import parse_type, schema_from_arrow
from penstock.kernels.block import Block, BlockAggregate, BlockSpec
from penstock.kernels.cache import KernelCache
from penstock.kernels.hashing import bytes_word, hash_columns, key_hash
from tests.thoroughness import examples

# Never change a line of these: states and streams on disk were partitioned by them.
FROZEN: list[tuple[list[Any], int]] = [
    ([], 1885695603),
    ([0], 4256967848),
    ([1], 1928364361),
    ([-1], 4143453505),
    ([None], 2957202927),
    ([(1 << 63) - 1], 748123414),
    ([1, 2], 3180490494),
    ([2, 1], 3893954949),
    ([None, 7], 713299404),
    ([b""], 4206557088),
    ([b"a"], 2768543051),
    ([b"h\xc3\xa9llo"], 2227793041),
    ([b"0123456789abcdefg"], 1232543243),
    ([1, b"h\xc3\xa9llo"], 3247538080),
    ([1.5], 2446482789),
    ([float("nan")], 986843407),
]


def word(part: Any) -> int | None:
    """A key part as the word that the definition asks for."""
    if part is None or isinstance(part, int):
        return part
    if isinstance(part, bytes):
        return bytes_word(part)
    if math.isnan(part):
        return 0x7FF8000000000000
    return int.from_bytes(struct.pack("<d", part + 0.0), "little")


def test_frozen_values() -> None:
    assert [(parts, key_hash([word(part) for part in parts])) for parts, _ in FROZEN] == FROZEN


def column_of(parts: list[Any]) -> pa.Array:
    kind = next((type(part) for part in parts if part is not None), int)
    if kind is bytes:
        return pa.array([None if p is None else p.decode() for p in parts], pa.string())
    return pa.array(parts, pa.float64() if kind is float else pa.int64())


def test_frozen_values_over_arrays() -> None:
    for parts, expected in FROZEN:
        assert hash_columns([column_of([part]) for part in parts], 1).tolist() == [expected]


TEXTS = st.one_of(st.none(), st.text(max_size=30).map(str.encode))


@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)),
            st.one_of(st.none(), st.floats()),
            TEXTS,
        ),
        min_size=1,
        max_size=20,
    ),
    cut=st.integers(0, 19),
)
def test_arrays_agree_with_the_definition(rows: list[tuple[Any, ...]], cut: int) -> None:
    arrays = [
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([row[1] for row in rows], pa.float64()),
        pa.array([None if row[2] is None else row[2].decode() for row in rows], pa.string()),
    ]
    cut = min(cut, len(rows) - 1)
    found = hash_columns([array.slice(cut) for array in arrays], len(rows) - cut)
    assert found.tolist() == [key_hash([word(part) for part in row]) for row in rows[cut:]]


def test_narrow_types_hash_like_wide_ones() -> None:
    """A key keeps its owner when its column is widened."""
    for value in (-3, 0, 100):
        wide = hash_columns([pa.array([value], pa.int64())], 1)
        for kind in (pa.int8(), pa.int16(), pa.int32()):
            assert hash_columns([pa.array([value], kind)], 1) == wide
        double = hash_columns([pa.array([value / 4], pa.float64())], 1)
        assert hash_columns([pa.array([value / 4], pa.float32())], 1) == double


@settings(max_examples=examples(30))
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-5, 5)),
            st.one_of(st.none(), st.sampled_from([0.0, -0.0, float("nan"), 2.5])),
            st.one_of(st.none(), st.sampled_from(["", "a", "bb", "a longer text"])),
        ),
        max_size=30,
    )
)
def test_a_kernel_hashes_as_arrays_do(kernels: KernelCache, rows: list[tuple[Any, ...]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[index] for row in rows], kind)
            for index, kind in enumerate((pa.int32(), pa.float64(), pa.string()))
        ],
        names=["i", "x", "s"],
    )
    kinds = (("i", "int"), ("x", "double"), ("s", "string"))
    keys = tuple(column(name, parse_type(kind)) for name, kind in kinds)
    spec = BlockAggregate(keys, None, 0, 0, (("rows", None),))
    block = Block(BlockSpec(schema_from_arrow(batch.schema), (), (), None, spec), kernels)
    every = hash_columns(batch.columns, batch.num_rows)
    partials = block.aggregate(batch)
    assert set(partials.hashes.tolist()) == set(every.tolist())
    assert int(partials.rows.sum()) == batch.num_rows
    assert len(np.unique(partials.hashes)) == len(partials.hashes)
