"""What a Parquet file says of itself is believed within bounds, and read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors import parquet_footer
from penstock.connectors.folder import FolderOptions, FolderSource
from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_footer import MAGIC, read_footer
from penstock.connectors.parquet_statistics import ColumnTest
from penstock.testing.memory_log import MemoryLog

NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is parsed from now on."""
    sizes: list[int] = []

    class Counted(parquet_footer._Thrift):
        def __init__(self, data: bytes) -> None:
            sizes.append(len(data))
            super().__init__(data)

    monkeypatch.setattr(parquet_footer, "_Thrift", Counted)
    return sizes


def write(path: Path, rows: int = 80) -> None:
    table = pa.table({"n": pa.array(range(rows), pa.int64())}, NUMBERS)
    pq.write_table(table, path, row_group_size=10)


def read(folder: Path, readers: int = 1) -> list[int]:
    """The numbers below 25, and those of their row groups, read by row group."""
    options = FolderOptions(bounded=True, part_bytes=1)
    condition = ColumnTest("n", "lt", 25)
    whole = FolderSource(folder, "parquet", MemoryLog(), NUMBERS, options, condition=condition)
    found: list[int] = []
    for source in whole.split(readers):
        offset, ended = source.initial_offset(), False
        while not ended:
            answer = source.read(offset, 100)
            found += answer.batch["n"].to_pylist() if answer.batch is not None else []
            offset, ended = answer.next_offset, answer.ended
        source.close()
    return sorted(found)


def test_all_parts_of_a_file_share_what_was_read_of_it(tmp_path: Path, parsed: list[int]) -> None:
    write(tmp_path / "one")
    assert read(tmp_path, readers=3) == list(range(30))
    assert len(parsed) == 1
    write(tmp_path / "one", rows=90)  # another version
    assert read(tmp_path, readers=3) == list(range(30))
    assert len(parsed) == 2


def test_a_large_footer_is_not_read(
    tmp_path: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "one")
    monkeypatch.setattr(parquet_footer, "FOOTER_BYTES_MAX", 100)
    assert read(tmp_path) == list(range(80))
    assert parsed == []


def test_a_bounded_number_of_footers_is_kept(
    tmp_path: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "first")
    size = len(bytes((tmp_path / "first").read_bytes()))
    monkeypatch.setattr(parquet_footer, "KEPT_BYTES_MAX", 3 * size)
    for number in range(20):
        write(tmp_path / f"{number}")
        read_footer(OpenFile(tmp_path, f"{number}", None))
    assert sum(kept for kept, _ in parquet_footer._kept.values()) <= 3 * size
    read_footer(OpenFile(tmp_path, "19", None))
    assert len(parsed) == 20


@pytest.mark.parametrize(
    "footer", [b"\x19" * 100_000, b"\x1c" * 100_000, b"\x19\xf3\xff\xff\xff\xff\x0f", b"\x1b"]
)
def test_a_forged_footer_says_nothing(tmp_path: Path, footer: bytes) -> None:
    """Lists and structs without end, a length beyond all bounds, a kind that there is not."""
    raw: Any = MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC
    (tmp_path / "one").write_bytes(raw)
    assert read_footer(OpenFile(tmp_path, "one", None)) == {}
