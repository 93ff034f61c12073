"""Explanations against golden texts, in cases like those of the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.expressions.tree import Expression
from penstock.expressions.types import Schema
from penstock.operators.specs import DeduplicateSpec, column_of
from penstock.plan.explain import explain
from penstock.plan.nodes import step
from penstock.plan.optimizer import plan_program
from penstock.stages.program import sink_stream
from penstock.testing.plans import Draft, query, scan_stream
from tests.plan.case_files import Case, read_cases
from tests.plan.text import parse_query

GOLDEN = Path(__file__).parent / "explanations.txt"


def engine(expression: Expression, schema: Schema) -> str:
    """Where the expression of a case runs: strings outside the fused loop."""
    assert schema
    return "arrow" if "string" in {str(expression.type), str(schema[0].type)} else "numba"


@pytest.mark.parametrize("case", read_cases(GOLDEN), ids=str)
def test_explanation(case: Case) -> None:
    assert explain(plan_program(parse_query(case.before)), engine) == case.after


def test_the_caller_says_what_only_it_knows() -> None:
    rows = scan_stream("s", "x bigint")
    program = plan_program(query("q", rows.to_stream("out")))
    text = explain(program, durability="process")
    assert "process: survives crashes of processes; a power cut may take the newest records" in text
    assert "numba" not in text
    assert "as the log says" in explain(program, durability="elsewhere")


def test_what_is_persisted_whole_says_so() -> None:
    text = """
query q whole
  write stream a
    aggregate append by ad window ts 10 seconds as window: count(*) as n
      watermark ts 1 second
        scan source replay {"replayable":false} (ad int, price int, ts timestamp not null)
"""
    whole, pushed = (
        explain(plan_program(parse_query(each))) for each in (text, text.replace(" whole", ""))
    )
    assert "of 16 bytes a row that replay gives 16 are persisted" in whole
    assert "pushUp is off" in whole
    assert "12 are persisted" in pushed
    assert "pushUp" not in pushed


def test_what_feeds_a_sink_is_for_nobody_else() -> None:
    rows = scan_stream("s", "x bigint")
    program = plan_program(query("q", rows.to_stream(sink_stream("q"))))
    assert "result, for the sink, 1 substream" in explain(program)


@pytest.mark.parametrize(
    ("keys", "within_us", "forgotten"),
    [
        (("k",), None, "keys are never forgotten"),
        (("k", "ts"), None, "keys are forgotten when the watermark has passed their ts"),
        (
            ("k",),
            5_000_000,
            "keys are forgotten when the watermark has passed their ts by 5 seconds",
        ),
    ],
)
def test_when_keys_are_forgotten(
    keys: tuple[str, ...], within_us: int | None, forgotten: str
) -> None:
    rows = scan_stream("s", "k bigint, ts timestamp").with_watermark("ts", "1 second")
    columns = {field.name: column_of(field) for field in rows.schema}
    spec = DeduplicateSpec(tuple(columns[name] for name in keys), columns["ts"], within_us)
    program = plan_program(query("q", Draft(step(spec, rows.relation)).to_stream("out")))
    assert f", {forgotten}\n" in explain(program)
