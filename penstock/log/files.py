"""The log's only door to the filesystem: the few calls it makes, and their failures by name.

Tests put another `Files` here (and a matching SQLite VFS) that crashes, loses unsynced bytes or
fails the k-th call; nothing else in the log touches a file for writing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DiskFull, LogBusy, LogError, LogIOError, LogReadOnly
from penstock.names import show_path

BUSY_S = 10.0  # an append holds a lock for well under a millisecond
YIELDS = 50  # tries before the first sleep: to fall asleep and wake takes longer than an append
LOCK_PAUSE_S = 0.00005
LOCK_PAUSE_LONG_S = 0.002
LOCK_PATIENCE_S = 0.05
_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def log_error(error: OSError, doing: str) -> LogError:
    """Name a failed system call: full, read-only, or an I/O error with its errno."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(
            f"disk full while {doing}: {reason}. Nothing was appended; free space and retry",
            errno=error.errno,
        )
    if error.errno in _READ_ONLY:
        return LogReadOnly(
            f"no permission to write while {doing}: {reason}. Check the folder's owner, "
            "mode and mount",
            errno=error.errno,
        )
    return LogIOError(
        f"I/O error while {doing}: {reason}. Nothing acknowledged is lost; check the disk, "
        "open the log again and retry",
        errno=error.errno,
    )


@contextmanager
def named_errors(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into the log's own error."""
    try:
        yield
    except OSError as error:
        raise log_error(error, doing) from error


class Files:
    """The local filesystem. `vfs` names the SQLite VFS that goes with it, None for SQLite's own.

    New files and folders have the modes that the process's umask leaves them.
    """

    vfs: str | None = None

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, parts: Sequence[memoryview]) -> int:
        """Write all parts at the file's end, also after a short write; return their length."""
        total = sum(part.nbytes for part in parts)
        written = os.writev(fd, parts)
        if written < total:
            rest = memoryview(b"".join(parts))[written:]
            while rest.nbytes:
                rest = rest[os.write(fd, rest) :]
        return total

    def sync(self, fd: int) -> None:
        """Make a file's bytes durable."""
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        """Make a folder's entries durable: without its name, a synced file is lost all the same."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        os.mkdir(path, mode)

    def publish(self, path: Path, content: bytes) -> None:
        """Write a small file so that a crash leaves either the old one or the whole new one."""
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.write(fd, [memoryview(content)])
            self.sync(fd)
        finally:
            self.close(fd)
        self.replace(temporary, path)
        self.sync_folder(path.parent)


def lock(fd: int, *, wait_s: float = 0.0) -> bool:
    """Take an exclusive lock, which dies with the process; return whether it was had in time.

    Tried again and again instead of waited for in the kernel, where a holder that is stopped but
    not dead would keep everybody for ever.
    """
    waited_s = 0.0
    yields = 0
    pause_s = LOCK_PAUSE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if waited_s >= wait_s:
                return False
        if yields < YIELDS:
            yields += 1
            os.sched_yield()
            continue
        time.sleep(pause_s)
        waited_s += pause_s
        if waited_s > LOCK_PATIENCE_S:
            pause_s = LOCK_PAUSE_LONG_S


def holders(path: Path) -> list[int]:
    """The processes that hold a lock on a file, where the system tells; else none."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii") as table:
            rows = [line.split() for line in table if "->" not in line]
    except OSError:
        return []
    return sorted({int(row[4]) for row in rows if row[5].rsplit(":", 1)[-1] == str(inode)})


def busy(path: Path, doing: str) -> LogBusy:
    """The error for a lock that was not to be had in time."""
    pids = holders(path)
    who = f"process {', '.join(map(str, pids))}" if pids else "another process"
    return LogBusy(
        f"waited {BUSY_S:.0f} s while {doing}: {who} holds the lock of {show_path(path)}. If it "
        "is stopped or hangs, end it; nothing was appended, retry then",
        path=str(path),
        holders=pids,
    )


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
