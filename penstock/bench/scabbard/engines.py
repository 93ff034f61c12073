"""A query of windows over a sample in cycles: in the slots of Penstock, and from files by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from penstock.api.session import Attached
from penstock.api.writer import writeStream
from penstock.bench.scabbard.oracle import Rows, expand
from penstock.bench.scabbard.queries import WindowQuery
from penstock.bench.scabbard.samples import SECOND_US, STREAMS, Made, campaigns, wide
from penstock.bench.turns import Turn, timed_turn
from penstock.connectors.repeating import RepeatingSource, Sample
from penstock.runtime.streams import StreamReader

SLOTS = 2
START_TIMEOUT = "10 minutes"  # beside other programs compiling takes its time
STEP_ROWS = 1 << 20
FILE_ROWS = 1 << 20
COMMIT_INTERVAL = "500 milliseconds"


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


def on_penstock(attached: Attached, query: WindowQuery, name: str, given: Input) -> Turn:
    """Penstock, over rows that its slots have in memory; its rows go to a stream of the log."""
    reader = attached.spark.readStream.format("replay").option("path", str(given.path))
    reader = reader.option("timeColumn", "ts")
    reader = reader.option("periodSeconds", str(given.made.period_us / SECOND_US))
    rows = reader.options(rows=given.rows, numPartitions=SLOTS).load()
    writer = writeStream(query.over(rows, given.ads(attached.spark))).outputMode("append")
    writer = writer.options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    writer = writer.options(commitInterval=COMMIT_INTERVAL, stepRowsMax=STEP_ROWS)
    writer = writer.option("startTimeout", START_TIMEOUT).queryName(name)
    done = timed_turn(writer.toStream(name))
    return replace(done, rows=StreamReader(attached.log, name).read_all())


def on_spark(spark: SparkSession, query: WindowQuery, given: Input, scratch: Path) -> Turn:
    """Structured Streaming over files of the same rows, in one micro-batch, into memory.

    Windows that are open at the end stay open there.
    """
    files = scratch / "files"
    given.write_files(files, ["ts", *query.columns])
    schema = spark.read.parquet(str(files)).schema
    rows = spark.readStream.schema(schema).parquet(str(files))
    writer = query.over(rows, given.ads(spark)).writeStream.outputMode("append").format("noop")
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
    return timed_turn(writer.trigger(availableNow=True))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """An engine's rows as the oracle has them: starts in seconds."""
    starts = table["start"].cast(pa.int64()).to_numpy() // SECOND_US
    others = [column.to_pylist() for column in table.drop_columns(["start"]).columns]
    return list(zip(starts.tolist(), *others, strict=True))
