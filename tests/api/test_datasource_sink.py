"""The streaming sink: a batch is visible once, though it is replayed, raced for or cut short."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import LongType, StructField, StructType

from penstock.api import datasource_sink
from penstock.api.datasource import PenstockDataSource
from penstock.api.datasource_append import StagedRows, stage_rows, writable_stream
from penstock.api.datasource_options import STREAM_WRITE
from penstock.api.datasource_sink import (
    StreamMicroBatchWriter,
    commit_batch,
    newest_batch,
    sink_name,
)
from penstock.errors import Fenced, SinkError
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.log.record import START, RecordKind
from penstock.options import Options
from penstock.runtime.processes import name_of
from penstock.runtime.retention import plan_cut
from penstock.runtime.staging import (
    DROPPING_INSTANCE,
    begin_write,
    clear_dead_writes,
    clear_write,
    open_writes,
)
from penstock.runtime.streams import describe_stream
from tests.api.datasource_logs import PROCESS, STREAM, Writer, columns, committed_ids, create_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

IDS = StructType([StructField("id", LongType(), False)])
SINK = sink_name("0123")
BATCHES = 25
ROUND_S = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    open_log(tmp_path / "log", create=True, config=PROCESS).close()
    return str(tmp_path / "log")


def stage(
    path: str, batch_id: int, partitions: int = 2, owner: str = "", job: str = ""
) -> list[StagedRows]:
    """What the tasks of a batch do; the rows of a batch are a function of its number."""
    target = writable_stream(path, "out", IDS, "none")
    staged = []
    job = job or uuid.uuid4().hex
    with open_log(path) as log:
        for partition in range(partitions):
            write = begin_write(log, "out", owner, job=job, sink=SINK)
            rows = pa.RecordBatch.from_pydict({"id": [batch_id * 10 + partition]})
            staged.append(stage_rows(log, target, [rows], write, partition, 0))
    return staged


def is_waiting(log: Log) -> bool:
    """Whether a reader that has read everything keeps records that nobody committed."""
    tags = describe_stream(log, "out").tags
    reader = CommittedReader(log, tags)
    while reader.take() is not None:
        pass
    return reader.resume < log.read(tags, START, 1_000)[-1].position


def test_a_batch_is_committed_once(path: str) -> None:
    with open_log(path) as log:
        assert newest_batch(log, SINK) is None
        assert commit_batch(log, "out", 0, stage(path, 0))
        assert not commit_batch(log, "out", 0, stage(path, 0))  # replayed after a restart
        assert commit_batch(log, "out", 1, stage(path, 1))
        assert commit_batch(log, "out", 4, stage(path, 4))  # batches 2 and 3 had no rows
        assert not commit_batch(log, "out", 3, stage(path, 3))
        assert newest_batch(log, SINK) == 4
    assert committed_ids(path, "out") == [0, 1, 10, 11, 40, 41]


def test_a_driver_that_looked_too_early_meets_the_conflict(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw that batch 0 is not there, and then another driver was faster."""
    mine, theirs = stage(path, 0), stage(path, 0)
    looked: list[int | None] = []

    def look(log: Log, sink: str) -> int | None:
        looked.append(newest_batch(log, sink))
        if len(looked) == 1:
            with open_log(path) as other, monkeypatch.context() as unpatched:
                unpatched.setattr(datasource_sink, "newest_batch", newest_batch)
                assert commit_batch(other, "out", 0, theirs)
        return looked[-1]

    monkeypatch.setattr(datasource_sink, "newest_batch", look)
    with open_log(path) as log:
        assert not commit_batch(log, "out", 0, mine)
    assert looked == [None, 0]
    assert committed_ids(path, "out") == [0, 1]


def race(path: str, barrier: Barrier, results: Any) -> None:
    """One of two drivers that both believe to be the only one."""
    won = []
    for batch_id in range(BATCHES):
        staged = stage(path, batch_id)
        barrier.wait(ROUND_S)
        with open_log(path) as log:
            won.append(commit_batch(log, "out", batch_id, staged))
    results.put(won)


