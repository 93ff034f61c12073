"""The gate that producers send their rows through: who is connected, what has come, what is safe.

A unit of rows has its producer's name and an offset that rises. It is taken if its offset is
greater than the last one taken, and acknowledged once a marker with it is durable. Until then its
producer keeps it. A producer that comes again is told the last committed offset, once all that its
earlier connection brought is either committed or forgotten: so it may cut its rows into other units
from there on.

What comes and was not taken is bounded in bytes, as received or as decoded, whichever is more.
While there is no room nobody reads from the connections, so that producers wait.

A program without our `Producer` sends plain lines or an Arrow stream instead (`plain_rows`): there
the offset of a row is its number among all that were sent under that name.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connectors import producer_wire as wire
from penstock.connectors.plain_rows import Hello, pieces, plain_hello
from penstock.connectors.producer_intake import Intake, Unit
from penstock.errors import InvalidName, MalformedInput, SourceError, StreamError
from penstock.names import check_name

BUFFER_BYTES = 64 << 20
CONNECTIONS_MAX = 128
PRODUCERS_MAX = 1_024  # names, for ever: each marker has all of them
_BACKLOG = 64
_OTHER_TOKEN = "the producer has another token: name the same tokenFile"

logger = logging.getLogger(__name__)

Decode = Callable[[int, pa.Buffer], pa.RecordBatch]  # of a format and its bytes


@dataclass(eq=False)
class _Connection:
    """A producer that has proved itself."""

    socket: socket.socket
    name: str
    may_miss_words = False  # who does not read what it is told is cut off: nobody waits for it
    is_welcome = False  # before that nothing else is said
    has_said_all = False  # and waits for the last word: whoever comes in its name may

    def welcome(self, line: wire.Line, offset: int | None) -> None:
        line.send(type="welcome", offset=offset)
        self.is_welcome = True

    def tell(self, offset: int) -> None:
        """Acknowledge all up to here."""
        if not self.is_welcome:
            return
        word = self._acknowledgement(offset)
        try:
            sent = self.socket.send(word, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = -1
        if sent != len(word) and (sent or not self.may_miss_words):
            self.cut()

    def _acknowledgement(self, offset: int) -> bytes:
        return wire.frame(wire.ACKNOWLEDGED, offset=offset)

    def refuse(self, reason: str) -> None:
        said = reason.encode()[: wire.LINE_BYTES_MAX // 2]
        self.socket.sendall(wire.frame(wire.REFUSED, said) + said)

    def cut(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class _PlainConnection(_Connection):
    """A program that speaks lines of JSON, and may never read any."""

    may_miss_words = True  # the next one says what those before it said

    def _acknowledgement(self, offset: int) -> bytes:
        return wire.line(type="acknowledged", offset=offset)

    def refuse(self, reason: str) -> None:
        wire.Line(self.socket, wire.SIGN_OF_LIFE_S).send(type="refused", reason=reason[:500])


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
        self._arriving_bytes = 0  # of rows for which there is room, and that have not come yet
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
            facts = line.receive()
            if facts.get("penstock") == "rows":
                hello = self._trusted(plain_hello(facts))
                known = self._enter(_PlainConnection(connection, hello.name))
                committed = self._settled(known, comes_again=hello.after is not None) or 0
                known.welcome(line, committed)
                self._receive_plain(known, hello, committed)
            else:
                known = self._enter(_Connection(connection, self._proved(line, facts)))
                known.welcome(line, self._settled(known))
                self._receive(known)
        except wire.Garbage as garbage:
            self._refuse(connection, known, str(garbage))
        except StreamError as error:
            self._refuse(connection, known, error.message)
        except OSError:
            pass  # it is gone, and sends again what was not acknowledged
        finally:
            with self._changed:
                self._open.discard(connection)
                if known is not None and self._is_connected(known):
                    del self._connections[known.name]
                self._changed.notify_all()
            connection.close()

    def _proved(self, line: wire.Line, hello: Mapping[str, Any]) -> str:
        """The name of a producer that has the token."""
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
            raise wire.Garbage(_OTHER_TOKEN)
        return name

    def _trusted(self, hello: Hello) -> Hello:
        """A program that says the token itself."""
        if not wire.is_proof(hello.token, self._token.decode("utf-8", "replace")):
            raise wire.Garbage(_OTHER_TOKEN)
        return hello

    def _enter(self, known: _Connection) -> _Connection:
        try:
            name = check_name(known.name, "producer")
        except InvalidName as error:
            raise wire.Garbage(error.message) from error
        with self._changed:
            other = self._connections.get(name)
            if other is not None and not other.has_said_all:
                raise wire.Garbage(
                    f"a producer {name} is connected: each needs a name of its own, and one that "
                    "takes over from another waits until that one is gone"
                )
            names = {*self._intake.names, *self._connections}
            if name not in names and len(names) >= PRODUCERS_MAX:
                raise wire.Garbage(f"{PRODUCERS_MAX:,} producers have sent rows; no more are known")
            self._connections[name] = known
            self._changed.notify_all()
        return known

    def _is_connected(self, known: _Connection) -> bool:
        """Whether it is still the one under its name."""
        return not self._is_closed and self._connections.get(known.name) is known

    def _settled(self, known: _Connection, *, comes_again: bool = True) -> int | None:
        """Where a producer goes on: behind all that counts, which is committed by now.

        What nobody has taken yet is forgotten where it `comes_again`.
        """
        name, intake = known.name, self._intake
        with self._changed:
            if comes_again:
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
        receive = partial(self._receive_some, known)
        head_bytes = bytearray(wire.FRAME_BYTES)
        while wire.fill(receive, memoryview(head_bytes)):
            head = wire.read_frame(head_bytes, wire.UNIT_BYTES_MAX)
            if head.kind != wire.UNIT or not head.format or not head.offset:
                raise wire.Garbage("a producer sends units of rows, with offsets from 1 on")
            with self._room(known, head.size) as has_room:
                if not has_room:
                    return
                payload = pa.allocate_buffer(head.size)
                if not wire.fill(receive, memoryview(payload).cast("B")):
                    return
                wire.check_payload(head, payload)
                if not self._intake.accepts(known.name, head.offset):
                    continue  # it is there already
                self._put(known, head.offset, self._decode(head.format, payload), head.size)

    def _receive_plain(self, known: _Connection, hello: Hello, committed: int) -> None:
        """Take rows until the program has sent its last; tell it once they are safe, and go."""
        ended = committed if hello.after is None else hello.after
        if ended > committed:
            raise wire.Garbage(
                f"rows {committed + 1:,} to {ended:,} never came: go on after {committed}, or "
                "before"
            )
        receive, room = partial(self._receive_some, known), partial(self._room, known)
        with closing(pieces(hello.format, receive, room)) as coming:
            for piece in coming:
                rows = self._decoded_plain(hello.format, piece, ended)
                ended += rows.num_rows
                fresh = ended - self._intake.accepted(known.name)
                if fresh > 0:
                    rows = rows.slice(max(0, rows.num_rows - fresh))
                    self._put(known, ended, rows, min(piece.size, rows.nbytes))
        known.has_said_all = True
        with self._changed:
            self._changed.wait_for(
                lambda: not self._is_connected(known) or self._intake.is_settled(known.name)
            )
        self._sign_of_life(known)  # before it is closed: who commits may say so only later

    def _decoded_plain(self, form: str, piece: pa.Buffer, ended: int) -> pa.RecordBatch:
        try:
            rows = self._decode(wire.FORMATS[form], piece)
        except MalformedInput as error:
            raise wire.Garbage(f"behind row {ended:,}: {error.message}") from error
        if ended + rows.num_rows > wire.OFFSET_MAX:
            raise wire.Garbage(f"a row beyond {wire.OFFSET_MAX:,}")
        return rows

    def _put(self, known: _Connection, offset: int, rows: pa.RecordBatch, size: int) -> None:
        with self._changed:
            if self._is_connected(known):
                unit = Unit(known.name, offset, rows, max(size, rows.nbytes))
                self._intake.put(unit)
        self._wake()

    @contextmanager
    def _room(self, known: _Connection, size: int) -> Iterator[bool]:
        """Room for so many bytes while they are received and decoded; False if this is over."""
        has_room = self._wait_for_room(known, size)
        try:
            yield has_room
        finally:
            with self._changed:
                self._arriving_bytes -= size if has_room else 0
                self._changed.notify_all()

    def _wait_for_room(self, known: _Connection, size: int) -> bool:
        def may_go_on() -> bool:
            held_bytes = self._intake.queued_bytes + self._arriving_bytes
            has_room = not held_bytes or held_bytes + size <= self._buffer_bytes
            return has_room or not self._is_connected(known)

        with self._changed:
            while not self._changed.wait_for(may_go_on, wire.SIGN_OF_LIFE_S):
                self._sign_of_life(known)
            is_connected = self._is_connected(known)
            self._arriving_bytes += size if is_connected else 0
            return is_connected

    def _receive_some(self, known: _Connection, buffer: memoryview) -> int:
        """Receive what is there, or else wait for it; 0 if the producer has sent its last."""
        known.socket.settimeout(wire.SIGN_OF_LIFE_S)
        while True:
            try:
                return known.socket.recv_into(buffer)
            except TimeoutError:
                self._sign_of_life(known)

    def _sign_of_life(self, known: _Connection) -> None:
        known.tell(self._intake.committed.get(known.name, 0))

    def _refuse(self, connection: socket.socket, known: _Connection | None, reason: str) -> None:
        logger.warning("a producer is refused: %s", reason[:500])
        with suppress(OSError):
            connection.settimeout(wire.SIGN_OF_LIFE_S)
            if known is not None:
                known.refuse(reason)
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
