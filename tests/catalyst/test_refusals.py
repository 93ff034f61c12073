"""What is not run here is refused with an error that says what, where, and what can run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from penstock.api.tables import as_table
from penstock.catalyst.refusals import NODE_REASONS
from penstock.catalyst.translate import translate
from penstock.errors import InvalidArgument, UnsupportedPlan
from penstock.plan.nodes import StreamRef
from penstock.plan.query import Query, Write
from penstock.plan.weigh_changes import weigh_changes
from tests.catalyst.conftest import BIDS, stream
from tests.catalyst.expression_cases import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def refusal(df: Any, mode: str = "append") -> UnsupportedPlan:
    with pytest.raises(UnsupportedPlan) as caught:
        translate(df, output_mode=mode, query="refused")
    assert "Structured Streaming" in str(caught.value)
    return caught.value


# --- expressions ----------------------------------------------------------------------------------

# (SQL, what the error's expression must contain, what its message must say)
EXPRESSIONS = (
    ("monotonically_increasing_id()", "monotonically_increasing_id()", "not supported with"),
    ("input_file_block_start()", "input_file_block_start()", "computed once for each row here"),
    ("make_interval(0, 0, 0, i)", "make_interval(0, 0, 0, i", "use make_dt_interval()"),
    ("aes_encrypt(u, '0000111122223333')", "aesEncrypt", "without an iv of its own"),
    ("java_method('java.lang.Math', 'abs', i)", "java.lang.Math", "each time"),
    ("(SELECT id FROM range(3)) + a", "scalarsubquery", "more than one row"),
    ("format_string('%1$s', (SELECT max(id) FROM range(3)))", "scalarsubquery", "of its own first"),
)  # fmt: skip


@pytest.mark.parametrize(("sql", "expression", "reason"), EXPRESSIONS, ids=lambda part: part[:30])
def test_an_expression_is_refused_by_name(
    spark: SparkSession, sql: str, expression: str, reason: str
) -> None:
    error = refusal(stream(spark, COLUMNS).selectExpr(f"{sql} AS result", "a"))
    assert error.details["node"] == "Project"
    assert error.details["column"] == "result"
    assert expression in error.details["expression"]
    assert reason in str(error)


def test_the_line_that_wrote_the_expression_is_named(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    error = refusal(bids.select(F.col("price").cast("variant").alias("x")))
    assert "test_refusals.py:" in str(error)


def test_an_expression_in_a_condition_is_refused(bids: DataFrame) -> None:
    error = refusal(bids.where("xpath_string(string(monotonically_increasing_id()), 'a') = url"))
    assert error.details["node"] == "Filter"
    assert "monotonically_increasing_id()" in error.details["expression"]


# --- nodes ----------------------------------------------------------------------------------------


def _same(rows: Any) -> Any:
    return rows


def nodes() -> dict[str, tuple[str, Callable[[DataFrame], Any]]]:
    """By the name of the test: the node that is refused, and a DataFrame with one."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def static(df: DataFrame) -> DataFrame:
        return df.sparkSession.range(3).toDF("price")

    return {
        "left join without an end": (
            "left join",
            lambda df: df.alias("l").join(df.alias("r"), F.expr("l.auction = r.auction"), "left"),
        ),
        "static rows are all kept": (
            "Join",
            lambda df: static(df).join(df.select("price"), "price", "left"),
        ),
        "full join with static rows": (
            "Join",
            lambda df: df.select("price").join(static(df), "price", "full"),
        ),
        "static column of an unknown type": (
            "Project",
            lambda df: df.join(static(df).selectExpr("price", "parse_json('1') v"), "price"),
        ),
        "union with rows that stand": ("Range", lambda df: df.select("price").union(static(df))),
        "mapInArrow with barriers": (
            "MapInArrow",
            lambda df: df.mapInArrow(_same, "auction bigint", barrier=True),
        ),
        "groups of two streams": (
            "FlatMapCoGroupsInPandas",
            lambda df: (
                df.groupBy("auction")
                .cogroup(df.groupBy("auction"))
                .applyInPandas(lambda left, right: left, "auction bigint")
            ),
        ),
        "a function with a state for another mode": (
            "FlatMapGroupsInPandasWithState",
            lambda df: _with_state(df, "append", "NoTimeout"),
        ),
        "timeouts by event time without a watermark": (
            "FlatMapGroupsInPandasWithState",
            lambda df: _with_state(df, "update", "EventTimeTimeout"),
        ),
        "a time to live without a clock": (
            "TransformWithStateInPySpark",
            lambda df: _processed(df, "None", ttl_ms=5),
        ),
        "a processor whose states have no columns": (
            "TransformWithStateInPySpark",
            lambda df: _processed(df, "None", schema="bigint"),
        ),
        "sort": ("Sort", lambda df: df.orderBy("price")),
        "limit": ("GlobalLimit", lambda df: df.limit(3)),
        "offset": ("Offset", lambda df: df.groupBy("price").count().offset(3)),
        "sample": ("Sample", lambda df: df.sample(0.5, 1)),
        "observed on two ways": (
            "CollectMetrics",
            lambda df: _twice(df.observe("m", F.count("*").alias("n"))),
        ),
        "observed by Spark": (
            "CollectMetrics",
            lambda df: df.observe("m", F.max(F.expr("xpath_int(url, 'a')")).alias("n")),
        ),
        "names that are no constants": (
            "Generate",
            lambda df: df.selectExpr("json_tuple(url, url)"),
        ),
    }


