"""A simulated driver: the decisions of a job are the real ones, its connections and slots are ours.

A driver may die at any moment, or be succeeded while it still lives; whoever starts the query again
stands for its user.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from penstock.errors import StreamError
from penstock.log.contract import Log
from penstock.runtime.instances import InstanceNumbers, run_key
from penstock.runtime.placement import (
    Assign,
    Command,
    Finish,
    GiveUp,
    Launch,
    Patience,
    Placement,
    StopSlot,
)
from penstock.runtime.queries import StoredQuery, stored_query
from penstock.runtime.streams import register_streams
from penstock.sim.actor import Actor, Point
from penstock.sim.connection import End
from penstock.sim.sinks import Feeder
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
        self._run = 0  # its number, once it has one
        self.feeder: Feeder | None = None  # of the sink, if there is one
        self.handed: set[tuple[str, int]] = set()  # vertices with the numbers handed out
        self._connections: dict[int, End] = {}
        self._greeted: set[int] = set()
        self._tasks_over: list[tuple[int, str | None]] = []
        self._next_connection = 0

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
            self.is_changed = store(self.log, self.program, self._output)
            names = [vertex.name for vertex in self.program.vertices]
            numbers = InstanceNumbers(self.log, self.query, names)
            self._run = numbers.run
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
            self._close(number)
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
            if isinstance(command, Launch):
                self.launches.append(command.slot)
            elif isinstance(command, Assign):
                self.handed.update(command.vertices)
                self._send(command.connection, {"type": "assign", "vertices": command.vertices})
            elif isinstance(command, StopSlot):
                self._send(command.connection, {"type": "stop"})
            elif isinstance(command, GiveUp):
                self._close(command.connection)
                if command.is_stuck:
                    self._cancel(self, command.slot)
            elif isinstance(command, Finish):
                self.launches.clear()
                for number in list(self._connections):
                    self._close(number)
                self._cancel(self, None)

    def _send(self, connection: int, message: dict[str, object]) -> None:
        if connection in self._connections:
            try:
                self._connections[connection].send(message)
            except OSError:
                return  # the slot is gone, which its connection will tell

    def _close(self, connection: int) -> None:
        if connection in self._connections:
            self._connections.pop(connection).close()


def store(log: Log, program: Program, output: str) -> bool:
    """Store a query as a start of it does; return whether it replaces another one that fits."""
    name = program.query
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    encoded = StoredQuery(identity, name, program, output, None).encode()
    known = log.get(f"query/{name}")
    is_changed = known is not None and known.value != encoded
    if is_changed:
        before = stored_query(log, name)
        assert before is not None
        compare(before.program, program).check()
    register_streams(log, program)
    log.put(f"query/{name}", encoded)
    return is_changed
