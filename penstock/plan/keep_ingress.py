"""Rule: what a source cannot deliver again is in the log before anything is made of it."""

from __future__ import annotations

from dataclasses import replace

from penstock.names import own_name
from penstock.plan.nodes import Relation, Scan, SourceRef, StreamRef, rewrite, scan, scans_of
from penstock.plan.query import Query, Write
from penstock.stages.program import NOT_REPLAYED


def keep_ingress(query: Query) -> Query:
    """Write such a source's rows to `<query>.ingress.<n>`, as they are, and read them from there.

    Whoever reads the same source in several places has the same rows in all of them.
    """
    kept: dict[Scan, Scan] = {}
    ingress = [write for write in query.writes if _is_ingress(write)]
    others = [write for write in query.writes if not _is_ingress(write)]
    for found in (each for write in others for each in scans_of(write.child)):
        relation = found.relation
        is_lost = isinstance(relation, SourceRef) and relation.spec.connector in NOT_REPLAYED
        if is_lost and found not in kept:
            stream = StreamRef(own_name(query.name, "ingress", len(ingress)), internal=True)
            ingress.append(Write(found, stream))
            kept[found] = scan((stream,), found.schema, found.event_time)

    def change(node: Relation) -> Relation:
        return kept.get(node, node) if isinstance(node, Scan) else node

    if not kept:
        return query
    readers = (replace(write, child=rewrite(write.child, change)) for write in others)
    return replace(query, writes=(*ingress, *readers))


def _is_ingress(write: Write) -> bool:
    return write.target.internal and isinstance(write.child, Scan)
