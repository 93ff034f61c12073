"""Floors: what the disk and SQLite do alone, without the log, with the same sizes and processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import apsw

from penstock.bench.crew import wait_until

PAGE_BYTES = 4096
STREAM_WRITE_BYTES = 1 << 20
STREAM_SYNC_BYTES = 8 << 20


def insert_us(folder: Path, inserts: int) -> list[float]:
    """Insert rows of 100 bytes, one per transaction, unsynced, in WAL mode; return their times."""
    path = folder / "floor.db"
    connection = apsw.Connection(str(path))
    try:
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "off")
        execute = connection.cursor().execute
        execute("CREATE TABLE IF NOT EXISTS row(id INTEGER PRIMARY KEY, body BLOB)")
        body = bytes(100)
        times = []
        for _ in range(inserts):
            start_ns = time.perf_counter_ns()
            execute("INSERT INTO row(body) VALUES(?)", (body,))
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
        return times
    finally:
        connection.close()
        path.unlink()


def sync_us(folder: Path, syncs: int) -> list[float]:
    """Append 4 KiB to a file and fdatasync it; return each pair's time."""
    page = os.urandom(PAGE_BYTES)
    path = folder / "floor.sync"
    fd = _create(path)
    try:
        times = []
        for _ in range(syncs):
            start_ns = time.perf_counter_ns()
            os.write(fd, page)
            os.fdatasync(fd)
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
        return times
    finally:
        os.close(fd)
        path.unlink()


def pieces_mb_per_s(start_s: float, path: Path, piece_bytes: int, seconds: float) -> float:
    """Append pieces to a file of this process, fdatasync after each; return the rate."""
    piece = os.urandom(piece_bytes)
    fd = _create(path)
    try:
        wait_until(start_s)
        end_s = start_s + seconds
        pieces = 0
        while time.perf_counter() < end_s:
            os.write(fd, piece)
            os.fdatasync(fd)
            pieces += 1
        return pieces * piece_bytes / 1e6 / (time.perf_counter() - start_s)
    finally:
        os.close(fd)
        path.unlink()


def stream_mb_per_s(path: Path, seconds: float) -> float:
    """Write 1 MiB pieces in one process, fdatasync after every 8 MiB; return the rate."""
    piece = os.urandom(STREAM_WRITE_BYTES)
    fd = _create(path)
    try:
        start_s = time.perf_counter()
        written = 0
        while time.perf_counter() < start_s + seconds:
            for _ in range(STREAM_SYNC_BYTES // STREAM_WRITE_BYTES):
                written += os.write(fd, piece)
            os.fdatasync(fd)
        return written / 1e6 / (time.perf_counter() - start_s)
    finally:
        os.close(fd)
        path.unlink()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
