"""Shapes that people give their queries: as streams with lost processes, against Spark's batch.

No row is late in them: the watermark is an hour behind, and the streams end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from penstock.catalyst.session import active_session
from penstock.catalyst.translate import translate
from penstock.errors import UnsupportedPlan
from tests.catalyst.conftest import stream
from tests.oracle.engine import Manner, run_streams
from tests.oracle.events import EVENT_COLUMNS, event_rows
from tests.oracle.feeding import cut_into_rounds
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS, STATIC_ROWS = 60, 30
Define = Callable[["DataFrame", "DataFrame", "DataFrame"], "DataFrame"]


class Shape(NamedTuple):
    """A query over two streams and static rows; its first `keys` columns name a group."""

    define: Define
    mode: str = "append"
    keys: int = 0


def sql(text: str) -> Define:
    def define(a: DataFrame, b: DataFrame, static: DataFrame) -> DataFrame:
        for name, rows in (("a", timed(a)), ("b", timed(b)), ("s", static)):
            rows.createOrReplaceTempView(name)
        return a.sparkSession.sql(text)

    return define


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 hour")


def windows(rows: DataFrame, *by: str) -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return timed(rows).groupBy(F.window("ts", "10 seconds").alias("w"), *by)


def near(a: DataFrame, b: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    range_of_time = "r.ts BETWEEN l.ts - INTERVAL 2 SECONDS AND l.ts + INTERVAL 2 SECONDS"
    on = F.expr(f"l.bidder = r.bidder AND {range_of_time}")
    return timed(a).alias("l").join(timed(b).alias("r"), on)


def shapes() -> dict[str, Shape]:
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    def ids(rows: DataFrame) -> DataFrame:
        return rows.select("l.id", F.col("r.id").alias("other"))

    def counts(rows: DataFrame) -> DataFrame:
        return windows(rows, "bidder").count()

    def sessions(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.session_window("ts", "2 seconds").alias("w"), "bidder").count()

    by_count = Window.partitionBy("w").orderBy(F.desc("count"), "bidder")
    return {
        "union of joins": Shape(lambda a, b, s: ids(near(a, b)).union(ids(near(b, a)))),
        "join of unions": Shape(
            lambda a, b, s: ids(
                timed(a.union(b))
                .alias("l")
                .join(
                    timed(b).where("id % 2 = 0").unionByName(timed(a)).alias("r"),
                    F.expr("l.bidder = r.bidder AND l.ts = r.ts"),
                )
            )
        ),
        "first rows behind a join, then windows": Shape(
            lambda a, b, s: (
                near(a, b)
                .select(F.col("l.bidder").alias("k"), F.col("l.ts").alias("ts"))
                .dropDuplicates(["k", "ts"])
                .groupBy(F.window("ts", "10 seconds"), "k")
                .count()
            )
        ),
        "static rows between two states": Shape(
            lambda a, b, s: (
                counts(a)
                .join(s.select("bidder", "flag").distinct(), "bidder")
                .groupBy("w", "flag")
                .agg(F.sum("count"))
            )
        ),
        "windows of two streams, united and grouped again": Shape(
            lambda a, b, s: counts(a).union(counts(b)).groupBy("w").agg(F.sum("count").alias("c"))
        ),
        "windows joined": Shape(
            lambda a, b, s: counts(a).join(
                windows(b, "bidder").agg(F.max("price").alias("m")), ["w", "bidder"], "full"
            )
        ),
        "rows joined with their windows": Shape(
            lambda a, b, s: (
                timed(a)
                .alias("x")
                .join(
                    windows(a, "bidder").agg(F.max("price").alias("m")).alias("y"),
                    F.expr(
                        "x.bidder = y.bidder AND x.price = y.m AND x.ts >= y.w.start"
                        " AND x.ts < y.w.end"
                    ),
                )
                .select("id", "m", "y.w")
            )
        ),
        "the best of each window": Shape(
            lambda a, b, s: (
                counts(a).withColumn("rank", F.row_number().over(by_count)).where("rank <= 2")
            )
        ),
        "sessions of a union": Shape(lambda a, b, s: sessions(timed(a).union(timed(b)))),
        "sessions of a union of unions": Shape(
            lambda a, b, s: sessions(
                timed(a)
                .where("price > 0")
                .select("bidder", "ts")
                .union(timed(b).select("bidder", "ts").union(timed(a).select("id", "ts")))
            )
        ),
        "sessions of windows and rows": Shape(
            lambda a, b, s: sessions(
                counts(a)
                .select(F.window_time("w").alias("ts"), "bidder")
                .union(timed(b).select("ts", "bidder"))
            )
        ),
        "distinct rows of two streams": Shape(
            sql("SELECT bidder, flag FROM a UNION SELECT bidder, flag FROM b")
        ),
        "distinct values that are computed": Shape(
            sql("SELECT DISTINCT bidder % 3 AS k, upper(url) AS u, st FROM a WHERE price > 0")
        ),
        "rows that are in both streams": Shape(
            lambda a, b, s: a.select("bidder", "url").intersect(b.select("bidder", "url"))
        ),
        "rows that are not among static ones": Shape(
            lambda a, b, s: a.select("bidder", "url").subtract(s.select("bidder", "url"))
        ),
        "pivot": Shape(
            lambda a, b, s: a.groupBy("bidder").pivot("flag", [True, False]).sum("price"),
            "update",
            keys=1,
        ),
        "pivot of several values": Shape(
            sql(
                "SELECT * FROM (SELECT bidder, url, fee, n FROM a) "
                "PIVOT (sum(fee) AS f, count(n) AS c FOR url IN ('a b' AS x, '' AS y, 'é' AS z))"
            ),
            "complete",
            keys=1,
        ),
        "pivot of windows": Shape(
            lambda a, b, s: (
                windows(a).pivot("tiny", [1, 2, -128]).agg(F.count("id"), F.max("price"))
            )
        ),
        "value of a static subquery": Shape(
            sql(
                "SELECT id, price - (SELECT max(price) FROM s) AS d FROM a "
                "WHERE price > (SELECT avg(price) FROM s) OR flag = (SELECT max(flag) FROM s)"
            )
        ),
        "value of a static subquery without a row": Shape(
            sql("SELECT id, (SELECT url FROM s WHERE id < 0 LIMIT 1) AS u FROM a")
        ),
        "value of a static subquery in groups": Shape(
            sql(
                "SELECT window(ts, '10 seconds') AS w, sum(price - (SELECT min(price) FROM s)) AS p"
                " FROM a GROUP BY 1 HAVING count(*) > (SELECT count(*) / 100 FROM s)"
            )
        ),
        "static rows asked for in every way": Shape(
            sql(
                "SELECT id, (SELECT max(price) FROM s WHERE s.bidder = a.bidder) AS m FROM a "
                "WHERE bidder IN (SELECT bidder FROM s WHERE price > 0) "
                "OR NOT EXISTS (SELECT 1 FROM s WHERE s.auction = a.auction AND s.price > a.price)"
            )
        ),
        "lateral rows of static ones": Shape(
            sql(
                "SELECT a.id, x.p FROM a LEFT JOIN LATERAL "
                "(SELECT price AS p FROM s WHERE s.bidder = a.bidder AND s.price > a.price) x"
            )
        ),
        "common table used twice": Shape(
            sql(
                "WITH x AS (SELECT bidder, ts, id FROM a WHERE price > 0) "
                "SELECT l.id, r.id AS other FROM x l JOIN x r ON l.bidder = r.bidder "
                "AND l.ts BETWEEN r.ts - INTERVAL 1 SECOND AND r.ts"
            )
        ),
    }


NAMES = [
    "union of joins", "join of unions", "first rows behind a join, then windows",
    "static rows between two states", "windows of two streams, united and grouped again",
    "windows joined", "rows joined with their windows", "the best of each window",
    "sessions of a union", "sessions of a union of unions", "sessions of windows and rows",
    "distinct rows of two streams", "distinct values that are computed",
    "rows that are in both streams", "rows that are not among static ones", "pivot",
    "pivot of several values", "pivot of windows", "value of a static subquery",
    "value of a static subquery without a row", "value of a static subquery in groups",
    "static rows asked for in every way", "lateral rows of static ones", "common table used twice",
]  # fmt: skip


@pytest.mark.parametrize("name", some(NAMES, every=3))
def test_a_shape_gives_what_spark_gives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    shape, rng = shapes()[name], random.Random(name)
    seed = rng.randrange(1 << 30)
    events = {"left": event_rows(seed, ROWS), "right": event_rows(seed, ROWS + 10).slice(10)}
    static = static_frame(spark, pa.Table.from_batches([event_rows(5, STATIC_ROWS)]))
    standing = [static_frame(spark, pa.Table.from_batches([rows])) for rows in events.values()]
    theirs = plain(shape.define(*standing, static).toArrow())
    assert theirs, "a query without any result shows nothing"
    with active_session(spark):
        streams = [stream(spark, EVENT_COLUMNS, each) for each in events]
        query = shape.define(*streams, static)
        translated = translate(query, output_mode=shape.mode, query="q")
        rounds = {each: cut_into_rounds(events[each], rng) for each in translated.streams}
        outcome = run_streams(translated, rounds, tmp_path, manner := Manner.drawn(rng))
    mode = "update" if shape.keys else shape.mode
    ours = as_mode(plain(outcome.rows), mode, shape.keys, len(theirs))
    difference = differences(ours, theirs)
    assert not difference, f"{manner}\n{difference}"


def test_a_subquery_of_many_rows_is_refused(spark: SparkSession) -> None:
    static = static_frame(spark, pa.Table.from_batches([event_rows(5, STATIC_ROWS)]))
    rows = stream(spark, EVENT_COLUMNS, "left")
    query = sql("SELECT id FROM a WHERE price > (SELECT price FROM s)")(rows, rows, static)
    with pytest.raises(UnsupportedPlan, match=r"Filter, expression scalarsubquery.* LIMIT 1"):
        translate(query, query="q")
