"""Queries in the test's own session: notebooks, sinks, functions that raise, files that go."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.api import query as query_module
from penstock.api.launcher import SparkLauncher
from penstock.api.session import Attached
from penstock.api.session_sinks import ConsoleSink, ForeachBatchSink, MemorySink
from penstock.cli.queries import look_at
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import (
    JobFailed,
    ProgramIncompatible,
    QueryActive,
    QueryMismatch,
    QueryNotFound,
    TooFewSlots,
)
from penstock.expressions.types import arrow_schema, schema_from_arrow
from penstock.log import open_log
from penstock.log.record import START
from penstock.runtime.control import Channel, ControlServer, Message
from penstock.runtime.queries import run_state, running_process, stored_query
from penstock.runtime.slot import SlotOrder
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.stages.program import sink_stream
from penstock.stages.tags import marker_tag
from penstock.testing.plans import parse_schema
from tests.spark.expected import running_counts
from tests.spark.waiting import wait_for
from tests.spark_session import own_session
from tests.stages.programs import small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.api.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    """A session of this file's own on the shared context, which has four task slots."""
    with own_session() as session:
        found = penstock.attach(session, tmp_path_factory.mktemp("session") / "log")
        create_stream(found.log, "numbers", schema_from_arrow(NUMBERS))
        yield found


@pytest.fixture(scope="module")
def publish(attached: Attached) -> Callable[[int], None]:
    """Append so many more numbers to the stream, in one epoch."""
    writer = StreamWriter(attached.log, "numbers", "test")
    written = [0]

    def more(rows: int) -> None:
        values = range(written[0], written[0] + rows)
        written[0] += rows
        writer.write(pa.RecordBatch.from_pydict({"n": values}, NUMBERS))

    return more


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("penstock").option("stream", "numbers").load()


def start(df: DataFrame, name: str, **options: Any) -> Any:
    return penstock.writeStream(df).queryName(name).options(standbySlots=0, **options)


def test_a_cell_is_run_twice(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None]
) -> None:
    """It gets its query back while that runs, unless it asks for another; then it goes on."""
    publish(10)
    first = start(numbers, "cell").toStream("cell").start()
    try:
        first.processAllAvailable()
        assert start(numbers, "cell").toStream("cell").start() is first
        assert penstock.query("cell") is first
        assert penstock.queries() == [first]
        with pytest.raises(QueryActive, match=r"penstock\.query\('cell'\)\.stop\(\) first"):
            start(numbers.where("n > 3"), "cell").toStream("cell").start()
        with pytest.raises(TooFewSlots, match=r"local\[4\] has 4, 1 of them held by cell: use"):
            start(numbers, "wide").option("standbySlots", 3).toStream("wide").start()
        assert running_process(attached.path, "cell") == os.getpid()
        assert look_at(attached.log, attached.path, "cell").state == "running"
    finally:
        first.stop()
    first.stop()  # once more is harmless
    assert not first.isActive
    assert first.status == {
        "message": "Stopped",
        "isDataAvailable": False,
        "isTriggerActive": False,
    }
    assert penstock.query("cell", attached.path) is first
    assert look_at(attached.log, attached.path, "cell").state == "stopped"
    with pytest.raises(QueryNotFound, match="has started no query 'sell'; known: "):
        penstock.query("sell")
    publish(5)
    again = start(numbers, "cell").toStream("cell").trigger(availableNow=True).start()
    assert again.awaitTermination(120)
    assert (again.id, again.name) == (first.id, "cell")
    assert again.runId != first.runId
    rows = attached.spark.read.format("penstock").option("stream", "cell").load()
    assert sorted(row.n for row in rows.collect()) == list(range(15))
    wait_for("the end of all threads", lambda: not _threads())


