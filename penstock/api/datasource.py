"""The Spark data source "penstock": streams of a log for Spark's own readers and writers.

spark.read.format("penstock").option("path", log).option("stream", name).load()
    the committed rows; asOf = a position or a time, after = a position, includeMetadata,
    numPartitions, timeZone (of an asOf without one; UTC if not given)
spark.readStream.format("penstock")...
    the same rows as they are committed; startingPosition = earliest, latest or a position,
    maxRowsPerTrigger, includeMetadata, numPartitions
df.write.format("penstock").mode("append")...
    all rows of the job become visible at once; compression = none, lz4 or zstd,
    substreams = into how many parts the stream is cut from now on, substreamsBy = the columns
    of its key, for a new stream
df.writeStream.format("penstock")...
    each micro-batch becomes visible once, whatever dies or is replayed; options as above
spark.read.format("penstock").option("state", query or vertex)
    the keyed state of a running or stopped query
"""

from __future__ import annotations

from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.api import datasource_options as known
from penstock.api.datasource_schema import handed_over, spark_schema
from penstock.errors import UnsupportedPlan
from penstock.names import check_name, check_own_name
from penstock.options import Option, Options, format_refusal

FORMAT = "penstock"
ENDS_FORMAT = "penstock-ends"


class PenstockDataSource(DataSource):
    """The streams of one log; see the module for what can be asked of it.

    Readers and writers are imported where they are made: the class itself travels with every plan.
    """

    default_path: ClassVar[str | None] = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from penstock.api.datasource_read import describe_for  # noqa: PLC0415
        from penstock.api.datasource_rows import readable_schema  # noqa: PLC0415

        options = self._options("reading", (*known.BATCH_READ, *known.STREAM_READ))
        if known.STATE in options:
            from penstock.api.datasource_state import state_schema  # noqa: PLC0415

            wanted = {"variable": options[known.STATE_VARIABLE], "flatten": options[known.FLATTEN]}
            known_state = state_schema(self._path(options), _state_name(options), wanted)
            return handed_over(spark_schema(known_state))
        facts = describe_for(self._path(options), self._stream(options))
        return handed_over(spark_schema(readable_schema(facts, options[known.INCLUDE_METADATA])))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.api.datasource_read import StreamBatchReader  # noqa: PLC0415

        options = self._options("a batch read", known.BATCH_READ)
        path = self._path(options)
        if known.STATE in options:
            from penstock.api.datasource_state import StateReader  # noqa: PLC0415

            state = _state_name(options)
            self._options("reading state", known.STATE_READ)  # no other means anything
            wanted = {"variable": options[known.STATE_VARIABLE], "flatten": options[known.FLATTEN]}
            return StateReader(path, state, schema, wanted)
        return StreamBatchReader(path, self._stream(options), options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.api.datasource_stream_read import StreamMicroBatchReader  # noqa: PLC0415

        options = self._options("a streaming read", known.STREAM_READ)
        if known.TABLE in options:
            raise options.refusal(
                known.TABLE, "is for queries of penstock.writeStream: Spark knows no such tables"
            )
        return StreamMicroBatchReader(self._path(options), self._stream(options), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.api.datasource_append import StreamAppender  # noqa: PLC0415

        options = self._options("a batch write", known.BATCH_WRITE)
        if overwrite:
            raise UnsupportedPlan(
                "a stream cannot be overwritten, it only grows: use .mode('append'), or write to a "
                "new stream"
            )
        return StreamAppender(self._path(options), self._stream(options), options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.api.datasource_sink import StreamMicroBatchWriter  # noqa: PLC0415

        options = self._options("a streaming write", known.STREAM_WRITE)
        if overwrite:
            raise UnsupportedPlan(
                "outputMode('complete') replaces what was written, and a stream only grows: use "
                "outputMode('append') or 'update'"
            )
        return StreamMicroBatchWriter(self._path(options), self._stream(options), options, schema)

    def _options(self, doing: str, declared: tuple[Option[Any], ...]) -> Options:
        return Options(doing, declared, self.options, format_refusal(FORMAT))

    def _stream(self, options: Options) -> str:
        return check_name(options.needed(known.STREAM, "name"), "stream")

    def _path(self, options: Options) -> str:
        return options[known.PATH] or self.default_path or options.needed(known.PATH, "path/to/log")


class EndsDataSource(PenstockDataSource):
    """The streams that a query has for itself, for what Spark reads and writes for it.

    Only sessions know it that are made for this: names with dots are nobody else's.
    """

    @classmethod
    def name(cls) -> str:
        return ENDS_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.api.datasource_sink import FeedingWriter  # noqa: PLC0415

        options = self._options("a streaming write", known.STREAM_WRITE)
        return FeedingWriter(self._path(options), self._stream(options), options, schema)

    def _stream(self, options: Options) -> str:
        return check_own_name(options.needed(known.STREAM, "query.out"), "stream")


def data_source_for(path: str) -> type[PenstockDataSource]:
    """The data source with a log of its own: option `path` may then be left out."""

    class AttachedDataSource(PenstockDataSource):
        default_path = path

    return AttachedDataSource


def _state_name(options: Options) -> str:
    if known.STREAM in options:
        raise options.refusal(known.STATE, "and option 'stream' exclude each other")
    return options.needed(known.STATE, "query")
