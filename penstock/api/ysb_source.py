"""The Spark data source "ysb": advertisement events of the Yahoo streaming benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.api.datasource_schema import check_readable, schema_of_spark, spark_schema
from penstock.api.numbered_rows import (
    READ_ROWS,
    NumberedReader,
    NumberedRows,
    NumberedStreamReader,
)
from penstock.connectors import generator_options as known
from penstock.connectors.contract import Source
from penstock.connectors.ysb import RATE, YSB_SCHEMA, ysb_source
from penstock.expressions.types import schema_from_arrow
from penstock.options import NUM_PARTITIONS, Options, format_refusal

FORMAT = "ysb"


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
        return NumberedReader(self._rows(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumberedStreamReader(self._rows(schema))

    def _rows(self, schema: StructType) -> NumberedRows:
        options = Options("this read", known.YSB, self.options, format_refusal(FORMAT))
        check_readable(FORMAT, schema_of_spark(schema), schema_from_arrow(YSB_SCHEMA))
        rows = options.needed(known.ROWS, "1000000")
        rate = options[known.YSB_RATE] or RATE
        return YsbRows(rows, options[NUM_PARTITIONS], schema, rate)


@dataclass(frozen=True)
class YsbRows(NumberedRows):
    rate: int

    format = FORMAT

    def source(self, end: int) -> Source:
        return ysb_source(self.rate, end, self.schema.names, READ_ROWS)
