"""Queries in which time decides, beside Structured Streaming, batch by batch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.catalyst.translate import translate
from penstock.operators.chain import Chain
from penstock.plan.nodes import Scan, Step, walk
from tests.operators.chains import linear
from tests.thoroughness import few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

MS_US, DELAY_US = 1_000, 2_000_000
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
Define = Callable[["DataFrame"], "DataFrame"]
Rows = list[dict[str, Any]]


def definitions() -> dict[str, Define]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def sessions(df: DataFrame, gap: Any = "1500 milliseconds") -> DataFrame:
        grouped = df.groupBy(F.session_window("at", gap).alias("w"), "k")
        return grouped.agg(F.count("*").alias("c"), F.sum("n").alias("s"), F.max("n").alias("hi"))

    choice = lambda: (  # noqa: E731
        F.when(F.col("n") % 5 == 0, "200 milliseconds")
        .when(F.col("n") % 5 == 1, "3 seconds")
        .when(F.col("n") % 5 == 2, "0 seconds")
        .when(F.col("n") % 5 == 3, "-1 second")
        .when(F.col("n") % 5 == 4, F.lit(None))
    )
    windows = lambda df: df.groupBy(F.window("at", "1 second").alias("w"), "k")  # noqa: E731
    return {
        "sessions": sessions,
        "sessions, a gap of each row": lambda df: sessions(df, choice()),
        "windows of sessions": lambda df: (
            sessions(df).groupBy(F.window("w", "5 seconds")).agg(F.sum("c").alias("c"))
        ),
        "sessions of windows": lambda df: (
            windows(df)
            .count()
            .groupBy(F.session_window(F.window_time("w"), "2 seconds"), "k")
            .agg(F.sum("count").alias("c"), F.count("*").alias("n"))
        ),
        "sessions again": lambda df: sessions(df).groupBy("w", "k").agg(F.sum("c").alias("c")),
        "four in a row": lambda df: (
            windows(df)
            .agg(F.count("*").alias("c"), F.max("n").alias("n"))
            .groupBy(F.window("w", "2 seconds").alias("w2"), "k")
            .agg(F.sum("c").alias("c"))
            .groupBy(F.window(F.window_time("w2"), "4 seconds", "2 seconds").alias("w3"))
            .agg(F.max("c").alias("m"), F.count("*").alias("keys"))
            .groupBy(F.window("w3", "8 seconds").alias("w4"))
            .agg(F.sum("m").alias("s"), F.sum("keys").alias("keys"))
        ),
        "distinct, then windows, then the window itself": lambda df: (
            windows(df.dropDuplicates(["k", "at"]))
            .count()
            .groupBy("w")
            .agg(F.max("count").alias("most"))
        ),
    }


NAMES = ["sessions", "sessions, a gap of each row", "windows of sessions", "sessions of windows",
         "sessions again", "four in a row",
         "distinct, then windows, then the window itself"]  # fmt: skip


def batches(rng: random.Random) -> list[Rows]:
    made: list[Rows] = []
    now_us = 1_700_000_000_000_000
    for number in range(8):
        rows = []
        for row in range(rng.randrange(1, 25)):
            key = rng.choice(["a", "b", f"k{rng.randrange(4)}"])
            at_us = now_us + rng.randrange(-5_000, 3_000) * MS_US
            rows.append({"k": key, "n": number * 100 + row, "at": at_us})
        made.append(rows)
        now_us += rng.randrange(4_000) * MS_US
    return made


def table(rows: Rows) -> pa.Table:
    columns = [pa.array([row[name] for row in rows]) for name in SCHEMA.names]
    return pa.table([each.cast(f.type) for each, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def by_spark(df: DataFrame, place: Path) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = shown(batch.toArrow())

    query = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(place))
    query.trigger(availableNow=True).start().awaitTermination()
    return [found[number] for number in sorted(found)]


def shown(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def chain_of(df: DataFrame) -> Chain:
    """All of a query's operators as one chain."""
    *steps, scan = walk(translate(df, query="timed").relation)
    assert isinstance(scan, Scan)
    specs = [node.spec for node in reversed(steps) if isinstance(node, Step)]
    assert len(specs) == len(steps)
    return linear(specs, scan.schema, None)


def by_chain(df: DataFrame, made: list[Rows]) -> list[list[Any]]:
    chain, found = chain_of(df), []
    seen_us: int | None = None
    for rows in [*made, None]:
        emitted = [] if rows is None else list(chain.process(table(rows).to_batches()[0]).batches)
        # Spark judges what is late by the watermark of the batch before.
        if seen_us is not None:
            emitted += chain.on_watermark(seen_us - DELAY_US)
        found.append(shown(pa.Table.from_batches(emitted)) if emitted else [])
        seen_us = max([seen_us or 0, *(row["at"] for row in rows or ())])
    return found


@pytest.mark.parametrize("name", few([*NAMES], every=2))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_each_batch_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path, name: str, seed: int
) -> None:
    made = batches(random.Random(f"{name} {seed}"))
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(made):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(table(rows), path)
        os.utime(path, (1_600_000_000 + 10 * number,) * 2)  # one batch for each, in this order
    read = spark.readStream.schema("k string, n bigint, at timestamp")
    rows = read.option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    df = definitions()[name](rows.withWatermark("at", "2 seconds"))
    wanted = [each for each in by_spark(df, tmp_path / "checkpoint") if each]
    found = [each for each in by_chain(df, made) if each]
    assert found == wanted
    assert len(wanted) > 1
