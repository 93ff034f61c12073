"""The Spark data source "producers": rows that other programs send, in queries of Penstock only."""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.errors import InvalidArgument

FORMAT = "producers"


class ProducersDataSource(DataSource):
    """What programs send, with `penstock.Producer` or as plain lines and Arrow streams, with the
    columns of `.schema(...)`.

    Options: `port` (on the loopback interface), `tokenFile` (made if it is missing; producers name
    the same one), `bufferBytes` (what may wait here before producers have to).
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        raise InvalidArgument('producers send rows of any columns: add .schema("id INT, ...")')

    def reader(self, schema: StructType) -> DataSourceReader:
        _refuse("read as a table")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _refuse("run by Structured Streaming")


def _refuse(what: str) -> NoReturn:
    raise InvalidArgument(
        f"what producers send comes once and cannot be {what}: start the query with "
        "penstock.writeStream, or write the rows to a stream first"
    )
