"""Placement: which slot runs which vertex, and under which instance number.

It decides everything that a job decides, and does nothing: what happens comes in as calls, with
the time at which it happened, and what is to be done comes out as commands. It has no thread,
socket or clock, so any history can be played to it.

    slot connects ──> ready ──┬─> vertices that have no slot, each with a new number
                              └─> or none: a standby
    slot lost ──> its vertices go to a standby, or to the least loaded slot
    vertex returned, or fenced by nobody's run ──> placed again, with a new number

A slot is lost when its connection ends, when it has been silent for too long, or when its main
thread has been at one thing for too long. A number is handed out for each assignment, and a later
one is greater: so a slot that was given up, and that comes back, can do nothing to its successor,
and what it says about an older number is passed over.

The slot that a vertex was assigned to last is its owner. If that one is fenced, then somebody
registered a greater number. If the log shows a newer run of the query, this run ends; otherwise
nobody owns the vertex, and it is placed again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import JobFailed, StreamError, TooFewSlots
from penstock.runtime.control import Message
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.recently import Recently
from penstock.stages.program import Program

SLOT_ENDS_MAX = 20  # within the time below: whatever ends slots so often will not go away
PLACED_AGAIN_MAX = 5  # the same for one vertex that is returned, or fenced
LATELY_S = 60.0
PAUSE_S = 0.1  # before a vertex is placed for the third time; each further time twice as long
REMEMBERED_MAX = 1_000  # recoveries, and lost slots whose tasks may still end: the newest
STUCK_MAX = 3  # so often without a commit in between: the next slot would be stuck there too
CRASHED_MAX = 5  # the same for what no slot expects

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a job waits for what."""

    silence_s: float = 3.0
    """For a word of a slot, which says something every 0.2 s."""

    step_s: float = 60.0
    """For the end of one step of one vertex."""

    recovery_s: float = 600.0
    """For the end of the recovery of one vertex: a large state takes a while to read."""

    start_s: float = 120.0
    """For the first slots, and for one to get ready: executors may have to be started first."""

    stop_s: float = 30.0
    """For slots to commit and end, once they were told to."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a slot under this number, as a task or in the driver."""

    slot: int
    on_driver: bool = False


@dataclass(frozen=True, slots=True)
class Assign:
    """Tell a slot to recover vertices, each under the number handed out for it."""

    connection: int
    vertices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class StopSlot:
    """Tell a slot to commit and end."""

    connection: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close the connection to a slot that is taken for lost; end its task if it is stuck."""

    connection: int
    slot: int
    pid: int
    machine: str
    is_stuck: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The query is over: close the port and cancel what still runs. The last command."""


Command = Launch | Assign | StopSlot | GiveUp | Finish


@dataclass(frozen=True, slots=True)
class Recovery:
    """A lost slot's vertices and when each step was done, for people and benchmarks."""

    slot: int
    pid: int
    vertices: tuple[str, ...]
    reason: str  # "connection closed", "silent" or "stuck"
    detected_s: float  # monotonic time at which the slot was found to be lost
    assigned_s: float | None = None  # when the last vertex was given to another slot
    started_s: float | None = None  # when the last vertex was ready to step there


@dataclass
class SlotFacts:
    """What is known about a connected slot."""

    connection: int
    number: int
    pid: int
    machine: str
    heard_s: float  # when it last said something
    moved_s: float  # when its main thread was last known to have moved
    moves: int = -1
    doing: str = "warm"
    doing_vertex: str = ""
    is_ready: bool = False
    on_driver: bool = False
    vertices: dict[str, int] = field(default_factory=dict)  # with the numbers handed out

    def __str__(self) -> str:
        return f"slot {self.number} (process {self.pid} on {self.machine})"


@dataclass
class _Group:
    """Vertices that are placed together."""

    vertices: list[str]
    prefer: int | None = None  # the connection that had them
    not_before_s: float = 0.0
    on_driver: bool = False  # only a slot there can run them


