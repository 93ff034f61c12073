"""The world of one simulated run: who acts next, what fails, and how it is made whole again.

Everything random comes from one generator that the seed sets, and time moves only when the world
moves it, so a seed gives the same run every time, to the byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.connectors.contract import Source
from penstock.errors import (
    ChangeLogBroken,
    CheckpointError,
    Fenced,
    OutcomeUnknown,
)
from penstock.kernels.cache import KernelCache
from penstock.log.committed import CommittedReader
from penstock.log.memory import Effect, Fault, Faults, MemoryLog, SimulatedCrash
from penstock.log.record import Position, Record
from penstock.runtime.sources import SourceRequest
from penstock.runtime.trimming import TrimJob
from penstock.runtime.vertex import VertexState
from penstock.sim.checks import Violation
from penstock.sim.data import SimulatedSource
from penstock.sim.history import RecordedStore
from penstock.sim.oracle import Replica, plain_value
from penstock.sim.process import Process, ProcessAssembly, ProcessCheckpoints, ProcessLog
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import CONNECTOR, OUT
from penstock.stages.program import VertexProgram
from penstock.stages.tags import change_tag, marker_tag
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST, CheckpointId, MemoryCheckpoints
from penstock.testing.clock import ManualClock

DEPTH_MAX = 2  # how many processes may be held up in the middle of an action
ROUNDS_MAX = 1_500  # after healing, all must have ended within so many steps of each vertex
ZOMBIE_STEPS_MAX = 60
HOLD_ACTIONS_MAX = 8  # of the others, while a process is held up
LONG_HOLD_ACTIONS = 40  # enough for what it appended to be read, committed and trimmed
FAULTY_FILE_STEPS = frozenset({"make_folder", "create", "write", "sync_file", "rename", "read"})


class World:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, kernels: KernelCache) -> None:
        self.scenario = scenario
        self._kernels = kernels
        self._rng = random.Random(f"schedule {scenario.seed}")
        self._clock = ManualClock()
        self.store = RecordedStore()
        self.checkpoints = MemoryCheckpoints(self._file_step)
        self._faults = Faults(self._fault_of_effect)
        self._current: dict[str, Process] = {}
        self._zombies: list[Process] = []
        self._acting: list[Process] = []  # the stack of processes in the middle of an action
        self._processes = 0
        self._handed_out = 0
        self._arrived = dict.fromkeys(scenario.parts, 0)
        self._damaged: set[CheckpointId] = set()
        self._replicas = {
            vertex.name: Replica(self.store.history, change_tag(vertex.name))
            for vertex in scenario.program.vertices
        }
        self._vertices: dict[str, VertexProgram] = {
            vertex.name: vertex for vertex in scenario.program.vertices
        }
        self._is_faulty = True
        self._store_fails = False
        self._points_left = self._gap(scenario.troubles.point_gap)
        self._effects_left = self._gap(scenario.troubles.effect_gap)
        self._holds_long = False
        self._loaded: list[CheckpointId] = []
        self._observer = Observer(self.store, self._output_tags())
        self._trace = hashlib.sha256()
        self.lines: list[str] | None = None  # the schedule as text, if somebody wants it
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.sometimes: Counter[str] = Counter()

    # The run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run with failures, heal, finish; Violation if anything is not as promised."""
        for name in self._vertices:
            self._start(name)
        if self.scenario.troubles.arrive_at_once:
            for part, (rows, _) in self.scenario.parts.items():
                if part[0] != self.scenario.stalled_feed:
                    self._arrived[part] = len(rows)
        for _ in range(self.scenario.troubles.actions):
            self._act()
            if self._all_ended() and self._rng.random() < 0.1:
                break  # a while after the end is enough
        self._heal()
        self._finish()

    def run_plainly(self) -> None:
        """Run without any failure."""
        self._heal()
        self._finish()

    def trace_hash(self) -> str:
        """A name for all that happened: the schedule and every record with its bytes."""
        whole = self._trace.copy()
        for seen in self.store.history:
            whole.update(repr(seen).encode())
        return whole.hexdigest()

    def observed(self) -> list[Record]:
        """The output as a reader outside the query got it, through the engine's own reader."""
        self._observer.finish()
        return self._observer.records

    def states(self) -> dict[str, dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]]:
        """The rows of the states of all vertices, by vertex and state."""
        return {name: _state_rows(process) for name, process in self._current.items()}

    def replica(self, name: str) -> Replica:
        replica = self._replicas[name]
        replica.catch_up()
        return replica

    def _note(self, *what: object) -> None:
        line = " ".join(map(str, what))
        self._trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(f"{self._clock.monotonic_s():9.4f} {'  ' * len(self._acting)}{line}")

    def _gap(self, mean: int) -> int:
        return self._rng.randint(1, 2 * mean)

    # One action -----------------------------------------------------------------------------

    def _act(self) -> None:
        """Let some time pass, and one thing happen."""
        rng = self._rng
        self._clock.advance(rng.choice((0.0, 0.0001, 0.001, 0.004)))
        if rng.random() < self.scenario.troubles.event_share:
            self._happen()
        down = [name for name in self._vertices if self._is_down(name)]
        if down and rng.random() < 0.4:
            self._start(rng.choice(down))
            return
        dice = rng.random()
        if dice < 0.12:
            self._arrive()
        elif dice < 0.22:
            self._work_in_some_background()
        elif dice < 0.30:
            self._step_some_zombie()
        elif dice < 0.34:
            self._observer.look(rng)
        else:
            self._step_some_vertex()

    def _step_some_vertex(self) -> None:
        now_s = self._clock.monotonic_s()
        ready = [
            process
            for process in self._current.values()
            if process.vertex is not None
            and not process.is_dead
            and not process.is_busy
            and process.slow_until_s <= now_s
        ]
        if ready:
            self._step(self._rng.choice(ready))

    def _step_some_zombie(self) -> None:
        ready = [z for z in self._zombies if z.vertex is not None and not z.is_busy]
        if ready:
            self._step(self._rng.choice(ready))

    def _step(self, process: Process) -> bool:
        """One step of a vertex, with what becomes of its errors."""
        vertex = process.vertex
        assert vertex is not None
        self._reveal_some(process)
        self.steps += 1
        was_ours = not process.is_zombie
        self._note("step", process.name, process.number)
        try:
            worked = self._within(process, vertex.step)
        except SimulatedCrash:
            self._note("died", process.name, process.number)
            process.die()
            worked = False
        except Fenced:
            worked = False
            if vertex.marker.instance == self._newest_instance(process.name):
                raise Violation(f"{process.name}: the newest instance was fenced") from None
            self.sometimes["zombie append refused"] += 1
            if was_ours:
                self.sometimes["zombie held up in an action and refused"] += 1
            self._forget(process)
        except OutcomeUnknown:
            self._note("gave up", process.name, process.number)
            process.die()
            worked = False
        if process.is_dead:
            self._forget(process)
        return bool(worked)

    def _within(self, process: Process, act: Callable[[], Any]) -> Any:
        process.is_busy = True
        self._acting.append(process)
        try:
            return act()
        finally:
            self._acting.pop()
            process.is_busy = False

    def _forget(self, process: Process) -> None:
        process.die()
        if process in self._zombies:
            self._zombies.remove(process)

    def _reveal_some(self, process: Process) -> None:
        tail = self.store.tail
        view = process.log.tail()
        if view < tail:
            self.sometimes["view behind the log"] += 1
            if self._rng.random() < 0.7:
                process.log.reveal(Position(self._rng.randint(view, tail)))

    def _arrive(self) -> None:
        part = self._rng.choice(tuple(self._arrived))
        if part[0] != self.scenario.stalled_feed:
            self._arrived[part] += self._rng.randint(1, 20)

    # Starting -------------------------------------------------------------------------------

    def _is_down(self, name: str) -> bool:
        return name not in self._current or self._current[name].is_dead

    def _start(self, name: str) -> None:
        """Let a new process recover a vertex; whoever had it before becomes a zombie."""
        old = self._current.get(name)
        if old is not None and not old.is_dead:
            old.is_zombie = True
            self._zombies.append(old)
        process = self._new_process(name)
        self._current[name] = process
        self._note("start", name, process.number)
        assembly = self._assembly(process)
        self._loaded.clear()
        try:
            process.vertex = self._within(process, lambda: assembly.start(name, self._hand_out()))
        except SimulatedCrash:
            self._note("died", name, process.number)
            self.sometimes["crash during recovery"] += 1
            process.die()
        except OutcomeUnknown:
            self.sometimes["recovery of unknown outcome"] += 1
            process.die()
        except Fenced:
            if not process.is_zombie:
                raise Violation(f"{name}: recovery was fenced") from None
            self.sometimes["late recovery refused"] += 1
            process.die()
        except (CheckpointError, ChangeLogBroken):
            if not self._store_fails:
                raise
            self.sometimes["recovery without checkpoint store"] += 1
            process.die()
        if process.is_dead:
            self._forget(process)
        elif self._owns(process):
            self._check_recovered(process)

    def _owns(self, process: Process) -> bool:
        """Whether a process that has just recovered its vertex has it now.

        One that was held up, and whose successor has a greater number, has it for a moment at most.
        """
        assert process.vertex is not None
        newest = self._newest_instance(process.name)
        return process.vertex.marker.instance == newest and not process.is_zombie

    def _hand_out(self) -> int:
        """The next instance number, as the job of this run would hand it out."""
        self._handed_out += 1
        return self._handed_out

    def _newest_instance(self, name: str) -> int:
        return max((r.instance for r in self.store.registrations if r.vertex == name), default=0)

    def _new_process(self, name: str) -> Process:
        self._processes += 1
        process = Process(name, self._processes, self._at)
        lagging = self._is_faulty and self.scenario.troubles.lagging
        process.log = ProcessLog(process, self.store, self._clock, self._faults, lagging)
        process.checkpointer = ProcessCheckpoints(process, self.checkpoints)
        return process

    def _assembly(self, process: Process) -> ProcessAssembly:
        return ProcessAssembly(
            program=self.scenario.program,
            log=process.log,
            clock=self._clock,
            checkpoints=self.checkpoints,
            checkpointer=process.checkpointer,
            kernels=self._kernels,
            sources={CONNECTOR: self._source},
            trim_commits=self.scenario.trim_commits,
            process=process,
        )

    def _source(self, request: SourceRequest) -> Source:
        part = (int(request.options["feed"]), request.part)
        assert request.parts == self.scenario.shape.parts
        _, batch = self.scenario.parts[part]
        return SimulatedSource(batch, request.schema, lambda: self._arrived[part])

    def _check_recovered(self, process: Process) -> None:
        """What recovery has built must be what the committed changes and the last marker say."""
        vertex, chain = process.vertex, process.chain
        assert vertex is not None
        assert chain is not None
        last = self._last_marker(process.name)
        facts = vertex.statistics()
        if last is None or facts.epoch != last["epoch"]:
            if last is None and facts.epoch == 0:
                return
            raise Violation(f"{process.name}: recovered at epoch {facts.epoch}, committed: {last}")
        if facts.watermark_us != last["watermark_us"]:
            raise Violation(f"{process.name}: the watermark was not restored")
        replica = self.replica(process.name)
        for state, rows in _state_rows(process).items():
            expected = replica.rows(state)
            if rows != expected:
                raise Violation(
                    f"{process.name}: recovered state {state} has {_difference(rows, expected)}"
                )
        if chain.progress() != vertex.marker.progress:
            raise Violation(f"{process.name}: the chain's progress was not restored")
        if vertex.marker.resume < vertex.marker.consumed:
            self.sometimes["resume before a consumed marker"] += 1
        if chain.states and replica.changes:
            self._note_recovery(process)

    def _last_marker(self, name: str) -> dict[str, Any] | None:
        """What the last marker of a vertex says, by the history."""
        for seen in reversed(self.store.history):
            if seen.kind == "MARKER" and seen.producer == name:
                facts: dict[str, Any] = json.loads(seen.body)
                return facts
        return None

    def _note_recovery(self, process: Process) -> None:
        checkpoints = [c for c in self._loaded if c.vertex == process.name]
        damaged = [c for c in checkpoints if c in self._damaged]
        if len(checkpoints) > len(damaged):
            self.sometimes["recovery from a checkpoint"] += 1
            if damaged:
                self.sometimes["recovery from an older checkpoint"] += 1
        else:
            self.sometimes["recovery from the change log alone"] += 1

    # Checkpoints ----------------------------------------------------------------------------

    def _work_in_some_background(self) -> None:
        """Let the background thread of some process do the job that waits for it."""
        ready = [
            process
            for process in (*self._current.values(), *self._zombies)
            if not process.is_dead and process.checkpointer.has_jobs
        ]
        if ready:
            self._work_in_background(self._rng.choice(ready))

    def _work_in_background(self, process: Process) -> None:
        """What the background thread of a process does with one job."""
        checkpointer = process.checkpointer
        job = checkpointer.take()
        assert job is not None
        is_trim = isinstance(job, TrimJob)
        self._note("trim" if is_trim else "checkpoint", process.name, process.number)
        trims = len(self.store.trims)
        checkpointer.is_writing = not is_trim
        self._acting.append(process)
        try:
            error = checkpointer.perform(job)
        except SimulatedCrash:
            self._note("died", process.name, process.number)
            what = "trimming" if is_trim else "writing a checkpoint"
            self.sometimes[f"crash while {what}"] += 1
            process.die()
        else:
            checkpointer.settle(job)
            self._judge_background(process, is_trim, error)
        finally:
            self._acting.pop()
            checkpointer.is_writing = False
        if isinstance(job, TrimJob):
            self._note_trims(process, job, trims)
        if process.is_dead:
            self._forget(process)

    def _judge_background(self, process: Process, is_trim: bool, error: Exception | None) -> None:
        """Only what the faults explain may have gone wrong."""
        if error is None and not is_trim:
            self.sometimes["checkpoint written"] += 1
            if process.is_zombie:
                self.sometimes["checkpoint written by a zombie"] += 1
        if error is None:
            return
        if isinstance(error, Fenced) and process.is_zombie and not is_trim:
            self.sometimes["zombie's checkpoint trims nothing"] += 1
            return
        explained = OutcomeUnknown if is_trim else (OutcomeUnknown, CheckpointError)
        if not (isinstance(error, explained) or (self._store_fails and not is_trim)):
            raise error
        self.sometimes["trim of unknown outcome" if is_trim else "checkpoint not written"] += 1

    def _note_trims(self, process: Process, job: TrimJob, before: int) -> None:
        inputs = {tag for tag, _ in job.inputs}
        if any(trim.tag in inputs for trim in self.store.trims[before:]):
            self.sometimes["input trimmed"] += 1
            if process.is_zombie:
                self.sometimes["input trimmed by a zombie"] += 1

    def _file_step(self, step: str, path: FilePath) -> None:
        """Called before every step of the checkpoint store."""
        if not self._acting:
            return
        if step == "read" and path[-1] == MANIFEST:
            self._note_load(path)
        self._acting[-1].at(f"file {step}")
        if self._store_fails and step in FAULTY_FILE_STEPS and self._rng.random() < 0.4:
            self.faults["checkpoint store fails"] += 1
            raise OSError(errno.EIO, "simulated")

    def _note_load(self, path: FilePath) -> None:
        position, attempt = path[1].split("_")
        self._loaded.append(CheckpointId(path[0], int(position), int(attempt)))

    # Faults ---------------------------------------------------------------------------------

    def _at(self, process: Process, where: str) -> None:
        """A process passes a point between two actions."""
        if not self._is_faulty:
            return
        if self._holds_long and where == "append":
            self._holds_long = False
            if len(self._acting) <= DEPTH_MAX:
                self._preempt(process, where, False, LONG_HOLD_ACTIONS)
                return
        self._points_left -= 1
        if self._points_left > 0:
            return
        self._points_left = self._gap(self.scenario.troubles.point_gap)
        dice = self._rng.random()
        if where.startswith("file") and dice < 0.15:
            self._cut_power()
        elif dice < 0.45:
            self.faults["crash at a point"] += 1
            self._note("crash", process.name, process.number, where)
            process.die()
        elif len(self._acting) <= DEPTH_MAX:
            takes_over = dice < 0.75 and not process.is_zombie
            self._preempt(process, where, takes_over, self._rng.randint(1, HOLD_ACTIONS_MAX))

    def _preempt(self, process: Process, where: str, takes_over: bool, actions: int) -> None:
        """Hold a process up in the middle of an action while others act."""
        self._note("held up", process.name, process.number, where)
        self.faults["held up in an action"] += 1
        if takes_over:
            self.faults["taken over in an action"] += 1
            self._start(process.name)
        for _ in range(actions):
            self._act()
        self._note("goes on", process.name, process.number, where)

    def _fault_of_effect(self, effect: Effect, index: int) -> Fault | None:
        if not self._is_faulty:
            return None
        self._effects_left -= 1
        if self._effects_left > 0:
            return None
        self._effects_left = self._gap(self.scenario.troubles.effect_gap)
        fault = self._rng.choice(tuple(Fault))
        self.faults[f"{effect.value}: {fault.value}"] += 1
        self._note("fault", effect.value, fault.value)
        if fault is Fault.UNKNOWN_APPLIED and effect is Effect.APPEND:
            self.sometimes["unknown outcome that was applied"] += 1
            self._holds_long = self._rng.random() < 0.7  # before the append is repeated
        if fault is Fault.UNKNOWN_NOT_APPLIED and effect is Effect.APPEND:
            self.sometimes["unknown outcome that was not applied"] += 1
        return fault

    def _happen(self) -> None:
        """A fault from outside."""
        happens = self._rng.choice(
            (
                self._kill_one,
                self._kill_two,
                self._suspect,
                self._suspect,
                self._slow_down,
                self._jump_clock,
                self._damage_checkpoint,
                self._damage_checkpoint,
                self._cut_power,
                self._fail_store,
            )
        )
        happens()

    def _alive(self) -> list[Process]:
        return [process for process in self._current.values() if not process.is_dead]

    def _kill(self, process: Process) -> None:
        self._note("kill", process.name, process.number)
        process.die()
        if process.vertex is not None and process.vertex.state is VertexState.ENDED:
            self.sometimes["ended vertex lost"] += 1

    def _kill_one(self) -> None:
        alive = self._alive()
        if alive:
            self.faults["crash"] += 1
            self._kill(self._rng.choice(alive))

    def _kill_two(self) -> None:
        alive = self._alive()
        if len(alive) >= 2:
            self.faults["two crashes at once"] += 1
            self.sometimes["two crashes at once"] += 1
            for process in self._rng.sample(alive, 2):
                self._kill(process)

    def _suspect(self) -> None:
        """Somebody takes a living process for dead and starts a replacement."""
        alive = self._alive()
        if alive:
            self.faults["zombie"] += 1
            self._start(self._rng.choice(alive).name)

    def _slow_down(self) -> None:
        alive = self._alive()
        if alive:
            self.faults["slow vertex"] += 1
            process = self._rng.choice(alive)
            process.slow_until_s = self._clock.monotonic_s() + self._rng.choice((0.05, 0.5))

    def _jump_clock(self) -> None:
        if self._rng.random() < 0.5:
            self.faults["wall clock jumps"] += 1
            self._clock.jump_wall(self._rng.choice((-86_400.0, -1.0, 1.0, 86_400.0)))
        else:
            self.faults["long pause"] += 1
            self._clock.advance(self._rng.choice((0.1, 60.0)))

    def _damage_checkpoint(self) -> None:
        """Let the newest checkpoint of some vertex rot or vanish, where the state survives it."""
        written = [ids for name in self._vertices if (ids := self.checkpoints.list(name))]
        if not written or self._acting:
            return
        ids = self._rng.choice(written)
        victim = ids[-1]
        whole = [each for each in ids[:-1] if each not in self._damaged]
        trimmed, _ = self.store.trimmed(change_tag(victim.vertex))
        if victim in self._damaged or (trimmed and not any(w.position >= trimmed for w in whole)):
            return
        self._note("damage", victim)
        if self._rng.random() < 0.3:
            self.faults["checkpoint lost"] += 1
            self.checkpoints.lose(victim)
            return
        self.faults["checkpoint damaged"] += 1
        self._damaged.add(victim)
        files = [MANIFEST, *(f"{name}.units" for name in self._states_of(victim))]
        self.checkpoints.damage(victim, self._rng.randrange(1 << 16), self._rng.choice(files))

    def _states_of(self, checkpoint: CheckpointId) -> list[str]:
        """The states whose files in a checkpoint hold any byte that can rot."""
        rows = self.checkpoints.load(checkpoint).states
        return [name for name, batches in rows.items() if any(len(batch) for batch in batches)]

    def _cut_power(self) -> None:
        """The machine goes down: every process with it, and what the disk had not synced."""
        self.faults["power cut"] += 1
        self._note("power cut")
        self.sometimes["two crashes at once"] += 1
        if any(process.checkpointer.is_writing for process in self._alive()):
            self.sometimes["power cut while writing a checkpoint"] += 1
        for process in (*self._current.values(), *self._zombies):
            if not process.is_dead:
                self._kill(process)
        self._zombies.clear()
        self.checkpoints.files.power_cut(self._rng.randrange)

    def _fail_store(self) -> None:
        self._store_fails = not self._store_fails
        self._note("checkpoint store", "fails" if self._store_fails else "works")

    # After the faults -----------------------------------------------------------------------

    def _heal(self) -> None:
        """No more faults, everything visible, everybody back."""
        self._note("heal")
        self._is_faulty = self._store_fails = False
        self._arrived = {part: len(rows) for part, (rows, _) in self.scenario.parts.items()}
        for process in (*self._current.values(), *self._zombies):
            process.slow_until_s = 0.0
            process.log.show_all()
        for name in self._vertices:
            if self._is_down(name):
                self._start(name)
        for zombie in tuple(self._zombies):
            self._wear_out(zombie)

    def _wear_out(self, zombie: Process) -> None:
        """Step a zombie until it is fenced or has nothing to do."""
        for _ in range(ZOMBIE_STEPS_MAX):
            self._clock.advance(0.01)
            if zombie.vertex is None or zombie.is_dead or not self._step(zombie):
                return

    def _finish(self) -> None:
        """Step everybody until all have ended."""
        for _ in range(ROUNDS_MAX):
            self._clock.advance(0.005)
            for name in self._vertices:
                process = self._current[name]
                while process.checkpointer.has_jobs:
                    self._work_in_background(process)
                self._step(process)
            if self._all_ended():
                return
        waiting = [
            name
            for name, process in self._current.items()
            if process.vertex is None or process.vertex.state is not VertexState.ENDED
        ]
        raise Violation(f"not finished {ROUNDS_MAX} rounds after healing: {', '.join(waiting)}")

    def _all_ended(self) -> bool:
        return all(
            process.vertex is not None and process.vertex.state is VertexState.ENDED
            for process in self._current.values()
        )

    def _output_tags(self) -> tuple[str, ...]:
        stream = self.scenario.program.stream(OUT)
        return (*stream.substream_tags, marker_tag(OUT))


