"""The queries that both engines run: every node, every output mode, windows of every shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ExpressionError
from penstock.expressions.tree import column
from penstock.operators.aggregate_functions import AGGREGATES
from penstock.operators.specs import AggregateCall
from tests.oracle.events import DELAY_S, EVENT_SCHEMA
from tests.oracle.feeding import SECOND_US, Lateness, Predicate, always

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MARK = "mark_us"  # where the watermark stood when a row came; only rows that stand have it


@dataclass(frozen=True)
class Judged:
    """One DataFrame definition; `keys` are the columns of a group in update mode.

    `lateness` is there where rows can be too late. `reads_late` says that each late row is one row
    of the input, so that they can be counted; `keeps_late` that a stream can hold them.
    """

    define: Callable[[DataFrame], DataFrame]
    mode: str = "append"
    keys: int = 0
    lateness: Lateness | None = None
    reads_late: bool = True
    keeps_late: bool = True


def windowed(df: DataFrame, *window: str | None, by: tuple[Any, ...], time: Any = "ts") -> Any:
    """Rows by window and keys; of rows that stand, without windows that had ended when they came.

    That is the only difference between the two definitions: a batch knows no watermark.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    if MARK not in df.columns:
        timed = df.withWatermark("ts", f"{DELAY_S} seconds")
        return timed.groupBy(F.window(time, *window), *by)  # type: ignore[arg-type]
    shown = df.select("*", F.window(time, *window).alias("window"))  # type: ignore[arg-type]
    open_then = F.expr(f"{MARK} is null or unix_micros(window.end) > {MARK}")
    return shown.where(open_then).groupBy("window", *by)


def _by_instant(df: DataFrame) -> DataFrame:
    """Groups by the event time itself, each over when the watermark has reached it."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    if MARK not in df.columns:
        rows = df.withWatermark("ts", f"{DELAY_S} seconds")
    else:
        rows = df.where(f"ts is not null and ({MARK} is null or unix_micros(ts) > {MARK})")
    return rows.groupBy("flag", "ts").agg(F.count("*").alias("number"), F.max("price"))


def _wide(df: DataFrame) -> DataFrame:
    """Decimals that differ above what one word holds, and below."""
    high = "cast(bidder as decimal(38,0)) * 18446744073709551616"
    return df.selectExpr(f"{high} + cast(auction % 3 as decimal(1,0)) AS wide")


def _first_rows_of_windows(df: DataFrame) -> DataFrame:
    """So far behind that nothing is late."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    rows = df.where("ts is not null").withWatermark("ts", f"{10_000 * 365} days")
    rows = rows.select("auction", F.window("ts", "20 seconds").alias("w"))
    return rows.dropDuplicates(["auction", "w"])


def _maps(df: DataFrame) -> DataFrame:
    """Equal ones with their entries in two orders, zeros of two signs, nulls, empty ones."""
    entries = ["if(flag, double(single), null)", "coalesce(auction % 3, 7L), ratio * 0"]
    orders = [f"map(9L, {entries[0]}, {entries[1]})", f"map({entries[1]}, 9L, {entries[0]})"]
    both = f"if(id % 2 = 0, {orders[0]}, {orders[1]})"
    wide = ["-1.5BD, 1", "cast(auction % 3 AS decimal(30,1)), tiny"]
    return df.where("url is not null and auction is not null").selectExpr(
        f"case when flag is null then null when tiny = 1 then map_filter({both}, (k, v) -> false)"
        f" else {both} end AS m",
        f"if(id % 2 = 0, map({wide[0]}, {wide[1]}), map({wide[1]}, {wide[0]})) AS wide",
        "url",
        "price",
    )


def _first_rows_within(df: DataFrame) -> DataFrame:
    """So far behind that nothing is late and no key is forgotten; a batch knows no watermark."""
    keys = ["auction", "flag", "m"]
    df = df.selectExpr("*", "map(1, tiny, 2, auction % 2) AS m")
    if not df.isStreaming:  # where `dropDuplicates` takes no maps
        return df.groupBy(*keys).count().select(*keys)
    timed = df.withWatermark("ts", f"{10_000 * 365} days")
    return timed.dropDuplicatesWithinWatermark(keys).select(*keys)


def _late(
    size_s: int,
    slide_s: int | None = None,
    start_s: int = 0,
    counted: Predicate = always,
) -> Lateness:
    slide_s = size_s if slide_s is None else slide_s
    numbers = (DELAY_S, size_s, slide_s, start_s)
    return Lateness(*(number * SECOND_US for number in numbers), counted=counted)


def every_aggregate() -> list[str]:
    """Each aggregate of each type that it takes, as SQL."""
    found = ["count(1)", "count(price, url)", "count_if(price > 0)", "max(auction)"]
    for function, row in AGGREGATES.items():
        for field in EVENT_SCHEMA:
            if field.name in _OF_A_TYPE_THAT_IS_THERE or not row.fails:
                continue
            try:
                call = AggregateCall(function, column(field.name, field.type), "x")
            except ExpressionError:
                continue
            in_loop = all(accumulator.in_loop for accumulator in call.accumulators)
            if in_loop and call.collection is None:
                found.append(f"{function}({field.name})")
    return found


KEPT_AGGREGATES = (
    "count(1)", "sum(price)", "avg(n)", "min(url)", "max(url)", "max(at)",
    "min_by(url, id)", "max_by(ratio, id)", "max_by(id, concat(url, cast(id AS string)))",
    "first(auction, true) FILTER (WHERE id < 0)", "bool_or(flag)", "every(price > 0)",
    "bit_and(small)", "bit_or(price)", "bit_xor(tiny)", "count(1) FILTER (WHERE flag)",
    "sum(price) FILTER (WHERE url > 'b')", "min_by(url, id) FILTER (WHERE not flag)",
    "count(DISTINCT url)", "sort_array(collect_list(url))", "sort_array(collect_set(tiny))",
    "percentile(n, 0.3)", "percentile(price, array(0.0, 0.5, 1.0))", "median(tiny)",
    "percentile_approx(price, 0.4)", "percentile_approx(at, array(0.1, 0.9), 200)",
    "mode(url, true)", "sort_array(collect_list(id) FILTER (WHERE flag))",
    "listagg(url, ', ') WITHIN GROUP (ORDER BY url)", "length(string_agg(url))",
    "listagg(url) WITHIN GROUP (ORDER BY url DESC)", "sort_array(array_agg(n) RESPECT NULLS)",
    "listagg(cast(id AS string), '/') WITHIN GROUP (ORDER BY url DESC NULLS LAST, id)",
    "listagg(url, ',') WITHIN GROUP (ORDER BY ratio NULLS LAST, id) FILTER (WHERE flag)",
    "sort_array(collect_set(tiny) RESPECT NULLS)",
    "sort_array(transform(array_agg(st) RESPECT NULLS, s -> s.w))",
    "sort_array(collect_list(url) FILTER (WHERE flag) RESPECT NULLS)",
    "percentile_disc(0.3) WITHIN GROUP (ORDER BY n)",
    "percentile_disc(0) WITHIN GROUP (ORDER BY n)",
    "percentile_disc(array(0.1, 0.5, 1.0)) WITHIN GROUP (ORDER BY price DESC)",
    "percentile_cont(0.1) WITHIN GROUP (ORDER BY n DESC)",
    "percentile_cont(array(0.3, 0.7)) WITHIN GROUP (ORDER BY ratio)",
    # The last bits depend on the order of rows: Spark's own do.
    "cast(round(var_pop(price % 100), 6) AS float)", "cast(round(var_samp(n % 7), 6) AS float)",
    "cast(round(stddev_pop(small), 6) AS float)", "cast(round(stddev_samp(n % 9), 6) AS float)",
    "cast(round(skewness(n % 11), 6) AS float)", "cast(round(kurtosis(n % 13), 6) AS float)",
    "cast(round(covar_pop(n % 5, price % 9), 6) AS float)",
    "cast(round(covar_samp(n % 5, price % 9), 6) AS float)",
    "cast(round(corr(n % 5, price % 9), 6) AS float)",
)  # fmt: skip


