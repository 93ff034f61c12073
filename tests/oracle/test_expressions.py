"""Every expression on the values at which engines differ, streaming here and in Spark's batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import call, column, literal
from tests.catalyst.expression_cases import CASES, ZONED
from tests.oracle.edges import edge_rows
from tests.oracle.engine import Manner
from tests.oracle.grammar import random_expression
from tests.oracle.judge import SHOWN_MAX, Judge
from tests.oracle.matrix import matrix
from tests.oracle.verdict import plain_column
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 60
ROWS_MANY = 3_000
REFUSALS_MAX = 2
RANDOM_EXPRESSIONS = 80
PARTS = 4  # Spark's analysis of one wide selection takes more than that of several


def _judge(
    spark: SparkSession, folder: Path, cases: list[str], seed: int, refusals_max: int | None
) -> None:
    rng = random.Random(seed)
    judge = Judge(spark, edge_rows(seed, ROWS), cases)
    found = judge.compare(folder, Manner.drawn(rng), refusals_max)
    shown = "\n".join(found[:SHOWN_MAX])
    assert not found, f"seed {seed}: {len(found)} differences\n{shown}"


def _random_cases(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_expression(rng) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_function_on_every_type(spark: SparkSession, tmp_path: Path, part: int) -> None:
    _judge(spark, tmp_path, matrix()[part::PARTS], 1, REFUSALS_MAX)


@pytest.mark.slow
def test_every_case_of_the_front_end(spark: SparkSession, tmp_path: Path) -> None:
    _judge(spark, tmp_path, [sql for sql, _ in CASES], 2, REFUSALS_MAX)


@pytest.mark.parametrize("zone", some(["America/New_York", "Asia/Kolkata", "-03:30"], every=3))
def test_times_agree_in_every_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    _judge(spark, tmp_path, list(ZONED), len(zone), REFUSALS_MAX)


# What goes through a wall time that no timestamp can be, to one that can.
_BEYOND = (
    "timestampadd(DAY, -1, ts)", "timestampadd(WEEK, 1, ts)", "timestampadd(MONTH, -1, ts)",
    "timestampadd(QUARTER, 1, ts)", "ts + interval '1 03:00' day to minute", "ts - interval 2 days",
    "ts - interval 25 hours", "ts + interval '1' month", "hour(ts)", "minute(ts)",
    "extract(second from ts)", "day(ts)", "cast(ts as timestamp_ntz)",
    "cast(ntz as timestamp)", "cast(ts as string)", "to_json(struct(ts))",
    "date_format(ts, 'yyyy-MM-dd HH:mm')",
)  # fmt: skip


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_at_the_ends_of_time(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    rows, ends = edge_rows(7, ROWS), np.iinfo(np.int64)
    inwards_us = np.arange(ROWS // 2) * 7_000_000_001  # up to two days and more
    times = np.concatenate([ends.max - inwards_us, ends.min + inwards_us])
    for name in ("ts", "ntz"):
        at, field = rows.schema.get_field_index(name), rows.schema.field(name)
        rows = rows.set_column(at, field, pa.array(times).cast(field.type))
    judge = Judge(spark, rows, list(_BEYOND))
    assert not judge.compare(tmp_path, Manner.drawn(random.Random(zone)), REFUSALS_MAX)


def test_exp_ln_and_pow_to_the_last_bit(spark: SparkSession) -> None:
    """Far more values than the edges: a library of another origin differs in one of a dozen."""
    random_ = np.random.default_rng(5)
    bits = random_.integers(-(2**63), 2**63 - 1, 2 * ROWS_MANY, np.int64).view(np.float64)
    near_one = 1 + random_.normal(0, 1e-7, ROWS_MANY)
    a = np.concatenate([bits[:ROWS_MANY], random_.uniform(-750, 720, ROWS_MANY), near_one])
    small = random_.normal(0, 1, ROWS_MANY) * 10.0 ** random_.integers(-20, 2, ROWS_MANY)
    b = np.concatenate(
        [bits[ROWS_MANY:], random_.uniform(-9, 9, ROWS_MANY), random_.normal(0, 1e9, ROWS_MANY)]
    )
    c = np.concatenate([near_one - 1, small, np.abs(bits[:ROWS_MANY])])
    table = pa.table({"a": a, "b": b, "c": c})
    asked = (
        "exp(a)", "ln(a)", "pow(a, b)", "pow(abs(a), b / 100)", "log1p(a)", "log1p(b)", "log1p(c)",
        "expm1(a)", "expm1(b)", "expm1(c)",
    )  # fmt: skip
    theirs = spark.createDataFrame(table).selectExpr(*asked).toArrow()
    x, y, z = (column(name, "double") for name in "abc")
    hundredth = call("divide", y, literal(100.0, "double"))
    trees = (
        call("exp", x),
        call("ln", x),
        call("pow", x, y),
        call("pow", call("abs", x), hundredth),
        *(call(function, each) for function in ("log1p", "expm1") for each in (x, y, z)),
    )
    (batch,) = table.to_batches()
    for name, tree, found in zip(asked, trees, theirs.columns, strict=True):
        assert plain_column(evaluate(tree, batch)) == plain_column(found), name


@pytest.mark.slow
def test_random_expressions(spark: SparkSession, tmp_path: Path) -> None:
    _judge(spark, tmp_path, _random_cases(3, RANDOM_EXPRESSIONS), 3, REFUSALS_MAX)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_random_expressions(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    _judge(spark, tmp_path, _random_cases(seed, 2 * RANDOM_EXPRESSIONS), seed, 5)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(200, 205))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_function_on_more_values(
    spark: SparkSession, tmp_path: Path, part: int, seed: int
) -> None:
    _judge(spark, tmp_path, matrix()[part::PARTS], seed, None)
