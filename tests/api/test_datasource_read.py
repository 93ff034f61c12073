"""Batch reads through Spark against what the log's own reader gives."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from penstock.api.datasource import data_source_for
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


@pytest.mark.slow
@pytest.mark.spark
def test_one_frame_is_filtered_in_several_ways(spark: SparkSession, scenario: Scenario) -> None:
    """Spark keeps one reader for all scans of a frame: filters that it took would be for all."""
    frame = load(spark, scenario)
    spark.conf.set(PUSHDOWN, "true")
    try:
        few, others = frame.where("id < 10"), frame.where("id > 300")
        expected = [each for each in scenario.ids if each < 10 or each > 300]
        assert ids(few.union(others)) == expected
        assert ids(frame) == scenario.ids
    finally:
        spark.conf.unset(PUSHDOWN)


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
