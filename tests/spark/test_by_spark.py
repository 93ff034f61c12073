"""Queries with expressions that only Spark knows: the driver's slot, bad rows, explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.api.session import Attached
from penstock.expressions.types import schema_from_arrow
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from tests.spark_session import own_session
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = pa.table(
    {
        "n": pa.array([None if n % 11 == 5 else n for n in range(200)], pa.int64()),
        "xml": pa.array([None if n % 7 == 3 else f"<a><b>{n % 5}</b></a>" for n in range(200)]),
        "at": pa.array(range(0, 200 * 10**11, 10**11), pa.timestamp("us", "UTC")),
    }
)
END_S = 100


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with own_session({"spark.sql.session.timeZone": "America/New_York"}) as session:
        found = penstock.attach(session, tmp_path_factory.mktemp("by_spark") / "log")
        create_stream(found.log, "rows", schema_from_arrow(ROWS.schema))
        writer = StreamWriter(found.log, "rows", "writer")
        for batch in ROWS.to_batches(max_chunksize=70):
            writer.write(batch)
        writer.write(None, ended=True)
        yield found


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("penstock").option("stream", "rows").load()


NAMES = ("rows", "exploded", "groups", "sessions", "groups of groups")


def queries() -> dict[str, tuple[str, Callable[[DataFrame], DataFrame]]]:
    """By name: the mode, and what is asked of the rows."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    b = F.expr("xpath_string(xml, 'a/b')")
    return {
        "rows": (
            "append",
            lambda df: df.where("n > 20 and xpath_int(xml, 'a/b') <> 3").select(
                "n",
                b.alias("b"),
                F.expr("date_format(at, 'EEEE d MMMM HH')").alias("day"),
                F.expr("from_xml(xml, 'b int')").alias("parsed"),
            ),
        ),
        "groups": (
            "complete",
            lambda df: (
                df.groupBy(b.alias("b"))
                .agg(
                    F.sum(F.expr("xpath_long(xml, 'a/b') + n")).alias("s"),
                    F.format_string("%1$d of them", F.count("n")).alias("many"),
                )
                .where("xpath_boolean(concat('<x>', many, '</x>'), 'x')")
            ),
        ),
        "groups of groups": (  # rows that come and go pass Spark's step
            "complete",
            lambda df: (
                df.groupBy(F.expr("n % 7").alias("k"))
                .agg(F.sum("n").alias("s"), F.count("n").alias("many"))
                .select(
                    F.expr("xpath_string(concat('<x>', k % 3, '</x>'), 'x')").alias("b"),
                    "s",
                    F.expr("xpath_long(concat('<x>', many, '</x>'), 'x')").alias("many"),
                )
                .groupBy("b")
                .agg(F.sum("s").alias("s"), F.sum("many").alias("many"))
            ),
        ),
        "sessions": (
            "append",
            lambda df: (
                df.where("n is not null")
                .withWatermark("at", "1 second")
                .groupBy(F.session_window("at", F.expr("concat(xpath_int(xml, 'a/b'), ' days')")))
                .agg(F.count("n").alias("many"), F.max("n").alias("last"))
            ),
        ),
        "exploded": (
            "append",
            lambda df: df.select("n", F.explode(F.expr("xpath(xml, 'a/b/text()')")).alias("text")),
        ),
    }


@pytest.mark.parametrize("name", some([*NAMES], every=5))
def test_a_query_gives_what_spark_gives(attached: Attached, rows: DataFrame, name: str) -> None:
    mode, define = queries()[name]
    named = name.replace(" ", "_")
    writer = penstock.writeStream(define(rows)).queryName(named).outputMode(mode)
    query = writer.option("parallelism", 2).toStream(f"{named}_out").start()
    assert query.awaitTermination(END_S)
    found = StreamReader(attached.log, f"{named}_out").read_all().to_pylist()
    static = attached.spark.createDataFrame(ROWS)
    wanted = define(static).toArrow().to_pylist()
    if mode == "complete":  # every commit sends all groups: the last ones count
        found = list({row["b"]: row for row in found}.values())
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def joins() -> dict[str, Callable[[DataFrame, DataFrame], DataFrame]]:
    """By name: what is asked of two sides, of which some is for Spark alone."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def sides(one: DataFrame, other: DataFrame) -> tuple[DataFrame, DataFrame]:
        return one.where("n < 40"), other.where("n > 30 and n < 90").selectExpr(
            "n AS m", "xml AS with", "at AS then"
        )

    def joined(on: str, how: str = "inner") -> Callable[[DataFrame, DataFrame], DataFrame]:
        def define(one: DataFrame, other: DataFrame) -> DataFrame:
            left, right = sides(one, other)
            return left.join(right, F.expr(on), how)

        return define

    same = "xpath_int(xml, 'a/b') = xpath_int(with, 'a/b')"
    of_pairs = "length(format_string('%1$s:%2$s', n, m)) < 5"
    return {
        "keys": joined(same),
        "of one side": joined("n % 5 = m % 5 and m > n + xpath_int(xml, 'a/b')"),
        "of pairs": joined(f"{same} and {of_pairs}"),
    }


@pytest.mark.parametrize("name", some(["of pairs", "keys", "of one side"], every=3))
@pytest.mark.parametrize("is_static", some([False, True], every=2))
def test_a_join_gives_what_spark_gives(
    attached: Attached, rows: DataFrame, name: str, is_static: bool
) -> None:
    """Conditions of which Spark computes a part: before the join, or of pairs behind it."""
    define, label = joins()[name], f"{name.replace(' ', '_')}_{is_static}".lower()
    standing = attached.spark.createDataFrame(ROWS)
    other = standing if is_static else rows
    query = penstock.writeStream(define(rows, other)).queryName(label).toStream(f"{label}_out")
    assert query.start().awaitTermination(END_S)
    found = StreamReader(attached.log, f"{label}_out").read_all().to_pylist()
    wanted = define(standing, standing).toArrow().to_pylist()
    assert wanted
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def outer_join(how: str, of_pairs: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """Rows that are near each other and of which Spark says that they belong together."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def define(one: DataFrame, other: DataFrame) -> DataFrame:
        left, right = one.where("n < 80"), other.where("n > 30").selectExpr("n AS m", "at AS then")
        on = "n % 5 = m % 5 AND then BETWEEN at AND at + INTERVAL 40 MINUTES"
        return left.join(right, F.expr(f"{on} AND {of_pairs}"), how)

    return define


