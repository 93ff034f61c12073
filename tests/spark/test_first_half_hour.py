"""What somebody new does first: files through a query into files, however many vertices it has."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api.session import Attached
from tests.spark.waiting import wait_for
from tests.spark_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

COLUMNS = "at timestamp, who string, amount bigint"
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with own_session() as session:
        yield penstock.attach(session, tmp_path_factory.mktemp("first") / "log")


def write_files(folder: Path, files: int, rows: int) -> None:
    folder.mkdir()
    for number in range(files):
        first = number * rows
        table = pa.table(
            {
                "at": pa.array([n * SECOND_US // 10 for n in range(first, first + rows)])
                .cast(pa.timestamp("us", "UTC")),
                "who": [f"user {n % 37}" for n in range(first, first + rows)],
                "amount": pa.array(range(first, first + rows), pa.int64()),
            }
        )  # fmt: skip
        pq.write_table(table, folder / f"{number}.parquet")


def spent(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    late = rows.withWatermark("at", "5 seconds")
    return late.groupBy(f.window("at", "10 seconds"), "who").agg(
        f.count("*").alias("n"), f.sum("amount").alias("spent")
    )


def lines(rows: DataFrame) -> list[tuple[Any, ...]]:
    plain = rows.selectExpr("cast(window.start as bigint)", "who", "n", "spent").collect()
    return sorted(tuple(row) for row in plain)


@pytest.mark.parametrize("files", [1, 3])
def test_any_parallelism_gives_the_windows_that_the_input_closes(
    spark: SparkSession, tmp_path: Path, files: int
) -> None:
    write_files(tmp_path / "in", files, 3_000)
    answers = {}
    for parallelism in (1, 2, 3):
        rows = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "in"))
        out = str(tmp_path / f"out{parallelism}")
        writer = penstock.writeStream(spent(rows)).queryName(f"spent_{files}_{parallelism}")
        writer.options(parallelism=parallelism, slots=1, standbySlots=0)
        query = writer.trigger(availableNow=True).start(out, "parquet")
        assert query.awaitTermination(120)
        answers[parallelism] = lines(spark.read.parquet(out))
    whole = lines(spent(spark.read.schema(COLUMNS).parquet(str(tmp_path / "in"))))
    last_s = (files * 3_000 - 1) // 10
    closed = [line for line in whole if line[0] + 10 <= last_s - 5]
    assert 0 < len(closed) < len(whole)
    assert answers == {1: closed, 2: closed, 3: closed}


def test_a_sink_that_cannot_keep_up_slows_the_query(
    attached: Attached, spark: SparkSession, tmp_path: Path
) -> None:
    """While the function holds its first batch, the input is not read on without bound."""
    write_files(tmp_path / "in", 40, 5_000)
    rows = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "in"))
    begun, go_on = threading.Event(), threading.Event()
    delivered: list[int] = []

    def slow(batch: DataFrame, epoch: int) -> None:
        begun.set()
        assert go_on.wait(200)
        delivered.append(batch.count())

    writer = penstock.writeStream(rows).queryName("slowed").foreachBatch(slow)
    writer.options(standbySlots=0, stepRowsMax=1_000, undeliveredBytesMax=100_000)
    query = writer.start()
    try:
        assert begun.wait(200)
        seen: list[int] = []

        def rests() -> bool:
            taken = sum(facts["rows_in"] for facts in query.job.vertex_status().values())
            seen.append(taken)
            return len(seen) > 20 and seen[-20] == taken > 0

        wait_for("the vertex to stop reading", rests)
        assert seen[-1] < 40 * 5_000
        go_on.set()
        query.processAllAvailable()
        assert sum(delivered) == 40 * 5_000
    finally:
        go_on.set()
        query.stop()


PROGRAM = """
import sys
from pyspark.sql import SparkSession
import penstock
spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
penstock.attach(spark, "log")
rows = spark.readStream.schema("n bigint").json("in")
query = penstock.writeStream(rows).queryName("q").trigger(availableNow=True).start("out", "parquet")
query.awaitTermination()
running = penstock.writeStream(rows).queryName("r").toStream("r").start()
running.processAllAvailable()
running.stop()
print(spark.read.parquet("out").count())
spark.stop()
"""


def test_normal_ends_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{"n": 2}\n')
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert answer.stdout.splitlines()[-1:] == ["2"], answer.stderr
    before_the_first_job = ("NativeCodeLoader", "Utils: Your hostname", "Utils: Set SPARK_LOCAL_IP")
    told = [
        line
        for line in answer.stderr.splitlines()
        if (" WARN " in line or " ERROR " in line or "Traceback" in line)
        and not any(name in line for name in before_the_first_job)
    ]
    assert told == []
