"""The sinks in memory and in a folder: each epoch once, whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.connectors import folder_sink
from penstock.connectors.collect import MemorySink
from penstock.connectors.contract import Sink
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import SinkError
from tests.connectors.contract import SinkContract


class TestMemorySink(SinkContract):
    @pytest.fixture
    def sink(self) -> MemorySink:
        return MemorySink()

    @pytest.fixture
    def open_sink(self, sink: MemorySink) -> Callable[[], Sink]:
        return lambda: sink

    @pytest.fixture
    def contents(self, sink: MemorySink) -> Callable[[], list[int]]:
        return lambda: [value for batch in sink.batches() for value in batch[0].to_pylist()]

    def test_all_rows_as_one_table(self, sink: MemorySink) -> None:
        sink.write("b", 1, [self.batch(3)])
        sink.write("a", 1, [self.batch(1), self.batch(2)])
        assert sink.table().column("value").to_pylist() == [1, 2, 3]


class TestFolderSink(SinkContract):
    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FolderSink(tmp_path / "out")

    @pytest.fixture
    def contents(self, tmp_path: Path) -> Callable[[], list[int]]:
        return lambda: _values(tmp_path / "out")

    def test_leftovers_of_a_crash_are_cleared_and_never_read(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]], tmp_path: Path
    ) -> None:
        sink = open_sink()
        sink.write("count_0", 1, [self.batch(1)])
        torn = tmp_path / "out" / f".count_0-{2:020d}-abcd.tmp"
        others = tmp_path / "out" / f".count-{2:020d}-abcd.tmp"
        torn.write_bytes(b"PAR1 half of it")
        others.write_bytes(b"another vertex is writing this one")
        assert contents() == [1]
        assert open_sink().last_epoch("count_0") == 1
        assert not torn.exists()
        assert others.exists()

    def test_other_files_of_the_folder_do_not_count(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        sink = open_sink()
        (tmp_path / "out" / "count_0-9.parquet").write_bytes(b"")
        (tmp_path / "out" / f"count_0-{9:020d}.parquet.bak").write_bytes(b"")
        assert sink.last_epoch("count_0") is None

    def test_writers_at_the_same_time_store_an_epoch_once(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        start = threading.Barrier(4)
        new: list[bool] = []

        def write(sink: Sink, value: int) -> None:
            sink.last_epoch("count_0")
            start.wait(timeout=30)
            new.append(sink.write("count_0", 1, [self.batch(value)] * 3))

        # Handles are made first: making one clears what crashed writers left.
        sinks = [open_sink() for _ in range(4)]
        threads = [
            threading.Thread(target=write, args=(sink, value)) for value, sink in enumerate(sinks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(new) == [False, False, False, True]
        assert len(set(contents())) == 1
        assert len(contents()) == 3

    def test_an_epoch_of_many_small_batches_is_one_row_group(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        open_sink().write("count_0", 1, [self.batch(number) for number in range(1_000)])
        (file,) = (tmp_path / "out").glob("*.parquet")
        assert pq.ParquetFile(file).num_row_groups == 1
        assert pq.read_table(file).column("value").to_pylist() == list(range(1_000))

    def test_row_groups_are_bounded(
        self, open_sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(folder_sink, "ROW_GROUP_BYTES", 24)
        open_sink().write("count_0", 1, [self.batch(number) for number in range(7)])
        (file,) = (tmp_path / "out").glob("*.parquet")
        groups = pq.ParquetFile(file).metadata
        assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 1]

    def test_what_is_staged_is_seen_once_it_is_published(
        self, contents: Callable[[], list[int]], tmp_path: Path
    ) -> None:
        sink = FolderSink(tmp_path / "out")
        second = sink.stage("count_0", 2, [self.batch(3)])
        first, dropped = (sink.stage("count_0", 1, [self.batch(1, 2)]) for _ in range(2))
        assert (contents(), first.num_rows) == ([], 2)
        assert sink.publish(first)
        assert contents() == [1, 2]
        assert sink.publish(second)
        sink.discard(dropped)
        assert not sink.publish(sink.stage("count_0", 2, [self.batch(9)]))
        assert contents() == [1, 2, 3]
        assert len(list((tmp_path / "out").iterdir())) == 2

    def test_who_only_asks_for_the_owner_clears_nothing(self, tmp_path: Path) -> None:
        sink, other = FolderSink(tmp_path), FolderSink(tmp_path)
        sink.claim("count_0", "one")
        staged = sink.stage("count_0", 1, [self.batch(1)])
        assert other.owner("count_0", "two") == other.claim("count_0", "two") == "one"
        assert sink.publish(staged)

    def test_a_file_system_without_links(
        self,
        open_sink: Callable[[], Sink],
        contents: Callable[[], list[int]],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        def no_link(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_link)
        zombie, heir = open_sink(), open_sink()
        assert zombie.last_epoch("count_0") is heir.last_epoch("count_0") is None
        assert zombie.write("count_0", 1, [self.batch(1)])
        assert not heir.write("count_0", 1, [self.batch(2)])
        assert contents() == [1]
        assert [path.name for path in (tmp_path / "out").iterdir()] == [f"count_0-{1:020d}.parquet"]

    def test_a_full_disk_is_told_and_the_epoch_can_be_repeated(
        self,
        open_sink: Callable[[], Sink],
        contents: Callable[[], list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sink = open_sink()

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(SinkError, match="No space left") as caught:
                sink.write("count_0", 4, [self.batch(1)])
        assert caught.value.details["errno"] == errno.ENOSPC
        assert contents() == []
        assert sink.write("count_0", 4, [self.batch(1)])
        assert contents() == [1]

    def test_rows_of_another_schema_are_told(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        with pytest.raises(SinkError, match="schema"):
            open_sink().write("count_0", 1, [self.batch(1), pa.record_batch({"other": ["x"]})])
        assert contents() == []

    def test_a_plain_reader_gets_typed_rows(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        open_sink().write("count_0", 1, [self.batch(1, 2)])
        table = ds.dataset(tmp_path / "out", format="parquet").to_table()
        assert table.schema.field("value").type == pa.int64()
        assert table.num_rows == 2

    @pytest.mark.parametrize("left", ["whole", "empty", "none"])
    def test_a_folder_knows_its_owner(self, tmp_path: Path, left: str) -> None:
        """By a file of its own; if a power cut took what is in it, by the rows."""
        sink = FolderSink(tmp_path)
        assert sink.claim("q", "id-1") == "id-1"
        owner = tmp_path / "_penstock_q"
        assert owner.read_text() == "id-1"
        assert FolderSink(tmp_path).claim("q", "id-2") == "id-1"
        sink.write("q", 7, [self.batch(1)])
        if left != "whole":
            owner.unlink()
        if left == "empty":
            owner.touch()
        assert FolderSink(tmp_path).claim("q", "id-2") == "id-1"
        assert FolderSink(tmp_path).claim("q", "id-1") == "id-1"
        assert owner.read_text() == "id-1"
        assert [path.name for path in tmp_path.glob(".*")] == []

    def test_rows_that_say_nothing_of_an_owner_are_nobodys(self, tmp_path: Path) -> None:
        FolderSink(tmp_path).write("q", 7, [self.batch(1)])
        assert FolderSink(tmp_path).claim("q", "id-1") is None

    def test_the_owner_is_as_durable_as_the_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        sync = os.fsync

        def noted(fd: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            sync(fd)

        monkeypatch.setattr(os, "fsync", noted)
        FolderSink(tmp_path).claim("q", "id-1")
        (file, folder) = synced
        assert file.startswith(".q-owner-")
        assert folder == tmp_path.name

    @pytest.mark.parametrize("mask", [0o022, 0o077])
    def test_files_obey_the_umask(self, tmp_path: Path, mask: int) -> None:
        before = os.umask(mask)
        try:
            sink = FolderSink(tmp_path / "out")
            sink.claim("q", "id-1")
            sink.write("q", 7, [self.batch(1)])
        finally:
            os.umask(before)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
        assert modes == {0o666 & ~mask}

    def test_a_folder_that_cannot_be_made_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(SinkError, match="taken"):
            FolderSink(tmp_path / "taken" / "out")


def _values(folder: Path) -> list[int]:
    """What a reader sees who lists the folder and knows nothing of epochs."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [value for path in files for value in pq.read_table(path)["value"].to_pylist()]
