"""Rows out of a damaged index: every page is read by itself, without asking SQLite.

SQLite gives up on a table when a page on the way to its rows is damaged. But the rows that matter
carry seals, so they can be believed wherever they are found: on a page that nothing leads to any
more, or in the write-ahead log behind a damaged frame. Old versions of pages turn up as well. That
does no harm: a record never changes, and of everything else the newest version wins, because
versions, trims and sequences only rise.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import LogDamaged
from penstock.log.index import PAGE_BYTES, Row, metadata_seal, row_seal
from penstock.log.page_seals import PAGE_SEAL_BYTES
from penstock.log.power_cut import POWER_CUT_TAG, PowerCut, decode_power_cut
from penstock.log.segments import body_checksum
from penstock.names import show_path

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_TABLES = frozenset({_TABLE_LEAF})
_EVERYTHING = frozenset({_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR})
_WAL_HEADER_BYTES = 32
_FRAME_HEADER = struct.Struct(">IIIIII")  # page, pages after a commit or 0, two salts, checksum
_FRAMES_ASKED = 3  # for the salts, when the header has rotted: one damaged frame is outvoted
_RECORD_COLUMNS = 14
_SEGMENT_COLUMNS = 6
_PAYLOAD_BYTES_MAX = 128 << 20
_MANIFEST = re.compile(r"aside/[0-9]+/manifest\.json")
_SAME_BYTES = 512  # cells that begin alike so far are the same row: its seal is in there
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


class _Damaged(Exception):
    """A cell that cannot be one of ours; it is passed over."""


class _Cell(NamedTuple):
    """Where a cell lies: found again later, so that no body is kept in memory meanwhile."""

    version: int  # which version of the page: an index into the list of pages
    offset: int
    kind: int


class _Page(NamedTuple):
    number: int
    data: memoryview


@dataclass
class Salvage:
    """What was found."""

    rows: dict[int, list[_Cell]] = field(default_factory=dict)  # by position; versions differ only
    # in where the body lies, and only if a repair has moved it before
    log_ids: set[bytes] = field(default_factory=set)
    metadata: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # version, value
    trims: dict[str, int] = field(default_factory=dict)
    trimmed: dict[tuple[str, int], int] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    tagged: set[int] = field(default_factory=set)  # positions that tag rows lead to
    power_cuts: list[PowerCut] = field(default_factory=list)
    changes: int = 0
    written_back: int = 0
    reserved: int = 0


class IndexBytes:
    """The bytes of an index and of its write-ahead log, as pages in all their versions."""

    def __init__(
        self, index: Path, wal: Path, segment_names: list[str], *, repaired_before: bool = False
    ) -> None:
        self._segment_names = segment_names
        self._repaired_before = repaired_before
        self._names_by_id: dict[int, list[str]] = {}
        self._index = _map(index)
        self._wal = _map(wal)
        self._usable = PAGE_BYTES - self._reserved()
        self._pages: list[_Page] = []  # the newest versions come first
        self._newest: dict[int, list[int]] = {}  # by page number
        self._list_pages()
        self.found = Salvage()

    def scan(self) -> Salvage:
        """Look at every cell of every page."""
        tag_rows: set[tuple[str, int]] = set()
        for cell in self._different_cells(_TABLES):  # first: the seals of records need the names
            self._look_for_segment(cell)
        for cell in self._different_cells(_EVERYTHING):
            self._look(cell, tag_rows)
        trims = self.found.trims
        self.found.tagged = {at for tag, at in tag_rows if at > trims.get(tag, 0)}
        return self.found

    def rows(self, position: int) -> Iterator[tuple[Row, bool]]:
        """A record's row, and whether its body, if it is in the index, is whole."""
        for cell in self.found.rows[position]:
            row = self._record(cell)
            assert row is not None
            body = row.inline or b""
            whole = len(body) == row.length and body_checksum(body) == row.checksum
            yield row, row.segment is not None or whole

    def close(self) -> None:
        """Let go of the files; nothing that was handed out needs them."""
        self._pages.clear()
        self._index = self._wal = b""

    # ------------------------------------------------------------------ cells

    def _different_cells(self, kinds: frozenset[int]) -> Iterator[_Cell]:
        """All cells, but not those that a newer version of their page has as well."""
        seen: set[int] = set()
        for version, page in enumerate(self._pages):
            for cell in _cells(page, version, kinds):
                if self._wal:
                    beginning = hash(_beginning(page.data, cell))
                    if beginning in seen:
                        continue
                    seen.add(beginning)
                yield cell

    def _look_for_segment(self, cell: _Cell) -> None:
        try:
            rowid, values = self._values(cell)
        except _Damaged:
            return
        if len(values) == _SEGMENT_COLUMNS and _are(values[1:], str, int, int, int, int):
            self._names_by_id.setdefault(rowid, []).append(values[1])

    def _look(self, cell: _Cell, tag_rows: set[tuple[str, int]]) -> None:
        try:
            rowid, values = self._values(cell)
        except _Damaged:
            return
        if cell.kind == _TABLE_LEAF:
            self._look_at_table_row(cell, rowid, values)
        elif _are(values, str, int, int) and 0 <= values[2] < values[1]:
            tag_rows.add((values[0], values[1]))  # no seal, but it was there: all that is asked
        else:
            self._look_at_index_row(values)

    def _look_at_table_row(self, cell: _Cell, rowid: int, values: list[Any]) -> None:
        found = self.found
        if len(values) == _RECORD_COLUMNS:
            known = found.rows.get(rowid)
            if known is not None and not self._repaired_before:
                return
            if (row := self._record(cell)) is not None:
                seals = {other.seal for each in known or () if (other := self._record(each))}
                if row.seal not in seals:
                    found.rows.setdefault(rowid, []).append(cell)
                if row.tags == POWER_CUT_TAG and (cut := decode_power_cut(row.inline or b"")):
                    found.power_cuts.append(cut)
        elif len(values) == 2 and isinstance(values[1], str) and _MANIFEST.fullmatch(values[1]):
            found.lost.setdefault(rowid, values[1])
        elif _are(values, bytes, int, int, int, int, int):
            log_id, _, changes, written_back, reserved, _ = values
            found.log_ids.add(log_id)
            found.changes = max(found.changes, changes)
            found.written_back = max(found.written_back, written_back)
            found.reserved = max(found.reserved, reserved)

    def _look_at_index_row(self, values: list[Any]) -> None:
        found = self.found
        if _are(values, str, int, int, bytes):
            key, version, seal, value = values
            if seal == metadata_seal(key, version, value):
                found.metadata[key] = max(found.metadata.get(key, (0, b"")), (version, value))
        elif _are(values, str, int, int, int, int):
            producer, instance, sequence, trimmed, seal = values
            if seal == row_seal(producer, instance, sequence, trimmed):
                name = (producer, instance)
                found.trimmed[name] = max(found.trimmed.get(name, -1), trimmed)
        elif _are(values, str, int, int) and values[2] == row_seal(values[0], values[1]):
            found.trims[values[0]] = max(found.trims.get(values[0], 0), values[1])

    def _record(self, cell: _Cell) -> Row | None:
        """The record row in a cell if its seal holds, under the segment name that makes it hold."""
        try:
            position, values = self._values(cell)
        except _Damaged:
            return None
        _, kind, producer, instance, sequence, tags, _, time_us, segment, offset = values[:10]
        length, checksum, seal, body = values[10:]
        known = self._names_by_id.setdefault(segment, []) if segment is not None else []
        names: list[str | None] = [None] if segment is None else [*known, *self._segment_names]
        for name in names:
            fields = (position, kind, producer, instance, sequence, tags, time_us, name, offset)
            row = Row(*fields, length, checksum, seal, body)  # type: ignore[arg-type]
            if row.is_sealed():
                if name is not None and known[:1] != [name]:
                    known.insert(0, name)
                return row
        return None

    def _values(self, cell: _Cell) -> tuple[int, list[Any]]:
        """A cell's row id (0 in an index) and columns."""
        page = self._pages[cell.version]
        at = cell.offset + (4 if cell.kind == _INDEX_INTERIOR else 0)
        length, at = _varint(page.data, at)
        rowid = 0
        if cell.kind == _TABLE_LEAF:
            rowid, at = _varint(page.data, at)
        if not 2 <= length <= _PAYLOAD_BYTES_MAX:
            raise _Damaged
        return rowid, _columns(self._payload(page, at, length, cell))

    def _payload(self, page: _Page, at: int, length: int, cell: _Cell) -> bytes:
        usable = self._usable
        local_max = usable - 35 if cell.kind == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if length <= local_max:
            payload = bytes(page.data[at : at + length])
            if len(payload) < length:
                raise _Damaged
            return payload
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        if local > local_max:
            local = least
        parts = [bytes(page.data[at : at + local])]
        next_page = int.from_bytes(page.data[at + local : at + local + 4], "big")
        self._follow(next_page, length - local, parts)
        return b"".join(parts)

    def _follow(self, number: int, left: int, parts: list[bytes]) -> None:
        """Add the overflow pages of a payload; a break gives zeros, which its checksum finds."""
        room = self._usable - 4
        while left > 0:
            versions = self._newest.get(number)
            if not versions:
                parts.append(bytes(left))
                return
            data = self._pages[versions[0]].data
            parts.append(bytes(data[4 : 4 + min(left, room)]))
            left -= room
            number = int.from_bytes(data[:4], "big")

    # ------------------------------------------------------------------ pages

    def _reserved(self) -> int:
        """How many bytes at the end of each page are not SQLite's; the header may be damaged."""
        return 0 if self._index[20:21] == b"\0" else PAGE_SEAL_BYTES

    def _list_pages(self) -> None:
        frames = list(self._frames())
        pages = [_Page(number, data) for number, data in reversed(frames)]
        whole = len(self._index) // PAGE_BYTES
        view = memoryview(self._index)
        pages += [
            _Page(number + 1, view[number * PAGE_BYTES : (number + 1) * PAGE_BYTES])
            for number in range(whole)
        ]
        self._pages = pages
        for version, page in enumerate(pages):
            self._newest.setdefault(page.number, []).append(version)

    def _frames(self) -> Iterator[tuple[int, memoryview]]:
        """The pages in the write-ahead log up to the last commit, damaged frames or not.

        Frames with other salts are left over from earlier rounds, and may be the greater part.
        """
        wal = memoryview(self._wal)
        size = _FRAME_HEADER.size + PAGE_BYTES
        offsets = range(_WAL_HEADER_BYTES, len(wal) - size + 1, size)
        headers = [_FRAME_HEADER.unpack_from(wal, offset) for offset in offsets]
        if not headers:
            return
        salts = _salts(bytes(wal[:_WAL_HEADER_BYTES]), [head[2:4] for head in headers])
        last = max(
            (place for place, head in enumerate(headers) if head[1] and head[2:4] == salts),
            default=-1,
        )
        for head, offset in zip(headers[: last + 1], offsets, strict=False):
            if head[2:4] == salts:
                yield head[0], wal[offset + _FRAME_HEADER.size : offset + size]


