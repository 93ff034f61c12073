"""Retention: cutting off the old end of a stream that people named.

Such a stream is kept until somebody says otherwise: the log cannot know who will read it. A cut
runs between two epochs, so a reader never sees a part of one, and never takes rows that a query of
this log has still to read. Streams that a query made for itself are trimmed by it, and by nobody
else. Readers elsewhere, such as Spark queries with offsets of their own, are
told when rows that they ask for are gone.

What somebody says once and for all is the stream's retention, kept under `retention/<stream>`:
rows go when every registered reader has them, when they are old, or when they are many. The
vertices that write or read the stream see to it when they trim. Registered is every query that is
stored in the log, also while it is stopped: it holds the stream until it goes on. No body is read
for any of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from penstock.arguments import check_integer, check_type
from penstock.clock import Clock
from penstock.errors import InvalidArgument
from penstock.json_codec import Malformed, parse, read_as, spaced_json
from penstock.log.contract import Log
from penstock.log.record import START, Head, Position, RecordKind
from penstock.names import check_name
from penstock.runtime.queries import needed_query, stored_names
from penstock.runtime.staging import open_writes
from penstock.runtime.streams import StreamFacts, describe_stream
from penstock.runtime.trimming import low_water
from penstock.stages.program import is_fed
from penstock.stages.tags import marker_tag

READ_RECORDS = 256
BOUND_MAX = (1 << 62) - 1
LOOK_S = 1.0  # between two looks at what streams hold, at the least,
LOOK_SHARE = 0.05  # and of a thread's time for them, at the most


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a stream can be cut, what goes, and which query is in the way of cutting more."""

    stream: str
    upto: Position
    epochs: int
    held_back_by: str | None
    rows_upto: Position  # the last marker by then that came for rows


@dataclass(frozen=True, slots=True)
class Retention:
    """Which rows of a stream may go: those for which one of these is true. For ever: none is."""

    until_consumed: bool = False  # by every query of the log that reads the stream
    age_s: int | None = None
    bytes_max: int | None = None  # as stored; the epoch in which they begin stays whole

    def __post_init__(self) -> None:
        check_type(self.until_consumed, bool, "until_consumed", "True or False")
        for name, bound in (("age_s", self.age_s), ("bytes_max", self.bytes_max)):
            if bound is not None:
                check_integer(bound, name, 0, BOUND_MAX)

    @property
    def is_for_ever(self) -> bool:
        return not self.until_consumed and self.age_s is None and self.bytes_max is None


def set_retention(log: Log, stream: str, retention: Retention) -> None:
    """Say from now on how long the rows of a stream stay."""
    check_type(log, Log, "log", "a log, such as open_log() returns")
    check_type(retention, Retention, "retention", "a Retention")
    describe_stream(log, check_name(stream, "stream"))
    log.put(_key(stream), spaced_json(retention))


def retention_of(log: Log, stream: str) -> Retention:
    """How long the rows of a stream stay; for ever where nobody has said anything."""
    found = log.get(_key(stream))
    try:
        return Retention() if found is None else read_as(Retention, parse(found.value), stream)
    except (Malformed, InvalidArgument):
        return Retention()  # of another version: what it does not understand it keeps


def _key(stream: str) -> str:
    return f"retention/{stream}"


def retain(log: Log, stream: str, now_us: int) -> Cut | None:
    """Let go of what a stream's retention does not keep; None if it keeps all."""
    retention = retention_of(log, stream)
    if retention.is_for_ever:
        return None
    plans = []
    facts = describe_stream(log, stream)
    if retention.until_consumed and _least_read(log, facts)[1] is not None:
        plans.append(plan_cut(log, stream))
    if retention.age_s is not None:
        plans.append(plan_cut(log, stream, before_us=now_us - retention.age_s * 1_000_000))
    if retention.bytes_max is not None:
        first = _first_of_newest(log, facts.tags, retention.bytes_max)
        plans.append(plan_cut(log, stream, before=first))
    furthest = max(plans, key=lambda plan: plan.upto, default=None)
    if furthest is not None and furthest.epochs:
        cut(log, furthest)
    return furthest


class Retainer:
    """Looks after the retention of some streams, so seldom that it costs little.

    What streams hold has to be counted for some retentions, which takes the longer the more it is.
    """

    def __init__(self, log: Log, streams: Sequence[str], clock: Clock) -> None:
        self._log, self._streams, self._clock = log, streams, clock
        self._due_s = 0.0

    def __call__(self) -> None:
        """Let go of what is not kept, if it is time to look."""
        began_s = self._clock.monotonic_s()
        if began_s < self._due_s:
            return
        for stream in self._streams:
            retain(self._log, stream, self._clock.now_us())
        ended_s = self._clock.monotonic_s()
        self._due_s = ended_s + max(LOOK_S, (ended_s - began_s) / LOOK_SHARE)


