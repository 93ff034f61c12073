"""As many events per second as an engine takes, from its generator or from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import Attached
from penstock.api.writer import DataStreamWriter, writeStream
from penstock.bench.nexmark.queries import NexmarkQuery
from penstock.bench.turns import Turn, timed_turn
from penstock.connectors.nexmark import NexmarkSettings
from penstock.runtime.streams import StreamReader

SLOTS = 2
DELAY_MS = 1_000
START_TIMEOUT = "10 minutes"  # beside other programs compiling takes its time


def on_generator(attached: Attached, query: NexmarkQuery, name: str, made: NexmarkSettings) -> Turn:
    """Penstock, over events that are made in its slots; its rows go to a stream of the log."""
    reader = attached.spark.readStream.format("nexmark").option("kind", "all")
    reader = reader.option("columns", ",".join(query.columns)).option("unpaced", "true")
    reader = reader.options(rate=made.rate, group=made.group, seed=made.seed)
    events = reader.options(events=made.events_max, numPartitions=SLOTS).load()
    done = timed_turn(_writer(query, name, events).toStream(name))
    return replace(done, rows=StreamReader(attached.log, name).read_all())


def on_files(
    attached: Attached, query: NexmarkQuery, name: str, files: Path, scratch: Path
) -> Turn:
    """Penstock over the events of files, to Parquet as the other engine."""
    writer = _writer(query, name, _stream(attached.spark, files)).format("parquet")
    return timed_turn(writer.option("path", str(scratch / "o")))


def on_spark(spark: SparkSession, query: NexmarkQuery, files: Path, scratch: Path) -> Turn:
    """Structured Streaming over the same files: everything that is there in one micro-batch."""
    writer = query.over(_stream(spark, files), DELAY_MS).writeStream.outputMode(query.output)
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
    writer = writer.trigger(availableNow=True).format("parquet")
    return timed_turn(writer.option("path", str(scratch / "o")))


def _stream(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.schema(spark.read.parquet(str(files)).schema).parquet(str(files))


def _writer(query: NexmarkQuery, name: str, events: DataFrame) -> DataStreamWriter:
    writer = writeStream(query.over(events, DELAY_MS)).outputMode(query.output).queryName(name)
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    return writer.options(startTimeout=START_TIMEOUT).trigger(availableNow=True)
