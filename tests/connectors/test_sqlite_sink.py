"""The SQLite sink: each epoch applied once, the current row of each key, and what is refused."""

from __future__ import annotations

import datetime as dt
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from penstock.connectors.contract import BatchRows, Sink
from penstock.connectors.sqlite_sink import SqliteSink
from penstock.errors import InvalidOption, QueryMismatch, SinkError
from penstock.log import punit
from tests.connectors.contract import SINK_SCHEMA, SinkContract, batch, write

ROOT = Path(__file__).parents[2]
COUNTS = pa.schema([("word", pa.string()), ("n", pa.int64())])
CHANGES = pa.schema([*COUNTS, pa.field("weight", pa.int8(), nullable=False)])
DYING = """
import os, signal, sys
from penstock.connectors.sqlite_sink import SqliteSink
from tests.connectors.test_sqlite_sink import change, counted

class Dying(SqliteSink):
    def _apply(self, staged):
        super()._apply(staged)
        if len(staged.come) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

sink = counted(sys.argv[1], Dying)
change(sink, 5, ("a", 1, 1))
change(sink, 8, ("a", 1, -1), ("a", 2, 1), ("b", 1, 1))
"""


def rows_of(path: object, table: str = "out") -> list[Any]:
    with apsw.Connection(str(path)) as connection:
        return connection.execute(f'SELECT * FROM "{table}" ORDER BY 1, 2').fetchall()


def counted(path: object, kind: type[SqliteSink] = SqliteSink, **more: Any) -> SqliteSink:
    """A sink of the current count of each word."""
    given: dict[str, Any] = {"key": ("word",), "weight": "weight", **more}
    return kind(str(path), "out", "q", "id-1", CHANGES, **given)


def change(sink: SqliteSink, epoch: int, *rows: tuple[str | None, int, int]) -> None:
    columns = list(zip(*rows, strict=True))
    made = pa.record_batch([pa.array(c, t) for c, t in zip(columns, CHANGES.types, strict=True)],
                           schema=CHANGES)  # fmt: skip
    sink.publish(epoch, sink.stage(epoch, BatchRows((punit.encode(made),), CHANGES)))


class TestRowsThatAddUp(SinkContract):
    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: SqliteSink(tmp_path / "db", 'o"ut', "q", "id-1", SINK_SCHEMA)

    @pytest.fixture
    def contents(self, tmp_path: Path) -> Callable[[], list[int]]:
        return lambda: [v for (v,) in apsw.Connection(str(tmp_path / "db")).execute(
            'SELECT * FROM "o""ut"')]  # fmt: skip


class TestRowsByKey(SinkContract):
    @pytest.fixture
    def open_sink(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: SqliteSink(tmp_path / "db", "out", "q", "id-1", SINK_SCHEMA, key=("value",))

    @pytest.fixture
    def contents(self, tmp_path: Path) -> Callable[[], list[int]]:
        return lambda: [value for (value,) in rows_of_one(tmp_path / "db")]


def rows_of_one(path: Path) -> list[Any]:
    return apsw.Connection(str(path)).execute("SELECT * FROM out").fetchall()


def test_a_row_replaces_that_of_its_key_and_one_that_goes_is_deleted(tmp_path: Path) -> None:
    sink = counted(tmp_path / "db")
    change(sink, 1, ("a", 1, 1), (None, 1, 1), ("b", 1, 1))
    change(sink, 2, ("a", 1, -1), ("a", 2, 1), (None, 1, -1), (None, 5, 1))
    assert rows_of(tmp_path / "db") == [(None, 5), ("a", 2), ("b", 1)]
    change(sink, 3, ("b", 1, -1), (None, 5, -1))
    change(sink, 4, ("c", 1, 1), ("c", 1, -1))
    assert rows_of(tmp_path / "db") == [("a", 2)]


def numbered(path: object, *values: int | None) -> None:
    """Write one epoch of rows that a whole number tells apart."""
    schema = pa.schema([("number", pa.int64()), ("n", pa.int64())])
    sink = SqliteSink(str(path), "out", "q", "id-1", schema, key=("number",))
    rows = pa.record_batch([pa.array(values, pa.int64()), pa.array(range(len(values)), pa.int64())],
                           schema=schema)  # fmt: skip
    epoch = (sink.last_epoch() or 0) + 1
    sink.publish(epoch, sink.stage(epoch, BatchRows((punit.encode(rows),), schema)))


def test_a_key_of_whole_numbers_may_be_null(tmp_path: Path) -> None:
    """A column that is INTEGER PRIMARY KEY would get a number of SQLite's in its place."""
    numbered(tmp_path / "db", 0, None, 1)
    assert rows_of(tmp_path / "db") == [(None, 1), (0, 0), (1, 2)]
    numbered(tmp_path / "db", None, 2)
    assert rows_of(tmp_path / "db") == [(None, 0), (0, 0), (1, 2), (2, 1)]


def test_a_null_is_refused_where_sqlite_would_put_a_number_in_its_place(tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "db")) as connection:
        connection.execute("CREATE TABLE out(Number INTEGER PRIMARY KEY, n)")
    numbered(tmp_path / "db", 7, 8)
    with pytest.raises(SinkError, match="cannot hold a null in its INTEGER PRIMARY KEY number"):
        numbered(tmp_path / "db", None, 9)
    assert rows_of(tmp_path / "db") == [(7, 0), (8, 1)]


