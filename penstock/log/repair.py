"""`repair`: make a damaged log usable again. Moves aside and writes manifests; never deletes.

What can be read stays readable, what cannot is listed as lost, and reading it says so instead of
passing over it. Each step is safe to interrupt, and running the repair again completes it:

- A damaged segment: its whole frames are copied into a new one, one index transaction names the
  copies and the losses, then the old file is moved aside.
- A damaged index, or one whose newest part is gone: the rows that are still whole make a new one.
  Its manifest is the journal: once it is there, the files are moved (the old index first, so that
  nobody can write meanwhile), then the new index takes its place.
- A damaged format file: written anew from what the index says, the old one copied aside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import xxhash

from penstock.clock import Clock, SystemClock
from penstock.config import Durability
from penstock.errors import (
    IndexForeign,
    IndexMissing,
    LogBusy,
    LogDamaged,
    LogError,
    LogReadOnly,
    NotALog,
)
from penstock.json_codec import indented_json, parse
from penstock.log.bell import Bell
from penstock.log.files import Files, holders, lock, named_errors
from penstock.log.fsck import WAL_FILE, Frame, Progress, Report, fsck, has_our_index, open_segment
from penstock.log.index import (
    HEAD_COLUMNS,
    INSERT_RECORD,
    INSERT_TAG,
    Index,
    Row,
    connect,
    metadata_seal,
    row_seal,
    sqlite_error,
)
from penstock.log.local import (
    ASIDE_FOLDER,
    BELL_FILE,
    FORMAT_FILE,
    INDEX_FILE,
    LOCK_FILE,
    SEGMENTS_FOLDER,
    Identity,
    read_identity,
)
from penstock.log.record import Position, RecordKind
from penstock.log.salvage import IndexBytes, Salvage
from penstock.log.segments import ALIGNMENT, Segment, body_checksum, frame_bytes
from penstock.log.sequences import Sequences
from penstock.names import show_path

REBUILT_FILE = "index.db.rebuilt"
MANIFEST_FILE = "manifest.json"
MANIFEST_VERSION = 1
STAND_IN_PRODUCER = "penstock_repair"
_MOVABLE = re.compile(r"(segments/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MANIFEST_BYTES_MAX = 256 << 20
_COPY_BYTES = 1 << 20
_LOCK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a repair did, or would do."""

    what: str  # rebuilt, moved aside, copied, lost, restored
    file: str
    why: str
    to: str | None = None


@dataclass(slots=True)
class RepairReport:
    """What a repair did (or, in a dry run, would do), and what fsck says now."""

    path: str
    dry_run: bool
    actions: list[Action] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # positions that this repair gave up
    manifests: list[str] = field(default_factory=list)
    check: Report | None = None

    @property
    def is_clean(self) -> bool:
        return self.check is not None and self.check.is_clean


def repair(
    path: str | os.PathLike[str],
    dry_run: bool = False,
    *,
    progress: Progress | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
) -> RepairReport:
    """Repair the log in a folder. Raises `LogBusy` while another process has it open.

    An index that is missing or belongs to another log cannot be made up: `IndexMissing` or
    `IndexForeign` is raised and nothing is touched.
    """
    folder = Path(path).absolute()
    work = _Repair(folder, files or Files(), clock or SystemClock(), dry_run, progress)
    if dry_run:
        work.run()
    else:
        with _claim(folder, files or Files()), named_errors(f"repairing {show_path(folder)}"):
            work.run()
    return work.report


