"""`fsck`: look at every byte of a log that means something, and say what is wrong. Never writes.

It works on a log that is in use: the doorbell is read first and the index in one snapshot, so what
others append meanwhile is not looked at, and what they trim meanwhile is still there to be seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw
import xxhash

from penstock.config import GIB
from penstock.errors import (
    IndexDamaged,
    IndexForeign,
    IndexMissing,
    InvalidName,
    LogDamaged,
    LogError,
    LogVersionUnsupported,
    NotALog,
    PUnitError,
    SegmentMissing,
    SegmentTruncated,
)
from penstock.log import punit
from penstock.log.bell import Bell
from penstock.log.files import Files, log_error
from penstock.log.index import (
    APPLICATION_ID,
    RECORD_COLUMNS,
    SCHEMA,
    Row,
    check_identity,
    connect,
    connect_as_it_lies,
    is_page_damaged,
    metadata_seal,
    row_seal,
    sqlite_error,
)
from penstock.log.local import (
    BELL_FILE,
    FORMAT_FILE,
    INDEX_FILE,
    SEGMENTS_FOLDER,
    Identity,
    read_identity,
)
from penstock.log.power_cut import boot_id
from penstock.log.record import RecordKind
from penstock.log.segments import (
    ALIGNMENT,
    body_checksum,
    check_file_header,
    check_frame,
    frame_bytes,
)
from penstock.names import check_any_name, check_name, check_path, show_path

Severity = Literal["error", "warning", "note"]
Progress = Callable[[str, int, int], None]  # what is looked at, how many are done, of how many

FINDINGS_MAX = 1_000
WAL_FILE = f"{INDEX_FILE}-wal"
_PROGRESS_EVERY = 1_000
_INTEGRITY_LINES_MAX = 20
_KINDS = frozenset(int(kind) for kind in RecordKind)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that fsck saw: `error` is damage, `warning` a known loss, `note` neither."""

    severity: Severity
    code: str
    file: str
    message: str
    offset: int | None = None
    position: int | None = None


@dataclass(slots=True)
class Report:
    """What fsck looked at and what it found."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    left_out: int = 0  # findings beyond FINDINGS_MAX

    @property
    def is_clean(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def add(
        self,
        severity: Severity,
        code: str,
        file: str,
        message: str,
        *,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        self.counts[f"{severity}s"] = self.counts.get(f"{severity}s", 0) + 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(severity, code, file, message, offset, position))
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class Frame:
    """What the index says of one body in a segment."""

    offset: int
    length: int
    checksum: int
    position: int


def fsck(
    path: str | os.PathLike[str], progress: Progress | None = None, *, deep: bool = False
) -> Report:
    """Check the log in a folder; with `deep`, also decode every body that claims to be a p-unit.

    Raises only if there is nothing to check: no folder, no log, or a version of the format that
    this Penstock does not know.
    """
    folder = Path(path).absolute()
    wal = folder / WAL_FILE
    # Without a write-ahead log nobody has the index open, and it can be read without the files
    # that SQLite otherwise puts beside it.
    at_rest = not wal.exists()
    report = _run(folder, progress or _no_progress, deep, at_rest)
    if at_rest and not report.is_clean and wal.exists():  # somebody came in the middle
        report = _run(folder, progress or _no_progress, deep, at_rest=False)
    return report


def _run(folder: Path, progress: Progress, deep: bool, at_rest: bool) -> Report:
    report = Report(str(folder))
    for kind in ("errors", "warnings", "notes"):
        report.counts[kind] = 0
    identity = _check_format(folder, report)
    acknowledged = _Acknowledged(folder, report)
    _Check(folder, identity, acknowledged, report, progress, deep, at_rest).run()
    return report


def _no_progress(what: str, done: int, total: int) -> None:
    return


def _check_format(folder: Path, report: Report) -> Identity | None:
    try:
        return read_identity(folder)
    except NotALog as error:
        if not has_our_index(folder):
            raise
        report.add("error", "format_missing", FORMAT_FILE, error.message)
    except LogDamaged as error:
        report.add("error", "format_damaged", FORMAT_FILE, error.message)
    return None


def has_our_index(folder: Path) -> bool:
    """Whether the folder's index file has our mark: it was a log, whatever else is missing."""
    try:
        with (folder / INDEX_FILE).open("rb") as file:
            header = file.read(100)
    except OSError:
        return False
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big")


