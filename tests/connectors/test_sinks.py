"""Sinks that know their epochs: each one once, whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.connectors import folder_sink
from penstock.connectors.contract import BatchRows, Sink, check_epoch
from penstock.connectors.folder_sink import FolderSink
from penstock.errors import InvalidName, QueryMismatch, SinkError
from tests.connectors.contract import SinkContract, batch, sink_rows, write


class KeptRows(Sink):
    """Keeps every epoch in memory; all handles are one."""

    def __init__(self) -> None:
        self.epochs: dict[int, pa.Table] = {}

    def stage(self, epoch: int, rows: BatchRows) -> pa.Table:
        check_epoch(epoch)
        return rows.table()

    def publish(self, epoch: int, staged: pa.Table) -> None:
        if staged.num_rows and epoch > max(self.epochs, default=-1):
            self.epochs[epoch] = staged

    def last_epoch(self) -> int | None:
        return max(self.epochs, default=None)


class TestKeptRows(SinkContract):
    @pytest.fixture
    def sink(self) -> KeptRows:
        return KeptRows()

    @pytest.fixture
    def open_sink(self, sink: KeptRows) -> Callable[[], Sink]:
        return lambda: sink

    @pytest.fixture
    def contents(self, sink: KeptRows) -> Callable[[], list[int]]:
        return lambda: [v for rows in sink.epochs.values() for v in rows["value"].to_pylist()]


class TestFolderSink(SinkContract):
    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FolderSink(tmp_path / "out", "count_0", "id-1")

    @pytest.fixture
    def contents(self, tmp_path: Path) -> Callable[[], list[int]]:
        return lambda: _values(tmp_path / "out")

    def test_leftovers_of_a_crash_are_cleared_and_never_read(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]], tmp_path: Path
    ) -> None:
        sink = open_sink()
        write(sink, 1, batch(1))
        torn = tmp_path / "out" / f".count_0-{2:020d}-abcd.tmp"
        others = tmp_path / "out" / f".count-{2:020d}-abcd.tmp"
        torn.write_bytes(b"PAR1 half of it")
        others.write_bytes(b"another query is writing this one")
        assert contents() == [1]
        assert open_sink().last_epoch() == 1
        assert not torn.exists()
        assert others.exists()

    def test_other_files_of_the_folder_do_not_count(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        sink = open_sink()
        (tmp_path / "out" / "count_0-9.parquet").write_bytes(b"")
        (tmp_path / "out" / f"count_0-{9:020d}.parquet.bak").write_bytes(b"")
        assert sink.last_epoch() is None

    def test_writers_at_the_same_time_store_an_epoch_once(
        self, open_sink: Callable[[], Sink], contents: Callable[[], list[int]]
    ) -> None:
        start = threading.Barrier(4)

        def race(sink: Sink, value: int) -> None:
            sink.last_epoch()
            start.wait(timeout=30)
            write(sink, 1, *[batch(value)] * 3)

        # Handles are made first: making one clears what crashed writers left.
        sinks = [open_sink() for _ in range(4)]
        threads = [
            threading.Thread(target=race, args=(sink, value)) for value, sink in enumerate(sinks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(set(contents())) == 1
        assert len(contents()) == 3

    def test_an_epoch_of_many_small_batches_is_one_row_group(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        write(open_sink(), 1, *[batch(number) for number in range(1_000)])
        (file,) = (tmp_path / "out").glob("*.parquet")
        assert pq.ParquetFile(file).num_row_groups == 1
        assert pq.read_table(file).column("value").to_pylist() == list(range(1_000))

    def test_row_groups_are_bounded(
        self, open_sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(folder_sink, "ROW_GROUP_BYTES", 24)
        write(open_sink(), 1, *[batch(number) for number in range(7)])
        (file,) = (tmp_path / "out").glob("*.parquet")
        groups = pq.ParquetFile(file).metadata
        assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 1]

    def test_columns_that_would_outgrow_a_dictionary_have_none(self, tmp_path: Path) -> None:
        numbers = np.arange(1 << 18)
        kinds = {
            "few": pa.array(numbers % 1_000),
            "many": pa.array(numbers % 100_000),  # most of some rows differ, and all have room
            "own": pa.array(numbers * 3),
            "text": pa.array(numbers).cast(pa.string()),
            "named": pa.array(["one", None, "two", "one"] * (1 << 16)),
            "none": pa.nulls(1 << 18, pa.int64()),
            "day": pa.array(numbers % 365, pa.int32()).cast(pa.date32()),
            "sum": pa.array(numbers % 7).cast(pa.decimal128(21, 2)),
            "flag": pa.array(numbers % 2 == 0),
        }
        rows = pa.record_batch(kinds)
        sink = FolderSink(tmp_path, "q", "id-1")
        sink.publish(1, sink.stage(1, [rows]))
        (file,) = tmp_path.glob("q-*.parquet")
        assert pq.read_table(file).equals(pa.Table.from_batches([rows]))
        group = pq.ParquetFile(file).metadata.row_group(0)
        columns = [group.column(place) for place in range(group.num_columns)]
        plain = [c.path_in_schema for c in columns if "RLE_DICTIONARY" not in c.encodings]
        assert plain == ["own", "text", "flag"]

    def test_a_file_that_is_discarded_is_gone(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        sink = open_sink()
        write(sink, 1, batch(1))
        left = sorted((tmp_path / "out").iterdir())
        sink.discard(sink.stage(2, sink_rows(batch(3))))
        assert sorted((tmp_path / "out").iterdir()) == left

    def test_queries_of_one_folder_do_not_meet(
        self, contents: Callable[[], list[int]], tmp_path: Path
    ) -> None:
        long, short = (FolderSink(tmp_path / "out", name, "id") for name in ("count_0", "count"))
        write(short, 5, batch(1))
        write(long, 3, batch(2))
        assert (short.last_epoch(), long.last_epoch()) == (5, 3)
        assert sorted(contents()) == [1, 2]

    def test_a_query_without_a_possible_name_is_refused(self, tmp_path: Path) -> None:
        for name in ("../count", "a-1"):
            with pytest.raises(InvalidName):
                FolderSink(tmp_path, name, "id")

    def test_who_is_refused_clears_nothing(self, tmp_path: Path) -> None:
        sink = FolderSink(tmp_path, "count_0", "one")
        staged = sink.stage(1, sink_rows(batch(1)))
        refused(tmp_path, "count_0", "two", owner="one")
        sink.publish(1, staged)
        assert _values(tmp_path) == [1]

    def test_who_was_overtaken_before_its_first_file_is_refused(self, tmp_path: Path) -> None:
        first, second = (FolderSink(tmp_path, "q", owner) for owner in ("one", "two"))
        write(first, 1, batch(1))
        with pytest.raises(QueryMismatch, match="id one, this one is two"):
            second.stage(1, sink_rows(batch(2)))

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
        assert zombie.last_epoch() is heir.last_epoch() is None
        write(zombie, 1, batch(1))
        write(heir, 1, batch(2))
        assert contents() == [1]
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == ["_penstock_count_0", f"count_0-{1:020d}.parquet"]

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
                write(sink, 4, batch(1))
        assert caught.value.details["errno"] == errno.ENOSPC
        assert contents() == []
        write(sink, 4, batch(1))
        assert contents() == [1]

    def test_rows_of_another_schema_are_told(
        self, open_sink: Callable[[], FolderSink], contents: Callable[[], list[int]]
    ) -> None:
        sink = open_sink()
        with pytest.raises(SinkError, match="schema"):
            sink.stage(1, [batch(1), pa.record_batch({"other": ["x"]})])
        assert contents() == []

    def test_a_plain_reader_gets_typed_rows(
        self, open_sink: Callable[[], Sink], tmp_path: Path
    ) -> None:
        write(open_sink(), 1, batch(1, 2))
        table = ds.dataset(tmp_path / "out", format="parquet").to_table()
        assert table.schema.field("value").type == pa.int64()
        assert table.num_rows == 2

    @pytest.mark.parametrize("left", ["whole", "empty", "none"])
    def test_a_folder_knows_its_owner(self, tmp_path: Path, left: str) -> None:
        """By a file of its own; if a power cut took what is in it, by the rows."""
        sink = FolderSink(tmp_path, "q", "id-1")
        assert list(tmp_path.iterdir()) == []  # until there are rows
        write(sink, 7, batch(1))
        owner = tmp_path / "_penstock_q"
        assert owner.read_text() == "id-1"
        if left != "whole":
            owner.unlink()
        if left == "empty":
            owner.touch()
        refused(tmp_path, "q", "id-2", owner="id-1")
        write(FolderSink(tmp_path, "q", "id-1"), 8, batch(2))
        assert owner.read_text() == "id-1"
        assert [path.name for path in tmp_path.glob(".*")] == []

    def test_rows_that_say_nothing_of_an_owner_are_nobodys(self, tmp_path: Path) -> None:
        pq.write_table(pa.Table.from_batches([batch(1)]), tmp_path / f"q-{7:020d}.parquet")
        refused(tmp_path, "q", "id-1", owner="unknown")

    def test_the_owner_is_as_durable_as_the_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        sync = os.fsync

        def noted(fd: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            sync(fd)

        monkeypatch.setattr(os, "fsync", noted)
        FolderSink(tmp_path, "q", "id-1").stage(1, sink_rows())
        (file, folder) = synced
        assert file.startswith(".q-owner-")
        assert folder == tmp_path.name

    @pytest.mark.parametrize("mask", [0o022, 0o077])
    def test_files_obey_the_umask(self, tmp_path: Path, mask: int) -> None:
        before = os.umask(mask)
        try:
            write(FolderSink(tmp_path / "out", "q", "id-1"), 7, batch(1))
        finally:
            os.umask(before)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
        assert modes == {0o666 & ~mask}

    def test_a_folder_that_cannot_be_made_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(SinkError, match="taken"):
            FolderSink(tmp_path / "taken" / "out", "q", "id-1")


def refused(folder: Path, query: str, query_id: str, owner: str) -> None:
    with pytest.raises(QueryMismatch, match=f"id {owner}, this one is {query_id}"):
        FolderSink(folder, query, query_id)


def _values(folder: Path) -> list[int]:
    """What a reader sees who lists the folder and knows nothing of epochs."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    return [value for path in files for value in pq.read_table(path)["value"].to_pylist()]