# What needs more room than a number, or a table of Spark's.
WIDE_AGGREGATES = (
    "count(1)", "approx_count_distinct(url)", "approx_count_distinct(id)",
    "approx_count_distinct(ratio, 0.2)", "approx_count_distinct(st)",
    "approx_count_distinct(id, 0.01) FILTER (WHERE flag)",
    "sum(cast(fee AS decimal(18,2)))", "avg(cast(fee AS decimal(16,2)))",
    "sum(cast(fee AS decimal(30,4)))", "avg(cast(fee AS decimal(30,4)))",
    "sum(cast(rate AS decimal(38,1)))", "avg(cast(rate AS decimal(38,30)))",
    "try_sum(9223372036854775807)", "try_sum(price)", "try_sum(ratio)", "try_avg(n)",
    "try_sum(tiny)", "try_sum(small)", "try_sum(n)", "try_sum(single)", "try_avg(tiny)",
    "try_avg(small)", "try_avg(price)", "try_avg(ratio)", "try_avg(single)",
    "try_sum(cast(concat('6', repeat('0', 37)) AS decimal(38,0)))",
    "try_avg(cast(concat('6', repeat('0', 36)) AS decimal(37,0)))", "try_sum(fee)",
    "try_avg(fee)",
    "min(st)", "max(st)", "min(tags)", "max(array(st))", "max(cast(fee AS decimal(38,9)))",
    "min(cast(rate AS decimal(20,3)))", "min_by(st, id)", "max_by(tags, struct(url, id))",
    "max_by(map(url, id), array(id)) FILTER (WHERE url IS NOT NULL)",
    "any_value(st) FILTER (WHERE id = 3)", "last(url) FILTER (WHERE id IN (5, 50))",
    "first(map('k', id), true) FILTER (WHERE id = 7)",
    "sort_array(transform(collect_set(st), s -> s.w))",
    "sort_array(transform(collect_list(tags), t -> size(t)))",
    "sort_array(collect_list(cast(fee AS decimal(25,3))))",
    "mode(st, true)", "mode(cast(rate AS decimal(22,1)), true)",
    "percentile(cast(fee AS decimal(30,2)), 0.3)", "median(cast(rate AS decimal(20,1)))",
    "regr_count(n, price)", "regr_avgx(tiny, price)", "regr_avgy(tiny, price)",
    "cast(round(regr_sxx(n % 5, price % 9), 6) AS float)",
    "cast(round(regr_syy(n % 5, price % 9), 6) AS float)",
    "cast(round(regr_sxy(n % 5, price % 9), 6) AS float)",
    "cast(round(regr_r2(n % 5, price % 9), 6) AS float)",
    "cast(round(regr_slope(n % 5, price % 9), 6) AS float)",
    "cast(round(regr_intercept(n % 5, price % 9), 6) AS float)",
    "regr_r2(tiny, 1)", "regr_r2(1, tiny)", "regr_slope(tiny, 1)", "regr_intercept(tiny, 1)",
)  # fmt: skip
# Beside each other they are several aggregations, and one expansion of rows.
WIDE_DISTINCT = (
    "count(DISTINCT st, tags)", "sum(DISTINCT cast(fee AS decimal(30,2)))", "count(DISTINCT raw)",
    "sort_array(collect_list(DISTINCT tiny))", "percentile(DISTINCT tiny, 0.5)",
    "max(st)", "approx_count_distinct(id)", "size(collect_set(tags))",
)  # fmt: skip
OF_ROWS_THAT_CHANGE = tuple(
    sql for sql in (*KEPT_AGGREGATES, *WIDE_AGGREGATES) if not sql.startswith(("last", "first"))
)
_AT_ONCE = 20  # each takes several of the columns that a state has room for


def _parts(
    name: str, expressions: tuple[str, ...], judged: Callable[[tuple[str, ...]], Judged]
) -> dict[str, Judged]:
    """A query for so many of the aggregates at once."""
    return {
        f"{name}, {at // _AT_ONCE}": judged(expressions[at : at + _AT_ONCE])
        for at in range(0, len(expressions), _AT_ONCE)
    }


INTERVAL_AGGREGATES = (
    "count(gap)", "count(DISTINCT gap)", "sum(gap / 1000)", "avg(gap / 1000)", "min(gap)",
    "max(gap)", "avg(gap / 1000) FILTER (WHERE id % 3 = 0)", "max_by(gap, id)", "min_by(id, gap)",
    "sum(gap / 1000) / 7", "try_sum(gap)", "try_avg(gap)",
)  # fmt: skip
_OF_A_TYPE_THAT_IS_THERE = frozenset({"id", "auction", "bidder", "ts", "ntz"})


SEVERAL_DISTINCT = (
    "count(DISTINCT url)", "count(DISTINCT tiny, flag)", "sum(DISTINCT small)", "count(1)",
    "sum(price)", "count(DISTINCT url) FILTER (WHERE flag)", "max(url)", "avg(DISTINCT tiny)",
    "count(DISTINCT n) + count(flag)", "sum(price) FILTER (WHERE flag)",
)  # fmt: skip


