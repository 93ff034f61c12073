"""Segment files: append-only bodies, one writer each, so that bytes need no coordination.

    file header, 64 bytes:  magic 8 · version u32 · 0 u32 · log id 16 · zeros 24 · checksum u64
    frame header, 64 bytes: magic u32 · version u16 · 0 u16 · length u64 · checksum u64 · zeros
    body, padded to 64 bytes

A frame's checksum is xxh3 of its body; the index keeps a copy, so a frame read at the wrong offset
is found out too. Frames and bodies start at multiples of 64, so Arrow buffers in an uncompressed
p-unit are aligned in the mapping and can be used where they lie.

A writer holds a lock on its file as long as it lives. A segment that nobody has locked gets no more
frames: what lies beyond its last indexed frame was never acknowledged and may be cut off.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.errors import (
    LogVersionUnsupported,
    SegmentDamaged,
    SegmentMissing,
    SegmentTruncated,
)
from penstock.log.files import Files, lock, log_error, named_errors
from penstock.names import show_path

SEGMENT_MAGIC = b"PNSTSEGM"
SEGMENT_VERSION = 1
FRAME_MAGIC = 0x4D524650  # "PFRM"
FRAME_VERSION = 1
ALIGNMENT = 64
_FILE_HEADER = struct.Struct("<8sII16s24sQ")
_FRAME_HEADER = struct.Struct("<IHHQQ40x")
_ZEROS = memoryview(bytes(ALIGNMENT))
_MAPS_MAX = 64
assert _FILE_HEADER.size == _FRAME_HEADER.size == ALIGNMENT


def body_checksum(body: memoryview | bytes, digest: int | None = None) -> int:
    """xxh3 of a body, made or known, cut to 63 bits because SQLite's integers are signed."""
    return (xxhash.xxh3_64_intdigest(body) if digest is None else digest) >> 1


def encode_file_header(log_id: bytes) -> bytes:
    head = _FILE_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 0, log_id, b"", 0)[:-8]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def check_file_header(header: bytes, log_id: bytes, path: Path) -> None:
    """Raise unless these are the first bytes of a segment of this log."""
    if len(header) < ALIGNMENT:
        raise SegmentTruncated(
            f"segment {show_path(path)} has no whole header ({len(header)} bytes)",
            path=str(path),
            offset=0,
        )
    magic, version, _, found_id, _, checksum = _FILE_HEADER.unpack(header)
    if magic != SEGMENT_MAGIC or xxhash.xxh3_64_intdigest(header[:-8]) != checksum:
        raise SegmentDamaged(
            f"segment {show_path(path)} has a damaged header", path=str(path), offset=0
        )
    if version > SEGMENT_VERSION:
        raise LogVersionUnsupported(
            f"segment {show_path(path)} has format version {version}, this Penstock reads up to "
            f"{SEGMENT_VERSION}: upgrade it",
            path=str(path),
            version=version,
        )
    if found_id != log_id:
        raise SegmentDamaged(
            f"segment {show_path(path)} belongs to another log", path=str(path), offset=0
        )


def frame_bytes(length: int) -> int:
    """How many bytes a body of this length takes in a segment, header and padding included."""
    return ALIGNMENT + length + -length % ALIGNMENT


def check_frame(
    frame: memoryview, length: int, checksum: int, path: Path, offset: int
) -> memoryview:
    """Return the body of a frame if header, length and bytes are what the index promises."""
    magic, version, _, found_length, found_checksum = _FRAME_HEADER.unpack(frame[:ALIGNMENT])
    body = frame[ALIGNMENT : ALIGNMENT + length]
    if magic == FRAME_MAGIC and version > FRAME_VERSION and found_checksum == checksum:
        raise LogVersionUnsupported(
            f"segment {show_path(path)} has a frame of version {version} at offset {offset}, this "
            f"Penstock reads up to {FRAME_VERSION}: upgrade it",
            path=str(path),
            offset=offset,
            version=version,
        )
    if (
        magic != FRAME_MAGIC
        or version != FRAME_VERSION
        or found_length != length
        or found_checksum != checksum
        or body_checksum(body) != checksum
    ):
        raise SegmentDamaged(
            f"segment {show_path(path)} is damaged at offset {offset} (a frame of {length} bytes "
            "fails its checksum): run `penstock fsck`",
            path=str(path),
            offset=offset,
        )
    return body


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """Where a body lies: in which segment, at which frame offset."""

    segment: Segment
    offset: int


class Segment:
    """A segment that this process is writing, or has written and not yet let go."""

    def __init__(self, folder: Path, name: str, files: Files, log_id: bytes) -> None:
        self.name = name
        self.path = folder / f"{name}.seg"
        self.files = files
        self.end = 0
        self.synced_end = 0
        self.pending = 0  # bodies written here that the index does not know yet
        self.sealed = False
        self.fd = files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            # A collector may have taken the lock, or the file, between these two calls.
            if not lock(self.fd) or os.fstat(self.fd).st_nlink == 0:
                raise FileExistsError(self.path)
            self.end = files.write(self.fd, [memoryview(encode_file_header(log_id))])
        except BaseException:
            files.close(self.fd)
            raise

    def write(self, bodies: Sequence[tuple[memoryview, int]]) -> list[BodyPlace]:
        parts: list[memoryview] = []
        placements = []
        offset = self.end
        for body, checksum in bodies:
            header = _FRAME_HEADER.pack(FRAME_MAGIC, FRAME_VERSION, 0, body.nbytes, checksum)
            parts += (memoryview(header), body)
            if padding := -body.nbytes % ALIGNMENT:
                parts.append(_ZEROS[:padding])
            placements.append(BodyPlace(self, offset))
            offset += frame_bytes(body.nbytes)
        self.files.write(self.fd, parts)
        self.end = offset
        self.pending += len(placements)
        return placements


