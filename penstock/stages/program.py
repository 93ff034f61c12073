"""The program of a query: everything that a slot needs to run its vertices, as checked values.

A stage has ports (each a source, or streams of one schema, and what is done with its rows first),
the operators where these meet, and outputs, each a stream and what is done with rows on the way to
it. A vertex is one part of a stage: a key range, a part of the source, some substreams.
`stages/program_json.py` is its text form.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from penstock.errors import ExpressionError, InvalidProgram
from penstock.expressions.types import Field, Schema
from penstock.json_codec import Malformed, canonical_json, parse, read_as
from penstock.names import PRODUCER_KINDS, check_name, check_own_name, own_name
from penstock.operators.specs import (
    JoinSpec,
    ObserveSpec,
    OperatorSpec,
    PythonGroupsSpec,
    StatefulSpec,
    StatelessSpec,
    WatermarkSpec,
    chain_schema,
    is_stateful,
    is_weighted,
)
from penstock.stages.key_ranges import KEY_SPACE, WHOLE_KEY_SPACE, split_key_space
from penstock.stages.settings import Settings
from penstock.stages.tags import (
    SUBSTREAMS_MAX,
    TagKind,
    change_tag,
    marker_tag,
    parse_tag,
    substream_tags,
    vertex_tag,
)
from penstock.state.contract import KeyRange

PROGRAM_VERSION = 7
STAGES_MAX = 1_000
PORTS_MAX = 1_000
OUTPUTS_MAX = 1_000
OPERATORS_MAX = 1_000
VERTICES_MAX = 65_536

StreamRole = Literal["input", "internal", "output"]


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """Which connector, and its options as canonical JSON text, so that specs compare and hash."""

    connector: str
    options_json: str = "{}"

    def __post_init__(self) -> None:
        check_name(self.connector, "connector")
        try:
            fits = isinstance(parse(self.options_json), dict)
        except Malformed:
            fits = False
        _check(fits, f"the options of connector {self.connector} are not a JSON object")

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = parse(self.options_json)
        return options

    @property
    def replayable(self) -> bool:
        """Whether its rows can be read again, so that an offset stands for them."""
        return self.connector not in COME_ONCE and self.options.get("replayable") is not False

    def to_json(self) -> dict[str, Any]:
        return {"connector": self.connector, "options": self.options}

    @classmethod
    def from_json(cls, node: Any) -> ConnectorSpec:
        if not isinstance(node, dict) or node.keys() != {"connector", "options"}:
            raise Malformed(f"is {node!r:.200}; a connector and its options were expected")
        return cls(read_as(str, node["connector"], "connector"), canonical_json(node["options"]))

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={canonical_json(value)}" for key, value in self.options.items())
        return f"{self.connector}({shown})"


PORTIONS = ("files_max", "bytes_max")  # options: how much of a source is taken at a time
COME_ONCE = frozenset({"socket", "producers"})  # connectors whose rows come once, and never again


def connector_spec(connector: str, **options: Any) -> ConnectorSpec:
    """A connector by name with options that JSON can carry."""
    try:
        return ConnectorSpec(connector, canonical_json(options))
    except (TypeError, ValueError) as error:
        raise InvalidProgram(
            f"the options of connector {connector} do not fit JSON: {error}", connector=connector
        ) from error


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream that the query reads or writes.

    `input`: somebody else's, or what Spark brings in for this query. `internal`: between two stages
    of this query. `output`: for others, or for the query's sink.
    """

    name: str
    schema: Schema
    substreams: int
    role: StreamRole

    def __post_init__(self) -> None:
        _check(self.role in get_args(StreamRole), f"stream {self.name}: no role {self.role!r:.80}")
        _check(
            1 <= self.substreams <= SUBSTREAMS_MAX,
            f"stream {self.name} has {self.substreams} substreams, not 1 to {SUBSTREAMS_MAX}",
        )
        _check_fields(self.schema, f"stream {self.name}")

    @property
    def substream_tags(self) -> tuple[str, ...]:
        return substream_tags(self.name, self.substreams)


