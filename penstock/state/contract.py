"""What a state promises: all that checkpoints, change logs, recovery and readers know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Self

import pyarrow as pa

KeyRange = tuple[int, int]  # [first key hash, first key hash of the next owner)


class ChangeKind(IntEnum):
    """What a row of a change batch does. The numbers are in the log: never reuse one."""

    PUT = 0  # this row is there, with these values
    DELETE = 1  # the row of this key, or id, is gone
    EVICT = 2  # all rows up to this one's pane, or moment, are gone; it has no key
    MARK = 3  # the row of this id is marked


class Picture(ABC):
    """A state as it was at one moment, copied in pieces while the state goes on changing."""

    @abstractmethod
    def copy_some(self) -> bool:
        """Copy a bounded piece; return whether the picture is complete."""

    @abstractmethod
    def abandon(self) -> None:
        """Give it up."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of a complete picture, for a checkpoint or for `State.restore`."""


class State(ABC):
    """Named, typed, columnar rows by key, owned by the runtime.

    Changes are absolute: applying one twice is applying it once. One thread uses a state.
    """

    name: str

    @abstractmethod
    def __len__(self) -> int:
        """How many rows it has."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """The bytes that its bound counts."""

    @property
    @abstractmethod
    def has_changes(self) -> bool:
        """Whether something changed since changes were last taken."""

    @abstractmethod
    def take_changes(self) -> pa.RecordBatch | None:
        """What changed since the last call, or None."""

    def discard_changes(self) -> None:
        """Forget what changed since changes were last taken."""
        self.take_changes()

    @abstractmethod
    def apply_changes(self, changes: pa.RecordBatch, only: KeyRange | None = None) -> None:
        """Do again what changes say, of all keys or of a range."""

    @abstractmethod
    def removals(self, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        """The changes that set no row, None if all do: these come first when a batch is applied."""

    @abstractmethod
    def as_changes(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The changes that set the rows of a picture."""

    @abstractmethod
    def empty(self) -> Self:
        """A state of the same kind that holds nothing. May be called from any thread."""

    @abstractmethod
    def begin_snapshot(self) -> Picture:
        """Begin a picture of this moment."""

    @abstractmethod
    def restore(self, batches: Iterable[pa.RecordBatch], only: KeyRange | None = None) -> None:
        """Become what a picture shows, whatever was there before."""

    @abstractmethod
    def partition(self, ranges: Sequence[KeyRange]) -> Sequence[Self]:
        """States of these key ranges, which together hold what this one holds."""

    @abstractmethod
    def scan(self) -> pa.RecordBatch:
        """All rows, in an order of their own."""

    @abstractmethod
    def merge_from(self, other: Self) -> None:
        """Take over the rows of a state that has other keys."""