class SegmentWriter:
    """Writes one process's bodies: rolls segments at a size and shares syncs between threads."""

    def __init__(
        self, folder: Path, files: Files, log_id: bytes, segment_bytes_max: int, durable: bool
    ) -> None:
        self._folder = folder
        self._files = files
        self._log_id = log_id
        self._segment_bytes_max = segment_bytes_max
        self._durable = durable
        self._writer = os.urandom(8).hex()
        self._number = 0
        self._current: Segment | None = None
        self._held: set[Segment] = set()
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()

    def place(self, bodies: Sequence[tuple[memoryview, int]]) -> list[BodyPlace]:
        """Write bodies, as durable as the log's level asks; follow with `settle` in any outcome."""
        with self._lock, named_errors(f"writing a segment in {show_path(self._folder)}"):
            segment = self._roll() if self._is_full() else self._current
            assert segment is not None
            try:
                placements = segment.write(bodies)
            except BaseException:
                # What reached the file is unknown: never write behind it.
                self._seal(segment)
                raise
        if self._durable:
            self._sync(segment, placements)
        return placements

    def settle(self, placements: Sequence[BodyPlace]) -> None:
        """The index knows these bodies now, or never will: their segments may be let go."""
        with self._lock:
            for placement in placements:
                placement.segment.pending -= 1
                self._release_if_idle(placement.segment)

    def close(self) -> None:
        with self._lock:
            if self._current is not None:
                self._seal(self._current)
            for segment in tuple(self._held):
                segment.pending = 0
                self._release_if_idle(segment)

    def _is_full(self) -> bool:
        return self._current is None or self._current.end >= self._segment_bytes_max

    def _roll(self) -> Segment:
        if self._current is not None:
            self._seal(self._current)
        while True:
            self._number += 1
            name = f"{self._writer}_{self._number:08d}"
            try:
                segment = Segment(self._folder, name, self._files, self._log_id)
                break
            except FileExistsError:
                continue
        if self._durable:
            self._files.sync_folder(self._folder)
        self._current = segment
        self._held.add(segment)
        return segment

    def _seal(self, segment: Segment) -> None:
        segment.sealed = True
        if self._current is segment:
            self._current = None
        self._release_if_idle(segment)

    def _release_if_idle(self, segment: Segment) -> None:
        if segment.sealed and segment.pending == 0 and segment in self._held:
            self._held.discard(segment)
            self._files.close(segment.fd)

    def _sync(self, segment: Segment, placements: Sequence[BodyPlace]) -> None:
        end = segment.end
        try:
            with self._sync_lock, named_errors(f"syncing {show_path(segment.path)}"):
                if segment.synced_end < end:
                    end = segment.end
                    self._files.sync(segment.fd)
                    segment.synced_end = end
        except BaseException:
            # After a failed sync the kernel may have dropped the bytes: do not use this file again.
            with self._lock:
                self._seal(segment)
            self.settle(placements)
            raise


class SegmentReader:
    """Maps segments and hands out verified bodies without copying them."""

    def __init__(self, folder: Path, log_id: bytes) -> None:
        self._folder = folder
        self._log_id = log_id
        self._maps: OrderedDict[str, tuple[int, memoryview]] = OrderedDict()

    def body(self, name: str, offset: int, length: int, checksum: int) -> memoryview:
        path = self._folder / f"{name}.seg"
        end = offset + frame_bytes(length)
        view = self._view(name, path, end)
        return check_frame(view[offset:end], length, checksum, path, offset)

    def forget(self, name: str) -> None:
        """Drop the mapping of a segment that is gone; bodies already handed out stay valid."""
        if (entry := self._maps.pop(name, None)) is not None:
            os.close(entry[0])

    def forget_removed(self) -> None:
        """Drop the mappings of segments that others have removed: held, they keep their space."""
        for name, (fd, _) in tuple(self._maps.items()):
            if os.fstat(fd).st_nlink == 0:
                self.forget(name)

    def close(self) -> None:
        for name in tuple(self._maps):
            self.forget(name)

    def _view(self, name: str, path: Path, end: int) -> memoryview:
        entry = self._maps.get(name)
        if entry is None:
            self.forget_removed()  # who reads on comes by here once in a segment
            entry = self._open(path)
            self._maps[name] = entry
            if len(self._maps) > _MAPS_MAX:
                self.forget(next(iter(self._maps)))
        else:
            self._maps.move_to_end(name)
        fd, view = entry
        # The size is asked every time: to touch a page beyond a cut-off file kills the process.
        size = os.fstat(fd).st_size
        if size < end:
            raise SegmentTruncated(
                f"segment {show_path(path)} has {size} bytes, the index needs {end}: run "
                "`penstock fsck`",
                path=str(path),
                offset=end,
            )
        if view.nbytes < end:
            view = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
            self._maps[name] = (fd, view)
        return view

    def _open(self, path: Path) -> tuple[int, memoryview]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SegmentMissing(
                f"segment {show_path(path)} is missing: put it back, or run `penstock fsck`",
                path=str(path),
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise SegmentDamaged(
                    f"segment {show_path(path)} is a symbolic link, which is never followed: put "
                    "the file itself there",
                    path=str(path),
                ) from error
            raise log_error(error, f"reading segment {show_path(path)}") from error
        try:
            with named_errors(f"reading segment {show_path(path)}"):
                check_file_header(os.pread(fd, ALIGNMENT, 0), self._log_id, path)
                size = os.fstat(fd).st_size
                return fd, memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        except BaseException:
            os.close(fd)
            raise
