"""When a vertex commits with a trigger, and when it waits for a sink outside the log."""

from __future__ import annotations

import itertools
from functools import partial

import pyarrow as pa
import pytest

from penstock.errors import MarkerDamaged, QueryActive
from penstock.log.record import START, Position
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.backlog import (
    AT_ONCE,
    LOOK_S,
    PACE_S,
    SMALL_BYTES,
    SMALL_ROWS,
    Amount,
    Backlog,
    SinkProgress,
    delivered,
    sink_progress,
    take_over_sink,
)
from penstock.runtime.vertex import COMMIT_GAP_S, DELIVERIES_PER_STEP_MAX
from penstock.stages.program import sink_stream
from penstock.stages.settings import Settings
from penstock.testing.clock import ManualClock
from penstock.testing.columns import apply, col
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import count, query, scan_source, window
from tests.connectors.arrow_source import ArrowSource
from tests.runtime.laboratory import Laboratory, Row

INTERVAL_S = 5
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


FED = sink_stream("timed")  # what the sink of the query is fed from


def copied(stream: str = "out", **settings: int) -> Query:
    rows = scan_source("rows", "n bigint not null", partitions=None)
    return query("timed", rows.to_stream(stream), settings=Settings(**settings))


def growing() -> ArrowSource:
    return ArrowSource([], SCHEMA, growing=True)


def feed(source: ArrowSource, *values: int) -> None:
    source.append(pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA))


def test_a_trigger_commits_once_in_each_interval_of_the_wall_clock(lab: Laboratory) -> None:
    clock = ManualClock()  # at a multiple of the interval
    clock.advance(1.5)
    source = growing()
    timed = copied(trigger_interval_ms=INTERVAL_S * 1000)
    with lab.open(timed, {"rows": lambda _: source}, clock=clock) as process:
        (vertex,) = (process.host.vertex(name) for name in process.statistics().vertices)

        def seen() -> list[int]:
            return [row["n"] for row in lab.rows("out")]

        for number in range(30):  # a row every quarter of a second: from 1.5 s to 9 s
            feed(source, number)
            process.host.step()
            clock.advance(0.25)
            process.host.step()
            due_s = vertex.commit_due_in_s()
            assert due_s is None or 0 < due_s <= INTERVAL_S
            assert vertex.marker.epoch == (0 if number < 13 else 1)
        assert seen() == list(range(14))  # the last of them came before 5 s
        assert not vertex.is_drained()
        clock.advance(1)
        process.host.step()
        assert vertex.marker.epoch == 2
        assert vertex.is_drained()
        clock.advance(20)  # nothing came: nothing is committed
        process.host.step()
        assert vertex.marker.epoch == 2
        feed(source, 30)
        process.host.step()
        source.finish()
        process.host.step()  # the end of the input does not wait
        assert vertex.marker.ended
    assert [row["n"] for row in lab.rows("out")] == list(range(31))


def test_a_vertex_that_is_behind_commits_by_the_interval_and_one_that_is_not_at_once(
    lab: Laboratory,
) -> None:
    clock = ManualClock()
    source = growing()
    with lab.open(copied(step_rows_max=2), {"rows": lambda _: source}, clock=clock) as process:
        (vertex,) = (process.host.vertex(name) for name in process.statistics().vertices)
        for number in range(10):
            feed(source, number)  # each comes alone: a read of one row is short
        process.host.step()
        process.host.step()
        assert vertex.marker.epoch == 0
        clock.advance(1)
        process.host.step()
        assert vertex.marker.epoch == 1
        assert [row["n"] for row in lab.rows("out")] == list(range(6))
        process.host.step()
        assert vertex.marker.epoch == 1
        clock.advance(COMMIT_GAP_S)
        process.host.step()  # the last rows: nothing to wait for
        assert vertex.marker.epoch == 2
        assert [row["n"] for row in lab.rows("out")] == list(range(10))


def test_a_step_takes_a_bounded_number_of_small_pieces(lab: Laboratory) -> None:
    source = growing()
    with lab.open(copied(), {"rows": lambda _: source}, clock=ManualClock()) as process:
        for number in range(DELIVERIES_PER_STEP_MAX + 1):
            feed(source, number)
        process.host.step()
        (facts,) = process.statistics().vertices.values()
        assert facts.rows_in == DELIVERIES_PER_STEP_MAX


