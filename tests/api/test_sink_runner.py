"""Feeding sinks outside the log: batches, their order over crashes and twins, and what is kept."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api import sink_runner
from penstock.api.sink_runner import STRAGGLERS_S, SinkRunner, Trigger
from penstock.api.sinks import ForeachBatchChoice
from penstock.config import LogConfig
from penstock.connectors.contract import BatchRows, Sink, Staged
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import LogBusy, QueryActive
from penstock.expressions.types import BIGINT, STRING, Field
from penstock.log import LocalLog, open_log
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.power_cut import power_cuts
from penstock.log.record import START, Position, Record
from penstock.log.survey import list_tags
from penstock.plan.optimizer import plan_program
from penstock.runtime.backlog import SinkProgress, StoredProgress, sink_progress, take_over_sink
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.markers import decode_marker
from penstock.runtime.streams import (
    StreamReader,
    StreamWriter,
    _encode_facts,
    create_stream,
    describe_stream,
)
from penstock.runtime.substreams import stream_key
from penstock.stages.settings import Settings
from penstock.stages.tags import marker_tag
from penstock.testing.clock import ManualClock
from penstock.testing.columns import col
from penstock.testing.memory_log import Fault, Faults, MemoryLog, MemoryStore
from penstock.testing.plans import count, query, scan_source, scan_stream, window
from penstock.testing.single_process import SingleProcess
from tests.spark.waiting import wait_for

WAIT_S = 30.0
UNSYNCED = LogConfig(durability="process")
SCHEMA = pa.schema([pa.field("x", pa.int64(), False)])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLog]:
    monkeypatch.setattr(sink_runner, "TRIM_COMMITS", 4)
    monkeypatch.setattr(sink_runner, "WAIT_S", 0.005)
    log = open_log(tmp_path / "log", create=True, config=UNSYNCED, clock=clock)
    create_stream(log, "fed", (Field("x", BIGINT, False),))
    yield log
    log.close()


class Collected(Sink):
    """Keeps what it is given: the epoch and the numbers of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers in self.batches for number in numbers]

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self.batches.append((epoch, staged.column("x").to_pylist()))


