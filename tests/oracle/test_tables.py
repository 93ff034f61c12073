"""Streams read as tables: in the end they give what Spark gives of the newest rows of each key."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import penstock
from penstock.api.static_sides import StaticTables
from penstock.catalyst.translate import translate
from penstock.errors import InvalidArgument, PlanError, UnsupportedPlan
from penstock.plan.nodes import SourceRef, scans_of
from penstock.testing.memory_log import MemoryLog
from tests.oracle.engine import Manner, log_with_statics, program_of, run
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

USERS = pa.schema(
    [("user", pa.int64()), ("city", pa.string()), ("score", pa.float64()), ("gone", pa.bool_())]
)
ORDERS = pa.schema([("number", pa.string()), ("buyer", pa.int64()), ("price", pa.int64())])
USERS_COLUMNS = "user bigint, city string, score double, gone boolean"
ORDERS_COLUMNS = "number string, buyer bigint, price bigint"
FILES = 4
Row = dict[str, Any]


def _users(rng: random.Random) -> list[Row]:
    return [
        {
            "user": rng.choice([*range(12), None]),
            "city": rng.choice(["x", "y", "z", None]),
            "score": rng.choice([0.5, 1e15, -1e15, None, rng.randrange(64) / 8]),
            "gone": rng.choice([True, False, False, None]),
        }
        for _ in range(25)
    ]


def _orders(rng: random.Random) -> list[Row]:
    """A row of nulls takes the order away."""
    found = [
        {
            "number": f"o{rng.randrange(20)}",
            "buyer": rng.choice([*range(14), None]),
            "price": rng.choice([None, rng.randrange(-9, 99)]),
        }
        for _ in range(20)
    ]
    gone = [{"number": f"o{rng.randrange(20)}", "buyer": None, "price": None} for _ in range(4)]
    return rng.sample([*found, *gone], len(found) + len(gone))


def _newest(rows: list[Row], key: str, is_gone: Callable[[Row], Any]) -> list[Row]:
    last = {row[key]: row for row in rows}
    return [row for row in last.values() if not is_gone(row)]


def _both(users: DataFrame, orders: DataFrame, how: str) -> DataFrame:
    joined = orders.join(users, (orders.buyer == users.user) & (orders.price > users.score), how)
    named = "price" if how in ("left_semi", "left_anti") else "city"
    return joined.groupBy(named).agg(F.count("*").alias("n"), F.sum("price").alias("total"))


def _with_cities(users: DataFrame, _: DataFrame, how: str) -> DataFrame:
    rows = [("x", "north"), ("y", "south"), ("y", "coast")]
    cities = users.sparkSession.createDataFrame(rows, "city string, part string")
    found = users.join(cities, "city", how)
    named = "city" if how in ("left_semi", "left_anti") else "part"
    return found.groupBy(named).agg(F.count("*").alias("n"), F.sum("score").alias("s"))


QUERIES: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "grouped": lambda users, _: users.groupBy("city").agg(
        F.count("*").alias("n"), F.sum("score").alias("s"), F.min("user").alias("u")
    ),
    "filtered, computed, grouped": lambda users, _: (
        users.where("user % 2 = 0").selectExpr("upper(city) AS c", "user + 1 AS u").groupBy("c")
        .agg(F.max("u").alias("most"), F.count("*").alias("n"))
    ),
    "distinct": lambda users, _: users.where("user > 2").select("score", "city").distinct(),
    "distinct, grouped": lambda users, _: users.select("score", "city").distinct()
    .groupBy("city").agg(F.count("*").alias("n"), F.sum("score").alias("s")),
    "a union of tables": lambda users, orders: (
        users.select("user").union(orders.select("buyer")).groupBy("user").count()
    ),
    "a table and what is grouped": lambda users, orders: (
        users.join(orders.groupBy("buyer").agg(F.sum("price").alias("p")), F.expr("user = buyer"))
        .groupBy("city").agg(F.sum("p").alias("p"), F.count("*").alias("n"))
    ),
    "collected and sorted": lambda users, _: users.groupBy("city").agg(
        F.sort_array(F.collect_list("user")).alias("users"), F.countDistinct("score").alias("n")
    ),
    **{
        f"{how} with rows that stand, grouped": partial(_with_cities, how=how)
        for how in ("inner", "left", "left_semi", "left_anti")
    },
    **{
        f"{how} of tables": partial(_both, how=how)
        for how in ("inner", "left", "right", "full", "left_semi", "left_anti")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", some(sorted(QUERIES), every=3))
def test_the_last_result_is_that_of_the_newest_rows(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    rng = random.Random(name)
    rows: dict[str, list[Row]] = {"users": [], "orders": []}

    def put(number: int) -> None:
        for kind, schema, make in (("users", USERS, _users), ("orders", ORDERS, _orders)):
            made = make(rng)
            rows[kind] += made
            hidden = tmp_path / kind / f".{number}"
            pq.write_table(pa.Table.from_pylist(made, schema=schema), hidden)
            hidden.rename(tmp_path / kind / f"{number}.parquet")

    for kind in rows:
        (tmp_path / kind).mkdir()
    read = spark.readStream.format("parquet")
    users = read.schema(USERS_COLUMNS).option("table", "user")
    orders = spark.readStream.schema(ORDERS_COLUMNS)
    streaming = QUERIES[name](
        users.option("deleteFlag", "gone").load(str(tmp_path / "users")),
        orders.option("table", "Number").parquet(str(tmp_path / "orders")),
    )
    manner = Manner.drawn(rng)
    translated = translate(streaming, output_mode="complete", query="tables")
    program, log = program_of(translated, manner), log_with_statics(translated)
    if translated.statics:  # other rows would go than have come
        tables = StaticTables(spark, log, program, translated.statics, 1 << 20)
        with pytest.raises(InvalidArgument, match=r"with rows that come and go: .* another query"):
            tables.compute(again=True)
    feeds = [lambda: None, *(partial(put, number) for number in range(FILES))]
    outcome = run(program, log, feeds, tmp_path / "checkpoints", manner)
    _check_newest(spark, name, rows, outcome.rows)


def _check_newest(
    spark: SparkSession, name: str, rows: dict[str, list[Row]], found: pa.Table
) -> None:
    newest = {
        "users": _newest(rows["users"], "user", lambda row: row["gone"]),
        "orders": _newest(
            rows["orders"], "number", lambda row: row["buyer"] is row["price"] is None
        ),
    }
    frames = [
        static_frame(spark, pa.Table.from_pylist(newest[kind], schema=schema))
        for kind, schema in (("users", USERS), ("orders", ORDERS))
    ]
    answer = plain(QUERIES[name](*frames).toArrow())
    assert len(answer) > 1
    assert not differences(as_mode(plain(found), "complete", 0, len(answer)), answer)


@pytest.mark.parametrize("name", ["grouped", "a union of tables", "left of tables"])
def test_what_was_computed_is_taken_as_a_table(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Rows that come as JSON in a text, and are tables once they were read out of it."""
    rng = random.Random(f"{name} of texts")
    rows: dict[str, list[Row]] = {"users": [], "orders": []}

    def put(number: int) -> None:
        for kind, make in (("users", _users), ("orders", _orders)):
            made = make(rng)
            rows[kind] += made
            hidden = tmp_path / kind / f".{number}"
            pq.write_table(pa.table({"text": [json.dumps(row) for row in made]}), hidden)
            hidden.rename(tmp_path / kind / f"{number}.parquet")

    frames = {}
    for kind, fields in (("users", USERS_COLUMNS), ("orders", ORDERS_COLUMNS)):
        (tmp_path / kind).mkdir()
        texts = spark.readStream.schema("text string").parquet(str(tmp_path / kind))
        frames[kind] = texts.select(F.from_json("text", fields).alias("row")).select("row.*")
    streaming = QUERIES[name](
        penstock.as_table(frames["users"], "user", "gone"),
        penstock.as_table(frames["orders"], ["Number"]),
    )
    manner = Manner.drawn(rng)
    program = program_of(translate(streaming, output_mode="complete", query="tables"), manner)
    feeds = [lambda: None, *(partial(put, number) for number in range(FILES))]
    outcome = run(program, MemoryLog(), feeds, tmp_path / "checkpoints", manner)
    _check_newest(spark, name, rows, outcome.rows)


