"""Committed rows by ranges of the log, so that many tasks can read one stream side by side.

A marker commits the records of its producer and instance since that producer's previous marker.
Whether a record is committed therefore depends on one thing after it: its producer's next marker.
So a task can take any range of the log alone: it reads the range's records and markers, and then
only markers, from the end of its range on, until the producers it still has records of are settled.
Together the ranges give what one reader of the whole stream gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from penstock.log.contract import Log
from penstock.log.record import START, Position, Record, RecordKind
from penstock.runtime.streams import StreamFacts
from penstock.runtime.substreams import stream_tags
from penstock.stages.tags import marker_tag

READ_RECORDS = 512
RANGE_POSITIONS = 4_096  # how much of the log is worth a task of its own
RANGES_MAX = 64


@dataclass(frozen=True, slots=True)
class LogRange:
    """The records of (low, high], as far as a marker in (after, upto] commits them."""

    low: int
    high: int
    after: int
    upto: int
    promised: int  # nothing behind this may be trimmed before it is read


def plan_ranges(
    low: int, after: int, upto: int, ranges: int | None, kept_from: int = START
) -> list[LogRange]:
    """Cut (low, upto] into ranges of equal length; none if nothing can be in there.

    `kept_from` is how far the stream is trimmed by now. Tasks read the ranges later, one after the
    other, and a stream may be trimmed in between: all of them promise the same.
    """
    low = max(low, kept_from)
    promised = max(after, kept_from)
    span = upto - low
    if span <= 0 or after >= upto:
        return []
    count = min(span, RANGES_MAX, -(-span // RANGE_POSITIONS)) if ranges is None else ranges
    edges = [low + span * index // count for index in range(count + 1)]
    return [
        LogRange(first, last, after, upto, promised)
        for first, last in pairwise(edges)
        if last > first
    ]


def committed(log: Log, facts: StreamFacts, part: LogRange) -> Iterator[tuple[Record, Record]]:
    """Yield each committed record of a range with the marker that commits it.

    It is read whole or ends with `Trimmed`.
    """
    pending: dict[str, list[Record]] = {}
    promised = Position(part.promised)
    tags = stream_tags(log, facts.name)  # as they are by now: the range was planned before
    for record in records(log, tags, part.low, part.high, promised):
        if record.kind is not RecordKind.MARKER:
            pending.setdefault(record.producer, []).append(record)
        else:
            yield from _released(pending.pop(record.producer, []), record, part)
    later = records(log, (marker_tag(facts.name),), part.high, part.upto, promised)
    while pending and (marker := next(later, None)) is not None:
        yield from _released(pending.pop(marker.producer, []), marker, part)


def _released(
    pending: list[Record], marker: Record, part: LogRange
) -> Iterator[tuple[Record, Record]]:
    if marker.position > part.after:
        for record in pending:
            if record.instance == marker.instance:  # others are a dead instance's leftovers
                yield record, marker


def records(
    log: Log, tags: tuple[str, ...], after: int, upto: int, promised: Position | None = None
) -> Iterator[Record]:
    """The records with any of the tags in (after, upto], in order.

    With `promised`, none of those after that position may have been trimmed.
    """
    while after < upto:
        come_to = None if promised is None else max(promised, Position(after))
        page = log.read(tags, Position(after), READ_RECORDS, untrimmed_after=come_to)
        for record in page:
            if record.position > upto:
                return
            yield record
        if len(page) < READ_RECORDS:
            return
        after = page[-1].position


def lowest_needed(log: Log, facts: StreamFacts, after: int, upto: int) -> int:
    """Where to begin so as not to miss what markers in (after, upto] commit.

    A record may stand before `after` and be committed behind it, but never before its producer's
    last marker at or before `after`.
    """
    if after <= START:
        return START
    last: dict[str, int] = {}
    lowest = upto
    for marker in records(log, (marker_tag(facts.name),), START, upto):
        if marker.position <= after:
            last[marker.producer] = marker.position
        else:
            lowest = min(lowest, last.get(marker.producer, START))
            last.setdefault(marker.producer, marker.position)
            if lowest == START:
                break
    return lowest


def trimmed_upto(log: Log, facts: StreamFacts) -> int:
    """How far the stream is no longer kept."""
    return max(log.trimmed(tag) for tag in facts.tags)


def rows_trimmed_upto(log: Log, facts: StreamFacts) -> int:
    """The last rows that are no longer kept were committed here, or before; what was trimmed behind
    this are markers without rows."""
    return max(log.trimmed(tag) for tag in facts.tags if tag != marker_tag(facts.name))


def position_at(log: Log, facts: StreamFacts, time_us: int) -> int:
    """The last marker that the log took at or before a moment; 0 if there was none.

    Times are those of the log's clock. Where it was set back, several places of the log may fit,
    and one of them is the answer.
    """
    tag = (marker_tag(facts.name),)
    low, high = 0, int(log.tail())  # the answer is in [low, high]
    while low < high:
        middle = (low + high) // 2
        found = log.read(tag, Position(middle), 1)
        if found and found[0].time_us <= time_us:
            low = found[0].position
        else:
            high = middle
    return low
