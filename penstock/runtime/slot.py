"""A slot: a long Spark task that hosts vertices and does what its job says.

    connect ──> warm (log open, kernels loaded) ──> ready ──> step the assigned vertices ──> stop

Kernels that nobody has compiled yet hold no slot up: Arrow does their work until they are there.

A slot without vertices is a standby: everything slow is behind it, so that taking over the
vertices of a dead slot is only their recovery. When the connection to the job ends, the slot ends.

`Slot` obeys and works, with no thread, socket or clock of its own; `run_slot` gives it these. A
thread beside it tells the job every moment that the process is alive, and what its main thread is
at: a long recovery is no death, and a step that hangs is no life.

What names code or data (the program, the log, the folder of compiled kernels) comes with the
order, inside the Spark task, and so does the code of Python functions; over the connection come
only names of vertices, and numbers.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock
from penstock.connectors.hidden_files import FilesKind
from penstock.errors import ControlError, FunctionFailed, StreamError
from penstock.json_codec import parse, spaced_json
from penstock.kernels.background import BackgroundKernels
from penstock.kernels.private_folder import private_kernels_folder
from penstock.log.contract import Log, instance_key
from penstock.log.local import open_log
from penstock.operators.contract import SparkEvaluator
from penstock.operators.python_functions import (
    PYTHON_CONDITION,
    PythonCodes,
    PythonFunctions,
)
from penstock.runtime.appending import Appends, BackgroundAppends
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import BackgroundCheckpointer
from penstock.runtime.control import Channel, Message, connect
from penstock.runtime.host import PASSING, Host, VertexEnd
from penstock.runtime.sources import SOURCES
from penstock.stages.program import Program
from penstock.state.checkpoints import CheckpointStore

STATUS_INTERVAL_S = 0.2
CHECKPOINTS_FOLDER = "checkpoints"
SETTLED_S = 5.0  # after vertices came: by then what they work with is loaded
YOUNG_OBJECTS_MAX = 10_000
MESSAGE_CHARACTERS_MAX = 2_000
TRACEBACK_CHARACTERS_MAX = 20_000

logger = logging.getLogger(__name__)

Send = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """What a Spark task needs to become a slot; it travels inside the task."""

    host: str
    port: int
    token: str = field(repr=False)
    slot: int
    program: str = field(repr=False)  # as JSON
    log: str
    kernels: str | None = None
    files: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # as `FilesKind` has them


class Slot:
    """Hosts the vertices that its job assigns. For one thread; `beat` is for another one."""

    def __init__(self, assembly: Assembly, send: Send) -> None:
        self._assembly = assembly
        self._log = assembly.log
        self._clock = assembly.clock
        self._send = send
        self._host = Host(assembly)
        self._status_at_s = assembly.clock.monotonic_s()
        self._reports = 0
        self._is_through = False

    @property
    def departures(self) -> int:
        """How many vertices have left."""
        return self._host.departures

    def obey(self, message: Message) -> bool:
        """Carry out an order; return whether there will be more."""
        if message["type"] == "stop":
            return False
        if message["type"] == "assign":
            for vertex, instance in message["vertices"]:
                if self._host.add(vertex, instance):
                    self._send({"type": "started", "vertex": vertex, "instance": instance})
                self._report_ends()
        else:
            logger.warning("an order of unknown type %r is ignored", message["type"])
        return True

    def work(self) -> bool:
        """Step every vertex once and say what there is to say; return whether there was work."""
        worked = self._host.step()
        self._report_ends()
        now_s = self._clock.monotonic_s()
        was_through, self._is_through = self._is_through, not worked and self._host.is_through()
        is_news = self._is_through and not was_through  # the driver waits for this
        if now_s >= self._status_at_s or is_news:
            self._status_at_s = now_s + STATUS_INTERVAL_S
            self._send_status()
            if self._assembly.kernels.tend() and self.is_standby():
                self._assembly.warm()
        return worked

    def wait(self) -> None:
        """Sleep until there may be work again."""
        self._host.wait()

    def is_standby(self) -> bool:
        return self._host.is_empty()

    def beat(self) -> Message:
        """That the process is alive, and what its main thread does."""
        moves, doing, vertex = self._host.activity.now
        return {"type": "alive", "moves": moves, "doing": doing, "vertex": vertex}

    def close(self) -> None:
        """Commit what has been done and let the vertices go."""
        self._host.close()
        for end in self._host.take_ends():
            if end.is_fenced:
                note_refusal(self._log, end.vertex)
            else:
                logger.warning("vertex %s ends without its last commit", end.vertex)

    def _report_ends(self) -> None:
        for end in self._host.take_ends():
            if end.is_fenced:
                note_refusal(self._log, end.vertex)
            self._send(_ended(end))

    def _send_status(self) -> None:
        if self._host.is_empty():
            return
        self._reports += 1
        vertices = {
            name: {**asdict(facts), "state": facts.state.value, "reports": self._reports}
            for name, facts in self._host.statistics().vertices.items()
        }
        self._send({"type": "status", "vertices": vertices})


def _ended(end: VertexEnd) -> Message:
    """How the job is told that a vertex is no longer here.

    It is `fenced` if a newer number is registered, `returned` if it can go on under a new one, and
    `failed` if it cannot.
    """
    kind = "fenced" if end.is_fenced else "returned" if end.can_go_on else "failed"
    return {"type": kind, "vertex": end.vertex, "instance": end.instance, **_facts(end.error)}


def _facts(error: Exception) -> Message:
    kind, message = type(error).__name__, str(error)[:MESSAGE_CHARACTERS_MAX]
    if isinstance(error, StreamError):
        kind, message = error.error_class, error.message
    facts = {
        "error_class": kind,
        "message": message,
        "traceback": "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:],
    }
    condition = PYTHON_CONDITION if isinstance(error, FunctionFailed) else None
    if isinstance(error, StreamError):
        condition = error.details.get("condition", condition)
    return facts if condition is None else facts | {"condition": condition}


def note_refusal(log: Log, vertex: str) -> None:
    """Count a refused marker where people can see it: in the metadata, under refused/<vertex>.

    It is a courtesy: a log that cannot take the note has refused the marker all the same.
    """
    try:
        found = log.get(f"refused/{vertex}")
        before = 0 if found is None else int(parse(found.value)["times"])
        newest = log.get(instance_key(vertex))
        facts = {
            "times": before + 1,
            "pid": os.getpid(),
            "newest_instance": 0 if newest is None else int(newest.value),
        }
        log.put(f"refused/{vertex}", spaced_json(facts))
    except PASSING:
        logger.warning("that a marker of %s was refused could not be noted", vertex, exc_info=True)


# Threads and sockets --------------------------------------------------------------------------


def run_slot(
    order: SlotOrder, spark: SparkEvaluator | None = None, codes: PythonCodes | None = None
) -> None:
    """Be a slot until the job says stop or goes away; with `spark` in a thread of the driver.

    `codes` are the query's Python functions.
    """
    facts = {"slot": order.slot, "pid": os.getpid(), "machine": socket.gethostname()}
    channel = connect((order.host, order.port), order.token, facts)
    try:
        _SlotProcess(channel, order, spark, codes).run()
    finally:
        channel.close()


class _SlotProcess:
    """A slot with a connection, a queue of orders and a heart."""

    def __init__(
        self,
        channel: Channel,
        order: SlotOrder,
        spark: SparkEvaluator | None = None,
        codes: PythonCodes | None = None,
    ) -> None:
        self._channel = channel
        self._order = order
        self._spark = spark
        self._python = None if spark is not None else PythonFunctions(codes or {})
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._slot: Slot | None = None
        self._failed_in: str | None = None  # the vertex that met what nobody expects, if one did
        self._freezes_at_s = float("inf")
        self._departures = 0  # that were heard of
        self._wake: Callable[[], None] = lambda: None  # the main thread, if it sleeps
        self._is_over = threading.Event()

    def run(self) -> None:
        threading.Thread(target=self._listen, name="penstock-orders", daemon=True).start()
        threading.Thread(target=self._beat, name="penstock-beat", daemon=True).start()
        folder = Path(self._order.log)
        try:
            with open_log(folder) as log:
                self._wake = log.wake
                checkpointer = BackgroundCheckpointer(_checkpoints(folder), log)
                appends = BackgroundAppends(log) if log.durability == "synced" else None
                try:
                    self._live(self._assembly(folder, log, checkpointer, appends))
                finally:
                    if appends is not None:
                        appends.close()
                    checkpointer.close()
        except (BrokenPipeError, ConnectionError):
            logger.warning("the job is gone: this slot stops")
        except PASSING:
            raise  # another slot may have more luck
        except StreamError as error:
            self._channel.send({"type": "failed", "vertex": None, **_facts(error)})
        except Exception as error:
            facts = {"vertex": self._failed_in, **_facts(error)}
            self._channel.send({"type": "crashed", **facts})
            raise
        finally:
            self._is_over.set()

    def _assembly(
        self, folder: Path, log: Log, checkpointer: BackgroundCheckpointer, appends: Appends | None
    ) -> Assembly:
        return Assembly(
            program=Program.from_json(self._order.program),
            log=log,
            clock=SystemClock(),
            checkpoints=_checkpoints(folder),
            checkpointer=checkpointer,
            kernels=BackgroundKernels(self._order.kernels or private_kernels_folder()),
            sources=SOURCES,
            appends=appends,
            spark=self._spark,
            python=self._python,
            files={stream: FilesKind(**facts) for stream, facts in self._order.files.items()},
        )

    def _live(self, assembly: Assembly) -> None:
        assembly.warm()
        slot = self._slot = Slot(assembly, self._channel.send)
        # What is loaded stays: full collections that looked through it again and again would each
        # hold every vertex up for as long as some ten commits take. The driver is the user's.
        # And what is young is looked through less often: rows and frames of functions are many.
        often = gc.get_threshold()
        if self._spark is None:
            gc.freeze()
            gc.set_threshold(YOUNG_OBJECTS_MAX, *often[1:])
        try:
            self._channel.send({"type": "ready"})
            while self._obey(slot):
                self._freeze_if_due(slot, assembly.clock.monotonic_s())
                worked = slot.work()
                if not worked and not slot.is_standby() and self._orders.empty():
                    slot.wait()
        except Exception:
            self._failed_in = slot.beat()["vertex"] or None
            raise
        finally:
            gc.set_threshold(*often)
            slot.close()

    def _freeze_if_due(self, slot: Slot, now_s: float) -> None:
        """So does what vertices that came have loaded since: loops load at their first call.

        What vertices had goes with them, by its last reference. Should some of it be in a cycle, it
        is garbage that was frozen: so then everything is looked through once more.
        """
        if self._spark is not None:
            return
        if slot.departures > self._departures:
            self._departures = slot.departures
            gc.unfreeze()
            self._freezes_at_s = now_s + SETTLED_S
        if now_s >= self._freezes_at_s:
            gc.collect()
            gc.freeze()
            self._freezes_at_s = float("inf")

    def _obey(self, slot: Slot) -> bool:
        """Carry out what has arrived; return whether to go on."""
        while True:
            try:
                # A standby has nothing else to do than to wait for orders.
                wait_s = STATUS_INTERVAL_S if slot.is_standby() else 0
                message = self._orders.get(block=wait_s > 0, timeout=wait_s)
            except queue.Empty:
                return True
            if message is None or not slot.obey(message):
                return False
            self._freezes_at_s = SystemClock().monotonic_s() + SETTLED_S

    def _listen(self) -> None:
        try:
            for message in self._channel.messages():
                self._orders.put(message)
                self._wake()
        except ControlError as error:
            logger.error("the job sent what is no order: %s", error.message)
        finally:
            self._orders.put(None)
            self._wake()

    def _beat(self) -> None:
        while not self._is_over.wait(STATUS_INTERVAL_S):
            slot = self._slot
            try:
                self._channel.send(
                    {"type": "alive", "moves": 0, "doing": "warm", "vertex": ""}
                    if slot is None
                    else slot.beat()
                )
            except OSError:
                return


def _checkpoints(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder / CHECKPOINTS_FOLDER)
