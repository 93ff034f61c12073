"""Rule: rows of one key come together to be grouped or joined, as partials where exact."""

from __future__ import annotations

from collections.abc import Callable

from penstock.expressions.tree import Column
from penstock.operators.specs import (
    AggregateSpec,
    JoinSpec,
    NamedExpression,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonGroupsSpec,
    StatefulSpec,
    is_stateful,
)
from penstock.plan.nodes import (
    Exchange,
    Relation,
    Step,
    UnionAll,
    aggregate,
    column_refs,
    in_one_stage,
    is_on_driver,
    producers,
    spec_of,
    step,
)
from penstock.plan.placement import are_together
from penstock.plan.query import Query, rewrite_query

KEY_PREFIX = "__key"


def place_exchanges(query: Query) -> Query:
    """Put an exchange below every aggregate that has more than one producer or one vertex.

    Accumulators per key and pane are exchanged instead of rows, unless late rows are kept (they
    must reach the aggregate one by one), rows come and go, or no loop keeps what is accumulated. A
    state has a stage of its own, so an aggregate
    above another one always gets an exchange; above a join it gets none if that makes the rows of
    each group in one vertex. Each side of a join gets one: where two inputs meet, both are streams.
    """
    keep_late = query.settings.late_stream is not None

    def change(node: Relation) -> Relation:
        if not isinstance(node, Step) or not is_stateful(node.spec):
            return node
        if isinstance(node.spec, JoinSpec):
            return _exchange_sides(node.spec, node.inputs)
        if isinstance(node.child, Exchange):
            return node
        if not _needs_exchange(node.spec, node.child, query.parallelism):
            return node
        if not isinstance(node.spec, AggregateSpec):
            return step(node.spec, Exchange(node.child, node.spec.key_names))
        by_rows = node.spec.by_rows or not node.spec.partial.in_loop
        if keep_late or by_rows:
            return _exchange_rows(node.spec, node.child)
        return _exchange_partials(node.spec, node.child)

    return rewrite_query(query, change)


def _exchange_sides(spec: JoinSpec, sides: tuple[Relation, ...]) -> Relation:
    below = [
        side if isinstance(side, Exchange) else Exchange(side, spec.match.key_names(number))
        for number, side in enumerate(sides)
    ]
    return step(spec, *below)


def _needs_exchange(spec: StatefulSpec, child: Relation, parallelism: int) -> bool:
    # Rows to begin with are shared out by the hash of their keys, as an exchange does it.
    begins = isinstance(spec, PythonGroupsSpec) and spec.initial is not None
    is_free = _stateful(child) and not _is_on_driver(child) and not begins
    if is_free and are_together(spec, child):
        return False
    return (
        (parallelism > 1 and bool(spec.keys))
        or _has_a_place(child)
        or producers(child, parallelism) > 1
    )


def _has_a_place(relation: Relation) -> bool:
    """Whether a state has no room beside this: there is one already, or the driver hosts it."""
    return _stateful(relation) or _is_on_driver(relation)


def _is_on_driver(relation: Relation) -> bool:
    return any(map(is_on_driver, in_one_stage(relation)))


def _stateful(relation: Relation) -> bool:
    specs = map(spec_of, in_one_stage(relation))
    return any(spec is not None and is_stateful(spec) for spec in specs)


def _exchange_partials(spec: AggregateSpec, child: Relation) -> Relation:
    grouping = spec.partial
    below = _in_each_branch(child, lambda branch: grouping)
    exchange = Exchange(below, grouping.key_names)
    return aggregate(grouping, exchange, spec.mode, True, spec.changes)


def _exchange_rows(spec: AggregateSpec, child: Relation) -> Relation:
    """Rows travel with their keys as columns, because an exchange goes by columns."""
    taken = {f.name for f in child.schema}
    keys: list[NamedExpression] = []
    computed: list[NamedExpression] = []
    for name, key in spec.keys:
        if isinstance(key, Column):
            keys.append((name, key))
            continue
        fresh = fresh_name(taken)
        computed.append((fresh, key))
        keys.append((name, Column(fresh, key.type, key.nullable)))
    if computed:
        added = tuple(computed)
        child = _in_each_branch(child, lambda b: ProjectSpec((*column_refs(b.schema), *added)))
    by = tuple(key.name for _, key in keys if isinstance(key, Column))
    grouping = PartialAggregateSpec(tuple(keys), spec.window, spec.aggregates)
    return aggregate(grouping, Exchange(child, by), spec.mode, False, spec.changes)


def _in_each_branch(child: Relation, spec: Callable[[Relation], OperatorSpec]) -> Relation:
    """An operator over a relation; over a union, in each of its branches."""
    if not isinstance(child, UnionAll):
        return step(spec(child), child)
    return UnionAll(tuple(step(spec(branch), branch) for branch in child.inputs))


def fresh_name(taken: set[str]) -> str:
    number = next(n for n in range(len(taken) + 1) if f"{KEY_PREFIX}{n}" not in taken)
    taken.add(f"{KEY_PREFIX}{number}")
    return f"{KEY_PREFIX}{number}"
