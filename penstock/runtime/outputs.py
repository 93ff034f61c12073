"""Outputs: rows and state changes on their way into the log, numbered for their producer.

Everything between two markers goes out with the marker in one append. What is larger goes out
early and stays invisible until its marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import OutcomeUnknown
from penstock.kernels.hashing import hash_columns
from penstock.log import punit
from penstock.log.contract import Log
from penstock.log.record import Body, Entry, Fence, Position, RecordKind
from penstock.stages.key_ranges import split_key_space

UNKNOWN_RETRIES = 8

Partitioner = Callable[[pa.RecordBatch], Sequence[tuple[str, pa.RecordBatch]]]


def partitioner(tags: Sequence[str], partition_by: Sequence[str]) -> Partitioner:
    """How rows find their substream: all to the one tag, or by the hash of their key columns."""
    if len(tags) == 1:
        return lambda batch: ((tags[0], batch),)
    edges = np.array([end for _, end in split_key_space(len(tags))[:-1]], np.uint64)

    def by_key(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        hashes = hash_columns([batch.column(name) for name in partition_by], batch.num_rows)
        target = np.searchsorted(edges, hashes.astype(np.uint64), side="right")
        parts = []
        for index, tag in enumerate(tags):
            rows = np.flatnonzero(target == index)
            if rows.size == batch.num_rows:
                parts.append((tag, batch))
            elif rows.size:
                parts.append((tag, batch.take(pa.array(rows))))
        return parts

    return by_key


class Outputs:
    """What one instance has produced since its last append."""

    def __init__(self, log: Log, fence: Fence, codec: punit.Codec) -> None:
        self._log = log
        self._fence = fence
        self._codec = codec
        self._sequence = 0
        self._entries: list[Entry] = []
        self.bytes_waiting = 0

    def add(self, kind: RecordKind, tag: str, batch: pa.RecordBatch) -> None:
        """Queue a batch as one p-unit under one tag."""
        body = punit.encode(batch, self._codec)
        self._queue(kind, (tag,), body)
        self.bytes_waiting += memoryview(body).nbytes

    def append_early(self) -> None:
        """Append what is queued; no reader will see it before the next marker."""
        if self._entries:
            self._append()

    def commit(self, tags: tuple[str, ...], marker: bytes) -> Position:
        """Append what is queued together with its marker; return the marker's position."""
        self._queue(RecordKind.MARKER, tags, marker)
        return self._append()[-1]

    def _queue(self, kind: RecordKind, tags: tuple[str, ...], body: Body) -> None:
        fence = self._fence
        self._entries.append(Entry(kind, tags, fence.vertex, fence.instance, self._sequence, body))
        self._sequence += 1

    def _append(self) -> tuple[Position, ...]:
        for _ in range(UNKNOWN_RETRIES):
            try:
                positions = self._log.append(self._entries, self._fence)
                break
            except OutcomeUnknown:
                continue  # the entries are named by their sequences: repeating them is harmless
        else:
            positions = self._log.append(self._entries, self._fence)
        self._entries = []
        self.bytes_waiting = 0
        return positions
