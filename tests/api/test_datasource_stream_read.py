"""Streaming reads: micro-batches are runs of releases, each once, across restarts and limits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from penstock.api.datasource import PenstockDataSource
from penstock.api.datasource_stream_read import StreamMicroBatchReader
from penstock.errors import InvalidOffset, Trimmed
from penstock.log.local import open_log
from penstock.log.record import Position
from penstock.runtime.retention import cut, plan_cut
from penstock.runtime.streams import describe_stream
from penstock.stages.tags import marker_tag
from tests.api.datasource_logs import (
    PROCESS,
    STREAM,
    Scenario,
    Writer,
    columns,
    committed_ids,
    create_stream,
    eventful,
    rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reader(path: str, **options: object) -> StreamMicroBatchReader:
    given = {"path": path, "stream": STREAM} | {k: str(v) for k, v in options.items()}
    source = PenstockDataSource(CaseInsensitiveDict(given))
    schema = source.schema()
    assert isinstance(schema, StructType)
    made = source.streamReader(schema)
    assert isinstance(made, StreamMicroBatchReader)
    return made


def batch_ids(of: StreamMicroBatchReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = of.partitions(start, end)
    return [n for part in parts for batch in of.read(part) for n in batch.column("id").to_pylist()]


@pytest.mark.parametrize("seed", range(3))
def test_micro_batches_are_the_stream_cut_into_pieces(tmp_path: Path, seed: int) -> None:
    """Whatever the limits are, and though the reader is made anew in between."""
    scenario = eventful(tmp_path / "log", units=50, seed=seed)
    chance = random.Random(seed)
    of = reader(scenario.path, numPartitions=3)
    start = of.initialOffset()
    found: list[int] = []
    while True:
        limit = chance.choice([ReadMaxRows(1), ReadMaxRows(12), ReadMaxRows(40)])
        end = of.latestOffset(start, limit)
        if end == start:
            break
        ids = batch_ids(of, start, end)
        assert ids
        assert sorted([*found, *ids]) == scenario.seen[scenario.markers.index(end["position"])]
        assert batch_ids(reader(scenario.path), start, end) != []  # a replay, by a new driver
        found += ids
        start = end
        if chance.random() < 0.4:
            of.stop()
            of = reader(scenario.path, numPartitions=2)
    assert sorted(found) == scenario.ids
    of.stop()


def test_a_limit_cuts_between_releases(scenario: Scenario) -> None:
    of = reader(scenario.path)
    start = of.initialOffset()
    sizes = [len(seen) for seen in scenario.seen]
    for limit in (1, sizes[1], sizes[3], sizes[3] - 1):
        end = reader(scenario.path).latestOffset(start, ReadMaxRows(limit))
        reached = scenario.markers.index(end["position"])
        assert reached == 0 or sizes[reached] <= limit
        assert sizes[reached + 1] > limit
    assert of.latestOffset(start, ReadAllAvailable())["position"] == scenario.markers[-1]


def test_markers_without_rows_do_not_make_a_micro_batch(tmp_path: Path) -> None:
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "a")
        of = reader(str(tmp_path))
        start = of.initialOffset()
        for _ in range(3):
            writer.commit()
            assert of.latestOffset(start, ReadAllAvailable()) == start
        writer.append(rows(0, 2).select(["id"]))
        assert of.latestOffset(start, ReadAllAvailable()) == start
        last = writer.commit()
        end = of.latestOffset(start, ReadAllAvailable())
        assert end["position"] == last
        assert batch_ids(of, start, end) == [0, 1]
        assert of.latestOffset(end, ReadAllAvailable()) == end
        of.stop()


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_a_trim_of_markers_without_rows_takes_nothing_from_a_query(
    tmp_path: Path, is_new: bool, looks: bool
) -> None:
    """Whether or not the query was there to see them, and whether it is the same run of it."""
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "a")
        writer.append(rows(0, 2).select(["id"]))
        last = writer.commit()
        of = reader(str(tmp_path))
        first = of.initialOffset()
        start = of.latestOffset(first, ReadAllAvailable())
        assert start["position"] == last
        for _ in range(3):
            upto = writer.commit()
        if looks:
            assert of.latestOffset(start, ReadAllAvailable()) == start
        cut(log, plan_cut(log, STREAM))
        assert log.trimmed(marker_tag(STREAM)) == upto
        if is_new:
            of.stop()
            of = reader(str(tmp_path))
        assert of.latestOffset(start, ReadAllAvailable()) == start
        assert reader(str(tmp_path), startingPosition=last).initialOffset()["position"] == last
        writer.append(rows(2, 2).select(["id"]))
        writer.commit()
        end = of.latestOffset(start, ReadAllAvailable())
        assert batch_ids(of, start, end) == [2, 3]
        cut(log, plan_cut(log, STREAM))
        for missed in (first, start):
            with pytest.raises(Trimmed, match="the rows between are gone"):
                of.partitions(missed, end)
            with pytest.raises(Trimmed, match="the rows between are gone"):
                reader(str(tmp_path)).latestOffset(missed, ReadAllAvailable())
        of.stop()


def test_available_now_stops_at_what_there_was(tmp_path: Path) -> None:
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "a")
        writer.append(rows(0, 2).select(["id"]))
        target = writer.commit()
        of = reader(str(tmp_path))
        of.prepareForTriggerAvailableNow()
        writer.append(rows(10, 2).select(["id"]))
        writer.commit()
        end = of.latestOffset(of.initialOffset(), ReadAllAvailable())
        assert end["position"] == target
        assert of.latestOffset(end, ReadAllAvailable()) == end
        of.stop()
        later = reader(str(tmp_path))
        following = later.latestOffset(end, ReadAllAvailable())
        assert batch_ids(later, end, following) == [10, 11]
        later.stop()


@pytest.mark.parametrize("which", [0, 3, "latest"])
def test_where_a_stream_begins(scenario: Scenario, which: int | str) -> None:
    position = which if isinstance(which, str) else scenario.markers[which]
    of = reader(scenario.path, startingPosition=position)
    start = of.initialOffset()
    end = of.latestOffset(start, ReadAllAvailable())
    seen = scenario.ids if isinstance(which, str) else scenario.seen[which]
    assert sorted(batch_ids(of, start, end)) == sorted(set(scenario.ids) - set(seen))
    of.stop()


def test_offsets_that_cannot_be_served_are_named(tmp_path: Path) -> None:
    scenario = eventful(tmp_path / "log", units=20)
    of = reader(scenario.path)
    start = of.initialOffset()
    end = of.latestOffset(start, ReadAllAvailable())
    of.stop()
    with pytest.raises(InvalidOffset, match="belongs to another source"):
        of.latestOffset({"event": 5}, ReadAllAvailable())
    with open_log(scenario.path) as log:
        for tag in describe_stream(log, STREAM).tags:
            log.trim(tag, Position(scenario.markers[2]))
    with pytest.raises(Trimmed, match="the rows between are gone"):
        of.partitions(start, end)
    with pytest.raises(Trimmed, match="kept from position"):
        reader(scenario.path, startingPosition=1).initialOffset()
    fresh = of.initialOffset()
    assert fresh["position"] == scenario.markers[2]
    kept = batch_ids(of, fresh, of.latestOffset(fresh, ReadAllAvailable()))
    assert sorted(kept) == committed_ids(scenario.path)
    of.stop()


@pytest.mark.spark
def test_structured_streaming_reads_each_row_once(
    spark: SparkSession, tmp_path: Path, scenario: Scenario
) -> None:
    """Two runs of one query, with more rows committed between them, and a limit per batch."""
    path = eventful(tmp_path / "log", units=8).path
    collected: list[tuple[int, list[int]]] = []

    def run() -> None:
        reading = spark.readStream.format("penstock").option("path", path)
        frame = reading.option("stream", STREAM).option("maxRowsPerTrigger", "6").load()
        query = (
            frame.select("id")
            .writeStream.foreachBatch(
                lambda rows, batch: collected.append((batch, [r.id for r in rows.collect()]))
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    run()
    with open_log(path) as log:
        writer = Writer(log, STREAM, "more")
        writer.append(rows(5_000, 3))
        writer.commit()
    first = [n for _, ids in collected for n in ids]
    assert len(collected) > 1
    run()
    assert sorted(n for _, ids in collected for n in ids) == sorted([*first, 5_000, 5_001, 5_002])
    assert [batch for batch, _ in collected] == sorted({batch for batch, _ in collected})
