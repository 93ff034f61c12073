"""A simulated driver: the decisions of a job are the real ones, its connections and slots are ours.

A driver may die at any moment, or be succeeded while it still lives; whoever starts the query again
stands for its user.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import Fenced, StreamError
from penstock.log.contract import Log
from penstock.runtime.commands import Hands
from penstock.runtime.instances import run_key
from penstock.runtime.placement import Assign, Command, Patience, Placement
from penstock.runtime.queries import StoredQuery, begin_run, stored_query
from penstock.sim.actor import Actor, Point
from penstock.sim.connection import End
from penstock.sim.faults import BY_LOG
from penstock.sim.sinks import Feeder
from penstock.sim.statics import StaticContent
from penstock.stages.compare import compare
from penstock.stages.program import Program
from penstock.testing.clock import ManualClock

# Short, as the runs are: a slot that is slow for half a second is taken for lost.
PATIENCE = Patience(silence_s=0.1, step_s=0.3, recovery_s=3.0, start_s=5.0, stop_s=0.5)


class Driver(Actor):
    """One run of a query, as its driver sees it."""

    def __init__(
        self,
        number: int,
        program: Program,
        output: str,
        shape: tuple[int, int],
        clock: ManualClock,
        point: Point,
        cancel: Callable[[Driver, int | None], None],
        new_feeder: Callable[[Driver, int], Feeder] | None,
        statics: StaticContent | None,
    ) -> None:
        """`shape` is how many slots and standbys it wants; `cancel` ends one task, or all."""
        super().__init__(f"driver{number}", point)
        self.program = program
        self.launches: list[int] = []  # slots that were asked for and have not come up yet
        self.placement: Placement | None = None  # once it has begun
        self.error: StreamError | None = None  # it did not come so far as to place anything
        self.is_changed = False  # it goes on from what another program has stored
        self._output = output
        self._shape = shape
        self._clock = clock
        self._cancel = cancel
        self._new_feeder = new_feeder
        self._statics = statics
        self._run = 0  # its number, once it has one
        self.feeder: Feeder | None = None  # of the sink, if there is one
        self.handed: set[tuple[str, int]] = set()  # vertices with the numbers handed out
        self._connections: dict[int, End] = {}
        self._greeted: set[int] = set()
        self._tasks_over: list[tuple[int, str | None]] = []
        self._next_connection = 0
        self._hands = Hands(
            launch=lambda slot, _on_driver: self.launches.append(slot),
            send=self._send,
            free_log=lambda pid, machine: None,  # whoever is held up here holds no lock of a log
            close=lambda connection: self._connections[connection].close(),
            cancel_slot=lambda slot: cancel(self, slot),
            finish=self._finish,
        )

    @property
    def query(self) -> str:
        return self.program.query

    @property
    def is_over(self) -> bool:
        return self.is_dead or self.error is not None or self._has_finished()

    def _has_finished(self) -> bool:
        """Whether its slots are done, and its sink has all, or there was an error."""
        if self.placement is None or not self.placement.is_over:
            return False
        return self.feeder is None or self.feeder.is_over or self.placement.error is not None

    def outcome(self) -> StreamError | None:
        """What its user is told once it is over; a sink may have failed after the slots' end."""
        placed = self.placement.error if self.placement is not None else None
        return self.error or placed or (self.feeder.error if self.feeder is not None else None)

    def begin(self) -> None:
        """What starting a query does: compare it with the stored one, store it, place it."""
        try:
            stored, before = self._compared()
            numbers = begin_run(self.log, stored)
            self.is_changed = before not in (None, stored)
            self._run = numbers.run
            if self._statics is not None:
                self._statics.write(self.log, self.program, self._run, again=False)
            if self._new_feeder is not None:
                self.feeder = self._new_feeder(self, numbers.run)
        except StreamError as error:
            self.error = error
            return
        slots, standbys = self._shape
        self.placement = Placement(
            self.program, numbers, slots=slots, standbys=standbys, patience=PATIENCE
        )
        self._carry_out(self.placement.start(self._clock.monotonic_s()))

    def refresh(self) -> None:
        """Write the static side anew; whoever asked for it may ask again if it fails."""
        if self._statics is not None and self._run:
            with suppress(*BY_LOG, Fenced):
                self._statics.write(self.log, self.program, self._run, again=True)

    def _compared(self) -> tuple[StoredQuery, StoredQuery | None]:
        """The query as it is to be stored, and the stored one, from which it can go on."""
        identity = str(uuid.uuid5(uuid.NAMESPACE_URL, self.query))
        stored = StoredQuery(identity, self.query, self.program, self._output, None)
        before = stored_query(self.log, self.query)
        if before is not None:
            compare(before.program, self.program).check()
        return stored, before

    def turn(self) -> None:
        """Hear all that has arrived, and look at the clock."""
        placement = self.placement
        assert placement is not None
        for number, end in list(self._connections.items()):
            while number in self._connections and end.has_news():
                self._hear(placement, number, end)
        while self._tasks_over and not placement.is_over:
            slot, error = self._tasks_over.pop(0)
            self._carry_out(placement.task_over(slot, error, self._clock.monotonic_s()))
        self._carry_out(placement.tick(self._clock.monotonic_s()))
        self._look_at_sink(placement)

    def _look_at_sink(self, placement: Placement) -> None:
        """A sink that fails ends the query; one whose query has ended gets the rest of it."""
        if self.feeder is None:
            return
        if self.feeder.error is not None:
            self._carry_out(placement.fail(self.feeder.error, self._clock.monotonic_s()))
            if placement.error is None:
                placement.error = self.feeder.error  # the slots were done before
        elif placement.is_over:
            self.log.reveal()  # what its slots had committed when they told of their end
            self.feeder.stop()

    def _hear(self, placement: Placement, number: int, end: End) -> None:
        message, now_s = end.receive(), self._clock.monotonic_s()
        if message is None:
            self._connections.pop(number).close()
            self._carry_out(placement.lost(number, now_s))
        elif number not in self._greeted:
            self._greeted.add(number)
            slot, pid = int(message["slot"]), int(message["pid"])
            self._carry_out(placement.connected(number, slot, pid, "elsewhere", now_s))
        else:
            self._carry_out(placement.hear(number, message, now_s))

    def connect(self, end: End) -> None:
        """A slot has connected; its first message says who it is."""
        self._connections[self._next_connection] = end
        self._next_connection += 1

    def note_task_over(self, slot: int, error: str | None) -> None:
        self._tasks_over.append((slot, error))

    def is_newest_run(self, log: Log) -> bool:
        """Whether the log knows of no later run of the query."""
        newest = log.get(run_key(self.query))
        return newest is None or int(newest.value) <= self._run

    def die(self) -> None:
        super().die()
        self.launches.clear()
        for end in self._connections.values():
            end.close()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            self.at("command")
            if isinstance(command, Assign):
                self.handed.update(command.vertices)
            self._hands.carry_out(command)

    def _finish(self) -> None:
        self.launches.clear()
        for number in list(self._connections):
            self._connections.pop(number).close()
        self._cancel(self, None)

    def _send(self, connection: int, message: dict[str, object]) -> None:
        with suppress(OSError):  # the slot is gone, which its connection will tell
            self._connections[connection].send(message)
