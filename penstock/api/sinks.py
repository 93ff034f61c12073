"""Sinks outside the log: a thread on the driver that carries committed rows to them, in order.

A query always writes to a stream of the log first. What one marker commits there is an epoch, named
by the marker's position: its rows never change, whoever reads them and however often. So delivering
an epoch twice can be told from delivering two, which is all that a sink needs to be exactly once.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.connectors.folder_sink import FolderSink
from penstock.errors import JobFailed
from penstock.expressions.types import Schema, arrow_schema
from penstock.log import punit
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.record import Position

WAIT_S = 0.2

logger = logging.getLogger(__name__)

ForeachBatch = Callable[[DataFrame, int], None]


class Delivery(ABC):
    """How epochs reach one kind of sink."""

    guarantee: str

    @abstractmethod
    def deliver(self, epoch: int, rows: pa.Table) -> None:
        """Hand over the rows of an epoch. Raises if they may not have arrived."""

    def last_epoch(self) -> int | None:
        """The newest epoch that the sink itself knows to have; None if it keeps no record."""
        return None


class ParquetDelivery(Delivery):
    """Files that appear whole, named by query and epoch; an epoch that is there is not written."""

    guarantee = "exactly once: each epoch is one file that appears whole, or not at all"

    def __init__(self, path: str, query: str) -> None:
        self._sink = FolderSink(Path(path))
        self._query = query

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        self._sink.write(self._query, epoch, rows.to_batches())

    def last_epoch(self) -> int | None:
        return self._sink.last_epoch(self._query)


class ConsoleDelivery(Delivery):
    """Prints epochs as Spark's console sink prints batches."""

    guarantee = "at least once: the newest epoch is printed again after a crash"

    def __init__(self, spark: SparkSession, rows_max: int, truncate: bool) -> None:
        self._spark = spark
        self._rows_max = rows_max
        self._truncate = truncate

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        line = "-" * 43
        print(f"{line}\nEpoch: {epoch}\n{line}")
        frame = self._spark.createDataFrame(rows)
        frame.show(self._rows_max, truncate=self._truncate)


class MemoryDelivery(Delivery):
    """A temporary view with everything delivered by this run; for tests and notebooks."""

    guarantee = "exactly once within a run; the view begins empty with each start"

    def __init__(self, spark: SparkSession, view: str, schema: pa.Schema, replaces: bool) -> None:
        self._spark = spark
        self._view = view
        self._replaces = replaces  # complete mode: an epoch is the whole result
        self._rows = pa.Table.from_batches([], schema)
        self._publish()

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        self._rows = rows if self._replaces else pa.concat_tables([self._rows, rows])
        self._publish()

    def _publish(self) -> None:
        self._spark.createDataFrame(self._rows).createOrReplaceTempView(self._view)


class ForeachBatchDelivery(Delivery):
    """Calls the user's function with a DataFrame and the epoch."""

    guarantee = (
        "at least once, with a stable epoch: after a crash the newest epoch may come "
        "again, with the "
        "same number and the same rows; a function that skips epochs it has seen is exactly once"
    )

    def __init__(self, spark: SparkSession, function: ForeachBatch) -> None:
        self._spark = spark
        self._function = function

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        self._function(self._spark.createDataFrame(rows), epoch)


class SinkRunner:
    """Follows a query's output stream and delivers its epochs, one after the other.

    How far it has come is kept in the log's metadata; a sink that keeps its own record is asked.
    """

    def __init__(
        self,
        log: Log,
        query: str,
        tags: tuple[str, ...],
        schema: Schema,
        delivery: Delivery,
        *,
        from_start: bool,
    ) -> None:
        self._log = log
        self._key = f"sink/{query}"
        self._schema = arrow_schema(schema)
        self._delivery = delivery
        done, resume = (0, 0) if from_start else self._progress()
        self._reader = CommittedReader(log, tags, Position(resume), Position(done))
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-sink-{query}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Deliver what is committed by now, then end."""
        self._stopping.set()
        self._thread.join(timeout_s)

    @property
    def error(self) -> BaseException | None:
        return self._error

    def is_drained(self) -> bool:
        """Whether everything committed by now is delivered."""
        return self._reader.is_drained() or not self._thread.is_alive()

    def _progress(self) -> tuple[int, int]:
        found = self._log.get(self._key)
        facts: dict[str, Any] = {} if found is None else json.loads(found.value)
        own = self._delivery.last_epoch() or 0
        return max(int(facts.get("done", 0)), own), int(facts.get("resume", 0))

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping.is_set()  # asked first: what comes after is delivered too
                delivered = self._deliver_available()
                if stopping and not delivered:
                    return
                if not delivered:
                    self._log.wait(self._log.tail(), WAIT_S)
        except BaseException as error:
            logger.exception("the sink of %s failed", self._key)
            self._error = error

    def _deliver_available(self) -> bool:
        delivered = False
        while (release := self._reader.take()) is not None:
            batches = [
                punit.conform(punit.decode(record.body), self._schema) for record in release.records
            ]
            if any(batch.num_rows for batch in batches):
                rows = pa.Table.from_batches(batches, self._schema)
                self._delivery.deliver(int(release.marker.position), rows)
                delivered = True
                facts = {"done": self._reader.consumed, "resume": self._reader.resume}
                self._log.put(self._key, json.dumps(facts).encode())
        return delivered


def sink_error(query: str, error: BaseException) -> JobFailed:
    """The query's error for a sink or user function that raised."""
    return JobFailed(
        f"the sink of query {query} failed: {type(error).__name__}: {error}",
        query=query,
        reason=type(error).__name__,
    )
