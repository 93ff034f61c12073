"""Which watermark ends which windows: Spark's own analysis is the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.translate import translate
from penstock.errors import UnsupportedPlan
from penstock.operators.specs import AggregateSpec, DeduplicateSpec
from penstock.plan.nodes import Relation, spec_of, walk
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _windows(df: DataFrame, time: Any = "ts") -> DataFrame:
    return df.groupBy(_tumbling(time)).count()


def _timed(df: DataFrame) -> DataFrame:
    return df.withWatermark("ts", "5 seconds")


def _with_other(df: DataFrame) -> DataFrame:
    return df.selectExpr("ts", "timestamp_seconds(price) AS other")


Build = Callable[["DataFrame"], "DataFrame"]

# What runs here wherever it runs in Spark, and is refused in append mode where Spark refuses it.
LIKE_SPARK: dict[str, Build] = {
    "the column itself": lambda df: _windows(_timed(df)),
    "renamed": lambda df: _windows(_timed(df).selectExpr("ts AS t"), "t"),
    "overlapping": lambda df: _timed(df).groupBy(_sliding("ts")).count(),
    "no watermark": _windows,
    "another column": lambda df: _windows(_timed(_with_other(df)), "other"),
    "moved": lambda df: _windows(_timed(df).selectExpr("ts - INTERVAL 1 HOUR AS t"), "t"),
    "truncated": lambda df: _windows(_timed(df).selectExpr("date_trunc('minute', ts) AS t"), "t"),
    "out of a struct": lambda df: _windows(
        _timed(df).selectExpr("struct(ts) AS s").selectExpr("s.ts AS t"), "t"
    ),
    "both sides of a union": lambda df: _windows(_timed(df).union(_timed(df))),
    "first side of a union": lambda df: _windows(_timed(df).union(df)),
    "second side of a union": lambda df: _windows(df.union(_timed(df))),
    "after a union": lambda df: _windows(_timed(df.union(df))),
    "windows of windows": lambda df: _windows(_windows(_timed(df)), "window"),
    "the same windows again": lambda df: _windows(_timed(df)).groupBy("window").count(),
    "window_time": lambda df: _windows(
        _windows(_timed(df)).selectExpr("window_time(window) AS t"), "t"
    ),
    "end of a closed window": lambda df: _windows(
        _windows(_timed(df)).selectExpr("window.end AS t"), "t"
    ),
    "other keys": lambda df: _timed(df).groupBy("auction").count(),
}

# In update mode Spark has no aggregates of aggregates; here changes of the inner reach the outer.
CHANGING = frozenset(
    {"windows of windows", "the same windows again", "window_time", "end of a closed window"}
)

# What Spark runs and is refused here: by name, and what the error says.
REFUSED: dict[str, tuple[Build, str]] = {
    "the column as a key beside its window": (
        lambda df: _timed(df).groupBy("ts", _sliding("ts")).count(),
        "column of withWatermark",
    ),
    "twice": (
        lambda df: _windows(_timed(_timed(df))),
        "a watermark on ts already",
    ),
    "another column after it": (
        lambda df: _windows(_timed(_with_other(df)).withWatermark("other", "1 second"), "other"),
        "a watermark on ts already",
    ),
}
# What Spark's optimizer turns into the column, after its analyser has taken the mark away.
SIMPLIFIED: dict[str, Build] = {
    "cast": lambda df: _windows(_timed(df).selectExpr("CAST(ts AS timestamp) AS t"), "t"),
    "in a struct": lambda df: _windows(_timed(df).selectExpr("struct(ts) AS s"), "s.ts"),
}


def _tumbling(time: Any) -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.window(time, "10 seconds")


def _sliding(time: str) -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.window(time, "10 seconds", "5 seconds")


def _refused_by_spark(spark: SparkSession, df: DataFrame, mode: str) -> bool:
    """Whether Structured Streaming would refuse to start the query."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    jvm: Any = spark._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update}[mode]()
    try:
        checker.checkForStreaming(df._jdf.queryExecution().analyzed(), wanted)
    except (AnalysisException, Py4JJavaError):
        return True
    return False


