"""Event time through a join: how long a row can still match, and how late the output may be.

Times are nodes, and what the condition says of two of them, `a <= b + c`, are edges: the shortest
path from a to b is the least c that follows. A row of one side can match none of those to come once
the watermark, which the others' times have passed, has come to the end of such a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from penstock.expressions.tree import Call, Column, Expression, call, columns_of, inline
from penstock.expressions.types import Schema
from penstock.kernels.support import conjuncts
from penstock.operators.specs import (
    AggregateSpec,
    FilterSpec,
    JoinMatch,
    JoinSide,
    JoinSpec,
    ProjectSpec,
    TimeLimit,
    WatermarkSpec,
    WindowSpec,
    column_of,
)
from penstock.plan.event_time import unmoved, window_start
from penstock.plan.nodes import Exchange, Relation, Step, UnionAll

NODES_MAX = 100  # a condition on more times than that is not looked at
TIME_KINDS = ("timestamp", "timestamp_ntz")

# A time as it first came to be: the inputs taken on the way down from the join, how many nodes of
# the plan were passed, and what it is called there.
Node = tuple[tuple[int, ...], int, str]
Nodes = dict[tuple[Node, Node], int]  # from a to b: the least c with a <= b + c

_BOUNDS = {"le": (True, False, 0), "lt": (True, False, 1), "ge": (False, True, 0),
           "gt": (False, True, 1), "eq": (True, True, 0)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinTimes:
    """What event time means to a join: see JoinSide and JoinSpec."""

    left: JoinSide
    right: JoinSide
    times: tuple[str, ...]
    behind_us: int


@dataclass(frozen=True, slots=True)
class _Time:
    """A column of a side as a time: a node, and how far behind it the column is."""

    expression: Expression  # of the side's columns
    node: Node
    plus_us: int
    is_instant: bool = False  # the last one of a window: the watermark is beyond it by 1

    @property
    def reached_us(self) -> int:
        """How far the watermark may be beyond the node, where it speaks of the column."""
        return self.plus_us + self.is_instant


@dataclass
class _Graph:
    """The times of both sides and what is known between them."""

    edges: Nodes = field(default_factory=dict)
    seen: list[dict[Node, _Time]] = field(default_factory=lambda: [{}, {}])  # one each, by side

    def add(self, below: Node, above: Node, plus_us: int) -> None:
        known = self.edges.get((below, above))
        self.edges[below, above] = plus_us if known is None else min(known, plus_us)

    def note(self, side: int, time: _Time) -> _Time:
        self.seen[side].setdefault(time.node, time)
        return time

    def close(self) -> None:
        """Find all shortest paths."""
        nodes = list(dict.fromkeys(node for edge in self.edges for node in edge))
        if len(nodes) > NODES_MAX:
            self.edges.clear()
            return
        for via, start, end in product(nodes, nodes, nodes):
            first, second = self.edges.get((start, via)), self.edges.get((via, end))
            if first is not None and second is not None:
                self.add(start, end, first + second)

    def path(self, below: Node, above: Node) -> int | None:
        return 0 if below == above else self.edges.get((below, above))


def join_times(how: str, match: JoinMatch, left: Relation, right: Relation) -> JoinTimes:
    """What follows for a join of these rows."""
    inputs = (left, right)
    graph = _Graph()
    timed = [[graph.note(n, time) for time in _timed(graph, n, inputs[n])] for n in (0, 1)]
    for key in match.keys:
        if not key.null_safe or not (key.left.nullable or key.right.nullable):
            _learn(graph, inputs, "eq", key.left, key.right)
    for part in () if match.condition is None else conjuncts(match.condition):
        if isinstance(part, Call) and part.function in _BOUNDS:
            _learn(graph, inputs, part.function, *part.args)
    graph.close()
    limits = [tuple(_limits(graph, n, timed[1 - n])) for n in (0, 1)]
    sides = [
        JoinSide(own[0].expression, own[0].is_instant, its) if own else JoinSide(limits=its)
        for own, its in zip(timed, limits, strict=True)
    ]
    times, behind_us = _output(how, graph, inputs, timed)
    return JoinTimes(sides[0], sides[1], times, behind_us)


def is_last_instant(relation: Relation, time: Column) -> bool:
    """Whether a column has the last instants of windows: they are over when it has been passed."""
    found = _time(_Graph(), 0, relation, time)
    return found is not None and found.is_instant


# --- what is known --------------------------------------------------------------------------------


def _timed(graph: _Graph, side: int, relation: Relation) -> Iterator[_Time]:
    """The columns that the watermark of a side speaks of."""
    for name in relation.event_time:
        found = next(f for f in relation.schema if f.name == name)
        time = _time(graph, side, relation, Column(name, found.type, found.nullable))
        if time is not None:
            yield time


def _learn(
    graph: _Graph, inputs: tuple[Relation, ...], function: str, one: Expression, other: Expression
) -> None:
    terms = []
    for expression in (one, other):
        names = {column.name for column in columns_of(expression)}
        for side, relation in enumerate(inputs):
            if names and names <= {f.name for f in relation.schema}:
                time = _time(graph, side, relation, expression)
                plain = _time(graph, side, relation, _plain(expression))
                if time is not None and plain is not None:
                    graph.note(side, plain)
                    terms.append(time)
    if len(terms) != 2:
        return
    is_below, is_above, strictly_us = _BOUNDS[function]
    first, second = terms
    if is_below:
        graph.add(first.node, second.node, second.plus_us - first.plus_us - strictly_us)
    if is_above:
        graph.add(second.node, first.node, first.plus_us - second.plus_us - strictly_us)


def _plain(time: Expression) -> Expression:
    """A time before it was moved by a constant: what is kept of a row is computed of that."""
    if isinstance(time, Call) and time.function == "timestamp_micros":
        _, micros = unmoved(time.args[0])
        if isinstance(micros, Call) and micros.function == "unix_micros":
            return _plain(micros.args[0])
    return time


def _time(graph: _Graph, side: int, relation: Relation, expression: Expression) -> _Time | None:
    """An expression of a side as a time; of a window its end counts."""
    if expression.type.kind == "struct":
        if {f.name for f in expression.type.fields} != {"start", "end"}:
            return None
        expression = call("get_field", expression, name="end")
    if expression.type.kind not in TIME_KINDS:
        return None
    found = _origin(graph, (side,), 0, relation, expression)
    return None if found is None else _Time(expression, *found)


def _origin(
    graph: _Graph, path: tuple[int, ...], depth: int, relation: Relation, expression: Expression
) -> tuple[Node, int, bool] | None:
    """Where a time comes from, how far it was moved, and whether it is a window's last instant."""
    if isinstance(expression, Column):
        return _origin_of_column(graph, path, depth, relation, expression, None)
    if not isinstance(expression, Call):
        return None
    if expression.function == "get_field" and expression.type.kind in TIME_KINDS:
        struct, member = expression.args[0], expression.option("name")
        if isinstance(struct, Column):
            return _origin_of_column(graph, path, depth, relation, struct, member)
        if isinstance(struct, Call) and struct.function == "struct":
            members = dict(zip(struct.option("names"), struct.args, strict=True))
            return _origin(graph, path, depth, relation, members[member])
        return None
    if expression.function != "timestamp_micros":
        return None
    moved_us, micros = unmoved(expression.args[0])
    if isinstance(micros, Call) and micros.function == "unix_micros":
        found = _origin(graph, path, depth, relation, micros.args[0])
    else:
        found = _origin_of_window(graph, path, depth, relation, micros)
    if found is None:
        return None
    node, plus_us, _ = found
    is_instant = moved_us == -1 and _is_window_end(micros)
    return node, plus_us + moved_us, is_instant


