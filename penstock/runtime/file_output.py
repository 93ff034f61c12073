"""Rows for a sink of files, written by the vertex that made them: each is on the disk once.

What a vertex has for such a sink goes into a file of its own, if it is much by the next commit, and
the append with the marker names that file instead of bringing its rows. The order is the argument:
the file is whole and synced before the append; it counts if a marker covers the record that names
it; nobody removes it but who has published it, or who knows that no record names it and none will
(`runtime/left_files.py`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.connectors.hidden_files import (
    FilesKind,
    HiddenFile,
    NamedFile,
    sync_folder,
    table_of,
)
from penstock.kernels.columns import plain_batch
from penstock.log import punit
from penstock.log.record import Fence

# In memory: less is left to the sink, which makes one file of many commits.
FILE_BYTES_MIN = 8 << 20


class FileOutput:
    """What one instance has made for one sink since its last marker."""

    def __init__(self, kind: FilesKind, schema: pa.Schema, fence: Fence) -> None:
        self._kind = kind
        self._schema = schema
        self._fence = fence
        self._waiting: list[pa.RecordBatch] = []
        self._file: HiddenFile | None = None
        self._bytes = 0  # of what waits

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes

    def write_early(self) -> int:
        """Write what waits, if that is enough for a file; return how many bytes that were."""
        if self._file is None and self._bytes < FILE_BYTES_MIN:
            return 0
        written, waiting = self._bytes, self.take_rows()
        if waiting:
            if self._file is None:
                self._file = self._kind.begin_in_slot(self._fence.vertex, self._fence.instance)
            rows = (punit.conform(plain_batch(batch), self._schema) for batch in waiting)
            self._file.write(table_of(list(rows)))
        return written

    def end(self) -> NamedFile | None:
        """The finished file of all rows since the last marker; None if there is none."""
        self.write_early()
        if self._file is None:
            return None
        named, self._file = self._file.close(), None
        sync_folder(Path(self._kind.folder))
        return named

    def take_rows(self) -> list[pa.RecordBatch]:
        """The rows that are in no file."""
        rows, self._waiting, self._bytes = self._waiting, [], 0
        return rows

    def abandon(self) -> None:
        """Leave nothing of a file that was begun: no record names it."""
        if self._file is not None:
            self._file.abandon()
            self._file = None
