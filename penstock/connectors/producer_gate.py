"""The gate that producers send their rows through: who is connected, what has come, what is safe.

A unit of rows has its producer's name and an offset that rises. It is taken if its offset is
greater than the last one taken, and acknowledged once a marker with it is durable. Until then its
producer keeps it. A producer that comes again is told the last committed offset, once all that its
earlier connection brought is either committed or forgotten: so it may cut its rows into other units
from there on.

What has come and was not taken is bounded in bytes. While there is no room nobody reads from the
connections, so that producers wait.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors import producer_wire as wire
from penstock.connectors.producer_intake import Intake, Unit
from penstock.errors import InvalidName, SourceError, StreamError
from penstock.names import check_name

BUFFER_BYTES = 64 << 20
CONNECTIONS_MAX = 128
PRODUCERS_MAX = 1_024  # names, for ever: each marker has all of them
_BACKLOG = 64

logger = logging.getLogger(__name__)

Decode = Callable[[int, pa.Buffer], pa.RecordBatch]  # of a format and its bytes


@dataclass(eq=False)
class _Connection:
    """A producer that has proved itself."""

    socket: socket.socket
    name: str

    def tell(self, offset: int) -> None:
        """Acknowledge; who does not read what he is told is cut off, nobody waits for him."""
        head = wire.frame(wire.ACKNOWLEDGED, offset=offset)
        try:
            if self.socket.send(head, socket.MSG_DONTWAIT) != len(head):
                raise BlockingIOError(errno.EAGAIN, "half a frame")
        except OSError:
            self.cut()

    def cut(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Gate:
    """Listens on a port of the loopback interface, with a thread for each producer."""

    def __init__(
        self,
        port: int,
        token: bytes,
        decode: Decode,
        committed: Mapping[str, int],
        buffer_bytes: int = BUFFER_BYTES,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._token, self._decode, self._wake = token, decode, wake
        self._buffer_bytes = buffer_bytes
        self._intake = Intake(committed)
        self._connections: dict[str, _Connection] = {}
        self._open: set[socket.socket] = set()  # also those that have not proved anything yet
        self._is_closed = False
        self._changed = threading.Condition()
        self._listener = _listening(port)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="penstock-gate", daemon=True).start()

    def take(self, rows_max: int) -> list[Unit]:
        """What has come, in order and in whole units."""
        with self._changed:
            units = self._intake.take(rows_max)
            if units:
                self._changed.notify_all()
            return units

    @property
    def has_more(self) -> bool:
        return self._intake.has_units

    @property
    def queued_bytes(self) -> int:
        return self._intake.queued_bytes

    def commit(self, offsets: Mapping[str, int]) -> None:
        """These offsets are in a durable marker: their producers may forget what they have sent."""
        with self._changed:
            risen = self._intake.commit(offsets)
            told = [self._connections[name] for name in risen if name in self._connections]
            self._changed.notify_all()
        for connection in told:
            connection.tell(offsets[connection.name])

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            connections = tuple(self._open)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- threads ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                with self._changed:  # too many files are open, or a like reason that passes
                    self._changed.wait(wire.SIGN_OF_LIFE_S)
                continue
            with self._changed:
                is_full = self._is_closed or len(self._open) >= CONNECTIONS_MAX
                if not is_full:
                    self._open.add(connection)
            if is_full:
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="penstock-producer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        known: _Connection | None = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = wire.Line(connection)
            name = self._proved(line)
            known = self._enter(connection, name)
            line.send(type="welcome", offset=self._settled(known))
            self._receive(known)
        except wire.Garbage as garbage:
            self._refuse(connection, str(garbage), is_known=known is not None)
        except StreamError as error:
            self._refuse(connection, error.message, is_known=known is not None)
        except OSError:
            pass  # it is gone, and sends again what was not acknowledged
        finally:
            with self._changed:
                self._open.discard(connection)
                if known is not None and self._connections.get(known.name) is known:
                    del self._connections[known.name]
                self._changed.notify_all()
            connection.close()

    def _proved(self, line: wire.Line) -> str:
        """The name of a producer that has the token."""
        hello = line.receive()
        name, theirs = hello.get("name"), hello.get("nonce")
        if hello.get("penstock") != "producer" or hello.get("version") != wire.VERSION:
            raise wire.Garbage("this is no producer of this version")
        if not isinstance(name, str) or not wire.is_nonce(theirs):
            raise wire.Garbage("a producer says its name and a nonce")
        nonces = (str(theirs), wire.nonce())
        line.send(
            type="challenge", nonce=nonces[1], proof=wire.proof(self._token, "gate", name, nonces)
        )
        wanted = wire.proof(self._token, "producer", name, nonces)
        if not wire.is_proof(line.receive().get("proof"), wanted):
            raise wire.Garbage("the producer has another token: name the same tokenFile")
        try:
            return check_name(name, "producer")
        except InvalidName as error:
            raise wire.Garbage(error.message) from error

    def _enter(self, connection: socket.socket, name: str) -> _Connection:
        known = _Connection(connection, name)
        with self._changed:
            if name in self._connections:
                raise wire.Garbage(
                    f"a producer {name} is connected: each needs a name of its own, and one that "
                    "takes over from another waits until that one is gone"
                )
            names = {*self._intake.names, *self._connections}
            if name not in names and len(names) >= PRODUCERS_MAX:
                raise wire.Garbage(f"{PRODUCERS_MAX:,} producers have sent rows; no more are known")
            self._connections[name] = known
        return known

    def _settled(self, known: _Connection) -> int | None:
        """Where a producer goes on: behind all that was taken of it, which is committed by now."""
        name, intake = known.name, self._intake
        with self._changed:
            intake.forget_waiting(name)
            self._changed.notify_all()  # there may be room now
            self._changed.wait_for(
                lambda: self._is_closed or intake.is_settled(name), wire.HANDSHAKE_S / 2
            )
            if self._is_closed or not intake.is_settled(name):
                raise wire.Garbage("rows of this producer are still on their way: come again")
            return intake.committed.get(name)

    def _receive(self, known: _Connection) -> None:
        """Take units until the producer is gone."""
        connection = known.socket
        head_bytes = bytearray(wire.FRAME_BYTES)
        while self._fill(known, memoryview(head_bytes)):
            head = wire.read_frame(head_bytes, wire.UNIT_BYTES_MAX)
            if head.kind != wire.UNIT or not head.format or not head.offset:
                raise wire.Garbage("a producer sends units of rows, with offsets from 1 on")
            if not self._wait_for_room(known, head.size):
                return
            payload = pa.allocate_buffer(head.size)
            if not self._fill(known, memoryview(payload).cast("B")):
                return
            wire.check_payload(head, payload)
            if not self._intake.accepts(known.name, head.offset):
                continue  # it is there already
            rows = self._decode(head.format, payload)
            with self._changed:
                if self._is_closed or self._connections.get(known.name) is not known:
                    return
                self._intake.put(Unit(known.name, head.offset, rows, head.size))
            self._wake()
        connection.settimeout(None)

    def _wait_for_room(self, known: _Connection, size: int) -> bool:
        def has_room() -> bool:
            return self._is_closed or self._intake.queued_bytes + size <= self._buffer_bytes

        with self._changed:
            while not self._changed.wait_for(has_room, wire.SIGN_OF_LIFE_S):
                if self._connections.get(known.name) is not known:
                    return False
                self._sign_of_life(known)
            return not self._is_closed

    def _fill(self, known: _Connection, buffer: memoryview) -> bool:
        """Receive as many bytes as there are to be; False if the producer is gone before."""
        known.socket.settimeout(wire.SIGN_OF_LIFE_S)
        filled = 0
        while filled < len(buffer):
            try:
                received = known.socket.recv_into(buffer[filled:])
            except TimeoutError:
                self._sign_of_life(known)
                continue
            if not received:
                return False
            filled += received
        return True

    def _sign_of_life(self, known: _Connection) -> None:
        known.tell(self._intake.committed.get(known.name, 0))

    def _refuse(self, connection: socket.socket, reason: str, *, is_known: bool) -> None:
        logger.warning("a producer is refused: %s", reason[:500])
        said = reason.encode()[: wire.LINE_BYTES_MAX // 2]
        with suppress(OSError):
            connection.settimeout(wire.SIGN_OF_LIFE_S)
            if is_known:
                connection.sendall(wire.frame(wire.REFUSED, said) + said)
            else:
                wire.Line(connection, wire.SIGN_OF_LIFE_S).send(type="refused", reason=reason[:500])


def _listening(port: int) -> socket.socket:
    """A socket that listens, also beside one of an instance that lives on without being owner.

    That one acknowledges nothing, as its markers are refused, and whoever came to it goes away when
    it hears nothing. Only programs of the same user may share a port so.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((wire.HOST, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SourceError(
            f"cannot listen on {wire.HOST} port {port}: {error.strerror}. Choose another port",
            port=port,
        ) from error
    return listener


def offsets_of(offset: Any) -> dict[str, int] | None:
    """The offsets by producer of what a marker holds; None if it is nothing of the kind."""
    if not isinstance(offset, dict) or len(offset) > PRODUCERS_MAX:
        return None
    fits = all(
        isinstance(name, str) and type(at) is int and 1 <= at <= wire.OFFSET_MAX
        for name, at in offset.items()
    )
    return dict(offset) if fits else None
