"""Rule: a sub-plan that occurs more than once is computed once, for all who read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.json_codec import canonical_json
from penstock.names import own_name
from penstock.operators.specs import (
    FilterSpec,
    PythonRowsSpec,
    PythonSpec,
    SparkSpec,
    StatefulSpec,
    WatermarkSpec,
)
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    StreamRef,
    UnionAll,
    children,
    producers,
    scan,
    spec_of,
    walk,
    with_children,
)
from penstock.plan.query import Query, Write
from penstock.stages.identity import source_identity
from penstock.stages.program import Program

SHARED = "shared"

_COSTLY = (SparkSpec, PythonSpec, PythonRowsSpec)


def share_subplans(query: Query) -> Query:
    """Write each largest repeated relation to `<query>.shared.<n>` and let its users read that.

    `fuse_branches` decides which of the users become outputs of what they share, and need no such
    stream. Sub-plans shared inside other shared ones are found in the next round. Results of two
    cohorts share nothing: they are at other places of their input. A source that a stored query
    shared goes on as it was, also if only one of its users is left.
    """
    writes = query.writes
    number = 0
    while True:
        found = _largest_repeated(writes) or _shared_before(writes, query.stored)
        if found is None:
            return replace(query, writes=writes)
        cohort, shared = found
        name = own_name(query.name, SHARED, number)
        is_kept = any(isinstance(spec_of(node), StatefulSpec) for node in walk(shared))
        count = 1 if is_kept else producers(shared, query.parallelism)
        stream = StreamRef(name, count, internal=True)
        reader = scan((stream,), shared.schema, shared.event_time)
        users = tuple(
            replace(write, child=_replaced(write.child, shared, reader))
            if write.cohort == cohort
            else write
            for write in writes
        )
        writes = _before_readers(Write(shared, stream, cohort=cohort), users)
        number += 1


def is_shared(stream: StreamRef) -> bool:
    """Whether a stream is one that this rule made."""
    return stream.internal and stream.name.split(".")[1:2] == [SHARED]


def _largest_repeated(writes: tuple[Write, ...]) -> tuple[int, Relation] | None:
    nodes = [
        (write.cohort, node) for write in writes for node in walk(write.child)
    ]  # parents first
    counts = Counter(nodes)
    has_unions = any(isinstance(node, UnionAll) for _, node in nodes)
    return next(
        (each for each in nodes if counts[each] > 1 and _worth_sharing(each[1], has_unions)), None
    )


def _shared_before(
    writes: tuple[Write, ...], stored: Program | None
) -> tuple[int, Relation] | None:
    """A source whose rows went to a stream for users of all kinds, with all their values."""
    kept = {
        (stage.cohort, canonical_json(source_identity(stage.source)))
        for stage in (() if stored is None else stored.stages)
        if stage.source is not None
        and stage.source.replayable  # where it is not, filters stand before the stream or behind
        and not stage.operators  # the rows are those that were read, not what a state made of them
        and stored is not None
        and any(
            stored.stream(output.stream).role == "internal"
            and not output.partition_by
            and all(isinstance(spec, FilterSpec) for spec in output.steps)
            for output in stage.outputs
        )
        and all(isinstance(spec, FilterSpec | WatermarkSpec) for spec in stage.ports[0].front)
        and not any(isinstance(spec, WatermarkSpec) for spec in stage.ports[0].front[1:])
    }
    for write in writes:
        for node in walk(write.child):
            if is_shared(write.target) and node == write.child:
                continue  # it is so already
            if isinstance(node, Scan) and isinstance(node.relation, SourceRef):
                identity = canonical_json(source_identity(node.relation.spec))
                if (write.cohort, identity) in kept:
                    return write.cohort, node
    return None


def _worth_sharing(node: Relation, has_unions: bool) -> bool:
    """Streams of the log serve any number of readers, and where they are united, each at once."""
    if _is_shared_scan(node):
        return False
    return not has_unions or any(
        isinstance(spec_of(part), (StatefulSpec, *_COSTLY))
        or (isinstance(part, Scan) and isinstance(part.relation, SourceRef))
        for part in walk(node)
    )


def _is_shared_scan(node: Relation) -> bool:
    """Whether it only reads what is shared already."""
    return (
        isinstance(node, Scan)
        and isinstance(node.relation, tuple)
        and any(map(is_shared, node.relation))
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
