"""Where the rows of a query go: what a user may choose, and what each choice promises.

A query always writes to a stream of the log first. A sink outside the log gets its rows from
there, in batches that `sink_runner` makes: `connectors/contract.py` says what it must do for that.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from penstock.api.files_sink import FilesSink, Layout, check_format, check_partitions
from penstock.api.session_sinks import (
    ConsoleSink,
    ForeachBatch,
    ForeachBatchSink,
    ForeachSink,
    MemorySink,
    NoopSink,
    is_same_function,
)
from penstock.api.spark_errors import CannotAnalyze, IllegalOption
from penstock.api.table_sink import WantedTable, open_table
from penstock.catalyst.session import lacks_format
from penstock.connectors.contract import Sink
from penstock.connectors.folder_sink import FolderSink
from penstock.connectors.sqlite_sink import SqliteSink
from penstock.errors import InvalidName, InvalidOption
from penstock.expressions.types import arrow_schema
from penstock.names import NAME_MAX, check_name
from penstock.operators.specs import WEIGHT_COLUMN, is_weighted
from penstock.options import Option, Options, is_elsewhere, local_path, whole
from penstock.runtime.queries import StoredQuery
from penstock.stages.program import sink_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkWriter


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


# What Spark's writers of files understand: handed on to them as it is.
_LINES = ("compression", "encoding", "lineSep")
_TIMES = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale")
FILE_OPTIONS = {
    "parquet": ("compression",),
    "orc": ("compression",),
    "text": _LINES,
    "json": (*_LINES, *_TIMES, "ignoreNullFields"),
    "csv": (
        *_LINES, *_TIMES, "sep", "delimiter", "header", "quote", "escape", "escapeQuotes",
        "quoteAll", "nullValue", "emptyValue", "charset", "charToEscapeQuoteEscaping",
        "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace",
    ),
}  # fmt: skip
_BY_SPARK: dict[str, Option[str | None]] = {
    name: Option(name, str, None)
    for name in sorted({each for names in FILE_OPTIONS.values() for each in names})
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a writer was told of the place for its rows."""

    options: Options
    query: str | None = None
    stream: str | None = None
    function: ForeachBatch | None = None
    writer: Any = None  # what `foreach` was given
    table: str | None = None
    format: str | None = None
    foreign: Mapping[str, str] = field(default_factory=dict)  # options that no sink of ours has
    spark: Any = None  # the session, which may know more sinks
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()

    def choice(self) -> SinkChoice:
        """The sink that was asked for, complete."""
        chosen = self._kind()
        names_folders = issubclass(chosen, FilesChoice | TableChoice | SparkChoice)
        if self.partition_by and not names_folders:
            raise CannotAnalyze(
                f"partitionBy is for files and tables, and not for {chosen.kind}: leave it out, or "
                "write the partitions yourself in foreachBatch"
            )
        if self.cluster_by and self.partition_by:
            raise CannotAnalyze(
                "clusterBy and partitionBy are two ways to lay out a table: use one of them"
            )
        if chosen is not SparkChoice:
            self._refuse_foreign()
        return chosen.of(self)

    def _refuse_foreign(self) -> None:
        for name, text in self.foreign.items():
            self.options.add(name, text)  # which refuses it

    def _kind(self) -> type[SinkChoice]:
        if self.function is not None:
            return ForeachBatchChoice
        if self.writer is not None:
            return ForeachChoice
        if self.table is not None:
            return TableChoice
        kind = self.format or (StreamChoice.kind if self.options[PATH] is None else "parquet")
        if kind.lower() not in FORMATS:
            missing = self.spark is None or lacks_format(self.spark, kind)
            if not missing:
                return SparkChoice
            raise CannotAnalyze(
                f"there is no sink {kind!r}; known: {', '.join(FORMATS)}, foreach, foreachBatch, "
                f"and what Spark knows{'' if missing is True else f', which says: {missing}'}",
                condition="DATA_SOURCE_NOT_FOUND",
                parameters={"provider": kind},
            )
        known = FORMATS[kind.lower()]
        if issubclass(known, FilesChoice) and PATH.name in self.foreign:
            return SparkChoice  # of files that are not on this machine
        return known

    def layout(self, kind: str) -> Layout:
        """How Spark is to write files of a format."""
        given = ((name, self.options[_BY_SPARK[name]]) for name in FILE_OPTIONS[kind])
        kept = tuple((name, text) for name, text in given if text is not None)
        return Layout(kind, kept, self.partition_by)


