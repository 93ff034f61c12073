"""Sinks that live in the user's session: its console, its views, its functions and its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.connectors.contract import Sink
from penstock.expressions.types import schema_from_arrow
from penstock.operators.python_functions import ROWS_PER_BATCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ForeachBatch: TypeAlias = "Callable[[DataFrame, int], None]"
PARTITION_ROWS = 100_000  # of what `foreach` is given: the same after a restart, wherever it runs
_BATCH_ID = "streaming.sql.batchId"  # where PySpark's own foreach looks for the number of a batch


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame of the query's own types.

    Left to itself PySpark takes a time without a zone for one of the session's, which not every
    such time is, and every interval for one of days to seconds.
    """
    # Not above: `penstock explain` says what a sink promises without loading Spark.
    from penstock.api.datasource_schema import handed_over, spark_schema  # noqa: PLC0415

    schema = spark_schema(schema_from_arrow(rows.schema))
    plain = handed_over(schema)
    frame = _given(spark, rows, plain)
    return frame if plain == schema else _retyped(spark, frame, schema)


def _given(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    given = str(spark.conf.get(ROWS_PER_BATCH))
    if int(given) > 0:
        return spark.createDataFrame(rows, schema)
    # PySpark takes no number here that means "all", though Spark does.
    spark.conf.set(ROWS_PER_BATCH, str(2**31 - 1))
    try:
        return spark.createDataFrame(rows, schema)
    finally:
        spark.conf.set(ROWS_PER_BATCH, given)


def _retyped(spark: SparkSession, frame: DataFrame, schema: StructType) -> DataFrame:
    """The same rows as Spark has them inside, under types that Arrow does not know."""
    from pyspark.sql.classic.dataframe import DataFrame as Frame  # noqa: PLC0415

    session: Any = spark
    inside: Any = frame
    data_types = session._jvm.org.apache.spark.sql.types.DataType
    rows = inside._jdf.queryExecution().toRdd()
    found = session._jsparkSession.internalCreateDataFrame(
        rows, data_types.fromJson(schema.json()), False
    )
    return Frame(found, spark)


class NoopSink(Sink):
    """Takes everything and keeps nothing."""

    def publish(self, epoch: int, staged: pa.Table) -> None:
        pass


class ConsoleSink(Sink):
    """Prints batches as Spark's console sink does."""

    def __init__(self, spark: SparkSession, rows_max: int, truncate: bool | int) -> None:
        self._spark = spark
        self._rows_max = rows_max
        self._truncate = truncate

    def publish(self, epoch: int, staged: pa.Table) -> None:
        line = "-" * 43
        print(f"{line}\nBatch: {self.number}\n{line}")
        shown = staged.slice(0, self._rows_max + 1)  # one more: Spark says so if there are more
        frame_of(self._spark, shown).show(self._rows_max, truncate=self._truncate)


class MemorySink(Sink):
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

    def publish(self, epoch: int, staged: pa.Table) -> None:
        if self._replaces:
            self._parts.clear()
        # Each part has at least twice the rows of the next one. So there are few of them, and a
        # batch does not cost as much as all that came before it.
        rows = staged
        while self._parts and self._parts[-1][0].num_rows < 2 * rows.num_rows:
            rows = pa.concat_tables([self._parts.pop()[0], rows])
        self._show(rows)

    def _show(self, rows: pa.Table) -> None:
        self._parts.append((rows, frame_of(self._spark, rows)))
        frames = (frame for _, frame in self._parts)
        reduce(lambda one, other: one.union(other), frames).createOrReplaceTempView(self._view)


class ForeachBatchSink(Sink):
    """Calls the user's function with a DataFrame and the batch's number."""

    def __init__(self, spark: SparkSession, function: ForeachBatch) -> None:
        self._spark = spark
        self._function = function

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self._function(frame_of(self._spark, staged), self.number)


class ForeachSink(Sink):
    """Hands rows one by one to the user's object, in tasks of Spark, as its own `foreach` does.

    The rows of a batch are cut into partitions by their number alone, so a batch that comes again
    has the same ones: who skips pairs of partition and batch that it has seen is exactly once.
    """

    def __init__(self, spark: SparkSession, writer: Any) -> None:
        from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415

        self._spark = spark
        self._each: Any = DataStreamWriter._construct_foreach_function(writer)

    def publish(self, epoch: int, staged: pa.Table) -> None:
        if not staged.num_rows:
            return  # as Spark, which runs no batch without rows
        context: Any = self._spark.sparkContext
        starts = range(0, staged.num_rows, PARTITION_ROWS)
        parts = [staged.slice(start, PARTITION_ROWS).combine_chunks() for start in starts]
        rows = context.union([frame_of(self._spark, part).coalesce(1).rdd for part in parts])
        context.setLocalProperty(_BATCH_ID, str(self.number))
        try:
            rows.mapPartitionsWithIndex(self._each).count()
        finally:
            context.setLocalProperty(_BATCH_ID, None)


class TableAppendSink(Sink):
    """Appends batches to a table of a catalog that only Spark knows how to write."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self._table = table

    def publish(self, epoch: int, staged: pa.Table) -> None:
        if staged.num_rows:
            frame_of(self._spark, staged).writeTo(self._table).append()


def is_same_function(one: Any, other: Any) -> bool:
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
