"""Rule: nothing is read, kept or exchanged that nobody needs, down to the scans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.expressions.tree import Expression, columns_of
from penstock.expressions.types import INTEGER_BITS, Field, Schema
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    AggregateSpec,
    DeduplicateSpec,
    FilterSpec,
    GenerateSpec,
    JoinSpec,
    LimitSpec,
    ObserveSpec,
    OperatorSpec,
    OverSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonGroupsSpec,
    PythonRowsSpec,
    PythonSpec,
    SortSpec,
    SparkSpec,
    StaticJoinSpec,
    TableSpec,
    WatermarkSpec,
)
from penstock.plan.nodes import (
    Exchange,
    Relation,
    Scan,
    UnionAll,
    column_refs,
    scan,
    scans_of,
    step,
    stream_names,
)
from penstock.plan.query import Query, Write

_WIDTHS = {"boolean": 1, "float": 32, "date": 32, "double": 64, "timestamp": 64, **INTEGER_BITS}
_OTHERS_BYTES = 20  # what a value without a fixed width is taken for


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
        is_whole = isinstance(write.child, Scan) and not query.settings.push_up
        if write.target.internal and not is_whole:
            readers = [scan for reader in pruned for scan in scans_of(reader.child)]
            read = [scan for scan in readers if write.target.name in stream_names(scan)]
            needed = {f.name for scan in read for f in scan.schema} or needed
        child = _exactly(_pruned(write.child, needed, keep_late), _kept(write.child.schema, needed))
        pruned.append(replace(write, child=child))
    return replace(query, writes=tuple(reversed(pruned)))


def with_columns(node: Relation, schema: Schema, *, at_most: bool = True) -> Relation:
    """The relation with these of its columns; without `at_most`, it still makes the others."""
    if at_most:
        node = _pruned(node, {f.name for f in schema}, keep_late=False)
    return _exactly(node, schema)


def _pruned(node: Relation, needed: set[str], keep_late: bool) -> Relation:
    """The relation with the needed columns, and perhaps others that it needs itself."""
    if isinstance(node, Scan):
        kept = _kept(node.schema, needed) or (_narrowest(node.schema),)
        names = {f.name for f in kept}
        timed = tuple(name for name in node.event_time if name in names)
        return scan(node.relation, kept, timed)
    if isinstance(node, UnionAll):
        kept = _kept(node.schema, needed) or (_narrowest(node.schema),)
        names = {f.name for f in kept}
        return UnionAll(
            tuple(_exactly(_pruned(part, names, keep_late), kept) for part in node.inputs)
        )
    if isinstance(node, Exchange):
        return replace(node, child=_pruned(node.child, needed | set(node.keys), keep_late))
    spec = _narrowed(node.spec, node.schema, needed)
    if isinstance(spec, SparkSpec | PythonSpec) and not spec.columns:
        return _pruned(node.child, needed, keep_late)
    below = [_needed_below(spec, side.schema, needed, keep_late) for side in node.inputs]
    sides = zip(node.inputs, below, strict=True)
    return step(spec, *(_pruned(side, names, keep_late) for side, names in sides))


def _narrowed(spec: OperatorSpec, schema: Schema, needed: set[str]) -> OperatorSpec:
    """The operator without the results that nobody needs."""
    if isinstance(spec, ProjectSpec):
        # Rows are still counted where no column is needed: keep the one that costs least.
        names = needed & _names(schema) or {_narrowest(schema).name}
        return ProjectSpec(tuple((name, item) for name, item in spec.columns if name in names))
    if isinstance(spec, StaticJoinSpec):
        names = needed | _read(*spec.expressions())
        read = tuple(item for item in spec.columns if item[0] in names)
        # Without keys it must still know how many rows the side has.
        return replace(spec, columns=read if spec.keys else read or spec.columns[:1])
    if isinstance(spec, AggregateSpec) and not spec.merge_partials:
        kept = tuple(call for call in spec.aggregates if call.name in needed)
        return replace(spec, aggregates=kept or spec.aggregates[:1])
    if isinstance(spec, SparkSpec):
        return SparkSpec(tuple(each for each in spec.columns if each.result.name in needed))
    if isinstance(spec, PythonSpec):
        return PythonSpec(tuple(each for each in spec.columns if each.result.name in needed))
    return spec


def _needed_below(
    spec: OperatorSpec, schema: Schema, needed: set[str], keep_late: bool
) -> set[str]:
    """The columns of its input that an operator reads or hands on."""
    read = _read(*spec.expressions())
    if isinstance(spec, DeduplicateSpec | JoinSpec | OverSpec | PythonGroupsSpec) and keep_late:
        return _names(schema)
    if isinstance(spec, JoinSpec | LimitSpec | ObserveSpec | SortSpec):
        return (needed | read | {WEIGHT_COLUMN}) & _names(schema) or {_narrowest(schema).name}
    if isinstance(spec, FilterSpec | DeduplicateSpec | OverSpec | TableSpec):
        return (needed | read) & _names(schema)
    if isinstance(spec, WatermarkSpec):
        return needed | {spec.column}
    if isinstance(spec, ProjectSpec | PythonGroupsSpec):
        return read
    if isinstance(spec, StaticJoinSpec):
        return (needed | read) & _names(schema)
    if isinstance(spec, GenerateSpec):
        return (needed - {spec.output, spec.position} | read) & _names(schema)
    if isinstance(spec, SparkSpec | PythonSpec):
        below = needed - {each.result.name for each in spec.columns} | read
        return below or {_narrowest(schema).name}
    if isinstance(spec, PythonRowsSpec):
        handed_on = needed - {each.name for each in spec.outputs} if spec.repeats else set()
        return handed_on | read or {_narrowest(schema).name}
    if isinstance(spec, PartialAggregateSpec):
        return read
    if spec.merge_partials:
        return _names(schema)
    return _names(schema) if keep_late and spec.window is not None else read


def _exactly(node: Relation, wanted: Schema) -> Relation:
    """The relation with just these columns, where its schema must be what others rely on."""
    if [f.name for f in node.schema] == [f.name for f in wanted]:
        return node
    fields = {f.name: f for f in node.schema}
    return step(ProjectSpec(column_refs(tuple(fields[f.name] for f in wanted))), node)


def _kept(schema: Schema, needed: Iterable[str]) -> Schema:
    names = set(needed)
    return tuple(f for f in schema if f.name in names)


def _names(schema: Schema) -> set[str]:
    return {f.name for f in schema}


def _read(*expressions: Expression) -> set[str]:
    return {column.name for item in expressions for column in columns_of(item)}


def row_bytes(schema: Schema) -> int:
    """How many bytes a row takes in memory, or about so many where there are texts."""
    bits = (_WIDTHS.get(field.type.kind, _OTHERS_BYTES * 8) for field in schema)
    return -(-sum(bits) // 8)


def _narrowest(schema: Schema) -> Field:
    return min(schema, key=lambda f: _WIDTHS.get(f.type.kind, 1_000))
