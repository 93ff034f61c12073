"""Programs that the tests of this folder read, change and compare."""

from __future__ import annotations

from penstock.plan.optimizer import plan_program
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.columns import apply
from penstock.testing.plans import (
    Draft,
    col,
    count,
    max_,
    query,
    scan_source,
    scan_stream,
    sum_,
    window,
)


def bids() -> Draft:
    return scan_stream(
        "bids", "auction bigint, price bigint, name string, m decimal(8,2), ts timestamp"
    )


def hot(rows: Draft, size: str = "10 seconds") -> Draft:
    timed = rows.with_watermark("ts", "1 second")
    grouped = timed.group_by("auction", window=window("ts", size, "2 seconds"))
    return grouped.agg(count().alias("n"), max_("price").alias("top"))


def small() -> Program:
    """One stage, one vertex."""
    return plan_program(query("small", bids().filter(col("price") > 3).to_stream("out")))


def rich() -> Program:
    """Sources, exchanges, a shared part, strings, decimals, options of every kind."""
    table = ((1, 10), (2, 20))
    looked_up = apply("lookup", col("auction"), table=table, value_type="bigint")
    rows = bids().with_column("auction", looked_up)
    named = rows.filter(apply("like", col("name"), pattern="a%\u00e9") & (col("m") > 1)).select(
        apply("upper", col("name")).alias("name"),
        (col("m") * 2).alias("twice"),
        apply("if", col("price") > 3, col("price"), None).alias("maybe"),
        (col("price") / 3 > float("inf")).alias("never"),
    )
    words = scan_source("folder", "line string", 3, path="in", deep={"a": [1, 2.5, None]})
    split = apply("split", col("line"), pattern=r"\s+")
    counted = (
        words.explode(split, "word", True, "at")
        .group_by("word")
        .agg(count().alias("n"), sum_("at").alias("s"), mode="complete")
    )
    return plan_program(
        query(
            "rich",
            hot(rows).to_stream("hot"),
            hot(rows).filter(col("n") > 5).to_stream("hotter"),
            named.to_stream("named"),
            counted.to_stream("counts"),
            parallelism=3,
            settings=Settings(dead_letter_stream="bad", idle_timeout_ms=500),
        )
    )
