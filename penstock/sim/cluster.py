"""The processes of a run: drivers, their slots, what they do, and what becomes of errors."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import (
    ChangeLogBroken,
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    DiskFull,
    Fenced,
    JobFailed,
    LogBusy,
    LogIOError,
    OutcomeUnknown,
    QueryActive,
    SinkError,
    StreamError,
    StreamNotFound,
    TooFewSlots,
)
from penstock.kernels.cache import KernelCache
from penstock.log.memory import SimulatedCrash
from penstock.log.record import Position
from penstock.plan.build import parse_schema
from penstock.runtime.checkpointing import Work
from penstock.runtime.control import Message
from penstock.runtime.slot import Slot
from penstock.runtime.sources import SourceBuilder
from penstock.runtime.streams import create_stream
from penstock.runtime.trimming import TrimJob
from penstock.runtime.vertex import CheckpointJob, Vertex, VertexState
from penstock.sim.actor import Actor
from penstock.sim.checks import Violation
from penstock.sim.connection import connection
from penstock.sim.data import COLUMNS
from penstock.sim.driver import Driver
from penstock.sim.faults import AtPoint, Faults
from penstock.sim.history import History
from penstock.sim.judge import Deed
from penstock.sim.logs import Backend, ProcessLog
from penstock.sim.oracle import Replica, plain_value
from penstock.sim.process import Process, ProcessAssembly, ProcessCheckpoints
from penstock.sim.producers import Producer
from penstock.sim.scenario import Scenario
from penstock.sim.schedule import Schedule
from penstock.sim.sinks import Feeder, Hand, Outside
from penstock.stages.program import Program, VertexProgram
from penstock.stages.tags import change_tag
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST, CheckpointId, MemoryCheckpoints

DEPTH_MAX = 2  # how many actors may be held up in the middle of an action
HOLD_ACTIONS_MAX = 8  # of the others, while one is held up
TAKE_OVER_ACTIONS = 20  # enough for a successor to be placed and to recover
LONG_HOLD_ACTIONS = 40
STARTS_HEALED_MAX = 6  # errors from before may still end some runs of a query
FAULTY_FILE_STEPS = frozenset({"make_folder", "create", "write", "sync_file", "rename", "read"})
# What a failing call on the log explains; anything else that an instance ends with is a finding.
EXPLAINED = (OutcomeUnknown, LogBusy, LogIOError, DiskFull)
# What a failing checkpoint store explains.
EXPLAINED_BY_STORE = (CheckpointError, CheckpointDamaged, CheckpointNotFound, ChangeLogBroken)

StateRows = dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]  # by state


def _classes(kinds: tuple[type[StreamError], ...]) -> set[str]:
    return {kind("").error_class for kind in kinds}


class Cluster:
    """All that is alive, and the disk that the checkpoints are on."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        faults: Faults,
        backend: Backend,
        history: History,
        kernels: KernelCache,
        sources: Mapping[str, SourceBuilder],
        others_act: Callable[[], None],
    ) -> None:
        self._scenario = scenario
        self._schedule = schedule
        self._rng = schedule.rng
        self._clock = schedule.clock
        self._faults = faults
        self._backend = backend
        self._history = history
        self._kernels = kernels
        self._sources = sources
        self._others_act = others_act
        self._log = backend.open(schedule.clock, lagging=False)  # for looking only
        self.checkpoints = MemoryCheckpoints(self._file_step)
        self.outside: Outside | None = None
        if scenario.sink_keeps_record is not None:
            replaces = scenario.shape.name == "complete"
            self.outside = Outside(scenario.sink_keeps_record, replaces)
        self._handed: list[set[tuple[str, int]]] = []  # by each driver that ever was
        self._finished: set[str] = set()  # queries whose last run ended well
        self.drivers: list[Driver] = []
        self.processes: list[Process] = []
        self.deeds: dict[tuple[str, int], list[Deed]] = {}  # by vertex and instance
        self.store_fails = False
        self._store_failed = False  # it has, some time
        self.steps = 0
        self._started = 0
        self._acting: list[Actor] = []  # the stack of those in the middle of an action
        self._starts_healed: Counter[str] = Counter()  # of each query, after healing
        self._damaged: set[CheckpointId] = set()
        self._written_since_harm: dict[str, int] = {}  # checkpoints of each vertex
        self._is_checking = False
        self._kept = history.moment()
        self.tail_losses = 0
        self._programs: dict[str, Program] = {
            vertex.name: program for program in scenario.programs for vertex in program.vertices
        }
        self._replicas = {name: self._new_replica(name) for name in self._programs}

    # Who has what -----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """All vertices of all queries."""
        return list(self._programs)

    def has_query_ended(self, program: Program) -> bool:
        return all(self._history.has_ended(vertex.name) for vertex in program.vertices)

    def all_ended(self) -> bool:
        return all(self._history.has_ended(name) for name in self._programs)

    def is_zombie(self, process: Process) -> bool:
        """Whether a newer instance of one of its vertices is elsewhere."""
        return any(
            instance < self._history.newest_instance(name)
            for name, instance in process.instances.items()
        )

    def replica(self, name: str) -> Replica:
        replica = self._replicas[name]
        replica.catch_up()
        return replica

    def can_act(self, actor: Actor) -> bool:
        return actor.can_act(self._clock.monotonic_s())

    def check_handed_out(self) -> None:
        """Nobody registers a number that was not handed out for that vertex."""
        handed = set().union(*self._handed)
        for each in self._history.registrations:
            if each.vertex in self._programs and (each.vertex, each.instance) not in handed:
                raise Violation(f"{each.vertex}: nobody handed out instance {each.instance}")

    def close(self) -> None:
        """Let go of all handles of the log."""
        for actor in (*self.drivers, *self.processes):
            actor.log.close()
        self._log.close()

    # Drivers ----------------------------------------------------------------------------------

    def without_driver(self) -> list[Program]:
        """The queries that nobody runs though they have not ended."""
        run = {driver.query for driver in self.drivers}
        return [
            program
            for program in self._scenario.programs
            if program.query not in run and program.query not in self._finished
        ]

    def start_driver(self, program: Program) -> None:
        """Somebody starts a query, be it that another driver still runs it."""
        self._started += 1
        if not self._faults.is_on:
            self._starts_healed[program.query] += 1
            if self._starts_healed[program.query] > STARTS_HEALED_MAX:
                raise Violation(f"{program.query}: it fails again and again after healing")
        output = next(each.name for each in program.streams if each.role == "output")
        shape = (self._scenario.slots, self._scenario.standbys)
        is_fed = self.outside is not None and program is self._scenario.program
        driver = Driver(
            self._started,
            program,
            output,
            shape,
            self._clock,
            self._at,
            self._cancel,
            self._new_feeder if is_fed else None,
        )
        driver.log = self._open_log(driver)
        self.drivers.append(driver)
        self._handed.append(driver.handed)
        self._schedule.note("start", driver, program.query)
        self._act(driver, driver.begin)
        self._judge_driver(driver)

    def _new_feeder(self, driver: Driver, run: int) -> Feeder:
        assert self.outside is not None
        hand = Hand(self.outside, driver, self._schedule)
        stream = self._scenario.output
        return Feeder(driver.log, driver.query, stream, self.outside, hand, self._schedule, run)

    def turn_sink(self, driver: Driver) -> None:
        """Let the thread of a driver that feeds its sink have a turn."""
        assert driver.feeder is not None
        self._reveal_some(driver)
        self._schedule.note("sink", driver)
        self._acting.append(driver)
        try:
            driver.feeder.turn()
        except SimulatedCrash:
            self._schedule.note("died", driver)
            self._schedule.sometimes["crash while feeding a sink"] += 1
            driver.die()
        finally:
            self._acting.pop()
        self._judge_driver(driver)

    def can_feed(self, driver: Driver) -> bool:
        feeder = driver.feeder
        now_s = self._clock.monotonic_s()
        free = not (driver.is_dead or driver.holds_lock or driver in self._acting)
        return feeder is not None and not feeder.is_over and free and driver.slow_until_s <= now_s

    def turn_driver(self, driver: Driver) -> None:
        """Let a driver hear what its slots and the clock say."""
        for process in self.processes:
            if not process.is_dead and process.slow_until_s <= self._clock.monotonic_s():
                process.beat()
        if driver.placement is not None:
            self._act(driver, driver.turn)
        self._judge_driver(driver)

    def _judge_driver(self, driver: Driver) -> None:
        """A run that is over ended well, or with an error that the faults explain."""
        if driver not in self.drivers or driver in self._acting or not driver.is_over:
            return
        self.drivers.remove(driver)
        if driver.is_dead:
            driver.log.close()
            return
        error = driver.error or (driver.placement.error if driver.placement else None)
        self._schedule.note("over", driver, error)
        if error is None and not self.has_query_ended(driver.program):
            raise Violation(f"{driver.query}: its run is over, and it has not ended")
        if error is None:
            self._finished.add(driver.query)
        else:
            self._judge_run(driver, error)
        driver.log.close()

    def _judge_run(self, driver: Driver, error: StreamError) -> None:
        reason = error.details.get("reason", error.error_class)
        if isinstance(error, JobFailed) and reason == "taken over":
            if driver.is_newest_run(self._log):
                raise Violation(f"{driver.query}: its newest run was ended as if taken over")
            self._schedule.sometimes["run ended by a newer one"] += 1
            return
        if isinstance(error, QueryActive):
            if driver.is_newest_run(self._log):
                raise Violation(f"{driver.query}: the sink of its newest run was taken over")
            self._schedule.sometimes["sink taken over by a newer run"] += 1
            return
        explained = _classes((*EXPLAINED, TooFewSlots, SinkError)) | {"stuck"}
        if any(self._log.get(f"query/{each.query}") is None for each in self._scenario.programs):
            explained |= _classes((StreamNotFound,))  # who is to write it was not started yet
        if self.store_fails or self._store_failed:
            explained |= _classes(EXPLAINED_BY_STORE)
        if reason not in explained and error.error_class not in explained:
            raise Violation(f"{driver.query} failed: {error}")
        self._schedule.sometimes["run failed"] += 1

    def _cancel(self, driver: Driver, slot: int | None) -> None:
        """A driver ends a task of its, or all of them; not everybody hears of it."""
        for process in tuple(self.processes):
            is_meant = process.driver is driver and slot in (None, process.order)
            if is_meant and not (self._faults.is_on and self._rng.random() < 0.3):
                self.kill(process)

    # Slots ------------------------------------------------------------------------------------

    def launch(self, driver: Driver) -> None:
        """A slot that a driver asked for comes up."""
        order = driver.launches.pop(self._rng.randrange(len(driver.launches)))
        self._started += 1
        ours, theirs = connection()
        process = Process(self._started, order, driver, ours, self._at)
        process.log = self._open_log(process)
        process.checkpointer = ProcessCheckpoints(process, self.checkpoints)
        assembly = ProcessAssembly(
            program=driver.program,
            log=process.log,
            clock=self._clock,
            checkpoints=self.checkpoints,
            checkpointer=process.checkpointer,
            kernels=self._kernels,
            sources=self._sources,
            trim_commits=self._scenario.trim_commits,
            process=process,
            recovered=self._check_recovered,
            listened=self._check_heard,
            deeds=self.deeds,
        )
        process.slot = Slot(assembly, process.say)
        self.processes.append(process)
        self._schedule.note("launch", process, "for", driver)
        driver.connect(theirs)
        ours.send({"type": "hello", "slot": order, "pid": process.number})
        ours.send({"type": "ready"})

    def turn(self, process: Process) -> None:
        """Let the main thread of a slot obey an order or step its vertices."""
        self._reveal_some(process)
        self.steps += 1
        self._schedule.note("turn", process)
        error: StreamError | None = None
        goes_on = False
        try:
            goes_on = bool(self._act(process, process.turn))
        except StreamError as met:  # the slot cannot go on; its task fails with this
            error = met
        self._look_at_messages(process)
        if error is not None:
            self._judge(error)
            process.die()
        elif not goes_on and not process.is_dead:
            while process.checkpointer.has_jobs and not process.is_dead:
                self.work_in_background(process)  # it ends with the trims that wait
            self._check_at_the_end(process)
            process.die()
        self._forget_if_dead(process, error)

    def _look_at_messages(self, process: Process) -> None:
        """What a slot has told its job about vertices that it lost."""
        for message in process.said:
            if message["type"] in ("fenced", "returned", "failed"):
                self._look_at_end(process, message)
        process.said.clear()

    def _look_at_end(self, process: Process, message: Message) -> None:
        name, instance = message["vertex"], message["instance"]
        was_here = process.instances.pop(name, None) is not None
        sometimes = self._schedule.sometimes
        if message["type"] == "returned":
            sometimes["vertex returned"] += 1
        elif message["type"] == "fenced":
            if was_here and instance == self._history.newest_instance(name):
                raise Violation(f"{name}: the newest instance was fenced")
            sometimes["zombie append refused" if was_here else "late recovery refused"] += 1

    def _judge(self, error: StreamError) -> None:
        """Raise an error that no fault of ours explains."""
        broken = isinstance(error, EXPLAINED_BY_STORE) and self._store_failed
        if not isinstance(error, EXPLAINED) and not broken:
            raise error

    def _open_log(self, actor: Actor) -> ProcessLog:
        lagging = self._faults.is_on and self._scenario.troubles.lagging
        return ProcessLog(actor, self._backend, self._clock, self._faults, self._history, lagging)

    # Producers outside ------------------------------------------------------------------------

    def create_stream(self, name: str) -> None:
        """Describe a stream that producers outside will publish to."""
        create_stream(self._log, name, parse_schema(COLUMNS))

    def new_producer(self, name: str, stream: str, rows: pa.RecordBatch) -> Producer:
        schema = parse_schema(COLUMNS)
        producer = Producer(name, stream, schema, rows, self._schedule, self._at)
        producer.log = self._open_log(producer)
        self._schedule.note("start", producer)
        return producer

    def turn_producer(self, producer: Producer) -> bool:
        """One turn of a producer; return whether there will be another."""
        self._reveal_some(producer)
        self._schedule.note("turn", producer)
        return bool(self._act(producer, producer.turn)) and not producer.is_dead

    # The background thread of a slot ----------------------------------------------------------

    def work_in_background(self, process: Process) -> None:
        """What the background thread of a process does with one job."""
        checkpointer = process.checkpointer
        job = checkpointer.take()
        assert job is not None
        is_trim = isinstance(job, TrimJob)
        self._schedule.note("trim" if is_trim else "checkpoint", process, job.vertex)
        trims = len(self._history.trims)
        holds = self._schedule.faults["held up in an action"]
        checkpointer.is_writing = not is_trim
        self._acting.append(process)
        try:
            error = checkpointer.perform(job)
        except SimulatedCrash:
            what = "trimming" if is_trim else "writing a checkpoint"
            self._schedule.sometimes[f"crash while {what}"] += 1
            self._schedule.note("died", process)
            process.die()
        else:
            checkpointer.settle(job)
            self._judge_background(process, job, error)
            was_alone = self._schedule.faults["held up in an action"] == holds
            trimmed = {each.tag for each in self._history.trims[trims:]}
            if not is_trim and was_alone and change_tag(job.vertex) in trimmed and error is None:
                self._check_left_behind(job.vertex)
        finally:
            self._acting.pop()
            checkpointer.is_writing = False
        if isinstance(job, TrimJob):
            self._note_trims(process, job, trims)
        self._forget_if_dead(process, None)

    def has_background_work(self) -> list[Process]:
        return [
            process
            for process in self.processes
            if not process.is_dead and not process.holds_lock and process.checkpointer.has_jobs
        ]

    def _judge_background(self, process: Process, job: Work, error: Exception | None) -> None:
        """Only what the faults explain may have gone wrong."""
        sometimes = self._schedule.sometimes
        is_trim = isinstance(job, TrimJob)
        if error is None and not is_trim:
            sometimes["checkpoint written"] += 1
            self._written_since_harm[job.vertex] = self._written_since_harm.get(job.vertex, 2) + 1
            if self.is_zombie(process):
                sometimes["checkpoint written by a zombie"] += 1
        if error is None:
            return
        if isinstance(error, Fenced) and self._is_overtaken(job):
            sometimes["zombie's checkpoint trims nothing"] += 1
            return
        explained = EXPLAINED if is_trim else (*EXPLAINED, CheckpointError)
        if not (isinstance(error, explained) or (self._store_failed and not is_trim)):
            raise error
        sometimes["trim that failed" if is_trim else "checkpoint not written"] += 1

    def _check_left_behind(self, vertex: str) -> None:
        """A checkpoint that was just written has tidied up behind the two that are kept."""
        files = self.checkpoints.files
        names = files.names_in((vertex,))
        complete = [name for name in names if MANIFEST in files.names_in((vertex, name))]
        others = [each for each in self.processes if each.checkpointer.is_writing]
        if len(others) > 1 or len(complete) < 2:
            return  # somebody who is held up may be at it
        kept_from = complete[-2].partition("_")[0]  # a position, with its leading zeros
        old = [name for name in names if name.partition("_")[0] < kept_from]
        old = [name for name in old if name not in complete]
        if old:
            raise Violation(f"{vertex}: unfinished checkpoints stay: {old}")

    def _is_overtaken(self, job: Work) -> bool:
        newest = self._history.newest_instance(job.vertex)
        return isinstance(job, CheckpointJob) and job.fence.instance < newest

    def _note_trims(self, process: Process, job: TrimJob, before: int) -> None:
        inputs = {tag for tag, _ in job.inputs}
        if any(trim.tag in inputs for trim in self._history.trims[before:]):
            self._schedule.sometimes["input trimmed"] += 1
            if self.is_zombie(process):
                self._schedule.sometimes["input trimmed by a zombie"] += 1

    # Acting -----------------------------------------------------------------------------------

    def _act(self, actor: Actor, act: Callable[[], Any]) -> Any:
        """Let the main thread of somebody do something; None if it dies in it."""
        actor.is_busy = True
        self._acting.append(actor)
        try:
            return act()
        except SimulatedCrash:
            self._schedule.note("died", actor)
            actor.die()
            return None
        finally:
            self._acting.pop()
            actor.is_busy = False

    def _reveal_some(self, process: Actor) -> None:
        tail, view = self._history.tail, process.log.inner.tail()
        if not self._faults.is_on:
            process.log.reveal()
        elif view < tail:
            self._schedule.sometimes["view behind the log"] += 1
            if self._rng.random() < 0.7:
                process.log.reveal(Position(self._rng.randint(view, tail)))

    # Points -----------------------------------------------------------------------------------

    def _at(self, actor: Actor, where: str) -> None:
        """Somebody passes a point between two actions."""
        if self._is_checking:
            return
        fate = self._faults.at_point(actor.name, where, may_hold=len(self._acting) <= DEPTH_MAX)
        if fate is None:
            return
        if fate is AtPoint.CRASH:
            self._schedule.faults["crash at a point"] += 1
            self._schedule.note("crash", actor, where)
            actor.die()
            if where == "start" or self._is_recovering(actor):
                self._schedule.sometimes["crash during recovery"] += 1
        elif fate is AtPoint.POWER_CUT:
            self.cut_power()
        elif fate is AtPoint.LONG_HOLD:
            self._hold(actor, where, LONG_HOLD_ACTIONS)
        elif fate is AtPoint.TAKE_OVER and isinstance(actor, Process):
            self._schedule.faults["taken over in an action"] += 1
            self.lose_sight_of(actor)
            self._hold(actor, where, TAKE_OVER_ACTIONS)
        else:
            self._hold(actor, where, self._rng.randint(1, HOLD_ACTIONS_MAX))

    def _is_recovering(self, actor: Actor) -> bool:
        return isinstance(actor, Process) and actor.slot.beat()["doing"] == "recover"

    def _hold(self, actor: Actor, where: str, actions: int) -> None:
        """Hold somebody up in the middle of an action while others act."""
        self._schedule.note("held up", actor, where)
        self._schedule.faults["held up in an action"] += 1
        self._schedule.depth += 1
        for _ in range(actions):
            self._others_act()
        self._schedule.depth -= 1
        self._schedule.note("goes on", actor, where)

    def lose_sight_of(self, process: Process) -> None:
        """The driver of a slot takes it for lost, though it lives."""
        self._schedule.note("lost sight of", process)
        process.job.other.lose()

    # Ends -------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        self._schedule.note("kill", process)
        if any(self._history.has_ended(name) for name in process.instances):
            self._schedule.sometimes["ended vertex lost"] += 1
        process.die()
        self._forget_if_dead(process, None)

    def kill_driver(self, driver: Driver) -> None:
        self._schedule.note("kill", driver)
        driver.die()
        self._judge_driver(driver)

    def _forget_if_dead(self, process: Process, error: StreamError | None) -> None:
        """Let go of what a dead process held, once nothing of it is on the stack."""
        if process.is_dead and process in self.processes and process not in self._acting:
            self.processes.remove(process)
            process.log.close()
            process.driver.note_task_over(process.order, None if error is None else str(error))

    # The checkpoints' disk --------------------------------------------------------------------

    def cut_power(self) -> None:
        """The machine goes down: every process with it, and what the disk had not synced."""
        self._schedule.faults["power cut"] += 1
        self._schedule.note("power cut")
        self._schedule.sometimes["two crashes at once"] += 1
        if any(process.checkpointer.is_writing for process in self.processes):
            self._schedule.sometimes["power cut while writing a checkpoint"] += 1
        for process in tuple(self.processes):
            self.kill(process)
        for driver in tuple(self.drivers):
            self.kill_driver(driver)
        self.checkpoints.files.power_cut(self._rng.randrange)
        if self._scenario.loses_tail and self._backend.lose_tail():
            self._lose_tail()

    def keep(self) -> None:
        """All that is in the log by now has reached the disk."""
        self._backend.keep()
        self._kept = self._history.moment()

    def _lose_tail(self) -> None:
        """What came after the last `keep` never happened, as far as the log knows."""
        self._schedule.faults["power cut that loses the tail"] += 1
        for lost in self._history.registrations[self._kept.registrations :]:
            self.deeds.pop((lost.vertex, lost.instance), None)
        self._history.go_back(self._kept)
        self._log = self._backend.open(self._clock, lagging=False)
        self._replicas = {name: self._new_replica(name) for name in self._programs}
        self._finished.clear()
        self._written_since_harm = dict.fromkeys(self._programs, 0)
        self.tail_losses += 1

    def damage_checkpoint(self) -> None:
        """Let the newest checkpoint of some vertex rot or vanish, where the state survives it."""
        written = [ids for name in self._programs if (ids := self.checkpoints.list(name))]
        if not written:
            return
        ids = self._rng.choice(written)
        victim = ids[-1]
        if self._written_since_harm.get(victim.vertex, 2) < 2:
            return  # a second loss beside the first is one that no engine can undo
        self._written_since_harm[victim.vertex] = 0
        self._schedule.note("damage", victim)
        if self._rng.random() < 0.3:
            self._schedule.faults["checkpoint lost"] += 1
            self.checkpoints.lose(victim)
            return
        self._schedule.faults["checkpoint damaged"] += 1
        files = [MANIFEST, *(f"{name}.units" for name in self._states_of(victim))]
        self._damaged.add(victim)
        self.checkpoints.damage(victim, self._rng.randrange(1 << 16), self._rng.choice(files))

    def is_reading_checkpoints(self) -> bool:
        return bool(self._acting)

    def _states_of(self, checkpoint: CheckpointId) -> list[str]:
        """The states whose files in a checkpoint hold any byte that can rot."""
        rows = self.checkpoints.load(checkpoint).states
        return [name for name, batches in rows.items() if any(len(batch) for batch in batches)]

    def _file_step(self, step: str, path: FilePath) -> None:
        """Called before every step of the checkpoint store."""
        if not self._acting:
            return
        if step == "read" and path[-1] == MANIFEST:
            self._note_load(self._acting[-1], path)
        self._acting[-1].at(f"file {step}")
        if self.store_fails and step in FAULTY_FILE_STEPS and self._rng.random() < 0.4:
            self._schedule.faults["checkpoint store fails"] += 1
            self._store_failed = True
            raise OSError(errno.EIO, "simulated")

    def _note_load(self, actor: Actor, path: FilePath) -> None:
        if isinstance(actor, Process):
            position, attempt = path[1].split("_")
            actor.loaded.append(CheckpointId(path[0], int(position), int(attempt)))

    # What recovery has built, and what is there at the end --------------------------------------

    def _check_recovered(self, process: Process, vertex: Vertex) -> None:
        """Look at what a recovery has built, while the world stands still."""
        self._is_checking = True
        try:
            self._check_restored(process, vertex)
        finally:
            self._is_checking = False

    def _check_restored(self, process: Process, vertex: Vertex) -> None:
        """It must be what the committed changes and the last marker say.

        An instance that was overtaken while it recovered may have anything.
        """
        name, chain = vertex.name, process.chains[vertex.name]
        if vertex.marker.instance != self._history.newest_instance(name):
            return
        last = self._history.last_marker(name)
        facts = vertex.statistics()
        if last is None or facts.epoch != last["epoch"]:
            if last is None and facts.epoch == 0:
                return
            raise Violation(f"{name}: recovered at epoch {facts.epoch}, committed: {last}")
        if facts.watermark_us != last["watermark_us"]:
            raise Violation(f"{name}: the watermark was not restored")
        if last["ended"] is not (vertex.state is VertexState.ENDED):
            raise Violation(f"{name}: whether it has ended was not restored")
        replica = self.replica(name)
        for state, rows in _state_rows(process, name).items():
            expected = replica.rows(state)
            if rows != expected:
                raise Violation(
                    f"{name}: recovered state {state} has {_difference(rows, expected)}"
                )
        if chain.progress() != vertex.marker.progress:
            raise Violation(f"{name}: the chain's progress was not restored")
        if chain.states:
            self._check_replay_counts(process, vertex)
        if vertex.marker.resume < vertex.marker.consumed:
            self._schedule.sometimes["resume before a consumed marker"] += 1
        if chain.states and replica.changes:
            self._note_recovery(process, name)

    def _check_heard(self, process: Process, vertex: VertexProgram, consumed: int) -> None:
        """Whoever counts the silence of its producers has heard all that it could see.

        One that was overtaken may not: its successor has trimmed what it has read.
        """
        if process.instances.get(vertex.name) != self._history.newest_instance(vertex.name):
            return
        tail, tags = process.log.inner.tail(), set(vertex.input_tags)
        for seen in reversed(self._history.records):
            if seen.position <= consumed:
                return
            if seen.position <= tail and seen.kind == "MARKER" and not tags.isdisjoint(seen.tags):
                raise Violation(f"{vertex.name}: counts silence while input waits: {seen.position}")

    def _check_at_the_end(self, process: Process) -> None:
        """A vertex that has ended leaves the state that its changes tell of."""
        for name, instance in process.instances.items():
            if instance != self._history.newest_instance(name) or not self._history.has_ended(name):
                continue
            for state, rows in _state_rows(process, name).items():
                expected = self.replica(name).rows(state)
                if rows != expected:
                    raise Violation(
                        f"{name}: at the end, state {state} has {_difference(rows, expected)}"
                    )

    def _check_replay_counts(self, process: Process, vertex: Vertex) -> None:
        """The more commits a recovery had to replay, the sooner the next checkpoint is due."""
        if process.loaded or self._store_failed:
            return  # which of them it took is its own business
        marks = [
            seen.position
            for seen in self._history.records
            if seen.kind == "MARKER" and seen.producer == vertex.name
        ]
        if vertex._commits_unpictured != len(marks):
            raise Violation(
                f"{vertex.name}: {len(marks)} commits are in no checkpoint, it counts "
                f"{vertex._commits_unpictured}"
            )

    def _note_recovery(self, process: Process, name: str) -> None:
        checkpoints = [each for each in process.loaded if each.vertex == name]
        damaged = [each for each in checkpoints if each in self._damaged]
        if len(checkpoints) > len(damaged):
            self._schedule.sometimes["recovery from a checkpoint"] += 1
            if damaged:
                self._schedule.sometimes["recovery from an older checkpoint"] += 1
        else:
            self._schedule.sometimes["recovery from the change log alone"] += 1

    def _new_replica(self, name: str) -> Replica:
        return Replica(self._history.records, change_tag(name))


def _state_rows(process: Process, name: str) -> StateRows:
    """The rows of a vertex's states, in the form of a `Replica`'s."""
    return {state: _rows(each.scan()) for state, each in process.chains[name].states.items()}


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
