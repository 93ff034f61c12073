"""Rule: every write becomes scans, where they meet, a linear chain, and one stream."""

from __future__ import annotations

from dataclasses import replace

from penstock.names import own_name
from penstock.plan.nodes import (
    Exchange,
    Relation,
    StreamRef,
    UnionAll,
    children,
    scan,
    scans_of,
    stream_names,
    walk,
    with_children,
)
from penstock.plan.query import Query, Write


def fuse_stages(query: Query) -> Query:
    """Cut the trees at their exchanges, into internal streams `<query>.exchange.<n>`.

    Everything between two cuts runs fused in one stage. Writers come before readers.
    """
    cutter = _Cutter(query.name)
    writes: list[Write] = []
    for write in query.writes:
        child = cutter.cut(write.child)
        writes.extend(replace(each, cohort=write.cohort) for each in cutter.take_writes())
        writes.append(replace(write, child=child))
    for write in writes:
        assert _is_fused(write.child), f"{write.label} is not fused: dissolve unions first"
    return replace(query, writes=in_dependency_order(writes))


class _Cutter:
    """Replaces exchanges by scans and collects the writes that feed these."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.writes: list[Write] = []
        self.streams = 0

    def cut(self, node: Relation) -> Relation:
        if not isinstance(node, Exchange):
            return with_children(node, tuple(self.cut(child) for child in children(node)))
        branches = node.child.inputs if isinstance(node.child, UnionAll) else (node.child,)
        fed = [self.cut(branch) for branch in branches]
        stream = StreamRef(own_name(self.query, "exchange", self.streams), internal=True)
        self.streams += 1
        self.writes.extend(Write(branch, stream, node.keys) for branch in fed)
        return scan((stream,), node.schema, node.event_time)

    def take_writes(self) -> list[Write]:
        taken, self.writes = self.writes, []
        return taken


def in_dependency_order(writes: list[Write]) -> tuple[Write, ...]:
    """The writes in the same order, except that a stream's writers stand before its readers."""
    ordered: list[Write] = []
    waiting = list(writes)
    while waiting:
        pending = {write.stream for write in waiting}
        ready = next(write for write in waiting if not _reads(write) & pending)
        waiting.remove(ready)
        ordered.append(ready)
    return tuple(ordered)


def _reads(write: Write) -> set[str]:
    return {name for scan in scans_of(write.child) for name in stream_names(scan)}


def _is_fused(relation: Relation) -> bool:
    return not any(isinstance(node, UnionAll | Exchange) for node in walk(relation))
