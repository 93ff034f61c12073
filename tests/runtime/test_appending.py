"""Appends beside the thread that steps vertices: whose outcome is whose, and who waits for what."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.config import LogConfig
from penstock.errors import Fenced, LogBusy, OutcomeUnknown, RecordTooLarge
from penstock.kernels.cache import KernelCache
from penstock.log.contract import Outcome, take_over
from penstock.log.record import START, Append, Entry, Fence, Position, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Write
from penstock.runtime.appending import AppendQueue, Appends, BackgroundAppends, PendingAppend
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import CheckpointQueue
from penstock.runtime.host import Host
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.markers import decode_marker
from penstock.runtime.streams import StreamReader, register_streams
from penstock.runtime.vertex import APPEND_PATIENCE_S, COMMIT_GAP_S, VertexState
from penstock.stages.settings import Settings
from penstock.stages.tags import vertex_tag
from penstock.testing.clock import ManualClock
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from penstock.testing.memory_log import MemoryLog, MemoryStore
from penstock.testing.plans import count, query, scan_source
from tests.connectors.arrow_source import ArrowSource

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def append_of(log: MemoryLog, vertex: str, body: bytes = b"x") -> Append:
    fence = Fence(vertex, take_over(log, vertex))
    entry = Entry(RecordKind.DATA, (f"S/{vertex}/0",), vertex, fence.instance, 0, body)
    return Append((entry,), fence)


# Outcomes -----------------------------------------------------------------------------------------


def test_one_that_is_refused_does_not_touch_the_others() -> None:
    log = MemoryLog()
    group = [PendingAppend(append_of(log, name)) for name in "abc"]
    take_over(log, "b")
    Appends(log).carry_out(group)
    assert [group[0].outcome, group[2].outcome] == [(1,), (2,)]
    assert isinstance(group[1].outcome, Fenced)


def test_what_fails_for_all_together_fails_for_the_one_whose_fault_it_is() -> None:
    log = MemoryLog(MemoryStore(LogConfig(body_bytes_max=10, inline_bytes_max=0)))
    bodies = {"a": b"x", "b": b"x" * 11, "c": b"x"}
    group = [PendingAppend(append_of(log, name, body)) for name, body in bodies.items()]
    Appends(log).carry_out(group)
    assert [group[0].outcome, group[2].outcome] == [(1,), (2,)]
    assert isinstance(group[1].outcome, RecordTooLarge)


@pytest.mark.parametrize("applied", [0, 1, 2])
def test_a_group_of_unknown_outcome_is_repeated_and_nothing_is_doubled(applied: int) -> None:
    class Unsure(MemoryLog):
        def append_each(self, appends: Sequence[Append]) -> list[Outcome]:
            super().append_each(appends[:applied])
            raise OutcomeUnknown("simulated")

    log = Unsure()
    group = [PendingAppend(append_of(log, name)) for name in "ab"]
    Appends(log).carry_out(group)
    assert [pending.outcome for pending in group] == [(1,), (2,)]
    assert log.tail() == 2


# The thread ---------------------------------------------------------------------------------------


class SlowLog(MemoryLog):
    """A log whose appends wait until they may go through."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.groups: list[int] = []

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        self.begun.set()
        assert self.may_go.wait(60)
        return super().append(entries, fence)

    def append_each(self, appends: Sequence[Append]) -> list[Outcome]:
        self.groups.append(len(appends))
        return super().append_each(appends)


def test_appends_that_wait_for_one_that_takes_long_go_out_together() -> None:
    log = SlowLog()
    appends = BackgroundAppends(log)
    first = appends.begin(append_of(log, "a"))
    assert log.begun.wait(60)
    others = [appends.begin(append_of(log, name)) for name in "bcd"]
    assert first.outcome is None
    log.may_go.set()
    for pending in (first, *others):
        appends.finish(pending)
    assert [pending.outcome for pending in (first, *others)] == [(1,), (2,), (3,), (4,)]
    assert log.groups == [3]
    last = appends.begin(append_of(log, "e"))
    appends.close()
    assert last.outcome == (5,)


