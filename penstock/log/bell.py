"""The doorbell: an mmapped counter that tells every process how far the log is visible.

It holds the durable tail, so it does two jobs. Readers look no further than it, which keeps them
from acting on a record that a power cut could still take back. And it wakes them: on Linux a
waiter sleeps in the kernel on the counter's low word (a futex) and costs nothing until it moves;
elsewhere it looks at the counter every half millisecond. Nobody polls the index.

    bytes 0-7 magic    8-15 tail    16-23 complement of tail    24-31 newest committed position

The complement tells a damaged bell from a true one. The committed position is a hint that lets one
sync cover the appends of many processes.
"""

from __future__ import annotations

import ctypes
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
_MAGIC, _TAIL, _COMPLEMENT, _COMMITTED = range(4)
_ALL_ONES = (1 << 64) - 1
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_POLL_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """One process's mapping of the doorbell file."""

    def __init__(self, path: Path, files: Files, *, read_only: bool = False) -> None:
        self.path = path
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        fd = files.open(path, flags)
        try:
            size = os.fstat(fd).st_size
            if size != BELL_BYTES and not read_only:
                files.truncate(fd, 0)
                files.truncate(fd, BELL_BYTES)
            elif size != BELL_BYTES:
                raise ValueError(f"{path} has {size} bytes instead of {BELL_BYTES}")
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            self._map = mmap.mmap(fd, BELL_BYTES, access=access)
        finally:
            files.close(fd)
        # NumPy stores and loads an aligned 64-bit word in one instruction: no torn counters.
        self._words = np.frombuffer(self._map, dtype="<u8")
        self._futex = None if read_only else _futex(self._words)

    def is_sound(self) -> bool:
        """Whether the file holds a counter that we wrote, as opposed to zeros or damage."""
        words = self._words
        return bool(words[_MAGIC] == MAGIC and int(words[_TAIL]) ^ _ALL_ONES == words[_COMPLEMENT])

    def tail(self) -> Position:
        return Position(int(self._words[_TAIL]))

    def committed(self) -> Position:
        return Position(int(self._words[_COMMITTED]))

    def hint_committed(self, position: Position) -> None:
        """Note a committed position. Races between writers only make a sync cover less."""
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
        """Sleep until the tail is past `after` or the time is over; return the tail."""
        deadline = time.monotonic() + timeout_s
        while (tail := self.tail()) <= after:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            if self._futex is not None:
                self._futex.wait(tail, left_s)
            else:
                time.sleep(min(_POLL_S, left_s))
        return tail

    def close(self) -> None:
        self._futex = None
        del self._words
        self._map.close()


class _Futex:
    """The kernel's wait queue on the tail's low word, shared by all processes that map the file."""

    def __init__(self, words: np.ndarray, number: int) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._number = number
        self._address = ctypes.c_void_p(words.ctypes.data + 8 * _TAIL)

    def wake(self) -> None:
        self._call(self._number, self._address, _FUTEX_WAKE, 0x7FFFFFFF, None, None, 0)

    def wait(self, seen: int, timeout_s: float) -> None:
        seconds, fraction = divmod(min(timeout_s, 3600.0), 1)
        timeout = _Timespec(int(seconds), int(fraction * 1e9))
        low = ctypes.c_uint32(seen & 0xFFFFFFFF)
        # Returns at once if the word has moved since `seen` was read, so no ring is missed.
        self._call(self._number, self._address, _FUTEX_WAIT, low, ctypes.byref(timeout), None, 0)


def _futex(words: np.ndarray) -> _Futex | None:
    number = _FUTEX_NUMBERS.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None or sys.byteorder != "little":
        return None
    return _Futex(words, number)
