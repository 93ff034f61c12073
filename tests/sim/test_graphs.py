"""Graphs of operators: their plain answers by hand, and runs of each under faults."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from penstock.kernels.cache import KernelCache
from penstock.sim import graphs
from penstock.sim.data import COLUMNS, FIRST_US, SECOND_US, Row
from penstock.sim.graphs import Graph
from penstock.sim.more_shapes import (
    MORE_SHAPES,
    drawn_shape,
    is_drawn_apart,
    named_shape,
    random_shape,
)
from penstock.sim.mutants import MUTANTS
from penstock.sim.mutants.branches import BRANCHES
from penstock.sim.mutants.relations import RELATIONS
from penstock.sim.runner import run_seeds
from penstock.testing.plans import scan_source
from tests.sim.kept_seeds import KEPT_SEEDS
from tests.thoroughness import IS_DEEP, some

SEEDS_OF_EACH = 3 if IS_DEEP else 1
RANDOM_SEEDS = 40 if IS_DEEP else 4
SHAPES = [shape.name for shape in MORE_SHAPES]
S = SECOND_US


def row(rid: int, k: str | None, v: int | None, at_s: float | None, g: int | None = 1) -> Row:
    ts = None if at_s is None else FIRST_US + round(at_s * S)
    return Row(rid, k, g, v, 1, ts, FIRST_US, None)


def feed(number: int = 0) -> Graph:
    return graphs.feed(scan_source("simulated", COLUMNS, feed=number), number, 3 * S)


def answer(graph: Graph, *feeds: list[Row]) -> list[tuple[Any, ...]]:
    """Values of the rows, times in seconds."""
    found = []
    for line in graph.answer(feeds):
        if line.get("ts") is not None:
            line["ts"] = (line["ts"] - FIRST_US) / S
        found.append(tuple(line[field.name] for field in graph.draft.schema))
    return sorted(found, key=repr)


ROWS = [row(1, "a", 5, 0), row(2, "a", None, 1.5), row(3, "b", 7, 2), row(4, "a", 1, 6)]


def test_windows_by_hand() -> None:
    found = answer(graphs.windows(feed(), ("k",), 4 * S, 2 * S), ROWS)
    assert found == sorted(
        [
            (2, "a", 2, 5, 2.0), (2, "a", 2, 5, 4.0), (3, "b", 1, 7, 4.0), (3, "b", 1, 7, 6.0),
            (4, "a", 1, 1, 8.0), (4, "a", 1, 1, 10.0),
        ],
        key=repr,
    )  # fmt: skip


def test_sessions_by_hand() -> None:
    found = answer(graphs.sessions(feed(), ("k",), 2 * S), ROWS)
    assert found == [(2, "a", 2, 5, 3.5), (3, "b", 1, 7, 4.0), (4, "a", 1, 1, 8.0)]
    # Of its own number each row has 2, 3, 1 and 2 seconds.
    found = answer(graphs.sessions(feed(), ("k",), None), ROWS)
    assert found == [(2, "a", 2, 5, 4.5), (3, "b", 1, 7, 3.0), (4, "a", 1, 1, 8.0)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(1, "a", 1, 9, 0.0)]),
        ("left", [(1, "a", 1, 9, 0.0), (2, "b", 1, None, 0.0)]),
        ("right", [(1, "a", 1, 9, 0.0), (None, None, None, 22, None)]),
        ("full", [(1, "a", 1, 9, 0.0), (2, "b", 1, None, 0.0), (None, None, None, 22, None)]),
        ("semi", [(1, "a", 1, 0, 0.0)]),
        ("anti", [(2, "b", 1, 0, 0.0)]),
    ],
)
def test_joins_by_hand(how: str, expected: list[Any]) -> None:
    left = [row(1, "a", 0, 0), row(2, "b", 0, 0)]
    right = [row(21, "a", 9, 2), row(22, "b", None, 2.5)]
    assert answer(graphs.joined(how, feed(0), feed(1), True), left, right) == expected


def test_tables_and_order_by_hand() -> None:
    rows = [row(1, "a", 1, 0), row(2, "b", 2, 0), row(3, "a", 3, 0), row(4, "b", 4, 0, g=7)]
    assert answer(graphs.table(feed(), True), rows) == [(3, "a", 1, 3, 0.0)]
    assert answer(graphs.table(feed(), False), rows)[1] == (4, "b", 7, 4, 0.0)
    best = graphs.best(feed(), 2)
    assert answer(best, rows) == [(3, "a", 1, 3, 0.0), (4, "b", 7, 4, 0.0)]
    assert answer(graphs.last_ones(feed()), ROWS) == [
        (1, "a", 5, None), (2, "a", 5, 5), (3, "b", 7, None), (4, "a", 6, None),
    ]  # fmt: skip


def test_seeds_that_stand_for_something_are_the_runs_that_they_were() -> None:
    older = {mutant.seed for mutant in MUTANTS if mutant not in (*RELATIONS, *BRANCHES)}
    for seed in (*KEPT_SEEDS, *older):
        if not KEPT_SEEDS.get(seed, "").startswith("graph: "):
            assert not is_drawn_apart(seed), seed


def test_a_random_graph_is_the_same_each_time() -> None:
    names = []
    for _ in range(2):
        random_shape.cache_clear()
        names.append([str(random_shape(seed).build().relation) for seed in range(5)])
    assert names[0] == names[1]
    assert len(set(names[0])) == 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", some(SHAPES, every=4))
def test_no_seed_of_a_shape_breaks_a_promise(kernels: KernelCache, name: str) -> None:
    drawn = ((seed, named_shape(seed)) for seed in range(100_000))
    seeds = (seed for seed, shape in drawn if shape is not None and shape.name == name)
    campaign = run_seeds(islice(seeds, SEEDS_OF_EACH), kernels)
    assert campaign.seeds == SEEDS_OF_EACH
    assert campaign.violations == []


@pytest.mark.timeout(600)
def test_no_random_graph_breaks_a_promise(kernels: KernelCache) -> None:
    seeds = [
        seed
        for seed in range(40 * RANDOM_SEEDS)
        if is_drawn_apart(seed) and drawn_shape(seed).is_random
    ]
    campaign = run_seeds(seeds[:RANDOM_SEEDS], kernels)
    assert campaign.violations == []
    assert campaign.seeds == RANDOM_SEEDS
