"""Sinks: where the rows of a query go, and how they get there from the query's output stream.

A query always writes to a stream of the log first. A sink outside the log gets its rows from
there, in batches that `sink_runner` makes: each is named by an epoch, and once an epoch is decided
its rows never change, whoever delivers them and however often. So delivering an epoch twice can be
told from delivering two, which is all that a sink needs to be exactly once.

Delivering has two steps. What `stage` does is seen by nobody, so it may be done beforehand, for
several batches at a time, and be thrown away; `deliver` is done for decided epochs, in their order.
"""

from __future__ import annotations

import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from types import FunctionType
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.api.guarantees import FOREACH_BATCH
from penstock.connectors.folder_sink import FolderSink, StagedFile
from penstock.errors import InvalidName, QueryMismatch
from penstock.expressions.types import arrow_schema
from penstock.log import punit
from penstock.log.record import Body
from penstock.names import NAME_MAX
from penstock.runtime.queries import StoredQuery
from penstock.stages.program import sink_stream

BATCH_BYTES_MAX = 256 << 20  # as the log has them: what a driver may take into its memory
FILE_BYTES = 64 << 20  # as the log has them: files of the parquet sink are closed at about this
FILE_S = 3.0  # and after this time, where no trigger says otherwise

ForeachBatch = Callable[[DataFrame, int], None]
Staged: TypeAlias = Any  # what a delivery is ready to hand over, with `num_rows`: a table or a file


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch as the log has them; they are decoded when somebody asks for them."""

    bodies: tuple[Body, ...]
    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for body in self.bodies:
            yield punit.conform(punit.decode(body, is_sound=True), self.schema)

    def table(self) -> pa.Table:
        if not self.bodies:
            return self.schema.empty_table()  # with a chunk, which PySpark needs for a DataFrame
        return pa.Table.from_batches(self, self.schema)


class Delivery(ABC):
    """How batches of rows reach one sink of a running query."""

    bytes_max: ClassVar[int] = BATCH_BYTES_MAX  # a batch is not made much larger
    patience_s: ClassVar[float] = 0.0  # how long rows wait for more, where there is no trigger
    bytes_enough: ClassVar[int] = BATCH_BYTES_MAX  # nor larger if who wrote it has no more for now
    is_kept: ClassVar[bool] = True  # False: it begins anew with each run, and gets everything again
    ahead: int = 1  # how many batches are staged before the first of them is delivered

    def stage(self, epoch: int, rows: BatchRows) -> Staged:
        """Do what can be done before the epoch is decided; may be called by several threads."""
        return rows.table()

    @abstractmethod
    def deliver(self, epoch: int, rows: Staged) -> None:
        """Hand over what was staged for an epoch, in the epochs' order.

        Raises if it may not have arrived. In complete mode the rows are the whole result.
        """

    def discard(self, rows: Staged) -> None:  # noqa: B027 (most stage nothing outside)
        """Forget what was staged and will not be delivered."""

    def last_epoch(self) -> int | None:
        """The newest epoch that the sink itself knows to have; None if it keeps no record."""
        return None


class Sink(ABC):
    """What a user chose: complete in itself, and nothing is made before `open`."""

    kind: ClassVar[str]
    runs_jobs: ClassVar[bool] = False  # delivering takes task slots of the Spark application

    def stream(self, query: str) -> str:
        """The stream of the log that the query writes."""
        return sink_stream(query)

    def text(self, query: str) -> str:
        """Kind and place, as they are stored with the query; another text is another sink."""
        return self.kind

    def query_name(self) -> str:
        """A name for a query that was given none."""
        return f"query_{uuid.uuid4().hex[:12]}"

    def is_same(self, other: Sink) -> bool:
        """Whether a query would do the same with the other one."""
        return self == other

    @abstractmethod
    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Delivery | None:
        """Prepare the sink of a stored query; None if its stream is all that is wanted.

        `replaces` says that each batch takes the place of the one before it (complete mode).
        """


@dataclass(frozen=True)
class StreamSink(Sink):
    """A stream of the log, and nothing beyond it."""

    kind = "penstock"
    name: str

    def stream(self, query: str) -> str:
        return self.name

    def text(self, query: str) -> str:
        return f"stream {self.name}"

    def query_name(self) -> str:
        name = f"to_{self.name}"
        if len(name) > NAME_MAX:
            raise InvalidName(
                f"a query that writes stream {self.name} cannot be named after it: {name} is "
                f"longer than {NAME_MAX} characters. Name it with .queryName(...)",
                name=name,
                what="query",
            )
        return name

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> None:
        return None


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A folder of Parquet files."""

    kind = "parquet"
    path: str

    def text(self, query: str) -> str:
        return f"{self.kind} {self.path}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Delivery:
        writers = len(stored.program.producers(stored.output))
        return ParquetDelivery(self.path, stored.name, stored.id, writers=writers)


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """The driver's standard output."""

    kind = "console"
    runs_jobs = True
    rows_max: int
    truncate: bool | int

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Delivery:
        return ConsoleDelivery(spark, self.rows_max, self.truncate)