def test_a_stop_commits_before_the_interval_is_over(lab: Laboratory) -> None:
    source = growing()
    timed = copied(trigger_interval_ms=3_600_000)
    with lab.open(timed, {"rows": lambda _: source}, clock=ManualClock()) as process:
        feed(source, 7)
        process.host.step()
        assert lab.rows("out") == []
    expected: list[Row] = [{"n": 7}]
    assert lab.rows("out") == expected


def test_a_vertex_waits_for_a_sink_that_is_behind(lab: Laboratory) -> None:
    clock = ManualClock()
    source = growing()
    timed = copied(FED, undelivered_bytes_max=1, step_rows_max=1, commit_interval_ms=0)
    with lab.open(timed, {"rows": lambda _: source}, clock=clock) as process:
        (name,) = process.statistics().vertices

        def step() -> int:
            clock.advance(2 * LOOK_S)
            process.host.step()
            return process.host.vertex(name).marker.epoch

        for number in range(3):  # nobody feeds a sink from this stream: nobody is waited for
            feed(source, number)
            step()
        assert step() == 3
        run = take_over_sink(process.log, "timed", 1)
        for number in range(3, 5):
            feed(source, number)
        assert [step() for _ in range(4)] == [4, 4, 4, 4]
        run = run.move(process.log, SinkProgress(run.facts.owner, done=process.log.tail()))
        assert [step() for _ in range(2)] == [5, 5]
    assert [row["n"] for row in lab.rows(FED)] == list(range(5))


def test_a_vertex_is_drained_only_once_it_has_asked_and_got_nothing(lab: Laboratory) -> None:
    """Not after a small answer, and not while it waits for a sink: runs end by this word."""
    clock = ManualClock()
    source = growing()
    timed = copied(FED, undelivered_bytes_max=1, step_rows_max=1, commit_interval_ms=0)
    with lab.open(timed, {"rows": lambda _: source}, clock=clock) as process:
        (vertex,) = (process.host.vertex(name) for name in process.statistics().vertices)
        run = take_over_sink(process.log, "timed", 1)

        def drained_after_steps(steps: int) -> list[bool]:
            found = []
            for _ in range(steps):
                clock.advance(2 * LOOK_S)
                process.host.step()
                found.append(vertex.is_drained())
            return found

        def deliver() -> None:
            nonlocal run
            run = run.move(process.log, SinkProgress(run.facts.owner, done=process.log.tail()))

        feed(source, 0)
        feed(source, 1)
        assert drained_after_steps(3) == [False] * 3
        assert vertex.statistics().rows_in == 1
        deliver()
        assert drained_after_steps(2) == [False] * 2
        assert vertex.statistics().rows_in == 2
        deliver()
        assert drained_after_steps(2) == [True] * 2
        assert vertex.commit_due_in_s() is None


def test_dead_letters_are_no_part_of_what_a_sink_has_to_get(lab: Laboratory) -> None:
    """Nobody ever delivers them: a vertex that waited for that would wait for ever."""
    clock = ManualClock()
    source = growing()
    rows = scan_source("rows", "n bigint not null", partitions=None)
    divided = rows.select(apply("int_divide", col("n"), col("n")).alias("n")).to_stream("out")
    settings = Settings(undelivered_bytes_max=1_000, dead_letter_stream="dead")
    tested = query("timed", divided, settings=settings)
    with lab.open(tested, {"rows": lambda _: source}, clock=clock) as process:
        (name,) = process.statistics().vertices
        take_over_sink(process.log, "timed", 1)
        for number in range(1, 11):
            feed(source, *[0] * 100)
            clock.advance(2 * LOOK_S)
            process.host.step()
            assert process.host.vertex(name).marker.epoch == number
    assert lab.rows("out") == []
    assert len(lab.rows("dead")) == 1_000


