"""The queries, each one DataFrame in plain PySpark, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DELAY_S = 2  # of all watermarks: more than the rows are out of order

Output = Literal["append", "update"]


@dataclass(frozen=True)
class FileQuery:
    """What is read, what is made of it, and how many rows a run has where nobody says."""

    name: str
    rows: int
    format: str
    schema: str
    columns: tuple[str, ...]  # that the query needs
    build: Callable[[DataFrame], DataFrame]
    output: Output = "append"
    folder: str = ""  # of another query's rows

    @property
    def input(self) -> str:
        """Whose rows it reads."""
        return self.folder or self.name

    def stream(self, spark: SparkSession, path: str) -> DataFrame:
        """The query over a folder that may grow."""
        return self.build(spark.readStream.format(self.format).schema(self.schema).load(path))

    def batch(self, spark: SparkSession, path: str) -> DataFrame:
        """The same over the files that are there."""
        return self.build(spark.read.format(self.format).schema(self.schema).load(path))


def _ysb(rows: DataFrame) -> DataFrame:
    views = rows.filter("event_type = 0").select("campaign_id", "event_time")
    return _timed(views).groupBy("campaign_id", F.window("event_time", "10 seconds")).count()


def _strkey(rows: DataFrame) -> DataFrame:
    grouped = _timed(rows).groupBy("user", F.window("event_time", "10 seconds"))
    return grouped.agg(F.count("*").alias("purchases"), F.sum("amount").alias("spent"))


def _json(rows: DataFrame) -> DataFrame:
    grouped = _timed(rows).groupBy("device", F.window("event_time", "10 seconds"))
    return grouped.agg(F.count("*").alias("readings"), F.sum("value").alias("total"))


def _words(rows: DataFrame) -> DataFrame:
    return rows.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()


def _sliding(rows: DataFrame) -> DataFrame:
    grouped = _timed(rows).groupBy("sensor", F.window("event_time", "60 seconds", "1 second"))
    return grouped.agg(F.avg("reading").alias("mean"), F.max("reading").alias("most"))


def _tumbling(rows: DataFrame) -> DataFrame:
    grouped = _timed(rows).groupBy("sensor", F.window("event_time", "60 seconds"))
    return grouped.agg(F.avg("reading").alias("mean"), F.max("reading").alias("most"))


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("event_time", f"{DELAY_S} seconds")


_READINGS = "sensor int, battery double, reading double, event_time timestamp"
_READ = ("sensor", "reading", "event_time")

QUERIES: Mapping[str, FileQuery] = MappingProxyType(
    {
        query.name: query
        for query in (
            FileQuery(
                "ysb",
                40_000_000,
                "parquet",
                "user_id bigint, campaign_id int, ad_type int, event_type int, "
                "event_time timestamp",
                ("campaign_id", "event_type", "event_time"),
                _ysb,
            ),
            FileQuery(
                "strkey",
                5_000_000,
                "parquet",
                "user string, country string, amount double, event_time timestamp",
                ("user", "amount", "event_time"),
                _strkey,
            ),
            FileQuery(
                "json",
                1_000_000,
                "json",
                "device string, firmware string, value bigint, event_time timestamp",
                ("device", "value", "event_time"),
                _json,
            ),
            FileQuery("words", 1_000_000, "text", "value string", ("value",), _words, "update"),
            FileQuery("sliding", 1_000_000, "parquet", _READINGS, _READ, _sliding),
        )
    }
)
# Measured beside `sliding`, over the same files: what a row in one window costs, not in sixty.
TUMBLING = FileQuery(
    "tumbling", 1_000_000, "parquet", _READINGS, _READ, _tumbling, folder="sliding"
)
