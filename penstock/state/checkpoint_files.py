"""The few file operations that checkpoints need, and how a local disk does them.

Paths are tuples of names below one root; the store has checked each name before it gets here. What
was written is durable once its file is synced, and is found after a power cut once its folder is.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

FilePath = tuple[str, ...]
Part: TypeAlias = bytes | pa.Buffer

# What is written is synced piece by piece: a filesystem that syncs somebody else's small file, such
# as the log's, may have to bring all unsynced bytes to the disk first, and its writer waits.
_WRITE_BYTES_MAX = 1 << 20
_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CheckpointFiles(ABC):
    """What a checkpoint store asks of a place. What fails raises OSError."""

    @abstractmethod
    def make_folder(self, path: FilePath) -> None:
        """Make one folder; FileExistsError if the name is taken."""

    @abstractmethod
    def write_file(self, path: FilePath, parts: Iterable[Part]) -> None:
        """Write a new file and sync it; FileExistsError if the name is taken, be it by a link."""

    @abstractmethod
    def rename(self, path: FilePath, new_name: str) -> None:
        """Give a file another name in its folder."""

    @abstractmethod
    def sync_folder(self, path: FilePath) -> None:
        """Make the names in a folder durable."""

    @abstractmethod
    def read_file(self, path: FilePath, bytes_max: int) -> pa.Buffer:
        """Return a regular file's bytes, and not more than `bytes_max` of them."""

    @abstractmethod
    def list_folder(self, path: FilePath) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""

    @abstractmethod
    def remove_file(self, path: FilePath) -> None:
        """Remove one file."""

    @abstractmethod
    def remove_folder(self, path: FilePath) -> None:
        """Remove one folder; OSError if something is in it."""


class LocalFiles(CheckpointFiles):
    """Files below a root folder of this machine. A link below the root is never followed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make_folder(self, path: FilePath) -> None:
        with self._folder(path[:-1]) as folder:
            os.mkdir(path[-1], dir_fd=folder)

    def write_file(self, path: FilePath, parts: Iterable[Part]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._folder(path[:-1]) as folder:
            file = os.open(path[-1], flags, 0o666, dir_fd=folder)
        try:
            unsynced = 0
            for part in parts:
                view = memoryview(part).cast("B")
                while view.nbytes:
                    written = os.write(file, view[:_WRITE_BYTES_MAX])
                    view = view[written:]
                    unsynced += written
                    if unsynced >= _WRITE_BYTES_MAX:
                        os.fdatasync(file)
                        unsynced = 0
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, path: FilePath, new_name: str) -> None:
        with self._folder(path[:-1]) as folder:
            os.rename(path[-1], new_name, src_dir_fd=folder, dst_dir_fd=folder)

    def sync_folder(self, path: FilePath) -> None:
        with self._folder(path) as folder:
            os.fsync(folder)

    def read_file(self, path: FilePath, bytes_max: int) -> pa.Buffer:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._folder(path[:-1]) as folder:
            file = os.open(path[-1], flags, dir_fd=folder)
        with open(file, "rb", buffering=0) as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path[-1]} is not a regular file")
            content = pa.allocate_buffer(min(status.st_size, bytes_max), resizable=True)
            view, filled = memoryview(content).cast("B"), 0
            while filled < view.nbytes and (got := opened.readinto(view[filled:])):
                filled += got
            view.release()
            return content.slice(0, filled)

    def list_folder(self, path: FilePath) -> list[str]:
        try:
            with self._folder(path) as folder:
                return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove_file(self, path: FilePath) -> None:
        with self._folder(path[:-1]) as folder:
            os.unlink(path[-1], dir_fd=folder)

    def remove_folder(self, path: FilePath) -> None:
        with self._folder(path[:-1]) as folder:
            os.rmdir(path[-1], dir_fd=folder)

    @contextmanager
    def _folder(self, path: FilePath) -> Iterator[int]:
        """A descriptor of a folder, reached name by name so that no link can lead elsewhere."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in path:
                inner = os.open(name, _READ_FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)