def _ended_by_spark(df: DataFrame) -> bool:
    output = df._jdf.queryExecution().analyzed().output()  # type: ignore[operator]
    return any(
        output.apply(index).metadata().contains("spark.watermarkDelayMs")
        for index in range(output.size())
    )


def _aggregates(relation: Relation) -> list[AggregateSpec]:
    specs = [spec_of(node) for node in walk(relation)]
    return [spec for spec in specs if isinstance(spec, AggregateSpec)]


@pytest.mark.parametrize("mode", some(["append", "update"], every=2))
@pytest.mark.parametrize("name", LIKE_SPARK)
def test_as_spark_does(spark: SparkSession, bids: DataFrame, name: str, mode: str) -> None:
    df = LIKE_SPARK[name](bids)
    if _refused_by_spark(spark, df, mode):
        if mode == "update" and name in CHANGING:
            assert len(_aggregates(translate(df, output_mode=mode, query="q").relation)) == 2
            return
        with pytest.raises(UnsupportedPlan):
            translate(df, output_mode=mode, query="q")
        return
    relation = translate(df, output_mode=mode, query="q").relation
    assert _aggregates(relation)[0].forgets == _ended_by_spark(df)


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_only_spark_runs(spark: SparkSession, bids: DataFrame, name: str, mode: str) -> None:
    build, message = REFUSED[name]
    df = build(bids)
    assert not _refused_by_spark(spark, df, mode)
    with pytest.raises(UnsupportedPlan, match=message):
        translate(df, output_mode=mode, query="q")


def test_a_key_that_is_an_event_time_ends_groups_in_append_mode(
    spark: SparkSession, bids: DataFrame
) -> None:
    by_time = _timed(bids).groupBy("ts", "auction").count()
    assert not _refused_by_spark(spark, by_time, "append")
    by_end = _timed(bids).groupBy(_tumbling("ts").getField("end")).count()  # Spark refuses it
    for df in (by_time, by_end):
        assert _aggregates(translate(df, query="q").relation)[0].forgets
    with pytest.raises(UnsupportedPlan, match="column of withWatermark"):
        translate(by_time, output_mode="update", query="q")


def test_append_without_a_watermark_says_what_it_needs(bids: DataFrame) -> None:
    with pytest.raises(UnsupportedPlan, match="withWatermark on that very column") as caught:
        translate(LIKE_SPARK["truncated"](bids), query="q")
    assert "Structured Streaming asks for the same" in str(caught.value)


@pytest.mark.parametrize("name", SIMPLIFIED)
def test_what_spark_simplifies_to_the_column_is_not_the_column(bids: DataFrame, name: str) -> None:
    df = SIMPLIFIED[name](bids)
    assert not _ended_by_spark(df)
    with pytest.raises(UnsupportedPlan, match="Spark sees no watermark on it"):
        translate(df, output_mode="update", query="q")


def test_in_complete_mode_nothing_ends(bids: DataFrame) -> None:
    relation = translate(
        _timed(bids).groupBy("ts").count(), output_mode="complete", query="q"
    ).relation
    assert not any(spec.forgets for spec in _aggregates(relation))


def test_the_last_instants_of_windows_are_late_once_they_are_passed(bids: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    timed = bids.withWatermark("ts", "1 second")
    windows = timed.groupBy(F.window("ts", "10 seconds"), "auction").count()
    instants = windows.select(F.window_time("window").alias("at"), "auction")
    for frame, is_instant in ((instants, True), (timed.select("ts", "auction"), False)):
        relation = translate(frame.dropDuplicates(), output_mode="append", query="q").relation
        specs = [spec for spec in map(spec_of, walk(relation)) if isinstance(spec, DeduplicateSpec)]
        assert [spec.is_instant for spec in specs] == [is_instant]
