"""A job: the driver's side of a running query. It places vertices on slots and replaces dead slots.

A job keeps nothing that matters in memory. The program is in the log's metadata, progress is in
the markers, and instance numbers fence whoever should no longer run. So a job can be killed at any
time, and a new one, here or elsewhere, goes on from the log.

    slot connects ──> gets the program ──> ready ──┬─> vertices that have no slot
                                                   └─> or none: a standby
    slot lost ──> its vertices go to a standby, or to the least loaded slot ──> a new one starts

A slot is lost when its connection ends, which a dying process does at once, or when it has been
silent for too long: a process that is stopped, or a machine that is gone, closes nothing. A silent
slot is not ended: should it wake up, its markers are refused. The exception is one on this machine
that was stopped while it held a lock of the log: nobody could append until it is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import JobFailed, StreamError, TooFewSlots
from penstock.log.blockers import blockers
from penstock.runtime.control import Channel, ControlServer, Message
from penstock.runtime.slot import SlotOrder
from penstock.stages.program import Program

SLOT_FAILURES_MAX = 20  # within the time below: whatever ends slots so often will not go away
SLOT_FAILURES_S = 60.0
STOP_TIMEOUT_S = 30.0
SLOT_SILENCE_S = 3.0  # a slot says something every 0.2 s
SILENCE_LOOKS = 20  # how often the silence of slots is looked at, per SLOT_SILENCE_S
START_TIMEOUT_S = 120.0  # a cluster manager may have to start executors first

logger = logging.getLogger(__name__)


class SlotLauncher(Protocol):
    """Starts slots somewhere; Spark tasks in production."""

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        """Start a slot; call `on_end(slot, error)` when its task is over."""

    def cancel(self) -> None:
        """End every slot that is still running."""

    def ended(self) -> str | None:
        """Why no slot can be started any more; None as long as one can."""


@dataclass
class _SlotState:
    """What the job knows about a connected slot."""

    number: int
    pid: int
    machine: str
    channel: Channel
    heard_s: float  # when it last said something
    is_ready: bool = False
    is_silent: bool = False  # for so long that it is taken for lost
    vertices: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Recovery:
    """A lost slot's vertices and when each step was done, for people and benchmarks."""

    slot: int
    pid: int
    vertices: tuple[str, ...]
    reason: str  # "connection closed" or "silent"
    detected_s: float  # monotonic time at which the slot was found to be lost
    assigned_s: float | None = None  # when the last vertex was given to another slot
    started_s: float | None = None  # when the last vertex was ready to step there


