"""What a task does with a range of a stream: records to the Arrow batches that Spark takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.api.datasource_ranges import LogRange, committed
from penstock.api.datasource_schema import (
    check_readable,
    into_spark,
    schema_of_spark,
    spark_arrow_schema,
)
from penstock.errors import PUnitError, StreamInputError
from penstock.expressions.types import BIGINT, STRING, TIMESTAMP, Field, Schema, arrow_schema
from penstock.log import punit
from penstock.log.local import open_log
from penstock.log.record import Record
from penstock.runtime.streams import StreamFacts

BATCH_ROWS = 8_192  # p-units may be a few rows each, and every Arrow batch costs the JVM a visit

# Of the marker that committed the row: what `asOf` and `after` are compared with.
METADATA: Schema = (
    Field("_position", BIGINT, False),
    Field("_time", TIMESTAMP, False),
    Field("_producer", STRING, False),
)
METADATA_NAMES = frozenset(field.name for field in METADATA)


class RangePartition(InputPartition):
    """The work of one task."""

    def __init__(self, part: LogRange) -> None:
        super().__init__(part)
        self.part = part


@dataclass(frozen=True)
class RowReading:
    """How the rows of a stream become rows of a DataFrame; it travels to the tasks."""

    path: str
    facts: StreamFacts
    schema: StructType  # what Spark was promised

    def read(self, part: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the committed rows of a range, in batches of a size that suits Spark."""
        target = spark_arrow_schema(self.schema)
        waiting: list[pa.RecordBatch] = []
        rows = 0
        with open_log(self.path, read_only=True) as log:
            for record, marker in committed(log, self.facts, part):
                batch = into_spark(self._rows(record, marker), target)
                if batch.num_rows:
                    waiting.append(batch)
                    rows += batch.num_rows
                if rows >= BATCH_ROWS:
                    yield pa.concat_batches(waiting)
                    waiting, rows = [], 0
            if waiting:
                yield pa.concat_batches(waiting)

    def columns(self) -> Schema:
        """The stream's columns that are read."""
        wanted = set(self.schema.fieldNames())
        return tuple(field for field in self.facts.schema if field.name in wanted)

    def _rows(self, record: Record, marker: Record) -> pa.RecordBatch:
        try:
            batch = punit.conform(punit.decode_record(record), arrow_schema(self.columns()))
        except PUnitError as error:
            raise StreamInputError(
                f"the rows of stream {self.facts.name!r} at position {record.position}, written by "
                f"{record.producer}, cannot be read: {error.message}",
                position=record.position,
                cause=error.error_class,
            ) from error
        if METADATA_NAMES.intersection(self.schema.fieldNames()):
            return _with_metadata(batch, marker)
        return batch


def readable_schema(facts: StreamFacts, with_metadata: bool) -> Schema:
    """The columns that a DataFrame of a stream may have."""
    if not with_metadata:
        return facts.schema
    return (*facts.schema, *(field for field in METADATA if field.name not in _names(facts)))


def row_reading(
    path: str, facts: StreamFacts, schema: StructType, with_metadata: bool
) -> RowReading:
    """Check what Spark asks for, which may be a schema given by the user."""
    asked = schema_of_spark(schema)
    check_readable(facts.name, asked, readable_schema(facts, with_metadata))
    return RowReading(path, facts, schema)


def _names(facts: StreamFacts) -> set[str]:
    return {field.name for field in facts.schema}


def _with_metadata(batch: pa.RecordBatch, marker: Record) -> pa.RecordBatch:
    values = (marker.position, marker.time_us, marker.producer)
    columns = list(batch.columns)
    names = list(batch.schema.names)
    for field, value in zip(arrow_schema(METADATA), values, strict=True):
        if field.name not in names:
            columns.append(pa.repeat(pa.scalar(value, field.type), batch.num_rows))
            names.append(field.name)
    return pa.RecordBatch.from_arrays(columns, names=names)
