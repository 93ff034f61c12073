"""Retention: cutting off the old end of a stream that people named.

Such a stream is kept until somebody says otherwise: the log cannot know who will read it. A cut
runs between two epochs, so a reader never sees a part of one, and never takes rows that a query of
this log has still to read. Streams that a query made for itself are trimmed by it, and by nobody
else. Readers elsewhere, such as Spark queries with offsets of their own, are
told when rows that they ask for are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from penstock.log.contract import Log
from penstock.log.record import START, Position, Record, RecordKind
from penstock.names import check_name
from penstock.runtime.queries import needed_query, stored_names
from penstock.runtime.staging import open_writes
from penstock.runtime.streams import StreamFacts, describe_stream
from penstock.runtime.trimming import low_water
from penstock.stages.program import is_fed
from penstock.stages.tags import marker_tag

READ_RECORDS = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a stream can be cut, what goes, and which query is in the way of cutting more."""

    stream: str
    upto: Position
    epochs: int
    held_back_by: str | None
    rows_upto: Position  # the last marker by then that came for rows


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
    markers = _records(log, (marker_tag(planned.stream),))
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
    for record in _records(log, tags):
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


def _records(log: Log, tags: tuple[str, ...]) -> Iterator[Record]:
    after = START
    while page := log.read(tags, after, READ_RECORDS):
        yield from page
        after = page[-1].position