@dataclass(frozen=True, slots=True)
class Port:
    """Rows that a stage reads, and what is done with each before the operators take it.

    They are those of a source or of streams, and of these only the columns of `schema`. Beside
    ports that are timed, one of whose rows no watermark speaks holds event time back no longer than
    it lasts.
    """

    source: ConnectorSpec | None
    streams: tuple[str, ...]
    schema: Schema
    front: tuple[StatelessSpec, ...] = ()
    is_timed: bool = True

    def __post_init__(self) -> None:
        _check(
            (self.source is None) == bool(self.streams),
            "a port reads either a source or at least one stream",
        )
        _check(len(set(self.streams)) == len(self.streams), "a port reads a stream twice")
        _check(not any(map(is_stateful, self.front)), "an operator with state stands in a port")
        _check_fields(self.schema, "the input")

    @property
    def output_schema(self) -> Schema:
        """Of the rows as the operators take them."""
        return chain_schema(self.front, self.schema)


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A stream that a stage's rows go to, and what is done with them for this stream alone.

    With `partition_by` a row goes to the substream that owns the hash of these columns; without,
    vertex i of n writes every n-th substream from i on, in turn.
    """

    stream: str
    partition_by: tuple[str, ...]
    schema: Schema
    steps: tuple[StatelessSpec, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.schema]
        _check(
            all(name in names for name in self.partition_by),
            f"partitioned by {', '.join(self.partition_by)}, the output has {', '.join(names)}",
        )
        _check(
            not any(is_stateful(spec) or isinstance(spec, WatermarkSpec) for spec in self.steps),
            f"a state or a watermark stands on the way to stream {self.stream}, behind the stage's",
        )
        _check_fields(self.schema, "the output")


@dataclass(frozen=True, slots=True)
class Stage:
    """Ports, the operators that take their rows, and the outputs that all get what these make.

    The first operator has a port for each of the stage's, or takes the rows of all alike. Several
    ports read streams only: their order in the log is then the order of processing. A vertex writes
    all its outputs under one marker. `cohort` numbers the starts of the query that added results:
    those of one cohort have read the same rows, so only these share stages.
    """

    name: str
    ports: tuple[Port, ...]
    operators: tuple[OperatorSpec, ...]
    outputs: tuple[StageOutput, ...]
    cohort: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "stage")
        _check(self.name not in PRODUCER_KINDS, f"no stage may be called {self.name}")
        _check(0 < len(self.ports) <= PORTS_MAX, f"stage {self.name} has {len(self.ports)} ports")
        _check(
            len(self.ports) == 1 or self.source is None,
            f"stage {self.name} reads a source beside something else: their order is not the log's",
        )
        _check(
            0 < len(self.outputs) <= OUTPUTS_MAX,
            f"stage {self.name} has {len(self.outputs)} outputs",
        )
        _check(self.cohort >= 0, f"stage {self.name} is of cohort {self.cohort}")
        _check(len(self.specs) <= OPERATORS_MAX, f"stage {self.name}: too many operators")
        _check(
            not self.operators or is_stateful(self.operators[0]),
            f"stage {self.name}: what stands before the first state belongs to a port",
        )
        try:
            made = self.schema
            given = [chain_schema(output.steps, made) for output in self.outputs]
        except ExpressionError as error:
            raise InvalidProgram(
                f"stage {self.name}: {error.message}", stage=self.name, **error.details
            ) from error
        for found, output in zip(given, self.outputs, strict=True):
            fits = shape(found) == shape(output.schema) and not any(
                one.nullable and not said.nullable
                for one, said in zip(found, output.schema, strict=True)
            )
            _check(
                fits,
                f"stage {self.name}: the chain gives {show_schema(found)}, "
                f"the output says {show_schema(output.schema)}",
            )

    @property
    def schema(self) -> Schema:
        """What the operators give, checked against what the ports do."""
        schemas = [port.output_schema for port in self.ports]
        wanted = self.stateful[0].ports if self.operators else 1
        if wanted == 1:
            _check(
                all(shape(schema) == shape(schemas[0]) for schema in schemas),
                f"stage {self.name}: rows of its ports differ and are taken alike",
            )
            alike = zip(*schemas, strict=True)
            merged = [Field(f[0].name, f[0].type, any(e.nullable for e in f)) for f in alike]
            return chain_schema(self.operators, tuple(merged))
        _check(
            wanted == len(schemas),
            f"stage {self.name} has {len(schemas)} ports, its first operator takes {wanted}",
        )
        first, *rest = self.operators
        assert is_stateful(first)
        return chain_schema(rest, first.output_schema(*schemas))

    @property
    def source(self) -> ConnectorSpec | None:
        """What it reads outside the log; None if it reads streams."""
        return next((port.source for port in self.ports if port.source is not None), None)

    @property
    def streams(self) -> tuple[str, ...]:
        """All streams that it reads, each once."""
        return tuple(dict.fromkeys(name for port in self.ports for name in port.streams))

    @property
    def specs(self) -> tuple[OperatorSpec, ...]:
        """All operators: port by port, those where they meet, then output by output."""
        fronts = (spec for port in self.ports for spec in port.front)
        steps = (spec for output in self.outputs for spec in output.steps)
        return (*fronts, *self.operators, *steps)

    def way_to(self, output: StageOutput) -> tuple[OperatorSpec, ...]:
        """All operators that rows pass on their way to an output."""
        fronts = (spec for port in self.ports for spec in port.front)
        return (*fronts, *self.operators, *output.steps)

    @property
    def written(self) -> tuple[str, ...]:
        """All streams that it writes, each once."""
        return tuple(dict.fromkeys(output.stream for output in self.outputs))

    @property
    def is_on_driver(self) -> bool:
        """Whether the driver hosts it, as Spark computes a part of it."""
        return any(spec.is_on_driver for spec in self.specs)

    @property
    def observes(self) -> bool:
        """Whether something is kept of its rows on their way."""
        return any(isinstance(spec, ObserveSpec) for spec in self.specs)

    @property
    def stateful(self) -> tuple[StatefulSpec, ...]:
        """The operators that keep state."""
        return tuple(spec for spec in self.operators if is_stateful(spec))

    @property
    def takes_in_order(self) -> bool:
        """Whether the order of rows across ports decides; pairs of two streams are the same."""
        first = next(iter(self.stateful), None)
        return not isinstance(first, JoinSpec) or any(first.tables)

    @property
    def calls_by_key(self) -> bool:
        """Whether each batch costs a call of a function for each of its keys."""
        return any(isinstance(spec, PythonGroupsSpec) for spec in self.stateful[:1])

    def steps_of_changing_rows(self) -> tuple[OperatorSpec, ...]:
        """The stateless steps that rows pass which come and go: they must do the same to both."""
        found: list[OperatorSpec] = []

        def follow(schema: Schema, steps: Iterable[OperatorSpec]) -> None:
            for spec in steps:
                if is_weighted(schema) and not isinstance(spec, ObserveSpec):
                    found.append(spec)
                schema = spec.output_schema(schema)

        for port in self.ports:
            follow(port.schema, port.front)
        schemas = [port.output_schema for port in self.ports]
        for spec in self.operators:
            if not is_stateful(spec):
                follow(schemas[0], [spec])
            schemas = [spec.output_schema(*schemas[: spec.ports if is_stateful(spec) else 1])]
        for output in self.outputs:
            follow(schemas[0], output.steps)
        return tuple(found)

    def row_schemas(self) -> tuple[Schema, ...]:
        """Of the rows that come in, by port, that operators with state make, and that outputs
        get."""
        made: list[Schema] = []
        schemas = [port.output_schema for port in self.ports]
        for spec in self.operators:
            schemas = [spec.output_schema(*schemas[: spec.ports if is_stateful(spec) else 1])]
            made += schemas if is_stateful(spec) else ()
        if any(output.steps for output in self.outputs):
            made.append(self.schema)
        return (*(port.schema for port in self.ports), *made)


@dataclass(frozen=True, slots=True)
class VertexProgram:
    """One vertex: which part of its stage it is, what it reads and which tags its records carry.

    A source is read in as many parts as the stage has vertices; part `index` is this one's.
    `output_tags` has the tags of each output. Where that is partitioned, a row goes to the tag of
    the key range that holds its hash, ranges as `split_key_space` cuts them; where it is not, rows
    go to the tags in turn.
    """

    name: str
    stage: int
    index: int
    key_range: KeyRange
    input_tags: tuple[str, ...]
    output_tags: tuple[tuple[str, ...], ...]
    marker_tags: tuple[str, ...]

    def __post_init__(self) -> None:
        check_own_name(self.name, "vertex")
        low, high = self.key_range
        _check(0 <= low < high <= KEY_SPACE, f"vertex {self.name}: key range [{low}, {high})")
        for tag in (*self.input_tags, *self.written_tags, *self.marker_tags):
            parse_tag(tag)

    @property
    def written_tags(self) -> tuple[str, ...]:
        """The tags of rows of all its outputs."""
        return tuple(tag for tags in self.output_tags for tag in tags)

    @property
    def vertex_tag(self) -> str:
        return vertex_tag(self.name)

    @property
    def change_tag(self) -> str:
        return change_tag(self.name)


@dataclass(frozen=True)
class Program:
    """A query, ready to run. Building one checks that its parts fit each other."""

    query: str
    settings: Settings
    streams: tuple[StreamSpec, ...]
    stages: tuple[Stage, ...]
    vertices: tuple[VertexProgram, ...]
    cohorts: int = 1  # how many it ever had, be they gone by now: no number is given twice
    version: int = field(default=PROGRAM_VERSION)

    def __post_init__(self) -> None:
        check_name(self.query, "query")
        _check(0 < len(self.stages) <= STAGES_MAX, f"a program has 1 to {STAGES_MAX} stages")
        _check(len(self.vertices) <= VERTICES_MAX, f"more than {VERTICES_MAX} vertices")
        _check_distinct("stream", [stream.name for stream in self.streams])
        for stream in self.streams:
            check_stream_name(self.query, stream.name, stream.role)
        _check_distinct("stage", [stage.name for stage in self.stages])
        _check_distinct("vertex", [vertex.name for vertex in self.vertices])
        for stage in self.stages:
            self._check_streams(stage)
        _check(
            all(stage.cohort < self.cohorts for stage in self.stages),
            f"a stage is of a cohort that the program, with {self.cohorts}, does not have",
        )
        check_acyclic(self.stages)
        for index, stage in enumerate(self.stages):
            self._check_vertices(index, stage)
        _check(
            all(0 <= vertex.stage < len(self.stages) for vertex in self.vertices),
            "a vertex belongs to a stage that does not exist",
        )

    def stream(self, name: str) -> StreamSpec:
        """The stream of that name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise InvalidProgram(f"the program has no stream {name!r}", stream=name)

    def stage_vertices(self, stage: int) -> tuple[VertexProgram, ...]:
        """The vertices of a stage, by index."""
        found = [vertex for vertex in self.vertices if vertex.stage == stage]
        return tuple(sorted(found, key=lambda vertex: vertex.index))

    def producers(self, stream: str) -> tuple[str, ...]:
        """The vertices that write a stream, be it as their output or on the side."""
        tag = marker_tag(stream)
        return tuple(vertex.name for vertex in self.vertices if tag in vertex.marker_tags)

    def outputs_to(self, stream: str) -> tuple[tuple[Stage, StageOutput], ...]:
        """Every output that goes to a stream, and its stage."""
        return tuple(
            (stage, output)
            for stage in self.stages
            for output in stage.outputs
            if output.stream == stream
        )

    @property
    def is_portioned(self) -> bool:
        """Whether people asked for so many files, or bytes, of a source at a time."""
        sources = [stage.source for stage in self.stages if stage.source is not None]
        return any(source.options.get(name) is not None for source in sources for name in PORTIONS)

    def writes_result(self, stage: Stage) -> bool:
        """Whether a stage writes a stream for others, or for a sink."""
        return any(self.stream(name).role == "output" for name in stage.written)

    @property
    def results(self) -> tuple[str, ...]:
        """The streams that it writes for others, or for sinks."""
        return tuple(stream.name for stream in self.streams if stream.role == "output")

    def results_of(self, stream: str) -> tuple[str, ...]:
        """The results that rows of a stream of this program end up in."""
        if self.stream(stream).role == "output":
            return (stream,)
        found = [
            name
            for stage in self.stages
            if stream in stage.streams
            for written in stage.written
            for name in self.results_of(written)
        ]
        return tuple(dict.fromkeys(found))

    def stage_of(self, vertex: VertexProgram) -> Stage:
        return self.stages[vertex.stage]

    def is_on_driver(self, vertex: VertexProgram) -> bool:
        """Whether only the driver can host a vertex."""
        return self.stage_of(vertex).is_on_driver

    def to_json(self) -> str:
        """The canonical text: equal programs have equal texts."""
        from penstock.stages.program_json import program_to_json  # noqa: PLC0415 (it imports us)

        return program_to_json(self)

    @staticmethod
    def from_json(text: str) -> Program:
        """The program of a text; InvalidProgram or StageVersionUnsupported for any other text."""
        from penstock.stages.program_json import program_from_json  # noqa: PLC0415 (it imports us)

        return program_from_json(text)

    @cached_property
    def content_hash(self) -> str:
        """A name for this content: equal for equal programs, for caches and for comparing."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()

    def _check_streams(self, stage: Stage) -> None:
        read = [(port, name) for port in stage.ports for name in port.streams]
        for port, name in read:
            fields = {column.name: column.type for column in self.stream(name).schema}
            for column in port.schema:
                _check(
                    fields.get(column.name) == column.type,
                    f"stage {stage.name} reads {column.name} {column.type} of stream {name}, "
                    f"which has {show_schema(self.stream(name).schema)}",
                )
        for output in stage.outputs:
            stream = self.stream(output.stream)
            _check(
                shape(stream.schema) == shape(output.schema) and stream.role != "input",
                f"stage {stage.name} writes {show_schema(output.schema)} to {stream.role} "
                f"stream {stream.name}, which has {show_schema(stream.schema)}",
            )

    def _check_vertices(self, index: int, stage: Stage) -> None:
        vertices = self.stage_vertices(index)
        _check(
            [vertex.index for vertex in vertices] == list(range(len(vertices))) and bool(vertices),
            f"stage {stage.name}: its vertices are not numbered from 0",
        )
        for vertex in vertices:
            expected = vertex_name(self.query, stage.name, vertex.index)
            _check(vertex.name == expected, f"vertex {vertex.name} should be named {expected}")
        if stage.stateful and len(vertices) > 1:
            _check_ranges(stage, vertices)
        self._check_input_tags(stage, vertices)
        for vertex in vertices:
            self._check_output_tags(stage, vertex)

    def _check_input_tags(self, stage: Stage, vertices: tuple[VertexProgram, ...]) -> None:
        markers = {marker_tag(name) for name in stage.streams}
        wanted = [tag for name in stage.streams for tag in self.stream(name).substream_tags]
        read: list[str] = []
        for vertex in vertices:
            own = set(vertex.input_tags)
            _check(markers <= own, f"vertex {vertex.name} does not read the markers of its input")
            read.extend(own - markers)
        _check(
            sorted(read) == sorted(wanted),
            f"stage {stage.name}: each substream of its input is read by one vertex",
        )

    def _check_output_tags(self, stage: Stage, vertex: VertexProgram) -> None:
        required = {vertex.vertex_tag, vertex.change_tag, *map(marker_tag, stage.written)}
        parts = len(self.stage_vertices(vertex.stage))
        specs = {name: self.stream(name) for name in stage.written}
        wanted = _tags_of_outputs(stage, specs, vertex.index, parts)
        _check(
            vertex.output_tags == wanted,
            f"vertex {vertex.name} writes {', '.join(vertex.written_tags)[:200]}, "
            f"{', '.join(stage.written)} need {', '.join(map(str, wanted))[:200]}",
        )
        _check(required <= set(vertex.marker_tags), f"vertex {vertex.name}: its markers lack a tag")


def vertex_name(query: str, stage: str, index: int) -> str:
    """The name of vertex `index` of a stage; also that of its logs."""
    return own_name(query, stage, index)


def sink_stream(query: str) -> str:
    """The stream that carries a query's result to a sink outside the log, and to nobody else."""
    return own_name(query, "out")


