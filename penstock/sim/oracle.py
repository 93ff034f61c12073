"""What must come out, in plain Python: a reader of committed records and the answers to queries.

Nothing here is shared with the engine but the codec that opens a body (`punit.decode`). The reader
is written from the rules alone: a marker commits what the same producer and instance appended since
its previous marker; what an older instance left behind is never committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.log.punit import decode
from penstock.sim.data import Row
from penstock.sim.history import Seen

Values = tuple[Any, ...]
Group = Values  # the values of the key columns


@dataclass(frozen=True, slots=True)
class Committed:
    """One marker and what it made visible under some tags."""

    marker: Seen
    facts: dict[str, Any]  # what the marker says
    records: tuple[Seen, ...]


class Reading:
    """Reads committed records from a growing history, from where it stopped the last time."""

    def __init__(self, history: Sequence[Seen], tags: Collection[str]) -> None:
        self._history = history
        self._tags = frozenset(tags)
        self._next = 0
        self._waiting: dict[tuple[str, int], list[Seen]] = {}
        self.orphans = 0  # records of dead instances that a later marker passed by

    def more(self) -> Iterator[Committed]:
        """Yield what has been committed since the last call, marker by marker."""
        while self._next < len(self._history):
            seen = self._history[self._next]
            self._next += 1
            if self._tags.isdisjoint(seen.tags):
                continue
            if seen.kind != "MARKER":
                self._waiting.setdefault((seen.producer, seen.instance), []).append(seen)
                continue
            records = tuple(self._waiting.pop((seen.producer, seen.instance), ()))
            for producer, instance in list(self._waiting):
                if producer == seen.producer and instance < seen.instance:
                    self.orphans += len(self._waiting.pop((producer, instance)))
            yield Committed(seen, seen.facts, records)


@lru_cache(maxsize=4_096)
def rows_of(record: Seen) -> list[dict[str, Any]]:
    """The rows of a record, times as whole microseconds; not to be changed."""
    return [_plain(row) for row in decode(record.body).to_pylist()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in row.items()}


def plain_value(value: Any) -> Any:
    """A value that compares and hashes: moments become microseconds, structs become tuples."""
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, dict):
        return tuple(plain_value(each) for each in value.values())
    if isinstance(value, list):
        return tuple(plain_value(each) for each in value)
    return value


class Replica:
    """The state of a vertex as its committed changes tell it, rebuilt from zero."""

    def __init__(self, history: Sequence[Seen], change_tag: str) -> None:
        self._reading = Reading(history, [change_tag])
        self.states: dict[str, dict[Values, Values]] = {}
        self.changes = 0

    def catch_up(self) -> None:
        for committed in self._reading.more():
            for record in committed.records:
                self.changes += 1
                self._apply(record)

    def rows(self, name: str) -> dict[Values, Values]:
        return self.states.get(name, {})

    def _apply(self, record: Seen) -> None:
        batch = decode(record.body)
        name = (batch.schema.metadata or {})[b"penstock.state"].decode()
        rows = self.states.setdefault(name, {})
        for line in batch.to_pylist():
            kind = line.pop("__change")
            if "__id" in line:
                _apply_row(rows, kind, line)
                continue
            pane = line.pop("__pane")
            line.pop("__hash")
            values = tuple(plain_value(value) for value in line.values())
            if kind == EVICT:
                for key in [key for key in rows if key[0] <= pane]:
                    del rows[key]
                continue
            key = (pane, *values[: self._keys(batch)])
            if kind == PUT:
                rows[key] = values
            else:
                rows.pop(key, None)

    @staticmethod
    def _keys(batch: Any) -> int:
        """How many columns stand before the pane: the keys."""
        return int(batch.schema.names.index("__pane"))


PUT, DELETE, EVICT, MARK = 0, 1, 2, 3


def _apply_row(rows: dict[Values, Values], kind: int, line: dict[str, Any]) -> None:
    """A change of a store of whole rows, by id: until when it is kept, its mark, its columns."""
    number, until, marked, *values = (plain_value(value) for value in line.values())
    if kind == EVICT:
        for key in [key for key, kept in rows.items() if kept[1] <= until]:
            del rows[key]
    elif kind == PUT:
        rows[(number,)] = (number, until, marked, *values)
    elif kind == MARK:
        own = rows[(number,)]
        rows[(number,)] = (*own[:2], True, *own[3:])
    else:
        rows.pop((number,), None)


# Answers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    """The five aggregates that every simulated query computes."""

    n: int  # count(*)
    c: int  # count(v)
    s: int | None  # sum(v)
    lo: int | None  # min(v)
    top: int | None  # max(rid)


def summarise(rows: Iterable[tuple[int, int | None]]) -> Summary:
    """The aggregates of some (rid, v) pairs."""
    pairs = list(rows)
    numbers = [v for _, v in pairs if v is not None]
    return Summary(
        n=len(pairs),
        c=len(numbers),
        s=sum(numbers) if numbers else None,
        lo=min(numbers, default=None),
        top=max((rid for rid, _ in pairs), default=None),
    )


def running(rows: Iterable[tuple[Group, int, int | None]]) -> dict[Group, Summary]:
    """Per group, the aggregates of all its (rid, v)."""
    groups: dict[Group, list[tuple[int, int | None]]] = {}
    for group, rid, v in rows:
        groups.setdefault(group, []).append((rid, v))
    return {group: summarise(pairs) for group, pairs in groups.items()}


def window_starts(at_us: int, size_us: int, slide_us: int) -> Iterator[int]:
    """The starts of the windows [start, start + size) that hold a moment, earliest first."""
    newest = at_us - at_us % slide_us
    start = newest
    while start > at_us - size_us:
        start -= slide_us
    start += slide_us
    while start <= newest:
        yield start
        start += slide_us


def windowed(
    rows: Iterable[tuple[Group, Row]], size_us: int, slide_us: int, judged: Mapping[int, int]
) -> dict[tuple[int, Group], list[Row]]:
    """Which rows each window of each group holds, given how far time was at each row."""
    found: dict[tuple[int, Group], list[Row]] = {}
    for group, row in rows:
        if row.ts is None:
            continue
        for start in window_starts(row.ts, size_us, slide_us):
            if start + size_us > judged[row.rid]:
                found.setdefault((start, group), []).append(row)
    return found


def last_window_end(at_us: int, size_us: int, slide_us: int) -> int:
    """When the last window that holds a moment ends."""
    return at_us - at_us % slide_us + size_us
