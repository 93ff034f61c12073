"""Rule: how many vertices run each stage, and into how many substreams each stream is cut."""

from __future__ import annotations

from dataclasses import replace

from penstock.operators.specs import is_stateful
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    StreamRef,
    rewrite,
    scans_of,
    spec_of,
    walk,
)
from penstock.plan.query import Query, Write


def cut_vertices(query: Query) -> Query:
    """Give stages vertices and streams substreams.

    A stage that owns keys gets as many vertices as the query's parallelism, one key range each, and
    its exchange as many substreams. A stage without state gets one vertex per part of its input, up
    to the parallelism. State that is not reached through an exchange has one vertex, and so has
    what the driver hosts. A stream that is there already, with more substreams than vertices write
    it, keeps them.
    """
    by_key: set[str] = set()
    substreams: dict[str, int] = {}
    for write in query.writes:
        name, count = write.stream, write.target.substreams
        if write.target.internal and write.partition_by:
            by_key.add(name)
            count = query.parallelism
        substreams[name] = max(count, substreams.get(name, 1))
    counts: list[int] = []
    for write in query.writes:  # writers before readers
        count = _vertices(write, query.parallelism, substreams, by_key)
        counts.append(count)
        if write.stream not in by_key:
            substreams[write.stream] = max(count, substreams.get(write.stream, 1))
    writes = tuple(
        _cut(write, count, substreams) for write, count in zip(query.writes, counts, strict=True)
    )
    return replace(query, writes=writes)


def _vertices(write: Write, parallelism: int, substreams: dict[str, int], by_key: set[str]) -> int:
    trunk = write.trunk or write.child
    scans = scans_of(trunk)
    parts = max(_parts(scan, parallelism, substreams) for scan in scans)
    specs = [spec for spec in map(spec_of, walk(trunk)) if spec is not None]
    if any(spec.is_on_driver for spec in specs):
        return 1  # there is one driver
    if any(map(is_stateful, specs)):
        return parts if all(_is_by_key(scan, by_key) for scan in scans) else 1
    return min(parts, parallelism)


def _parts(scan: Scan, parallelism: int, substreams: dict[str, int]) -> int:
    if isinstance(scan.relation, SourceRef):
        return scan.relation.partitions or parallelism
    return max(substreams.get(s.name, s.substreams) for s in scan.relation)


def _is_by_key(scan: Scan, by_key: set[str]) -> bool:
    return isinstance(scan.relation, tuple) and scan.relation[0].name in by_key


def _cut(write: Write, count: int, substreams: dict[str, int]) -> Write:
    def sized(stream: StreamRef) -> StreamRef:
        return replace(stream, substreams=substreams.get(stream.name, stream.substreams))

    def change(node: Relation) -> Relation:
        if isinstance(node, Scan) and isinstance(node.relation, tuple):
            return replace(node, relation=tuple(sized(stream) for stream in node.relation))
        return node

    return replace(
        write,
        child=rewrite(write.child, change),
        trunk=None if write.trunk is None else rewrite(write.trunk, change),
        target=sized(write.target),
        vertices=count,
    )
