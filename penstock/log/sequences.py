"""What each producer has appended, so that nothing is appended twice.

An append asks one thing about each (producer, instance) in it: the highest sequence so far. An
index of all names would answer, and would cost every append a third page. Instead a handle
remembers the answers it got and follows the log under the write lock, record by record. What it
does not know it looks up: table `producer` has the highest sequences up to the position
`log.noted`, which is never far behind the tail, and the few records after that have their own.

A name that is there already belongs to a retry, and is searched for from the tail backwards, where
retries find it. Who repeats more than that goes forward from one found name to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from penstock.errors import IndexDamaged
from penstock.log.record import Entry, Position
from penstock.log.validate import Prior

Name = tuple[str, int]  # a producer and its instance
NOTE_EVERY = 512  # positions: as many records are searched for a name that was not asked for yet
_NAMES_MAX = 16_384

# By name: left to itself, SQLite looks through all records where it can group them on the way.
FROM_DEAD = "FROM record INDEXED BY record_dead WHERE tags_live = 0"
_OF_PRODUCER = "producer = ?1 AND instance = ?2"
_NOTED = f"SELECT sequence, trimmed, seal FROM producer WHERE {_OF_PRODUCER}"
_SINCE = (
    "SELECT coalesce(max(sequence), -1) FROM record "
    f"WHERE position > (SELECT noted FROM log) AND {_OF_PRODUCER}"
)
_LAST_DEAD = f"SELECT coalesce(max(sequence), -1) {FROM_DEAD} AND {_OF_PRODUCER}"
_FIND = (
    f"SELECT position, sequence, kind, tags, length, checksum FROM record WHERE {_OF_PRODUCER} "
    "AND tags_live > 0 AND "
)
_BACKWARDS = f"{_FIND} sequence <= ?3 ORDER BY position DESC LIMIT 1"
_ONWARDS = f"{_FIND} sequence >= ?3 AND position > ?4 ORDER BY position LIMIT 1"


def _note(trimmed: str, records: str) -> str:
    return (
        "INSERT INTO producer SELECT producer, instance, max(sequence), "
        f"{trimmed}, seal(producer, instance, max(sequence), {trimmed}) "
        f"{records} GROUP BY producer, instance "
        "ON CONFLICT DO UPDATE SET sequence = max(sequence, excluded.sequence), "
        "trimmed = max(trimmed, excluded.trimmed), seal = seal(producer, instance, "
        "max(sequence, excluded.sequence), max(trimmed, excluded.trimmed))"
    )


_NOTE_SINCE = _note("-1", "FROM record WHERE position > (SELECT noted FROM log)")
_NOTE_TRIMMED = _note("max(sequence)", f"{FROM_DEAD} AND position < ?")


class Found(NamedTuple):
    """The record that has an entry's name."""

    name: Name
    sequence: int
    position: Position
    content: tuple[int, str, int, int]  # kind, tags, length and checksum of the body


class Sequences:
    """The highest sequence of each producer, as one connection to the index knows them."""

    def __init__(self, execute: Callable[..., Any], seal: Callable[..., int]) -> None:
        self._execute = execute
        self._seal = seal
        self._highest: dict[Name, int] = {}
        self._upto = 0  # the records so far are in `_highest`, of the names that are
        self._repeated: Found | None = None  # the last retry that was found

    def highest(self, name: Name, tail: int) -> int:
        """The highest sequence of a name, -1 if it has none. Asked under the write lock."""
        if tail != self._upto:
            self._follow(tail)
        known = self._highest.get(name)
        if known is None:
            if len(self._highest) >= _NAMES_MAX:
                self._highest.clear()
            known = self._highest[name] = self._look_up(name)
        return known

    def take(self, highest: dict[Name, int], before: int, tail: int) -> None:
        """The open transaction moves the tail, and the highest sequences of some names."""
        self._highest.update(highest)
        self._upto = tail
        if before // NOTE_EVERY != tail // NOTE_EVERY:
            self.note(tail)

    def forget(self) -> None:
        """Nothing that was taken since the last commit is there."""
        self._highest.clear()

    def drop(self, producers: Collection[str]) -> None:
        """Forget producers for good; of one with records by now nothing is noted yet."""
        self.forget()
        for producer in producers:
            self._execute(
                "DELETE FROM producer WHERE producer = ? AND sequence = trimmed", (producer,)
            )

    def note(self, tail: int) -> None:
        """Write down the highest sequences of all records so far."""
        self._execute(_NOTE_SINCE)
        self._execute("UPDATE log SET noted = ?", (tail,))

    def note_trimmed(self, before: Position) -> None:
        """Write down the sequences of records without tags, which are about to be deleted."""
        self._execute(_NOTE_TRIMMED, (before,))

    def note_anew(self, tail: int) -> None:
        """As `note`, after records were dropped that may have been noted."""
        self.forget()
        self._execute("DELETE FROM producer WHERE trimmed < 0")
        self._execute(
            "UPDATE producer SET sequence = trimmed, "
            "seal = seal(producer, instance, trimmed, trimmed)"
        )
        self._execute("UPDATE log SET noted = 0")
        self.note(tail)

    def prior(self, entry: Entry, length: int, checksum: int) -> Prior:
        """What is known of one entry's name: no write lock is needed, for a name once given stays.

        First the record, then what is trimmed: one that a trim takes in between is in the latter.
        """
        name = (entry.producer, entry.instance)
        highest = self._look_up(name)
        if entry.sequence > highest:
            return Prior(highest, -1, None, False)
        found = self._find(name, entry.sequence)
        dead: int = self._execute(_LAST_DEAD, name).fetchall()[0][0]
        content = (int(entry.kind), " ".join(entry.tags), length, checksum)
        return Prior(
            highest=highest,
            highest_trimmed=max(dead, self._noted(name)[1]),
            position=found.position if found else None,
            same_content=found is not None and found.content == content,
        )

    def _follow(self, tail: int) -> None:
        """Hear of what others have appended."""
        highest = self._highest
        if highest and 0 < tail - self._upto <= NOTE_EVERY:
            since = "SELECT producer, instance, sequence FROM record WHERE position > ?"
            rows = self._execute(since, (self._upto,)).fetchall()
            if len(rows) == tail - self._upto:
                for producer, instance, sequence in rows:
                    if (producer, instance) in highest:
                        highest[producer, instance] = sequence
                self._upto = tail
                return
        # Too much, or something in between is trimmed: whose that was is noted and not known here.
        highest.clear()
        self._upto = tail

    def _look_up(self, name: Name) -> int:
        # In this order: what is noted in between is found twice, and not missed.
        since: int = self._execute(_SINCE, name).fetchall()[0][0]
        return max(since, self._noted(name)[0])

    def _noted(self, name: Name) -> tuple[int, int]:
        for sequence, trimmed, seal in self._execute(_NOTED, name).fetchall():
            if seal != self._seal(*name, sequence, trimmed):
                raise IndexDamaged(
                    f"the index is damaged: the row of producer {name[0]!r} fails its checksum; "
                    "run `penstock fsck`",
                    producer=name[0],
                )
            return sequence, trimmed
        return -1, -1

    def _find(self, name: Name, sequence: int) -> Found | None:
        last = self._repeated
        if last is not None and last.name == name and last.sequence < sequence:
            rows = self._execute(_ONWARDS, (*name, sequence, last.position)).fetchall()
        else:
            rows = self._execute(_BACKWARDS, (*name, sequence)).fetchall()
        for position, number, *content in rows:
            if number == sequence:
                self._repeated = Found(name, number, position, tuple(content))
                return self._repeated
        return None
