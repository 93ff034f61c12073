"""The in-memory backend: the log contract over shared Python objects, with faults on demand.

A `MemoryStore` is one log; each `MemoryLog` over it stands for one process. A handle can be told
to fail (`Faults`) and to lag behind the others, both decided by the caller alone, so that a run
repeats exactly. A handle with `lagging=True` sees a prefix of the log that grows only so:

- `reveal` moves its end forward to the end of a whole append, never back and never over a gap.
- An effect of the handle (append, put, compare_and_set, trim) that comes back, with a result or
  with an error of the log, shows it everything up to that effect: who has registered a new
  instance finds every record that an older one got in.
- Metadata and `trimmed` are always current, and show everything that was there when what they
  return was written.
- A fault shows nothing: after an unknown outcome the handle may not even see its own append.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from heapq import merge
from itertools import islice
from typing import NamedTuple, NoReturn, TypeVar

from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.errors import Fenced, LogClosed, LogError, OutcomeUnknown
from penstock.log.contract import Log, LogStatistics, instance_key
from penstock.log.record import START, Entry, Fence, Position, Record, Versioned
from penstock.log.validate import (
    Prior,
    check_append,
    check_fence,
    check_fence_argument,
    check_key,
    check_metadata,
    check_position,
    check_prefix,
    check_read,
    check_tag,
    check_timeout,
    check_untrimmed,
    check_version,
    first_positions,
)

T = TypeVar("T")

# Of a (producer, instance) that has appended nothing yet.
_UNKNOWN = Prior(-1, -1, None, False)


class SimulatedCrash(BaseException):
    """The process behind this handle has died. Not an Exception: nobody handles their own death."""


class Effect(Enum):
    """What can change a log."""

    APPEND = "append"
    PUT = "put"
    COMPARE_AND_SET = "compare_and_set"
    TRIM = "trim"
    FORGET = "forget"


class Fault(Enum):
    """How an effect fails. After a crash the handle is dead: every later call crashes again."""

    CRASH_BEFORE = "crash before"  # nothing happened
    CRASH_AFTER = "crash after"  # it happened, nobody was told
    UNKNOWN_NOT_APPLIED = "unknown, not applied"  # OutcomeUnknown, nothing happened
    UNKNOWN_APPLIED = "unknown, applied"  # OutcomeUnknown, it happened


class Faults:
    """Decides, effect by effect, what fails. Handles may share one: it counts across them.

    `schedule` gets an effect and its index, from 0, and returns the fault or None. Calls that
    are refused for their arguments are not effects and are not counted.
    """

    def __init__(self, schedule: Callable[[Effect, int], Fault | None]) -> None:
        self._schedule = schedule
        self.effects_seen = 0

    @classmethod
    def at(cls, faults: Mapping[int, Fault]) -> Faults:
        """Fail the effects with these indexes; `Faults.at({})` fails none and only counts."""
        return cls(lambda _effect, index: faults.get(index))

    def decide(self, effect: Effect) -> Fault | None:
        """Count one effect and return its fault."""
        index = self.effects_seen
        self.effects_seen += 1
        return self._schedule(effect, index)


class _Written(NamedTuple):
    """A metadata value, and how long the log was when it was written."""

    versioned: Versioned
    tail: Position


@dataclass(slots=True)
class _Stored:
    entry: Entry  # its body is bytes
    time_us: int
    tags_left: int  # the record is gone when none is left


@dataclass(slots=True)
class _Writer:
    """What one (producer, instance) has appended."""

    highest: int
    highest_trimmed: int
    positions: dict[int, Position]  # by sequence, of the records that are still there


class MemoryStore:
    """One log's records and metadata. Only handles call its methods, while they hold `changed`."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.config = config if config is not None else LogConfig()
        self.changed = threading.Condition()
        self.tail = START
        self._time_us = 0
        self._records: dict[Position, _Stored] = {}
        self._by_tag: dict[str, list[Position]] = {}  # positions rise
        self._append_ends = array("q")  # last position of each append
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._trims: dict[str, tuple[Position, Position]] = {}  # tag → trimmed to, tail at the time
        self._metadata: dict[str, _Written] = {}

    def append(
        self, entries: Sequence[Entry], fence: Fence | None, clock: Clock | None
    ) -> tuple[tuple[Position, ...], bool]:
        """Append the entries; return their positions and whether they are new."""
        known = first_positions(entries, [self._prior(entry) for entry in entries])
        if known is not None:
            return known, False
        if fence is not None:
            self._check_fence(fence)
        if clock is not None:
            self._time_us = max(self._time_us, clock.now_us())
        positions = tuple(self._add(entry, clock is None) for entry in entries)
        self._append_ends.append(self.tail)
        self.changed.notify_all()
        return positions, True

    def _check_fence(self, fence: Fence) -> None:
        registered = self._metadata.get(instance_key(fence.vertex))
        check_fence(fence, registered.versioned.value if registered else None)

    def _prior(self, entry: Entry) -> Prior:
        writer = self._writers.get((entry.producer, entry.instance))
        if writer is None:
            return _UNKNOWN
        position = writer.positions.get(entry.sequence)
        same = position is not None and _same_content(self._records[position].entry, entry)
        return Prior(writer.highest, writer.highest_trimmed, position, same)

    def _add(self, entry: Entry, count_as_time: bool) -> Position:
        position = self.tail = Position(self.tail + 1)
        if count_as_time:  # without a clock a log is its own: one tick per record
            self._time_us += 1
        self._records[position] = _Stored(entry, self._time_us, len(entry.tags))
        for tag in entry.tags:
            self._by_tag.setdefault(tag, []).append(position)
        key = (entry.producer, entry.instance)
        writer = self._writers.get(key)
        if writer is None:
            writer = self._writers[key] = _Writer(-1, -1, {})
        writer.highest = entry.sequence
        writer.positions[entry.sequence] = position
        return position

    def find(
        self, tags: tuple[str, ...], after: Position, upto: Position, limit: int
    ) -> list[Position]:
        """Return up to `limit` positions in (after, upto] that carry any of the tags, rising."""
        runs = []
        for tag in tags:
            positions = self._by_tag.get(tag)
            if positions is not None and positions[-1] > after:
                start = bisect_right(positions, after)
                end = len(positions) if positions[-1] <= upto else bisect_right(positions, upto)
                runs.append((positions, start, end))
        if len(runs) == 1:
            positions, start, end = runs[0]
            return positions[start : min(end, start + limit)]
        merged = merge(*(_run(positions, start, end) for positions, start, end in runs))
        return list(islice(_each_once(merged), limit))

    def newest(self, tag: str, upto: Position) -> Position | None:
        """Return the newest position up to a bound that carries a tag."""
        positions = self._by_tag.get(tag)
        if positions is None:
            return None
        if positions[-1] <= upto:
            return positions[-1]
        count = bisect_right(positions, upto)
        return positions[count - 1] if count else None

    def record(self, position: Position) -> Record:
        """Return the record at a position that `find` or `newest` has just given."""
        stored = self._records[position]
        entry = stored.entry
        return Record(
            position,
            entry.kind,
            entry.tags,
            entry.producer,
            entry.instance,
            entry.sequence,
            stored.time_us,
            memoryview(entry.body),  # its own view, which the caller may release
        )

    def append_end(self, position: Position) -> Position:
        """Return the last position of the append that contains this one, at most the tail."""
        if position <= START:
            return START
        index = bisect_left(self._append_ends, position)
        return Position(self._append_ends[index]) if index < len(self._append_ends) else self.tail

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        """Forget a tag of the records up to a position, or to the tail if that is lower."""
        if fence is not None:
            self._check_fence(fence)
        upto = min(upto, self.tail)
        if upto <= self.trimmed(tag)[0]:
            return
        self._trims[tag] = (upto, self.tail)
        positions = self._by_tag.get(tag, [])
        count = bisect_right(positions, upto)
        for position in positions[:count]:
            self._forget_tag(position)
        del positions[:count]
        if not positions:
            self._by_tag.pop(tag, None)

    def _forget_tag(self, position: Position) -> None:
        stored = self._records[position]
        stored.tags_left -= 1
        if stored.tags_left:
            return
        entry = stored.entry
        writer = self._writers[entry.producer, entry.instance]
        writer.highest_trimmed = max(writer.highest_trimmed, entry.sequence)
        del writer.positions[entry.sequence]
        del self._records[position]

    def forget(self, producers: Collection[str]) -> None:
        """Drop the writers of some producers, if no record of theirs is left."""
        kept = {name for (name, _), writer in self._writers.items() if writer.positions}
        for key in [key for key in self._writers if key[0] in producers and key[0] not in kept]:
            del self._writers[key]

    def trimmed(self, tag: str) -> tuple[Position, Position]:
        """Return how far a tag is trimmed, and the tail when it was."""
        return self._trims.get(tag, (START, START))

    def get(self, key: str) -> _Written | None:
        """Return a metadata value and the tail when it was written."""
        return self._metadata.get(key)

    def set(self, key: str, value: bytes, expected: int | None) -> int:
        """Set a value, if its version is the expected one; return the new version, 0 if not set."""
        written = self._metadata.get(key)
        version = written.versioned.version if written else 0
        if expected is not None and expected != version:
            return 0
        self._metadata[key] = _Written(Versioned(value, version + 1), self.tail)
        return version + 1

    def keys(self, prefix: str) -> list[str]:
        """Return the metadata keys below a prefix, sorted."""
        below = prefix + "/"
        return sorted(
            key for key in self._metadata if not prefix or key == prefix or key.startswith(below)
        )

    def copy(self) -> MemoryStore:
        """Return another log with the same content, which goes its own way from here on."""
        other = MemoryStore(self.config)
        other.tail = self.tail
        other._time_us = self._time_us
        other._records = {at: replace(stored) for at, stored in self._records.items()}
        other._by_tag = {tag: list(positions) for tag, positions in self._by_tag.items()}
        other._append_ends = self._append_ends[:]
        other._writers = {
            name: replace(writer, positions=dict(writer.positions))
            for name, writer in self._writers.items()
        }
        other._trims = dict(self._trims)
        other._metadata = dict(self._metadata)
        return other

    def retained(self) -> tuple[int, int]:
        """Return how many records, and bytes of bodies, trims have left."""
        return len(self._records), sum(len(stored.entry.body) for stored in self._records.values())


