"""What goes wrong at the calls and points of processes: how often, and which way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from penstock.errors import DiskFull, LogBusy, LogError, LogIOError, OutcomeUnknown
from penstock.sim.scenario import Troubles
from penstock.sim.schedule import Schedule
from penstock.testing.memory_log import Effect, Fault

# What an effect of a log may raise having done nothing, and what a read may raise.
DEFINITE: tuple[type[LogError], ...] = (LogBusy, DiskFull, LogIOError)
DEFINITE_READS: tuple[type[LogError], ...] = (LogBusy, LogIOError)
BY_LOG = (OutcomeUnknown, LogBusy, LogIOError, DiskFull)  # a call on the log that failed
GROWTH_GAP = 12  # the mean number of chances for the log to grow under a reader's hands


class AtPoint(Enum):
    """What becomes of a process at a point between two of its actions."""

    CRASH = "crash"
    POWER_CUT = "power cut"
    HOLD = "hold"  # others act meanwhile
    TAKE_OVER = "take over"  # and somebody else gets its vertices
    ROT = "rot"  # the checkpoint that is read breaks under the reader's hands
    GROWTH = "growth"  # others append, which a reader does not know that has just looked
    LONG_HOLD = "long hold"  # enough for what it appended to be read, committed and trimmed


class Faults:
    """Decides for points, effects and reads; asked nothing once the world has healed."""

    def __init__(self, schedule: Schedule, troubles: Troubles) -> None:
        self._schedule = schedule
        self._troubles = troubles
        self._points_left = schedule.gap(troubles.point_gap)
        self._effects_left = schedule.gap(troubles.effect_gap)
        self._reads_left = schedule.gap(troubles.read_gap)
        self._growth_left = schedule.gap(GROWTH_GAP)
        self._holds_long = False
        self._is_outage = False  # the next effect fails too
        self.is_on = True

    def at_point(self, who: str, where: str, may_hold: bool) -> AtPoint | None:
        if not self.is_on:
            return None
        if self._holds_long and where == "append":
            self._holds_long = False
            if may_hold:
                return AtPoint.LONG_HOLD
        if where in ("read", "read done") and may_hold:
            self._growth_left -= 1
            if self._growth_left <= 0:
                self._growth_left = self._schedule.gap(GROWTH_GAP)
                return AtPoint.GROWTH
        if where == "delivered" and self._schedule.rng.random() < 0.1:
            return AtPoint.CRASH  # before anybody has noted that it was
        self._points_left -= 1
        if self._points_left > 0:
            return None
        self._points_left = self._schedule.gap(self._troubles.point_gap)
        dice = self._schedule.rng.random()
        if where.startswith("file") and dice < 0.15:
            return AtPoint.POWER_CUT
        if where == "file read" and dice < 0.5:
            return AtPoint.ROT
        if dice < 0.40:
            return AtPoint.CRASH
        if not may_hold:
            return None
        return AtPoint.TAKE_OVER if dice < 0.70 else AtPoint.HOLD

    def of_effect(self, effect: Effect) -> Fault | LogError | None:
        if not self.is_on:
            return None
        self._effects_left -= 1
        if self._effects_left > 0:
            return None
        self._effects_left = self._schedule.gap(self._troubles.effect_gap)
        rng = self._schedule.rng
        was_outage, self._is_outage = self._is_outage, False
        if was_outage or rng.random() < 0.4:
            return self._definite(effect.value, rng.choice(DEFINITE))
        fault = rng.choice(tuple(Fault))
        self._count(effect.value, fault.value)
        if fault is Fault.UNKNOWN_APPLIED and effect is Effect.APPEND:
            self._schedule.sometimes["unknown outcome that was applied"] += 1
            # Before the append is repeated.
            self._holds_long = rng.random() < 0.7
            if rng.random() < 0.5:  # or so that it cannot be repeated
                self._is_outage, self._effects_left = True, 1
        if fault is Fault.UNKNOWN_NOT_APPLIED and effect is Effect.APPEND:
            self._schedule.sometimes["unknown outcome that was not applied"] += 1
        return fault

    def of_read(self, call: str) -> LogError | None:
        if not self.is_on:
            return None
        self._reads_left -= 1
        if self._reads_left > 0:
            return None
        self._reads_left = self._schedule.gap(self._troubles.read_gap)
        return self._definite(call, self._schedule.rng.choice(DEFINITE_READS))

    def _definite(self, call: str, kind: type[LogError]) -> LogError:
        self._count(call, kind.__name__)
        return kind(f"{call}: simulated")

    def _count(self, call: str, fault: str) -> None:
        self._schedule.faults[f"{call}: {fault}"] += 1
        self._schedule.note("fault", call, fault)


class Script(Faults):
    """Nothing goes wrong but what is written down: which fate awaits whom at which point.

    A point is named by the beginning of the actor's name, where it is, and how often somebody of
    that beginning has been there, from 1.
    """

    def __init__(
        self,
        schedule: Schedule,
        troubles: Troubles,
        fates: Mapping[tuple[str, str, int], AtPoint],
    ) -> None:
        super().__init__(schedule, troubles)
        self._fates = dict(fates)
        self._seen: Counter[tuple[str, str]] = Counter()

    def at_point(self, who: str, where: str, may_hold: bool) -> AtPoint | None:
        for name in {name for name, place, _ in self._fates if place == where}:
            if who.startswith(name):
                self._seen[name, where] += 1
                return self._fates.pop((name, where, self._seen[name, where]), None)
        return None

    def of_effect(self, effect: Effect) -> Fault | LogError | None:
        return None

    def of_read(self, call: str) -> LogError | None:
        return None
