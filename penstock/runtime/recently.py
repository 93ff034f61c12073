"""How often something happened lately: over its whole life a query may survive any number of it."""

from __future__ import annotations

from collections import deque


class Recently:
    """Moments of the last while, for each name."""

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._moments: dict[str, deque[float]] = {}

    def count(self, name: str, now_s: float) -> int:
        """Note that it happened now; return how often it did within the time, this one included."""
        moments = self._moments.setdefault(name, deque())
        moments.append(now_s)
        while now_s - moments[0] > self.within_s:
            moments.popleft()
        return len(moments)
