"""A growing folder as a source: discovery, replay, files that change, and what is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors import folder_shares
from penstock.connectors.contract import Offset, Source
from penstock.connectors.folder import FolderOptions, FolderSource, Format
from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_pages import BATCH_BYTES_MAX, PAGE_ROWS, ROW_BYTES_MAX
from penstock.errors import (
    InvalidArgument,
    InvalidOffset,
    MalformedInput,
    PathRefused,
    SourceChanged,
    SourceError,
    SourceShrunk,
    SourceVanished,
    StreamError,
)
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog
from tests.connectors.contract import SourceContract, read_through

PAIR = pa.schema([("a", pa.int64()), ("b", pa.string())])
BAD = {"jsonl": b'{"a":"x"}\n', "csv": b"x,y\n", "text": b"\xff\n"}


def drop(folder: Path, name: str, content: bytes) -> Path:
    """Let a file appear whole, as the source asks for."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / f".{path.name}").write_bytes(content)
    os.rename(path.parent / f".{path.name}", path)
    return path


def content(format: str, first: int, end: int) -> bytes:
    """A file with a row for each number."""
    if format == "jsonl":
        return b"".join(b'{"a":%d,"b":"%d"}\n' % (n, n) for n in range(first, end))
    if format == "csv":
        return b"".join(b"%d,%d\n" % (n, n) for n in range(first, end))
    if format == "text":
        return b"".join(b"%d\n" % n for n in range(first, end))
    numbers = range(first, end)
    table = pa.table({"a": pa.array(numbers, pa.int64()), "b": [str(n) for n in numbers]}, PAIR)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7)
    return bytes(sink.getvalue())


def text_source(folder: Path, registry: MemoryLog | None = None, **options: Any) -> FolderSource:
    return FolderSource(folder, "text", registry or MemoryLog(), options=FolderOptions(**options))


def values(source: Source, offset: Offset = None) -> list[str]:
    """What a text source has to offer from an offset on."""
    return [row[0].strip("'") for row in read_through(source, lambda: 5, offset).rows]


class FolderContract(SourceContract):
    """Several files, two of them empty, read in both modes."""

    format: Format
    mode = "fail"
    part_bytes = 1 << 20  # more than any file has

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Source]:
        rows = {"b": (0, 20), "a": (20, 21), "none": (21, 21), "z": (21, 60), "zz": (60, 60)}
        for name, (first, end) in rows.items():
            piece = content(self.format, first, end)
            if self.mode == "deadletter" and self.format in BAD:
                lines = piece.splitlines(keepends=True)
                lines[1:1] = [BAD[self.format]]
                piece = b"".join([*lines, BAD[self.format], BAD[self.format]])
            drop(tmp_path, name, piece)
        registry = MemoryLog()
        options = FolderOptions(
            bounded=True,
            mode=self.mode,  # type: ignore[arg-type]
            part_bytes=self.part_bytes,
        )
        schema = None if self.format == "text" else PAIR
        return lambda: FolderSource(tmp_path, self.format, registry, schema, options)


class TestJsonContract(FolderContract):
    format = "jsonl"


class TestJsonDeadLetterContract(FolderContract):
    format, mode = "jsonl", "deadletter"


class TestCsvDeadLetterContract(FolderContract):
    format, mode, part_bytes = "csv", "deadletter", 50


class TestTextContract(FolderContract):
    format, part_bytes = "text", 40


class TestTextDeadLetterContract(FolderContract):
    format, mode = "text", "deadletter"


class TestParquetContract(FolderContract):
    format = "parquet"


class TestParquetPartsContract(FolderContract):
    format, part_bytes = "parquet", 300


def test_files_of_any_name_are_read_in_the_order_they_were_found(tmp_path: Path) -> None:
    source = text_source(tmp_path)
    assert source.read(source.initial_offset(), 10).idle
    drop(tmp_path, "m", b"m1\nm2\n")
    drop(tmp_path, "n", b"n1\n")
    first = read_through(source, lambda: 10)
    assert not first.ended
    drop(tmp_path, "a", b"a1\n")
    drop(tmp_path, "z", b"z1\n")
    assert values(source, first.stops[-1][0]) == ["a1", "z1"]
    assert values(source) == ["m1", "m2", "n1", "a1", "z1"]


def test_a_later_process_reads_the_same_files_in_the_same_order(tmp_path: Path) -> None:
    registry = MemoryLog()
    drop(tmp_path, "m", b"m1\nm2\n")
    before = read_through(text_source(tmp_path, registry), lambda: 1)
    drop(tmp_path, "a", b"a1\n")
    assert values(text_source(tmp_path, registry)) == ["m1", "m2", "a1"]
    for offset, rows, _ in before.stops:
        expected = ["m1", "m2", "a1"][rows:]
        assert values(text_source(tmp_path, registry), offset) == expected


def test_a_file_found_before_the_crash_and_never_committed_keeps_its_place(tmp_path: Path) -> None:
    registry = MemoryLog()
    drop(tmp_path, "m", b"m1\n")
    doomed = text_source(tmp_path, registry)
    doomed.read(doomed.initial_offset(), 1)
    drop(tmp_path, "a", b"a1\n")
    assert values(text_source(tmp_path, registry)) == ["m1", "a1"]


def test_a_bounded_folder_ends_with_what_was_there_at_the_first_look(tmp_path: Path) -> None:
    registry = MemoryLog()
    drop(tmp_path, "m", b"m1\n")
    source = text_source(tmp_path, registry, bounded=True)
    assert read_through(source, lambda: 9).ended
    drop(tmp_path, "a", b"a1\n")
    assert values(text_source(tmp_path, registry, bounded=True)) == ["m1"]
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = text_source(empty, bounded=True)
    assert nothing.read(nothing.initial_offset(), 5).ended


