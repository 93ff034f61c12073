"""What a vertex has written that those behind it have not taken yet: it waits if that is much.

Whoever feeds a sink outside the log keeps its progress in the log's metadata, under `sink/<query>`,
or `sink/<stream>` for one of several sinks; the vertices of a later stage have theirs in their
markers. A vertex looks there before it takes more input, once much of its output has not been
taken: so who is slow slows the query, and the stream between them stays bounded. Between stages it
is bounded by how fast they take it: rows that wait long are late news, and of those that are small
in the log many seconds of event time would come to the state of who reads them, from one part of
the input and not yet from the other. Nobody waits for others: a stream that people named is read by
anyone, in their own time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.clock import Clock
from penstock.errors import MarkerDamaged, QueryActive
from penstock.json_codec import Malformed, parse, read_as, spaced_json
from penstock.log.contract import Log
from penstock.log.record import START, Position
from penstock.runtime.markers import decode_marker

LOOK_S = 0.05  # how often a vertex that waits looks again
PIECES = 64  # into which the bounds are divided: commits that are smaller are remembered together
PACE_S = 0.5  # over which is told how fast the next stage is, which may have twice that
SMALL_BYTES = 4 << 20  # which may always wait: there is nothing to gain
SMALL_ROWS = 1 << 16  # if they are not many: coded they may have less than a byte each
AT_ONCE = 4  # a commit has this part of what may wait, so that the next stage always has some


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far the sink of a query has come in the stream that feeds it."""

    owner: int = 0  # the number of the run that feeds it: only the newest may move this
    done: Position = START  # the last marker whose rows are delivered
    resume: Position = START  # where to read on from
    planned: Position | None = None  # the last marker of what is being delivered
    batches: int = 0  # that are delivered: the number of the next one


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """A sink's progress in the log, and the version of the key that holds it."""

    key: str
    version: int
    facts: SinkProgress

    def move(self, log: Log, facts: SinkProgress) -> StoredProgress:
        """Store how far the sink is by now; QueryActive if another run has taken it over."""
        assert facts.done >= self.facts.done, "delivered is delivered"
        assert facts.resume >= self.facts.resume, "what was passed may be trimmed"
        if not log.compare_and_set(self.key, self.version, spaced_json(facts)):
            raise self.taken_over()
        return StoredProgress(self.key, self.version + 1, facts)

    def check_owned(self, log: Log) -> None:
        """Raise QueryActive if another run has taken the sink over."""
        found = log.get(self.key)
        if found is not None and found.version != self.version:
            raise self.taken_over()

    def taken_over(self) -> QueryActive:
        """The error of a run that is not the owner any more."""
        query = self.key.partition("/")[2].partition(".")[0]
        return QueryActive(
            f"the sink of query {query!r} was taken over by another run: this one delivers "
            "nothing more",
            query=query,
        )


def sink_of(stream: str) -> str:
    """What the progress is kept under of the sink that a stream feeds."""
    query, _, kind = stream.partition(".")
    return query if kind == "out" else stream


def newest_owner(log: Log, query: str) -> int:
    """The newest run that has fed a sink of a query; 0 if none has."""
    names = (key.partition("/")[2] for key in log.keys("sink"))
    own = (name for name in names if name.partition(".")[0] == query)
    found = (sink_progress(log, name) for name in own)
    return max((each.facts.owner for each in found if each is not None), default=0)


def sink_progress(log: Log, query: str) -> StoredProgress | None:
    """Read the progress of a query's sink; None if none was ever fed."""
    key = f"sink/{query}"
    found = log.get(key)
    if found is None:
        return None
    try:
        facts = read_as(SinkProgress, parse(found.value), key)
    except Malformed as error:
        raise MarkerDamaged(
            f"the progress of the sink of query {query!r} ({key} in the log's metadata) cannot be "
            f"read: {error}; start the query under another name, it delivers everything again",
            key=key,
        ) from error
    return StoredProgress(key, found.version, facts)


def new_sink_progress(query: str) -> StoredProgress:
    """The progress of a sink that nobody has fed yet; nothing is stored."""
    return StoredProgress(f"sink/{query}", 0, SinkProgress())


def take_over_sink(log: Log, query: str, run: int) -> StoredProgress:
    """Become the owner, as the run of this number: from here on no older one can move the progress.

    A run that is the owner already stays it, so it may begin again after an error that passes.
    QueryActive if a newer run has the sink.
    """
    while True:
        stored = sink_progress(log, query) or new_sink_progress(query)
        if stored.facts.owner > run:
            raise stored.taken_over()
        if stored.facts.owner == run:
            return stored
        with suppress(QueryActive):  # the older one has just moved it: look again
            return stored.move(log, replace(stored.facts, owner=run))


