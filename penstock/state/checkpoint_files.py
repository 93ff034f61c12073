"""The few file operations that checkpoints need: on a local disk, and in memory for simulations.

Paths are tuples of names below one root; the store has checked each name before it gets here. What
was written is durable once its file is synced, and is found after a power cut once its folder is.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(eq=False)
class _File:
    content: bytes
    is_synced: bool


Names = dict[FilePath, _File | None]  # None: a folder

# Called before each step with its name and path; it may raise an OSError, which fails the step, or
# something else, which stands for the death of the process at that point.
StepHook = Callable[[str, FilePath], None]


class MemoryFiles(CheckpointFiles):
    """Files in memory, with failing steps and power cuts as the caller decides them."""

    def __init__(self, before_step: StepHook | None = None) -> None:
        self.before_step = before_step
        self._names: Names = {(): None}
        self._durable: Names = {(): None}

    def make_folder(self, path: FilePath) -> None:
        self._step("make_folder", path)
        self._check_free(path)
        self._names[path] = None

    def write_file(self, path: FilePath, parts: Iterable[Part]) -> None:
        self._step("create", path)
        self._check_free(path)
        file = self._names[path] = _File(b"", is_synced=False)
        for part in parts:
            self._step("write", path)
            file.content += bytes(memoryview(part))
        self._step("sync_file", path)
        file.is_synced = True

    def rename(self, path: FilePath, new_name: str) -> None:
        self._step("rename", path)
        self._file(path)
        self._names[*path[:-1], new_name] = self._names.pop(path)

    def sync_folder(self, path: FilePath) -> None:
        self._step("sync_folder", path)
        for name in self._below(self._durable, path):
            del self._durable[name]
        for name in self._below(self._names, path):
            self._durable[name] = self._names[name]

    def read_file(self, path: FilePath, bytes_max: int) -> pa.Buffer:
        self._step("read", path)
        return pa.py_buffer(self._file(path).content[:bytes_max])

    def list_folder(self, path: FilePath) -> list[str]:
        self._step("list", path)
        return sorted(name[-1] for name in self._below(self._names, path))

    def remove_file(self, path: FilePath) -> None:
        self._step("remove_file", path)
        self._file(path)
        del self._names[path]

    def remove_folder(self, path: FilePath) -> None:
        self._step("remove_folder", path)
        if self._below(self._names, path):
            raise OSError(f"folder {'/'.join(path)} is not empty")
        if self._names.pop(path, path) is not None:
            raise FileNotFoundError(f"no folder {'/'.join(path)}")

    def power_cut(self, choose: Callable[[int], int] = lambda choices: 0) -> None:
        """Lose what was not synced. `choose(n)` picks 0 .. n-1; 0 always loses the most.

        A folder's unsynced names are lost or kept together; an unsynced file that keeps its name is
        empty, torn or whole.
        """
        folders = {name for name, file in self._names.items() if file is None}
        kept: Names = {(): None}
        for folder in sorted(folders | {name[:-1] for name in self._durable if name}):
            if folder in kept:
                source = self._names if choose(2) else self._durable
                kept.update({name: source[name] for name in self._below(source, folder)})
        for name in sorted(kept):
            file = kept[name]
            if file is not None and not file.is_synced:
                sizes = (0, len(file.content) // 2, len(file.content))
                file.content = file.content[: sizes[choose(3)]]
                file.is_synced = True
        self._names, self._durable = kept, dict(kept)

    def names_in(self, folder: FilePath) -> list[str]:
        """The names in a folder, looked up from outside: no step of anybody."""
        return sorted(name[-1] for name in self._below(self._names, folder))

    def damage(self, path: FilePath, at: int) -> None:
        """Flip one bit of a file."""
        file = self._file(path)
        flipped = bytearray(file.content)
        flipped[at % len(flipped)] ^= 1
        file.content = bytes(flipped)

    def _step(self, step: str, path: FilePath) -> None:
        if self.before_step:
            self.before_step(step, path)

    def _check_free(self, path: FilePath) -> None:
        if path in self._names:
            raise FileExistsError(f"{'/'.join(path)} exists")
        if self._names.get(path[:-1], path) is not None:
            raise FileNotFoundError(f"no folder {'/'.join(path[:-1])}")

    def _file(self, path: FilePath) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(f"no file {'/'.join(path)}")
        return file

    @staticmethod
    def _below(names: Names, folder: FilePath) -> list[FilePath]:
        return [name for name in names if name and name[:-1] == folder]
