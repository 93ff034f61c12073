"""Rule: rows of one key come together before they are aggregated, as partials where exact."""

from __future__ import annotations

from dataclasses import replace

from penstock.expressions.tree import Column
from penstock.operators.specs import NamedExpression
from penstock.plan.nodes import (
    Aggregate,
    Exchange,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    Source,
    UnionAll,
    children,
    column_refs,
)
from penstock.plan.query import Query, rewrite_query

KEY_PREFIX = "__key"


def place_exchanges(query: Query) -> Query:
    """Put an exchange below every aggregate that has more than one producer or one vertex.

    Accumulators per key and pane are exchanged instead of rows, unless late rows are kept (they
    must reach the aggregate one by one) or the rows come out of another aggregate (they are few).
    A state has a stage of its own, so an aggregate above another one always gets an exchange.
    """
    keep_late = query.settings.late_stream is not None

    def change(node: Relation) -> Relation:
        if not isinstance(node, Aggregate) or isinstance(node.child, Exchange):
            return node
        if not _needs_exchange(node, query.parallelism):
            return node
        if keep_late or _stateful(node.child):
            return _exchange_rows(node)
        return _exchange_partials(node)

    return rewrite_query(query, change)


def _needs_exchange(node: Aggregate, parallelism: int) -> bool:
    return (
        (parallelism > 1 and bool(node.keys))
        or _stateful(node.child)
        or _producers(node.child, parallelism) > 1
    )


def _stage_of(relation: Relation) -> list[Relation]:
    """The relations that run in one stage with this one: down to scans and exchanges."""
    found = [relation]
    if not isinstance(relation, Exchange):
        for child in children(relation):
            found.extend(_stage_of(child))
    return found


def _stateful(relation: Relation) -> bool:
    return any(isinstance(node, Aggregate) for node in _stage_of(relation))


def _producers(relation: Relation, parallelism: int) -> int:
    nodes = _stage_of(relation)
    if any(isinstance(node, UnionAll) for node in nodes):
        return 2
    leaf = nodes[-1]
    if not isinstance(leaf, Scan):
        return 1
    if isinstance(leaf.relation, Source):
        return min(parallelism, leaf.relation.partitions or parallelism)
    return min(parallelism, max(stream.substreams for stream in leaf.relation))


def _exchange_partials(node: Aggregate) -> Relation:
    branches = node.child.inputs if isinstance(node.child, UnionAll) else (node.child,)
    partials = tuple(
        PartialAggregate(branch, node.keys, node.window, node.aggregates) for branch in branches
    )
    below: Relation = partials[0] if len(partials) == 1 else UnionAll(partials)
    keys = tuple(name for name, _ in node.keys)
    return replace(node, child=Exchange(below, keys), merge_partials=True)


def _exchange_rows(node: Aggregate) -> Relation:
    """Rows travel with their keys as columns, because an exchange goes by columns."""
    child = node.child
    taken = {f.name for f in child.schema}
    keys: list[NamedExpression] = []
    computed: list[NamedExpression] = []
    for name, key in node.keys:
        if isinstance(key, Column):
            keys.append((name, key))
            continue
        fresh = _fresh_name(taken)
        computed.append((fresh, key))
        keys.append((name, Column(fresh, key.type, key.nullable)))
    if computed:
        branches = child.inputs if isinstance(child, UnionAll) else (child,)
        wider = tuple(Project(b, (*column_refs(b.schema), *computed)) for b in branches)
        child = wider[0] if len(wider) == 1 else UnionAll(wider)
    by = tuple(key.name for _, key in keys if isinstance(key, Column))
    return replace(node, child=Exchange(child, by), keys=tuple(keys))


def _fresh_name(taken: set[str]) -> str:
    number = next(n for n in range(len(taken) + 1) if f"{KEY_PREFIX}{n}" not in taken)
    taken.add(f"{KEY_PREFIX}{number}")
    return f"{KEY_PREFIX}{number}"
