"""When a folder is listed, and when a look at its time is enough."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.connectors import folder_listing
from penstock.connectors.folder_listing import LIST_S, LOOK_S, TICK_S, FolderListing, Selection
from penstock.connectors.folder_registry import MemoryRegistry
from penstock.connectors.folder_shares import FoundFile
from penstock.errors import PathRefused
from penstock.testing.clock import ManualClock


class Folder:
    """A folder, a listing of it, and how often it was listed."""

    def __init__(self, path: Path, **selection: bool) -> None:
        self.path = path
        self.clock = ManualClock()
        self.listing = FolderListing(
            path, MemoryRegistry(), "files", Selection(**selection), self.clock
        )
        self.listed: list[str] = []

    def put(self, name: str) -> None:
        (self.path / name).write_bytes(b"")

    def look(self, after_s: float = 0.0) -> list[str]:
        self.clock.advance(after_s)
        self.listing.look()
        return [self.listing.known[number].file.name for number in range(len(self.listing.known))]

    def times_listed(self) -> int:
        times, self.listed = len(self.listed), []
        return times


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder, scan = Folder(tmp_path), os.scandir

    def counted(path: str) -> object:
        folder.listed.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    return folder


def test_a_folder_without_news_is_looked_at_and_not_listed(folder: Folder) -> None:
    folder.put("a")
    assert folder.look() == ["a"]
    folder.look(TICK_S)
    folder.times_listed()
    for _ in range(5):
        folder.look(LOOK_S)
    assert folder.times_listed() == 0
    folder.put("b")
    assert folder.look(LOOK_S) == ["a", "b"]
    assert folder.listing.look_again_s == LOOK_S


def test_a_name_that_comes_with_the_time_of_the_one_before_is_found(folder: Folder) -> None:
    folder.put("a")
    seen = folder.path.stat()
    folder.look()
    folder.put("b")
    os.utime(folder.path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert folder.look(TICK_S / 2) == ["a", "b"]


def test_a_folder_whose_time_is_wrong_is_listed_all_the_same(folder: Folder) -> None:
    folder.put("a")
    folder.look()
    folder.look(TICK_S)
    seen = folder.path.stat()
    folder.put("b")
    os.utime(folder.path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert folder.look(LOOK_S) == ["a"]
    assert folder.look(LIST_S) == ["a", "b"]


def test_what_is_new_in_a_folder_below_is_seen(folder: Folder) -> None:
    deep = Folder(folder.path, recursive=True)
    below = folder.path / "x" / "y"
    below.mkdir(parents=True)
    deep.look()
    deep.look(TICK_S)
    folder.times_listed()
    deep.look(LOOK_S)
    assert folder.times_listed() == 0
    (below / "a").write_bytes(b"")
    assert deep.look(LOOK_S) == ["x/y/a"]


def test_what_is_refused_is_refused_at_each_look(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe")
    for _ in range(3):
        with pytest.raises(PathRefused):
            folder.look(TICK_S)


def test_a_look_takes_up_some_large_files_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are opened to be cut: a folder of any number of them must not hold a step up."""
    monkeypatch.setattr(folder_listing, "LARGE_FILES_MAX", 2)
    cut: list[str] = []

    def halves(file: FoundFile, part_bytes: int) -> tuple[int, ...]:
        cut.append(file.name)
        return (0, part_bytes)

    for number in range(5):
        (tmp_path / f"{number}").write_bytes(b"x" * number)
    selection = Selection(bounded=True, part_bytes=1)
    listing = FolderListing(
        tmp_path, MemoryRegistry(), "files", selection, ManualClock(), cut=halves
    )
    listing.look()
    assert listing.unsettled
    assert not listing.known.sealed
    assert [(share.file.name, share.part) for share in listing.known.shares] == [
        ("0", 0), ("1", 0), ("2", 0), ("2", 1), ("3", 0), ("3", 1)
    ]  # fmt: skip
    listing.look()
    assert cut == ["2", "3", "4"]
    assert listing.known.sealed