@dataclass(frozen=True)
class MemorySink(Sink):
    """A temporary view of the session, named like the query."""

    kind = "memory"

    def text(self, query: str) -> str:
        return f"{self.kind} {query}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Delivery:
        schema = arrow_schema(stored.program.stream(stored.output).schema)
        return MemoryDelivery(spark, stored.name, schema, replaces=replaces)


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """A function of the user's."""

    kind = FOREACH_BATCH
    runs_jobs = True
    function: ForeachBatch

    def is_same(self, other: Sink) -> bool:
        if not isinstance(other, ForeachBatchSink):
            return False
        return _is_same_function(self.function, other.function)

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Delivery:
        return ForeachBatchDelivery(spark, self.function)


class ParquetDelivery(Delivery):
    """Files that appear whole, named by query and epoch; an epoch that is there is not written."""

    bytes_max = FILE_BYTES
    patience_s = FILE_S
    bytes_enough = FILE_BYTES // 16

    def __init__(self, path: str, query: str, query_id: str, *, writers: int = 1) -> None:
        """`writers` vertices write what is delivered: as many files are written at a time."""
        self._path = path
        self._query = query
        self._id = query_id
        self._sink = FolderSink(path)
        self._is_claimed = False
        self._claiming = threading.Lock()
        self._check_owner(self._sink.owner(query, query_id))
        self.ahead = min(writers, os.cpu_count() or 1)

    def _check_owner(self, found: str | None) -> None:
        if found != self._id:
            raise QueryMismatch(
                f"{self._path} holds files of another query {self._query!r} (id "
                f"{(found or 'unknown')[:40]}, this one is {self._id}): choose another folder or "
                "another queryName, or move the files away",
                query=self._query,
                path=self._path,
            )

    def stage(self, epoch: int, rows: BatchRows) -> StagedFile:
        self._claim()
        return self._sink.stage(self._query, epoch, rows)

    def _claim(self) -> None:
        """With the first file: by then the query's id is stored."""
        with self._claiming:
            if not self._is_claimed:
                self._check_owner(self._sink.claim(self._query, self._id))
                self._is_claimed = True

    def deliver(self, epoch: int, rows: StagedFile) -> None:
        self._sink.publish(rows)

    def discard(self, rows: StagedFile) -> None:
        self._sink.discard(rows)

    def last_epoch(self) -> int | None:
        return self._sink.last_epoch(self._query)


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame of the query's own types.

    Left to itself PySpark takes a time without a zone for one of the session's, which not every
    such time is.
    """
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


class ConsoleDelivery(Delivery):
    """Prints batches as Spark's console sink does."""

    def __init__(self, spark: SparkSession, rows_max: int, truncate: bool | int) -> None:
        self._spark = spark
        self._rows_max = rows_max
        self._truncate = truncate

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        line = "-" * 43
        print(f"{line}\nEpoch: {epoch}\n{line}")
        shown = rows.slice(0, self._rows_max + 1)  # one more: Spark says so if there are more
        frame = _frame(self._spark, shown)
        frame.show(self._rows_max, truncate=self._truncate)


class MemoryDelivery(Delivery):
    """A temporary view of the query's output stream; for tests and notebooks."""

    is_kept = False

    def __init__(
        self, spark: SparkSession, view: str, schema: pa.Schema, *, replaces: bool
    ) -> None:
        self._spark = spark
        self._view = view
        self._replaces = replaces
        self._parts: list[tuple[pa.Table, DataFrame]] = []
        self._show(schema.empty_table())  # with a chunk: PySpark rebuilds columns from theirs

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        if self._replaces:
            self._parts.clear()
        # Each part has at least twice the rows of the next one. So there are few of them, and a
        # batch does not cost as much as all that came before it.
        while self._parts and self._parts[-1][0].num_rows < 2 * rows.num_rows:
            rows = pa.concat_tables([self._parts.pop()[0], rows])
        self._show(rows)

    def _show(self, rows: pa.Table) -> None:
        self._parts.append((rows, _frame(self._spark, rows)))
        frames = (frame for _, frame in self._parts)
        reduce(DataFrame.union, frames).createOrReplaceTempView(self._view)


class ForeachBatchDelivery(Delivery):
    """Calls the user's function with a DataFrame and the epoch."""

    def __init__(self, spark: SparkSession, function: ForeachBatch) -> None:
        self._spark = spark
        self._function = function

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        self._function(_frame(self._spark, rows), epoch)


def _is_same_function(one: ForeachBatch, other: ForeachBatch) -> bool:
    """Whether a function was only defined again, as by a notebook cell that is run twice."""
    if one is other:
        return True
    if not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return False
    return (
        one.__code__ == other.__code__
        and one.__module__ == other.__module__
        and _bound(one) == _bound(other)
    )


def _bound(function: FunctionType) -> list[int]:
    """Which objects a function carries along, beside its code."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [id(value) for value in values]
