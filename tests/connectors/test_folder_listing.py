"""When a folder is listed, and when a look at its time, or at what the kernel tells, is enough."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.connectors import folder_events, folder_listing
from penstock.connectors.folder import FolderOptions
from penstock.connectors.folder_events import FolderEvents
from penstock.connectors.folder_listing import LIST_S, LOOK_S, TICK_S, FolderListing, Selection
from penstock.connectors.folder_shares import FoundFile
from penstock.errors import LogBusy, PathRefused, SourceVanished
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog


class Folder:
    """A folder, a listing of it, and how often it was listed."""

    def __init__(self, path: Path, **selection: int) -> None:
        self.path = path
        self.clock = ManualClock(now_us=1_000_000_000)
        self.registry = MemoryLog()
        self.listing = FolderListing(
            path, self.registry, "files", Selection(**selection), self.clock
        )
        self.listed: list[str] = []

    def put(self, name: str) -> None:
        (self.path / name).write_bytes(b"")

    def age(self, name: str, age_ms: int) -> None:
        """Let a file look as if it had last been written to so long ago."""
        os.utime(self.path / name, ns=(0, (self.clock.now_us() - age_ms * 1_000) * 1_000))

    def look(self, after_s: float = 0.0) -> list[str]:
        self.clock.advance(after_s)
        self.listing.look()
        return [self.listing.known[number].file.name for number in range(len(self.listing.known))]

    def times_listed(self) -> int:
        times, self.listed = len(self.listed), []
        return times


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder that is on a file system of this machine, or is taken for one."""
    events = FolderEvents()
    if not events.watch(tmp_path, ""):
        pytest.skip("the kernel does not tell what comes into this folder")
    folder, scan = Folder(tmp_path), os.scandir

    def counted(path: str) -> object:
        folder.listed.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", counted)
    return folder


