"""Joins beside Structured Streaming, batch by batch with the same watermarks."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.expressions.types import arrow_schema
from penstock.operators.chain import Chain
from penstock.operators.specs import JoinSpec
from penstock.plan.nodes import Step, spec_of, walk
from tests.plan.text import parse_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MS_US, DELAY_US = 1_000, 2_000_000
SIDES = ("l", "r")
Rows = list[tuple[str, int, int]]

PLAN = """
query q
  write stream a
    {how} join on lk = rk where ((rt >= timestamp_micros((unix_micros(lt) + -3000000L))) AND (rt <= timestamp_micros((unix_micros(lt) + 1000000L))))
      watermark lt 2 seconds
        scan stream l (lk string, ln bigint, lt timestamp)
      watermark rt 2 seconds
        scan stream r (rk string, rn bigint, rt timestamp)
"""  # noqa: E501 (one node is one line)
HOWS = {"inner": "inner", "left": "left", "right": "right", "full": "full", "semi": "left_semi"}


def ours(how: str) -> Chain:
    """The join alone: who reads its sides keeps the time, here the test."""
    (write,) = parse_query(PLAN.format(how=how)).writes
    node = next(each for each in walk(write.child) if isinstance(spec_of(each), JoinSpec))
    assert isinstance(node, Step)
    return Chain([(side.schema, ()) for side in node.inputs], (node.spec,), None)


def theirs(spark: SparkSession, how: str, place: Path) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    sides = []
    for side in SIDES:
        read = spark.readStream.schema(f"{side}k string, {side}n bigint, {side}t timestamp")
        rows = read.option("maxFilesPerTrigger", 1).parquet(str(place / side))
        sides.append(rows.withWatermark(f"{side}t", "2 seconds"))
    near = "rt >= lt - interval 3 seconds and rt <= lt + interval 1 second"
    return sides[0].join(sides[1], F.expr(f"lk = rk and {near}"), HOWS[how])


def batches(rng: random.Random) -> list[tuple[Rows, Rows]]:
    made = []
    now_us = 1_700_000_000_000_000
    for number in range(7):
        both: tuple[Rows, Rows] = ([], [])
        for rows in both:
            for row in range(rng.randrange(1, 15)):
                time_us = now_us + rng.randrange(-4_000, 3_000) * MS_US
                rows.append((rng.choice(["a", "b", "c"]), number * 100 + row, time_us))
        made.append(both)
        now_us += rng.randrange(4_000) * MS_US
    return made


def table(rows: Rows, side: int) -> pa.Table:
    kinds = [pa.string(), pa.int64(), pa.timestamp("us", "UTC")]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    names = [f"{SIDES[side]}{name}" for name in "knt"]
    return pa.table([c.cast(k) for c, k in zip(columns, kinds, strict=True)], names=names)


def plain(row: dict[str, Any]) -> str:
    return repr([row.get(name) for name in ("lk", "ln", "rk", "rn")])


def by_spark(
    spark: SparkSession, how: str, made: list[tuple[Rows, Rows]], place: Path
) -> list[list[str]]:
    for side, name in enumerate(SIDES):
        (place / name).mkdir()
        for number, both in enumerate(made):
            path = place / name / f"{number}.parquet"
            pq.write_table(table(both[side], side), path)
            os.utime(path, (1_600_000_000 + 10 * number,) * 2)  # one batch for each, in this order
    found: dict[int, list[str]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = sorted(plain(row.asDict()) for row in batch.collect())

    query = theirs(spark, how, place).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", str(place / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    return [found[number] for number in sorted(found)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_each_batch_gives_what_spark_gives(spark: SparkSession, tmp_path: Path, how: str) -> None:
    made = batches(random.Random(how))
    chain = ours(how)
    found: list[list[str]] = []
    seen_us: list[int] = []
    for both in (*made, None):
        rows = []
        for port, side in enumerate(both or ()):
            schema = arrow_schema(chain_schema(chain, port))
            batch = table(side, port).cast(schema).to_batches()[0]
            rows += chain.process(batch, port=port).batches
        # Spark judges what is late by the watermark of the batch before.
        if seen_us:
            rows += chain.on_watermark(min(seen_us) - DELAY_US)
        found.append(sorted(plain(row) for each in rows for row in each.to_pylist()))
        if both is not None:
            latest = [max(time_us for _, _, time_us in side) for side in both]
            seen_us = [max(pair) for pair in zip(latest, seen_us or latest, strict=True)]
    wanted = by_spark(spark, how, made, tmp_path)
    assert [each for each in found if each] == [each for each in wanted if each]


def chain_schema(chain: Chain, port: int) -> Any:
    return chain._ports[port].schema