def test_slots_are_killed_beside_a_job_of_the_user(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None]
) -> None:
    """test_slots.py does it with a standby, under load, and with all of them at once."""
    publish(1_000)
    counts = numbers.groupBy((numbers.n % 7).alias("k")).count()
    query = start(counts, "killed", parallelism=2).outputMode("update").toStream("killed").start()
    try:
        query.processAllAvailable()
        pids = [pid for pid, _, vertices in query.job.slot_processes().values() if vertices]
        os.kill(pids[0], signal.SIGKILL)
        wait_for("the recovery", lambda: [r for r in query.job.recoveries() if r.started_s])
        assert {(r.pid, r.reason) for r in query.job.recoveries()} == {
            (pids[0], "connection closed")
        }
        publish(1_000)
        stored = attached.spark.read.format("penstock").option("stream", "numbers").load()
        by_spark = stored.groupBy((stored.n % 7).alias("k")).count().collect()
        query.processAllAvailable()
    finally:
        query.stop()
    rows = StreamReader(attached.log, "killed").read_all().to_pylist()
    assert {row["k"]: row["count"] for row in rows} == dict(by_spark)  # the last is the newest


def test_progress_has_sparks_words(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None]
) -> None:
    publish(7)
    query = start(numbers.groupBy((numbers.n % 2).alias("odd")).count(), "counted")
    running = query.outputMode("update").toStream("counted").trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    progress = running.recentProgress
    last = running.lastProgress
    assert last is not None
    assert (str(last.id), str(last.runId), last.name) == (running.id, running.runId, "counted")
    total = sum(entry.numInputRows for entry in progress)
    stored = attached.spark.read.format("penstock").option("stream", "numbers").load().count()
    assert total == stored == sum(e.sources[0].numInputRows for e in progress)
    assert last["batchId"] == last.batchId >= 1
    assert last.sources[0].description == "penstock numbers"
    assert last.sources[0].endOffset != "null"
    assert last.sink.description == "stream counted"
    assert sum(entry.sink.numOutputRows for entry in progress) >= 2
    (state,) = last.stateOperators
    assert (state.numRowsTotal, state.numShufflePartitions) == (2, 1)
    assert set(last["metrics"]) == {"vertices", "recoveries", "slots"}
    assert '"metrics"' in last.json