def test_parts_share_one_order_while_files_arrive(tmp_path: Path) -> None:
    registry = MemoryLog()
    draw = random.Random(3)
    parts = text_source(tmp_path, registry).split(3)
    offsets = [part.initial_offset() for part in parts]
    seen: list[list[str]] = [[] for _ in parts]
    for step in range(300):
        if draw.random() < 0.3:
            name = f"{draw.randrange(10**6):06d}-{step}"
            drop(tmp_path, name, b"".join(b"%s/%d\n" % (name.encode(), row) for row in range(4)))
        number = draw.randrange(3)
        answer = parts[number].read(offsets[number], draw.randint(1, 6))
        seen[number] += answer.batch[0].to_pylist() if answer.batch is not None else []
        offsets[number] = answer.next_offset
    for number, part in enumerate(parts):
        seen[number] += values(part, offsets[number])
    files = sorted(path.name for path in tmp_path.iterdir())
    expected = Counter(f"{name}/{row}" for name in files for row in range(4))
    assert Counter(value for part in seen for value in part) == expected
    again = text_source(tmp_path, registry).split(3)
    assert [values(part) for part in again] == seen


def test_what_was_read_may_be_removed(tmp_path: Path) -> None:
    source = text_source(tmp_path)
    first = drop(tmp_path, "a", b"1\n2\n")
    seen = read_through(source, lambda: 10)
    first.unlink()
    drop(tmp_path, "b", b"3\n")
    assert values(source, seen.stops[-1][0]) == ["3"]
    drop(tmp_path, "a", b"other\n")
    end = read_through(source, lambda: 10, seen.stops[-1][0]).stops[-1][0]
    assert source.read(end, 10).idle, "a name counts once"


@pytest.mark.parametrize("format", ["text", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda path: path.unlink(), SourceVanished),
        (lambda path: os.truncate(path, path.stat().st_size // 2), SourceShrunk),
        (lambda path: path.write_bytes(b""), SourceShrunk),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), SourceChanged),
        (lambda path: os.utime(path, ns=(1, 1)), SourceChanged),
        (lambda path: (path.unlink(), path.mkdir()), PathRefused),
    ],
)
def test_a_file_that_does_not_stay_as_it_was_begun_stops_the_source(
    tmp_path: Path, format: Format, harm: Callable[[Path], object], error: type[StreamError]
) -> None:
    drop(tmp_path, "a", content(format, 0, 3))
    path = drop(tmp_path, "b", content(format, 3, 30))
    schema = None if format == "text" else PAIR
    registry = MemoryLog()
    source = FolderSource(tmp_path, format, registry, schema)
    offset = source.read(source.initial_offset(), 3).next_offset
    offset = source.read(offset, 3).next_offset
    harm(path)
    for reader in (source, source, FolderSource(tmp_path, format, registry, schema)):
        with pytest.raises(error, match="b") as caught:
            reader.read(offset, 3)
        assert caught.value.details["file"] == "b"
    source.close()


