"""Ranges of a stream, read side by side, give what one reader of the whole stream gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.api.datasource_ranges import (
    READ_RECORDS,
    LogRange,
    committed,
    lowest_needed,
    plan_ranges,
    position_at,
    trimmed_upto,
)
from penstock.errors import Trimmed
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.log.record import Position
from penstock.runtime.streams import describe_stream
from penstock.testing.clock import ManualClock
from tests.api.datasource_logs import (
    PROCESS,
    STREAM,
    Scenario,
    Writer,
    columns,
    create_stream,
    eventful,
    rows,
)


def released(log: Log, after: int, upto: int) -> list[int]:
    """The positions of the committed records, by the reader that vertices use."""
    reader = CommittedReader(log, describe_stream(log, STREAM).tags)
    found = []
    while (release := reader.take()) is not None:
        if after < release.marker.position <= upto:
            found += [int(record.position) for record in release.records]
    return sorted(found)


@pytest.mark.parametrize("seed", range(4))
def test_ranges_together_are_the_whole_stream(tmp_path: Path, seed: int) -> None:
    scenario = eventful(tmp_path / "log", units=40, seed=seed)
    chance = random.Random(seed)
    with open_log(scenario.path, read_only=True) as log:
        facts = describe_stream(log, STREAM)
        tail = int(log.tail())
        for _ in range(25):
            after, upto = sorted(chance.choices(range(tail + 1), k=2))
            after = chance.choice([0, after])
            low = lowest_needed(log, facts, after, upto)
            parts = plan_ranges(low, after, upto, chance.choice([1, 2, 3, 7, 50, None]))
            found = [
                int(record.position) for part in parts for record, _ in committed(log, facts, part)
            ]
            assert sorted(found) == released(log, after, upto), (after, upto)
            assert len(set(found)) == len(found)


def test_the_ranges_of_nothing_are_none() -> None:
    assert plan_ranges(0, 0, 0, None) == []
    assert plan_ranges(5, 9, 9, 3) == []
    assert [(r.low, r.high) for r in plan_ranges(2, 4, 5, 10)] == [(2, 3), (3, 4), (4, 5)]


def test_a_range_begins_at_the_record_that_was_committed_late(tmp_path: Path) -> None:
    """A record before `after` whose marker is behind it belongs to what comes after."""
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        early, other = Writer(log, STREAM, "early"), Writer(log, STREAM, "other")
        first = early.commit()
        early.append(rows(0, 3).select(["id"]))
        after = other.commit()
        last = early.commit()
        facts = describe_stream(log, STREAM)
        assert lowest_needed(log, facts, after, last) == first
        [part] = plan_ranges(first, after, last, 1)
        [(record, marker)] = list(committed(log, facts, part))
        assert (record.position, marker.position) == (first + 1, last)


def test_parts_are_read_as_they_were_planned_or_not_at_all(tmp_path: Path) -> None:
    """Parts are planned on the driver and read later, by tasks: a cut may come in between."""
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "w")
        markers = []
        for index in range(6):
            writer.append(rows(index, 1).select(["id"]))
            markers.append(int(writer.commit()))
        facts = describe_stream(log, STREAM)

        def trim(upto: int) -> None:
            for tag in facts.tags:
                log.trim(tag, Position(upto))

        def planned(after: int) -> list[LogRange]:
            return plan_ranges(after, after, markers[5], 2, trimmed_upto(log, facts))

        def count(parts: list[LogRange]) -> int:
            return len([each for part in parts for each in committed(log, facts, part)])

        everything, following = planned(0), planned(markers[2])
        assert (count(everything), count(following)) == (6, 3)
        trim(markers[2])
        with pytest.raises(Trimmed):
            count(everything[:1])
        assert count(everything[1:]) == 3  # whole, and so is the read if the first came before
        left = planned(0)
        assert (count(left), count(following)) == (3, 3)
        trim(markers[3])
        for parts in (left, following):
            with pytest.raises(Trimmed):
                count(parts[:1])


def test_a_part_that_is_trimmed_between_two_pages(tmp_path: Path) -> None:
    with open_log(tmp_path, create=True, config=PROCESS) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "w")
        for index in range(READ_RECORDS):
            writer.append(rows(index, 1).select(["id"]))
            last = writer.commit()
        facts = describe_stream(log, STREAM)
        [part] = plan_ranges(0, 0, last, 1)
        reading = committed(log, facts, part)
        next(reading)
        for tag in facts.tags:
            log.trim(tag, Position(last - 2))
        with pytest.raises(Trimmed):
            list(reading)


def test_a_moment_is_the_last_marker_at_or_before_it(scenario: Scenario) -> None:
    with open_log(scenario.path, read_only=True) as log:
        facts = describe_stream(log, STREAM)
        for position, time_us in zip(scenario.markers, scenario.times_us, strict=True):
            assert position_at(log, facts, time_us) == position
            assert position_at(log, facts, time_us + 999_999) == position
        assert position_at(log, facts, scenario.times_us[0] - 1) == 0
        assert position_at(log, facts, 2**62) == scenario.markers[-1]


def test_a_moment_in_a_log_whose_clock_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_log(tmp_path, create=True, config=PROCESS, clock=clock) as log:
        create_stream(log, STREAM, columns(("id", "bigint")))
        writer = Writer(log, STREAM, "a")
        times_us: dict[int, int] = {}
        for step_s in (5, 5, -7, 5, 5, 5):
            clock.jump_wall(step_s)
            times_us[writer.commit()] = clock.now_us()
        facts = describe_stream(log, STREAM)
        for time_us in times_us.values():
            found = position_at(log, facts, time_us)
            following = log.read((facts.tags[-1],), Position(found), 1)
            assert found == 0 or times_us[found] <= time_us
            assert not following or following[0].time_us > time_us
