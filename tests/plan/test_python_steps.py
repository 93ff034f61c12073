"""Python functions in a plan: where they run, how often, and what a changed one means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import UnsupportedPlan
from penstock.expressions.tree import Column, call, literal
from penstock.expressions.types import BIGINT, Field
from penstock.operators.specs import (
    AggregateCall,
    FilterSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonCall,
    PythonColumn,
    PythonRowsSpec,
    PythonSpec,
    SparkColumn,
    SparkSpec,
)
from penstock.plan.explain import explain
from penstock.plan.nodes import Relation, StreamRef, aggregate, scan, step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write
from penstock.stages.compare import compare
from penstock.stages.program import Program, Stage
from penstock.stages.settings import Settings

SCHEMA = (Field("n", BIGINT), Field("k", BIGINT))
N, K, Y = (Column(name, BIGINT, True) for name in "nky")
ROWS = scan((StreamRef("rows"),), SCHEMA)
DRAWN = PythonCall((N,), "drawn(n)", "0123456789abcdef", deterministic=False)
FIXED = replace(DRAWN, text="fixed(n)", deterministic=True)


def column(function: PythonCall = FIXED, name: str = "y") -> PythonSpec:
    return PythonSpec((PythonColumn(Field(name, BIGINT), function),))


def planned(*relations: Relation, parallelism: int = 1) -> Program:
    writes = tuple(Write(each, StreamRef(f"out{at}")) for at, each in enumerate(relations))
    return plan_program(Query("q", writes, parallelism, Settings()))


def callers(program: Program) -> list[Stage]:
    kinds = (PythonSpec, PythonRowsSpec)
    return [s for s in program.stages if any(isinstance(spec, kinds) for spec in s.specs)]


@pytest.mark.parametrize("function", [DRAWN, FIXED])
def test_results_that_share_a_function_share_its_values(function: PythonCall) -> None:
    drawn = step(column(function), ROWS)
    low = step(FilterSpec(call("lt", Y, literal(5, BIGINT))), drawn)
    program = planned(low, drawn)
    assert len(callers(program)) == 1


def test_functions_run_where_their_code_is_sent() -> None:
    """Not in the driver, which hosts what Spark computes before or behind them."""
    by_spark = SparkSpec((SparkColumn(Field("z", BIGINT), (N,), "z(n)", "z"),))
    behind = SparkSpec((SparkColumn(Field("w", BIGINT), (Y,), "w(y)", "w"),))
    program = planned(step(behind, step(column(), step(by_spark, ROWS))))
    (stage,) = callers(program)
    assert not stage.is_on_driver
    assert sum(each.is_on_driver for each in program.stages) == 2


def test_what_nobody_reads_is_not_computed() -> None:
    program = planned(step(ProjectSpec((("k", K),)), step(column(), ROWS)))
    assert callers(program) == []


def _changing(spec: PythonSpec | PythonRowsSpec) -> Relation:
    counts = aggregate(
        PartialAggregateSpec((("n", N),), None, (AggregateCall("count", None, "c"),)),
        ROWS,
        "update",
    )
    made = step(spec, counts)
    outer = PartialAggregateSpec((("y", Y),), None, (AggregateCall("count", None, "many"),))
    return aggregate(outer, made, "update")


def test_where_rows_come_and_go_a_function_gives_the_same_twice() -> None:
    assert callers(planned(_changing(column(FIXED))))
    with pytest.raises(UnsupportedPlan, match=r"drawn\(n\) is not deterministic and stands on"):
        planned(_changing(column(DRAWN)))
    batches = PythonRowsSpec(FIXED, (Field("y", BIGINT),), repeats=False)
    with pytest.raises(UnsupportedPlan, match=r"fixed\(n\) takes whole batches"):
        planned(_changing(batches))


def test_a_changed_function_goes_on() -> None:
    before = planned(step(column(), ROWS))
    after = planned(step(column(replace(FIXED, digest="fedcba9876543210")), ROWS))
    assert "unchanged" in str(compare(before, before))
    verdict = str(compare(before, after))
    assert "rebuilt" in verdict
    assert "Python function fixed(n) has changed: new rows are computed with it" in verdict
    compare(before, after).check()


def test_it_is_explained_what_runs_and_how_often() -> None:
    rows = PythonRowsSpec(FIXED, (Field("z", BIGINT),), repeats=True)
    text = explain(planned(step(rows, step(column(DRAWN), ROWS))))
    assert "Python drawn(n) [01234567, once for each row, before the marker] as y" in text
    assert "rows of Python fixed(n) [01234567] as z" in text
    assert "[python]" in text
