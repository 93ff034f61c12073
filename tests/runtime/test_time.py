"""Event time: late rows and where they go, sources that fall silent, watermarks that only rise."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.event_time import EventTime, PortTime, Watermarks, Word
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, PortMark, Said
from penstock.stages.settings import Settings
from penstock.testing.clock import ManualClock
from penstock.testing.columns import apply
from penstock.testing.plans import Draft, col, count, query, scan_source, window
from penstock.testing.single_process import SingleProcess
from tests.connectors.arrow_source import ArrowSource
from tests.runtime.laboratory import (
    SECOND_US,
    TIMESTAMP,
    Laboratory,
    multiset,
    table,
    table_source,
)

WINDOW_US = 4 * SECOND_US
DELAY_US = 2 * SECOND_US

Arrival = tuple[int, int, int]  # id, key, time


def arrivals(rng: random.Random, rows: int) -> list[Arrival]:
    """Most rows come within the delay, some long after their window closed."""
    made = []
    for number in range(rows):
        lag_us = rng.randrange(DELAY_US) if rng.random() < 0.9 else rng.randrange(30 * SECOND_US)
        made.append((number, rng.randrange(3), max(0, number * 100_000 - lag_us)))
    return made


def arriving(source: str) -> Draft:
    columns = "id bigint not null, key bigint not null, ts timestamp not null"
    return scan_source(source, columns, partitions=None)


def counted(source: str = "rows") -> Draft:
    return arriving(source).with_watermark("ts", DELAY_US)


def late_query(step_rows: int, parallelism: int, interval_ms: int) -> Query:
    grouped = counted().group_by("key", window=window("ts", WINDOW_US)).agg(count().alias("n"))
    settings = Settings(
        step_rows_max=step_rows,
        commit_interval_ms=interval_ms,
        late_stream="late",
        checkpoint_interval_commits=3,
    )
    return query("late_rows", grouped.to_stream("out"), parallelism=parallelism, settings=settings)


def rows_table(rows: list[Arrival]) -> pa.Table:
    return table(rows, id=pa.int64(), key=pa.int64(), ts=TIMESTAMP)


def judged(rows: list[Arrival], step_rows: int) -> tuple[list[Arrival], list[int]]:
    """The late rows, and the watermark after each step: a step judges by the one before it."""
    late, marks = [], []
    watermark_us = -(2**63)
    for first in range(0, len(rows), step_rows):
        step = rows[first : first + step_rows]
        late += [row for row in step if (row[2] // WINDOW_US + 1) * WINDOW_US <= watermark_us]
        watermark_us = max(watermark_us, max(time_us for _, _, time_us in step) - DELAY_US)
        marks.append(watermark_us)
    return late, marks


@pytest.mark.parametrize("seed", range(4))
def test_late_rows_are_those_that_the_watermark_before_their_step_says(
    lab: Laboratory, seed: int
) -> None:
    rng = random.Random(seed)
    rows = arrivals(rng, 400)
    step_rows = rng.choice((13, 50, 200))
    late, marks = judged(rows, step_rows)
    assert late
    tested = late_query(step_rows, 1, rng.choice((0, 3)))
    lab.run_with_crashes(tested, {"rows": table_source(rows_table(rows))}, rng)

    assert multiset(lab.rows("late")) == sorted((late), key=repr)
    on_time = Counter(
        (time_us // WINDOW_US * WINDOW_US, key)
        for number, key, time_us in rows
        if (number, key, time_us) not in set(late)
    )
    found = {(row["window"][0], row["key"]): row["n"] for row in lab.rows("out")}
    assert found == on_time
    assert len(lab.rows("out")) == len(on_time)
    # What the markers say is what the steps before them saw.
    markers = lab.markers(plan_program(tested).vertices[0].name)
    for marker in markers[:-1]:
        assert marker.watermark_us == marks[(marker.offset - 1) // step_rows]
    assert markers[-1].ended
    assert markers[-1].watermark_us == WATERMARK_END
    assert markers[-1].late_rows == len(late)
    epochs = [marker.epoch for marker in markers]
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))


@pytest.mark.parametrize("parallelism", [2, 3])
def test_in_parallel_every_row_is_counted_or_late_exactly_once(
    lab: Laboratory, parallelism: int
) -> None:
    rng = random.Random(parallelism)
    rows = arrivals(rng, 600)
    tested = late_query(37, parallelism, 1)
    lab.run_with_crashes(tested, {"rows": table_source(rows_table(rows))}, rng)
    late = lab.rows("late")
    assert len({row["id"] for row in late}) == len(late)
    assert sum(row["n"] for row in lab.rows("out")) + len(late) == len(rows)
    by_window = Counter((time_us // WINDOW_US * WINDOW_US, key) for _, key, time_us in rows)
    by_window.subtract(Counter((r["ts"] // WINDOW_US * WINDOW_US, r["key"]) for r in late))
    found = {(row["window"][0], row["key"]): row["n"] for row in lab.rows("out")}
    assert found == {group: n for group, n in by_window.items() if n}
    assert len(lab.rows("out")) == len(found)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_watermark_makes_rows_of_its_own_column_late_and_no_others(
    lab: Laboratory, parallelism: int
) -> None:
    """`key` is a time too, far behind the watermark's: every row counts, in every step."""
    rows = [(number, number % 10 * SECOND_US, number * SECOND_US) for number in range(200)]
    at = apply("timestamp_micros", col("key"))
    grouped = counted().with_column("at", at).group_by(window=window("at", WINDOW_US))
    tested = query(
        "other_time",
        grouped.agg(count().alias("n"), mode="update").to_stream("out"),
        parallelism=parallelism,
        settings=Settings(step_rows_max=10, commit_interval_ms=0),
    )
    lab.run(tested, {"rows": table_source(rows_table(rows))})
    assert read_counts(lab) == {0: 80, WINDOW_US: 80, 2 * WINDOW_US: 40}