def test_what_cannot_be_taken_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.readStream.schema("k bigint, v string, m map<string, int>").parquet(str(tmp_path))
    tables = {
        "as_table, column 'key': the columns are k": penstock.as_table(read, "key"),
        "as_table, column 'v': the flag that deletes is string": penstock.as_table(read, "k", "v"),
        "table by k stands on a table by v": penstock.as_table(penstock.as_table(read, "v"), "k"),
        "a table by m of type map": penstock.as_table(read, "m"),
    }
    for message, frame in tables.items():
        with pytest.raises((UnsupportedPlan, PlanError), match=message):
            translate(frame, query="q", output_mode="update")
    for wrong in ((), "", [1]):
        with pytest.raises(InvalidArgument, match="the name of a column, or several"):
            penstock.as_table(read, wrong)  # type: ignore[arg-type]
    whole = penstock.as_table(read.where("k > 1").selectExpr("k", "upper(v) AS u"), "k")
    (scan,) = scans_of(translate(whole.select("u"), query="q", output_mode="update").relation)
    assert isinstance(scan.relation, SourceRef)
    assert scan.relation.partitions == 1  # which row is newer only one reader knows


def test_what_a_table_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    def read(**options: str) -> DataFrame:
        return (
            spark.readStream.schema("k bigint, v string").options(**options).parquet(str(tmp_path))
        )

    with pytest.raises(UnsupportedPlan, match="stands on a table by k, whose rows come and go"):
        translate(read(table="k"), query="q")
    with pytest.raises(UnsupportedPlan, match="option 'table' names 'key', and the columns are k"):
        translate(read(table="key"), query="q", output_mode="update")
    with pytest.raises(UnsupportedPlan, match="option 'deleteFlag' names a string"):
        translate(read(table="k", deleteFlag="v"), query="q", output_mode="update")
    with pytest.raises(UnsupportedPlan, match="option 'deleteFlag' is for tables"):
        translate(read(deleteFlag="v"), query="q")
    with pytest.raises(UnsupportedPlan, match="distinct k stands on a table by k"):
        translate(read(table="k").dropDuplicates(["k"]), query="q", output_mode="update")
    plain_rows = read().withColumnsRenamed({"k": "j", "v": "w"})
    with pytest.raises(UnsupportedPlan, match="the left join of a table with a stream"):
        translate(read(table="k").join(plain_rows, F.expr("j = k"), "left"), query="q")
    met = plain_rows.join(read(table="k"), F.expr("j = k"), "left")
    assert translate(met, query="q").output_mode == "append"