def test_a_backlog_of_many_small_commits_is_remembered_in_few_pieces() -> None:
    log, clock = MemoryLog(), ManualClock()
    backlog = Backlog(partial(delivered, log, "q"), 6_400, clock)
    run = take_over_sink(log, "q", 1)
    for number in range(1, 6_402):
        backlog.add(Position(number), Amount(number))
        assert backlog.is_full() == (number == 6_401)
    assert len(backlog._waiting) < 200
    run = run.move(log, SinkProgress(run.facts.owner, done=Position(200)))
    clock.advance(2 * LOOK_S)
    assert not backlog.is_full()


class Reader:
    """Takes what a writer gives it, at a pace; the writer gives whatever it may."""

    def __init__(self, unit: Amount, pace_s: float = PACE_S) -> None:
        self.clock = ManualClock()
        self.upto = self.number = 0
        self.unit = unit
        self.backlog = Backlog(lambda: Position(self.upto), 1 << 40, self.clock, pace_s)

    def units_waiting(self, take: int) -> int:
        """How many units wait after a tenth of a second in which up to so many were taken."""
        self.clock.advance(0.1)
        self.upto = min(self.upto + take, self.number)
        for _ in range(1_000):  # ten thousand a second
            if self.backlog.is_full():
                break
            self.number += 1
            written = Amount(*(each * self.number for each in self.unit))
            self.backlog.add(Position(self.number), written)
        return self.number - self.upto


