"""One file of a folder: opened safely, checked for changes, and read piece by piece."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.connectors.rejects import Reject
from penstock.errors import (
    PathRefused,
    SourceChanged,
    SourceError,
    SourceShrunk,
    SourceVanished,
)
from penstock.names import show_path

_WAYS_ON = (
    "put the version back that was begun, with its time stamp, or set changedFiles to skip, to go "
    "on with the next file"
)
_WAYS_ON_IN_IT = f"{_WAYS_ON}, or to continue, to take the rest of this one as it is now"


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


@dataclass(frozen=True, slots=True)
class Version:
    """Which content of a file is meant: a file that is written to becomes another version."""

    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Version:
        """Return the version that a file is now."""
        return cls(found.st_size, found.st_mtime_ns)


class OpenFile:
    """A file that is being read, which must stay the version that it was when reading began."""

    def __init__(self, folder: Path, name: str, version: Version | None) -> None:
        """Open a file: the version that an offset names, or the present one if it is None."""
        self.name = name
        self.shown = show_path(name)
        self.path = folder / name
        self._handle = self._opened(folder)
        # Also closed when nobody holds this object any more: a failed read closes nothing.
        self._closing = weakref.finalize(self, os.close, self._handle)
        found = os.fstat(self._handle)
        self._check_kind(found)
        self.version = version if version is not None else Version.of(found)
        self._check(found, 0, 0)

    def _opened(self, folder: Path) -> int:
        # Not blocking: something else than a file may have taken the name.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with self.told(0, 0):
            try:
                if "/" not in self.name:  # right in the folder, and no link: then it is inside
                    return os.open(self.path, flags | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        refuse_ways_out(folder, self.path, self.shown)
        with self.told(0, 0):
            return os.open(self.path, flags)

    @property
    def size_bytes(self) -> int:
        """How many bytes this version has."""
        return self.version.size_bytes

    def check(self, byte: int, row: int) -> None:
        """Raise if the file is gone, or is another version."""
        with self.told(byte, row):
            found = os.stat(self.path)
        self._check_kind(found)
        self._check(found, byte, row)

    def _check_kind(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise PathRefused(f"{self.shown} is not a regular file any more", file=self.shown)

    def _check(self, found: os.stat_result, byte: int, row: int) -> None:
        size, begun = found.st_size, self.version.size_bytes
        if size < begun:
            raise self.shrunk(size, byte, row)
        if Version.of(found) != self.version:
            raise SourceChanged(
                f"{self.shown} was written to after its reading began ({begun} bytes then, {size} "
                f"now), at offset byte {byte}, row {row}: {_WAYS_ON_IN_IT}",
                size_bytes=size,
                **self._details(byte, row),
            )

    def shrunk(self, size: int, byte: int, row: int) -> SourceShrunk:
        """Return the error for a file that lost bytes."""
        return SourceShrunk(
            f"{self.shown} has {size} bytes and had {self.version.size_bytes} when its reading "
            f"began, at offset byte {byte}, row {row}: {_WAYS_ON}",
            size_bytes=size,
            **self._details(byte, row),
        )

    def pread(self, byte: int, size: int, row: int) -> bytes:
        """Return exactly the bytes asked for, which lie inside the version's size."""
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
                f"row {row}: {_WAYS_ON}",
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
            f"{shown} is a link out of the folder, to {show_path(real)}: links are followed "
            "inside it only",
            file=shown,
            target=show_path(real),
        )
