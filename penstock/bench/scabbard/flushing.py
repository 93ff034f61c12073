"""The prototype beside which persisting is measured: it flushes before it acknowledges.

A server takes units of rows over a connection, compresses each with Snappy, appends it to a file,
calls `fdatasync`, and says that it is safe; then it takes the next one. It knows no columns, no
exactly-once, no reader, and nothing is done meanwhile. What comes is received by another thread,
so that the sender need not wait for the disk before the window is full.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from pathlib import Path

import pyarrow as pa

from penstock.bench.scabbard.sending import WINDOW_BYTES, Rows, Sent, send
from penstock.connectors import producer_wire as wire

_HEAD = struct.Struct("<QQ")  # offset, size
_WORD = struct.Struct("<Q")
_RECEIVED_MAX = 64  # units that wait for the disk
ANSWER_S_MAX = 300.0


def serve(start_s: float, port: int, path: str) -> int:
    """A worker's task: take units from one sender until it goes; how many bytes were written."""
    del start_s
    codec = pa.Codec("snappy")
    received: queue.Queue[tuple[int, bytes] | None] = queue.Queue(_RECEIVED_MAX)
    with socket.create_server((wire.HOST, port)) as server:
        connection, _ = server.accept()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    written = 0
    with connection:
        threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
        while (unit := received.get()) is not None:
            offset, payload = unit
            content = codec.compress(payload, asbytes=True)
            written += os.write(file, _HEAD.pack(offset, len(content)) + content)
            os.fdatasync(file)
            connection.sendall(_WORD.pack(offset))
    os.close(file)
    Path(path).unlink()
    return written


def _receive(connection: socket.socket, received: queue.Queue[tuple[int, bytes] | None]) -> None:
    with connection.makefile("rb") as stream:
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            offset, size = _HEAD.unpack(head)
            received.put((offset, stream.read(size)))
    received.put(None)


class _Sender:
    """The other end: keeps as much as a producer does of what is not acknowledged."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._sizes: deque[int] = deque()
        self._offset: int | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def offset(self) -> int | None:
        return self._offset

    def send(self, rows: pa.RecordBatch, offset: int) -> None:
        payload = wire.encode_rows(rows)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._sizes or sum(self._sizes) + payload.size <= WINDOW_BYTES
            )
            self._sizes.append(payload.size)
        self._connection.sendall(_HEAD.pack(offset, payload.size))
        self._connection.sendall(payload)

    def flush(self, timeout_s: float | None = ANSWER_S_MAX) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._sizes, timeout_s)

    def _listen(self) -> None:
        with self._connection.makefile("rb") as stream:
            while len(word := stream.read(_WORD.size)) == _WORD.size:
                with self._changed:
                    (self._offset,) = _WORD.unpack(word)
                    self._sizes.popleft()
                    self._changed.notify_all()


def send_to_prototype(start_s: float, port: int, rows: Rows, seconds: float) -> Sent:
    """A worker's task."""
    del start_s
    with _connected(port) as connection:
        try:
            return send(_Sender(connection), rows, seconds)
        finally:
            connection.shutdown(socket.SHUT_RDWR)


def _connected(port: int) -> socket.socket:
    end_s = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return socket.create_connection((wire.HOST, port))
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)
