"""The generator as a Spark format: the same events as the generator itself gives, once each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from penstock.api.nexmark_source import NexmarkDataSource, NexmarkStreamReader, event_ranges
from penstock.connectors.nexmark import Kind, NexmarkSettings, NexmarkSource
from penstock.errors import InvalidOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def generated(kind: Kind, settings: NexmarkSettings, columns: list[str] | None = None) -> pa.Table:
    source = NexmarkSource(settings, kind, columns)
    offset: Any = source.initial_offset()
    batches = []
    while not (read := source.read(offset, 1_000)).ended or read.batch is not None:
        if read.batch is not None:
            batches.append(read.batch)
        offset = read.next_offset
        if read.ended:
            break
    return pa.Table.from_batches(batches, source.schema)


def stream_reader(**options: object) -> NexmarkStreamReader:
    source = NexmarkDataSource(CaseInsensitiveDict({k: str(v) for k, v in options.items()}))
    schema = source.schema()
    assert isinstance(schema, StructType)
    made = source.streamReader(schema)
    assert isinstance(made, NexmarkStreamReader)
    return made


def test_events_are_cut_without_gaps() -> None:
    for first, end, parts in ((0, 10, 3), (7, 8, 4), (5, 250_000, None), (3, 3, 2)):
        ranges = event_ranges(first, end, parts)
        events = [n for r in ranges for n in (r.first, r.end)]
        assert events == sorted(events)
        assert sum(r.end - r.first for r in ranges) == end - first


def test_a_paced_stream_follows_the_clock() -> None:
    of = stream_reader(rate=1000, events=100_000)
    start = of.initialOffset()
    first = of.latestOffset(start, ReadAllAvailable())
    time.sleep(0.05)
    second = of.latestOffset(first, ReadAllAvailable())
    assert 0 < first["event"] < second["event"]
    assert second["event"] - first["event"] >= 50
    long_ago = {"event": 3, "startedUs": start["startedUs"] - 10**12}
    assert of.latestOffset(long_ago, ReadAllAvailable())["event"] == 100_000
    assert of.latestOffset(long_ago, ReadMaxRows(5))["event"] == 8
    with pytest.raises(InvalidOffset, match="belongs to another source"):
        of.latestOffset({"position": 3}, ReadAllAvailable())


def test_available_now_ends_though_time_goes_on() -> None:
    of = stream_reader(rate=1_000_000)
    of.prepareForTriggerAvailableNow()
    first = of.latestOffset(of.initialOffset(), ReadAllAvailable())
    time.sleep(0.01)
    assert of.latestOffset(first, ReadAllAvailable()) == first


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_of_events(spark: SparkSession) -> None:
    reader = spark.read.format("nexmark").option("seed", 5).option("rate", 100)
    reader = reader.option("startingTime", "2024-01-01 00:00:00").option("events", 3_000)
    frame = reader.option("kind", "bids").option("columns", "seq,auction,price,dateTime,channel")
    found = frame.option("numPartitions", 3).load().toArrow().sort_by("seq")
    settings = NexmarkSettings(seed=5, rate=100, events_max=3_000, base_ms=1_704_067_200_000)
    expected = generated("bids", settings, ["seq", "auction", "price", "dateTime", "channel"])
    assert found.to_pylist() == expected.to_pylist()
    merged = spark.read.format("nexmark").option("kind", "all").option("events", 200).load()
    everything = generated("all", NexmarkSettings(events_max=200))
    assert merged.columns == everything.schema.names
    assert merged.toArrow().to_pylist() == everything.to_pylist()


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_of_events_in_pieces(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[list[int]] = []
    frame = (
        spark.readStream.format("nexmark")
        .option("events", "900")
        .option("kind", "persons")
        .option("columns", "id,seq")
        .option("unpaced", "true")
        .option("maxRowsPerTrigger", "400")
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: seen.append([r.seq for r in rows.collect()]))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    expected = generated("persons", NexmarkSettings(events_max=900), ["seq"])
    assert sorted(n for ids in seen for n in ids) == expected.column("seq").to_pylist()
    assert len(seen) == 3
