"""Assembly: a program, the last marker and the state put together into a running vertex."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock.clock import Clock
from penstock.connectors.folder_listing import FolderListing
from penstock.connectors.hidden_files import FilesKind
from penstock.connectors.rehearsals import rehearsals_for, rehearse_lines
from penstock.errors import (
    ChangeLogBroken,
    CheckpointError,
    NotRecovered,
    StateTooLarge,
    StaticSideLost,
    UnsupportedPlan,
)
from penstock.expressions.types import arrow_schema
from penstock.kernels.cache import KernelCache
from penstock.log import punit
from penstock.log.codecs.choosing import Adaptive
from penstock.log.contract import Log
from penstock.log.record import Fence, Position
from penstock.log.validate import check_newest
from penstock.names import own_name
from penstock.operators.chain import Chain
from penstock.operators.contract import SparkEvaluator
from penstock.operators.front import coded_columns
from penstock.operators.python_functions import PythonFunctions
from penstock.operators.specs import WEIGHT_COLUMN, WatermarkSpec
from penstock.operators.static_rows import StaticRows
from penstock.runtime.abreast import Abreast
from penstock.runtime.announcing import SIGN_OF_LIFE_S, Announcing
from penstock.runtime.appending import Appends
from penstock.runtime.backlog import PACE_S, SMALL_ROWS, Backlog, delivered, sink_of, taken
from penstock.runtime.event_time import EventTime, PortTime, Voices, Watermarks
from penstock.runtime.file_output import FileOutput
from penstock.runtime.inputs import (
    RELEASES_PER_DELIVERY_MAX,
    Input,
    PortColumns,
    SourceInput,
    StreamInput,
)
from penstock.runtime.instances import run_of
from penstock.runtime.markers import WATERMARK_END, Marker, PortMark
from penstock.runtime.outputs import Outputs, partitioner
from penstock.runtime.pushed_filters import pushed_condition
from penstock.runtime.queries import stored_query
from penstock.runtime.recovery import fence, restore_states
from penstock.runtime.resting import REST_LOOK_S, Resting
from penstock.runtime.retention import Retainer
from penstock.runtime.sources import SOURCES, SourceBuilder, SourceRequest
from penstock.runtime.static_sides import StaticSides
from penstock.runtime.streams import dead_letter_names, describe_stream, register_streams
from penstock.runtime.substreams import stream_tags
from penstock.runtime.trimming import TRIM_COMMITS, named_streams, trim_job
from penstock.runtime.vertex import (
    Checkpointer,
    Vertex,
    VertexOutput,
    VertexParts,
    state_too_large,
)
from penstock.stages.program import (
    Port,
    Program,
    Stage,
    StageOutput,
    VertexProgram,
    is_of_sink,
    observed_stream,
)
from penstock.stages.tags import OF_STREAMS, marker_tag, parse_tag, substream_tag
from penstock.state.checkpoints import CheckpointId, CheckpointStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assembly:
    """Everything that the vertices of one program share in one process."""

    program: Program
    log: Log
    clock: Clock
    checkpoints: CheckpointStore
    checkpointer: Checkpointer
    kernels: KernelCache
    sources: Mapping[str, SourceBuilder] = field(default_factory=lambda: SOURCES)
    trim_commits: int = TRIM_COMMITS
    rest_look_s: float = REST_LOOK_S
    appends: Appends | None = None  # None: each vertex appends in the thread that steps it
    spark: SparkEvaluator | None = None  # in the driver, which hosts the stages that need it
    python: PythonFunctions | None = None  # with the code that came with the slot's task
    # By stream that feeds a sink of files: how vertices write those themselves, if they may.
    files: Mapping[str, FilesKind] = field(default_factory=dict)
    # One of each folder, while there are sources that read it.
    listings: MutableMapping[str, FolderListing] = field(default_factory=WeakValueDictionary)
    # Versions of static sides, each as long as a vertex joins with it.
    static_rows: MutableMapping[tuple[str, int], StaticRows] = field(
        default_factory=WeakValueDictionary
    )

    def start(self, name: str, instance: int) -> Vertex:
        """Recover a vertex under the number that was handed out for it; return it, ready to step.

        Raises `Fenced` if a newer one is registered.
        """
        vertex = next(v for v in self.program.vertices if v.name == name)
        stage = self.program.stage_of(vertex)
        marker, position = fence(self.log, name, vertex.vertex_tag, instance)
        chain = self._new_chain(stage)
        replayed = self._restore(vertex, chain, marker, position)
        return Vertex(self._parts(vertex, stage, marker, chain), marker, position, replayed)

    def warm(self) -> None:
        """Load every kernel and function that the program needs here; touch no vertex."""
        if self.python is not None:
            self.python.load()
        warm_program(self.program, self.kernels, self.spark)

    def register_streams(self) -> None:
        """Tell outside readers which columns and substreams the query's streams have."""
        register_streams(self.log, self.program)

    def _restore(
        self, vertex: VertexProgram, chain: Chain, marker: Marker, position: Position
    ) -> int:
        """Bring a new chain to where the marker was; return how many commits were replayed."""
        if not marker.epoch:
            return 0
        guarantee = self.program.settings.guarantee
        if not self.program.settings.recovers and not marker.ended:
            raise NotRecovered(
                f"vertex {vertex.name} was lost, and with the guarantee {guarantee} nothing is "
                "kept to go on from. Rows that it had released are in its streams. Start the "
                "query under a new name; without the option guarantee it recovers by itself",
                vertex=vertex.name,
                guarantee=guarantee,
            )
        try:
            restored = restore_states(
                self.log,
                self.checkpoints,
                vertex.name,
                vertex.change_tag,
                position,
                chain.states,
                marker.state_from,
            )
        except ChangeLogBroken:
            # Whoever was overtaken meanwhile lacks what his successor no longer needs.
            check_newest(self.log, Fence(vertex.name, marker.instance))
            raise
        except StateTooLarge as error:  # the bound is lower than it was
            raise state_too_large(vertex.name, error) from error
        for checkpoint in restored.unusable:
            self._set_aside(checkpoint)
        chain.restore_progress(marker.progress)
        return restored.commits_replayed

    def _set_aside(self, checkpoint: CheckpointId) -> None:
        """See to it that no unusable checkpoint counts as one of those that are kept."""
        try:
            self.checkpoints.set_aside(checkpoint)
        except CheckpointError as error:
            logger.warning("%s", error.message)

    def _new_chain(self, stage: Stage) -> Chain:
        shown = self._shown_results() if len(self.program.results) > 1 else {}
        return _chain_of(self.program, self.kernels, stage, self.spark, self.python, shown=shown)

    def _shown_results(self) -> dict[str, str]:
        """What people call the results, by stream: as they named a stream, or another sink."""
        stored = stored_query(self.log, self.program.query)
        sinks = {} if stored is None else stored.sinks
        return {name: sink.removeprefix("stream ") for name, sink in sinks.items() if sink}

    def _parts(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, chain: Chain
    ) -> VertexParts:
        settings = self.program.settings
        late, dead = settings.late_stream, settings.dead_letter_stream
        trigger_ms = settings.trigger_interval_ms
        input = self._input(vertex, stage, marker)
        trim = replace(
            trim_job(self.program, vertex),
            retain=Retainer(self.log, named_streams(vertex), self.clock),
        )
        readers = tuple(each.vertex_tag for each in self.program.stage_vertices(vertex.stage))
        if input.cleans:
            trim = replace(trim, clean=input.clean, beside=readers)
        abreast: Abreast | None = None
        if input.is_one_sequence and len(readers) > 1:
            others = [each for each in readers if each != vertex.vertex_tag]
            abreast = Abreast(self.log, others, self.clock)
        return VertexParts(
            name=vertex.name,
            settings=settings,
            input=input,
            time=self._time(stage, marker, chain),
            chain=chain,
            statics=self._statics(vertex, stage, marker, chain),
            outputs=Outputs(
                self.log,
                Fence(vertex.name, marker.instance),
                punit.CODECS[settings.codec],
                self._lasting(vertex).__contains__,
                self.appends,
                Adaptive(
                    self.log.disk,
                    interval_s=settings.codec_interval_ms / 1e3,
                    digits=settings.float_digits,
                    clock=self.clock,
                ),
                self._files(vertex, stage, marker),
            ),
            written=tuple(
                self._output(output, tags)
                for output, tags in zip(stage.outputs, vertex.output_tags, strict=True)
            ),
            trigger_us=trigger_ms * 1000
            if trigger_ms and self.program.writes_result(stage)
            else None,
            is_portioned=self.program.is_portioned,
            announcing=self._announcing(vertex, stage),
            abreast=abreast,
            resting=self._resting(vertex),
            change_tag=vertex.change_tag,
            late_tag=None if late is None else substream_tag(late, 0),
            dead_letter_tag=None if dead is None else substream_tag(dead, 0),
            observed_tag=substream_tag(observed_stream(self.program.query), 0),
            dead_letter_names={} if dead is None else dead_letter_names(self.program),
            checkpointer=self.checkpointer,
            trim=trim,
            trim_commits=self.trim_commits,
            clock=self.clock,
        )

    def _statics(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, chain: Chain
    ) -> StaticSides:
        query, known = self.program.query, self.static_rows
        use = partial(chain.use_static, keys=vertex.key_range)
        sides = StaticSides(self.log, query, stage, known, self.clock, use)
        try:
            sides.begin(marker.statics)
        except StaticSideLost:
            # Whoever was overtaken meanwhile lacks what his successor no longer needs.
            check_newest(self.log, Fence(marker.vertex, marker.instance))
            raise
        return sides

    def _files(self, vertex: VertexProgram, stage: Stage, marker: Marker) -> dict[str, FileOutput]:
        """By tag: where rows for a sink of files go; a commit has one file at most for each."""
        fence = Fence(vertex.name, marker.instance)
        return {
            tags[0]: FileOutput(
                kind, arrow_schema(self.program.stream(output.stream).schema), fence
            )
            for output, tags in zip(stage.outputs, vertex.output_tags, strict=True)
            if (kind := self.files.get(output.stream)) is not None and len(tags) == 1
        }

    def _output(self, output: StageOutput, tags: tuple[str, ...]) -> VertexOutput:
        is_result = self.program.stream(output.stream).role == "output"
        deal = partitioner(tags, output.partition_by)
        return VertexOutput(tags, deal, is_result, self._backlog(output.stream, tags))

    def _announcing(self, vertex: VertexProgram, stage: Stage) -> Announcing:
        """What people named is kept: only what its readers need goes there."""
        settings = self.program.settings
        named: dict[str, tuple[str, ...]] = {
            marker_tag(side): (substream_tag(side, 0),)
            for side in (
                settings.late_stream,
                settings.dead_letter_stream,
                observed_stream(self.program.query),
            )
            if side is not None and marker_tag(side) in vertex.marker_tags
        }
        timed = []
        for output, tags in zip(stage.outputs, vertex.output_tags, strict=True):
            stream = output.stream
            if self.program.stream(stream).role == "output":
                named[marker_tag(stream)] = tags
                if not is_of_sink(stream):
                    timed.append(marker_tag(stream))
        always = tuple(tag for tag in vertex.marker_tags if tag not in named)
        return Announcing(always, named, timed)

    def _resting(self, vertex: VertexProgram) -> Resting | None:
        """Of who has a watermark with others, above a union, and of all before him.

        With availableNow everybody says that he has caught up, and is waited for until then.
        """
        if self.program.settings.available_now:
            return None
        numbers: set[int] = set()
        behind = [self.program.stage_of(vertex)]
        for stage in behind:  # it grows by those who read what it writes
            numbers.update(_unions(stage))
            readers = (
                each
                for each in self.program.stages
                if not set(stage.written).isdisjoint(each.streams)
            )
            behind += (each for each in readers if each not in behind)
        beside = [
            each.vertex_tag
            for each in self.program.vertices
            if each is not vertex and numbers.intersection(_unions(self.program.stage_of(each)))
        ]
        return Resting(self.log, beside, self.clock, self.rest_look_s) if beside else None

    def _backlog(self, stream: str, tags: Collection[str]) -> Backlog | None:
        settings = self.program.settings
        readers = [v for v in self.program.vertices if not set(tags).isdisjoint(v.input_tags)]
        bytes_max = settings.undelivered_bytes_max
        if is_of_sink(stream):
            return Backlog(partial(delivered, self.log, sink_of(stream)), bytes_max, self.clock)
        if readers and settings.trigger_interval_ms is None:
            upto = partial(taken, self.log, [reader.vertex_tag for reader in readers])
            pace_s = max(PACE_S, settings.commit_interval_ms / 1000)
            # What costs its time by the batch is to get large ones.
            is_by_batch = any(self.program.stage_of(reader).calls_by_key for reader in readers)
            small_rows = max(SMALL_ROWS, settings.step_rows_max) if is_by_batch else SMALL_ROWS
            return Backlog(upto, bytes_max, self.clock, pace_s, small_rows)
        return None  # what a trigger holds back is not told before its time

    def _lasting(self, vertex: VertexProgram) -> set[str]:
        """The tags that the vertex writes to and that only people trim.

        A stream that was made for a sink is trimmed as the sink takes its rows.
        """
        internal = {stream.name for stream in self.program.streams if stream.role == "internal"}
        settings = self.program.settings
        sides = (settings.late_stream, settings.dead_letter_stream)
        written = [substream_tag(stream, 0) for stream in sides if stream is not None]
        written.extend((*vertex.written_tags, *vertex.marker_tags))
        return {
            str(tag)
            for tag in map(parse_tag, written)
            if tag.kind in OF_STREAMS and tag.name not in internal and not is_of_sink(tag.name)
        }

    def _input(self, vertex: VertexProgram, stage: Stage, marker: Marker) -> Input:
        spec = stage.source
        parts = len(self.program.stage_vertices(vertex.stage))
        if spec is None:
            tags = self._input_tags(vertex, stage, parts)
            ports = [_columns(self.program, stage, port) for port in stage.ports]
            return StreamInput(
                self.log,
                tags,
                ports,
                marker,
                in_order=stage.takes_in_order,
                as_one=stage.calls_by_key,
                releases_max=1 if self.program.is_portioned else RELEASES_PER_DELIVERY_MAX,
            )
        columns = _columns(self.program, stage, stage.ports[0])
        schema = columns.schema
        if spec.connector not in self.sources:
            known = ", ".join(sorted(self.sources)) or "none"
            raise UnsupportedPlan(
                f"stage {stage.name} reads connector {spec.connector!r}; known here: {known}",
                connector=spec.connector,
            )
        name = own_name(self.program.query, stage.name)
        request = SourceRequest(
            name=name,
            options=spec.options,
            schema=schema,
            part=vertex.index,
            parts=parts,
            registry=self.log,
            clock=self.clock,
            has_dead_letters=self.program.settings.dead_letter_stream is not None,
            condition=pushed_condition(stage.ports[0].front),
            coded=columns.coded,
            wake=self.log.wake,
            listings=self.listings,
        )
        source = self.sources[spec.connector](request)
        return SourceInput(source, marker.offset, list(schema.names))

    def _outside(self, streams: Iterable[str]) -> list[str]:
        """Of these streams those that others write."""
        return [name for name in streams if self.program.stream(name).role == "input"]

    def _input_tags(
        self, vertex: VertexProgram, stage: Stage, parts: int
    ) -> Callable[[], list[str]] | tuple[str, ...]:
        """What a vertex reads; of others' streams also the substreams that they gain later."""
        outside = self._outside(stage.streams)
        if not outside:
            return vertex.input_tags
        own = [tag for tag in vertex.input_tags if parse_tag(tag).name not in outside]

        def tags() -> list[str]:
            found = (stream_tags(self.log, name, vertex.index, parts) for name in outside)
            return [*own, *(tag for each in found for tag in each)]

        return tags

    def _time(self, stage: Stage, marker: Marker, chain: Chain) -> EventTime:
        marks = marker.ports or (PortMark(),) * len(stage.ports)
        ports = [
            PortTime(
                None if port.source is not None else self._heard(port, mark, marker),
                delay_us,
                mark,
                marker.watermark_us,
                marker.ended,
                port.is_timed,
            )
            for port, mark, delay_us in zip(stage.ports, marks, chain.delays_us, strict=True)
        ]
        return EventTime(ports, marker.watermark_us, self.program.settings.watermark_policy)

    def _heard(self, port: Port, mark: PortMark, marker: Marker) -> Watermarks:
        outside = self._outside(port.streams)
        own = {
            producer
            for name in port.streams
            if name not in outside
            for producer in self.program.producers(name)
        }

        def others() -> set[str]:
            return {each for name in outside for each in describe_stream(self.log, name).producers}

        timeout_ms = self.program.settings.idle_timeout_ms
        if timeout_ms is not None and others():  # who are silent by design, for a while
            timeout_ms = max(timeout_ms, round(2_000 * SIGN_OF_LIFE_S))
        run = run_of(marker.instance)
        voices = self._voices(own)
        return Watermarks(own, mark.producers, marker.watermark_us, timeout_ms, run, others, voices)

    def _voices(self, producers: set[str]) -> Voices:
        """Which of these have no watermark, and which have one together."""
        timeless: set[str] = set()
        shared: dict[str, str] = {}
        for vertex in self.program.vertices:
            if vertex.name not in producers:
                continue
            stage = self.program.stage_of(vertex)
            if not any(port.is_timed for port in stage.ports):
                timeless.add(vertex.name)
            for number in _unions(stage):
                shared[vertex.name] = f"union {number}"
        return Voices(frozenset(timeless), shared, self.program.settings.watermark_policy)