def _columns(*expressions: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return [F.expr(sql).alias(f"c{index}") for index, sql in enumerate(expressions)]


def _some() -> list[Column]:
    return _columns(
        "count(1)", "sum(price)", "avg(price)", "min(ratio)", "max(ts)", "sum(fee)", "avg(n)"
    )


def queries() -> dict[str, Judged]:
    groups = {**_unbounded(), **_by_key(), **_windows(), **_in_a_row(), **_changing()}
    timed = {**_sessions(), **_over_partitions()}
    return {**_row_by_row(), **groups, **timed, **_joins(), **_static_joins()}


def _rebalanced(df: DataFrame) -> DataFrame:
    """Spark takes this hint only where it may change its plans while they run."""
    settings = df.sparkSession.conf
    before = settings.get("spark.sql.adaptive.enabled")
    settings.set("spark.sql.adaptive.enabled", "true")
    try:
        return df.hint("rebalance").where("flag")
    finally:
        settings.set("spark.sql.adaptive.enabled", str(before))


def _row_by_row() -> dict[str, Judged]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return {
        "every column": Judged(lambda df: df),
        "select and where": Judged(
            lambda df: df.where("price > 0 or auction is null").selectExpr("n % 7 AS k", "*")
        ),
        "two columns of one name inside": Judged(
            lambda df: (
                df.select(F.col("price"), F.col("bidder").alias("price"))
                .toDF("x", "y")
                .where("x > y")
            )
        ),
        "rows with enough values": Judged(
            lambda df: df.select("id", "ratio", "url").na.drop(thresh=2).na.drop(subset=["url"])
        ),
        "explode": Judged(lambda df: df.select("bidder", F.explode("tags").alias("tag"))),
        "explode outer": Judged(
            lambda df: df.select("bidder", F.explode_outer("tags").alias("tag"), "url")
        ),
        "posexplode": Judged(lambda df: df.select(F.posexplode("tags"), "bidder")),
        "posexplode outer": Judged(lambda df: df.select("bidder", F.posexplode_outer("tags"))),
        "explode of what was exploded": Judged(
            lambda df: df.select("id", F.explode("tags").alias("t")).select(
                "id", F.explode(F.array("t", F.lit("z"))).alias("again")
            )
        ),
        "explode of a map": Judged(
            lambda df: df.select("id", F.explode(F.expr("map(bidder, url, -1L, 'x')")))
        ),
        "posexplode outer of a map": Judged(
            lambda df: (
                df.selectExpr("id", "posexplode_outer(if(flag, map(coalesce(url, ''), id), null))")
                .where("pos is null or value > 3")
                .select("value", "key", "pos", "id")
            )
        ),
        "inline": Judged(
            lambda df: df.selectExpr(
                "id",
                "inline(array(named_struct('m', id, 'w', url), null))",
            )
        ),
        "inline outer": Judged(
            lambda df: df.selectExpr(
                "inline_outer(transform(tags, t -> struct(t, id, ratio)))", "n"
            )
        ),
        "stack": Judged(
            lambda df: df.selectExpr("stack(3, id, url, auction, upper(url), null)", "flag")
        ),
        "json_tuple": Judged(
            lambda df: df.selectExpr(
                "id",
                "json_tuple(concat('{\"a\":', n, ',\"b\":\"', url, '\"}'), 'b', 'a', 'b')",
            ).where("c1 > 1")
        ),
        "lateral views": Judged(
            lambda df: (
                df.selectExpr("*", "explode(tags) AS t")
                .selectExpr("id", "t", "posexplode(array(ratio, id)) AS (at, r)")
                .selectExpr("id", "stack(2, t, r, string(at), r) AS (u, v)", "at")
                .where("v > 0 and u is not null")
            )
        ),
        "generated and grouped": Judged(
            lambda df: (
                df.selectExpr("inline(array(struct(bidder AS k, url AS w)))")
                .groupBy("k")
                .agg(F.count("w").alias("n"))
            ),
            "update",
            keys=1,
        ),
        "union by position": Judged(
            lambda df: df.select("auction", "url").union(df.selectExpr("bidder", "upper(url)"))
        ),
        "union of three by name": Judged(
            lambda df: (
                df.where("flag")
                .select("id", "url")
                .unionByName(df.where("not flag").select("url", "id"))
                .union(df.where("flag is null").selectExpr("-id", "'none'"))
            )
        ),
        "repartitioned": Judged(
            lambda df: (
                df.repartition(3)
                .repartition(2, "auction")
                .coalesce(1)
                .alias("b")
                .where("b.price > 0")
            )
        ),
        "repartitioned by a key": Judged(lambda df: df.repartition(2, "auction").select("id")),
        "rebalanced": Judged(_rebalanced),
        "window as a value": Judged(
            lambda df: df.select(F.window("ts", "10 seconds", None, "3 seconds").alias("w"), "id")
        ),
        "watermark alone": Judged(
            lambda df: df.withWatermark("ts", "1 second").where("price > 1 and ts > '1800-01-01'")
        ),
    }


def _unbounded() -> dict[str, Judged]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return {
        "every aggregate, complete": Judged(
            lambda df: df.groupBy("bidder").agg(*_columns(*every_aggregate())), "complete"
        ),
        "every aggregate, update": Judged(
            lambda df: df.groupBy("url").agg(*_columns(*every_aggregate())), "update", keys=1
        ),
        "every aggregate of one group": Judged(
            lambda df: df.agg(*_columns(*every_aggregate())), "complete"
        ),
        "rollup": Judged(
            lambda df: df.rollup("flag", "tiny").agg(
                *_columns("grouping(flag)", "grouping_id()", "sum(price)", "count(DISTINCT url)")
            ),
            "complete",
        ),
        "cube": Judged(
            lambda df: (
                df.cube("flag", (F.col("bidder") % 3).alias("b"), "small")
                .agg(*_columns("grouping_id()", "sum(tiny)", "max(small)"))
                .where("b is null or b > 0")
            ),
            "update",
            keys=4,
        ),
        "grouping sets": Judged(
            lambda df: df.groupingSets([["flag"], ["tiny", "url"], []], "flag", "tiny", "url").agg(
                *_columns("grouping(tiny)", "count(1)", "min(url)")
            ),
            "complete",
        ),
        "several distinct counts": Judged(
            lambda df: df.groupBy("auction").agg(*_columns(*SEVERAL_DISTINCT)), "complete"
        ),
        "several distinct counts of one group": Judged(
            lambda df: df.agg(*_columns(*SEVERAL_DISTINCT)), "update", keys=0
        ),
        "what is kept, complete": Judged(
            lambda df: df.groupBy("auction").agg(*_columns(*KEPT_AGGREGATES)), "complete"
        ),
        "what is kept of one group": Judged(
            lambda df: df.agg(*_columns(*KEPT_AGGREGATES)), "update", keys=0
        ),
        **_parts(
            "what is wide, update",
            WIDE_AGGREGATES,
            lambda some: Judged(
                lambda df: df.groupBy("url").agg(*_columns(*some)), "update", keys=1
            ),
        ),
        **_parts(
            "what is wide of one group",
            WIDE_AGGREGATES,
            lambda some: Judged(lambda df: df.agg(*_columns(*some)), "complete"),
        ),
        **_parts(
            "what is wide, rolled up",
            WIDE_AGGREGATES,
            lambda some: Judged(
                lambda df: df.rollup("flag", "tiny").agg(*_columns(*some)), "complete"
            ),
        ),
        "distinct values that are wide": Judged(
            lambda df: df.groupBy("auction").agg(*_columns(*WIDE_DISTINCT)), "update", keys=1
        ),
        "distinct texts as one": Judged(
            lambda df: df.groupBy("auction").agg(
                *_columns("listagg(DISTINCT url, ',') WITHIN GROUP (ORDER BY url DESC)")
            ),
            "update",
            keys=1,
        ),
        "products": Judged(
            lambda df: df.groupBy("auction").agg(
                F.round(F.product(1 + F.col("tiny") / 1000), 6).cast("float").alias("p"),
                F.product(F.lit(None).cast("double")).alias("q"),
            ),
            "complete",
        ),
        "pivot": Judged(
            lambda df: df.groupBy("auction").pivot("tiny", [1, 2, 3]).agg(F.sum("n"), F.max("url")),
            "complete",
        ),
        "pivot by texts, in windows": Judged(
            lambda df: (
                _behind(df)
                .groupBy(F.window("ts", "20 seconds"), "flag")
                .pivot("url", ["a", "b", None])
                .agg(F.max_by("fee", "id"))
            )
        ),
        "best groups, sorted": Judged(
            lambda df: (
                df.groupBy("auction")
                .agg(F.count("*").alias("n"), F.max("url").alias("u"), F.min("ratio").alias("r"))
                .orderBy(F.desc_nulls_first("r"), F.asc_nulls_last("u"), F.expr("-n"), "auction")
                .select("auction", "n")
                .limit(5)
            ),
            "complete",
        ),
        "windows, sorted, without the first": Judged(
            lambda df: (
                df.groupBy(F.window("ts", "10 seconds"), "bidder")
                .count()
                .orderBy(F.desc("window"), "bidder")
                .offset(3)
                .limit(4)
            ),
            "complete",
        ),
        "more rows than there are": Judged(lambda df: df.limit(1_000_000)),
        "word count": Judged(
            lambda df: df.select(F.explode(F.split("url", " ")).alias("w")).groupBy("w").count(),
            "update",
            keys=1,
        ),
        "wide decimals": Judged(
            lambda df: df.groupBy("auction").agg(
                F.avg(F.col("fee").cast("decimal(13,3)")).alias("a"),
                F.sum(F.expr("cast(fee % 10 AS decimal(4,2))").cast("decimal(8,2)")).alias("s"),
            ),
            "complete",
        ),
        "keys alone": Judged(
            lambda df: df.groupBy("auction").agg(F.lit("x").alias("x")), "update", keys=1
        ),
        "distinct": Judged(lambda df: df.select("auction", "url").distinct()),
        "distinct values of expressions": Judged(
            lambda df: df.selectExpr("bidder % 3 AS k", "upper(url) AS u", "raw", "fee").distinct()
        ),
        "distinct nested values": Judged(lambda df: df.select("st", "tags", "raw").distinct()),
        "zeros as keys alone": Judged(
            lambda df: (
                df.groupBy("ratio", "single")
                .agg(F.lit("x").alias("x"))
                .selectExpr("string(ratio) AS r", "string(double(single)) AS s", "x")
            )
        ),
        "a key of structs and arrays": Judged(
            lambda df: (
                df.selectExpr("struct(flag AS f, array(ratio, single) AS xs, st) AS k", "price")
                .groupBy("k")
                .agg(*_columns("count(1)", "sum(price)"))
            ),
            "update",
            keys=1,
        ),
        "maps as keys": Judged(
            lambda df: (
                _maps(df)
                .groupBy("m", F.expr("struct(map(url, m) AS mm, array(m) AS ms)").alias("k"))
                .agg(*_columns("count(1)", "sum(price)"))
            ),
            "update",
            keys=2,
        ),
        "first rows of maps": Judged(
            lambda df: _maps(df).groupBy("m", "wide").agg(F.lit("x").alias("x"))
        ),
        "first rows of keys": Judged(
            lambda df: df.dropDuplicates(["auction", "flag"]).select("flag", "auction")
        ),
        "first rows of windows": Judged(_first_rows_of_windows),
        "first rows of wide decimals": Judged(lambda df: _wide(df).distinct()),
        "groups of wide decimals": Judged(
            lambda df: _wide(df).groupBy("wide").count(), "update", keys=1
        ),
        "first rows within a watermark": Judged(_first_rows_within),
        "intervals as keys, added up": Judged(
            lambda df: (
                df.selectExpr("(day - date'2020-01-01') AS days", "at - ts AS gap", "price", "id")
                .groupBy("days", F.expr("make_dt_interval(0, 0, 0, price % 5)").alias("rest"))
                .agg(*_columns(*INTERVAL_AGGREGATES, "count(DISTINCT gap, id)"))
            ),
            "update",
            keys=2,
        ),
        "intervals of one group": Judged(
            lambda df: df.selectExpr("make_dt_interval(0, price) AS gap", "id").agg(
                *_columns(*INTERVAL_AGGREGATES)
            ),
            "complete",
        ),
        "distinct intervals": Judged(
            lambda df: df.selectExpr(
                "cast(price % 7 AS interval minute) AS m", "struct(ts - ntz AS g, array(day - day))"
            ).distinct()
        ),
        "distinct, then counted": Judged(
            lambda df: (
                df.select("auction", "flag").distinct().groupBy("flag").agg(F.count("*").alias("n"))
            ),
            "update",
            keys=1,
        ),
        "computed keys and results": Judged(
            lambda df: df.groupBy((F.col("bidder") % 3).alias("k"), F.upper("url").alias("u")).agg(
                (F.sum("price") + F.count("*")).alias("t"),
                F.sum("price").cast("string").alias("text"),
                F.expr("count_if(price > 0)").alias("up"),
            ),
            "update",
            keys=2,
        ),
        "a result computed from a decimal": Judged(
            lambda df: df.groupBy("flag").agg(F.sum("fee").cast("double").alias("s")),
            "update",
            keys=1,
        ),
        "having": Judged(
            lambda df: (
                df.groupBy("bidder").agg(F.sum("price").alias("s")).where("s > 0 and bidder < 16")
            ),
            "complete",
        ),
        "aggregate of a union": Judged(
            lambda df: (
                df.where("flag")
                .select("url", "price")
                .union(df.selectExpr("upper(url)", "-price"))
                .groupBy("url")
                .agg(*_columns("count(1)", "sum(price)", "max(price)"))
            ),
            "update",
            keys=1,
        ),
        "grouped by a window's start": Judged(
            lambda df: df.groupBy(F.window("ts", "10 seconds").start.alias("k")).count(),
            "update",
            keys=1,
        ),
        "window of a time without a zone": Judged(
            lambda df: df.groupBy(F.window("ntz", "10 seconds", "5 seconds"), "flag").count(),
            "complete",
        ),
        "window without a watermark": Judged(
            lambda df: df.groupBy(F.window("ts", "10 seconds", "4 seconds"), "flag").count(),
            "complete",
        ),
    }


def _by_key() -> dict[str, Judged]:
    """Keys of every type, two at a time."""
    pairs = (("flag", "tiny"), ("small", "day"), ("n", "rate"), ("ratio", "flag"),
             ("single", "flag"), ("at", "local"), ("url", "tiny"), ("raw", "flag"),
             ("st", "tags"))  # fmt: skip
    return {
        f"keys {one} and {other}": Judged(
            lambda df, one=one, other=other: df.groupBy(one, other).agg(*_some()),
            "update",
            keys=2,
        )
        for one, other in pairs
    }


def _windows() -> dict[str, Judged]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    key = ("auction",)
    counts = lambda df, *window: windowed(df, *window, by=key).count()  # noqa: E731
    instant = Lateness(DELAY_S * SECOND_US, 0, 1)
    tumbling, sliding, uneven = _late(10), _late(10, 2), _late(10, 4)
    return {
        "tumbling": Judged(lambda df: counts(df, "10 seconds"), lateness=tumbling),
        "tumbling, every aggregate": Judged(
            lambda df: windowed(df, "17 seconds", by=key).agg(*_columns(*every_aggregate())),
            lateness=_late(17),
        ),
        "tumbling, what is kept": Judged(
            lambda df: windowed(df, "17 seconds", by=key).agg(*_columns(*KEPT_AGGREGATES)),
            lateness=_late(17),
        ),
        "tumbling, several distinct counts": Judged(
            lambda df: windowed(df, "17 seconds", by=key).agg(*_columns(*SEVERAL_DISTINCT)),
            lateness=_late(17),
            reads_late=False,
        ),
        "sliding, what is kept": Judged(
            lambda df: windowed(df, "10 seconds", "4 seconds", by=("url",)).agg(
                *_columns(*KEPT_AGGREGATES)
            ),
            lateness=uneven,
        ),
        **_parts(
            "tumbling, what is wide",
            WIDE_AGGREGATES,
            lambda some: Judged(
                lambda df: windowed(df, "17 seconds", by=key).agg(*_columns(*some)),
                lateness=_late(17),
            ),
        ),
        **_parts(
            "sliding, what is wide",
            WIDE_AGGREGATES,
            lambda some: Judged(
                lambda df: windowed(df, "10 seconds", "4 seconds", by=("url",)).agg(
                    *_columns(*some)
                ),
                lateness=uneven,
            ),
        ),
        "sliding, several distinct counts": Judged(
            lambda df: windowed(df, "10 seconds", "4 seconds", by=("url",)).agg(
                *_columns(*WIDE_DISTINCT)
            ),
            lateness=uneven,
            reads_late=False,
        ),
        "tumbling from an offset": Judged(
            lambda df: counts(df, "10 seconds", None, "3 seconds"), lateness=_late(10, start_s=3)
        ),
        "groups of an instant": Judged(_by_instant, lateness=instant),
        "no key": Judged(
            lambda df: windowed(df, "10 seconds", by=()).agg(*_some()), lateness=tumbling
        ),
        "sliding": Judged(
            lambda df: windowed(df, "10 seconds", "2 seconds", by=key).agg(
                *_columns("count(1)", "sum(price)", "avg(price)", "count(price)")
            ),
            lateness=sliding,
        ),
        "sliding, with what cannot be subtracted": Judged(
            lambda df: windowed(df, "10 seconds", "2 seconds", by=("flag",)).agg(*_some()),
            lateness=sliding,
        ),
        "sliding unevenly": Judged(
            lambda df: counts(df, "10 seconds", "4 seconds"), lateness=uneven
        ),
        "sliding from before": Judged(
            lambda df: counts(df, "10 seconds", "5 seconds", "-3 seconds"),
            lateness=_late(10, 5, start_s=2),
        ),
        "windows of a struct and an array": Judged(
            lambda df: windowed(df, "10 seconds", by=("st", "tags")).agg(*_some()),
            lateness=tumbling,
        ),
        "sliding without a key": Judged(
            lambda df: windowed(df, "10 seconds", "2 seconds", by=()).count(), lateness=sliding
        ),
        "two keys of other types": Judged(
            lambda df: windowed(df, "10 seconds", "5 seconds", by=("url", "rate")).agg(*_some()),
            lateness=_late(10, 5),
        ),
        "window of an expression": Judged(
            lambda df: windowed(
                df, "8 seconds", by=("flag",), time=F.expr("ts + interval 1 second")
            ).agg(F.sum("price").alias("s")),
            "update",  # the watermark says nothing about it: no row is late
            keys=2,
        ),
        "computed key": Judged(
            lambda df: windowed(df, "10 seconds", by=((F.col("bidder") % 4).alias("k"),)).agg(
                *_some()
            ),
            lateness=tumbling,
        ),
        "filtered before": Judged(
            lambda df: counts(df.where("price > 0"), "10 seconds"),
            lateness=_late(10, counted=lambda row: (row["price"] or 0) > 0),
        ),
        "exploded before": Judged(
            lambda df: windowed(
                df.select("*", F.explode("tags").alias("tag")), "10 seconds", by=("tag",)
            ).count(),
            lateness=_late(10, counted=lambda row: bool(row["tags"])),
            reads_late=False,
        ),
        "columns of a window": Judged(
            lambda df: counts(df, "10 seconds").select(
                "window.end",
                (F.col("count") * 2).alias("twice"),
                F.window_time("window").alias("t"),
            ),
            lateness=tumbling,
        ),
        "filter on a window": Judged(
            lambda df: counts(df, "10 seconds").where(
                "unix_micros(window.start) % 20000000 = 0 and count > 1"
            ),
            lateness=tumbling,
            reads_late=False,  # only rows of the windows that are asked for can be late
        ),
        "filter on sliding windows": Judged(
            lambda df: (
                counts(df, "12 seconds", "4 seconds")
                .where("unix_micros(window.end) % 8000000 = 0 and auction > 1")
                .select("window.end", "count", "auction")
            ),
            lateness=_late(
                12, 4, counted=lambda row: row["auction"] is not None and row["auction"] > 1
            ),
        ),
        "tumbling, update": Judged(
            lambda df: windowed(df, "10 seconds", by=key).agg(*_some()),
            "update",
            keys=2,
            lateness=tumbling,
        ),
        "sliding, update": Judged(
            lambda df: windowed(df, "10 seconds", "2 seconds", by=key).agg(*_some()),
            "update",
            keys=2,
            lateness=sliding,
        ),
        "sliding without a key, update": Judged(
            lambda df: windowed(df, "10 seconds", "4 seconds", by=()).count(),
            "update",
            keys=1,
            lateness=uneven,
        ),
        "tumbling, complete": Judged(
            lambda df: windowed(df, "10 seconds", by=key).agg(*_some()), "complete"
        ),
        "sliding, complete": Judged(
            lambda df: windowed(df, "10 seconds", "2 seconds", by=key).agg(*_some()), "complete"
        ),
        "window over a union": Judged(
            lambda df: counts(df.union(df.withColumn("auction", F.col("bidder"))), "10 seconds"),
            lateness=tumbling,
            reads_late=False,  # each of them twice
        ),
    }


def _changing() -> dict[str, Judged]:
    """Aggregates of aggregates whose rows change."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def per_window(df: DataFrame, *window: str) -> DataFrame:
        grouped = windowed(df, *window, by=("auction", "bidder"))
        return grouped.agg(F.count("*").alias("seen"), F.max("price").alias("top"))

    def last_of_bidders(df: DataFrame) -> DataFrame:
        """The last row of each bidder, which goes when another comes."""
        rows = F.struct(*(F.col(name) for name in df.columns if name not in ("bidder", MARK)))
        return df.groupBy("bidder").agg(F.max_by(rows, "id").alias("r")).select("bidder", "r.*")

    return {
        **_parts(
            "everything of rows that change, update",
            OF_ROWS_THAT_CHANGE,
            lambda some: Judged(
                lambda df: last_of_bidders(df).groupBy("flag").agg(*_columns(*some)),
                "update",
                keys=1,
            ),
        ),
        **_parts(
            "everything of rows that change, complete",
            OF_ROWS_THAT_CHANGE,
            lambda some: Judged(lambda df: last_of_bidders(df).agg(*_columns(*some)), "complete"),
        ),
        "distinct values of rows that change": Judged(
            lambda df: last_of_bidders(df).groupBy("auction").agg(*_columns(*WIDE_DISTINCT)),
            "complete",
        ),
        "what was collected and changes": Judged(
            lambda df: (
                df.groupBy("auction", "flag")
                .agg(*_columns("sort_array(collect_set(url))", "max(st)", "count(DISTINCT tiny)"))
                .groupBy("auction")
                .agg(*_columns("max(c0)", "min(c1)", "sum(c2)", "approx_count_distinct(c0)"))
            ),
            "update",
            keys=1,
        ),
        "average of maxima, update": Judged(
            lambda df: (
                df.groupBy("auction", "bidder")
                .agg(F.max("price").alias("top"), F.sum("ratio").alias("part"))
                .groupBy("auction")
                .agg(*_columns("avg(top)", "count(top)", "min(top)", "max(part)", "count(1)"))
            ),
            "update",
            keys=1,
        ),
        "how often each count occurs": Judged(
            lambda df: (
                df.groupBy("url", "auction").count().groupBy("count").agg(F.count("*").alias("n"))
            ),
            "complete",
        ),
        "three in a row, with a filter and a projection": Judged(
            lambda df: (
                df.groupBy("auction", "bidder")
                .agg(F.count("*").alias("n"), F.max("n").alias("u"))
                .where("n % 3 <> 1")
                .selectExpr("auction", "n * 2 AS n", "u % 5 AS u")
                .groupBy("auction", "u")
                .agg(F.sum("n").alias("n"), F.min("n").alias("least"))
                .agg(*_columns("count(1)", "sum(n)", "max(least)", "count(u)"))
            ),
            "update",
        ),
        "changing rows and others": Judged(
            lambda df: (
                df.groupBy("auction")
                .agg(F.sum("price").alias("p"))
                .unionByName(df.selectExpr("auction", "price AS p"))
                .groupBy("auction")
                .agg(*_columns("count(1)", "sum(p)", "max(p)"))
            ),
            "update",
            keys=1,
        ),
        "largest count of windows, update": Judged(
            lambda df: (
                per_window(df, "10 seconds")
                .groupBy("auction")
                .agg(*_columns("max(seen)", "count(1)", "sum(top)"))
            ),
            "update",
            keys=1,
            lateness=_late(10),
        ),
        "sums of sliding windows by window, update": Judged(
            lambda df: (
                per_window(df, "10 seconds", "4 seconds")
                .groupBy("window")
                .agg(*_columns("sum(seen)", "min(top)", "count(1)"))
            ),
            "update",
            keys=1,
            lateness=_late(10, 4),
        ),
        "sums of windows by window, complete": Judged(
            lambda df: (
                per_window(df, "10 seconds")
                .groupBy("window")
                .agg(*_columns("sum(seen)", "min(top)", "count(1)"))
            ),
            "complete",
        ),
    }


def _in_a_row() -> dict[str, Judged]:
    """Aggregates of aggregates: the rows of the second are never late."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    counts = lambda df, *window: windowed(df, *window, by=("auction",)).count()  # noqa: E731
    found = {
        "largest count per window": Judged(
            lambda df: counts(df, "10 seconds").groupBy("window").agg(F.max("count").alias("most")),
            lateness=_late(10),
        ),
        "largest count per sliding window": Judged(
            lambda df: (
                counts(df, "10 seconds", "2 seconds", "1 second")
                .groupBy("window")
                .agg(F.max("count").alias("most"), F.count("*").alias("auctions"))
            ),
            lateness=_late(10, 2, start_s=1),
        ),
        "windows of windows": Judged(
            lambda df: (
                counts(df, "10 seconds")
                .groupBy(F.window("window", "30 seconds"))
                .agg(F.sum("count").alias("n"))
            ),
            lateness=_late(10),
        ),
        "three in a row": Judged(
            lambda df: (
                counts(df, "5 seconds")
                .groupBy("window")
                .agg(F.sum("count").alias("n"))
                .groupBy(F.window(F.window_time("window"), "20 seconds"))
                .agg(F.max("n").alias("m"))
            ),
            lateness=_late(5),
        ),
    }
    return {name: replace(judged, keeps_late=False) for name, judged in found.items()}


def _sides(df: DataFrame, *columns: str) -> tuple[DataFrame, DataFrame]:
    """Two uses of the events, so far behind that nothing is late; a batch knows no watermark."""
    timed = df.withWatermark("ts", f"{10_000 * 365} days")
    left = timed.select(*columns)
    right = timed.select(*columns).toDF(*(f"r_{name}" for name in columns))
    return left, right


def _joins() -> dict[str, Judged]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    near = "r_ts >= ts - interval 2 seconds and r_ts < ts + interval 3 seconds"
    seen = "auction = r_auction"

    def joined(how: str, on: str, *columns: str) -> Judged:
        return Judged(lambda df: _pair(_sides(df, *columns), on, how))

    def _pair(sides: tuple[DataFrame, DataFrame], on: str, how: str) -> DataFrame:
        left, right = sides
        return left.join(right, F.expr(on), how)

    def windows(df: DataFrame) -> DataFrame:
        left, right = _sides(df, "id", "ts", "bidder")
        left = left.select("*", F.window("ts", "10 seconds").alias("w"))
        right = right.select("r_id", "r_bidder", F.window("r_ts", "10 seconds").alias("r_w"))
        return left.join(right, F.expr("w = r_w and bidder = r_bidder"), "left")

    def distinct_windows(df: DataFrame) -> DataFrame:
        left, right = _sides(df, "ts", "bidder")
        left = left.select("bidder", F.window("ts", "10 seconds").alias("w")).distinct()
        right = right.select("r_bidder", F.window("r_ts", "10 seconds").alias("r_w")).distinct()
        return left.join(right, F.expr("w = r_w and bidder = r_bidder"))

    def largest(df: DataFrame) -> DataFrame:
        left, right = _sides(df, "id", "ts", "price")
        most = right.groupBy(F.window("r_ts", "10 seconds")).agg(F.max("r_price").alias("most"))
        inside = "price = most and ts >= window.start and ts < window.end"
        return left.join(most, F.expr(inside)).select("id", "price", "window")

    def counted(df: DataFrame) -> DataFrame:
        pairs = _pair(_sides(df, "id", "ts", "auction"), f"{seen} and {near}", "inner")
        return pairs.groupBy(F.window("ts", "20 seconds"), "auction").count()

    def thrice(df: DataFrame) -> DataFrame:
        left, right = _sides(df, "id", "ts", "auction")
        third = right.selectExpr("r_id as t_id", "r_ts as t_ts", "r_auction as t_auction")
        pairs = left.join(right, F.expr(f"{seen} and r_ts = ts"))
        later = "auction = t_auction and t_ts >= ts and t_ts < ts + interval 2 seconds"
        return pairs.join(third, F.expr(later), "left")

    every = (
        "bidder = r_bidder and url <=> r_url and flag <=> r_flag and fee <=> r_fee and "
        "rate <=> r_rate and day <=> r_day and raw <=> r_raw and (id + r_id) % 2 = 0"
    )
    return {
        "inner join": joined("inner", f"{seen} and bidder = r_bidder", "id", "auction", "bidder"),
        "join by a struct": joined("inner", "st = r_st and n = r_n", "id", "st", "n"),
        "join by a struct that may be null": joined(
            "inner", "st <=> r_st and n = r_n", "id", "st", "n"
        ),
        "join by arrays": joined("inner", "tags = r_tags and n = r_n", "id", "tags", "n"),
        "join by arrays that may be null": joined(
            "inner", "tags <=> r_tags and n = r_n", "id", "tags", "n"
        ),
        "join by doubles": joined("inner", "ratio = r_ratio", "id", "ratio"),
        "join by floats and nulls": joined("inner", "single <=> r_single", "id", "single"),
        "join by every kind of key": joined(
            "inner", every, "id", "bidder", "url", "flag", "fee", "rate", "day", "raw"
        ),
        "join by a computed key": joined(
            "inner", "upper(url) = r_url and n % 5 = r_n", "id", "url", "n"
        ),
        "join by intervals": joined(
            "inner",
            "day - date'2020-01-01' = r_day - date'2020-01-01' and n = r_n",
            "id",
            "day",
            "n",
        ),
        "join by intervals that are kept": Judged(
            lambda df: _pair(
                _sides(
                    df.selectExpr("id", "ts", "make_dt_interval(0, 0, bidder) AS gap", "n"),
                    "id",
                    "gap",
                    "n",
                ),
                "gap <=> r_gap and n = r_n",
                "inner",
            )
        ),
        "join within seconds": joined("inner", f"{seen} and {near}", "id", "ts", "auction"),
        "join within seconds without a key": joined("inner", near, "id", "ts"),
        "left join": joined("left", f"{seen} and {near}", "id", "ts", "auction", "url"),
        "right join": joined("right", f"{seen} and {near}", "id", "ts", "auction", "st"),
        "full join": joined("full", f"{seen} and {near} and id < r_id", "id", "ts", "auction"),
        "left join of some rows": joined(
            "left",
            f"{seen} and {near} and price > 0 and r_price < 0",
            "id",
            "ts",
            "auction",
            "price",
        ),
        "semi join": joined(
            "left_semi", f"{seen} and {near} and id != r_id", "id", "ts", "auction"
        ),
        "anti join": joined(
            "left_anti", f"{seen} and {near} and id != r_id", "id", "ts", "auction"
        ),
        "semi join without an end": joined("left_semi", "n = r_id", "id", "n"),
        "join of windows": Judged(windows),
        "join of distinct windows": Judged(distinct_windows),
        "rows of a window's largest": Judged(largest),
        "counts of a join": Judged(counted),
        "joins in a row": Judged(thrice),
    }


def _static_joins() -> dict[str, Judged]:
    """A stream and rows that stand: keys of every type, with nulls, twice or not there."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def static(df: DataFrame) -> DataFrame:
        rows = [
            (1, "a b", 0.0, "one", "0.0", 3),
            (1, "é", math.nan, "uno", "1.5", 4),
            (2, None, -0.0, "two", None, 5),
            (None, "", 1.5, None, "-9999.9", None),
            ((1 << 63) - 1, "日本 語", None, "last", "0.0", 20),
        ]
        columns = "k bigint, url string, ratio double, name string, rate string, least int"
        frame = df.sparkSession.createDataFrame(rows, columns)
        return frame.withColumn("rate", F.col("rate").cast("decimal(5,1)"))

    def on_key(how: str, condition: str = "auction = k") -> Judged:
        def define(df: DataFrame) -> DataFrame:
            some = df.select("id", "auction", "bidder", "price", F.col("ratio").alias("r"), "url")
            other = static(df).withColumnsRenamed({"url": "u"})
            return some.join(other, F.expr(condition), how)

        return Judged(define)

    def in_sql(sql: str) -> Judged:
        def define(df: DataFrame) -> DataFrame:
            df.createOrReplaceTempView("events_joined")
            static(df).createOrReplaceTempView("standing")
            return df.sparkSession.sql(sql)

        return Judged(define)

    kinds = ("inner", "left", "left_semi", "left_anti")
    found = {f"static {how} join": on_key(how) for how in kinds}
    found |= {
        f"static {how} join with a condition": on_key(how, "auction = k and bidder > least")
        for how in kinds
    }
    found |= {f"static {how} join without keys": on_key(how, "bidder < least - 9") for how in kinds}
    return found | {
        "static right join, the stream on the right": Judged(
            lambda df: static(df).join(df.select("id", "auction"), F.expr("auction = k"), "right")
        ),
        "static join of intervals": on_key(
            "left", "make_dt_interval(bidder) = make_dt_interval(k % 100)"
        ),
        "static join of doubles": on_key("inner", "r = ratio"),
        "static join where nulls are equal": on_key("left", "url <=> u and auction <=> k"),
        "static join of texts by what Spark computes": on_key("inner", "upper(url) = upper(u)"),
        "static join of decimals and names that both have": Judged(
            lambda df: (
                df.select("id", "rate", "url")
                .join(static(df), "rate", "left")
                .toDF(*(f"c{at}" for at in range(8)))
            )
        ),
        "static cross join": Judged(
            lambda df: df.select("id").crossJoin(static(df).select("name"))
        ),
        "static side that is grouped": Judged(
            lambda df: df.join(
                static(df).groupBy(F.col("k").alias("auction")).agg(F.max("least").alias("most")),
                "auction",
            ).select("id", "most")
        ),
        "static joins in a row": Judged(
            lambda df: (
                df.select("id", "auction", "url")
                .join(static(df).selectExpr("k as auction", "name"), "auction", "left")
                .join(static(df).selectExpr("url", "least"), "url", "left_outer")
            )
        ),
        "static join before an aggregate": Judged(
            lambda df: df.join(static(df), F.expr("auction = k")).groupBy("name").count(),
            "update",
            1,
        ),
        "static join before windows": Judged(
            lambda df: windowed(
                df.join(static(df).select("k", "name"), F.expr("auction = k"), "left"),
                "10 seconds",
                by=("name",),
            ).count(),
            lateness=_late(10),
        ),
        "static join behind a union": Judged(
            lambda df: (
                df.select("id", "auction")
                .union(df.selectExpr("id + 1000", "bidder"))
                .join(static(df), F.expr("auction = k"))
                .select("id", "name")
            )
        ),
        "in a static query": in_sql(
            "select id, auction from events_joined where auction in (select k from standing)"
        ),
        "not in a static query": in_sql(
            "select id from events_joined where bidder not in (select least from standing "
            "where least is not null) and auction not in (select k from standing where k > 1)"
        ),
        "in a static query or not": in_sql(
            "select id from events_joined where flag or auction in (select k from standing)"
        ),
        "a value of a static query for each row": in_sql(
            "select id, (select max(name) from standing where k = auction) as name "
            "from events_joined"
        ),
    }


def _behind(df: DataFrame) -> DataFrame:
    """So far behind that nothing is late, and all of it is closed at the end."""
    return df.withWatermark("ts", f"{10_000 * 365} days") if df.isStreaming else df


def _sessions() -> dict[str, Judged]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def by_row() -> Column:
        longer = F.when(F.col("price") > 0, "2 seconds").when(F.col("price") < 0, "9 seconds")
        return longer.when(F.col("price") == 0, "0 seconds")

    return {
        "sessions": Judged(
            lambda df: (
                _behind(df).groupBy(F.session_window("ts", "3 seconds"), "auction").agg(*_some())
            )
        ),
        "sessions with a gap of each row": Judged(
            lambda df: (
                _behind(df).groupBy("flag", "url", F.session_window("ts", by_row())).agg(*_some())
            )
        ),
        "sessions without a key, complete": Judged(
            lambda df: df.groupBy(F.session_window("ts", "1 second")).agg(*_some()), "complete"
        ),
        "sessions, what is kept": Judged(
            lambda df: (
                _behind(df)
                .groupBy(F.session_window("ts", "2 seconds"), "flag")
                .agg(*_columns(*KEPT_AGGREGATES))
            )
        ),
        **_parts(
            "sessions, what is wide",
            WIDE_AGGREGATES,
            lambda some: Judged(
                lambda df: (
                    _behind(df).groupBy(F.session_window("ts", by_row())).agg(*_columns(*some))
                )
            ),
        ),
        "sessions, what is kept, complete": Judged(
            lambda df: (
                df.groupBy("url", F.session_window("ts", "1 second"))
                .agg(*_columns("sort_array(collect_list(id))", "median(n)", "count(DISTINCT tiny)"))
                .orderBy("session_window", F.desc("url"))
            ),
            "complete",
        ),
        "sessions that somebody counts, update": Judged(
            lambda df: (
                _behind(df)
                .groupBy(F.session_window("ts", "2 seconds"), "auction")
                .agg(*_columns("count(1)", "max(st)", "sort_array(collect_set(tiny))"))
                .groupBy("auction")
                .agg(*_columns("count(1)", "max(session_window)", "sum(c0)", "min(c1)", "max(c2)"))
            ),
            "update",
            keys=1,
        ),
        "sessions of what changes, complete": Judged(
            lambda df: (
                df.groupBy("bidder", "flag")
                .agg(F.max("ts").alias("ts"), F.count("*").alias("n"))
                .groupBy(F.session_window("ts", "2 seconds"), "flag")
                .agg(*_columns("count(1)", "sum(n)", "max(bidder)", "median(n)"))
            ),
            "complete",
        ),
        "sessions of what changes, counted": Judged(
            lambda df: (
                df.groupBy("bidder")
                .agg(F.max("ts").alias("ts"))
                .groupBy(F.session_window("ts", "2 seconds"))
                .agg(*_columns("count(1)", "max(bidder)"))
                .agg(*_columns("count(1)", "sum(c0)", "max(c1)"))
            ),
            "update",
        ),
        "windows of sessions": Judged(
            lambda df: (
                _behind(df)
                .groupBy(F.session_window("ts", "3 seconds"), "auction")
                .count()
                .groupBy(F.window("session_window", "1 minute"))
                .agg(F.sum("count").alias("n"), F.count("*").alias("sessions"))
            )
        ),
    }


def _over_partitions() -> dict[str, Judged]:
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    def ranked(df: DataFrame) -> DataFrame:
        part = Window.partitionBy("w", "flag")
        by_ratio, by_id = part.orderBy(F.desc("ratio"), "url"), part.orderBy("id")
        values = [
            F.rank().over(by_ratio), F.dense_rank().over(by_ratio),
            F.percent_rank().over(by_ratio), F.cume_dist().over(by_ratio),
            F.row_number().over(by_id), F.ntile(3).over(by_id), F.lag("price").over(by_id),
            F.lead("url", 2, "none").over(by_id), F.first("price").over(by_id),
            F.last("n", ignorenulls=True).over(by_id.rowsBetween(-3, 1)),
            F.nth_value("price", 2).over(by_id), F.sum("n").over(part),
            F.avg("price").over(by_id.rowsBetween(-2, 0)), F.count("url").over(by_ratio),
            F.min("ratio").over(by_id.rowsBetween(1, 3)),
            F.max("ts").over(by_id.rowsBetween(Window.currentRow, Window.unboundedFollowing)),
            F.sum("ratio").over(by_id), F.sum("n").over(by_id), F.min("url").over(by_ratio),
            F.max("ratio").over(by_id), F.bit_xor("id").over(by_id.rowsBetween(-4, 2)),
            F.bit_or("id").over(by_id),
        ]  # fmt: skip
        windowed = _behind(df).withColumn("w", F.window("ts", "20 seconds"))
        return windowed.select(
            "w", "flag", "id", *(value.alias(f"c{at}") for at, value in enumerate(values))
        )

    def aggregated(df: DataFrame) -> DataFrame:
        """What groups keep, over whole partitions, running and moving frames."""
        part = Window.partitionBy("w", "flag")
        by_id = part.orderBy("id")
        near = by_id.rowsBetween(-3, 2)
        ranged = part.orderBy(F.col("id").cast("long")).rangeBetween(-7, 2)
        down = part.orderBy(F.col("tiny").cast("int").desc()).rangeBetween(-2, 0)
        timed = "(partition by w, flag order by ts range between interval 3 seconds preceding and "
        timed += "interval 1 second following)"
        rounded = [
            F.stddev("n").over(part), F.var_pop(F.col("price") % 100).over(by_id),
            F.corr(F.col("n") % 5, F.col("price") % 9).over(near),
            F.skewness(F.col("n") % 11).over(by_id), F.kurtosis(F.col("n") % 13).over(near),
            F.covar_samp(F.col("n") % 5, F.col("price") % 9).over(part),
            F.regr_slope(F.col("n") % 5, F.col("price") % 9).over(by_id),
        ]  # fmt: skip
        values = [
            *(F.round(each, 6).cast("float") for each in rounded),
            F.collect_list("url").over(by_id), F.collect_list("st").over(near),
            F.sort_array(F.collect_set("tiny").over(by_id)), F.median("n").over(part),
            F.percentile("price", [0.0, 0.3, 1.0]).over(by_id),
            F.percentile_approx("at", 0.4).over(near), F.mode("url", True).over(by_id),
            F.min_by("url", "id").over(near), F.max_by("st", "id").over(by_id),
            F.approx_count_distinct("url").over(by_id), F.sum("fee").over(by_id),
            F.avg("fee").over(near), F.sum(F.col("rate").cast("decimal(38,1)")).over(part),
            F.avg(F.col("rate").cast("decimal(30,4)")).over(by_id), F.max("st").over(near),
            F.min("tags").over(by_id), F.sum(F.col("gap") / 1000).over(by_id),
            F.avg(F.col("gap") / 1000).over(near), F.try_sum("price").over(part),
            F.bool_or("flag").over(near), F.count_if("flag").over(by_id),
            F.listagg("url", F.lit("-")).over(by_id), F.sum("n").over(ranged),
            F.count("url").over(ranged), F.count("*").over(down), F.max("price").over(down),
            F.expr(f"count(*) over {timed}"), F.expr(f"size(collect_set(tiny) over {timed})"),
            F.lag("price", 2).over(by_id), F.lead("n", 1, 0).over(by_id),
            F.expr("lag(url, 2) ignore nulls over (partition by w, flag order by id)"),
            F.expr("lead(url, 1, 'x') ignore nulls over (partition by w, flag order by id)"),
            F.nth_value("url", 2, True).over(by_id),
        ]  # fmt: skip
        windowed = _behind(df).withColumn("w", F.window("ts", "20 seconds"))
        windowed = windowed.withColumn("gap", F.expr("at - ts"))
        return windowed.select(
            "w", "flag", "id", *(value.alias(f"c{at}") for at, value in enumerate(values))
        )

    def best(df: DataFrame) -> DataFrame:
        counted = _behind(df).groupBy(F.window("ts", "20 seconds"), "auction")
        sums = counted.agg(F.count("*").alias("n"))
        place = F.rank().over(Window.partitionBy("window").orderBy(F.desc("n")))
        return sums.withColumn("place", place).where("place <= 2")

    def last_rows(df: DataFrame) -> DataFrame:
        order = Window.partitionBy("auction").orderBy("ts", "id")
        values = [
            F.avg("price").over(order.rowsBetween(-9, 0)),
            F.sum("n").over(order.rowsBetween(-3, -1)),
            F.lag("url", 2).over(order),
            F.first("price").over(order.rowsBetween(-4, 0)),
            F.round(F.stddev("price").over(order.rowsBetween(-9, 0)), 6).cast("float"),
            F.collect_list("url").over(order.rowsBetween(-2, 0)),
            F.max_by("url", "n").over(order.rowsBetween(0, 0)),
        ]
        named = [value.alias(f"c{at}") for at, value in enumerate(values)]
        return _behind(df).where("ts is not null").select("id", "auction", *named)

    return {
        "functions over windows": Judged(ranked),
        "aggregates over windows": Judged(aggregated),
        "the best of each window": Judged(best),
        "the last rows of each key": Judged(last_rows),
    }
