"""Time as an argument: whoever needs it takes a Clock, and only this module asks the machine."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings that are never mixed: one names a moment, the other measures a span."""

    def now_us(self) -> int:
        """Return wall time in microseconds since 1970 UTC. It may jump in both directions."""

    def monotonic_s(self) -> float:
        """Return seconds since some moment without meaning. Never falls; for timeouts."""


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now_us(self) -> int:
        """Return the machine's wall time."""
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        """Return the machine's monotonic time."""
        return time.monotonic()
