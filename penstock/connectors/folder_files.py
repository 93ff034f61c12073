"""One announced file of a folder: opened safely, checked for changes, and read piece by piece."""

from __future__ import annotations

import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.connectors.folder_registry import FileEntry
from penstock.connectors.rejects import Reject
from penstock.errors import (
    PathRefused,
    SourceChanged,
    SourceError,
    SourceShrunk,
    SourceVanished,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one file, and where its next ones begin."""

    batch: pa.RecordBatch | None
    rejects: tuple[Reject, ...]
    byte: int
    row: int  # lines, or rows of a Parquet file, before the next one
    finished: bool


class FileRows(ABC):
    """The rows of one open file, by position."""

    @abstractmethod
    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        """Return the next rows; a position that this file never gave raises InvalidOffset."""

    def close(self) -> None:  # noqa: B027 (files of lines hold nothing)
        """Release what reading has built up; the file's handle is not this object's."""


class AnnouncedFile:
    """An open file that must stay what it was when it was discovered."""

    def __init__(self, folder: Path, entry: FileEntry) -> None:
        self.entry = entry
        self.shown = entry.name.encode("utf-8", "backslashreplace").decode()
        self._path = folder / entry.name
        refuse_ways_out(folder, self._path, self.shown)
        with self.told(0, 0):
            # Not blocking: something else than a file may have taken the name.
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        # Also closed when nobody holds this object any more: a failed read closes nothing.
        self._closing = weakref.finalize(self, os.close, self._handle)
        self._check(os.fstat(self._handle), 0, 0)

    def check(self, byte: int, row: int) -> None:
        """Raise if the file is gone, or is not as it was announced."""
        with self.told(byte, row):
            found = os.stat(self._path)
        self._check(found, byte, row)

    def _check(self, found: os.stat_result, byte: int, row: int) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise PathRefused(f"{self.shown} is not a regular file any more", file=self.shown)
        size, announced = found.st_size, self.entry.size_bytes
        if size < announced:
            raise self.shrunk(size, byte, row)
        if size != announced or found.st_mtime_ns != self.entry.mtime_ns:
            raise SourceChanged(
                f"{self.shown} was written to after it was announced ({announced} bytes then, "
                f"{size} now), at offset byte {byte}, row {row}: write files elsewhere and rename "
                "them in",
                **self._details(byte, row),
            )

    def shrunk(self, size: int, byte: int, row: int) -> SourceShrunk:
        """Return the error for a file that lost bytes."""
        return SourceShrunk(
            f"{self.shown} has {size} bytes, {self.entry.size_bytes} were announced, at offset "
            f"byte {byte}, row {row}: put the first version back, with its time stamp",
            size_bytes=size,
            **self._details(byte, row),
        )

    def pread(self, byte: int, size: int, row: int) -> bytes:
        """Return exactly the bytes asked for, which lie inside the announced size."""
        chunks: list[bytes] = []
        while size > 0:
            with self.told(byte, row):
                chunk = os.pread(self._handle, size, byte)
            if not chunk:
                raise self.shrunk(byte, byte, row)
            chunks.append(chunk)
            byte, size = byte + len(chunk), size - len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Close the handle, once."""
        self._closing()

    @contextmanager
    def told(self, byte: int, row: int) -> Iterator[None]:
        """Turn a failed system call into an error that names the file and the offset."""
        try:
            yield
        except FileNotFoundError as error:
            raise SourceVanished(
                f"{self.shown} is gone before it was read to its end, at offset byte {byte}, "
                f"row {row}: put it back, with its time stamp",
                **self._details(byte, row),
            ) from error
        except OSError as error:
            raise SourceError(
                f"cannot read {self.shown} at offset byte {byte}, row {row}: {error}",
                **self._details(byte, row),
            ) from error

    def _details(self, byte: int, row: int) -> dict[str, object]:
        return {"file": self.shown, "byte": byte, "row": row}


def refuse_ways_out(folder: Path, path: Path, shown: str) -> None:
    """Raise PathRefused if a path, links followed, leaves the folder."""
    real_folder, real = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([real_folder, real]) != real_folder:
        raise PathRefused(
            f"{shown} is a link out of the folder, to {real}: links are followed inside it only",
            file=shown,
            target=real,
        )