class _Acknowledged:
    """What the doorbell says was acknowledged, read before the index is."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.tail = self.changes = 0
        self.in_this_boot = False
        bell = Bell(folder / BELL_FILE, Files(), read_only=True)
        try:
            if bell.wait_until_sound():
                self.tail, self.changes = int(bell.tail()), bell.changes()
                self.in_this_boot = bell.boot() == boot_id()
            else:
                report.add(
                    "note",
                    "bell_unsound",
                    BELL_FILE,
                    "the doorbell holds no counter, as after a power cut: the next writer to open "
                    "the log sets it",
                )
        finally:
            bell.close()


class _Check:
    """One run over one log."""

    def __init__(
        self,
        folder: Path,
        identity: Identity | None,
        acknowledged: _Acknowledged,
        report: Report,
        progress: Progress,
        deep: bool,
        at_rest: bool,
    ) -> None:
        self._at_rest = at_rest
        self._folder = folder
        self._index_path = folder / INDEX_FILE
        self._log_id = identity.log_id if identity else None
        self._may_lose_newest = identity is not None and identity.durability == "process"
        self._acknowledged = acknowledged
        self._report = report
        self._progress = progress
        self._deep = deep
        self._forget()

    def _forget(self) -> None:
        self._frames: dict[str, list[Frame]] = {}
        self._segments: dict[str, tuple[int, int]] = {}  # name: live, end
        self._trims: dict[str, int] = {}
        self._lost: dict[int, str] = {}
        self._sequences: dict[tuple[str, int], int] = {}  # noted of each producer
        self._noted = 0  # up to this position
        self._tail = 0
        self._unsure_after: int | None = None  # a power cut may have taken what follows

    def run(self) -> None:
        whole = False
        connection = self._connect()
        if connection is not None:
            try:
                whole = self._check_whole_index(connection)
            finally:
                connection.close()
        self._check_segments(whole)

    def _check_whole_index(self, connection: apsw.Connection) -> bool:
        """Check the index; return whether all of its rows could be read."""
        try:
            self._check_index(connection)
            return True
        except (apsw.Error, UnicodeDecodeError) as error:
            self._index_error("index_damaged", self._named(error).message)
            if not is_page_damaged(error):
                return False
        try:  # once more without the checksums of pages: the rows have their own and say more
            self._forget()
            connection.pragma("checksum_verification", 0)
            self._check_index(connection)
            return True
        except (apsw.Error, UnicodeDecodeError) as error:
            self._index_error("index_damaged", self._named(error).message)
            return False

    # ------------------------------------------------------------------ the index

    def _connect(self) -> apsw.Connection | None:
        try:
            if not self._index_path.exists():
                raise IndexMissing(f"the index {self._index_path} is missing: put the file back")
            try:
                connection = self._open()
            except apsw.Error as error:
                raise self._named(error) from error
            try:
                connection.execute("BEGIN")
                check_identity(connection, self._index_path, self._known_id(connection))
                return connection
            except apsw.Error as error:
                connection.close()
                raise self._named(error) from error
            except BaseException:
                connection.close()
                raise
        except LogVersionUnsupported:
            raise
        except IndexMissing as error:
            self._index_error("index_missing", error.message)
        except IndexForeign as error:
            self._index_error("index_foreign", error.message)
        except IndexDamaged as error:
            self._index_error("index_damaged", error.message)
        return None

    def _open(self) -> apsw.Connection:
        if self._at_rest:
            return connect_as_it_lies(self._index_path)
        return connect(self._index_path, None, read_only=True)

    def _known_id(self, connection: apsw.Connection) -> bytes:
        if self._log_id is None:  # the format file is damaged: the index says which log it is
            found = _ask(connection, "SELECT id FROM log")
            self._log_id = bytes(found[0][0]) if found else b""
        return self._log_id

    def _named(self, error: Exception) -> LogError:
        if isinstance(error, apsw.Error):
            return sqlite_error(error, self._index_path, "checking")
        return IndexDamaged(f"the index {self._index_path} holds a name that is not text")

    def _index_error(self, code: str, message: str, position: int | None = None) -> None:
        self._report.add("error", code, INDEX_FILE, message, position=position)

    def _check_index(self, connection: apsw.Connection) -> None:
        self._progress("integrity of the index", 0, 1)
        self._check_schema(connection)
        lines = _ask(connection, f"PRAGMA integrity_check({_INTEGRITY_LINES_MAX})")
        for (line,) in lines:
            if line != "ok":
                self._index_error("index_damaged", f"SQLite's integrity check: {line}")
        self._read_small_tables(connection)
        self._check_tail(connection)
        expected = self._check_records(connection)
        found = self._check_tags(connection)
        if expected != found:
            self._find_tag_differences(connection)
        self._check_metadata(connection)
        self._check_lost(connection)

    def _check_schema(self, connection: apsw.Connection) -> None:
        rows = _ask(connection, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        wanted = {" ".join(part.split()) for part in SCHEMA.split(";") if part.strip()}
        if {" ".join(row[0].split()) for row in rows} != wanted:
            self._index_error("index_damaged", "the tables of the index are not the ones we make")

    def _read_small_tables(self, connection: apsw.Connection) -> None:
        for tag, upto, seal in _ask(connection, "SELECT tag, upto, seal FROM trim"):
            self._trims[tag] = upto
            if seal != row_seal(tag, upto):
                self._index_error("trim_damaged", f"the trim row of tag {tag!r} fails its checksum")
        for producer, instance, sequence, trimmed, seal in _ask(
            connection, "SELECT producer, instance, sequence, trimmed, seal FROM producer"
        ):
            self._sequences[producer, instance] = sequence
            if seal != row_seal(producer, instance, sequence, trimmed):
                self._index_error(
                    "producer_damaged", f"the row of producer {producer!r} fails its checksum"
                )
        for name, live, end in _ask(connection, "SELECT name, live, end FROM segment"):
            self._segments[name] = (live, end)
            self._check_names(name, None, 0)
        self._lost = dict(_ask(connection, "SELECT position, manifest FROM lost"))

    def _check_tail(self, connection: apsw.Connection) -> None:
        query = "SELECT (SELECT max(position) FROM record), changes, written_back, noted FROM log"
        tail, changes, written_back, self._noted = _ask(connection, query)[0]
        self._tail = tail or 0
        self._report.counts["tail"] = self._tail
        acknowledged = self._acknowledged
        if self._may_lose_newest and not acknowledged.in_this_boot and written_back < self._tail:
            self._unsure_after = written_back
            self._report.add(
                "note",
                "bodies_unsure",
                SEGMENTS_FOLDER,
                f"the machine was started anew since: bodies after position {written_back} may be "
                "gone. The next writer to open the log ends it before the first one that is",
                position=written_back,
            )
        if acknowledged.tail > self._tail:
            self._tail_lost(f"position {acknowledged.tail} was acknowledged")
        elif acknowledged.changes > changes:
            self._tail_lost("newer changes of its metadata were acknowledged")

    def _tail_lost(self, what: str) -> None:
        if self._may_lose_newest:
            self._report.add(
                "warning",
                "newest_lost",
                WAL_FILE,
                f"the index ends at position {self._tail}, but {what}: a power cut took the newest "
                "records, as the level `process` allows. The next writer goes on behind them",
                position=self._tail,
            )
            return
        self._report.add(
            "error",
            "tail_lost",
            WAL_FILE,
            f"the index ends at position {self._tail}, but {what}: its write-ahead log is damaged "
            "or was removed",
            position=self._tail,
        )

    def _check_records(self, connection: apsw.Connection) -> tuple[int, int]:
        """Check every record row; return how many tag rows there must be, and their digest."""
        total = _ask(connection, "SELECT count(*) FROM record")[0][0]
        self._report.counts["records"] = total
        sequences: dict[tuple[str, int], int] = {}
        count = digest = 0
        query = (
            f"SELECT r.tags_live, {RECORD_COLUMNS} FROM record r "
            "LEFT JOIN segment s ON s.id = r.segment ORDER BY r.position"
        )
        for done, (tags_live, *columns) in enumerate(_stream(connection, query)):
            if done % _PROGRESS_EVERY == 0:
                self._progress("records", done, total)
            row = Row(*columns)
            live = self._check_record(row, tags_live)
            count += len(live)
            digest += sum(_tag_digest(tag, row.position) for tag in live)
            name = (row.producer, row.instance)
            if row.sequence <= sequences.get(name, -1):
                self._index_error(
                    "sequence_damaged",
                    f"position {row.position} has sequence {row.sequence}, not above the one "
                    f"before it of producer {row.producer!r}",
                    row.position,
                )
            if row.position <= self._noted and row.sequence > self._sequences.get(name, -1):
                self._index_error(
                    "producer_damaged",
                    f"position {row.position} has sequence {row.sequence}, above the highest that "
                    f"is noted of producer {row.producer!r}",
                    row.position,
                )
            sequences[name] = row.sequence
        self._progress("records", total, total)
        return count, digest

    def _check_record(self, row: Row, tags_live: int) -> list[str]:
        """Check one row and its body if that is in the index; return the tags it is found under."""
        if not row.is_sealed():
            self._index_error(
                "row_damaged", f"the row of position {row.position} fails its checksum",
                row.position,
            )  # fmt: skip
        if row.kind not in _KINDS:
            self._index_error("row_damaged", f"unknown kind {row.kind}", row.position)
        if row.tags == "" and row.position in self._lost:
            return []  # a repair's stand-in: it only remembers the position
        tags = row.tags.split(" ")
        self._check_names(row.producer, tags, row.position)
        live = [tag for tag in tags if row.position > self._trims.get(tag, 0)]
        if tags_live != len(live) or len(set(tags)) != len(tags):
            self._index_error(
                "tags_live_wrong",
                f"position {row.position} counts {tags_live} live tags and has {len(live)}",
                row.position,
            )
        if row.segment is not None:
            frame = Frame(row.offset or 0, row.length, row.checksum, row.position)
            self._frames.setdefault(row.segment, []).append(frame)
        elif row.position not in self._lost:
            self._check_inline(row)
        return live

    def _check_inline(self, row: Row) -> None:
        body = row.inline or b""
        if len(body) != row.length or body_checksum(body) != row.checksum:
            self._index_error(
                "body_damaged", f"the body of position {row.position} fails its checksum",
                row.position,
            )  # fmt: skip
        elif self._deep:
            self._check_punit(memoryview(body), INDEX_FILE, row.position)

    def _check_names(self, name: str, tags: list[str] | None, position: int) -> None:
        try:
            if tags is None:
                check_name(name, "segment")
            else:
                check_any_name(name, "producer")
            for tag in tags or ():
                check_path(tag, "tag")
        except InvalidName as error:
            self._index_error("name_invalid", error.message, position or None)

    def _check_tags(self, connection: apsw.Connection) -> tuple[int, int]:
        """Check every tag's chain; return how many rows there are, and their digest."""
        total = _ask(connection, "SELECT count(*) FROM tag")[0][0]
        count = digest = tags = reached = 0
        current = None
        query = "SELECT tag, position, previous FROM tag ORDER BY tag, position"
        for tag, position, previous in _stream(connection, query):
            if count % _PROGRESS_EVERY == 0:
                self._progress("tags", count, total)
            if tag != current:
                current, reached, tags = tag, 0, tags + 1
                chained = previous <= self._trims.get(tag, 0)
            else:
                chained = previous == reached or previous <= self._trims.get(tag, 0)
            if not chained:
                self._index_error(
                    "chain_broken",
                    f"tag {tag!r} misses position {previous} before {position}",
                    position,
                )
            reached = position
            count += 1
            digest += _tag_digest(tag, position)
        self._progress("tags", total, total)
        self._report.counts["tags"] = tags
        return count, digest

    def _find_tag_differences(self, connection: apsw.Connection) -> None:
        """Name the rows that one side has and the other has not: slow, and only after damage."""
        before = self._report.counts["errors"]
        row_of = "SELECT 1 FROM tag WHERE tag = ? AND position = ?"
        for position, tags in _stream(connection, "SELECT position, tags FROM record"):
            for tag in tags.split(" ") if tags else ():
                live = position > self._trims.get(tag, 0)
                if live and not _ask(connection, row_of, (tag, position)):
                    self._index_error(
                        "tag_missing", f"position {position} is not found under tag {tag!r}",
                        position,
                    )  # fmt: skip
        tags_of = "SELECT tags FROM record WHERE position = ?"
        for tag, position in _stream(connection, "SELECT tag, position FROM tag"):
            found = _ask(connection, tags_of, (position,))
            if not found or tag not in found[0][0].split(" "):
                self._index_error(
                    "tag_extra", f"tag {tag!r} leads to position {position}, which has not got it",
                    position,
                )  # fmt: skip
        if self._report.counts["errors"] == before:
            self._index_error("tag_extra", "records and tags of the index contradict each other")

    def _check_metadata(self, connection: apsw.Connection) -> None:
        count = 0
        query = "SELECT key, version, seal, value FROM metadata"
        for key, version, seal, value in _stream(connection, query):
            count += 1
            if seal != metadata_seal(key, version, value):
                self._index_error("metadata_damaged", f"the value of {key!r} fails its checksum")
            try:
                check_path(key, "metadata key")
            except InvalidName as error:
                self._index_error("name_invalid", error.message)
        self._report.counts["metadata"] = count

    def _check_lost(self, connection: apsw.Connection) -> None:
        self._report.counts["lost"] = len(self._lost)
        for position, manifest in self._lost.items():
            self._report.add(
                "warning",
                "record_lost",
                manifest,
                f"position {position} was lost to damage; {manifest} says what was moved aside",
                position=position,
            )
        for manifest in sorted(set(self._lost.values())):
            if not (self._folder / manifest).is_file():
                self._report.add("warning", "manifest_missing", manifest, f"{manifest} is gone")

    # ------------------------------------------------------------------ the segments

    def _check_segments(self, indexed: bool) -> None:
        folder = self._folder / SEGMENTS_FOLDER
        try:
            present = sorted(os.listdir(folder))
        except OSError as error:
            message = f"the folder {show_path(folder)} cannot be listed: {error}"
            self._report.add("error", "segments_missing", SEGMENTS_FOLDER, message)
            present = []
        self._report.counts["segments"] = len(self._segments)
        names = sorted(self._segments.keys() | self._frames.keys())
        for done, name in enumerate(names):
            self._progress("segments", done, len(names))
            self._check_segment(name)
        self._progress("segments", len(names), len(names))
        for file in present:
            if file.removesuffix(".seg") not in names and indexed:
                self._report.add(
                    "note", "segment_unindexed", f"{SEGMENTS_FOLDER}/{file}",
                    f"{show_path(file)} is not in the index: of a writer that is just beginning, "
                    "or died",
                )  # fmt: skip

    def _check_segment(self, name: str) -> None:
        frames = self._frames.get(name, [])
        live, end = self._segments.get(name, (0, 0))
        file = f"{SEGMENTS_FOLDER}/{name}.seg"
        if live != len(frames):
            self._index_error(
                "live_wrong", f"the index counts {live} records in {file} and has {len(frames)}"
            )
        needed = [frame for frame in frames if self._is_needed(frame)]
        if any(frame.offset + frame_bytes(frame.length) > end for frame in frames):
            self._index_error("end_wrong", f"the index places records beyond the end of {file}")
        if not needed:
            return  # emptied, or all of it is known to be lost
        try:
            with _SegmentFile(self._folder / file) as segment:
                self._check_frames(segment, needed, file, end)
        except SegmentMissing as error:
            if self._is_still_indexed(name):
                self._segment_error(error, file)
        except LogVersionUnsupported:
            raise
        except LogDamaged as error:
            self._segment_error(error, file)

    def _is_needed(self, frame: Frame) -> bool:
        is_sure = self._unsure_after is None or frame.position <= self._unsure_after
        return is_sure and frame.position not in self._lost

    def _check_frames(
        self, segment: _SegmentFile, frames: list[Frame], file: str, end: int
    ) -> None:
        try:
            check_file_header(segment.read(0, ALIGNMENT), self._log_id or b"", segment.path)
        except LogDamaged as error:
            self._segment_error(error, file)
        for frame in frames:
            try:
                body = segment.body(frame)
                self._report.counts["frames"] = self._report.counts.get("frames", 0) + 1
                if self._deep:
                    self._check_punit(body, file, frame.position, frame.offset)
            except LogDamaged as error:
                self._segment_error(error, file, frame)
        if segment.size > end:
            self._report.add(
                "note", "bytes_unindexed", file,
                f"{segment.size - end} bytes follow the last record: they were never acknowledged",
                offset=end,
            )  # fmt: skip

    def _segment_error(self, error: LogDamaged, file: str, frame: Frame | None = None) -> None:
        self._report.add(
            "error",
            error.error_class.lower(),
            file,
            error.message,
            offset=error.details.get("offset"),
            position=frame.position if frame else None,
        )

    def _is_still_indexed(self, name: str) -> bool:
        """Whether a missing segment is damage, and not one that was trimmed since the snapshot."""
        connection = self._open()
        try:
            query = "SELECT live FROM segment WHERE name = ?"
            return any(live for (live,) in _ask(connection, query, (name,)))
        except apsw.Error:
            return True
        finally:
            connection.close()

    def _check_punit(
        self, body: memoryview, file: str, position: int, offset: int | None = None
    ) -> None:
        if bytes(body[:4]) != punit.MAGIC:
            return
        self._report.counts["punits"] = self._report.counts.get("punits", 0) + 1
        try:
            punit.decode(body, raw_bytes_max=GIB)
        except PUnitError as error:
            self._report.add(
                "error", "punit_damaged", file, error.message, offset=offset, position=position
            )


