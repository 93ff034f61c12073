"""Whoever acts in a run and can be held up or die between any two actions."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.logs import ProcessLog
from penstock.testing.memory_log import SimulatedCrash

Point = Callable[["Actor", str], None]


class Actor:
    """One process of the simulated world, alive or dead."""

    def __init__(self, name: str, point: Point) -> None:
        self.name = name
        self.log: ProcessLog
        self.is_dead = False
        self.is_busy = False  # its main thread is in the middle of an action, down the stack
        self.holds_lock = False  # of its log: no other thread of it can use that
        self.slow_until_s = 0.0
        self._point = point

    def __str__(self) -> str:
        return self.name

    def at(self, where: str) -> None:
        """Pass a point; what is dead never gets beyond it."""
        if not self.is_dead:
            self._point(self, where)
        if self.is_dead:
            raise SimulatedCrash(f"{self.name} is dead ({where})")

    def die(self) -> None:
        self.is_dead = True

    def can_act(self, now_s: float) -> bool:
        """Whether its main thread could do something now."""
        return not (self.is_dead or self.is_busy or self.holds_lock) and self.slow_until_s <= now_s