def test_without_a_watermark_no_row_is_late(lab: Laboratory) -> None:
    """The source says how far its times have come, which is not the query's business."""
    hour_us = 3600 * SECOND_US
    ago = apply("timestamp_micros", apply("unix_micros", col("timestamp")) - hour_us)
    rows = scan_source(
        "rate", "timestamp timestamp, value bigint", rows_per_s=1000, rows_total=2000
    )
    grouped = rows.select(ago.alias("at")).group_by(window=window("at", WINDOW_US))
    written = grouped.agg(count().alias("n"), mode="update").to_stream("out")
    lab.run(query("unmarked", written, settings=Settings(step_rows_max=100)))
    assert sum(read_counts(lab).values()) == 2000


def growing(rows: list[Arrival]) -> ArrowSource:
    made = rows_table(rows)
    return ArrowSource(made.to_batches(), made.schema, growing=True)


def union_query(idle_timeout_ms: int | None) -> Query:
    settings = Settings(idle_timeout_ms=idle_timeout_ms, commit_interval_ms=0)
    both = counted("left").union(counted("right"))
    grouped = both.group_by("key", window=window("ts", WINDOW_US)).agg(count().alias("n"))
    return query("idle", grouped.to_stream("out"), settings=settings)


def read_counts(lab: Laboratory) -> dict[int, int]:
    return {row["window"][0]: row["n"] for row in lab.rows("out")}


def feed(source: ArrowSource, rows: list[Arrival]) -> None:
    for batch in rows_table(rows).cast(source.schema).to_batches():
        source.append(batch)


def listen(process: SingleProcess, clock: ManualClock, for_s: float) -> None:
    """Let time pass in which a reader steps, as a host's does."""
    for _ in range(round(for_s / 0.05)):
        clock.advance(0.05)
        process.run_available()


def test_who_was_held_up_does_not_call_others_silent(lab: Laboratory) -> None:
    """Two producers go on while their reader is frozen for longer than the timeout."""
    clock = ManualClock()
    schema = pa.schema([pa.field(f.name, f.type, nullable=False) for f in rows_table([]).schema])
    left, right = (ArrowSource([], schema, growing=True) for _ in range(2))
    sources = {"left": lambda _: left, "right": lambda _: right}
    tested = plan_program(union_query(5_000))
    *producers, reader = [vertex.name for vertex in tested.vertices]
    writing = lab.open(tested, sources, vertices=tuple(producers), clock=clock)
    reading = lab.open(tested, sources, vertices=(reader,), clock=clock)
    feed(left, [(n, 0, n * SECOND_US) for n in range(60)])
    feed(right, [(n, 0, n * SECOND_US) for n in range(10)])
    writing.run_available()
    reading.run_available()
    for second in range(6):
        clock.advance(1.0)
        feed(left, [(60 + second, 0, (60 + second) * SECOND_US)])
        feed(right, [(10 + second, 0, (10 + second) * SECOND_US)])
        writing.run_available()
    reading.run_available()
    assert reading.host.vertex(reader).statistics().watermark_us == 15 * SECOND_US - DELAY_US
    # All were frozen, and the reader is the first to wake: it has heard nothing for a moment only.
    clock.advance(60.0)
    reading.run_available()
    feed(right, [(16, 0, 16 * SECOND_US)])
    writing.run_available()
    reading.run_available()
    assert reading.host.vertex(reader).statistics().late_rows == 0
    # Who really says nothing while the reader listens is left behind.
    for _ in range(120):
        clock.advance(0.05)
        reading.host.step()
    assert reading.host.vertex(reader).statistics().watermark_us == 65 * SECOND_US - DELAY_US
    writing.abandon()
    reading.abandon()


def test_time_goes_on_when_the_last_who_is_waited_for_falls_silent() -> None:
    """What has been reached does not rise with it: the wait alone is over."""
    heard = Watermarks(["one.0", "other.0"], {}, WATERMARK_NONE, idle_timeout_ms=4, run=1)
    time = EventTime([PortTime(heard, None, PortMark(), WATERMARK_NONE, ended=False)], 0)
    done = Word(0, Said(10, caught_up_run=1), "one.0")
    time.hear([done, Word(0, Said(20), "other.0")])
    assert not time.advance(waits=True)
    looks = 0
    while not time.listen(looks):
        time.hear([done])
        looks += 1
    assert time.advance(waits=True)
    assert (looks, time.watermark_us) == (4, 10)