class SinkChoice(ABC):
    """What a user chose: complete in itself, and nothing is made before `open`."""

    kind: ClassVar[str]
    options: ClassVar[tuple[Option[Any], ...]] = ()
    is_outside: ClassVar[bool] = True  # of the log
    takes_changes: ClassVar[bool] = False  # of rows, with weights, in update mode
    needs_location: ClassVar[bool] = True  # what it holds outlives the query's own log
    is_by_spark: ClassVar[bool] = False  # Structured Streaming feeds it
    takes_any_columns: ClassVar[bool] = False  # batches of a later start may have others

    @property
    def runs_jobs(self) -> bool:
        """Whether feeding it takes task slots of the Spark application."""
        return False

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
class FilesChoice(SinkChoice):
    """A folder of files."""

    options = (PATH, *_BY_SPARK.values())
    takes_any_columns = True
    path: str
    layout: Layout

    @classmethod
    def of(cls, asked: Asked) -> FilesChoice:
        if (path := asked.options[PATH]) is None:
            raise IllegalOption(f"the {cls.kind} sink needs a folder: start('path')")
        if asked.mode != "append" and not (cls is ParquetChoice and asked.mode == "update"):
            raise CannotAnalyze(
                f"the {cls.kind} sink takes rows in append mode, not in {asked.mode} mode: files "
                "are not changed once they are there; write the result in foreachBatch",
                condition="STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE",
                parameters={"className": cls.kind, "outputMode": asked.mode},
            )
        return cls(path, asked.layout(cls.kind))

    @property
    def runs_jobs(self) -> bool:
        return True

    def text(self, query: str) -> str:
        folders = "".join(f"/{column}=" for column in self.layout.partition_by)
        return f"{self.kind} {self.path}{folders}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        check_partitions(spark, self.layout.partition_by, _columns(stored))
        check_format(self.layout, _columns(stored))
        return FilesSink(self.path, stored.name, stored.id, spark, self.layout)


class CsvChoice(FilesChoice):
    """A folder of CSV files."""

    kind = "csv"


class JsonChoice(FilesChoice):
    """A folder of files with a JSON object on each line."""

    kind = "json"


class TextChoice(FilesChoice):
    """A folder of files with the one column of the rows, a text, on each line."""

    kind = "text"


class OrcChoice(FilesChoice):
    """A folder of ORC files."""

    kind = "orc"


class ParquetChoice(FilesChoice):
    """A folder of Parquet files; without partitions they are written here, and not by Spark."""

    kind = "parquet"

    @property
    def runs_jobs(self) -> bool:
        return bool(self.layout.partition_by)

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        if self.layout.partition_by:
            return super().open(spark, stored, replaces=replaces)
        check_format(self.layout, _columns(stored))
        writers = len(stored.program.producers(stored.output))
        codec = dict(self.layout.options).get("compression")
        from penstock.api.datasource_schema import spark_schema  # noqa: PLC0415 (loads Spark)

        types = spark_schema(stored.program.stream(stored.output).schema).json()
        return FolderSink(
            self.path, stored.name, stored.id, writers=writers, codec=codec, spark_types=types
        )


@dataclass(frozen=True)
class TableChoice(SinkChoice):
    """A table of Spark's catalog."""

    kind = "table"
    runs_jobs = True
    wanted: WantedTable

    @classmethod
    def of(cls, asked: Asked) -> TableChoice:
        assert asked.table is not None
        if asked.mode == "complete":
            raise CannotAnalyze(
                "toTable adds rows to a table, and complete mode would replace them: use append "
                "mode, or write the result in foreachBatch",
                mode=asked.mode,
            )
        kind = None if asked.format is None else asked.format.lower()
        layout = Layout(kind or "", partition_by=asked.partition_by)
        if kind in FILE_OPTIONS:
            layout = asked.layout(kind)
        return cls(WantedTable(asked.table, layout, asked.cluster_by, asked.options[PATH]))

    def text(self, query: str) -> str:
        return f"{self.kind} {self.wanted.name}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        check_format(self.wanted.layout, _columns(stored))
        return open_table(spark, self.wanted, stored.name, stored.id, _columns(stored))


