"""Feeding sinks outside the log: batches, their order over crashes and twins, and what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api import sink_runner
from penstock.api.sink_runner import STRAGGLERS_S, SinkRunner, Trigger
from penstock.api.sinks import Delivery, ForeachBatchSink, ParquetDelivery
from penstock.config import LogConfig
from penstock.errors import QueryActive
from penstock.expressions.types import BIGINT, Field
from penstock.log import LocalLog, open_log
from penstock.log.survey import list_tags
from penstock.runtime.backlog import sink_progress
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream, describe_stream
from penstock.testing.clock import ManualClock
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


class Collected(Delivery):
    """Keeps what it is given: the epoch and the numbers of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []

    @property
    def numbers(self) -> list[int]:
        return [number for _, numbers in self.batches for number in numbers]

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        self.batches.append((epoch, rows.column("x").to_pylist()))


class Blocked(Collected):
    """Does not return before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = threading.Event()
        self.may_return = threading.Event()

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        super().deliver(epoch, rows)
        self.has_begun.set()
        assert self.may_return.wait(WAIT_S)


class Failing(Collected):
    def deliver(self, epoch: int, rows: pa.Table) -> None:
        super().deliver(epoch, rows)
        raise ConnectionError("the driver dies here")


class DyingParquet(ParquetDelivery):
    """Dies when a file is there and nobody has noted it yet."""

    patience_s = 0.0
    bytes_max = 1  # an epoch is a file
    files_left = 7

    def deliver(self, epoch: int, rows: pa.Table) -> None:
        super().deliver(epoch, rows)
        self.files_left -= 1
        if not self.files_left:
            raise ConnectionError("the driver dies here")


def parquet(folder: Path, kind: type[ParquetDelivery] = ParquetDelivery) -> ParquetDelivery:
    return kind(str(folder), "q", "id")


def publish(log: LocalLog, first: int, epochs: int, vertex: str = "vertex") -> None:
    """One row an epoch; every third epoch has none."""
    writer = StreamWriter(log, "fed", vertex)
    for number in range(first, first + epochs):
        rows = None if number % 3 == 0 else pa.record_batch([[number]], schema=SCHEMA)
        writer.write(rows)


def runner(log: LocalLog, delivery: Delivery, **options: Any) -> SinkRunner:
    facts = describe_stream(log, "fed")
    made = SinkRunner(log, "q", facts.tags, facts.schema, delivery, **options)
    made.start()
    return made


def deliver(log: LocalLog, delivery: Delivery, **options: Any) -> SinkRunner:
    """Deliver everything that is committed."""
    made = runner(log, delivery, **options)
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
        kind = DyingParquet if life % 2 else ParquetDelivery
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
    facts = describe_stream(log, "fed")
    publish(log, 1, 2)
    old = SinkRunner(log, "q", facts.tags, facts.schema, Collected())
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

    class Late(ParquetDelivery):
        def deliver(self, epoch: int, rows: pa.Table) -> None:
            has_begun.set()
            assert may_write.wait(WAIT_S)
            super().deliver(epoch, rows)

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
    clock.advance(ParquetDelivery.patience_s * 0.9)
    publish(log, 51, 50)
    wait_for("the rows", lambda: made._batch.epochs == 100)
    assert numbers_in(folder) == []
    assert not made.is_drained()
    lag = made.lag()
    assert (lag.epochs, lag.rows_under_way) == (100, 0)
    clock.advance(ParquetDelivery.patience_s * 0.2)
    wait_for("the file", made.is_drained)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert made.lag().epochs == 0
    publish(log, 101, 1)
    made.hurry()
    wait_for("what does not wait for more", made.is_drained)
    assert numbers_in(folder) == [number for number in range(102) if number % 3]
    made.stop()
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


def test_a_function_that_is_only_defined_again_is_the_same() -> None:
    def made(bound: object, text: str) -> Any:
        namespace: dict[str, Any] = {"bound": bound}
        exec(text, namespace)
        return ForeachBatchSink(namespace["f"])

    text = "def f(frame, epoch):\n    print(bound, [e for e in (1, 2)])"
    assert made(1, text).is_same(made(1, text))
    assert not made(1, text).is_same(made(1, text.replace("2", "3")))

    def closed(bound: object) -> ForeachBatchSink:
        return ForeachBatchSink(lambda frame, epoch: print(bound))

    assert closed(text).is_same(closed(text))
    assert not closed(text).is_same(closed([]))
