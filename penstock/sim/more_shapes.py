"""More queries, drawn apart: graphs of operators that plain Python answers, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from penstock.errors import PlanError, UnsupportedPlan
from penstock.expressions.tree import column
from penstock.operators.specs import (
    DeduplicateSpec,
    JoinKey,
    LimitSpec,
    Order,
    OverCall,
    OverSpec,
    StaticJoinSpec,
)
from penstock.plan.nodes import column_refs, step
from penstock.sim import graphs
from penstock.sim.data import COLUMNS, SECOND_US
from penstock.sim.graphs import Graph, Mode
from penstock.sim.shapes import CONNECTOR, STATIC_SIDE, Shape, programs_of, shape_of
from penstock.testing.columns import apply, col
from penstock.testing.plans import Draft, scan_source

# So drawn that seeds which once failed, or by which broken engines are caught, stay the same runs.
_FAMILY = "graph 16444"
_SHARE, _RANDOM_SHARE = 0.10, 0.06
FEEDS_MAX = 3
DELAYS_US = (3 * SECOND_US, SECOND_US)
OPERATORS_MAX = 4
LIMIT_ROWS = 25
SESSION_GAP_US = 2 * SECOND_US
TIES_US = 10 * SECOND_US

_S = SECOND_US


def drawn_shape(seed: int) -> Shape:
    """The query of a seed."""
    if not is_drawn_apart(seed):
        return shape_of(seed)
    return named_shape(seed) or random_shape(seed)


def is_drawn_apart(seed: int) -> bool:
    """Whether the query of a seed is one of these."""
    return _dice(seed) < _SHARE + _RANDOM_SHARE


def named_shape(seed: int) -> Shape | None:
    """The query of a seed, if it is one of those with a name here."""
    dice = _dice(seed)
    return MORE_SHAPES[int(dice / _SHARE * len(MORE_SHAPES))] if dice < _SHARE else None


def _dice(seed: int) -> float:
    return random.Random(f"{_FAMILY} {seed}").random()


def _rows(number: int, parts: int = 1, timed: bool = True, delay_us: int = DELAYS_US[0]) -> Graph:
    source = scan_source(CONNECTOR, COLUMNS, parts, feed=number)
    return graphs.feed(source, number, delay_us if timed else None)


# --- some that are worth a name -------------------------------------------------------------------


def _sessions() -> Graph:
    return graphs.sessions(_rows(0, 2), ("k",), 2 * _S)


def _sessions_gap() -> Graph:
    return graphs.sessions(graphs.union(_rows(0), _rows(1)), ("k", "g"), None)


def _sessions_of_sessions() -> Graph:
    return graphs.sessions(graphs.sessions(_rows(0), ("k", "g"), _S), ("k",), 3 * _S)


def _top_k() -> Graph:
    return graphs.best(graphs.windows(_rows(0, 2), ("k",), 6 * _S, 6 * _S), 2)


def _last_ones() -> Graph:
    return graphs.last_ones(graphs.union(_rows(0), _rows(1)))


def _grouped_table() -> Graph:
    return graphs.groups(graphs.table(_rows(0, timed=False), True), ("g",), "complete")


def _tables(how: str) -> Graph:
    left = graphs.table(_rows(0, timed=False), True)
    right = graphs.table(_rows(1, timed=False), True)
    return graphs.groups(graphs.joined(how, left, right, False), ("g",), "complete")


def _table_of_groups() -> Graph:
    groups = graphs.groups(_rows(0, timed=False), ("k",), "update")
    joined = graphs.joined("left", groups, graphs.table(_rows(1, timed=False), True), False)
    return replace(joined, mode="changes")


def _near(how: str) -> Graph:
    return graphs.joined(how, _rows(0), _rows(1), True)


def _joins_of_joins() -> Graph:
    return graphs.joined("inner", _near("left"), _rows(2), True)


def _windows_of_joins() -> Graph:
    return graphs.windows(_near("inner"), ("k",), 4 * _S, 4 * _S)


def _collected() -> Graph:
    return graphs.collected(_rows(0, 2, timed=False))


def _ordered(rows_max: int | None) -> Graph:
    groups = graphs.groups(_rows(0, 2, timed=False), ("k", "g"), "update")
    return graphs.ordered(graphs.groups(groups, ("k",), "complete"), rows_max)


def _several_watermarks() -> Graph:
    both = graphs.union(_rows(0), _rows(1, delay_us=DELAYS_US[1]))
    return graphs.windows(both, ("k",), 6 * _S, 2 * _S)


def _distinct_moments() -> Graph:
    return graphs.distinct(graphs.union(_rows(0), _rows(1)))


def _met_table() -> Graph:
    """A stream that meets a table."""
    rows = _rows(0, timed=False)
    return graphs.joined("left", rows, graphs.table(_rows(1, timed=False), True), False)


# --- some whose answer depends on who came first -----------------------------------------------


def _first_rows() -> Draft:
    rows = graphs.union(_rows(0, timed=False), _rows(1, timed=False)).draft
    return Draft(step(LimitSpec(LIMIT_ROWS), rows.relation))


def _within_watermark() -> Draft:
    rows = graphs.union(_rows(0), _rows(1)).draft
    columns = dict(column_refs(rows.schema))
    keys = (columns["k"], columns["g"])
    return Draft(step(DeduplicateSpec(keys, columns["ts"], DELAYS_US[0]), rows.relation))


def _late_sessions() -> Draft:
    return graphs.sessions(graphs.union(_rows(0), _rows(1)), ("k",), SESSION_GAP_US).draft


def _ties() -> Draft:
    """Places among the rows of a window; of equal ones those come first that were there first."""
    rows = graphs.union(_rows(0), _rows(1))
    micros = apply("unix_micros", col("ts"))
    start = micros - apply("pmod", micros, TIES_US)
    at = apply("timestamp_micros", start + TIES_US).alias("at")
    timed = graphs.punctual(rows).draft.select("rid", "g", at)
    columns = dict(column_refs(timed.schema))
    order = (Order(columns["g"]),)  # type: ignore[arg-type]
    calls = (OverCall("row_number", "place"),)
    spec = OverSpec((columns["at"],), order, calls, columns["at"])  # type: ignore[arg-type]
    return Draft(step(spec, timed.relation))


def _looked_up(rows: Draft) -> Draft:
    key = JoinKey(column("k", "string"), column("k", "string"))
    spec = StaticJoinSpec(STATIC_SIDE, "left", (key,), (("content", column("content", "bigint")),))
    return Draft(step(spec, rows.relation))


def _static_rows() -> Draft:
    rows = _looked_up(_rows(0, 2, timed=False).draft)
    return rows.select("rid", "k", "content")


def _static_behind() -> Draft:
    """Rows that meet the static side after they have met each other."""
    rows = graphs.joined("inner", _rows(0, timed=False), _rows(1, timed=False), False).draft
    return _looked_up(rows).select("rid", "k", "v", "content")


def _shape(
    name: str, graph: Callable[[], Graph], feeds: int = 1, parts: int = 1, parallelism: int = 2
) -> Shape:
    return Shape(
        name, lambda: graph().draft, "graph", feeds=feeds, parts=parts, parallelism=parallelism,
        graph=graph, changes=graph().mode == "changes", jitter_us_max=min(DELAYS_US),
    )  # fmt: skip


MORE_SHAPES: tuple[Shape, ...] = (
    _shape("sessions", _sessions, parts=2),
    _shape("sessions_gap", _sessions_gap, feeds=2),
    _shape("sessions_of_sessions", _sessions_of_sessions),
    _shape("top_k", _top_k, parts=2),
    _shape("last_ones", _last_ones, feeds=2),
    _shape("grouped_table", _grouped_table),
    _shape("tables_full", partial(_tables, "full"), feeds=2),
    _shape("tables_anti", partial(_tables, "anti"), feeds=2, parallelism=1),
    _shape("table_of_groups", _table_of_groups, feeds=2),
    _shape("near_full", partial(_near, "full"), feeds=2),
    _shape("near_right", partial(_near, "right"), feeds=2, parallelism=1),
    _shape("near_semi", partial(_near, "semi"), feeds=2),
    _shape("near_anti", partial(_near, "anti"), feeds=2),
    _shape("joins_of_joins", _joins_of_joins, feeds=3),
    _shape("windows_of_joins", _windows_of_joins, feeds=2),
    _shape("collected", _collected, parts=2),
    _shape("ordered", partial(_ordered, None), parts=2),
    _shape("first_ones", partial(_ordered, 2), parts=2),
    _shape("several_watermarks", _several_watermarks, feeds=2),
    _shape("distinct_moments", _distinct_moments, feeds=2),
    replace(_shape("upserts", _table_of_groups, feeds=2), upserts=True),
    Shape("met_table", lambda: _met_table().draft, "journal", feeds=2, parallelism=2),
    Shape("first_rows", _first_rows, "journal", feeds=2),
    Shape("within_watermark", _within_watermark, "journal", feeds=2, parallelism=2,
          has_late_rows=True),
    Shape("late_sessions", _late_sessions, "journal", feeds=2, parallelism=2,
          has_late_rows=True, late_stream=True),
    Shape("ties", _ties, "journal", feeds=2, parallelism=2, has_late_rows=True),
    Shape("static_rows", _static_rows, "static", parts=2, parallelism=2),
    Shape("static_behind", _static_behind, "static", feeds=2, parallelism=2),
)  # fmt: skip


# --- random ones ----------------------------------------------------------------------------------


@lru_cache(maxsize=1_024)
def random_shape(seed: int) -> Shape:
    """A query of one to four operators, each drawn from those that the engine takes there."""
    rng = random.Random(f"random graph {seed}")
    while True:
        shape = _random_shape(rng, f"graph{seed}")
        try:
            programs_of(shape)
        except (PlanError, UnsupportedPlan):
            continue  # what does not go together is known only when all is there
        return shape


def _random_shape(rng: random.Random, name: str) -> Shape:
    parts = rng.choice((1, 1, 2))
    drawn = _Drawn(rng, parts)
    graph = drawn.graph(rng.randint(1, OPERATORS_MAX))
    parallelism = max(parts, rng.choice((1, 2, 2, 3)))
    shape = _shape(name, lambda: graph, drawn.feeds, parts, parallelism)
    return replace(shape, is_random=True)


class _Drawn:
    """Draws operators, and feeds as they are needed."""

    def __init__(self, rng: random.Random, parts: int) -> None:
        self._rng = rng
        self._parts = parts
        self.feeds = 0

    def graph(self, operators: int) -> Graph:
        rows = self._feed(self._rng.random() < 0.75)
        for left in reversed(range(operators)):
            rows = self._operator(rows, left)
        if rows.is_changing and not (rows.is_sorted or rows.unordered):
            rows = self._shown(rows)
        return rows

    def _feed(self, timed: bool) -> Graph:
        self.feeds += 1
        return _rows(self.feeds - 1, self._parts, timed, self._rng.choice(DELAYS_US))

    def _operator(self, rows: Graph, operators_left: int) -> Graph:
        """One that fits; some are refused where they stand, and another one is drawn."""
        if rows.is_sorted or rows.unordered:
            return rows  # nothing can stand on them
        while True:
            feeds = self.feeds
            try:
                return self._rng.choice(self._choices(rows, operators_left))()
            except (PlanError, UnsupportedPlan):
                self.feeds = feeds

    def _choices(self, rows: Graph, operators_left: int) -> list[Callable[[], Graph]]:
        rng = self._rng
        keys = rng.choice((("k",), ("k", "g"), ("g",)))
        mode: Mode = rng.choice(("update", "complete"))
        found: list[Callable[[], Graph]] = [
            lambda: graphs.positive(rows),
            lambda: graphs.mapped(rows),
            lambda: graphs.groups(rows, keys, mode),
        ]
        if rows.is_changing:
            if operators_left == 0:
                found.append(lambda: graphs.ordered(rows, rng.choice((None, 2))))
            if self.feeds < FEEDS_MAX:
                found += [lambda: self._joined_tables(rows)] * 2
            return found
        found.append(lambda: graphs.distinct(rows))
        if self._parts == 1 and rows.in_order:
            found += [lambda: graphs.table(rows, True)] * 2
        if operators_left == 0:
            found.append(lambda: graphs.collected(rows))
        if self.feeds < FEEDS_MAX:
            found.append(lambda: self._united(rows))
            found.append(lambda: self._joined(rows))
        if rows.is_timed:
            found += [
                lambda: graphs.windows(rows, keys, 6 * _S, rng.choice((2, 6)) * _S),
                lambda: graphs.sessions(rows, keys, rng.choice((None, _S, 3 * _S))),
                lambda: graphs.last_ones(rows),
                lambda: graphs.best(rows, 2),
            ]
        return found

    def _other(self, timed: bool) -> Graph:
        """Rows to join with, or to add."""
        rows = self._feed(timed)
        return graphs.positive(rows) if self._rng.random() < 0.3 else rows

    def _united(self, rows: Graph) -> Graph:
        has_time = any(field.name == "ts" for field in rows.draft.schema)
        return graphs.union(rows, self._other(has_time))

    def _joined(self, rows: Graph) -> Graph:
        if not rows.is_timed:
            return graphs.joined("inner", rows, self._other(False), False)
        how = self._rng.choice(("inner", "left", "right", "full", "semi", "anti"))
        return graphs.joined(how, rows, self._other(True), True)

    def _joined_tables(self, rows: Graph) -> Graph:
        how = self._rng.choice(("inner", "left", "right", "full", "semi", "anti"))
        rows_of_other = self._feed(False)
        if self._parts == 1 and self._rng.random() < 0.5:
            other = graphs.table(rows_of_other, True)
        else:
            other = graphs.groups(rows_of_other, ("k",), "update")
        return graphs.joined(how, rows, other, False)

    def _shown(self, rows: Graph) -> Graph:
        """Rows that change are seen as they come and go, or grouped once more."""
        if rows.mode != "append" and not rows.vanishes and self._rng.random() < 0.5:
            return rows
        if self._rng.random() < 0.5:
            return replace(rows, mode="changes")
        return graphs.groups(rows, ("k",), "complete")
