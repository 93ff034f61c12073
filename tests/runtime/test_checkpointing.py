"""The background work of a host: the queue alone, as the simulator works it off, and its thread."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.log.contract import register
from penstock.log.record import Entry, Fence, RecordKind
from penstock.runtime.checkpointing import (
    BackgroundCheckpointer,
    CheckpointQueue,
    Work,
    is_lasting,
)
from penstock.runtime.markers import Marker
from penstock.runtime.trimming import TrimJob
from penstock.runtime.vertex import CheckpointJob
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST
from penstock.state.snapshot import Snapshot
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from penstock.testing.memory_log import MemoryLog

WAIT_S = 30.0


class HeldLog(MemoryLog):
    """A log whose trims wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_trimming, self.may_trim = threading.Event(), threading.Event()
        self.lasts = 0

    def last(self, tag: str) -> None:
        self.lasts += 1
        self.is_trimming.set()
        assert self.may_trim.wait(WAIT_S)


class HeldStore(MemoryCheckpoints):
    """A store whose writes wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def _hold(self, step: str, path: FilePath) -> None:
        if step == "make_folder":
            self.is_writing.set()
            assert self.may_write.wait(WAIT_S)


class Background:
    """The real thing: a thread of its own."""

    def __init__(self, store: HeldStore, log: HeldLog) -> None:
        self._store, self._log = store, log
        self.worker = BackgroundCheckpointer(store, log)

    def begin(self, work: Work) -> None:
        """Submit, and return once it is under way."""
        assert self.worker.submit(work)
        begun = self._log.is_trimming if isinstance(work, TrimJob) else self._store.is_writing
        assert begun.wait(WAIT_S)

    def finish(self) -> None:
        self._store.may_write.set()
        self._log.may_trim.set()
        assert self.worker.wait_idle(WAIT_S)

    def close(self) -> None:
        self._store.may_write.set()
        self._log.may_trim.set()
        self.worker.close()


class Queue:
    """The queue alone: whoever calls is the thread."""

    def __init__(self, store: HeldStore, log: HeldLog) -> None:
        store.may_write.set()
        log.may_trim.set()
        self.worker = CheckpointQueue(store, log)
        self._begun: Work | None = None

    def begin(self, work: Work) -> None:
        assert self.worker.submit(work)
        self._begun = self.worker.take()
        assert self._begun is work

    def finish(self) -> None:
        work = self._begun or self.worker.take()
        while work is not None:
            assert self.worker.perform(work) is None
            self.worker.settle(work)
            work = self.worker.take()
        self._begun = None
        assert self.worker.is_idle

    def close(self) -> None:
        self.worker.close()
        self.finish()


@pytest.fixture
def log() -> HeldLog:
    return HeldLog()


@pytest.fixture(params=[Queue, Background], ids=["queue", "thread"])
def background(request: pytest.FixtureRequest, log: HeldLog) -> Iterator[Queue | Background]:
    made: Queue | Background = request.param(HeldStore(), log)
    yield made
    made.close()


TRIM = TrimJob("v", "T/v", (), ())
OTHER_TRIM = TrimJob("w", "T/w", (), ())


def picture(log: MemoryLog) -> CheckpointJob:
    """A picture of the state at a new marker of the vertex."""
    sequence = log.tail()
    marker = Marker("v", instance=1, epoch=sequence + 1).encode()
    (position,) = log.append([Entry(RecordKind.MARKER, ("T/v",), "v", 1, sequence, marker)])
    return CheckpointJob(Fence("v", 1), position, {})


def test_one_checkpoint_of_a_vertex_at_a_time(background: Queue | Background, log: HeldLog) -> None:
    background.begin(picture(log))
    assert not background.worker.submit(picture(log))
    assert background.worker.statistics().waiting == 1
    background.finish()
    assert background.worker.statistics().written == 1
    assert background.worker.submit(picture(log))


def test_a_trim_asked_for_during_another_is_made_once_more(
    background: Queue | Background, log: HeldLog
) -> None:
    background.begin(TRIM)
    assert background.worker.submit(TRIM)
    assert background.worker.submit(TRIM)
    background.finish()
    assert background.worker.statistics().trims == 2
    assert log.lasts == 2


def test_a_trim_that_waits_answers_for_those_asked_for_meanwhile(
    background: Queue | Background, log: HeldLog
) -> None:
    background.begin(OTHER_TRIM)
    assert background.worker.submit(TRIM)
    assert background.worker.submit(TRIM)
    background.finish()
    assert log.lasts == 2  # one of each vertex


def test_the_end_keeps_trims_and_drops_checkpoints(
    background: Queue | Background, log: HeldLog
) -> None:
    background.begin(OTHER_TRIM)
    assert background.worker.submit(picture(log))
    assert background.worker.submit(TRIM)
    background.close()
    assert background.worker.statistics().trims == 2
    assert background.worker.statistics().written == 0
    assert not background.worker.submit(TRIM)


def test_a_thread_that_has_nothing_to_do_holds_no_picture() -> None:
    class Picture(Snapshot):
        def __init__(self) -> None:
            pass

        def batches(self) -> Iterator[pa.RecordBatch]:
            return iter(())

    log, is_gone = MemoryLog(), threading.Event()
    worker = BackgroundCheckpointer(MemoryCheckpoints(), log)
    snapshot = Picture()
    weakref.finalize(snapshot, is_gone.set)
    assert worker.submit(replace(picture(log), snapshots={"counts": snapshot}))
    del snapshot
    assert is_gone.wait(WAIT_S)
    assert worker.statistics().written == 1
    worker.close()


class BrokenLog(MemoryLog):
    """A log with a bug."""

    def last(self, tag: str) -> None:
        raise KeyError(tag)


def test_a_bug_in_one_job_is_reported_and_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = BackgroundCheckpointer(MemoryCheckpoints(), BrokenLog())
    for failed, job in enumerate((TRIM, OTHER_TRIM, TRIM), 1):
        assert worker.submit(job)
        assert worker.wait_idle(WAIT_S)
        assert worker.statistics().failed == failed
    worker.close()
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert {str(error) for error in errors if isinstance(error, KeyError)} == {"'T/v'", "'T/w'"}


class ListeningLog(MemoryLog):
    """A log that notes when it was synced, in the order in which files are removed."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.steps = steps

    def sync(self) -> None:
        super().sync()
        self.steps.append(f"sync {self.tail()}")


