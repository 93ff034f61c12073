"""The queries of a session and who listens to them; a program of Spark's that is taken over."""

from __future__ import annotations

import json
import logging
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

import penstock
from penstock.api.query import StreamingQuery
from penstock.api.streams import session_id
from penstock.api.takeover import TAKEN, Takeover
from penstock.errors import UnsupportedPlan
from tests.spark.waiting import wait_for
from tests.spark_session import own_session, shared_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    """A session of this test's own, without a log."""
    with own_session() as session:
        yield session
        for query in penstock.streams(session).active:
            query.stop()
        TAKEN.end(session_id(session))


@pytest.fixture
def ticks(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 100).load()


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\nthree\n")
    return spark.readStream.text(str(tmp_path / "in"))


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)


class Raising(Heard):
    def onQueryProgress(self, event: Any) -> None:
        raise ValueError("a listener of the user's")

    def onQueryTerminated(self, event: Any) -> None:
        sys.exit("its program is to end")


# --- progress and listeners -----------------------------------------------------------------------


def test_progress_is_pysparks_and_there_when_all_rows_are(lines: DataFrame) -> None:
    query = penstock.writeStream(lines).format("noop").start()
    query.processAllAvailable()
    last = query.lastProgress
    assert isinstance(last, StreamingQueryProgress)
    assert last in query.recentProgress
    assert (last.name, str(last.id), last["id"]) == (None, query.id, query.id)
    assert last.runId == uuid.UUID(query.runId)
    assert re.fullmatch(r"FileStreamSource\[file:/.*/in\]", last.sources[0].description)
    assert sum(p.numInputRows for p in query.recentProgress) == 3
    assert sum(p.sources[0].numInputRows for p in query.recentProgress) == 3
    assert sum(p.sink.numOutputRows for p in query.recentProgress) == 3
    again = StreamingQueryProgress.fromJson(json.loads(last.json))
    assert again.json == last.json
    assert json.loads(last.prettyJson) == json.loads(last.json)
    query.processAllAvailable()
    assert query.lastProgress == last  # nothing has happened since
    query.stop()


