"""Where the rows of a query go: what a user may choose, and the sinks that live in a session.

A query always writes to a stream of the log first. A sink outside the log gets its rows from
there, in batches that `sink_runner` makes: `connectors/contract.py` says what it must do for that.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import pyarrow as pa

from penstock.connectors.contract import Sink
from penstock.connectors.folder_sink import FolderSink
from penstock.connectors.sqlite_sink import SqliteSink
from penstock.errors import InvalidName, InvalidOption
from penstock.expressions.types import arrow_schema
from penstock.kernels.support import numba_supported
from penstock.log.local import LocalLog
from penstock.names import NAME_MAX, check_name
from penstock.operators.specs import WEIGHT_COLUMN, is_weighted
from penstock.options import Option, Options, is_elsewhere, local_path, whole
from penstock.plan.explain import explain
from penstock.runtime.queries import StoredQuery
from penstock.runtime.static_sides import describe_sides
from penstock.stages.program import Program, sink_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ForeachBatch: TypeAlias = "Callable[[DataFrame, int], None]"


def _folder(text: str) -> str:
    if not text or is_elsewhere(text):
        raise ValueError("files are written to folders of this machine; elsewhere in foreachBatch")
    return os.path.abspath(local_path(text))


def _truncation(text: str) -> bool | int:
    return int(text) if text.isdecimal() else text.lower() != "false"


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(","))
    if not all(found) or len(set(found)) < len(found):
        raise ValueError("it is one or more names of columns, with commas between them")
    return found


STREAM = Option("stream", str, None)
PATH = Option("path", _folder, None)
NUM_ROWS = Option("numRows", whole(0), 20)
TABLE = Option("table", str, None)
KEY: Option[tuple[str, ...]] = Option("key", _names, ())
TRUNCATE: Option[bool | int] = Option("truncate", _truncation, True)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a writer was told of the place for its rows."""

    options: Options
    query: str | None
    stream: str | None
    function: ForeachBatch | None
    mode: str


class SinkChoice(ABC):
    """What a user chose: complete in itself, and nothing is made before `open`."""

    kind: ClassVar[str]
    options: ClassVar[tuple[Option[Any], ...]] = ()
    guarantee: ClassVar[str | None] = None  # what holds on the way from the output stream to it
    is_outside: ClassVar[bool] = True  # of the log
    takes_changes: ClassVar[bool] = False  # of rows, with weights, in update mode
    runs_jobs: ClassVar[bool] = False  # feeding it takes task slots of the Spark application

    @classmethod
    @abstractmethod
    def of(cls, asked: Asked) -> SinkChoice:
        """The choice with all that it needs; InvalidOption names what is missing."""

    def stream(self, query: str) -> str:
        """The stream of the log that the query writes."""
        return sink_stream(query)

    def text(self, query: str) -> str:
        """Kind and place, as they are stored with the query; another text is another sink."""
        return self.kind

    def place(self, query: str) -> str:
        """What no two sinks of a query may share."""
        return self.text(query)

    def blamed(self, query: str) -> str:
        """What failed, if this did."""
        return f"the sink {self.text(query)}"

    def query_name(self) -> str:
        """A name for a query that was given none."""
        return f"query_{uuid.uuid4().hex[:12]}"

    def is_same(self, other: SinkChoice) -> bool:
        """Whether a query would do the same with the other one."""
        return self == other

    def refusal(self, stored: StoredQuery) -> str | None:
        """Why it cannot take the place of a stored query's sink; None if it is the same."""
        text = self.text(stored.name)
        if stored.sink in (None, text) or text in stored.beside.values():
            return None
        return f"it was {stored.sink} and is {text}, which lacks what the first one was given"

    @abstractmethod
    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink | None:
        """Prepare the sink of a stored query; None if its stream is all that is wanted.

        `replaces` says that each batch takes the place of the one before it (complete mode).
        """