def test_who_is_alone_needs_no_thread() -> None:
    log = MemoryLog()
    appends = BackgroundAppends(log)
    appends.serve(1)
    assert appends.begin(append_of(log, "a")).outcome == (1,)
    appends.serve(1, overlaps=True)
    in_thread = appends.begin(append_of(log, "b"))
    appends.finish(in_thread)
    assert in_thread.outcome == (2,)
    appends.close()


def test_a_thread_that_waits_holds_none_of_what_it_has_appended() -> None:
    class Entries(list[Entry]):
        pass

    log, is_gone = MemoryLog(), threading.Event()
    appends = BackgroundAppends(log)
    entries, fence = append_of(log, "a")
    held = Entries(entries)
    weakref.finalize(held, is_gone.set)
    appends.finish(appends.begin(Append(held, fence)))
    del held
    assert is_gone.wait(60)
    appends.close()


def test_an_error_that_nobody_expects_is_told_to_whoever_waits() -> None:
    class Broken(MemoryLog):
        def append(self, *_: object) -> tuple[Position, ...]:
            raise ZeroDivisionError

    log = Broken()
    appends = BackgroundAppends(log)
    pending = appends.begin(append_of(log, "a"))
    appends.finish(pending)
    assert isinstance(pending.outcome, ZeroDivisionError)
    appends.close()


# Vertices -----------------------------------------------------------------------------------------


