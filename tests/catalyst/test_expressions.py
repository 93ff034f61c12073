"""Catalyst's expressions in ours: the text of each, and the table that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalyst.translate import translate
from penstock.expressions.tree import Call, walk
from penstock.operators.specs import FilterSpec, ProjectSpec
from penstock.plan.nodes import spec_of
from tests.catalyst.conftest import stream
from tests.catalyst.expression_cases import CASES, COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _translated_columns(spark: SparkSession, *selected: str) -> list[tuple[str, Any]]:
    translated = translate(stream(spark, COLUMNS).selectExpr(*selected), query="shown")
    spec = spec_of(translated.relation)
    assert isinstance(spec, ProjectSpec)
    return list(spec.columns)


def test_every_expression_has_the_expected_text(spark: SparkSession) -> None:
    selected = [f"{sql} AS c{index}" for index, (sql, _) in enumerate(CASES)]
    shown = [str(expression) for _, expression in _translated_columns(spark, *selected)]
    assert shown == [text for _, text in CASES]


def test_time_zones_come_from_the_session_in_which_the_expression_was_written(
    spark: SparkSession,
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    expressions = _translated_columns(spark, "hour(ts) AS h", "cast(ts AS string) AS s")
    zones = {
        call.option("time_zone")
        for _, expression in expressions
        for call in walk(expression)
        if isinstance(call, Call)
    }
    assert zones == {"America/New_York"}


def test_an_inequality_is_one_function(spark: SparkSession) -> None:
    ((_, expression),) = _translated_columns(spark, "a != b AS c")
    assert isinstance(expression, Call)
    assert expression.function == "ne"


def test_a_condition_keeps_the_order_in_which_its_parts_are_tested(spark: SparkSession) -> None:
    """Spark tests from left to right, so that the left part may guard the right one."""
    frame = stream(spark, COLUMNS).where("b != 0 and a div b > 1")
    spec = spec_of(translate(frame, query="guarded").relation)
    assert isinstance(spec, FilterSpec)
    text = str(spec.condition)
    assert text.index("(NOT (b = 0L))") < text.index("(a div b)")
