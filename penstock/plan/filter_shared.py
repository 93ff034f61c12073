"""Rule: rows that every reader of a shared stream drops first are not written to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce

from penstock.expressions.tree import Call, Expression, call, may_fail
from penstock.operators.specs import AggregateSpec, FilterSpec, StatefulSpec
from penstock.plan.nodes import (
    Relation,
    Scan,
    Step,
    children,
    in_one_stage,
    spec_of,
    step,
    stream_names,
    walk,
)
from penstock.plan.query import Query, Write
from penstock.plan.share_subplans import is_shared


def filter_shared(query: Query) -> Query:
    """Filter a shared stream by what one or the other of its readers wants.

    Each reader still filters for himself. What may fail is left to him, for it fails on rows that
    another one may want. An aggregate of all rows has a row once there was input, though no row
    passes: for its sake nothing is held back.
    """
    nodes = [node for write in query.writes for node in walk(write.child)]
    if any(map(_is_of_all, nodes)):
        return query
    readers = [(node, child) for node in nodes for child in children(node)]
    trunks = [write.trunk for write in query.writes]
    writes = tuple(_filtered(write, readers, trunks) for write in query.writes)
    return replace(query, writes=writes)


def _is_of_all(node: Relation) -> bool:
    spec = spec_of(node)
    return isinstance(spec, AggregateSpec) and not spec.keys and spec.window is None


def _filtered(
    write: Write, readers: list[tuple[Relation, Relation]], trunks: list[Relation | None]
) -> Write:
    stage = in_one_stage(write.child)
    if not is_shared(write.target) or any(isinstance(spec_of(n), StatefulSpec) for n in stage):
        return write
    above = [node for node, child in readers if _reads(child, write.stream)]
    wanted = [_wanted(node) for node in above]
    if not wanted or None in wanted:
        return write
    known = dict.fromkeys(each for each in wanted if each is not None)
    condition = reduce(partial(call, "or"), known)
    child = step(FilterSpec(condition), write.child)
    if spec_of(write.child) == child.spec:
        return write  # it is so already
    # Outputs that have the same trunk want other rows of it.
    trunk = write.trunk or (write.child if write.child in trunks else None)
    return replace(write, child=child, trunk=trunk)


def _reads(node: Relation, stream: str) -> bool:
    return isinstance(node, Scan) and stream in stream_names(node)


def _wanted(node: Relation) -> Expression | None:
    """What is sure to be true of the rows that a reader goes on with; None if nothing is."""
    if not isinstance(node, Step) or not isinstance(node.spec, FilterSpec):
        return None
    sure = [each for each in _conjuncts(node.spec.condition) if not may_fail(each)]
    return reduce(partial(call, "and"), sure) if sure else None


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Call) and condition.function == "and":
        for each in condition.args:
            yield from _conjuncts(each)
    else:
        yield condition