@pytest.mark.parametrize("format", ["text", "jsonl", "csv", "parquet"])
def test_a_file_that_was_not_begun_is_read_as_it_is_then(tmp_path: Path, format: Format) -> None:
    """Half a copy may be there when the folder is looked at; only reading decides."""
    drop(tmp_path, "a", content(format, 0, 3))
    whole = content(format, 3, 30)
    path = drop(tmp_path, "b", whole[: len(whole) // 2])
    schema = None if format == "text" else PAIR
    registry = MemoryLog()
    source = FolderSource(tmp_path, format, registry, schema)
    offset = source.read(source.initial_offset(), 3).next_offset
    assert offset == {"file": 1, "byte": 0, "row": 0}
    path.write_bytes(whole)
    for reader in (source, FolderSource(tmp_path, format, registry, schema)):
        assert len(read_through(reader, lambda: 5, offset).rows) == 27
    path.unlink()
    with pytest.raises(SourceVanished, match="changedFiles"):
        source.read(offset, 3)
    lax = FolderSource(tmp_path, format, registry, schema, FolderOptions(changed="skip"))
    assert read_through(lax, lambda: 5, offset).rows == []


def test_a_file_that_grows_while_it_is_read_is_told_before_it_is_left(tmp_path: Path) -> None:
    path = drop(tmp_path, "a", b"1\n2\n")
    source = text_source(tmp_path)
    offset = source.read(source.initial_offset(), 1).next_offset
    reader = source._open[2]  # type: ignore[index]
    whole_read = reader.read
    reader.read = lambda *at: (path.write_bytes(b"1\n2\n3\n"), whole_read(*at))[1]  # type: ignore[method-assign]
    with pytest.raises(SourceChanged, match="4 bytes then, 6 now"):
        source.read(offset, 5)


def test_a_changed_file_is_gone_on_with_as_asked(tmp_path: Path) -> None:
    registry = MemoryLog()
    path = drop(tmp_path, "a", b"1\n2\n")
    drop(tmp_path, "b", b"9\n")
    source = text_source(tmp_path, registry)
    offset = source.read(source.initial_offset(), 1).next_offset
    path.write_bytes(b"1\n2\n3\n")
    with pytest.raises(SourceChanged, match="changedFiles to skip"):
        source.read(offset, 5)
    assert values(text_source(tmp_path, registry, changed="skip"), offset) == ["9"]
    assert values(text_source(tmp_path, registry, changed="continue"), offset) == ["2", "3", "9"]
    path.write_bytes(b"")
    with pytest.raises(SourceShrunk, match="changedFiles to skip") as shrunk:
        values(text_source(tmp_path, registry, changed="continue"), offset)
    path.unlink()
    with pytest.raises(SourceVanished, match="changedFiles to skip") as vanished:
        values(text_source(tmp_path, registry, changed="continue"), offset)
    for refused in (shrunk, vanished):
        assert "to continue" not in refused.value.message, "which is what was tried"
    assert values(text_source(tmp_path, registry, changed="skip"), offset) == ["9"]


def test_a_file_that_changes_at_each_try_is_still_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop(tmp_path, "a", b"1\n")
    source = text_source(tmp_path)
    check = OpenFile.check

    def check_late(file: OpenFile, byte: int, row: int) -> None:
        with path.open("ab") as grows:
            grows.write(b"2\n")
        check(file, byte, row)

    with monkeypatch.context() as busy:
        busy.setattr(OpenFile, "check", check_late)
        answer = source.read(source.initial_offset(), 5)
    assert (answer.batch, answer.ended, answer.pending) == (None, False, True)
    assert values(source, answer.next_offset)[0] == "1"


def test_a_folder_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    source = text_source(tmp_path / "none")
    with pytest.raises(SourceVanished, match="create it or put it back, or correct the path"):
        source.read(source.initial_offset(), 5)


@pytest.mark.parametrize("bounded", [False, True])
def test_a_file_is_begun_when_nobody_has_written_to_it_for_a_while(
    tmp_path: Path, bounded: bool
) -> None:
    clock = ManualClock(now_us=1_000_000_000)
    options = FolderOptions(settle_ms=100, bounded=bounded)
    source = FolderSource(tmp_path, "text", MemoryLog(), options=options, clock=clock)
    ages_us = {"old": 100_000, "fresh": 99_999, "to-come": -2_000_000}
    for name, age_us in ages_us.items():
        path = drop(tmp_path, name, name.encode() + b"\n")
        os.utime(path, ns=(0, (clock.now_us() - age_us) * 1_000))
    first = read_through(source, lambda: 5, reads_max=3)
    assert [row[0] for row in first.rows] == ["'old'", "'to-come'"]
    answer = source.read(first.stops[-1][0], 5)
    assert (answer.pending, answer.ended) == (True, False), "there is more to come"
    clock.advance(0.001)
    assert values(source, first.stops[-1][0]) == ["fresh"]
    assert not source.read({"file": 3, "byte": 0, "row": 0}, 5).pending


def test_names_are_shown_on_one_line_whatever_they_are_made_of(tmp_path: Path) -> None:
    for name in (b"a\nb", b"\xff\x1b[31m", "é\u202e".encode()):
        folder = tmp_path / name.hex()
        folder.mkdir()
        path = os.path.join(os.fsencode(folder), name)
        with open(path, "wb") as file:
            file.write(b"not json\n")
        with pytest.raises(MalformedInput) as caught:
            values(FolderSource(folder, "jsonl", MemoryLog(), PAIR))
        assert str(caught.value).isprintable()
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(PathRefused) as refused:
            values(FolderSource(folder, "jsonl", MemoryLog(), PAIR))
        assert str(refused.value).isprintable()


def test_links_in_a_circle_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("g")
    (tmp_path / "g").symlink_to("f")
    with pytest.raises(SourceError, match="cannot look at f"):
        values(text_source(tmp_path))


def test_a_file_put_back_is_read_on(tmp_path: Path) -> None:
    path = drop(tmp_path, "a", b"1\n2\n3\n")
    source = text_source(tmp_path)
    offset = source.read(source.initial_offset(), 1).next_offset
    os.rename(path, tmp_path / "_aside")
    with pytest.raises(SourceVanished):
        source.read(offset, 1)
    os.rename(tmp_path / "_aside", path)
    assert values(source, offset) == ["2", "3"]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = text_source(tmp_path / "nowhere")
    with pytest.raises(SourceVanished, match="nowhere"):
        source.read(source.initial_offset(), 1)


def test_hidden_files_and_folders_are_ignored(tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".part.crc", "sub/x", "_temporary/0/y", ".git/z", "a.txt", "b.log"):
        drop(tmp_path, name, name.encode() + b"\n")
    assert values(text_source(tmp_path)) == ["a.txt", "b.log"]
    assert sorted(values(text_source(tmp_path, recursive=True))) == ["a.txt", "b.log", "sub/x"]
    assert values(text_source(tmp_path, pattern="*.txt")) == ["a.txt"]


def test_links_are_followed_inside_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "sub/real", b"real\n")
    drop(tmp_path, "secret/file", b"secret\n")
    (folder / "inside").symlink_to(folder / "sub" / "real")
    (folder / "dangling").symlink_to(folder / "not-yet")
    assert values(text_source(folder)) == ["real"]
    (folder / "folder").symlink_to(folder / "sub")
    assert values(text_source(folder, recursive=True)) == ["real", "real"]
    (folder / "outside").symlink_to(tmp_path / "secret" / "file")
    with pytest.raises(PathRefused, match="outside"):
        values(text_source(folder))
    (folder / "outside").unlink()
    (folder / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(PathRefused, match="out"):
        values(text_source(folder, recursive=True))


def test_a_link_that_is_turned_outside_later_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    drop(folder, "_real", b"inside\n")
    secret = drop(tmp_path, "secret", b"secret\n")
    os.utime(secret, ns=(5, 5))
    os.utime(folder / "_real", ns=(5, 5))
    (folder / "link").symlink_to(folder / "_real")
    registry = MemoryLog()
    source = text_source(folder, registry)
    os.utime(drop(folder, "a", b"first\n"), ns=(4, 4))
    offset = source.read(source.initial_offset(), 1).next_offset
    (folder / "link").unlink()
    (folder / "link").symlink_to(secret)
    with pytest.raises(PathRefused, match="link"):
        source.read(offset, 5)


def test_pipes_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PathRefused, match="pipe"):
        values(text_source(tmp_path))


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    drop(tmp_path, "in/a", b"1\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert values(text_source(tmp_path / "link")) == ["1"]


@pytest.mark.parametrize("format", ["jsonl", "csv", "text"])
def test_a_malformed_line_stops_the_source_and_is_named(tmp_path: Path, format: Format) -> None:
    drop(tmp_path, "ok", content(format, 0, 3))
    drop(tmp_path, "wrong", content(format, 0, 9) + BAD[format] * 2 + content(format, 9, 20))
    schema = None if format == "text" else PAIR
    source = FolderSource(tmp_path, format, MemoryLog(), schema)
    with pytest.raises(MalformedInput, match="line 10 of wrong") as caught:
        read_through(source, lambda: 1000)
    assert caught.value.details["file"] == "wrong"
    assert caught.value.details["line"] == 10
    assert caught.value.details["text"] == BAD[format].decode("utf-8", "backslashreplace").strip()
    with pytest.raises(MalformedInput, match="line 10 of wrong"):
        read_through(source, lambda: 2)


def test_the_text_in_an_error_is_cut(tmp_path: Path) -> None:
    drop(tmp_path, "a", b"x" * 100_000 + b"\n")
    with pytest.raises(MalformedInput) as caught:
        values(FolderSource(tmp_path, "jsonl", MemoryLog(), PAIR))
    assert len(str(caught.value)) < 1_000


def test_a_header_that_does_not_serve_stops_the_source(tmp_path: Path) -> None:
    drop(tmp_path, "a", b"\na,c\n1,2\n")
    options = FolderOptions(header=True, check_header=True)
    source = FolderSource(tmp_path, "csv", MemoryLog(), PAIR, options)
    with pytest.raises(MalformedInput, match="where the schema has the column b") as caught:
        read_through(source, lambda: 10)
    assert caught.value.details["line"] == 2


@pytest.mark.parametrize("format", ["jsonl", "csv", "text"])
def test_compressed_lines_are_set_aside_by_their_name(tmp_path: Path, format: Format) -> None:
    drop(tmp_path, "a.GZ", b"\x1f\x8b")
    drop(tmp_path, "b", content(format, 0, 3))
    schema = None if format == "text" else PAIR
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(tmp_path, format, MemoryLog(), schema, options)
    seen = read_through(source, lambda: 10)
    assert len(seen.rows) == 3
    assert [(entry["file"], entry["line"]) for entry in seen.rejected] == [("a.GZ", 0)]
    assert "compressed" in seen.rejected[0]["reason"]


def test_large_files_are_read_in_blocks(tmp_path: Path) -> None:
    drop(tmp_path, "a", b"".join(b"%07d\n" % number for number in range(200_000)))
    source = text_source(tmp_path, block_bytes=1 << 16, bounded=True)
    offset, total, ended = source.initial_offset(), 0, False
    while not ended:
        answer = source.read(offset, 1 << 20)
        assert answer.batch.nbytes <= 2 << 16
        assert answer.batch[0][0].as_py() == f"{total:07d}"
        total += answer.rows
        offset, ended = answer.next_offset, answer.ended
    assert total == 200_000


def test_many_empty_files_do_not_hold_a_read_up(tmp_path: Path) -> None:
    for number in range(150):
        drop(tmp_path, f"{number:03d}", b"")
    drop(tmp_path, "last", b"1\n")
    source = text_source(tmp_path, bounded=True)
    answer = source.read(source.initial_offset(), 10)
    assert answer.batch is None
    assert not answer.idle
    assert not answer.ended
    assert values(source, answer.next_offset) == ["1"]


def parts_of(folder: Path, format: Format, part_bytes: int, readers: int, **options: Any) -> Any:
    """The rows and rejects of a folder whose files are read in parts, in any order."""
    schema = {"text": None, "csv": pa.schema([("a", pa.int64())])}.get(format, PAIR)
    chosen = FolderOptions(mode="deadletter", bounded=True, part_bytes=part_bytes, **options)
    whole = FolderSource(folder, format, MemoryLog(), schema, chosen)
    rng = random.Random(part_bytes)
    seen = [read_through(part, lambda: rng.randint(1, 9)) for part in whole.split(readers)]
    rows = Counter(row for reading in seen for row in reading.rows)
    return rows, sorted(tuple(entry.values()) for reading in seen for entry in reading.rejected)


@pytest.mark.parametrize("format", ["text", "csv", "parquet"])
def test_a_file_in_parts_has_the_rows_of_the_whole(tmp_path: Path, format: Format) -> None:
    """Wherever the parts begin: inside a line, a line end, a header or a row group."""
    rng = random.Random(5)
    if format == "parquet":
        raw = content(format, 0, 50)
    else:
        ends = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r\n", b"\r\n\r\n"]
        lines = [b"%d" % rng.randrange(10 ** rng.randint(1, 9)) for _ in range(50)]
        lines[20:22] = [b"\xff", b"7,8"]
        raw = b"a" * 9 + b"".join(rng.choice(ends) + line for line in lines)
    drop(tmp_path, "one", raw)
    drop(tmp_path, "two", content(format, 100, 110) if format == "parquet" else b"5\n6")
    options = {"header": True} if format == "csv" else {}
    rows, rejects = parts_of(tmp_path, format, 1 << 20, 1, **options)
    assert len(rows) > 40
    assert format == "parquet" or rejects
    for part_bytes in [1, 2, 3, 7, 10, 25, 100, 333, len(raw) - 1]:
        if len(raw) // part_bytes < 500:
            assert parts_of(tmp_path, format, part_bytes, 3, **options) == (rows, rejects)


@pytest.mark.parametrize(
    ("groups", "parts", "readers"), [(1, 4, 2), (1, 4, 4), (8, 32, 2), (8, 32, 4), (5, 2, 2)]
)
def test_row_groups_are_dealt_fairly_however_files_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int, parts: int, readers: int
) -> None:
    monkeypatch.setattr(folder_shares, "FILE_COST_BYTES", 0)  # files that are as good as large
    files, rows = 8, content("parquet", 0, 7 * groups)
    for name in range(files):
        drop(tmp_path, f"{name}", rows)
    part_bytes = -(-len(rows) // parts)
    options = FolderOptions(bounded=True, part_bytes=part_bytes)
    whole = FolderSource(tmp_path, "parquet", MemoryLog(), PAIR, options)
    read = [len(read_through(part, lambda: 99).rows) / 7 for part in whole.split(readers)]
    assert sum(read) == files * groups
    in_a_part = max(1, groups // parts)
    assert max(read) <= files * groups / readers + in_a_part


def test_lines_before_a_part_are_counted_over_blocks(tmp_path: Path) -> None:
    block = 1 << 16
    drop(tmp_path, "one", b"x" * (block - 1) + b"\r\n\xff\n")  # a line end in two blocks
    _, rejects = parts_of(tmp_path, "text", block, 2, block_bytes=block)
    assert [(name, line) for name, line, _, _ in rejects] == [("one", 2)]


@pytest.mark.parametrize(("format", "told"), [("jsonl", "compressed"), ("parquet", "not a")])
def test_a_file_that_is_set_aside_whole_is_so_once(
    tmp_path: Path, format: Format, told: str
) -> None:
    drop(tmp_path, "one.gz", b"x" * 500)
    rows, rejects = parts_of(tmp_path, format, 100, 2)
    assert not rows
    assert [(name, line) for name, line, _, _ in rejects] == [("one.gz", 0)]
    assert told in rejects[0][3]


def test_a_file_in_parts_stays_as_it_was_found(tmp_path: Path) -> None:
    path = drop(tmp_path, "one", b"1\n2\n3\n4\n")
    registry = MemoryLog()

    def second(**options: Any) -> Source:
        return text_source(tmp_path, registry, part_bytes=4, **options).split(2)[1]

    assert values(second()) == ["3", "4"]
    path.write_bytes(b"1\n2\n3\n4\n5\n")
    with pytest.raises(SourceChanged):
        values(second())
    assert values(second(changed="skip")) == []
    assert values(second(changed="continue")) == ["3", "4", "5"]


def test_offsets_that_cannot_be_are_refused(tmp_path: Path) -> None:
    drop(tmp_path, "a", b"1\n2\n")
    source = text_source(tmp_path)
    source.read(source.initial_offset(), 1)
    version = {"size": 4, "mtime_ns": (tmp_path / "a").stat().st_mtime_ns}
    for file, byte, row in ((0, 99, 1), (2, 0, 0), (1, 1, 1), (0, 0, 3), (0, -1, 0), (0, True, 1)):
        begun = version if byte or row else {}
        with pytest.raises(InvalidOffset):
            source.read({"file": file, "byte": byte, "row": row, **begun}, 5)
    for strange in ({"byte": 2, "row": 1}, {"byte": 0, "row": 0, **version}, {"byte": 0}, {}):
        with pytest.raises(InvalidOffset):
            source.read({"file": 0, **strange}, 5)
    with pytest.raises(InvalidOffset, match="registry"):
        text_source(tmp_path).read({"file": 7, "byte": 0, "row": 0}, 5)
    second = text_source(tmp_path).split(2)[1]
    with pytest.raises(InvalidOffset):
        second.read({"file": 0, "byte": 2, "row": 1, **version}, 5)


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    for wrong in ({"mode": "ignore"}, {"block_bytes": 0}, {"line_bytes_max": 0}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            FolderOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="format"):
        FolderSource(tmp_path, "xml", MemoryLog(), PAIR)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="schema"):
        FolderSource(tmp_path, "jsonl", MemoryLog())
    with pytest.raises(InvalidArgument, match="twice"):
        FolderSource(tmp_path, "jsonl", MemoryLog(), pa.schema([PAIR[0], PAIR[0]]))


def test_an_offset_is_small_however_many_files_there_are(tmp_path: Path) -> None:
    for number in range(700):
        drop(tmp_path, f"{number:04d}", b"x\n")
    source = text_source(tmp_path)
    end = read_through(source, lambda: 100).stops[-1][0]
    assert end == {"file": 700, "byte": 0, "row": 0}
    assert len(json.dumps(end)) < 60


def write_parquet(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path.parent / f".{path.name}", **options)
    os.rename(path.parent / f".{path.name}", path)


def test_parquet_columns_are_cast_where_no_value_changes(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2], pa.int16()),
            "b": pa.array(["x", "y"]).dictionary_encode(),
            "unused": [1.5, 2.5],
        }
    )
    write_parquet(tmp_path / "one", table)
    write_parquet(tmp_path / "two", pa.table({"A": pa.array([3, 4], pa.uint32())}))
    write_parquet(tmp_path / "zero", pa.table({"unused": [1, 2, 3]}))
    source = FolderSource(tmp_path, "parquet", MemoryLog(), PAIR)
    rows = read_through(source, lambda: 100).rows
    assert rows == [
        ("1", "'x'"),
        ("2", "'y'"),
        ("3", "None"),
        ("4", "None"),
        *[("None", "None")] * 3,
    ]