def _twice(df: DataFrame) -> DataFrame:
    return df.filter("price > 1").union(df.filter("price < 1"))


def _with_state(df: DataFrame, mode: str, timeout: str) -> DataFrame:
    def nothing(key: Any, frames: Any, state: Any) -> Any:
        return iter([])

    groups: Any = df.groupBy("auction")
    found: DataFrame = groups.applyInPandasWithState(nothing, "n bigint", "n bigint", mode, timeout)
    return found


def _processed(
    df: DataFrame,
    clock: str,
    schema: str = "n bigint",
    ttl_ms: int | None = None,
) -> DataFrame:
    from pyspark.sql.streaming import StatefulProcessor  # noqa: PLC0415

    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.kept = handle.getValueState("kept", schema, ttl_ms)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return iter([])

    groups: Any = df.groupBy("auction")
    found: DataFrame = groups.transformWithState(Nothing(), "n bigint", "update", clock)
    return found


@pytest.mark.parametrize("name", sorted(nodes()))
def test_a_node_is_refused_by_name(bids: DataFrame, name: str) -> None:
    node, define = nodes()[name]
    error = refusal(define(bids), "update")
    assert error.details["node"] == node
    assert str(error).startswith(node)


def test_ranking_over_windows_is_refused(bids: DataFrame) -> None:
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    ranked = F.row_number().over(Window.partitionBy("auction").orderBy("price"))
    assert refusal(bids.select(ranked.alias("r"))).details["node"] == "Window"


def test_the_table_of_refused_nodes_has_a_reason_for_each() -> None:
    assert all(reason and not reason.endswith(".") for reason in NODE_REASONS.values())


# --- aggregates and windows -----------------------------------------------------------------------


AGGREGATES = (
    ("histogram_numeric(price, 3)", "histogram_numeric", "no one answer to be equal to"),
    ("hll_sketch_agg(price)", "hll_sketch_agg", "bytes of a sketch"),
    ("kll_sketch_agg_bigint(price)", "kll_sketch_agg_bigint", "bytes of a sketch"),
    ("bitmap_construct_agg(price)", "bitmap_construct_agg", "not among the aggregates"),
    ("percentile(price, 0.5, auction)", "percentile(", "frequencies"),
)


@pytest.mark.parametrize(("sql", "expression", "reason"), AGGREGATES)
def test_an_aggregate_is_refused_by_name(
    bids: DataFrame, sql: str, expression: str, reason: str
) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    error = refusal(bids.groupBy("auction").agg(F.expr(sql).alias("x")), "update")
    assert error.details["node"] == "Aggregate"
    assert expression in error.details["expression"]
    assert reason in str(error)


def test_a_query_on_which_the_optimizer_of_spark_fails(bids: DataFrame) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import ArithmeticException  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    def define(rows: DataFrame) -> DataFrame:
        texts = "listagg(DISTINCT url, '-') WITHIN GROUP (ORDER BY url)"
        return rows.groupBy("auction").agg(
            F.expr(texts).alias("texts"), F.expr("avg(DISTINCT price)").alias("mean")
        )

    error = refusal(define(bids), "complete")
    assert "ClassCastException" in str(error)
    assert "SortOrder" in str(error)
    assert error.details["node"] == "Aggregate"
    assert error.details["column"] == "auction, texts, mean"
    batch = bids.sparkSession.createDataFrame([], bids.schema)
    with pytest.raises(Py4JJavaError, match=r"cannot be cast to class .*SortOrder"):
        define(batch).collect()
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):  # Spark's own words
        translate(bids.selectExpr("1 / 0 AS x"), output_mode="append", query="refused")