@pytest.fixture
def folder(heard: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """One of which the kernel does not tell everything."""
    monkeypatch.setattr(folder_events, "LOCAL", frozenset())
    return heard


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
    listing = FolderListing(tmp_path, MemoryLog(), "files", selection, ManualClock(), cut=halves)
    listing.look()
    assert listing.unsettled
    assert not listing.known.sealed
    assert [(share.file.name, share.part) for share in listing.known.shares] == [
        ("0", 0), ("1", 0), ("2", 0), ("2", 1), ("3", 0), ("3", 1)
    ]  # fmt: skip
    listing.look()
    assert cut == ["2", "3", "4"]
    assert listing.known.sealed


def settled(folder: Folder) -> None:
    """Let the first listings be over."""
    folder.look()
    folder.look(TICK_S)
    folder.times_listed()


def test_what_comes_into_a_folder_that_is_heard_is_found_without_listing_it(heard: Folder) -> None:
    heard.put("a")
    settled(heard)
    heard.put("written")
    (heard.path / "b").hardlink_to(heard.path / "a")
    outside = heard.path.with_name("outside")
    outside.write_bytes(b"")
    outside.rename(heard.path / "renamed")
    assert sorted(heard.look()) == ["a", "b", "renamed", "written"]
    for _ in range(20):
        heard.look(LOOK_S)
    assert heard.times_listed() == 0


def test_names_that_do_not_count_are_passed_over_when_they_are_heard(tmp_path: Path) -> None:
    folder = Folder(tmp_path, pattern="*.json")
    folder.look()
    for name in ("_a.json", ".b.json", "c.txt", "d.json"):
        folder.put(name)
    assert folder.look() == ["d.json"]


def test_a_file_is_begun_soon_after_its_writer_closed_it_and_not_before(heard: Folder) -> None:
    folder = Folder(heard.path, settle_ms=100, done_ms=20)
    folder.look()
    with (folder.path / "a").open("wb") as writer:
        folder.age("a", 50)
        assert folder.look() == []
        assert folder.listing.unsettled
        assert folder.listing.look_again_s == LOOK_S
        writer.write(b"more")
    folder.age("a", 10)
    assert folder.look() == []
    assert folder.listing.look_again_s == pytest.approx(0.01)
    assert folder.look(0.01) == ["a"]
    assert not folder.listing.unsettled


def test_a_file_that_is_written_during_a_look_is_left_to_settle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the look takes: a file is as old as it is when it is looked at."""
    folder = Folder(tmp_path, settle_ms=100)
    look_at = FolderListing._file

    def slow(listing: FolderListing, name: str) -> os.stat_result | None:
        folder.clock.advance(5.0)
        folder.age(name, 10)
        return look_at(listing, name)

    for name in ("a", "b"):
        folder.put(name)
    with monkeypatch.context() as held_up:
        held_up.setattr(FolderListing, "_file", slow)
        assert folder.look() == []
    assert sorted(folder.look(1.0)) == ["a", "b"]


@pytest.mark.parametrize(("ahead_ms", "is_left"), [(1, True), (900, True), (2_000, False)])
def test_only_a_time_that_is_clearly_still_to_come_was_set_by_hand(
    tmp_path: Path, ahead_ms: int, is_left: bool
) -> None:
    folder = Folder(tmp_path, settle_ms=100)
    folder.put("a")
    folder.age("a", -ahead_ms)
    assert (folder.look() == []) == is_left
    assert folder.look(1.1) == ["a"]


def test_a_file_that_is_written_to_after_it_was_taken_up_is_named_once(
    heard: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        heard.put(name)
    settled(heard)
    assert not caplog.records
    for text in ("one", "two"):
        with (heard.path / "a").open("a") as writer:
            writer.write(text)
        (heard.path / "b").open("a").close()  # and nothing was written
        assert heard.look(LOOK_S) == ["a", "b"]
    (warning,) = caplog.messages
    assert warning.startswith(f"a in {heard.path} was taken up with 0 bytes")


def test_a_time_to_settle_that_was_asked_for_is_waited_also_if_the_writer_is_done(
    heard: Folder,
) -> None:
    folder = Folder(heard.path)
    selection = FolderOptions(settle_ms=2_000).selection
    listing = FolderListing(heard.path, folder.registry, "files", selection, folder.clock)
    listing.look()
    folder.put("a")
    folder.age("a", 1_999)
    listing.look()
    assert listing.unsettled


def test_a_folder_that_comes_later_is_listened_to(heard: Folder) -> None:
    deep = Folder(heard.path, recursive=True)
    settled(deep)
    (deep.path / "x").mkdir()
    (deep.path / "x" / "a").write_bytes(b"")
    assert deep.look() == ["x/a"]
    heard.times_listed()
    (deep.path / "x" / "b").write_bytes(b"")
    assert deep.look() == ["x/a", "x/b"]
    assert heard.times_listed() == 0
    (deep.path / "x").rename(deep.path / "y")
    assert deep.look() == ["x/a", "x/b", "y/a", "y/b"]


def test_another_folder_in_the_place_of_the_first_is_found(heard: Folder) -> None:
    settled(heard)
    heard.path.rename(heard.path.with_name("gone"))
    with pytest.raises(SourceVanished):
        heard.look()
    heard.path.mkdir()
    heard.put("a")
    assert heard.look() == ["a"]
    heard.put("b")
    assert heard.look() == ["a", "b"]


def test_what_the_kernel_had_no_room_to_tell_is_found_by_a_listing(
    heard: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(heard)
    ears, mouth = os.pipe2(os.O_NONBLOCK)
    overflow = (-1, 0x4000, 0, 0)
    os.write(mouth, b"".join(number.to_bytes(4, "little", signed=True) for number in overflow))
    with monkeypatch.context() as deaf:
        deaf.setattr(heard.listing._events, "_handle", ears)
        heard.put("a")
        assert heard.look() == ["a"]
    os.close(ears)
    os.close(mouth)


def test_what_was_heard_is_not_forgotten_if_the_registry_fails(
    heard: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(heard)
    heard.put("a")
    for method in ("get", "compare_and_set"):
        with monkeypatch.context() as broken:
            broken.setattr(heard.registry, method, refuse)
            with pytest.raises(LogBusy):
                heard.look()
    assert heard.look() == ["a"]
    assert heard.times_listed() == 0


def refuse(*_: object) -> NoReturn:
    raise LogBusy("not now")


def test_a_pipe_that_is_heard_of_is_refused_at_each_look(heard: Folder) -> None:
    settled(heard)
    os.mkfifo(heard.path / "pipe")
    for _ in range(3):
        with pytest.raises(PathRefused):
            heard.look(LOOK_S)


def _aged(path: Path, **ages_ms: int) -> None:
    for name, age_ms in ages_ms.items():
        (path / name).write_bytes(b"")
        os.utime(path / name, ns=(0, (1_000_000_000 - age_ms * 1_000) * 1_000))


def test_files_that_are_found_together_come_by_their_times(tmp_path: Path) -> None:
    _aged(tmp_path, a=10, b=30, c=20)
    assert Folder(tmp_path).look() == ["b", "c", "a"]
    assert Folder(tmp_path, latest_first=True).look() == ["a", "c", "b"]


def test_the_newest_of_all_come_next_where_few_are_taken_up(tmp_path: Path) -> None:
    folder = Folder(tmp_path, latest_first=True, files_max=2)
    _aged(tmp_path, a=10, b=30, c=20)
    assert folder.look() == ["a", "c"]
    assert folder.listing.unsettled
    _aged(tmp_path, d=5, e=40)
    folder.look(LOOK_S)
    assert folder.look(LOOK_S)[2:4] == ["d", "b"]


def test_files_much_older_than_the_newest_are_left_out_unless_they_came_first(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path, age_ms_max=100)
    _aged(tmp_path, a=5_000, b=1_000)
    assert folder.look() == ["a", "b"]
    _aged(tmp_path, c=1_100, d=1_101)
    assert folder.look(LIST_S) == ["a", "b", "c"]


def test_files_of_one_name_may_be_one(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    folder = Folder(tmp_path, recursive=True, name_only=True)
    _aged(tmp_path / "x", f=20, g=15)
    _aged(tmp_path / "y", f=10, h=5)
    assert folder.look() == ["x/f", "x/g", "y/h"]