def _same_content(first: Entry, second: Entry) -> bool:
    return (first.kind, first.tags, first.body) == (second.kind, second.tags, second.body)


def _run(positions: list[Position], start: int, end: int) -> Iterator[Position]:
    return (positions[index] for index in range(start, end))


def _each_once(positions: Iterable[Position]) -> Iterator[Position]:
    previous = START
    for position in positions:
        if position != previous:
            yield position
        previous = position


class MemoryLog(Log):
    """One handle, standing for one process, over a store that others share."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        clock: Clock | None = None,
        faults: Faults | None = None,
        lagging: bool = False,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self._changed = self.store.changed
        self.clock = clock
        self._faults = faults
        self._lagging = lagging
        self._seen = START  # the end of a lagging handle's view
        self._closed = False
        self._wakes = 0
        self._crashed = False
        self._appends = self._records_appended = self._bytes_appended = 0
        self._records_read = self._bytes_read = 0
        self._fenced = 0

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        config = self.store.config
        size_bytes = check_append(entries, config.body_bytes_max, config.append_bytes_max)
        if fence is not None:
            check_fence_argument(fence)
        owned = [_owned(entry) for entry in entries]

        def apply() -> tuple[Position, ...]:
            try:
                positions, new = self.store.append(owned, fence, self.clock)
            except Fenced:
                self._fenced += 1
                raise
            self._appends += 1
            if new:
                self._records_appended += len(positions)
                self._bytes_appended += size_bytes
            return positions

        return self._perform(Effect.APPEND, apply)

    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        checked = check_read(tags, limit, after)
        with self._changed:
            self._check_usable()
            if untrimmed_after is not None:
                check_untrimmed(untrimmed_after, ((t, self.store.trimmed(t)[0]) for t in checked))
            found = self.store.find(checked, after, self._view(), limit)
            records = [self.store.record(position) for position in found]
            self._count_read(records)
            return records

    def last(self, tag: str) -> Record | None:
        check_tag(tag)
        with self._changed:
            self._check_usable()
            position = self.store.newest(tag, self._view())
            if position is None:
                return None
            record = self.store.record(position)
            self._count_read((record,))
            return record

    def tail(self) -> Position:
        with self._changed:
            self._check_usable()
            return self._view()

    def wait(self, after: Position, timeout_s: float) -> Position:
        check_position(after, "the position to wait for")
        timeout_s = min(check_timeout(timeout_s), threading.TIMEOUT_MAX)
        with self._changed:
            wakes = self._wakes
            self._changed.wait_for(
                lambda: (
                    self._closed or self._crashed or self._view() > after or self._wakes != wakes
                ),
                timeout_s,
            )
            self._check_usable()
            return self._view()

    def wake(self) -> None:
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        check_tag(tag)
        check_position(upto, "the position to trim to")
        if fence is not None:
            check_fence_argument(fence)
        try:
            self._perform(Effect.TRIM, lambda: self.store.trim(tag, upto, fence))
        except Fenced:
            self._fenced += 1
            raise

    def sync(self) -> None:
        with self._changed:
            self._check_usable()

    def forget(self, producers: Collection[str]) -> None:
        self._perform(Effect.FORGET, lambda: self.store.forget(producers))

    def trimmed(self, tag: str) -> Position:
        check_tag(tag)
        with self._changed:
            self._check_usable()
            upto, tail = self.store.trimmed(tag)
            self._show(tail)
            return upto

    def get(self, key: str) -> Versioned | None:
        check_key(key)
        with self._changed:
            self._check_usable()
            written = self.store.get(key)
            if written is None:
                return None
            self._show(written.tail)
            return written.versioned

    def put(self, key: str, value: bytes) -> int:
        check_metadata(key, value)
        return self._perform(Effect.PUT, lambda: self.store.set(key, value, None))

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        check_metadata(key, value)
        check_version(version)
        return self._perform(
            Effect.COMPARE_AND_SET, lambda: self.store.set(key, value, version) != 0
        )

    def keys(self, prefix: str = "") -> list[str]:
        check_prefix(prefix)
        with self._changed:
            self._check_usable()
            keys = self.store.keys(prefix)
            for key in keys:
                written = self.store.get(key)
                assert written is not None
                self._show(written.tail)
            return keys

    def statistics(self) -> LogStatistics:
        with self._changed:
            self._check_usable()
            return LogStatistics(
                appends=self._appends,
                records_appended=self._records_appended,
                bytes_appended=self._bytes_appended,
                records_read=self._records_read,
                bytes_read=self._bytes_read,
                syncs=0,
                syncs_shared=0,
                fenced=self._fenced,
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reveal(self, upto: Position | None = None) -> Position:
        """Let a lagging handle see to the end of the append at `upto`, or all; return its tail."""
        with self._changed:
            self._check_usable()
            self._show(self.store.tail if upto is None else self.store.append_end(upto))
            self._changed.notify_all()
            return self._view()

    def _perform(self, effect: Effect, apply: Callable[[], T]) -> T:
        with self._changed:
            self._check_usable()
            fault = self._faults.decide(effect) if self._faults is not None else None
            if fault is not None:
                self._fail(effect, fault, apply)
            try:
                return apply()
            finally:
                self._show(self.store.tail)

    def _fail(self, effect: Effect, fault: Fault, apply: Callable[[], object]) -> NoReturn:
        if fault in (Fault.CRASH_AFTER, Fault.UNKNOWN_APPLIED):
            with suppress(LogError):  # refused, perhaps, but the caller never learns that
                apply()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            self._crashed = True
            self._changed.notify_all()
            raise SimulatedCrash(f"{fault.value} {effect.value}")
        raise OutcomeUnknown(
            f"the {effect.value} may or may not have happened: repeat it", effect=effect.value
        )

    def _check_usable(self) -> None:
        if self._crashed:
            raise SimulatedCrash("this handle's process is dead")
        if self._closed:
            raise LogClosed("this handle is closed: open the log again")

    def _view(self) -> Position:
        return self._seen if self._lagging else self.store.tail

    def _show(self, upto: Position) -> None:
        self._seen = max(self._seen, upto)

    def _count_read(self, records: Sequence[Record]) -> None:
        self._records_read += len(records)
        self._bytes_read += sum(len(record.body) for record in records)


def _owned(entry: Entry) -> Entry:
    """Return the entry with a body that nobody else can change."""
    return entry if type(entry.body) is bytes else replace(entry, body=bytes(entry.body))