def _first_of_newest(log: Log, tags: tuple[str, ...], bytes_max: int) -> Position:
    """Where the records at the end of a stream begin that have no more than so many bytes."""
    over = sum(head.body_bytes for head in _heads(log, tags)) - bytes_max
    end = START
    for head in _heads(log, tags):
        if over <= 0:
            return head.position
        over -= head.body_bytes
        end = head.position
    return Position(end + 1)


def plan_cut(
    log: Log, stream: str, *, before: Position | None = None, before_us: int | None = None
) -> Cut:
    """Find the last border of epochs before a position, or a time, that every query has passed."""
    if not is_fed(stream):
        check_name(stream, "stream")
    newest = log.last(marker_tag(stream))
    facts = describe_stream(log, stream)  # then it names every substream with rows up to `newest`
    limit, query = _least_read(log, facts)
    wanted = START if newest is None else newest.position
    if before is not None:
        wanted = min(wanted, Position(max(START, before - 1)))
    if limit is None or limit >= wanted:
        limit, query = wanted, None
    upto, epochs, rows_upto = _border(log, facts.tags, limit, before_us)
    return Cut(stream, upto, epochs, query, rows_upto)


def cut(log: Log, planned: Cut) -> None:
    """Trim the stream as planned.

    Rows first, and only as far as there are any: so the log can tell a reader that stands before
    the cut whether it misses rows, or only markers that had none.
    """
    facts = describe_stream(log, planned.stream)
    over = _writes_that_are_over(log, planned)
    for tag in facts.tags:
        upto = planned.upto if tag == marker_tag(facts.name) else planned.rows_upto
        if upto > log.trimmed(tag):
            log.trim(tag, upto)
    log.forget(over)


def _writes_that_are_over(log: Log, planned: Cut) -> set[str]:
    """The producers of batch jobs whose markers go: each job has its own, and they append no more.

    Whoever should try all the same is refused by the fence of the write.
    """
    open_ids = {write.id for write in open_writes(log, planned.stream)}
    markers = _heads(log, (marker_tag(planned.stream),))
    gone = takewhile(lambda marker: marker.position <= planned.upto, markers)
    return {
        marker.producer
        for marker in gone
        if marker.producer.split(".")[1:2] == ["write"]
        and marker.producer.split(".")[0] not in open_ids
    }


def _least_read(log: Log, stream: StreamFacts) -> tuple[Position | None, str | None]:
    """How far the slowest query that reads a stream has come, and which it is."""
    marks: list[tuple[Position, str]] = []
    for name in stored_names(log):
        stored = needed_query(log, name)
        readers = [
            vertex.vertex_tag
            for vertex in stored.program.vertices
            if not set(stream.tags).isdisjoint(vertex.input_tags)
        ]
        if readers:
            marks.append((low_water(log, readers), name))
    return min(marks, default=(None, None))


def _border(
    log: Log, tags: tuple[str, ...], limit: Position, before_us: int | None
) -> tuple[Position, int, Position]:
    """Up to where everything belongs to epochs that ended by a position and a time; how many these
    are; and the marker of the last one with rows.
    """
    waiting: dict[str, Position] = {}  # by producer: its first row that no marker covers yet
    markers: list[tuple[Position, Position | None]] = []  # each with the first row it came for
    epochs = 0  # before those of `markers`
    rows_upto = START
    end = limit
    for record in _heads(log, tags):
        is_marker = record.kind is RecordKind.MARKER
        is_young = is_marker and before_us is not None and record.time_us >= before_us
        if record.position > limit or is_young:
            end = min(end, Position(record.position - 1))
            break
        if is_marker:
            markers.append((record.position, waiting.pop(record.producer, None)))
            if not waiting:  # the end is not before this
                epochs += len(markers)
                rows_upto = _last_with_rows(markers, rows_upto)
                markers.clear()
        else:
            waiting.setdefault(record.producer, record.position)
    end = min([end, *(Position(first - 1) for first in waiting.values())])
    # An epoch that reaches over the end stays whole, and may so lower the end into an older one.
    while markers and markers[-1][0] > end:
        _, first = markers.pop()
        end = end if first is None else min(end, Position(first - 1))
    return end, epochs + len(markers), _last_with_rows(markers, rows_upto)


def _last_with_rows(markers: list[tuple[Position, Position | None]], earlier: Position) -> Position:
    return next((at for at, first in reversed(markers) if first is not None), earlier)


def _heads(log: Log, tags: tuple[str, ...]) -> Iterator[Head]:
    after = START
    while page := log.heads(tags, after, READ_RECORDS):
        yield from page
        after = page[-1].position
