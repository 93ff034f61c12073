"""A slot: a long Spark task that hosts vertices and does what its job says.

    connect ──> warm (log open, kernels loaded) ──> ready ──> step the assigned vertices ──> stop

A slot without vertices is a standby: everything slow is behind it, so that taking over the
vertices of a dead slot is only their recovery. When the connection to the job ends, the slot ends.

A thread of its own tells the job that the process is alive, however long a recovery takes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import socket
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import StreamError
from penstock.kernels.cache import KernelCache
from penstock.kernels.private_folder import private_kernels_folder
from penstock.log.contract import Log, instance_key
from penstock.log.local import LocalLog, open_log
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import BackgroundCheckpointer
from penstock.runtime.control import Channel, Message, connect
from penstock.runtime.host import Host
from penstock.runtime.sources import SOURCES
from penstock.stages.program import Program
from penstock.state.checkpoints import CheckpointStore

STATUS_INTERVAL_S = 0.2
CHECKPOINTS_FOLDER = "checkpoints"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """What a Spark task needs to become a slot; it travels inside the task."""

    host: str
    port: int
    token: str
    slot: int


def run_slot(order: SlotOrder) -> dict[str, Any]:
    """Be a slot until the job says stop or goes away; return what it did, for Spark's result."""
    hello = {
        "token": order.token,
        "slot": order.slot,
        "pid": os.getpid(),
        "machine": socket.gethostname(),
    }
    channel = connect((order.host, order.port), hello)
    try:
        return _Slot(channel).run()
    finally:
        channel.close()


def note_refusal(log: Log, vertex: str) -> None:
    """Count a refused marker where people can see it: in the metadata, under refused/<vertex>."""
    found = log.get(f"refused/{vertex}")
    before = 0 if found is None else int(json.loads(found.value)["times"])
    newest = log.get(instance_key(vertex))
    facts = {
        "times": before + 1,
        "pid": os.getpid(),
        "newest_instance": 0 if newest is None else int(newest.value),
    }
    log.put(f"refused/{vertex}", json.dumps(facts).encode())


class _Slot:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._log: LocalLog | None = None
        self._checkpointer: BackgroundCheckpointer | None = None
        self._host: Host | None = None
        self._is_over = threading.Event()
        self._steps = 0
        self._reports = 0

    def run(self) -> dict[str, Any]:
        reader = threading.Thread(target=self._listen, name="penstock-orders", daemon=True)
        reader.start()
        threading.Thread(target=self._beat, name="penstock-beat", daemon=True).start()
        try:
            while self._obey():
                self._work()
        except (BrokenPipeError, ConnectionError):
            logger.warning("the job is gone: this slot stops")
        finally:
            self._let_go()
            self._is_over.set()
        return {"steps": self._steps}

    def _listen(self) -> None:
        try:
            for message in self._channel.messages():
                self._orders.put(message)
        finally:
            self._orders.put(None)

    def _beat(self) -> None:
        while not self._is_over.wait(STATUS_INTERVAL_S):
            try:
                self._channel.send({"type": "alive"})
            except OSError:
                return

    def _obey(self) -> bool:
        """Carry out what has arrived; return whether to go on."""
        while True:
            try:
                message = self._next_order()
            except queue.Empty:
                return True
            if message is None or message["type"] == "stop":
                return False
            try:
                self._carry_out(message)
            except StreamError as error:
                self._report(message.get("vertices", []), error)

    def _next_order(self) -> Message | None:
        if self._host is None:
            return self._orders.get()
        if self._host.is_empty():  # a standby has nothing else to do
            return self._orders.get(timeout=STATUS_INTERVAL_S)
        return self._orders.get_nowait()

    def _carry_out(self, message: Message) -> None:
        if message["type"] == "program":
            self._warm(message)
        elif message["type"] == "assign":
            assert self._host is not None
            for vertex in message["vertices"]:
                self._host.add(vertex)
                instance = self._host.vertex(vertex).marker.instance
                self._channel.send({"type": "started", "vertex": vertex, "instance": instance})
        elif message["type"] == "release":
            assert self._host is not None
            for vertex in message["vertices"]:
                self._host.remove(vertex)
        else:
            logger.warning("an order of unknown type %r is ignored", message["type"])

    def _warm(self, message: Message) -> None:
        program = Program.from_json(message["program"])
        folder = Path(message["log"])
        self._log = open_log(folder)
        store = CheckpointStore(folder / CHECKPOINTS_FOLDER)
        self._checkpointer = BackgroundCheckpointer(
            CheckpointStore(folder / CHECKPOINTS_FOLDER), self._log
        )
        assembly = Assembly(
            program=program,
            log=self._log,
            clock=SystemClock(),
            checkpoints=store,
            checkpointer=self._checkpointer,
            kernels=KernelCache(message.get("kernels") or private_kernels_folder()),
            sources=SOURCES,
        )
        assembly.warm()
        self._host = Host(assembly, vertices=())
        # What is loaded by now stays: a full collection that looks through it again would hold
        # every vertex up for as long as some hundred commits take.
        gc.freeze()
        self._status_at_s = 0.0
        self._channel.send({"type": "ready"})

    def _work(self) -> None:
        host = self._host
        assert host is not None
        worked = host.step()
        self._steps += 1
        for vertex, error in host.take_failures():
            self._report([vertex], error)
        for vertex in self._note_refused(host):
            self._channel.send({"type": "fenced", "vertex": vertex})
        now_s = time.monotonic()
        if now_s >= self._status_at_s:
            self._status_at_s = now_s + STATUS_INTERVAL_S
            self._send_status(host)
        if not worked and not host.is_empty():
            host.wait()

    def _note_refused(self, host: Host) -> list[str]:
        """Write down in the log that a marker of this process was refused."""
        assert self._log is not None
        refused = host.take_dropped()
        for vertex in refused:
            note_refusal(self._log, vertex)
        return refused

    def _send_status(self, host: Host) -> None:
        self._reports += 1
        statistics = host.statistics()
        vertices = {
            name: {**asdict(facts), "state": facts.state.value, "reports": self._reports}
            for name, facts in statistics.vertices.items()
        }
        self._channel.send(
            {"type": "status", "vertices": vertices, "restarts": statistics.restarts}
        )

    def _report(self, vertices: list[str], error: StreamError) -> None:
        self._channel.send(
            {
                "type": "failed",
                "vertices": vertices,
                "error_class": error.error_class,
                "message": error.message,
                "traceback": "".join(traceback.format_exception(error))[-20_000:],
            }
        )

    def _let_go(self) -> None:
        if self._host is not None:
            self._host.close()
            self._note_refused(self._host)
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._log is not None:
            self._log.close()
