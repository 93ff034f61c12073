"""The embedded log: a folder, shared by any number of processes of one machine.

    penstock-log.json   format, version, id, durability
    index.db            order, tags, metadata, small bodies (SQLite, WAL)
    bell                how far the log is visible, mmapped
    sync.lock           held while somebody moves the bell
    segments/*.seg      larger bodies, one writer each
    aside/              what a repair moved away, with manifests

The order of an append is the durability argument. Bodies first (written and synced), then one
index transaction that names them, then one sync of the index's write-ahead log, then the bell. A
crash in between leaves bytes that nobody names, or records that nobody has seen and whose writer
has no answer yet: it repeats the append and gets either the first positions or new ones.

In the level `process` nothing of this is synced; `power_cut` says what holds there instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.arguments import check_folder, check_type
from penstock.clock import Clock, SystemClock
from penstock.config import Durability, LogConfig
from penstock.errors import (
    Fenced,
    IndexDamaged,
    InvalidName,
    LogBusy,
    LogClosed,
    LogDamaged,
    LogError,
    LogNotFound,
    LogReadOnly,
    LogVersionUnsupported,
    NotALog,
    OutcomeUnknown,
    RecordLost,
    SegmentMissing,
    SequenceConflict,
    TailLost,
)
from penstock.json_codec import indented_json, parse
from penstock.log.bell import Bell
from penstock.log.contract import Log, LogStatistics, Outcome
from penstock.log.files import BUSY_S, Files, busy, lock, log_error, named_errors, unlock
from penstock.log.index import RESERVED_POSITIONS, Body, Incoming, Index, Known, Row, row_seal
from penstock.log.power_cut import boot_id, go_on_after, last_whole, write_back
from penstock.log.record import (
    START,
    Append,
    Entry,
    Fence,
    Head,
    Position,
    Record,
    RecordKind,
    Versioned,
)
from penstock.log.segments import BodyPlace, SegmentReader, SegmentWriter, body_checksum
from penstock.log.validate import (
    check_append,
    check_fence_argument,
    check_key,
    check_metadata,
    check_position,
    check_prefix,
    check_read,
    check_tag,
    check_timeout,
    check_untrimmed,
    check_version,
    names_read_back,
)
from penstock.names import check_name, check_path, show_path

FORMAT_FILE = "penstock-log.json"
CREATING_FILE = "penstock-log.creating"
INDEX_FILE = "index.db"
BELL_FILE = "bell"
LOCK_FILE = "sync.lock"
SEGMENTS_FOLDER = "segments"
ASIDE_FOLDER = "aside"
FORMAT = "penstock-log"
FORMAT_VERSION = 1
_FORMAT_BYTES_MAX = 64 << 10
_LOG_FOLDER_MODE = 0o700  # others are let in by whoever makes the folder, or opens it to them
_TRIM_ROWS = 128  # in one transaction, which holds appends back for a millisecond or two
_TRIM_PAUSE_S = 0.0005  # between two of them; who waits for a lock would often not get it without
_LOOK_AT_MAPS_S = 1.0  # how often an idle reader looks for segments that were removed
FOLD_PASSES = 3
_FOLD_CHECK_APPENDS = 64
_FOLD_CHECK_FIRST = 8  # appends of a handle before the first look: most handles live shorter

logger = logging.getLogger(__name__)

_BodyPlaces = list[tuple[SegmentWriter, list[BodyPlace]]]


def open_log(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    read_only: bool = False,
    config: LogConfig | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    skip_lost: bool = False,
) -> LocalLog:
    """Open the log in a folder; with `create`, make it if there is none.

    The durability of an existing log is the one it was created with. `skip_lost` reads over records
    whose bytes a repair moved aside, which otherwise raise `RecordLost`.
    """
    folder = check_folder(path, "path")
    if config is not None:
        check_type(config, LogConfig, "config", "a LogConfig")
    for flag, what in ((create, "create"), (read_only, "read_only"), (skip_lost, "skip_lost")):
        check_type(flag, bool, what, "True or False")
    config = config or LogConfig()
    files = files or Files()
    with named_errors(f"looking for a log in {show_path(folder)}"):
        if folder.exists() and not folder.is_dir():
            raise NotALog(f"{folder} is a file: a log is a folder", path=str(folder))
        missing = not (folder / FORMAT_FILE).exists()
    if create and missing and not read_only:
        _create(folder, config.durability, files)
    identity = read_identity(folder)
    return LocalLog(folder, identity, config, clock or SystemClock(), files, read_only, skip_lost)


class Identity:
    """What `penstock-log.json` says: which log this is and how durable it was asked to be."""

    def __init__(self, log_id: str, durability: Durability, created_us: int) -> None:
        self.log_id = bytes.fromhex(log_id)
        self.durability: Durability = durability
        self.created_us = created_us

    def encode(self) -> bytes:
        facts = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "id": self.log_id.hex(),
            "durability": self.durability,
            "created_us": self.created_us,
            "seal": self.seal(),
        }
        return indented_json(facts)

    def seal(self) -> int:
        return row_seal(self.log_id.hex(), self.durability, self.created_us)


def read_identity(folder: Path) -> Identity:
    """Read and check a log's format file."""
    with named_errors(f"reading {show_path(folder)}"):
        if not folder.is_dir():
            raise LogNotFound(
                f"there is no log at {show_path(folder)}: check the path, or create one with "
                "`open_log(path, create=True)`",
                path=str(folder),
            )
    path = folder / FORMAT_FILE
    try:
        with path.open("rb") as file:
            content = file.read(_FORMAT_BYTES_MAX)
    except FileNotFoundError:
        raise NotALog(
            f"{show_path(folder)} is not a log: it has no {FORMAT_FILE}. A log is in the folder "
            "that penstock.attach was given, or in a query's checkpointLocation; a new one needs a "
            "new or empty folder",
            path=str(folder),
        ) from None
    except PermissionError as error:
        raise LogReadOnly(
            f"no permission to read {show_path(path)}: {error}", path=str(path)
        ) from error
    except OSError as error:
        raise log_error(error, f"reading {show_path(path)}") from error
    return _parse_identity(content, path)