@pytest.mark.parametrize("timeout_ms", [None, 500])
def test_a_silent_source_holds_windows_back_until_it_times_out(
    lab: Laboratory, timeout_ms: int | None
) -> None:
    clock = ManualClock()
    schema = pa.schema([pa.field(f.name, f.type, nullable=False) for f in rows_table([]).schema])
    left, right = (ArrowSource([], schema, growing=True) for _ in range(2))
    sources = {"left": lambda _: left, "right": lambda _: right}
    with lab.open(union_query(timeout_ms), sources, clock=clock) as process:
        feed(left, [(1, 0, 0)])
        feed(right, [(2, 0, SECOND_US)])
        process.run_available()
        feed(left, [(3, 0, 20 * SECOND_US)])
        process.run_available()
        assert read_counts(lab) == {}  # the right source may still have rows of the first window
        listen(process, clock, 0.4)
        feed(left, [(4, 0, 21 * SECOND_US)])
        process.run_available()
        assert read_counts(lab) == {}
        # After this the right source has been silent for 0.8 s, the left one for 0.4 s.
        listen(process, clock, 0.4)
        if timeout_ms is None:
            assert read_counts(lab) == {}
        else:
            assert read_counts(lab) == {0: 2}
        feed(right, [(5, 0, 2 * SECOND_US)])  # it comes back, with a row of the first window
        left.finish()
        right.finish()
        process.run()
        facts = process.statistics().vertices
        late = sum(vertex.late_rows for vertex in facts.values())
    first = 3 if timeout_ms is None else 2
    assert read_counts(lab) == {0: first, 20 * SECOND_US: 2}
    assert late == 3 - first


def test_a_quiet_branch_below_one_watermark_holds_nothing_back(lab: Laboratory) -> None:
    """Who does not run has not said that it has nothing: its rows may only not be read yet."""
    clock = ManualClock()
    schema = pa.schema([pa.field(f.name, f.type, nullable=False) for f in rows_table([]).schema])
    left, right = (ArrowSource([], schema, growing=True) for _ in range(2))
    sources = {"left": lambda _: left, "right": lambda _: right}
    both = arriving("left").union(arriving("right")).with_watermark("ts", DELAY_US)
    grouped = both.group_by("key", window=window("ts", WINDOW_US)).agg(count().alias("n"))
    settings = Settings(commit_interval_ms=0, late_stream="late")
    tested = plan_program(query("quiet", grouped.to_stream("out"), settings=settings))
    busy, quiet, reader = [vertex.name for vertex in tested.vertices]
    assert [stage.source and stage.source.connector for stage in tested.stages] == [
        "left", "right", None,
    ]  # fmt: skip
    others = lab.open(tested, sources, vertices=(busy, reader), clock=clock)
    other = lab.open(tested, sources, vertices=(quiet,), clock=clock)
    feed(left, [(1, 0, 0)])
    feed(right, [(2, 0, SECOND_US)])
    other.run_available()
    others.run_available()
    feed(left, [(3, 0, 20 * SECOND_US)])
    listen(others, clock, 1.0)
    assert read_counts(lab) == {}
    for _ in range(2):  # it says so once, however long it has nothing
        listen(other, clock, 1.0)
        listen(others, clock, 1.0)
        assert read_counts(lab) == {0: 2}
    assert [mark.rests for mark in lab.markers(quiet)] == [False, True]
    # What it has said counts up to there, also for who reads it anew.
    others.abandon()
    others = lab.open(tested, sources, vertices=(busy, reader), clock=clock)
    feed(left, [(4, 0, 40 * SECOND_US)])
    listen(others, clock, 1.0)
    assert others.host.vertex(reader).statistics().watermark_us == 20 * SECOND_US - DELAY_US
    # Rows that it has in the meantime are late by what was said before them, and by nothing else.
    feed(right, [(5, 0, 10 * SECOND_US), (6, 0, 30 * SECOND_US)])
    listen(other, clock, 1.0)
    listen(others, clock, 1.0)
    left.finish()
    right.finish()
    other.run_available()
    others.run_available()
    assert [row["id"] for row in lab.rows("late")] == [5]
    starts = (0, 20 * SECOND_US, 28 * SECOND_US, 40 * SECOND_US)
    assert read_counts(lab) == dict(zip(starts, (2, 1, 1, 1), strict=True))
    other.abandon()
    others.abandon()


def test_a_restarted_vertex_remembers_how_far_time_has_come(lab: Laboratory) -> None:
    rows = [(i, 0, i * SECOND_US) for i in range(40)] + [(99, 0, 0)]
    source = table_source(rows_table(rows))
    tested = late_query(10, 1, 0)
    for _ in range(4):  # one step in each life, and so one watermark
        process = lab.open(tested, {"rows": source})
        process.host.step()
        process.abandon()
    lab.run(tested, {"rows": source})
    assert [row["id"] for row in lab.rows("late")] == [99]
    vertex = plan_program(tested).vertices[0].name
    marks = [marker.watermark_us for marker in lab.markers(vertex)]
    assert marks == sorted(marks)
