"""Rule: nothing is read, kept or exchanged that nobody needs, down to the scans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.expressions.tree import Expression, columns_of
from penstock.expressions.types import INTEGER_BITS, Field, Schema
from penstock.operators.specs import AggregateCall
from penstock.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Generate,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    UnionAll,
    Watermark,
    column_refs,
    scans_of,
    stream_names,
)
from penstock.plan.query import Query, Write

_WIDTHS = {"boolean": 1, "float": 32, "date": 32, "double": 64, "timestamp": 64, **INTEGER_BITS}


def prune_columns(query: Query) -> Query:
    """Keep, per relation, the columns that its users read.

    An internal stream keeps what any of its readers needs, so readers are pruned before writers:
    writes stand before their readers, and are gone through from the end. Where late rows are kept
    an aggregate needs all its columns, for those rows leave with them.
    """
    keep_late = query.settings.late_stream is not None
    pruned: list[Write] = []
    for write in reversed(query.writes):
        needed = {f.name for f in write.child.schema}
        if write.target.internal:
            readers = [scan for reader in pruned for scan in scans_of(reader.child)]
            read = [scan for scan in readers if write.target.name in stream_names(scan)]
            needed = {f.name for scan in read for f in scan.schema} or needed
        child = _exactly(_pruned(write.child, needed, keep_late), _kept(write.child.schema, needed))
        pruned.append(replace(write, child=child))
    return replace(query, writes=tuple(reversed(pruned)))


def _pruned(node: Relation, needed: set[str], keep_late: bool) -> Relation:
    """The relation with the needed columns, and perhaps others that it needs itself."""
    if isinstance(node, Scan):
        kept = _kept(node.schema, needed) or (_narrowest(node.schema),)
        names = {f.name for f in kept}
        timed = tuple(name for name in node.event_time if name in names)
        return Scan(node.relation, kept, timed)
    if isinstance(node, Filter):
        return replace(node, child=_pruned(node.child, needed | _read(node.condition), keep_late))
    if isinstance(node, Watermark):
        return replace(node, child=_pruned(node.child, needed | {node.column}, keep_late))
    if isinstance(node, Project):
        return _pruned_project(node, needed, keep_late)
    if isinstance(node, Generate):
        below = needed - {node.output, node.position} | _read(node.expression)
        return replace(
            node, child=_pruned(node.child, below & _names(node.child.schema), keep_late)
        )
    if isinstance(node, UnionAll):
        kept = _kept(node.schema, needed) or (_narrowest(node.schema),)
        names = {f.name for f in kept}
        return UnionAll(
            tuple(_exactly(_pruned(part, names, keep_late), kept) for part in node.inputs)
        )
    if isinstance(node, Exchange):
        return replace(node, child=_pruned(node.child, needed | set(node.keys), keep_late))
    return _pruned_aggregate(node, needed, keep_late)


def _pruned_project(node: Project, needed: set[str], keep_late: bool) -> Relation:
    kept = tuple((name, item) for name, item in node.columns if name in needed)
    if not kept:  # rows are still counted: keep the column that costs least
        name = _narrowest(node.schema).name
        kept = tuple((other, item) for other, item in node.columns if other == name)
    below = _pruned(node.child, _read(*(item for _, item in kept)), keep_late)
    return Project(below, kept)


def _pruned_aggregate(
    node: Aggregate | PartialAggregate, needed: set[str], keep_late: bool
) -> Relation:
    if isinstance(node, PartialAggregate) or node.merge_partials:
        below = _names(node.child.schema)
        return replace(node, child=_pruned(node.child, below, keep_late))
    kept: tuple[AggregateCall, ...] = tuple(c for c in node.aggregates if c.name in needed)
    calls = kept or node.aggregates[:1]
    read = [item for _, item in node.keys]
    read += [call.argument for call in calls if call.argument is not None]
    if node.window is not None:
        read.append(node.window.time)
    below = _names(node.child.schema) if keep_late and node.window is not None else _read(*read)
    return replace(node, child=_pruned(node.child, below, keep_late), aggregates=calls)


def _exactly(node: Relation, wanted: Schema) -> Relation:
    """The relation with just these columns, where its schema must be what others rely on."""
    if [f.name for f in node.schema] == [f.name for f in wanted]:
        return node
    fields = {f.name: f for f in node.schema}
    return Project(node, column_refs(tuple(fields[f.name] for f in wanted)))


def _kept(schema: Schema, needed: Iterable[str]) -> Schema:
    names = set(needed)
    return tuple(f for f in schema if f.name in names)


def _names(schema: Schema) -> set[str]:
    return {f.name for f in schema}


def _read(*expressions: Expression) -> set[str]:
    return {column.name for item in expressions for column in columns_of(item)}


def _narrowest(schema: Schema) -> Field:
    return min(schema, key=lambda f: _WIDTHS.get(f.type.kind, 1_000))