def _parse_identity(content: bytes, path: Path) -> Identity:
    try:
        facts: Any = parse(content)
        if facts["format"] != FORMAT:
            raise NotALog(
                f"{show_path(path)} is of another program: nothing was touched", path=str(path)
            )
        version = int(facts["version"])
        if version > FORMAT_VERSION:
            raise LogVersionUnsupported(
                f"{show_path(path.parent)} has log format version {version}, this Penstock reads "
                f"up to {FORMAT_VERSION}: upgrade it; nothing was touched",
                path=str(path),
                version=version,
            )
        durability = facts["durability"]
        if durability not in ("synced", "process") or version < 1 or len(facts["id"]) != 32:
            raise ValueError("a field has a value that no Penstock writes")
        identity = Identity(facts["id"], durability, int(facts["created_us"]))
        if facts["seal"] != identity.seal():
            raise ValueError("it fails its checksum")
        return identity
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(
            f"{show_path(path)} is damaged ({error}): run `penstock fsck`; restore it from a "
            "copy, the records are in the other files",
            path=str(path),
        ) from error


def _create(folder: Path, durability: Durability, files: Files) -> None:
    """Make a log so that a crash leaves either none, or a marked start that the next try clears."""
    with named_errors(f"creating a log in {show_path(folder)}"):
        _make_folder(folder, files)
        guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not lock(guard, wait_s=BUSY_S):
                raise busy(folder, "creating a log")
            if (folder / FORMAT_FILE).exists():
                return  # another process was faster
            _clear_unfinished(folder, files)
            files.publish(folder / CREATING_FILE, b"")
            identity = Identity(os.urandom(16).hex(), durability, SystemClock().now_us())
            # Made here, because SQLite would leave its group no right to write, whatever the umask.
            files.close(files.open(folder / INDEX_FILE, os.O_RDWR | os.O_CREAT))
            Index.create(folder / INDEX_FILE, identity.log_id, files.vfs)
            files.make_folder(folder / SEGMENTS_FOLDER)
            files.close(files.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT))
            _begin_bell(folder / BELL_FILE, files)
            files.sync_folder(folder)
            files.publish(folder / FORMAT_FILE, identity.encode())
            files.unlink(folder / CREATING_FILE)
        finally:
            os.close(guard)


def _begin_bell(path: Path, files: Files) -> None:
    """Say that this log began in this boot: it cannot have lost anything before."""
    bell = Bell(path, files)
    bell.note_boot(boot_id())
    bell.ring(START)
    bell.close()


