"""The data source "replay": Spark and Penstock read the same rows of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.replay_source import ReplayDataSource
from penstock.connectors.repeating import RepeatingSource, read_sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = 1_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    times = pa.array([7 * n for n in range(90)]).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.table({"n": list(range(90)), "word": [f"w{n % 8}" for n in range(90)], "ts": times})
    pq.write_table(rows, tmp_path / "sample.parquet")
    return str(tmp_path / "sample.parquet")


def test_a_table_has_the_rows_of_the_sample_in_cycles(spark: SparkSession, path: str) -> None:
    spark.dataSource.register(ReplayDataSource)
    reader = spark.read.format("replay").options(path=path, timeColumn="ts", periodSeconds="0.001")
    table = reader.options(rows=str(ROWS), numPartitions="3").load()
    expected = RepeatingSource(read_sample(path, "ts", 1_000), ROWS).read(0, ROWS).batch
    assert table.orderBy("ts").toArrow().to_pylist() == expected.to_pylist()
    assert table.select("word").distinct().count() == 8


@pytest.mark.parametrize("missing", ["path", "timeColumn", "rows"])
def test_what_must_be_said(spark: SparkSession, path: str, missing: str) -> None:
    spark.dataSource.register(ReplayDataSource)
    options = {"path": path, "timeColumn": "ts", "rows": "10"}
    del options[missing]
    with pytest.raises(Exception, match=f"'{missing}' is missing"):
        spark.read.format("replay").options(**options).load().collect()
