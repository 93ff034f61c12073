"""The few file operations that checkpoints need: on a local disk, and in memory for simulations.

Paths are tuples of names below one root; each name has been checked by the store before it gets
here. A file that was written is durable only after `sync_file`, and can be found after a crash only
once its folder was synced too.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

FilePath = tuple[str, ...]
Part = bytes | memoryview

_WRITE_BYTES_MAX = 64 << 20


class CheckpointFiles(ABC):
    """What a checkpoint store asks of a place; each failure is an OSError."""

    @abstractmethod
    def make_folder(self, path: FilePath) -> None:
        """Make one folder; FileExistsError if the name is taken."""

    @abstractmethod
    def write_file(self, path: FilePath, parts: Sequence[Part]) -> None:
        """Write and sync a new file; FileExistsError if the name is taken, by a link too."""

    @abstractmethod
    def rename(self, path: FilePath, new_path: FilePath) -> None:
        """Give a file another name in the same folder."""

    @abstractmethod
    def sync_folder(self, path: FilePath) -> None:
        """Make the names in a folder durable."""

    @abstractmethod
    def read_file(self, path: FilePath, bytes_max: int) -> bytes:
        """Return a regular file's bytes, at most `bytes_max` of them."""

    @abstractmethod
    def list_folder(self, path: FilePath) -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""

    @abstractmethod
    def remove_file(self, path: FilePath) -> None:
        """Remove one file."""

    @abstractmethod
    def remove_folder(self, path: FilePath) -> None:
        """Remove one empty folder."""


class LocalFiles(CheckpointFiles):
    """Files below a root folder of the local filesystem. Links inside it are never followed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make_folder(self, path: FilePath) -> None:
        os.mkdir(self._at(path), 0o700)

    def write_file(self, path: FilePath, parts: Sequence[Part]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._at(path), flags, 0o600)
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                while view.nbytes:
                    view = view[os.write(file, view[:_WRITE_BYTES_MAX]) :]
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, path: FilePath, new_path: FilePath) -> None:
        os.rename(self._at(path), self._at(new_path))

    def sync_folder(self, path: FilePath) -> None:
        folder = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read_file(self, path: FilePath, bytes_max: int) -> bytes:
        file = os.open(self._at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb", buffering=0) as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{path[-1]} is not a regular file")
            size = min(os.fstat(file).st_size, bytes_max)
            content = bytearray(size)
            view, filled = memoryview(content), 0
            while filled < size:
                got = opened.readinto(view[filled:])
                if not got:
                    break
                filled += got
            view.release()
            del content[filled:]
            return content  # type: ignore[return-value]

    def list_folder(self, path: FilePath) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove_file(self, path: FilePath) -> None:
        os.unlink(self._at(path))

    def remove_folder(self, path: FilePath) -> None:
        os.rmdir(self._at(path))

    def _at(self, path: FilePath) -> Path:
        return self.root.joinpath(*path)