def test_what_takes_a_rows_place_may_come_before_the_row_goes(tmp_path: Path) -> None:
    """Two vertices: one has the new row of a key, the other one takes the old one back."""
    sink = counted(tmp_path / "db")
    change(sink, 1, ("a", 1, 1))
    change(sink, 2, ("a", 2, 1))
    change(sink, 3, ("a", 1, -1))
    assert rows_of(tmp_path / "db") == [("a", 2)]


def test_many_changes_end_as_a_model_of_them_does(tmp_path: Path) -> None:
    rng = random.Random(7)
    now: dict[str | None, int] = {}
    sink = counted(tmp_path / "db")
    for epoch in range(60):
        changes: list[tuple[str | None, int, int]] = []
        for _ in range(rng.randrange(1, 12)):
            word = rng.choice(["a", "b", "c", "d", "e'", 'f"', None])
            if word in now:
                changes.append((word, now.pop(word), -1))
            if rng.random() < 0.7:
                now[word] = rng.randrange(4)
                changes.append((word, now[word], 1))
        if changes:
            change(sink, epoch, *changes)
        if rng.random() < 0.3:
            sink.close()
            sink = counted(tmp_path / "db")
            last = sink.last_epoch()
            if changes:
                assert last == epoch
                change(sink, epoch, *changes)  # once more changes nothing
        assert dict(rows_of(tmp_path / "db")) == now


def test_a_whole_result_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "db", "out", "q", "id-1", SINK_SCHEMA, replaces=True)
    write(sink, 1, batch(1, 2))
    write(sink, 2, batch(3))
    assert rows_of_one(tmp_path / "db") == [(3,)]
    write(sink, 3)
    assert (rows_of_one(tmp_path / "db"), sink.last_epoch()) == ([], 3)


