"""What a vertex has written that those behind it have not taken yet: it waits if that is much.

Whoever feeds a sink outside the log keeps its progress in the log's metadata, under `sink/<query>`,
or `sink/<stream>` for one of several sinks; the vertices of a later stage have theirs in their
markers. A vertex looks there before it takes
more input, once much of its output has not been taken: so who is slow slows the query, and the
stream between them stays bounded. Between stages it is bounded by time too: rows that wait long are
late news, and of those that are small in the log many seconds of event time would come to the state
of who reads them, from one part of the input and not yet from the other. Nobody waits for others: a
stream that people named is read by anyone, in their own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from penstock.clock import Clock
from penstock.errors import MarkerDamaged, QueryActive
from penstock.json_codec import Malformed, parse, read_as, spaced_json
from penstock.log.contract import Log
from penstock.log.record import START, Position
from penstock.runtime.markers import decode_marker

LOOK_S = 0.05  # how often a vertex that waits looks again
PIECES = 64  # into which the bounds are divided: commits that are smaller are remembered together
WAITING_S_MAX = 1.0  # that rows wait for the next stage
SMALL_BYTES = 4 << 20  # which may wait longer: there is nothing to gain


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


class _Commits(NamedTuple):
    """Some commits that follow each other."""

    marker: Position  # of the last
    bytes: int  # that were written up to it
    first_s: float  # when the first of them was


class Backlog:
    """What one instance of a vertex has committed and those behind it have not taken yet."""

    def __init__(
        self,
        taken_upto: Callable[[], Position | None],
        bytes_max: int,
        clock: Clock,
        seconds_max: float = inf,
    ) -> None:
        """`taken_upto` gives the marker up to which all was taken; None: nobody is waited for.

        What is not little waits no longer than `seconds_max`.
        """
        self._taken_upto = taken_upto
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._waiting: deque[_Commits] = deque()
        self._taken_bytes = self._written_bytes = 0
        self._looked_s = float("-inf")

    def add(self, marker: Position, written_bytes: int) -> None:
        """Note a commit, and how much the instance has written for them in its life by then.

        One that wrote nothing is not waited for: a sink may never hear of it.
        """
        if written_bytes == self._written_bytes:
            return
        first_s = self._clock.monotonic_s()
        before = self._waiting[-2].bytes if len(self._waiting) > 1 else self._taken_bytes
        if self._waiting and written_bytes - before < self._bytes_max / PIECES:
            begun_s = self._waiting[-1].first_s
            if first_s - begun_s < self._seconds_max / PIECES or len(self._waiting) > 2 * PIECES:
                self._waiting.pop()
                first_s = begun_s
        self._waiting.append(_Commits(marker, written_bytes, first_s))
        self._written_bytes = written_bytes

    def is_full(self) -> bool:
        """Whether there is so much to take that the vertex should wait."""
        now_s = self._clock.monotonic_s()
        if not self._is_much(now_s):
            return False
        if now_s - self._looked_s < LOOK_S:
            return True
        self._looked_s = now_s
        upto = self._taken_upto()
        while self._waiting and (upto is None or self._waiting[0].marker <= upto):
            self._taken_bytes = self._waiting.popleft().bytes
        return self._is_much(now_s)

    def _is_much(self, now_s: float) -> bool:
        waiting_bytes = self._written_bytes - self._taken_bytes
        if waiting_bytes > self._bytes_max:
            return True
        is_little = waiting_bytes <= SMALL_BYTES or not self._waiting
        return not is_little and now_s - self._waiting[0].first_s > self._seconds_max