def unchecked_texts(*texts: bytes) -> pa.Array:
    """A string column of any bytes, as a careless writer has it."""
    offsets = pa.array([0, *accumulate(map(len, texts))], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), len(texts), [None, offsets, pa.py_buffer(b"".join(texts))]
    )


def unchecked_decimals(kind: pa.DataType, *numbers: int) -> pa.Array:
    """A decimal column of any digits."""
    raw = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(raw)])


_TEXTS = unchecked_texts(b"ok", b"\xff\xfe", "é".encode(), b"\xed\xa0\x80", b"end")
_DECIMAL = pa.decimal128(5, 2)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (_TEXTS, "\\\\xff\\\\xfe"),
        (_TEXTS.dictionary_encode(), "\\\\xff\\\\xfe"),
        (pa.ListArray.from_arrays(pa.array(range(6), pa.int32()), _TEXTS), "a: "),
        (pa.StructArray.from_arrays([_TEXTS], ["x"]), "a: "),
        (unchecked_decimals(_DECIMAL, 1, 100_000, 99_999, -100_000, 0), "1000.00"),
        (pa.array([0, 2**62, 1, -(2**62), 5], pa.timestamp("ms", "UTC")), "a: "),
    ],
)
def test_a_parquet_value_that_is_none_is_set_aside_alone(
    tmp_path: Path, column: pa.Array, shown: str
) -> None:
    wanted = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_timestamp(wanted):
        wanted = pa.timestamp("us", "UTC")
    schema = pa.schema([("n", pa.int64()), ("a", wanted)])
    write_parquet(tmp_path / "one", pa.table({"n": range(5), "a": column}), version="2.6")
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(tmp_path, "parquet", MemoryLog(), schema, options)
    for rows_max in (100, 2):
        seen = read_through(source, lambda rows_max=rows_max: rows_max)
        assert [row[0] for row in seen.rows] == ["0", "2", "4"]
        assert [entry["line"] for entry in seen.rejected] == [2, 4]
        assert shown in seen.rejected[0]["text"]
    strict = FolderSource(tmp_path, "parquet", MemoryLog(), schema)
    with pytest.raises(MalformedInput, match="line 2 of one"):
        strict.read(strict.initial_offset(), 10)


