"""Folding the write-ahead log: it stays bounded, and nobody is held up by it."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from penstock.config import LogConfig
from penstock.log import open_log
from penstock.log.index import Index
from penstock.log.local import INDEX_FILE, LocalLog
from penstock.log.page_seals import page_seal_vfs
from penstock.log.record import START, Entry, RecordKind

WAL_BYTES_MAX = 128 << 10
CONFIG = LogConfig(durability="process", wal_bytes_max=WAL_BYTES_MAX)


def append(log: LocalLog, first: int, count: int) -> None:
    for sequence in range(first, first + count):
        log.append([Entry(RecordKind.DATA, ("orders",), "w", 1, sequence, bytes(500))])


def wal_bytes(folder: Path) -> int:
    return (folder / f"{INDEX_FILE}-wal").stat().st_size


def wait_for_fold(log: LocalLog) -> None:
    thread = log._folds._thread
    assert thread is not None, "no fold was begun"
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "ask",
    [
        lambda log: log.last("orders"),
        lambda log: log.get("missing"),
        lambda log: log.trimmed("orders"),
        lambda log: log.tail(),
        lambda log: log.read(("orders",), START, 3),
        lambda log: log.keys(),
    ],
    ids=["last", "get", "trimmed", "tail", "read", "keys"],
)
def test_an_idle_handle_lets_the_write_ahead_log_start_anew(
    tmp_path: Path, ask: Callable[[LocalLog], object]
) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log, open_log(folder) as idle:
        append(log, 0, 10)
        ask(idle)
        index = log._open_index()
        assert index.fold(wait=True)
        index.close(fold=False)


def test_the_write_ahead_log_stays_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log:
        for turn in range(10):
            append(log, turn * 80, 80)  # the bound is looked at once in 64
            wait_for_fold(log)
        assert wal_bytes(folder) < 4 << 20, "it grew with every turn: they write some 10 MB"
        assert len(log.read(("orders",), START, 1000)) == 800


def test_a_fold_is_begun_only_when_the_bound_is_reached_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps its size when the write-ahead log starts anew: that must not count."""
    folds = []
    fold = Index.fold
    monkeypatch.setattr(
        Index, "fold", lambda self, *, wait: folds.append(wait) or fold(self, wait=wait)
    )
    config = LogConfig(durability="process", wal_bytes_max=8 << 20)
    with open_log(tmp_path / "log", create=True, config=config) as log:
        sequence = 0
        while not folds or log._index.wal_bytes > 1 << 20:  # a fold may give up and come again
            append(log, sequence, 64)
            sequence += 64
            if folds:
                wait_for_fold(log)
        before = len(folds)
        append(log, sequence, 128)
        assert len(folds) == before


def test_a_fold_gives_up_on_a_reader_in_the_middle_of_a_query(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with open_log(folder, create=True, config=CONFIG) as log, open_log(folder) as reader:
        append(log, 0, 10)
        query = reader._index._execute("SELECT position FROM record")
        assert query.fetchone() == (1,)
        append(log, 10, 10)
        index = log._open_index()
        assert not index.fold(wait=True)
        append(log, 20, 10)
        query.fetchall()
        assert index.fold(wait=True)
        index.close(fold=False)


def test_a_handle_closes_while_it_folds(tmp_path: Path) -> None:
    for turn in range(5):
        log = open_log(tmp_path / "log", create=True, config=CONFIG)
        append(log, turn * 128, 128)
        assert log._folds._thread is not None
        log.close()
    with open_log(tmp_path / "log") as log:
        assert log.tail() == 5 * 128


def test_what_is_appended_during_a_fold_is_folded_before_appends_are_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    appends = iter((64, 16, 4))  # while the first pass goes on, the second, the third
    fold = Index.fold
    folder = tmp_path / "log"
    with (
        open_log(folder, create=True, config=CONFIG) as log,
        open_log(folder, config=LogConfig(durability="process")) as other,
    ):

        def steady(self: Index, *, wait: bool) -> bool:
            if wait:
                left.append(pages_to_fold(folder))
            done = fold(self, wait=wait)
            if not wait:
                append(other, int(other.tail()), next(appends))
            return done

        append(log, 0, 10)
        monkeypatch.setattr(Index, "fold", steady)
        assert log._fold()
    (pages,) = left
    assert 0 < pages <= 4 * 4, "as many as the last four appends have written"


def pages_to_fold(folder: Path) -> int:
    """What the connections' shared memory says: pages in the write-ahead log, less the folded."""
    shared = (folder / f"{INDEX_FILE}-shm").read_bytes()
    (pages,), (folded,) = struct.unpack_from("=I", shared, 16), struct.unpack_from("=I", shared, 96)
    return int(pages - folded)


@pytest.mark.parametrize("read_only", [True, False])
def test_who_opens_waits_for_who_has_the_index_alone(tmp_path: Path, read_only: bool) -> None:
    """The last to close, and the first after a crash, lock everybody else out for a moment."""
    path = tmp_path / "log"
    open_log(path, create=True).close()
    alone = apsw.Connection(str(path / INDEX_FILE), vfs=page_seal_vfs())
    alone.pragma("locking_mode", "exclusive")
    alone.execute("BEGIN EXCLUSIVE")
    with pytest.raises(apsw.BusyError):
        apsw.Connection(str(path / INDEX_FILE), vfs=page_seal_vfs()).pragma("application_id")
    release = threading.Timer(0.2, alone.close)
    release.start()
    with open_log(path, read_only=read_only) as log:
        assert log.tail() >= START
    release.join()
