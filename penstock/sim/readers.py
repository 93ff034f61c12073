"""Readers outside the queries of a run."""

from __future__ import annotations

import random

from penstock.clock import Clock
from penstock.log.committed import CommittedReader
from penstock.log.record import Position, Record
from penstock.sim.logs import Backend


class Observer:
    """A reader of a stream: it reads through the engine's reader, lags and restarts."""

    def __init__(self, backend: Backend, clock: Clock, tags: tuple[str, ...]) -> None:
        self._backend = backend
        self._tags = tags
        self._log = backend.open(clock, lagging=True)
        self._reader = CommittedReader(self._log, tags)
        self.records: list[Record] = []

    def look(self, rng: random.Random, tail: int) -> None:
        """See some more of the log and take some of what is committed there."""
        seen = self._log.tail()
        self._backend.reveal(self._log, Position(rng.randint(seen, max(seen, tail))))
        for _ in range(rng.randint(0, 6)):
            self._take()
        if rng.random() < 0.2:
            self._reader = CommittedReader(
                self._log, self._tags, self._reader.resume, self._reader.consumed
            )

    def finish(self) -> None:
        self._backend.reveal(self._log, None)
        while self._take():
            pass

    def close(self) -> None:
        self._log.close()

    def _take(self) -> bool:
        release = self._reader.take()
        if release is None:
            return False
        self.records.extend(release.records)
        return True