class Observer:
    """A reader outside the query: it reads through the engine's reader, lags and restarts."""

    def __init__(self, store: RecordedStore, tags: tuple[str, ...]) -> None:
        self._tags = tags
        self._log = MemoryLog(store, lagging=True)
        self._reader = CommittedReader(self._log, tags)
        self.records: list[Record] = []

    def look(self, rng: random.Random) -> None:
        """See some more of the log and take some of what is committed there."""
        tail = self._log.tail()
        self._log.reveal(Position(rng.randint(tail, self._log.store.tail)))
        for _ in range(rng.randint(0, 6)):
            self._take()
        if rng.random() < 0.2:
            self._reader = CommittedReader(
                self._log, self._tags, self._reader.resume, self._reader.consumed
            )

    def finish(self) -> None:
        self._log.reveal()
        while self._take():
            pass

    def _take(self) -> bool:
        release = self._reader.take()
        if release is None:
            return False
        self.records.extend(release.records)
        return True


def _state_rows(process: Process) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
    """The rows of a process's states, in the form of a `Replica`'s."""
    assert process.chain is not None
    return {name: _rows(state.scan()) for name, state in process.chain.states.items()}


def _rows(batch: pa.RecordBatch) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    keys = batch.schema.names.index("__pane")
    found = {}
    for line in batch.to_pylist():
        pane = line.pop("__pane")
        values = tuple(plain_value(value) for value in line.values())
        found[pane, *values[:keys]] = values
    return found


def _difference(found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    missing = sorted(map(str, (key for key in expected if key not in found)))[:3]
    added = sorted(map(str, (key for key in found if key not in expected)))[:3]
    other = sorted(
        f"{key}: {found[key]} instead of {expected[key]}"
        for key in found
        if key in expected and found[key] != expected[key]
    )[:3]
    return f"missing {missing}, too many {added}, different {other}"
