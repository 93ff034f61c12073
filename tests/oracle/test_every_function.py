"""Every scalar function of Spark on the examples of its own documentation, their constants being
columns of a stream: what Spark's batch gives, or a refusal that says what, where and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.jvm import JvmNode, java_classes, scala_sequence
from penstock.catalyst.spark_types import spark_type
from penstock.catalyst.translate import Translated, translate
from penstock.errors import ExpressionError, UnsupportedPlan
from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.types import arrow_schema, schema_from_arrow
from penstock.operators.explode import Explode
from penstock.operators.specs import FilterSpec, GenerateSpec, ProjectSpec, PythonSpec, SparkSpec
from penstock.plan.nodes import Relation, Scan, Step, spec_of, walk
from tests.catalyst.conftest import stream
from tests.oracle.verdict import plain_column, static_frame
from tests.thoroughness import of_campaign

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTS = 8
SHARE = 8  # one in so many functions of a part, where there is no time for all
_EXAMPLE = re.compile(r"> (SELECT [^;]*);")
_WORD = re.compile(r"\w+")


def examples(spark: SparkSession, name: str) -> list[str]:
    """The queries that Spark's documentation of a function shows."""
    described = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
    return _EXAMPLE.findall("\n".join(str(row[0]) for row in described))


@cache
def function_names(spark: SparkSession) -> tuple[str, ...]:
    names = [str(row[0]) for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    return tuple(name for name in names if _WORD.fullmatch(name))


def selected(spark: SparkSession, example: str) -> Iterator[JvmNode]:
    """The columns of an example that reads no rows, before they are analysed."""
    session: Any = spark
    plan = JvmNode(session._jsparkSession.sessionState().sqlParser().parsePlan(example))
    if plan.kind == "Project" and plan.children[0].kind == "OneRowRelation":
        yield from plan.nodes("projectList")


def column_of(node: JvmNode) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn  # noqa: PLC0415

    return ClassicColumn(
        java_classes().org.apache.spark.sql.classic.ExpressionUtils.column(node.handle)
    )


class Given:
    """The constants of an expression as columns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.constants: list[JvmNode] = []

    def replaced(self, node: JvmNode) -> JvmNode:
        """The expression with attributes in the place of its first constants."""
        if node.kind == "Literal" and len(self.constants) < self._most and _is_value(node):
            self.constants.append(node)
            analysis = java_classes().org.apache.spark.sql.catalyst.analysis
            names = scala_sequence([f"g{len(self.constants) - 1}"])
            return JvmNode(analysis.UnresolvedAttribute(names))
        below = [self.replaced(child) for child in node.children]
        if all(new is old for new, old in zip(below, node.children, strict=True)):
            return node
        return JvmNode(node.handle.withNewChildren(scala_sequence(each.handle for each in below)))

    def rows(self, spark: SparkSession) -> pa.RecordBatch:
        """A row of them, behind its number."""
        columns = [column_of(each).alias(f"g{at}") for at, each in enumerate(self.constants)]
        table: Any = spark.range(2).selectExpr("cast(id AS int) AS row").select("row", *columns)
        (batch,) = table.coalesce(1).toArrow().combine_chunks().to_batches()
        return batch


def _is_value(node: JvmNode) -> bool:
    try:
        kind = spark_type(node.read("dataType"))
        # Spark hands months over to no Arrow.
        return node.read("value") is not None and not kind.is_nested and not kind.is_months
    except ExpressionError:
        return False


def evaluated(
    relation: Relation, rows: pa.RecordBatch, by_spark: DriverSpark
) -> tuple[pa.RecordBatch, bool]:
    """The rows of a plan without state, and whether one of them failed."""
    if isinstance(relation, Scan):
        return rows, False
    assert isinstance(relation, Step)
    given, failed = evaluated(relation.child, rows, by_spark)
    spec = relation.spec
    if isinstance(spec, SparkSpec):
        arrays, bad = by_spark.compute(spec.columns, given)
        made = [*given.columns, *arrays]
        return pa.RecordBatch.from_arrays(
            made, schema=arrow_schema(relation.schema)
        ), failed or bad.any()
    if isinstance(spec, GenerateSpec):
        read = {field.name for field in relation.child.schema}
        return Explode(spec, relation.child.schema, read, False).run(given, True).batch, failed
    if isinstance(spec, FilterSpec):
        (kept,), bad, _ = evaluate_rows([spec.condition], given)
        return given.filter(kept), failed or bool(bad.any())
    assert isinstance(spec, ProjectSpec), spec
    arrays, bad, _ = evaluate_rows([each for _, each in spec.columns], given)
    schema = arrow_schema(relation.schema)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), failed or bool(bad.any())


def judged(spark: SparkSession, item: JvmNode) -> tuple[str, str]:
    """How an example is computed, and what is wrong with it; no words: nothing is.

    As many of its constants as Spark lets be columns are.
    """
    for most in (9, 1, 0):
        given = Given(most)
        column = column_of(given.replaced(item))
        try:
            batch = given.rows(spark)
            standing = static_frame(spark, pa.Table.from_batches([batch])).select("row", column)
            standing.schema  # noqa: B018 (Spark analyses it)
        except Exception:
            continue
        fields = ", ".join(f"{f.name} {f.type}" for f in schema_from_arrow(batch.schema))
        streaming = stream(spark, fields).select("row", column)
        return _compared(spark, streaming, standing, batch)
    return "not analysed", ""


def _compared(
    spark: SparkSession, streaming: DataFrame, standing: DataFrame, batch: pa.RecordBatch
) -> tuple[str, str]:
    try:
        translated = translate(streaming, query="judged")
    except UnsupportedPlan as refusal:
        told = refusal.details.get("expression") is not None or "column" in refusal.details
        return "refused", "" if told else f"a refusal without its place: {refusal.message}"
    try:
        wanted: Any = _with_months(standing).toArrow()
    except Exception as error:
        wanted = str(error)
    if any(isinstance(spec_of(node), PythonSpec) for node in walk(translated.relation)):
        return "by chance or the clock", ""  # another value each time: test_chance.py
    found, failed = _run(spark, translated, batch)
    how = "by Spark" if translated.spark else "here"
    if isinstance(wanted, str) or failed:
        agreed = failed == isinstance(wanted, str)
        return how, "" if agreed else f"failed {failed}, in Spark {wanted}"
    for at in range(1, wanted.num_columns):
        mine, theirs = plain_column(found.column(at)), plain_column(wanted.column(at))
        if mine != theirs:
            return how, f"{mine}, in Spark {theirs}"
    return how, ""


def _with_months(rows: DataFrame) -> DataFrame:
    """The rows with numbers of months in the place of intervals, which Spark's Arrow lacks."""
    from pyspark.sql import functions as F  # noqa: PLC0415
    from pyspark.sql.types import YearMonthIntervalType  # noqa: PLC0415

    numbered = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
    years, months = (F.lit(unit) for unit in ("YEAR", "MONTH"))
    return numbered.select(
        *(
            F.extract(years, F.col(field.name)) * 12 + F.extract(months, F.col(field.name))
            if isinstance(field.dataType, YearMonthIntervalType)
            else F.col(field.name)
            for field in numbered.schema.fields
        )
    )


def _run(
    spark: SparkSession, translated: Translated, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, bool]:
    by_spark = DriverSpark(spark, translated.spark)
    try:
        return evaluated(translated.relation, batch, by_spark)
    finally:
        by_spark.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_example_gives_what_spark_gives(spark: SparkSession, part: int) -> None:
    _judge(spark, function_names(spark)[part::PARTS][::SHARE])


@pytest.mark.campaign
@pytest.mark.parametrize("part", of_campaign(range(PARTS)))
def test_every_example_gives_what_spark_gives(spark: SparkSession, part: int) -> None:
    _judge(spark, function_names(spark)[part::PARTS])


def _judge(spark: SparkSession, names: Sequence[str]) -> None:
    wrong: list[str] = []
    hows: dict[str, int] = {}
    for name in names:
        for example in examples(spark, name):
            for item in selected(spark, example):
                how, difference = judged(spark, item)
                hows[how] = hows.get(how, 0) + 1
                if difference:
                    wrong.append(f"{example} ({how}): {difference}")
    assert not wrong, "\n".join(wrong)
    assert hows.get("here", 0) + hows.get("by Spark", 0) > hows.get("refused", 0)
