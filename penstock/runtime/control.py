"""The control connection between a job and its slots: JSON lines over TCP, opened with a token.

The connection is also the failure detector: a slot that dies closes it at once, long before anybody
else notices. Lines are bounded, and nothing but JSON is ever decoded.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock.errors import ControlError

LINE_BYTES_MAX = 64 << 20
HELLO_BYTES_MAX = 4 << 10
HELLO_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)

Message = dict[str, Any]


class Channel:
    """One end of a control connection. Sending is safe from many threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message; raises OSError if the other end is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ControlError(f"a control message of {len(line)} bytes is over the bound")
        with self._send_lock:
            self._socket.sendall(line)

    def receive(self, bytes_max: int = LINE_BYTES_MAX) -> Message | None:
        """Wait for the next message; None when the other end is gone."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > bytes_max:
                raise ControlError(f"a control message is longer than {bytes_max} bytes")
            try:
                piece = self._socket.recv(1 << 16)
            except (ConnectionError, TimeoutError):
                return None
            except OSError:
                return None  # closed by another thread of ours
            if not piece:
                return None
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ControlError(f"a control message is not JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ControlError("a control message has no type")
        return message

    def messages(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; a receive that is waiting in another thread returns None."""
        with suppress(OSError):  # the other end may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ControlServer:
    """Accepts slots. Each connection gets a thread, which ends with it.

    `on_slot(hello, channel)` is called for a connection that knew the token; it receives from the
    channel until it returns, after which the connection is closed.
    """

    def __init__(self, host: str, on_slot: Callable[[Message, Channel], None]) -> None:
        self.token = secrets.token_urlsafe(32)
        self._on_slot = on_slot
        self._listener = socket.create_server((host, 0), backlog=64)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._channels: set[Channel] = set()
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
            channels = tuple(self._channels)
        for channel in channels:
            channel.close()
        self._thread.join(timeout=5)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="penstock-slot-control", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        with self._lock:
            self._channels.add(channel)
        try:
            hello = self._hello(channel)
            if hello is not None:
                self._on_slot(hello, channel)
        except ControlError as error:
            logger.warning("a control connection was closed: %s", error.message)
        finally:
            channel.close()
            with self._lock:
                self._channels.discard(channel)

    def _hello(self, channel: Channel) -> Message | None:
        channel.set_timeout(HELLO_TIMEOUT_S)
        hello = channel.receive(HELLO_BYTES_MAX)
        if hello is None or hello["type"] != "hello":
            return None
        if not hmac.compare_digest(str(hello.pop("token", "")).encode(), self.token.encode()):
            logger.warning("a control connection with a wrong token was refused")
            return None
        channel.set_timeout(None)
        return hello


def connect(address: tuple[str, int], hello: Message, timeout_s: float = 10.0) -> Channel:
    """Connect a slot to its job."""
    try:
        connection = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise ControlError(
            f"the job at {address[0]}:{address[1]} cannot be reached ({error}): executors must be "
            "able to connect to the driver's address",
            host=address[0],
            port=address[1],
        ) from error
    connection.settimeout(None)
    channel = Channel(connection)
    channel.send({"type": "hello", **hello})
    return channel