class _Repair:
    """One run over one log."""

    def __init__(
        self, folder: Path, files: Files, clock: Clock, dry_run: bool, progress: Progress | None
    ) -> None:
        self._folder = folder
        self._files = files
        self._clock = clock
        self._dry_run = dry_run
        self._progress = progress
        self.report = RepairReport(str(folder), dry_run)

    def run(self) -> None:
        self._finish_interrupted()
        check = self._check()
        steps: tuple[tuple[Callable[[Report], bool], Callable[[Report], None]], ...] = (
            (_needs_format, self._mend_format),
            (_needs_index, self._rebuild_index),
            (_needs_segments, self._mend_segments),
        )
        for is_needed, step in steps:
            if is_needed(check):
                step(check)
                if self._dry_run and step == self._rebuild_index:
                    break  # what the segments hold can only be told by a whole index
                if not self._dry_run:
                    check = self._check()
        if not self._dry_run:
            self._note_restored()
            self._ring()
            check = self._check()
        self.report.check = check

    def _check(self) -> Report:
        return fsck(self._folder, self._progress)

    def _did(self, what: str, file: str, why: str, to: str | None = None) -> None:
        self.report.actions.append(Action(what, file, why, to))

    # ------------------------------------------------------------------ the format file

    def _mend_format(self, check: Report) -> None:
        why = _first_message(check, FORMAT_FILE)
        path = self._folder / FORMAT_FILE
        old = path.read_bytes() if path.is_file() else b""
        durability: Durability = "process" if b'"process"' in old else "synced"
        identity = Identity(self._log_id().hex(), durability, 0)
        self._did("rebuilt", FORMAT_FILE, why)
        if self._dry_run:
            return
        aside = self._new_aside()
        if old:
            self._files.publish(aside / FORMAT_FILE, old)
        self._write_manifest(aside, why=why, copies=[FORMAT_FILE] if old else [])
        self._files.publish(path, identity.encode())

    def _log_id(self) -> bytes:
        """Which log this is, by its format file, its index or its segments."""
        with suppress(LogDamaged, NotALog):
            return read_identity(self._folder).log_id
        index = self._folder / INDEX_FILE
        ids: set[bytes] = set()
        with suppress(apsw.Error, LogError):
            connection = connect(index, None, read_only=True)
            with closing(connection):
                ids.update(bytes(row[0]) for row in connection.execute("SELECT id FROM log"))
        if not ids:
            ids = self._open_bytes().scan().log_ids
        for segment in sorted((self._folder / SEGMENTS_FOLDER).glob("*.seg")):
            with open_segment(segment) as file:
                ids.add(file.read(0, ALIGNMENT)[16:32])
        if len(ids) != 1:
            raise LogDamaged(
                f"which log is in {show_path(self._folder)} cannot be told: its format file is "
                f"damaged and the other files name {len(ids)} ids. Restore {FORMAT_FILE} from a "
                "copy",
                path=str(self._folder),
            )
        return ids.pop()

    # ------------------------------------------------------------------ the index

    def _open_bytes(self) -> IndexBytes:
        names = [path.stem for path in sorted((self._folder / SEGMENTS_FOLDER).glob("*.seg"))]
        names += [path.stem for path in sorted((self._folder / ASIDE_FOLDER).glob("*/*.seg"))]
        return IndexBytes(
            self._folder / INDEX_FILE,
            self._folder / WAL_FILE,
            names,
            repaired_before=(self._folder / ASIDE_FOLDER).exists(),
        )

    def _rebuild_index(self, check: Report) -> None:
        why = _first_message(check, INDEX_FILE, WAL_FILE)
        if not (self._folder / INDEX_FILE).exists():
            raise IndexMissing(
                f"the index of {show_path(self._folder)} is missing and the order of the records "
                f"with it: put {INDEX_FILE} back from a copy; nothing was touched",
                path=str(self._folder / INDEX_FILE),
            )
        index = self._open_bytes()
        try:
            found = index.scan()
            self._refuse_foreign(found)
            plan = _Rebuild(self._folder, index, found)
            self._did("rebuilt", INDEX_FILE, why)
            if self._dry_run:
                self._note_lost(plan.losses())
                return
            aside = self._new_aside()
            plan.build(self._folder / REBUILT_FILE, self._log_id(), self._name(aside))
        finally:
            index.close()
        self._sync_file(self._folder / REBUILT_FILE)
        moves = [name for name in (INDEX_FILE, WAL_FILE) if (self._folder / name).exists()]
        manifest = self._write_manifest(
            aside, why=why, moves=moves, lost=sorted(plan.lost), rebuilt=True, tail=plan.tail
        )
        self._note_lost(plan.lost)
        self._finish(aside, manifest)

    def _refuse_foreign(self, found: Salvage) -> None:
        own = None
        with suppress(LogDamaged, NotALog):
            own = read_identity(self._folder).log_id
        foreign = own is not None and found.log_ids and own not in found.log_ids
        empty = not found.rows and not found.metadata and not found.log_ids
        if foreign or (empty and not has_our_index(self._folder)):
            raise IndexForeign(
                f"{show_path(self._folder / INDEX_FILE)} holds nothing of this log: put the right "
                "file back from a copy; nothing was touched",
                path=str(self._folder / INDEX_FILE),
            )

    def _finish_interrupted(self) -> None:
        """Complete a rebuild that was interrupted after its manifest was written."""
        for path in sorted((self._folder / ASIDE_FOLDER).glob(f"*/{MANIFEST_FILE}")):
            manifest = _read_manifest(path)
            if manifest.get("state") == "moving":
                self._did("completed", str(path.relative_to(self._folder)), "it was interrupted")
                if not self._dry_run:
                    self._finish(path.parent, manifest)
        leftover = self._folder / REBUILT_FILE
        if not self._dry_run:
            for path in (leftover, *(leftover.with_name(leftover.name + s) for s in _BESIDE)):
                if path.exists():  # made by a repair that died before it wrote its manifest
                    self._files.unlink(path)

    def _finish(self, aside: Path, manifest: dict[str, Any]) -> None:
        """Move the old index away and the new one in. Every part may have been done before."""
        rebuilt = self._folder / REBUILT_FILE
        if rebuilt.exists():
            self._refuse_if_open()
            for move in manifest["moves"]:
                self._move(_checked_name(move["from"]), aside)
            shm = self._folder / f"{INDEX_FILE}-shm"
            if shm.exists():  # SQLite's scratch memory of the old index, not the new one's
                self._move(shm.name, aside)
            self._files.replace(rebuilt, self._folder / INDEX_FILE)
            self._files.sync_folder(self._folder)
        manifest["state"] = "done"
        self._files.publish(aside / MANIFEST_FILE, indented_json(manifest))

    def _refuse_if_open(self) -> None:
        _refuse_holders(self._folder)

    def _ring(self) -> None:
        """Set the doorbell to what the index says now."""
        identity = read_identity(self._folder)
        index = Index.open(self._folder / INDEX_FILE, identity.log_id, None, read_only=False)
        try:
            tail, changes = index.tail(), index.changes()
        finally:
            index.close()
        bell = Bell(self._folder / BELL_FILE, self._files)
        try:
            if identity.durability == "process" and bell.is_sound() and bell.tail() > tail:
                return  # the next writer goes on behind what was shown: it must not be forgotten
            bell.hint_committed(tail)
            bell.note_changes(changes)
            bell.ring(tail)
        finally:
            bell.close()

    # ------------------------------------------------------------------ the segments

    def _mend_segments(self, check: Report) -> None:
        damaged = sorted(
            {
                finding.file
                for finding in check.findings
                if finding.severity == "error" and finding.file.startswith(f"{SEGMENTS_FOLDER}/")
            }
        )
        if check.left_out:  # some may hide behind the bound on findings
            damaged = sorted({*damaged, *self._all_segments()})
        if not (self._folder / SEGMENTS_FOLDER).exists() and not self._dry_run:
            self._files.make_folder(self._folder / SEGMENTS_FOLDER)
            self._files.sync_folder(self._folder)
            damaged = self._all_segments()
        with self._index_alone() as connection:
            for file in damaged:
                self._mend_segment(connection, file, _first_message(check, file))

    def _all_segments(self) -> list[str]:
        with self._index_alone() as connection:
            rows = connection.execute("SELECT name FROM segment ORDER BY name").fetchall()
        return [f"{SEGMENTS_FOLDER}/{row[0]}.seg" for row in rows]

    def _mend_segment(self, connection: apsw.Connection, file: str, why: str) -> None:
        name = Path(file).stem
        rows: list[Any] = connection.execute(
            f"SELECT {HEAD_COLUMNS} FROM record r JOIN segment s ON s.id = r.segment "
            "WHERE s.name = ? ORDER BY r.offset",
            (name,),
        ).fetchall()
        whole, damaged = self._sort_frames(file, [Row(*row) for row in rows])
        if not damaged and not why:
            return
        self._did("copied", file, f"{len(whole)} whole records of {len(rows)}")
        self._did("moved aside", file, why)
        if self._dry_run:
            self._note_lost(row.position for row in damaged)
            return
        aside = self._new_aside()
        moves = [file] if os.path.lexists(self._folder / file) else []
        positions = [row.position for row in damaged]
        self._write_manifest(aside, why=why, moves=moves, lost=positions, state="done")
        copy = self._copy_frames(file, whole)
        self._rename_rows(connection, name, whole, damaged, copy, self._name(aside))
        for move in moves:
            self._move(move, aside)
        self._note_lost(positions)

    def _sort_frames(self, file: str, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Which rows' bodies are whole, and which are not."""
        whole: list[Row] = []
        damaged: list[Row] = []
        try:
            with open_segment(self._folder / file) as segment:
                for row in rows:
                    try:
                        segment.body(_frame(row))
                        whole.append(row)
                    except LogDamaged:
                        damaged.append(row)
        except LogDamaged:
            damaged = list(rows)
        return whole, damaged

    def _copy_frames(self, file: str, rows: Sequence[Row]) -> tuple[str, list[int]] | None:
        """Copy bodies into a new segment, durably; return its name and their offsets."""
        if not rows:
            return None
        name = f"{os.urandom(8).hex()}_00000001"
        folder = self._folder / SEGMENTS_FOLDER
        copy = Segment(folder, name, self._files, self._log_id())
        try:
            offsets = []
            with open_segment(self._folder / file) as segment:
                for row in rows:
                    body = segment.body(_frame(row))
                    offsets += [at.offset for at in copy.write([(body, row.checksum)])]
            self._files.sync(copy.fd)
            self._files.sync_folder(folder)
        finally:
            self._files.close(copy.fd)
        return name, offsets

    def _rename_rows(
        self,
        connection: apsw.Connection,
        name: str,
        whole: Sequence[Row],
        damaged: Sequence[Row],
        copy: tuple[str, list[int]] | None,
        manifest: str,
    ) -> None:
        """One transaction: whole records lie in the copy from now on, the others are lost."""
        with _transaction(connection):
            if copy is not None:
                new, offsets = copy
                end = offsets[-1] + frame_bytes(whole[-1].length)
                connection.execute(
                    "INSERT INTO segment(name, live, end, sealed) VALUES(?,?,?,1)",
                    (new, len(whole), end),
                )
                (segment,) = connection.execute("SELECT last_insert_rowid()").fetchall()[0]
                for row, offset in zip(whole, offsets, strict=True):
                    moved = row._replace(segment=new, offset=offset)
                    connection.execute(
                        "UPDATE record SET segment = ?, offset = ?, seal = ? WHERE position = ?",
                        (segment, offset, moved.true_seal(), row.position),
                    )
            connection.execute(
                "UPDATE segment SET live = ?, sealed = 1 WHERE name = ?", (len(damaged), name)
            )
            connection.execute("DELETE FROM segment WHERE name = ? AND live = 0", (name,))
            connection.executemany(
                "INSERT OR REPLACE INTO lost VALUES(?,?)",
                [(row.position, manifest) for row in damaged],
            )

    def _note_restored(self) -> None:
        """Take records off the list of the lost whose bytes somebody has put back."""
        with self._index_alone() as connection:
            rows: list[Any] = connection.execute(
                f"SELECT {HEAD_COLUMNS} FROM lost l JOIN record r ON r.position = l.position "
                "JOIN segment s ON s.id = r.segment ORDER BY s.name"
            ).fetchall()
            for name, group in groupby((Row(*row) for row in rows), key=lambda row: row.segment):
                file = f"{SEGMENTS_FOLDER}/{name}.seg"
                whole, _ = self._sort_frames(file, list(group))
                if not whole:
                    continue
                with _transaction(connection):
                    connection.executemany(
                        "DELETE FROM lost WHERE position = ?", [(row.position,) for row in whole]
                    )
                self._did("restored", file, f"{len(whole)} lost records are back")

    # ------------------------------------------------------------------ moving aside

    @contextmanager
    def _index_alone(self) -> Iterator[apsw.Connection]:
        """The index in one connection that shares it with nobody."""
        path = self._folder / INDEX_FILE
        connection = connect(path, None, read_only=self._dry_run)
        try:
            if not self._dry_run:
                connection.pragma("locking_mode", "exclusive")
                connection.pragma("synchronous", "full")
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            yield connection
        except apsw.Error as error:
            raise sqlite_error(error, path, "repairing") from error
        finally:
            connection.close()

    def _new_aside(self) -> Path:
        parent = self._folder / ASIDE_FOLDER
        if not parent.exists():
            self._files.make_folder(parent)
            self._files.sync_folder(self._folder)
        numbers = [int(path.name) for path in parent.iterdir() if path.name.isdigit()]
        aside = parent / f"{max(numbers, default=0) + 1:06d}"
        self._files.make_folder(aside)
        self._files.sync_folder(parent)
        return aside

    def _name(self, aside: Path) -> str:
        return f"{ASIDE_FOLDER}/{aside.name}/{MANIFEST_FILE}"

    def _write_manifest(
        self,
        aside: Path,
        *,
        why: str,
        moves: Sequence[str] = (),
        copies: Sequence[str] = (),
        lost: Sequence[int] = (),
        rebuilt: bool = False,
        tail: int = 0,
        state: str | None = None,
    ) -> dict[str, Any]:
        manifest = {
            "format": "penstock-repair",
            "version": MANIFEST_VERSION,
            "state": state or ("moving" if rebuilt else "done"),
            "made_us": self._clock.now_us(),
            "why": why,
            "moves": [self._describe(name) for name in moves],
            "copies": list(copies),
            "lost_positions": [list(span) for span in spans(lost)],
            "index_rebuilt": rebuilt,
            "tail": tail,
            "to_put_back": _how_to_put_back(rebuilt, copies),
        }
        self._files.publish(aside / MANIFEST_FILE, indented_json(manifest))
        self.report.manifests.append(self._name(aside))
        return manifest

    def _describe(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        facts: dict[str, Any] = {"from": name, "to": Path(name).name}
        if path.is_symlink() or not path.is_file():
            return facts
        digest = xxhash.xxh3_128()
        with path.open("rb") as file:
            while piece := file.read(_COPY_BYTES):
                digest.update(piece)
        return {**facts, "bytes": path.stat().st_size, "xxh3_128": digest.hexdigest()}

    def _move(self, name: str, aside: Path) -> None:
        source = self._folder / name
        if not os.path.lexists(source):
            return
        target = aside / source.name
        self._files.replace(source, target)
        self._files.sync_folder(aside)
        self._files.sync_folder(source.parent)
        self._did("moved aside", name, "", str(target.relative_to(self._folder)))

    def _sync_file(self, path: Path) -> None:
        fd = self._files.open(path, os.O_RDWR)
        try:
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _note_lost(self, positions: Iterable[int]) -> None:
        self.report.lost = sorted({*self.report.lost, *positions})


class _Rebuild:
    """A new index out of salvaged rows."""

    def __init__(self, folder: Path, index: IndexBytes, found: Salvage) -> None:
        self._index = index
        self._found = found
        self._segments: dict[str, list[int]] = {}  # id, live, end
        bell = Bell(folder / BELL_FILE, Files(), read_only=True)
        rung, self._changes = (bell.tail(), bell.changes()) if bell.is_sound() else (0, 0)
        bell.close()
        self.tail = max(
            rung, *(max(places, default=0) for places in (found.rows, found.tagged, found.lost))
        )
        self.absent = self._absent()
        self.lost: dict[int, str] = {}

    def _absent(self) -> list[int]:
        """Positions whose rows are gone through damage.

        A position without a row may also have been trimmed: it is taken for lost if a tag row
        still leads to it, or if no tag was ever trimmed as far as that.
        """
        trimmed = max(self._found.trims.values(), default=0)
        found = self._found
        return [
            position
            for position in range(1, self.tail + 1)
            if position not in found.rows
            and not any(cut.after < position <= cut.upto for cut in found.power_cuts)
            and (position > trimmed or position in found.tagged or position in found.lost)
        ]

    def losses(self) -> list[int]:
        """The positions that a rebuild could not save: without a row, or without their body."""
        bodies = (at for at in self._found.rows if not self._best_row(at)[1])
        return sorted({*self.absent, *bodies, *self._found.lost})

    def build(self, path: Path, log_id: bytes, manifest: str) -> None:
        self.lost = dict.fromkeys(self.absent, manifest)
        self.lost.update(self._found.lost)
        files = Files()
        files.close(files.open(path, os.O_RDWR | os.O_CREAT))
        Index.create(path, log_id, None)
        connection = connect(path, None, read_only=False)
        try:
            connection.pragma("synchronous", "off")  # the whole file is synced at the end
            connection.wal_autocheckpoint(0)
            with _transaction(connection):
                self._insert_records(connection, manifest)
                self._insert_rest(connection)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        except apsw.Error as error:
            raise sqlite_error(error, path, "building") from error
        finally:
            connection.close()

    def _insert_records(self, connection: apsw.Connection, manifest: str) -> None:
        previous: dict[str, int] = {}
        trims = self._found.trims
        for position in sorted(self._found.rows):
            row, whole = self._best_row(position)
            carried = row.tags.split(" ") if row.tags else []
            tags = [tag for tag in carried if position > trims.get(tag, 0)]
            if not tags and position < self.tail:
                name = (row.producer, row.instance)
                known = self._found.trimmed.get(name, -1)
                self._found.trimmed[name] = max(known, row.sequence)
                if carried:
                    self.lost.pop(position, None)  # trimmed since it was lost
                continue
            if not whole and position not in self.lost:
                self.lost[position] = manifest
            self._insert_record(connection, row, len(tags), row.inline if whole else b"")
            for tag in tags:
                connection.execute(
                    INSERT_TAG, (tag, position, previous.get(tag, trims.get(tag, 0)))
                )
                previous[tag] = position
        if self.tail and self.tail not in self._found.rows:
            self._insert_stand_in(connection)

    def _best_row(self, position: int) -> tuple[Row, bool]:
        versions = list(self._index.rows(position))
        return next((version for version in versions if version[1]), versions[0])

    def _insert_record(
        self, connection: apsw.Connection, row: Row, live: int, body: bytes | None
    ) -> None:
        segment = None
        if row.segment is not None and row.offset is not None:
            known = self._segments.setdefault(row.segment, [len(self._segments) + 1, 0, 0])
            known[1] += 1
            known[2] = max(known[2], row.offset + frame_bytes(row.length))
            segment = known[0]
        connection.execute(
            INSERT_RECORD,
            (row.position, row.kind, row.producer, row.instance, row.sequence, row.tags, live,
             row.time_us, segment, row.offset, row.length, row.checksum, row.seal, body),
        )  # fmt: skip

    def _insert_stand_in(self, connection: apsw.Connection) -> None:
        """Keep the newest position, whose record is lost, from being given to another one."""
        row = Row(
            Position(self.tail), int(RecordKind.CONTROL), STAND_IN_PRODUCER, 0, self.tail, "", 0,
            None, None, 0, body_checksum(b""), 0, b"",
        )  # fmt: skip
        self._insert_record(connection, row._replace(seal=row.true_seal()), 0, b"")

    def _insert_rest(self, connection: apsw.Connection) -> None:
        found = self._found
        connection.executemany(
            "INSERT INTO segment(id, name, live, end, sealed) VALUES(?,?,?,?,1)",
            [(known[0], name, known[1], known[2]) for name, known in self._segments.items()],
        )
        connection.executemany(
            "INSERT INTO metadata VALUES(?,?,?,?)",
            [(k, n, metadata_seal(k, n, value), value) for k, (n, value) in found.metadata.items()],
        )
        connection.executemany(
            "INSERT INTO trim VALUES(?,?,?)",
            [(tag, upto, row_seal(tag, upto)) for tag, upto in found.trims.items()],
        )
        connection.executemany(
            "INSERT INTO producer VALUES(?1, ?2, ?3, ?3, seal(?1, ?2, ?3, ?3))",
            [(*name, last) for name, last in found.trimmed.items() if last >= 0],
        )
        Sequences(connection.execute, row_seal).note(self.tail)
        connection.executemany("INSERT INTO lost VALUES(?,?)", list(self.lost.items()))
        changes = max(found.changes, self._changes) + 1
        connection.execute(
            "UPDATE log SET changes = ?, written_back = ?, reserved = ?",
            (changes, found.written_back, max(found.reserved, self.tail)),
        )


_BESIDE = ("-wal", "-shm")


def spans(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Positions as runs: 3 4 5 9 → (3, 5) (9, 9)."""
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and position == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


def _needs_format(check: Report) -> bool:
    return _has_error(check, lambda file: file == FORMAT_FILE)


def _needs_index(check: Report) -> bool:
    return _has_error(check, lambda file: file in (INDEX_FILE, WAL_FILE))


def _needs_segments(check: Report) -> bool:
    return _has_error(check, lambda file: file.startswith(SEGMENTS_FOLDER))


def _has_error(check: Report, concerns: Callable[[str], bool]) -> bool:
    return any(f.severity == "error" and concerns(f.file) for f in check.findings)


def _first_message(check: Report, *files: str) -> str:
    for finding in check.findings:
        if finding.severity == "error" and finding.file in files:
            return finding.message
    return ""


def _frame(row: Row) -> Frame:
    return Frame(row.offset or 0, row.length, row.checksum, row.position)


def _how_to_put_back(rebuilt: bool, copies: Sequence[str]) -> str:
    if rebuilt:
        return (
            "With nobody using the log: move index.db away, move the files listed here back under "
            "their old names. Records appended since the repair are then gone: copy them first."
        )
    if copies:
        return f"Replace {copies[0]} by the copy that is here."
    return (
        "Put an undamaged copy of each file listed here back under its old name, then run "
        "`penstock log repair` once more: it takes what can be read again off the list of the lost."
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            manifest: Any = parse(file.read(_MANIFEST_BYTES_MAX))
        if manifest["format"] != "penstock-repair" or not isinstance(manifest["moves"], list):
            raise ValueError("it is not a repair's manifest")
        return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogDamaged(
            f"the manifest {show_path(path)} cannot be read ({error}): what an interrupted repair "
            "was about to do is unknown. Restore it, or move its folder away if the log is whole",
            path=str(path),
        ) from error


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or _MOVABLE.fullmatch(name) is None:
        raise LogDamaged(f"a manifest names {name!r}, which no repair moves", name=str(name)[:200])
    return name


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _claim(folder: Path, files: Files) -> Iterator[None]:
    """Hold every lock that a writer needs; refuse if another process has the log open."""
    read_only = f"{show_path(folder)} cannot be repaired: no permission to write"
    if not folder.is_dir():
        read_identity(folder)  # says what is there instead
    if not os.access(folder, os.W_OK):
        raise LogReadOnly(f"{read_only}. Check the folder's owner, mode and mount")
    paths = [folder / LOCK_FILE, *sorted((folder / SEGMENTS_FOLDER).glob("*.seg"))]
    fds = []
    try:
        with named_errors(f"locking {show_path(folder)}"):
            for path in paths:
                if path.is_symlink():
                    continue
                flags = os.O_RDWR | (os.O_CREAT if path.name == LOCK_FILE else 0)
                fd = files.open(path, flags)
                fds.append(fd)
                if not lock(fd, wait_s=_LOCK_SECONDS):
                    raise _in_use(folder, holders(path))
        _refuse_holders(folder)
        yield
    finally:
        for fd in fds:
            files.close(fd)


def _refuse_holders(folder: Path) -> None:
    """Raise if any process has the index open: every connection holds a lock on it."""
    path = folder / INDEX_FILE
    pids = [pid for pid in holders(path) if pid != os.getpid()]
    if pids:
        raise _in_use(folder, pids)
    if not path.exists():
        return
    try:  # where the system does not tell, and for handles of this very process
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.Error:
        return
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("locking_mode", "exclusive")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except (apsw.BusyError, apsw.LockedError):
        raise _in_use(folder, []) from None
    except apsw.Error:
        return  # too damaged to be open anywhere
    finally:
        connection.close()


def _in_use(folder: Path, pids: Sequence[int]) -> LogBusy:
    who = f"process {', '.join(map(str, pids))}" if pids else "another process or handle"
    return LogBusy(
        f"{show_path(folder)} is in use by {who}: close it first, a repair needs the log for "
        "itself; nothing was touched",
        path=str(folder),
        holders=list(pids),
    )
