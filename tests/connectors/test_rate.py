"""The rate source: a function of the offset, paced by a clock when it has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.connectors.contract import Source
from penstock.connectors.rate import RateSource
from penstock.errors import InvalidArgument
from penstock.testing.clock import ManualClock
from tests.connectors.contract import SourceContract


class TestContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: RateSource(7, start_us=1_000_000, rows_total=100)


class TestPartContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: RateSource(7, start_us=1_000_000, rows_total=100).split(4)[3]


def test_values_and_times_follow_from_the_offset() -> None:
    source = RateSource(3, start_us=5)
    for first in (0, 10, 10**12):
        batch = source.read(first, 4).batch
        assert batch.column("value").to_pylist() == list(range(first, first + 4))
        times = batch.column("timestamp").cast("int64").to_pylist()
        assert times == [5 + value * 1_000_000 // 3 for value in range(first, first + 4)]


@pytest.mark.parametrize("rows_per_s", [1, 3, 1_000, 999_999, 1_000_000_000])
def test_with_a_clock_rows_are_read_when_they_are_due(rows_per_s: int) -> None:
    clock = ManualClock()
    start_us = clock.now_us()
    source = RateSource(rows_per_s, start_us, clock=clock)
    offset, seen = source.initial_offset(), 0
    for _ in range(50):
        while not (answer := source.read(offset, 1 << 20)).idle:
            times = answer.batch.column("timestamp").cast("int64").to_numpy()
            assert times.max() <= clock.now_us()
            offset, seen = answer.next_offset, seen + answer.rows
        assert start_us + offset * 1_000_000 // rows_per_s > clock.now_us()
        clock.advance(0.000_37)
    assert seen == offset > 0


def test_nothing_is_due_before_the_start() -> None:
    clock = ManualClock()
    source = RateSource(10, clock.now_us() + 1_000_000, rows_total=3, clock=clock)
    assert source.read(0, 10).idle
    clock.advance(1.0)
    assert source.read(0, 10).rows == 1
    clock.advance(10.0)
    answer = source.read(1, 10)
    assert (answer.rows, answer.ended) == (2, True)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="rows_per_s"):
        RateSource(0, 0)
    with pytest.raises(InvalidArgument, match="rows_total"):
        RateSource(1, 0, rows_total=-1)
