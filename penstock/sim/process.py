"""A simulated process: one vertex with its own view of the log, and a place to die at every action.

The vertex, its recovery and its checkpoint writer are the real ones. Between any two of their
actions they pass a point, where the world may kill the process, let others run first, or let
another process take the vertex over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.log.memory import Faults, MemoryLog, MemoryStore, SimulatedCrash
from penstock.log.record import Entry, Fence, Position, Record, Versioned
from penstock.operators.chain import Chain
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import CheckpointQueue, Work
from penstock.runtime.markers import Marker
from penstock.runtime.vertex import Vertex, VertexParts
from penstock.stages.program import Stage, VertexProgram
from penstock.state.checkpoints import CheckpointStore

T = TypeVar("T")
Point = Callable[["Process", str], None]

# What a vertex's parts do, one action each; a process passes a point before and after.
ACTIONS: dict[str, tuple[str, ...]] = {
    "input": ("take", "position"),
    "chain": ("process", "on_watermark", "on_commit", "progress"),
    "outputs": ("add", "append_early", "commit"),
}


@dataclass(eq=False)
class Process:
    """One process: alive, dead, or a zombie whose vertex has a newer instance elsewhere."""

    name: str  # of its vertex
    number: int
    point: Point
    log: ProcessLog = field(init=False)
    checkpointer: ProcessCheckpoints = field(init=False)
    vertex: Vertex | None = None
    chain: Chain | None = None
    is_dead: bool = False
    is_zombie: bool = False
    is_busy: bool = False  # in the middle of an action, further down the stack
    slow_until_s: float = 0.0

    def at(self, where: str) -> None:
        """Pass a point; what is dead never gets beyond it."""
        if not self.is_dead:
            self.point(self, where)
        if self.is_dead:
            raise SimulatedCrash(f"process {self.number} of {self.name} is dead ({where})")

    def die(self) -> None:
        self.is_dead = True
        self.checkpointer.drop()


class ProcessLog(MemoryLog):
    """The log as one process sees it: late, and up to the moment of its death."""

    def __init__(
        self, process: Process, store: MemoryStore, clock: Clock, faults: Faults, lagging: bool
    ) -> None:
        super().__init__(store, clock=clock, faults=faults, lagging=lagging)
        self._process = process

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        self._process.at("append")
        positions = self._effect(lambda: super(ProcessLog, self).append(entries, fence))
        self._process.at("appended")
        return positions

    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        self._process.at("read")
        return super().read(tags, after, limit, untrimmed_after=untrimmed_after)

    def last(self, tag: str) -> Record | None:
        self._process.at("last")
        return super().last(tag)

    def get(self, key: str) -> Versioned | None:
        self._process.at("get")
        return super().get(key)

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        self._process.at("compare_and_set")
        done = self._effect(lambda: super(ProcessLog, self).compare_and_set(key, version, value))
        self._process.at("registered")
        return done

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        self._process.at("trim")
        self._effect(lambda: super(ProcessLog, self).trim(tag, upto, fence))

    def show_all(self) -> None:
        """See everything from now on."""
        if not self._process.is_dead:
            self._lagging = False

    def _effect(self, perform: Callable[[], T]) -> T:
        try:
            return perform()
        except SimulatedCrash:
            self._process.die()
            raise


class ProcessCheckpoints(CheckpointQueue):
    """The real queue of a process; the world is the thread that works it off."""

    def __init__(self, process: Process, store: CheckpointStore) -> None:
        super().__init__(store, process.log)
        self._process = process
        self.is_writing = False

    def submit(self, job: Work) -> bool:
        self._process.at("submit")
        taken = super().submit(job)
        self._process.at("submitted")
        return taken

    def drop(self) -> None:
        """Forget what waits: the process is dead."""
        self.close()
        while self.take() is not None:
            pass


class Watched:
    """A part of a vertex that passes a point of its process before and after each action."""

    def __init__(self, part: Any, process: Process, name: str) -> None:
        self._part = part
        self._process = process
        self._name = name
        for action in ACTIONS[name]:
            setattr(self, action, self._watched(action))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def _watched(self, action: str) -> Callable[..., Any]:
        perform = getattr(self._part, action)
        at, where, done = self._process.at, f"{self._name}.{action}", f"{self._name}.{action} done"

        def act(*args: Any, **named: Any) -> Any:
            at(where)
            result = perform(*args, **named)
            at(done)
            return result

        return act


@dataclass(frozen=True)
class ProcessAssembly(Assembly):
    """The real assembly, with points between the actions of what it puts together."""

    process: Process = field(kw_only=True)

    def start(self, name: str, instance: int) -> Vertex:
        self.process.at("start")
        vertex = super().start(name, instance)
        self.process.at("started")
        return vertex

    def _new_chain(self, stage: Stage) -> Chain:
        chain = super()._new_chain(stage)
        self.process.at("chain made")
        self.process.chain = chain
        return chain

    def _parts(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, chain: Chain
    ) -> VertexParts:
        self.process.at("restored")
        parts = super()._parts(vertex, stage, marker, chain)
        watched: dict[str, Any] = {
            name: Watched(getattr(parts, name), self.process, name) for name in ACTIONS
        }
        return replace(parts, **watched)
