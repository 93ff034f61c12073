"""Rule: stateless users of what they share become outputs of the stage that computes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.operators.specs import (
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
    Step,
    StreamRef,
    children,
    in_one_stage,
    is_on_driver,
    rewrite,
    scans_of,
    spec_of,
    step,
    stream_names,
    walk,
    with_children,
)
from penstock.plan.prune_columns import with_columns
from penstock.plan.push_up_persistence import is_once, is_safe
from penstock.plan.query import Query, Write
from penstock.plan.share_subplans import is_shared


def fuse_branches(query: Query) -> Query:
    """Let writes have the trunk of what they share, where only stateless steps lie between.

    They commit with it then, under one marker. Who keeps state, has a watermark of his own or needs
    the driver is a stage of his own, and reads the shared stream; or what it was made of, if that
    is a stream already. Shared streams that nobody reads any more are not written.
    """
    writes = query.writes
    shared = [write.target for write in query.writes if is_shared(write.target)]
    for stream in () if query.times_apart else shared:
        writes = _timed_together(writes, stream)
    done: list[Write] = []
    for write in writes:  # writers before readers
        done.extend(_fused(write, done))
    read = {name for write in done for each in scans_of(write.child) for name in stream_names(each)}
    kept = [w for w in done if not is_shared(w.target) or w.stream in read]
    trunks = Counter((write.cohort, write.trunk or write.child) for write in kept)
    alone = [write.trunk and trunks[write.cohort, write.trunk] == 1 for write in kept]
    return replace(
        query, writes=tuple(_alone(w) if is_so else w for w, is_so in zip(kept, alone, strict=True))
    )


def _timed_together(writes: tuple[Write, ...], stream: StreamRef) -> tuple[Write, ...]:
    """The one watermark that readers of a shared stream define right there, defined before it.

    The rows that it goes by are the same ones; for who has none it says nothing. Who has one of
    rows that he has filtered first goes by fewer rows, and would have both.
    """
    writers = [write for write in writes if write.target == stream]
    specs = (spec_of(node) for write in writers for node in in_one_stage(write.child))
    streams = _made_of(writes, stream)
    above = [node for write in writes for node in _watermarks(write.child, streams)]
    found = {node.spec for node in above}
    if len(found) != 1 or any(isinstance(spec, StatefulSpec | WatermarkSpec) for spec in specs):
        return writes
    if not all(_is_over(node, stream) for node in above):
        return writes
    (watermark,) = found

    def change(node: Relation) -> Relation:
        if _is_over(node, stream):
            return children(node)[0]
        if isinstance(node, Scan) and node.relation == (stream,):
            timed = isinstance(watermark, WatermarkSpec) and watermark.column
            names = {field.name for field in node.schema}
            return replace(node, event_time=(timed,) if timed and timed in names else ())
        return node

    return tuple(
        replace(write, child=step(watermark, write.child))
        if write.target == stream
        else replace(write, child=rewrite(write.child, change))
        for write in writes
    )


def _made_of(writes: tuple[Write, ...], stream: StreamRef) -> set[str]:
    """A shared stream, and those that are made of its rows."""
    found = {stream.name}
    for write in writes:  # writers before readers
        read = (name for each in scans_of(write.child) for name in stream_names(each))
        if is_shared(write.target) and found.intersection(read):
            found.add(write.stream)
    return found


def _watermarks(relation: Relation, streams: set[str]) -> list[Step]:
    """The watermarks that readers of these streams define, wherever they stand above them."""
    return [
        node
        for node in walk(relation)
        if isinstance(node, Step)
        and isinstance(node.spec, WatermarkSpec)
        and any(streams.intersection(stream_names(each)) for each in scans_of(node))
    ]


def _is_over(node: Relation, stream: StreamRef) -> bool:
    """Whether a watermark stands right above the scan of a stream."""
    if not isinstance(node, Step) or not isinstance(node.spec, WatermarkSpec):
        return False
    return isinstance(node.child, Scan) and node.child.relation == (stream,)


def _alone(write: Write) -> Write:
    """A write that shares its trunk with no other in the end, and needs no column for them."""
    return replace(write, child=with_columns(write.child, write.child.schema), trunk=None)


def _fused(write: Write, before: list[Write]) -> list[Write]:
    """The write as one, or more, that read no shared stream, if that can be."""
    shared = next((each for each in scans_of(write.child) if _is_shared(each)), None)
    if shared is None:
        return [write]
    writers = [each for each in before if each.stream in stream_names(shared)]
    if all(_is_branch(write.child, each) for each in writers):
        return [_branch(write, shared, each) for each in writers]
    if len(writers) == 1 and _is_of_streams(writers[0].child):
        (writer,) = writers
        child = _over(write.child, shared, with_columns(writer.child, shared.schema))
        return _fused(replace(write, child=child), before)
    return [write]


def _branch(write: Write, shared: Scan, writer: Write) -> Write:
    trunk = writer.trunk or writer.child
    child = _over(write.child, shared, writer.child)
    if child.schema != write.child.schema:  # it hands on what others need
        below = with_columns(writer.child, shared.schema, at_most=False)
        child = _over(write.child, shared, below)
    return replace(write, child=child, trunk=trunk)


def _over(node: Relation, old: Relation, new: Relation) -> Relation:
    if node == old:
        return new
    return with_children(node, tuple(_over(child, old, new) for child in children(node)))


def _is_shared(scan: Scan) -> bool:
    return isinstance(scan.relation, tuple) and any(map(is_shared, scan.relation))


def _is_branch(node: Relation, writer: Write) -> bool:
    """Whether what lies above a scan can be done where the rows that it reads are made.

    Of a source whose rows come once, nothing may keep a row from being stored.
    """
    if any(map(is_once, in_one_stage(writer.child))) and not is_safe(node):
        return False
    on_driver = any(map(is_on_driver, in_one_stage(writer.child)))
    while isinstance(node, Step):
        if isinstance(node.spec, StatefulSpec | WatermarkSpec):
            return False
        if isinstance(node.spec, PythonSpec | PythonRowsSpec) if on_driver else is_on_driver(node):
            return False
        (node,) = node.inputs
    return isinstance(node, Scan) and len(stream_names(node)) == 1


def _is_of_streams(relation: Relation) -> bool:
    """Whether it is cheaper to do again what leads to it than to write its rows."""
    return not any(
        isinstance(spec_of(node), StatefulSpec | SparkSpec | PythonSpec | PythonRowsSpec)
        or (isinstance(node, Scan) and isinstance(node.relation, SourceRef))
        for node in in_one_stage(relation)
    )
