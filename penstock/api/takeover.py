"""Running a program that nobody edited: `df.writeStream` starts queries here where they can run.

What is refused here runs on Structured Streaming as before, and it is said which query that is and
why. Nothing of PySpark is changed but three properties, `DataFrame.writeStream`,
`SparkSession.streams` and `SparkSession.read`, and `SparkSession.stop`, and these only for sessions
that were taken over: `read` so that Spark's reader of states finds those of queries that run here,
`stop` so that these commit before Spark is gone.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.readwriter import DataFrameReader as SparkReader
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkWriter

from penstock.api import writer_options
from penstock.api.datasource import PenstockDataSource
from penstock.api.planned import PlannedQuery, PlannedStreams
from penstock.api.registry import STARTED
from penstock.api.session import check_session
from penstock.api.start_words import StartWords
from penstock.api.state_metadata import state_metadata
from penstock.api.streams import check_name_is_free, session_id, streams
from penstock.api.writer import DataStreamWriter
from penstock.arguments import check_type
from penstock.errors import (
    InvalidArgument,
    JobFailed,
    LogReadOnly,
    ProgramIncompatible,
    QueryActive,
    StreamError,
)
from penstock.log.local import FORMAT_FILE, open_log
from penstock.runtime.queries import stored_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASON_CHARACTERS_MAX = 300
STOP_S = 30.0  # how long Spark waits for queries to end before it stops
# Not refusals: the query is known here, and Spark would begin it anew beside what is stored; or its
# place is of no use to anybody.
_FINAL = (QueryActive, ProgramIncompatible, JobFailed, LogReadOnly)

logger = logging.getLogger(__name__)

_WAY_OUT = ". Structured Streaming "  # what a refusal says last: here that is what happens


@dataclass(frozen=True)
class TakenQuery:
    """One start of a program that was taken over."""

    title: str
    sink: str
    reason: str | None  # why Structured Streaming runs it; None if Penstock does
    ends: tuple[str, ...] = ()  # what Structured Streaming does for one that Penstock runs
    is_refused: bool = False  # by Structured Streaming too

    def __str__(self) -> str:
        if self.reason is None:
            ends = f", its {' and '.join(self.ends)} by Structured Streaming" if self.ends else ""
            return f"{self.title} ({self.sink}): Penstock{ends}"
        refused = ", which refused it too" if self.is_refused else ""
        return f"{self.title} ({self.sink}): Structured Streaming{refused}, because {self.reason}"


@dataclass
class Takeover:
    """What became of the queries of one session, or of all sessions of a program."""

    strict: bool = False  # raise what is refused instead of leaving it to Spark
    only_plans: bool = False  # nothing runs; each query is only explained
    starts: list[TakenQuery] = field(default_factory=list)

    def summary(self) -> str:
        """Which query ran where, one line for each start."""
        here = sum(each.reason is None for each in self.starts)
        verb = "would run" if self.only_plans else "ran"
        lines = [f"{here} of {len(self.starts)} queries {verb} on Penstock", *map(str, self.starts)]
        return "\n  ".join(lines)


class TakenOver:
    """Which sessions are taken over; the properties of PySpark are changed once for all."""

    def __init__(self) -> None:
        self._by_session: dict[str, Takeover] = {}
        self._everywhere: Takeover | None = None
        self._is_installed = False

    def add(self, session: str | None, wanted: Takeover) -> Takeover:
        """Take over a session, None: all; one that is taken over stays so, and is given back.

        Where all are, as by `penstock run --takeover`, a program that takes its own session over
        has said nothing new: its queries are in the one summary, and stay refused where they were.
        """
        self._install()
        if session is None or self._everywhere is not None:
            self._everywhere = self._everywhere or wanted
            return self._everywhere
        known = self._by_session.setdefault(session, wanted)
        known.strict = wanted.strict
        return known

    def end(self, session: str | None) -> None:
        """Give a session, or all of them, back to Spark; queries that run go on."""
        if session is None:
            self._everywhere = None
        else:
            self._by_session.pop(session, None)

    def of(self, spark: Any) -> Takeover | None:
        if self._by_session and (known := self._by_session.get(session_id(spark))) is not None:
            return known
        return self._everywhere

    def _install(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        # Descriptors, as the classes hold them: PySpark has plain and cached properties.
        write, manage = vars(ClassicDataFrame)["writeStream"], vars(SparkSession)["streams"]
        read = vars(SparkSession)["read"]

        def write_stream(frame: DataFrame) -> Any:
            taken = self.of(frame.sparkSession)
            if taken is None:
                return write.__get__(frame, type(frame))
            return TakenWriter(frame, taken)

        def session_streams(spark: SparkSession) -> Any:
            taken = self.of(spark)
            if taken is None:
                return manage.__get__(spark, type(spark))
            return PlannedStreams(spark) if taken.only_plans else streams(spark)

        def session_read(spark: SparkSession) -> Any:
            if self.of(spark) is None:
                return read.__get__(spark, type(spark))
            return TakenReader(spark)

        changed: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
            (ClassicDataFrame, "writeStream", write_stream),
            (SparkSession, "streams", session_streams),
            (SparkSession, "read", session_read),
        )
        for owner, name, get in changed:
            setattr(owner, name, property(get, doc=getattr(owner, name).__doc__))
        stop = SparkSession.stop

        @functools.wraps(stop)
        def session_stop(spark: SparkSession) -> None:
            if self.of(spark) is not None:
                _end_queries()
            stop(spark)

        SparkSession.stop = session_stop  # type: ignore[assignment,method-assign]


TAKEN = TakenOver()


def _end_queries() -> None:
    """Let all queries commit and end, since what they run in is about to go."""
    active = [query for query in STARTED.all() if query.isActive]
    deadline_s = time.monotonic() + STOP_S
    for query in active:
        query.stop_within(0)
    for query in active:
        if not query.stop_within(max(deadline_s - time.monotonic(), 0)):
            logger.warning(
                "query %s has not ended in %g s, and Spark stops: what it has committed is in the "
                "log, and its next start goes on from there",
                query.title, STOP_S,
            )  # fmt: skip


def takeover(spark: SparkSession, *, strict: bool = False) -> Takeover:
    """Run the streaming queries of a session on Penstock from here on, as far as it can.

    `df.writeStream` and `spark.streams` stay what they are in PySpark. A query that is refused runs
    on Structured Streaming, and a line says why; with `strict` the refusal is raised. What came of
    each is in the result's `summary()`. Taking a session over twice is harmless.
    """
    check_session(spark)
    check_type(strict, bool, "strict", "True or False")
    return TAKEN.add(session_id(spark), Takeover(strict))


class TakenReader(SparkReader):
    """Spark's reader; only states of queries that run here are found where they are."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._source: str | None = None
        self._said: dict[str, Any] = {}

    def format(self, source: str) -> SparkReader:
        self._source = source
        return super().format(source)

    def option(self, key: str, value: Any) -> SparkReader:
        self._said[key] = value
        return super().option(key, value)

    def options(self, **options: Any) -> SparkReader:
        self._said |= options
        return super().options(**options)

    def load(
        self, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> DataFrame:
        said = {key.lower(): key for key in self._said}
        folder = path if path is not None else self._said.get(said.get("path", ""))
        source = (format or self._source or "").lower()
        is_state = source in ("statestore", "state-metadata")
        if not is_state or not isinstance(folder, str) or not (Path(folder) / FORMAT_FILE).exists():
            return super().load(path, format, schema, **options)
        with open_log(folder, read_only=True) as log:
            names = stored_names(log)
            if len(names) != 1:
                raise InvalidArgument(
                    f"{folder} holds the states of {', '.join(names) or 'no query'}: read them "
                    "with format('penstock') and option('state', query)"
                )
            if source == "state-metadata":
                return state_metadata(self._spark, log, names[0])
        self._spark.dataSource.register(StateSource)
        reader = SparkReader(self._spark).format(StateSource.name()).option("state", names[0])
        given = {**self._said, **options, "path": folder}
        return reader.options(**given).load()


class StateSource(PenstockDataSource):
    """States of a log that the session need not be attached to."""

    @classmethod
    def name(cls) -> str:
        return "penstock-states"


class TakenWriter(StartWords[SparkQuery], SparkWriter):
    """Says every word to Spark's writer and to ours; which of them starts the query is seen then.

    Spark's comes first: what is wrong for Spark is refused by Spark, in its own words.
    """

    def __init__(self, df: DataFrame, taken: Takeover) -> None:
        super().__init__(df)
        self._taken = taken
        self._ours = DataStreamWriter(df)
        self._refusal: Exception | None = None

    def outputMode(self, outputMode: str) -> SparkWriter:
        super().outputMode(outputMode)
        return self._say(lambda: self._ours.outputMode(outputMode))

    def format(self, source: str) -> SparkWriter:
        super().format(source)
        return self._say(lambda: self._ours.format(source))

    def option(self, key: str, value: Any) -> SparkWriter:
        super().option(key, value)
        return self._say(lambda: self._ours.option(key, value))

    def options(self, **options: Any) -> SparkWriter:
        super().options(**options)
        return self._say(lambda: self._ours.options(**options))

    def partitionBy(self, *cols: Any) -> SparkWriter:
        super().partitionBy(*cols)
        return self._say(lambda: self._ours.partitionBy(*cols))

    def clusterBy(self, *cols: Any) -> SparkWriter:
        super().clusterBy(*cols)
        return self._say(lambda: self._ours.clusterBy(*cols))

    def queryName(self, queryName: str) -> SparkWriter:
        super().queryName(queryName)
        return self._say(lambda: self._ours.queryName(queryName))

    def trigger(self, **asked: Any) -> SparkWriter:
        super().trigger(**asked)
        return self._say(lambda: self._ours.trigger(**asked))

    def foreach(self, f: Any) -> SparkWriter:
        super().foreach(f)
        return self._say(lambda: self._ours.foreach(f))

    def foreachBatch(self, func: Any) -> SparkWriter:
        super().foreachBatch(func)
        return self._say(lambda: self._ours.foreachBatch(func))

    def _start_at(self, path: str | None) -> SparkQuery:
        if path is not None:
            self._say(lambda: self._ours.option("path", path))
        return self._start(self._ours.start, lambda: SparkWriter.start(self, path))

    def _start_table(self, name: str) -> SparkQuery:
        return self._start(
            lambda: self._ours.toTable(name), lambda: SparkWriter.toTable(self, name)
        )

    def _say(self, word: Callable[[], object]) -> SparkWriter:
        if self._refusal is None:
            try:
                word()
            except StreamError as error:  # told at the start, if there is one
                self._refusal = error
        return self

    def _start(
        self, ours: Callable[[], SparkQuery], sparks: Callable[[], SparkQuery]
    ) -> SparkQuery:
        begin = self._plan if self._taken.only_plans else ours
        if self._taken.only_plans:
            print(f"== {self._ours.title}")
        try:
            if self._refusal is not None:
                raise self._refusal
            started = begin()
        except Exception as error:
            if self._taken.strict or isinstance(error, _FINAL) or self._is_stored_here():
                raise
            check_name_is_free(self._spark, self._ours._name)
            reason = _in_one_line(error)
            if self._taken.only_plans:
                self._note(reason)
                print(f"Structured Streaming would run it: {reason}\n")
                return PlannedQuery(self._ours.title)
            logger.warning("query %s runs on Structured Streaming: %s", self._ours.title, reason)
            return self._leave(sparks, reason)
        self._note(None)
        return started

    def _plan(self) -> SparkQuery:
        self._ours.explain()
        return PlannedQuery(self._ours.title)

    def _leave(self, sparks: Callable[[], SparkQuery], reason: str) -> SparkQuery:
        """Have Spark start it, which may refuse it too."""
        is_refused = True
        try:
            started = sparks()
            is_refused = False
        finally:
            self._note(reason, is_refused)
        return started

    def _note(self, reason: str | None, is_refused: bool = False) -> None:
        ours = self._ours
        ends = ours.ends if reason is None else ()
        self._taken.starts.append(TakenQuery(ours.title, ours.sink_word, reason, ends, is_refused))

    def _is_stored_here(self) -> bool:
        """Whether the query's place holds a log of ours, which Spark must not begin anew beside."""
        location = self._ours._options[writer_options.CHECKPOINT_LOCATION]
        return location is not None and os.path.exists(Path(location) / FORMAT_FILE)


def _in_one_line(error: Exception) -> str:
    """Why a query does not run here: the first sentences, without what else could be done."""
    text = error.message if isinstance(error, StreamError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.partition(_WAY_OUT)[0].split())
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    return f"{text[:REASON_CHARACTERS_MAX].rpartition(' ')[0]} ..."