def warm_program(
    program: Program, kernels: KernelCache, spark: SparkEvaluator | None = None
) -> None:
    """Load every kernel that a program needs: in the driver of what it hosts, else of the rest.

    One row of zeros goes through a chain that nobody will see: what is slow the first time
    (importing, compiling or loading machine code) is then behind this process. Python functions of
    the query are not called: they may do anything with a row that nobody sent.
    """
    for stage in program.stages:
        if stage.is_on_driver != (spark is not None):
            continue
        chain = _chain_of(program, kernels, stage, spark, is_rehearsal=True)
        for number, port in enumerate(stage.ports):
            row = _row_of_zeros(arrow_schema(port.schema))
            chain.process(row, on_bad_row="reject", port=number)
        chain.on_watermark(WATERMARK_END, on_bad_row="reject")
        chain.on_commit("reject")
        for state in chain.states.values():
            state.take_changes()
        row = _row_of_zeros(arrow_schema(stage.schema))
        _ = list(chain.outputs(row, "reject"))
        for output in stage.outputs:
            if output.partition_by:
                row = _row_of_zeros(arrow_schema(output.schema))
                partitioner(("one", "other"), output.partition_by)(row)
        if (source := stage.source) is not None:
            kernels.rehearse(rehearsals_for(source.connector, source.options))
            schema = arrow_schema(stage.ports[0].schema)
            rehearse_lines(source.options.get("format", ""), schema)