@pytest.mark.parametrize("part_bytes", [1, 400, 1 << 20])
def test_the_row_of_a_parquet_file_is_known_past_what_is_set_aside(
    tmp_path: Path, part_bytes: int
) -> None:
    """Of whichever part, and wherever a read begins; a file is read as the version that it was."""
    column = pa.concat_arrays([_TEXTS] * 8)
    path = tmp_path / "a b"
    write_parquet(path, pa.table({"n": range(40), "a": column}), row_group_size=7)
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    facts = pa.schema(
        [
            ("m.row_index", pa.int64()),
            ("m.file_name", pa.string()),
            ("m.file_size", pa.int64()),
            ("m.file_modification_time", pa.timestamp("us", "UTC")),
        ]
    )
    options = FolderOptions(mode="deadletter", bounded=True, part_bytes=part_bytes)
    schema = pa.schema([("n", pa.int64()), ("a", pa.string())])
    whole = FolderSource(tmp_path, "parquet", MemoryLog(), schema, options, facts=facts)
    rows = [row for part in whole.split(2) for row in read_through(part, lambda: 3).rows]
    assert sorted(int(row[0]) for row in rows) == [n for n in range(40) if n % 5 not in (1, 3)]
    assert all(row[0] == row[2] for row in rows)
    ((name, size, changed),) = {row[3:] for row in rows}
    assert (name, size) == ("'a%20b'", str(path.stat().st_size))
    assert "(2023, 11, 14, 22, 13, 20, 123000," in changed


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"a": ["1"]}), "a is string"),
        (pa.table({"a": [[1]]}), "a is list"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), "a twice"),
    ],
)
def test_a_parquet_file_of_another_schema_is_set_aside_whole(
    tmp_path: Path, table: pa.Table, said: str
) -> None:
    write_parquet(tmp_path / "one", table)
    write_parquet(tmp_path / "two", pa.table({"a": [7]}))
    options = FolderOptions(mode="deadletter")
    source = FolderSource(tmp_path, "parquet", MemoryLog(), PAIR, options)
    seen = read_through(source, lambda: 10)
    assert [row[0] for row in seen.rows] == ["7"]
    assert [(entry["file"], entry["line"]) for entry in seen.rejected] == [("one", 0)]
    assert said in seen.rejected[0]["reason"]
    strict = FolderSource(tmp_path, "parquet", MemoryLog(), PAIR)
    with pytest.raises(MalformedInput, match="one does not fit"):
        strict.read(strict.initial_offset(), 10)


