"""The eleven queries of windows over six streams, each one DataFrame in plain PySpark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SEGMENT_FEET = 5_280
_MEASURED = ("mf01", "mf02", "mf03")
_PLUG = ("plug", "household", "house")
_REPORT = ("vehicle", "highway", "direction", "position")
_SEGMENT = ("highway", "direction", "segment")


# Of rows in thousands of windows Spark compiles no loop, and takes minutes for more.
_UNCOMPILED = 6_000_000
_IN_MEMORY = 3_000_000  # where groups have few rows: of twice as many its state store slows down


@dataclass(frozen=True)
class WindowQuery:
    """A query over a stream whose time is `ts`; its rows begin with their window's start."""

    name: str
    stream: str
    meaning: str
    build: Callable[[DataFrame, DataFrame], DataFrame]  # of the stream and the ads' campaigns
    columns: tuple[str, ...]  # that it reads beside the time
    sample_bytes: int  # of rows as wide as they are in memory
    row_bytes: int
    window_s: int
    slide_s: int = 1
    gives_many: bool = False  # as many rows as it takes, or more
    spark_windows: int = 120_000_000  # Spark makes a row of each that a row is in: so many of them

    @property
    def sample_rows(self) -> int:
        return self.sample_bytes // self.row_bytes

    @property
    def windows_per_row(self) -> int:
        return self.window_s // self.slide_s

    def over(self, rows: DataFrame, ads: DataFrame) -> DataFrame:
        """The query, with event time that is where the newest row is."""
        return self.build(rows.withWatermark("ts", "0 seconds"), ads)


def _every_second(size_s: int) -> Column:
    return F.window("ts", f"{size_s} seconds", "1 second")


def _started(rows: DataFrame, *columns: str) -> DataFrame:
    return rows.select(F.col("window.start").alias("start"), *columns)


def _cm1(rows: DataFrame, _: DataFrame) -> DataFrame:
    used = rows.groupBy(_every_second(60), "category").agg(F.sum("cpu").alias("cpu"))
    return _started(used, "category", "cpu")


def _cm2(rows: DataFrame, _: DataFrame) -> DataFrame:
    failed = rows.filter("eventType = 3").groupBy(_every_second(60), "jobId")
    return _started(failed.agg(F.avg("cpu").alias("cpu")), "jobId", "cpu")


def _sg1(rows: DataFrame, _: DataFrame) -> DataFrame:
    return _started(rows.groupBy(_every_second(3_600)).agg(F.avg("value").alias("mean")), "mean")


def _by_plug(rows: DataFrame) -> DataFrame:
    return rows.groupBy(_every_second(128), *_PLUG).agg(F.avg("value").alias("mean"))


def _sg2(rows: DataFrame, _: DataFrame) -> DataFrame:
    return _started(_by_plug(rows), *_PLUG, "mean")


def _sg3(rows: DataFrame, _: DataFrame) -> DataFrame:
    everywhere = rows.groupBy(_every_second(128)).agg(F.avg("value").alias("everywhere"))
    above = _by_plug(rows).join(everywhere, "window").filter("mean > everywhere")
    return _started(above, *_PLUG, "mean", "everywhere")


def _segments(rows: DataFrame) -> DataFrame:
    return rows.withColumn("segment", F.expr(f"int(position div {SEGMENT_FEET})"))


def _lrb1(rows: DataFrame, _: DataFrame) -> DataFrame:
    speeds = _segments(rows).groupBy(_every_second(300), *_SEGMENT)
    slow = speeds.agg(F.avg("speed").alias("speed")).filter("speed < 40")
    return _started(slow, *_SEGMENT, "speed")


def _vehicles(rows: DataFrame) -> DataFrame:
    reports = _segments(rows).groupBy(_every_second(30), "vehicle", *_SEGMENT)
    return reports.agg(F.count("*").alias("reports"))


def _lrb2(rows: DataFrame, _: DataFrame) -> DataFrame:
    return _started(_vehicles(rows), "vehicle", *_SEGMENT, "reports")


def _lrb3(rows: DataFrame, _: DataFrame) -> DataFrame:
    there = _vehicles(rows).groupBy("window", *_SEGMENT).agg(F.count("*").alias("vehicles"))
    return _started(there, *_SEGMENT, "vehicles")


def _ysb(rows: DataFrame, ads: DataFrame) -> DataFrame:
    seen = rows.filter("event_type = 0").select("ts", "ad_id").join(F.broadcast(ads), "ad_id")
    views = seen.groupBy(F.window("ts", "10 seconds"), "campaign").agg(F.count("*").alias("views"))
    return _started(views, "campaign", "views")


def _nq(rows: DataFrame, _: DataFrame) -> DataFrame:
    counts = rows.groupBy(_every_second(60), "id").agg(F.count("*").alias("bids"))
    most = counts.groupBy("window").agg(F.max("bids").alias("most"))
    return _started(counts.join(most, "window").filter("bids = most"), "id", "bids")


def _sm(rows: DataFrame, _: DataFrame) -> DataFrame:
    means = [F.avg(name).alias(name) for name in _MEASURED]
    return _started(rows.groupBy(_every_second(60)).agg(*means), *_MEASURED)


_KIB = 1 << 10
QUERIES: Mapping[str, WindowQuery] = MappingProxyType(
    {
        query.name: query
        for query in (
            WindowQuery(
                "cm1", "cluster", "CPU by category", _cm1, ("category", "cpu"), 512 * _KIB, 64, 60
            ),
            WindowQuery(
                "cm2",
                "cluster",
                "CPU of failed jobs",
                _cm2,
                ("eventType", "jobId", "cpu"),
                512 * _KIB,
                64,
                60,
            ),
            WindowQuery(
                "sg1",
                "grid",
                "mean load of an hour",
                _sg1,
                ("value",),
                1024 * _KIB,
                32,
                3_600,
                spark_windows=_UNCOMPILED,
            ),
            WindowQuery(
                "sg2",
                "grid",
                "mean load by plug",
                _sg2,
                ("value", *_PLUG),
                512 * _KIB,
                32,
                128,
                gives_many=True,
            ),
            WindowQuery(
                "sg3",
                "grid",
                "plugs above the mean",
                _sg3,
                ("value", *_PLUG),
                512 * _KIB,
                32,
                128,
                gives_many=True,
            ),
            WindowQuery(
                "lrb1",
                "road",
                "slow segments",
                _lrb1,
                ("speed", "highway", "direction", "position"),
                512 * _KIB,
                32,
                300,
                gives_many=True,
            ),
            WindowQuery(
                "lrb2",
                "road",
                "reports by vehicle",
                _lrb2,
                _REPORT,
                256 * _KIB,
                32,
                30,
                gives_many=True,
                spark_windows=_IN_MEMORY,
            ),
            WindowQuery(
                "lrb3",
                "road",
                "vehicles by segment",
                _lrb3,
                _REPORT,
                256 * _KIB,
                32,
                30,
                gives_many=True,
                spark_windows=_IN_MEMORY,
            ),
            WindowQuery(
                "ysb",
                "ads",
                "views by campaign",
                _ysb,
                ("event_type", "ad_id"),
                1024 * _KIB,
                128,
                10,
                slide_s=10,
            ),
            WindowQuery("nq", "bids", "hottest auctions", _nq, ("id",), 1024 * _KIB, 128, 60),
            WindowQuery("sm", "sensors", "mean readings", _sm, _MEASURED, 256 * _KIB, 64, 60),
        )
    }
)
