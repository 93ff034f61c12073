"""What only Spark can compute: which expressions are, how they are planned, and what comes out."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.catalyst.by_spark import SparkColumns, SparkExpressions, not_by_spark
from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.plans import PlanReader
from penstock.catalyst.rows import named
from penstock.catalyst.session import plans_of
from penstock.catalyst.translate import Translated, translate
from penstock.errors import UnsupportedPlan
from penstock.expressions.types import arrow_schema
from penstock.operators.specs import FilterSpec, SparkColumn, SparkSpec
from penstock.plan.nodes import StreamRef, spec_of, walk
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write
from tests.catalyst.conftest import BIDS, stream
from tests.catalyst.expression_cases import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS_SCHEMA = (
    "a bigint, x double, u string, b binary, ts timestamp, day date, d decimal(20,4), "
    "xs array<int>, st struct<k: int, v: string>, m map<string, bigint>"
)
UTC = datetime.UTC
ROWS: list[tuple[Any, ...]] = [
    (1, 0.5, '{"k": 7, "n": "ä"}', b"\x00\xff", datetime.datetime(2024, 3, 10, 6, 30, tzinfo=UTC),
     datetime.date(2024, 2, 29), Decimal("12.3400"), [3, None, 1], (1, "one"), {"p": 1, "q": None}),
    (0, float("nan"), "", b"", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
     datetime.date(1582, 10, 4), Decimal("-0.0001"), [], (None, None), {}),
    (-5, -0.0, "no json", b"abc", datetime.datetime(2024, 11, 3, 5, 30, tzinfo=UTC),
     datetime.date(9999, 12, 31), Decimal("9999999999999999.9999"), [2, 2], (3, ""), {"": 0}),
    (None,) * 10,
]  # fmt: skip
# Of all types that rows have; some of these may be known here one day.
EXPRESSIONS = (
    "get_json_object(u, '$.k')",
    "from_json(u, 'k int, n string')",
    "to_json(st)",
    "soundex(u)",
    "date_format(ts, 'EEEE dd MMMM yyyy HH:mm VV')",
    "months_between(ts, timestamp'2020-01-31 00:00:00')",
    "make_dt_interval(0, 1) + ts",
    "format_number(d, 2)",
    "format_string('%,5d|%s', a, u)",
    "levenshtein(u, 'json')",
    "try_divide(a, 0)",
    "try_to_number(u, '999')",
    "transform(xs, (e, i) -> e * 10 + i)",
    "aggregate(xs, 0, (acc, e) -> acc + coalesce(e, 100))",
    "sort_array(xs, false)",
    "map_entries(m)",
    "map_filter(m, (k, v) -> v is null)",
    "map_concat(m, map('z', a))",
    "try_element_at(xs, -1)",
    "if(a = 1, sequence(day, day + interval 2 months, interval 1 month), array(day))",
    "xxhash64(a, u, x)",
    "hex(b)",
    "crc32(b)",
    "unbase64(base64(b))",
    "try_parse_url(u, 'HOST')",
    "width_bucket(x, 0, 10, 5)",
    "try_multiply(d, d)",
    "case when a = 0 then null when soundex(u) = '' then 1 / a else 2.0 end",
    "if(a <> 0, cast(soundex(string(1 div a)) as string), 'none')",
    "named_struct('x', x, 'when', make_date(2000 + cast(a as int), 1, 1))",
    "array(timestamp_ntz'2024-01-01 00:00:00', cast(ts as timestamp_ntz))",
    "map('only', u)",
)


def spark_columns(translated: Translated) -> list[SparkColumn]:
    specs = map(spec_of, walk(translated.relation))
    return [each for spec in specs if isinstance(spec, SparkSpec) for each in spec.columns]


def forced(frame: DataFrame) -> tuple[SparkExpressions, list[SparkColumn]]:
    """The columns of a projection by Spark, whether or not they are known here."""
    plans = plans_of(frame)
    reader = PlanReader(plans.session, "append", lambda _: 1)
    rows = reader.read(plans.optimized.children[0])
    made = SparkColumns({})
    refusing = (UnsupportedPlan("not by Spark"), lambda _, reason: UnsupportedPlan(reason))
    for item in plans.optimized.nodes("projectList"):
        made.column(named(item)[1], rows.columns, None, *refusing)
    return made.known, made.columns


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, ROWS_SCHEMA)


def batch_of(rows: DataFrame) -> pa.RecordBatch:
    table = rows.toArrow()
    assert isinstance(table, pa.Table)
    (batch,) = table.combine_chunks().to_batches()
    return batch


@pytest.fixture
def planned(spark: SparkSession) -> Iterator[Any]:
    """A function from SQL to what computes it, and its column."""
    made: list[DriverSpark] = []

    def plan(sql: str) -> tuple[DriverSpark, list[SparkColumn]]:
        known, columns = forced(stream(spark, ROWS_SCHEMA).selectExpr(f"{sql} AS r"))
        made.append(DriverSpark(spark, known))
        return made[-1], columns

    yield plan
    for each in made:
        each.close()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_columns_are_those_of_a_batch_query(
    spark: SparkSession, rows: DataFrame, zone: str
) -> None:
    """All at once, as one step: every value and null, in the session's zone at planning."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    named = [f"{sql} AS c{at}" for at, sql in enumerate(EXPRESSIONS)]
    known, columns = forced(stream(spark, ROWS_SCHEMA).selectExpr(*named))
    wanted = rows.selectExpr(*named).toArrow()
    evaluator = DriverSpark(spark, known)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # too late to change anything
    found, bad = evaluator.compute(columns, batch_of(rows))
    failed = [
        evaluator.failure(columns, batch_of(rows).slice(int(at), 1)) for at in bad.nonzero()[0]
    ]
    evaluator.close()
    assert not failed
    schema = arrow_schema(tuple(each.result for each in columns))
    made = pa.RecordBatch.from_arrays(found, schema=schema)
    for sql, mine, theirs in zip(EXPRESSIONS, made.columns, wanted.columns, strict=True):
        assert repr(mine.to_pylist()) == repr(theirs.to_pylist()), sql
    assert [each.result.nullable for each in columns] == [f.nullable for f in wanted.schema]


