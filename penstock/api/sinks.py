"""Sinks outside the log: a thread on the driver that carries committed rows to them, in order.

A query always writes to a stream of the log first. What one marker commits there is an epoch, named
by the marker's position: its rows never change, whoever reads them and however often. So delivering
an epoch twice can be told from delivering two, which is all that a sink needs to be exactly once.
"""

from __future__ import annotations

import json
import logging
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.api.guarantees import FOREACH_BATCH
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import JobFailed, QueryMismatch, SinkError, StreamError
from penstock.expressions.types import Schema, arrow_schema
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.record import Position, Record
from penstock.runtime.trimming import TRIM_BYTES, TRIM_COMMITS

WAIT_S = 0.2
TRACEBACK_CHARACTERS_MAX = 8_000

logger = logging.getLogger(__name__)

ForeachBatch = Callable[[DataFrame, int], None]


class Delivery(ABC):
    """How epochs reach one kind of sink."""

    @abstractmethod
    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        """Hand over the rows that a vertex committed with an epoch, in the epochs' order.

        Raises if they may not have arrived.
        """

    def show(self) -> None:  # noqa: B027 (most sinks show what they get)
        """Make what was delivered visible; called when nothing more is there to be delivered."""

    def last_epoch(self) -> int | None:
        """The newest epoch that the sink itself knows to have; None if it keeps no record."""
        return None


class ParquetDelivery(Delivery):
    """Files that appear whole, named by vertex and epoch; an epoch that is there is not written.

    Epochs are positions of one log, so a folder keeps whose they are, in a file that readers of
    Parquet pass over: the epochs of another log's query of that name would be taken for written.
    """

    def __init__(self, path: str, query: str, query_id: str, vertices: Sequence[str]) -> None:
        self._folder = Path(path)
        self._sink = FolderSink(self._folder)
        self._vertices = tuple(vertices)
        self._claim(query, query_id)

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        self._sink.write(vertex, epoch, rows.to_batches())

    def last_epoch(self) -> int | None:
        known = [self._sink.last_epoch(vertex) for vertex in self._vertices]
        return max((epoch for epoch in known if epoch is not None), default=None)

    def _claim(self, query: str, query_id: str) -> None:
        owner = self._folder / f"_penstock_{query}"
        try:
            found = owner.read_text(encoding="ascii", errors="replace") if owner.exists() else ""
            if not found and self.last_epoch() is None:
                owner.write_text(query_id, encoding="ascii")
                found = query_id
        except OSError as error:
            raise SinkError(
                f"the parquet sink cannot write to {self._folder}: {error}; make it writable, or "
                "choose another folder",
                path=str(self._folder),
            ) from error
        if found != query_id:
            raise QueryMismatch(
                f"{self._folder} holds files of another query {query!r} (id "
                f"{found[:40] or 'unknown'}, this one is {query_id}): choose another folder or "
                "another queryName, or move the files away",
                query=query,
                path=str(self._folder),
            )


class ConsoleDelivery(Delivery):
    """Prints epochs as Spark's console sink prints batches."""

    def __init__(self, spark: SparkSession, rows_max: int, truncate: bool | int) -> None:
        self._spark = spark
        self._rows_max = rows_max
        self._truncate = truncate

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        line = "-" * 43
        print(f"{line}\nEpoch: {epoch}\n{line}")
        frame = self._spark.createDataFrame(rows)
        frame.show(self._rows_max, truncate=self._truncate)


class MemoryDelivery(Delivery):
    """A temporary view of the query's output stream; for tests and notebooks.

    In complete mode an epoch is the whole result of its vertex, and takes the place of that
    vertex's last one.
    """

    def __init__(self, spark: SparkSession, view: str, schema: pa.Schema, replaces: bool) -> None:
        self._spark = spark
        self._view = view
        self._replaces = replaces  # complete mode
        self._rows: dict[str, list[pa.Table]] = {}  # by vertex
        self._nothing = schema.empty_table()  # with a chunk: PySpark rebuilds columns from theirs
        self.show()

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        if self._replaces:
            self._rows[vertex] = [rows]
        else:
            self._rows.setdefault(vertex, []).append(rows)

    def show(self) -> None:
        parts = [rows for delivered in self._rows.values() for rows in delivered]
        table = pa.concat_tables([self._nothing, *parts])
        self._spark.createDataFrame(table).createOrReplaceTempView(self._view)