def ask_for_kernels(program: Program, kernels: KernelCache) -> None:
    """Ask for every kernel of a program, and run none."""
    for stage in program.stages:
        _chain_of(program, kernels, stage).ask_for_kernels()


def _chain_of(
    program: Program,
    kernels: KernelCache,
    stage: Stage,
    spark: SparkEvaluator | None = None,
    python: PythonFunctions | None = None,
    is_rehearsal: bool = False,
    shown: Mapping[str, str] | None = None,
) -> Chain:
    """`shown` are the names of results for people, by stream, where these are others."""
    called = shown or {}
    settings = program.settings
    return Chain(
        [(port.schema, port.front) for port in stage.ports],
        stage.operators,
        kernels,
        state_bytes_max=settings.state_bytes_max,
        ways=[output.steps for output in stage.outputs],
        results=(
            [
                [called.get(name, name) for name in program.results_of(output.stream)]
                for output in stage.outputs
            ]
            if len(program.results) > 1
            else ()
        ),
        want_late=settings.late_stream is not None,
        spark=spark,
        python=python,
        is_rehearsal=is_rehearsal,
        coded=_coded_behind(program, stage),
    )


def _unions(stage: Stage) -> list[int]:
    """The unions that have one watermark above them, of which a stage has a part."""
    marks = [spec for spec in stage.specs if isinstance(spec, WatermarkSpec)]
    return [spec.union for spec in marks if spec.union is not None]


