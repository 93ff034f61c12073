"""Rows of programs that have no `Producer`: one line of JSON, then what any program can write.

    program ── {"penstock": "rows", "format": "csv", "name": …, "token": …, "after": …} ──> gate
    program <── {"type": "welcome", "offset": N} ────────────────────────────────────────── gate
    program ── lines of CSV without a header, lines of JSON, or an Arrow IPC stream ──────> gate
    program <── {"type": "acknowledged", "offset": N} ──────────────────────────────────── gate

The offset of a row is its number, from 1 on, among all that were sent under this name. `after` says
how many stand before the first one that comes now: what is committed of these is passed over, so
who has its rows in a file sends them again from where it likes. Without it the rows that come are
new ones. A line counts with its end, a batch when it is whole. Nobody has to read the answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.connectors import producer_wire as wire
from penstock.log import punit

LINES_BYTES_MAX = 1 << 20  # at once, so in one too
_PREFIX = struct.Struct("<iI")  # -1, and the bytes of an Arrow message's metadata
_METADATA_BYTES_MAX = 1 << 20

Room = Callable[[int], AbstractContextManager[bool]]  # for so many bytes; False: this is over


class Hello(NamedTuple):
    """What a program says of itself and its rows."""

    format: str
    name: str
    token: str
    after: int | None  # rows before the first one; None: all that are committed


def plain_hello(facts: Mapping[str, Any]) -> Hello:
    """The first line, checked; its token is not."""
    form, name, token = facts.get("format"), facts.get("name"), facts.get("token")
    after = facts.get("after")
    if form not in wire.FORMATS:
        raise wire.Garbage(f"format is one of {', '.join(wire.FORMATS)}")
    if not isinstance(name, str) or not isinstance(token, str):
        raise wire.Garbage("a program that sends rows says its name and the token")
    if after is not None and (type(after) is not int or not 0 <= after <= wire.OFFSET_MAX):
        raise wire.Garbage("after is a number of rows")
    return Hello(form, name, token, after)


def pieces(form: str, receive: wire.Receive, room: Room) -> Generator[pa.Buffer, None, None]:
    """What comes, cut into what can be decoded for itself; half a line or batch is none."""
    return _batches(receive, room) if form == "arrow" else _lines(receive, room)


def _lines(receive: wire.Receive, room: Room) -> Generator[pa.Buffer, None, None]:
    buffer = bytearray(LINES_BYTES_MAX)
    filled = 0
    while received := receive(memoryview(buffer)[filled:]):
        end = buffer.rfind(b"\n", filled, filled + received) + 1
        filled += received
        if end:
            with room(end) as has_room:
                if not has_room:
                    return
                yield pa.py_buffer(bytes(memoryview(buffer)[:end]))
            buffer[: filled - end] = buffer[end:filled]
            filled -= end
        elif filled == len(buffer):
            raise wire.Garbage(f"a line of more than {LINES_BYTES_MAX:,} bytes")


def _batches(receive: wire.Receive, room: Room) -> Generator[pa.Buffer, None, None]:
    """Each batch of an Arrow IPC stream, behind its schema."""
    schema = b""
    while (head := _head(receive)) is not None:
        size = _message_bytes(head)
        if len(schema) + size > wire.UNIT_BYTES_MAX:
            raise wire.Garbage(
                f"a batch of {size:,} bytes, at most {wire.UNIT_BYTES_MAX:,} are taken: send fewer "
                "rows at a time"
            )
        with room(len(schema) + size) as has_room:
            if not has_room:
                return
            message = pa.allocate_buffer(len(schema) + size)
            view = memoryview(message).cast("B")
            begin = len(schema) + len(head)
            view[:begin] = schema + head
            if not wire.fill(receive, view[begin:]):
                return
            if schema:
                yield message
            else:
                schema = message.to_pybytes()


def _head(receive: wire.Receive) -> bytes | None:
    """The metadata of the next message; None at the end of the stream, or of what comes."""
    prefix = bytearray(_PREFIX.size)
    if not wire.fill(receive, memoryview(prefix)):
        return None
    marker, metadata_bytes = _PREFIX.unpack(prefix)
    if marker == -1 and not metadata_bytes:
        return None
    if marker != -1 or metadata_bytes > _METADATA_BYTES_MAX:
        raise wire.Garbage("this is no Arrow IPC stream")
    metadata = bytearray(metadata_bytes)
    return bytes(prefix + metadata) if wire.fill(receive, memoryview(metadata)) else None


def _message_bytes(head: bytes) -> int:
    """How long a message is, with its body, by its metadata."""
    try:
        size = punit.message_bytes(pa.py_buffer(head))
    except (struct.error, ValueError) as error:
        raise wire.Garbage("this is no message of an Arrow IPC stream") from error
    if size < len(head):
        raise wire.Garbage("a message of less than nothing")
    return size
