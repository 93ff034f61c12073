"""Spark at the ends of a query: sources and sinks that only it knows, and one query between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import penstock
from penstock.api.datasource import ENDS_FORMAT
from penstock.api.takeover import TAKEN
from penstock.catalyst.session import lacks_format
from penstock.errors import InvalidOption, JobFailed, QueryMismatch
from penstock.log import open_log
from penstock.runtime.queries import stored_query
from penstock.stages.tags import marker_tag
from tests.spark.ends_formats import register
from tests.spark_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = "n bigint, at timestamp, tags array<string>"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with own_session() as session:
        register(session)
        yield session


def lines(folder: Path) -> list[list[int]]:
    """What the sink has, a row for each line."""
    found = (line for file in folder.glob("*.lines") for line in file.read_text().splitlines())
    return sorted([int(value) for value in line.split(",")] for line in found)


def folder_for_lines(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def add_orc(spark: SparkSession, folder: Path, first: int, end: int) -> None:
    """Some seconds from a moment on, a number each."""
    rows = spark.range(first, end, numPartitions=1)
    at = F.timestamp_seconds(F.lit(1_900_000_000) + F.col("id"))
    events = rows.select(F.col("id").alias("n"), at.alias("at"), F.array(F.lit("x")).alias("tags"))
    events.write.mode("append").orc(str(folder))


def writer(df: DataFrame, place: Path, name: str = "ends") -> Any:
    to = penstock.writeStream(df).queryName(name).option("standbySlots", 0)
    return to.option("checkpointLocation", str(place))


@pytest.mark.slow
def test_orc_comes_in_and_a_users_sink_is_fed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, place = folder_for_lines(tmp_path), tmp_path / "place"
    add_orc(spark, tmp_path / "orc", 0, 40)
    events = spark.readStream.schema(EVENTS).orc(str(tmp_path / "orc"))
    seconds = (
        events.withWatermark("at", "1 second")
        .groupBy(F.window("at", "10 seconds"))
        .agg(F.count("n").alias("count"), F.sum("n").alias("sum"))
        .select(F.unix_seconds("window.start").alias("from"), "count", "sum")
    )

    def run() -> Any:
        to = writer(seconds, place).format("lines").option("folder", str(out))
        query = to.trigger(availableNow=True).start()
        assert spark.streams.active == []
        assert penstock.streams(spark).active in ([query], [])
        query.awaitTermination()
        return query

    query = run()
    # The last window waits for its watermark, as it would in Structured Streaming.
    first = [[1_900_000_000 + 10 * k, 10, sum(range(10 * k, 10 * k + 10))] for k in range(5)]
    assert lines(out) == first[:3]
    assert [each.name for each in query.recentProgress] == ["ends"] * len(query.recentProgress)
    assert sum(each.numInputRows for each in query.recentProgress) == 40
    assert "orc" in query.lastProgress.sources[0].description
    assert query.lastProgress.sink.description == "spark lines"
    query.explain()
    told = capsys.readouterr().out
    assert f"Source orc {tmp_path / 'orc'}\n  brought into stream ends.fed_" in told
    assert "Sink spark lines\n  fed by Structured Streaming" in told
    add_orc(spark, tmp_path / "orc", 40, 52)
    again = run()
    assert (again.id, again.runId != query.runId) == (query.id, True)
    assert lines(out) == first
    with open_log(place, read_only=True) as log:
        stored = stored_query(log, "ends")
        assert stored is not None
        assert list(stored.fed.values()) == [f"orc {tmp_path / 'orc'}"]
        (stream,) = stored.fed
        tag = f"S/{stream}/0"
        assert log.trimmed(tag) > 0  # what was read is not kept
        assert log.last(marker_tag(stream)) is None or log.read([tag], log.trimmed(tag), 1) == []
    shutil.rmtree(place / "ends" / "ends" / stream.partition(".")[2])
    with pytest.raises(QueryMismatch, match="is not the checkpoint with which"):
        run()


def test_options_of_nobody_are_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    with pytest.raises(InvalidOption, match="option 'tpoic' is not one for a query"):
        writer(rate, tmp_path / "place").option("tpoic", "x").format("noop").start()
    with pytest.raises(InvalidOption, match="there is no sink 'nowhere'"):
        writer(rate, tmp_path / "place").format("nowhere").start()
    whole = writer(rate.groupBy().count(), tmp_path / "place").outputMode("complete")
    with pytest.raises(InvalidOption, match="cannot hand on a whole result"):
        whole.format("lines").option("folder", str(tmp_path)).start()
    assert not (tmp_path / "place").exists()
    # The format that reaches the streams which queries have for themselves is not for people.
    assert lacks_format(spark, ENDS_FORMAT) is not None


@pytest.mark.slow
def test_taken_over_with_sparks_source(spark: SparkSession, tmp_path: Path) -> None:
    """What only its source would have left to Structured Streaming runs here."""
    taken = penstock.takeover(spark)
    try:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5)
        source = source.option("advanceMsPerBatch", 1_000).option("numPartitions", 1)
        doubled = source.load().selectExpr("value", "value * 2 AS double")
        to = doubled.writeStream.queryName("rated").trigger(availableNow=True).format("parquet")
        query = to.option("checkpointLocation", str(tmp_path / "p")).start(str(tmp_path / "out"))
        query.awaitTermination()
    finally:
        TAKEN.end(str(spark._jsparkSession.sessionUUID()))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.value, row.double) for row in rows) == [(n, 2 * n) for n in range(5)]
    assert taken.summary() == (
        "1 of 1 queries ran on Penstock\n  rated (parquet): Penstock, its source rate-micro-batch "
        "by Structured Streaming"
    )


@pytest.mark.slow
def test_a_users_source_goes_on_and_fails_as_one_query(spark: SparkSession, tmp_path: Path) -> None:
    out, place, upto = folder_for_lines(tmp_path), tmp_path / "place", tmp_path / "upto"
    upto.write_text("100")
    numbers = spark.readStream.format("numbers").option("upto", str(upto)).load()

    def start(where: str) -> Any:
        rows = numbers.where(where).select("n", (F.col("n") * 2).alias("double"))
        to = writer(rows, place).format("lines").option("folder", str(out))
        return to.trigger(processingTime="100 milliseconds").start()

    query = start("n % 2 = 0")
    query.processAllAvailable()
    assert lines(out) == [[n, 2 * n] for n in range(0, 100, 2)]
    assert start("n % 2 = 0") is query
    query.stop()
    assert query.exception() is None
    upto.write_text("200")
    query = start("n % 5 = 0")  # a changed query goes on behind what the first one has read
    query.processAllAvailable()
    wanted = [[n, 2 * n] for n in (*range(0, 100, 2), *range(100, 200, 5))]
    assert lines(out) == wanted
    broken = tmp_path / "upto.broken"
    broken.touch()
    upto.write_text("300")
    with pytest.raises(JobFailed, match=r"the source numbers of query ends.*numbers are broken"):
        query.awaitTermination()
    assert not query.isActive
    broken.unlink()
    (out / "broken").touch()
    query = start("n % 5 = 0")
    with pytest.raises(JobFailed, match="the sink spark lines of query ends failed"):
        query.awaitTermination()
    assert "the lines are broken" in str(query.exception())
    (out / "broken").unlink()
    query = start("n % 5 = 0")
    query.processAllAvailable()
    query.stop()
    assert lines(out) == [*wanted, *([n, 2 * n] for n in range(200, 300, 5))]
