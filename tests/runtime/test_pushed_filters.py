"""Which filters a source hears of, and that its query finds the same rows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.parquet_statistics import AllOf, AnyOf, ColumnTest
from penstock.expressions.tree import Expression, call, column, literal
from penstock.operators.specs import FilterSpec, WatermarkSpec
from penstock.runtime.pushed_filters import pushed_condition
from penstock.testing.columns import col
from penstock.testing.plans import query, scan_source
from tests.runtime.laboratory import Laboratory

N, T = column("n", "int"), column("t", "string")
D = column("d", "decimal(30,2)")
IS_TWO, IS_A = call("eq", N, literal(2, "int")), call("eq", T, literal("a", "string"))
ODD = call("eq", call("add", N, N), literal(2, "int"))
TWO, A = ColumnTest("n", "eq", 2), ColumnTest("t", "eq", b"a")


@pytest.mark.parametrize(
    ("condition", "pushed"),
    [
        (IS_TWO, TWO),
        (call("lt", literal(2, "int"), N), ColumnTest("n", "gt", 2)),
        (call("le", D, literal(Decimal("-12345678901234567890123456.78"), "decimal(30,2)")),
         ColumnTest("d", "le", -1234567890123456789012345678)),
        (call("in", N, literal(2, "int"), literal(3, "int")),
         AnyOf((TWO, ColumnTest("n", "eq", 3)))),
        (call("is_null", T), ColumnTest("t", "is_null")),
        (call("and", IS_TWO, ODD), TWO),
        (call("and", IS_TWO, IS_A), AllOf((TWO, A))),
        (call("or", IS_TWO, IS_A), AnyOf((TWO, A))),
        (call("or", IS_TWO, ODD), None),
        (call("in", N, literal(2, "int"), literal(None, "int")), None),
        (call("ne", N, literal(2, "int")), None),
        (call("not", IS_TWO), None),
        (ODD, None),
        (call("eq", N, N), None),
    ],
)  # fmt: skip
def test_comparisons_with_constants_are_pushed(condition: Expression, pushed: Any) -> None:
    assert pushed_condition([FilterSpec(condition)]) == pushed


def test_a_filter_above_a_watermark_is_not_pushed() -> None:
    """The watermark hears of all rows, as it does in Spark."""
    chain = [FilterSpec(IS_TWO), WatermarkSpec("ts", 0), FilterSpec(IS_A)]
    assert pushed_condition(chain) == TWO
    assert pushed_condition(chain[1:]) is None


def test_a_query_does_not_read_row_groups_that_it_filters_away(
    lab: Laboratory, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        table = pa.table({"n": pa.array(range(number * 100, number * 100 + 100), pa.int64())})
        pq.write_table(table, folder / f".{number}", row_group_size=10)
        (folder / f".{number}").rename(folder / f"{number}")
    rows = scan_source("folder", "n bigint", None, path=str(folder), format="parquet")
    kept = rows.filter((col("n") >= 95) & (col("n") < 112))
    with lab.open(query("some", kept.to_stream("out"), parallelism=2)) as process:
        process.run_available()
        assert sum(v.rows_in for v in process.statistics().vertices.values()) == 30
    assert sorted(row["n"] for row in lab.rows("out")) == list(range(95, 112))
