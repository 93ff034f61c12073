"""The sequencer: positions, tags and metadata of a log in one SQLite file in WAL mode.

SQLite lets one transaction write at a time, so positions are handed out in commit order. Every row
that matters carries a seal (a checksum of its own fields), and a tag's rows form a chain: each
names the position before it under the same tag. So a row that rots away is noticed by the next
reader, not silently skipped.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import apsw
import xxhash

from penstock.errors import (
    DiskFull,
    IndexDamaged,
    IndexForeign,
    IndexMissing,
    LogError,
    LogIOError,
    LogReadOnly,
    LogVersionUnsupported,
    SequenceConflict,
    Trimmed,
)
from penstock.log.contract import Outcome, instance_key
from penstock.log.files import BUSY_S, YIELDS, busy
from penstock.log.page_seals import PAGE_SEAL_BYTES, page_seal_vfs
from penstock.log.record import Entry, Fence, Position, Versioned
from penstock.log.segments import body_checksum, frame_bytes
from penstock.log.sequences import FROM_DEAD, Name, Sequences
from penstock.log.validate import check_fence, fence_refusal, first_positions
from penstock.names import show_path

APPLICATION_ID = 0x504E5354  # "PNST" in the SQLite header
INDEX_VERSION = 3
PAGE_BYTES = 4096
CACHE_KIB = 16_384
FOLD_WAIT_S = 0.02  # how long appends may be held back for a fold; a read takes far less
FOLD_PAUSE_S = 0.0002
RESERVED_POSITIONS = 1 << 18  # at a time: one sync for so many, and so many left out by a power cut
_PRIOR_TAGS_MAX = 8
# What SQLite answers when a page fails its checksum: its own, or the filesystem's.
_PAGE_DAMAGED = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)

SCHEMA = """
CREATE TABLE log(id BLOB NOT NULL, version INTEGER NOT NULL, changes INTEGER NOT NULL,
    written_back INTEGER NOT NULL, reserved INTEGER NOT NULL, noted INTEGER NOT NULL) STRICT;
CREATE TABLE record(
    position INTEGER PRIMARY KEY, kind INTEGER NOT NULL, producer TEXT NOT NULL,
    instance INTEGER NOT NULL, sequence INTEGER NOT NULL, tags TEXT NOT NULL,
    tags_live INTEGER NOT NULL, time_us INTEGER NOT NULL, segment INTEGER, offset INTEGER,
    length INTEGER NOT NULL, checksum INTEGER NOT NULL, seal INTEGER NOT NULL, body BLOB) STRICT;
CREATE INDEX record_dead ON record(position) WHERE tags_live = 0;
CREATE TABLE tag(tag TEXT, position INTEGER, previous INTEGER NOT NULL,
    PRIMARY KEY(tag, position)) STRICT, WITHOUT ROWID;
