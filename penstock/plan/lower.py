"""From a query whose writes are fused stages to the program that slots run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import PlanError, UnsupportedPlan
from penstock.expressions.types import Field, Schema
from penstock.operators.specs import (
    OBSERVED,
    ObserveSpec,
    OperatorSpec,
    StatelessSpec,
    WatermarkSpec,
    cut_at_state,
    is_stateful,
)
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    Step,
    spec_of,
    walk,
)
from penstock.plan.place_exchanges import KEY_PREFIX
from penstock.plan.push_up_persistence import INGRESS, is_ingress
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
    observed_stream,
    show_schema,
)


def lower(query: Query) -> Program:
    """Translate writes of one trunk into a stage and cut the stages into vertices."""
    together = _together(query)
    planned = [_stage(f"s{number}", writes) for number, writes in enumerate(together)]
    inner = {write.stream: _word(write) for write in query.writes if write.target.internal}
    stages = named_stages(query.name, planned, inner, query.stored)
    _check_cleaned_once(stages)
    _check_sent_to_one(stages)
    renamed = {
        old.stream: new.stream
        for before, after in zip(planned, stages, strict=True)
        for old, new in zip(before.outputs, after.outputs, strict=True)
    }
    streams = tuple(
        replace(stream, name=renamed.get(stream.name, stream.name)) for stream in _streams(query)
    )
    named = {stream.name: stream for stream in streams}
    vertices = tuple(
        vertex
        for index, (stage, writes) in enumerate(zip(stages, together, strict=True))
        for vertex in cut_stage(query.name, index, stage, named, query.settings, writes[0].vertices)
    )
    return Program(query.name, query.settings, streams, tuple(stages), vertices, query.cohorts)


def _together(query: Query) -> list[list[Write]]:
    """The writes of each stage, where the first of them stands."""
    found: dict[tuple[int, Relation], list[Write]] = {}
    for write in query.writes:
        found.setdefault((write.cohort, write.trunk or write.child), []).append(write)
    return list(found.values())


def _stage(name: str, writes: list[Write]) -> Stage:
    first = writes[0]
    trunk = first.child if len(writes) == 1 else first.trunk or first.child
    specs, below = _chain(trunk)
    if len(below) == 1:
        front, operators = cut_at_state(specs)
        ports: tuple[Port, ...] = (_port(below[0], front),)
    else:
        operators, fronts = specs, [_chain(side) for side in below]
        ports = tuple(_port(scans[0], cut_at_state(its)[0]) for its, scans in fronts)
    outputs = tuple(
        StageOutput(write.stream, write.partition_by, write.child.schema, _way(write.child, trunk))
        for write in writes
    )
    return Stage(name, ports, tuple(operators), outputs, first.cohort)


def _way(node: Relation, trunk: Relation) -> tuple[StatelessSpec, ...]:
    """The steps from a trunk to what is written."""
    specs: list[OperatorSpec] = []
    while node != trunk:
        assert isinstance(node, Step), "a write stands above its trunk"
        specs.append(node.spec)
        node = node.child
    front, rest = cut_at_state(tuple(reversed(specs)))
    assert not rest, "behind a trunk nothing keeps state"
    return front


def _chain(node: Relation) -> tuple[tuple[OperatorSpec, ...], tuple[Relation, ...]]:
    """The operators in a row above a scan, or above the inputs that meet in the first of them."""
    specs: list[OperatorSpec] = []
    while isinstance(node, Step):
        specs.append(node.spec)
        if len(node.inputs) > 1:
            return tuple(reversed(specs)), node.inputs
        node = node.child
    return tuple(reversed(specs)), (node,)


def _port(leaf: Relation, front: tuple[StatelessSpec, ...]) -> Port:
    assert isinstance(leaf, Scan), "lower takes fused stages"
    source = leaf.relation.spec if isinstance(leaf.relation, SourceRef) else None
    read = () if isinstance(leaf.relation, SourceRef) else tuple(s.name for s in leaf.relation)
    is_timed = bool(leaf.event_time) or any(isinstance(spec, WatermarkSpec) for spec in front)
    return Port(source, read, leaf.schema, front, is_timed)


def _word(write: Write) -> str:
    """What an internal stream is called before its digest."""
    if is_ingress(write.target):
        return INGRESS
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
    specs = (spec_of(node) for write in query.writes for node in walk(write.child))
    observed: tuple[StreamSpec, ...] = ()
    if any(isinstance(spec, ObserveSpec) for spec in specs):
        observed = (StreamSpec(observed_stream(query.name), OBSERVED, 1, "internal"),)
    return (*read.values(), *written.values(), *_late_stream(query), *observed)


def _check_cleaned_once(stages: Sequence[Stage]) -> None:
    """A folder that is cleaned up has one reader: what another has still to read would be gone."""
    read: dict[Any, list[Stage]] = {}
    for stage in stages:
        if stage.source is not None and "path" in stage.source.options:
            read.setdefault(stage.source.options["path"], []).append(stage)
    for path, readers in read.items():
        cleaned = any(_cleans(stage) for stage in readers)
        if cleaned and len(readers) > 1:
            raise UnsupportedPlan(
                f"{path} is read by {len(readers)} stages of the query, each in its own time, and "
                "cleanSource would remove files that one has read and another has not: read it "
                "once, in one DataFrame that all parts use and from the first start on, or "
                "without cleanSource",
                node="scan",
                path=path,
            )


def _check_sent_to_one(stages: Sequence[Stage]) -> None:
    """Producers send each row once: to one stage."""
    sources = [stage.source for stage in stages if stage.source is not None]
    ports = [each.options.get("port") for each in sources if each.connector == "producers"]
    for port in ports:
        if ports.count(port) > 1:
            raise UnsupportedPlan(
                f"producers of port {port} would send to {ports.count(port)} stages of the query, "
                "and each row comes once: read it once, in one DataFrame that all parts use and "
                "from the first start on, or write the rows to a stream and read that",
                node="scan",
                port=port,
            )


def _cleans(stage: Stage) -> bool:
    return stage.source is not None and stage.source.options.get("clean", "off") != "off"


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
    """The stream of late rows, without added keys: of each operator that finds some the columns
    that it reads, and the others null."""
    name = query.settings.late_stream
    if name is None:
        return ()
    nodes = [node for write in query.writes for node in walk(write.child)]
    schemas = [schema for node in nodes for schema in _late_rows(node)]
    if not schemas:
        raise PlanError(
            f"lateStream is {name!r}, but no watermark ends anything in query {query.name}: no "
            "row can be late; leave the option out",
            stream=name,
        )
    fields: dict[str, Field] = {}
    for column in (column for schema in schemas for column in schema):
        known = fields.setdefault(column.name, column)
        if known.type != column.type:
            raise UnsupportedPlan(
                f"late rows would go to stream {name!r} with column {column.name} as {known.type} "
                f"and as {column.type}: rename one of them, or keep late rows in two queries",
                stream=name,
                column=column.name,
            )
    found = tuple(
        replace(column, nullable=any(_may_be_null(schema, column.name) for schema in schemas))
        for column in fields.values()
    )
    return (StreamSpec(name, found, 1, "output"),)


def _may_be_null(schema: Schema, name: str) -> bool:
    return next((column.nullable for column in schema if column.name == name), True)


def _late_rows(node: Relation) -> list[Schema]:
    """The columns of the rows that may be late for a node, by input."""
    if not isinstance(node, Step) or not is_stateful(node.spec) or not node.spec.drops_late:
        return []
    return [
        tuple(column for column in below.schema if not column.name.startswith(KEY_PREFIX))
        for below in node.inputs
    ]
