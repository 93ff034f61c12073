"""Static sides on the driver: Spark computes their rows, and the log gets them as versions."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.api.registry import queries
from penstock.api.task_slots import task_slots_of
from penstock.arrays import no_rows
from penstock.catalyst.jvm import java_classes, scala_object
from penstock.catalyst.session import active_session
from penstock.catalyst.static_sides import StaticSide
from penstock.errors import InvalidArgument, StaticSideTooLarge, TooFewSlots
from penstock.expressions.types import arrow_schema
from penstock.log import punit
from penstock.log.contract import Log
from penstock.runtime.instances import numbered
from penstock.runtime.static_sides import (
    INITIAL_PREFIX,
    fixed_sides,
    forget_sides,
    goes_by,
    has_version,
    static_readers,
    trim_versions,
    write_version,
)
from penstock.stages.program import Program

POLL_S = 0.02


class StaticTables:
    """The static sides of one query: computes them, and writes what was computed."""

    def __init__(
        self, spark: SparkSession, log: Log, program: Program, sides: Sequence[StaticSide],
        bytes_max: int,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._log = log
        self._program = program
        self._sides = {side.name: side for side in sides if side.name in static_readers(program)}
        self._bytes_max = bytes_max
        self._computed: dict[str, pa.RecordBatch] = {}
        self._run = 0
        self._counter = itertools.count(1)
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._sides)

    @property
    def _changing(self) -> list[str]:
        """The sides that rows are joined with: what processors begin with stays as it was."""
        return [name for name in self._sides if not name.startswith(INITIAL_PREFIX)]

    def compute(self, again: bool) -> None:
        """Have Spark compute the sides that have no version; with `again`, all that may change."""
        if again and (fixed := fixed_sides(self._program)):
            raise InvalidArgument(
                f"query {self._program.query} joins static side {fixed[0]} with rows that come and "
                "go: with other static rows, others would go than have come. Start it under "
                "another queryName to compute it anew, or read what changes as a stream with "
                "option('table', 'keys')",
                query=self._program.query,
                side=fixed[0],
            )
        for name, side in self._sides.items():
            if (again and name in self._changing) or not has_version(
                self._log, self._program.query, name
            ):
                self._computed[name] = rows_of(self._spark, side, self._bytes_max)

    def write(self, run: int) -> dict[str, int]:
        """Write what was computed, as versions of a run of the query; return their numbers."""
        self._run = run
        query, codec = self._program.query, punit.CODECS[self._program.settings.codec]
        written = {}
        for name in list(self._computed):
            rows = self._computed.pop(name)
            instance = numbered(run, next(self._counter))
            written[name] = write_version(self._log, query, name, instance, rows, codec).number
        forget_sides(self._log, self._program)
        return written

    def refresh(self, is_active: Callable[[], bool]) -> Mapping[str, int]:
        """Compute and write all sides; return when every vertex goes by them."""
        if not self._changing:
            raise InvalidArgument(
                f"query {self._program.query} joins with no static side: there is nothing to "
                "refresh"
            )
        with self._lock:
            if not is_active():
                raise InvalidArgument(
                    f"query {self._program.query} is not running: start it with the option "
                    "refreshStatic set to true",
                    query=self._program.query,
                )
            _check_task_slots(self._spark)
            self.compute(again=True)
            written = self.write(self._run)
            readers = static_readers(self._program)
            for side, number in written.items():
                while is_active() and not goes_by(self._log, side, number, readers[side]):
                    time.sleep(POLL_S)
                trim_versions(self._log, self._program.query, side, readers[side])
            return written


def rows_of(spark: SparkSession, side: StaticSide, bytes_max: int) -> pa.RecordBatch:
    """Run a side as a batch job. Files that have come or gone since it was written are seen."""
    datasets = scala_object(java_classes().org.apache.spark.sql.classic, "Dataset")
    side.plan.refresh()
    with active_session(spark):
        frame = DataFrame(datasets.ofRows(spark._jsparkSession, side.plan), spark)
        table = frame.toDF(*(field.name for field in side.schema)).toArrow()
    if table.nbytes > bytes_max:
        columns = ", ".join(field.name for field in side.schema)
        raise StaticSideTooLarge(
            f"static side {side.name} ({columns}) has {table.num_rows:,} rows of "
            f"{table.nbytes:,} bytes, more than staticBytesMax, {bytes_max:,}: each process that "
            "joins holds all of it. Filter it or select fewer columns, raise staticBytesMax, or "
            "write it to a stream and read that",
            side=side.name,
            bytes=table.nbytes,
            bytes_max=bytes_max,
        )
    schema = arrow_schema(side.schema)
    table = table.cast(schema).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else no_rows(schema)


def _check_task_slots(spark: Any) -> None:
    """A refresh is a job of Spark's, and waits for ever where queries hold every task slot."""
    context = spark.sparkContext
    total = task_slots_of(context.master, context)
    held = sum(query.job.task_slots for query in queries())
    if total is not None and total <= held:
        raise TooFewSlots(
            f"refresh() needs a task slot for Spark's job, and all {total} of {context.master} are "
            f"held by queries: use local[{held + 1}] or more (threads, not cores), or restart the "
            "query with the option refreshStatic set to true",
            needed=1,
            available=0,
            enough=held + 1,
        )
