"""Somebody who lets old rows of streams go, now and then."""

from __future__ import annotations

from penstock.errors import StreamNotFound
from penstock.log.record import Position
from penstock.runtime.retention import cut, plan_cut
from penstock.sim.actor import Actor, Point
from penstock.sim.checks import RETENTION
from penstock.sim.faults import BY_LOG
from penstock.sim.schedule import Schedule


class Retention(Actor):
    """Cuts a stream before some position or time, which may take a while."""

    def __init__(self, stream: str, schedule: Schedule, point: Point) -> None:
        super().__init__(RETENTION, point)
        self._stream = stream
        self._schedule = schedule

    def act(self) -> None:
        rng = self._schedule.rng
        try:
            before: Position | None = None
            before_us: int | None = None
            if rng.random() < 0.7:
                before = Position(self.log.tail() + 1 - rng.randrange(30))
            else:
                before_us = self._schedule.clock.now_us() - rng.randrange(100_000)
            planned = plan_cut(self.log, self._stream, before=before, before_us=before_us)
            self.at("planned")
            cut(self.log, planned)
            self._schedule.sometimes["stream cut"] += planned.epochs > 0
            self._schedule.sometimes["cut held back by a query"] += planned.held_back_by is not None
        except (StreamNotFound, *BY_LOG):
            return  # it is not there yet, or is cut the next time