def test_a_missing_parquet_column_that_must_not_be_null(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one", pa.table({"b": ["x"]}))
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(MalformedInput, match="no column a"):
        values(FolderSource(tmp_path, "parquet", MemoryLog(), schema))


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet at all" * 100])
def test_a_file_that_is_not_parquet_is_set_aside_whole(tmp_path: Path, damage: bytes) -> None:
    drop(tmp_path, "one", damage)
    drop(tmp_path, "two", content("parquet", 0, 3))
    options = FolderOptions(mode="deadletter")
    source = FolderSource(tmp_path, "parquet", MemoryLog(), PAIR, options)
    seen = read_through(source, lambda: 10)
    assert len(seen.rows) == 3
    assert [(entry["file"], entry["line"]) for entry in seen.rejected] == [("one", 0)]
    with pytest.raises(MalformedInput, match="not a readable Parquet file"):
        values(FolderSource(tmp_path, "parquet", MemoryLog(), PAIR))


def test_a_damaged_row_group_is_set_aside_and_the_others_are_read(tmp_path: Path) -> None:
    rows = 3 * PAGE_ROWS
    table = pa.table({"a": pa.array(range(3 * rows), pa.int64())})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=rows, compression="none", use_dictionary=False,
        data_page_size=1 << 15, write_page_checksum=True,
    )  # fmt: skip
    raw = bytearray(sink.getvalue())
    group = pq.ParquetFile(pa.BufferReader(bytes(raw))).metadata.row_group(1).column(0)
    start, size = group.data_page_offset, group.total_compressed_size
    # Page headers of the second half are gone: the first pages of the group are still readable.
    raw[start + size // 2 : start + size] = b"\xff" * (size - size // 2)
    drop(tmp_path, "one", bytes(raw))
    options = FolderOptions(mode="deadletter", bounded=True)
    registry = MemoryLog()
    expected: list[Any] | None = None
    for rows_max in (1 << 20, 5_000, 1_111):
        source = FolderSource(tmp_path, "parquet", registry, table.schema, options)
        seen = read_through(source, lambda rows_max=rows_max: rows_max)
        numbers = [int(row[0]) for row in seen.rows]
        assert len(seen.rejected) == 1
        line = seen.rejected[0]["line"]
        assert numbers == [*range(line - 1), *range(2 * rows, 3 * rows)]
        assert rows < line <= 2 * rows
        assert f"rows {line} to {2 * rows} (row group 1)" in seen.rejected[0]["reason"]
        assert expected in (None, seen.rejected)
        expected = seen.rejected
    strict = FolderSource(tmp_path, "parquet", MemoryLog(), table.schema)
    with pytest.raises(MalformedInput, match="cannot be read"):
        read_through(strict, lambda: 1 << 20)


def test_a_large_row_group_is_read_from_the_middle(tmp_path: Path) -> None:
    rows = 5 * PAGE_ROWS + 17
    table = pa.table({"a": pa.array(range(rows), pa.int64())})
    write_parquet(tmp_path / "one", table, row_group_size=rows)
    registry = MemoryLog()
    for row in (0, 1, PAGE_ROWS - 1, PAGE_ROWS, 3 * PAGE_ROWS + 5, rows - 1):
        source = FolderSource(tmp_path, "parquet", registry, table.schema)
        offset = source.initial_offset()
        source.read(offset, 1)
        if row:
            stat = (tmp_path / "one").stat()
            offset |= {"row": row, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        got = [int(found[0]) for found in read_through(source, lambda: 3_000, offset).rows]
        assert got == list(range(row, rows))


def test_pages_are_joined_to_what_was_asked_for(tmp_path: Path) -> None:
    """Texts come in pages of few rows, since each may be long; short ones go together."""
    rows = 5 * PAGE_ROWS + 17
    table = pa.table({"a": [f"é{row}" for row in range(rows)]})
    write_parquet(tmp_path / "one", table, row_group_size=2 * PAGE_ROWS + 5)
    source = FolderSource(tmp_path, "parquet", MemoryLog(), table.schema)
    answer = source.read(source.initial_offset(), 1 << 20)
    assert answer.batch["a"].equals(table["a"].combine_chunks())
    got, offset = [], source.initial_offset()
    while not (answer := source.read(offset, 3 * PAGE_ROWS)).idle:
        got.append(answer.batch)
        offset = answer.next_offset
    assert len(got) < 6
    assert pa.Table.from_batches(got).equals(table)


def test_rows_of_columns_that_no_file_has_are_counted(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one", pa.table({"a": range(30)}), row_group_size=7)
    schema = pa.schema([("b", pa.int64())])
    source = FolderSource(tmp_path, "parquet", MemoryLog(), schema)
    assert read_through(source, lambda: 100).rows == [("None",)] * 30


def test_small_files_have_the_same_lines_together_as_alone(tmp_path: Path) -> None:
    """However they end and begin: what is a line end of two files is none of one."""
    contents = [b"a\r", b"\nb", b"", b"\xef\xbb\xbfc\n", b"\n", b"d\r\n\r\n", b"\xef\xbb\xbf", b"e"]
    for number, raw in enumerate(contents):
        drop(tmp_path, f"{number}", raw)
    alone = read_through(text_source(tmp_path, bounded=True), lambda: 1).rows
    together = text_source(tmp_path, bounded=True)
    answer = together.read(together.initial_offset(), 100)
    assert answer.ended
    assert [(repr(text),) for text in answer.batch["value"].to_pylist()] == alone
    assert answer.batch["value"].to_pylist()[:4] == ["a", "", "b", "c"]


def test_small_files_are_handed_out_together(tmp_path: Path) -> None:
    for number in range(10):
        drop(tmp_path, f"{number}", b"%d\n" % number)
    source = text_source(tmp_path)
    answer = source.read(source.initial_offset(), 7)
    assert answer.batch["value"].to_pylist() == [f"{number}" for number in range(7)]
    assert answer.more
    answer = source.read(answer.next_offset, 7)
    assert answer.batch["value"].to_pylist() == ["7", "8", "9"]
    assert not answer.more
    assert not answer.ended


def test_what_fails_in_a_later_file_is_told_in_its_place(tmp_path: Path) -> None:
    drop(tmp_path, "a", b"{}\n")
    drop(tmp_path, "b", b"{}\n?\n")
    drop(tmp_path, "c", b"{}\n")
    source = FolderSource(tmp_path, "jsonl", MemoryLog(), PAIR)
    answer = source.read(source.initial_offset(), 100)
    assert answer.rows == 1
    assert answer.more
    with pytest.raises(MalformedInput, match="line 2 of b"):
        source.read(answer.next_offset, 100)


@pytest.mark.parametrize("shape", ["flat", "stored", "list", "struct", "map"])
def test_a_text_that_is_stored_once_for_many_rows_is_built_in_bounded_batches(
    tmp_path: Path, shape: str
) -> None:
    """A file of some hundred bytes that stands for gigabytes."""
    rows, long = 4_000, "x" * (1 << 20)
    texts: Any = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([long]))
    kind: Any = pa.string()
    if shape == "list":
        offsets = pa.array(range(rows + 1), pa.int32())
        texts, kind = pa.ListArray.from_arrays(offsets, texts), pa.list_(kind)
    if shape == "map":
        offsets, keys = pa.array(range(rows + 1), pa.int32()), pa.array(range(rows))
        texts = pa.MapArray.from_arrays(offsets, keys, texts)
        kind = pa.map_(pa.int64(), kind)
    if shape == "struct":
        texts, kind = pa.StructArray.from_arrays([texts], ["x"]), pa.struct([("x", kind)])
    table = pa.table({"n": range(rows), "s": texts})
    write_parquet(
        tmp_path / "one", table, compression="zstd", store_schema=shape == "stored",
        use_dictionary=["s", "s.list.element", "s.key_value.value", "s.x"],
    )  # fmt: skip
    assert (tmp_path / "one").stat().st_size < 50_000
    schema = pa.schema([("n", pa.int64()), ("s", kind)])
    source = FolderSource(tmp_path, "parquet", MemoryLog(), schema)
    before = pa.total_allocated_bytes()
    offset = source.initial_offset()
    for _ in range(3):
        answer = source.read(offset, 1 << 20)
        assert answer.batch.nbytes <= 2 * BATCH_BYTES_MAX
        assert answer.batch["n"][0].as_py() == offset["row"]
        offset = answer.next_offset
    assert pa.total_allocated_bytes() - before < 4 * BATCH_BYTES_MAX


def test_pages_are_large_only_where_texts_are_short(tmp_path: Path) -> None:
    rows = 100_000
    for size in (8, 2_000):
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * size])
        (tmp_path / f"{size}").mkdir()
        write_parquet(tmp_path / f"{size}" / "one", pa.table({"s": texts.cast(pa.string())}))
        schema = pa.schema([("s", pa.string())])
        source = FolderSource(tmp_path / f"{size}", "parquet", MemoryLog(), schema)
        before = pa.total_allocated_bytes()
        answer = source.read(source.initial_offset(), rows)
        assert pa.total_allocated_bytes() - before < BATCH_BYTES_MAX
        assert (answer.rows == rows) == (size == 8)
        source.close()