class Blocked(Collected):
    """Does not return before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = threading.Event()
        self.may_return = threading.Event()

    def publish(self, epoch: int, staged: pa.Table) -> None:
        super().publish(epoch, staged)
        self.has_begun.set()
        assert self.may_return.wait(WAIT_S)


class Failing(Collected):
    def publish(self, epoch: int, staged: pa.Table) -> None:
        super().publish(epoch, staged)
        raise ConnectionError("the driver dies here")


class DyingParquet(FolderSink):
    """Dies when a file is there and nobody has noted it yet."""

    patience_s = 0.0
    bytes_max = 1  # an epoch is a file
    files_left = 7

    def publish(self, epoch: int, staged: pa.Table) -> None:
        super().publish(epoch, staged)
        self.files_left -= 1
        if not self.files_left:
            raise ConnectionError("the driver dies here")


class SmallFiles(FolderSink):
    """An epoch is a file, and some are staged before the first is published."""

    patience_s = 0.0
    bytes_max = 1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ahead = 3


def parquet(folder: Path, kind: type[FolderSink] = FolderSink) -> FolderSink:
    return kind(str(folder), "q", "id")


def publish(log: Log, first: int, epochs: int, vertex: str = "vertex") -> None:
    """One row an epoch; every third epoch has none."""
    writer = StreamWriter(log, "fed", vertex)
    for number in range(first, first + epochs):
        rows = None if number % 3 == 0 else pa.record_batch([[number]], schema=SCHEMA)
        writer.write(rows)


def begun(log: Log, sink: Sink, **options: Any) -> SinkRunner:
    """A runner of a new run, whose thread is not started."""
    facts = describe_stream(log, "fed")
    run = InstanceNumbers(log, "q", []).run
    return SinkRunner(log, "q", facts.tags, facts.schema, sink, run=run, **options)


def runner(log: Log, sink: Sink, **options: Any) -> SinkRunner:
    made = begun(log, sink, **options)
    made.start()
    return made


def deliver(log: Log, sink: Sink, **options: Any) -> SinkRunner:
    """Deliver everything that is committed."""
    made = runner(log, sink, **options)
    made.stop()
    assert made.wait_ended(WAIT_S)
    return made


def kept(log: LocalLog) -> int:
    """How many records are left for the sink to read."""
    return sum(each.records for each in list_tags(log.folder) if each.tag.startswith("S/fed/"))


def numbers_in(folder: Path) -> list[int]:
    files = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [row["x"] for rows in files for row in rows.to_pylist()]


# --- crashes and twins ----------------------------------------------------------------------------


def test_a_delivered_stream_is_trimmed_and_each_row_is_written_once(
    log: LocalLog, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    left = []
    for life in range(6):
        publish(log, life * 20, 20)
        kind = DyingParquet if life % 2 else FolderSink
        made = deliver(log, parquet(folder, kind))
        assert (made.failure is not None) == bool(life % 2)
        left.append(kept(log))
    deliver(log, parquet(folder))
    assert sorted(numbers_in(folder)) == [number for number in range(120) if number % 3]
    # A life that ends well leaves less than a trim's worth, however many came before it.
    assert max(left[0::2]) <= 2 * sink_runner.TRIM_COMMITS
    assert max(left) <= 2 * 20 + 2 * sink_runner.TRIM_COMMITS
    assert kept(log) <= 2 * sink_runner.TRIM_COMMITS


def test_a_batch_that_was_begun_comes_again_as_it_was(log: LocalLog) -> None:
    publish(log, 0, 5)
    failing = Failing()
    failure = deliver(log, failing).failure
    assert failure is not None
    (begun,) = failing.batches
    assert begun[1] == [1, 2, 4]
    assert (failure.epoch, failure.rows) == (begun[0], 3)
    publish(log, 5, 5, "another")  # must not become a part of it
    collected = Collected()
    assert deliver(log, collected).failure is None
    assert collected.batches[0] == begun
    assert sorted(collected.batches[1][1]) == [5, 7, 8]
    nothing = Collected()
    deliver(log, nothing)
    assert nothing.batches == []


def test_a_run_that_was_followed_by_another_moves_nothing(log: LocalLog) -> None:
    """Its function takes longer than anybody waits; the next run has begun meanwhile."""
    publish(log, 0, 5)
    blocked, follower = Blocked(), Collected()
    old = runner(log, blocked)
    assert blocked.has_begun.wait(WAIT_S)
    old.stop()
    assert not old.wait_ended(0.01)
    assert "epoch" in (old.under_way() or "")
    new = runner(log, follower)
    wait_for("the batch", lambda: follower.batches)
    publish(log, 5, 5)
    wait_for("another batch", lambda: len(follower.numbers) == 6)
    reached = sink_progress(log, "q")
    blocked.may_return.set()
    assert old.wait_ended(WAIT_S)
    assert old.failure is not None
    assert isinstance(old.failure.error, QueryActive)
    assert len(blocked.batches) == 1  # what came after the first batch is not its own any more
    assert follower.batches[0] == blocked.batches[0]
    new.stop()
    assert new.wait_ended(WAIT_S)
    assert new.failure is None
    found = sink_progress(log, "q")
    assert reached is not None
    assert found is not None
    assert found.facts.done >= reached.facts.done
    last = Collected()
    deliver(log, last)
    assert last.batches == []


def test_a_run_whose_rows_its_successor_has_delivered_and_trimmed_is_told_so(
    log: LocalLog,
) -> None:
    publish(log, 1, 2)
    old = begun(log, Collected())
    old.begin()
    assert old.turn()
    publish(log, 3, 10)
    deliver(log, Collected())
    with pytest.raises(QueryActive, match="taken over by another run"):
        old.turn()


def test_a_file_that_a_twin_writes_late_is_there_once(log: LocalLog, tmp_path: Path) -> None:
    """The old run has decided on a batch, and writes it when the new one already has."""
    folder = tmp_path / "files"
    has_begun, may_write = threading.Event(), threading.Event()

    class Late(FolderSink):
        def publish(self, epoch: int, staged: pa.Table) -> None:
            has_begun.set()
            assert may_write.wait(WAIT_S)
            super().publish(epoch, staged)

    publish(log, 0, 5)
    old = runner(log, parquet(folder, Late))
    old.hurry()
    assert has_begun.wait(WAIT_S)
    publish(log, 5, 5)
    deliver(log, parquet(folder))
    may_write.set()
    old.stop()
    assert old.wait_ended(WAIT_S)
    assert sorted(numbers_in(folder)) == [1, 2, 4, 5, 7, 8]


def test_batches_are_staged_side_by_side_and_delivered_in_order(store: MemoryStore) -> None:
    second_is_staged = threading.Event()

    class SideBySide(OneByOne):
        ahead = 2

        def stage(self, epoch: int, rows: BatchRows) -> Staged:
            staged = super().stage(epoch, rows)
            if staged.column("x").to_pylist() == [1]:
                assert second_is_staged.wait(WAIT_S)
            second_is_staged.set()
            return staged

    publish(MemoryLog(store), 1, 8)
    collected = SideBySide()
    assert deliver(MemoryLog(store), collected).failure is None
    assert collected.numbers == [1, 2, 4, 5, 7, 8]


def test_what_a_run_has_staged_when_another_takes_over_is_never_seen(
    store: MemoryStore, tmp_path: Path
) -> None:
    log = MemoryLog(store)
    publish(log, 1, 5)
    old = begun(log, parquet(tmp_path, SmallFiles))
    old.begin()
    assert old.turn()
    assert old.turn()
    assert len(list(tmp_path.glob(".q-*.tmp"))) == 2
    deliver(log, parquet(tmp_path))  # all of it in one batch
    with pytest.raises(QueryActive):
        old.turn()
    assert numbers_in(tmp_path) == [1, 2, 4, 5]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


class Killed(BaseException):
    """A process ends at once: from here on it does nothing more."""


def die_later(patch: pytest.MonkeyPatch, moment: int) -> None:
    """Die before or after one of the things that a feeder of a sink does outside its memory."""
    moments = itertools.count(1)

    def watched(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            for doing in (lambda: None, lambda: action(*arguments)):
                done = doing()
                if next(moments) > moment:
                    raise Killed
            return done

        return act

    for place, name in (
        *((os, name) for name in ("fsync", "link", "unlink", "replace")),
        (StoredProgress, "move"),
    ):
        patch.setattr(place, name, watched(getattr(place, name)))


def test_a_run_that_is_killed_anywhere_leaves_each_row_once(
    store: MemoryStore, tmp_path: Path
) -> None:
    publish(MemoryLog(store), 1, 5)
    expected = [1, 2, 4, 5]
    lives, was_killed = 0, True
    while was_killed:
        folder, log = tmp_path / f"killed_{lives}", MemoryLog(store.copy())
        with pytest.MonkeyPatch.context() as patch:
            die_later(patch, lives)
            try:
                made = begun(log, parquet(folder, SmallFiles))
                made.stop()
                made.begin()
                while made.turn() is not None:
                    pass
                was_killed = False
            except Killed:
                pass
        seen = numbers_in(folder)
        assert seen == expected[: len(seen)]  # whole batches, in order
        assert deliver(log, parquet(folder)).failure is None
        assert numbers_in(folder) == expected
        assert list(folder.glob(".*")) == []
        lives += 1
    assert lives > 40  # before and after five things for each of 4 files, and some at the start


def test_an_abandoned_run_ends_with_the_batch_under_way(log: LocalLog) -> None:
    publish(log, 1, 1)
    blocked = Blocked()
    made = runner(log, blocked)
    assert blocked.has_begun.wait(WAIT_S)
    publish(log, 4, 1)
    made.stop()
    made.abandon()
    blocked.may_return.set()
    assert made.wait_ended(WAIT_S)
    assert blocked.numbers == [1]
    rest = Collected()
    deliver(log, rest)
    assert rest.numbers == [4]


def test_a_sink_that_begins_anew_each_time_keeps_its_stream(log: LocalLog) -> None:
    class View(Collected):
        is_kept = False

    publish(log, 0, 30)
    expected = [number for number in range(30) if number % 3]
    for _ in range(2):
        view = View()
        deliver(log, view)
        assert view.numbers == expected
    assert sink_progress(log, "q") is None  # so no vertex waits for it
    assert StreamReader(log, "fed").read_all().column("x").to_pylist() == expected


# --- what a batch is made of ----------------------------------------------------------------------


def test_a_file_holds_all_epochs_of_some_seconds(
    log: LocalLog, clock: ManualClock, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    made = runner(log, parquet(folder), clock=clock)
    publish(log, 1, 50)
    wait_for("the rows", lambda: made._batch.epochs == 50)
    clock.advance(FolderSink.patience_s * 0.9)
    publish(log, 51, 50)
    wait_for("the rows", lambda: made._batch.epochs == 100)
    assert numbers_in(folder) == []
    assert not made.is_drained()
    lag = made.lag()
    assert (lag.epochs, lag.rows_under_way) == (100, 0)
    clock.advance(FolderSink.patience_s * 0.2)
    wait_for("the file", made.is_drained)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert made.lag().epochs == 0
    publish(log, 101, 1)
    made.hurry()
    wait_for("what does not wait for more", made.is_drained)
    assert numbers_in(folder) == [number for number in range(102) if number % 3]
    made.stop()
    assert made.wait_ended(WAIT_S)


def test_who_has_no_more_for_now_does_not_wait_for_the_others(tmp_path: Path) -> None:
    """With availableNow: what each vertex ends with is a batch, if there is enough of it."""

    class Patient(Collected):
        patience_s = 1e9

        def publish(self, epoch: int, staged: pa.Table) -> None:
            self.batches.append((epoch, staged.column("value").to_pylist()))

    class Content(Patient):
        bytes_enough = 1

    (tmp_path / "in").mkdir()
    times = pa.array(range(20), pa.timestamp("s", "UTC"))
    pq.write_table(pa.table({"t": times, "value": list("abcdefghij" * 2)}), tmp_path / "in" / "a")
    rows = scan_source(
        "folder", "t timestamp, value string", None, path=str(tmp_path / "in"), format="parquet"
    )
    windows = rows.with_watermark("t", 0).group_by("value", window=window("t", "5 seconds"))
    settings = Settings(available_now=True)
    closed = windows.agg(count().alias("n")).select("value").to_stream("fed")
    program = plan_program(query("q", closed, parallelism=2, settings=settings))
    with SingleProcess(program, tmp_path / "log", log_config=UNSYNCED) as process:
        process.run_available()
        found = []
        for sink in (Patient(), Content()):
            made = begun(process.log, sink)
            made.begin()
            while made.turn():
                pass
            found.append([set(texts) for _, texts in sink.batches])
    assert found[0] == []
    one, other = found[1]
    assert one | other == set("abcdefghij")
    assert not one & other


def test_who_is_told_to_hurry_is_woken(
    log: LocalLog, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("WAIT_S", "MORE_S"):
        monkeypatch.setattr(sink_runner, pause, 3_600.0)
    made = runner(log, parquet(tmp_path / "files"), clock=clock)
    publish(log, 1, 1)
    wait_for("the row", lambda: made._batch.epochs == 1)
    made.hurry()
    wait_for("the file", lambda: numbers_in(tmp_path / "files") == [1])
    made.stop()
    monkeypatch.setattr(sink_runner, "WAIT_S", 0.005)
    publish(log, 3, 1)  # the bell wakes it as well
    assert made.wait_ended(WAIT_S)


def test_a_trigger_makes_one_batch_of_what_all_vertices_committed_in_an_interval(
    log: LocalLog, clock: ManualClock
) -> None:
    collected = Collected()
    made = runner(log, collected, trigger=Trigger(5_000_000, 2), clock=clock)

    def commit(*numbers: int) -> None:
        for number in numbers:
            publish(log, number, 1, f"vertex_{number % 2}")

    def taken(epochs: int) -> Callable[[], bool]:
        return lambda: made._batch.epochs == epochs

    commit(1)
    wait_for("a vertex", taken(1))
    assert collected.batches == []  # the other one may still commit
    commit(2)
    wait_for("both vertices", lambda: collected.numbers == [1, 2])
    clock.advance(1)
    commit(4, 5)  # a second commit in one interval, such as after a recovery
    wait_for("both vertices", taken(2))
    clock.advance(STRAGGLERS_S)
    assert len(collected.batches) == 1
    clock.advance(3.1)  # the next interval; only one vertex has anything in it
    commit(7)
    wait_for("a vertex", taken(3))
    assert len(collected.batches) == 1
    clock.advance(STRAGGLERS_S)
    wait_for("the batch", lambda: len(collected.batches) == 2)
    assert collected.batches[1][1] == [4, 5, 7]
    commit(8)
    made.stop()  # the end does not wait
    assert made.wait_ended(WAIT_S)
    assert [numbers for _, numbers in collected.batches] == [[1, 2], [4, 5, 7], [8]]


def test_in_complete_mode_a_batch_is_the_newest_result_of_every_vertex(log: LocalLog) -> None:
    writers = {name: StreamWriter(log, "fed", name) for name in ("one", "two")}

    def result(vertex: str, *numbers: int) -> None:
        writers[vertex].write(pa.record_batch([numbers], schema=SCHEMA))

    result("one", 1)
    result("two", 200, 201)
    result("one", 2)
    collected = Collected()
    deliver(log, collected, replaces=True)
    assert [sorted(numbers) for _, numbers in collected.batches] == [[2, 200, 201]]
    for number in range(3, 40):  # vertex two is silent, and its result is not trimmed away
        result("one", number)
        deliver(log, collected, replaces=True)
        assert sorted(collected.batches[-1][1]) == [number, 200, 201]
    deliver(log, collected, replaces=True)
    assert len(collected.batches) == 38
    result("two", 202)
    deliver(log, collected, replaces=True)
    assert sorted(collected.batches[-1][1]) == [39, 202]


def test_in_complete_mode_a_result_that_has_become_empty_is_handed_over(log: LocalLog) -> None:
    """What was in the result and is not any more must not stay in the sink, nor come again."""
    create_stream(log, "words", (Field("x", BIGINT, False),))
    words = StreamWriter(log, "words", "writer")
    totals = scan_stream("words", "x bigint not null").group_by("x")
    rare = totals.agg(count().alias("n"), mode="complete").filter(col("n") < 3).select("x")
    program = plan_program(query("q", rare.to_stream("rare"), parallelism=2))
    with SingleProcess(program, log.folder, log_config=UNSYNCED) as process:
        facts = describe_stream(log, "rare")

        def results(*numbers: int, run: int) -> list[list[int]]:
            """What a new runner hands over after these words."""
            if numbers:
                words.write(pa.record_batch([numbers], schema=SCHEMA))
            process.run_available()
            collected = Collected()
            made = SinkRunner(log, "q", facts.tags, facts.schema, collected, run=run, replaces=True)
            made.begin()
            while made.turn():
                pass
            return [sorted(rows) for _, rows in collected.batches]

        assert results(*range(8), run=1)[-1] == list(range(8))
        assert results(run=2) == []  # nothing has changed
        assert results(*range(4), *range(4), run=3)[-1] == [4, 5, 6, 7]
        assert results(*range(4, 8), *range(4, 8), run=4)[-1] == []
        assert results(run=5) == []
        assert results(9, run=6)[-1] == [9]
        last = [log.last(marker_tag("rare")), log.last(marker_tag("words"))]
        assert [decode_marker(each).whole for each in last if each] == [True, False]


def test_a_function_that_is_only_defined_again_is_the_same() -> None:
    def made(bound: object, text: str) -> Any:
        namespace: dict[str, Any] = {"bound": bound}
        exec(text, namespace)
        return ForeachBatchChoice(namespace["f"])

    text = "def f(frame, epoch):\n    print(bound, [e for e in (1, 2)])"
    assert made(1, text).is_same(made(1, text))
    assert not made(1, text).is_same(made(1, text.replace("2", "3")))

    def closed(bound: object) -> ForeachBatchChoice:
        return ForeachBatchChoice(lambda frame, epoch: print(bound))

    assert closed(text).is_same(closed(text))
    assert not closed(text).is_same(closed([]))


# --- errors that pass, and what a power cut takes -------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(sink_runner, "TRIM_COMMITS", 4)
    monkeypatch.setattr(sink_runner, "WAIT_S", 0.005)
    monkeypatch.setattr(sink_runner, "PAUSE_S", 0.0)
    store = MemoryStore()
    create_stream(MemoryLog(store), "fed", (Field("x", BIGINT, False),))
    return store


class OneByOne(Collected):
    bytes_max = 1  # an epoch is a batch


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_APPLIED, Fault.UNKNOWN_NOT_APPLIED])
def test_progress_whose_outcome_is_unknown_is_read_again(
    store: MemoryStore, fault: Fault, replaces: bool
) -> None:
    """Each change of the progress in turn: what was delivered is not delivered again."""
    publish(MemoryLog(store), 1, 5)
    kinds = []
    for failing in range(2, 13):  # the first two take a run number and the sink, before it starts
        faults = Faults.at({failing: fault})
        collected = OneByOne()
        copy = store.copy()
        made = deliver(MemoryLog(copy, faults=faults), collected, replaces=replaces)
        assert made.failure is None
        assert collected.numbers == [1, 2, 4, 5]
        kinds.append(faults.effects_seen > failing)
        nothing = OneByOne()
        deliver(MemoryLog(copy), nothing, replaces=replaces)
        assert nothing.batches == []
    assert all(kinds[:8])  # two changes a batch


def test_what_was_delivered_and_could_not_be_noted_is_noted_with_the_next_batch(
    store: MemoryStore,
) -> None:
    class DyingSecond(OneByOne):
        def publish(self, epoch: int, staged: pa.Table) -> None:
            super().publish(epoch, staged)
            if len(self.batches) == 2:
                raise ConnectionError("the driver dies here")

    publish(MemoryLog(store), 1, 2)
    dying, rest = DyingSecond(), OneByOne()
    done = Faults.at({3: Fault.UNKNOWN_NOT_APPLIED})  # after the run, the owner and a plan
    assert deliver(MemoryLog(store, faults=done), dying).failure is not None
    assert dying.numbers == [1, 2]
    deliver(MemoryLog(store), rest)
    assert rest.batches == dying.batches[1:]


class Busy(MemoryLog):
    """Cannot be read some times, from some moment on."""

    busy_times = 0

    def read(self, *arguments: Any, **options: Any) -> list[Record]:
        if self.busy_times:
            self.busy_times -= 1
            raise LogBusy("simulated")
        return super().read(*arguments, **options)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_log_that_is_busy_for_a_while_does_not_end_a_sink(
    store: MemoryStore, is_kept: bool
) -> None:
    class View(Collected):
        pass

    View.is_kept = is_kept
    log, view = Busy(store), View()
    made = runner(log, view)
    publish(MemoryLog(store), 1, 2)
    wait_for("the rows", lambda: view.numbers == [1, 2])
    log.busy_times = sink_runner.BEGUN_AGAIN_MAX
    publish(MemoryLog(store), 4, 2)
    wait_for("more rows", lambda: view.numbers == [1, 2, 4, 5])
    assert made.failure is None
    log.busy_times = 1
    publish(MemoryLog(store), 7, 1)
    assert made.wait_ended(WAIT_S)  # too often within a minute
    assert made.failure is not None
    assert isinstance(made.failure.error, LogBusy)


def test_a_function_that_finds_a_log_busy_has_failed(store: MemoryStore) -> None:
    class Reading(Collected):
        def publish(self, epoch: int, staged: pa.Table) -> None:
            super().publish(epoch, staged)
            raise LogBusy("of the user's own")

    publish(MemoryLog(store), 1, 2)
    reading = Reading()
    failure = deliver(MemoryLog(store), reading).failure
    assert failure is not None
    assert failure.epoch == reading.batches[0][0]
    assert len(reading.batches) == 1


def test_what_comes_during_a_turn_is_not_slept_over(store: MemoryStore) -> None:
    class Followed(MemoryLog):
        """A row comes when the turn has seen that there is none, before it is waited for."""

        slept_over: bool | None = None

        def wait(self, after: Position, timeout_s: float) -> Position:
            if self.slept_over is None:
                self.slept_over = after >= self.tail()
            return super().wait(after, timeout_s)

    class Reader(CommittedReader):
        def take(self) -> Release | None:
            found = super().take()
            if found is None and not collected.batches and log.slept_over is None:
                publish(MemoryLog(store), 1, 1)
            return found

    log, collected = Followed(store), Collected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_runner, "CommittedReader", Reader)
        made = runner(log, collected)
    wait_for("the row", lambda: collected.numbers[:1] == [1])
    made.stop()
    assert made.wait_ended(WAIT_S)
    assert log.slept_over is False


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLog]:
    """A log after a power cut that took the marker up to which the sink was being given rows."""
    config = LogConfig(durability="process", inline_bytes_max=0)
    folder, disk = tmp_path / "log", tmp_path / "disk"
    with open_log(folder, create=True, config=config) as log:
        create_stream(log, "fed", (Field("x", BIGINT, False),))
        publish(log, 1, 1)
        deliver(log, Collected())
        publish(log, 2, 1)
        assert log._fold()
        publish(log, 4, 1)
        deliver(log, Failing())
        (*_, marker) = log._index.bodies_within(START, log.tail(), 1_000)
        assert marker.position == log.tail()
        shutil.copytree(folder, disk)
    (disk / "index.db-shm").unlink()
    segment = disk / "segments" / f"{marker.segment}.seg"
    segment.write_bytes(segment.read_bytes()[: marker.offset])
    monkeypatch.setattr("penstock.log.local.boot_id", lambda: b"another boot....")
    with open_log(disk, config=config) as log:
        ((cut,)) = power_cuts(log)
        assert cut.after < marker.position <= cut.upto
        yield log


def test_a_batch_whose_end_a_power_cut_took_is_given_up(
    cut_off: LocalLog, caplog: pytest.LogCaptureFixture
) -> None:
    for expected in ([2, 4], []):
        publish(cut_off, 4, len(expected) // 2)  # the vertex does it again
        collected = Collected()
        assert deliver(cut_off, collected).failure is None
        assert collected.numbers == expected
    assert "a power cut took the end of the batch" in caplog.text


def test_a_batch_whose_end_is_gone_without_a_power_cut_is_told_with_a_way_out(
    store: MemoryStore,
) -> None:
    log = MemoryLog(store)
    publish(log, 1, 2)
    stored = take_over_sink(log, "q", 1)
    stored.move(log, SinkProgress(1, planned=Position(log.tail() - 1)))
    publish(log, 4, 2)
    nothing = Collected()
    failure = deliver(log, nothing).failure
    assert failure is not None
    assert "under another queryName" in str(failure.error)
    assert nothing.batches == []


def test_the_older_of_two_starts_gets_neither_sink_nor_vertices(log: LocalLog) -> None:
    facts = describe_stream(log, "fed")
    older, newer = (InstanceNumbers(log, "q", []) for _ in range(2))

    def made(run: int) -> SinkRunner:
        return SinkRunner(log, "q", facts.tags, facts.schema, Collected(), run=run)

    made(newer.run)
    with pytest.raises(QueryActive, match="taken over by another run"):
        made(older.run)
    assert not older.is_newest_run()
    assert newer.is_newest_run()


class Numbered(Failing):
    """Fails so many times, and notes the number of each batch that it is given."""

    fails_left = 0

    def __init__(self) -> None:
        super().__init__()
        self.numbers_given: list[int] = []

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self.numbers_given.append(self.number)
        if self.fails_left:
            self.fails_left -= 1
            super().publish(epoch, staged)


def test_batches_are_numbered_without_gaps_and_one_that_comes_again_keeps_its_number(
    log: LocalLog,
) -> None:
    sink = Numbered()
    for first in (1, 10, 20):
        publish(log, first, 2)
        deliver(log, sink)
    assert sink.numbers_given == [0, 1, 2]
    publish(log, 30, 2)
    sink.fails_left = 1
    assert deliver(log, sink).failure is not None
    publish(log, 40, 2)
    deliver(log, sink)
    assert sink.numbers_given[:5] == [0, 1, 2, 3, 3]
    assert sink.numbers_given[5:] == [4]
    facts = sink_progress(log, "q")
    assert facts is not None
    assert facts.facts.batches == 5


# --- other columns --------------------------------------------------------------------------------


class Tables(Sink):
    """Keeps the rows of each batch; the first calls may fail behind that."""

    def __init__(self, fails: int = 0) -> None:
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []
        self.fails_left = fails

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self.batches.append((self.number, staged.to_pylist()))
        self.fails_left -= 1
        if self.fails_left >= 0:
            raise ConnectionError("the driver dies here")


def test_rows_of_a_start_with_other_columns_are_batches_of_their_own(log: LocalLog) -> None:
    """Also if those of the start before were not delivered, or come between them."""
    before, x = StreamWriter(log, "fed", "before"), pa.record_batch([[1]], schema=SCHEMA)
    before.write(x)
    facts = describe_stream(log, "fed")
    columns = (Field("x", STRING, True), Field("y", BIGINT, True))
    log.put(stream_key("fed"), _encode_facts(replace(facts, schema=columns)))
    after, xy = StreamWriter(log, "fed", "after"), pa.record_batch({"x": ["a"], "y": [2]})
    after.write(None)
    after.write(xy)
    before.write(x)  # by whoever was not fenced yet
    before.write(None)
    after.write(xy)
    after.write(xy)
    old, new = {"x": 1}, {"x": "a", "y": 2}
    expected = [(0, [old]), (1, [new]), (2, [old]), (3, [new, new])]
    sink = Tables(fails=1)
    assert deliver(log, sink).failure is not None
    assert sink.batches == expected[:1]
    assert deliver(log, sink).failure is None
    assert sink.batches == [expected[0], *expected]
    after.write(xy)
    deliver(log, sink)
    assert sink.batches[-1] == (4, [new])
