"""The control connection between a job and its slots: JSON lines over TCP, after a handshake.

    slot ── hello: a nonce ─────────────────────────────> job
    slot <── challenge: another nonce, the job's proof ── job
    slot ── proof: the slot's proof, and who it is ─────> job

A proof is an HMAC over both nonces and the role, under the token of this run: each end knows that
the other one has the token, and the token itself never travels. A slot says nothing about itself
to somebody who cannot prove it, and obeys nobody else.

The connection is also the failure detector: a slot that dies closes it at once, long before anybody
else notices. Lines are bounded, nothing but JSON is ever decoded, and what comes from somebody
without a proof is bounded in time, bytes and number.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock.errors import ControlError
from penstock.json_codec import Malformed, compact_json, parse

LINE_BYTES_MAX = 16 << 20
HELLO_BYTES_MAX = 4 << 10  # of each line of the handshake
HELLO_TIMEOUT_S = 10.0  # for all of the handshake
UNPROVEN_MAX = 64  # connections in their handshake; the oldest makes room for one more
ACCEPT_PAUSE_S = 0.1
NONCE_BYTES = 32
CONNECT_ATTEMPTS = 5  # a slot may be pushed out of a crowd of others, or meet a driver that is full
CONNECT_PAUSE_S = 0.3

# What a listening socket says when it is none any more; every other error passes.
_GONE = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})

logger = logging.getLogger(__name__)

Message = dict[str, Any]


class Channel:
    """One end of a control connection. Sending is safe from many threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        with suppress(OSError):  # the other end may be gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message; raises OSError if the other end is gone."""
        line = compact_json(message) + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ControlError(f"a control message of {len(line)} bytes is over the bound")
        with self._send_lock:
            self._socket.sendall(line)

    def receive(
        self, bytes_max: int = LINE_BYTES_MAX, deadline_s: float | None = None
    ) -> Message | None:
        """Wait for the next message; None when the other end is gone, or the time is over."""
        while (end := self._buffer.find(b"\n", 0, bytes_max)) < 0:
            if len(self._buffer) >= bytes_max:
                raise ControlError(f"a control message is longer than {bytes_max} bytes")
            piece = self._piece(min(1 << 16, bytes_max - len(self._buffer)), deadline_s)
            if not piece:
                return None
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = parse(line)
        except Malformed as error:
            raise ControlError(f"a control message cannot be read: {str(error)[:200]}") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ControlError("a control message has no type")
        return message

    def messages(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def wait_for_ever(self) -> None:
        """From here on the other end may take its time."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection; a receive that is waiting in another thread returns None."""
        with suppress(OSError):  # the other end may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _piece(self, bytes_max: int, deadline_s: float | None) -> bytes:
        """Some bytes; none when there will be no more, at least not in time."""
        try:
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return b""
                self._socket.settimeout(left_s)
            return self._socket.recv(bytes_max)
        except OSError:  # gone, too late, or closed by another thread of ours
            return b""


class ControlServer:
    """Accepts slots. Each connection gets a thread, which ends with it.

    `on_slot(facts, channel)` is called for a connection that has proved itself; it receives from
    the channel until it returns, after which the connection is closed. `on_gone(error)` is called
    if the port can accept nobody any more.
    """

    def __init__(
        self,
        host: str,
        on_slot: Callable[[Message, Channel], None],
        on_gone: Callable[[ControlError], None],
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self._on_slot = on_slot
        self._on_gone = on_gone
        self._listener = socket.create_server((host, 0), backlog=64)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._unproven: dict[Channel, None] = {}  # oldest first
        self._proven: set[Channel] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="penstock-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and every connection."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            channels = (*self._unproven, *self._proven)
        for channel in channels:
            channel.close()
        self._thread.join(timeout=5)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
                self._begin(Channel(connection))
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                if self._closed:
                    return
                if getattr(error, "errno", None) in _GONE:
                    self._on_gone(self._gone(error))
                    return
                logger.warning("a control connection was not accepted: %s", error)
                time.sleep(ACCEPT_PAUSE_S)

    def _gone(self, error: Exception) -> ControlError:
        host, port = self.address
        return ControlError(
            f"the control port {host}:{port} is gone ({error}): slots can no longer report, so the "
            "query ends. What it has committed is in the log; start it again",
            host=host,
            port=port,
        )

    def _begin(self, channel: Channel) -> None:
        """Give a connection a thread; where there are too many without a proof, drop the oldest."""
        with self._lock:
            crowded = len(self._unproven) >= UNPROVEN_MAX
            oldest = next(iter(self._unproven)) if crowded else None
            if oldest is not None:
                del self._unproven[oldest]
            self._unproven[channel] = None
        if oldest is not None:
            oldest.close()
        try:
            threading.Thread(
                target=self._serve, args=(channel,), name="penstock-slot-control", daemon=True
            ).start()
        except RuntimeError:
            self._forget(channel)
            raise

    def _serve(self, channel: Channel) -> None:
        try:
            facts = self._handshake(channel)
            if facts is not None:
                self._on_slot(facts, channel)
        except ControlError as error:
            logger.warning("a control connection was closed: %s", error.message)
        except OSError:
            logger.debug("a control connection ended", exc_info=True)
        finally:
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        channel.close()
        with self._lock:
            self._unproven.pop(channel, None)
            self._proven.discard(channel)

    def _handshake(self, channel: Channel) -> Message | None:
        """What a slot says of itself, once it has proved that it is one of ours."""
        deadline_s = time.monotonic() + HELLO_TIMEOUT_S
        hello = channel.receive(HELLO_BYTES_MAX, deadline_s)
        if hello is None:
            return None
        theirs, ours = _hex(hello, "nonce"), secrets.token_bytes(NONCE_BYTES)
        proof = _proof(self.token, b"job", theirs, ours)
        channel.send({"type": "challenge", "nonce": ours.hex(), "proof": proof.hex()})
        facts = channel.receive(HELLO_BYTES_MAX, deadline_s)
        if facts is None:
            return None
        if not hmac.compare_digest(_hex(facts, "proof"), _proof(self.token, b"slot", theirs, ours)):
            raise ControlError("it does not know the token")
        channel.wait_for_ever()
        with self._lock:
            self._unproven.pop(channel, None)
            self._proven.add(channel)
        return facts


def connect(address: tuple[str, int], token: str, facts: Message) -> Channel:
    """Connect a slot to its job, and tell it who the slot is; ControlError if it is not the job."""
    for attempt in range(CONNECT_ATTEMPTS):
        if attempt:
            time.sleep(CONNECT_PAUSE_S)
        try:
            channel = Channel(socket.create_connection(address, HELLO_TIMEOUT_S))
        except OSError as error:
            raise _unreachable(address, str(error)) from error
        try:
            if _introduce(channel, address, token, facts):
                return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
    raise _unreachable(address, f"it closed the connection {CONNECT_ATTEMPTS} times")


def _introduce(channel: Channel, address: tuple[str, int], token: str, facts: Message) -> bool:
    """The slot's side of the handshake; False if the other end went away."""
    ours = secrets.token_bytes(NONCE_BYTES)
    try:
        channel.send({"type": "hello", "nonce": ours.hex()})
        challenge = channel.receive(HELLO_BYTES_MAX, time.monotonic() + HELLO_TIMEOUT_S)
        if challenge is None:
            return False
        theirs = _hex(challenge, "nonce")
        expected = _proof(token, b"job", ours, theirs)
        if not hmac.compare_digest(_hex(challenge, "proof"), expected):
            raise ControlError(
                f"whoever listens at {address[0]}:{address[1]} is not the job of this slot: it "
                "does not know the token. The slot told it nothing and ends",
                host=address[0],
                port=address[1],
            )
        proof = _proof(token, b"slot", ours, theirs)
        channel.send({**facts, "type": "proof", "proof": proof.hex()})
        channel.wait_for_ever()
    except OSError:
        return False
    return True


def _proof(token: str, role: bytes, slot_nonce: bytes, job_nonce: bytes) -> bytes:
    """Nonces have one length, so no two handshakes give the same bytes; and roles differ."""
    message = b"penstock control 1 " + role + b"\n" + slot_nonce + job_nonce
    return hmac.digest(token.encode(), message, hashlib.sha256)


def _hex(message: Message, name: str) -> bytes:
    """Bytes of the one length that nonces and proofs have."""
    try:
        value = bytes.fromhex(message[name])
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(f"a handshake without a {name}") from error
    if len(value) != NONCE_BYTES:
        raise ControlError(f"a handshake with a {name} of {len(value)} bytes")
    return value


def _unreachable(address: tuple[str, int], why: str) -> ControlError:
    return ControlError(
        f"the job at {address[0]}:{address[1]} cannot be reached ({why}): executors must be able "
        "to connect to the driver's address",
        host=address[0],
        port=address[1],
    )
