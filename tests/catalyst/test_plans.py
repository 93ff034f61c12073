"""Plans of DataFrames as text: `plans.txt` holds, for each, the whole of what our plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.catalyst.translate import translate
from penstock.errors import InvalidArgument, InvalidName
from penstock.plan.nodes import Relation, Scan, SourceRef, StreamRef, rewrite
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write, going_on
from penstock.stages.program import connector_spec
from tests.catalyst.conftest import BIDS, stream
from tests.catalyst.plan_cases import GOLDEN, plan_cases
from tests.plan.text import print_relation
from tests.thoroughness import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def read_golden(text: str) -> dict[str, str]:
    """Cases as `# name` and then the plan."""
    cases = {}
    for block in text.split("\n# ")[1:]:
        name, _, plan = block.partition("\n")
        cases[name] = plan.strip() + "\n"
    return cases


def test_every_case_has_its_plan() -> None:
    assert sorted(read_golden(GOLDEN.read_text("utf-8"))) == sorted(plan_cases())


@pytest.mark.parametrize("name", some(sorted(plan_cases()), every=2))
def test_the_plan_of_a_data_frame(bids: DataFrame, name: str) -> None:
    case = plan_cases()[name]
    translated = translate(case.define(bids), output_mode=case.mode, query="shown")
    shown = print_relation(translated.relation).replace(f"({BIDS})", "(…)")
    assert shown == read_golden(GOLDEN.read_text("utf-8"))[name]
    # What is translated must also be what the planner takes.
    write = Write(translated.relation, StreamRef("shown"))
    plan_program(Query("shown", (write,), parallelism=2))


@pytest.mark.parametrize("name", some(sorted(plan_cases()), every=6))
def test_a_query_goes_on_from_what_it_stored(bids: DataFrame, name: str) -> None:
    case = plan_cases()[name]
    relation = translate(case.define(bids), output_mode=case.mode, query="shown").relation
    files = SourceRef(connector_spec("folder", path="in", format="parquet"))

    def of_files(node: Relation) -> Relation:
        return replace(node, relation=files) if isinstance(node, Scan) else node

    for rows in (relation, rewrite(relation, of_files)):
        for parallelism in (1, 2):
            query = Query("shown", (Write(rows, StreamRef("shown")),), parallelism=parallelism)
            stored = plan_program(query)
            assert plan_program(going_on(query, stored)) == stored


def test_the_result_has_the_names_that_the_user_sees(bids: DataFrame) -> None:
    frame = bids.selectExpr("auction AS Auction", "price AS `a b`")
    translated = translate(frame, query="named")
    assert [field.name for field in translated.relation.schema] == frame.columns


def test_the_scans_are_listed_in_order(spark: SparkSession) -> None:
    one, other = (stream(spark, "k bigint", name) for name in ("first", "second"))
    translated = translate(one.union(other).union(one), query="listed", substreams=lambda _: 3)
    assert translated.streams == ("first", "second")
    assert [origin.stream for origin in translated.scans] == ["first", "second", "first"]
    assert translated.scans[0].scan.relation == (StreamRef("first", 3),)
    assert translated.scans[0].options == (("stream", "first"),)
    assert translated.scans[0].format == "penstock"


def test_nothing_is_run(spark: SparkSession, bids: DataFrame) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup()
    translate(bids.groupBy("auction").count(), output_mode="update", query="planned")
    assert tracker.getJobIdsForGroup() == before


def test_the_session_that_was_active_stays_active(spark: SparkSession, bids: DataFrame) -> None:
    from pyspark.sql import SparkSession as Sessions  # noqa: PLC0415

    other = spark.newSession()
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.setActiveSession(other._jsparkSession)
    translate(bids, query="planned")
    active = sessions.getActiveSession().get()
    assert active.equals(other._jsparkSession)
    sessions.setActiveSession(spark._jsparkSession)
    assert Sessions.getActiveSession() is not None


def test_the_same_query_gives_the_same_program(spark: SparkSession) -> None:
    """Spark's own numbers (exprIds, names of common expressions) go on counting."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    def program() -> str:
        frame = stream(spark, BIDS).select(
            F.expr("nullif(price + 1, 3)").alias("k"),
            F.expr("nullif(bidder + 1, 3)").alias("__k"),
            F.expr("price in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)").alias("p"),
        )
        counted = frame.groupBy("k", "__k").agg((F.count("p") + F.count("*")).alias("n"))
        relation = translate(counted, output_mode="update", query="same").relation
        write = Write(relation, StreamRef("same"))
        return plan_program(Query("same", (write,), parallelism=2)).to_json()

    assert program() == program()


@pytest.mark.parametrize("mode", ["Append", "", "all", None])
def test_an_unknown_output_mode_is_refused(bids: DataFrame, mode: str) -> None:
    with pytest.raises(InvalidArgument, match="append, update, complete"):
        translate(bids, output_mode=mode, query="moded")


def test_a_name_that_is_too_long_is_refused(bids: DataFrame) -> None:
    with pytest.raises(InvalidName, match="64"):
        translate(bids, query="q" * 65)