CREATE TABLE trim(tag TEXT PRIMARY KEY, upto INTEGER NOT NULL, seal INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
CREATE TABLE producer(producer TEXT, instance INTEGER, sequence INTEGER NOT NULL,
    trimmed INTEGER NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY(producer, instance))
    STRICT, WITHOUT ROWID;
CREATE TABLE segment(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, live INTEGER NOT NULL,
    end INTEGER NOT NULL, sealed INTEGER NOT NULL, written_back INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE lost(position INTEGER PRIMARY KEY, manifest TEXT NOT NULL) STRICT;
CREATE TABLE metadata(key TEXT PRIMARY KEY, version INTEGER NOT NULL, seal INTEGER NOT NULL,
    value BLOB NOT NULL) STRICT, WITHOUT ROWID;
"""

INSERT_RECORD = "INSERT INTO record VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
INSERT_TAG = "INSERT INTO tag VALUES(?,?,?)"
_ROW_POSITION, _ROW_SEGMENT, _ROW_SEAL = 0, 8, 12  # columns that wait for the write lock
_CHAIN_END = "SELECT coalesce(max(position), 0) FROM tag WHERE tag = ?"
HEAD_COLUMNS = (  # of a record, without its body
    "r.position, r.kind, r.producer, r.instance, r.sequence, r.tags, r.time_us, "
    "s.name, r.offset, r.length, r.checksum, r.seal, NULL"
)
RECORD_COLUMNS = f"{HEAD_COLUMNS.removesuffix('NULL')}r.body"
_SEGMENTS = "SELECT name, live, end, sealed FROM segment"
_READ = (
    f"SELECT t.previous, {RECORD_COLUMNS} FROM tag t LEFT JOIN record r ON r.position = t.position "
    "LEFT JOIN segment s ON s.id = r.segment "
    "WHERE t.tag = ? AND t.position > ? AND t.position <= ? ORDER BY t.position"
)


class Body(NamedTuple):
    """A body on its way into the index: its bytes, or where they lie."""

    length: int
    checksum: int
    inline: bytes | memoryview | None
    segment: str | None = None
    offset: int | None = None


class Incoming:
    """An append on its way into the index, with all that can be prepared without the write lock."""

    __slots__ = ("bodies", "entries", "fence", "first", "last", "question", "rows", "tags")

    def __init__(
        self, entries: Sequence[Entry], bodies: Sequence[Body], fence: Fence | None, time_us: int
    ) -> None:
        self.entries = entries
        self.bodies = bodies
        self.fence = fence
        self.rows = list(map(_record_row, entries, bodies, repeat(time_us)))
        self.tags = tuple(dict.fromkeys(tag for entry in entries for tag in entry.tags))
        # The lowest and the highest sequence of each name: they rise within an append.
        self.first = _sequences_of(reversed(entries))
        self.last = _sequences_of(entries)
        self.question = _question(fence, self.tags)


class Known(tuple[Position, ...]):
    """The positions of an append that was there before."""

    __slots__ = ()


class OnDisk(NamedTuple):
    """What the level `process` knows to be on disk."""

    written_back: Position  # every record so far, with its body
    reserved: Position  # no position beyond was ever shown to anybody


class SegmentRow(NamedTuple):
    """What the index knows about a segment."""

    name: str
    live: int  # records that lie in it
    end: int  # of its last frame
    sealed: int  # 1: it gets no more frames


class Row(NamedTuple):
    """A record row as it lies in the index."""

    position: Position
    kind: int
    producer: str
    instance: int
    sequence: int
    tags: str
    time_us: int
    segment: str | None
    offset: int | None
    length: int
    checksum: int
    seal: int
    inline: bytes | None

    def is_sealed(self) -> bool:
        return self.seal == self.true_seal()

    def true_seal(self) -> int:
        """The seal that a log gives to these fields."""
        content = content_seal(
            self.kind, self.producer, self.instance, self.sequence, self.tags,
            self.time_us, self.segment, self.offset, self.length, self.checksum,
        )  # fmt: skip
        return seal_at(content, self.position)


def content_seal(
    kind: int, producer: str, instance: int, sequence: int, tags: str,
    time_us: int, segment: str | None, offset: int | None, length: int, checksum: int,
) -> int:  # fmt: skip
    """The checksum of a record's fields without its position, which only the write lock gives."""
    fields = (
        f"{kind}|{producer}|{instance}|{sequence}|{tags}|"
        f"{time_us}|{segment}|{offset}|{length}|{checksum}"
    )
    return xxhash.xxh3_64_intdigest(fields.encode())


def seal_at(content: int, position: int) -> int:
    """A record's seal: its content's, tied to its position.

    An odd factor makes every position another seal, and takes no hashing under the write lock.
    """
    return (content ^ position * 0x9E3779B97F4A7C15) & 0x7FFFFFFFFFFFFFFF


def row_seal(*fields: Any) -> int:
    """The checksum of a row's fixed fields, in column order."""
    return xxhash.xxh3_64_intdigest("|".join(map(str, fields)).encode()) >> 1


def metadata_seal(key: str, version: int, value: bytes) -> int:
    return xxhash.xxh3_64_intdigest(b"%s|%d|%s" % (key.encode(), version, value)) >> 1


def is_page_damaged(error: BaseException) -> bool:
    """Whether SQLite found a page that is not the one it wrote."""
    return getattr(error, "extendedresult", 0) in _PAGE_DAMAGED


def sqlite_error(error: apsw.Error, path: Path, doing: str) -> LogError:
    """Name a failure of SQLite."""
    facts = {"path": str(path), "sqlite": type(error).__name__}
    if isinstance(error, apsw.FullError):
        return DiskFull(
            f"disk full while {doing} {show_path(path)}. Nothing was appended; free space and "
            "retry",
            **facts,
        )
    if isinstance(error, apsw.BusyError):
        return busy(path.with_name(f"{path.name}-shm"), f"{doing} {show_path(path)}")
    if isinstance(error, apsw.NotADBError):
        return IndexForeign(
            f"{show_path(path)} is not an index of a log ({error}): nothing was touched", **facts
        )
    page_damaged = is_page_damaged(error)
    if page_damaged or isinstance(
        error, apsw.CorruptError | apsw.MismatchError | apsw.ConstraintError | apsw.SQLError
    ):
        what = "a page fails its checksum" if page_damaged else str(error)
        return IndexDamaged(
            f"the index {show_path(path)} is damaged ({what}), noticed while {doing} it: "
            "run `penstock fsck`, then `penstock log repair`",
            **facts,
        )
    if isinstance(
        error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError
    ):
        return LogReadOnly(
            f"no permission for {doing} {show_path(path)} ({error}). Check the folder's owner, "
            "mode and mount",
            **facts,
        )
    return LogIOError(
        f"I/O error while {doing} {show_path(path)} ({error}). Nothing acknowledged is lost; "
        "check the disk, open the log again and retry",
        **facts,
    )


class Index:
    """One connection to the index.

    Not for use by several threads at once: the log's lock sees to it.
    """

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        # One cursor for all, never iterated while another statement runs: a cursor that is dropped
        # with rows left throws its statement away instead of putting it back into the cache, and
        # preparing one costs more than running it.
        cursor = connection.cursor()
        self._execute: Callable[..., Any] = cursor.execute
        self._executemany: Callable[..., Any] = cursor.executemany
        self._path = path
        self._segment_ids: dict[str, int] = {}
        self._sequences = Sequences(cursor.execute, row_seal)
        self._appending = self._transaction("appending to")
        self.wal_bytes = 0  # of the write-ahead log's frames, when that was asked last

    @classmethod
    def create(cls, path: Path, log_id: bytes, vfs: str | None) -> None:
        """Make an empty index and leave no write-ahead log behind."""
        with _named_errors(path, "creating"):
            sealing = page_seal_vfs() if vfs is None else None
            connection = apsw.Connection(str(path), vfs=vfs or sealing)
            try:
                if sealing is not None:
                    connection.reserve_bytes("main", PAGE_SEAL_BYTES)
                connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                connection.pragma("journal_mode", "wal")
                connection.pragma("synchronous", "full")
                connection.execute(f"BEGIN IMMEDIATE; {SCHEMA}")
                connection.execute(
                    "INSERT INTO log VALUES(?,?,0,0,?,0)",
                    (log_id, INDEX_VERSION, RESERVED_POSITIONS),
                )
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={INDEX_VERSION}")
                connection.execute("COMMIT")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connection.close()

    @classmethod
    def open(cls, path: Path, log_id: bytes, vfs: str | None, *, read_only: bool) -> Index:
        """Connect to the index of the log with this id."""
        if not path.exists():
            raise IndexMissing(
                f"the index {show_path(path)} is missing, the rest of the log is there: put the "
                "file back",
                path=str(path),
            )
        with _named_errors(path, "opening"):
            connection = connect(path, vfs, read_only=read_only)
        try:
            with _named_errors(path, "opening"):
                check_identity(connection, path, log_id)
                connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
                # What a long statement may have to undo stays out of files in a public folder.
                connection.execute("PRAGMA temp_store=memory")
                # Without this, SQLite plans a statement anew whenever its parameters change: that
                # (STAT4) costs more than all of an append's statements together.
                connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
                if not read_only:
                    # NORMAL: a commit is not synced by SQLite (the log does that, for many appends
                    # at once, or leaves it), but folding the write-ahead log into the index is.
                    connection.pragma("synchronous", "normal")
                    connection.wal_autocheckpoint(0)
        except BaseException:
            connection.close()
            raise
        index = cls(connection, path)
        if not read_only:
            index.ask_wal()
        return index

    def close(self, *, fold: bool = True) -> None:
        """Let go of the file; the last one to do so folds the write-ahead log into it.

        Without `fold` every byte stays where it is: after damage they are what a repair works with.
        """
        with _named_errors(self._path, "closing"):
            if fold:
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self._connection.close()

    def tail(self) -> Position:
        """The newest committed position, visible or not."""
        with _named_errors(self._path, "reading"):
            row = self._one("SELECT max(position) FROM record")
        return Position(row[0] or 0)

    def changes(self) -> int:
        """How often metadata was set or a tag trimmed."""
        with _named_errors(self._path, "reading"):
            changes: int = self._one("SELECT changes FROM log")[0]
        return changes

    def on_disk(self) -> OnDisk:
        with _named_errors(self._path, "reading"):
            return OnDisk(*self._one("SELECT written_back, reserved FROM log"))

    def reserve(self, upto: Position) -> Position:
        """Reserve positions; return how far they are, once this is synced."""
        with self._transaction("updating"):
            self._execute("UPDATE log SET reserved = max(reserved, ?)", (upto,))
        return self.on_disk().reserved

    def note_written_back(self, upto: Position, segments: Sequence[SegmentRow]) -> None:
        """The bodies of all records up to a position are on disk, these segments' among them."""
        with self._transaction("updating"):
            self._execute("UPDATE log SET written_back = max(written_back, ?)", (upto,))
            self._executemany(
                "UPDATE segment SET written_back = max(written_back, ?) WHERE name = ?",
                [(segment.end, segment.name) for segment in segments],
            )

    def gaps(self) -> list[Position]:
        """Positions whose rows are lost, with their tags: a repair could not save them."""
        with _named_errors(self._path, "reading"):
            found = self._execute(
                "SELECT position FROM lost WHERE position NOT IN "
                "(SELECT position FROM record WHERE tags <> '') ORDER BY position"
            ).fetchall()
        return [Position(row[0]) for row in found]

    def append(self, entry: Entry, body: Body, fence: Fence | None, time_us: int) -> Outcome:
        """As `append_each`, of one entry: the commonest append, whose cost is felt most."""
        row = _record_row(entry, body, time_us)
        name, tags = (entry.producer, entry.instance), entry.tags
        question = _question(fence, tags)
        execute = self._execute
        with self._appending:
            tail, registered, *previous = execute(*question).fetchall()[0]
            if self._sequences.highest(name, tail) < entry.sequence:
                if fence is not None and (refusal := fence_refusal(fence, registered)):
                    return refusal
                if len(tags) > _PRIOR_TAGS_MAX:
                    previous = self._chain_ends(tags)
                position = tail + 1
                self._place(row, body, position)
                execute(INSERT_RECORD, row)
                for tag, before in zip(tags, previous, strict=True):
                    execute(INSERT_TAG, (tag, position, before))
                if body.segment is not None:
                    self._count_segments((body,))
                self._sequences.take({name: entry.sequence}, tail, position)
                return (position,)
        return self._first_time((entry,), (body,))

    def append_each(self, appends: Sequence[Incoming]) -> list[Outcome]:
        """Sequence appends in one transaction: each of them whole or, by its own fault, not at all.

        Whatever does not need the write lock is done before it is taken: everybody waits for it.
        What is there already is looked for after it was let go of, because it stays as it is.
        """
        with self._appending:
            taken = [self._take(append) for append in appends]
        return [
            self._first_time(append.entries, append.bodies) if outcome is None else outcome
            for outcome, append in zip(taken, appends, strict=True)
        ]

    def _take(self, append: Incoming) -> Outcome | None:
        """Insert an append's rows; None if it is not new."""
        tail, registered, *previous = self._execute(*append.question).fetchall()[0]
        highest = self._sequences.highest
        if any(highest(name, tail) >= sequence for name, sequence in append.first.items()):
            return None
        if append.fence is not None and (refusal := fence_refusal(append.fence, registered)):
            return refusal
        if len(append.tags) > _PRIOR_TAGS_MAX:
            previous = self._chain_ends(append.tags)
        self._insert(append, tail, dict(zip(append.tags, previous, strict=True)))
        last = tail + len(append.rows)
        self._sequences.take(append.last, tail, last)
        return tuple(map(Position, range(tail + 1, last + 1)))

    def _first_time(self, entries: Sequence[Entry], bodies: Sequence[Body]) -> Outcome:
        """The positions that an append has already, or why it can have none."""
        try:
            with _named_errors(self._path, "reading"):
                prior = self._sequences.prior
                priors = [
                    prior(entry, body.length, body.checksum)
                    for entry, body in zip(entries, bodies, strict=True)
                ]
            positions = first_positions(entries, priors)
            if positions is None:  # forgotten since this connection has heard of it
                raise Trimmed("the producer of this append was forgotten: do not retry")
            return Known(positions)
        except (SequenceConflict, Trimmed) as error:
            return error

    def _chain_ends(self, tags: Sequence[str]) -> list[int]:
        return [self._one(_CHAIN_END, (tag,))[0] for tag in tags]

    def read(self, tags: Sequence[str], after: Position, upto: Position, limit: int) -> list[Row]:
        """Up to `limit` sealed rows with any of the tags, in order, each once."""
        with _named_errors(self._path, "reading"):
            runs = [self._run(tag, after, upto, limit) for tag in tags]
        if len(runs) == 1:
            return runs[0]
        merged: list[Row] = []
        for row in heapq.merge(*runs, key=lambda row: row.position):
            if not merged or merged[-1].position != row.position:
                merged.append(row)
                if len(merged) == limit:
                    break
        return merged

    def last(self, tag: str, upto: Position) -> Row | None:
        with _named_errors(self._path, "reading"):
            found = self._one(f"{_READ} DESC LIMIT 1", (tag, 0, upto))
        return None if found is None else self._row(found[1:], tag)

    def has(self, position: Position) -> bool:
        """Whether a record is still there: one that was trimmed during a read is not an error."""
        with _named_errors(self._path, "reading"):
            query = "SELECT 1 FROM record WHERE position = ? AND tags_live > 0"
            return self._one(query, (position,)) is not None

    def lost(self, position: Position) -> str | None:
        """The manifest of the repair that moved this record's bytes aside, if one did."""
        with _named_errors(self._path, "reading"):
            found = self._one("SELECT manifest FROM lost WHERE position = ?", (position,))
        return found[0] if found else None

    def trimmed(self, tag: str) -> Position:
        return next((upto for _, upto in self.trims((tag,))), Position(0))

    def trims(self, tags: Sequence[str]) -> list[tuple[str, Position]]:
        """How far each of the tags is trimmed, of those that ever were."""
        with _named_errors(self._path, "reading"):
            found = self._execute(_trims_query(len(tags)), tags).fetchall()
        for tag, upto, seal in found:
            if seal != row_seal(tag, upto):
                raise self._damaged(tag, "has a trim row that fails its checksum")
        return [(tag, Position(upto)) for tag, upto, _ in found]

    def trim(self, tag: str, upto: Position, rows_max: int, fence: Fence | None = None) -> bool:
        """Forget a tag of up to `rows_max` records; return whether there is more to do.

        A piece at a time, so that appends of other processes get in between. Each piece looks at
        the fence: whoever takes over in between finds the rest as it was.
        """
        with self._transaction("trimming"):
            if fence is not None:
                registered = self.get(instance_key(fence.vertex))
                check_fence(fence, None if registered is None else registered.value)
            tail = self.tail()
            upto = min(upto, tail)
            page = (
                "SELECT position FROM tag WHERE tag = ? AND position <= ? ORDER BY position LIMIT ?"
            )
            positions = [row[0] for row in self._execute(page, (tag, upto, rows_max))]
            more = len(positions) == rows_max and positions[-1] < upto
            done = positions[-1] if more else upto
            self._execute(
                "UPDATE record SET tags_live = tags_live - 1 WHERE position IN "
                "(SELECT position FROM tag WHERE tag = ? AND position <= ?)",
                (tag, done),
            )
            self._execute("DELETE FROM tag WHERE tag = ? AND position <= ?", (tag, done))
            done = max(done, self.trimmed(tag))
            self._execute(
                "INSERT OR REPLACE INTO trim VALUES(?,?,?)", (tag, done, row_seal(tag, done))
            )
            self._execute("UPDATE log SET changes = changes + 1")
            self._forget_dead(tail)
        return more

    def _forget_dead(self, tail: Position) -> None:
        # The record at the tail keeps its row even without tags: it remembers the newest position.
        self._sequences.note_trimmed(tail)
        freed = self._execute(
            f"SELECT segment, count(*) {FROM_DEAD} AND position < ? "
            "AND segment IS NOT NULL GROUP BY segment",
            (tail,),
        ).fetchall()
        self._executemany(
            "UPDATE segment SET live = live - ? WHERE id = ?",
            [(n, segment) for segment, n in freed],
        )
        self._execute(
            f"DELETE FROM lost WHERE position IN (SELECT position {FROM_DEAD} "
            "AND position < ? AND tags <> '')",
            (tail,),
        )
        self._execute(f"DELETE {FROM_DEAD} AND position < ?", (tail,))

    def forget(self, producers: Collection[str]) -> None:
        """Forget the sequences of producers of whom no record is left."""
        with _named_errors(self._path, "reading"):  # without the lock: all records are looked at
            left = {row[0] for row in self._execute("SELECT DISTINCT producer FROM record")}
        with self._transaction("updating"):
            self._sequences.drop(set(producers) - left)

    def segments(self) -> list[SegmentRow]:
        """Every segment that the index knows."""
        with _named_errors(self._path, "reading"):
            rows = self._execute(f"{_SEGMENTS} ORDER BY id").fetchall()
        return [SegmentRow(*row) for row in rows]

    def segment(self, name: str) -> SegmentRow | None:
        with _named_errors(self._path, "reading"):
            found = self._one(f"{_SEGMENTS} WHERE name = ?", (name,))
        return None if found is None else SegmentRow(*found)

    def unwritten_segments(self) -> list[SegmentRow]:
        """The segments with bodies that are not noted to be on disk."""
        with _named_errors(self._path, "reading"):
            rows = self._execute(f"{_SEGMENTS} WHERE end > written_back").fetchall()
        return [SegmentRow(*row) for row in rows]

    def bodies_within(self, after: Position, upto: Position, limit: int) -> list[Row]:
        """Up to `limit` rows in (after, upto] whose bodies are in segments."""
        with _named_errors(self._path, "reading"):
            found = self._execute(
                f"SELECT {RECORD_COLUMNS} FROM record r CROSS JOIN segment s ON s.id = r.segment "
                "WHERE r.position > ? AND r.position <= ? ORDER BY r.position LIMIT ?",
                (after, upto, limit),
            ).fetchall()
        return [Row(*columns) for columns in found]

    def before_append_of(self, row: Row) -> Position:
        """The last record before the append that a row belongs to.

        Rows of one append have one time. Another append of the same microsecond may count as part
        of it.
        """
        with _named_errors(self._path, "reading"):
            found = self._one(
                "SELECT position FROM record WHERE position < ? AND time_us <> ? "
                "ORDER BY position DESC LIMIT 1",
                (row.position, row.time_us),
            )
        return Position(found[0] if found else 0)

    def end_after(self, last: Position, note: Entry, changes: int, time_us: int) -> None:
        """Drop every record after `last`; put a note behind the positions that were reserved.

        Counts the metadata's changes from `changes` on, if that is more than there were.
        """
        body = Body(len(note.body), body_checksum(bytes(note.body)), bytes(note.body))
        row = _record_row(note, body, time_us)
        position = note.sequence
        with self._transaction("ending"):
            self._drop_after(last)
            self._place(row, body, position)
            self._execute(INSERT_RECORD, row)
            for tag, before in zip(note.tags, self._chain_ends(note.tags), strict=True):
                self._execute(INSERT_TAG, (tag, position, before))
            self._sequences.note_anew(position)
            self._execute(
                "UPDATE log SET reserved = ?, changes = max(changes, ?) + 1",
                (position + RESERVED_POSITIONS, changes),
            )

    def _drop_after(self, last: Position) -> None:
        rows = self._execute(
            f"SELECT {HEAD_COLUMNS} FROM record r LEFT JOIN segment s ON s.id = r.segment "
            "WHERE r.position > ?",
            (last,),
        ).fetchall()
        for row in map(Row._make, rows):
            if not row.is_sealed():
                raise IndexDamaged(
                    f"the index {show_path(self._path)} is damaged: the row of position "
                    f"{row.position} fails its checksum; run `penstock fsck`",
                    path=str(self._path),
                )
            names = [(tag, row.position) for tag in row.tags.split(" ")]
            self._executemany("DELETE FROM tag WHERE tag = ? AND position = ?", names)
        counts = self._execute(
            "SELECT count(*), segment FROM record WHERE position > ? AND segment IS NOT NULL "
            "GROUP BY segment",
            (last,),
        ).fetchall()
        self._executemany("UPDATE segment SET live = live - ? WHERE id = ?", counts)
        self._execute("DELETE FROM lost WHERE position > ?", (last,))
        self._execute("DELETE FROM record WHERE position > ?", (last,))

    def seal_segment(self, name: str) -> None:
        with self._transaction("updating"):
            self._execute("UPDATE segment SET sealed = 1 WHERE name = ?", (name,))

    def drop_segment(self, name: str) -> bool:
        """Forget a segment that holds no live record; return whether it was so."""
        with self._transaction("updating"):
            self._execute("DELETE FROM segment WHERE name = ? AND live = 0", (name,))
            dropped = self._connection.changes() == 1
        self._segment_ids.pop(name, None)
        return dropped

    def get(self, key: str) -> Versioned | None:
        with _named_errors(self._path, "reading"):
            found = self._one("SELECT version, seal, value FROM metadata WHERE key = ?", (key,))
        if found is None:
            return None
        version, seal, value = found
        if seal != metadata_seal(key, version, value):
            raise IndexDamaged(
                f"the metadata value {key!r} in {show_path(self._path)} fails its checksum: run "
                "`penstock fsck`",
                path=str(self._path),
                key=key,
            )
        return Versioned(value, version)

    def set(self, key: str, value: bytes, version: int | None) -> int | None:
        """Set a value, if `version` is None or the current one; return the new version or None."""
        with self._transaction("updating"):
            found = self._one("SELECT version FROM metadata WHERE key = ?", (key,))
            current = found[0] if found else 0
            if version is not None and version != current:
                return None
            new = current + 1
            self._execute(
                "INSERT OR REPLACE INTO metadata VALUES(?,?,?,?)",
                (key, new, metadata_seal(key, new, value), value),
            )
            self._execute("UPDATE log SET changes = changes + 1")
        return new

    def keys(self, prefix: str) -> list[str]:
        with _named_errors(self._path, "reading"):
            if prefix == "":
                rows = self._execute("SELECT key FROM metadata ORDER BY key").fetchall()
            else:  # '0' is the character after '/'
                rows = self._execute(
                    "SELECT key FROM metadata WHERE key = ? OR (key > ? AND key < ?) ORDER BY key",
                    (prefix, f"{prefix}/", f"{prefix}0"),
                ).fetchall()
        return [row[0] for row in rows]

    def fold(self, *, wait: bool) -> bool:
        """Move the write-ahead log into the index file; with `wait`, also start it anew.

        With `wait` no append gets in before the end, so it gives up soon when a reader in the
        middle of a query is in its way. Returns whether all was done.
        """
        mode = apsw.SQLITE_CHECKPOINT_RESTART if wait else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._connection.set_busy_handler(_wait_for_readers)
        try:
            self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False  # a reader is, or another process is at it
        except apsw.Error as error:
            raise sqlite_error(error, self._path, "folding") from error
        finally:
            self._connection.set_busy_handler(_wait_for_lock)
        return True

    def ask_wal(self) -> None:
        """Have the next commit tell `wal_bytes`. Not every one: a call back into Python is slow."""
        self._connection.set_wal_hook(self._note_wal)

    def _note_wal(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self.wal_bytes = pages * PAGE_BYTES
        connection.set_wal_hook(None)
        return apsw.SQLITE_OK

    def _one(self, query: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The only row of a query, or None.

        Asked for to the end, not by `fetchone`: a statement with a row left is a read that goes on,
        and while an idle handle has one, the write-ahead log cannot be started anew and grows.
        """
        rows = self._execute(query, parameters).fetchall()
        return rows[0] if rows else None

    def _transaction(self, doing: str) -> _Transaction:
        return _Transaction(self, doing)

    def _undo(self) -> None:
        self._segment_ids.clear()
        self._sequences.forget()
        if self._connection.in_transaction:
            try:
                self._execute("ROLLBACK")
            except apsw.Error:
                # SQLite rolls back by itself after the errors that make this fail.
                assert not self._connection.in_transaction

    def _insert(self, append: Incoming, tail: int, previous: dict[str, int]) -> None:
        tags = []
        for position, (row, body, entry) in enumerate(
            zip(append.rows, append.bodies, append.entries, strict=True), tail + 1
        ):
            self._place(row, body, position)
            for tag in entry.tags:
                tags.append((tag, position, previous[tag]))
                previous[tag] = position
        self._executemany(INSERT_RECORD, append.rows)
        self._executemany(INSERT_TAG, tags)
        self._count_segments(append.bodies)

    def _place(self, row: list[Any], body: Body, position: int) -> None:
        """Fill in what only the write lock gives."""
        row[_ROW_POSITION] = position
        row[_ROW_SEAL] = seal_at(row[_ROW_SEAL], position)
        if body.segment is not None:
            row[_ROW_SEGMENT] = self._segment_id(body.segment)

    def _segment_id(self, name: str) -> int:
        if (known := self._segment_ids.get(name)) is None:
            self._execute(
                "INSERT INTO segment(name, live, end, sealed) VALUES(?,0,0,0) ON "
                "CONFLICT DO NOTHING",
                (name,),
            )
            known = self._one("SELECT id FROM segment WHERE name = ?", (name,))[0]
            self._segment_ids[name] = known
        return known

    def _count_segments(self, bodies: Sequence[Body]) -> None:
        counts: dict[str, tuple[int, int]] = {}
        for body in bodies:
            if body.segment is not None and body.offset is not None:
                live, end = counts.get(body.segment, (0, 0))
                counts[body.segment] = (live + 1, max(end, body.offset + frame_bytes(body.length)))
        for name, (live, end) in counts.items():
            self._execute(
                "UPDATE segment SET live = live + ?, end = max(end, ?) WHERE id = ?",
                (live, end, self._segment_ids[name]),
            )

    def _run(self, tag: str, after: Position, upto: Position, limit: int) -> list[Row]:
        rows: list[Row] = []
        reached: int = after
        found = self._execute(f"{_READ} LIMIT ?", (tag, after, upto, limit)).fetchall()
        for previous, *columns in found:
            row = self._row(columns, tag)
            chained = previous == reached if rows else previous <= reached
            if not chained and previous > max(reached, self.trimmed(tag)):
                raise self._damaged(tag, f"misses position {previous} before {row.position}")
            reached = row.position
            rows.append(row)
        return rows

    def _row(self, columns: Sequence[Any], tag: str) -> Row:
        if columns[0] is None:
            raise self._damaged(tag, "names a record that is not there")
        row = Row(*columns)
        if not row.is_sealed():
            raise self._damaged(
                tag, f"leads to position {row.position}, whose row fails its checksum"
            )
        if row.tags != tag and tag not in row.tags.split(" "):
            raise self._damaged(tag, f"leads to position {row.position}, which does not carry it")
        return row

    def _damaged(self, tag: str, what: str) -> IndexDamaged:
        return IndexDamaged(
            f"the index {show_path(self._path)} is damaged: tag {tag!r} {what}; run `penstock "
            "fsck`",
            path=str(self._path),
            tag=tag,
        )


class _named_errors:
    """Turn SQLite's errors of the block into the log's own."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: Path, doing: str) -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.Error):
            raise sqlite_error(error, self._path, self._doing) from error
        if isinstance(error, UnicodeDecodeError):
            raise IndexDamaged(
                f"the index {show_path(self._path)} holds a name that is not text: run `penstock "
                "fsck`",
                path=str(self._path),
            ) from error


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT around a block, or ROLLBACK if it raises."""

    __slots__ = ("_doing", "_index")

    def __init__(self, index: Index, doing: str) -> None:
        self._index, self._doing = index, doing

    def __enter__(self) -> None:
        try:
            self._index._execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise sqlite_error(error, self._index._path, self._doing) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        index = self._index
        try:
            if error is None:
                index._execute("COMMIT")
                return
            index._undo()
        except apsw.Error as failure:
            index._undo()
            raise sqlite_error(failure, index._path, self._doing) from failure
        if isinstance(error, apsw.Error):
            raise sqlite_error(error, index._path, self._doing) from error


def connect(path: Path, vfs: str | None, *, read_only: bool) -> apsw.Connection:
    """Connect to an index file; closing the connection folds nothing unless that is asked for."""
    vfs = vfs or page_seal_vfs()
    if not read_only:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
        connection.set_busy_handler(_wait_for_lock)
        _refuse_unsealed_writes(connection, path)
        connection.create_scalar_function("seal", row_seal, deterministic=True)
    else:
        connection = _connect_to_read(path, vfs)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _refuse_unsealed_writes(connection: apsw.Connection, path: Path) -> None:
    if page_seal_vfs() is None and connection.reserve_bytes("main") == PAGE_SEAL_BYTES:
        connection.close()
        raise LogVersionUnsupported(
            f"the pages of {show_path(path)} carry checksums, which this build of SQLite cannot "
            "write: install apsw from its wheel; nothing was touched",
            path=str(path),
        )


def _connect_to_read(path: Path, vfs: str | None) -> apsw.Connection:
    """Connect without the right to write; also where SQLite may not put its shared memory."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    # Before the first question: whoever closes the log last, or opens it after a crash, has the
    # index to itself for a moment.
    connection.set_busy_handler(_wait_for_lock)
    try:
        connection.pragma("application_id")
        return connection
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        connection.close()
        wal = path.with_name(f"{path.name}-wal")
        if wal.exists() and wal.stat().st_size:
            raise LogReadOnly(
                f"{show_path(path)} has records in its write-ahead log, and to read them SQLite "
                f"must be able to write {path.name}-shm beside it ({error}). Copy the folder to a "
                "place that can be written, or open and close the log once as its owner",
                path=str(path),
            ) from error
    except BaseException:
        connection.close()
        raise
    return connect_as_it_lies(path, vfs)


def connect_as_it_lies(path: Path, vfs: str | None = None) -> apsw.Connection:
    """Connect to an index that nobody has open and that has no write-ahead log: it is whole, and
    SQLite needs no file beside it.
    """
    return apsw.Connection(
        f"file:{quote(str(path))}?immutable=1",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        vfs=vfs or page_seal_vfs(),
    )


def _wait_for_lock(tries: int) -> bool:
    """SQLite's own handler sleeps for milliseconds; an append holds the lock for some 40 µs."""
    if tries < YIELDS:
        os.sched_yield()
    else:
        time.sleep(0.00002 if tries < 200 else 0.001)
    return tries < 200 + BUSY_S * 1000


def _wait_for_readers(tries: int) -> bool:
    time.sleep(FOLD_PAUSE_S)
    return tries * FOLD_PAUSE_S < FOLD_WAIT_S


def check_identity(connection: apsw.Connection, path: Path, log_id: bytes) -> None:
    """Raise unless this is the index of the log with this id, in a version that we read."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise IndexForeign(
            f"{show_path(path)} is a SQLite file of something else: nothing was touched",
            path=str(path),
        )
    version = connection.pragma("user_version")
    if version > INDEX_VERSION:
        raise LogVersionUnsupported(
            f"the index {show_path(path)} has format version {version}, this Penstock reads up to "
            f"{INDEX_VERSION}: upgrade it",
            path=str(path),
            version=version,
        )
    if 0 < version < INDEX_VERSION:
        raise LogVersionUnsupported(
            f"the index {show_path(path)} has format version {version}, which an early Penstock "
            f"wrote and this one, which reads version {INDEX_VERSION}, does not: make a new log",
            path=str(path),
            version=version,
        )
    if version != INDEX_VERSION:
        raise IndexDamaged(
            f"the index {show_path(path)} says that its format version is {version}, which no "
            "Penstock writes: run `penstock fsck`",
            path=str(path),
        )
    found = connection.execute("SELECT id FROM log").fetchall()
    if [row[0] for row in found] != [log_id]:
        raise IndexForeign(
            f"{show_path(path)} belongs to another log: nothing was touched", path=str(path)
        )


def _sequences_of(entries: Iterable[Entry]) -> dict[Name, int]:
    return {(entry.producer, entry.instance): entry.sequence for entry in entries}


def _record_row(entry: Entry, body: Body, time_us: int) -> list[Any]:
    """A record's columns, its content's seal among them; position and segment are still open."""
    tags = entry.tags
    joined = tags[0] if len(tags) == 1 else " ".join(tags)
    kind = int(entry.kind)
    length, checksum, inline, name, offset = body
    producer, instance, sequence = entry.producer, entry.instance, entry.sequence
    content = content_seal(
        kind, producer, instance, sequence, joined, time_us, name, offset, length, checksum
    )
    return [
        None, kind, producer, instance, sequence, joined,
        len(tags), time_us, None, offset, length, checksum, content, inline,
    ]  # fmt: skip


def _question(fence: Fence | None, tags: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The one question that an append asks first: tail, fence and chain ends."""
    if len(tags) > _PRIOR_TAGS_MAX:
        tags = ()
    if fence is None:
        return _before_query(len(tags), False), tags
    return _before_query(len(tags), True), (instance_key(fence.vertex), *tags)


@lru_cache(maxsize=32)
def _before_query(tags: int, fenced: bool) -> str:
    registered = "(SELECT value FROM metadata WHERE key = ?)" if fenced else "NULL"
    chain_ends = f", ({_CHAIN_END})" * tags
    return f"SELECT coalesce((SELECT max(position) FROM record), 0), {registered}{chain_ends}"


@lru_cache(maxsize=32)
def _trims_query(tags: int) -> str:
    names = ", ".join("?" * tags)
    return f"SELECT tag, upto, seal FROM trim WHERE tag IN ({names})"