def sink_stream_of(query: str, sink: str) -> str:
    """The same for one of several sinks, by the text that tells them apart."""
    return own_name(query, f"out_{hashlib.sha256(sink.encode()).hexdigest()[:8]}")


def observed_stream(query: str) -> str:
    """The stream that carries what a query observes of its rows to its progress."""
    return own_name(query, "observed")


def is_of_sink(stream: str) -> bool:
    """Whether a stream's name is one of those that carry a result to a sink."""
    return re.fullmatch(r"\w+\.out(_[0-9a-f]{8})?", stream) is not None


def fed_stream(query: str, source: str) -> str:
    """The stream that Spark brings a source into, by the text that tells sources apart."""
    return own_name(query, f"fed_{hashlib.sha256(source.encode()).hexdigest()[:8]}")


def is_fed(stream: str) -> bool:
    """Whether a stream's name is one of those that Spark brings a query's source into."""
    return re.fullmatch(r"\w+\.fed_[0-9a-f]{8}", stream) is not None


def is_inner(stream: str) -> bool:
    """Whether a stream's name is one of those between two stages of a query."""
    return "." in stream and not is_of_sink(stream)


def check_stream_name(query: str, name: str, role: StreamRole) -> str:
    """Return the name if a query may use a stream of that name so; raise InvalidName if not.

    What another query made for itself is neither read nor written: its owner trims it.
    """
    if role == "internal":
        check_own_name(name, "internal stream")
        _check(name.startswith(f"{query}."), f"stream {name} is not one of query {query}'s own")
        return name
    is_made = is_of_sink(name) if role == "output" else is_fed(name)
    return name if is_made and name.startswith(f"{query}.") else check_name(name, "stream")