UNITS = [Amount(SMALL_BYTES // 4, 1), Amount(1, SMALL_ROWS // 4)]


@pytest.mark.parametrize("unit", UNITS)
def test_a_slow_reader_gets_what_it_takes_in_a_second(unit: Amount) -> None:
    reader = Reader(unit)
    waiting = [reader.units_waiting(take=3) for _ in range(50)]
    assert waiting[0] == 5  # one more than little
    assert 5 < max(waiting) <= 2 * (PACE_S + 0.1) * 30 + 1


@pytest.mark.parametrize("unit", UNITS)
def test_who_takes_longer_for_more_does_not_get_ever_more(unit: Amount) -> None:
    """Otherwise it would soon take a minute over what it was given, and stand still for others."""
    reader = Reader(unit)
    for _ in range(6):
        for _ in range(30):  # three seconds over a little
            waiting = reader.units_waiting(take=0)
        assert waiting == 5
        reader.units_waiting(take=waiting)


@pytest.mark.parametrize("unit", UNITS)
def test_who_commits_seldom_and_takes_all_gets_ever_more(unit: Amount) -> None:
    reader = Reader(unit, pace_s=3.0)
    each = []
    for _ in range(6):
        for _ in range(30):
            waiting = reader.units_waiting(take=0)
        each.append(waiting)
        reader.units_waiting(take=waiting)
    assert all(later >= 1.5 * sooner for sooner, later in itertools.pairwise(each[1:]))
    assert each[-1] > 10 * each[0]


@pytest.mark.parametrize("unit", UNITS)
def test_a_fast_reader_soon_gets_much(unit: Amount) -> None:
    reader = Reader(unit)
    waiting = [reader.units_waiting(take=1_000_000) for _ in range(20)]
    assert waiting[-1] == 1_000  # all that the writer has


def test_a_commit_is_a_part_of_what_may_wait() -> None:
    reader = Reader(Amount(1, SMALL_ROWS // 4))
    little = SMALL_ROWS // AT_ONCE
    assert reader.backlog.is_enough(little + 1)
    assert not reader.backlog.is_enough(little)
    for _ in range(50):
        waiting = reader.units_waiting(take=30)
    may_wait = (waiting - 1) * SMALL_ROWS // 4
    assert not reader.backlog.is_enough(little + 1)
    assert reader.backlog.is_enough((may_wait + SMALL_ROWS) // AT_ONCE + 1)


def test_little_is_given_to_anyone_and_remembered_in_few_pieces() -> None:
    backlog = Backlog(lambda: START, 1 << 40, ManualClock(), PACE_S)
    for number in range(1, 1_000):
        backlog.add(Position(number), Amount(SMALL_BYTES * number // 1_000, number))
        assert not backlog.is_full()
    assert len(backlog._waiting) < 200


def test_a_source_waits_for_the_stage_behind_it(lab: Laboratory) -> None:
    clock = ManualClock()
    source = growing()
    rows = scan_source("rows", "n bigint not null", partitions=None)
    counted = rows.group_by("n").agg(count().alias("times"), mode="update").to_stream("out")
    settings = Settings(undelivered_bytes_max=1, step_rows_max=1, commit_interval_ms=0)
    tested = query("piled", counted, parallelism=2, settings=settings)
    parts = {"rows": lambda request: growing() if request.part else source}
    with lab.open(tested, parts, clock=clock) as process:
        program = plan_program(tested)
        reader, _, *behind = (process.host.vertex(each.name) for each in program.vertices)
        for number in range(5):
            feed(source, number)
        for _ in range(4):  # the one behind it does nothing
            clock.advance(2 * LOOK_S)
            reader.step()
        assert reader.statistics().rows_in == 1
        assert not reader.is_drained()
        for vertex in behind:
            vertex.step()
        for _ in range(4):
            clock.advance(2 * LOOK_S)
            reader.step()
        assert reader.statistics().rows_in == 2
        for _ in range(10):
            clock.advance(2 * LOOK_S)
            process.host.step()
    assert sorted(row["n"] for row in lab.rows("out")) == list(range(5))


def test_whom_a_slow_reader_holds_back_is_not_silent_for_the_others(lab: Laboratory) -> None:
    """Those would go on without it, and drop what it has still to say."""
    clock = ManualClock()
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    sources = [ArrowSource([], schema, growing=True) for _ in range(2)]

    def feed_times(part: int, second: int) -> None:
        keys = pa.array(range(20), pa.int64())
        times = pa.array([second * 1_000_000] * 20, pa.timestamp("us", "UTC"))
        sources[part].append(pa.record_batch([keys, times], schema=schema))

    rows = scan_source("rows", "k bigint, ts timestamp", partitions=None)
    windows = rows.with_watermark("ts", "0 seconds").group_by("k", window=window("ts", "1 second"))
    settings = Settings(
        undelivered_bytes_max=1, step_rows_max=20, commit_interval_ms=0, idle_timeout_ms=5_000
    )
    counted = windows.agg(count().alias("n"), mode="append").to_stream("out")
    tested = query("piled", counted, parallelism=2, settings=settings)
    parts = {"rows": lambda request: sources[request.part]}
    with lab.open(tested, parts, clock=clock) as process:
        *readers, fast, slow = (
            process.host.vertex(name) for name in sorted(process.statistics().vertices)
        )
        for second in range(3):
            feed_times(0, 50 + second)
            feed_times(1, second)
        for _ in range(400):
            clock.advance(0.05)
            for vertex in (*readers, fast):
                vertex.step()
        assert sum(reader.statistics().rows_in for reader in readers) < 6 * 20
        for _ in range(40):
            clock.advance(0.05)
            process.host.step()
        assert sum(reader.statistics().rows_in for reader in readers) == 6 * 20
        assert [vertex.statistics().late_rows for vertex in (fast, slow)] == [0, 0]


def test_only_the_newest_owner_moves_the_progress_of_a_sink() -> None:
    log = MemoryLog()
    first = take_over_sink(log, "q", 3)
    assert sink_progress(log, "q") == first
    assert take_over_sink(log, "q", 3) == first  # as after an outcome that was unknown
    second = take_over_sink(log, "q", 7)
    for older in (3, 6):
        with pytest.raises(QueryActive, match="taken over by another run"):
            take_over_sink(log, "q", older)
    with pytest.raises(QueryActive, match="taken over by another run"):
        first.move(log, SinkProgress(first.facts.owner, done=Position(9)))
    moved = second.move(log, SinkProgress(second.facts.owner, Position(5), Position(4)))
    assert sink_progress(log, "q") == moved
    with pytest.raises(AssertionError):
        moved.move(log, SinkProgress(second.facts.owner, Position(4), Position(4)))
    log.put("sink/q", b"[]")
    with pytest.raises(MarkerDamaged, match="sink/q"):
        sink_progress(log, "q")
