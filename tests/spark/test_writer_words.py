"""What a writer refuses, beside what Spark's own refuses: the calls and kinds of errors match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock
from penstock.errors import StreamError
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WORDS: dict[str, Callable[[Any, str], object]] = {
    "no mode": lambda w, _: w.outputMode(""),
    "a number as mode": lambda w, _: w.outputMode(3),
    "unknown mode": lambda w, _: w.outputMode("retract"),
    "no name": lambda w, _: w.queryName(""),
    "blank name": lambda w, _: w.queryName("  "),
    "None as name": lambda w, _: w.queryName(None),
    "no trigger": lambda w, _: w.trigger(),
    "two triggers": lambda w, _: w.trigger(once=True, processingTime="5 seconds"),
    "once is not": lambda w, _: w.trigger(once=False),
    "availableNow is not": lambda w, _: w.trigger(availableNow=False),
    "empty interval": lambda w, _: w.trigger(processingTime=" "),
    "no interval": lambda w, _: w.trigger(processingTime="soon"),
    "number as interval": lambda w, _: w.trigger(continuous=5),
    "no continuous interval": lambda w, _: w.trigger(continuous="soon"),
    "empty real time": lambda w, _: w.trigger(realTime=""),
    "foreach of a number": lambda w, _: w.foreach(3),
    "foreach without process": lambda w, _: w.foreach(type("W", (), {"open": print})()),
    "process is no method": lambda w, _: w.foreach(type("W", (), {"process": True})()),
    "open is no method": lambda w, _: w.foreach(type("W", (), {"process": print, "open": 1})()),
    "close is no method": lambda w, _: w.foreach(type("W", (), {"process": print, "close": 1})()),
    "no path": lambda w, _: w.format("parquet").start(),
    "no view": lambda w, _: w.format("memory").start(),
    "no location": lambda w, d: w.format("parquet").start(f"{d}/out"),
    "json in complete mode": lambda w, d: (
        w.format("json").outputMode("complete").start(f"{d}/out", checkpointLocation=f"{d}/c")
    ),
    "a column that is not there": lambda w, d: (
        w.format("orc").partitionBy("zz").start(f"{d}/out", checkpointLocation=f"{d}/c")
    ),
    "every column": lambda w, d: (
        w.format("csv")
        .partitionBy(["timestamp", "value"])
        .start(f"{d}/out", checkpointLocation=f"{d}/c")
    ),
    "partitions of a view": lambda w, _: (
        w.format("memory").queryName("v").partitionBy("value").start()
    ),
    "partitions of a function": lambda w, _: w.partitionBy("value").foreachBatch(print).start(),
    "a view as table": lambda w, d: w.toTable("a_view", checkpointLocation=f"{d}/c"),
}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """Not attached to a log."""
    session = shared_session().newSession()
    session.sql("CREATE TEMP VIEW a_view AS SELECT 1 AS a")
    return session


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def refusal(call: Callable[[], object]) -> PySparkException:
    with pytest.raises(PySparkException) as caught:
        call()
    return caught.value


def kinds_of(error: BaseException) -> set[type]:
    """The public classes of PySpark that it is of."""
    return {kind for kind in type(error).__mro__ if kind.__module__.endswith("exceptions.base")}


@pytest.mark.parametrize("name", WORDS)
def test_a_call_is_refused_with_sparks_kind_of_error(
    rows: DataFrame, tmp_path: Path, name: str
) -> None:
    say = WORDS[name]
    sparks = refusal(lambda: say(rows.writeStream, str(tmp_path / "spark")))
    ours = refusal(lambda: say(penstock.writeStream(rows), str(tmp_path / "penstock")))
    assert isinstance(ours, StreamError)
    assert kinds_of(sparks) <= kinds_of(ours)
    condition = sparks.getCondition()
    if not str(condition).startswith(("_LEGACY", "INVALID_INTERVAL", "ALL_PARTITION", "None")):
        assert (ours.getCondition(), ours.getMessageParameters() or {}) == (
            condition,
            sparks.getMessageParameters() or {},
        )
    assert not (tmp_path / "penstock").exists()  # nothing is left of it


def test_a_frame_that_does_not_stream_is_refused_as_by_spark(spark: SparkSession) -> None:
    sparks = refusal(lambda: spark.range(3).writeStream)
    ours = refusal(lambda: penstock.writeStream(spark.range(3)))
    assert kinds_of(sparks) <= kinds_of(ours)
    assert ours.getCondition() == sparks.getCondition()


def test_none_leaves_an_option_as_it_is(rows: DataFrame) -> None:
    writer = penstock.writeStream(rows).option("path", "x").option("path", None)
    assert writer.options(path=None, checkpointLocation=None)._options.values == {
        "path": str(Path("x").absolute())
    }
