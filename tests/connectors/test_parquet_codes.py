"""Texts that a Parquet file stores once: they come as codes where asked for, and are the same."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.connectors.folder import FolderOptions, FolderSource
from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_footer import DAMAGE, read_footer, stored_values
from penstock.connectors.parquet_pages import BATCH_BYTES_MAX, CODED_ROWS_MIN
from penstock.connectors.parquet_types import as_type, type_misfit
from penstock.connectors.rejects import with_plain_texts
from penstock.testing.memory_log import MemoryLog

ROWS = CODED_ROWS_MIN
SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
CODED = frozenset({"name"})


def names(distinct: int, rows: int = ROWS, first: int = 0) -> pa.Array:
    known = pa.array([f"name-{first + number:06d}" for number in range(distinct)])
    return known.take(pa.array(np.arange(rows) * 7_919 % distinct))


def table(texts: pa.Array | pa.ChunkedArray, name: str = "name") -> pa.Table:
    return pa.table({name: texts, "n": np.arange(len(texts))})


def read(
    folder: Path, coded: frozenset[str], rows_max: int = 1 << 20, schema: pa.Schema = SCHEMA
) -> Any:
    """The batches of a folder, and what was set aside."""
    options = FolderOptions(mode="deadletter", bounded=True)
    source = FolderSource(folder, "parquet", MemoryLog(), schema, options, coded=coded)
    offset, ended, batches, rejected = source.initial_offset(), False, [], []
    while not ended:
        answer = source.read(offset, rows_max)
        if answer.batch is not None:
            answer.batch.validate(full=True)
            batches.append(answer.batch)
        rejected += [] if answer.rejected is None else answer.rejected.to_pylist()
        offset, ended = answer.next_offset, answer.ended
    source.close()
    return batches, rejected


def is_coded(batch: pa.RecordBatch) -> bool:
    return bool(pa.types.is_dictionary(batch.column("name").type))


def same_rows(folder: Path) -> list[bool]:
    """Read with codes and without, compare, and tell which batches had codes."""
    plain, _ = read(folder, frozenset())
    expected = pa.Table.from_batches(plain, SCHEMA).to_pydict()
    for rows_max in (1 << 20, 30_011):
        batches, rejected = read(folder, CODED, rows_max)
        assert not rejected
        found = pa.Table.from_batches(map(with_plain_texts, batches), SCHEMA)
        assert found.to_pydict() == expected
    whole, _ = read(folder, CODED)
    return [is_coded(batch) for batch in whole]


def with_nulls(texts: pa.Array) -> pa.Array:
    return pa.array(texts.to_pylist(), mask=np.arange(len(texts)) % 3 == 0)


ONE = names(1_000)
STORED: dict[str, tuple[pa.Table, dict[str, Any], list[bool]]] = {
    "one dictionary": (table(ONE), {}, [True]),
    "one for each row group": (
        table(pa.concat_arrays([ONE, names(900, first=500)])),
        {"row_group_size": ROWS},
        [True, True],
    ),
    "nulls": (table(with_nulls(ONE)), {}, [True]),
    "one value, the empty one": (table(pa.array([""] * ROWS)), {}, [True]),
    "columns of Arrow's dictionaries": (table(ONE.dictionary_encode()), {}, [True]),
    "large texts": (table(ONE.cast(pa.large_string())), {}, [True]),
    "bytes": (table(ONE.cast(pa.binary())), {}, [True]),
    "another case": (table(ONE, "NAME"), {}, [True]),
    "data pages of version 2": (table(ONE), {"data_page_version": "2.0"}, [True]),
    "no page says how it is stored": (table(ONE), {"use_dictionary": False}, [False]),
    "a dictionary that became too large": (
        table(ONE), {"dictionary_pagesize_limit": 4_000, "data_page_size": 1_000}, [False],
    ),
    "a dictionary that is as large as it may be": (table(names(ROWS // 4)), {}, [True]),
    "a larger one": (table(names(ROWS // 4 + 1)), {}, [False]),
    "a small row group": (table(names(10, ROWS - 1)), {}, [False]),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_texts_are_the_same_however_a_file_stores_them(tmp_path: Path, name: str) -> None:
    rows, settings, expected = STORED[name]
    pq.write_table(rows, tmp_path / "one", **settings)
    assert same_rows(tmp_path) == expected


def test_nothing_but_nulls_has_no_dictionary(tmp_path: Path) -> None:
    pq.write_table(table(pa.nulls(ROWS, pa.string())), tmp_path / "one")
    same_rows(tmp_path)


def test_a_file_in_which_a_column_has_no_value_need_not_know_its_type(tmp_path: Path) -> None:
    pq.write_table(table(names(3, 100)), tmp_path / "a")
    pq.write_table(table(pa.nulls(50)), tmp_path / "b")
    same_rows(tmp_path)
    batches, _ = read(tmp_path, CODED)
    assert sum(with_plain_texts(batch)["name"].null_count for batch in batches) == 50


@pytest.mark.parametrize("wanted", ["int", "string", "list", "struct", "decimal"])
def test_no_value_is_one_of_every_type(wanted: str) -> None:
    kind = {
        "int": pa.int32(),
        "string": pa.string(),
        "list": pa.list_(pa.int64()),
        "struct": pa.struct([("a", pa.int8())]),
        "decimal": pa.decimal128(10, 2),
    }[wanted]
    assert type_misfit(pa.null(), kind, case_sensitive=False) is None
    assert as_type(pa.nulls(3), kind, case_sensitive=False).equals(pa.nulls(3, kind))


def test_files_that_differ(tmp_path: Path) -> None:
    """Without the column, with it in few rows, and with it as numbers, which is no text."""
    pq.write_table(table(ONE), tmp_path / "a")
    pq.write_table(pa.table({"n": np.arange(5)}), tmp_path / "b")
    pq.write_table(table(names(3, 100)), tmp_path / "c")
    pq.write_table(table(names(2, 100)), tmp_path / "d")
    assert same_rows(tmp_path) == [True, False]
    pq.write_table(table(pa.array([1, 2])), tmp_path / "e")
    _, rejected = read(tmp_path, CODED)
    assert [reject["file"] for reject in rejected] == ["e"]


def test_one_small_file_alone_keeps_its_codes(tmp_path: Path) -> None:
    pq.write_table(table(names(3, 100)), tmp_path / "one")
    assert same_rows(tmp_path) == [True]


DELTAS = ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")


@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("rows", [100, ROWS])
@pytest.mark.parametrize("nested", [False, True])
def test_texts_that_are_stored_by_what_they_share(
    tmp_path: Path, encoding: str, rows: int, nested: bool
) -> None:
    """As the second version of Parquet's writer in Java does; Arrow has no dictionaries of them."""
    shared = names(rows, rows)
    columns = {"name": shared, "other": names(7, rows), "n": pa.array(range(rows))}
    if nested:
        offsets = pa.array(range(rows + 1), pa.int32())
        columns["list"] = pa.ListArray.from_arrays(offsets, with_nulls(shared))
    table = pa.table(columns)
    paths = ["name", *(["list.list.element"] if nested else [])]
    pq.write_table(
        table,
        tmp_path / "one",
        use_dictionary=["other"],
        column_encoding=dict.fromkeys(paths, encoding),
    )
    for coded in (frozenset[str](), frozenset({"name", "other"})):
        batches, rejected = read(tmp_path, coded, schema=table.schema)
        assert not rejected
        found = pa.Table.from_batches(map(with_plain_texts, batches))
        assert found.to_pydict() == table.to_pydict()


