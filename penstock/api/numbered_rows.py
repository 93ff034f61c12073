"""Spark data sources whose rows are a function of their number: as a table, and as a stream whose
end is there from the beginning. The offset is a row's number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.api.datasource_schema import into_spark, spark_arrow_schema
from penstock.api.nexmark_source import EventRange, event_ranges
from penstock.connectors.contract import Source
from penstock.errors import InvalidOffset

READ_ROWS = 65_536


@dataclass(frozen=True)
class NumberedRows(ABC):
    """Which rows, and which of their columns; it travels to the tasks."""

    rows: int
    ranges: int | None
    schema: StructType

    format: ClassVar[str]

    @abstractmethod
    def source(self, end: int) -> Source:
        """The rows up to this number, with the columns of the schema, READ_ROWS at once."""

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        target = spark_arrow_schema(self.schema)
        source = self.source(end)
        offset: Any = first
        while offset < end:
            read = source.read(offset, READ_ROWS)
            assert read.batch is not None
            yield into_spark(read.batch, target)
            offset = read.next_offset


class NumberedReader(DataSourceReader):
    """The rows as a table."""

    def __init__(self, rows: NumberedRows) -> None:
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return event_ranges(0, self._rows.rows, self._rows.ranges) or [EventRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._rows.read(partition.first, partition.end)


class NumberedStreamReader(DataSourceStreamReader):
    """The rows as a stream."""

    def __init__(self, rows: NumberedRows) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"row": self._rows.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return event_ranges(self._row(start), self._row(end), self._rows.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._rows.read(partition.first, partition.end)

    def _row(self, offset: dict[str, Any]) -> int:
        row = offset.get("row")
        if type(row) is not int or row < 0:
            raise InvalidOffset(
                f"{offset!r:.200} is not an offset of format {self._rows.format!r}: the checkpoint "
                "belongs to another source; use a new checkpointLocation",
                offset=repr(offset)[:200],
            )
        return row
