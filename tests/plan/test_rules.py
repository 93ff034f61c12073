"""Each rule against its file of cases, and all of them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plan.filter_shared import filter_shared
from penstock.plan.nodes import Exchange, UnionAll, walk
from penstock.plan.optimizer import RULES, Rule, optimize, plan_program
from penstock.plan.query import Query, going_on
from penstock.stages.compare import compare
from tests.plan.case_files import FOLDER, Case, read_cases
from tests.plan.meaning import direct_results, program_results, settled, tables_of
from tests.plan.text import parse_query, print_query

CASES = [
    pytest.param(rule, case, id=f"{rule.__name__}: {case}")
    for rule in RULES
    for case in read_cases(FOLDER / f"{rule.__name__}.txt")
]
# Those that show a query as a user writes it, not one half way through the rules.
WHOLE = [
    case
    for rule in RULES
    for case in read_cases(FOLDER / f"{rule.__name__}.txt")
    if "exchange" not in case.before and "internal" not in case.before
]


def test_every_rule_has_cases_and_every_file_a_rule() -> None:
    names = {rule.__name__ for rule in RULES}
    assert {path.stem for path in FOLDER.glob("*.txt")} == names
    for rule in RULES:
        assert rule.__module__ == f"penstock.plan.{rule.__name__}"
        assert len(read_cases(FOLDER / f"{rule.__name__}.txt")) >= 3


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_rule(rule: Rule, case: Case) -> None:
    before = parse_query(case.before)
    after = rule(before)
    assert print_query(after) == case.after
    assert print_query(parse_query(case.after)) == case.after, "the text can be read back"
    assert rule(after) == after, "applied twice it changes nothing more"


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_all_rules_give_a_program_with_the_same_results(case: Case, tmp_path: Path) -> None:
    query = parse_query(case.before)
    program = plan_program(query)
    written = {
        output.stream: [(f.name, f.type) for f in output.schema]
        for stage in program.stages
        for output in stage.outputs
        if output.stream in {write.stream for write in query.writes}
    }
    wanted = {
        write.stream: [(f.name, f.type) for f in write.child.schema] for write in query.writes
    }
    assert written == wanted
    tables = tables_of(query)
    expected = direct_results(query, tables)
    found = program_results(query, program, tables, tmp_path)
    for stream, rows in expected.items():
        assert rows, f"the case shows nothing: {stream} is empty"
        assert settled(query, stream, found[stream]) == settled(query, stream, rows)


def test_rules_leave_linear_chains_of_one_state_each() -> None:
    query = parse_query(
        """
query q parallelism 3
  write stream b
    aggregate append window window.end 1 minute as minute: max(n) as top
      aggregate append by auction window ts 10 seconds as window: count(*) as n
        watermark ts 1 second
          union
            scan stream x (auction bigint, ts timestamp)
            filter (auction > 3L)
              scan source nexmark (auction bigint, ts timestamp) partitions any
"""
    )
    done = optimize(query)
    for write in done.writes:
        assert not any(isinstance(node, UnionAll | Exchange) for node in walk(write.child))
    assert [write.vertices for write in done.writes] == [1, 3, 3, 1]
    assert [write.stream for write in done.writes] == [
        "q.exchange.0", "q.exchange.0", "q.exchange.1", "b",
    ]  # fmt: skip


def test_one_rule_can_be_left_out() -> None:
    query: Query = parse_query(
        "query q\n  write stream a\n    project x\n      scan stream s (x bigint, y bigint)\n"
    )
    without = [rule for rule in RULES if rule.__name__ != "prune_columns"]
    assert [f.name for f in optimize(query, without).scans()[0].schema] == ["x", "y"]
    assert [f.name for f in optimize(query).scans()[0].schema] == ["x"]


def test_a_query_that_shared_all_rows_goes_on_with_those_that_are_wanted() -> None:
    """Under the names that its stages have: which rows pass is no part of them."""
    (case,) = (case for case in read_cases(FOLDER / "filter_shared.txt") if "window" in case.before)
    query = parse_query(case.before)
    stored = plan_program(query, [rule for rule in RULES if rule is not filter_shared])
    program = plan_program(going_on(query, stored))
    assert compare(stored, program).is_compatible
    assert [s.name for s in program.stages] == [s.name for s in stored.stages]
    (read,) = (stage for stage in program.stages if stage.source is not None)
    assert [spec.op for spec in read.ports[0].front] == ["filter"]
    assert plan_program(going_on(query, program)) == program