class Waiting(AppendQueue):
    """A queue that is worked off when the test says so, or when somebody waits for it."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.served: list[int] = []
        self.overlaps = False

    def serve(self, vertices: int, *, overlaps: bool = False) -> None:
        self.served.append(vertices)
        self.overlaps = overlaps

    def work(self) -> None:
        self.carry_out(self.take())

    def finish(self, pending: PendingAppend) -> None:
        if pending.outcome is None:
            self.work()


def copies() -> list[Write]:
    return [scan_source("rows", "n bigint not null", partitions=2).to_stream("out")]


def counts() -> list[Write]:
    """Two that share nothing: each reads the first source by itself."""
    return [
        scan_source("rows", "n bigint not null", partitions=1, reader=name)
        .group_by("n")
        .agg(count().alias("rows"), mode="update")
        .to_stream(name)
        for name in ("one", "two")
    ]


def apart() -> list[Write]:
    """Two that count, each from its own source."""
    return [
        scan_source("rows", "n bigint not null", partitions=1, own=number)
        .group_by("n")
        .agg(count().alias("rows"), mode="update")
        .to_stream(name)
        for number, name in enumerate(("out", "other"))
    ]


class Laboratory:
    """Two vertices of one host that copy rows, each from its own source, unless they count them."""

    def __init__(
        self, kernels: KernelCache, outputs: Callable[[], list[Write]] = copies, **settings: int
    ) -> None:
        self.sources = [ArrowSource([], SCHEMA, growing=True) for _ in range(2)]
        parallelism = 2 if outputs is copies else 1
        made = query("q", *outputs(), parallelism=parallelism, settings=Settings(**settings))
        program = plan_program(made)
        self.log = MemoryLog()
        self.clock = ManualClock()
        self.appends = Waiting(self.log)
        checkpoints = MemoryCheckpoints()
        assembly = Assembly(
            program=program,
            log=self.log,
            clock=self.clock,
            checkpoints=checkpoints,
            checkpointer=CheckpointQueue(checkpoints, self.log),
            kernels=kernels,
            sources={
                "rows": lambda request: self.sources[request.options.get("own", request.part)]
            },
            appends=self.appends,
        )
        register_streams(self.log, program)
        self.host = Host(assembly)
        self.names = [vertex.name for vertex in program.vertices]
        numbers = InstanceNumbers(self.log, "q", self.names)
        for name in self.names:
            assert self.host.add(name, numbers.next())

    def feed(self, part: int, value: int) -> None:
        batch = pa.record_batch([pa.array([value], pa.int64())], schema=SCHEMA)
        self.sources[part].append(batch)

    def step(self) -> None:
        self.clock.advance(COMMIT_GAP_S)
        self.host.step()

    def rows_in(self) -> list[int]:
        vertices = self.host.statistics().vertices
        return [vertices[name].rows_in for name in self.names]

    def epochs(self) -> list[int]:
        return [self.host.vertex(name).marker.epoch for name in self.names]

    def read(self, *streams: str) -> list[int]:
        tables = [StreamReader(self.log, name).read_all() for name in streams or ("out",)]
        return sorted(number for table in tables for number in table["n"].to_pylist())


def test_a_vertex_waits_for_its_own_append_and_no_other_one_does(kernels: KernelCache) -> None:
    lab = Laboratory(kernels, apart)
    lab.feed(0, 1)
    lab.step()
    assert lab.epochs() == [0, 0]
    assert lab.read() == []
    lab.feed(0, 2)
    lab.feed(1, 3)
    lab.step()
    assert lab.rows_in() == [1, 1]
    assert not lab.host.vertex(lab.names[0]).is_drained()
    lab.appends.work()
    assert lab.epochs() == [0, 0]  # known when they look
    lab.step()
    assert lab.epochs() == [1, 1]
    assert lab.rows_in() == [2, 1]
    lab.step()  # the gap after the last commit is over
    lab.appends.work()
    lab.step()
    assert lab.epochs() == [2, 1]
    assert lab.read("out", "other") == [1, 2, 3]
    lab.host.close()


def test_a_large_output_that_goes_out_early_is_waited_for_too(kernels: KernelCache) -> None:
    lab = Laboratory(kernels, early_append_bytes_max=1, step_rows_max=1)
    for number in (1, 2, 3):
        lab.feed(0, number)
    for _ in range(3):
        lab.step()
    assert lab.rows_in() == [2, 0], "one is on its way, one is as much as may wait for it"
    (pending,) = lab.appends.take()
    pending.outcome = lab.log.append(*pending.append)
    assert lab.read() == []  # no marker yet
    lab.step()
    for _ in range(4):
        lab.appends.work()
        lab.step()
    assert lab.read() == [1, 2, 3]
    lab.host.close()


def test_much_output_in_every_step_does_not_put_commits_off(kernels: KernelCache) -> None:
    """What is ready is always enough to go out early, and an append is always under way."""
    lab = Laboratory(kernels, early_append_bytes_max=1, commit_interval_ms=10)
    for number in range(60):
        lab.feed(0, number)
        lab.feed(0, number)
        lab.step()
        lab.appends.work()
    assert lab.epochs()[0] > 3
    assert len(lab.read()) > 20
    lab.host.close()


def test_a_vertex_without_state_works_on_while_it_appends(kernels: KernelCache) -> None:
    """What it makes meanwhile goes out with the next marker, and is not more than a part."""
    lab = Laboratory(kernels, early_append_bytes_max=24)
    lab.feed(0, 1)
    lab.step()
    for number in (2, 3, 4, 5, 6):
        lab.feed(0, number)
        lab.step()
    assert lab.rows_in() == [4, 0], "three more rows are 24 bytes"
    assert lab.epochs() == [0, 0]
    assert lab.read() == []
    (pending,) = lab.appends.take()
    pending.outcome = lab.log.append(*pending.append)
    assert lab.read() == [1]
    assert not lab.host.vertex(lab.names[0]).is_drained()
    for _ in range(4):
        lab.step()
        lab.appends.work()
    assert lab.read() == [1, 2, 3, 4, 5, 6]
    assert lab.host.vertex(lab.names[0]).is_drained()
    lab.host.close()


def test_an_append_that_comes_through_while_rows_are_processed_is_noted_first(
    kernels: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next marker would have its epoch, and nobody would hear of it."""
    lab = Laboratory(kernels)
    read = lab.sources[0].read

    def read_while_it_comes_through(*given: Any) -> Any:
        lab.appends.work()
        return read(*given)

    monkeypatch.setattr(lab.sources[0], "read", read_while_it_comes_through)
    for number in range(10):
        lab.feed(0, number)
        lab.step()
    lab.appends.work()
    lab.step()
    epochs = [
        decode_marker(record).epoch
        for record in lab.log.read([vertex_tag(lab.names[0])], after=START, limit=100)
    ]
    assert epochs == list(range(1, len(epochs) + 1))
    assert len(epochs) == lab.epochs()[0] > 3
    lab.host.close()