class _SegmentFile:
    """A segment opened for reading, frame by frame."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def __enter__(self) -> _SegmentFile:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SegmentMissing(
                f"segment {show_path(self.path)} is missing", path=str(self.path)
            ) from None
        except OSError as error:
            if self.path.is_symlink():
                raise SegmentMissing(
                    f"segment {show_path(self.path)} is a symbolic link, which is never followed",
                    path=str(self.path),
                ) from error
            raise log_error(error, f"reading {show_path(self.path)}") from error
        self.size = os.fstat(self._fd).st_size
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise log_error(error, f"reading {show_path(self.path)}") from error

    def body(self, frame: Frame) -> memoryview:
        """A frame's verified body; the length is compared with the file's before it is read."""
        end = frame.offset + frame_bytes(frame.length)
        if end > self.size:
            raise SegmentTruncated(
                f"segment {show_path(self.path)} has {self.size} bytes, position {frame.position} "
                f"needs {end}",
                path=str(self.path),
                offset=frame.offset,
            )
        data = memoryview(self.read(frame.offset, end - frame.offset))
        return check_frame(data, frame.length, frame.checksum, self.path, frame.offset)


open_segment = _SegmentFile


def _tag_digest(tag: str, position: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{tag}|{position}".encode())


def _ask(connection: apsw.Connection, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
    return connection.execute(query, parameters).fetchall()


def _stream(connection: apsw.Connection, query: str) -> Iterator[Any]:
    """The rows of a query on a cursor of its own, so that others can be asked in between."""
    yield from connection.cursor().execute(query)