class ForeachBatchDelivery(Delivery):
    """Calls the user's function with a DataFrame and the epoch."""

    def __init__(self, spark: SparkSession, function: ForeachBatch) -> None:
        self._spark = spark
        self._function = function

    def deliver(self, vertex: str, epoch: int, rows: pa.Table) -> None:
        self._function(self._spark.createDataFrame(rows), epoch)


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """What a sink or a user's function raised, and for which rows."""

    error: BaseException
    vertex: str | None = None  # None: not while an epoch was handed over
    epoch: int = 0
    rows: int = 0


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
        self._tags = tags
        self._is_trimmed = not from_start  # else the next start needs all of it again
        self._untrimmed_epochs = TRIM_COMMITS  # the first trim is for what earlier runs left
        self._untrimmed_bytes = 0
        done, resume = (0, 0) if from_start else self._progress()
        self._reader = CommittedReader(
            log, tags, Position(resume) if resume else None, Position(done)
        )
        self._stopping = threading.Event()
        self._failure: SinkFailure | None = None
        self._is_hurried = False
        self._is_delivering = True  # until the thread has looked for the first time
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-sink-{query}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Deliver what is committed by now, then end; after the timeout, end with this epoch."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._is_hurried = True

    def is_current_thread(self) -> bool:
        """Whether the caller is the sink's own thread, such as a function given to foreachBatch."""
        return threading.current_thread() is self._thread

    @property
    def failure(self) -> SinkFailure | None:
        return self._failure

    def is_drained(self) -> bool:
        """Whether everything committed by now is delivered."""
        if not self._thread.is_alive():
            return True
        # In this order: what the reader has handed out may still be on its way to the sink.
        return self._reader.is_drained() and not self._is_delivering

    def _progress(self) -> tuple[int, int]:
        found = self._log.get(self._key)
        facts: dict[str, Any] = {} if found is None else json.loads(found.value)
        own = self._delivery.last_epoch() or 0
        return max(int(facts.get("done", 0)), own), int(facts.get("resume", 0))

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping.is_set()  # asked first: what comes after is delivered too
                self._is_delivering = True
                delivered = self._deliver_available()
                if delivered:
                    self._delivery.show()
                self._is_delivering = False
                if self._is_hurried or (stopping and not delivered):
                    return
                if not delivered:
                    self._log.wait(self._log.tail(), WAIT_S)
        except BaseException as error:
            logger.error("%s failed: %s", self._key, _brief(error))
            self._failure = self._failure or SinkFailure(error)

    def _deliver(self, marker: Record, rows: pa.Table) -> None:
        vertex, epoch = marker.producer, int(marker.position)
        try:
            self._delivery.deliver(vertex, epoch, rows)
        except BaseException as error:
            self._failure = SinkFailure(error, vertex, epoch, rows.num_rows)
            raise

    def _deliver_available(self) -> bool:
        delivered = False
        while not self._is_hurried and (release := self._reader.take()) is not None:
            batches = [
                punit.conform(punit.decode(record.body), self._schema) for record in release.records
            ]
            if any(batch.num_rows for batch in batches):
                rows = pa.Table.from_batches(batches, self._schema)
                self._deliver(release.marker, rows)
                delivered = True
                self._note_progress()
            self._trim_if_due(release)
        return delivered

    def _note_progress(self) -> None:
        facts = {"done": self._reader.consumed, "resume": self._reader.resume}
        self._log.put(self._key, json.dumps(facts).encode())

    def _trim_if_due(self, release: Release) -> None:
        """Let go of what the sink has, after many epochs or much data.

        The stream was made for this sink. What is trimmed lies before the progress that is in the
        log by then, so whoever runs the sink next begins behind it.
        """
        self._untrimmed_epochs += 1
        self._untrimmed_bytes += sum(record.body.nbytes for record in release.records)
        is_due = self._untrimmed_epochs >= TRIM_COMMITS or self._untrimmed_bytes >= TRIM_BYTES
        if not (is_due and self._is_trimmed):
            return
        self._untrimmed_epochs = self._untrimmed_bytes = 0
        resume = self._reader.resume
        self._note_progress()  # epochs without rows have not noted theirs
        try:
            for tag in self._tags:
                self._log.trim(tag, resume)
        except StreamError as error:
            logger.warning("%s could not trim what it has delivered: %s", self._key, error)


def sink_error(query: str, sink: str, failure: SinkFailure) -> JobFailed:
    """The query's error for a sink or a user's function that raised, with its traceback."""
    error = failure.error
    what = "the foreachBatch function" if sink == FOREACH_BATCH else f"the sink {sink}"
    where = ""
    if failure.vertex is not None:
        where = (
            f" in epoch {failure.epoch} ({failure.rows} rows of vertex {failure.vertex}, committed "
            f"by the marker at position {failure.epoch})"
        )
    shown = "".join(_user_traceback(error))[-TRACEBACK_CHARACTERS_MAX:]
    return JobFailed(
        f"{what} of query {query} failed{where}: {_brief(error)}. The query has "
        "stopped, its rows are in the log, and its next start begins with this epoch: mend the "
        f"cause and start it again\n{shown}",
        query=query,
        reason=type(error).__name__,
        vertex=failure.vertex,
        epoch=failure.epoch,
        rows=failure.rows,
        traceback=shown,
    )


def _brief(error: BaseException) -> str:
    """An error in one line: those of the JVM bring their whole stack along."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:500]}"


def _user_traceback(error: BaseException) -> list[str]:
    """The traceback from the first frame that is not this module's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return traceback.format_exception(type(error), error, frames)
