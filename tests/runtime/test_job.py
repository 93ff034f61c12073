"""A job over real connections, with threads for slots: how it does what the placement says."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import JobFailed, TooFewSlots
from penstock.log import open_log
from penstock.runtime.control import Channel, connect
from penstock.runtime.job import Job
from penstock.runtime.placement import Patience
from penstock.runtime.slot import SlotOrder
from tests.runtime.laboratory import UNSYNCED
from tests.stages.programs import small

WAIT_S = 20.0
BEAT_S = 0.02

Script = Callable[[Channel, list[list[object]]], None]


def end_at_once(channel: Channel, vertices: list[list[object]]) -> None:
    """Say that the input of every vertex has ended."""
    for vertex, instance in vertices:
        channel.send({"type": "started", "vertex": vertex, "instance": instance})
    facts = {str(v): {"state": "ended", "instance": n, "commits": 1} for v, n in vertices}
    channel.send({"type": "status", "vertices": facts})


def hang(channel: Channel, vertices: list[list[object]]) -> None:
    """Be alive and never move: the beat of a slot whose main thread is stuck in a step."""
    beat = {"type": "alive", "moves": 7, "doing": "step", "vertex": vertices[0][0]}
    pause = threading.Event()
    while not pause.wait(BEAT_S):
        channel.send(beat)


class ThreadSlots:
    """Slots as threads of this process; slot n follows the n-th script, the last one for all."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.orders: list[SlotOrder] = []
        self.assigned: list[tuple[int, list[list[object]]]] = []
        self.cancelled: list[int] = []
        self.is_cancelled = False

    def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        self.orders.append(order)
        threading.Thread(target=self._run, args=(order, on_end), daemon=True).start()

    def cancel_slot(self, slot: int) -> None:
        self.cancelled.append(slot)

    def cancel(self) -> None:
        self.is_cancelled = True

    def ended(self) -> str | None:
        return None

    def _run(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
        facts = {"slot": order.slot, "pid": 1, "machine": "elsewhere"}
        channel = connect((order.host, order.port), order.token, facts)
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(channel, over), daemon=True)
        try:
            channel.send({"type": "ready"})
            for message in channel.messages():
                if message["type"] == "stop":
                    break
                self.assigned.append((order.slot, message["vertices"]))
                self._scripts[min(order.slot, len(self._scripts) - 1)](channel, message["vertices"])
                if not beating.is_alive():
                    beating.start()
        except OSError:
            pass  # given up by the job
        finally:
            over.set()
            channel.close()
            on_end(order.slot, None)


def _beat(channel: Channel, over: threading.Event) -> None:
    for moves in itertools.count():
        if over.wait(BEAT_S):
            return
        try:
            channel.send({"type": "alive", "moves": moves, "doing": "step", "vertex": ""})
        except OSError:
            return


@contextmanager
def running(folder: Path, slots: ThreadSlots, standbys: int = 0) -> Iterator[Job]:
    patience = Patience(silence_s=5, step_s=0.3, recovery_s=0.3, stop_s=1)
    with open_log(folder / "log", create=True, config=UNSYNCED) as log:
        job = Job(
            small(), log, slots, host="127.0.0.1", slots=1, standbys=standbys, patience=patience
        )
        job.start()
        try:
            yield job
        finally:
            job.stop()


def test_a_query_whose_vertices_have_ended_is_over(tmp_path: Path) -> None:
    slots = ThreadSlots(end_at_once)
    with running(tmp_path, slots) as job:
        assert job.wait_over(WAIT_S)
        assert job.error is None
        assert slots.is_cancelled
    (order,) = slots.orders
    # What names code and data is in the order; only names and numbers come over the connection.
    assert order.program == small().to_json()
    assert order.log == str(tmp_path / "log")
    ((_, [(vertex, instance)]),) = slots.assigned
    assert vertex in {each.name for each in small().vertices}
    assert isinstance(instance, int)


def test_that_all_is_through_is_heard_at_once_and_a_stop_that_began_ends(tmp_path: Path) -> None:
    """Nothing polls: who waits is woken, and what else there is to do goes on beside the end."""
    may_speak = threading.Event()

    def go_through(channel: Channel, vertices: list[list[object]]) -> None:
        for vertex, instance in vertices:
            channel.send({"type": "started", "vertex": vertex, "instance": instance})
        may_speak.wait(WAIT_S)
        through = {"state": "running", "commits": 1, "is_through": True}
        facts = {str(v): {**through, "instance": n} for v, n in vertices}
        channel.send({"type": "status", "vertices": facts})

    slots = ThreadSlots(go_through)
    with running(tmp_path, slots) as job:
        assert job.wait_running(WAIT_S)
        assert not job.is_through()
        assert not job.wait_through(0.01)
        threading.Timer(0.05, may_speak.set).start()
        began_s = time.monotonic()
        assert not job.wait_through(WAIT_S)  # it is through, and not over
        assert time.monotonic() - began_s < WAIT_S
        assert job.is_through()
        assert not job.is_over
        job.begin_stop()
        assert job.wait_over(WAIT_S)
        assert job.error is None


def test_a_slot_that_hangs_is_cut_off_ended_and_replaced(tmp_path: Path) -> None:
    slots = ThreadSlots(hang, end_at_once)
    with running(tmp_path, slots) as job:
        assert job.wait_over(WAIT_S)
        assert job.error is None
        (lost, *_) = job.recoveries()
    assert (lost.slot, lost.reason) == (0, "stuck")
    assert slots.cancelled[0] == 0
    first, last = slots.assigned[0], slots.assigned[-1]
    assert first[0] == 0
    assert last[0] > 0
    assert last[1][0][1] > first[1][0][1]  # type: ignore[operator]


def test_a_cluster_that_starts_nothing_ends_the_query_by_name(tmp_path: Path) -> None:
    class Broken(ThreadSlots):
        def launch(self, order: SlotOrder, on_end: Callable[[int, str | None], None]) -> None:
            raise OSError("no more executors")

    with running(tmp_path, Broken(end_at_once)) as job:
        assert job.wait_over(WAIT_S)
        assert isinstance(job.error, TooFewSlots)
        assert "no more executors" in job.error.message


def test_what_the_job_does_not_understand_ends_the_query_instead_of_its_thread(
    tmp_path: Path,
) -> None:
    slots = ThreadSlots(lambda channel, _: channel.send({"type": "status", "facts": 1}))
    with running(tmp_path, slots) as job:
        assert job.wait_over(WAIT_S)
        assert isinstance(job.error, JobFailed)
        assert "KeyError" in job.error.message
    assert slots.is_cancelled