def delivered(log: Log, query: str) -> Position | None:
    """The last marker whose rows a query's sink has got; None if it has none."""
    found = sink_progress(log, query)
    return None if found is None else found.facts.done


def taken(log: Log, readers: Collection[str]) -> Position:
    """The last marker whose rows all these readers, named by their vertex tags, have processed."""
    lasts = [log.last(vertex_tag) for vertex_tag in readers]
    return min(START if last is None else decode_marker(last).consumed for last in lasts)


class Amount(NamedTuple):
    """How much an instance has written in its life, or a part of it."""

    bytes: int = 0
    rows: int = 0

    def since(self, earlier: Amount) -> Amount:
        return Amount(self.bytes - earlier.bytes, self.rows - earlier.rows)

    def is_within(self, bound: Amount, pieces: int = 1) -> bool:
        return self.bytes * pieces <= bound.bytes and self.rows * pieces <= bound.rows


class _Commits(NamedTuple):
    """Some commits that follow each other."""

    marker: Position  # of the last
    upto: Amount  # that was written by then


class _Advance(NamedTuple):
    """What was taken when somebody looked and found that it had become more."""

    at_s: float
    taken: Amount


class Backlog:
    """What one instance of a vertex has committed and those behind it have not taken yet."""

    def __init__(
        self,
        taken_upto: Callable[[], Position | None],
        bytes_max: int,
        clock: Clock,
        pace_s: float | None = None,
        small_rows: int = SMALL_ROWS,
    ) -> None:
        """`taken_upto` gives the marker up to which all was taken; None: nobody is waited for.

        With `pace_s` what is not little is at most what is taken in twice so many seconds, as long
        as it waits then. By its age alone a fast writer could give a slow reader in one second what
        takes that one a minute. Nobody is seen to take more often than they commit, so the seconds
        are to be as many as their commits are apart.
        """
        self._taken_upto = taken_upto
        self._bytes_max = bytes_max
        self._pace_s = pace_s
        self._clock = clock
        self._little = (
            Amount(bytes_max, sys.maxsize)
            if pace_s is None
            else Amount(min(SMALL_BYTES, bytes_max), small_rows)
        )
        self._waiting: deque[_Commits] = deque()
        self._written = Amount()
        self._looked_s = float("-inf")
        self._advances = deque([_Advance(clock.monotonic_s(), Amount())])  # the last ones

    def add(self, marker: Position, written: Amount) -> None:
        """Note a commit, and how much was written for those who are waited for by then.

        One that wrote nothing is not waited for: a sink may never hear of it.
        """
        if written == self._written:
            return
        before = self._waiting[-2].upto if len(self._waiting) > 1 else self._taken
        if self._waiting and written.since(before).is_within(self._little, PIECES):
            self._waiting.pop()
        self._waiting.append(_Commits(marker, written))
        self._written = written

    def is_full(self) -> bool:
        """Whether there is so much to take that the vertex should wait."""
        if self._waits.is_within(self._little):
            return False
        self._look()
        return not self._waits.is_within(self._most)

    def is_enough(self, rows: int) -> bool:
        """Whether so many rows are as many as the next commit should have."""
        if rows <= self._most.rows // AT_ONCE:
            return False
        if self._pace_s is not None:
            self._look()  # also where little waits: who takes all at once may have more
        return rows > self._most.rows // AT_ONCE

    @property
    def _taken(self) -> Amount:
        return self._advances[-1].taken

    @property
    def _waits(self) -> Amount:
        return self._written.since(self._taken)

    @property
    def _most(self) -> Amount:
        """What may wait by now."""
        if self._pace_s is None:
            return self._little
        first, last = self._advances[0], self._advances[-1]
        lately = last.taken.since(first.taken)
        share = 2 * self._pace_s / max(last.at_s - first.at_s, self._pace_s)
        return Amount(
            min(max(int(share * lately.bytes), self._little.bytes), self._bytes_max),
            max(int(share * lately.rows), self._little.rows),
        )

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        upto, taken = self._taken_upto(), self._taken
        while self._waiting and (upto is None or self._waiting[0].marker <= upto):
            taken = self._waiting.popleft().upto
        if taken == self._taken:
            return
        before = now_s - (self._pace_s or 0.0)
        while len(self._advances) > 1 and self._advances[1].at_s <= before:
            self._advances.popleft()
        self._advances.append(_Advance(now_s, taken))
