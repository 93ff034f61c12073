"""What producers have sent: which units are taken, and up to where the rows of each are safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa


class Unit(NamedTuple):
    """Rows of a producer, up to an offset."""

    producer: str
    offset: int
    rows: pa.RecordBatch
    size: int


class Intake:
    """By producer what was accepted, taken by whoever reads, and committed. Knows of no threads."""

    def __init__(self, committed: Mapping[str, int]) -> None:
        self.committed = dict(committed)
        self._taken = dict(committed)
        self._accepted = dict(committed)
        self._queue: deque[Unit] = deque()
        self.queued_bytes = 0

    @property
    def has_units(self) -> bool:
        return bool(self._queue)

    @property
    def names(self) -> set[str]:
        return set(self._taken)

    def accepted(self, producer: str) -> int:
        """The greatest offset that has come; 0 if none has."""
        return self._accepted.get(producer, 0)

    def accepts(self, producer: str, offset: int) -> bool:
        """Whether a unit is new: its offset is greater than all that came before."""
        return offset > self.accepted(producer)

    def put(self, unit: Unit) -> None:
        """Let a unit wait that is accepted."""
        self._accepted[unit.producer] = unit.offset
        self._queue.append(unit)
        self.queued_bytes += unit.size

    def take(self, rows_max: int) -> list[Unit]:
        """What has come, in order and in whole units: one, or more while they are within bounds."""
        units: list[Unit] = []
        while self._queue and (not units or self._queue[0].rows.num_rows <= rows_max):
            unit = self._queue.popleft()
            rows_max -= unit.rows.num_rows
            self.queued_bytes -= unit.size
            self._taken[unit.producer] = unit.offset
            units.append(unit)
        return units

    def commit(self, offsets: Mapping[str, int]) -> list[str]:
        """These offsets are in a durable marker; return whose have risen."""
        risen = [name for name, at in offsets.items() if self.committed.get(name) != at]
        self.committed.update(offsets)
        return risen

    def forget_waiting(self, producer: str) -> None:
        """Its connection is over, and what nobody has taken will come again."""
        kept = [unit for unit in self._queue if unit.producer != producer]
        self._queue = deque(kept)
        self.queued_bytes = sum(unit.size for unit in kept)
        if producer in self._taken:
            self._accepted[producer] = self._taken[producer]
        else:
            self._accepted.pop(producer, None)

    def is_settled(self, producer: str) -> bool:
        """Whether all that has come of a producer is committed."""
        return self.committed.get(producer) == self._accepted.get(producer)
