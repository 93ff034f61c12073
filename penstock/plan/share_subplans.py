"""Rule: a sub-plan that occurs more than once is computed once, into an internal stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.names import own_name
from penstock.operators.specs import SparkSpec, is_stateful
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    Step,
    StreamRef,
    children,
    scan,
    walk,
    with_children,
)
from penstock.plan.query import Query, Write


def share_subplans(query: Query) -> Query:
    """Write each largest repeated relation to `<query>.shared.<n>` and let its users read that.

    Worth sharing is what keeps state, goes to Spark or reads a source, which is then read, and its
    rows made, once. Stateless work on a stream is not: the log serves any number of readers, and
    doing such work again costs less than writing its result. Sub-plans shared inside other shared
    ones are found in the next round.
    """
    writes = query.writes
    number = 0
    while True:
        shared = _largest_repeated(writes)
        if shared is None:
            return replace(query, writes=writes)
        stream = StreamRef(own_name(query.name, "shared", number), internal=True)
        reader = scan((stream,), shared.schema, shared.event_time)
        users = tuple(
            replace(write, child=_replaced(write.child, shared, reader)) for write in writes
        )
        writes = _before_readers(Write(shared, stream), users)
        number += 1


def _largest_repeated(writes: tuple[Write, ...]) -> Relation | None:
    nodes = [node for write in writes for node in walk(write.child)]  # parents come first
    counts = Counter(nodes)
    return next((node for node in nodes if counts[node] > 1 and _worth_sharing(node)), None)


def _worth_sharing(node: Relation) -> bool:
    return any(
        (isinstance(part, Step) and (is_stateful(part.spec) or isinstance(part.spec, SparkSpec)))
        or (isinstance(part, Scan) and isinstance(part.relation, SourceRef))
        for part in walk(node)
    )


def _replaced(node: Relation, old: Relation, new: Relation) -> Relation:
    if node == old:
        return new
    return with_children(node, tuple(_replaced(child, old, new) for child in children(node)))


def _before_readers(write: Write, others: tuple[Write, ...]) -> tuple[Write, ...]:
    """Right before the first write that reads the stream: writers stand before readers."""
    for index, other in enumerate(others):
        for node in walk(other.child):
            if isinstance(node, Scan) and node.relation == (write.target,):
                return (*others[:index], write, *others[index:])
    return (*others, write)
