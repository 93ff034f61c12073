"""Everything that ever happened to a log, kept apart from it: trims forget nothing here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.log.record import Entry, Position

INSTANCES = "instance/"  # metadata keys that name the newest instance of a vertex
WRITES = "writes/"  # metadata keys that list open writes
SINKS = "sink/"  # metadata keys that hold the progress of a sink


class Seen(NamedTuple):
    """One record as it entered the log."""

    position: int
    kind: str  # DATA, CHANGE, MARKER
    tags: tuple[str, ...]
    producer: str
    instance: int
    sequence: int
    body: bytes

    @property
    def facts(self) -> dict[str, Any]:
        """What a marker says; not to be changed."""
        return _facts(self.body)


@lru_cache(maxsize=4_096)
def _facts(body: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(body)
    return facts


class Registration(NamedTuple):
    """A metadata write that named the newest instance of a vertex, and the log's tail then."""

    vertex: str
    instance: int
    tail: int


class Trim(NamedTuple):
    """A tag that was trimmed, how far, the log's tail then, who did it, and how many
    registrations there had been."""

    tag: str
    upto: int
    tail: int
    who: str
    registrations: int


class SinkNote(NamedTuple):
    """Progress of a sink that was noted, and how many trims there had been then."""

    key: str
    facts: dict[str, Any]
    trims: int


class Moment(NamedTuple):
    """How long each part of a history was at some time."""

    records: int
    registrations: int
    trims: int
    sinks: int


class History:
    """What handles of a log have done, in order, whichever log it is."""

    def __init__(self) -> None:
        self.records: list[Seen] = []
        self.registrations: list[Registration] = []
        self.trims: list[Trim] = []
        self.sinks: list[SinkNote] = []
        self.writes: dict[str, tuple[str, int]] = {}  # by id: whose number fences it, and which
        self.trimmed_retries = 0
        self._newest: dict[str, int] = {}
        self._last: dict[str, Seen] = {}
        self.kept = Moment(0, 0, 0, 0)

    @property
    def tail(self) -> int:
        return self.records[-1].position if self.records else 0

    def note_append(self, entries: Sequence[Entry], positions: Sequence[Position]) -> None:
        """Note an append that went through, unless it was a repetition."""
        if positions[-1] <= self.tail:
            return
        for position, entry in zip(positions, entries, strict=True):
            seen = Seen(
                position,
                entry.kind.name,
                entry.tags,
                entry.producer,
                entry.instance,
                entry.sequence,
                bytes(memoryview(entry.body)),
            )
            self.records.append(seen)
            if seen.kind == "MARKER":
                self._last[seen.producer] = seen

    def note_set(self, key: str, value: bytes) -> None:
        """Note a metadata write that went through."""
        if key.startswith(INSTANCES):
            vertex = key.removeprefix(INSTANCES)
            self.registrations.append(Registration(vertex, int(value), self.tail))
            self._newest[vertex] = int(value)
        elif key.startswith(WRITES):
            for each in json.loads(value):
                place = f"{each['stream']}.write.{each['place']}"
                self.writes[each["id"]] = (place, each["number"])
        elif key.startswith(SINKS):
            self.sinks.append(SinkNote(key, json.loads(value), len(self.trims)))

    def note_trim(self, tag: str, upto: Position, who: str) -> None:
        number = len(self.registrations)
        self.trims.append(Trim(tag, min(upto, self.tail), self.tail, who, number))

    def newest_instance(self, vertex: str, registrations: int | None = None) -> int:
        """The newest instance by now, or when there had been so many registrations."""
        if registrations is None:
            return self._newest.get(vertex, 0)
        earlier = self.registrations[:registrations]
        return max((each.instance for each in earlier if each.vertex == vertex), default=0)

    def last_marker(self, vertex: str) -> dict[str, Any] | None:
        """What the last marker of a vertex or producer says."""
        seen = self._last.get(vertex)
        return None if seen is None else seen.facts

    def markers_of(self, vertex: str, after: int) -> int:
        """How many markers a vertex has written behind a position."""
        found = (each for each in self.records if each.producer == vertex and each.position > after)
        return sum(each.kind == "MARKER" for each in found)

    def last_position(self, vertex: str) -> int:
        """Where the last marker of a vertex is."""
        return self._last[vertex].position if vertex in self._last else 0

    def has_ended(self, vertex: str) -> bool:
        """Whether the last marker of a vertex or producer says that it has no more."""
        last = self.last_marker(vertex)
        return last is not None and bool(last["ended"])

    def keep(self) -> None:
        """All that has happened by now is on the disk."""
        self.kept = Moment(
            len(self.records), len(self.registrations), len(self.trims), len(self.sinks)
        )

    def go_back(self) -> None:
        """Forget what came after the last `keep`: the log itself has lost it."""
        moment = self.kept
        del self.records[moment.records :]
        del self.registrations[moment.registrations :]
        del self.trims[moment.trims :]
        del self.sinks[moment.sinks :]
        self._newest = {each.vertex: each.instance for each in self.registrations}
        markers = [each for each in self.records if each.kind == "MARKER"]
        self._last = {each.producer: each for each in markers}
