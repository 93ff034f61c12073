"""One Spark session for all tests of the front end, with settings and data sources of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.session import active_session
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BIDS = (
    "auction bigint, bidder bigint, price bigint, url string, ts timestamp, "
    "fee decimal(8,2), tags array<string>"
)
_LOCAL_ROWS = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"


def stream_source(source: str) -> type[Any]:
    """A data source that can be planned and not read. Local, so that it travels as it is."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader  # noqa: PLC0415

    class PlannedReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

    class PlannedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return PlannedReader()

    return PlannedSource


@pytest.fixture(scope="session")
def sessions() -> dict[int, SparkSession]:
    """The session of this package for each shared one: somebody may stop the latter."""
    return {}


@pytest.fixture(scope="module")
def spark(sessions: dict[int, SparkSession]) -> SparkSession:
    """A session beside the shared one: settings and data sources set here stay here."""
    shared = shared_session()
    if id(shared) not in sessions:
        session = shared.newSession()
        with active_session(session):
            for source in ("penstock", "nexmark"):
                session.dataSource.register(stream_source(source))
        # A few rows each: compiling costs more than it saves.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        session.conf.set("spark.sql.adaptive.enabled", "false")
        session.conf.set("spark.sql.shuffle.partitions", "1")
        session.conf.set("spark.sql.leafNodeDefaultParallelism", "1")
        # Spark computes rows that it holds itself before it simplifies what is computed.
        session.conf.set("spark.sql.optimizer.excludedRules", _LOCAL_ROWS)
        sessions[id(shared)] = session
    return sessions[id(shared)]


@pytest.fixture(autouse=True)
def defaults(spark: SparkSession) -> None:
    """Settings that a test may change are as they should be when the next one begins."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.ansi.enabled", "true")


def stream(spark: SparkSession, schema: str, name: str = "bids", **options: Any) -> DataFrame:
    """A streaming DataFrame over a stream of the log."""
    reader = spark.readStream.format("penstock").schema(schema).option("stream", name)
    return reader.options(**options).load()


@pytest.fixture(scope="module")
def bids(spark: SparkSession) -> DataFrame:
    return stream(spark, BIDS)
