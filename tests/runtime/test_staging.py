"""Writes of Spark jobs that die between their rows and their markers, and who clears up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import Fenced, LogBusy, OutcomeUnknown
from penstock.expressions.types import BIGINT, Field
from penstock.log import open_log, punit
from penstock.log.committed import CommittedReader
from penstock.log.contract import UNKNOWN_RETRIES, Log, register
from penstock.log.fsck import fsck
from penstock.log.record import Entry, Fence, Position, RecordKind
from penstock.runtime import processes
from penstock.runtime.markers import Marker
from penstock.runtime.processes import ancestor, is_gone, name_of
from penstock.runtime.retention import cut, plan_cut
from penstock.runtime.staging import (
    AGE_US_MAX,
    OpenWrite,
    begin_write,
    clear_dead_writes,
    clear_write,
    commit_write,
    open_writes,
)
from penstock.runtime.streams import StreamReader, create_stream, describe_stream
from penstock.stages.tags import marker_tag, substream_tag
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import count, query, scan_stream
from tests.runtime.laboratory import UNSYNCED, Laboratory

SCHEMA = (Field("x", BIGINT, False),)
ALIVE = name_of(os.getpid())
GONE = "/".join((*ALIVE.split("/")[:4], "1"))  # the number was another process's once


def new_log() -> MemoryLog:
    log = MemoryLog()
    create_stream(log, "orders", SCHEMA)
    return log


def stage(log: Log, write: OpenWrite, partition: int, number: int) -> Entry:
    """What a task does; return the marker that would commit its row."""
    body = punit.encode(pa.record_batch({"x": pa.array([number], pa.int64())}))
    tag, producer = substream_tag("orders", 0), write.producer(partition)
    log.append([Entry(RecordKind.DATA, (tag,), producer, 7, 0, body)], write.fence)
    marker = Marker(producer, 7, 1, timeless=True).encode()
    return Entry(RecordKind.MARKER, (marker_tag("orders"),), producer, 7, 1, marker)


def write_rows(log: Log, *numbers: int, owner: str = ALIVE, commit: bool = True) -> OpenWrite:
    """A job of a partition for each number."""
    write = begin_write(log, "orders", owner)
    markers = [stage(log, write, partition, number) for partition, number in enumerate(numbers)]
    if commit:
        commit_write(log, write, markers)
    return write


def visible(log: Log) -> list[int]:
    numbers: list[int] = StreamReader(log, "orders").read_all().column("x").to_pylist()
    return numbers


def is_waiting(log: Log) -> bool:
    """Whether a reader that has read everything keeps records that nobody committed."""
    reader = CommittedReader(log, describe_stream(log, "orders").tags)
    while reader.take() is not None:
        pass
    return reader.resume < log.tail()


def test_the_next_write_clears_up_after_a_dead_one() -> None:
    log = new_log()
    write_rows(log, 1, 2)
    dead = write_rows(log, 3, 4, owner=GONE, commit=False)
    assert is_waiting(log)
    write_rows(log, 5)
    assert (visible(log), is_waiting(log), open_writes(log, "orders")) == ([1, 2, 5], False, [])
    with pytest.raises(Fenced):  # a task of it that lives on
        stage(log, dead, 2, 6)
    assert plan_cut(log, "orders").upto == log.tail()


def test_a_task_that_finds_its_write_fenced_drops_the_rows_of_the_others() -> None:
    """Tasks list a write together. Whoever cleared up after it has died right after the fence."""
    log = new_log()
    write = begin_write(log, "orders", ALIVE, job="job", sink="sink")
    stage(log, write, 0, 1)
    register(log, write.fence.vertex, write.number + 1)
    other = begin_write(log, "orders", ALIVE, job="job", sink="sink")
    assert other.id != write.id
    assert open_writes(log, "orders") == [other]
    assert not is_waiting(log)


def test_a_write_that_may_be_alive_is_left_alone_for_a_week() -> None:
    log = new_log()
    clock = ManualClock()
    for owner in (ALIVE, "", "of/another/machine/1/1", "not a process"):
        write = begin_write(log, "orders", owner, clock)
        markers = [stage(log, write, 0, 1)]
        clear_dead_writes(log, "orders", write.begun_us + AGE_US_MAX)
        commit_write(log, write, markers)
        late = begin_write(log, "orders", owner, clock)
        markers = [stage(log, late, 0, 2)]
        clear_dead_writes(log, "orders", late.begun_us + AGE_US_MAX + 1)
        with pytest.raises(Fenced, match="taken for dead"):
            commit_write(log, late, markers)
    assert visible(log) == [1, 1, 1, 1]
    assert not is_waiting(log)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("times", [1, 2])
def test_clearing_up_at_any_moment_leaves_all_of_a_write_or_nothing(at: int, times: int) -> None:
    log = new_log()
    write = begin_write(log, "orders", ALIVE)
    markers: list[Entry] = []
    actions: list[Callable[[], object]] = [
        lambda: markers.append(stage(log, write, 0, 1)),
        lambda: markers.append(stage(log, write, 1, 2)),
        lambda: commit_write(log, write, markers),
    ]
    failed = False
    for index, action in enumerate([*actions, lambda: None]):
        for _ in range(times if index == at else 0):
            clear_write(log, write)
        try:
            action()
        except Fenced:
            failed = True
            break
    assert visible(log) == ([] if failed else [1, 2])
    assert failed is (at < 3)
    assert not is_waiting(log)
    assert open_writes(log, "orders") == []


def stage_again(log: Log, write: OpenWrite, partition: int, number: int) -> None:
    """What another attempt of the same task does."""
    body = punit.encode(pa.record_batch({"x": pa.array([number], pa.int64())}))
    tag, producer = substream_tag("orders", 0), write.producer(partition)
    log.append([Entry(RecordKind.DATA, (tag,), producer, 8, 0, body)], write.fence)


def test_a_late_attempt_of_a_task_is_refused_after_the_commit() -> None:
    log = new_log()
    write = write_rows(log, 1)
    with pytest.raises(Fenced):
        stage_again(log, write, 0, 1)
    assert (visible(log), is_waiting(log), open_writes(log, "orders")) == ([1], False, [])


class LateAttemptLog(MemoryLog):
    """Lets another attempt of a task append right behind the markers that commit its write."""

    write: OpenWrite | None = None

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        positions = super().append(entries, fence)
        if self.write is not None and entries[0].kind is RecordKind.MARKER:
            write, self.write = self.write, None
            for partition in range(2):
                stage_again(self, write, partition, partition)
        return positions


def test_rows_of_a_late_attempt_between_markers_and_fence_are_dropped() -> None:
    log = LateAttemptLog()
    create_stream(log, "orders", SCHEMA)
    write = begin_write(log, "orders", ALIVE)
    markers = [stage(log, write, partition, partition) for partition in range(2)]
    log.write = write
    commit_write(log, write, markers)
    assert (visible(log), is_waiting(log), open_writes(log, "orders")) == ([0, 1], False, [])
    assert plan_cut(log, "orders").upto == log.tail()


class UnsureLog(MemoryLog):
    """Says of the next appends under a fence that their outcome is unknown."""

    unsure = 0
    with_effect = False

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        if not self.unsure or fence is None:
            return super().append(entries, fence)
        self.unsure -= 1
        if self.with_effect:
            super().append(entries, fence)
        raise OutcomeUnknown("for the test")


@pytest.mark.parametrize("with_effect", [False, True])
def test_a_commit_whose_outcome_stays_unknown_is_settled(with_effect: bool) -> None:
    log = UnsureLog()
    create_stream(log, "orders", SCHEMA)
    write = begin_write(log, "orders", ALIVE)
    markers = [stage(log, write, 0, 1)]
    log.unsure, log.with_effect = UNKNOWN_RETRIES + 1, with_effect
    if with_effect:
        commit_write(log, write, markers)
    else:
        with pytest.raises(Fenced, match="Nothing of it is visible"):
            commit_write(log, write, markers)
        clear_write(log, write)  # as Spark does after a commit that failed
    assert visible(log) == ([1] if with_effect else [])
    assert not is_waiting(log)


class FailingLog(UnsureLog):
    """Does what it was asked for without saying so, and then is busy for a while."""

    busy = 0

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        if not self.unsure and self.busy and fence is not None:
            self.busy -= 1
            raise LogBusy("for the test")
        return super().append(entries, fence)


@pytest.mark.parametrize("busy", [1, 2])
def test_a_commit_that_fails_after_it_may_have_gone_through_is_not_called_a_failure(
    busy: int,
) -> None:
    """Whoever is told that nothing happened runs the job again."""
    log = FailingLog()
    create_stream(log, "orders", SCHEMA)
    write = begin_write(log, "orders", ALIVE)
    markers = [stage(log, write, 0, 1)]
    log.unsure, log.with_effect, log.busy = 1, True, busy
    if busy == 1:
        commit_write(log, write, markers)
    else:
        with pytest.raises(OutcomeUnknown, match="Look for them"):
            commit_write(log, write, markers)
    assert visible(log) == [1]


def test_a_commit_that_never_went_out_fails_as_the_log_does() -> None:
    log = FailingLog()
    create_stream(log, "orders", SCHEMA)
    write = begin_write(log, "orders", ALIVE)
    markers = [stage(log, write, 0, 1)]
    log.busy = 1
    with pytest.raises(LogBusy):
        commit_write(log, write, markers)
    clear_write(log, write)
    assert (visible(log), is_waiting(log)) == ([], False)


def test_a_task_that_outlives_the_commit_leaves_nothing() -> None:
    """It came between the markers and the fence, or comes when the write is long over."""
    log = new_log()
    write = begin_write(log, "orders", ALIVE)
    markers = [stage(log, write, 0, 1)]
    (committed_at,) = log.append(markers, write.fence)
    stage(log, write, 1, 2)
    assert is_waiting(log)
    clear_write(log, write, committed_at)
    with pytest.raises(Fenced):
        stage(log, write, 2, 3)
    assert (visible(log), is_waiting(log), open_writes(log, "orders")) == ([1], False, [])


def test_a_commit_is_done_though_its_write_could_not_be_struck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = new_log()
    write = begin_write(log, "orders", GONE)
    markers = [stage(log, write, 0, 1)]

    def refuse(*_: object) -> bool:
        raise LogBusy("for the test")

    with monkeypatch.context() as busy:
        busy.setattr(log, "compare_and_set", refuse)
        commit_write(log, write, markers)
    assert (visible(log), open_writes(log, "orders")) == ([1], [write])
    clear_dead_writes(log, "orders")
    assert (visible(log), open_writes(log, "orders")) == ([1], [])


def test_nothing_grows_with_the_number_of_jobs(lab: Laboratory) -> None:
    """Neither the metadata, nor what a query that reads the stream remembers of its producers."""
    counted = scan_stream("orders", SCHEMA).group_by().agg(count().alias("n"), mode="update")
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "orders", SCHEMA)
        sizes = []
        with lab.open(query("q", counted.to_stream("out"))) as process:
            for _ in range(2):
                for number in range(10):
                    write_rows(log, number, number)
                write_rows(log, 0, owner=GONE, commit=False)
                process.run_available()
                (vertex,) = process.statistics().vertices
                marker = process.host.vertex(vertex).marker
                sizes.append((len(log.keys()), len(marker.ports[0].producers)))
            assert process.read("out").to_pylist()[-1] == {"n": 40}
        assert sizes[0] == sizes[1]
        assert sizes[0][1] == 0
        clear_dead_writes(log, "orders")
        assert open_writes(log, "orders") == []


def test_a_cut_forgets_the_producers_of_jobs_that_are_over(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", create=True, config=UNSYNCED) as log:
        create_stream(log, "orders", SCHEMA)
        for number in range(3):
            write_rows(log, number, number)
        still_open = write_rows(log, 4, commit=False)
        last = write_rows(log, 5)
        cut(log, plan_cut(log, "orders", before=Position(log.tail() + 1)))
        assert visible(log) == [5]
        assert log.statistics().fenced == 0
        noted = {row[0] for row in log._index._execute("SELECT producer FROM producer").fetchall()}
        assert not {name for name in noted if not name.startswith((still_open.id, last.id))}
        commit_write(log, still_open, [])
    assert fsck(tmp_path / "log").is_clean


def test_two_writes_at_once_have_places_of_their_own() -> None:
    log = new_log()
    first = write_rows(log, 1, commit=False)
    second = write_rows(log, 2, commit=False)
    assert (first.place, second.place) == (0, 1)
    clear_write(log, first)
    third = write_rows(log, 3)
    assert third.place == 0
    clear_write(log, first)  # once more, late: the place is another's by now
    commit_write(log, second, [_marker_of(second)])
    assert visible(log) == [3, 2]


def _marker_of(write: OpenWrite) -> Entry:
    producer = write.producer(0)
    body = Marker(producer, 7, 1, timeless=True).encode()
    return Entry(RecordKind.MARKER, (marker_tag("orders"),), producer, 7, 1, body)


def _stage_and_hang(connection: Connection, folder: Path) -> None:
    with open_log(folder) as log:
        write_rows(log, 1, 2, 3, owner=name_of(os.getpid()), commit=False)
        connection.send(name_of(os.getpid()))
        connection.recv()


def test_a_process_that_is_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "orders", SCHEMA)
        ours, theirs = get_context("spawn").Pipe()
        worker = get_context("spawn").Process(target=_stage_and_hang, args=(theirs, folder))
        worker.start()
        name = ours.recv()
        write_rows(log, 4)
        assert not is_gone(name)
        assert is_waiting(log)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert is_gone(name)
        write_rows(log, 5)
        assert (visible(log), is_waiting(log)) == ([4, 5], False)


def test_a_process_is_found_by_what_it_runs() -> None:
    parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    found = ancestor(parent)
    assert found.split("/")[3] == str(os.getppid())
    assert not is_gone(found)
    assert ancestor("no such command") == ""


@pytest.mark.parametrize("content", [None, "", "uninitialized\n"])
def test_a_dead_process_is_recognised_on_a_machine_without_a_number(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_id = tmp_path / "machine-id"
    if content is not None:
        machine_id.write_text(content)
    monkeypatch.setattr(processes, "_MACHINE_ID", machine_id)
    alive = name_of(os.getpid())
    assert not is_gone(alive)
    assert is_gone("/".join((*alive.split("/")[:4], "1")))
    assert not is_gone("/".join(("another machine", *alive.split("/")[1:4], "1")))
    monkeypatch.setattr(processes, "_BOOT_ID", tmp_path / "boot_id")
    assert not is_gone("/".join((*name_of(os.getpid()).split("/")[:4], "1")))  # nothing can be told
