"""Segments among several processes: each is removed once, and nobody holds on to a removed one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from penstock.config import LogConfig
from penstock.errors import LogBusy, SegmentDamaged
from penstock.log import START, Entry, LocalLog, Position, RecordKind, local, open_log

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks the kernel")
CONFIG = LogConfig(durability="process", inline_bytes_max=0, segment_bytes_max=4_096)


def append(log: LocalLog, tag: str, sequence: int) -> Position:
    (position,) = log.append([Entry(RecordKind.DATA, (tag,), "p", 1, sequence, bytes(5_000))])
    return position


def held_segments(folder: Path) -> list[str]:
    """Files of segments that this process has open although they are removed."""
    return [link for link in held_files(folder) if link.endswith(".seg (deleted)")]


def held_files(folder: Path) -> list[str]:
    """Files of a log that this process has open or mapped."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the one that listed the folder
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        links += [line.rstrip() for line in maps]
    return [link for link in links if str(folder) in link]


def test_a_segment_that_another_process_removes_just_now_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path / "log", create=True, config=CONFIG) as writer:
        first, second = (open_log(tmp_path / "log", config=CONFIG) for _ in range(2))
        append(writer, "t", 0)
        append(writer, "u", 1)
        (segment, *_) = (tmp_path / "log" / "segments").iterdir()
    lock = local.lock
    interrupted: list[int] = []

    def lock_late(fd: int, *, wait_s: float = 0.0) -> bool:
        # `first` has opened the segment and is about to lock it.
        if not interrupted and segment.exists() and segment.samefile(f"/proc/self/fd/{fd}"):
            interrupted.append(fd)
            second.trim("t", second.tail())
            second.trim("u", second.tail())
        return lock(fd, wait_s=wait_s)

    with first, second:
        append(first, "v", 2)  # else the segment of the last record stays
        monkeypatch.setattr(local, "lock", lock_late)
        first.collect()
        assert interrupted
        assert first.last("v") is not None
        assert len(list((tmp_path / "log" / "segments").iterdir())) == 1


def test_a_reader_lets_go_of_segments_that_others_remove(tmp_path: Path) -> None:
    with (
        open_log(tmp_path / "log", create=True, config=CONFIG) as writer,
        open_log(tmp_path / "log", config=CONFIG) as reader,
    ):
        after = START
        for sequence in range(20):
            append(writer, "t", sequence)
            for record in reader.read(["t"], after, 100):
                after = record.position
            del record
            writer.trim("t", Position(after - 1))
        assert len(held_segments(tmp_path)) <= 4, "the newest one or two, open and mapped"
        append(writer, "u", 20)
        writer.trim("t", after)
        reader.wait(writer.tail(), 0.0)
        assert held_segments(tmp_path) == []


def test_the_newest_record_is_found_though_an_older_one_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log:
        older = append(log, "t", 0)
    newer: list[Position] = []
    with open_log(folder, read_only=True) as reader:
        body = reader._reader.body

        def body_late(*where: Any) -> memoryview:
            if not newer:
                with open_log(folder, config=CONFIG) as log:
                    newer.append(append(log, "t", 1))
                    log.trim("t", older)
            return body(*where)

        monkeypatch.setattr(reader._reader, "body", body_late)
        found = reader.last("t")
        assert found is not None
        assert [found.position] == newer


def test_an_opening_that_fails_lets_go_of_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log:
        append(log, "t", 0)

    def fail(log: LocalLog) -> int:
        assert log.last("t") is not None  # with a segment mapped too
        assert held_files(folder)
        raise LogBusy("for the test")

    monkeypatch.setattr(LocalLog, "collect", fail)
    with pytest.raises(LogBusy) as caught:
        open_log(folder, config=CONFIG)
    assert held_files(folder) == [], f"while {caught.value!r} is looked at"


def test_a_digest_that_comes_with_a_body_is_the_one_that_is_kept(tmp_path: Path) -> None:
    """It is not made again when the body is written, and is verified when it is read."""
    body = bytes(10_000)
    digest = xxhash.xxh3_64_intdigest(body)
    with open_log(tmp_path / "log", create=True, config=CONFIG) as log:
        entry = Entry(RecordKind.DATA, ("rows",), "p", 1, 1, body, digest=digest)
        log.append([entry, replace(entry, sequence=2, digest=digest ^ 2)])
        assert log.read(["rows"], START, 1)[0].body == body
        with pytest.raises(SegmentDamaged):
            log.read(["rows"], Position(1), 1)
