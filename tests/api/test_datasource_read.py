"""Batch reads through Spark against what the log's own reader gives."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from penstock.api.datasource import PenstockDataSource, data_source_for
from penstock.api.datasource_read import StreamBatchReader
from penstock.log.local import open_log
from penstock.runtime.streams import StreamReader
from tests.api.datasource_logs import STREAM, Scenario

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, scenario: Scenario, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("path", scenario.path).option("stream", STREAM)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Rows by id, with floats as text: NaN is then equal to itself."""
    found: list[dict[str, Any]] = table.sort_by("id").to_pylist()
    return [
        {k: repr(v) if isinstance(v, float) else _zoneless(v) for k, v in row.items()}
        for row in found
    ]


def _zoneless(value: Any) -> Any:
    return value.astimezone(datetime.UTC) if getattr(value, "tzinfo", None) else value


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_every_committed_row_and_nothing_else(
    spark: SparkSession, scenario: Scenario, partitions: int | None
) -> None:
    frame = load(spark, scenario, **({} if partitions is None else {"numPartitions": partitions}))
    with open_log(scenario.path, read_only=True) as log:
        expected = StreamReader(log, STREAM).read_all()
    assert in_order(frame.toArrow()) == in_order(expected)
    assert expected.num_rows == len(scenario.ids)
    assert frame.rdd.getNumPartitions() == (partitions or 1)


@pytest.mark.spark
def test_as_of_a_position_a_moment_and_after(spark: SparkSession, scenario: Scenario) -> None:
    middle = len(scenario.markers) // 2
    position, seen = scenario.markers[middle], scenario.seen[middle]
    assert ids(load(spark, scenario, asOf=position)) == seen
    assert ids(load(spark, scenario, asOf=position - 1)) == scenario.seen[middle - 1]
    moment = datetime.datetime.fromtimestamp(scenario.times_us[middle] / 1e6, datetime.UTC)
    assert ids(load(spark, scenario, asof=moment.isoformat())) == seen
    local = moment.astimezone(datetime.timezone(datetime.timedelta(hours=9)))
    spark_text = local.strftime("%Y-%m-%d %H:%M:%S.%f")
    assert ids(load(spark, scenario, asOf=spark_text, timeZone="Asia/Tokyo")) == seen
    rest = sorted(set(scenario.ids) - set(seen))
    assert ids(load(spark, scenario, after=position, numPartitions=3)) == rest
    assert ids(load(spark, scenario, asOf=0)) == []


@pytest.mark.slow
@pytest.mark.spark
def test_metadata_says_which_marker_committed_a_row(
    spark: SparkSession, scenario: Scenario
) -> None:
    middle = len(scenario.markers) // 2
    rows = (
        load(spark, scenario, includeMetadata="true").select("id", "_position", "_time").collect()
    )
    assert (
        sorted(r.id for r in rows if r._position <= scenario.markers[middle])
        == (scenario.seen[middle])
    )
    times = dict(zip(scenario.markers, scenario.times_us, strict=True))
    for row in rows:
        moment = row._time.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)
        assert moment // datetime.timedelta(microseconds=1) == times[row._position]


# Each filter as Spark hands it over, and as a user writes it.
_MOMENT = datetime.datetime(2024, 1, 1, 12, 3, tzinfo=datetime.UTC)
_FILTERS: list[tuple[str, Filter]] = [
    ("id = 42", EqualTo(("id",), 42)),
    ("id <> 42", Not(EqualTo(("id",), 42))),
    ("id > 300", GreaterThan(("id",), 300)),
    ("small >= 2S", GreaterThanOrEqual(("small",), 2)),
    ("NOT small >= 2S", Not(GreaterThanOrEqual(("small",), 2))),
    ("small < 0S", LessThan(("small",), 0)),
    ("price <= 1.25BD", LessThanOrEqual(("price",), Decimal("1.25"))),
    ("price = 0.00BD", EqualTo(("price",), Decimal("0.00"))),
    ("ratio = 0.0D", EqualTo(("ratio",), 0.0)),
    ("ratio = double('NaN')", EqualTo(("ratio",), float("nan"))),
    ("ratio > 1.5D", GreaterThan(("ratio",), 1.5)),
    ("NOT ratio > 1.5D", Not(GreaterThan(("ratio",), 1.5))),
    ("ratio < double('NaN')", LessThan(("ratio",), float("nan"))),
    ("single >= float(1.5)", GreaterThanOrEqual(("single",), 1.5)),
    ("ratio in (1.5D, -2.25D)", In(("ratio",), (1.5, -2.25))),
    ("name = 'bob'", EqualTo(("name",), "bob")),
    ("name <=> 'bob'", EqualNullSafe(("name",), "bob")),
    ("NOT name <=> 'bob'", Not(EqualNullSafe(("name",), "bob"))),
    ("name <=> NULL", EqualNullSafe(("name",), None)),
    ("name > 'ab'", GreaterThan(("name",), "ab")),
    ("name in ('ada', '')", In(("name",), ["ada", ""])),
    ("name in ('ada', NULL)", In(("name",), ["ada", None])),
    ("NOT name in ('ada', 'bob')", Not(In(("name",), ["ada", "bob"]))),
    ("NOT name in ('ada', NULL)", Not(In(("name",), ["ada", None]))),
    ("startswith(name, 'a')", StringStartsWith(("name",), "a")),
    ("endswith(name, '%')", StringEndsWith(("name",), "%")),
    ("contains(name, 'o')", StringContains(("name",), "o")),
    ("NOT contains(name, 'o')", Not(StringContains(("name",), "o"))),
    ("name is null", IsNull(("name",))),
    ("name is not null", IsNotNull(("name",))),
    ("tags is null", IsNull(("tags",))),
    ("place is not null", IsNotNull(("place",))),
    ("flag", EqualTo(("flag",), True)),
    ("NOT flag", Not(EqualTo(("flag",), True))),
    ("day = date'2024-01-05'", EqualTo(("day",), datetime.date(2024, 1, 5))),
    ("at > timestamp'2024-01-01 12:03:00Z'", GreaterThan(("at",), _MOMENT)),
    (
        "local <= timestamp_ntz'2024-01-01 12:03:00'",
        LessThanOrEqual(("local",), _MOMENT.replace(tzinfo=None)),
    ),
    ("raw = X'03'", EqualTo(("raw",), b"\x03")),
    ("raw > X'03'", GreaterThan(("raw",), bytearray(b"\x03"))),
]
_LEFT_TO_SPARK: list[Filter] = [
    EqualTo(("place", "x"), 3),
    EqualTo(("tags",), ["t"]),
    EqualTo(("id",), "42"),
    EqualTo(("small",), 70_000),
    EqualTo(("flag",), 1),
    GreaterThan(("absent",), 1),
]


