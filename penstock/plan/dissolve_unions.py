"""Rule: a union becomes several writers of one stream, or one reader of several streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from penstock.operators.specs import (
    FilterSpec,
    GenerateSpec,
    ObserveSpec,
    ProjectSpec,
    PythonRowsSpec,
    PythonSpec,
    StaticJoinSpec,
    WatermarkSpec,
)
from penstock.plan.nodes import Relation, Scan, SourceRef, Step, UnionAll, rewrite, scan, step
from penstock.plan.query import Query, Write

STATELESS = (
    FilterSpec, ProjectSpec, GenerateSpec, ObserveSpec, PythonSpec, PythonRowsSpec, StaticJoinSpec,
    WatermarkSpec,
)  # fmt: skip


def dissolve_unions(query: Query) -> Query:
    """Move stateless operators below unions until a union stands under an aggregate or a write.

    Under a write its branches become writes of their own. Bare scans of streams with the same
    columns become one scan. A watermark that is moved into the branches stays one: it is numbered.
    """
    writes: list[Write] = []
    numbers = count()
    for write in query.writes:
        child = rewrite(write.child, lambda node: _dissolved(node, numbers))
        branches = child.inputs if isinstance(child, UnionAll) else (child,)
        writes.extend(replace(write, child=branch) for branch in branches)
    return replace(query, writes=tuple(writes))


def _dissolved(node: Relation, numbers: Iterator[int]) -> Relation:
    if isinstance(node, UnionAll):
        return _flat(node)
    if not isinstance(node, Step) or not isinstance(node.spec, STATELESS):
        return node
    if not isinstance(node.child, UnionAll):
        return node
    spec = node.spec
    if isinstance(spec, WatermarkSpec) and spec.union is None:
        spec = replace(spec, union=next(numbers))
    below = node.child.inputs
    return UnionAll(tuple(_dissolved(step(spec, branch), numbers) for branch in below))


def _flat(union: UnionAll) -> Relation:
    branches: list[Relation] = []
    for branch in union.inputs:
        for part in branch.inputs if isinstance(branch, UnionAll) else (branch,):
            joined = _joined(branches[-1], part) if branches else None
            if joined is None:
                branches.append(part)
            else:
                branches[-1] = joined
    return branches[0] if len(branches) == 1 else UnionAll(tuple(branches))


def _joined(left: Relation, right: Relation) -> Relation | None:
    """One scan of the streams of two, unless a stream is in both: a stage reads a row once.

    What is shared is left alone: its reader may become a part of what writes it.
    """
    if not isinstance(left, Scan) or not isinstance(right, Scan):
        return None
    if isinstance(left.relation, SourceRef) or isinstance(right.relation, SourceRef):
        return None
    streams = (*left.relation, *right.relation)
    distinct = len({stream.name for stream in streams}) == len(streams)
    if (
        not distinct
        or any(stream.internal for stream in streams)
        or left.event_time != right.event_time
    ):
        return None
    return scan(streams, UnionAll((left, right)).schema, left.event_time)
