"""Everything that ever happened to a log, kept apart from it: trims forget nothing here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.errors import Trimmed
from penstock.log.memory import MemoryStore
from penstock.log.record import Entry, Fence, Position


class Seen(NamedTuple):
    """One record as it entered the log."""

    position: int
    kind: str  # DATA, CHANGE, MARKER
    tags: tuple[str, ...]
    producer: str
    instance: int
    sequence: int
    body: bytes


class Registration(NamedTuple):
    """A metadata write that named the newest instance of a vertex, and the log's tail then."""

    vertex: str
    instance: int
    tail: int


class Trim(NamedTuple):
    """A tag that was trimmed, how far, and the log's tail then."""

    tag: str
    upto: int
    tail: int


class RecordedStore(MemoryStore):
    """A log in memory that also notes, for the checks, each record, trim and new instance."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Seen] = []
        self.registrations: list[Registration] = []
        self.trims: list[Trim] = []
        self.trimmed_retries = 0

    def append(
        self, entries: Sequence[Entry], fence: Fence | None, clock: Clock | None
    ) -> tuple[tuple[Position, ...], bool]:
        try:
            positions, new = super().append(entries, fence, clock)
        except Trimmed:
            self.trimmed_retries += 1
            raise
        if new:
            for position, entry in zip(positions, entries, strict=True):
                assert isinstance(entry.body, bytes)
                self.history.append(
                    Seen(
                        position,
                        entry.kind.name,
                        entry.tags,
                        entry.producer,
                        entry.instance,
                        entry.sequence,
                        entry.body,
                    )
                )
        return positions, new

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        super().trim(tag, upto, fence)
        self.trims.append(Trim(tag, min(upto, self.tail), self.tail))

    def set(self, key: str, value: bytes, expected: int | None) -> int:
        version = super().set(key, value, expected)
        if version and key.startswith("instance/"):
            vertex = key.removeprefix("instance/")
            self.registrations.append(Registration(vertex, int(value), self.tail))
        return version
