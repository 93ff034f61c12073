"""Rule: with `push_up` off, what a source cannot deliver again is in the log as it gives it."""

from __future__ import annotations

from dataclasses import replace

from penstock.plan.nodes import Relation, StreamRef, producers, rewrite, scan
from penstock.plan.push_up_persistence import ingress_name, is_ingress, is_once
from penstock.plan.query import Query, Write


def persist_whole(query: Query) -> Query:
    """Write all columns of all rows of such a source to a stream, and read that one instead.

    It shows what filters and projections in front of that stream are worth: nothing else needs it.
    """
    if query.settings.push_up or query.settings.guarantee == "unsafe":
        return query
    ingress: list[Write] = []

    def persisted(node: Relation, cohort: int) -> Relation:
        if not is_once(node):
            return node
        name = ingress_name(query, len(ingress))
        stream = StreamRef(name, producers(node, query.parallelism), internal=True)
        ingress.append(Write(node, stream, cohort=cohort))
        return scan((stream,), node.schema, node.event_time)

    writes = []
    for write in query.writes:
        child = write.child
        if not is_ingress(write.target):
            child = rewrite(child, lambda node, cohort=write.cohort: persisted(node, cohort))  # type: ignore[misc]
        writes.append(replace(write, child=child))
    return replace(query, writes=(*ingress, *writes))