def test_what_structured_streaming_refuses_too_is_not_sent_there(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    def mean_of(prices: pd.Series) -> float:
        return float(prices.mean())

    mean = F.pandas_udf(mean_of, "double")
    error = refusal(bids.groupBy("auction").agg(mean("price").alias("x")), "update")
    assert "collect_list() the values" in str(error)
    assert "does not run them on a stream either" in str(error)
    unique = str(refusal(bids.dropDuplicatesWithinWatermark(["auction"])))
    assert "needs withWatermark() in the same query" in unique
    assert unique.endswith("Structured Streaming asks for the same")


def test_an_aggregate_is_refused_with_its_column(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    refused = {
        "max_by(price, bidder, 2)": "is not among the aggregates",
        "size(max_by(price, bidder, 2))": "is not among the aggregates",
        "percentile(price, 0.5, bidder)": "with frequencies",
        "count(make_interval(0, 0, 0, int(price)))": "make_dt_interval",
    }
    for text, reason in refused.items():
        error = refusal(bids.groupBy("auction").agg(F.expr(text).alias("x")), "update")
        assert reason in str(error)
        assert (error.details["node"], error.details["column"]) == ("Aggregate", "x")
        assert error.details["expression"]
    made = refusal(
        bids.select(F.explode(F.expr("array(make_interval(0, 0, 0, int(price)))")).alias("each"))
    )
    assert made.details["column"] == "each"
    counted = bids.groupBy("auction").count()
    with pytest.raises(UnsupportedPlan, match="whose rows come and go") as caught:
        translate(counted.dropDuplicates(["count"]), output_mode="update", query="refused")
    assert caught.value.details["column"] == "count"


def test_a_refusal_of_a_whole_node_names_what_it_computes(bids: DataFrame) -> None:
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    total, best = F.sum("price").alias("s"), F.max("price").alias("m")
    ranked = F.row_number().over(Window.partitionBy("auction").orderBy("price"))
    other = bids.sparkSession.range(3).toDF("price")
    without_end = bids.alias("l").join(bids.alias("r"), F.expr("l.auction = r.bidder"), "left")
    table = as_table(bids, "auction")
    cases = (
        (bids.groupBy("auction").agg(total), "append", "sum(price)", "s"),
        (bids.groupBy("auction").agg(total, best), "append", "sum(price), max(price)", "s, m"),
        (bids.groupBy(F.window("ts", "1 second")).agg(total), "append", "sum(price)", "s"),
        (bids.select(ranked.alias("r")), "append", "row_number() OVER", "r"),
        (bids.limit(3), "update", "3", None),
        (without_end, "append", "(l.auction = r.bidder)", "auction, bidder"),
        (bids.select("price").join(other, "price", "full"), "append", "(price = price)", "price"),
        (bids.dropDuplicatesWithinWatermark(["auction"]), "append", "auction", "auction"),
        (bids.orderBy("price"), "update", "price ASC NULLS FIRST", "price"),
        (bids.sample(0.5, 1), "append", "", "auction, bidder, price"),
        (bids.selectExpr("price + 1 AS p"), "complete", "(price + 1L)", "p"),
        (table.selectExpr("price + 1 AS p"), "append", "(price + 1L)", "p"),
        (bids.groupBy("price").count().dropDuplicates(["count"]), "update", "count", "count"),
    )
    for frame, mode, expression, column in cases:
        with pytest.raises(UnsupportedPlan) as caught:
            translate(frame, output_mode=mode, query="refused")
        error = caught.value
        assert error.details["node"]
        assert expression in error.details["expression"]
        assert (column or "") in str(error.details.get("column", ""))
        assert error.details["expression"] in str(error)


def test_more_aggregates_than_a_state_holds_are_refused(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    sums = [F.sum(F.col("price") + number).alias(f"s{number}") for number in range(63)]
    assert translate(bids.groupBy("auction").agg(*sums[:62]), output_mode="update", query="wide")
    error = refusal(bids.groupBy("auction").agg(*sums), "update")
    assert "at most 62 running numbers" in str(error)
    assert error.details["node"] == "Aggregate"


def test_sessions_that_have_no_meaning_are_refused(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    timed = bids.withWatermark("ts", "1 second")
    sessions = timed.groupBy(F.session_window("ts", "5 seconds"), "auction").count()
    translated = translate(sessions, output_mode="update", query="refused")
    write = Write(translated.relation, StreamRef("out"))
    with pytest.raises(UnsupportedPlan, match="that update mode has sent would stay") as caught:
        weigh_changes(Query("refused", (write,)))
    assert caught.value.details["column"] == "session_window"
    endless = bids.groupBy(F.session_window("ts", "5 seconds"), "auction").count()
    assert "append mode needs a watermark on the window's time ts" in str(refusal(endless))


def test_overlapping_windows_without_an_aggregate_are_refused(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    error = refusal(bids.select(F.window("ts", "10 seconds", "5 seconds"), "price"))
    assert error.details["column"] == "window"
    filtered = bids.select(F.window("ts", "10 seconds", "5 seconds"), "price").where(
        "price > unix_seconds(window.start)"
    )
    assert "both the window and other columns" in str(refusal(filtered))


def test_append_mode_needs_what_ends(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    endless = refusal(bids.groupBy("auction").count())
    assert "Structured Streaming asks for the same" in str(endless)
    timed = bids.withWatermark("ts", "1 second")
    by_time = refusal(timed.groupBy("ts", F.window("ts", "10 seconds")).count())
    assert by_time.details["column"] == "ts"
    with pytest.raises(UnsupportedPlan, match="needs a watermark"):
        translate(bids.groupBy(F.window("ts", "10 seconds")).count(), query="refused")


def test_an_option_that_no_source_has_is_named_with_the_one_that_was_meant(
    spark: SparkSession, tmp_path: Path
) -> None:
    read = spark.readStream.schema("a bigint").option("pathGlobFilter", "*.csv")
    error = refusal(read.option("heder", "true").csv(str(tmp_path)))
    assert "option 'heder' is not one for this source (did you mean header?)" in str(error)
    assert "Structured Streaming can run it, and passes over an option" in str(error)
    assert error.details["option"] == "heder"


def test_complete_mode_needs_an_aggregate(bids: DataFrame) -> None:
    assert "complete mode needs an aggregate" in str(refusal(bids, "complete"))


# --- the whole DataFrame --------------------------------------------------------------------------


def test_columns_that_spark_cannot_tell_apart_are_refused(
    spark: SparkSession, bids: DataFrame
) -> None:
    frame = bids.selectExpr("price", "bidder AS Price")
    assert refusal(frame).details["column"] == "Price"
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert len(translate(frame, query="told_apart").relation.schema) == 2
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_data_frame_that_does_not_stream_is_refused(spark: SparkSession) -> None:
    assert "does not stream" in str(refusal(spark.range(3)))


def test_something_else_than_a_data_frame_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="streaming DataFrame was expected, not dict"):
        translate({}, query="refused")


def test_a_data_frame_of_spark_connect_is_refused() -> None:
    from pyspark.sql import DataFrame as AnyDataFrame  # noqa: PLC0415

    class Remote(AnyDataFrame):
        """Like those of Spark Connect: a DataFrame without a JVM behind it."""

    assert "Spark Connect" in str(refusal(object.__new__(Remote)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.decimalOperations.allowPrecisionLoss", "false"),
    ],
)
def test_a_setting_that_changes_results_is_refused(
    spark: SparkSession, setting: str, value: str
) -> None:
    frame = stream(spark, BIDS)
    spark.conf.set(setting, value)
    try:
        error = refusal(frame)
    finally:
        spark.conf.unset(setting)
    assert error.details == {"setting": setting, "value": value}


def test_nobody_is_sent_to_structured_streaming_where_that_refuses_too(
    spark: SparkSession, bids: DataFrame
) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    numbers = spark.range(3)
    for frame, reason in (
        (bids.select(F.monotonically_increasing_id()), "monotonically_increasing_id() is not"),
        (bids.select("auction").union(numbers), "Union between streaming and batch"),
        (bids.join(numbers, F.expr("auction = id"), "full"), "FullOuter joins with streaming"),
    ):
        error = refusal(frame)
        assert f"Structured Streaming refuses the query too: {reason}" in error.message.replace(
            "Expression(s): ", ""
        )
        assert "can run it" not in error.message
