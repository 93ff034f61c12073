"""The footer of a Parquet file, and what lies before its dictionaries.

They are read here and not by Arrow, which ends the process over what is wrong in them. That takes
Python for every value: so large footers are not read, and others once for all parts of a file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.connectors.folder_files import OpenFile, Version

MAGIC = b"PAR1"
FOOTER_BYTES_MAX = 1 << 20  # takes half a second
KEPT_BYTES_MAX = 1 << 20  # of footers that were read, which take some twenty times as much memory
KEPT_BYTES_MIN = 1 << 10
PAGE_HEAD_BYTES_MAX = 256
DEPTH_MAX = 16
DAMAGE = (IndexError, KeyError, TypeError, ValueError, AttributeError)  # of what is not as it was

Footer = Mapping[int, Any]  # Parquet's `FileMetaData`, fields by their numbers

_DICTIONARY_PAGE = 2
_CODED = (2, 8)  # `PLAIN_DICTIONARY`, `RLE_DICTIONARY`

_lock = threading.Lock()
_kept: dict[tuple[Path, Version], tuple[int, Footer]] = {}  # the last ones, with their sizes


def read_footer(file: OpenFile) -> Footer:
    """Return what a file says of itself; nothing where it does not, or says too much."""
    which = (file.path, file.version)
    with _lock:
        if which in _kept:
            return _kept[which][1]
    size, footer = _read(file)
    with _lock:
        _kept[which] = max(size, KEPT_BYTES_MIN), footer
        while sum(size for size, _ in _kept.values()) > KEPT_BYTES_MAX:
            del _kept[next(iter(_kept))]
    return footer


def _read(file: OpenFile) -> tuple[int, Footer]:
    tail = file.pread(max(file.size_bytes - 8, 0), min(file.size_bytes, 8), 0)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or size > min(file.size_bytes - 8, FOOTER_BYTES_MAX):
        return 0, {}
    try:
        return size, _Thrift(file.pread(file.size_bytes - 8 - size, size, 0)).struct()
    except DAMAGE:
        return size, {}


def stored_values(file: OpenFile, footer: Footer, group: int, path: str) -> int | None:
    """Return how many values are in the dictionary of texts that are nothing but codes of them.

    0 of a row group where these have none, None where some pages have values of their own, and
    where nobody says so.
    """
    try:
        chunks = [chunk[3] for chunk in footer[4][group][1]]
        (about,) = (chunk for chunk in chunks if b".".join(chunk[3]) == path.encode())
        at = min(about[9], about.get(11) or about[9])
        if not 0 < at < file.size_bytes:
            return None
        head = _Thrift(file.pread(at, min(PAGE_HEAD_BYTES_MAX, file.size_bytes - at), 0)).struct()
        if head[1] != _DICTIONARY_PAGE:
            return 0
        pages = [page[2] for page in about[13] if page[1] != _DICTIONARY_PAGE]
        values = head[7][1]
        is_coded = all(encoding in _CODED for encoding in pages)
        return values if is_coded and type(values) is int else None
    except DAMAGE:
        return None


class _Thrift:
    """Values of Thrift's compact protocol, fields by their numbers; nothing is believed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError("nested too deep")
        if kind in (1, 2, 3):  # inside a list, where each boolean has its byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"kind {kind} is not one of a footer")

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("cut short")
        self._at += size
        return self._data[self._at - size : self._at]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number too long")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
