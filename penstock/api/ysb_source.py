"""The Spark data source "ysb": advertisement events of the Yahoo streaming benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.api.datasource_schema import (
    check_readable,
    into_spark,
    schema_of_spark,
    spark_arrow_schema,
    spark_schema,
)
from penstock.api.nexmark_source import EventRange, event_ranges
from penstock.connectors import generator_options as known
from penstock.connectors.ysb import RATE, YSB_SCHEMA, YsbSource
from penstock.errors import InvalidOffset
from penstock.expressions.types import schema_from_arrow
from penstock.options import NUM_PARTITIONS, Options, format_refusal

FORMAT = "ysb"
READ_ROWS = 65_536


class YsbDataSource(DataSource):
    """Rows that are a function of their number.

    Options: `rows` (how many; only a query of Penstock can do without), `rate` (rows per second of
    event time; all rows are there at once), `numPartitions`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(schema_from_arrow(YSB_SCHEMA))

    def reader(self, schema: StructType) -> DataSourceReader:
        return YsbReader(self._rows(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return YsbStreamReader(self._rows(schema))

    def _rows(self, schema: StructType) -> YsbRows:
        options = Options("this read", known.YSB, self.options, format_refusal(FORMAT))
        check_readable(FORMAT, schema_of_spark(schema), schema_from_arrow(YSB_SCHEMA))
        rows = options.needed(known.YSB_ROWS, "1000000")
        return YsbRows(options[known.YSB_RATE] or RATE, rows, options[NUM_PARTITIONS], schema)


@dataclass(frozen=True)
class YsbRows:
    """Which rows, and which of their columns; it travels to the tasks."""

    rate: int
    rows: int
    ranges: int | None
    schema: StructType

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        target = spark_arrow_schema(self.schema)
        source = YsbSource(self.rate, end, self.schema.names, READ_ROWS)
        offset: Any = first
        while offset < end:
            read = source.read(offset, READ_ROWS)
            assert read.batch is not None
            yield into_spark(read.batch, target)
            offset = read.next_offset


class YsbReader(DataSourceReader):
    """The rows as a table."""

    def __init__(self, rows: YsbRows) -> None:
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return event_ranges(0, self._rows.rows, self._rows.ranges) or [EventRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._rows.read(partition.first, partition.end)


class YsbStreamReader(DataSourceStreamReader):
    """The rows as a stream whose end is there from the beginning; the offset is a row's number."""

    def __init__(self, rows: YsbRows) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"row": self._rows.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return event_ranges(_row(start), _row(end), self._rows.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._rows.read(partition.first, partition.end)


def _row(offset: dict[str, Any]) -> int:
    row = offset.get("row")
    if type(row) is not int or row < 0:
        raise InvalidOffset(
            f"{offset!r:.200} is not an offset of format {FORMAT!r}: the checkpoint belongs to "
            "another source; use a new checkpointLocation",
            offset=repr(offset)[:200],
        )
    return row