class Placement:
    """The decisions of one run of a query. Not safe between threads."""

    def __init__(
        self,
        program: Program,
        numbers: InstanceNumbers,
        *,
        slots: int,
        standbys: int,
        patience: Patience | None = None,
    ) -> None:
        self.query = program.query
        self.error: StreamError | None = None
        self.is_over = False
        self.slots: dict[int, SlotFacts] = {}  # by connection
        self.status: dict[str, dict[str, Any]] = {}  # the newest one of each vertex
        self.ended: set[str] = set()
        self.recoveries: deque[Recovery] = deque(maxlen=REMEMBERED_MAX)  # the newest
        self.recoveries_count = 0
        self._numbers = numbers
        self._patience = patience or Patience()
        self._vertices = frozenset(vertex.name for vertex in program.vertices)
        self._wanted = slots
        self._standbys = standbys
        self._on_driver = frozenset(v.name for v in program.vertices if program.is_on_driver(v))
        self._unplaced = [_Group(names) for names in _spread(program, slots)]
        if self._on_driver:
            self._unplaced.append(_Group(sorted(self._on_driver), on_driver=True))
        self._orphans: list[_Group] = []  # placed before anything else, and without waiting
        self._handed: dict[str, int] = {}  # the last number handed out for each vertex
        self._next_slot = 0
        self._driver_slots: set[int] = set()  # their numbers
        self._replaced: set[int] = set()  # slots that were refilled before their task was over
        self._to_start: dict[int, set[str]] = {}  # by recovery: what does not run again yet
        self._ends_lately = Recently(LATELY_S)
        self._again_lately = Recently(LATELY_S)
        self._stuck: Counter[str] = Counter()  # since the last commit of each vertex
        self._crashed: Counter[str | None] = Counter()  # the same; None: outside, since any commit
        self._started_s: float | None = None
        self._looked_s = 0.0
        self._stop_by_s: float | None = None  # not None: the query is ending
        self._commands: list[Command] = []

    @property
    def task_slots(self) -> int:
        """How many slots the query holds, or waits for."""
        return self._wanted + self._standbys

    @property
    def is_stopping(self) -> bool:
        return self._stop_by_s is not None

    def is_running(self) -> bool:
        """Whether every vertex has been started by some slot."""
        return self._vertices <= self.status.keys() | self.ended

    def is_through(self) -> bool:
        """Whether every vertex has said that nothing will come any more, with availableNow."""
        return all(self.status.get(name, {}).get("is_through") for name in self._vertices)

    # What happens ---------------------------------------------------------------------------

    def start(self, now_s: float) -> list[Command]:
        """Ask for all slots; vertices start as slots become ready."""
        self._started_s = self._looked_s = now_s
        for _ in range(self.task_slots):
            self._launch()
        if self._on_driver:
            self._launch(on_driver=True)
        return self._take_commands()

    def connected(
        self, connection: int, slot: int, pid: int, machine: str, now_s: float
    ) -> list[Command]:
        """A slot is there. One number may come again: Spark repeats a task that failed."""
        facts = SlotFacts(connection, slot, pid, machine, now_s, now_s)
        facts.on_driver = slot in self._driver_slots
        self.slots[connection] = facts
        if self.is_stopping:
            self._commands.append(StopSlot(connection))
        return self._take_commands()

    def hear(self, connection: int, message: Message, now_s: float) -> list[Command]:
        """A slot says something; what one says that was given up is passed over."""
        slot = self.slots.get(connection)
        if slot is None:
            return []
        slot.heard_s = now_s
        kind = message["type"]
        if kind == "alive":
            self._note_beat(slot, message, now_s)
        elif kind == "status":
            self._note_status(message["vertices"], now_s)
        elif kind == "ready":
            slot.is_ready, slot.moved_s = True, now_s
            self._place(now_s)
        elif kind == "started":
            if self._is_newest(message):
                self._note_started(message["vertex"], now_s)
        elif kind in ("fenced", "returned", "failed"):
            self._note_end(slot, message, now_s)
        elif kind == "crashed":
            self._note_crash(slot, message, now_s)
        return self._take_commands()

    def lost(self, connection: int, now_s: float) -> list[Command]:
        """The connection to a slot has ended."""
        self._lose(connection, "connection closed", now_s)
        return self._take_commands()

    def task_over(self, number: int, error: str | None, now_s: float) -> list[Command]:
        """A slot's task ended, which the connection usually told long before."""
        if self.is_stopping or self._was_replaced(number):
            return []
        times = self._ends_lately.count("slots", now_s)
        if times > SLOT_ENDS_MAX:
            self._fail(
                TooFewSlots(
                    f"slots of query {self.query} keep ending ({times} times in "
                    f"{LATELY_S:.0f} s); the last one with: {(error or 'no error')[:2000]}",
                    slot=number,
                ),
                now_s,
            )
        else:
            self._launch(number in self._driver_slots)
        return self._take_commands()

    def tick(self, now_s: float) -> list[Command]:
        """Some time has passed: look for what did not happen in it."""
        if self._started_s is None or self.is_over:
            return []
        slept = now_s - self._looked_s > self._patience.silence_s / 2
        self._looked_s = now_s
        for slot in tuple(self.slots.values()):
            if slept:  # it was this process that did, and that says nothing about its slots
                slot.heard_s = slot.moved_s = now_s
            else:
                self._give_up_if_lost(slot, now_s)
        if now_s - self._started_s > self._patience.start_s:
            self._check_slots_came(now_s)
        self._place(now_s)
        if self._stop_by_s is not None and now_s >= self._stop_by_s:
            self._finish()
        return self._take_commands()

    def fail(self, error: StreamError, now_s: float) -> list[Command]:
        """Something outside ended the query."""
        self._fail(error, now_s)
        return self._take_commands()

    def stop(self, now_s: float) -> list[Command]:
        """Let every slot commit what it has done and end."""
        self._stop(now_s)
        return self._take_commands()

    # Placing --------------------------------------------------------------------------------

    def _place(self, now_s: float) -> None:
        """Give groups of vertices to ready slots, each vertex with a new number.

        A lost slot's vertices do not wait: without a standby they go to the least loaded slot. At
        the start each group waits for a slot of its own.
        """
        for queue in (self._orphans, self._unplaced):
            for group in tuple(queue):
                slot = self._choose(group, may_share=queue is self._orphans)
                if self.is_stopping:
                    return
                if slot is None:
                    continue
                if group.not_before_s <= now_s:
                    queue.remove(group)
                    self._assign(slot, group.vertices, now_s)

    def _assign(self, slot: SlotFacts, names: Sequence[str], now_s: float) -> None:
        try:
            numbered = tuple((name, self._numbers.next()) for name in names)
        except StreamError as error:  # of the log, which was asked for a new run
            self._fail(error, now_s)
            return
        slot.vertices.update(numbered)
        self._handed.update(numbered)
        self._commands.append(Assign(slot.connection, numbered))
        for index, waiting in self._to_start.items():
            if waiting.intersection(names):
                self._note_recovery(index, assigned_s=now_s)

    def _choose(self, group: _Group, may_share: bool) -> SlotFacts | None:
        ready = [s for s in self.slots.values() if s.is_ready and s.on_driver == group.on_driver]
        had_it = [slot for slot in ready if slot.connection == group.prefer]
        idle = [slot for slot in ready if not slot.vertices]
        candidates = had_it or idle or (ready if may_share else [])
        return min(candidates, key=lambda each: (len(each.vertices), each.connection), default=None)

    def _is_newest(self, message: Message) -> bool:
        """Whether a slot speaks of the number that was handed out last."""
        return bool(self._handed.get(message["vertex"]) == message["instance"])

    # Slots that come and go -----------------------------------------------------------------

    def _launch(self, on_driver: bool = False) -> None:
        self._commands.append(Launch(self._next_slot, on_driver))
        if on_driver:
            self._driver_slots.add(self._next_slot)
        self._next_slot += 1

    def _was_replaced(self, number: int) -> bool:
        known = number in self._replaced
        self._replaced.discard(number)
        return known

    def _lose(self, connection: int, reason: str, now_s: float) -> None:
        slot = self.slots.pop(connection, None)
        if slot is None:
            return
        orphans = [name for name in slot.vertices if name not in self.ended]
        if orphans and not self.is_stopping:
            self.recoveries.append(Recovery(slot.number, slot.pid, tuple(orphans), reason, now_s))
            self._to_start[self.recoveries_count] = set(orphans)
            self.recoveries_count += 1
            self._orphans.append(_Group(orphans, on_driver=slot.on_driver))
            self._place(now_s)
        if self.is_stopping and not self.slots:
            self._finish()

    def _give_up_if_lost(self, slot: SlotFacts, now_s: float) -> None:
        silent_s, still_s = now_s - slot.heard_s, now_s - slot.moved_s
        if silent_s > self._patience.silence_s:
            logger.warning("%s has been silent for %.1f s: it is taken for lost", slot, silent_s)
            self._give_up(slot, "silent", now_s)
        elif still_s > self._patience_with(slot):
            logger.warning("%s does not move on since %.0f s: it is taken for lost", slot, still_s)
            if slot.doing_vertex and self._is_stuck_again(slot.doing_vertex, still_s, now_s):
                return
            self._give_up(slot, "stuck", now_s)

    def _patience_with(self, slot: SlotFacts) -> float:
        if not slot.is_ready:
            return max(self._patience.start_s, self._patience.step_s)
        return self._patience.recovery_s if slot.doing == "recover" else self._patience.step_s

    def _give_up(self, slot: SlotFacts, reason: str, now_s: float) -> None:
        """Take a slot for lost and start another; its own task may go on for ever."""
        self._commands.append(
            GiveUp(slot.connection, slot.number, slot.pid, slot.machine, reason == "stuck")
        )
        if not self.is_stopping:
            self._replaced.add(slot.number)
            if len(self._replaced) > REMEMBERED_MAX:
                self._replaced.remove(min(self._replaced))
            self._launch(slot.on_driver)
        self._lose(slot.connection, reason, now_s)

    def _is_stuck_again(self, vertex: str, still_s: float, now_s: float) -> bool:
        """Fail if a vertex hangs wherever it runs."""
        self._stuck[vertex] += 1
        if self._stuck[vertex] < STUCK_MAX or self.is_stopping:
            return False
        self._fail(
            JobFailed(
                f"vertex {vertex} of query {self.query} was stuck {STUCK_MAX} times in a row, on "
                f"another slot each time, the last time for {still_s:.0f} s: look for an input or "
                "a disk that does not answer; where a step does take so long, set stepTimeout "
                "higher",
                vertex=vertex,
                reason="stuck",
            ),
            now_s,
        )
        return True

    def _check_slots_came(self, now_s: float) -> None:
        """Fail if vertices wait for slots that Spark has not started.

        Once all vertices have been placed this never happens again: a lost slot's vertices go to
        the slots that are left.
        """
        came = sum(not slot.on_driver for slot in self.slots.values())
        if not self._unplaced or came >= self._wanted:
            return
        self._fail(
            TooFewSlots(
                f"{came} of {self.task_slots} task slots for query {self.query} came within "
                f"{self._patience.start_s:.0f} s, and {self._wanted} are needed to begin: end "
                "other jobs, give the application more cores, or set slots lower; where executors "
                "take longer to come, set startTimeout higher",
                needed=self._wanted,
                came=came,
            ),
            now_s,
        )

    # What slots say -------------------------------------------------------------------------

    def _note_beat(self, slot: SlotFacts, message: Message, now_s: float) -> None:
        if message["moves"] != slot.moves:
            slot.moved_s = now_s
        slot.moves = message["moves"]
        slot.doing, slot.doing_vertex = message["doing"], message["vertex"]

    def _note_status(self, vertices: dict[str, dict[str, Any]], now_s: float) -> None:
        newest = {n: f for n, f in vertices.items() if self._handed.get(n) == f["instance"]}
        if any(_has_committed(self.status.get(name, {}), f) for name, f in newest.items()):
            self._crashed.pop(None, None)
        self.status.update(newest)
        self.ended.update(name for name, facts in newest.items() if facts["state"] == "ended")
        for name, facts in newest.items():
            if facts["commits"]:
                self._stuck.pop(name, None)
                self._crashed.pop(name, None)
        if self._vertices <= self.ended:
            self._stop(now_s)

    def _note_recovery(self, number: int, **moments: Any) -> None:
        """Note a moment of a recovery, counted from the first, unless it is forgotten by now."""
        place = number - self.recoveries_count + len(self.recoveries)
        if place >= 0:
            self.recoveries[place] = replace(self.recoveries[place], **moments)

    def _note_started(self, vertex: str, now_s: float) -> None:
        self.status.setdefault(vertex, {})
        for index, waiting in tuple(self._to_start.items()):
            waiting.discard(vertex)
            if not waiting:
                self._note_recovery(index, started_s=now_s)
                del self._to_start[index]

    def _note_end(self, slot: SlotFacts, message: Message, now_s: float) -> None:
        """A vertex is no longer on a slot: place it again, or end the query."""
        vertex = message["vertex"]
        if vertex is None:  # the slot itself cannot go on, and no other one could
            self._fail(self._failure("a slot", message), now_s)
            return
        if not self._is_newest(message) or vertex not in slot.vertices:
            return  # of an older number: the vertex has another owner, or will have one
        del slot.vertices[vertex]
        if self.is_stopping:
            return
        if message["type"] == "failed":
            self._fail(self._failure(vertex, message), now_s)
        elif message["type"] == "fenced" and not self._is_newest_run():
            self._fail(
                JobFailed(
                    f"vertex {vertex} was taken over by another run of query {self.query}: this "
                    "run ends",
                    vertex=vertex,
                    reason="taken over",
                ),
                now_s,
            )
        elif (times := self._again_lately.count(vertex, now_s)) > PLACED_AGAIN_MAX:
            self._fail(self._failure(vertex, message), now_s)
        else:
            logger.warning(
                "vertex %s came back from slot %d (%s): it is placed again",
                vertex,
                slot.number,
                message["message"],
            )
            pause_s = 0.0 if times == 1 else PAUSE_S * 2 ** (times - 2)
            again = _Group([vertex], slot.connection, now_s + pause_s, slot.on_driver)
            self._orphans.append(again)
            self._place(now_s)

    def _note_crash(self, slot: SlotFacts, message: Message, now_s: float) -> None:
        """A slot ends by an error that nobody thought of; one that comes back ends the query."""
        vertex = message["vertex"]
        self._crashed[vertex] += 1
        if self._crashed[vertex] >= CRASHED_MAX:
            outside = "slots, outside of any vertex" if slot.is_ready else "slots that start"
            self._fail(self._failure(vertex or outside, message), now_s)

    def _is_newest_run(self) -> bool:
        """Where the log cannot say, the next recovery tells: it would be refused again."""
        try:
            return self._numbers.is_newest_run()
        except StreamError:
            return True

    def _failure(self, where: str, message: Message) -> JobFailed:
        logger.error("query %s failed in %s: %s", self.query, where, message["message"])
        known = {key: message[key] for key in ("condition", "traceback") if key in message}
        return JobFailed(
            f"query {self.query} failed in {where}: [{message['error_class']}] "
            f"{message['message']}",
            vertices=[] if message["vertex"] is None else [message["vertex"]],
            reason=message["error_class"],
            **known,
        )

    # The end --------------------------------------------------------------------------------

    def _fail(self, error: StreamError, now_s: float) -> None:
        if not self.is_stopping:
            self.error = error
            self._stop(now_s)

    def _stop(self, now_s: float) -> None:
        if self.is_stopping:
            return
        self._stop_by_s = now_s + self._patience.stop_s
        self._commands.extend(StopSlot(connection) for connection in self.slots)
        if not self.slots:
            self._finish()

    def _finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._commands.append(Finish())

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands


def _has_committed(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a vertex has committed between two reports, which count from its instance's start."""
    is_same = before.get("instance") == now["instance"]
    return bool(now["commits"] > (before["commits"] if is_same else 0))


def _spread(program: Program, slots: int) -> list[list[str]]:
    """Which vertices share a slot: each stage is dealt out over all slots in turn."""
    groups: list[list[str]] = [[] for _ in range(slots)]
    for number, stage in enumerate(program.stages):
        if stage.is_on_driver:
            continue
        for vertex in program.stage_vertices(number):
            least = min(range(slots), key=lambda index: (len(groups[index]), index))
            groups[least].append(vertex.name)
    return [group for group in groups if group]