@pytest.mark.slow
def test_two_drivers_race_in_two_processes(path: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    drivers = [context.Process(target=race, args=(path, barrier, results)) for _ in range(2)]
    for driver in drivers:
        driver.start()
    first, second = results.get(timeout=90), results.get(timeout=90)
    for driver in drivers:
        driver.join(30)
        assert driver.exitcode == 0
    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * BATCHES
    assert committed_ids(path, "out") == [
        batch_id * 10 + partition for batch_id in range(BATCHES) for partition in (0, 1)
    ]
    with open_log(path, read_only=True) as log:
        reader = CommittedReader(log, describe_stream(log, "out").tags)
        while (release := reader.take()) is not None:
            is_dropping = release.marker.instance == DROPPING_INSTANCE
            assert len(release.records) == (0 if is_dropping else 1)


def test_a_retry_with_fewer_partitions_leaves_nothing_that_readers_wait_for(path: str) -> None:
    with open_log(path) as log:
        assert commit_batch(log, "out", 0, stage(path, 0))
        left = stage(path, 1, partitions=5)  # its driver is gone, or hangs
        assert is_waiting(log)
        assert commit_batch(log, "out", 1, stage(path, 1, partitions=1))
        assert (is_waiting(log), open_writes(log, "out")) == (False, [])
        assert not commit_batch(log, "out", 1, left)
        with pytest.raises(Fenced):  # a batch that nobody has committed is not skipped
            commit_batch(log, "out", 2, left)
        assert committed_ids(path, "out") == [0, 1, 10]
        assert plan_cut(log, "out").epochs == 8


def test_a_batch_that_is_aborted_leaves_nothing(path: str) -> None:
    staged = stage(path, 0)
    writer = StreamMicroBatchWriter(path, "out", Options("a test", STREAM_WRITE), IDS)
    writer.abort([*staged, None], 0)
    with open_log(path) as log:
        assert (is_waiting(log), open_writes(log, "out")) == (False, [])
        with pytest.raises(Fenced):
            commit_batch(log, "out", 0, staged)
        assert commit_batch(log, "out", 0, stage(path, 0))
    assert committed_ids(path, "out") == [0, 1]


def test_a_query_that_never_comes_back_is_cleared_up_after(path: str) -> None:
    gone = "/".join((*name_of(os.getpid()).split("/")[:4], "1"))
    with open_log(path) as log:
        staged = stage(path, 0, partitions=1, owner=gone)
        assert is_waiting(log)
        clear_dead_writes(log, "out")
        assert (is_waiting(log), open_writes(log, "out")) == (False, [])
        with pytest.raises(Fenced):
            commit_batch(log, "out", 0, staged)


def test_tasks_that_were_cleared_up_after_in_between_commit_nothing(path: str) -> None:
    """Part of them staged their rows before it, and part after it, as another write."""
    before = stage(path, 0, job="same")
    with open_log(path) as log:
        clear_write(log, before[0].write)
        after = stage(path, 0, job="same")
        with pytest.raises(Fenced, match="given up while its tasks ran"):
            commit_batch(log, "out", 0, [before[0], after[1]])
        assert commit_batch(log, "out", 0, stage(path, 0))
        assert not is_waiting(log)
    assert committed_ids(path, "out") == [0, 1]


def test_rows_of_no_query_are_refused() -> None:
    assert sink_name("01ab-cd") == "01abcd.sink"
    with pytest.raises(SinkError, match="no id of a streaming query"):
        sink_name(None)


# --- through Spark --------------------------------------------------------------------------------


class KilledSink(StreamMicroBatchWriter):
    """A sink whose driver process is killed when it is about to commit, if told so."""

    def commit(self, messages: Any, batchId: int) -> None:
        order = Path(self._target.path) / f"kill-{batchId}"
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(messages, batchId)


class KilledDataSource(PenstockDataSource):
    """The data source with that sink."""

    @classmethod
    def name(cls) -> str:
        return "penstock_killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.api.datasource_options import STREAM, STREAM_WRITE  # noqa: PLC0415

        options = self._options("a test", STREAM_WRITE)
        stream = options.needed(STREAM, "name")
        return KilledSink(self._path(options), stream, options, schema)


def copying(
    spark: SparkSession, path: str, checkpoint: Path, name: str = "penstock"
) -> StreamingQuery:
    """A query that copies stream "events" to stream "out", as far as there is something."""
    reading = spark.readStream.format("penstock").option("path", path).option("stream", STREAM)
    return (
        reading.option("maxRowsPerTrigger", "4")
        .option("numPartitions", "2")
        .load()
        .writeStream.format(name)
        .option("path", path)
        .option("stream", "out")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def publish(path: str, first: int, releases: int) -> list[int]:
    with open_log(path) as log:
        create_stream(log, STREAM, columns(("id", "bigint"), required=("id",)))
        writer = Writer(log, STREAM, f"from{first}")
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        for release in range(releases):
            ids = [first + release * 2, first + release * 2 + 1]
            writer.append(pa.RecordBatch.from_pydict({"id": ids}, schema))
            writer.commit()
    return [first + n for n in range(releases * 2)]


def last_batch(checkpoint: Path) -> int:
    return max(int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit())


@pytest.mark.slow
@pytest.mark.spark
def test_a_replayed_batch_appends_nothing(spark: SparkSession, path: str, tmp_path: Path) -> None:
    ids = publish(path, 0, 4)
    checkpoint = tmp_path / "checkpoint"
    assert copying(spark, path, checkpoint).awaitTermination(100)
    assert committed_ids(path, "out") == ids
    last = last_batch(checkpoint)
    assert last > 0
    for name in (str(last), f".{last}.crc"):  # as if Spark had died before it noted the commit
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    with open_log(path, read_only=True) as log:
        before = log.tail()
    ids += publish(path, 100, 1)
    assert copying(spark, path, checkpoint).awaitTermination(100)
    assert committed_ids(path, "out") == ids
    with open_log(path, read_only=True) as log:
        records = log.read(describe_stream(log, "out").tags, before, 1_000)
    markers = [record for record in records if record.kind is RecordKind.MARKER]
    dropped = [marker for marker in markers if marker.instance == DROPPING_INSTANCE]
    assert dropped, "no batch was replayed"
    with open_log(path, read_only=True) as log:
        assert (is_waiting(log), open_writes(log, "out")) == (False, [])


@pytest.mark.slow
@pytest.mark.spark
def test_killed_between_the_tasks_and_the_commit(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    spark.dataSource.register(KilledDataSource)
    ids = publish(path, 0, 3)
    (Path(path) / "kill-1").touch()
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Exception, match=r"(?i)python|worker|EOF"):
        copying(spark, path, checkpoint, "penstock_killed").awaitTermination(100)
    assert not (Path(path) / "kill-1").exists()
    assert committed_ids(path, "out") == ids[:4]  # batch 0; the rows of batch 1 are only staged
    with open_log(path, read_only=True) as log:
        records = log.read(describe_stream(log, "out").tags, 0, 1_000)  # type: ignore[arg-type]
        assert RecordKind.DATA in [record.kind for record in records[-4:]]
        assert records[-1].instance == DROPPING_INSTANCE, "Spark has aborted the batch"
        assert (is_waiting(log), open_writes(log, "out")) == (False, [])
    assert copying(spark, path, checkpoint, "penstock_killed").awaitTermination(100)
    assert committed_ids(path, "out") == ids
