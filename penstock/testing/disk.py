"""A disk that can be crashed: every write of a log is traced, synced bytes and unsynced ones apart.

`TracedFiles` runs a log over a real folder and records each I/O call, SQLite's included (through a
VFS of its own). `Trace.disk_after(k, random)` then tells what a power cut after the k-th call could
have left: everything that was synced, and of the rest what chance keeps, drops or tears. Nothing is
run again for that, so a test can look at every k.

What is modelled: bytes of a file survive once the file is synced; a name survives once its folder
is synced; unsynced writes survive each for itself, whole, in part or not; unsynced names survive in
order up to some point, as on a journalling filesystem.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from penstock.log.bell import Bell
from penstock.log.files import Files
from penstock.log.record import Position

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Call:
    """One I/O call: what it did to which file or name."""

    kind: str  # create, write, truncate, sync, rename, unlink, mkdir, sync_folder, ring
    path: str  # below the log's folder; '' is the folder itself
    offset: int = 0
    data: bytes = b""
    target: str = ""


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[Call] = field(default_factory=list)


class Trace:
    """The calls of one run, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def disk_after(self, count: int, chance: random.Random) -> dict[str, bytes | None]:
        """Files (bytes) and folders (None) that a power cut after `count` calls could leave."""
        disk = _Disk()
        for call in self.calls[:count]:
            disk.apply(call)
        return disk.crash(chance)


class _Disk:
    """Replays calls, keeping what is durable apart from what is not."""

    def __init__(self) -> None:
        self._names: dict[str, _File | None] = {}  # as the running process sees them
        self._durable: dict[str, _File | None] = {}
        self._waiting: dict[str, list[Callable[[dict[str, _File | None]], None]]] = {}
        self._rings: list[int] = []

    def apply(self, call: Call) -> None:
        if call.kind == "ring":
            self._rings.append(call.offset)
        elif call.kind in ("write", "truncate"):
            self._file(call.path).unsynced.append(call)
        elif call.kind == "sync":
            file = self._file(call.path)
            for change in file.unsynced:
                _change(file.synced, change, len(change.data))
            file.unsynced.clear()
        elif call.kind == "sync_folder":
            for rename in self._waiting.pop(call.path, []):
                rename(self._durable)
        else:
            self._change_names(call)

    def _file(self, path: str) -> _File:
        file = self._names[path]
        assert file is not None, path
        return file

    def _change_names(self, call: Call) -> None:
        entry = _File() if call.kind == "create" else self._names.get(call.path)

        def change(names: dict[str, _File | None]) -> None:
            if call.kind in ("create", "mkdir"):
                names[call.path] = entry
            else:
                moved = names.pop(call.path, entry)
                if call.kind == "rename":
                    names[call.target] = moved

        change(self._names)
        folder = os.path.dirname(call.path)
        self._waiting.setdefault(folder, []).append(change)

    def crash(self, chance: random.Random) -> dict[str, bytes | None]:
        names = dict(self._durable)
        for folder in sorted(self._waiting):
            changes = self._waiting[folder]
            for change in changes[: chance.randint(0, len(changes))]:
                change(names)
        left: dict[str, bytes | None] = {}
        for path, file in sorted(names.items()):
            parent = os.path.dirname(path)
            if parent and parent not in names:
                continue
            left[path] = None if file is None else _after_power_cut(file, chance)
        if "bell" in left:
            left["bell"] = self._bell(chance)
        return left

    def _bell(self, chance: random.Random) -> bytes:
        # The bell is mapped memory: the kernel may have written any of its values, or none.
        tail = chance.choice([0, *self._rings, *self._rings[-3:]])
        return bell_bytes(tail) if tail else bytes(64)


def bell_bytes(tail: int) -> bytes:
    """A bell file that says `tail`."""
    complement = tail ^ ((1 << 64) - 1)
    words = (int.from_bytes(b"PNSTBELL", "little"), tail, complement, tail)
    return b"".join(word.to_bytes(8, "little") for word in words).ljust(64, b"\0")