def faster(rows: DataFrame) -> DataFrame:
    """A thousand times: of days, a zone's clock makes more or less than 24 hours."""
    faster = rows.selectExpr("n", "timestamp_millis(unix_seconds(at)) AS at")
    return faster.withWatermark("at", "1 second")


OF_PAIRS = "length(format_string('%1$s:%2$s', n * n, m)) < 7"


@pytest.mark.parametrize("how", some(["full", "anti", "left", "right", "semi"], every=5))
@pytest.mark.parametrize("is_static", some([False, True], every=2))
def test_spark_decides_of_pairs_within_an_outer_join(
    attached: Attached, rows: DataFrame, how: str, is_static: bool
) -> None:
    if is_static and how in ("right", "full"):
        return  # static rows that match nothing: no stream can tell
    define, label = outer_join(how, OF_PAIRS), f"decided_{how}_{is_static}".lower()
    standing, timed = faster(attached.spark.createDataFrame(ROWS)), faster(rows)
    asked = define(timed, standing if is_static else timed)
    query = penstock.writeStream(asked).queryName(label).option("parallelism", 2)
    assert query.toStream(f"{label}_out").start().awaitTermination(END_S)
    found = StreamReader(attached.log, f"{label}_out").read_all().to_pylist()
    wanted = define(standing, standing).toArrow().to_pylist()
    on_keys = outer_join(how, "true")(standing, standing).toArrow().to_pylist()
    assert sorted(map(repr, wanted)) != sorted(map(repr, on_keys))  # it makes a difference
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


@pytest.mark.parametrize("is_static", some([False, True], every=2))
def test_of_a_pair_that_fails_in_spark_one_row_is_the_dead_letter(
    attached: Attached, rows: DataFrame, is_static: bool
) -> None:
    define, label = (
        outer_join("left", "length(format_string('%1$s', 1 div (n - m))) > 0"),
        "dead_pair",
    )
    label = f"{label}_{is_static}".lower()
    standing, timed = faster(attached.spark.createDataFrame(ROWS)), faster(rows)
    asked = define(timed, standing if is_static else timed)
    query = penstock.writeStream(asked).queryName(label).option("deadLetterStream", f"{label}_bad")
    assert query.toStream(f"{label}_out").start().awaitTermination(END_S)
    bad = StreamReader(attached.log, f"{label}_bad").read_all().to_pylist()
    assert len(bad) == sum(n is not None and 30 < n < 80 for n in ROWS.column("n").to_pylist())
    assert all("[DIVIDE_BY_ZERO]" in row["error"] for row in bad)


def test_what_spark_decides_within_a_join_is_explained(
    rows: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = outer_join("left", OF_PAIRS)(faster(rows), faster(rows))
    penstock.writeStream(asked).queryName("decided").toStream("decided_out").explain()
    shown = capsys.readouterr().out
    assert "if Spark's (length(format_string(" in shown
    assert "hosted by the driver" in shown


def test_it_is_explained_where_spark_computes(
    rows: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    _, define = queries()["rows"]
    penstock.writeStream(define(rows)).queryName("explained").toStream("explained_out").explain()
    shown = capsys.readouterr().out
    (stage,) = (line for line in shown.splitlines() if "hosted by the driver" in line)
    assert stage.startswith("Stage by_spark_")
    assert "Spark takes some ms a batch" in stage
    assert "XPathStringEvaluator(a/b)" in shown
    assert ") as __spark_" in shown
    assert "[spark]" in shown


def _failing(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("n", "xpath_string(concat('<a>', 100 div (n - 30), '</a>'), 'a') AS q")


@pytest.mark.slow
def test_a_row_that_fails_ends_the_query_and_is_named(rows: DataFrame) -> None:
    query = penstock.writeStream(_failing(rows)).queryName("raised").toStream("raised_out").start()
    with pytest.raises(penstock.errors.JobFailed, match="DIVIDE_BY_ZERO") as caught:
        query.awaitTermination(END_S)
    assert "row 30 of S/rows/0" in caught.value.message
    assert "XPathStringEvaluator" in caught.value.message


def test_with_a_dead_letter_stream_the_others_go_on(attached: Attached, rows: DataFrame) -> None:
    writer = (
        penstock.writeStream(_failing(rows)).queryName("dead").option("deadLetterStream", "bad")
    )
    assert writer.toStream("dead_out").start().awaitTermination(END_S)
    (bad,) = StreamReader(attached.log, "bad").read_all().to_pylist()
    assert bad["n"] == 30
    assert "[DIVIDE_BY_ZERO]" in bad["error"]
    found: list[dict[str, Any]] = StreamReader(attached.log, "dead_out").read_all().to_pylist()
    kept = [n for n in ROWS.column("n").to_pylist() if n != 30]
    assert [row["n"] for row in found] == kept
    assert [row["q"] for row in found] == [
        None if n is None else str(int(100 / (n - 30))) for n in kept
    ]
