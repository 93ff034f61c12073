"""Open writes: rows of Spark tasks that only the driver's markers make visible, all at once.

Whoever dies between the rows and the markers leaves rows that nobody will ever commit. Readers
would keep them, and the place where they begin, for ever. So an open write is listed in the log's
metadata, under `writes/<stream>`, with the process that it depends on. Everything it appends, rows
and markers, is fenced by the number of its place in that list. Anybody may clear up after a write:

    1. fence   register the next number of its place: from here on it can append nothing
    2. drop    for each of its producers with rows that no marker covers, append a marker that
               commits none: readers let go of the rows
    3. strike  take it off the list

This is safe beside the write itself, in error, twice and at once. If the write's markers came
before the fence, there is nothing to drop; if not, they are refused, and the job fails with nothing
visible. So when a write counts as dead is a question of patience only: at once if its process is
known to have ended, and after a week if that cannot be told.

A micro-batch of Structured Streaming is such a write too. Nobody plans it who could list it and
tell its tasks, so they list it together, by the name of their job. Whoever commits one clears up
after all others of the same sink that were listed before: they are tries of the same micro-batch,
or of earlier ones.

A write that was committed is fenced too before it is struck: a task that nobody waits for any more
would leave rows that nobody knows of.

Places are used again, so the list and the numbers do not grow with the jobs of a stream's life.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.clock import Clock, SystemClock
from penstock.errors import (
    DiskFull,
    Fenced,
    LogBusy,
    LogIOError,
    MarkerDamaged,
    OutcomeUnknown,
    StreamError,
    Trimmed,
)
from penstock.json_codec import Malformed, parse, read_as, spaced_json
from penstock.log.contract import UNKNOWN_RETRIES, Log, append_surely, register
from penstock.log.record import Entry, Fence, Position, Record, RecordKind
from penstock.names import check_any_name, own_name
from penstock.runtime.instances import next_instance
from penstock.runtime.markers import Marker
from penstock.runtime.processes import is_gone
from penstock.runtime.substreams import stream_tags
from penstock.stages.tags import marker_tag

READ_RECORDS = 256
AGE_US_MAX = 7 * 24 * 3_600 * 1_000_000
DROPPING_INSTANCE = 0  # no attempt has this number: such a marker commits nothing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """A write that has begun: its rows may be in the log, its markers are not known to be."""

    stream: str
    id: str
    place: int
    number: int  # of the fence
    owner: str  # the process without which nobody will commit; empty: not known
    begun_us: int
    begun_at: int  # no row of it is at or before this position
    job: str = ""  # whose tasks list it together; empty: its driver did
    sink: str = ""  # of a streaming query

    @property
    def fence(self) -> Fence:
        return Fence(_fenced_name(self.stream, self.place), self.number)

    def producer(self, partition: int) -> str:
        """Who appends the rows of a partition."""
        return own_name(self.id, "write", partition)

    def is_dead(self, now_us: int) -> bool:
        return is_gone(self.owner) or now_us - self.begun_us > AGE_US_MAX


def begin_write(
    log: Log,
    stream: str,
    owner: str,
    clock: Clock | None = None,
    *,
    job: str = "",
    sink: str = "",
) -> OpenWrite:
    """List a new write, after clearing up behind dead ones; its tasks may append from here on.

    With the name of a `job` it may be listed already, by another task of the job.
    """
    now_us = (clock or SystemClock()).now_us()
    clear_dead_writes(log, stream, now_us)
    identity = uuid.uuid4().hex

    def is_it(write: OpenWrite) -> bool:
        return write.job == job if job else write.id == identity

    def join(there: list[OpenWrite]) -> list[OpenWrite]:
        if any(map(is_it, there)):
            return there
        taken = {write.place for write in there}
        place = next(place for place in range(len(taken) + 1) if place not in taken)
        number = next_instance(log, _fenced_name(stream, place))
        begun_at = int(log.tail())
        return [
            *there,
            OpenWrite(stream, identity, place, number, owner, now_us, begun_at, job, sink),
        ]

    while True:
        write = next(filter(is_it, _change(log, stream, join)))
        try:
            register(log, write.fence.vertex, write.number, again=True)
        except Fenced:
            # Somebody was late who cleared up after an earlier one at this place; or he has begun
            # to clear up after this one, and other tasks have staged rows that he did not get to.
            clear_write(log, write)
        else:
            return write


def commit_write(log: Log, write: OpenWrite, markers: Sequence[Entry]) -> None:
    """Make the rows of a write visible, all or none; Fenced if somebody has cleared up after it."""
    committed_at = None
    try:
        if markers:
            committed_at = _append_all(log, write, markers)
    except Fenced as error:
        raise Fenced(
            f"this write to stream {write.stream} was given up: it was taken for dead, or its "
            "outcome could not be known. Nothing of it is visible: run the job again",
            **error.details,
        ) from error
    close_write(log, write, committed_at)


def close_write(log: Log, write: OpenWrite, committed_at: Position | None = None) -> None:
    """Clear up after a write whose commit is decided, as far as that is possible just now.

    A failure is only noted: whoever is told of one would do the write again.
    """
    try:
        clear_write(log, write, committed_at)
    except StreamError as error:
        logger.warning("a write to stream %s is done and still listed: %s", write.stream, error)


def clear_write(log: Log, write: OpenWrite, committed_at: Position | None = None) -> None:
    """Make sure that nothing more of a write becomes visible, and that nobody waits for it.

    `committed_at` is where its own markers are known to be: what is before them needs no look.
    """
    with suppress(Fenced):  # somebody was here before
        register(log, write.fence.vertex, write.number + 1)
    for producer in _uncovered(log, write, committed_at or Position(write.begun_at)):
        body = Marker(vertex=producer, instance=DROPPING_INSTANCE, epoch=1, timeless=True).encode()
        tags = (marker_tag(write.stream),)
        with suppress(Trimmed):  # somebody was here before, long ago
            append_surely(
                log, [Entry(RecordKind.MARKER, tags, producer, DROPPING_INSTANCE, 0, body)]
            )
    _strike(log, write)


def clear_dead_writes(log: Log, stream: str, now_us: int | None = None) -> None:
    """Clear up after the writes to a stream that nobody will commit any more."""
    now_us = SystemClock().now_us() if now_us is None else now_us
    for write in open_writes(log, stream):
        if write.is_dead(now_us):
            logger.warning("a write to stream %s was left by a process that ended", stream)
            clear_write(log, write)


def open_writes(log: Log, stream: str) -> list[OpenWrite]:
    """The writes to a stream that have begun and are not known to be over."""
    found = log.get(_list_key(stream))
    return [] if found is None else _decode(stream, found.value)


def _append_all(log: Log, write: OpenWrite, markers: Sequence[Entry]) -> Position | None:
    """Append the markers of a write; return where the last one is, if it is still there."""
    is_unknown = False
    for _ in range(UNKNOWN_RETRIES + 1):
        try:
            return log.append(markers, write.fence)[-1]
        except OutcomeUnknown:
            is_unknown = True
        except Trimmed:
            return None  # its own earlier try went through, and was read and trimmed since
        except (LogBusy, LogIOError, DiskFull):
            if not is_unknown:
                raise
            break  # it says nothing about the try before
    return _settle_commit(log, write, markers)


def _settle_commit(log: Log, write: OpenWrite, markers: Sequence[Entry]) -> Position | None:
    """Find out whether markers are in the log; return where the last one is, if it still is.

    Behind a fence nothing can be appended any more, and the log still knows what was.
    """
    try:
        with suppress(Fenced):
            register(log, write.fence.vertex, write.number + 1)
        with suppress(Trimmed):
            return log.append(markers, write.fence)[-1]
    except (LogBusy, LogIOError, DiskFull, OutcomeUnknown) as error:
        raise OutcomeUnknown(
            f"whether the rows of this write to stream {write.stream} are visible could not be "
            f"found out, as the log fails ({error.message}). Look for them before you run the job "
            "again",
            stream=write.stream,
        ) from error
    return None


def _uncovered(log: Log, write: OpenWrite, after: Position) -> list[str]:
    """The producers of a write with rows after a position that no marker has come for."""
    producers: set[str] = set()
    prefix = own_name(write.id, "write") + "."
    page: list[Record]
    tags = stream_tags(log, write.stream)
    while page := log.read(tags, after, READ_RECORDS):
        for record in page:
            if record.kind is RecordKind.MARKER:
                producers.discard(record.producer)
            elif record.producer.startswith(prefix):
                producers.add(record.producer)
        after = page[-1].position
    return sorted(producers)


def _strike(log: Log, write: OpenWrite) -> None:
    _change(log, write.stream, lambda there: [each for each in there if each.id != write.id])


def _change(
    log: Log, stream: str, change: Callable[[list[OpenWrite]], list[OpenWrite]]
) -> list[OpenWrite]:
    key = _list_key(stream)
    while True:
        found = log.get(key)
        before = [] if found is None else _decode(stream, found.value)
        writes = change(before)
        if writes == before:
            return writes
        if log.compare_and_set(key, 0 if found is None else found.version, spaced_json(writes)):
            return writes


def _decode(stream: str, value: bytes) -> list[OpenWrite]:
    try:
        return list(read_as(tuple[OpenWrite, ...], parse(value), "writes"))
    except Malformed as error:
        raise MarkerDamaged(
            f"the list of open writes to stream {stream} cannot be read ({error}): run "
            "`penstock fsck`",
            stream=stream,
        ) from error


def _list_key(stream: str) -> str:
    return f"writes/{check_any_name(stream, 'stream')}"


def _fenced_name(stream: str, place: int) -> str:
    owner, _, kind = stream.partition(".")  # a name has three parts at most
    return own_name(owner, f"{kind}_write" if kind else "write", place)