def cut_stage(
    query: str,
    index: int,
    stage: Stage,
    streams: Mapping[str, StreamSpec],
    settings: Settings,
    count: int,
) -> Iterator[VertexProgram]:
    """The vertices of one stage: substreams dealt out in turn, key ranges of equal size."""
    keyed = bool(stage.stateful) and count > 1
    ranges = split_key_space(count) if keyed else (WHOLE_KEY_SPACE,) * count
    side_streams = [settings.dead_letter_stream]
    if stage.stateful:
        side_streams.append(settings.late_stream)
    if stage.observes:
        side_streams.append(observed_stream(query))
    for part in range(count):
        name = vertex_name(query, stage.name, part)
        read = [
            tag
            for stream in stage.streams
            for tag in (*streams[stream].substream_tags[part::count], marker_tag(stream))
        ]
        written = _tags_of_outputs(stage, streams, part, count)
        markers = [vertex_tag(name), change_tag(name), *map(marker_tag, stage.written)]
        markers.extend(marker_tag(stream) for stream in side_streams if stream is not None)
        yield VertexProgram(name, index, part, ranges[part], tuple(read), written, tuple(markers))


def _tags_of_outputs(
    stage: Stage, streams: Mapping[str, StreamSpec], part: int, count: int
) -> tuple[tuple[str, ...], ...]:
    """The tags that part of `count` of a stage writes, by output."""
    return tuple(
        tags if output.partition_by else tags[part::count]
        for output in stage.outputs
        for tags in (streams[output.stream].substream_tags,)
    )