def test_a_query_without_a_guarantee_says_so_and_is_not_started_again(
    numbers: DataFrame, publish: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    publish(7)
    writer = start(numbers.groupBy("n").count(), "bare", guarantee="unmarked")
    writer = writer.outputMode("update").toStream("bare").trigger(availableNow=True)
    running = writer.start()
    assert running.awaitTermination(120)
    assert "bare runs WITHOUT GUARANTEE (unmarked)" in caplog.text
    assert running.recentProgress
    assert {entry["metrics"]["guarantee"] for entry in running.recentProgress} == {"unmarked"}
    with pytest.raises(ProgramIncompatible, match="nothing was kept to go on from"):
        writer.start()


def test_the_memory_sink_holds_the_newest_result_of_every_vertex(spark: SparkSession) -> None:
    events, rate = 20_000, 10_000
    reader = spark.readStream.format("nexmark").option("events", events).option("rate", rate)
    bids = reader.option("unpaced", "true").load()
    counted = start(bids.groupBy("auction").count(), "view", parallelism=2)
    counted.outputMode("complete").format("memory").start().awaitTermination(120)
    counts = {row["auction"]: row["count"] for row in spark.table("view").collect()}
    assert counts == running_counts(events, rate)
    assert spark.table("view").count() == len(counts)


def test_the_memory_sink_shows_windows(spark: SparkSession) -> None:
    """The view is there, empty, before the first row is, also with nested columns and times."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    events, rate = 20_000, 1_000
    reader = spark.readStream.format("nexmark").option("events", events).option("rate", rate)
    bids = reader.option("unpaced", "true").load().withWatermark("dateTime", "1 second")
    windows = bids.groupBy(F.window("dateTime", "10 seconds"), "auction").count()
    running = start(windows, "in_memory", parallelism=2).format("memory").start()
    assert spark.table("in_memory").columns == ["window", "auction", "count"]
    assert running.awaitTermination(120)
    rows = spark.table("in_memory").collect()
    assert len({(row.window.start, row.auction) for row in rows}) == len(rows)
    assert sum(row["count"] for row in rows) == events * 46 // 50  # bids among the events


def test_the_memory_sink_does_not_make_all_of_its_view_anew_for_each_batch(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = MemorySink(spark, "pieces", NUMBERS, replaces=False)
    made = []
    create = spark.createDataFrame

    def noted(rows: pa.Table, schema: StructType) -> DataFrame:
        made.append(rows)
        return create(rows, schema)

    monkeypatch.setattr(spark, "createDataFrame", noted)
    for first in range(0, 640, 10):
        sink.publish(first, pa.table({"n": range(first, first + 10)}, NUMBERS))
    assert [row.n for row in spark.table("pieces").collect()] == list(range(640))
    assert sum(rows.num_rows for rows in made) < 10 * 640  # 20,800 if each were all so far


def test_times_without_a_zone_stay_what_they_are_in_every_sink(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that no clock of the session's zone ever shows, or shows twice."""
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    times = ["2024-03-10 02:30:00", "2024-11-03 01:30:00"]
    column = pa.array(times).cast(pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([column], ["at"])
    rows = pa.table({"at": column, "both": nested})
    batches: list[DataFrame] = []
    try:
        spark.conf.set(zone, "America/New_York")
        ForeachBatchSink(spark, lambda frame, _: batches.append(frame)).publish(1, rows)
        memory = MemorySink(spark, "zoneless", rows.schema, replaces=False)
        memory.publish(1, rows)
        for frame in (batches[0], spark.table("zoneless")):
            assert frame.dtypes == [("at", "timestamp_ntz"), ("both", "struct<at:timestamp_ntz>")]
            assert [str(row.at) for row in frame.collect()] == times
        ConsoleSink(spark, 20, True).publish(1, rows)
        shown = capsys.readouterr().out
        assert all(time in shown for time in times)
    finally:
        spark.conf.set(zone, before)


SPANS = parse_schema(
    "k int, gap interval day to second, shift interval hour to minute, ts timestamp"
)
SPAN_ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array([number % 3 for number in range(40)], pa.int32()),
        pa.array([None, *(7_919 * 10**6 * (n - 20) + n for n in range(39))], pa.duration("us")),
        pa.array([60_000_000 * (number % 5 - 2) for number in range(40)], pa.duration("us")),
        pa.array([number * 10**9 for number in range(40)], pa.timestamp("us", "UTC")),
    ],
    schema=arrow_schema(SPANS),
)


def _spans(df: DataFrame) -> DataFrame:
    return df.selectExpr(
        "k", "gap", "shift", "ts + gap AS later", "ts - timestamp'1970-01-01' AS since",
        "array(shift) AS shifts", "cast(gap AS string) AS shown",
        "cast('5 04:03:02.1' AS interval day to second) * k AS read",
        "cast(cast(k AS string) AS interval hour) AS hours",
    )  # fmt: skip


