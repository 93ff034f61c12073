"""Reading what is committed: the consumer's half of the marker protocol.

A marker commits every record of its producer *and instance* since that instance's previous marker.
A reader therefore keeps each producer's records until a marker of the same producer comes by. It
releases those of the marker's own instance, in log order, and drops the rest: a dead instance's
leftovers, which nobody will ever commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.errors import Trimmed
from penstock.log.contract import Log
from penstock.log.record import START, Position, Record, RecordKind

READ_RECORDS = 1_024

Tags = Collection[str]


@dataclass(frozen=True, slots=True)
class Release:
    """What one marker made visible: the unit in which committed input is consumed."""

    marker: Record
    records: tuple[Record, ...]


class CommittedReader:
    """Follows some tags of a log and hands out releases in the order of their markers.

    `after` is where to read on, `consumed` the last marker that was handed out in an earlier life:
    markers at or before it only clear what they once released.

    A reader that says where it stood gets all that follows: if some of it was trimmed before it was
    read, `take` raises `Trimmed`. One without `after` is new and begins with what is still there;
    from then on the same holds for it.

    Tags that may become more are given as a function. It is asked each time the log has grown,
    after its tail was read, and must then name every tag with records up to that tail.
    """

    def __init__(
        self,
        log: Log,
        tags: Tags | Callable[[], Tags],
        after: Position | None = None,
        consumed: Position = START,
    ) -> None:
        self._log = log
        self._find_tags = tags if callable(tags) else None
        self._known_tags: Tags = () if callable(tags) else tuple(sorted(set(tags)))
        self._cursor = START if after is None else after  # how far the log has been read
        self._begun_at = after  # nothing after it may be trimmed unread; None: not begun yet
        self._consumed = consumed
        self._pending: dict[str, list[Record]] = {}  # by producer: not covered by a marker yet
        self._ready: deque[Release] = deque()

    @property
    def consumed(self) -> Position:
        """The marker of the last release that was taken."""
        return self._consumed

    @property
    def resume(self) -> Position:
        """Where a reader that is to follow this one must begin.

        Before the lowest record that is still pending or not yet taken: resuming at the last
        consumed marker instead would skip records that stand before it and are committed after it.
        """
        waiting = [records[0].position for records in self._pending.values() if records]
        for release in self._ready:
            waiting.append((release.records[0] if release.records else release.marker).position)
        return Position(min(waiting, default=self._cursor + 1) - 1)

    def take(self) -> Release | None:
        """Return the next release, or None if nothing more is committed by now."""
        while not self._ready and self._advance():
            pass
        if not self._ready:
            return None
        release = self._ready.popleft()
        self._consumed = release.marker.position
        return release

    def is_drained(self) -> bool:
        """Whether everything visible in the log has been read and taken."""
        return not self._ready and self._cursor >= self._log.tail()

    def _advance(self) -> bool:
        # The tail is read first: what is visible up to it is then read, or has other tags.
        tail = self._log.tail()
        if self._cursor >= tail:
            return False
        records = self._read_page() if self._begun_at is not None else self._read_first_page()
        for record in records:
            if record.position > tail and self._find_tags is not None:
                self._cursor = tail  # from here on there may be records under a tag not known yet
                return True
            self._cursor = record.position
            if record.kind is RecordKind.MARKER:
                self._release(record)
            else:
                self._pending.setdefault(record.producer, []).append(record)
        if len(records) < READ_RECORDS:
            self._cursor = max(self._cursor, tail)
        return True

    def _read_first_page(self) -> list[Record]:
        while True:
            # Tags are trimmed one after the other: what is left before this is no longer whole.
            self._cursor = self._begun_at = max(self._log.trimmed(tag) for tag in self._tags())
            try:
                return self._read_page()
            except Trimmed:
                continue  # between the two calls: it begins with what is left now

    def _read_page(self) -> list[Record]:
        assert self._begun_at is not None
        come_to = max(self._cursor, self._begun_at)
        return self._log.read(self._tags(), self._cursor, READ_RECORDS, untrimmed_after=come_to)

    def _tags(self) -> Tags:
        return self._known_tags if self._find_tags is None else self._find_tags()

    def _release(self, marker: Record) -> None:
        pending = self._pending.pop(marker.producer, [])
        if marker.position <= self._consumed:
            return
        own = tuple(record for record in pending if record.instance == marker.instance)
        self._ready.append(Release(marker, own))
