"""Assembly: a program, the last marker and the state put together into a running vertex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.connectors.table import SOURCES, SourceBuilder, SourceRequest
from penstock.errors import UnsupportedPlan
from penstock.expressions.types import arrow_schema
from penstock.kernels.cache import KernelCache
from penstock.log import punit
from penstock.log.contract import Log
from penstock.log.record import Fence, Position
from penstock.operators.chain import Chain
from penstock.runtime.inputs import Input, SourceInput, StreamInput, Watermarks
from penstock.runtime.markers import Marker
from penstock.runtime.outputs import Outputs, partitioner
from penstock.runtime.recovery import fence, restore_states
from penstock.runtime.streams import register_streams
from penstock.runtime.vertex import Checkpointer, Vertex, VertexParts
from penstock.stages.program import Program, Stage, VertexProgram
from penstock.stages.tags import substream_tag
from penstock.state.checkpoints import CheckpointStore
from penstock.state.keyed import KeyedState

CODECS = {"none": punit.Codec.NONE, "lz4": punit.Codec.LZ4, "zstd": punit.Codec.ZSTD}


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

    def start(self, name: str) -> Vertex:
        """Recover a vertex and return its new instance, ready to step."""
        vertex = next(v for v in self.program.vertices if v.name == name)
        stage = self.program.stage_of(vertex)
        marker, position = fence(self.log, name, vertex.task_tag)
        chain = self._chain(vertex, stage, marker, position)
        return Vertex(self._parts(vertex, stage, marker, chain), marker)

    def warm(self) -> None:
        """Load every kernel that the program needs, without touching any vertex."""
        for stage in self.program.stages:
            self._new_chain(stage).warm()

    def register_streams(self) -> None:
        """Tell outside readers which columns and substreams the query's streams have."""
        register_streams(self.log, self.program)

    def _chain(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, position: Position
    ) -> Chain:
        chain = self._new_chain(stage)
        if marker.epoch:
            restore_states(
                self.log,
                self.checkpoints,
                vertex.name,
                vertex.change_tag,
                position,
                chain.states,
            )
            chain.restore_progress(marker.progress)
        return chain

    def _new_chain(self, stage: Stage) -> Chain:
        settings = self.program.settings
        return Chain(
            stage.chain,
            stage.input.schema,
            self.kernels,
            lambda name, schema: KeyedState(name, schema, bytes_max=settings.state_bytes_max),
            want_late=settings.late_stream is not None,
        )

    def _parts(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, chain: Chain
    ) -> VertexParts:
        settings = self.program.settings
        if stage.output.stream is None:
            raise UnsupportedPlan(
                f"stage {stage.name} writes {stage.output.sink}, which this host does not run: "
                "write to a stream and read it from there",
                stage=stage.name,
            )
        late, dead = settings.late_stream, settings.dead_letter_stream
        return VertexParts(
            name=vertex.name,
            settings=settings,
            input=self._input(vertex, stage, marker),
            watermarks=self._watermarks(stage, marker),
            chain=chain,
            outputs=Outputs(self.log, Fence(vertex.name, marker.instance), CODECS[settings.codec]),
            partition=partitioner(vertex.output_tags, stage.output.partition_by),
            marker_tags=vertex.marker_tags,
            change_tag=vertex.change_tag,
            late_tag=None if late is None else substream_tag(late, 0),
            dead_letter_tag=None if dead is None else substream_tag(dead, 0),
            checkpointer=self.checkpointer,
            clock=self.clock,
        )

    def _input(self, vertex: VertexProgram, stage: Stage, marker: Marker) -> Input:
        schema = arrow_schema(stage.input.schema)
        spec = stage.input.source
        if spec is None:
            return StreamInput(self.log, vertex.input_tags, schema, marker)
        if spec.connector not in self.sources:
            known = ", ".join(sorted(self.sources)) or "none"
            raise UnsupportedPlan(
                f"stage {stage.name} reads connector {spec.connector!r}; known here: {known}",
                connector=spec.connector,
            )
        parts = len(self.program.stage_vertices(vertex.stage))
        request = SourceRequest(spec.options, schema, vertex.index, parts, self.log, self.clock)
        return SourceInput(self.sources[spec.connector](request), marker.offset)

    def _watermarks(self, stage: Stage, marker: Marker) -> Watermarks | None:
        if stage.input.source is not None:
            return None
        writers = {
            v.name
            for v in self.program.vertices
            if self.program.stage_of(v).output.stream in stage.input.streams
        }
        timeout_ms = self.program.settings.idle_timeout_ms
        return Watermarks(writers, marker.producers, marker.watermark_us, timeout_ms)