def check_acyclic(stages: tuple[Stage, ...]) -> None:
    """Raise InvalidProgram if a stage's output reaches its own input."""
    readers: dict[str, list[int]] = {}
    for index, stage in enumerate(stages):
        for stream in stage.streams:
            readers.setdefault(stream, []).append(index)
    waiting = [0] * len(stages)
    behind = [[r for name in stage.written for r in readers.get(name, [])] for stage in stages]
    for reader in (reader for each in behind for reader in each):
        waiting[reader] += 1
    ready = [index for index, count in enumerate(waiting) if count == 0]
    done = 0
    while ready:
        done += 1
        for reader in behind[ready.pop()]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    stuck = [stages[index].name for index, count in enumerate(waiting) if count > 0]
    _check(done == len(stages), f"stages {', '.join(stuck)} feed each other in a cycle")


def shape(schema: Schema) -> tuple[tuple[str, str], ...]:
    """What must agree between a writer and a reader: names and types, not nullability."""
    return tuple((column.name, str(column.type)) for column in schema)


def show_schema(schema: Schema) -> str:
    """A schema for an error message."""
    return "(" + ", ".join(f"{column.name} {column.type}" for column in schema) + ")"


def _check_ranges(stage: Stage, vertices: tuple[VertexProgram, ...]) -> None:
    edges = [0, *[vertex.key_range[1] for vertex in vertices]]
    starts = [vertex.key_range[0] for vertex in vertices]
    _check(
        starts == edges[:-1] and edges[-1] == KEY_SPACE,
        f"stage {stage.name}: the key ranges of its vertices leave a gap or overlap",
    )
    _check(
        all(len(_substreams(vertex)) <= len(stage.streams) for vertex in vertices),
        f"stage {stage.name}: a vertex of a key range reads one substream of each stream",
    )


def _substreams(vertex: VertexProgram) -> list[str]:
    return [tag for tag in vertex.input_tags if parse_tag(tag).kind is TagKind.SUBSTREAM]


def _check_fields(schema: Schema, where: str) -> None:
    names = [column.name for column in schema]
    _check(bool(names), f"{where} has no columns")
    _check_distinct(f"{where}: column", names)
    _check(all(isinstance(column, Field) for column in schema), f"{where}: not a schema")


def _check_distinct(what: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    _check(not repeated, f"{what} {', '.join(repeated)[:200]} occurs more than once")


def _check(fits: bool, problem: str) -> None:
    if not fits:
        raise InvalidProgram(f"not a program: {problem}; plan the query again", problem=problem)
