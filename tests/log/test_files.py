"""The log's files as others see them: their modes, and their names in messages."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.errors import NotALog, SegmentMissing
from penstock.log import START, Entry, RecordKind, open_log
from penstock.log.fsck import fsck
from penstock.log.repair import repair

CONFIG = LogConfig(inline_bytes_max=0)
ENTRY = Entry(RecordKind.DATA, ("a",), "p", 1, 0, b"rows")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[bool, set[int]]:
    """Of folders (True) and of files (False) below a folder."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for path in folder.rglob("*"):
        found[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    return found


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o002])
def test_every_file_has_the_mode_that_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    expected = {True: {0o777 & ~mask}, False: {0o666 & ~mask}}
    with umask(mask), open_log(folder, create=True, config=CONFIG) as log:
        log.append([ENTRY])
        names = {path.name for path in folder.iterdir()}
        assert names >= {"index.db", "index.db-wal", "index.db-shm", "bell", "sync.lock"}
        assert modes(folder) == expected
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "index.db").write_bytes((folder / "index.db").read_bytes()[:8192])
    with umask(mask):
        assert repair(folder).actions
    assert modes(folder) == expected


def test_a_name_that_a_terminal_would_obey_is_shown_as_escapes(tmp_path: Path) -> None:
    folder = tmp_path / "log\x1b[2J\nfine"
    folder.mkdir()
    (folder / "other").touch()
    with pytest.raises(NotALog, match=r"log\\x1b\[2J\\nfine is not"):
        open_log(folder)
    (folder / "other").unlink()
    with open_log(folder, create=True, config=CONFIG) as log:
        log.append([ENTRY])
    (segment,) = (folder / "segments").iterdir()
    segment.rename(segment.with_name("\x1b[2J.seg"))
    with open_log(folder, read_only=True) as log, pytest.raises(SegmentMissing) as caught:
        log.read(["a"], START, 1)
    messages = [caught.value.message, *(finding.message for finding in fsck(folder).findings)]
    assert len(messages) >= 3
    assert all(message.isprintable() for message in messages)