def places() -> dict[str, tuple[str, Callable[[DataFrame], DataFrame]]]:
    """Where an expression may stand: the mode, and a query in which Spark computes one there."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    def timed(df: DataFrame) -> DataFrame:
        return df.withWatermark("ts", "1 minute")

    def static(df: DataFrame) -> DataFrame:
        return df.sparkSession.range(5).withColumnRenamed("id", "k")

    text = F.expr("soundex(url)")
    size = F.length(text)
    window = F.window("ts", "1 minute")
    gap = F.expr("if(soundex(url) = 'A100', '5 seconds', '1 minute')")
    return {
        "argument": ("update", lambda df: df.groupBy("auction").agg(F.sum(size))),
        "key": ("update", lambda df: df.groupBy(text).count()),
        "filter of an aggregate": (
            "update",
            lambda df: df.groupBy("auction").agg(
                F.expr("count(*) FILTER (WHERE soundex(url) > 'B')")
            ),
        ),
        "distinct": ("update", lambda df: df.groupBy("auction").agg(F.countDistinct(text))),
        "collected": ("update", lambda df: df.groupBy("auction").agg(F.collect_list(text))),
        "of groups": ("update", lambda df: df.groupBy("auction").agg(F.soundex(F.max("url")))),
        "rollup": ("update", lambda df: df.rollup(text.alias("t"), "auction").count()),
        "lambda": ("append", lambda df: df.select(F.transform("tags", F.soundex))),
        "generator": ("append", lambda df: df.select(F.explode(F.sequence(F.lit(1), size)))),
        "stack": ("append", lambda df: df.selectExpr("stack(2, soundex(url), url)")),
        "json_tuple": ("append", lambda df: df.selectExpr("json_tuple(soundex(url), 'a')")),
        "window": ("append", lambda df: timed(df).groupBy(window, text).count()),
        "gap": ("append", lambda df: timed(df).groupBy(F.session_window("ts", gap)).count()),
        "over": (
            "append",
            lambda df: timed(df).select(
                F.sum(size).over(Window.partitionBy(window, text).orderBy(size.desc()))
            ),
        ),
        "distinct rows": ("append", lambda df: df.select(text.alias("t")).dropDuplicates(["t"])),
        "static key": (
            "append",
            lambda df: df.join(static(df), F.expr("k = length(soundex(url))")),
        ),
        "static pairs": (
            "append",
            lambda df: df.join(static(df), F.expr("soundex(url || k) > 'B'")),
        ),
        "static left": (
            "append",
            lambda df: df.join(static(df), F.expr("auction = k and soundex(url) = 'A100'"), "left"),
        ),
    }


def test_it_may_stand_anywhere(bids: DataFrame) -> None:
    for place, (mode, define) in places().items():
        translated = translate(define(bids), output_mode=mode, query="q")
        assert spark_columns(translated), place
        plan_program(Query("q", (Write(translated.relation, StreamRef("out")),), 2))


def test_many_rows_and_none(planned: Any, rows: DataFrame) -> None:
    """More rows than one batch of the JVM holds keep their order."""
    evaluator, columns = planned("format_string('%1$s', a)")
    many = pa.record_batch({"a": pa.array(range(150_000))})
    (found,), bad = evaluator.compute(columns, many)
    assert not bad.any()
    assert found.to_pylist() == [str(number) for number in range(150_000)]
    (empty,), bad = evaluator.compute(columns, many.slice(0, 0))
    assert (len(empty), empty.type, len(bad)) == (0, pa.string(), 0)


def test_a_row_that_fails_is_named_and_the_others_are_computed(
    planned: Any, rows: DataFrame
) -> None:
    evaluator, columns = planned("format_number(10 div a, 1)")
    batch = batch_of(rows)
    (found,), bad = evaluator.compute(columns, batch)
    assert bad.tolist() == [False, True, False, False]  # a null is none that fails
    assert found.to_pylist() == ["10.0", None, "-2.0", None]
    reason, expression = evaluator.failure(columns, batch.slice(1, 1))
    assert reason.startswith("[DIVIDE_BY_ZERO]")
    assert "format_number" in expression
    (again,), bad = evaluator.compute(columns, batch.slice(2))
    assert (again.to_pylist(), bad.any()) == (["-2.0", None], False)


def test_what_is_unknown_goes_to_spark_as_a_whole(bids: DataFrame) -> None:
    """So what is computed only on a condition stays behind it."""
    frame = bids.selectExpr(
        "if(price > 0, xpath_string(string(1 div price), 'a'), 'none') AS s", "auction"
    )
    (column,) = spark_columns(translate(frame, query="whole"))
    assert column.input_names == ("price",)
    assert column.text.startswith("(IF(")


def test_conditions_keep_their_order(bids: DataFrame) -> None:
    """Rows that one keeps away do not reach the next."""
    frame = bids.where("price <> 0").where("xpath_string(url, 'a') = 'A' and bidder > 1 div price")
    relation = translate(frame, query="ordered").relation
    steps = [spec for spec in map(spec_of, walk(relation)) if spec is not None]
    kinds = [type(spec) for spec in reversed(steps)]
    assert kinds[:3] == [FilterSpec, SparkSpec, FilterSpec]
    assert "price" in str(steps[-1])


def test_the_digest_is_that_of_what_is_computed(spark: SparkSession) -> None:
    """Planned again it is the same; under another constant, option, zone or column it is not."""

    def digest(sql: str) -> str:
        frame = stream(spark, BIDS).selectExpr(f"{sql} AS r")
        _, (column,) = forced(frame)
        return column.digest

    variants = [
        "date_format(ts, 'EEEE')",
        "date_format(ts, 'EEE')",
        "date_format(ts + interval 1 hour, 'EEEE')",
        "soundex(concat(url, '#1'))",
        "soundex(concat(url, '#2'))",
        "levenshtein(url, tags[0])",
        "levenshtein(tags[0], url)",
        "transform(tags, x -> concat(x, '_1'))",
        "transform(tags, x -> concat(x, '_2'))",
        "from_json(url, 'k int', map('allowComments', 'true'))",
        "from_json(url, 'k int', map('mode', 'FAILFAST'))",
        "try_add(price, bidder)",
        "try_add(bidder, price)",
        "map('k', price)",
        "map('k', bidder)",
    ]
    digests = [digest(sql) for sql in variants]
    assert len(set(digests)) == len(variants)
    assert [digest(sql) for sql in variants] == digests
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert digest(variants[0]) != digests[0]


def test_keys_arguments_and_results_of_an_aggregate(bids: DataFrame) -> None:
    """Rows are grouped by what Spark computes, and groups go to Spark."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    grouped = bids.groupBy(F.xpath_string("url", F.lit("a")).alias("k")).agg(
        F.sum(F.xpath_long("url", F.lit("b"))).alias("s"),
        F.format_string("%1$d", F.max("price") + F.count("*")).alias("n"),
    )
    translated = translate(grouped, output_mode="update", query="grouped")
    texts = [column.text for column in spark_columns(translated)]
    assert len(texts) == 3
    assert "format_string('%1$d', (max(price) + count(1)))" in texts
    assert [field.name for field in translated.relation.schema] == ["k", "s", "n"]