@pytest.mark.slow
def test_intervals_keep_their_fields_from_streams_and_files_into_every_sink(
    attached: Attached, spark: SparkSession, tmp_path: Path
) -> None:
    create_stream(attached.log, "spans", SPANS)
    StreamWriter(attached.log, "spans", "spans").write(SPAN_ROWS)
    standing = spark.read.format("penstock").option("stream", "spans").load()
    assert standing.dtypes[1:3] == [
        ("gap", "interval day to second"), ("shift", "interval hour to minute"),
    ]  # fmt: skip
    expected = _spans(standing)
    wanted = sorted(map(str, expected.collect()))
    standing.write.parquet(str(tmp_path / "in"))
    streams = {
        "stream": spark.readStream.format("penstock").option("stream", "spans").load(),
        "files": spark.readStream.schema(standing.schema).parquet(str(tmp_path / "in")),
    }
    batches: list[DataFrame] = []

    def kept(frame: DataFrame, _: int) -> None:
        batches.append(frame)

    for origin, rows in streams.items():
        name = f"spans_of_{origin}"
        writer = start(_spans(rows), f"{name}_s").trigger(availableNow=True)
        assert writer.toStream(name).start().awaitTermination(120)
        stored = spark.read.format("penstock").option("stream", name).load()
        again = spark.readStream.format("penstock").option("stream", name).load()
        memory = start(again, f"{name}_m").trigger(availableNow=True).format("memory")
        assert memory.start().awaitTermination(120)
        files = start(again, f"{name}_p").trigger(availableNow=True).format("parquet")
        assert files.start(str(tmp_path / name)).awaitTermination(120)
        batches.clear()
        calls = start(again, f"{name}_f").trigger(availableNow=True).foreachBatch(kept)
        assert calls.start().awaitTermination(120)
        read = spark.read.parquet(str(tmp_path / name))
        for found in (stored, spark.table(f"{name}_m"), read, *batches):
            assert found.dtypes == expected.dtypes
        assert sorted(map(str, stored.collect())) == wanted
        assert sorted(map(str, spark.table(f"{name}_m").collect())) == wanted
        assert sorted(map(str, read.collect())) == wanted
        assert sorted(str(row) for frame in batches for row in frame.collect()) == wanted


@pytest.mark.slow
def test_files_that_are_written_side_by_side_hold_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderSink, "bytes_max", 1 << 12)
    monkeypatch.setattr(FolderSink, "patience_s", 0.0)
    events, rate = 100_000, 10_000
    reader = spark.readStream.format("nexmark").option("events", events).option("rate", rate)
    counted = reader.option("unpaced", "true").load().groupBy("auction").count()
    query = start(counted, "beside", parallelism=2, stepRowsMax=5_000).outputMode("update")
    query.start(str(tmp_path / "out"), "parquet").awaitTermination(120)
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 2
    assert list((tmp_path / "out").glob(".beside-*")) == []
    files = spark.read.parquet(str(tmp_path / "out"))
    rows = files.groupBy("auction").agg({"count": "max"}).collect()
    assert {row["auction"]: row["max(count)"] for row in rows} == running_counts(events, rate)
    assert files.count() == files.distinct().count()


def test_a_portion_of_files_is_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """As with Spark, also behind an exchange; and with no bound on what is converted at once."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        pq.write_table(
            pa.table({"n": [number, number + 10]}), tmp_path / "in" / f"{number}.parquet"
        )
    files = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1)
    df = files.parquet(str(tmp_path / "in"))
    found: dict[int, list[int]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = sorted(row.n for row in batch.collect())

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "-1")
    try:
        query = penstock.writeStream(df.dropDuplicates(["n"])).queryName("portions")
        started = query.foreachBatch(keep).trigger(availableNow=True).start()
        assert started.awaitTermination(120)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert found == {number: [number, number + 10] for number in range(4)}


def test_a_function_that_raises_and_its_epoch(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None]
) -> None:
    """The query stops with traceback and epoch; its next start begins with that epoch."""

    def fail(frame: DataFrame, epoch: int) -> None:
        raise ValueError(f"too many: {frame.count()}")

    publish(3)
    failed = start(numbers, "batches").foreachBatch(fail).start()
    with pytest.raises(JobFailed, match="foreachBatch function of query batches") as caught:
        failed.awaitTermination(120)
    error = caught.value
    epoch = error.details["epoch"]
    assert f"in epoch {epoch} (" in error.message
    assert "ValueError: too many" in error.message
    assert "in fail\n    raise ValueError" in error.message
    assert "start it again" in error.message
    assert failed.exception() is error
    assert look_at(attached.log, attached.path, "batches").state == "failed"

    seen: list[tuple[int, int]] = []
    again: list[StreamingQuery] = []
    is_started = threading.Event()

    def note(frame: DataFrame, number: int) -> None:
        seen.append((number, frame.count()))
        is_started.wait()
        again[0].stop()  # from within: ends after this epoch

    again.append(start(numbers, "batches").foreachBatch(note).start())
    is_started.set()
    assert again[0].awaitTermination(120)
    assert seen[0] == (0, error.details["rows"])
    assert error.details["batch"] == 0
    assert again[0].exception() is None


@pytest.mark.slow
def test_ctrl_c_stops_the_query_it_waits_for(attached: Attached, spark: SparkSession) -> None:
    """PySpark's own handler would cancel all jobs, before anything could be committed."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    before = signal.getsignal(signal.SIGINT)
    query = start(rows, "endless").toStream("endless").start()
    try:
        wait_for("a commit", lambda: query.lastProgress and query.lastProgress.batchId > 1)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            query.awaitTermination()
    finally:
        query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert query.job.recoveries() == []
    assert signal.getsignal(signal.SIGINT) is before
    assert running_process(attached.path, "endless") is None