@dataclass(frozen=True)
class SparkChoice(SinkChoice):
    """A sink that only Spark knows: Structured Streaming feeds it from the query's stream."""

    kind = "spark"
    runs_jobs = True
    is_by_spark = True
    format: str
    mode: str
    given: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]

    @classmethod
    def of(cls, asked: Asked) -> SparkChoice:
        assert asked.format is not None
        if asked.mode == "complete":
            raise CannotAnalyze(
                f"the sink {asked.format} is fed by Structured Streaming, which cannot hand on a "
                "whole result in complete mode: use update mode, or write it in foreachBatch",
                mode=asked.mode,
            )
        options = [option for choice in CHOICES for option in choice.options]
        given = asked.options.texts(options) | dict(asked.foreign)
        layout = (asked.partition_by, asked.cluster_by)
        return cls(asked.format, asked.mode, tuple(sorted(given.items())), *layout)

    def text(self, query: str) -> str:
        path = dict(self.given).get(PATH.name)
        return f"{self.kind} {self.format}" + ("" if path is None else f" {path}")

    def say(self, writer: SparkWriter) -> SparkWriter:
        """Tell a writer of Spark's what this one was told."""
        writer.format(self.format).outputMode(self.mode).options(**dict(self.given))
        if self.partition_by:
            writer.partitionBy(*self.partition_by)
        if self.cluster_by:
            writer.clusterBy(*self.cluster_by)
        return writer

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> None:
        return None  # a query of Spark's feeds it


@dataclass(frozen=True)
class SqliteChoice(SinkChoice):
    """A table of an SQLite file: rows that add up, or the current row of each key."""

    kind = "sqlite"
    options = (PATH, TABLE, KEY)
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
    runs_jobs = True
    takes_any_columns = True
    needs_location = False
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
    needs_location = False
    view: str

    @classmethod
    def of(cls, asked: Asked) -> MemoryChoice:
        if asked.query is None:
            raise CannotAnalyze("the memory sink needs a queryName: it names the view")
        return cls(asked.query)

    def text(self, query: str) -> str:
        return f"{self.kind} {self.view}"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return MemorySink(spark, self.view, _columns(stored), replaces=replaces)


@dataclass(frozen=True)
class NoopChoice(SinkChoice):
    """Nowhere: the query runs, and its rows are thrown away."""

    kind = "noop"
    needs_location = False
    takes_any_columns = True

    @classmethod
    def of(cls, asked: Asked) -> NoopChoice:
        return cls()

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return NoopSink()


@dataclass(frozen=True)
class FunctionChoice(SinkChoice):
    """Code of the user's."""

    runs_jobs = True
    takes_any_columns = True
    needs_location = False
    function: Any

    def is_same(self, other: SinkChoice) -> bool:
        return type(other) is type(self) and is_same_function(self.function, other.function)


class ForeachChoice(FunctionChoice):
    """A function or an object of the user's that takes rows one by one."""

    kind = "foreach"

    @classmethod
    def of(cls, asked: Asked) -> ForeachChoice:
        return cls(asked.writer)

    def blamed(self, query: str) -> str:
        return "the foreach writer"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return ForeachSink(spark, self.function)


class ForeachBatchChoice(FunctionChoice):
    """A function of the user's that takes whole batches."""

    kind = "foreachBatch"

    @classmethod
    def of(cls, asked: Asked) -> ForeachBatchChoice:
        return cls(asked.function)

    def blamed(self, query: str) -> str:
        return "the foreachBatch function"

    def open(self, spark: SparkSession, stored: StoredQuery, *, replaces: bool) -> Sink:
        return ForeachBatchSink(spark, self.function)


CHOICES: tuple[type[SinkChoice], ...] = (
    StreamChoice, ParquetChoice, CsvChoice, JsonChoice, TextChoice, OrcChoice, SqliteChoice,
    TableChoice, ConsoleChoice, MemoryChoice, NoopChoice, ForeachChoice, ForeachBatchChoice,
    SparkChoice,
)  # fmt: skip
FORMATS = {
    choice.kind: choice
    for choice in CHOICES
    if not issubclass(choice, TableChoice | SparkChoice | FunctionChoice)
}


def _columns(stored: StoredQuery) -> pa.Schema:
    return arrow_schema(stored.program.stream(stored.output).schema)