def reader_of(scenario: Scenario) -> StreamBatchReader:
    source = PenstockDataSource(CaseInsensitiveDict({"path": scenario.path, "stream": STREAM}))
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, StreamBatchReader)
    return reader


def read_ids(reader: StreamBatchReader) -> list[int]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(number for batch in batches for number in batch.column("id").to_pylist())


@pytest.mark.slow
@pytest.mark.spark
def test_each_filter_keeps_the_rows_that_spark_keeps(
    spark: SparkSession, scenario: Scenario
) -> None:
    """Spark evaluates all of them in one query; here each is evaluated alone."""
    frame = load(spark, scenario)
    texts = [f"({text}) AS f{index}" for index, (text, _) in enumerate(_FILTERS)]
    answers = frame.selectExpr("id", *texts).toArrow()
    seen = answers.column("id")
    for index, (text, each) in enumerate(_FILTERS):
        reader = reader_of(scenario)
        assert reader.take_filters([each]) == [], text
        expected = sorted(seen.filter(answers.column(f"f{index}").fill_null(False)).to_pylist())
        assert read_ids(reader) == expected, text
    kept = [len(read_ids(reader_of(scenario)))]
    assert kept == [len(scenario.ids)]


def test_filters_that_are_not_ours_are_left_to_spark(scenario: Scenario) -> None:
    reader = reader_of(scenario)
    assert reader.take_filters([*_LEFT_TO_SPARK, EqualTo(("id",), 1)]) == _LEFT_TO_SPARK
    assert read_ids(reader) == [1]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_pushes_filters_down_where_it_may(spark: SparkSession, scenario: Scenario) -> None:
    """The same query with pushdown off, as it is by default, and on."""

    def ask() -> tuple[list[int], str]:
        frame = load(spark, scenario).where(
            "small > 0 AND price < 2.5 AND name IN ('ada', 'bob', 'Zoë') AND at IS NOT NULL "
            "AND place.x > 3 AND day <> date'2024-01-02'"
        )
        plan = frame._jdf.queryExecution().executedPlan().toString()
        return ids(frame), plan

    plain, plan = ask()
    assert "small" in plan.split("Filter")[1]
    spark.conf.set(PUSHDOWN, "true")
    try:
        pushed, plan = ask()
    finally:
        spark.conf.unset(PUSHDOWN)
    assert plain
    assert pushed == plain
    assert "small#" not in plan.split("Filter", 1)[1].split("BatchScan")[0]


@pytest.mark.spark
def test_some_columns_by_a_schema_of_the_user(spark: SparkSession, scenario: Scenario) -> None:
    reader = spark.read.format("penstock").schema("day date, id bigint NOT NULL")
    frame = reader.option("stream", STREAM).load(scenario.path)
    assert frame.columns == ["day", "id"]
    assert ids(frame) == scenario.ids


@pytest.mark.spark
def test_an_attached_session_needs_no_path(spark: SparkSession, scenario: Scenario) -> None:
    class Attached(data_source_for(scenario.path)):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "penstock_attached"

    spark.dataSource.register(Attached)
    frame = spark.read.format("penstock_attached").option("stream", STREAM).load()
    assert ids(frame) == scenario.ids


@pytest.mark.spark
def test_errors_reach_the_user(spark: SparkSession, scenario: Scenario, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="there is no stream 'evnts' in this log; known"):
        spark.read.format("penstock").option("stream", "evnts").load(scenario.path)
    with pytest.raises(AnalysisException, match="there is no log at"):
        spark.read.format("penstock").option("stream", STREAM).load(str(tmp_path / "none"))
    with pytest.raises(AnalysisException, match="option 'asOf' is 'soon'"):
        load(spark, scenario, asOf="soon").collect()