@pytest.mark.parametrize("rows", [4_000, 9_000])
def test_a_long_text_that_many_rows_share_is_built_in_bounded_batches(
    tmp_path: Path, rows: int
) -> None:
    texts = pa.array(["x" * (1 << 18)] * 100)
    with pq.ParquetWriter(
        tmp_path / "one", pa.schema([("name", pa.string())]), use_dictionary=False,
        column_encoding={"name": "DELTA_BYTE_ARRAY"}, compression="zstd",
    ) as writer:  # fmt: skip
        writer.write_table(pa.table({"name": pa.chunked_array([texts] * (rows // 100))}), rows)
    assert (tmp_path / "one").stat().st_size < 50_000
    source = FolderSource(tmp_path, "parquet", MemoryLog(), SCHEMA)
    before, offset = pa.total_allocated_bytes(), source.initial_offset()
    for _ in range(3):
        answer = source.read(offset, 1 << 20)
        assert 0 < answer.batch.nbytes <= 2 * BATCH_BYTES_MAX
        offset = answer.next_offset
    assert pa.total_allocated_bytes() - before < 4 * BATCH_BYTES_MAX


@pytest.mark.parametrize("rows", [100, ROWS])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_text_that_is_none_is_set_aside_where_rows_have_it(
    tmp_path: Path, rows: int, kind: pa.DataType
) -> None:
    """Not in all rows that share its dictionary."""
    codes = np.zeros(rows, np.int32)
    codes[7], codes[rows - 3 :] = 1, 2
    values = pa.array([b"ok", b"\xff", "é".encode()], pa.binary()).view(kind)
    texts = pa.DictionaryArray.from_arrays(pa.array(codes), values)
    pq.write_table(table(texts), tmp_path / "one", store_schema=False)
    for rows_max in (1 << 20, 50):
        if rows_max == 50 and rows == ROWS:
            continue
        batches, rejected = read(tmp_path, CODED, rows_max)
        assert [reject["line"] for reject in rejected] == [8]
        found = pa.Table.from_batches(map(with_plain_texts, batches))
        assert found["n"].to_pylist() == [n for n in range(rows) if n != 7]
        assert found["name"].to_pylist()[-4:] == ["ok", "é", "é", "é"]


def write_with_a_value_twice(path: Path, columns: dict[str, pa.Array], **settings: Any) -> None:
    """Write a file in whose dictionaries the texts of only `b` are ones of only `a`."""
    sink = pa.BufferOutputStream()
    settings |= {"compression": "none", "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table(columns), sink, **settings)
    path.write_bytes(re.sub(b"b{4,}", lambda found: b"a" * len(found[0]), bytes(sink.getvalue())))


def letters(rows: int, used: int, size: int) -> pa.DictionaryArray:
    """Texts of one letter each; of four stored ones the first few are used."""
    codes = pa.array(np.arange(rows, dtype=np.int32) % used)
    return pa.DictionaryArray.from_arrays(codes, [letter * size for letter in "abcd"])


TWICE: dict[str, tuple[int, int, int]] = {  # rows, codes that are used, length of a text
    "small, all codes": (100, 4, 4),
    "small, and no code tells": (100, 2, 4),
    "small, long": (100, 2, 40_000),
    "small, longer together than a batch": (3_500, 4, 20_000),
    "large": (ROWS, 4, 4),
    "large, and no code tells": (ROWS, 2, 4),
    "large, long": (300, 4, 90_000),
    "large, long, and no code tells": (300, 2, 90_000),
}


@pytest.mark.parametrize("coded", [frozenset(), CODED])
@pytest.mark.parametrize("name", TWICE)
def test_a_dictionary_with_a_value_twice(tmp_path: Path, name: str, coded: frozenset[str]) -> None:
    rows, used, size = TWICE[name]
    texts = letters(rows, used, size)
    write_with_a_value_twice(tmp_path / "one", {"name": texts, "n": np.arange(rows)})
    batches, rejected = read(tmp_path, coded)
    assert not rejected
    assert all(batch.nbytes <= 2 * BATCH_BYTES_MAX for batch in batches)
    found = pa.Table.from_batches(map(with_plain_texts, batches))
    assert found["n"].to_pylist() == [*range(rows)]
    assert set(pc.utf8_length(found["name"]).to_pylist()) == {size}
    first = pc.utf8_slice_codeunits(found["name"], 0, 1).to_pylist()
    assert first == ["aacd"[row % used] for row in range(rows)]


@pytest.mark.parametrize("settings", [{}, {"dictionary_pagesize_limit": 200_000}])
def test_a_value_twice_inside_lists_sets_the_row_group_aside(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    """What its rows need is not known; also where a few rows are codes, and the others are not."""
    rows = 100
    texts = letters(rows, 4, 90_000).cast(pa.string())
    lists = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), texts)
    columns = {"list": lists, "n": pa.array(range(rows))}
    write_with_a_value_twice(
        tmp_path / "one", columns, write_batch_size=8, row_group_size=rows // 2, **settings
    )
    schema = pa.schema([("list", pa.list_(pa.string())), ("n", pa.int64())])
    batches, rejected = read(tmp_path, CODED, schema=schema)
    assert not batches
    assert [reject["line"] for reject in rejected] == [1, rows // 2 + 1]
    assert all("cannot be read" in reject["reason"] for reject in rejected)


def test_what_a_damaged_file_says_of_its_dictionaries_is_not_believed(tmp_path: Path) -> None:
    pq.write_table(table(names(5, 20)), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    file = OpenFile(tmp_path, "whole", None)
    assert stored_values(file, read_footer(file), 0, "name") == 5
    assert stored_values(file, read_footer(file), 0, "other") is None
    assert stored_values(file, read_footer(file), 1, "name") is None
    file.close()
    said = []
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "bad").write_bytes(damaged)
        file = OpenFile(tmp_path, "bad", None)
        with suppress(DAMAGE):
            said.append(stored_values(file, read_footer(file), 0, "name"))
        file.close()
    assert {5, None} <= set(said)  # most damage is elsewhere