def _after_power_cut(file: _File, chance: random.Random) -> bytes:
    content = bytearray(file.synced)
    fate = chance.choice(("none", "all", "some", "some", "torn"))
    for index, change in enumerate(file.unsynced):
        last = index == len(file.unsynced) - 1
        if fate == "none" or (fate == "some" and chance.random() < 0.5):
            continue
        length = len(change.data)
        if (fate == "torn" and last) or (fate == "some" and chance.random() < 0.3):
            sectors = length // SECTOR_BYTES
            length = chance.choice(
                (chance.randint(0, length), SECTOR_BYTES * chance.randint(0, sectors))
            )
        _change(content, change, length)
    return bytes(content)


def _change(content: bytearray, change: Call, length: int) -> None:
    end = change.offset + length
    if change.kind == "truncate":
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : end] = change.data[:length]


class TracedFiles(Files):
    """A log's files, traced; `fail(kind, path, index)` may name an errno that a call fails with."""

    def __init__(
        self, root: Path, fail: Callable[[str, str, int], int | None] | None = None
    ) -> None:
        self.root = root
        self.trace = Trace()
        self.calls_seen = 0
        self._fail = fail
        self._paths: dict[int, str] = {}
        self.vfs = f"traced{id(self):x}"
        self._vfs = _TracedVFS(self.vfs, self)

    def note(self, kind: str, path: str | Path, **details: Any) -> None:
        """Trace a call, or raise the error that it is to fail with."""
        below = os.path.relpath(path, self.root)
        below = "" if below == "." else below
        index = self.calls_seen
        self.calls_seen += 1
        if self._fail is not None and (number := self._fail(kind, below, index)) is not None:
            raise OSError(number, os.strerror(number), str(path))
        self.trace.calls.append(Call(kind, below, **details))

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self.note("create", path)
        fd = super().open(path, flags)
        self._paths[fd] = str(path)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        offset = os.fstat(fd).st_size  # every file of the log is only appended to
        self.note("write", self._paths[fd], offset=offset, data=b"".join(parts))
        return super().write(fd, parts)

    def sync(self, fd: int) -> None:
        self.note("sync", self._paths[fd])

    def sync_folder(self, path: Path) -> None:
        self.note("sync_folder", path)

    def truncate(self, fd: int, size: int) -> None:
        self.note("truncate", self._paths[fd], offset=size)
        super().truncate(fd, size)

    def replace(self, source: Path, target: Path) -> None:
        self.note("rename", source, target=os.path.relpath(target, self.root))
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self.note("unlink", path)
        super().unlink(path)

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        if path != self.root:
            self.note("mkdir", path)
        super().make_folder(path, mode)

    def trace_rings(self, bell: Bell) -> None:
        """Trace a handle's doorbell, whose writes are stores to mapped memory."""
        ring = bell.ring

        def traced(tail: Position) -> None:
            self.trace.calls.append(Call("ring", "bell", offset=tail))
            ring(tail)

        bell.ring = traced  # type: ignore[method-assign]

    def unregister(self) -> None:
        self._vfs.unregister()


class _TracedVFS(apsw.VFS):
    """SQLite's own VFS with every change noted."""

    def __init__(self, name: str, files: TracedFiles) -> None:
        super().__init__(name, "")
        self._files = files

    def xOpen(self, name: Any, flags: list[int]) -> _TracedFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        traced = path is not None and Path(path).is_relative_to(self._files.root)
        if traced and not os.path.exists(path):
            try:
                self._files.note("create", path)
            except OSError as error:
                raise apsw.CantOpenError(str(error)) from error
        return _TracedFile(name, flags, self._files, path if traced else None)

    def xDelete(self, name: str, sync_folder: bool) -> None:
        with _as_sqlite_error():
            self._files.note("unlink", name)
        super().xDelete(name, sync_folder)
        if sync_folder:
            self._files.note("sync_folder", os.path.dirname(name))


class _TracedFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], files: TracedFiles, path: str | None) -> None:
        super().__init__("", name, flags)
        self._files = files
        self._path = path
        self._is_named = False

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._path is not None:
            with _as_sqlite_error():
                self._files.note("write", self._path, offset=offset, data=bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        if self._path is not None:
            with _as_sqlite_error():
                self._files.note("truncate", self._path, offset=size)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        if self._path is not None:
            with _as_sqlite_error():
                self._files.note("sync", self._path)
                if not self._is_named:  # SQLite syncs the folder with a new journal's first sync
                    self._files.note("sync_folder", os.path.dirname(self._path))
            self._is_named = True
        super().xSync(flags)


class _as_sqlite_error:
    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (apsw.FullError if full else apsw.IOError)(str(error)) from error
