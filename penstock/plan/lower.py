"""From a query whose writes are linear chains to the program that slots run."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import PlanError, UnsupportedPlan
from penstock.expressions.types import Field, Schema
from penstock.operators.specs import OperatorSpec, cut_at_state, is_stateful
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    Step,
    walk,
)
from penstock.plan.place_exchanges import KEY_PREFIX
from penstock.plan.query import Query, Write
from penstock.stages.identity import named_stages
from penstock.stages.program import (
    Port,
    Program,
    Stage,
    StageOutput,
    StreamRole,
    StreamSpec,
    cut_stage,
    shape,
    show_schema,
)


def lower(query: Query) -> Program:
    """Translate each write into a stage and cut the stages into vertices."""
    planned = [_stage(f"s{index}", write) for index, write in enumerate(query.writes)]
    inner = {write.stream: _word(write) for write in query.writes if write.target.internal}
    stages = tuple(named_stages(query.name, planned, inner))
    renamed = {
        old.output.stream: new.output.stream for old, new in zip(planned, stages, strict=True)
    }
    streams = tuple(
        replace(stream, name=renamed.get(stream.name, stream.name)) for stream in _streams(query)
    )
    named = {stream.name: stream for stream in streams}
    vertices = tuple(
        vertex
        for index, (stage, write) in enumerate(zip(stages, query.writes, strict=True))
        for vertex in cut_stage(query.name, index, stage, named, query.settings, write.vertices)
    )
    return Program(query.name, query.settings, streams, stages, vertices)


def _stage(name: str, write: Write) -> Stage:
    nodes = walk(write.child)
    leaf = nodes[-1]
    assert isinstance(leaf, Scan)
    specs: list[OperatorSpec] = []
    for node in reversed(nodes[:-1]):
        assert isinstance(node, Step), "lower takes fused stages"
        specs.append(node.spec)
    source = leaf.relation.spec if isinstance(leaf.relation, SourceRef) else None
    read = () if isinstance(leaf.relation, SourceRef) else tuple(s.name for s in leaf.relation)
    front, operators = cut_at_state(specs)
    return Stage(
        name,
        (Port(source, read, leaf.schema, front),),
        operators,
        StageOutput(write.stream, write.partition_by, write.child.schema),
    )


def _word(write: Write) -> str:
    """What an internal stream is called before its digest."""
    return f"by_{'_'.join(write.partition_by)}" if write.partition_by else "rows"


def _streams(query: Query) -> tuple[StreamSpec, ...]:
    written: dict[str, StreamSpec] = {}
    for write in query.writes:
        role: StreamRole = "internal" if write.target.internal else "output"
        spec = StreamSpec(write.stream, write.child.schema, write.target.substreams, role)
        written[spec.name] = _merged(written.get(spec.name), spec)
    read: dict[str, StreamSpec] = {}
    for scan in query.scans():
        if isinstance(scan.relation, tuple):
            for stream in scan.relation:
                if stream.name not in written:
                    spec = StreamSpec(stream.name, scan.schema, stream.substreams, "input")
                    read[stream.name] = _merged(read.get(stream.name), spec)
    late = _late_stream(query)
    return (*read.values(), *written.values(), *late)


def _merged(known: StreamSpec | None, spec: StreamSpec) -> StreamSpec:
    """One stream as seen from two places: the columns of both, null where either may be."""
    if known is None:
        return spec
    fields = {f.name: f for f in known.schema}
    for column in spec.schema:
        other = fields.get(column.name, column)
        if other.type != column.type or known.substreams != spec.substreams:
            raise PlanError(
                f"stream {spec.name} is used in two ways: {show_schema(known.schema)} in "
                f"{known.substreams} and {show_schema(spec.schema)} in {spec.substreams} parts",
                stream=spec.name,
                column=column.name,
            )
        fields[column.name] = Field(column.name, column.type, column.nullable or other.nullable)
    return StreamSpec(spec.name, tuple(fields.values()), spec.substreams, spec.role)


def _late_stream(query: Query) -> tuple[StreamSpec, ...]:
    """The stream of late rows: the columns that windowed aggregates read, without added keys."""
    name = query.settings.late_stream
    if name is None:
        return ()
    found: Schema | None = None
    for write in query.writes:
        for node in walk(write.child):
            schema = _late_rows(node)
            if schema is None:
                continue
            if found is not None and shape(found) != shape(schema):
                raise UnsupportedPlan(
                    f"late rows of two aggregates would go to stream {name!r} with different "
                    f"columns, {show_schema(found)} and {show_schema(schema)}; "
                    "keep late rows in a query of one aggregate",
                    stream=name,
                )
            found = found or schema
    if found is None:
        raise PlanError(
            f"late_stream is {name!r}, but no watermark ends a window of query {query.name}: no "
            "row can be late",
            stream=name,
        )
    return (StreamSpec(name, found, 1, "output"),)


def _late_rows(node: Relation) -> Schema | None:
    if not isinstance(node, Step) or not is_stateful(node.spec) or not node.spec.drops_late:
        return None
    return tuple(f for f in node.child.schema if not f.name.startswith(KEY_PREFIX))
