"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

# 2024-01-01 00:00:00 UTC: a plausible time, so that code that prints or compares it behaves.
FIRST_MOMENT_US = 1_704_067_200_000_000


class ManualClock:
    """A Clock whose two readings move only by `advance` and `jump_wall`. Safe between threads."""

    def __init__(self, now_us: int = FIRST_MOMENT_US) -> None:
        self._lock = threading.Lock()
        self._now_us = now_us
        self._elapsed_us = 0  # integers: many small steps add up exactly

    def now_us(self) -> int:
        """Return the wall time that the test has reached."""
        with self._lock:
            return self._now_us

    def monotonic_s(self) -> float:
        """Return the seconds that the test has let pass."""
        with self._lock:
            return self._elapsed_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass: both readings move on, to the microsecond."""
        if seconds < 0:
            raise ValueError(f"time only passes forwards, not by {seconds} s; see jump_wall")
        step_us = round(seconds * 1_000_000)
        with self._lock:
            self._now_us += step_us
            self._elapsed_us += step_us

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an operator or NTP does; no time passes."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)
