"""The doorbell: an mmapped counter that tells every process how far the log is visible.

It holds the durable tail, so it does two jobs. Readers look no further than it, which keeps them
from acting on a record that a power cut could still take back. And it wakes them: on Linux a
waiter sleeps in the kernel on the counter's low word (a futex) and costs nothing until it moves;
elsewhere it looks at the counter every half millisecond. Nobody polls the index.

    bytes 0-7 magic    8-15 tail    16-23 complement of tail    24-31 newest committed position
          32-39 changes of metadata and trims    40-47 complement of changes
          48-63 the boot of the machine in which the log was last opened to write

A complement tells a damaged counter from a true one. The committed position is a hint that lets one
sync cover the appends of many processes. The changes are there for the same reason as the tail: so
that a write-ahead log that lost its end is found out, also if no record was in it. The boot tells
whether there may have been a power cut since (`power_cut`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

from penstock.log.files import Files
from penstock.log.record import Position

MAGIC = int.from_bytes(b"PNSTBELL", "little")
BELL_BYTES = 64
_MAGIC, _TAIL, _COMPLEMENT, _COMMITTED, _CHANGES, _CHANGES_COMPLEMENT = range(6)
_BOOT = slice(48, 64)  # bytes
_ALL_ONES = (1 << 64) - 1
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_POLL_S = 0.0005
_SOUND_TRIES = 20


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """One process's mapping of the doorbell file."""

    def __init__(self, path: Path, files: Files, *, read_only: bool = False) -> None:
        self.path = path
        self._map = _map_to_read(path) if read_only else _map_to_write(path, files)
        # An aligned 64-bit word is stored and loaded in one instruction: no torn counters.
        self._words = memoryview(self._map).cast("Q")
        self._futex = _futex(self._map)
        self._wakes = 0
        self._stand_in: Position | None = None
        self._needed_boot: bytes | None = None

    def is_sound(self) -> bool:
        """Whether the file holds a counter that we wrote, as opposed to zeros or damage."""
        words = self._words
        return bool(words[_MAGIC] == MAGIC and words[_TAIL] ^ _ALL_ONES == words[_COMPLEMENT])

    def wait_until_sound(self) -> bool:
        """As `is_sound`, but give a writer that is just ringing the time to finish."""
        for _ in range(_SOUND_TRIES):
            if self.is_sound():
                return True
            time.sleep(_POLL_S)
        return False

    def stand_in(self, tail: Position, boot: bytes | None = None) -> None:
        """Take this for the tail as long as the file holds none that can be believed.

        With `boot`, only one that a writer of this boot has looked at is.
        """
        self._stand_in = tail
        self._needed_boot = boot

    def tail(self) -> Position:
        if self._stand_in is not None and not self._is_believed():
            return self._stand_in
        return Position(self._words[_TAIL])

    def _is_believed(self) -> bool:
        return self.is_sound() and self._needed_boot in (None, self.boot())

    def changes(self) -> int:
        """How many changes of metadata are durable at least; 0 where the file does not say."""
        changes = self._words[_CHANGES]
        return changes if changes ^ _ALL_ONES == self._words[_CHANGES_COMPLEMENT] else 0

    def note_changes(self, changes: int) -> None:
        """Note durable changes. The caller holds the log's sync lock."""
        self._words[_CHANGES_COMPLEMENT] = changes ^ _ALL_ONES
        self._words[_CHANGES] = changes

    def boot(self) -> bytes:
        """The boot that was noted last; zeros if none was."""
        return bytes(self._map[_BOOT])

    def note_boot(self, boot: bytes) -> None:
        """Note the boot of this machine. The caller holds the log's sync lock."""
        self._map[_BOOT] = boot

    def note_committed(self, position: Position) -> Position:
        """Note a committed position, and return the newest that is known of.

        Races between writers only make a sync cover less.
        """
        words = self._words
        if words[_COMMITTED] >= position:
            return Position(words[_COMMITTED])
        words[_COMMITTED] = position
        return position

    def hint_committed(self, position: Position) -> None:
        """Begin anew with a committed position: what the file says may be damage."""
        self._words[_COMMITTED] = position

    def ring(self, tail: Position) -> None:
        """Move the tail and wake everybody who waits. The caller holds the log's sync lock."""
        words = self._words
        words[_COMPLEMENT] = tail ^ _ALL_ONES
        words[_TAIL] = tail
        words[_MAGIC] = MAGIC
        if self._futex is not None:
            self._futex.wake()

    def wait(self, after: Position, timeout_s: float) -> Position:
        """Sleep until the tail is past `after`, the time is over, or `wake`; return the tail."""
        deadline = time.monotonic() + timeout_s
        wakes = self._wakes
        while (tail := self.tail()) <= after and self._wakes == wakes:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            if self._futex is None or self._stand_in is not None:
                time.sleep(min(_POLL_S, left_s))
            else:
                self._futex.wait(tail, left_s)
        return tail

    def wake(self) -> None:
        """End the waits of this mapping; those of other processes look up and sleep on."""
        self._wakes += 1
        if (futex := self._futex) is not None:
            futex.wake()

    def close(self) -> None:
        self._futex = None
        self._words.release()
        self._map.close()


def _map_to_write(path: Path, files: Files) -> mmap.mmap:
    fd = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_size != BELL_BYTES:
            files.truncate(fd, 0)
            files.truncate(fd, BELL_BYTES)
        return mmap.mmap(fd, BELL_BYTES, access=mmap.ACCESS_WRITE)
    finally:
        files.close(fd)


def _map_to_read(path: Path) -> mmap.mmap:
    """Map the file, or zeros if there is none of the right size: a bell that is not sound."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return mmap.mmap(-1, BELL_BYTES)
    try:
        if os.fstat(fd).st_size != BELL_BYTES:
            return mmap.mmap(-1, BELL_BYTES)
        return mmap.mmap(fd, BELL_BYTES, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)


class _Futex:
    """The kernel's wait queue on the tail's low word, shared by all processes that map the file."""

    def __init__(self, address: int, number: int) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._number = number
        self._address = ctypes.c_void_p(address + 8 * _TAIL)

    def wake(self) -> None:
        self._call(self._number, self._address, _FUTEX_WAKE, 0x7FFFFFFF)

    def wait(self, seen: int, timeout_s: float) -> None:
        seconds, fraction = divmod(min(timeout_s, 3600.0), 1)
        timeout = _Timespec(int(seconds), int(fraction * 1e9))
        low = ctypes.c_uint32(seen & 0xFFFFFFFF)
        # Returns at once if the word has moved since `seen` was read, so no ring is missed.
        pointer = ctypes.byref(timeout)
        if self._call(self._number, self._address, _FUTEX_WAIT, low, pointer, None, 0) == 0:
            return
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            time.sleep(min(_POLL_S, timeout_s))  # a kernel that cannot wait on this mapping


def _futex(bell: mmap.mmap) -> _Futex | None:
    number = _FUTEX_NUMBERS.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None or sys.byteorder != "little":
        return None
    # Only NumPy tells the address of a mapping that may not be written.
    return _Futex(np.frombuffer(bell, dtype=np.uint8).ctypes.data, number)
