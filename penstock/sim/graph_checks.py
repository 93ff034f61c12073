"""What graphs of operators give, beside their plain answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.sim.graphs import Graph, Line
from penstock.sim.oracle import rows_of
from penstock.sim.outcome import Outcome
from penstock.sim.violation import Violation, check_equal

WEIGHT = "__weight"
Values = tuple[Any, ...]


def check_graph(outcome: Outcome) -> None:
    """The answer is that of plain Python, and no row was late."""
    shape = outcome.scenario.shape
    assert shape.graph is not None
    graph = shape.graph()
    if late := sum(facts["late_rows"] for facts in outcome.last_facts.values()):
        raise Violation(f"late: {late} rows counted, and none is")
    names = [field.name for field in graph.draft.schema]
    expected = [_values(graph, line, names) for line in graph.answer(outcome.scenario.feeds)]
    if graph.mode == "append":
        found = [_values(graph, line, names) for line in outcome.out]
        check_equal(Counter(found), Counter(expected), "rows")
    elif graph.mode == "changes":
        _check_changes(outcome, graph, names, Counter(expected))
    elif graph.mode == "complete":
        _check_whole(outcome, graph, names, expected)
    else:
        last = {tuple(line[key] for key in graph.keys): line for line in outcome.out}
        found = [_values(graph, line, names) for line in last.values()]
        check_equal(Counter(found), Counter(expected), "last rows")


def _values(graph: Graph, line: Line, names: list[str]) -> Values:
    return tuple(
        tuple(sorted(line[name])) if name in graph.unordered else line[name] for name in names
    )


def _check_changes(
    outcome: Outcome, graph: Graph, names: list[str], expected: Counter[Values]
) -> None:
    """No row goes that has not come; in the end those are there that should be."""
    found: Counter[Values] = Counter()
    for line in outcome.out:
        values = _values(graph, line, names)
        found[values] += line[WEIGHT]
        if found[values] < 0:
            raise Violation(f"changes: {values} goes, and has not come")
    check_equal(+found, expected, "what has come and not gone")


def _check_whole(outcome: Outcome, graph: Graph, names: list[str], expected: list[Values]) -> None:
    """What each vertex has committed last is its part of the whole result."""
    last: dict[str, list[Values]] = {}
    for release in outcome.releases(outcome.scenario.output)[0]:
        rows = [row for record in release.records for row in rows_of(record)]
        if release.facts["whole"]:
            last[release.marker.producer] = [_values(graph, row, names) for row in rows]
    found = [values for rows in last.values() for values in rows]
    check_equal(Counter(found), Counter(expected), "whole result")
    if graph.is_sorted and found != expected:
        raise Violation(f"whole result: in the order {found}, it should be {expected}")


def check_stored(outcome: Outcome, rows: Sequence[Values]) -> None:
    """A table outside has each row once that has come and not gone."""
    graph = outcome.scenario.shape.graph
    assert graph is not None
    found = graph()
    names = [field.name for field in found.draft.schema]
    expected = (_values(found, line, names) for line in found.answer(outcome.scenario.feeds))
    check_equal(Counter(rows), Counter(expected), "stored rows")
