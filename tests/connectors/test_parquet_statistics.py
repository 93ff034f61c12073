"""Row groups are passed over only if no row of theirs can be wanted, whatever the columns hold."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.folder import FolderOptions, FolderSource
from penstock.connectors.folder_files import OpenFile
from penstock.connectors.parquet_statistics import (
    AllOf,
    AnyOf,
    Bounds,
    ColumnTest,
    Condition,
    excluded_groups,
    excludes,
)
from penstock.testing.memory_log import MemoryLog

ROWS, GROUP_ROWS = 240, 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UTC_US = pa.timestamp("us", "UTC")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge
}  # fmt: skip


def key(value: Any) -> Any:
    """A value of Python as Parquet orders it."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, Decimal):
        return int(value.scaleb(2))
    return value.encode() if isinstance(value, str) else value


def holds(condition: Condition, row: dict[str, Any]) -> bool:
    if isinstance(condition, AllOf):
        return all(holds(part, row) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(holds(part, row) for part in condition.parts)
    value = row[condition.column]
    if condition.kind in ("is_null", "is_not_null"):
        return (value is None) == (condition.kind == "is_null")
    return value is not None and COMPARE[condition.kind](key(value), condition.value)


def made_rows(rng: random.Random) -> pa.Table:
    """Columns whose values rise along the file, more or less; some are null for whole groups."""

    def column(make: Callable[[int], Any], kind: pa.DataType) -> pa.Array:
        values = [make(row + rng.randrange(30)) for row in range(ROWS)]
        empty = rng.randrange(ROWS)
        nulls = [rng.random() < 0.1 or empty <= row < empty + 45 for row in range(ROWS)]
        return pa.array([None if n else v for v, n in zip(values, nulls, strict=True)], kind)

    return pa.table(
        {
            "n": pa.array(range(ROWS), pa.int64()),
            "small": column(lambda v: v - 100, pa.int16()),
            "long": column(lambda v: (v - 100) * 2**50, pa.int64()),
            "day": column(lambda v: date(1969, 12, 1) + timedelta(v), pa.date32()),
            "ms": column(
                lambda v: EPOCH + timedelta(milliseconds=v - 90), pa.timestamp("ms", "UTC")
            ),
            "us": column(lambda v: EPOCH + timedelta(microseconds=v - 90), UTC_US),
            "money": column(lambda v: Decimal(v - 100).scaleb(-2), pa.decimal128(9, 2)),
            "wide": column(lambda v: Decimal(v - 100).scaleb(-2), pa.decimal128(30, 2)),
            "text": column(lambda v: chr(60 + v) * 3, pa.string()),
            "prefixed": column(lambda v: "é" * 100 + chr(60 + v), pa.string()),
        }
    )


def made_condition(rng: random.Random, table: pa.Table, depth: int = 0) -> Condition:
    if depth < 2 and rng.random() < 0.4:
        parts = tuple(made_condition(rng, table, depth + 1) for _ in range(rng.randint(1, 3)))
        return AllOf(parts) if rng.random() < 0.5 else AnyOf(parts)
    name = rng.choice(table.schema.names)
    kind = rng.choice([*COMPARE, "is_null", "is_not_null"])
    value = None
    while value is None:
        value = rng.choice(table[name].to_pylist())
    return ColumnTest(name, kind, key(value))


def wanted_schema(table: pa.Table) -> pa.Schema:
    wider = {"small": pa.int32(), "ms": UTC_US}
    return pa.schema([(f.name, wider.get(f.name, f.type)) for f in table.schema])


def read_rows(folder: Path, schema: pa.Schema, condition: Condition, rows_max: int) -> list[int]:
    options = FolderOptions(bounded=True)
    source = FolderSource(folder, "parquet", MemoryLog(), schema, options, condition=condition)
    found: list[int] = []
    offset, ended = source.initial_offset(), False
    while not ended:
        answer = source.read(offset, rows_max)
        found += answer.batch["n"].to_pylist() if answer.batch is not None else []
        offset, ended = answer.next_offset, answer.ended
    source.close()
    return found


@pytest.mark.parametrize("seed", range(2))
def test_no_row_that_is_wanted_is_passed_over(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = made_rows(rng)
    pq.write_table(table, tmp_path / "one", row_group_size=GROUP_ROWS)
    schema = wanted_schema(table)
    rows = table.to_pylist()
    left_out = could_be = 0
    for _ in range(20):
        condition = made_condition(rng, table)
        wanted = {row["n"] for row in rows if holds(condition, row)}
        found = read_rows(tmp_path, schema, condition, rng.choice([7, 50, 1_000]))
        assert wanted <= set(found)
        groups = sorted({row // GROUP_ROWS for row in found})
        assert found == [g * GROUP_ROWS + row for g in groups for row in range(GROUP_ROWS)]
        left_out += ROWS // GROUP_ROWS - len(groups)
        could_be += ROWS // GROUP_ROWS - len({row // GROUP_ROWS for row in wanted})
    assert left_out > could_be / 2  # it is of use


def test_floats_are_read_whatever_is_said_of_them(tmp_path: Path) -> None:
    """NaN is more than any number, and is in no bounds."""
    table = pa.table({"n": range(4), "x": [1.0, float("nan"), 2.0, 2.0]})
    pq.write_table(table, tmp_path / "one", row_group_size=2)
    found = read_rows(tmp_path, table.schema, ColumnTest("x", "gt", 5), 10)
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "column", [pa.array([1, 2, 3], pa.uint32()), pa.array([1, 2, 3], pa.int64())]
)
def test_what_is_not_beyond_doubt_is_read(tmp_path: Path, column: pa.Array) -> None:
    """Unsigned numbers have an order of their own; some files have no statistics at all."""
    table = pa.table({"n": range(3), "x": column})
    has_some = pa.types.is_uint32(column.type)
    pq.write_table(table, tmp_path / "one", write_statistics=has_some)
    schema = pa.schema([("n", pa.int64()), ("x", pa.int64())])
    assert read_rows(tmp_path, schema, ColumnTest("x", "gt", 5), 10) == [0, 1, 2]


def test_lists_are_read_whatever_is_said_of_what_is_in_them(tmp_path: Path) -> None:
    """Where a file has a list without a level of its own, an empty one looks like a null."""
    pq.write_table(pa.table({"x": pa.array([None] * 3, pa.int32())}), tmp_path / "one")
    file, test = OpenFile(tmp_path, "one", None), ColumnTest("x", "is_not_null")
    for kind, away in [(pa.int32(), True), (pa.list_(pa.int32()), False)]:
        assert excluded_groups(file, test, {"x": ("x", kind, kind)}, [3]) == [away]


def test_a_comparison_is_true_of_nothing_beyond_the_bounds() -> None:
    known = Bounds(10, 20, 0, 5)
    for kind, compare in COMPARE.items():
        for value in (9, 10, 11, 19, 20, 21):
            possible = any(compare(there, value) for there in range(10, 21))
            assert excludes(ColumnTest("n", kind, value), lambda _: known) == (not possible)


def test_bounds_of_texts_may_be_cut_off() -> None:
    """The least is cut short, and the most too, then raised: both are still bounds."""
    known = Bounds(b"ab", b"ad", 0, 5)
    for text, away in [
        (b"aa", True),
        (b"ab", False),
        (b"acz", False),
        (b"ad", False),
        (b"ae", True),
    ]:
        assert excludes(ColumnTest("t", "eq", text), lambda _: known) == away
    assert not excludes(ColumnTest("t", "eq", 7), lambda _: known)
    assert not excludes(ColumnTest("t", "is_null"), lambda _: Bounds(None, None, None, 5))


def test_a_damaged_footer_leaves_nothing_out_that_it_does_not_speak_of(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    pq.write_table(table, tmp_path / "whole", row_group_size=GROUP_ROWS)
    raw = (tmp_path / "whole").read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little")
    columns = {"n": ("n", pa.int64(), pa.int64())}
    rng = random.Random(1)
    whole = excluded_groups(
        OpenFile(tmp_path, "whole", None), ColumnTest("n", "lt", 30), columns, [GROUP_ROWS] * 12
    )
    assert whole == [False] * 2 + [True] * 10
    for number in range(100):
        damaged, name = bytearray(raw), f"bad{number}"
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(raw) - 8 - footer, len(raw))] = rng.randrange(256)
        (tmp_path / name).write_bytes(damaged)
        found = excluded_groups(
            OpenFile(tmp_path, name, None), ColumnTest("n", "lt", 30), columns, [GROUP_ROWS] * 12
        )
        assert len(found) == 12
    (tmp_path / "bad").write_bytes(b"")
    assert not any(
        excluded_groups(OpenFile(tmp_path, "bad", None), ColumnTest("n", "lt", 0), columns, [1])
    )
