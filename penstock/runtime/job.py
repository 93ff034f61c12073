"""A job: the driver's side of a running query, over slots that it starts and listens to.

A job keeps nothing that matters in memory. Progress is in the markers, and instance numbers fence
whoever should no longer run. So a job can be killed at any time, and a new one, here or elsewhere,
goes on from the log.

What a job decides is in `placement`. Here are the threads, the port and the time: one thread per
connection reads, and one thread takes what they heard, asks the placement and does as it says.

A slot that is silent is not ended: should it wake up, its markers are refused. The exception is one
on this machine that was stopped while it held a lock of the log: nobody could append until it is
gone. A slot that is alive but stuck is ended with its task, which would hold its place for ever.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from penstock.clock import Clock, SystemClock
from penstock.connectors.hidden_files import FilesKind
from penstock.errors import ControlError, JobFailed, StreamError
from penstock.log.blockers import blockers
from penstock.log.local import LocalLog
from penstock.runtime.commands import Hands
from penstock.runtime.control import Channel, ControlServer, Message
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.placement import Command, Patience, Placement, Recovery
from penstock.runtime.slot import SlotOrder
from penstock.stages.program import Program

LOOKS = 20  # how often the placement is told the time, per silence that it allows a slot

logger = logging.getLogger(__name__)

Event = Callable[[float], list[Command]]  # a call to the placement that lacks only the time


class SlotLauncher(Protocol):
    """Starts slots somewhere; Spark tasks in production."""

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        """Start a slot; call `on_end(slot, error)` when its task is over."""

    def cancel_slot(self, slot: int) -> None:
        """End one slot, if it is still running."""

    def cancel(self) -> None:
        """End every slot that is still running."""

    def ended(self) -> str | None:
        """Why no slot can be started any more; None as long as one can."""


class Job:
    """A running query. Its methods may be called from any thread."""

    def __init__(
        self,
        program: Program,
        log: LocalLog,
        launcher: SlotLauncher,
        *,
        host: str,
        slots: int,
        standbys: int,
        numbers: InstanceNumbers | None = None,
        patience: Patience | None = None,
        kernels: str | None = None,
        clock: Clock | None = None,
        driver: SlotLauncher | None = None,
        files: Mapping[str, FilesKind] | None = None,
    ) -> None:
        """`numbers` are those of the run that was begun for this job; without, one begins here.

        `driver` starts the slot for what only the driver can host, if the program has such stages.
        `files` says by stream which sinks of files the slots may write for.
        """
        self._program = program
        self._log = log
        self._launcher = launcher
        self._driver = driver
        self._kernels = kernels
        self._files = {stream: asdict(kind) for stream, kind in (files or {}).items()}
        self._clock = clock or SystemClock()
        self._patience = patience or Patience()
        if numbers is None:
            numbers = InstanceNumbers(log, program.query, [v.name for v in program.vertices])
        self.run_number = numbers.run
        self._placement = Placement(
            program, numbers, slots=slots, standbys=standbys, patience=self._patience
        )
        self._changed = threading.Condition()  # held by whoever looks at the placement
        self._is_over = False  # the placement says so first, and then everything is closed
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._connections = itertools.count()
        self._channels: dict[int, Channel] = {}  # by connection
        self._hands = Hands(
            launch=self._launch,
            send=self._send,
            free_log=self._free_log,
            close=lambda connection: self._channels[connection].close(),
            cancel_slot=launcher.cancel_slot,
            finish=self._finish,
        )
        self._server = ControlServer(host, self._serve, self._port_gone)
        threading.Thread(target=self._run, name="penstock-job", daemon=True).start()

    def start(self) -> None:
        """Ask for all slots; vertices start as slots become ready."""
        self._events.put(self._placement.start)

    def wait_running(self, timeout_s: float) -> bool:
        """Wait until every vertex has a slot that started it; return whether so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._placement.is_running() or self._is_over, timeout_s
            )

    def wait_over(self, timeout_s: float | None) -> bool:
        """Wait until the query has ended, failed or been stopped; return whether so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    def wait_through(self, timeout_s: float) -> bool:
        """Wait until every vertex is through, or the query is over; return whether it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._placement.is_through() or self._is_over, timeout_s)
            return self._is_over

    def is_through(self) -> bool:
        """Whether every vertex has done all that was there, and committed it."""
        with self._changed:
            return self._placement.is_through()

    def begin_stop(self) -> None:
        """Let every slot commit what it has done and end; returns at once."""
        self._events.put(self._placement.stop)

    def stop(self) -> None:
        """The same, and wait for their end; those that do not come to it in time are cancelled."""
        self.begin_stop()
        self.wait_over(None)

    @property
    def error(self) -> StreamError | None:
        return self._placement.error

    @property
    def task_slots(self) -> int:
        """How many task slots of Spark the query holds, or waits for."""
        return self._placement.task_slots

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
            return {name: dict(facts) for name, facts in self._placement.status.items()}

    def slot_processes(self) -> dict[int, tuple[int, str, tuple[str, ...]]]:
        """Process id, machine and vertices of each connected slot."""
        with self._changed:
            return {
                slot.number: (slot.pid, slot.machine, tuple(slot.vertices))
                for slot in self._placement.slots.values()
            }

    def standbys_ready(self) -> int:
        """How many slots could take over vertices at once."""
        with self._changed:
            slots = self._placement.slots.values()
            return sum(slot.is_ready and not slot.vertices for slot in slots)

    @property
    def recoveries_count(self) -> int:
        return self._placement.recoveries_count

    def recoveries(self) -> list[Recovery]:
        """The newest recoveries."""
        with self._changed:
            return list(self._placement.recoveries)

    # The thread that acts -----------------------------------------------------------------------

    def _run(self) -> None:
        """Act until the query is over, whatever happens: nobody else would end it."""
        try:
            self._act()
        except Exception as bug:
            logger.exception("the job of query %s cannot go on", self._program.query)
            with self._changed:
                self._placement.error = JobFailed(
                    f"the job of query {self._program.query} failed ({type(bug).__name__}: {bug}): "
                    "this is a bug. What the query has committed is in the log; start it again",
                    query=self._program.query,
                    reason=type(bug).__name__,
                )
            self._finish()

    def _act(self) -> None:
        """Tell the placement what happened, and now and then what time it is."""
        pause_s = self._patience.silence_s / LOOKS
        look_at_s = self._clock.monotonic_s() + pause_s
        while not self._is_over:
            with suppress(queue.Empty):
                wait_s = max(0.0, look_at_s - self._clock.monotonic_s())
                self._happen(self._events.get(timeout=wait_s))
            if not self._is_over and self._clock.monotonic_s() >= look_at_s:
                look_at_s = self._clock.monotonic_s() + pause_s
                self._happen(self._placement.tick)

    def _happen(self, event: Event) -> None:
        with self._changed:
            before = self._placement.is_running(), self._placement.is_through()
            commands = event(self._clock.monotonic_s())
            if before != (self._placement.is_running(), self._placement.is_through()):
                self._changed.notify_all()  # most events say that all is well
        for command in commands:
            self._hands.carry_out(command)

    def _launch(self, slot: int, on_driver: bool) -> None:
        launcher = self._driver if on_driver else self._launcher
        assert launcher is not None, "a program with stages of the driver needs one"
        host, port = self._server.address
        order = SlotOrder(
            host=host,
            port=port,
            token=self._server.token,
            slot=slot,
            program=self._program.to_json(),
            log=str(self._log.folder),
            kernels=self._kernels,
            files=self._files,
        )
        try:
            launcher.launch(order, self._task_over)
        except Exception as failure:  # py4j raises many kinds; all mean that there is no task
            self._task_over(slot, str(failure))

    def _send(self, connection: int, message: Message) -> None:
        try:
            self._channels[connection].send(message)
        except OSError:
            logger.debug("a slot is gone: %s was not sent", message["type"])

    def _free_log(self, pid: int, machine: str) -> None:
        """End a process of this machine that stopped while it held a lock of the log.

        It is still connected, so the number is still its own.
        """
        is_other = machine == socket.gethostname() and pid != os.getpid()
        if is_other and pid in blockers(self._log.folder):
            logger.warning("process %d was stopped with a lock of the log: ending it", pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _finish(self) -> None:
        try:
            self._server.close()
            self._launcher.cancel()
            if self._driver is not None:
                self._driver.cancel()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    # What other threads hear --------------------------------------------------------------------

    def _serve(self, facts: Message, channel: Channel) -> None:
        """Read what one slot says, until its connection ends."""
        try:
            slot, pid, machine = int(facts["slot"]), int(facts["pid"]), str(facts["machine"])
        except (KeyError, TypeError, ValueError) as error:
            raise ControlError("a slot does not say which one it is") from error
        placement, connection = self._placement, next(self._connections)
        self._channels[connection] = channel
        self._events.put(partial(placement.connected, connection, slot, pid, machine))
        try:
            for message in channel.messages():
                self._events.put(partial(placement.hear, connection, message))
        finally:
            self._events.put(partial(self._lost, connection))

    def _lost(self, connection: int, now_s: float) -> list[Command]:
        del self._channels[connection]
        return self._placement.lost(connection, now_s)

    def _port_gone(self, error: ControlError) -> None:
        self._events.put(partial(self._placement.fail, error))

    def _task_over(self, slot: int, error: str | None) -> None:
        if (gone := self.session_error()) is not None:
            self._events.put(partial(self._placement.fail, gone))
        else:
            self._events.put(partial(self._placement.task_over, slot, error))
