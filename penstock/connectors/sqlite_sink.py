"""A sink that keeps the rows of a query in a table of an SQLite file."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.contract import BatchRows, Sink, check_epoch
from penstock.errors import InvalidOption, QueryMismatch, SinkError

BUSY_S = 30.0  # how long a file that another program has locked is waited for
EPOCHS_TABLE = "penstock_epochs"  # in the user's file: which query has written which epoch last
_BATCH_BYTES = 16 << 20  # as the log has them; as values of Python they take several times as much

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows as SQLite takes them, in the order of the table's columns."""

    gone: list[Row]  # as they were
    come: list[Row]
    num_rows: int


class SqliteSink(Sink):
    """Rows as they came, or the current row of each key, in one table.

    The epoch is stored in the transaction that changes the rows, and is asked for in it: so each
    epoch is applied once, whoever hands it over and however often. Epochs have a meaning for the
    query of one id only; another one of the same name is refused.

    Where the rows have weights, one that goes is deleted if it is still there as it was: the row
    that takes its place may be another vertex's, and be here before.
    """

    bytes_max = _BATCH_BYTES

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        query: str,
        query_id: str,
        schema: pa.Schema,
        *,
        key: Sequence[str] = (),
        weight: str | None = None,
        replaces: bool = False,
        busy_s: float = BUSY_S,
    ) -> None:
        """`weight` names the column with +1 and -1, if there is one; without `key`, rows add up."""
        self._path = os.fspath(path)
        self._table = table
        self._query = query
        self._id = query_id
        self._key = tuple(key)
        self._weight = weight
        self._replaces = replaces
        self._busy_s = busy_s
        self._numbered: str | None = None  # the column that is SQLite's number of the row
        self._fields = [field for field in schema if field.name != weight]
        self._names = [field.name for field in self._fields]
        self._check_key()
        self._encoders = [_encoder(field) for field in self._fields]
        places = [self._names.index(name) for name in self._key]
        self._key_of: Callable[[Row], Row] = lambda row: tuple(row[place] for place in places)
        with self._told("open"):
            self._connection = apsw.Connection(self._path)
            self._connection.set_busy_timeout(int(busy_s * 1_000))
            self._connection.pragma("synchronous", "full")
        try:
            with self._transaction("prepare"):
                self._prepare()
        except BaseException:
            self.close()
            raise

    def stage(self, epoch: int, rows: BatchRows) -> RowChanges:
        check_epoch(epoch)
        table = rows.table()
        with self._told("make values for"):
            columns = [
                encode(table.column(name))
                for name, encode in zip(self._names, self._encoders, strict=True)
            ]
        found: list[Row] = list(zip(*columns, strict=True))
        for name, values in zip(self._names, columns, strict=True):
            if name.lower() == self._numbered and None in values:
                raise self._refused(
                    f"cannot hold a null in its INTEGER PRIMARY KEY {name}, where SQLite would put "
                    "a number of its own"
                )
        if self._weight is None:
            return RowChanges([], found, table.num_rows)
        gone, come = _net(found, table.column(self._weight).to_pylist())
        return RowChanges(gone, come, table.num_rows)

    def publish(self, epoch: int, staged: RowChanges) -> None:
        if not staged.num_rows and not self._replaces:
            return
        with self._transaction("write"):
            if (last := self._stored_epoch()) is not None and epoch <= last:
                return
            self._apply(staged)
            self._connection.execute(
                f"INSERT OR REPLACE INTO {EPOCHS_TABLE} VALUES (?, ?, ?, ?)",
                (self._query, self._table, self._id, epoch),
            )

    def last_epoch(self) -> int | None:
        with self._told("read"):
            return self._stored_epoch()

    def close(self) -> None:
        self._connection.close()

    # --- rows -------------------------------------------------------------------------------------

    def _apply(self, staged: RowChanges) -> None:
        table, execute = _quoted(self._table), self._connection.executemany
        columns = ", ".join(map(_quoted, self._names))
        if self._replaces:
            self._connection.execute(f"DELETE FROM {table}")
        come = staged.come
        if self._key:
            newest = {self._key_of(row): row for row in come}
            come = list(newest.values())
            gone = [row for row in staged.gone if self._key_of(row) not in newest]
            # IS, not =: a key may be null, and no two nulls are equal to a unique index.
            execute(f"DELETE FROM {table} WHERE {_all_are(self._names)}", gone)
            execute(f"DELETE FROM {table} WHERE {_all_are(self._key)}", newest)
        marks = ", ".join("?" * len(self._names))
        execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", come)

    def _stored_epoch(self) -> int | None:
        found: list[Row] = self._connection.execute(
            f"SELECT id, epoch FROM {EPOCHS_TABLE} WHERE query = ? AND target = ?",
            (self._query, self._table),
        ).fetchall()
        if not found:
            return None
        ((owner, epoch),) = found
        if owner != self._id:
            raise QueryMismatch(
                f"table {self._table!r} of {self._path} holds rows of another query "
                f"{self._query!r} (id {str(owner)[:40]}, this one is {self._id}): choose another "
                f"table or another queryName, or drop the table and its line in {EPOCHS_TABLE}",
                query=self._query,
                path=self._path,
            )
        return int(epoch)

    # --- the table --------------------------------------------------------------------------------

    def _check_key(self) -> None:
        unknown = [name for name in self._key if name not in self._names]
        if unknown:
            raise InvalidOption(
                f"option 'key' names {', '.join(map(repr, unknown))}, and the rows have "
                f"{', '.join(map(repr, self._names))}: name columns of the result",
                option="key",
            )

    def _prepare(self) -> None:
        """Make what is missing, or check that what is there can take the rows."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {EPOCHS_TABLE}(query TEXT NOT NULL, target TEXT NOT NULL, "
            "id TEXT NOT NULL, epoch INTEGER NOT NULL, PRIMARY KEY(query, target))"
        )
        self._stored_epoch()
        kinds = self._connection.execute(
            "SELECT type FROM sqlite_schema WHERE lower(name) = lower(?)", (self._table,)
        ).fetchall()
        if kinds:
            self._check_table(str(kinds[0][0]))
            return
        kinds_of = {field.name: _declared(field) for field in self._fields}
        if len(self._key) == 1 and kinds_of[self._key[0]] == "INTEGER":
            kinds_of[self._key[0]] = "INT"  # or it would be the number of the row, and never null
        columns = [f"{_quoted(name)} {kind}" for name, kind in kinds_of.items()]
        if self._key:
            columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, self._key))})")
        self._connection.execute(f"CREATE TABLE {_quoted(self._table)} ({', '.join(columns)})")

    def _check_table(self, kind: str) -> None:
        if kind != "table" or self._table.lower() == EPOCHS_TABLE:
            raise self._refused(
                f"is {f'a {kind}, no table' if kind != 'table' else 'where epochs are kept'}"
            )
        found = self._connection.execute(
            "SELECT name, pk, upper(type) FROM pragma_table_xinfo(?)", (self._table,)
        ).fetchall()
        there, wanted = {str(name).lower() for name, *_ in found}, _lower(self._names)
        if there != wanted:
            raise self._refused(
                f"has the columns {', '.join(str(name) for name, *_ in found)}, and the rows "
                f"{', '.join(self._names)}"
            )
        primary = {str(name).lower(): kind for name, number, kind in found if number}
        self._numbered = next(iter(primary)) if [*primary.values()] == ["INTEGER"] else None
        if self._key and _lower(self._key) not in [primary.keys(), *self._unique_indexes()]:
            raise self._refused(
                f"has neither a primary key nor a unique index of just {', '.join(self._key)}"
            )

    def _unique_indexes(self) -> Iterator[set[str]]:
        for (index,) in self._connection.execute(
            'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (self._table,)
        ).fetchall():
            columns = self._connection.execute("SELECT name FROM pragma_index_info(?)", (index,))
            yield {str(name).lower() for (name,) in columns}

    def _refused(self, why: str) -> SinkError:
        return SinkError(
            f"table {self._table!r} of {self._path} {why}: choose another table, or make it fit; "
            "one that is missing is made by the query",
            path=self._path,
            table=self._table,
        )

    # --- the file ---------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        """All or nothing; who else writes the file waits from here on."""
        with self._told(doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """Name a failure of SQLite, or of a value that it cannot hold."""
        try:
            yield
        except (apsw.Error, pa.ArrowException, ValueError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, apsw.BusyError | apsw.LockedError):
                reason = f"another program has locked the file for {self._busy_s:g} s"
            raise SinkError(
                f"cannot {doing} table {self._table!r} of {self._path}: {reason}; nothing of the "
                "epoch is in it. Mend the cause, and start the query again",
                path=self._path,
                table=self._table,
            ) from error


def _net(rows: list[Row], weights: list[int]) -> tuple[list[Row], list[Row]]:
    """What is gone and what has come after all, each row as often as it counts."""
    total: Counter[Row] = Counter()
    for row, weight in zip(rows, weights, strict=True):
        total[row] += weight
    return list((-total).elements()), list((+total).elements())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _all_are(names: Sequence[str]) -> str:
    return " AND ".join(f"{_quoted(name)} IS ?" for name in names)


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


# --- values ---------------------------------------------------------------------------------------


def _declared(field: pa.Field) -> str:
    """The type that a column of the table is made with."""
    kind = field.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_duration(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) else "TEXT"


def _encoder(field: pa.Field) -> Callable[[pa.ChunkedArray], list[Any]]:
    """How the values of a column become those of SQLite.

    Times are texts that sort as they do and that SQLite's own functions read; decimals are texts,
    with every digit; intervals are microseconds; what is nested is JSON. NaN is null, as SQLite has
    none.
    """
    kind = field.type
    if pa.types.is_duration(kind):
        return lambda column: list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        return lambda column: [
            None if v is None or math.isnan(v) else v for v in column.to_pylist()
        ]
    if pa.types.is_temporal(kind):
        return lambda column: _times(column, field.name)
    if pa.types.is_decimal(kind):
        return lambda column: [None if v is None else format(v, "f") for v in column.to_pylist()]
    if pa.types.is_nested(kind):
        return lambda column: [
            None if v is None else json.dumps(_plain(v, kind), ensure_ascii=False)
            for v in column.to_pylist()
        ]
    return lambda column: list(column.to_pylist())


def _times(column: pa.ChunkedArray, name: str) -> list[str | None]:
    texts = column.cast(pa.string())
    if pc.any(pc.starts_with(texts, "<")).as_py():
        raise pa.ArrowInvalid(f"a time of column {name!r} is beyond the years that have a text")
    return list(texts.to_pylist())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A nested value as JSON has it; a map is an object, whose keys are texts."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {member.name: _plain(value[member.name], member.type) for member in kind}
    if pa.types.is_map(kind):
        return {
            key if isinstance(key, str) else json.dumps(_plain(key, kind.key_type)): _plain(
                each, kind.item_type
            )
            for key, each in value
        }
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, bool | int | str) else str(value)