def _make_folder(folder: Path, files: Files) -> None:
    for parent in (*reversed(folder.parents), folder):
        if not parent.exists():
            try:
                files.make_folder(parent, _LOG_FOLDER_MODE)
                files.sync_folder(parent.parent)
            except FileExistsError:
                continue


def _clear_unfinished(folder: Path, files: Files) -> None:
    found = sorted(entry.name for entry in folder.iterdir())
    ours = [name for name in found if name.startswith(f".{CREATING_FILE}.")]
    if set(found) == set(ours):
        return
    if CREATING_FILE not in found:
        raise NotALog(
            f"{show_path(folder)} is not empty and not a log: choose a new or empty folder; "
            "nothing was touched",
            path=str(folder),
        )
    # A creation that died: nobody can have appended anything, its format file was never there.
    for name in found:
        if name.startswith(INDEX_FILE):
            files.unlink(folder / name)
    if SEGMENTS_FOLDER in found:
        os.rmdir(folder / SEGMENTS_FOLDER)


class LocalLog(Log):
    """A handle on the embedded log. Made by `open_log`; usable by many threads of one process."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        config: LogConfig,
        clock: Clock,
        files: Files,
        read_only: bool,
        skip_lost: bool,
    ) -> None:
        self.folder = self.disk = folder
        self.identity = identity
        self._config = config
        self._clock = clock
        self._files = files
        self._read_only = read_only
        self._skip_lost = skip_lost
        self._durable = identity.durability == "synced"
        self._process = os.getpid()
        self._lock = threading.Lock()  # the index connection, the reader and the counters
        self._sync_lock = threading.Lock()  # one sync at a time: it covers those who wait
        self._closed = ""
        self._appends = self._records_appended = self._bytes_appended = 0
        self._records_read = self._bytes_read = 0
        self._syncs = self._syncs_shared = self._fenced = 0
        self._sync_fd = self._wal_fd = -1
        self._look_at_maps_s = 0.0
        self._reserved = START  # how far positions may be shown, in the level `process`
        segments = folder / SEGMENTS_FOLDER
        inode = self._index_inode()
        with ExitStack() as undo:  # what a failed opening has to let go of
            self._index = self._open_index()
            undo.callback(self._index.close, fold=False)
            self._reader = SegmentReader(segments, identity.log_id)
            undo.callback(self._reader.close)
            self._bell = self._open_bell()
            undo.callback(self._bell.close)
            self._gaps = self._index.gaps()
            if read_only:
                self._check_tail()
            else:
                # One for what is trimmed soon, one for what lasts: a segment is freed as a whole.
                self._writers = tuple(
                    SegmentWriter(
                        segments, files, identity.log_id, config.segment_bytes_max, self._durable
                    )
                    for _ in range(2)
                )
                for writer in self._writers:
                    undo.callback(writer.close)
                with named_errors(f"opening {show_path(folder)}"):
                    self._sync_fd = files.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
                    undo.callback(files.close, self._sync_fd)
                    self._wal_fd = self._open_wal()
                    undo.callback(files.close, self._wal_fd)
                self._bell_turn = _Turn(self._sync_fd, folder / LOCK_FILE)
                self._folds = _Folds(
                    self._fold, lambda: self._index.wal_bytes, config.wal_bytes_max
                )
                undo.callback(self._folds.join)
                self._recover_tail()
                self._check_index_is(inode)
                self.collect()
            undo.pop_all()

    @property
    def durability(self) -> Durability:
        return self.identity.durability

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        if not entries or len(entries) > 1:
            outcome = self.append_each((Append(entries, fence),))[0]
        else:
            self._check_append(entries, fence)
            bodies, settle = self._place(entries)
            try:
                with self._lock:
                    self._before_append()
                    now_us = self._clock.now_us()
                    outcome = self._index.append(entries[0], bodies[0], fence, now_us)
            finally:
                _settle(settle)
            self._after_append(outcome, bodies)
        if isinstance(outcome, LogError):
            raise outcome
        return outcome

    def append_each(self, appends: Sequence[Append]) -> list[Outcome]:
        for entries, fence in appends:
            self._check_append(entries, fence)
        bodies, settle = self._place([entry for entries, _ in appends for entry in entries])
        rest, now_us = iter(bodies), self._clock.now_us()
        incoming = [
            Incoming(entries, list(islice(rest, len(entries))), fence, now_us)
            for entries, fence in appends
        ]
        try:
            with self._lock:
                self._before_append()
                outcomes = self._index.append_each(incoming)
        finally:
            _settle(settle)
        # The last ones first: their sync is that of all before them.
        for outcome, append in zip(reversed(outcomes), reversed(incoming), strict=True):
            self._after_append(outcome, append.bodies)
        return outcomes

    def _check_append(self, entries: Sequence[Entry], fence: Fence | None) -> None:
        self._check_writable()
        check_append(entries, self._config.body_bytes_max, self._config.append_bytes_max)
        if fence is not None:
            check_fence_argument(fence)

    def _before_append(self) -> None:
        if self._closed:
            self._check_open()
        if self._appends % _FOLD_CHECK_APPENDS == _FOLD_CHECK_FIRST:
            self._index.ask_wal()

    def _after_append(self, outcome: Outcome, bodies: Sequence[Body]) -> None:
        """Make durable and visible what the caller of an append will act on, and count it."""
        if isinstance(outcome, tuple):
            try:
                self._make_visible(outcome[-1])
            except LogBusy as error:
                raise OutcomeUnknown(
                    f"the append is in the index of {show_path(self.folder)} but could not be made "
                    f"durable: {error.message}. Repeat it: that returns its positions",
                    **error.details,
                ) from error
            if type(outcome) is not Known:
                self._records_appended += len(outcome)
                for body in bodies:
                    self._bytes_appended += body.length
            if self._appends % _FOLD_CHECK_APPENDS == _FOLD_CHECK_FIRST:
                self._folds.begin_if_due()
            self._appends += 1
        elif isinstance(outcome, Fenced):
            self._fenced += 1
        elif isinstance(outcome, SequenceConflict):
            # What is in its way, also if its writer has not come to that yet, or never will.
            self._sync_metadata()

    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        names = check_read(tags, limit, after)
        upto = self.tail()
        records: list[Record] = []
        more = after < upto
        while more:
            with self._lock:
                self._check_open()
                rows = self._rows(names, after, upto, limit - len(records))
                found = [record for row in rows if (record := self._record(row)) is not None]
                self._records_read += len(found)
                self._bytes_read += sum(record.body.nbytes for record in found)
            # A page is filled up where records of it are lost or were trimmed just now: a short one
            # says that there is no more.
            more = len(rows) == limit - len(records) and len(found) < len(rows)
            records += found
            if more:
                after = rows[-1].position
        if untrimmed_after is not None:
            # Asked last: a trim that took anything from the pages above is among these.
            with self._lock:
                self._check_open()
                check_untrimmed(untrimmed_after, self._index.trims(names))
        return records

    def heads(self, tags: Collection[str], after: Position, limit: int) -> list[Head]:
        names = check_read(tags, limit, after)
        upto = self.tail()
        with self._lock:
            self._check_open()
            rows = self._rows(names, after, upto, limit) if after < upto else []
        return [
            Head(row.position, RecordKind(row.kind), row.producer, row.time_us, row.length)
            for row in rows
        ]

    def last(self, tag: str) -> Record | None:
        check_tag(tag)
        with self._lock:
            self._check_open()
            upto = self._bell.tail()
            while True:
                row = self._index.last(tag, upto)
                if gap := self._first_gap(row.position if row else Position(0), upto):
                    raise self._row_lost(gap)
                if row is None or (record := self._record(row)) is not None:
                    return None if row is None else record
                # It was trimmed just now, perhaps for a newer one; or it is to be read over.
                is_lost = self._index.has(row.position)
                upto = Position(row.position - 1) if is_lost else self._bell.tail()

    def tail(self) -> Position:
        self._check_open()
        return self._bell.tail()

    def wait(self, after: Position, timeout_s: float) -> Position:
        check_position(after, "the position to wait after")
        timeout_s = check_timeout(timeout_s)
        self._check_open()
        if self._bell.tail() <= after and time.monotonic() >= self._look_at_maps_s:
            # Who has nothing to read opens no segment, and so would hold removed ones for ever.
            with self._lock:
                self._check_open()
                self._reader.forget_removed()
            self._look_at_maps_s = time.monotonic() + _LOOK_AT_MAPS_S
        return self._bell.wait(after, timeout_s)

    def wake(self) -> None:
        self._bell.wake()

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        self._check_writable()
        check_tag(tag)
        check_position(upto, "the position to trim up to")
        if fence is not None:
            check_fence_argument(fence)
        upto = min(upto, self._bell.tail())
        more = upto > 0 or fence is not None
        if more and not self._durable:
            # What a trim takes is needless because of records before it: they must not be lost.
            write_back(self._index, self._lock, self.folder / SEGMENTS_FOLDER, self._files)
        while more:
            with self._lock:
                self._check_open()
                self._index.ask_wal()
                try:
                    more = self._index.trim(tag, upto, _TRIM_ROWS, fence)
                except Fenced:
                    self._fenced += 1
                    raise
            self._folds.begin_if_due()
            if more:
                time.sleep(_TRIM_PAUSE_S)
        self._sync_metadata()
        self.collect()

    def sync(self) -> None:
        self._check_writable()
        if not self._durable:
            write_back(self._index, self._lock, self.folder / SEGMENTS_FOLDER, self._files)
            self._sync_wal()

    def forget(self, producers: Collection[str]) -> None:
        self._check_writable()
        with self._lock:
            self._check_open()
            self._index.forget(producers)

    def trimmed(self, tag: str) -> Position:
        check_tag(tag)
        with self._lock:
            self._check_open()
            return self._index.trimmed(tag)

    def get(self, key: str) -> Versioned | None:
        check_key(key)
        with self._lock:
            self._check_open()
            return self._index.get(key)

    def put(self, key: str, value: bytes) -> int:
        version = self._set(key, value, None)
        assert version is not None
        return version

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        check_version(version)
        return self._set(key, value, version) is not None

    def keys(self, prefix: str = "") -> list[str]:
        check_prefix(prefix)
        with self._lock:
            self._check_open()
            keys = self._index.keys(prefix)
        try:
            return [check_path(key, "metadata key") for key in keys]
        except InvalidName as error:
            raise IndexDamaged(
                f"the index of {show_path(self.folder)} is damaged ({error}): run `penstock fsck`",
                path=str(self.folder / INDEX_FILE),
            ) from error

    def statistics(self) -> LogStatistics:
        with self._lock:
            self._check_open()
            return LogStatistics(
                appends=self._appends,
                records_appended=self._records_appended,
                bytes_appended=self._bytes_appended,
                records_read=self._records_read,
                bytes_read=self._bytes_read,
                syncs=self._syncs,
                syncs_shared=self._syncs_shared,
                fenced=self._fenced,
            )

    def close(self) -> None:
        with self._lock:
            if self._closed and self._closed != "failed":
                return
            self._closed = "closed"
        if self._process != os.getpid():
            return  # a fork's copy: the files belong to the process that opened them
        if not self._read_only:
            self._folds.join()
            for writer in self._writers:
                writer.close()
            self._files.close(self._wal_fd)
            self._files.close(self._sync_fd)
        self._reader.close()
        self._bell.close()
        self._index.close()

    def collect(self) -> int:
        """Free what no record needs: emptied segments, and what dead writers never indexed.

        Returns how many files were removed. Whatever a living writer holds is left alone.
        """
        self._check_writable()
        with self._lock, named_errors(f"collecting segments in {show_path(self.folder)}"):
            settled = {name for name, live, _, sealed in self._index.segments() if live and sealed}
            removed = 0
            for path in sorted((self.folder / SEGMENTS_FOLDER).glob("*.seg")):
                if path.stem not in settled:
                    removed += self._collect_one(path)
        return removed

    def _collect_one(self, path: Path) -> bool:
        try:
            fd = self._files.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            # Who else collects may have removed the file between the two calls.
            if not lock(fd) or os.fstat(fd).st_nlink == 0:
                return False
            # Asked under the lock, which its last writer held until its last frame was indexed.
            found = self._index.segment(path.stem)
            if found is None or (found.live == 0 and self._index.drop_segment(path.stem)):
                if not self._durable:
                    self._sync_wal()  # else a power cut may bring back the rows, and not the bytes
                self._files.unlink(path)
                self._reader.forget(path.stem)
                return True
            if os.fstat(fd).st_size > found.end:
                self._files.truncate(fd, found.end)
            self._index.seal_segment(path.stem)
            return False
        finally:
            self._files.close(fd)

    def _open_index(self) -> Index:
        return Index.open(
            self.folder / INDEX_FILE,
            self.identity.log_id,
            self._files.vfs,
            read_only=self._read_only,
        )

    def _index_inode(self) -> int:
        try:
            return (self.folder / INDEX_FILE).stat().st_ino
        except OSError:
            return -1  # opening it will say what is wrong

    def _check_index_is(self, inode: int) -> None:
        # A repair holds the sync lock while it puts another index in place of the one just opened.
        if self._index_inode() != inode:
            raise LogBusy(
                f"{show_path(self.folder)} was repaired while it was being opened: open it again",
                path=str(self.folder),
            )

    def _open_bell(self) -> Bell:
        with named_errors(f"opening the bell of {show_path(self.folder)}"):
            return Bell(self.folder / BELL_FILE, self._files, read_only=self._read_only)

    def _open_wal(self) -> int:
        # The connection has read, so the file is there; and while it is open, SQLite keeps it.
        self._index.tail()
        path = self.folder / f"{INDEX_FILE}-wal"
        return self._files.open(path, os.O_RDWR | os.O_CREAT)

    def _recover_tail(self) -> None:
        """Make visible what a dead writer committed; find out if what was visible is gone."""
        bell, index = self._bell, self._index
        with self._bell_turn:
            if not self._durable:
                self._recover_from_power_cut()
            elif bell.is_sound():
                self._check_reaches(bell.tail(), bell.changes())
            tail, changes = index.tail(), index.changes()
            if not bell.is_sound() or bell.tail() < tail or bell.changes() < changes:
                if self._durable:
                    self._sync_wal()
                bell.note_changes(changes)
                bell.ring(tail)
            bell.hint_committed(tail)

    def _recover_from_power_cut(self) -> None:
        """Go on behind what a power cut may have taken, if there may have been one."""
        bell, index = self._bell, self._index
        shown, changes = (bell.tail(), bell.changes()) if bell.is_sound() else (START, 0)
        tail = index.tail()
        is_short = shown > tail or changes > index.changes()
        if is_short or not bell.is_sound() or bell.boot() != boot_id():
            last = last_whole(index, self._reader)
            go_on_after(index, last, shown, changes, self._clock.now_us())
            self._sync_wal()
            if is_short or last < tail:
                logger.warning(
                    "a power cut took the newest records of %s: those after position %d, up to %d "
                    "at least. The level `process` allows it; their positions are not used again",
                    show_path(self.folder), last, max(shown, tail),
                )  # fmt: skip
            bell.note_boot(boot_id())
        self._reserved = index.on_disk().reserved
        if os.fstat(self._wal_fd).st_size:
            self._sync_wal()  # another process may have noted that just now and not yet synced it

    def _check_tail(self) -> None:
        """As `_recover_tail`, for a handle that may not write."""
        bell = self._bell
        is_sound = bell.wait_until_sound()
        if not self._durable and not (is_sound and bell.boot() == boot_id()):
            # The next writer gives up what a power cut has taken a part of.
            bell.stand_in(last_whole(self._index, self._reader), boot_id())
        elif not is_sound:
            bell.stand_in(self._index.tail())
        elif self._durable:
            self._check_reaches(bell.tail(), bell.changes())

    def _check_reaches(self, acknowledged: Position, changes: int) -> None:
        tail = self._index.tail()
        if acknowledged <= tail and changes <= self._index.changes():
            return
        what = (
            f"position {acknowledged} was acknowledged"
            if acknowledged > tail
            else "newer changes of its metadata were acknowledged"
        )
        raise TailLost(
            f"the index of {show_path(self.folder)} ends at position {tail}, but {what}: its "
            "write-ahead log is damaged or was removed. Restore index.db-wal, or accept the loss "
            "with `penstock log repair`",
            path=str(self.folder / INDEX_FILE),
            tail=tail,
            acknowledged=acknowledged,
        )

    def _place(self, entries: Sequence[Entry]) -> tuple[list[Body], _BodyPlaces]:
        """Checksum the bodies and write the large ones to this process's segments."""
        inline_bytes_max = self._config.inline_bytes_max
        bodies = []
        large = []
        for i, entry in enumerate(entries):
            body = entry.body
            if type(body) is bytes and len(body) <= inline_bytes_max:
                bodies.append(Body(len(body), body_checksum(body, entry.digest), body))
                continue
            view = _view(body)
            bodies.append(Body(view.nbytes, body_checksum(view, entry.digest), view))
            if view.nbytes > inline_bytes_max:
                large.append((i, view))
        if not large:
            return bodies, []
        placed: _BodyPlaces = []
        try:
            for lasts, writer in zip((False, True), self._writers, strict=True):
                chosen = [(i, view) for i, view in large if entries[i].lasting is lasts]
                if chosen:
                    self._place_in(writer, chosen, bodies, placed)
        except BaseException:
            _settle(placed)
            raise
        return bodies, placed

    @staticmethod
    def _place_in(
        writer: SegmentWriter,
        chosen: list[tuple[int, memoryview]],
        bodies: list[Body],
        placed: _BodyPlaces,
    ) -> None:
        placements = writer.place([(view, bodies[i].checksum) for i, view in chosen])
        placed.append((writer, placements))
        for (i, view), placement in zip(chosen, placements, strict=True):
            bodies[i] = Body(
                view.nbytes, bodies[i].checksum, None, placement.segment.name, placement.offset
            )

    def _record(self, row: Row) -> Record | None:
        """A row's record with its verified body; None if it was trimmed since or may be skipped."""
        body = self._body(row)
        if body is None:
            return None
        try:
            kind = RecordKind(row.kind)
            tags = names_read_back(row.producer, row.tags)
        except (ValueError, InvalidName) as error:
            raise IndexDamaged(
                f"the row of position {row.position} in {show_path(self.folder / INDEX_FILE)} is "
                f"not one that a log writes ({error}): run `penstock fsck`",
                position=row.position,
            ) from error
        return Record(
            position=row.position,
            kind=kind,
            tags=tags,
            producer=row.producer,
            instance=row.instance,
            sequence=row.sequence,
            time_us=row.time_us,
            body=body,
        )

    def _body(self, row: Row) -> memoryview | None:
        try:
            if row.segment is None:
                return self._inline_body(row)
            assert row.offset is not None
            name = check_name(row.segment, "segment")
            return self._reader.body(name, row.offset, row.length, row.checksum)
        except LogDamaged as damage:
            if isinstance(damage, SegmentMissing) and not self._index.has(row.position):
                return None
            if (manifest := self._index.lost(row.position)) is None:
                damage.details["position"] = row.position
                raise
            if self._skip_lost:
                return None
            raise RecordLost(
                f"the bytes of position {row.position} were damaged and moved aside by a repair "
                f"(see {manifest}): restore them, or open the log with skip_lost=True to read on "
                "without",
                position=row.position,
                manifest=manifest,
            ) from damage

    def _inline_body(self, row: Row) -> memoryview:
        body = memoryview(row.inline if row.inline is not None else b"")
        if body.nbytes != row.length or body_checksum(body) != row.checksum:
            raise IndexDamaged(
                f"the body of position {row.position} in {show_path(self.folder / INDEX_FILE)} "
                "fails its checksum: run `penstock fsck`",
                position=row.position,
            )
        return body

    def _rows(self, tags: Sequence[str], after: Position, upto: Position, limit: int) -> list[Row]:
        gap = self._first_gap(after, upto)
        rows = self._index.read(tags, after, Position(gap - 1) if gap else upto, limit)
        if gap and len(rows) < limit:
            raise self._row_lost(gap)
        return rows

    def _first_gap(self, after: Position, upto: Position) -> Position | None:
        """The first position whose row a repair could not save: any tag may have been its own."""
        if self._skip_lost:
            return None
        return next((gap for gap in self._gaps if after < gap <= upto), None)

    def _row_lost(self, position: Position) -> RecordLost:
        manifest = self._index.lost(position)
        return RecordLost(
            f"the index row of position {position} was damaged, and with it its tags: it may "
            f"belong to what is being read (see {manifest}). Open the log with skip_lost=True to "
            "read on without",
            position=position,
            manifest=manifest,
        )

    def _make_visible(self, position: Position) -> None:
        """Sync the index up to a position, unless another append just did, and ring the bell.

        The threads of a handle share syncs. Processes sync side by side: each one's sync covers all
        that was committed before it began, so neither has to wait for the other's.
        """
        bell = self._bell
        if bell.tail() >= position:
            self._syncs_shared += 1
            return
        tail = bell.note_committed(position)
        if not self._durable:
            if tail > self._reserved:
                self._reserve(tail)
            self._ring(tail)
            return
        with self._sync_lock:
            if bell.tail() >= position:
                self._syncs_shared += 1
                return
            tail = bell.note_committed(position)
            self._sync_wal()
        self._ring(tail)

    def _sync_metadata(self) -> None:
        with self._lock:
            self._check_open()
            tail, changes = self._index.tail(), self._index.changes()
        if self._durable:
            self._sync_wal()
        elif tail > self._reserved:
            self._reserve(tail)
        self._ring(tail, changes)

    def _reserve(self, position: Position) -> None:
        """Make sure that a position which is to be shown is not used again after a power cut."""
        with self._lock:
            self._check_open()
            reserved = self._index.reserve(Position(position + RESERVED_POSITIONS))
        self._sync_wal()
        self._reserved = reserved

    def _fold(self) -> bool:
        """Fold the write-ahead log; return whether all of it was."""
        index = self._open_index()
        try:
            if not self._durable:
                write_back(index, nullcontext(), self.folder / SEGMENTS_FOLDER, self._files)
                reserved = index.reserve(Position(index.tail() + RESERVED_POSITIONS))
                self._sync_wal()
                self._reserved = reserved  # so that no append has to see to it
            # Each takes what was appended during the one before, so that little is left at the end:
            # a steady stream of appends never lets it come, and is held back for that.
            for _ in range(FOLD_PASSES):
                index.fold(wait=False)
            return index.fold(wait=True)
        finally:
            index.close(fold=False)

    def _ring(self, tail: Position, changes: int = 0) -> None:
        """Show what is durable now, unless somebody with a later sync was here first."""
        bell = self._bell
        with self._bell_turn:
            if changes and changes > bell.changes():
                bell.note_changes(changes)
            if tail > bell.tail():
                bell.ring(tail)

    def _sync_wal(self) -> None:
        try:
            self._files.sync(self._wal_fd)
            self._syncs += 1
        except OSError as error:
            # The kernel may have dropped the bytes and will not say so twice: trust nothing here.
            self._closed = "failed"
            raise OutcomeUnknown(
                f"syncing the index of {show_path(self.folder)} failed ({error}): whether the "
                "append is durable is unknown. Open the log again and repeat the append",
                errno=error.errno,
            ) from error

    def _set(self, key: str, value: bytes, version: int | None) -> int | None:
        self._check_writable()
        check_metadata(key, value)
        with self._lock:
            self._check_open()
            new = self._index.set(key, value, version)
        # Also when nothing was set: the caller acts on what it saw, so that must be durable too,
        # and a new instance must find every marker that the old one committed.
        self._sync_metadata()
        return new

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(
                f"this handle on {show_path(self.folder)} is {self._closed}: open the log again",
                path=str(self.folder),
            )
        if self._process != os.getpid():
            raise LogClosed(
                f"this handle on {show_path(self.folder)} was opened before a fork: open the log "
                "in this process",
                path=str(self.folder),
            )

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise LogReadOnly(
                f"this handle on {show_path(self.folder)} was opened read-only",
                path=str(self.folder),
            )


