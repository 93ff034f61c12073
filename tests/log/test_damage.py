"""Damaged files, wrong files, full and failing disks: a named error, and nothing acknowledged lost.

The rule behind every test here: whoever opens and reads gets exactly what was acknowledged, or one
of the log's own errors. Never other data, never an error of another kind, never fewer records.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
import xxhash

from penstock.config import LogConfig
from penstock.errors import (
    DiskFull,
    IndexDamaged,
    IndexForeign,
    IndexMissing,
    InvalidName,
    LogDamaged,
    LogError,
    LogIOError,
    LogNotFound,
    LogReadOnly,
    LogVersionUnsupported,
    NotALog,
    OutcomeUnknown,
    PUnitDamaged,
    PUnitTooLarge,
    RecordTooLarge,
    SegmentDamaged,
    SegmentMissing,
    SegmentTruncated,
    StreamError,
    TailLost,
)
from penstock.log import open_log, punit
from penstock.log.bell import BELL_BYTES
from penstock.log.index import INDEX_VERSION, connect, content_seal, metadata_seal, seal_at
from penstock.log.record import START, Entry, Position, RecordKind
from penstock.log.segments import ALIGNMENT
from penstock.testing.disk import TracedFiles, bell_bytes
from tests.log.harm import CONFIG, Sample, content, entry, files_of, flip, is_root, make_sample
from tests.thoroughness import SWEEP_PARTS, in_parts

NOBODY = 65_534
WAL = "index.db-wal"


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A log that was closed: everything is in the index file."""
    return make_sample(tmp_path_factory.mktemp("folded") / "log", folded=True)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A log whose processes died: half of it is still in the write-ahead log."""
    return make_sample(tmp_path_factory.mktemp("crashed") / "log", folded=False)


def data(sequence: int, body: bytes = b"more", tag: str = "orders") -> Entry:
    return Entry(RecordKind.DATA, (tag,), "fresh", 1, sequence, body)


def positions_but(sample: Sample, tag: str, missing: set[int]) -> list[int]:
    return [int(str(row[0])) for row in sample.content.records[tag] if row[0] not in missing]


def readable(folder: Path, tag: str) -> tuple[list[int], list[LogError]]:
    """Positions that can be read one by one, and the errors of those that cannot."""
    positions: list[int] = []
    errors: list[LogError] = []
    with open_log(folder, read_only=True) as log:
        after = START
        while after < log.tail():
            try:
                page = log.read([tag], after, 1)
            except LogError as error:
                errors.append(error)
                after = Position(error.details["position"])
                continue
            if not page:
                break
            after = page[0].position
            positions.append(after)
    return positions, errors


# ------------------------------------------------------------------ a flipped bit, anywhere


def sweep(sample: Sample, folder: Path, name: str, offsets: range) -> list[LogError | None]:
    """Flip a bit at each offset, each time in a fresh copy; open and read everything."""
    assert sample.outcome(sample.lay_out(folder), read_only=True) is None, "it is whole before"
    outcomes = []
    for place, offset in enumerate(offsets):
        sample.lay_out(folder)
        flip(folder / name, offset, bit=place % 8)
        outcomes.append(sample.outcome(folder, read_only=bool(place // 8 % 2)))
    return outcomes


@in_parts
def test_a_flipped_bit_anywhere_in_the_index_is_found_by_the_reader(
    folded: Sample, tmp_path: Path, part: int
) -> None:
    """Header, inner and leaf pages of every table, keys, pointers, counts and free space."""
    bytes_total = len(folded.files["index.db"])
    offsets = range(0, bytes_total, 251)[part::SWEEP_PARTS]
    outcomes = sweep(folded, tmp_path / "log", "index.db", offsets)
    found = [each for each in outcomes if each is not None]
    assert len(found) > len(outcomes) // 2
    assert all(isinstance(each, IndexDamaged | IndexForeign) for each in found)


@in_parts
def test_a_flipped_bit_in_the_header_of_the_index(
    folded: Sample, tmp_path: Path, part: int
) -> None:
    outcomes = sweep(folded, tmp_path / "log", "index.db", range(108)[part::SWEEP_PARTS])
    kinds = (IndexDamaged, IndexForeign, LogVersionUnsupported)
    assert all(each is None or isinstance(each, kinds) for each in outcomes)
    assert sum(each is not None for each in outcomes) > 90 // SWEEP_PARTS


@in_parts
def test_a_flipped_bit_in_a_partly_folded_index(crashed: Sample, tmp_path: Path, part: int) -> None:
    offsets = range(1, len(crashed.files["index.db"]), 997)[part::SWEEP_PARTS]
    outcomes = sweep(crashed, tmp_path / "log", "index.db", offsets)
    assert any(isinstance(each, IndexDamaged) for each in outcomes)


@in_parts
def test_a_flipped_bit_in_the_write_ahead_log(crashed: Sample, tmp_path: Path, part: int) -> None:
    """Also where the newest change is metadata: the doorbell counts those as well."""
    bytes_total = len(crashed.files[WAL])
    offsets = range(0, bytes_total, bytes_total // 120)[part::SWEEP_PARTS]
    outcomes = sweep(crashed, tmp_path / "log", WAL, offsets)
    assert all(each is None or isinstance(each, TailLost) for each in outcomes)
    assert any(outcomes)


def test_losing_only_the_newest_metadata_is_noticed(crashed: Sample, tmp_path: Path) -> None:
    folder = crashed.lay_out(tmp_path / "log")
    with (folder / WAL).open("r+b") as file:
        file.truncate(len(crashed.files[WAL]) - 1)
    for read_only in (True, False):
        error = crashed.outcome(folder, read_only=read_only)
        assert isinstance(error, TailLost)
        assert "metadata" in error.message
    assert len((folder / WAL).read_bytes()) == len(crashed.files[WAL]) - 1, "kept for the repair"


@pytest.mark.parametrize("size", [0, 8, BELL_BYTES])
def test_a_damaged_doorbell_costs_nothing(folded: Sample, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "log"
    if size == BELL_BYTES:
        assert set(sweep(folded, folder, "bell", range(0, BELL_BYTES))) == {None}
        return
    for read_only in (True, False):
        folded.lay_out(folder)
        (folder / "bell").write_bytes(folded.files["bell"][:size])
        assert folded.outcome(folder, read_only=read_only) is None
    (folder / "bell").unlink()
    assert folded.outcome(folder, read_only=True) is None


def test_a_damaged_hint_in_the_doorbell_does_not_move_the_tail(
    folded: Sample, tmp_path: Path
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    flip(folder / "bell", 24 + 2, bit=6)  # the newest committed position, now far too high
    with open_log(folder, config=CONFIG) as log:
        (position,) = log.append([data(1)])
        assert position == folded.content.tail + 1 == log.tail()


def test_a_flipped_bit_in_the_format_file(folded: Sample, tmp_path: Path) -> None:
    name = "penstock-log.json"
    outcomes = sweep(folded, tmp_path / "log", name, range(len(folded.files[name])))
    kinds = (LogDamaged, NotALog, LogVersionUnsupported)
    assert all(each is None or isinstance(each, kinds) for each in outcomes)
    assert sum(each is None for each in outcomes) < 10  # white space for white space


@in_parts
def test_a_flipped_bit_in_a_segment(folded: Sample, tmp_path: Path, part: int) -> None:
    """File header, frame headers, bodies; what lies in between holds nothing."""
    name = folded.segment()
    heads = range(0, 3 * ALIGNMENT)
    bytes_total = len(folded.files[name])
    for offsets in (heads, range(heads.stop, bytes_total, bytes_total // 80)):
        outcomes = sweep(folded, tmp_path / "log", name, offsets[part::SWEEP_PARTS])
        found = [each for each in outcomes if each is not None]
        assert len(found) > len(outcomes) // 2
        assert all(isinstance(each, SegmentDamaged | LogVersionUnsupported) for each in found)


def test_one_damaged_body_leaves_every_other_record_readable(
    folded: Sample, tmp_path: Path
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    flip(folder / folded.segment(), 2 * ALIGNMENT + 5)
    found, errors = readable(folder, "all")
    (error,) = errors
    assert isinstance(error, SegmentDamaged)
    assert found == positions_but(folded, "all", {error.details["position"]})


# ------------------------------------------------------------------ torn, truncated, missing


def test_a_torn_tail_takes_only_what_was_never_acknowledged(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    bell = (folder / "bell").read_bytes()
    with open_log(folder, config=CONFIG) as log:
        size = (folder / WAL).stat().st_size
        log.append([data(n, b"x" * 2_000) for n in range(1, 4)])
        files = files_of(folder)
    files["bell"] = bell  # the power went before the append was acknowledged
    torn = Sample(files, folded.content)
    for cut in range(size + 1, len(files[WAL]), 997):
        torn.lay_out(folder)
        with (folder / WAL).open("r+b") as file:
            file.truncate(cut)
        assert folded.outcome(folder, read_only=bool(cut % 2)) is None


def test_a_torn_frame_behind_the_last_record_is_cut_off(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    last = folder / folded.segment(-1)
    with last.open("ab") as file:
        file.write(b"PFRM\x01\x00" + b"torn" * 5)
    assert folded.outcome(folder, read_only=False) is None


@pytest.mark.parametrize("left", [0, 40, 64, 500, -1])
def test_a_truncated_segment(folded: Sample, tmp_path: Path, left: int) -> None:
    folder = folded.lay_out(tmp_path / "log")
    path = folder / folded.segment(1)
    os.truncate(path, left if left >= 0 else path.stat().st_size - 1)
    found, errors = readable(folder, "all")
    assert errors
    assert all(isinstance(error, SegmentTruncated) for error in errors)
    damaged = {error.details["position"] for error in errors}
    assert found == positions_but(folded, "all", damaged)
    path.write_bytes(folded.files[folded.segment(1)])
    assert folded.outcome(folder, read_only=False) is None


def test_a_missing_segment(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    (folder / folded.segment(1)).unlink()
    found, errors = readable(folder, "all")
    assert errors
    assert all(isinstance(error, SegmentMissing) for error in errors)
    assert found == positions_but(folded, "all", {e.details["position"] for e in errors})


def test_a_symlink_in_place_of_a_segment_is_not_followed(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    path = folder / folded.segment()
    elsewhere = tmp_path / "elsewhere.seg"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(SegmentDamaged, match="symbolic link"), open_log(folder) as log:
        content(log)
    path.unlink()
    shutil.move(elsewhere, path)
    assert folded.outcome(folder, read_only=False) is None


def foreign_sqlite(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE accounts(name, balance); INSERT INTO accounts VALUES('a', 1)")
    connection.close()


@pytest.mark.parametrize(
    ("put", "expected"),
    [
        (lambda path: None, IndexMissing),
        (lambda path: path.write_bytes(b""), IndexForeign),
        (lambda path: path.write_bytes(b"not a database, by any measure " * 300), IndexForeign),
        (foreign_sqlite, IndexForeign),
        (
            lambda path: shutil.copy(
                make_sample(path.parent.parent / "other", folded=True) and
                path.parent.parent / "other" / "index.db", path),
            IndexForeign,
        ),
    ],
    ids=["missing", "empty", "text", "other program", "other log"],
)  # fmt: skip
@pytest.mark.parametrize("read_only", [True, False])
def test_the_wrong_file_in_place_of_the_index(
    folded: Sample,
    tmp_path: Path,
    put: Callable[[Path], Any],
    expected: type[LogError],
    read_only: bool,
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    index = folder / "index.db"
    index.unlink()
    put(index)
    there = index.read_bytes() if index.exists() else None
    with pytest.raises(expected):
        open_log(folder, read_only=read_only)
    assert (index.read_bytes() if index.exists() else None) == there
    for name in (WAL, "index.db-shm"):
        (folder / name).unlink(missing_ok=True)
    index.write_bytes(folded.files["index.db"])
    assert folded.outcome(folder, read_only=False) is None


# ------------------------------------------------------------------ newer versions


def newer_format(folder: Path, sample: Sample) -> None:
    path = folder / "penstock-log.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "version": 2}))


def newer_index(folder: Path, sample: Sample) -> None:
    connection = connect(folder / "index.db", None, read_only=False)
    connection.execute(f"PRAGMA user_version={INDEX_VERSION + 1}")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    connection.close()


def newer_segment(folder: Path, sample: Sample) -> None:
    path = folder / sample.segment()
    header = bytearray(path.read_bytes()[:ALIGNMENT])
    header[8:12] = struct.pack("<I", 2)
    header[-8:] = xxhash.xxh3_64_intdigest(bytes(header[:-8])).to_bytes(8, "little")
    overwrite(path, 0, bytes(header))


def newer_frame(folder: Path, sample: Sample) -> None:
    overwrite(folder / sample.segment(), ALIGNMENT + 4, struct.pack("<H", 2))


def overwrite(path: Path, offset: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(new)


@pytest.mark.parametrize("change", [newer_format, newer_index, newer_segment, newer_frame])
def test_a_newer_version_is_refused_by_name(
    folded: Sample, tmp_path: Path, change: Callable[[Path, Sample], None]
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    change(folder, folded)
    for read_only in (True, False):
        error = folded.outcome(folder, read_only=read_only)
        assert isinstance(error, LogVersionUnsupported)
        assert error.details["version"] == (INDEX_VERSION + 1 if change is newer_index else 2)


def test_an_older_index_is_refused_by_name(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    connection = connect(folder / "index.db", None, read_only=False)
    connection.execute(f"PRAGMA user_version={INDEX_VERSION - 1}")
    connection.close()
    for read_only in (True, False):
        error = folded.outcome(folder, read_only=read_only)
        assert isinstance(error, LogVersionUnsupported)
        assert "make a new log" in error.message


def test_an_index_without_page_checksums_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a SQLite without the extension makes it; one with the extension reads it, too."""
    with monkeypatch.context() as patch:
        patch.setattr("penstock.log.index.page_seal_vfs", lambda: None)
        plain = make_sample(tmp_path / "plain", folded=True)
    folder = plain.lay_out(tmp_path / "log")
    assert plain.files["index.db"][20] == 0
    for read_only in (True, False):
        assert plain.outcome(folder, read_only=read_only) is None


