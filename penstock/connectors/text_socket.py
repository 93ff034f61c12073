"""Lines that come through a TCP connection, like Spark's `socket` source. None comes twice."""

from __future__ import annotations

import re
import socket

import pyarrow as pa

from penstock.clock import Clock
from penstock.connectors.contract import (
    Offset,
    Source,
    SourceBatch,
    check_offset,
    check_rows_max,
    offset_refused,
)
from penstock.errors import SourceError

SOCKET_SCHEMA = pa.schema(
    [pa.field("value", pa.string()), pa.field("timestamp", pa.timestamp("us", tz="UTC"))]
)
CONNECT_S_MAX = 10.0
LINE_BYTES_MAX = 16 << 20
_RECEIVE_BYTES = 1 << 16
_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r(?!\Z))")  # a return at the end may be half of a pair


class SocketSource(Source):
    """Lines from a host, with the time at which each was received.

    The offset is the number of lines. There is no going back: what was received and never committed
    is lost with the process that received it, and the next one goes on with what comes then. So a
    query appends the lines to a stream of its own before it makes anything of them.
    """

    schema = SOCKET_SCHEMA
    replayable = False

    def __init__(self, host: str, port: int, clock: Clock) -> None:
        self._host, self._port, self._clock = host, port, clock
        self._connection: socket.socket | None = None
        self._lines = 0  # handed out, and those that earlier processes had
        self._received = b""  # the beginning of a line
        self._is_closed = False  # by the other side

    def initial_offset(self) -> Offset:
        return 0

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        first = check_offset(offset, 0, None)
        if self._connection is None:
            self._connection, self._lines = self._connected(), first
        if first != self._lines:
            raise offset_refused(offset, "lines of a socket cannot be read again")
        lines = self._taken(rows_max)
        if not lines:
            return SourceBatch(None, first, idle=True, nothing_yet=not first)
        self._lines += len(lines)
        now = pa.scalar(self._clock.now_us() // 1_000 * 1_000, SOCKET_SCHEMA.field(1).type)
        texts = pa.array([line.decode("utf-8", "replace") for line in lines])
        batch = pa.RecordBatch.from_arrays(
            [texts, pa.repeat(now, len(lines))], schema=SOCKET_SCHEMA
        )
        return SourceBatch(batch, self._lines, more=len(lines) == rows_max)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> socket.socket:
        try:
            connection = socket.create_connection((self._host, self._port), CONNECT_S_MAX)
        except OSError as error:
            raise SourceError(
                f"cannot connect to {self._host} port {self._port}: {error}. Start what is to send "
                "the lines, or correct host and port",
                host=self._host,
                port=self._port,
            ) from error
        connection.setblocking(False)
        return connection

    def _taken(self, lines_max: int) -> list[bytes]:
        """The next complete lines; the last one is complete when the other side has closed."""
        lines: list[bytes] = []
        while len(lines) < lines_max:
            end = 0
            for found in _LINE.finditer(self._received):
                lines.append(found[1])
                end = found.end()
                if len(lines) == lines_max:
                    break
            self._received = self._received[end:]
            if not end and not self._receive():
                break
        return lines

    def _receive(self) -> bool:
        """Take what has come; return whether there may be more lines now."""
        assert self._connection is not None
        if self._is_closed:
            return False
        if len(self._received) > LINE_BYTES_MAX:
            raise SourceError(
                f"{self._host} port {self._port} sent a line of more than {LINE_BYTES_MAX:,} bytes",
                host=self._host,
                port=self._port,
            )
        try:
            received = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""  # as if it had been closed: there will be no more
        self._is_closed = not received
        if self._is_closed and self._received:
            received = b"\n"
        self._received += received
        return bool(received)