def test_observed_rows_event_times_and_states_are_told_with_the_progress(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Over all entries each row counts once, and as Spark counts it; the program is not edited."""
    folder = tmp_path / "events"
    folder.mkdir()
    events = [{"k": n % 3, "t": f"2024-01-01T00:00:{n:02}Z", "x": f"{n}.5"} for n in range(60)]
    (folder / "1.json").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    read = spark.readStream.schema("k int, t timestamp, x decimal(10,2)").json(str(folder))
    seen = read.observe(
        "seen", F.count("*").alias("n"), F.sum("x"), (F.max("t") - F.min("t")).alias("span"),
        F.max("t").alias("last"), F.collect_set("k").alias("ks"),
    )  # fmt: skip
    counted = seen.withWatermark("t", "0 seconds").groupBy(F.window("t", "10 seconds"), "k").count()
    told = counted.observe("told", F.count(F.lit(1)).alias("n"), F.sum("count").alias("rows"))
    penstock.takeover(spark, strict=True)
    spark.streams.addListener(heard := Heard())
    query = told.writeStream.format("memory").queryName("windows").start()
    query.processAllAvailable()
    late = [{"k": 9, "t": "2024-01-01T00:00:01Z", "x": None}] * 4
    last = {"k": 9, "t": "2024-01-01T01:00:00Z", "x": "1"}
    for number, rows in ((2, late), (3, [last])):
        (tmp_path / "new").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (tmp_path / "new").rename(folder / f"{number}.json")
        query.processAllAvailable()
    progress = query.recentProgress
    query.stop()
    metrics = [entry.observedMetrics["seen"] for entry in progress]
    assert sum(row.n for row in metrics) == 65
    assert sum(row["sum(x)"] or 0 for row in metrics) == Decimal("1801.00")
    assert max(row.last for row in metrics if row.n) == read_time("2024-01-01T01:00:00Z")
    assert {k for row in metrics for k in row.ks} == {0, 1, 2, 9}
    assert [row.span for row in metrics if row.n == 60] in ([timedelta(seconds=59)], [])
    windows = [entry.observedMetrics["told"] for entry in progress]
    assert sum(row.n for row in windows) == spark.table("windows").count() == 18
    assert sum(row.rows or 0 for row in windows) == 60
    heard_of = [each.progress for each in heard.events if isinstance(each, QueryProgressEvent)]
    assert [each.observedMetrics for each in heard_of][: len(progress)] == [
        each.observedMetrics for each in progress
    ]
    states = [entry.stateOperators[0] for entry in progress]
    assert sum(state.numRowsDroppedByWatermark for state in states) == 4
    assert sum(state.numRowsUpdated for state in states) >= 1
    newest = progress[-1]
    assert newest.eventTime["max"] == newest.eventTime["watermark"] == "2024-01-01T01:00:00.000Z"
    assert newest.durationMs["addBatch"] == newest.durationMs["triggerExecution"] > 0
    assert newest.sources[0].latestOffset == newest.sources[0].endOffset
    again = StreamingQueryProgress.fromJson(json.loads(newest.json))
    assert again.json == newest.json
    assert again.observedMetrics["seen"].n == newest.observedMetrics["seen"].n


def read_time(text: str) -> datetime:
    """As Spark hands a timestamp to Python: in the time of this machine."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None)


def test_listeners_hear_of_start_progress_and_end(
    spark: SparkSession, lines: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    heard, raising, removed = Heard(), Raising(), Heard()
    for listener in (raising, heard, removed):
        penstock.streams(spark).addListener(listener)
    penstock.streams(spark).removeListener(removed)
    try:
        query = penstock.writeStream(lines).queryName("told").format("noop").start()
        query.processAllAvailable()
        wait_for("a trigger to be over", lambda: not query.status["isTriggerActive"])
        query.stop()
    finally:
        for listener in (heard, raising):
            penstock.streams(spark).removeListener(listener)
    kinds = [type(event) for event in heard.events]
    assert kinds == [
        QueryStartedEvent,
        *[QueryProgressEvent] * (len(kinds) - 2),
        QueryTerminatedEvent,
    ]
    started, *progress, ended = heard.events
    assert (started.id, started.runId) == (uuid.UUID(query.id), uuid.UUID(query.runId))
    assert (started.name, started.jobTags) == ("told", set())
    assert sum(event.progress.numInputRows for event in progress) == 3
    assert (ended.id, ended.exception, ended.errorClassOnException) == (started.id, None, None)
    assert removed.events == []
    assert "a StreamingQueryListener raised" in caplog.text
    assert "a listener of the user's" in caplog.text
    assert "its program is to end" in caplog.text


def test_listeners_hear_why_a_query_ended(spark: SparkSession, lines: DataFrame) -> None:
    heard = Heard()

    def fail(frame: DataFrame, number: int) -> None:
        raise LookupError("nothing there")

    penstock.streams(spark).addListener(heard)
    try:
        query = penstock.writeStream(lines).foreachBatch(fail).start()
        with pytest.raises(StreamingQueryException, match="LookupError: nothing there") as caught:
            query.awaitTermination(60)
        known = caught.value.getMessageParameters() or {}
        assert (known["id"], known["runId"]) == (query.id, query.runId)
        assert query.status["message"].startswith("Terminated with exception: the foreachBatch")
        wait_for("the end", lambda: isinstance(heard.events[-1], QueryTerminatedEvent))
    finally:
        penstock.streams(spark).removeListener(heard)
    assert "LookupError: nothing there" in heard.events[-1].exception
    assert heard.events[-1].errorClassOnException == "FOREACH_BATCH_USER_FUNCTION_ERROR"


# --- the queries of a session ---------------------------------------------------------------------


def test_queries_of_both_engines_are_found_and_waited_for(
    spark: SparkSession, ticks: DataFrame
) -> None:
    streams = penstock.streams(spark)
    assert streams is penstock.streams(spark)
    with pytest.raises(ValueError, match="must be positive"):
        streams.awaitAnyTermination("soon")  # type: ignore[arg-type]
    sparks = ticks.writeStream.format("noop").start()
    ours = penstock.writeStream(ticks).format("noop").start()
    assert {query.id for query in streams.active} == {sparks.id, ours.id}
    assert streams.get(ours.id) is ours
    other = streams.get(sparks.id)
    assert isinstance(other, SparkQuery)
    assert not isinstance(other, StreamingQuery)
    assert streams.awaitAnyTermination(0.3) is False
    ours.stop()
    assert streams.get(ours.id) is None
    assert streams.awaitAnyTermination(30) is True
    streams.resetTerminated()
    assert streams.awaitAnyTermination(0.3) is False
    sparks.stop()
    assert streams.awaitAnyTermination(30) is True
    assert streams.active == []


def test_a_query_that_failed_raises_where_any_is_waited_for(
    spark: SparkSession, lines: DataFrame
) -> None:
    def fail(frame: DataFrame, number: int) -> None:
        raise LookupError("nothing there")

    penstock.writeStream(lines).foreachBatch(fail).start()
    with pytest.raises(StreamingQueryException, match="nothing there"):
        penstock.streams(spark).awaitAnyTermination()


def _parted(rows: DataFrame) -> DataFrame:
    """What Spark runs, and is refused here."""
    return rows.select(F.input_file_block_start().alias("part"))


# --- takeover -------------------------------------------------------------------------------------


def test_a_session_is_taken_over_and_given_back(
    spark: SparkSession, lines: DataFrame, ticks: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    taken = penstock.takeover(spark)
    assert penstock.takeover(spark) is taken  # twice is harmless
    assert spark.streams is penstock.streams(spark)
    with caplog.at_level(logging.WARNING):
        ours = lines.writeStream.format("memory").queryName("ours").start()
        ours.processAllAvailable()
        assert isinstance(ours, StreamingQuery)
        assert {row["value"] for row in spark.table("ours").collect()} == {"one", "two", "three"}
        parted = _parted(ticks)
        sparks: Any = parted.writeStream.format("noop").queryName("parted").start()
        assert isinstance(sparks, SparkQuery)
        assert not isinstance(sparks, StreamingQuery)
    (line,) = [r.getMessage() for r in caplog.records if "runs on Structured" in r.getMessage()]
    assert line.startswith("query parted runs on Structured Streaming: ")
    assert "input_file_block_start" in line
    assert {query.name for query in spark.streams.active} == {"ours", "parted"}
    with pytest.raises(IllegalArgumentException, match="'ours' is running"):
        parted.writeStream.format("noop").queryName("ours").start()
    with pytest.raises(AnalysisException):
        lines.writeStream.format("noop").queryName("neither").outputMode("complete").start()
    assert str(taken.starts.pop()).startswith(
        "neither (noop): Structured Streaming, which refused it too, because "
    )
    ours.stop()
    sparks.stop()
    assert [(each.title, each.reason is None) for each in taken.starts] == [
        ("ours", True),
        ("parted", False),
    ]
    assert taken.summary().startswith("1 of 2 queries ran on Penstock\n  ours (memory): Penstock\n")
    beside = shared_session().readStream.format("rate").load()
    assert type(beside.writeStream).__module__.startswith("pyspark.")
    TAKEN.end(session_id(spark))
    assert type(lines.writeStream).__module__.startswith("pyspark.")


def test_a_program_that_takes_its_session_over_is_taken_over_as_it_was(
    spark: SparkSession, ticks: DataFrame
) -> None:
    """Under `penstock check` and `penstock run --takeover`: one summary, and nothing runs more."""
    taken = TAKEN.add(None, Takeover(strict=True, only_plans=True))
    try:
        assert penstock.takeover(spark) is taken
        ticks.writeStream.format("noop").queryName("planned").start()
        with pytest.raises(UnsupportedPlan, match="input_file_block_start"):
            _parted(ticks).writeStream.format("noop").start()
        assert [each.title for each in taken.starts] == ["planned"]
        assert spark.streams.active == []
    finally:
        TAKEN.end(None)


def test_strict_refuses_instead(spark: SparkSession, ticks: DataFrame) -> None:
    taken = penstock.takeover(spark, strict=True)
    with pytest.raises(UnsupportedPlan, match="input_file_block_start"):
        _parted(ticks).writeStream.format("noop").start()
    assert taken.starts == []
    assert spark.streams.active == []


def test_what_spark_has_begun_goes_on_there_and_what_began_here_goes_on_here(
    spark: SparkSession, lines: DataFrame, tmp_path: Path
) -> None:
    """A location belongs to one engine, whoever asks for it."""

    def write(frame: DataFrame, place: str) -> Any:
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        out, location = str(tmp_path / f"{place}.out"), str(tmp_path / place)
        query = writer.start(out, checkpointLocation=location)
        query.awaitTermination()
        return query

    write(lines, "sparks")
    files = sorted(path for path in (tmp_path / "sparks").rglob("*") if path.is_file())
    taken = penstock.takeover(spark)
    write(lines, "sparks")
    assert taken.starts[0].reason is not None
    assert "checkpoint of a Structured Streaming query" in taken.starts[0].reason
    assert sorted(p for p in (tmp_path / "sparks").rglob("*") if p.is_file()) == files
    assert spark.read.parquet(str(tmp_path / "sparks.out")).count() == 3
    first = write(lines, "ours")
    assert isinstance(first, StreamingQuery)
    with pytest.raises(UnsupportedPlan, match="input_file_block_start"):  # not begun anew
        write(_parted(lines), "ours")
    refused = write(_parted(lines), "new")
    assert not isinstance(refused, StreamingQuery)
    assert not (tmp_path / "new" / "penstock-log.json").exists()
    assert write(lines, "ours").id == first.id


def test_a_plan_is_told_and_nothing_runs(
    spark: SparkSession, ticks: DataFrame, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taken = TAKEN.add(session_id(spark), Takeover(only_plans=True))
    counts = ticks.withWatermark("timestamp", "5 seconds").groupBy("value").count()
    writer: Any = counts.writeStream.outputMode("update").queryName("counts").format("noop")
    planned = writer.start(checkpointLocation=str(tmp_path / "place"))
    assert (planned.isActive, planned.awaitTermination(), planned.lastProgress) == (
        False,
        None,
        None,
    )
    assert not isinstance(planned, StreamingQuery)
    shown = capsys.readouterr().out
    assert shown.startswith("== counts\nQuery ")
    assert "state " in shown
    assert re.search(r"log +synced", shown)  # as the one that a start would make
    _parted(ticks).writeStream.format("noop").start()
    assert (spark.streams.awaitAnyTermination(), spark.streams.awaitAnyTermination(5)) == (
        None,
        True,
    )
    assert taken.summary().startswith("1 of 2 queries would run on Penstock\n  counts (noop): Pen")
    assert not (tmp_path / "place").exists()
    assert spark.streams.active == []
