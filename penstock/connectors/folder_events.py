"""What the kernel tells about folders: which names came, and whose writers are done with them.

That is inotify, which is there on Linux, and tells of changes that go through this kernel: on a
file system that other machines change too it would keep silent about theirs. Where it is not to be
relied on, folders are listed instead.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_CLOSE_WRITE, _MOVED_TO, _CREATE = 0x8, 0x80, 0x100
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _IS_FOLDER = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS = 0x01000000
_WATCHED = _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE_SELF | _MOVE_SELF
_LOST = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED | _IS_FOLDER
_EVENT = struct.Struct("iIII")  # watch, what, cookie, bytes of the name
AGAIN_MS = 40  # between two calls
_READ_BYTES = 1 << 16
_STATFS_BYTES = 256  # more than the structure has; its first word is the kind

# File systems that only this machine changes, by the kernel's numbers for them.
LOCAL = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # xfs
        0x9123683E,  # btrfs
        0x2FC12FC1,  # zfs
        0xF2F52010,  # f2fs
        0x01021994,  # tmpfs
        0x794C7630,  # overlay
    }
)


@dataclass(slots=True)
class FolderNews:
    """What was heard since the last time."""

    names: dict[str, bool] = field(default_factory=dict)  # that came: is the writer done with it
    is_complete: bool = True  # False: something else may have come, which only a listing shows


class FolderEvents:
    """Listens to some folders; `wake` is called by another thread when something was heard."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._prefixes: dict[int, str] = {}  # of the names in a folder, by the number of its watch
        self._wake = wake
        self._handle = -1
        if sys.platform == "linux":
            self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle >= 0:
            weakref.finalize(self, os.close, self._handle)

    def watch(self, folder: Path, prefix: str) -> bool:
        """Listen to a folder from now on; return whether what is heard of it is everything."""
        path = os.fsencode(folder)
        if self._handle < 0 or not self._is_local(path):
            return False
        number = self._libc.inotify_add_watch(self._handle, path, _WATCHED | _ONLY_FOLDERS)
        if number < 0:
            return False  # a user may watch so many folders, and no more
        self._prefixes[number] = prefix
        if self._wake is not None:
            self._wake_from_now_on(self._wake)
            self._wake = None
        return True

    def take(self) -> FolderNews:
        """Return what was heard since the last call, in names below the folders' prefixes."""
        news = FolderNews()
        while self._handle >= 0:
            try:
                events = os.read(self._handle, _READ_BYTES)
            except BlockingIOError:
                break
            at = 0
            while at < len(events):
                number, what, _, name_bytes = _EVENT.unpack_from(events, at)
                at += _EVENT.size + name_bytes
                if what & _LOST:
                    news.is_complete = False
                elif what & (_CREATE | _MOVED_TO | _CLOSE_WRITE):
                    name = events[at - name_bytes : at].rstrip(b"\0")
                    path = self._prefixes.get(number, "") + os.fsdecode(name)
                    is_done = bool(what & (_MOVED_TO | _CLOSE_WRITE))
                    news.names[path] = is_done or news.names.get(path, False)
        return news

    def _wake_from_now_on(self, wake: Callable[[], None]) -> None:
        ended, end = os.pipe2(os.O_CLOEXEC)
        thread = threading.Thread(
            target=_wake_when_heard,
            args=(self._handle, ended, wake),
            name="penstock-folder",
            daemon=True,
        )
        thread.start()
        # The newest is called first: the thread has ended when its handle is closed.
        weakref.finalize(self, _end, thread, ended, end)

    def _is_local(self, path: bytes) -> bool:
        found = (ctypes.c_ulong * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_ulong)))()
        return self._libc.statfs(path, found) == 0 and int(found[0]) in LOCAL


def _wake_when_heard(handle: int, ended: int, wake: Callable[[], None]) -> None:
    """Wake when something is heard, and once more if it is not taken.

    A wait that is only just beginning misses a call; but nobody may have a use for it now.
    """
    hearing, untaken, ending = select.epoll(), select.poll(), select.poll()
    hearing.register(handle, select.EPOLLIN | select.EPOLLET)  # what is new, not what is there
    hearing.register(ended, select.EPOLLIN)
    untaken.register(handle, select.POLLIN)
    ending.register(ended, select.POLLIN)
    with hearing:
        again = False
        while ended not in (heard := dict(hearing.poll(0 if again else None))):
            if heard or untaken.poll(0):
                wake()
            again = bool(heard)
            if again and ending.poll(AGAIN_MS):
                return


def _end(thread: threading.Thread, ended: int, end: int) -> None:
    os.write(end, b"e")
    if thread is not threading.current_thread():  # where garbage may be collected, too
        thread.join()
        for handle in (ended, end):
            os.close(handle)