def test_a_file_that_does_not_fit_and_one_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("1\n2\nthree\n")
    rows = spark.readStream.schema("n bigint").option("mode", "FAILFAST").csv(str(folder))
    with pytest.raises(JobFailed, match=r"\[MALFORMED_INPUT\].*a\.csv") as caught:
        start(rows, "files").toStream("files").start().awaitTermination(120)
    assert "line 3" in caught.value.message or ":3" in caught.value.message
    (folder / "a.csv").unlink()
    with pytest.raises(JobFailed, match=r"\[SOURCE_VANISHED\].*a\.csv") as caught:
        start(rows, "files").toStream("files").start().awaitTermination(120)
    assert "back" in caught.value.message


@pytest.mark.slow
def test_a_parquet_folder_belongs_to_one_query_of_a_name(
    attached: Attached, numbers: DataFrame, publish: Callable[[int], None], tmp_path: Path
) -> None:
    """Epochs are positions of one log: those of another one would be taken for written."""
    publish(4)
    out = str(tmp_path / "out")
    start(numbers, "filed").trigger(availableNow=True).start(out, "parquet").awaitTermination(120)
    spark = attached.spark
    written = sorted(row.n for row in spark.read.parquet(out).collect())
    assert written == list(range(len(written)))
    stored = stored_query(attached.log, "filed")
    assert stored is not None
    assert stored.sink == f"parquet {out}"
    (file,) = Path(out).glob("*.parquet")
    assert file.name.startswith("filed-")
    with open_log(tmp_path / "other", create=True) as other:
        create_stream(other, "numbers", schema_from_arrow(NUMBERS))
    penstock.attach(spark, tmp_path / "other")
    try:
        rows = spark.readStream.format("penstock").option("stream", "numbers").load()
        with pytest.raises(QueryMismatch, match="holds files of another query 'filed'"):
            start(rows, "filed").format("parquet").start(out)
        with open_log(tmp_path / "other", read_only=True) as other:
            assert stored_query(other, "filed") is None  # a refused start leaves nothing
            assert run_state(other, "filed") is None
    finally:
        penstock.attach(spark, attached.path)
    assert sorted(row.n for row in spark.read.parquet(out).collect()) == written


