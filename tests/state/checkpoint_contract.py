"""What every checkpoint store promises; each one's test file gives a store and runs these."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointForeign,
    CheckpointNotFound,
    CheckpointVersionUnsupported,
    InvalidName,
)
from penstock.state import checkpoints
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MANIFEST, CheckpointId, CheckpointStore

NUMBERS = pa.record_batch({"n": pa.array(range(1000)), "s": pa.array(["text"] * 1000)})
EMPTY = NUMBERS.slice(0, 0)


class CheckpointContract:
    """Subclasses give a `store` and, to damage it, raw access to its files."""

    @pytest.fixture
    def store(self) -> CheckpointStore:
        raise NotImplementedError

    def read_raw(self, store: CheckpointStore, path: FilePath) -> bytes:
        return store._files.read_file(path, 1 << 30).to_pybytes()

    def write_raw(self, store: CheckpointStore, path: FilePath, content: bytes) -> None:
        store._files.remove_file(path)
        store._files.write_file(path, [content])

    def test_what_was_written_is_loaded(self, store: CheckpointStore) -> None:
        meta = {"epoch": 3, "offsets": {"a": [1, None, "x"]}}
        states = {"counts": [NUMBERS, EMPTY, NUMBERS.slice(5, 7)], "empty": []}
        written = store.write("vertex_1", 42, states, meta)
        assert (written.vertex, written.position) == ("vertex_1", 42)
        loaded = store.load(written)
        assert loaded.id == written
        assert loaded.meta == meta
        assert loaded.states == states

    def test_batches_may_come_one_by_one(self, store: CheckpointStore) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(0, 1000, 100):
                yield NUMBERS.slice(first, 100)

        loaded = store.load(store.write("v", 1, {"s": batches()}))
        assert pa.Table.from_batches(loaded.states["s"]) == pa.Table.from_batches([NUMBERS])

    def test_newest_is_at_or_before_a_position(self, store: CheckpointStore) -> None:
        for position in (5, 100, 20):
            store.write("v", position, {"s": [NUMBERS]})
        store.write("w", 7, {})
        positions = [each.position for each in store.list("v")]
        assert positions == [5, 20, 100]
        assert store.newest("v", 4) is None
        assert store.newest("v", 5) == CheckpointId("v", 5)
        assert store.newest("v", 99) == CheckpointId("v", 20)
        assert store.newest("v", 1 << 60) == CheckpointId("v", 100)
        assert store.newest("nobody", 5) is None

    def test_the_same_marker_twice_is_two_checkpoints(self, store: CheckpointStore) -> None:
        first = store.write("v", 5, {"s": [NUMBERS]}, {"who": "zombie"})
        second = store.write("v", 5, {"s": [NUMBERS]}, {"who": "heir"})
        assert first != second
        assert store.list("v") == [first, second]
        assert store.newest("v", 5) == second
        assert store.load(first).meta == {"who": "zombie"}

    def test_delete_removes_what_the_manifest_names(self, store: CheckpointStore) -> None:
        old, new = (store.write("v", at, {"s": [NUMBERS]}) for at in (1, 2))
        store._files.write_file((*old.path, "notes.txt"), [b"mine"])
        store.delete(old)
        assert store.list("v") == [new]
        assert store._files.list_folder(old.path) == ["notes.txt"]
        store.delete(new)
        assert store.list("v") == []
        assert store._files.list_folder(("v",)) == [old.path[-1]]
        with pytest.raises(CheckpointNotFound):
            store.load(new)
        with pytest.raises(CheckpointNotFound):
            store.delete(new)
        with pytest.raises(CheckpointNotFound):
            store.load(CheckpointId("nobody", 1))

    @pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a..b", "x" * 65, "a\n"])
    def test_names_outside_the_rule_are_refused(self, store: CheckpointStore, name: str) -> None:
        attempts: list[Callable[[], object]] = [
            lambda: store.write(name, 1, {}),
            lambda: store.write("v", 1, {name: []}),
            lambda: store.list(name),
            lambda: store.newest(name, 1),
            lambda: store.load(CheckpointId(name, 1)),
            lambda: store.delete(CheckpointId(name, 1)),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidName):
                attempt()
        with pytest.raises(CheckpointError, match="position"):
            store.write("v", -1, {})

    def test_every_flipped_byte_is_noticed(self, store: CheckpointStore) -> None:
        written = store.write("v", 9, {"s": [NUMBERS.slice(0, 9)]}, {"k": 1})
        manifest = json.loads(self.read_raw(store, (*written.path, MANIFEST)))
        unit_bytes = json.loads(manifest["body"])["states"]["s"][0]["bytes"]
        for file in (MANIFEST, "s.units"):
            path = (*written.path, file)
            good = self.read_raw(store, path)
            unit_end = len(good) if file == MANIFEST else unit_bytes
            for at in range(0, len(good), 1 + len(good) // 150):
                bad = bytearray(good)
                bad[at] ^= 0x10
                self.write_raw(store, path, bytes(bad))
                if at >= unit_end:  # padding after a unit says nothing
                    assert store.load(written).states == {"s": [NUMBERS.slice(0, 9)]}
                    continue
                with pytest.raises(CheckpointDamaged, match="falls back") as damaged:
                    store.load(written)
                assert damaged.value.details["file"] == file
            self.write_raw(store, path, good)
        assert store.load(written).meta == {"k": 1}

    def test_missing_and_short_files_are_damage(self, store: CheckpointStore) -> None:
        written = store.write("v", 9, {"s": [NUMBERS]})
        path = (*written.path, "s.units")
        content = self.read_raw(store, path)
        self.write_raw(store, path, content[: len(content) // 2])
        with pytest.raises(CheckpointDamaged, match="ends at byte"):
            store.load(written)
        store._files.remove_file(path)
        with pytest.raises(CheckpointDamaged, match="missing"):
            store.load(written)
        store.delete(written)  # what is already gone does not stand in the way
        assert store.list("v") == []

    def test_recovery_falls_back_to_an_older_checkpoint(self, store: CheckpointStore) -> None:
        old, middle, new = (store.write("v", at, {"s": [NUMBERS]}) for at in (1, 2, 3))
        self.write_raw(store, (*new.path, MANIFEST), b"{")
        store._files.remove_file((*middle.path, "s.units"))
        loaded, problems = store.load_newest("v", 3)
        assert loaded is not None
        assert loaded.id == old
        assert list(problems) == [new, middle]
        assert [problem.details["position"] for problem in problems.values()] == [3, 2]
        assert store.load_newest("v", 0) == (None, {})

    def test_what_the_caller_refuses_is_passed_over_unread(self, store: CheckpointStore) -> None:
        old, new = (store.write("v", at, {"s": [NUMBERS]}, {"who": at}) for at in (1, 2))
        store._files.remove_file((*new.path, "s.units"))

        def check(checkpoint: CheckpointId) -> None:
            if store.read_meta(checkpoint) == {"who": 2}:
                raise CheckpointForeign("not ours")

        loaded, problems = store.load_newest("v", 3, check)
        assert loaded is not None
        assert loaded.id == old
        assert [(each, type(why)) for each, why in problems.items()] == [(new, CheckpointForeign)]

    def test_a_checkpoint_that_is_set_aside_goes_with_the_unfinished(
        self, store: CheckpointStore
    ) -> None:
        bad, good = (store.write("v", at, {"s": [NUMBERS]}) for at in (1, 2))
        self.write_raw(store, (*bad.path, MANIFEST), b"{")
        store.set_aside(bad)
        store.set_aside(bad)
        assert store.list("v") == [good]
        assert store.delete_unfinished("v", 2) == 1
        assert store._files.list_folder(("v",)) == [good.path[-1]]

    def test_a_manifest_cannot_point_elsewhere(self, store: CheckpointStore) -> None:
        """A manifest with a fitting checksum, but not ours: nothing outside is read or removed."""
        from xxhash import xxh3_64_hexdigest  # noqa: PLC0415 (only to forge a manifest)

        victim = store.write("victim", 1, {"s": [NUMBERS]})
        written = store.write("v", 1, {"s": [NUMBERS]})
        path = (*written.path, MANIFEST)
        frame = json.loads(self.read_raw(store, path))
        good = json.loads(frame["body"])
        unit = good["states"]["s"][0]
        forgeries = [
            {"states": {"../../victim/00000000000000000001_0000/s": [unit]}},
            {"states": {"s": [{**unit, "at": -64}]}},
            {"states": {"s": [{**unit, "bytes": 1 << 70}]}},
            {"states": {"s": [{**unit, "bytes": True}]}},
            {"states": {"s": [{**unit, "checksum": "0"}]}},
            {"states": {"s": "x"}},
            {"states": None},
            {"position": 2},
            {"vertex": "victim"},
            {"format": "other"},
            {"meta": []},
        ]
        for forgery in forgeries:
            text = json.dumps({**good, **forgery})
            forged = {"checksum": xxh3_64_hexdigest(text.encode()), "body": text}
            self.write_raw(store, path, json.dumps(forged).encode())
            with pytest.raises(CheckpointDamaged):
                store.load(written)
        for content in (b"", b"[]", b"null", b'{"body": 1, "checksum": ""}', b"\xff\xfe"):
            self.write_raw(store, path, content)
            with pytest.raises(CheckpointDamaged):
                store.load(written)
            with pytest.raises(CheckpointDamaged):
                store.delete(written)
        assert store.load(victim).states == {"s": [NUMBERS]}

    def test_a_checkpoint_of_another_version_is_refused_and_no_older_one_taken(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoints, "VERSION", checkpoints.VERSION + 1)
        newer = store.write("v", 2, {"s": [NUMBERS]})
        monkeypatch.undo()
        older = store.write("v", 1, {"s": [NUMBERS]})
        with pytest.raises(CheckpointVersionUnsupported, match="run the one that wrote it"):
            store.load_newest("v", 5)
        with pytest.raises(CheckpointVersionUnsupported):
            store.delete(newer)
        assert store.list("v") == [older, newer]
        loaded, _ = store.load_newest("v", 1)
        assert loaded is not None
        assert loaded.id == older

    def test_other_names_in_the_folder_are_not_ours(self, store: CheckpointStore) -> None:
        written = store.write("v", 1, {"s": [NUMBERS]})
        for name in ("backup", "1_0", "00000000000000000002_0000.bak"):
            store._files.make_folder(("v", name))
        assert store.list("v") == [written]
        assert store.delete_unfinished("v", 100) == 0

    def test_unfinished_checkpoints_are_invisible_and_can_be_removed(
        self, store: CheckpointStore
    ) -> None:
        whole = store.write("v", 5, {"s": [NUMBERS]})
        for position in (3, 8):
            folder = CheckpointId("v", position).path
            store._files.make_folder(folder)
            store._files.write_file((*folder, "s.units"), [b"torn"])
        assert store.list("v") == [whole]
        assert store.delete_unfinished("v", 5) == 1
        assert len(store._files.list_folder(("v",))) == 2
        assert store.list("v") == [whole]

    def test_rows_that_fail_on_the_way_leave_nothing(self, store: CheckpointStore) -> None:
        def failing() -> Iterator[pa.RecordBatch]:
            yield NUMBERS
            raise RuntimeError("the snapshot broke")

        with pytest.raises(RuntimeError):
            store.write("v", 1, {"s": failing()})
        with pytest.raises(ValueError, match="JSON"):
            store.write("v", 1, {"s": [NUMBERS]}, {"bad": float("nan")})
        assert store.list("v") == []
        assert store._files.list_folder(("v",)) == []
