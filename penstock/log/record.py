"""Records and positions: what the log stores, and the only vocabulary its users need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, NewType, TypeAlias

import pyarrow as pa

Body: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

Position = NewType(
    "Position", int
)  # place in the one global order, from 1; only a sequencer makes them

START = Position(0)  # before the first record


class RecordKind(IntEnum):
    """What a record is for. The numbers are on disk: never reuse one."""

    DATA = 1  # rows of a stream
    CHANGE = 2  # changes of a vertex's state
    MARKER = 3  # a vertex's progress: commits what its instance appended before
    CONTROL = 4  # anything else: routing, notes, audit


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that has no position yet.

    (producer, instance, sequence) names it for ever: appending the same entry again returns the
    position of the first time. Within one (producer, instance) sequences only rise.

    `digest` is the xxh3_64 of the body where its maker has it already: it is not made again.
    `lasting` is a hint, and not part of the record: entries that stay and entries that are trimmed
    soon are stored apart, so that the former do not hold the space of the latter.
    """

    kind: RecordKind
    tags: tuple[str, ...]
    producer: str
    instance: int
    sequence: int
    body: Body
    lasting: bool = field(default=False, compare=False)
    digest: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """One log entry, visible under every tag it names: one append reaches many readers."""

    position: Position
    kind: RecordKind
    tags: tuple[str, ...]
    producer: str
    instance: int  # rises with every restart; readers drop records of a dead instance
    sequence: int
    time_us: int  # when the sequencer took it, for people and `asOf`; the protocol never reads it
    body: memoryview  # the log never looks inside

    def __post_init__(self) -> None:
        assert self.position > 0
        assert self.tags, "a record nobody can read"


class Head(NamedTuple):
    """What a log knows of a record without its body."""

    position: Position
    kind: RecordKind
    producer: str
    time_us: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Makes an append conditional: it happens only while `instance` is the newest of `vertex`."""

    vertex: str
    instance: int


class Append(NamedTuple):
    """What is appended as a whole or not at all, and under which condition."""

    entries: Sequence[Entry]
    fence: Fence | None = None


@dataclass(frozen=True, slots=True)
class Versioned:
    """A metadata value and its version; versions of a key start at 1 and rise by one."""

    value: bytes
    version: int