def test_who_is_killed_amid_an_epoch_leaves_nothing_of_it(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", DYING, tmp_path / "db"], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    sink = counted(tmp_path / "db")
    assert (sink.last_epoch(), rows_of(tmp_path / "db")) == (5, [("a", 1)])
    for _ in range(2):
        change(sink, 8, ("a", 1, -1), ("a", 2, 1), ("b", 1, 1))
        assert (sink.last_epoch(), rows_of(tmp_path / "db")) == (8, [("a", 2), ("b", 1)])


def test_values_of_every_type(tmp_path: Path) -> None:
    noon = dt.datetime(2026, 1, 31, 12, 0, 0, 5)
    nested = pa.struct(
        [("list", pa.list_(pa.float64())), ("map", pa.map_(pa.int32(), pa.date32()))]
    )
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {
        "flag": (pa.bool_(), True, 1),
        "small": (pa.int8(), -3, -3),
        "large": (pa.int64(), -(1 << 63), -(1 << 63)),
        "single": (pa.float32(), 0.5, 0.5),
        "nan": (pa.float64(), float("nan"), None),
        "exact": (pa.decimal128(38, 2), Decimal("-123456789012345678901234567890.10"),
                  "-123456789012345678901234567890.10"),
        "text": (pa.string(), "ä'\"", "ä'\""),
        "bytes": (pa.binary(), b"\0\xff", b"\0\xff"),
        "day": (pa.date32(), noon.date(), "2026-01-31"),
        "at": (pa.timestamp("us", "UTC"), noon, "2026-01-31 12:00:00.000005Z"),
        "local": (pa.timestamp("us"), noon, "2026-01-31 12:00:00.000005"),
        "gap": (pa.duration("us"), -7, -7),
        "nested": (nested, {"list": [1.5, None, float("inf")], "map": [(1, noon.date())]},
                   '{"list": [1.5, null, "inf"], "map": {"1": "2026-01-31"}}'),
    }  # fmt: skip
    schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    given = {name: [value, None] for name, (_, value, _) in columns.items()}
    sink = SqliteSink(tmp_path / "db", "out", "q", "id", schema)
    body = punit.encode(pa.record_batch(given, schema))
    sink.publish(1, sink.stage(1, BatchRows((body,), schema)))
    nulls, values = rows_of(tmp_path / "db")
    assert values == tuple(stored for _, _, stored in columns.values())
    assert set(nulls) == {None}
    read = "SELECT unixepoch(at) - unixepoch(local), json_extract(nested, '$.list[0]') FROM out"
    found = apsw.Connection(str(tmp_path / "db")).execute(read).fetchall()
    assert (0, 1.5) in found


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("CREATE TABLE out(word, other)", "has the columns word, other, and the rows word, n"),
        ("CREATE TABLE out(word, n)", "neither a primary key nor a unique index of just word"),
        ("CREATE TABLE out(word, n, UNIQUE(word, n))", "neither a primary key nor a unique"),
        ("CREATE VIEW out AS SELECT 1", "is a view"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused(tmp_path: Path, made: str, why: str) -> None:
    with apsw.Connection(str(tmp_path / "db")) as connection:
        connection.execute(made)
    with pytest.raises(SinkError, match=why):
        counted(tmp_path / "db")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE OUT(N INTEGER, Word TEXT PRIMARY KEY)",
        "CREATE TABLE out(word, n); CREATE UNIQUE INDEX by_word ON out(word)",
    ],
)
def test_a_table_of_the_users_own_is_taken(tmp_path: Path, made: str) -> None:
    with apsw.Connection(str(tmp_path / "db")) as connection:
        connection.execute(made)
    change(counted(tmp_path / "db"), 1, ("a", 3, 1))
    read = "SELECT word, n FROM out"
    assert apsw.Connection(str(tmp_path / "db")).execute(read).fetchall() == [("a", 3)]


def test_a_key_that_is_no_column_and_a_query_of_another_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="names 'other', and the rows have 'word', 'n'"):
        counted(tmp_path / "db", key=("other",))
    change(counted(tmp_path / "db"), 1, ("a", 1, 1))
    with pytest.raises(QueryMismatch, match=r"\(id id-1, this one is id-2\)"):
        SqliteSink(tmp_path / "db", "out", "q", "id-2", COUNTS, key=("word",))


def test_a_file_that_another_program_has_locked_is_waited_for_and_then_told(tmp_path: Path) -> None:
    sink = counted(tmp_path / "db", busy_s=0.2)
    other = apsw.Connection(str(tmp_path / "db"))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SinkError, match=r"another program has locked the file for 0\.2 s"):
        change(sink, 1, ("a", 1, 1))
    other.execute("COMMIT")
    change(sink, 1, ("a", 1, 1))
    assert rows_of(tmp_path / "db") == [("a", 1)]
