"""Edge values in all their combinations, every row of which Spark is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate_rows
from tests.expressions.spark_cases import ZONES, Rows, all_rows, time_rows
from tests.oracle.engine import Manner
from tests.oracle.judge import SHOWN_MAX, Judge
from tests.oracle.verdict import plain_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.timeout(900)]


# As users have it, because which arguments are not evaluated differs where Spark interprets. But
# what stands in two columns is not computed beforehand, on rows that neither would compute it for.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.subexpressionElimination.enabled": "false",
}


@pytest.fixture(autouse=True)
def compiled_by_spark(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


def _judge(spark: SparkSession, folder: Path, rows: Rows) -> None:
    numbers = pa.array(range(rows.batch.num_rows), pa.int32())
    batch = pa.RecordBatch.from_arrays(
        [numbers, *rows.batch.columns], names=["row", *rows.batch.schema.names]
    )
    judge = Judge(spark, batch, [case.sql for case in rows.cases])
    found = judge.compare(folder, Manner(), None) + _other_meanings(judge, rows)
    shown = "\n".join(found[:SHOWN_MAX])
    assert not found, f"{rows.name}: {len(found)} differences\n{shown}"


def _other_meanings(judge: Judge, rows: Rows) -> list[str]:
    """Cases whose tree, which plain Python judges elsewhere, is not what the SQL means."""
    found = []
    for case, tree in zip(rows.cases, judge.trees(), strict=True):
        (ours,), bad, _ = evaluate_rows([case.tree], judge.batch)
        (read,), bad_read, _ = evaluate_rows([tree], judge.batch)
        same = (bad == bad_read).all() and plain_column(ours) == plain_column(read)
        if not same:
            found.append(f"{case.sql}: {case.tree} is another thing than {tree}")
    return found


@pytest.mark.parametrize("rows", all_rows(), ids=lambda rows: rows.name)
def test_every_combination(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    _judge(spark, tmp_path, rows)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("index", range(4))
def test_every_time_in_every_zone(
    spark: SparkSession, tmp_path: Path, zone: str, index: int
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    _judge(spark, tmp_path, time_rows(zone)[index])