def test_a_row_beyond_the_bound_is_set_aside(tmp_path: Path) -> None:
    half = pa.array(["x" * (ROW_BYTES_MAX // 2 + 1)])
    big = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0], pa.int32()), half)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), big)
    table = pa.table({"n": [1, 2, 3], "s": lists})
    write_parquet(tmp_path / "one", table, compression="zstd")
    schema = pa.schema([("n", pa.int64()), ("s", pa.list_(pa.string()))])
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(tmp_path, "parquet", MemoryLog(), schema, options)
    offset, ended, rows, rejected = source.initial_offset(), False, [], []
    while not ended:
        answer = source.read(offset, 10)
        rows += answer.batch["n"].to_pylist() if answer.batch is not None else []
        rejected += answer.rejected["line"].to_pylist() if answer.rejected is not None else []
        offset, ended = answer.next_offset, answer.ended
    assert (rows, rejected) == ([1, 3], [2])


def test_old_times_of_spark_2_are_set_aside(tmp_path: Path) -> None:
    """They are of another calendar; those of our days mean the same in both."""
    schema = pa.schema([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))])
    columns = [[-141_428, 0, None, 1], [0, -2_208_988_800_000_001, 0, None]]
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
        schema=schema.with_metadata({"org.apache.spark.version": "2.4.8"}),
    )
    write_parquet(tmp_path / "one", table)
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(tmp_path, "parquet", MemoryLog(), schema, options)
    seen = read_through(source, lambda: 10)
    assert len(seen.rows) == 2
    assert [entry["line"] for entry in seen.rejected] == [1, 2]