def test_what_was_made_during_an_append_that_failed_is_made_again(kernels: KernelCache) -> None:
    lab = Laboratory(kernels)
    lab.feed(0, 1)
    lab.step()
    lab.feed(0, 2)
    lab.step()
    assert lab.rows_in() == [2, 0]
    (pending,) = lab.appends.take()
    pending.outcome = LogBusy("simulated")
    lab.step()
    (end,) = lab.host.take_ends()
    assert (end.vertex, end.can_go_on) == (lab.names[0], True)
    assert lab.host.add(lab.names[0], end.instance + 1)
    for _ in range(2):
        lab.step()
        lab.appends.work()
    assert lab.read() == [1, 2]
    lab.host.close()


def test_an_append_that_failed_ends_its_vertex_and_no_other(kernels: KernelCache) -> None:
    lab = Laboratory(kernels)
    lab.feed(0, 1)
    lab.feed(1, 2)
    lab.step()
    for pending, outcome in zip(lab.appends.take(), (LogBusy("simulated"), None), strict=True):
        pending.outcome = outcome or lab.log.append(*pending.append)
    lab.step()
    (end,) = lab.host.take_ends()
    assert (end.vertex, end.can_go_on) == (lab.names[0], True)
    assert lab.host.vertex(lab.names[1]).marker.epoch == 1
    assert lab.read() == [2]
    lab.host.close()


def test_an_append_that_takes_very_long_is_all_that_the_host_waits_for(
    kernels: KernelCache,
) -> None:
    """A host that goes round and round would look alive from outside for ever."""
    lab = Laboratory(kernels)
    lab.feed(0, 1)
    lab.step()
    lab.clock.advance(APPEND_PATIENCE_S)
    lab.step()
    assert lab.epochs() == [1, 0]
    lab.host.close()


def test_input_that_never_pauses_keeps_no_checkpoint_from_beginning(kernels: KernelCache) -> None:
    lab = Laboratory(kernels, counts, checkpoint_interval_commits=3, commit_interval_ms=1)
    assert len(lab.names) == 2
    for number in range(20):
        lab.feed(0, number)
        lab.step()  # what was appended is known by now, and there is more input
        lab.appends.work()
    vertices = lab.host.statistics().vertices.values()
    assert [vertex.rows_in for vertex in vertices] == [20, 20]
    assert [vertex.checkpoints for vertex in vertices] == [1, 1]  # which nobody writes
    lab.host.close()


def test_closing_waits_for_what_is_under_way_and_commits_the_rest(kernels: KernelCache) -> None:
    lab = Laboratory(kernels)
    lab.feed(0, 1)
    lab.step()
    lab.host.vertex(lab.names[1])._mark_dirty()
    lab.host.close()
    assert lab.host.take_ends() == []
    assert lab.read() == [1]


def test_a_vertex_has_ended_when_its_last_append_is_there(kernels: KernelCache) -> None:
    lab = Laboratory(kernels)
    lab.feed(0, 1)
    for source in lab.sources:
        source.finish()
    lab.step()
    states = [lab.host.vertex(name).state for name in lab.names]
    assert states == [VertexState.RUNNING] * 2
    lab.appends.work()
    lab.step()
    assert [lab.host.vertex(name).state for name in lab.names] == [VertexState.ENDED] * 2
    assert lab.host.is_through()
    lab.host.close()


def test_a_host_says_how_many_vertices_it_has_when_one_comes_or_goes(kernels: KernelCache) -> None:
    lab = Laboratory(kernels)
    lab.step()
    assert lab.appends.served == [1, 2]
    assert lab.appends.overlaps
    take_over(lab.log, lab.names[0])
    lab.feed(0, 1)
    lab.step()
    lab.appends.work()
    lab.step()  # it hears that it was taken over
    assert lab.appends.served == [1, 2, 1]
    lab.host.close()
    assert lab.appends.served == [1, 2, 1, 0]