def _origin_of_column(
    graph: _Graph,
    path: tuple[int, ...],
    depth: int,
    relation: Relation,
    column: Column,
    member: str | None,  # of a window
) -> tuple[Node, int, bool] | None:
    def as_is(expression: Column | Expression) -> Expression:
        return expression if member is None else call("get_field", expression, name=member)

    while True:
        spec = relation.spec if isinstance(relation, Step) else None
        if isinstance(spec, ProjectSpec):
            assert isinstance(relation, Step)
            inner = as_is(dict(spec.columns)[column.name])
            found = _origin(graph, path, depth + 1, relation.child, inner)
            return found or ((path, depth, str(as_is(column))), 0, False)  # it came to be here
        if isinstance(spec, JoinSpec):
            assert isinstance(relation, Step)
            for number, below in enumerate(relation.inputs):
                if column.name in {f.name for f in below.schema}:
                    inner = as_is(column)
                    return _origin(graph, (*path, number), depth + 1, below, inner)
        window = spec.window if isinstance(spec, AggregateSpec) else None
        if isinstance(window, WindowSpec) and member is not None and window.output == column.name:
            size_us = window.size_us if member == "end" else 0
            return (path, depth, f"{column}.start"), size_us, False
        if isinstance(relation, UnionAll):
            alike = _said_by_all(relation, column)
            if alike is not None:
                return _origin(graph, path, depth, relation, as_is(alike))
        # What an operator adds, an element or a column of rows that stand, came to be there.
        if (
            isinstance(relation, Exchange | Step)
            and not isinstance(spec, AggregateSpec)
            and column.name in {f.name for f in relation.child.schema}
        ):
            relation, depth = relation.child, depth + 1
            continue
        return (path, depth, str(as_is(column))), 0, False


