"""Checkpoints in memory: the store over files that fail, tear and vanish when told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.log import punit
from penstock.state.checkpoint_files import CheckpointFiles, FilePath, Part
from penstock.state.checkpoints import MANIFEST, CheckpointId, CheckpointStore


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


class MemoryCheckpoints(CheckpointStore):
    """The same store over files in memory, which fail, tear and vanish when told to."""

    def __init__(self, before_step: StepHook | None = None) -> None:
        self.files = MemoryFiles(before_step)
        super().__init__(Path("memory"), files=self.files, codec=punit.Codec.NONE)

    def damage(self, checkpoint: CheckpointId, at: int = 0, file: str = MANIFEST) -> None:
        """Flip a bit of one of its files."""
        self.files.damage((*checkpoint.path, file), at)

    def lose(self, checkpoint: CheckpointId) -> None:
        """Let a checkpoint vanish as if it had never been synced."""
        for name in self.files.list_folder(checkpoint.path):
            self.files.remove_file((*checkpoint.path, name))
        self.files.remove_folder(checkpoint.path)
