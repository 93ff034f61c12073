"""Which files are removed behind their readers: those that all of them are past, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.connectors.folder import FolderOptions, FolderSource
from penstock.connectors.folder_shares import Owners
from penstock.testing.memory_log import MemoryLog

NAMES = ("a", "b", "c", "d")


def sources(folder: Path, parts: int, registry: MemoryLog, **given: object) -> list[FolderSource]:
    options = FolderOptions(clean="delete", **given)  # type: ignore[arg-type]
    whole = FolderSource(folder, "text", registry, None, options)
    return whole.split(parts)  # type: ignore[return-value]


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f"{name}\n" * 9)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def at(number: int) -> dict[str, int]:
    return {"file": number, "byte": 0, "row": 0}


def test_a_file_goes_when_its_reader_is_past_it(tmp_path: Path) -> None:
    put(tmp_path, *NAMES)
    registry = MemoryLog()
    first, second = sources(tmp_path, 2, registry)
    first.read(first.initial_offset(), 1)
    owners = Owners(first.listing.known.shares, 2)
    assert sorted(owners[number] for number in range(4)) == [0, 0, 1, 1]
    first.clean([None, None])
    assert left(tmp_path) == list(NAMES)
    own = [number for number in range(4) if owners[number] == 0]
    first.clean([at(own[-1] + 1), None])
    assert left(tmp_path) == [name for number, name in enumerate(NAMES) if number not in own]
    assert first.left_behind(at(3)) == 3
    second.clean([at(4), at(4)])  # who comes later finds what is left
    assert left(tmp_path) == []
    put(tmp_path, "a")  # another one of the name: it is not read, and not removed
    os.utime(tmp_path / "a", ns=(1, 1))
    (again, _) = sources(tmp_path, 2, registry)
    again.listing.look()
    again.clean([at(4), at(4)])
    assert left(tmp_path) == ["a"]


def test_a_file_in_parts_goes_when_all_are_read(tmp_path: Path) -> None:
    put(tmp_path, "a")
    readers = sources(tmp_path, 2, MemoryLog(), part_bytes=9)
    readers[0].read(readers[0].initial_offset(), 1)
    assert len(readers[0].listing.known) == 2
    readers[0].clean([at(2), at(0)])
    assert left(tmp_path) == ["a"]
    readers[0].clean([at(2), at(2)])
    assert left(tmp_path) == []


def test_files_are_put_away_with_their_paths_and_replace_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, away = tmp_path / "in", tmp_path / "away"
    folder.mkdir()
    put(folder, "a", "b")
    kept = Path(f"{away}/{folder}")
    kept.mkdir(parents=True)
    (kept / "b").write_text("earlier")
    options = FolderOptions(clean="archive", archive=str(away))
    source = FolderSource(folder, "text", MemoryLog(), None, options)
    source.read(source.initial_offset(), 1)
    source.clean([at(2)])
    assert (kept / "a").read_text() == "a\n" * 9
    assert (kept / "b").read_text() == "earlier"
    assert left(folder) == ["b"]
    assert "already" in caplog.text


def test_a_file_that_changed_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "a")
    (source,) = sources(tmp_path, 1, MemoryLog())
    source.read(source.initial_offset(), 100)
    with (tmp_path / "a").open("a") as file:
        file.write("more\n")
    source.clean([at(1)])
    assert left(tmp_path) == ["a"]
    assert "is not what it was" in caplog.text
