"""A program that sends rows to a query: keeps what is not acknowledged, and sends it again."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.arguments import check_folder, check_integer, check_type
from penstock.connectors import producer_wire as wire
from penstock.errors import InvalidArgument, ProducerRefused
from penstock.names import check_name

KEPT_BYTES_MAX = 32 << 20
PATIENCE_S = 60.0
SILENCE_S = 5.0  # without a sign of life: the gate is not the owner any more, or stands still
_PAUSE_S = 0.05  # between two attempts to connect
_RECEIVE_BYTES = 1 << 16
_PAYLOADS = (bytes, bytearray, memoryview, pa.Buffer)


class _Kept(NamedTuple):
    offset: int
    head: bytes
    payload: Any

    @property
    def size(self) -> int:
        return len(self.head) + memoryview(self.payload).nbytes


class Producer:
    """Sends rows under a name of its own, with offsets that rise: what they count is its affair.

    A unit of rows is acknowledged when it is durable in the log, or a filter has dropped its rows
    for good. Until then it is kept here and sent again after any failure on the other side. A
    program that was killed begins behind `offset`, which it reads from here.
    """

    def __init__(
        self,
        name: str,
        port: int,
        *,
        token_file: str | Path,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Wait until the query listens, for `patience_s` at most; so long it may also be away
        later. `kept_bytes_max` bounds what is not acknowledged: `send` waits for room."""
        self.name = check_name(name, "producer")
        check_integer(port, "port", 1, (1 << 16) - 1)
        check_integer(kept_bytes_max, "kept_bytes_max", 1)
        check_type(patience_s, (int, float), "patience_s", "a number of seconds")
        if not patience_s >= 0:
            raise InvalidArgument(f"patience_s is {patience_s}; it is 0 or more")
        self._port, self._token_file = port, check_folder(token_file, "token_file")
        self._kept_bytes_max, self._patience_s = kept_bytes_max, patience_s
        self._changed = threading.Condition()
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._sent = 0  # how many of the kept ones were sent, as a whole, over this connection
        self._last: int | None = None  # handed over
        self._acknowledged: int | None = None
        self._error: Exception | None = None
        self._is_closed = False
        connection, self._acknowledged = self._connected()
        self._last = self._acknowledged
        try:
            self._wake_in, self._wake_out = socket.socketpair()
            self._wake_in.setblocking(False)
            self._thread = threading.Thread(
                target=self._run, args=(connection,), name="penstock-producer", daemon=True
            )
            self._thread.start()
        except BaseException:
            connection.close()
            raise

    @property
    def offset(self) -> int | None:
        """The last offset that is acknowledged, by this or an earlier life; None: none is."""
        return self._acknowledged

    def send(self, rows: pa.RecordBatch, offset: int) -> None:
        """Hand rows over under an offset above all before; wait while too much is kept."""
        check_type(rows, pa.RecordBatch, "rows", "a RecordBatch of Arrow")
        self._keep(wire.encode_rows(rows), offset, "arrow")

    def send_csv(self, lines: bytes, offset: int) -> None:
        """Lines of CSV without a header, the columns in the order of the query's schema."""
        self._keep(lines, offset, "csv")

    def send_json(self, lines: bytes, offset: int) -> None:
        """Lines of JSON, an object for each row."""
        self._keep(lines, offset, "json")

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all is acknowledged; False if the time was over before."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._error or not self._kept, timeout_s)
            self._check()
            return bool(done)

    def close(self) -> None:
        """Wait until all is acknowledged, and go."""
        try:
            if not self._is_closed:
                self.flush()
        finally:
            self._end()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    # --- what is kept -----------------------------------------------------------------------------

    def _keep(self, payload: Any, offset: int, format: str) -> None:
        check_type(payload, _PAYLOADS, "lines", "bytes")
        if type(offset) is not int or not 1 <= offset <= wire.OFFSET_MAX:
            raise InvalidArgument(f"offset is {offset!r:.80}, 1 to {wire.OFFSET_MAX} is possible")
        size = memoryview(payload).nbytes
        if size > wire.UNIT_BYTES_MAX:
            raise InvalidArgument(
                f"{size:,} bytes at once, at most {wire.UNIT_BYTES_MAX:,} are taken: send fewer "
                "rows at a time"
            )
        unit = _Kept(offset, wire.frame(wire.UNIT, payload, offset, wire.FORMATS[format]), payload)
        with self._changed:
            if self._last is not None and offset <= self._last:
                raise InvalidArgument(
                    f"offset {offset} does not rise: {self._last} was handed over, or "
                    "acknowledged in an earlier life"
                )
            self._changed.wait_for(
                lambda: (
                    self._error
                    or not self._kept
                    or self._kept_bytes + unit.size <= self._kept_bytes_max
                )
            )
            self._check()
            self._kept.append(unit)
            self._kept_bytes += unit.size
            self._last = offset
            self._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise InvalidArgument(f"producer {self.name} is closed")

    def _end(self) -> None:
        with self._changed:
            self._is_closed = True
            self._wake()
        self._thread.join()

    def _wake(self) -> None:
        """By who has the lock: the thread closes its sockets under it when it ends."""
        with suppress(OSError):  # one word waits already, or the thread is gone
            self._wake_out.send(b"w", socket.MSG_DONTWAIT)

    # --- the thread with the connection -----------------------------------------------------------

    def _run(self, connection: socket.socket) -> None:
        try:
            while True:
                try:
                    self._exchange(connection)
                    return
                except (OSError, wire.Garbage):
                    connection.close()
                connection, committed = self._connected()
                with self._changed:
                    self._note(committed)
                    self._sent = 0
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            connection.close()
            with self._changed:  # here: who is told of an error may never close this
                self._wake_in.close()
                self._wake_out.close()

    def _exchange(self, connection: socket.socket) -> None:
        """Send and listen until this is closed; raises when the connection has ended."""
        connection.setblocking(False)
        received = bytearray()
        outgoing: deque[memoryview] = deque()
        heard_s = time.monotonic()
        while not self._is_closed:
            if not outgoing:
                with self._changed:
                    if self._sent < len(self._kept):
                        unit = self._kept[self._sent]
                        outgoing.extend((memoryview(unit.head), memoryview(unit.payload).cast("B")))
                        self._sent += 1
            ready, writable, _ = select.select(
                [connection, self._wake_in], [connection] if outgoing else [], [], SILENCE_S / 5
            )
            if self._wake_in in ready:
                self._wake_in.recv(_RECEIVE_BYTES)
            if connection in ready:
                piece = connection.recv(_RECEIVE_BYTES)
                if not piece:
                    raise ConnectionResetError
                received += piece
                heard_s = time.monotonic()
                self._hear(received)
            if time.monotonic() - heard_s > SILENCE_S:
                raise TimeoutError
            if writable:
                sent = connection.send(outgoing[0])
                rest = outgoing.popleft()[sent:]
                if rest:
                    outgoing.appendleft(rest)

    def _hear(self, received: bytearray) -> None:
        """What the gate has said, as far as it is complete."""
        while len(received) >= wire.FRAME_BYTES:
            head = wire.read_frame(received[: wire.FRAME_BYTES], wire.LINE_BYTES_MAX)
            end = wire.FRAME_BYTES + head.size
            if len(received) < end:
                return
            said = bytes(received[wire.FRAME_BYTES : end])
            del received[:end]
            wire.check_payload(head, said)
            if head.kind == wire.REFUSED:
                raise self._refused(said.decode("utf-8", "replace"))
            with self._changed:
                self._note(head.offset or None)

    def _note(self, offset: int | None) -> None:
        """Forget what is safe."""
        if offset is None or (self._acknowledged is not None and offset <= self._acknowledged):
            return
        self._acknowledged = offset
        while self._kept and self._kept[0].offset <= offset:
            self._kept_bytes -= self._kept.popleft().size
            self._sent = max(0, self._sent - 1)
        self._changed.notify_all()

    def _refused(self, reason: str) -> ProducerRefused:
        return ProducerRefused(
            f"producer {self.name}, port {self._port}: {reason}", producer=self.name
        )

    def _connected(self) -> tuple[socket.socket, int | None]:
        """A connection, and the offset that is committed; tries again until patience is over."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._connect()
            except (OSError, wire.Garbage, ProducerRefused) as error:
                if isinstance(error, ProducerRefused) and "path" not in error.details:
                    raise  # waiting does not help
                if time.monotonic() > until_s or self._is_closed:
                    raise self._refused(
                        f"not connected for {self._patience_s:g} s: {error}. Is the query "
                        "running, and are port and tokenFile its own?"
                    ) from error
            time.sleep(_PAUSE_S)

    def _connect(self) -> tuple[socket.socket, int | None]:
        token = wire.read_token(self._token_file)
        connection = socket.create_connection((wire.HOST, self._port), wire.HANDSHAKE_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = wire.Line(connection)
            own = wire.nonce()
            line.send(penstock="producer", version=wire.VERSION, name=self.name, nonce=own)
            challenge = self._answer(line)
            nonces = (own, str(challenge.get("nonce")))
            if not wire.is_proof(
                challenge.get("proof"), wire.proof(token, "gate", self.name, nonces)
            ):
                raise self._refused("who listens there has another token: name its tokenFile")
            line.send(proof=wire.proof(token, "producer", self.name, nonces))
            offset = self._answer(line).get("offset")
            if offset is not None and type(offset) is not int:
                raise wire.Garbage("the welcome has no offset")
            return connection, offset
        except BaseException:
            connection.close()
            raise

    def _answer(self, line: wire.Line) -> dict[str, Any]:
        said = line.receive()
        if said.get("type") == "refused":
            raise wire.Garbage(str(said.get("reason"))[:500])
        return said
