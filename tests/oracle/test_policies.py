"""Watermarks that meet, in lockstep with Structured Streaming, by both of its policies.

Each round brings rows to two streams. Spark runs a batch for them and one without rows, by which
the new watermark closes what it closes; the engine makes a run that ends when it has read them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.catalyst.translate import translate
from penstock.errors import UnsupportedPlan
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.stages.program import Program
from penstock.testing.memory_log import MemoryLog
from tests.oracle.engine import OUTPUT, Manner, Process, program_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
COLUMNS = "k bigint, n bigint, at timestamp, then timestamp"
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", TIME), ("then", TIME)])
SECOND_US = 1_000_000
ROUNDS = 7
Define = Callable[["DataFrame", "DataFrame"], "DataFrame"]


def definitions() -> dict[str, Define]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def timed(rows: DataFrame, time: str = "at", delay: str = "2 seconds") -> DataFrame:
        return rows.withWatermark(time, delay)

    def windows(rows: DataFrame, time: str = "at") -> DataFrame:
        grouped = rows.groupBy(F.window(time, "4 seconds"))
        return grouped.agg(F.count("*").alias("c"), F.sum("n").alias("s"))

    def sessions(rows: DataFrame, gap: Any = "2 seconds") -> DataFrame:
        grouped = rows.groupBy(F.session_window("at", gap).alias("w"), "k")
        return grouped.agg(F.count("*").alias("c"), F.sum("n").alias("s"))

    def paired(how: str, a: DataFrame, b: DataFrame) -> DataFrame:
        near = F.expr("a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 3 SECONDS")
        joined = timed(a).alias("a").join(timed(b, delay="1 second").alias("b"), near, how)
        return joined.select("a.k", "a.n", F.col("b.n").alias("m"))

    return {
        "union": lambda a, b: windows(timed(a).union(timed(b, delay="5 seconds"))),
        "union of other times": lambda a, b: windows(
            timed(a).select("n", "at").union(timed(b, "then").select("n", "then"))
        ),
        "union of which one has a watermark": lambda a, b: windows(timed(a).union(b)),
        "watermark above a union": lambda a, b: windows(timed(a.union(b))),
        "watermark above a union, and another": lambda a, b: windows(
            timed(a.where("n % 2 = 0").union(b)).union(timed(a, delay="6 seconds"))
        ),
        "first rows of a union": lambda a, b: (
            timed(a).union(timed(b)).dropDuplicates(["k", "at"]).select("k", "n", "at")
        ),
        "sessions of a union": lambda a, b: sessions(timed(a).union(timed(b, delay="5 seconds"))),
        # No row is late here: Spark puts the rows of a batch together before it looks for those,
        # and whoever writes rows of his own has batches of his own. Nor does one side rest in a
        # round: Spark forgets at a restart how far it was.
        "sessions of a union of other times and gaps": lambda a, b: sessions(
            timed(a, delay="9 seconds")
            .where("n % 3 > 0")
            .select("k", "n", "at")
            .union(timed(b, "then", "9 seconds").select("k", "n", "then")),
            F.expr("CASE WHEN n % 2 = 0 THEN '1 second' ELSE '3 seconds' END"),
        ),
        "inner join": lambda a, b: paired("inner", a, b),
        "left join": lambda a, b: paired("left", a, b),
        "left join by times that are computed": lambda a, b: paired(
            "left",
            *(
                rows.withColumn("at", F.expr("CAST(CAST(at AS STRING) AS TIMESTAMP)"))
                for rows in (a, b)
            ),
        ),
        "join with what has no watermark": lambda a, b: (
            timed(a).alias("a").join(b.alias("b"), F.expr("a.k = b.k")).select("a.n", "b.at")
        ),
    }


NAMES = ["union", "union of other times", "union of which one has a watermark",
         "watermark above a union", "watermark above a union, and another", "first rows of a union",
         "sessions of a union", "sessions of a union of other times and gaps",
         "inner join", "left join", "left join by times that are computed",
         "join with what has no watermark"]  # fmt: skip


def rounds(rng: random.Random) -> list[tuple[pa.Table, pa.Table]]:
    """Rows of both streams, of which one is ahead by turns; some are late, some rounds empty."""
    made = []
    now_us = [1_700_000_000 * SECOND_US] * 2
    for number in range(ROUNDS):
        tables = []
        for side in (0, 1):
            now_us[side] += rng.choice([0, 2, 5, 9]) * SECOND_US
            rows = [
                (
                    rng.randrange(3),
                    100 * number + row,
                    now_us[side] + rng.randrange(-9_000, 2_000) * 1_000,
                    now_us[side] + rng.randrange(-4_000, 9_000) * 1_000,
                )
                for row in range(0 if number and rng.random() < 0.2 else rng.randrange(2, 12))
            ]
            columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(4)]
            fields = zip(columns, SCHEMA, strict=True)
            tables.append(pa.table([each.cast(f.type) for each, f in fields], SCHEMA))
        made.append((tables[0], tables[1]))
    return made


def shown(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def by_spark(
    spark: SparkSession, define: Define, made: list[tuple[pa.Table, pa.Table]], place: Path
) -> list[list[str]]:
    folders = [place / "a", place / "b"]
    for folder in folders:
        folder.mkdir()
    read = [spark.readStream.schema(COLUMNS).parquet(str(folder)) for folder in folders]
    found: list[str] = []

    def keep(batch: DataFrame, _number: int) -> None:
        found.extend(shown(batch.toArrow()))

    writer = define(*read).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    given: list[list[str]] = []
    for number, tables in enumerate(made):
        for folder, table in zip(folders, tables, strict=True):
            if table.num_rows:
                pq.write_table(table, folder / f"{number}.parquet")
        writer.trigger(availableNow=True).start().awaitTermination()
        given.append(sorted(found))
        found.clear()
    return given


def by_engine(
    spark: SparkSession,
    define: Define,
    made: list[tuple[pa.Table, pa.Table]],
    place: Path,
    rng: random.Random,
) -> list[list[str]]:
    names = ("a", "b")
    read = [
        spark.readStream.format("penstock").schema(COLUMNS).option("stream", name).load()
        for name in names
    ]
    manner = Manner(parallelism=rng.choice((1, 2)))
    program = program_of(translate(define(*read), query="q"), manner)
    program = replace(program, settings=replace(program.settings, available_now=True))
    log = MemoryLog()
    for name in names:
        create_stream(log, name, schema_from_arrow(SCHEMA))
    writers = [StreamWriter(log, name, f"writer_of_{name}") for name in names]
    given: list[list[str]] = []
    seen: list[str] = []
    for tables in made:
        for writer, table in zip(writers, tables, strict=True):
            if table.num_rows:
                writer.write(table.to_batches()[0])
        run_once(program, log, place, rng)
        rows = shown(StreamReader(log, OUTPUT).read_all())
        given.append(sorted((Counter(rows) - Counter(seen)).elements()))
        seen = rows
    return given


def run_once(program: Program, log: MemoryLog, place: Path, rng: random.Random) -> None:
    """A run of all that is there; the process may be lost on the way, and another one goes on."""
    if rng.random() < 0.3:
        lost = Process(program, log.store, place, None)
        for _ in range(rng.randrange(4)):
            lost.host.step()
        lost.crash()
    process = Process(program, log.store, place, None)
    process.host.run_available()
    process.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        # Of every other query one policy; the rest in a campaign.
        pytest.param(name, policy, marks=() if at % 4 == 2 * of else pytest.mark.campaign)
        for at, name in enumerate(NAMES)
        for of, policy in enumerate(("min", "max"))
    ],
)
def test_each_round_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path, name: str, policy: str
) -> None:
    rng = random.Random(f"{name.partition(' by ')[0]} {policy}")  # of one kind: the same rows
    made = rounds(rng)
    define = definitions()[name]
    spark.conf.set(POLICY, policy)
    try:
        wanted = by_spark(spark, define, made, tmp_path)
        found = by_engine(spark, define, made, tmp_path / "engine", rng)
    finally:
        spark.conf.unset(POLICY)
    assert found == wanted
    assert sum(map(len, wanted)) > 1


@pytest.mark.slow
def test_a_second_watermark_is_refused_as_spark_refuses_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """While the first still speaks of the rows; where it does not, Spark goes on, and we tell."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415

    def again(rows: DataFrame, time: str) -> DataFrame:
        return rows.withWatermark(time, "5 seconds").groupBy(time).count()

    defined: dict[str, Callable[[DataFrame], DataFrame]] = {
        "the same column": lambda rows: again(rows, "at"),
        "another column": lambda rows: again(rows, "then"),
        "behind first rows": lambda rows: again(rows.dropDuplicates(["k", "at"]), "at"),
        "behind a union": lambda rows: again(rows.union(rows), "at"),
    }
    for number, (name, define) in enumerate(defined.items()):
        time = "then" if name == "another column" else "at"
        (tmp_path / f"{number}").mkdir()
        pq.write_table(rounds(random.Random(1))[0][0], tmp_path / f"{number}" / "rows.parquet")
        read = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / f"{number}"))
        query = define(read.withWatermark("at", "2 seconds")).writeStream.format("noop")
        query = query.option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        with pytest.raises(StreamingQueryException, match="Redefining watermark is disallowed"):
            query.trigger(availableNow=True).start().awaitTermination()
        with pytest.raises(
            UnsupportedPlan, match="the rows have a watermark on at already"
        ) as refused:
            translate(define(read.withWatermark("at", "2 seconds")), query="q")
        assert refused.value.details["node"] == f"watermark {time}"
        assert refused.value.details["column"] == time
    timed = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "0"))
    lost = timed.withWatermark("at", "2 seconds").drop("at")
    with pytest.raises(UnsupportedPlan, match="on at already, and two on one way would both bound"):
        translate(again(lost, "then"), query="q")
