"""What producers and the gate that takes their rows say to each other, over a loopback connection.

First three lines of JSON, by which each proves to the other that it has the token, which itself
never travels, and a fourth one with the last offset of this producer that is committed:

    producer ── hello: its name, a nonce ───────────────> gate
    producer <── challenge: another nonce, a proof ────── gate
    producer ── proof ──────────────────────────────────> gate
    producer <── welcome: offset ──────────────────────── gate

Then frames, little endian: kind u8 · format u8 · 0 u16 · bytes u32 · offset u64 · xxh3_64 of what
follows u64. A unit of rows (1) goes to the gate, an acknowledgement of all up to an offset (2) and
the reason of an end (3) come back. What a unit holds is an Arrow IPC stream of one batch without
compression (1), lines of CSV without a header (2), or lines of JSON (3).

Programs without a client of ours begin with another line: `plain_rows`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock.errors import InvalidArgument, ProducerRefused
from penstock.json_codec import Malformed, compact_json, parse
from penstock.names import show_path

HOST = "127.0.0.1"
VERSION = 1
UNIT, ACKNOWLEDGED, REFUSED = 1, 2, 3
FORMATS = {"arrow": 1, "csv": 2, "json": 3}
UNIT_BYTES_MAX = 16 << 20
OFFSET_MAX = (1 << 53) - 1  # what JSON carries unchanged anywhere
LINE_BYTES_MAX = 4 << 10
HANDSHAKE_S = 10.0
SIGN_OF_LIFE_S = 1.0  # the gate says at least so often how far it is
NONCE_BYTES = 32
TOKEN_BYTES_MAX = 1 << 10
_TOKEN_CHARACTERS_MIN = 16

Receive = Callable[[memoryview], int]  # into a buffer, from its beginning; 0: there is no more

_FRAME = struct.Struct("<BBHIQQ")
FRAME_BYTES = _FRAME.size


class Frame(NamedTuple):
    """What stands before a payload."""

    kind: int
    format: int
    size: int
    offset: int
    checksum: int


class Garbage(Exception):
    """What came is not what this protocol has: the connection is over."""


def frame(kind: int, payload: Any = b"", offset: int = 0, format: int = 0) -> bytes:
    """The head of a frame with this payload."""
    size = memoryview(payload).nbytes
    return _FRAME.pack(kind, format, 0, size, offset, xxh3_64_intdigest(payload))


def read_frame(head: bytes | bytearray | memoryview, size_max: int) -> Frame:
    """The head of a frame, its length checked before anything is made of it."""
    kind, form, zero, size, offset, checksum = _FRAME.unpack(head)
    if zero or kind not in (UNIT, ACKNOWLEDGED, REFUSED) or form not in (0, *FORMATS.values()):
        raise Garbage(f"bytes {bytes(head)[:4].hex()} are no frame")
    if size > size_max:
        raise Garbage(f"a frame of {size:,} bytes, at most {size_max:,} are taken")
    if offset > OFFSET_MAX:
        raise Garbage(f"offset {offset} is above {OFFSET_MAX}")
    return Frame(kind, form, size, offset, checksum)


def check_payload(head: Frame, payload: Any) -> None:
    if xxh3_64_intdigest(payload) != head.checksum:
        raise Garbage(f"the payload at offset {head.offset} fails its checksum")


def fill(receive: Receive, buffer: memoryview) -> bool:
    """Receive as many bytes as there are to be; False if there are no more before."""
    filled = 0
    while filled < len(buffer):
        received = receive(buffer[filled:])
        if not received:
            return False
        filled += received
    return True


def line(**facts: Any) -> bytes:
    return compact_json(facts) + b"\n"


class Line:
    """Lines of the handshake over a connection, bounded in bytes and time."""

    def __init__(self, connection: socket.socket, timeout_s: float = HANDSHAKE_S) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + timeout_s

    def send(self, **facts: Any) -> None:
        self._connection.settimeout(max(0.001, self._until_s - time.monotonic()))
        self._connection.sendall(line(**facts))

    def receive(self) -> dict[str, Any]:
        """The next line. Byte by byte: what follows it is not this one's."""
        received = bytearray()
        while not received.endswith(b"\n"):
            left_s = self._until_s - time.monotonic()
            if len(received) >= LINE_BYTES_MAX or left_s <= 0:
                raise Garbage("the handshake is too long")
            self._connection.settimeout(left_s)
            piece = self._connection.recv(1)
            if not piece:
                raise Garbage("the other end has closed the connection")
            received += piece
        try:
            facts = parse(bytes(received))
        except Malformed as error:
            raise Garbage("a line of the handshake is not JSON") from error
        if not isinstance(facts, dict):
            raise Garbage("a line of the handshake is no object")
        return facts


def nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def is_nonce(text: object) -> bool:
    return isinstance(text, str) and len(text) == 2 * NONCE_BYTES and text.isalnum()


def proof(token: bytes, role: str, name: str, nonces: tuple[str, str]) -> str:
    """What only who has the token can say."""
    said = "\n".join(("penstock producer", role, name, *nonces))
    return hmac.new(token, said.encode(), hashlib.sha256).hexdigest()


def is_proof(found: object, wanted: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), wanted.encode())


def read_token(path: str | Path, *, create: bool = False) -> bytes:
    """The token of a file that only its owner can read; `create` makes one where none is."""
    if create and not os.path.lexists(path):
        _make_token(Path(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ProducerRefused(
            f"cannot read the token in {show_path(Path(path))}: {error.strerror}. The query makes "
            "this file when it first listens; name the same one on both sides",
            path=str(path),
        ) from error
    with os.fdopen(fd, "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InvalidArgument(
                f"{show_path(Path(path))} holds a token and others may read it: chmod 600",
                path=str(path),
            )
        token = file.read(TOKEN_BYTES_MAX).strip()
    if len(token) < _TOKEN_CHARACTERS_MIN:
        raise InvalidArgument(
            f"{show_path(Path(path))} holds {len(token)} characters; a token has at least "
            f"{_TOKEN_CHARACTERS_MIN}",
            path=str(path),
        )
    return token


def _make_token(path: Path) -> None:
    """Whole or not at all, whoever dies meanwhile or does the same."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def encode_rows(rows: pa.RecordBatch) -> pa.Buffer:
    """A batch as an Arrow IPC stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    return out.getvalue()
