"""A query of windows over a sample in cycles: in the slots of Penstock, and from files by Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import Attached, attach
from penstock.api.writer import DataStreamWriter, writeStream
from penstock.bench.scabbard.oracle import Rows, expand
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.samples import SECOND_US, STREAMS, Made, campaigns, wide
from penstock.bench.turns import TURN_S_MAX, timed_turn
from penstock.config import Durability
from penstock.connectors.repeating import RepeatingSource, Sample
from penstock.runtime.streams import StreamReader

SLOTS = 2
START_TIMEOUT = "10 minutes"  # beside other programs compiling takes its time
STEP_ROWS = 1 << 20
STEP_ROWS_OF_MANY = 1 << 17  # where rows become as many, or more
FILE_ROWS = 1 << 20
COMMIT_INTERVAL = "100 milliseconds"
CHECKPOINT_COMMITS = 10  # so about every second


@dataclass(frozen=True)
class Input:
    """The rows of a run: a sample on disk, so many of which come in cycles."""

    made: Made
    path: Path
    rows: int
    campaigns: NDArray[np.int64]

    @classmethod
    def of(
        cls, query: WindowQuery, folder: Path, seed: int, sample_rows: int, rows: int, **shape: int
    ) -> Input:
        """Make the sample of a query's stream and write it."""
        rng = np.random.default_rng(seed)
        made = STREAMS[query.stream](rng, sample_rows, **shape)
        path = folder / f"{query.stream}-{sample_rows}.parquet"
        pq.write_table(pa.Table.from_batches([made.batch()]), path)
        return cls(made, path, rows, campaigns(rng))

    def expanded(self) -> Rows:
        """All rows, for the oracle."""
        made = self.made
        return expand(made.times_us, made.columns, made.period_us, self.rows, self.campaigns)

    def ads(self, spark: SparkSession) -> DataFrame:
        """The table of the ads' campaigns."""
        keys = wide(np.arange(self.campaigns.size))
        pairs = [
            (bytearray(key.tobytes()), int(campaign))
            for key, campaign in zip(keys, self.campaigns, strict=True)
        ]
        return spark.createDataFrame(pairs, "ad_id binary, campaign bigint")

    def write_files(self, folder: Path, columns: list[str]) -> None:
        """The same rows as Parquet files, with the columns that the query reads."""
        folder.mkdir(parents=True)
        sample = Sample(self.made.batch(), "ts", self.made.period_us)
        source = RepeatingSource(sample, self.rows, columns)
        for number, batch in enumerate(_reads(source)):
            pq.write_table(pa.Table.from_batches([batch]), folder / f"{number:05d}.parquet")


def _reads(source: RepeatingSource) -> Iterator[pa.RecordBatch]:
    offset, ended = source.initial_offset(), False
    while not ended:
        read = source.read(offset, FILE_ROWS)
        offset, ended = read.next_offset, read.ended
        if read.batch is not None:
            yield read.batch


@dataclass(frozen=True)
class Way:
    """How Penstock runs a query."""

    guarantee: str = "exactly-once"
    replayable: bool = True  # if not, what the query needs of the rows is persisted
    codec: str = "adaptive"
    float_digits: int | None = None
    pushes_up: bool = True  # what is persisted behind filters and projections
    syncs: bool = True  # the log; with the guarantee unsafe it never does
    checkpoint_commits: int = CHECKPOINT_COMMITS
    step_rows: int = STEP_ROWS
    slots: int = SLOTS


@contextmanager
def log_for(spark: SparkSession, folder: Path, way: Way) -> Iterator[Attached]:
    """A log for one run, gone with it."""
    is_synced = way.syncs and way.guarantee != "unsafe"
    durability: Durability = "synced" if is_synced else "process"
    attached = attach(spark, folder, durability=durability)
    try:
        yield attached
    finally:
        attached.log.close()
        shutil.rmtree(folder, ignore_errors=True)


def penstock_writer(
    attached: Attached, query: WindowQuery, name: str, given: Input, way: Way, rows: int | None
) -> DataStreamWriter:
    """A query over rows that its slots have in memory, so many or without end, into a stream."""
    reader = attached.spark.readStream.format("replay").option("path", str(given.path))
    reader = reader.option("timeColumn", "ts").option("numPartitions", way.slots)
    reader = reader.option("periodSeconds", str(given.made.period_us / SECOND_US))
    if not way.replayable:
        reader = reader.option("replayable", "false")
    if rows is not None:
        reader = reader.option("rows", rows)
    if query.gives_many:
        way = replace(way, step_rows=min(way.step_rows, STEP_ROWS_OF_MANY))
    rows_read = query.over(reader.load(), given.ads(attached.spark))
    return in_its_way(writeStream(rows_read).queryName(name), way).toStream(name)


def in_its_way(writer: DataStreamWriter, way: Way) -> DataStreamWriter:
    """A query in append mode with the options of a way."""
    writer = writer.outputMode("append")
    writer = writer.options(parallelism=way.slots, slots=way.slots, standbySlots=0)
    writer = writer.options(commitInterval=COMMIT_INTERVAL, stepRowsMax=way.step_rows)
    writer = writer.options(checkpointInterval=way.checkpoint_commits, guarantee=way.guarantee)
    writer = writer.options(codec=way.codec, pushUp=way.pushes_up)
    if way.float_digits is not None:
        writer = writer.option("floatDigits", way.float_digits)
    return writer.option("startTimeout", START_TIMEOUT)


def answer_of_penstock(
    spark: SparkSession, query: WindowQuery, given: Input, way: Way, folder: Path
) -> pa.Table:
    """The windows of all rows."""
    with log_for(spark, folder, way) as attached:
        timed_turn(penstock_writer(attached, query, query.name, given, way, given.rows))
        return StreamReader(attached.log, query.name).read_all()


def spark_rows_per_s(spark: SparkSession, query: WindowQuery, given: Input, scratch: Path) -> float:
    """Structured Streaming over files of the same rows, by the time that it says it took.

    All rows come in one micro-batch; windows that are open at the end stay open.
    """
    files = scratch / "files"
    given.write_files(files, ["ts", *query.columns])
    schema = spark.read.parquet(str(files)).schema
    rows = spark.readStream.schema(schema).parquet(str(files))
    writer = query.over(rows, given.ads(spark)).writeStream.outputMode("append").format("noop")
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
    running = writer.trigger(availableNow=True).start()
    try:
        if not running.awaitTermination(TURN_S_MAX):
            raise TimeoutError(f"not through in {TURN_S_MAX} s")
        took_ms = sum(entry.durationMs["triggerExecution"] for entry in running.recentProgress)
    finally:
        running.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return given.rows / took_ms * 1e3


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """An engine's rows as the oracle has them: starts in seconds."""
    starts = table["start"].cast(pa.int64()).to_numpy() // SECOND_US
    others = [column.to_pylist() for column in table.drop_columns(["start"]).columns]
    return list(zip(starts.tolist(), *others, strict=True))