def test_page_checksums_are_not_spoilt_by_a_sqlite_that_cannot_write_them(
    folded: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    assert folded.files["index.db"][20] == 8
    monkeypatch.setattr("penstock.log.index.page_seal_vfs", lambda: None)
    with pytest.raises(LogVersionUnsupported):
        open_log(folder)
    assert folded.outcome(folder, read_only=True) is None


# ------------------------------------------------------------------ permissions


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder whose parents anybody may pass, for tests that give up being root."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-damage-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], object]) -> tuple[str, str]:
    """Run `work` in a child without root's rights; return the error's class and message."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        answer = ("no error", "")
        try:
            if is_root():
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work()
        except StreamError as error:
            answer = (type(error).__name__, error.message)
        except BaseException as error:
            answer = (f"not ours: {type(error).__name__}", str(error))
        finally:
            os.write(write_end, json.dumps(answer).encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return found[0], found[1]


def protect(folder: Path, folder_mode: int, file_mode: int) -> None:
    for path in folder.rglob("*"):
        path.chmod(folder_mode if path.is_dir() else file_mode)
    folder.chmod(folder_mode)


def read_as_acknowledged(sample: Sample, folder: Path) -> None:
    with open_log(folder, read_only=True) as log:
        assert content(log) == sample.content


def test_a_read_only_folder_can_be_read_and_refuses_writers(
    folded: Sample, open_folder: Path
) -> None:
    folder = folded.lay_out(open_folder / "log")
    protect(folder, 0o555, 0o444)
    assert as_nobody(lambda: read_as_acknowledged(folded, folder))[0] == "no error"
    assert as_nobody(lambda: open_log(folder))[0] == "LogReadOnly"
    assert files_of(folder) == folded.files


def test_a_read_only_folder_with_an_unfolded_log_says_what_to_do(
    crashed: Sample, open_folder: Path
) -> None:
    folder = crashed.lay_out(open_folder / "log")
    protect(folder, 0o555, 0o444)
    kind, message = as_nobody(lambda: open_log(folder, read_only=True))
    assert kind == "LogReadOnly"
    assert "write-ahead log" in message
    assert "-shm" in message
    protect(folder, 0o755, 0o644)
    assert crashed.outcome(folder, read_only=False) is None


@pytest.mark.parametrize("hidden", [".", "penstock-log.json", "index.db"])
def test_what_may_not_be_read_is_named(folded: Sample, open_folder: Path, hidden: str) -> None:
    folder = folded.lay_out(open_folder / "log")
    (folder / hidden).chmod(0)
    for read_only in (True, False):
        kind, _ = as_nobody(lambda mode=read_only: open_log(folder, read_only=mode))  # type: ignore[misc]
        assert kind == "LogReadOnly"
    (folder / hidden).chmod(0o755)
    assert folded.outcome(folder, read_only=False) is None


def test_a_segment_that_may_not_be_read_is_not_called_damaged(
    folded: Sample, open_folder: Path
) -> None:
    folder = folded.lay_out(open_folder / "log")
    protect(folder, 0o755, 0o644)
    (folder / folded.segment()).chmod(0)
    kind, message = as_nobody(lambda: read_as_acknowledged(folded, folder))
    assert kind == "LogReadOnly"
    assert folded.segment() in message


def test_creating_where_nothing_may_be_written(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    kind, _ = as_nobody(lambda: open_log(open_folder / "new", create=True))
    assert kind == "LogReadOnly"
    assert list(open_folder.iterdir()) == []


# ------------------------------------------------------------------ full and failing disks


LARGE, SMALL = b"x" * 5_000, b"small"


@pytest.mark.parametrize(
    ("number", "kind", "file", "body", "expected"),
    [
        (errno.ENOSPC, "write", ".seg", LARGE, DiskFull),
        (errno.EDQUOT, "create", ".seg", LARGE, DiskFull),
        (errno.ENOSPC, "write", "-wal", SMALL, DiskFull),
        (errno.EIO, "write", ".seg", LARGE, LogIOError),
        (errno.EIO, "sync", ".seg", LARGE, LogIOError),
        (errno.EIO, "write", "-wal", SMALL, LogIOError),
        (errno.EIO, "sync", "-wal", SMALL, OutcomeUnknown),
        (errno.EROFS, "write", ".seg", LARGE, LogReadOnly),
    ],
)
def test_a_failing_disk_is_named_and_loses_nothing(
    tmp_path: Path, number: int, kind: str, file: str, body: bytes, expected: type[LogError]
) -> None:
    failing = False

    def fail(call: str, path: str, index: int) -> int | None:
        return number if failing and call == kind and path.endswith(file) else None

    folder = tmp_path / "log"
    files = TracedFiles(folder, fail)
    log = open_log(folder, create=True, config=CONFIG, files=files)
    acknowledged = [log.append([data(n, body + b"%d" % n)]) for n in range(1, 4)]
    if kind == "create":
        log.close()
        log = open_log(folder, config=CONFIG, files=files)  # the next large body begins a segment
    failing = True
    with pytest.raises(expected):
        log.append([data(4, body)])
    failing = False
    log.close()
    with open_log(folder, config=CONFIG) as again:
        found = again.read(["orders"], START, 10)
        assert [(each.position,) for each in found[:3]] == acknowledged
        assert [bytes(each.body) for each in found[:3]] == [body + b"%d" % n for n in (1, 2, 3)]
        assert again.append([data(4, body)]) == (4,)  # in the log before or not: once
        assert len(again.read(["orders"], START, 10)) == 4
    files.unregister()


# ------------------------------------------------------------------ many writers


ROLLER = """
import os, sys
os.urandom = lambda count: b"\\x07" * count
from penstock.config import LogConfig
from penstock.log import open_log
from penstock.log.record import Entry, RecordKind
folder, name = sys.argv[1:]
config = LogConfig(inline_bytes_max=0, segment_bytes_max=4096)
with open_log(folder, config=config) as log:
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(1, 31):
        log.append([Entry(RecordKind.DATA, ("all", name), name, 1, n, name.encode() * 300)])
"""


def test_two_processes_that_roll_to_the_same_segment_name_do_not_meet(tmp_path: Path) -> None:
    """Segment names come from chance; here both processes draw the same."""
    folder = tmp_path / "log"
    open_log(folder, create=True).close()
    names = ("left", "right")
    rollers = [
        subprocess.Popen(
            [sys.executable, "-c", ROLLER, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for roller in rollers:
        assert roller.stdout is not None
        assert roller.stdout.readline() == "ready\n"
    for roller in rollers:
        roller.communicate("go\n", timeout=60)
        assert roller.returncode == 0
    with open_log(folder, read_only=True) as log:
        for name in names:
            records = log.read([name], START, 100)
            assert [record.sequence for record in records] == list(range(1, 31))
            assert {bytes(record.body) for record in records} == {name.encode() * 300}
    assert {path.name[:16] for path in (folder / "segments").iterdir()} == {"07" * 8}


# ------------------------------------------------------------------ bad input


BAD_NAMES = ["", "a b", "a\n", "../etc", "a//b", "a/", "/a", "é", "a" * 65, "a\0", "a/b/c/d/e/f/g"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_and_change_nothing(
    folded: Sample, tmp_path: Path, name: str
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    with open_log(folder, config=CONFIG) as log:
        calls: list[Callable[[], object]] = [
            lambda: log.append([Entry(RecordKind.DATA, (name,), "fresh", 1, 1, b"")]),
            lambda: log.append([Entry(RecordKind.DATA, ("a",), name, 1, 1, b"")]),
            lambda: log.read([name], START, 1),
            lambda: log.last(name),
            lambda: log.trim(name, Position(1)),
            lambda: log.put(name, b""),
            lambda: log.get(name),
        ]
        for call in calls:
            with pytest.raises(InvalidName):
                call()
    assert folded.outcome(folder, read_only=True) is None


def tamper(folder: Path, statement: str, values: tuple[Any, ...] = ()) -> None:
    """Change the index as somebody would who can write to the folder, page checksums included."""
    connection = connect(folder / "index.db", None, read_only=False)
    connection.execute(statement, values)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    connection.close()


def test_a_bad_metadata_key_is_refused_when_read_back(folded: Sample, tmp_path: Path) -> None:
    folder = folded.lay_out(tmp_path / "log")
    key = "../../etc"
    tamper(folder, "INSERT INTO metadata VALUES(?,1,?,?)", (key, metadata_seal(key, 1, b""), b""))
    with open_log(folder, read_only=True) as log, pytest.raises(IndexDamaged):
        log.keys()


@pytest.mark.parametrize(
    ("kind", "producer", "tags"),
    [(1, "writer1", "all ../../etc"), (1, "wri\nter", "all"), (77, "writer1", "all")],
)
def test_a_forged_row_is_refused_when_read_back(
    folded: Sample, tmp_path: Path, kind: int, producer: str, tags: str
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    row = folded.content.records["all"][0]
    with open_log(folder, read_only=True) as log:
        checksum = xxhash.xxh3_64_intdigest(bytes(log.read(["all"], START, 1)[0].body)) >> 1
    content = content_seal(
        kind, producer, 1, 1, tags, row[6], None, None, len(bytes(row[7])), checksum,  # type: ignore[arg-type]
    )  # fmt: skip
    seal = seal_at(content, 1)
    tamper(
        folder,
        "UPDATE record SET kind = ?, producer = ?, tags = ?, seal = ? WHERE position = 1",
        (kind, producer, tags, seal),
    )
    with open_log(folder, read_only=True) as log, pytest.raises(IndexDamaged):
        log.read(["all"], START, 1)


def test_an_oversized_record_is_refused_and_nothing_is_appended(
    folded: Sample, tmp_path: Path
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    config = LogConfig(body_bytes_max=10_000, append_bytes_max=20_000, inline_bytes_max=1_000)
    with open_log(folder, config=config) as log:
        with pytest.raises(RecordTooLarge):
            log.append([data(1, bytes(10_001))])
        with pytest.raises(RecordTooLarge):
            log.append([data(n, bytes(9_000)) for n in range(1, 4)])
    assert folded.outcome(folder, read_only=True) is None


def lying_unit(raw_bytes: int, payload: bytes) -> bytes:
    """A unit whose checksums are right and whose payload is not what its header says."""
    unit = punit.encode(pa.record_batch({"a": pa.array(range(1_000))}), codec=punit.Codec.ZSTD)
    header = punit.inspect(unit)
    forged = bytearray(bytes(unit)[: header.payload_at] + payload)
    forged[24:32] = struct.pack("<Q", raw_bytes)
    forged[32:40] = struct.pack("<Q", len(payload))
    forged[60:64] = struct.pack("<I", xxhash.xxh3_64_intdigest(bytes(forged[:60])) & 0xFFFF_FFFF)
    return bytes(forged) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(forged)))


def test_a_decompression_bomb_read_back_from_the_log_does_not_go_off(tmp_path: Path) -> None:
    bomb = bytes(memoryview(pa.Codec("zstd").compress(bytes(64 << 20))))
    assert len(bomb) < 20_000
    honest_size, lying_size = lying_unit(1 << 40, bomb), lying_unit(8_000, bomb)
    good = bytes(punit.encode(pa.record_batch({"a": [1, 2]})))
    with open_log(tmp_path / "log", create=True, config=CONFIG) as log:
        bodies = (good, honest_size, lying_size)
        log.append([data(n, body) for n, body in enumerate(bodies, 1)])
        first, second, third = log.read(["orders"], START, 10)
        before = pa.total_allocated_bytes()
        with pytest.raises(PUnitTooLarge):
            punit.decode(second.body)
        with pytest.raises(PUnitDamaged):
            punit.decode(third.body)
        assert pa.total_allocated_bytes() - before < 1 << 20
        assert punit.decode(first.body).to_pydict() == {"a": [1, 2]}


# ------------------------------------------------------------------ not a log


def test_a_folder_that_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for create in (False, True):
        with pytest.raises(NotALog):
            open_log(tmp_path, create=create)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("not a folder")
    for create in (False, True):
        with pytest.raises(NotALog):
            open_log(path, create=create)
    assert path.read_text() == "not a folder"


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        open_log(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_doorbell_that_is_ahead_of_the_index_is_a_lost_tail(
    folded: Sample, tmp_path: Path
) -> None:
    folder = folded.lay_out(tmp_path / "log")
    (folder / "bell").write_bytes(bell_bytes(folded.content.tail + 1))
    for read_only in (True, False):
        error = folded.outcome(folder, read_only=read_only)
        assert isinstance(error, TailLost)
        assert error.details["acknowledged"] == folded.content.tail + 1


def test_the_sample_has_something_of_everything(folded: Sample, crashed: Sample) -> None:
    """The sweeps above are worth what the sample holds."""
    assert len([name for name in folded.files if name.endswith(".seg")]) > 3
    assert len(folded.files["index.db"]) > 15 * 4_096
    assert len(folded.content.records["all"]) == folded.content.tail
    assert len(crashed.files[WAL]) > 100 * 4_096
    assert entry(5).body != entry(10).body
