"""How fast the disk under a folder is, measured once in a process for each file system."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from penstock.clock import Clock, SystemClock

PROBE_BYTES = 8 << 20
UNKNOWN_BYTES_PER_S = 500e6  # until it was measured, and where it cannot be

_known: dict[int, float] = {}  # by device
_begun: set[int] = set()
_lock = threading.Lock()


def disk_bytes_per_s(folder: Path, clock: Clock | None = None) -> float:
    """What the disk takes in a second, synced; measured beside whoever asks first."""
    try:
        device = folder.stat().st_dev
    except OSError:
        return UNKNOWN_BYTES_PER_S
    with _lock:
        if device not in _begun:
            _begun.add(device)
            threading.Thread(
                target=_measure,
                args=(device, folder, clock or SystemClock()),
                name="penstock-disk",
                daemon=True,
            ).start()
    return _known.get(device, UNKNOWN_BYTES_PER_S)


def _measure(device: int, folder: Path, clock: Clock) -> None:
    with suppress(OSError):  # where nothing can be written, or no file system has such files
        _known[device] = probe(folder, clock)


def probe(folder: Path, clock: Clock) -> float:
    """Write a file that has no name, and sync it."""
    content = os.urandom(1 << 20)  # some file systems store what is alike only once
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        start_s = clock.monotonic_s()
        for _ in range(PROBE_BYTES // len(content)):
            os.write(file, content)
        os.fdatasync(file)
        return PROBE_BYTES / max(clock.monotonic_s() - start_s, 1e-6)
    finally:
        os.close(file)
