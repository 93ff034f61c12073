"""Batch appends through Spark: everything or nothing becomes visible, with the right columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StructField, StructType

from penstock.api.datasource import PenstockDataSource
from penstock.api.datasource_append import (
    StagedRows,
    StreamAppender,
    commit_markers,
    stage_rows,
    writable_stream,
)
from penstock.errors import Fenced, RecordTooLarge, SchemaMismatch, StreamConflict
from penstock.log.committed import CommittedReader
from penstock.log.local import open_log
from penstock.log.record import RecordKind
from penstock.plan.optimizer import plan_program
from penstock.runtime.outputs import UNIT_BYTES_MAX
from penstock.runtime.staging import OpenWrite, begin_write, open_writes
from penstock.runtime.streams import (
    StreamReader,
    create_stream,
    describe_stream,
    register_streams,
)
from penstock.testing.plans import parse_schema, query, scan_stream
from tests.api.datasource_logs import EVENTS, PROCESS, STREAM, Scenario, committed_ids
from tests.api.test_datasource_read import in_order, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = StructType([StructField("id", LongType(), False)])


@pytest.fixture
def empty(tmp_path: Path) -> str:
    open_log(tmp_path / "log", create=True, config=PROCESS).close()
    return str(tmp_path / "log")


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": ids}, pa.schema([pa.field("id", pa.int64())]))


def test_staged_rows_are_visible_with_their_marker_only(empty: str) -> None:
    target = writable_stream(empty, "s", IDS, "zstd")
    with open_log(empty) as log:
        write = begin_write(log, "s", "")
        first = stage_rows(log, target, [batch(1, 2), batch(3)], write, 0, 0)
        failed = stage_rows(log, target, [batch(7)], write, 1, 0)
        again = stage_rows(log, target, [batch(4)], write, 1, 1)
        nothing = stage_rows(log, target, [batch()], write, 2, 0)
        assert committed_ids(empty, "s") == []
        assert failed.instance != again.instance
        entries = commit_markers("s", [first, again, nothing])
        assert [entry.producer for entry in entries] == [write.producer(0), write.producer(1)]
        positions = log.append(entries)
        assert committed_ids(empty, "s") == [1, 2, 3, 4]
        assert log.append(entries) == positions  # repeating a commit changes nothing
        assert committed_ids(empty, "s") == [1, 2, 3, 4]
        reader = CommittedReader(log, describe_stream(log, "s").tags)
        while reader.take() is not None:
            pass
        assert reader.resume == log.tail()  # the failed attempt's leftovers hold nobody back


def test_final_rows_are_not_written_into_a_stream_of_updates(empty: str) -> None:
    ids = scan_stream("ids", "id bigint not null")
    latest = ids.group_by("id").agg(mode="update")
    with open_log(empty) as log:
        create_stream(log, "ids", parse_schema("id bigint not null"))
        register_streams(log, plan_program(query("q", latest.to_stream("latest"))))
        tail, keys = log.tail(), log.keys()
        with pytest.raises(StreamConflict, match=r"latest holds updates.* write to another stream"):
            writable_stream(empty, "latest", IDS, "zstd")
        assert (log.tail(), log.keys()) == (tail, keys)
        writable_stream(empty, "new", IDS, "zstd")
        assert describe_stream(log, "new").mode == "append"
        with pytest.raises(StreamConflict, match="new holds final rows"):
            register_streams(log, plan_program(query("q2", latest.to_stream("new"))))


def test_a_batch_that_is_too_large_for_a_record_is_halved(empty: str) -> None:
    schema = StructType([StructField("id", LongType(), False)]).add("text", "string")
    target = writable_stream(empty, "s", schema, "none")
    count = 10
    text = "x" * (UNIT_BYTES_MAX // 4)
    wide = pa.RecordBatch.from_pydict({"id": list(range(count)), "text": [text] * count})
    with open_log(empty) as log:
        staged = stage_rows(log, target, [wide], begin_write(log, "s", ""), 0, 0)
        log.append(commit_markers("s", [staged]))
        records = log.read(describe_stream(log, "s").tags, 0, 100)  # type: ignore[arg-type]
    assert len([r for r in records if r.kind is RecordKind.DATA]) > 2
    assert committed_ids(empty, "s") == list(range(count))


def test_rows_of_a_job_go_to_all_substreams_and_are_all_read(empty: str) -> None:
    """A stream of the name is raised to what a later job asks for, and a reader sees both."""
    for substreams, first in ((2, 0), (4, 100)):
        target = writable_stream(empty, "s", IDS, "none", substreams)
        with open_log(empty) as log:
            write = begin_write(log, "s", "")
            parts = [[batch(first + 10 * part + n) for n in range(3)] for part in range(3)]
            staged = [stage_rows(log, target, part, write, i, 0) for i, part in enumerate(parts)]
            log.append(commit_markers("s", staged))
            tags = describe_stream(log, "s").substream_tags
            assert len(tags) == substreams
            assert all(log.last(tag) for tag in tags)
    every = [first + 10 * part + n for first in (0, 100) for part in range(3) for n in range(3)]
    assert committed_ids(empty, "s") == every


def test_substreams_are_options_of_a_write(empty: str) -> None:
    options = {"path": empty, "stream": "s", "substreams": "3", "substreamsBy": "id"}
    PenstockDataSource(CaseInsensitiveDict(options)).writer(IDS, False)
    with open_log(empty) as log:
        facts = describe_stream(log, "s")
    assert (facts.substreams, facts.partition_by) == (3, ("id",))
    fewer = options | {"substreams": "2"}  # what a job asks for is there, and somebody raised it
    PenstockDataSource(CaseInsensitiveDict(fewer)).writer(IDS, False)
    with open_log(empty) as log:
        assert describe_stream(log, "s") == facts
    other = options | {"substreamsBy": "id, id"}
    with pytest.raises(StreamConflict, match="find their substream by id"):
        PenstockDataSource(CaseInsensitiveDict(other)).writer(IDS, False)


def test_too_many_partitions_are_refused_with_a_way_out(empty: str) -> None:
    write = OpenWrite("s", "w", 0, 1, "", 0, 0)
    staged = [StagedRows(write.producer(index), 1, 1, 1, 0, write) for index in range(5_000)]
    with pytest.raises(RecordTooLarge, match="coalesce"):
        commit_markers("s", staged)


def test_an_aborted_write_holds_no_reader_back(empty: str) -> None:
    source = PenstockDataSource(CaseInsensitiveDict({"path": empty, "stream": "s"}))
    writer = source.writer(IDS, False)
    assert isinstance(writer, StreamAppender)
    with open_log(empty) as log:
        target = writable_stream(empty, "s", IDS, "none")
        write = writer._write
        done = stage_rows(log, target, [batch(1)], write, 0, 0)
        stage_rows(log, target, [batch(2)], write, 1, 0)
        writer.abort([done, None])
        reader = CommittedReader(log, describe_stream(log, "s").tags)
        while reader.take() is not None:
            pass
        assert reader.resume == log.tail()
        with pytest.raises(Fenced):  # a task that outlives its job
            stage_rows(log, target, [batch(3)], write, 2, 0)
        with pytest.raises(Fenced, match="run the job again"):
            writer.commit([done])
    assert committed_ids(empty, "s") == []


@pytest.mark.spark
def test_rows_of_every_type_go_there_and_back(
    spark: SparkSession, scenario: Scenario, empty: str
) -> None:
    frame = load(spark, scenario)
    writing = frame.repartition(3).write.format("penstock").option("stream", "copy")
    writing.option("compression", "lz4").mode("append").save(empty)
    with open_log(empty, read_only=True) as log:
        assert describe_stream(log, "copy").schema == EVENTS
        assert open_writes(log, "copy") == []
        copied = StreamReader(log, "copy").read_all()
    with open_log(scenario.path, read_only=True) as log:
        assert in_order(copied) == in_order(StreamReader(log, STREAM).read_all())
    # Again, with the columns in another order, one left out and one to be widened.
    some = frame.selectExpr("name", "int(id + 100000) AS id").limit(3)
    some.write.format("penstock").option("stream", "copy").mode("append").save(empty)
    assert len(committed_ids(empty, "copy")) == len(scenario.ids) + 3


@pytest.mark.slow
@pytest.mark.spark
def test_a_failed_job_leaves_nothing_visible(spark: SparkSession, empty: str) -> None:
    good = spark.range(0, 20, 1, 2)
    good.write.format("penstock").option("stream", "s").mode("append").save(empty)
    bad = spark.range(0, 40, 1, 4).selectExpr("if(id = 39, raise_error('no more'), id) AS id")
    with pytest.raises(Exception, match="no more"):
        bad.write.format("penstock").option("stream", "s").mode("append").save(empty)
    assert committed_ids(empty, "s") == list(range(20))
    with open_log(empty, read_only=True) as log:
        staged = [
            record
            for record in log.read(describe_stream(log, "s").tags, 0, 1_000)  # type: ignore[arg-type]
            if record.kind is RecordKind.DATA
        ]
        assert len(staged) > 2, "the other tasks of the failed job had staged their rows"


@pytest.mark.spark
def test_what_cannot_be_written_is_said_before_the_job_runs(
    spark: SparkSession, scenario: Scenario, empty: str
) -> None:
    rows = spark.range(3).selectExpr("string(id) AS id")
    with pytest.raises(AnalysisException, match="id is string and must be bigint"):
        rows.write.format("penstock").option("stream", "other").mode("append").save(scenario.path)
    with pytest.raises(AnalysisException, match="overwritten"):
        spark.range(3).write.format("penstock").option("stream", "s").mode("overwrite").save(empty)
    with pytest.raises(AnalysisException, match="there is no log at"):
        rows.write.format("penstock").option("stream", "s").mode("append").save(f"{empty}/none")


def test_a_null_where_the_stream_has_none(empty: str) -> None:
    target = writable_stream(empty, "s", IDS, "none")
    with open_log(empty) as log:
        write = begin_write(log, "s", "")
        with pytest.raises(SchemaMismatch, match="column 'id' has 1 nulls"):
            stage_rows(log, target, [pa.RecordBatch.from_pydict({"id": [1, None]})], write, 0, 0)
