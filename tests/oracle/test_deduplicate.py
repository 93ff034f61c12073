"""Deduplication beside Structured Streaming, batch by batch with the same watermarks."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.expressions.tree import column
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.operators.specs import DeduplicateSpec, WatermarkSpec
from tests.operators.chains import linear
from tests.thoroughness import few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MS_US, DELAY_US = 1_000, 2_000_000
ROWS: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (("k", "string"), ("n", "bigint"), ("at", "timestamp"))
)
K, N, AT = (column(field.name, field.type) for field in ROWS)
Rows = list[tuple[str, int, int]]


def ours(name: str) -> DeduplicateSpec:
    return {
        "within": DeduplicateSpec((K,), AT, DELAY_US),
        "keyed by time": DeduplicateSpec((K, AT), AT),
        "late by time": DeduplicateSpec((K,), AT),
    }[name]


def theirs(name: str, df: DataFrame) -> DataFrame:
    if name == "within":
        return df.dropDuplicatesWithinWatermark(["k"])
    return df.dropDuplicates(["k", "at"] if name == "keyed by time" else ["k"])


def batches(rng: random.Random) -> list[Rows]:
    made: list[Rows] = []
    now_us = 1_700_000_000_000_000
    for number in range(8):
        rows = []
        for row in range(rng.randrange(1, 25)):
            key = rng.choice(["a", "b", f"k{rng.randrange(20)}"])
            rows.append((key, number * 100 + row, now_us + rng.randrange(-5_000, 3_000) * MS_US))
        made.append(rows)
        now_us += rng.randrange(4_000) * MS_US
    return made


def table(rows: Rows) -> pa.Table:
    schema = arrow_schema(ROWS)
    keys, numbers, times = zip(*rows, strict=True)
    time = pa.array(times, pa.int64()).cast(schema.types[2])
    return pa.table([pa.array(keys), pa.array(numbers, pa.int64()), time], schema=schema)


def by_spark(spark: SparkSession, name: str, made: list[Rows], place: Path) -> list[list[Any]]:
    (place / "in").mkdir()
    for number, rows in enumerate(made):
        path = place / "in" / f"{number}.parquet"
        pq.write_table(table(rows), path)
        os.utime(path, (1_600_000_000 + 10 * number,) * 2)  # one batch for each, in this order
    read = spark.readStream.schema("k string, n bigint, at timestamp")
    rows = read.option("maxFilesPerTrigger", 1).parquet(str(place / "in"))
    found: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = sorted((row.k, row.n) for row in batch.collect())

    query = theirs(name, rows.withWatermark("at", "2 seconds")).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", str(place / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    return [found[number] for number in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["within", "keyed by time", "late by time"])
@pytest.mark.parametrize("seed", few(range(2), every=2))
def test_each_batch_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path, name: str, seed: int
) -> None:
    made = batches(random.Random(f"{name} {seed}"))
    chain = linear((WatermarkSpec("at", DELAY_US), ours(name)), ROWS, None)
    found: list[list[Any]] = []
    seen_us: int | None = None
    for rows in made:
        done = chain.process(table(rows).to_batches()[0])
        found.append(sorted((row["k"], row["n"]) for b in done.batches for row in b.to_pylist()))
        # Spark judges what is late by the watermark of the batch before.
        if seen_us is not None:
            chain.on_watermark(seen_us - DELAY_US)
        seen_us = max([seen_us or 0, *(at_us for _, _, at_us in rows)])
    wanted = by_spark(spark, name, made, tmp_path)
    assert [each for each in found if each] == [each for each in wanted if each]