@dataclass(frozen=True)
class StreamChoice(SinkChoice):
    """A stream of the log, and nothing beyond it."""

    kind = "penstock"
    options = (STREAM,)
    is_outside = False
    name: str

    @classmethod
    def of(cls, asked: Asked) -> StreamChoice:
        stream = asked.stream or asked.options[STREAM]
        if stream is None:
            raise InvalidOption("name the output stream: toStream('name')")
        return cls(check_name(stream, "stream"))

    def stream(self, query: str) -> str:
        return self.name

    def text(self, query: str) -> str:
        return f"stream {self.name}"

    def query_name(self) -> str:
        name = f"to_{self.name}"
        if len(name) > NAME_MAX:
            raise InvalidName(
                f"a query that writes stream {self.name} cannot be named after it: {name} is "
                f"longer than {NAME_MAX} characters. Name it with .queryName(...)",
                name=name,
                what="query",
            )
        return name

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> None:
        return None


@dataclass(frozen=True)
class ParquetChoice(SinkChoice):
    """A folder of Parquet files."""

    kind = "parquet"
    options = (PATH,)
    guarantee = "exactly once: rows are in one file, which appears whole or not at all"
    path: str

    @classmethod
    def of(cls, asked: Asked) -> ParquetChoice:
        if (path := asked.options[PATH]) is None:
            raise InvalidOption("the parquet sink needs a folder: start('path')")
        return cls(path)

    def text(self, query: str) -> str:
        return f"{self.kind} {self.path}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        writers = len(stored.program.producers(stored.output))
        return FolderSink(self.path, stored.name, stored.id, writers=writers)


@dataclass(frozen=True)
class SqliteChoice(SinkChoice):
    """A table of an SQLite file: rows that add up, or the current row of each key."""

    kind = "sqlite"
    options = (PATH, TABLE, KEY)
    guarantee = "exactly once: the epoch is stored in the transaction that changes the rows"
    takes_changes = True
    path: str
    table: str
    key: tuple[str, ...]

    @classmethod
    def of(cls, asked: Asked) -> SqliteChoice:
        path = asked.options.needed(PATH, "/data/results.db")
        table = asked.options.needed(TABLE, "results")
        if asked.mode == "update" and not asked.options[KEY]:
            raise InvalidOption(
                "the sqlite sink in update mode keeps the current row of each key: add "
                '.option("key", "columns"), those that tell the rows of the result apart',
                option=KEY.name,
            )
        return cls(path, table, asked.options[KEY])

    def text(self, query: str) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        return f"{self.place(query)}{by}"

    def place(self, query: str) -> str:
        return f"{self.kind} {self.path} table {self.table}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        schema = stored.program.stream(stored.output).schema
        return SqliteSink(
            self.path,
            self.table,
            stored.name,
            stored.id,
            arrow_schema(schema),
            key=self.key,
            weight=WEIGHT_COLUMN if is_weighted(schema) else None,
            replaces=replaces,
        )


@dataclass(frozen=True)
class ConsoleChoice(SinkChoice):
    """The driver's standard output."""

    kind = "console"
    options = (NUM_ROWS, TRUNCATE)
    guarantee = "at least once: the newest epoch is printed again after a crash"
    runs_jobs = True
    rows_max: int
    truncate: bool | int

    @classmethod
    def of(cls, asked: Asked) -> ConsoleChoice:
        return cls(asked.options[NUM_ROWS], asked.options[TRUNCATE])

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return ConsoleSink(spark, self.rows_max, self.truncate)


@dataclass(frozen=True)
class MemoryChoice(SinkChoice):
    """A temporary view of the session, named like the query."""

    kind = "memory"
    guarantee = "exactly once within a run; the view is built anew from the stream at each start"

    @classmethod
    def of(cls, asked: Asked) -> MemoryChoice:
        if asked.query is None:
            raise InvalidOption("the memory sink needs a queryName: it names the view")
        return cls()

    def text(self, query: str) -> str:
        return f"{self.kind} {query}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        schema = arrow_schema(stored.program.stream(stored.output).schema)
        return MemorySink(spark, stored.name, schema, replaces=replaces)


@dataclass(frozen=True)
class ForeachBatchChoice(SinkChoice):
    """A function of the user's."""

    kind = "foreachBatch"
    guarantee = (
        "at least once, with a stable epoch: after a crash the newest epoch may come again, with "
        "the same number and the same rows; a function that skips epochs it has seen is exactly "
        "once"
    )
    runs_jobs = True
    function: ForeachBatch

    @classmethod
    def of(cls, asked: Asked) -> ForeachBatchChoice:
        assert asked.function is not None
        return cls(asked.function)

    def place(self, query: str) -> str:
        """What no two sinks of a query may share."""
        return self.text(query)

    def blamed(self, query: str) -> str:
        return "the foreachBatch function"

    def is_same(self, other: SinkChoice) -> bool:
        if not isinstance(other, ForeachBatchChoice):
            return False
        return _is_same_function(self.function, other.function)

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return ForeachBatchSink(spark, self.function)


