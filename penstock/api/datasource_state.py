"""The keyed state of a query as rows: checkpoint plus committed changes, read from outside.

A row is a group: its keys, the pane of event time it stands for if the query has a window, what its
aggregates are by now, and the vertex that holds it. Panes are what windows are made of: the same
for windows that do not overlap, and the common divisor of size and slide for those that do. Each
vertex is read as of its own last marker, without touching it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.api.datasource_schema import (
    check_readable,
    into_spark,
    schema_of_spark,
    spark_arrow_schema,
)
from penstock.api.function_state import VERTEX_COLUMN, FunctionRows, rows_of_function
from penstock.errors import StreamNotFound
from penstock.expressions.types import STRING, Field, Schema, arrow_schema, arrow_type
from penstock.json_codec import parse
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.operators.changing import shown_results
from penstock.operators.changing_aggregate import state_schemas as changing_states
from penstock.operators.changing_sessions import session_states
from penstock.operators.deduplicate import state_schema as distinct_state
from penstock.operators.groups import state_schema as group_state
from penstock.operators.items import KeptItems
from penstock.operators.sessions import session_column
from penstock.operators.specs import (
    AggregateSpec,
    DeduplicateSpec,
    PythonGroupsSpec,
    SessionSpec,
    WindowSpec,
    accumulators_of,
    operator_name,
)
from penstock.operators.windows import Windows
from penstock.runtime.recovery import restore_states
from penstock.runtime.slot import CHECKPOINTS_FOLDER
from penstock.stages.program import Program, VertexProgram
from penstock.state.checkpoint_files import LocalFiles
from penstock.state.checkpoints import CheckpointStore
from penstock.state.columns import PANE_NAME, StateSchema
from penstock.state.contract import State
from penstock.state.keyed import BYTES_MAX_DEFAULT, KeyedState

PANE_COLUMN = "_pane"


@dataclass(frozen=True)
class FoundState:
    """The state that a name stands for: of one operator, and the vertices that share its keys."""

    name: str
    spec: AggregateSpec | DeduplicateSpec | PythonGroupsSpec
    operator: str  # as chains name it
    vertices: tuple[VertexProgram, ...]
    of_function: FunctionRows | None = None  # which of the states of a function

    @property
    def schema(self) -> Schema:
        spec = self.spec
        if isinstance(spec, PythonGroupsSpec):
            assert self.of_function is not None
            return self.of_function.schema
        if isinstance(spec, DeduplicateSpec):
            named = zip(spec.key_names, spec.keys, strict=True)
            distinct = [Field(name, key.type, key.nullable) for name, key in named]
            return (*distinct, Field(VERTEX_COLUMN, STRING, False))
        keys = [Field(name, key.type, key.nullable) for name, key in spec.keys]
        pane = [] if spec.window is None else [Field(PANE_COLUMN, spec.window.type, False)]
        values = [Field(a.name, a.type, a.nullable) for a in spec.aggregates]
        return (*keys, *pane, *values, Field(VERTEX_COLUMN, STRING, False))


class VertexPartition(InputPartition):
    """The state of one vertex."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class StateReader(DataSourceReader):
    """Reads each vertex's state in a task of its own."""

    def __init__(self, path: str, name: str, schema: StructType, wanted: Mapping[str, Any]) -> None:
        self._path = path
        self._schema = schema
        with open_log(path, read_only=True) as log:
            self._state = find_state(log, name, wanted)
        check_readable(name, schema_of_spark(schema), self._state.schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [VertexPartition(index) for index in range(len(self._state.vertices))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, VertexPartition)
        vertex = self._state.vertices[partition.index]
        with open_log(self._path, read_only=True) as log:
            rows = read_state(log, Path(self._path), self._state, vertex)
        if rows.num_rows:
            yield into_spark(rows, spark_arrow_schema(self._schema))


def state_schema(path: str, name: str, wanted: Mapping[str, Any]) -> Schema:
    """The columns of a state, for planning."""
    with open_log(path, read_only=True) as log:
        return find_state(log, name, wanted).schema


def find_state(log: Log, name: str, wanted: Mapping[str, Any] = MappingProxyType({})) -> FoundState:
    """The state of a query or of one of its vertices; what there is, if the name fits nothing.

    `wanted` says which state of a function, by the names of `rows_of_function`.
    """
    states = [state for program in _programs(log) for state in states_of(program)]
    for state in states:
        for vertex in state.vertices:
            if vertex.name == name:
                return _of_function(replace(state, name=name, vertices=(vertex,)), wanted)
    found = [state for state in states if state.name == name]
    if len(found) == 1:
        return _of_function(found[0], wanted)
    vertices = ", ".join(vertex.name for state in found or states for vertex in state.vertices)
    raise StreamNotFound(
        f"query {name!r} keeps {len(found)} states: name one of the vertices {vertices}"
        if found
        else f"there is no query or vertex {name!r} in this log whose state can be read, which is "
        "that of groups, sessions, duplicates and Python functions; vertices with state: "
        f"{vertices or 'none'}",
        state=name,
    )


def _of_function(state: FoundState, wanted: Mapping[str, Any]) -> FoundState:
    if isinstance(state.spec, PythonGroupsSpec):
        rows = rows_of_function(state.name, state.operator, state.spec, wanted)
        return replace(state, of_function=rows)
    if wanted.get("variable") is not None:
        raise StreamNotFound(
            f"{state.name} keeps groups, which have no names: leave option stateVarName out",
            state=state.name,
        )
    return state


def _programs(log: Log) -> list[Program]:
    programs = []
    for key in log.keys("query"):
        stored = log.get(key)
        facts: Any = parse(stored.value) if stored is not None and stored.value else {}
        if isinstance(facts, dict) and isinstance(facts.get("program"), str):
            programs.append(Program.from_json(facts["program"]))
    return programs


def states_of(program: Program) -> list[FoundState]:
    """All states of a program."""
    return [
        FoundState(program.query, spec, operator_name(spec, place), program.stage_vertices(index))
        for index, stage in enumerate(program.stages)
        for place, spec in enumerate(stage.stateful)
        if isinstance(spec, AggregateSpec | DeduplicateSpec | PythonGroupsSpec)  # not whole rows
    ]


def read_state(log: Log, folder: Path, state: FoundState, vertex: VertexProgram) -> pa.RecordBatch:
    """The groups of one vertex as of its last marker."""
    spec = state.spec
    if isinstance(spec, PythonGroupsSpec):
        assert state.of_function is not None
        entries, of_all = state.of_function.states()
        _restore(log, folder, vertex, of_all)
        return state.of_function.rows(entries, vertex.name)
    schemas = _schemas_of(state.operator, spec)
    states: dict[str, State] = {name: KeyedState(name, schema) for name, schema in schemas.items()}
    kept = states[state.operator]
    assert isinstance(kept, KeyedState)
    items = None
    if isinstance(spec, AggregateSpec) and not spec.by_rows:
        items = KeptItems(state.operator, spec, BYTES_MAX_DEFAULT)
        states |= items.states
    _restore(log, folder, vertex, states)
    groups = kept.scan()
    of_items = {} if items is None else items.finish(groups)
    return _as_rows(groups, of_items, state, vertex.name)


def _restore(log: Log, folder: Path, vertex: VertexProgram, states: Mapping[str, State]) -> None:
    marker = log.last(vertex.vertex_tag)
    if marker is not None:
        checkpoints = _checkpoints(folder / CHECKPOINTS_FOLDER)
        restore_states(log, checkpoints, vertex.name, vertex.change_tag, marker.position, states)


def _schemas_of(name: str, spec: DeduplicateSpec | AggregateSpec) -> Mapping[str, StateSchema]:
    if isinstance(spec, DeduplicateSpec):
        return {name: distinct_state(spec)}
    if not spec.by_rows:
        return {name: group_state(spec)}
    in_sessions = isinstance(spec.window, SessionSpec)
    return (session_states if in_sessions else changing_states)(name, spec)


def _checkpoints(folder: Path) -> CheckpointStore:
    """The store, without making its folder: reading leaves no trace."""
    return CheckpointStore(folder, files=LocalFiles(folder))


def _as_rows(
    groups: pa.RecordBatch, of_items: Mapping[str, pa.Array], state: FoundState, vertex: str
) -> pa.RecordBatch:
    spec = state.spec
    assert not isinstance(spec, PythonGroupsSpec)
    keys = len(spec.keys)
    columns = list(groups.columns[:keys])
    if isinstance(spec, DeduplicateSpec):
        columns.append(pa.repeat(pa.scalar(vertex), groups.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(state.schema))
    if isinstance(spec.window, SessionSpec):
        columns.append(session_column(spec.window, groups))
    elif spec.window is not None:
        window = Windows(spec.window).column if spec.by_rows else partial(_pane_column, spec.window)
        columns.append(window(groups.column(PANE_NAME).to_numpy()))
    accumulators = accumulators_of(spec.aggregates)
    kept = groups.columns[keys + 1 :]
    if spec.by_rows:
        results = [groups.column(f"r{at}") for at in range(len(spec.aggregates))]
        columns += shown_results(results, spec.aggregates)
    else:
        columns += [
            of_items[aggregate.name]
            if aggregate.name in of_items
            else aggregate.finish(accumulators, kept)
            for aggregate in spec.aggregates
        ]
    columns.append(pa.repeat(pa.scalar(vertex), groups.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(state.schema))


def _pane_column(window: WindowSpec, panes: NDArray[np.int64]) -> pa.Array:
    starts = panes * window.pane_us + window.start_us
    time = arrow_type(window.type.fields[0].type)
    return pa.StructArray.from_arrays(
        [pa.array(starts).cast(time), pa.array(starts + window.pane_us).cast(time)],
        fields=list(arrow_type(window.type)),
    )
