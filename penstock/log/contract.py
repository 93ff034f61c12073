"""What every log backend promises. `tests/log/contract.py` holds the tests that each one passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from penstock.errors import Fenced, OutcomeUnknown, SequenceConflict, Trimmed
from penstock.log.record import Append, Entry, Fence, Head, Position, Record, Versioned
from penstock.names import check_any_name

READ_LIMIT_MAX = 65_536
APPEND_ENTRIES_MAX = 4_096
TAGS_PER_RECORD_MAX = 1_024
METADATA_BYTES_MAX = 64 << 20
UNKNOWN_RETRIES = 8

Outcome: TypeAlias = tuple[Position, ...] | Fenced | SequenceConflict | Trimmed
"""What came of an append: its positions, or why there are none."""


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What one handle has done since it was opened; dashboards and benchmarks read only this."""

    appends: int
    records_appended: int
    bytes_appended: int
    records_read: int
    bytes_read: int
    syncs: int
    syncs_shared: int  # appends that another append's sync had already made durable
    fenced: int


class Log(ABC):
    """One totally ordered sequence of records, read by tag, with a small metadata store beside it.

    Positions start at 1 and are handed out in commit order, each once: whoever has read up to p
    will never find a new record at or before p. They are dense, but for those that a log which may
    lose its newest records leaves out after it did. A handle may be used by many threads.
    """

    disk: Path | None = None  # a folder on the disk that it is on, if it is on one

    @abstractmethod
    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        """Append all entries, or none, at consecutive positions and return these.

        When it returns, the entries are as durable as the log's level says and visible to readers.
        With a `fence` that is not the newest instance of its vertex nothing changes and `Fenced` is
        raised. Entries that are already there (all of them, with the same content) are not appended
        again; their first positions are returned, also to an instance that was fenced since. A mix
        of old and new entries, other content under an old sequence, or a sequence below the highest
        of its (producer, instance) that is not there, raises `SequenceConflict`; one that was there
        and has been trimmed since raises `Trimmed`.
        """

    def append_each(self, appends: Sequence[Append]) -> list[Outcome]:
        """Append as `append` does, many at once: each is whole or not at all, with its own outcome.

        One that is refused does not touch the others. They may share what costs time (a
        transaction, a sync); the later ones stand behind the earlier ones in the log. An error
        that is not an outcome is raised: then the outcome of all is unknown, and all are repeated.
        """
        outcomes: list[Outcome] = []
        for entries, fence in appends:
            try:
                outcomes.append(self.append(entries, fence))
            except (Fenced, SequenceConflict, Trimmed) as refusal:
                outcomes.append(refusal)
        return outcomes

    @abstractmethod
    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        """Return up to `limit` records that carry any of the tags, after a position, in order.

        Fewer than `limit` mean that there are no more: every record that was visible when the call
        began has been looked at. What is trimmed during the call shortens no page.

        A record that carries several of the tags comes once. Bodies are verified before they are
        returned and stay valid as long as the caller keeps them.

        With `untrimmed_after`, `Trimmed` is raised if one of the tags is trimmed beyond that
        position: a reader that has come so far is never led past records that it had still to read.
        """

    def heads(self, tags: Collection[str], after: Position, limit: int) -> list[Head]:
        """As `read`, without the bodies, which nobody has to fetch or verify for it."""
        return [
            Head(record.position, record.kind, record.producer, record.time_us, record.body.nbytes)
            for record in self.read(tags, after, limit)
        ]

    @abstractmethod
    def last(self, tag: str) -> Record | None:
        """Return the newest record with this tag, however long the log is."""

    @abstractmethod
    def tail(self) -> Position:
        """Return the position of the newest visible record, 0 in an empty log. Never falls.

        Of an open handle it cannot fail: it asks memory, neither a disk nor somebody else.
        """

    @abstractmethod
    def wait(self, after: Position, timeout_s: float) -> Position:
        """Block until the tail is past `after` or the time is over; return the tail."""

    def wake(self) -> None:  # noqa: B027 (a wait is over soon enough where it is not ended)
        """Let the waits of this process return before their time.

        One that is only just beginning may miss it, so who depends on it calls again.
        """

    @abstractmethod
    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        """Forget this tag of the records up to and including a position.

        A record without any tag left is gone, and its bytes are freed. The tail does not change.
        With a `fence` that is not the newest instance of its vertex nothing is forgotten and
        `Fenced` is raised: check and act are one, as in an append.
        """

    @abstractmethod
    def sync(self) -> None:
        """Let all that was done by now survive a power cut, whatever the log's level is.

        For those who are about to destroy something outside the log because of what is in it.
        """

    @abstractmethod
    def forget(self, producers: Collection[str]) -> None:
        """Forget the sequences of producers that append nothing any more.

        Of those with records that are not trimmed, nothing is forgotten.
        """

    @abstractmethod
    def trimmed(self, tag: str) -> Position:
        """Return how far a tag has been trimmed, 0 if never."""

    @abstractmethod
    def get(self, key: str) -> Versioned | None:
        """Return a metadata value, or None."""

    @abstractmethod
    def put(self, key: str, value: bytes) -> int:
        """Set a metadata value whatever it was; return its new version."""

    @abstractmethod
    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        """Set a value if the key has this version (0: it does not exist); return whether."""

    @abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Return the metadata keys below a prefix ('a/b' finds 'a/b' and 'a/b/c'), sorted."""

    @abstractmethod
    def statistics(self) -> LogStatistics:
        """Return this handle's counters."""

    @abstractmethod
    def close(self) -> None:
        """Release the handle. Closing twice is harmless; anything else then raises `LogClosed`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def append_surely(
    log: Log, entries: Sequence[Entry], fence: Fence | None = None
) -> tuple[Position, ...]:
    """Append, and again while the outcome is unknown: the entries' names make that harmless."""
    for _ in range(UNKNOWN_RETRIES):
        try:
            return log.append(entries, fence)
        except OutcomeUnknown:
            continue
    return log.append(entries, fence)


def instance_key(vertex: str) -> str:
    """Where a vertex's newest instance number lives in the metadata, as decimal digits."""
    return f"instance/{check_any_name(vertex, 'vertex')}"


def register(log: Log, vertex: str, instance: int, *, again: bool = False) -> None:
    """Register an instance that was handed out; every smaller one is fenced from here on.

    Raises `Fenced` if a number that is not smaller is registered: then this one comes too late, or
    somebody has it already. With `again` that somebody is the caller, to whom alone the number
    belongs and who may have registered it without being told so.
    """
    key = instance_key(vertex)
    while True:
        current = log.get(key)
        if again and current is not None and int(current.value) == instance:
            return
        if current is not None and int(current.value) >= instance:
            raise Fenced(
                f"instance {instance} of vertex {vertex} comes too late: instance "
                f"{int(current.value)} is registered; nothing was changed, this instance must stop",
                vertex=vertex,
                instance=instance,
                newest=str(int(current.value)),
            )
        if log.compare_and_set(key, current.version if current else 0, b"%d" % instance):
            return


def take_over(log: Log, vertex: str) -> int:
    """Register the next instance of a vertex for a program that is its own judge of when to begin;
    return its number.
    """
    key = instance_key(vertex)
    while True:
        current = log.get(key)
        instance = int(current.value) + 1 if current else 1
        if log.compare_and_set(key, current.version if current else 0, b"%d" % instance):
            return instance
