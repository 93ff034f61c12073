"""The Spark data source "replay": a sample that comes again and again, with rising times."""

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
from penstock.connectors.repeating import RepeatingSource, Sample, read_sample
from penstock.expressions.types import schema_from_arrow
from penstock.options import NUM_PARTITIONS, Options, format_refusal

FORMAT = "replay"


class ReplayDataSource(DataSource):
    """A Parquet file whose rows come in cycles, each later by a period.

    Options: `path` (of the file), `timeColumn` (a timestamp that the rows are in order of),
    `periodSeconds` (from the beginning of a cycle to that of the next; a second more than the rows
    span by default), `rows` (how many; only a query of Penstock can do without), `numPartitions`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(schema_from_arrow(self._sample(self._options()).rows.schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return NumberedReader(self._rows(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumberedStreamReader(self._rows(schema))

    def _options(self) -> Options:
        return Options("this read", known.REPLAY, self.options, format_refusal(FORMAT))

    def _sample(self, options: Options) -> Sample:
        path, time_column = known.replayed(options)
        return read_sample(path, time_column, options[known.REPLAY_PERIOD])

    def _rows(self, schema: StructType) -> NumberedRows:
        options = self._options()
        known_schema = schema_from_arrow(self._sample(options).rows.schema)
        check_readable(FORMAT, schema_of_spark(schema), known_schema)
        rows = options.needed(known.ROWS, "1000000")
        path, time_column = known.replayed(options)
        period_us = options[known.REPLAY_PERIOD]
        return ReplayRows(rows, options[NUM_PARTITIONS], schema, path, time_column, period_us)


@dataclass(frozen=True)
class ReplayRows(NumberedRows):
    path: str
    time_column: str
    period_us: int | None

    format = FORMAT

    def source(self, end: int) -> Source:
        sample = read_sample(self.path, self.time_column, self.period_us)
        return RepeatingSource(sample, end, self.schema.names, READ_ROWS)