def test_which_classes_spark_computes() -> None:
    assert not_by_spark("SoundEx", frozenset({"UnaryExpression", "Expression"})) is None
    assert not_by_spark("AttributeReference", frozenset({"Unevaluable"})) is None
    for kind, trait in (
        ("Rand", "Nondeterministic"),
        ("First", "AggregateFunction"),
        ("RowNumber", "WindowFunction"),
        ("Stack", "Generator"),
        ("ScalarSubquery", "PlanExpression"),
        ("PythonUDF", "PythonFuncExpression"),
        ("TimeWindow", "Unevaluable"),
    ):
        assert not_by_spark(kind, frozenset({trait, "Expression"}))


@pytest.mark.parametrize("sql", ["u rlike '(?=x)y'", "u rlike num", "a" + " + a" * 200])
def test_a_known_function_used_in_an_unknown_way_is_sparks_too(
    spark: SparkSession, sql: str
) -> None:
    translated = translate(stream(spark, COLUMNS).selectExpr(f"{sql} AS r", "a"), query="q")
    assert len(spark_columns(translated)) == 1


def test_an_expression_of_another_mode_is_sparks(spark: SparkSession) -> None:
    """The mode belongs to the expression: it was written before the setting was changed."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    added = stream(spark, BIDS).selectExpr("price + 1 AS p", "cast(url AS int) AS q")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    known, columns = forced(added)
    evaluator = DriverSpark(spark, known)
    rows = pa.record_batch({"price": pa.array([(1 << 63) - 1]), "url": pa.array(["x"])})
    (p, q), bad = evaluator.compute(columns, rows)
    evaluator.close()
    assert (p.to_pylist(), q.to_pylist(), bad.any()) == ([-(1 << 63)], [None], False)
