"""The processes of a run: drivers, their slots, producers, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from penstock.connectors.contract import Sink
from penstock.errors import StreamError
from penstock.expressions.types import arrow_schema
from penstock.kernels.cache import KernelCache
from penstock.log.record import Position
from penstock.runtime.control import Message
from penstock.runtime.slot import Slot
from penstock.runtime.sources import SourceBuilder
from penstock.runtime.streams import create_stream, describe_stream
from penstock.sim.actor import Actor
from penstock.sim.background import Background
from penstock.sim.batches import Batches, SparkJob, Task
from penstock.sim.connection import connection
from penstock.sim.data import COLUMNS
from penstock.sim.disk import Disk
from penstock.sim.driver import Driver
from penstock.sim.explained import check_slot_error, explain_run
from penstock.sim.faults import AtPoint, Faults
from penstock.sim.history import History
from penstock.sim.judge import Deed
from penstock.sim.logs import Backend, ProcessLog
from penstock.sim.process import Process, ProcessAppends, ProcessAssembly, ProcessCheckpoints
from penstock.sim.producers import Producer
from penstock.sim.recoveries import Recoveries
from penstock.sim.retaining import Retention
from penstock.sim.scenario import BatchKind, Scenario
from penstock.sim.schedule import Schedule
from penstock.sim.sinks import Feeder, Hand, Outside, Upserts
from penstock.sim.statics import StaticContent
from penstock.sim.violation import Violation
from penstock.stages.program import Program
from penstock.testing.memory_log import SimulatedCrash
from penstock.testing.plans import parse_schema

DEPTH_MAX = 2  # how many actors may be held up in the middle of an action
HOLD_ACTIONS_MAX = 8  # of the others, while one is held up
TAKE_OVER_ACTIONS = 20  # enough for a successor to be placed and to recover
GROWTH_ACTIONS = 12  # enough for somebody else to commit
LONG_HOLD_ACTIONS = 40
STARTS_HEALED_MAX = 6  # errors from before may still end some runs of a query


class Cluster:
    """All that is alive."""

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
        self._acting: list[Actor] = []  # the stack of those in the middle of an action
        self.disk = Disk(schedule, self._acting)
        self.outside: Outside | None = None
        if scenario.sink_keeps_record is not None:
            replaces = scenario.shape.name == "complete"
            self.outside = Outside(scenario.sink_keeps_record, replaces)
            if scenario.shape.upserts:
                self.outside.folder = TemporaryDirectory(prefix="penstock-sim-")
        self._statics = StaticContent() if scenario.shape.answer == "static" else None
        self._handed: list[set[tuple[str, int]]] = []  # by each driver that ever was
        self._finished: set[str] = set()  # queries whose last run ended well
        self.drivers: list[Driver] = []
        self.processes: list[Process] = []
        self.deeds: dict[tuple[str, int], list[Deed]] = {}  # by vertex and instance
        self.steps = 0
        self._started = 0
        self._starts_healed: Counter[str] = Counter()  # of each query, after healing
        self.tail_losses = 0
        self._programs: dict[str, Program] = {
            vertex.name: program for program in scenario.programs for vertex in program.vertices
        }
        self._recoveries = Recoveries(self.names, history, schedule, self.disk)
        self._background = Background(self.processes, self._acting, history, schedule, self.disk)

    # Who has what -----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """All vertices of all queries."""
        return list(self._programs)

    def has_query_ended(self, program: Program) -> bool:
        return all(self._history.has_ended(vertex.name) for vertex in program.vertices)

    def all_ended(self) -> bool:
        return all(self._history.has_ended(name) for name in self._programs)

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
        if self.outside is not None and self.outside.folder is not None:
            self.outside.folder.cleanup()

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
        if not self._faults.is_on:
            self._starts_healed[program.query] += 1
            if self._starts_healed[program.query] > STARTS_HEALED_MAX:
                raise Violation(f"{program.query}: it fails again and again after healing")
        changed = [each for each in self._scenario.changed if each.query == program.query]
        self._start(self._rng.choice((program, *changed)) if self._faults.is_on else program)

    def start_refused(self, program: Program) -> None:
        """Somebody starts a query with a change that is refused, and that touches nothing."""
        if self._log.get(f"query/{program.query}") is None:
            return
        driver = self._start(program)
        if driver.error is None and not driver.is_dead:
            raise Violation(f"{program.query}: a program was taken that does not fit")
        if driver.log.effects:
            raise Violation(f"{program.query}: a program was refused, and changed the log")
        self._schedule.sometimes["changed query refused"] += not driver.is_dead

    def _start(self, program: Program) -> Driver:
        self._started += 1
        output = next(each.name for each in program.streams if each.role == "output")
        shape = (self._scenario.slots, self._scenario.standbys)
        is_fed = self.outside is not None and program.query == self._scenario.program.query
        driver = Driver(
            self._started,
            program,
            output,
            shape,
            self._clock,
            self._at,
            self._cancel,
            self._new_feeder if is_fed else None,
            self._statics,
        )
        driver.log = self._open_log(driver)
        self.drivers.append(driver)
        self._handed.append(driver.handed)
        self._schedule.note("start", driver, program.query)
        self._act(driver, driver.begin)
        self._schedule.sometimes["query goes on with a change"] += driver.is_changed
        self._judge_driver(driver)
        return driver

    def refresh(self, driver: Driver) -> None:
        """A user of a driver asks for a new version of the static side."""
        self._reveal_some(driver)
        self._schedule.note("refresh", driver)
        self._act(driver, driver.refresh)
        self._judge_driver(driver)

    def _new_feeder(self, driver: Driver, run: int) -> Feeder:
        assert self.outside is not None
        stream = self._scenario.output
        hand: Sink = Hand(self.outside, driver, self._schedule)
        if self.outside.folder is not None:
            schema = arrow_schema(describe_stream(driver.log, stream).schema)
            hand = Upserts(self.outside, driver, self._schedule, driver.query, schema)
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
        error = driver.outcome()
        self._schedule.note("over", driver, error)
        if error is None and not self.has_query_ended(driver.program):
            raise Violation(f"{driver.query}: its run is over, and it has not ended")
        if error is None:
            self._finished.add(driver.query)
        else:
            programs, refused = self._scenario.programs, self._scenario.refused
            found = explain_run(driver, error, self._log, programs, self.disk, refused)
            self._schedule.sometimes[found] += 1
        driver.log.close()

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
        process.checkpointer = ProcessCheckpoints(process, self.disk.checkpoints)
        if self._scenario.appends_beside:
            process.appends = ProcessAppends(process, self._schedule)
        assembly = ProcessAssembly(
            program=driver.program,
            log=process.log,
            clock=self._clock,
            checkpoints=self.disk.checkpoints,
            checkpointer=process.checkpointer,
            kernels=self._kernels,
            sources=self._sources,
            trim_commits=self._scenario.trim_commits,
            rest_look_s=0.0005,  # little time passes in a run
            appends=process.appends,
            process=process,
            recovered=self._recoveries.check,
            listened=self._recoveries.check_heard,
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
            check_slot_error(error, self.disk)
            process.die()
        elif not goes_on and not process.is_dead:
            while process.checkpointer.has_jobs and not process.is_dead:
                self.work_in_background(process)  # it ends with the trims that wait
            self._recoveries.check_at_the_end(process)
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

    def new_batches(self, kind: BatchKind, stream: str, rows: pa.RecordBatch) -> Batches:
        parts = (self._schedule, self._faults, self._history, self._at, self._open_log)
        return Batches(kind, stream, rows, *parts)

    def turn_job(self, actor: SparkJob | Task) -> None:
        """One turn of a driver or a task of a job that writes to a stream."""
        self._reveal_some(actor)
        self._schedule.note("turn", actor)
        self._act(actor, actor.turn)

    def clear_up_after(self, batches: Batches) -> None:
        """Somebody comes by who finds what jobs have left."""
        actor = Actor("visitor", self._at)
        actor.log = self._open_log(actor)
        batches.check_cleared(actor)
        actor.log.close()

    def cut(self, stream: str) -> None:
        """Somebody lets old rows of a stream go, once all queries are known that will read it."""
        if all(self._log.get(f"query/{each.query}") for each in self._scenario.programs):
            actor = Retention(stream, self._schedule, self._at)
            actor.log = self._open_log(actor)
            self._reveal_some(actor)
            self._schedule.note("cut", stream)
            self._act(actor, actor.act)
            actor.log.close()

    # The threads beside a slot's main one -----------------------------------------------------

    def append_beside(self, process: Process) -> None:
        """Let the thread of a process that appends for its vertices have a turn."""
        assert process.appends is not None
        self._schedule.note("appends", process)
        self._acting.append(process)
        try:
            process.appends.turn()
        except SimulatedCrash:
            self._schedule.note("died", process)
            process.die()
        finally:
            self._acting.pop()
        self._forget_if_dead(process, None)

    def work_in_background(self, process: Process) -> None:
        """What the background thread of a process does with one job."""
        self._background.work(process)
        self._forget_if_dead(process, None)

    def has_background_work(self) -> list[Process]:
        return [
            process
            for process in self.processes
            if not process.is_dead and not process.holds_lock and process.checkpointer.has_jobs
        ]

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
        if self._recoveries.is_looking:
            return
        fate = self._faults.at_point(actor.name, where, may_hold=len(self._acting) <= DEPTH_MAX)
        if fate is None:
            return
        if fate is AtPoint.CRASH:
            self._schedule.faults["crash at a point"] += 1
            self._schedule.note("crash", actor, where)
            actor.die()
            if where == "start" or (isinstance(actor, Process) and actor.recovering):
                self._schedule.sometimes["crash during recovery"] += 1
        elif fate is AtPoint.POWER_CUT:
            self.cut_power()
        elif fate is AtPoint.ROT and isinstance(actor, Process):
            self.disk.harm_newest([actor.recovering] if actor.recovering else self.names, self._log)
        elif fate is AtPoint.GROWTH:
            self._hold(actor, where, GROWTH_ACTIONS)
        elif fate is AtPoint.LONG_HOLD:
            self._hold(actor, where, LONG_HOLD_ACTIONS)
        elif fate is AtPoint.TAKE_OVER and isinstance(actor, Process):
            self._schedule.faults["taken over in an action"] += 1
            self.lose_sight_of(actor)
            self._hold(actor, where, TAKE_OVER_ACTIONS)
        else:
            self._hold(actor, where, self._rng.randint(1, HOLD_ACTIONS_MAX))

    def _hold(self, actor: Actor, where: str, actions: int) -> None:
        """Hold somebody up in the middle of an action while others act, and the log grows."""
        self._schedule.note("held up", actor, where)
        seen = actor.log.inner.tail()
        self._schedule.faults["held up in an action"] += 1
        self._schedule.depth += 1
        for _ in range(actions):
            self._others_act()
        self._schedule.depth -= 1
        self._schedule.note("goes on", actor, where)
        if not actor.is_dead:
            self._reveal_some(actor)
            grew = actor.log.inner.tail() > seen
            self._schedule.sometimes["log grew right after a read"] += grew and where == "read done"

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

    # Power cuts -------------------------------------------------------------------------------

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
        self.disk.cut_power()
        if self._scenario.loses_tail and self._backend.lose_tail():
            self._lose_tail()

    def keep(self) -> None:
        """All that is in the log by now has reached the disk."""
        self._backend.keep()
        self._history.keep()

    def _lose_tail(self) -> None:
        """What came after the last `keep` never happened, as far as the log knows."""
        self._schedule.faults["power cut that loses the tail"] += 1
        for actor in self._acting:
            actor.die()  # what it was about to write would be in a log that is no more
        for lost in self._history.registrations[self._history.kept.registrations :]:
            self.deeds.pop((lost.vertex, lost.instance), None)
        self._history.go_back()
        self._log.close()
        self._log = self._backend.open(self._clock, lagging=False)
        self._recoveries.begin_anew()
        self.disk.note_tail_lost(self.names)
        self._finished.clear()
        self.tail_losses += 1

    def harm_checkpoint(self) -> None:
        self.disk.harm_newest(self.names, self._log)
