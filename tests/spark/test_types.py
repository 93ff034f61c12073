"""Results of types that Arrow does not know, or that have a collation, in sinks and read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import StreamError, UnsupportedPlan
from tests.spark_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TYPES = (
    "struct<id:bigint,v:void,y:interval year to month,c:string collate UTF8_LCASE,"
    "s:struct<y:interval year,v:void>,a:array<interval month>>"
)
ROW = ["0", None, "INTERVAL '1-2' YEAR TO MONTH", "Ab", "{INTERVAL '7' YEAR, null}"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("types")
    with own_session() as session:
        penstock.attach(session, folder / "log")
        session.range(3).coalesce(1).write.parquet(str(folder / "rows"))
        session.conf.set("test.rows", str(folder / "rows"))
        yield session


def typed(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.schema("id bigint").parquet(str(spark.conf.get("test.rows")))
    return rows.selectExpr(
        "id", "null AS v", "make_ym_interval(1, cast(id AS int) + 2) AS y",
        "collate('Ab', 'UTF8_LCASE') AS c", "struct(interval '7' year AS y, null AS v) AS s",
        "array(interval '3' month) AS a",
    )  # fmt: skip


def run(df: DataFrame, name: str, **sink: Any) -> None:
    writer: Any = penstock.writeStream(df).queryName(name).trigger(availableNow=True)
    for verb, given in sink.items():
        writer = getattr(writer, verb)(given)
    query = writer.start()
    assert query.awaitTermination(120)


def first_of(rows: DataFrame) -> list[Any]:
    found = rows.where("id = 0").selectExpr(
        *(f"string({name})" for name in ["id", "v", "y", "c", "s"])
    )
    return [list(row) for row in found.collect()]


def test_spark_sees_them_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    given: list[tuple[str, list[Any]]] = []
    run(
        typed(spark), "batches",
        foreachBatch=lambda rows, _: given.append((rows.schema.simpleString(), first_of(rows))),
    )  # fmt: skip
    assert (TYPES, [ROW]) in given
    run(typed(spark), "view", format="memory")
    run(typed(spark).where("y IS NULL"), "empty", format="memory")
    for view in ("view", "empty"):
        assert spark.table(view).schema.simpleString() == TYPES
    assert spark.table("view").where("c = 'AB' AND y < interval '15' month").count() == 1
    filled = typed(spark).selectExpr("id", "1 AS v", "y", "c", "struct(s.y) AS s", "a")
    writer = penstock.writeStream(filled).queryName("files").trigger(availableNow=True)
    writer.start(str(tmp_path / "files")).awaitTermination(120)
    files = spark.read.parquet(str(tmp_path / "files"))
    assert files.schema.simpleString() == TYPES.replace("v:void", "v:int", 1).replace(",v:void", "")
    assert first_of(files) == [["0", "1", *ROW[2:4], "{INTERVAL '7' YEAR}"]]


def test_a_stream_is_read_back_with_months_as_whole_numbers(spark: SparkSession) -> None:
    run(typed(spark), "kept", toStream="kept")
    found = spark.read.format("penstock").option("stream", "kept").load()
    assert found.schema.simpleString() == (
        "struct<id:bigint,v:boolean,y:int,c:string collate UTF8_LCASE,"
        "s:struct<y:int,v:boolean>,a:array<int>>"
    )
    asked = found.where("c = 'ab'").selectExpr("v", "y", "s.y", "a[0]").orderBy("y").first()
    assert tuple(asked or ()) == (None, 14, 84, 3)
    again = spark.readStream.format("penstock").option("stream", "kept").load()
    run(again.selectExpr("make_ym_interval(0, y) AS y"), "again", format="memory")
    assert spark.table("again").where("y = interval '14' month").count() == 1


def test_python_functions_get_nulls_and_texts_and_no_months(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    shown = F.udf(lambda void, text: f"{void} {text}", "string")
    run(typed(spark).select(shown("v", "c").alias("x")), "called", format="memory")
    assert {row.x for row in spark.table("called").collect()} == {"None Ab"}
    run(
        typed(spark).select("v", "c").mapInPandas(lambda rows: rows, "v void, c string"),
        "mapped", format="memory",
    )  # fmt: skip
    assert spark.table("mapped").where("v IS NULL AND c = 'Ab'").count() == 3
    with pytest.raises(UnsupportedPlan, match=r"expression make_ym_interval.*to Python") as caught:
        run(typed(spark).select(shown("y", "c")), "refused", format="memory")
    assert "Structured Streaming does not do that either" in str(caught.value)


@pytest.mark.parametrize("format", ["csv", "orc", "parquet"])
def test_what_a_format_cannot_hold_is_refused_at_start(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    with pytest.raises(StreamError, match="cannot hold column 'v', which is void"):
        penstock.writeStream(typed(spark).select("v")).format(format).start(str(tmp_path))


def test_a_group_by_what_spark_computes_begins(spark: SparkSession) -> None:
    """Before there are rows, keys that are made up stand for them: of no bytes."""
    soundex = typed(spark).selectExpr("struct(soundex(string(c)) AS s) AS k").groupBy("k").count()
    run(soundex, "soundex", outputMode="complete", format="memory")
    assert spark.table("soundex").selectExpr("k.s", "count").collect() == [("A100", 3)]