class _Turn:
    """One at a time: among this process's threads, and among all processes that share a file."""

    __slots__ = ("_fd", "_path", "_threads")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        self._threads.acquire()
        if not lock(self._fd, wait_s=BUSY_S):
            self._threads.release()
            raise busy(self._path, "making an append durable")

    def __exit__(self, *exc: object) -> None:
        unlock(self._fd)
        self._threads.release()


class _Folds:
    """Folds the index's write-ahead log in the background, so that no append waits for it."""

    def __init__(
        self, fold: Callable[[], bool], wal_bytes: Callable[[], int], wal_bytes_max: int
    ) -> None:
        self._fold = fold
        self._wal_bytes = wal_bytes
        self._wal_bytes_max = wal_bytes_max
        self._due_at_bytes = wal_bytes_max
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begin a fold if the write-ahead log has grown past its bound and none is under way."""
        if self._wal_bytes() < self._due_at_bytes:
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                name = "penstock-fold"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait for the fold that is under way."""
        with self._starting:
            if self._thread is not None:
                self._thread.join()

    def _run(self) -> None:
        try:
            done = self._fold()
        except LogError:
            done = False  # a full or failing disk: the appends run into it and say so
        # Not again at once, when a reader or the disk was in the way.
        bound = self._wal_bytes_max
        self._due_at_bytes = bound if done else self._wal_bytes() + bound // 4


def _settle(placed: _BodyPlaces) -> None:
    for writer, placements in placed:
        writer.settle(placements)


def _view(body: bytes | bytearray | memoryview | pa.Buffer) -> memoryview:
    view = memoryview(body)
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")
