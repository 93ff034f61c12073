"""The hashes of whole columns are those that Spark computes row by row."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.spark_hash import MURMUR3, XXHASH64
from tests.oracle.edges import EDGE_SCHEMA, edge_rows
from tests.oracle.verdict import static_frame
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# Maps have no hash in Spark's SQL.
_COLUMNS = [field.name for field in EDGE_SCHEMA if field.type.kind != "map"]
_FUNCTIONS = (("xxhash64", XXHASH64), ("hash", MURMUR3))


def _check(frame: DataFrame, batch: pa.RecordBatch, *texts: list[str]) -> None:
    asked = [
        f"{function}({', '.join(names)}) AS {function}_{at}"
        for function, _ in _FUNCTIONS
        for at, names in enumerate(texts)
    ]
    theirs = frame.orderBy("row").selectExpr(*asked).toArrow()
    for function, ours in _FUNCTIONS:
        for at, names in enumerate(texts):
            found = ours.of_rows([batch.column(name) for name in names], batch.num_rows)
            expected = theirs.column(f"{function}_{at}").to_numpy()
            assert np.array_equal(found, expected), (function, names)


def test_every_type_and_several_columns() -> None:
    batch = edge_rows(7, 300)
    frame = static_frame(shared_session(), pa.Table.from_batches([batch]))
    _check(frame, batch, *([name] for name in _COLUMNS), ["a", "u", "x", "d"], _COLUMNS)


def test_decimals_of_38_digits_and_long_texts() -> None:
    rng = random.Random(3)
    wide = [rng.randint(-(10**size), 10**size) for size in range(38) for _ in range(6)]
    edges = [
        sign * ((1 << bits) + more)
        for bits in range(7, 124)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ]
    whole = pa.array([str(each) for each in wide + edges]).cast(pa.decimal128(38, 0))
    texts = ["é日x" * rng.randrange(40) + "a" * rng.randrange(9) for _ in range(len(whole))]
    numbers = pa.array(range(len(whole)), pa.int32())
    batch = pa.RecordBatch.from_arrays([numbers, whole, pa.array(texts)], ["row", "wide", "text"])
    frame = static_frame(shared_session(), pa.Table.from_batches([batch]))
    _check(frame, batch, ["wide"], ["text"], ["text", "wide", "row"])