def _said_by_all(union: UnionAll, column: Column) -> Expression | None:
    """What all inputs of a union compute a column of, if that is of other columns they hand on."""
    found = {_of_columns_beside(each, column.name, union.schema) for each in union.inputs}
    return found.pop() if len(found) == 1 else None


def _of_columns_beside(relation: Relation, name: str, given: Schema) -> Expression | None:
    while isinstance(relation, Step) and isinstance(relation.spec, FilterSpec | WatermarkSpec):
        relation = relation.child
    if not isinstance(relation, Step) or not isinstance(relation.spec, ProjectSpec):
        return None
    beside: dict[str, Column] = {}
    for known, (_, item) in zip(given, relation.spec.columns, strict=True):
        if isinstance(item, Column):
            beside.setdefault(item.name, column_of(known))
    expression = dict(relation.spec.columns)[name]
    if any(column.name not in beside for column in columns_of(expression)):
        return None
    found = inline(expression, beside)
    return None if isinstance(found, Column) and found.name == name else found


def _origin_of_window(
    graph: _Graph, path: tuple[int, ...], depth: int, relation: Relation, micros: Expression
) -> tuple[Node, int, bool] | None:
    """The start of the window that a time lies in."""
    window = window_start(micros)
    if window is None:
        return None
    time, size_us = window
    found = _origin(graph, path, depth, relation, time)
    if found is None:
        return None
    inside, plus_us, _ = found
    start: Node = (path, depth, str(micros))
    graph.add(start, inside, plus_us)
    graph.add(inside, start, size_us - 1 - plus_us)
    return start, 0, False


def _is_window_end(micros: Expression) -> bool:
    if not isinstance(micros, Call) or micros.function != "unix_micros":
        return False
    end = micros.args[0]
    return isinstance(end, Call) and end.function == "get_field" and end.option("name") == "end"


# --- what follows ---------------------------------------------------------------------------------


def _limits(graph: _Graph, side: int, others: list[_Time]) -> Iterator[TimeLimit]:
    """When a row of a side can match none of the other side's rows to come: the first of these."""
    for time in graph.seen[side].values():
        found = [_kept_us(graph, time, other) for other in others]
        limits = [plus_us for plus_us in found if plus_us is not None]
        if limits:
            yield TimeLimit(time.expression, min(limits))


def _kept_us(graph: _Graph, time: _Time, other: _Time) -> int | None:
    """How far the watermark may pass a time before no other row, of this time, matches its row."""
    path_us = graph.path(other.node, time.node)
    return None if path_us is None else path_us + other.reached_us - time.plus_us


def _output(
    how: str, graph: _Graph, inputs: tuple[Relation, ...], timed: list[list[_Time]]
) -> tuple[tuple[str, ...], int]:
    """The columns that may be event time behind the join, and how far behind the watermark.

    The other times of a pair follow from those that are known. A row that matches nothing has only
    its own.
    """
    known: list[tuple[_Time, int]] = []
    for side in (0, 1):
        for time in timed[side]:
            found = [_kept_us(graph, time, other) for other in timed[1 - side]]
            kept = [us - time.is_instant for us in found if us is not None]
            if kept:
                known.append((time, max(0, min(kept))))
    lags: dict[str, int] = {}
    alone = (how in ("left", "full", "anti"), how in ("right", "full"))
    for side in (0, 1) if how not in ("semi", "anti") else (0,):
        for item in inputs[side].schema:
            its = _time(_Graph(), side, inputs[side], Column(item.name, item.type, item.nullable))
            if its is None or (alone[side] and item.name not in inputs[side].event_time):
                continue
            lags_us = [
                lag_us + time.reached_us + path_us - its.reached_us
                for time, lag_us in known
                if (path_us := graph.path(time.node, its.node)) is not None
                and (not alone[side] or time.node[0][0] == side)
            ]
            if lags_us:
                lags[item.name] = max(0, min(lags_us))
    meant = {name for relation in inputs for name in relation.event_time}
    first = [name for name in lags if name in meant]
    behind_us = max((lags[name] for name in first or lags), default=0)
    others = [name for name in lags if name not in meant and lags[name] <= behind_us]
    return (*first, *others), behind_us
