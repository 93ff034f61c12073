"""Attaching a Spark session to a log: the one call before anything else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from penstock.api.datasource import data_source_for
from penstock.api.nexmark_source import NexmarkDataSource
from penstock.config import Durability, LogConfig
from penstock.errors import NotAttached, UnsupportedSession
from penstock.log.local import LocalLog, open_log

if TYPE_CHECKING:
    from penstock.api.query import StreamingQuery

_ATTRIBUTE = "_penstock_attached"
_QUERIES = "_penstock_queries"


@dataclass(frozen=True)
class Attached:
    """A session and its log."""

    spark: SparkSession
    path: Path
    log: LocalLog


def attach(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    durability: Durability = "synced",
) -> Attached:
    """Use a folder as this session's log; it is created if there is none.

    From here on `spark.readStream.format("penstock").option("stream", name)` reads its streams, and
    `penstock.writeStream(df)` runs queries over it. Attaching again, as a notebook cell that is run
    twice does, is harmless; attaching to another folder replaces the first for new queries.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UnsupportedSession(
            "this is a Spark Connect session, which has no access to Catalyst's plans: create a "
            "classic one (SparkSession.builder.master(...)). Over Connect the data source works: "
            "register penstock.api.datasource.PenstockDataSource and use format('penstock')"
        )
    folder = Path(path).absolute()
    known = getattr(spark, _ATTRIBUTE, None)
    if isinstance(known, Attached) and known.path == folder:
        return known
    log = open_log(folder, create=create, config=LogConfig(durability=durability))
    spark.dataSource.register(data_source_for(str(folder)))
    spark.dataSource.register(NexmarkDataSource)
    attached = Attached(spark, folder, log)
    setattr(spark, _ATTRIBUTE, attached)
    return attached


def attached_log(spark: Any) -> Attached:
    """The log that a session was attached to."""
    attached = getattr(spark, _ATTRIBUTE, None)
    if not isinstance(attached, Attached):
        raise NotAttached(
            "this Spark session is not attached to a log: call penstock.attach(spark, "
            "'path/to/log')"
            " first"
        )
    return attached


def note_started(spark: Any, query: StreamingQuery) -> None:
    """Remember a query that was started."""
    context = spark.sparkContext
    setattr(context, _QUERIES, [*started_queries(context), query])


def started_queries(context: Any) -> list[StreamingQuery]:
    """The queries of a Spark context that run or have failed, whichever session started them."""
    started: list[StreamingQuery] = getattr(context, _QUERIES, [])
    return [query for query in started if query.isActive or query.exception() is not None]