def test_no_checkpoint_goes_before_the_markers_of_those_that_stay_are_on_disk() -> None:
    """A power cut may take what was not synced, and with it the checkpoints of those markers."""
    steps: list[str] = []

    def note(step: str, path: FilePath) -> None:
        if step == "remove_file" and path[-1] == MANIFEST:
            steps.append(f"remove {int(path[1].partition('_')[0])}")

    log, store = ListeningLog(steps), MemoryCheckpoints(note)
    register(log, "v", 1)
    queue = CheckpointQueue(store, log)
    for _ in range(4):
        assert queue.perform(picture(log)) is None
    assert steps == ["sync 2", "sync 3", "remove 1", "sync 4", "remove 2"]


def test_a_disk_that_does_not_answer_condemns_no_checkpoint() -> None:
    store = MemoryCheckpoints()
    written = store.write("v", 5, {})

    def fail(step: str, path: FilePath) -> None:
        if step == "read":
            raise OSError(errno.EIO, "no answer")

    store.files.before_step = fail
    _, problems = store.load_newest("v", 9)
    assert [is_lasting(problem) for problem in problems.values()] == [False]
    store.files.before_step = None
    newest, problems = store.load_newest("v", 9)
    assert newest is not None
    assert (newest.id, problems) == (written, {})
    store.damage(written, 3, MANIFEST)
    _, problems = store.load_newest("v", 9)
    assert [is_lasting(problem) for problem in problems.values()] == [True]