CHOICES: tuple[type[SinkChoice], ...] = (
    StreamChoice, ParquetChoice, SqliteChoice, ConsoleChoice, MemoryChoice, ForeachBatchChoice,
)  # fmt: skip
FORMATS = {choice.kind: choice for choice in CHOICES if choice is not ForeachBatchChoice}


def explain_with_sinks(program: Program, log: LocalLog, sinks: Iterable[str | None]) -> str:
    """Stages, state, what is kept and what is promised; `sinks` are their texts, as stored."""
    text = explain(
        program,
        lambda expression, _schema: "numba" if numba_supported(expression) else "arrow",
        log.durability,
        describe_sides(log, program),
    )
    promises = {choice.kind: choice.guarantee for choice in CHOICES}
    for sink in sinks:
        promise = promises.get(sink.split(" ", 1)[0]) if sink is not None else None
        text += "" if promise is None else f"\nSink {sink}\n  {promise}\n"
    return text


# --- sinks of a session ---------------------------------------------------------------------------


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame of the query's own types.

    Left to itself PySpark takes a time without a zone for one of the session's, which not every
    such time is.
    """
    # Not above: `penstock explain` says what a sink promises without loading Spark.
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


class ConsoleSink(Sink):
    """Prints batches as Spark's console sink does."""

    def __init__(self, spark: SparkSession, rows_max: int, truncate: bool | int) -> None:
        self._spark = spark
        self._rows_max = rows_max
        self._truncate = truncate

    def publish(self, epoch: int, staged: pa.Table) -> None:
        line = "-" * 43
        print(f"{line}\nEpoch: {epoch}\n{line}")
        shown = staged.slice(0, self._rows_max + 1)  # one more: Spark says so if there are more
        frame = _frame(self._spark, shown)
        frame.show(self._rows_max, truncate=self._truncate)


class MemorySink(Sink):
    """A temporary view of the query's output stream; for tests and notebooks."""

    is_kept = False

    def __init__(
        self, spark: SparkSession, view: str, schema: pa.Schema, *, replaces: bool
    ) -> None:
        self._spark = spark
        self._view = view
        self._replaces = replaces
        self._parts: list[tuple[pa.Table, DataFrame]] = []
        self._show(schema.empty_table())  # with a chunk: PySpark rebuilds columns from theirs

    def publish(self, epoch: int, staged: pa.Table) -> None:
        if self._replaces:
            self._parts.clear()
        # Each part has at least twice the rows of the next one. So there are few of them, and a
        # batch does not cost as much as all that came before it.
        rows = staged
        while self._parts and self._parts[-1][0].num_rows < 2 * rows.num_rows:
            rows = pa.concat_tables([self._parts.pop()[0], rows])
        self._show(rows)

    def _show(self, rows: pa.Table) -> None:
        self._parts.append((rows, _frame(self._spark, rows)))
        frames = (frame for _, frame in self._parts)
        reduce(lambda one, other: one.union(other), frames).createOrReplaceTempView(self._view)


class ForeachBatchSink(Sink):
    """Calls the user's function with a DataFrame and the epoch."""

    def __init__(self, spark: SparkSession, function: ForeachBatch) -> None:
        self._spark = spark
        self._function = function

    def publish(self, epoch: int, staged: pa.Table) -> None:
        self._function(_frame(self._spark, staged), epoch)


def _is_same_function(one: ForeachBatch, other: ForeachBatch) -> bool:
    """Whether a function was only defined again, as by a notebook cell that is run twice."""
    if one is other:
        return True
    if not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return False
    return (
        one.__code__ == other.__code__
        and one.__module__ == other.__module__
        and _bound(one) == _bound(other)
    )


def _bound(function: FunctionType) -> list[int]:
    """Which objects a function carries along, beside its code."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [id(value) for value in values]
