"""Clocks: the machine's, and the one that stands still until a test moves it."""

from __future__ import annotations

import time

import pytest

from penstock.clock import Clock, SystemClock
from penstock.testing.clock import FIRST_MOMENT_US, ManualClock


def test_the_system_clock_reads_wall_time_in_microseconds() -> None:
    clock: Clock = SystemClock()
    before_us = time.time_ns() // 1_000
    now_us = clock.now_us()
    assert before_us <= now_us <= time.time_ns() // 1_000


def test_the_system_clock_measures_spans_that_never_fall() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic_s() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_manual_clock_stands_still() -> None:
    clock: Clock = ManualClock()
    assert (clock.now_us(), clock.monotonic_s()) == (FIRST_MOMENT_US, 0.0)
    assert (clock.now_us(), clock.monotonic_s()) == (FIRST_MOMENT_US, 0.0)


def test_advancing_moves_both_readings_and_adds_up_exactly() -> None:
    clock = ManualClock(now_us=0)
    for _ in range(10):
        clock.advance(0.1)
    assert clock.now_us() == 1_000_000
    assert clock.monotonic_s() == 1.0


def test_the_wall_jumps_without_time_passing() -> None:
    clock = ManualClock(now_us=10_000_000)
    clock.jump_wall(-3)
    assert clock.now_us() == 7_000_000
    assert clock.monotonic_s() == 0.0


def test_time_does_not_pass_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="jump_wall"):
        clock.advance(-1)
    assert clock.now_us() == FIRST_MOMENT_US
