"""DataFrames over bids, by name, with the output mode: what the golden plans are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GOLDEN = Path(__file__).with_name("plans.txt")


@dataclass(frozen=True)
class Shown:
    """One DataFrame definition."""

    define: Callable[[DataFrame], DataFrame]
    mode: str = "append"


def _windowed(df: DataFrame, *window: str | None) -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    timed = df.withWatermark("ts", "1 second")
    return timed.groupBy(F.window("ts", *window), "auction")  # type: ignore[arg-type]


def _static(df: DataFrame) -> DataFrame:
    return df.sparkSession.range(3).selectExpr("id as auction", "id + 1 as least")


def plan_cases() -> dict[str, Shown]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def counts(df: DataFrame, *window: str | None) -> DataFrame:
        counted: DataFrame = _windowed(df, *window).count()
        return counted

    near = "r.ts between l.ts - interval 1 minute and l.ts + interval 10 seconds"

    def joined(df: DataFrame, on: str, how: str = "inner") -> DataFrame:
        timed = df.withWatermark("ts", "1 second") if "ts" in df.columns else df
        pairs = timed.alias("l").join(timed.alias("r"), F.expr(on), how)
        return (
            pairs
            if how.startswith("left_")
            else pairs.select("l.*", "r.auction").toDF(*df.columns, "other")
        )

    return {
        "scan": Shown(lambda df: df),
        "columns in another order": Shown(lambda df: df.select("ts", "auction")),
        "filter": Shown(lambda df: df.where("price > 3")),
        "a filter that is never true": Shown(lambda df: df.where("1 = 0")),
        "project": Shown(lambda df: df.selectExpr("price * 2 AS twice", "auction")),
        "the same column twice": Shown(lambda df: df.selectExpr("price", "price AS again")),
        "two columns of one name inside": Shown(
            lambda df: (
                df.select(F.expr("price + 1").alias("k"), F.expr("bidder + 1").alias("k"), "tags")
                .toDF("x", "y", "z")
                .select("x", "y", F.explode("z").alias("x2"))
            )
        ),
        "odd names": Shown(
            lambda df: df.select(F.col("price").alias("a b.c"), F.col("url").alias("`"))
        ),
        "names that the engine uses itself": Shown(
            lambda df: (
                df.select(F.col("auction").alias("__pane"), "price")
                .groupBy("__pane")
                .agg(F.max("price").alias("__rows"))
            ),
            "update",
        ),
        "explode": Shown(lambda df: df.select("auction", F.explode("tags").alias("tag"))),
        "explode outer": Shown(
            lambda df: df.select("auction", F.explode_outer("tags").alias("tag"))
        ),
        "posexplode": Shown(lambda df: df.select("auction", F.posexplode("tags"))),
        "posexplode outer": Shown(lambda df: df.select(F.posexplode_outer("tags"), "url")),
        "explode of an expression": Shown(
            lambda df: df.select(F.explode(F.split("url", "/")).alias("part"))
        ),
        "union by position": Shown(
            lambda df: df.select("auction", "url").union(df.selectExpr("bidder", "url"))
        ),
        "union by name": Shown(
            lambda df: df.select("auction", "url").unionByName(df.select("url", "auction"))
        ),
        "static join": Shown(
            lambda df: df.select("auction", "price").join(_static(df), "auction", "left")
        ),
        "static join by what Spark computes, and a condition": Shown(
            lambda df: (
                df.join(_static(df).alias("s"), F.expr("bidder = s.auction * 2 and price > least"))
                .select("bidder", "least")
                .toDF("a", "b")
            )
        ),
        "in static rows, or not": Shown(
            lambda df: df.join(_static(df), "auction", "left_anti").select("url")
        ),
        "union of three": Shown(
            lambda df: df.select("price").union(df.select("bidder")).union(df.select("auction"))
        ),
        "repartition": Shown(lambda df: df.repartition(3, "auction").coalesce(2)),
        "alias": Shown(lambda df: df.alias("b").where("b.price > 0").select("b.auction")),
        "watermark": Shown(lambda df: df.withWatermark("ts", "2 minutes 500 milliseconds")),
        "a watermark of days": Shown(lambda df: df.withWatermark("ts", "2 days")),
        "filters around a watermark": Shown(
            lambda df: df.withWatermark("ts", "1 second").where("price > 1 and ts > '2020-01-01'")
        ),
        "tumbling": Shown(lambda df: counts(df, "10 seconds")),
        "tumbling from an offset": Shown(lambda df: counts(df, "1 hour", None, "15 minutes")),
        "sliding": Shown(lambda df: counts(df, "10 seconds", "2 seconds")),
        "sliding unevenly": Shown(lambda df: counts(df, "10 seconds", "4 seconds")),
        "sliding from before": Shown(
            lambda df: counts(df, "10 seconds", "5 seconds", "-2 seconds")
        ),
        "many windows": Shown(lambda df: counts(df, "2 minutes", "1 second")),
        "window of an expression": Shown(
            lambda df: (
                df.withWatermark("ts", "1 second")
                .groupBy(F.window(F.expr("timestamp_millis(price)"), "10 seconds"))
                .agg(F.max("ts").alias("last"))
            ),
            "update",
        ),
        "window without a watermark": Shown(
            lambda df: df.groupBy(F.window("ts", "10 seconds")).count(), "complete"
        ),
        "window as a value": Shown(
            lambda df: df.select(F.window("ts", "10 seconds", None, "3 seconds"), "price")
        ),
        "window's start as a key": Shown(
            lambda df: df.groupBy(F.window("ts", "10 seconds").start.alias("k")).count(), "update"
        ),
        "columns of a window": Shown(
            lambda df: counts(df, "10 seconds").select("window.end", "count", "window.start")
        ),
        "the time of a window": Shown(
            lambda df: counts(df, "10 seconds").select(F.window_time("window").alias("t"), "count")
        ),
        "filter on a window": Shown(
            lambda df: counts(df, "10 seconds").where(
                "window.start > timestamp'2020-01-01' and count > 3"
            )
        ),
        "filter on sliding windows": Shown(
            lambda df: counts(df, "10 seconds", "5 seconds").where(
                "window.start > timestamp'2020-01-01' and auction > 3"
            )
        ),
        "unbounded": Shown(lambda df: df.groupBy("auction").count(), "update"),
        "every aggregate": Shown(
            lambda df: df.groupBy("auction").agg(
                F.count("*"),
                F.count("price"),
                F.expr("count(price, url)"),
                F.sum("price"),
                F.avg("price"),
                F.min("ts"),
                F.max("fee"),
            ),
            "complete",
        ),
        "sums of decimals": Shown(
            lambda df: df.groupBy("auction").agg(F.sum("fee").alias("s"), F.avg("fee").alias("a")),
            "complete",
        ),
        "no key": Shown(lambda df: df.agg(F.count("*").alias("n")), "complete"),
        "a key alone": Shown(lambda df: df.groupBy("auction").agg(F.lit(1).alias("one")), "update"),
        "computed keys": Shown(
            lambda df: df.groupBy((F.col("price") % 5).alias("k")).count(), "update"
        ),
        "computed results": Shown(
            lambda df: df.groupBy("auction").agg(
                (F.sum("price") + 1).alias("t"),
                F.sum("price").alias("s"),
                (F.sum("price") / F.count("*")).alias("mean"),
            ),
            "update",
        ),
        "having": Shown(
            lambda df: df.groupBy("auction").agg(F.sum("price").alias("s")).where("s > 3"),
            "complete",
        ),
        "join": Shown(lambda df: joined(df, "l.auction = r.bidder and l.price > r.price")),
        "join within seconds": Shown(lambda df: joined(df, f"l.auction = r.auction and {near}")),
        "left join within seconds": Shown(
            lambda df: joined(df, f"l.auction <=> r.auction and {near}", "left")
        ),
        "semi join": Shown(lambda df: joined(df, "l.bidder + 1 = r.price", "left_semi")),
        "anti join within seconds": Shown(
            lambda df: joined(df, f"l.url = r.url and {near}", "left_anti")
        ),
        "join of windows": Shown(
            lambda df: joined(
                df.withWatermark("ts", "1 second").select("auction", F.window("ts", "1 minute")),
                "l.auction = r.auction and l.window = r.window",
                "full",
            )
        ),
        "counts behind a join": Shown(
            lambda df: (
                joined(df, f"l.auction = r.auction and {near}")
                .groupBy(F.window("ts", "1 minute"))
                .count()
            )
        ),
        "join behind counts": Shown(
            lambda df: (
                df.withWatermark("ts", "1 second")
                .alias("l")
                .join(
                    counts(df, "10 seconds").alias("r"),
                    F.expr("l.auction = r.auction and ts >= window.start and ts < window.end"),
                )
                .select("l.auction", "price", "count")
            )
        ),
        "a window's largest count": Shown(
            lambda df: counts(df, "10 seconds").groupBy("window").agg(F.max("count").alias("most"))
        ),
        "a sliding window's largest count": Shown(
            lambda df: (
                counts(df, "10 seconds", "4 seconds")
                .groupBy("window")
                .agg(F.max("count").alias("most"))
            )
        ),
        "windows of windows": Shown(
            lambda df: (
                counts(df, "10 seconds")
                .groupBy(F.window("window", "1 minute"))
                .agg(F.sum("count").alias("n"))
            )
        ),
        "sessions": Shown(
            lambda df: (
                df.withWatermark("ts", "1 second")
                .groupBy(F.session_window("ts", "5 minutes"), "auction")
                .agg(F.sum("price").alias("s"))
            )
        ),
        "sessions with a gap of each row": Shown(
            lambda df: (
                df.withWatermark("ts", "1 second")
                .groupBy(
                    F.session_window(
                        "ts",
                        F.when(F.col("price") > 3, "2 seconds")
                        .when(F.col("price") > 2, "1 month 2 days")
                        .otherwise(F.lit(None)),
                    ).alias("s"),
                )
                .count()
                .select("s.start", "count")
            )
        ),
        "sessions with a gap of made intervals": Shown(
            lambda df: df.groupBy(
                F.session_window("ts", F.expr("make_interval(0, 0, 0, 0, 1, 0, price)"))
            ).count(),
            "complete",
        ),
        "windows of sessions, and sessions of these": Shown(
            lambda df: (
                df.withWatermark("ts", "1 second")
                .groupBy(F.session_window("ts", "5 minutes"), "auction")
                .count()
                .groupBy(F.window("session_window", "1 hour"))
                .agg(F.max("count").alias("most"))
                .groupBy(F.session_window(F.window_time("window"), "3 hours"))
                .agg(F.sum("most").alias("s"))
            )
        ),
    }
