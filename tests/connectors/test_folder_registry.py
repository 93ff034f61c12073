"""The list of discovered files: one order for all readers, never changed, only continued."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors import folder_registry
from penstock.connectors.folder_registry import KnownFiles
from penstock.connectors.folder_shares import FoundFile
from penstock.errors import InvalidName, OutcomeUnknown, SourceError
from penstock.testing.memory_log import Fault, Faults, MemoryLog, MemoryStore, SimulatedCrash


def listed(known: KnownFiles) -> list[str]:
    return [known[number].file.name for number in range(len(known))]


def found(names: Sequence[str]) -> list[FoundFile]:
    return [FoundFile(name, len(name)) for name in names]


def test_additions_keep_their_order_and_never_repeat() -> None:
    registry = MemoryLog()
    known = KnownFiles(registry, "job/files")
    known.add(found(["m", "z"]))
    known.add(found(["a", "m", "z"]))
    assert listed(known) == ["m", "z", "a"]
    again = KnownFiles(registry, "job/files")
    again.refresh()
    assert listed(again) == ["m", "z", "a"]
    assert "m" in again
    assert "n" not in again


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1024, 2000])
def test_long_lists_are_kept_in_chunks(count: int) -> None:
    registry = MemoryLog()
    names = [f"{number:05d}" for number in range(count)]
    first = KnownFiles(registry, "files")
    first.add(found(names[: count // 3]))
    first.add(found(names), seal=True)
    second = KnownFiles(registry, "files")
    second.refresh()
    assert listed(second) == listed(first) == names
    assert first.sealed
    assert second.sealed
    second.add(found(["late"]))
    assert listed(second) == names


def test_names_that_are_not_utf8_come_back() -> None:
    registry = MemoryLog()
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    KnownFiles(registry, "files").add(found([name]))
    again = KnownFiles(registry, "files")
    again.refresh()
    assert listed(again) == [name]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from("abcdefghij"), max_size=6)),
        max_size=12,
    )
)
def test_readers_in_any_interleaving_agree(moves: Sequence[tuple[int, list[str]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_registry, "CHUNK_FILES", 3)
        registry = MemoryLog()
        readers = [KnownFiles(registry, "files") for _ in range(3)]
        for reader, names in moves:
            before = listed(readers[reader])
            readers[reader].add(found(names))
            assert listed(readers[reader])[: len(before)] == before
            assert set(names) <= set(listed(readers[reader]))
        for reader_ in readers:
            reader_.refresh()
        assert len({tuple(listed(reader_)) for reader_ in readers}) == 1
        final = listed(readers[0])
        assert sorted(final) == sorted({name for _, names in moves for name in names})


def test_readers_at_the_same_time_agree() -> None:
    registry = MemoryLog()
    readers = [KnownFiles(registry, "files") for _ in range(4)]
    start = threading.Barrier(4)

    def discover(number: int) -> None:
        start.wait(timeout=30)
        for step in range(30):
            readers[number].add(found([f"{step}-{name}" for name in range(number, number + 40)]))

    threads = [threading.Thread(target=discover, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for reader in readers:
        reader.refresh()
    assert len({tuple(listed(reader)) for reader in readers}) == 1
    assert len(readers[0]) == len(set(listed(readers[0]))) == 30 * 43


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_log_is_a_registry_and_its_faults_lose_and_double_nothing(fault: Fault, at: int) -> None:
    store = MemoryStore()
    names = [f"{number:05d}" for number in range(1_200)]
    failing = KnownFiles(MemoryLog(store, faults=Faults.at({at: fault})), "job/files")
    failed = False
    for end in (100, 600, 1_200):
        try:
            failing.add(found(names[:end]))
        except OutcomeUnknown:
            failed = True
            failing.add(found(names[:end]))
        except SimulatedCrash:
            failed = True
            failing = KnownFiles(MemoryLog(store), "job/files")
            failing.add(found(names[:end]))
        assert listed(failing) == names[:end]
    assert failed
    heir = KnownFiles(MemoryLog(store), "job/files")
    heir.refresh()
    assert listed(heir) == names


def test_damage_is_told() -> None:
    for value in (b"", b"{}", b"[1]", b'{"version": 1, "files": [], "sealed": false}', b"\xff"):
        registry = MemoryLog()
        registry.compare_and_set("files/0", 0, value)
        with pytest.raises(SourceError, match="files"):
            KnownFiles(registry, "files").refresh()


@pytest.mark.parametrize(
    ("size", "begins"), [(9, []), (9, [1]), (9, [0, 5, 5]), (9, [0, 10]), (-1, [0]), (9, [0, "5"])]
)
def test_parts_that_cannot_be_are_refused(size: int, begins: list[Any]) -> None:
    listed = [["a", 5, 0, [0, 5]], ["b", size, 0, begins]]
    content = {"version": folder_registry.REGISTRY_VERSION, "sealed": False, "files": listed}
    registry = MemoryLog()
    registry.compare_and_set("files/0", 0, json.dumps(content).encode())
    with pytest.raises(SourceError, match="files"):
        KnownFiles(registry, "files").refresh()


def test_large_files_are_as_many_shares_as_they_have_parts() -> None:
    registry = MemoryLog()
    KnownFiles(registry, "files").add(
        [FoundFile("a", 5), FoundFile("b", 100, 7, (0, 33, 66)), FoundFile("c")]
    )
    known = KnownFiles(registry, "files")
    known.refresh()
    shares = [known[number] for number in range(len(known))]
    assert [(share.file.name, share.begin_byte, share.end_byte) for share in shares] == [
        ("a", 0, None), ("b", 0, 33), ("b", 33, 66), ("b", 66, None), ("c", 0, None)
    ]  # fmt: skip
    assert "b" in known


def test_a_rewritten_list_is_told() -> None:
    registry = MemoryLog()
    known = KnownFiles(registry, "files")
    known.add(found(["a"]))
    other = MemoryLog()
    KnownFiles(other, "files").add(found(["b"]))
    stored = other.get("files/0")
    assert stored is not None
    registry.compare_and_set("files/0", 1, stored.value)
    with pytest.raises(SourceError, match="rewritten"):
        known.refresh()


def test_keys_follow_the_rule_for_names() -> None:
    with pytest.raises(InvalidName):
        KnownFiles(MemoryLog(), "../files")