def _salts(header: bytes, found: list[tuple[int, int]]) -> tuple[int, int]:
    """The salts of a write-ahead log's newest round: its header's, or if that is damaged the first
    frames', because every round begins at the start of the file.
    """
    *_, first, second, low, high = struct.unpack(">8I", header)
    if (low, high) == _wal_checksum(header[:24]):
        return first, second
    start = found[:_FRAMES_ASKED]
    return max(start, key=start.count)


def _wal_checksum(data: bytes) -> tuple[int, int]:
    """SQLite's checksum of a write-ahead log's header, whose magic tells the order of bytes."""
    order = ">" if data[3] & 1 else "<"
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    low = high = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        low = (low + even + high) & 0xFFFFFFFF
        high = (high + odd + low) & 0xFFFFFFFF
    return low, high


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise LogDamaged(f"{show_path(path)} cannot be read: {error}", path=str(path)) from error


def _cells(page: _Page, version: int, kinds: frozenset[int]) -> Iterator[_Cell]:
    """The cells that a page's header counts, as far as they lie inside it."""
    data = page.data
    start = 100 if page.number == 1 else 0
    kind = data[start]
    if kind not in kinds:
        return
    pointers = start + (12 if kind == _INDEX_INTERIOR else 8)
    count = int.from_bytes(data[start + 3 : start + 5], "big")
    for place in range(min(count, (PAGE_BYTES - pointers) // 2)):
        offset = int.from_bytes(data[pointers + 2 * place : pointers + 2 * place + 2], "big")
        if pointers <= offset < PAGE_BYTES:
            yield _Cell(version, offset, kind)


def _beginning(data: memoryview, cell: _Cell) -> bytes:
    """A cell's bytes, as many as it takes to tell it from other rows."""
    start = cell.offset + (4 if cell.kind == _INDEX_INTERIOR else 0)
    try:
        length, at = _varint(data, start)
    except _Damaged:
        return b""
    return bytes(data[start : at + min(max(length, 0) + 9, _SAME_BYTES)])


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """SQLite's variable-length integer, and where it ends."""
    value = 0
    for place in range(9):
        if at + place >= len(data):
            raise _Damaged
        byte = data[at + place]
        if place == 8:
            value = value << 8 | byte
            return value - (1 << 64) if value >> 63 else value, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    raise _Damaged


def _columns(payload: bytes) -> list[Any]:
    """The values of a row in SQLite's record format."""
    header_bytes, at = _varint(payload, 0)
    if header_bytes > len(payload):
        raise _Damaged
    types = []
    while at < header_bytes:
        serial, at = _varint(payload, at)
        types.append(serial)
    values = []
    for serial in types:
        value, at = _value(payload, at, serial)
        values.append(value)
    return values


def _value(payload: bytes, at: int, serial: int) -> tuple[Any, int]:
    if serial == 0:
        return None, at
    if 1 <= serial <= 6:
        end = at + _INTEGER_BYTES[serial]
        value: Any = int.from_bytes(payload[at:end], "big", signed=True)
    elif serial in (8, 9):
        return serial - 8, at
    elif serial >= 12:
        end = at + (serial - 12) // 2
        value = payload[at:end]
        if serial % 2:
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise _Damaged from None
    else:
        raise _Damaged
    if end > len(payload):
        raise _Damaged
    return value, end


def _are(values: list[Any], *types: type) -> bool:
    return len(values) == len(types) and all(
        isinstance(value, of) for value, of in zip(values, types, strict=True)
    )
