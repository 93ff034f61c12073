"""Rule: what a source cannot deliver again is in the log before anything is kept of it, and behind
what makes it smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from penstock.expressions.tree import Expression, call, may_fail
from penstock.kernels.support import conjuncts
from penstock.names import own_name
from penstock.operators.specs import FilterSpec, ProjectSpec
from penstock.plan.nodes import (
    Exchange,
    Relation,
    Scan,
    SourceRef,
    Step,
    StreamRef,
    UnionAll,
    children,
    in_one_stage,
    producers,
    scan,
    step,
    with_children,
)
from penstock.plan.prune_columns import prune_columns, row_bytes
from penstock.plan.query import Query, Write

INGRESS = "ingress"


def push_up_persistence(query: Query) -> Query:
    """Write such a source's rows to `<query>.ingress.<n>` and read them from there.

    Filters, and projections that give fewer bytes a row, go in front of that stream. Nothing that
    may fail does: a row that fails would be gone with its source. Nor does what keeps state or adds
    rows: it would write more, and let who sends the rows wait longer for the word that they are
    safe. Where all that stands between a source and another stream may go in front, that stream is
    the one that persists, unless a trigger holds it back. With the guarantee `unsafe` nothing is.
    """
    if query.settings.guarantee == "unsafe":
        return query
    cutting = _Cutting(query)
    writes = tuple(map(cutting.cut, query.writes))
    if not cutting.ingress:
        return query
    # Columns that only what went in front has read are not persisted.
    return prune_columns(replace(query, writes=(*cutting.ingress, *writes)))


def ingress_name(query: Query, more: int) -> str:
    """What the next of its streams of this kind is called, where so many will be added."""
    taken = sum(is_ingress(write.target) for write in query.writes)
    return own_name(query.name, INGRESS, taken + more)


def is_ingress(stream: StreamRef) -> bool:
    """Whether a stream is one that this rule made."""
    return stream.internal and stream.name.split(".")[1:2] == [INGRESS]


def is_safe(node: Relation) -> bool:
    """Whether only filters and projections stand above a scan, none of which can fail."""
    while isinstance(node, Step):
        if not isinstance(node.spec, FilterSpec | ProjectSpec):
            return False
        if any(map(may_fail, node.spec.expressions())):
            return False
        node = node.child
    return isinstance(node, Scan)


def is_once(node: Relation) -> bool:
    """Whether it is a source whose rows come once."""
    return (
        isinstance(node, Scan)
        and isinstance(node.relation, SourceRef)
        and not node.relation.spec.replayable
    )


@dataclass
class _Cutting:
    """Cuts trees above their sources, and collects what is written there."""

    query: Query
    ingress: list[Write] = field(default_factory=list)

    def cut(self, write: Write) -> Write:
        is_held_back = self.query.settings.trigger_interval_ms is not None
        is_stored = write.target.internal or not is_held_back
        return replace(write, child=self._kept(write.child, is_stored, write.cohort))

    def _kept(self, node: Relation, is_stored: bool, cohort: int) -> Relation:
        """The relation over what is persisted; `is_stored`: so is what it gives."""
        if is_safe(node) and any(map(is_once, in_one_stage(node))):
            return node if is_stored else self._persisted(node, cohort)
        if any(map(is_once, in_one_stage(node))):
            node = _split(node)
        is_stored = isinstance(node, Exchange) or (isinstance(node, UnionAll) and is_stored)
        below = (self._kept(child, is_stored, cohort) for child in children(node))
        return with_children(node, tuple(below))

    def _persisted(self, node: Relation, cohort: int) -> Relation:
        """Read from a stream that is written behind the last step that makes rows fewer or
        smaller."""
        if isinstance(node, Step) and not _shrinks(node):
            return step(node.spec, self._persisted(node.child, cohort))
        name = ingress_name(self.query, len(self.ingress))
        stream = StreamRef(name, producers(node, self.query.parallelism), internal=True)
        self.ingress.append(Write(node, stream, cohort=cohort))
        return scan((stream,), node.schema, node.event_time)


def _shrinks(node: Step) -> bool:
    if isinstance(node.spec, FilterSpec):
        return True
    return row_bytes(node.schema) < row_bytes(node.child.schema)


def _split(node: Relation) -> Relation:
    """A filter as two where a part of it may go in front."""
    if not isinstance(node, Step) or not isinstance(node.spec, FilterSpec):
        return node
    sure: list[Expression] = []
    others: list[Expression] = []
    for part in conjuncts(node.spec.condition):
        # What stands behind one that may fail may be there for rows that this one lets through.
        (others if others or may_fail(part) else sure).append(part)
    if not sure or not others:
        return node
    return step(FilterSpec(_all(others)), step(FilterSpec(_all(sure)), node.child))


def _all(parts: Sequence[Expression]) -> Expression:
    return reduce(partial(call, "and"), parts)