@pytest.mark.slow
def test_task_slots_that_others_hold_are_waited_for_and_then_told(
    spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    """Another job holds all four; the query waits as long as it may, then says what to do."""
    free = tmp_path / "free"

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        while not free.exists():
            time.sleep(0.05)
        yield from batches

    held = spark.range(0, 4, 1, 4).mapInArrow(hold, "id bigint")
    other = threading.Thread(target=held.collect)
    other.start()
    try:
        tracker = spark.sparkContext.statusTracker()
        wait_for("a busy session", lambda: _active_tasks(tracker) == 4)
        waiting = start(numbers, "waiting", startTimeout="1 second").toStream("waiting").start()
        with pytest.raises(TooFewSlots, match=r"0 of 1 task slots .* came within 1 s") as caught:
            waiting.awaitTermination(120)
    finally:
        free.touch()
        other.join()
    assert "end other jobs, give the application more cores" in caught.value.message
    late = start(numbers, "waiting").toStream("waiting").trigger(availableNow=True).start()
    assert late.awaitTermination(120)


@pytest.mark.slow
def test_functions_and_the_user_share_a_small_master(
    attached: Attached,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever would starve is refused; a trigger commits once per interval; a stop waits."""
    monkeypatch.setattr(query_module, "STOP_TOLD_S", (0.01, 0.01))
    rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    seen: dict[str, list[int]] = {"one": [], "two": []}
    may_return = threading.Event()

    def note(frame: DataFrame, epoch: int) -> None:
        seen["one"].append(frame.count())

    def note_and_wait(frame: DataFrame, epoch: int) -> None:
        seen["two"].append(frame.count())
        if len(seen["two"]) == 3:
            may_return.wait()

    one = penstock.writeStream(rows).queryName("one").foreachBatch(note).start()
    writer = penstock.writeStream(rows).queryName("two").trigger(processingTime="1 second")
    two = writer.foreachBatch(note_and_wait).start()
    try:
        assert (one.job.task_slots, two.job.task_slots) == (2, 1)  # no room for another standby
        with pytest.raises(TooFewSlots, match=r"3 of them held by one, two: use local\[5\]"):
            penstock.writeStream(rows).queryName("three").foreachBatch(note).start()
        wait_for("batches", lambda: len(seen["one"]) > 2 and len(seen["two"]) == 3)
        assert spark.range(10).count() == 10
        stopping = threading.Thread(target=two.stop)
        stopping.start()
        wait_for("the stop", lambda: two.is_stopping and two.job.is_over)
        assert running_process(attached.path, "two") == os.getpid()
        assert two.isActive
        told = "stop() of query two waits for the sink foreachBatch (epoch"
        wait_for("a message", lambda: told in caplog.text)
        lag = two.lastProgress.sink.metrics
        assert set(lag) == {"epochsBehind", "secondsBehind", "rowsUnderWay"}
        may_return.set()
        stopping.join(90)
        assert not two.isActive
        assert running_process(attached.path, "two") is None
    finally:
        may_return.set()
        one.stop()
        two.stop()
    assert (one.exception(), two.exception()) == (None, None)
    markers = attached.log.read([marker_tag(sink_stream("two"))], START, 1_000)
    intervals = [record.time_us // 1_000_000 for record in markers]
    assert len(set(intervals)) >= len(intervals) - 1  # the last one is that of the stop
    assert sum(seen["one"]) > 0


@pytest.mark.slow
def test_a_slot_that_finds_nobody_ends_without_a_failed_task(
    spark: SparkSession, attached: Attached
) -> None:
    """As one that Spark starts when the query is over: a failed task would be printed at length."""
    ended: list[tuple[int, str | None]] = []
    launcher = SparkLauncher(spark, "penstock-nobody", "slot")
    order = SlotOrder("127.0.0.1", 9, "token", 0, small().to_json(), str(attached.log.folder))
    launcher.launch(order, lambda slot, error: ended.append((slot, error)))
    wait_for("the end", lambda: ended)
    ((slot, error),) = ended
    assert slot == 0
    assert error is not None
    assert error.startswith("[CONTROL_ERROR]")  # as it was told, not what Spark makes of it


@pytest.mark.slow  # Spark takes seconds to end a process; tests/runtime/test_job.py has the rest
def test_one_slot_is_cancelled_and_the_others_stay(spark: SparkSession, attached: Attached) -> None:
    """Its process ends though it does not listen, which is what a slot that is stuck needs."""
    pids: dict[int, int] = {}
    ended: list[int] = []

    def never_tell(facts: Message, channel: Channel) -> None:
        pids[facts["slot"]] = facts["pid"]
        for _ in channel.messages():
            pass

    server = ControlServer("127.0.0.1", never_tell, lambda _: None)
    launcher = SparkLauncher(spark, "penstock-cancelled", "slot")
    try:
        host, port = server.address
        for slot in (0, 1):
            order = SlotOrder(
                host, port, server.token, slot, small().to_json(), str(attached.log.folder)
            )
            launcher.launch(order, lambda slot, _: ended.append(slot))
        wait_for("both slots", lambda: len(pids) == 2)
        launcher.cancel_slot(0)
        wait_for("the end of the first", lambda: ended and not _is_process(pids[0]))
        assert ended == [0]
        assert _is_process(pids[1])
    finally:
        launcher.cancel()
        wait_for("the end of both", lambda: len(ended) == 2)
        server.close()


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _active_tasks(tracker: Any) -> int:
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _threads() -> list[str]:
    time.sleep(0.01)
    own = ("penstock-cell", "penstock-slot", "penstock-control")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(own)]


def test_several_results_of_one_query_read_the_source_once(
    attached: Attached, spark: SparkSession, tmp_path: Path
) -> None:
    """Also after a restart, with more rows: each stream has its rows once."""
    folder = tmp_path / "rows"
    spark.range(100).coalesce(1).write.parquet(str(folder))
    rows = spark.readStream.schema("id bigint").parquet(str(folder))

    def start() -> StreamingQuery:
        even = penstock.writeStream(rows.where("id % 2 = 0")).toStream("even_ones")
        counts = penstock.writeStream(rows.groupBy((rows.id % 3).alias("k")).count())
        both = penstock.writeStreams(even, counts.outputMode("update").toStream("thirds"))
        return both.queryName("both").start()

    query = start()
    query.processAllAvailable()
    sources = [stage for stage in query.request.program.stages if stage.source is not None]
    assert len(sources) == 1
    query.stop()
    spark.range(100, 200).coalesce(1).write.mode("append").parquet(str(folder))
    query = start()
    query.processAllAvailable()
    query.stop()
    even = StreamReader(attached.log, "even_ones").read_all().column("id").to_pylist()
    assert sorted(even) == list(range(0, 200, 2))
    found = StreamReader(attached.log, "thirds").read_all().to_pylist()
    assert {row["k"]: row["count"] for row in found} == {0: 67, 1: 67, 2: 66}


@pytest.mark.slow
def test_a_quiet_branch_of_a_union_holds_back_no_window(
    spark: SparkSession, attached: Attached, tmp_path: Path
) -> None:
    """Below one watermark, as in Structured Streaming, round by round; the query runs on."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()

    def windows(session: SparkSession) -> DataFrame:
        a, b = (
            session.readStream.schema("n bigint, at timestamp").parquet(str(f)) for f in folders
        )
        timed = a.union(b).withWatermark("at", "2 seconds")
        return timed.groupBy(F.window("at", "4 seconds")).agg(F.sum("n").alias("s"))

    found: list[tuple[Any, int]] = []
    wanted: list[tuple[Any, int]] = []
    keep = {
        id(kept): lambda batch, _, kept=kept: kept.extend(
            (row.window.start, row.s) for row in batch.collect()
        )
        for kept in (found, wanted)
    }
    asked = windows(spark).writeStream.foreachBatch(keep[id(wanted)])
    asked = asked.option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = start(windows(attached.spark), "quiet", lateStream="quiet_late")
    query = running.foreachBatch(keep[id(found)]).start()
    try:
        for number, times in enumerate([([0], [1]), ([9], []), ([17], []), ([30], [5, 29])]):
            for folder, seconds in zip(folders, times, strict=True):
                if seconds:
                    at = pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC"))
                    table = pa.table({"n": [10**number] * len(seconds), "at": at})
                    pq.write_table(table, folder / f".{number}.parquet")
                    (folder / f".{number}.parquet").rename(folder / f"{number}.parquet")
            asked.trigger(availableNow=True).start().awaitTermination()
            wait_for(f"round {number}", lambda: len(found) >= len(wanted))
            assert sorted(found) == sorted(wanted)
            query.processAllAvailable()
        assert len(wanted) == 3
    finally:
        query.stop()
    late = spark.read.format("penstock").option("stream", "quiet_late").load()
    assert [row.n for row in late.collect()] == [1_000]
