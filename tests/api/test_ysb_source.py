"""The data source "ysb": Spark reads the rows that Penstock's own source makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.api.numbered_rows import NumberedStreamReader
from penstock.api.ysb_source import YsbDataSource, YsbRows
from penstock.connectors.ysb import ysb_source
from penstock.errors import InvalidOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = 5_000


def test_a_table_has_the_rows_of_the_generator(spark: SparkSession) -> None:
    spark.dataSource.register(YsbDataSource)
    options = {"rows": str(ROWS), "rate": "100000", "numPartitions": "3"}
    table = spark.read.format("ysb").options(**options).load()
    expected = ysb_source(100_000, ROWS).read(0, ROWS).batch
    assert table.orderBy("event_time").toArrow().to_pylist() == expected.to_pylist()


def test_a_stream_has_the_same_rows() -> None:
    schema = YsbDataSource({}).schema()
    reader = NumberedStreamReader(YsbRows(ROWS, 3, schema, 100_000))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert len(parts) == 3
    rows = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
    expected = ysb_source(100_000, ROWS).read(0, ROWS).batch
    assert rows.to_pylist() == expected.to_pylist()


def test_how_many_must_be_said(spark: SparkSession) -> None:
    spark.dataSource.register(YsbDataSource)
    with pytest.raises(Exception, match="'rows' is missing"):
        spark.read.format("ysb").load().collect()


@pytest.mark.parametrize("offset", [{}, {"row": -1}, {"row": "7"}, {"event": 3}])
def test_an_offset_of_another_source_is_refused(offset: dict[str, object]) -> None:
    schema = YsbDataSource({}).schema()
    reader = NumberedStreamReader(YsbRows(10, None, schema, 1))
    with pytest.raises(InvalidOffset):
        reader.partitions(offset, {"row": 10})
