"""Readers outside the queries of a run: each lags, restarts, and notes what it got from where on.

They read through the engine's own readers: the committed reader, `StreamReader`, and the ranges of
the log that Spark's tasks read, for a batch and for the micro-batches of a stream.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.api.datasource_ranges import (
    LogRange,
    committed,
    lowest_needed,
    plan_ranges,
    rows_trimmed_upto,
    trimmed_upto,
)
from penstock.api.datasource_stream_read import Follower
from penstock.clock import Clock
from penstock.errors import StreamNotFound, Trimmed
from penstock.log.committed import CommittedReader
from penstock.log.punit import decode
from penstock.log.record import Position, Record
from penstock.runtime.streams import StreamFacts, StreamReader, describe_stream
from penstock.sim.logs import Backend
from penstock.sim.oracle import plain_value
from penstock.sim.scenario import READERS
from penstock.sim.violation import Violation

Rows = list[dict[str, Any]]


@dataclass
class Life:
    """What a reader got from one beginning on, until it forgot, or was told that rows are gone."""

    after: int  # nothing up to here was kept when it began
    rows: Rows = field(default_factory=list)
    upto: int | None = None  # it has all that markers up to here commit; None: it got nothing yet
    was_cut: bool = False  # it was told so


class Observer(ABC):
    """Reads one stream. What it remembers over a restart is what a program could have stored."""

    def __init__(self, backend: Backend, clock: Clock, stream: str) -> None:
        self._backend = backend
        self._stream = stream
        self._log = backend.open(clock, lagging=True)
        self._facts: StreamFacts | None = None  # not described yet
        self._must_begin = True  # with what is kept
        self.lives: list[Life] = []

    def look(self, rng: random.Random, tail: int) -> None:
        """See some more of the log and take some of what is committed there."""
        seen = self._log.tail()
        self._backend.reveal(self._log, Position(rng.randint(seen, max(seen, tail))))
        for _ in range(rng.randint(0, 6)):
            self._read_on(rng)
        dice = rng.random()
        if dice < 0.4 and not self._must_begin:
            self._restart(rng)
        elif dice > 0.8:
            self._must_begin = True  # somebody who remembers nothing

    def finish(self, rng: random.Random) -> None:
        """Read all there is."""
        self._backend.reveal(self._log, None)
        while self._read_on(rng):
            pass

    def close(self) -> None:
        self._log.close()

    def _read_on(self, rng: random.Random) -> bool:
        """Take the next piece; return whether there was one, or a new beginning."""
        if not self._log.tail() or not self._is_described():
            return False
        if self._must_begin:
            self.lives.append(Life(trimmed_upto(self._log, self._described)))
            self._open()
            self._must_begin = False
        try:
            return self._take(rng, self.lives[-1])
        except Trimmed as gone:
            if not self._misses_rows():
                raise Violation(f"a reader misses nothing, and was told: {gone}") from gone
            self.lives[-1].was_cut = self._must_begin = True
            return True

    @property
    def _described(self) -> StreamFacts:
        assert self._facts is not None
        return self._facts

    def _is_described(self) -> bool:
        if self._facts is None:
            try:
                self._facts = describe_stream(self._log, self._stream)
            except StreamNotFound:
                return False
        return True

    def _note(self, life: Life, records: Sequence[Record], upto: int) -> None:
        for record in records:
            for row in decode(record.body).to_pylist():
                life.rows.append({name: plain_value(value) for name, value in row.items()})
        life.upto = upto

    @abstractmethod
    def _open(self) -> None:
        """Begin with what is kept."""

    @abstractmethod
    def _restart(self, rng: random.Random) -> None:
        """Go on as another process, from what was remembered."""

    @abstractmethod
    def _take(self, rng: random.Random, life: Life) -> bool:
        """Read the next piece and note it; return whether there was any."""

    def _misses_rows(self) -> bool:
        """Whether rows are gone that it has not got; most readers tell of markers too."""
        return True


class CommittedObserver(Observer):
    """Release by release, as every reader of the engine."""

    _reader: CommittedReader

    def _open(self) -> None:
        self._reader = CommittedReader(self._log, self._described.tags)

    def _restart(self, rng: random.Random) -> None:
        if self.lives[-1].upto is not None:
            self._reader = CommittedReader(
                self._log, self._described.tags, self._reader.resume, self._reader.consumed
            )

    def _take(self, rng: random.Random, life: Life) -> bool:
        release = self._reader.take()
        if release is None:
            return False
        self._note(life, release.records, release.marker.position)
        return True


class StreamObserver(Observer):
    """Through `StreamReader`, opened again with its position and, some times, its `resume`."""

    _reader: StreamReader

    def _open(self) -> None:
        self._reader = StreamReader(self._log, self._stream)

    def _restart(self, rng: random.Random) -> None:
        if self.lives[-1].upto is not None:
            resume = self._reader.resume if rng.random() < 0.7 else None
            self._reader = StreamReader(self._log, self._stream, self._reader.position, resume)

    def _take(self, rng: random.Random, life: Life) -> bool:
        before = self._reader.position
        for batch in self._reader.read():
            for row in batch.to_pylist():
                life.rows.append({name: plain_value(value) for name, value in row.items()})
            life.upto = self._reader.position
        if self._reader.position > before:
            life.upto = self._reader.position
        return self._reader.position > before

    def _misses_rows(self) -> bool:
        return rows_trimmed_upto(self._log, self._described) > self._reader.position


class RangeObserver(Observer):
    """Ranges of the log that are planned at one moment and read by tasks later, in any order."""

    def _open(self) -> None:
        self._after = self._resume = self.lives[-1].after
        self._drop()

    def _drop(self) -> None:
        """Forget a batch that was begun: its tasks are gone, and it is planned again."""
        self._upto: int | None = None
        self._ranges: list[LogRange] = []
        self._found: list[tuple[Record, Record]] = []

    def _restart(self, rng: random.Random) -> None:
        self._drop()

    def _take(self, rng: random.Random, life: Life) -> bool:
        if self._upto is None:
            return self._plan(rng)
        if self._ranges:
            part = self._ranges.pop(rng.randrange(len(self._ranges)))
            self._found.extend(committed(self._log, self._described, part))
            return True
        self._found.sort(key=lambda pair: (pair[1].position, pair[0].position))
        self._note(life, [record for record, _ in self._found], self._upto)
        self._after, self._resume = self._upto, self._next_resume
        self._drop()
        return True

    def _plan(self, rng: random.Random) -> bool:
        """Decide how far the next batch goes, and cut it into ranges, as their planner does."""
        kept_from = trimmed_upto(self._log, self._described)
        if self._after < rows_trimmed_upto(self._log, self._described):
            raise Trimmed("behind what is kept")  # as both planners say it
        end = self._end(rng)
        if end is None:
            return False
        self._upto, self._next_resume = end
        self._ranges = plan_ranges(
            self._low(self._upto), self._after, self._upto, rng.choice((None, 1, 3, 7)), kept_from
        )
        return True

    def _end(self, rng: random.Random) -> tuple[int, int] | None:
        """Where the next batch ends, and where the one after it must begin to read."""
        tail = int(self._log.tail())
        return (tail, 0) if tail > self._after else None

    def _low(self, upto: int) -> int:
        return lowest_needed(self._log, self._described, self._after, upto)


class MicroBatchObserver(RangeObserver):
    """Micro-batches of a stream, whose ends a follower finds."""

    def _end(self, rng: random.Random) -> tuple[int, int] | None:
        resume = max(self._resume, trimmed_upto(self._log, self._described))
        follower = Follower(self._log, self._described, self._after, resume)
        offset = follower.advance(rng.choice((None, 1, 20)), None)
        return None if offset is None else (offset["position"], offset["resume"])

    def _low(self, upto: int) -> int:
        return self._resume


KINDS: dict[str, type[Observer]] = dict(
    zip(
        READERS,
        (CommittedObserver, StreamObserver, RangeObserver, MicroBatchObserver),
        strict=True,
    )
)


def check_lives(
    stream: str, lives: Sequence[Life], releases: Sequence[tuple[int, Rows]], is_kept: bool
) -> None:
    """Each life is one piece of the stream, whole and in order; none is cut unless rows were."""
    if is_kept and any(life.was_cut for life in lives):
        raise Violation(f"a reader of {stream} was told that rows are gone, and nothing was cut")
    for life in lives:
        upto = life.after if life.upto is None else life.upto
        expected = list(_between(releases, life.after, upto))
        if [_filled(row) for row in life.rows] != [_filled(row) for row in expected]:
            raise Violation(
                f"a reader of {stream} saw {len(life.rows)} rows between {life.after} and {upto}, "
                f"{len(expected)} are committed, or in another order"
            )
    last = next((at for at, rows in reversed(releases) if rows), 0)
    reached = max([0, *(max(life.after, life.upto or 0) for life in lives)])
    if lives and last > reached:
        raise Violation(f"a reader of {stream} came to {reached}, rows follow up to {last}")


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """Without the columns that a row of several kinds does not have, as in a dead letter."""
    return {name: value for name, value in row.items() if value is not None}


def _between(
    releases: Sequence[tuple[int, Rows]], after: int, upto: int
) -> Iterator[dict[str, Any]]:
    for position, rows in releases:
        if after < position <= upto:
            yield from rows