class Job:
    """A running query. Its methods may be called from any thread."""

    def __init__(
        self,
        program: Program,
        log_folder: str,
        launcher: SlotLauncher,
        *,
        host: str,
        slots: int,
        standbys: int,
        slot_silence_s: float = SLOT_SILENCE_S,
        start_timeout_s: float = START_TIMEOUT_S,
        kernels: str | None = None,
    ) -> None:
        self._program = program
        self._log_folder = log_folder
        self._kernels = kernels
        self._launcher = launcher
        self._wanted = slots
        self._standbys = standbys
        self._silence_s = slot_silence_s
        self._start_timeout_s = start_timeout_s
        self._changed = threading.Condition()
        self._slots: dict[int, _SlotState] = {}
        self._unplaced = _spread(program, slots)
        self._orphans: list[list[str]] = []  # of lost slots: placed before anything else
        self._next_slot = 0
        self._slot_ends_s: deque[float] = deque()  # when tasks ended, for the last while
        self._ended: set[str] = set()
        self._status: dict[str, dict[str, Any]] = {}
        self._recoveries: list[Recovery] = []
        self._to_start: list[set[str]] = []  # per recovery: vertices that do not run again yet
        self._replaced: set[int] = set()  # slots that were refilled before their task was over
        self._error: StreamError | None = None
        self._is_stopping = False
        self._is_over = False
        self._server = ControlServer(host, self._serve)

    def start(self) -> None:
        """Ask for all slots; vertices start as slots become ready."""
        for _ in range(self._wanted + self._standbys):
            self._launch()
        threading.Thread(target=self._watch_slots, name="penstock-slots", daemon=True).start()

    def wait_running(self, timeout_s: float) -> bool:
        """Wait until every vertex has a slot that started it; return whether so."""
        names = {vertex.name for vertex in self._program.vertices}
        with self._changed:
            return self._changed.wait_for(
                lambda: names <= self._status.keys() | self._ended or self._is_over, timeout_s
            )

    def wait_over(self, timeout_s: float | None) -> bool:
        """Wait until the query has ended, failed or been stopped; return whether so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Let every slot commit what it has done and end; cancel those that do not in time."""
        with self._changed:
            self._is_stopping = True
            channels = [slot.channel for slot in self._slots.values()]
        for channel in channels:
            _send(channel, {"type": "stop"})
        with self._changed:
            self._changed.wait_for(lambda: not self._slots, timeout_s)
        self._finish()

    @property
    def error(self) -> StreamError | None:
        return self._error

    @property
    def task_slots(self) -> int:
        """How many task slots of Spark the query holds, or waits for."""
        return self._wanted + self._standbys

    def session_error(self) -> StreamError | None:
        """The error of a query whose Spark session is gone; None as long as it is there."""
        if (reason := self._launcher.ended()) is None:
            return None
        return JobFailed(
            f"query {self._program.query} ends: {reason}. What it has committed is in the log; "
            "start it again in a new session and it goes on from there",
            query=self._program.query,
            reason=reason,
        )

    @property
    def is_over(self) -> bool:
        return self._is_over

    def vertex_status(self) -> dict[str, dict[str, Any]]:
        """The newest statistics of each vertex, as its slot reported them."""
        with self._changed:
            return {name: dict(facts) for name, facts in self._status.items()}

    def slot_processes(self) -> dict[int, tuple[int, str, tuple[str, ...]]]:
        """Process id, machine and vertices of each connected slot."""
        with self._changed:
            return {
                slot.number: (slot.pid, slot.machine, tuple(slot.vertices))
                for slot in self._slots.values()
            }

    def standbys_ready(self) -> int:
        """How many slots could take over vertices at once."""
        with self._changed:
            return sum(slot.is_ready and not slot.vertices for slot in self._slots.values())

    def recoveries(self) -> list[Recovery]:
        with self._changed:
            return list(self._recoveries)

    # Slots ------------------------------------------------------------------------------------

    def _launch(self) -> None:
        with self._changed:
            if self._is_stopping or self._is_over:
                return
            number = self._next_slot
            self._next_slot += 1
        host, port = self._server.address
        self._launcher.launch(SlotOrder(host, port, self._server.token, number), self._task_over)

    def _task_over(self, slot: int, error: str | None) -> None:
        """A slot's task ended, which the connection usually told long before."""
        with self._changed:
            if self._is_stopping or self._is_over:
                return
            if slot in self._replaced:
                self._replaced.discard(slot)
                return
            failures = self._count_failure(time.monotonic())
        if (gone := self.session_error()) is not None:
            self._fail(gone)
        elif failures > SLOT_FAILURES_MAX:
            self._fail(
                TooFewSlots(
                    f"slots of query {self._program.query} keep ending ({failures} times in "
                    f"{SLOT_FAILURES_S:.0f} s); the last one with: {(error or 'no error')[:2000]}",
                    slot=slot,
                )
            )
        else:
            self._launch()

    def _count_failure(self, now_s: float) -> int:
        """How many tasks ended lately; over its whole life a query may lose any number of slots."""
        self._slot_ends_s.append(now_s)
        while now_s - self._slot_ends_s[0] > SLOT_FAILURES_S:
            self._slot_ends_s.popleft()
        return len(self._slot_ends_s)

    def _serve(self, hello: Message, channel: Channel) -> None:
        slot = _SlotState(
            int(hello["slot"]),
            int(hello["pid"]),
            str(hello.get("machine", "")),
            channel,
            time.monotonic(),
        )
        with self._changed:
            self._slots[slot.number] = slot
            self._changed.notify_all()
        try:
            _send(
                channel,
                {
                    "type": "program",
                    "program": self._program.to_json(),
                    "log": self._log_folder,
                    "kernels": self._kernels,
                },
            )
            for message in channel.messages():
                slot.heard_s = time.monotonic()
                self._hear(slot, message)
        finally:
            self._lose(slot)

    def _hear(self, slot: _SlotState, message: Message) -> None:
        kind = message["type"]
        if kind == "ready":
            with self._changed:
                slot.is_ready = True
                self._place()
                self._changed.notify_all()
        elif kind == "started":
            self._note_started(str(message["vertex"]))
        elif kind == "status":
            self._note_status(message["vertices"])
        elif kind == "fenced":
            self._fail(
                JobFailed(
                    f"vertex {message['vertex']} was taken over by another run of query "
                    f"{self._program.query}: this run ends",
                    vertex=message["vertex"],
                    reason="taken over",
                )
            )
        elif kind == "failed":
            self._note_failure(slot, message)

    def _lose(self, slot: _SlotState) -> None:
        """A connection ended: give the slot's vertices to another one at once."""
        detected_s = time.monotonic()
        with self._changed:
            if self._slots.get(slot.number) is slot:
                del self._slots[slot.number]
            orphans = [name for name in slot.vertices if name not in self._ended]
            if orphans and not self._is_stopping and not self._is_over:
                self._orphans.append(orphans)
                reason = "silent" if slot.is_silent else "connection closed"
                self._recoveries.append(
                    Recovery(slot.number, slot.pid, tuple(orphans), reason, detected_s)
                )
                self._to_start.append(set(orphans))
                self._place()
            self._changed.notify_all()

    def _place(self) -> None:
        """Give groups of vertices to ready slots.

        A lost slot's vertices do not wait: without a standby they go to the least loaded slot. At
        the start each group waits for a slot of its own.
        """
        while self._orphans or self._unplaced:
            ready = [slot for slot in self._slots.values() if slot.is_ready]
            idle = [slot for slot in ready if not slot.vertices]
            candidates = ready if self._orphans and not idle else idle
            if not candidates:
                return
            slot = min(candidates, key=lambda each: (len(each.vertices), each.number))
            group = (self._orphans or self._unplaced).pop(0)
            slot.vertices.extend(group)
            _send(slot.channel, {"type": "assign", "vertices": group})
            for index, waiting in enumerate(self._to_start):
                if waiting.intersection(group):
                    self._recoveries[index] = replace(
                        self._recoveries[index], assigned_s=time.monotonic()
                    )

    # Slots that do not come, and slots that fall silent -----------------------------------------

    def _watch_slots(self) -> None:
        """End a query whose slots do not come; take slots for lost that are silent too long."""
        pause_s = self._silence_s / SILENCE_LOOKS
        started_s = looked_s = time.monotonic()
        while not self.wait_over(pause_s):
            now_s = time.monotonic()
            if now_s - started_s > self._start_timeout_s:
                self._check_slots_came()
            with self._changed:
                slots = list(self._slots.values())
            if now_s - looked_s > self._silence_s / 2:  # it was this process that slept
                for slot in slots:
                    slot.heard_s = now_s
            looked_s = now_s
            for slot in slots:
                if now_s - slot.heard_s > self._silence_s and not slot.is_silent:
                    self._give_up_silent(slot, now_s - slot.heard_s)

    def _check_slots_came(self) -> None:
        """Fail if vertices wait for slots that Spark has not started.

        Once all vertices have been placed this never happens again: a lost slot's vertices go to
        the slots that are left.
        """
        with self._changed:
            came = len(self._slots)
            if not self._unplaced or came >= self._wanted:
                return
        self._fail(
            TooFewSlots(
                f"{came} of {self.task_slots} task slots for query {self._program.query} came "
                f"within {self._start_timeout_s:.0f} s, and {self._wanted} are needed to begin: "
                "end other jobs, give the application more cores, or set slots lower; where "
                "executors take longer to come, set startTimeout higher",
                needed=self._wanted,
                came=came,
            )
        )

    def _give_up_silent(self, slot: _SlotState, silent_s: float) -> None:
        """Close a silent slot's connection, which makes it a lost one, and start another."""
        logger.warning(
            "slot %d (process %d on %s) has been silent for %.1f s: it is taken for lost",
            slot.number,
            slot.pid,
            slot.machine,
            silent_s,
        )
        slot.is_silent = True
        if slot.machine == socket.gethostname():
            self._end_blocker(slot.pid)
        with self._changed:
            self._replaced.add(slot.number)  # its task may go on for ever
        slot.channel.close()
        self._launch()

    def _end_blocker(self, pid: int) -> None:
        """End a process of this machine that stopped while it held a lock of the log.

        It is still connected, so the number is still its own.
        """
        if pid in blockers(Path(self._log_folder)):
            logger.warning("process %d was stopped with a lock of the log: ending it", pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    # What slots say ---------------------------------------------------------------------------

    def _note_started(self, vertex: str) -> None:
        with self._changed:
            self._status.setdefault(vertex, {})
            for index, waiting in enumerate(self._to_start):
                if vertex in waiting:
                    waiting.discard(vertex)
                    if not waiting:
                        self._recoveries[index] = replace(
                            self._recoveries[index], started_s=time.monotonic()
                        )
            self._changed.notify_all()

    def _note_status(self, vertices: dict[str, dict[str, Any]]) -> None:
        with self._changed:
            self._status.update(vertices)
            self._ended.update(
                name for name, facts in vertices.items() if facts["state"] == "ended"
            )
            everything = {vertex.name for vertex in self._program.vertices}
            finished = everything <= self._ended and not self._is_stopping
            self._changed.notify_all()
        if finished:
            threading.Thread(target=self.stop, name="penstock-finish", daemon=True).start()

    def _note_failure(self, slot: _SlotState, message: Message) -> None:
        names = [str(name) for name in message["vertices"]]
        logger.error(
            "vertices %s failed on slot %d: %s", ", ".join(names), slot.number, message["message"]
        )
        self._fail(
            JobFailed(
                f"query {self._program.query} failed in {', '.join(names) or 'a slot'}: "
                f"[{message['error_class']}] {message['message']}",
                vertices=names,
                reason=message["error_class"],
                traceback=message["traceback"],
            )
        )

    def _fail(self, error: StreamError) -> None:
        with self._changed:
            if self._is_stopping or self._is_over:
                return
            self._error = error
        threading.Thread(target=self.stop, name="penstock-fail", daemon=True).start()

    def _finish(self) -> None:
        self._server.close()
        self._launcher.cancel()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def _spread(program: Program, slots: int) -> list[list[str]]:
    """Which vertices share a slot: each stage is dealt out over all slots in turn."""
    groups: list[list[str]] = [[] for _ in range(slots)]
    for number in range(len(program.stages)):
        for vertex in program.stage_vertices(number):
            least = min(range(slots), key=lambda index: (len(groups[index]), index))
            groups[least].append(vertex.name)
    return [group for group in groups if group]


def _send(channel: Channel, message: Message) -> None:
    try:
        channel.send(message)
    except OSError:
        logger.debug("a slot is gone: %s was not sent", message["type"])


def task_slots_needed(program: Program, slots: int, standbys: int) -> int:
    """How many Spark task slots a query takes for as long as it runs."""
    return min(slots, len(program.vertices)) + standbys