MUTATED = """
import sys
from pathlib import Path
from penstock.connectors.folder import FolderOptions, FolderSource
from penstock.errors import StreamError
from penstock.testing.memory_log import MemoryLog
import pyarrow.parquet as pq

folder, step = Path(sys.argv[1]), int(sys.argv[2])
whole = (folder / "whole").read_bytes()
schema = pq.read_schema(folder / "whole")
(folder / "in").mkdir()
outcomes = set()
for place in range(0, len(whole), step):
    mutated = bytearray(whole)
    mutated[place] ^= 1 << place // step % 8
    (folder / "in" / "f").write_bytes(mutated)
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(folder / "in", "parquet", MemoryLog(), schema, options)
    offset, ended = source.initial_offset(), False
    try:
        while not ended:
            answer = source.read(offset, 1000)
            if answer.batch is not None:
                answer.batch.validate(full=True)
                outcomes.add("rows")
            if answer.rejected is not None:
                outcomes.add("rejected")
            offset, ended = answer.next_offset, answer.ended
    except StreamError as error:
        outcomes.add("refused")
    source.close()
print(*sorted(outcomes))
"""


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), 41], ids=["every byte", "some bytes"]
)
def test_no_flipped_bit_of_a_parquet_file_ends_the_process(tmp_path: Path, step: int) -> None:
    """In a process of its own: native code that gives up takes the process with it."""
    table = pa.table(
        {
            "a": pa.array(range(50), pa.int64()),
            "s": [None if i % 7 == 0 else "é" * (i % 9) for i in range(50)],
            "l": [["x"] * (i % 3) for i in range(50)],
            "d": pa.array([Decimal(i) / 8 for i in range(50)], pa.decimal128(8, 3)),
        }
    )
    pq.write_table(table, tmp_path / "whole", row_group_size=20, compression="zstd")
    done = subprocess.run(
        [sys.executable, "-c", MUTATED, str(tmp_path), str(step)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {"rows", "rejected"} <= set(done.stdout.split())
