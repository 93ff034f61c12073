"""Streams in several substreams: all are written, all are read, and more of them lose no row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, StreamConflict
from penstock.expressions.types import Field, parse_type
from penstock.log import Log, open_log, punit
from penstock.log.committed import CommittedReader
from penstock.log.record import START
from penstock.plan.optimizer import plan_program
from penstock.runtime.outputs import TURN_ROWS
from penstock.runtime.streams import (
    StreamReader,
    StreamWriter,
    create_stream,
    describe_stream,
    raise_substreams,
)
from penstock.runtime.substreams import stream_tags
from penstock.stages.tags import substream_tag
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import count, query, scan_stream
from tests.runtime.laboratory import UNSYNCED, Laboratory

SCHEMA = (Field("key", parse_type("string"), True), Field("n", parse_type("bigint"), False))
COLUMNS = "key string, n bigint not null"


@pytest.fixture
def log() -> Iterator[Log]:
    with MemoryLog() as opened:
        yield opened


def opened(lab: Laboratory) -> Log:
    return open_log(lab.folder, create=True, config=UNSYNCED)


def rows(*numbers: int) -> pa.RecordBatch:
    schema = pa.schema([("key", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    columns = [pa.array([f"k{n % 7}" for n in numbers]), pa.array(numbers, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def found(log: Log, stream: str, index: int) -> list[dict[str, object]]:
    records = log.read([substream_tag(stream, index)], START, 1_000)
    return [row for record in records for row in punit.decode(record.body).to_pylist()]


def read(reader: StreamReader) -> list[int]:
    return sorted(reader.read_all().column("n").to_pylist())


def test_rows_go_to_all_substreams_in_turn(log: Log) -> None:
    create_stream(log, "orders", SCHEMA, substreams=3)
    writer = StreamWriter(log, "orders", "shop")
    for n in range(6):
        writer.write(rows(n))
    assert [len(found(log, "orders", index)) for index in range(3)] == [2, 2, 2]
    writer.write(rows(*range(6, 6 + 2 * TURN_ROWS + 1)))
    assert sorted(len(found(log, "orders", index)) for index in range(3)) == [
        3, TURN_ROWS + 2, TURN_ROWS + 2,
    ]  # fmt: skip
    assert read(StreamReader(log, "orders")) == list(range(7 + 2 * TURN_ROWS))
    writer.write(rows(*range(9 * TURN_ROWS)))  # a third each, in one piece
    counts = [len(found(log, "orders", index)) for index in range(3)]
    assert sum(counts) == 7 + 11 * TURN_ROWS
    assert len(log.read([substream_tag("orders", 0)], START, 1_000)) == 4


def test_rows_of_a_key_stay_together_and_in_order(log: Log) -> None:
    create_stream(log, "orders", SCHEMA, substreams=3, partition_by=["key"])
    writer = StreamWriter(log, "orders", "shop")
    for first in range(0, 100, 10):
        writer.write(rows(*range(first, first + 10)))
    substreams = [found(log, "orders", index) for index in range(3)]
    keys = [{row["key"] for row in substream} for substream in substreams]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 7
    assert sum(map(bool, keys)) > 1
    for substream in substreams:
        for key in {row["key"] for row in substream}:
            numbers = [row["n"] for row in substream if row["key"] == key]
            assert numbers == sorted(numbers)


def test_what_cannot_be_is_refused_by_name(log: Log) -> None:
    with pytest.raises(InvalidArgument, match="'colour', which it does not have"):
        create_stream(log, "orders", SCHEMA, 2, ["colour"])
    with pytest.raises(InvalidArgument, match="substreams is 0"):
        create_stream(log, "orders", SCHEMA, 0)
    create_stream(log, "orders", SCHEMA, 4)
    assert create_stream(log, "orders", SCHEMA).substreams == 4  # as it was described first
    with pytest.raises(StreamConflict, match="not lowered to 2"):
        raise_substreams(log, "orders", 2)


def test_open_writers_and_readers_follow_a_raise(log: Log) -> None:
    create_stream(log, "orders", SCHEMA)
    writer, reader = StreamWriter(log, "orders", "shop"), StreamReader(log, "orders")
    writer.write(rows(0))
    assert read(reader) == [0]
    raise_substreams(log, "orders", 3)
    for n in range(1, 7):
        writer.write(rows(n))
    assert all(found(log, "orders", index) for index in range(3))
    assert read(reader) == [1, 2, 3, 4, 5, 6]
    assert describe_stream(log, "orders").substreams == 3


def test_a_raise_between_two_looks_at_the_log_tears_no_write(log: Log) -> None:
    """What came after the tail was read may have a part under a tag that was not asked for."""
    create_stream(log, "orders", SCHEMA, 2, ["key"])
    writer = StreamWriter(log, "orders", "shop")
    writer.write(rows(1))
    meanwhile = [lambda: raise_substreams(log, "orders", 5), lambda: writer.write(rows(*range(50)))]

    def tags() -> tuple[str, ...]:
        known = stream_tags(log, "orders")
        while meanwhile:
            meanwhile.pop(0)()
        return known

    reader = CommittedReader(log, tags)
    sizes = []
    while (release := reader.take()) is not None:
        sizes.append(sum(punit.decode(record.body).num_rows for record in release.records))
    assert sizes == [1, 50]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_running_query_reads_substreams_that_come_later(lab: Laboratory, crashes: bool) -> None:
    log = opened(lab)
    create_stream(log, "orders", SCHEMA, substreams=2)
    scanned = scan_stream("orders", COLUMNS, substreams=2)
    tested = query("copy", scanned.to_stream("out"), parallelism=2)
    process = lab.open(tested)
    assert len(process.statistics().vertices) == 2
    writer = StreamWriter(log, "orders", "shop")
    for n in range(12):
        if n == 4:
            raise_substreams(log, "orders", 5)
        writer.write(rows(n))
        process.run_available()
        if crashes:
            process.abandon()
            process = lab.open(tested)
    process.close()
    assert all(found(log, "orders", index) for index in range(5))
    assert sorted(row["n"] for row in lab.rows("out")) == list(range(12))


def test_a_global_count_of_a_stream_in_substreams_is_shared_out() -> None:
    counted = scan_stream("orders", COLUMNS, substreams=3).group_by()
    write = counted.agg(count().alias("c"), mode="update").to_stream("out")
    program = plan_program(query("total", write, parallelism=3))
    assert [len(program.stage_vertices(index)) for index in range(2)] == [3, 1]


def test_a_query_writes_to_all_substreams_that_a_stream_has(lab: Laboratory) -> None:
    log = opened(lab)
    create_stream(log, "orders", SCHEMA)
    create_stream(log, "turns", SCHEMA, substreams=3)
    create_stream(log, "keys", SCHEMA, substreams=3, partition_by=["key"])
    scanned = scan_stream("orders", COLUMNS)
    tested = query(
        "copy", scanned.to_stream("turns", 3), scanned.to_stream("keys", 3, ["key"]), parallelism=2
    )
    process = lab.open(tested)
    writer = StreamWriter(log, "orders", "shop")
    for n in range(30):
        writer.write(rows(n))
        process.run_available()
    process.close()
    for stream in ("turns", "keys"):
        substreams = [found(log, stream, index) for index in range(3)]
        assert all(substreams) or stream == "keys"
        assert sorted(row["n"] for substream in substreams for row in substream) == list(range(30))
    keys = [{row["key"] for row in found(log, "keys", index)} for index in range(3)]
    assert sum(map(len, keys)) == 7


def test_a_query_never_takes_substreams_away(lab: Laboratory) -> None:
    log = opened(lab)
    create_stream(log, "orders", SCHEMA)
    tested = query("copy", scan_stream("orders", COLUMNS).to_stream("out"))
    lab.open(tested).close()
    raise_substreams(log, "out", 4)
    lab.open(tested).close()
    assert describe_stream(log, "out").substreams == 4
