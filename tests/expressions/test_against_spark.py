"""Spark as the judge: the same rows and expressions in Spark's batch SQL, compared value by value.

Rows that this engine evaluates go through one query, which must succeed with equal types and
values. Rows that it refuses go through a query each, which must fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate_rows
from tests.expressions.spark_cases import ZONES, Case, Rows, all_rows, time_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 (only where Spark is wanted)

    session = (
        SparkSession.builder.master("local[1]")
        .appName("expressions")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.comments", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


def _plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values that compare exactly: times as integers, floats by their bits."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    return [_bits(value) for value in array.to_pylist()]


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return value


def _differs(ours: Any, theirs: Any, close: bool) -> bool:
    if close and isinstance(ours, str) and isinstance(theirs, str) and "NaN" not in (ours, theirs):
        return not math.isclose(float.fromhex(ours), float.fromhex(theirs), rel_tol=1e-14)
    return bool(ours != theirs)


def _frame(session: Any, batch: pa.RecordBatch) -> Any:
    """The rows as a DataFrame. Times travel as integers, which no time zone can touch."""
    arrays, selected = [], ["row"]
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_time = pa.types.is_timestamp(field.type)
        arrays.append(column.cast(pa.int64()) if is_time else column)
        name = field.name
        as_instant = f"timestamp_micros({name})" if is_time else name
        unzoned = is_time and field.type.tz is None
        selected.append(
            f"CAST({as_instant} AS timestamp_ntz) AS {name}"
            if unzoned
            else f"{as_instant} AS {name}"
        )
    numbers = pa.array(range(batch.num_rows), pa.int32())
    table = pa.table([*arrays, numbers], names=[*batch.schema.names, "row"])
    return session.createDataFrame(table).selectExpr(*selected)


class Judge:
    """Runs the cases of one group of rows through Spark."""

    def __init__(self, session: Any, rows: Rows) -> None:
        self.session = session
        self.batch = rows.batch
        self.frame = _frame(session, rows.batch)
        self.evaluated = [(case, *self.evaluate(case)) for case in rows.cases]
        self.differences: list[str] = []

    def evaluate(self, case: Case) -> tuple[pa.Array, np.ndarray]:
        (array,), bad, _ = evaluate_rows([case.tree], self.batch)
        return array, bad

    def compare(self) -> None:
        self.compare_values(self.evaluated)
        self.expect_failures()

    def compare_values(self, evaluated: list[tuple[Case, pa.Array, np.ndarray]]) -> None:
        """All cases in one query, each computed only on the rows that we evaluate."""
        selected = [
            f"CASE WHEN {_row_is_in(~bad)} THEN ({case.sql}) END AS c{index}"
            for index, (case, _, bad) in enumerate(evaluated)
        ]
        try:
            theirs = self.frame.orderBy("row").selectExpr(*selected).toArrow()
        except Exception as error:
            self.find_refused(evaluated, error)
            return
        for (case, ours, bad), column in zip(evaluated, theirs.columns, strict=True):
            self.compare_column(case, ours, bad, column)

    def find_refused(
        self, evaluated: list[tuple[Case, pa.Array, np.ndarray]], error: Exception
    ) -> None:
        """Spark refused some row that we evaluate: halve the cases until one is left."""
        if len(evaluated) > 1:
            middle = len(evaluated) // 2
            self.compare_values(evaluated[:middle])
            self.compare_values(evaluated[middle:])
            return
        case, ours, _ = evaluated[0]
        refusals = _Refusals(self.session, self.frame, case.sql)
        rows = [row for row in range(self.batch.num_rows) if refusals.message(row) is not None]
        shown = [f"{self.given(row)} → {_plain(ours.slice(row, 1))[0]}" for row in rows[:4]]
        self.differences.append(
            f"{case.sql}: Spark refuses {len(rows)} rows {shown}: {str(error)[:400]}"
        )

    def given(self, row: int) -> Any:
        return [_plain(column.slice(row, 1))[0] for column in self.batch.columns]

    def compare_column(
        self, case: Case, ours: pa.Array, bad: np.ndarray, theirs: pa.ChunkedArray
    ) -> None:
        if not _same_type(ours.type, theirs.type):
            self.differences.append(f"{case.sql}: type {ours.type}, in Spark {theirs.type}")
            return
        pairs = zip(_plain(ours), _plain(theirs), strict=True)
        for row, (mine, other) in enumerate(pairs):
            if not bad[row] and _differs(mine, other, case.close):
                self.differences.append(
                    f"{case.sql} on {self.given(row)}: {mine!r}, in Spark {other!r}"
                )

    def expect_failures(self) -> None:
        for case, _, bad in self.evaluated:
            if bad.any():
                refusals = _Refusals(self.session, self.frame, case.sql)
                for row in np.flatnonzero(bad):
                    if refusals.message(int(row)) is None:
                        self.differences.append(
                            f"{case.sql} on {self.given(row)}: refused, not in Spark"
                        )


def _row_is_in(rows: np.ndarray) -> str:
    if rows.all():
        return "true"
    return f"row IN ({', '.join(map(str, np.flatnonzero(rows)))})" if rows.any() else "false"


class _Refusals:
    """Asks Spark's own expression, bound to the rows, for its value on one row at a time."""

    def __init__(self, session: Any, frame: Any, sql: str) -> None:
        catalyst = session._jvm.org.apache.spark.sql.catalyst
        replace = getattr(getattr(catalyst.optimizer, "ReplaceExpressions$"), "MODULE$")
        plan = replace.apply(frame.selectExpr(sql)._jdf.queryExecution().analyzed())
        attributes = getattr(catalyst.expressions, "package$AttributeSeq")(plan.child().output())
        self.bound = catalyst.expressions.BindReferences.bindReference(
            plan.projectList().head(), attributes, False
        )
        self.rows = frame._jdf.queryExecution().executedPlan().executeCollect()
        self.frame, self.sql = frame, sql

    def message(self, row: int) -> str | None:
        """Why Spark refuses the row, None if it does not."""
        try:
            self.bound.eval(self.rows[row])
        except Exception as error:
            if "INTERNAL_ERROR" not in str(error):
                return str(error)
        else:
            return None
        try:  # an expression that only a whole query can evaluate
            self.frame.where(f"row = {row}").selectExpr(self.sql).toArrow()
        except Exception as error:
            return str(error)
        return None


def _same_type(ours: pa.DataType, theirs: pa.DataType) -> bool:
    if pa.types.is_timestamp(ours) and pa.types.is_timestamp(theirs):
        return (ours.tz is None) == (theirs.tz is None)
    if pa.types.is_struct(ours) or pa.types.is_list(ours):
        return type(ours) is type(theirs)
    return bool(ours.equals(theirs))


def _judge(session: Any, zone: str, rows: Rows) -> None:
    session.conf.set("spark.sql.session.timeZone", "UTC")
    judge = Judge(session, rows)  # builds its rows in UTC
    session.conf.set("spark.sql.session.timeZone", zone)
    judge.compare()
    shown = "\n".join(judge.differences[:40])
    assert not judge.differences, f"{rows.name}: {len(judge.differences)} differences\n{shown}"


@pytest.mark.parametrize("rows", all_rows(), ids=lambda rows: rows.name)
def test_spark_gives_the_same_values_and_refuses_the_same_rows(spark: Any, rows: Rows) -> None:
    _judge(spark, "UTC", rows)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("index", range(4))
def test_spark_agrees_in_every_time_zone(spark: Any, zone: str, index: int) -> None:
    _judge(spark, zone, time_rows(zone)[index])
