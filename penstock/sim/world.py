"""The world of one simulated run: who acts next, what happens from outside, and how it heals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

from penstock.api import datasource_ranges
from penstock.connectors.contract import Source
from penstock.kernels.cache import KernelCache
from penstock.log import committed
from penstock.runtime import retention
from penstock.runtime.sources import SourceRequest
from penstock.sim.actor import Actor
from penstock.sim.batches import Batches
from penstock.sim.cluster import Cluster
from penstock.sim.data import SimulatedSource, watermarks_of
from penstock.sim.faults import AtPoint, Faults, Script
from penstock.sim.history import History
from penstock.sim.logs import Backend, EmbeddedBackend, MemoryBackend
from penstock.sim.once import OnceSource, Sender
from penstock.sim.producers import Producer
from penstock.sim.readers import KINDS, Observer
from penstock.sim.scenario import Scenario
from penstock.sim.schedule import Schedule
from penstock.sim.shapes import CONNECTOR, PUBLISHED
from penstock.sim.swaps import swapped
from penstock.sim.violation import Violation

ROUNDS_MAX = 3_000  # after healing, all must have ended within so many turns of everybody
A = TypeVar("A", bound=Actor)


class World:
    """One run of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        kernels: KernelCache,
        fates: Mapping[tuple[str, str, int], AtPoint] | None = None,
    ) -> None:
        """With `fates` nothing goes wrong but these; see `Script`."""
        self.scenario = scenario
        self.schedule = Schedule(scenario.seed)
        self.history = History()
        self._rng = self.schedule.rng
        self._clock = self.schedule.clock
        troubles = scenario.troubles
        self._faults = (
            Faults(self.schedule, troubles)
            if fates is None
            else Script(self.schedule, troubles, fates)
        )
        self._backend = _backend(scenario)
        self.cluster = Cluster(
            scenario,
            self.schedule,
            self._faults,
            self._backend,
            self.history,
            kernels,
            {CONNECTOR: self._source},
            self._act,
        )
        self._tail_losses = 0  # that those outside have heard of
        self.healed_at = 0  # the log's tail then
        # A part that has nothing yet is not waited for: where no row may be late, each has some.
        self._arrived = dict.fromkeys(scenario.parts, int(scenario.shape.answer == "graph"))
        self._senders = {
            part: Sender(batch, partial(self._arrived_of, part), self.schedule)
            for part, (_, batch) in scenario.parts.items()
            if scenario.shape.once
        }
        self._producers: dict[str, Producer | None] = dict.fromkeys(scenario.published_parts)
        self._batches: Batches | None = None
        if scenario.batches is not None:
            jobs, _ = self._producers.popitem()
            _, rows = scenario.parts[scenario.published_parts[jobs]]
            self._batches = self.cluster.new_batches(scenario.batches, PUBLISHED, rows)
        self.observer = self._new_observer()

    # The run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run with failures, heal, finish; Violation if anything is not as promised."""
        with self._small_pages(), self._batches.swaps() if self._batches else nullcontext():
            if self._producers:
                self.cluster.create_stream(PUBLISHED)
            self._begin()
            for _ in range(self.scenario.troubles.actions):
                self._act()
                if self.cluster.all_ended() and self._rng.random() < 0.1:
                    break  # a while after the end is enough
            self._heal()
            self._finish()
            if self._batches is not None:
                self.cluster.clear_up_after(self._batches)
            if self.observer is not None:
                self.observer.finish(self._rng)

    def close(self) -> None:
        self.cluster.close()
        if self.observer is not None:
            self.observer.close()
        self._backend.close()

    def trace_hash(self) -> str:
        """A name for all that happened: the schedule and every record with its bytes."""
        whole = self.schedule.trace()
        for seen in self.history.records:
            whole.update(repr(seen).encode())
        return whole.hexdigest()

    @property
    def trims_are_whole(self) -> bool:
        """Whether no trim has failed, or died with its process."""
        sometimes = self.schedule.sometimes
        return not (sometimes["trim that failed"] or sometimes["crash while trimming"])

    def _small_pages(self) -> AbstractContextManager[None]:
        """Readers get far less than the log in one page, as they do in a log that is long."""
        records = self.scenario.page_records
        return swapped(
            (committed, "READ_RECORDS", records),
            (retention, "READ_RECORDS", records),
            (datasource_ranges, "READ_RECORDS", records),
        )

    def _begin(self) -> None:
        for program in self.scenario.programs:
            self.cluster.start_driver(program)
        if self.scenario.troubles.arrive_at_once and self.scenario.stalled_feed is None:
            self._arrived = {part: len(rows) for part, (rows, _) in self.scenario.parts.items()}

    # One action -----------------------------------------------------------------------------

    def _act(self) -> None:
        """Let some time pass, and one thing happen."""
        rng = self._rng
        self._clock.advance(rng.choice((0.0, 0.0001, 0.001, 0.004)))
        if self.scenario.loses_tail and rng.random() < 0.015:
            self.cluster.keep()
        if rng.random() < self.scenario.troubles.event_share:
            self._happen()
        if self.cluster.tail_losses > self._tail_losses:
            self._begin_anew()
        if self.scenario.shape.answer == "static" and rng.random() < 0.05:
            self._refresh()
        appending = [process for process in self.cluster.processes if process.has_appends]
        if appending and rng.random() < 0.4:
            self.cluster.append_beside(rng.choice(appending))
            return
        dice = rng.random()
        if dice < 0.10:
            self._publish() if self._producers else self._arrive()
        elif dice < 0.20:
            self._work_in_some_background()
        elif dice < 0.28:
            self._look_outside()
        elif dice < 0.33 and self.scenario.retained:
            self.cluster.cut(rng.choice(self.scenario.retained))
        elif dice < 0.45:
            self._drive()
        elif ready := self._ready(self.cluster.processes):
            self.cluster.turn(rng.choice(ready))

    def _refresh(self) -> None:
        if ready := self._ready(self.cluster.drivers):
            self.cluster.refresh(self._rng.choice(ready))

    def _begin_anew(self) -> None:
        """The log has lost its tail: whoever is outside goes by what it has now."""
        self._tail_losses = self.cluster.tail_losses
        self._producers = dict.fromkeys(self._producers)
        if self._batches is not None:
            self._batches.begin_anew()
        if self._producers:
            self.cluster.create_stream(PUBLISHED)
        if self.observer is not None:
            self.observer.close()
            self.observer = self._new_observer()

    def _new_observer(self) -> Observer | None:
        if self.scenario.observed is None:
            return None
        stream, kind = self.scenario.observed
        return KINDS[kind](self._backend, self._clock, stream)

    def _look_outside(self) -> None:
        """A reader outside reads the answer, or a driver feeds a sink with it."""
        is_slow = self.scenario.retained and self._rng.random() < 0.6
        if self.observer is not None and not is_slow:
            self.observer.look(self._rng, self.history.tail)
        feeding = [each for each in self.cluster.drivers if self.cluster.can_feed(each)]
        if feeding:
            self.cluster.turn_sink(self._rng.choice(feeding))

    def _drive(self) -> None:
        """Let some driver do something, or a user start a query again."""
        for program in self.cluster.without_driver():
            if self._rng.random() < 0.5:
                self.cluster.start_driver(program)
                return
        if ready := self._ready(self.cluster.drivers):
            driver = self._rng.choice(ready)
            if driver.launches and self._rng.random() < 0.6:
                self.cluster.launch(driver)
            else:
                self.cluster.turn_driver(driver)

    # Producers outside ------------------------------------------------------------------------

    def _publish(self) -> None:
        """Let a producer outside do something; one that is not there may come, or come back."""
        if self._batches is not None and self._rng.random() < 0.6:
            self._turn_batches(self._batches)
            return
        name = self._rng.choice(tuple(self._producers))
        if self._rng.random() < 0.1 or self._producers[name] is None:
            self._new_producer(name)
        producer = self._producers[name]
        if producer is not None and self.cluster.can_act(producer):
            self._turn_producer(producer)

    def _turn_batches(self, batches: Batches) -> None:
        """Let a driver or a task of a job do something."""
        if ready := self._ready(batches.actors()):
            self.cluster.turn_job(self._rng.choice(ready))
        if self._faults.is_on and self._rng.random() < 0.03:
            batches.kill_one()

    def _new_producer(self, name: str) -> None:
        """A program of that name begins; one that was there before goes on for a while."""
        if self.history.has_ended(name):
            return
        old = self._producers[name]
        if old is not None and self._rng.random() < 0.5:
            old.die()
        _, rows = self.scenario.parts[self.scenario.published_parts[name]]
        self._producers[name] = self.cluster.new_producer(name, PUBLISHED, rows)

    def _turn_producer(self, producer: Producer) -> None:
        """The first producer speaks before others end, and ends last.

        Whoever reads cannot know who else is still to come.
        """
        first, *others = self._producers
        if producer.name != first:
            producer.may_end = self.history.last_marker(first) is not None
        else:
            is_written = self._batches is None or self._batches.is_done
            producer.may_end = is_written and all(map(self.history.has_ended, others))
        if not self.cluster.turn_producer(producer) and self._producers[producer.name] is producer:
            self._producers[producer.name] = None

    def _ready(self, actors: list[A]) -> list[A]:
        return [actor for actor in actors if self.cluster.can_act(actor)]

    def _work_in_some_background(self) -> None:
        if ready := self.cluster.has_background_work():
            self.cluster.work_in_background(self._rng.choice(ready))

    def _arrive(self) -> None:
        """Some rows come to a source."""
        part = self._rng.choice(tuple(self._arrived))
        stalled = self.scenario.stalled_feed
        if stalled is None:
            self._arrived[part] += self._rng.randint(1, 3 if self.scenario.shape.trickles else 20)
        elif part[0] != stalled or self._is_late_enough():
            self._arrived[part] += self._rng.randint(1, 3)  # so that others go on meanwhile

    def _is_late_enough(self) -> bool:
        """Whether a feed that has stalled may come, now that others have left it behind."""
        others = [
            count
            for (feed, _), count in self._arrived.items()
            if feed != self.scenario.stalled_feed
        ]
        return min(others) > 8

    def _arrived_of(self, part: tuple[int, int]) -> int:
        return self._arrived[part]

    def _source(self, request: SourceRequest) -> Source:
        part = (int(request.options["feed"]), request.part)
        assert request.parts == self.scenario.shape.parts
        rows, batch = self.scenario.parts[part]
        bounds = watermarks_of(rows)
        if self.scenario.shape.once:
            return OnceSource(self._senders[part], len(rows), bounds, request.schema)
        return SimulatedSource(batch, bounds, request.schema, lambda: self._arrived[part])

    # From outside ---------------------------------------------------------------------------

    def _happen(self) -> None:
        """A fault from outside."""
        happens: Callable[[], None] = self._rng.choice(
            (
                self._kill_one,
                self._kill_two,
                self._kill_driver,
                self._succeed_driver,
                self._change_query,
                self._suspect,
                self._suspect,
                self._slow_down,
                self._jump_clock,
                self.cluster.harm_checkpoint,
                self.cluster.harm_checkpoint,
                self.cluster.cut_power,
                self._fail_store,
                self._fail_sink,
            )
        )
        happens()

    def _kill_one(self) -> None:
        if self.cluster.processes:
            self.schedule.faults["crash"] += 1
            self.cluster.kill(self._rng.choice(self.cluster.processes))

    def _kill_two(self) -> None:
        if len(self.cluster.processes) >= 2:
            self.schedule.faults["two crashes at once"] += 1
            self.schedule.sometimes["two crashes at once"] += 1
            for process in self._rng.sample(self.cluster.processes, 2):
                self.cluster.kill(process)

    def _suspect(self) -> None:
        """A driver takes a living slot for lost: its connection broke."""
        if self.cluster.processes:
            self.schedule.faults["zombie"] += 1
            self.cluster.lose_sight_of(self._rng.choice(self.cluster.processes))

    def _slow_down(self) -> None:
        """Somebody is frozen for a while."""
        actors = [*self.cluster.processes, *self.cluster.drivers]
        if actors:
            self.schedule.faults["frozen process"] += 1
            actor = self._rng.choice(actors)
            actor.slow_until_s = self._clock.monotonic_s() + self._rng.choice((0.05, 0.5))

    def _kill_driver(self) -> None:
        if self.cluster.drivers:
            self.schedule.faults["driver killed"] += 1
            self.cluster.kill_driver(self._rng.choice(self.cluster.drivers))

    def _succeed_driver(self) -> None:
        """Somebody starts a query that a driver elsewhere still runs."""
        if self.cluster.drivers:
            self.schedule.faults["driver succeeded while it lives"] += 1
            self.cluster.start_driver(self._rng.choice(self.cluster.drivers).program)

    def _change_query(self) -> None:
        """Somebody starts the query with a change that cannot go on from what is stored."""
        if self.scenario.refused is not None:
            self.cluster.start_refused(self.scenario.refused)

    def _jump_clock(self) -> None:
        if self._rng.random() < 0.5:
            self.schedule.faults["wall clock jumps"] += 1
            self._clock.jump_wall(self._rng.choice((-86_400.0, -1.0, 1.0, 86_400.0)))
        else:
            self.schedule.faults["long pause"] += 1
            self._clock.advance(self._rng.choice((0.1, 60.0)))

    def _fail_store(self) -> None:
        disk = self.cluster.disk
        disk.fails = not disk.fails
        self.schedule.note("checkpoint store", "fails" if disk.fails else "works")

    def _fail_sink(self) -> None:
        if self.cluster.outside is not None:
            self.cluster.outside.fails = not self.cluster.outside.fails

    # After the faults -----------------------------------------------------------------------

    def _heal(self) -> None:
        """No more faults, everything visible, everybody awake."""
        if self.cluster.tail_losses > self._tail_losses:
            self._begin_anew()
        self.schedule.note("heal")
        self.healed_at = self.history.tail
        self._faults.is_on = self.cluster.disk.fails = False
        if self.cluster.outside is not None:
            self.cluster.outside.fails = False
        self._arrived = {part: len(rows) for part, (rows, _) in self.scenario.parts.items()}
        for actor in (*self.cluster.processes, *self.cluster.drivers):
            actor.slow_until_s = 0.0
        if self._producers:
            self._producers = dict.fromkeys(self._producers)  # they begin again

    def _finish(self) -> None:
        """Let everybody act in turn until all queries have ended and nobody is left."""
        for _ in range(ROUNDS_MAX):
            self._clock.advance(0.005)
            if self._batches is not None:
                self._turn_batches(self._batches)
            for name, producer in tuple(self._producers.items()):
                if producer is None and not self.history.has_ended(name):
                    self._new_producer(name)
                elif producer is not None:
                    self._turn_producer(producer)
            for program in self.cluster.without_driver():
                self.cluster.start_driver(program)
            for driver in tuple(self.cluster.drivers):
                while driver.launches:
                    self.cluster.launch(driver)
                if self.cluster.can_feed(driver):
                    self.cluster.turn_sink(driver)
                if driver in self.cluster.drivers:
                    self.cluster.turn_driver(driver)
            for process in tuple(self.cluster.processes):
                while not process.is_dead and process.checkpointer.has_jobs:
                    self.cluster.work_in_background(process)
                while process.has_appends:
                    self.cluster.append_beside(process)
                if not process.is_dead:
                    self.cluster.turn(process)
            if not (
                self.cluster.without_driver() or self.cluster.drivers or self.cluster.processes
            ):
                return
        waiting = [name for name in self.cluster.names if not self.history.has_ended(name)]
        left = [str(each) for each in (*self.cluster.drivers, *self.cluster.processes)]
        raise Violation(
            f"not finished {ROUNDS_MAX} rounds after healing: {', '.join((*waiting, *left))}"
        )


def _backend(scenario: Scenario) -> Backend:
    if scenario.inline_bytes_max is None:
        return MemoryBackend()
    return EmbeddedBackend(scenario.inline_bytes_max)
