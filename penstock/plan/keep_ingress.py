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
    kept: dict[tuple[int, Scan], Scan] = {}
    ingress = [write for write in query.writes if _is_ingress(write)]
    others = [write for write in query.writes if not _is_ingress(write)]
    for cohort, found in ((w.cohort, each) for w in others for each in scans_of(w.child)):
        relation = found.relation
        is_lost = isinstance(relation, SourceRef) and relation.spec.connector in NOT_REPLAYED
        if is_lost and (cohort, found) not in kept:
            stream = StreamRef(own_name(query.name, "ingress", len(ingress)), internal=True)
            ingress.append(Write(found, stream, cohort=cohort))
            kept[cohort, found] = scan((stream,), found.schema, found.event_time)
    if not kept:
        return query

    def reading(write: Write) -> Write:
        def change(node: Relation) -> Relation:
            return kept.get((write.cohort, node), node) if isinstance(node, Scan) else node

        return replace(write, child=rewrite(write.child, change))

    return replace(query, writes=(*ingress, *map(reading, others)))


def _is_ingress(write: Write) -> bool:
    return write.target.internal and isinstance(write.child, Scan)
