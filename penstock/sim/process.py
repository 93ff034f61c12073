"""A simulated slot: a process with its vertices, its own view of the log, and a place to die at
every action.

Slot, host, vertices, recovery and background work are the real ones. Between any two of their
actions they pass a point, where the world may kill the process, let others run first, or have its
driver take it for lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.operators.chain import Chain
from penstock.runtime.appending import AppendQueue, PendingAppend
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import CheckpointQueue, Work
from penstock.runtime.control import Message
from penstock.runtime.event_time import EventTime
from penstock.runtime.markers import Marker
from penstock.runtime.slot import Slot
from penstock.runtime.vertex import CheckpointJob, Vertex, VertexParts
from penstock.sim.actor import Actor, Point
from penstock.sim.connection import End
from penstock.sim.driver import Driver
from penstock.sim.judge import Committed, Deed, Drained, Looked, Took
from penstock.sim.schedule import Schedule
from penstock.sim.violation import Violation
from penstock.stages.program import Stage, VertexProgram
from penstock.state.checkpoints import CheckpointId, CheckpointStore

Note = Callable[[str, Any], None]
PICTURE_LATE = 3  # a checkpoint is begun before so many times the commits after which it is due

# What a vertex's parts do, one action each; a process passes a point before and after.
ACTIONS: dict[str, tuple[str, ...]] = {
    "input": ("take", "position"),
    "chain": ("process", "on_watermark", "on_commit", "progress"),
    "outputs": ("add", "append_early", "begin_commit"),
}


class Process(Actor):
    """A slot: one process, alive or dead. Its main thread and those beside it act apart."""

    def __init__(self, number: int, order: int, driver: Driver, job: End, point: Point) -> None:
        super().__init__(f"slot{number}", point)
        self.driver = driver
        self.number = number
        self.order = order  # the number that its driver knows it by
        self.job = job  # its end of the connection
        self.checkpointer: ProcessCheckpoints
        self.appends: ProcessAppends | None = None  # None: its main thread appends
        self.slot: Slot
        self.chains: dict[str, Chain] = {}
        self.instances: dict[str, int] = {}  # as recovered here, by vertex
        self.loaded: list[CheckpointId] = []  # checkpoints that the last recovery looked at
        self.said: list[Message] = []  # what the world has not looked at yet
        self.unpictured: Counter[str] = Counter()  # commits since a picture was last handed over

    def can_act(self, now_s: float) -> bool:
        # What the thread that appends is in the middle of, the main thread could only wait for.
        is_appending = self.appends is not None and self.appends.is_busy
        return super().can_act(now_s) and not is_appending

    @property
    def has_appends(self) -> bool:
        """Whether the thread that appends could do something now."""
        appends = self.appends
        if appends is None or self.is_dead or self.holds_lock or appends.is_busy:
            return False
        return appends.has_work

    @property
    def recovering(self) -> str | None:
        """The vertex that it recovers at the moment."""
        beat = self.slot.beat()
        return str(beat["vertex"]) if beat["doing"] == "recover" else None

    def die(self) -> None:
        super().die()
        self.checkpointer.drop()
        self.job.close()

    def say(self, message: Message) -> None:
        """Tell the job something."""
        self.at("say")
        self.said.append(message)
        self.job.send(message)

    def beat(self) -> None:
        """What the thread beside the main one says all the time."""
        with suppress(OSError):
            self.job.send(self.slot.beat())

    def turn(self) -> bool:
        """Obey an order or do a step; return whether there will be another turn."""
        try:
            if self.job.has_news():
                message = self.job.receive()
                if message is not None and self.slot.obey(message):
                    return True
            else:
                self.slot.work()
                return True
        except (BrokenPipeError, ConnectionError):
            pass  # the job is gone: this slot stops
        self.slot.close()
        return False


class ProcessCheckpoints(CheckpointQueue):
    """The real queue of a process; the world is the thread that works it off."""

    def __init__(self, process: Process, store: CheckpointStore) -> None:
        super().__init__(store, process.log)
        self._process = process
        self.is_writing = False

    def submit(self, job: Work) -> bool:
        self._process.at("submit")
        if isinstance(job, CheckpointJob):
            self._process.unpictured[job.vertex] = 0  # or it comes again, until there is room
        taken = super().submit(job)
        self._process.at("submitted")
        return taken

    def drop(self) -> None:
        """Forget what waits: the process is dead."""
        self.close()
        while self.take() is not None:
            pass


class ProcessAppends(AppendQueue):
    """The real queue of a process; the world is the thread that works it off.

    It carries out what waits in one turn, and lets the vertices know what came of it in the next.
    """

    def __init__(self, process: Process, schedule: Schedule) -> None:
        super().__init__(process.log)
        self._schedule = schedule
        self._told_next: list[tuple[PendingAppend, PendingAppend]] = []
        self.is_busy = False  # in the middle of an append, down the stack

    @property
    def has_work(self) -> bool:
        return self.has_waiting or bool(self._told_next)

    def turn(self) -> None:
        if self._told_next:
            told, self._told_next = self._told_next, []
            for pending, known in told:
                pending.outcome = known.outcome
            return
        self.is_busy = True
        try:
            group = self.take()
            done = [PendingAppend(pending.append) for pending in group]
            self._schedule.sometimes["appends of several vertices at once"] += len(group) > 1
            self.carry_out(done)
            self._told_next = list(zip(group, done, strict=True))
        finally:
            self.is_busy = False

    def finish(self, pending: PendingAppend) -> None:
        while pending.outcome is None:
            self.turn()


class Watched:
    """A part of a vertex that passes a point of its process before and after each action."""

    def __init__(self, part: Any, process: Process, name: str, note: Note) -> None:
        """`note` is told each action, before and after it, with its result."""
        self._part = part
        self._process = process
        self._name = name
        self._note = note
        for action in ACTIONS[name]:
            setattr(self, action, self._watched(action))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def _watched(self, action: str) -> Callable[..., Any]:
        perform, note = getattr(self._part, action), self._note
        at, where, done = self._process.at, f"{self._name}.{action}", f"{self._name}.{action} done"

        def act(*args: Any, **named: Any) -> Any:
            at(where)
            note(where, None)
            result = perform(*args, **named)
            note(done, result)
            at(done)
            return result

        return act


class WatchedSilence:
    """What a vertex has heard of its producers; each look at their silence is noted."""

    def __init__(self, time: EventTime, look: Callable[[float], None]) -> None:
        self._time = time
        self._look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._time, name)

    def listen(self, now_ms: float) -> bool:
        self._look(now_ms)
        return self._time.listen(now_ms)


@dataclass(frozen=True)
class ProcessAssembly(Assembly):
    """The real assembly, with points between the actions of what it puts together."""

    process: Process = field(kw_only=True)
    recovered: Callable[[Process, Vertex], None] = field(kw_only=True)
    listened: Callable[[Process, VertexProgram, int], None] = field(kw_only=True)
    deeds: dict[tuple[str, int], list[Deed]] = field(kw_only=True)

    def start(self, name: str, instance: int) -> Vertex:
        self.process.at("start")
        self.process.loaded.clear()
        vertex = super().start(name, instance)
        self.process.instances[name] = instance
        self.process.unpictured[name] = 0
        self.recovered(self.process, vertex)
        self.process.at("started")
        return vertex

    def _count_commit(self, name: str) -> None:
        """Checkpoints come when they are due, whether or not the input ever pauses."""
        due = self.program.settings.checkpoint_interval_commits
        commits = self.process.unpictured[name] = self.process.unpictured[name] + 1
        if commits > PICTURE_LATE * due:
            raise Violation(f"{name}: no checkpoint in {commits} commits, one is due after {due}")

    def _new_chain(self, stage: Stage) -> Chain:
        chain = super()._new_chain(stage)
        self.process.at("chain made")
        return chain

    def _parts(
        self, vertex: VertexProgram, stage: Stage, marker: Marker, chain: Chain
    ) -> VertexParts:
        self.process.at("restored")
        self.process.chains[vertex.name] = chain
        parts = super()._parts(vertex, stage, marker, chain)
        deeds = self.deeds.setdefault((vertex.name, marker.instance), [])

        def note(action: str, result: Any) -> None:
            if action == "input.take done" and result is not None and result.is_whole:
                place = parts.input.position()
                upto = place["offset"] if stage.source is not None else place["consumed"]
                deeds.append(Took(upto))
            elif action == "input.take done" and result is None and stage.source is not None:
                if parts.input.is_drained():
                    deeds.append(Drained())
            elif action == "outputs.begin_commit":
                deeds.append(Committed())
                if chain.states:
                    self._count_commit(vertex.name)

        watched: dict[str, Any] = {
            name: Watched(getattr(parts, name), self.process, name, note) for name in ACTIONS
        }

        def look(at_ms: float) -> None:
            deeds.append(Looked(at_ms))
            if self.program.settings.idle_timeout_ms is not None:
                self.listened(self.process, vertex, parts.input.position()["consumed"])

        if stage.source is None:
            watched["time"] = WatchedSilence(parts.time, look)
        return replace(parts, **watched)