def _columns(program: Program, stage: Stage, port: Port) -> PortColumns:
    """What a port reads, and which of its texts may come coded."""
    behind = stage.operators if len(stage.ports) == 1 else ()
    wanted = _coded_behind(program, stage)
    coded = frozenset.intersection(
        *(
            coded_columns((*port.front, *behind, *output.steps), port.schema, wanted)
            for output in stage.outputs
        )
    )
    return PortColumns(frozenset(port.streams), arrow_schema(port.schema), coded)


def _coded_behind(program: Program, stage: Stage) -> frozenset[str]:
    """Which texts those take coded that read what a stage only passes on."""
    if stage.operators or len(stage.outputs) > 1 or stage.outputs[0].partition_by:
        return frozenset()
    stream = stage.outputs[0].stream
    taken = [
        _columns(program, reader, port).coded
        for reader in program.stages
        for port in reader.ports
        if stream in port.streams
    ]
    return frozenset.intersection(*map(frozenset, taken)) if taken else frozenset()


def _row_of_zeros(schema: pa.Schema) -> pa.RecordBatch:
    """Where rows come and go, one that comes: no state has one that could go."""
    comes = pa.array([1], pa.int8())
    columns = [comes if each.name == WEIGHT_COLUMN else _zero(each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _zero(kind: pa.DataType) -> pa.Array:
    """One value that is not null, of any type that a stream may have."""
    if pa.types.is_struct(kind):
        children = [_zero(kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return pa.array([[]], kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([b""], pa.binary()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array([False])
    if pa.types.is_temporal(kind):
        return pa.array([0], pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    return pa.array([0], kind)
