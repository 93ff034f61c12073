"""Starting a query: the look-alike of PySpark's DataStreamWriter."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkWriter

from penstock.api import writer_options
from penstock.api.datasource_options import log_folder
from penstock.api.places import Place, find_place, location_name
from penstock.api.query import Request, StreamingQuery
from penstock.api.results import Result, check_apart, explain_results, refusal_of, streams_of
from penstock.api.session import Attached
from penstock.api.session_sinks import ForeachBatch
from penstock.api.sinks import CHOICES, PATH, Asked, SinkChoice
from penstock.api.spark_errors import (
    CannotAnalyze,
    IllegalOption,
    WrongAttribute,
    check_text,
    refuse,
)
from penstock.api.start_words import StartWords
from penstock.api.starting import Planned, Start, lock_query, running_already
from penstock.api.streams import check_name_is_free
from penstock.api.triggers import Timing, timing_of
from penstock.arguments import check_type
from penstock.catalyst.by_spark import SparkExpressions
from penstock.catalyst.fed_sources import FedSource
from penstock.catalyst.observed import Observation
from penstock.catalyst.python_functions import PythonBundle
from penstock.catalyst.relations import ScanOrigin
from penstock.catalyst.static_sides import StaticSide
from penstock.catalyst.translate import translate
from penstock.errors import (
    InvalidOption,
    ProgramIncompatible,
    QueryMismatch,
    StreamNotFound,
    UnsupportedPlan,
)
from penstock.log.contract import Log
from penstock.log.local import LocalLog
from penstock.names import check_name
from penstock.operators.specs import MODES
from penstock.options import Options, is_elsewhere
from penstock.plan.nodes import StreamRef
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write, going_on
from penstock.runtime.queries import (
    StoredQuery,
    query_at,
    query_with_id,
    stored_query,
)
from penstock.runtime.streams import check_new_results, describe_stream
from penstock.stages.compare import compare
from penstock.stages.program import Program, is_fed
from penstock.stages.settings import Settings

logger = logging.getLogger(__name__)

_OF_SINKS = frozenset(option.name for choice in CHOICES for option in choice.options)


class DataStreamWriter(StartWords[StreamingQuery]):
    """Collects what a query should do; `start()` runs it. Every method returns the writer."""

    def __init__(self, df: DataFrame, writers: Sequence[DataStreamWriter] = ()) -> None:
        """`writers` are those of the results of the query, if it is not this one alone."""
        self._df = df
        self._writers = tuple(writers) or (self,)
        self._format: str | None = None
        self._mode = "append"
        self._name: str | None = None
        self._stream: str | None = None
        self._function: ForeachBatch | None = None
        self._writer: Any = None
        self._table: str | None = None
        self._partition_by: tuple[str, ...] = ()
        self._cluster_by: tuple[str, ...] = ()
        self._options = Options("a query", writer_options.WRITER_OPTIONS)
        self._foreign: dict[str, str] = {}  # options that are not declared here
        self.ends: tuple[str, ...] = ()  # what Spark does for the query, once it was planned
        self._timing = Timing()

    @property
    def title(self) -> str:
        """What to call the query before it has started."""
        return self._name or "without a name"

    @property
    def sink_word(self) -> str:
        """Which sink it has, as far as that was said."""
        if self._function is not None or self._writer is not None:
            return "foreach" if self._function is None else "foreachBatch"
        return f"table {self._table}" if self._table else self._format or "parquet"

    def outputMode(self, outputMode: str) -> DataStreamWriter:
        """append, update or complete."""
        mode = check_text(outputMode, "outputMode").lower()
        if mode not in MODES:
            raise IllegalOption(
                f"there is no output mode {outputMode!r}; known: {', '.join(MODES)}",
                condition="STREAMING_OUTPUT_MODE.INVALID",
                parameters={"outputMode": outputMode},
            )
        self._mode = mode
        return self

    def queryName(self, queryName: str) -> DataStreamWriter:
        """The query's name; in a log that queries share it is stored, and found again, under it."""
        self._name = check_text(queryName, "queryName")
        return self

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """Set an option; names are not case-sensitive, and None changes nothing."""
        check_type(key, str, "the name of an option", "a text")
        if value is None:
            return self
        check_type(
            value, (str, int, float, bool, os.PathLike), f"option {key}", "a text or a number"
        )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        is_path = key.lower() == PATH.name
        if not self._options.knows(key) or (is_path and is_elsewhere(text)):
            # Perhaps one of a sink that only Spark knows: the start refuses it otherwise.
            self._foreign[PATH.name if is_path else key] = text
        else:
            self._options.add(key, text)
        return self

    def options(self, **options: Any) -> DataStreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> DataStreamWriter:
        """processingTime: one commit, and one batch, per interval. availableNow, once: drain, stop.

        Rows are processed as they come where there is no trigger, so `continuous` and `realTime`
        change nothing.
        """
        self._timing = timing_of(
            {
                "processingTime": processingTime,
                "once": once,
                "continuous": continuous,
                "availableNow": availableNow,
                "realTime": realTime,
            }
        )
        return self

    def format(self, source: str) -> DataStreamWriter:
        """penstock (a stream of the log), a format of files, sqlite, console, memory or noop."""
        check_type(source, str, "format", "a text")
        self._format, self._function, self._writer = source, None, None
        return self

    def toStream(self, name: str) -> DataStreamWriter:
        """Write to a stream of the log; call `start()` next."""
        self._format = "penstock"
        self._stream = check_name(name, "stream")
        return self

    def foreachBatch(self, func: ForeachBatch) -> DataStreamWriter:
        """Call a function with the rows of each batch as a DataFrame, and the batch's number."""
        if not callable(func):
            raise InvalidOption(f"foreachBatch needs a function, not {type(func).__name__}")
        self._function, self._writer = func, None
        return self

    def foreach(self, f: Any) -> DataStreamWriter:
        """Hand rows one by one to a function, or to an object with `process(row)`.

        Of the object's `open(partition_id, batch_id)` and `close(error)` both may be missing.
        """
        try:
            SparkWriter._construct_foreach_function(f)
        except PySparkAttributeError as error:
            parameters = error.getMessageParameters() or {}
            refuse(WrongAttribute, "ATTRIBUTE_NOT_CALLABLE", **parameters)
        self._writer, self._function = f, None
        return self

    def partitionBy(self, *cols: Any) -> DataStreamWriter:
        """Put files into folders named by the values of these columns."""
        self._partition_by = _column_names("partitionBy", cols)
        return self

    def clusterBy(self, *cols: Any) -> DataStreamWriter:
        """Have a table that `toTable` makes clustered by these columns."""
        self._cluster_by = _column_names("clusterBy", cols)
        return self

    def explain(self) -> None:
        """Print what would run, and what a stored query of this name would keep."""
        sinks = self._sinks()
        place = self._place(sinks, keeps=False)
        try:
            name, results = self._results(place, sinks)
            planned = self._planned(place.attached, name, results)
            program = planned.program
            stored = stored_query(place.attached.log, name)
            if stored is not None:
                print(compare(stored.program, program))
                if (refusal := refusal_of(results, stored, program)) is not None:
                    print(f"  sink refused: {refusal}")
            print(explain_results(place.attached.log, program, results, planned.fed_texts))
        finally:
            place.release()

    def _start_at(self, path: str | None) -> StreamingQuery:
        if path is not None:
            self.option("path", path)
        return self._start()

    def _start_table(self, name: str) -> StreamingQuery:
        self._table = check_text(name, "tableName")
        return self._start()

    def _start(self) -> StreamingQuery:
        sinks = self._sinks()
        place = self._place(sinks)
        try:
            name, results = self._results(place, sinks)
            planned = self._planned(place.attached, name, results)
            given = dict(self._options.values)
            request = Request(planned.program, tuple(sinks), given, self._timing.drains)
            running = running_already(place.attached.path, name, request)
            if running is None:
                return self._start_anew(place, name, request, results, planned)
        except BaseException:
            place.undo()
            raise
        place.release()
        return running

    def _start_anew(
        self,
        place: Place,
        name: str,
        request: Request,
        results: Sequence[Result],
        planned: Planned,
    ) -> StreamingQuery:
        attached = place.attached
        check_name_is_free(attached.spark, self._name, attached.path)
        guard = lock_query(attached.path, name)
        try:
            start = Start(place, planned, results, self._options, self._timing)
            _check_guarantee(attached.log, planned.program)
            stored = self._compared(attached.log, name, planned, results)
            return start.run(stored, request, self._name, guard)
        except BaseException:
            os.close(guard)
            raise

    # Planning ---------------------------------------------------------------------------------

    def _place(self, sinks: Sequence[SinkChoice], *, keeps: bool = True) -> Place:
        """The log that the query is to be in."""
        return find_place(
            self._df.sparkSession,
            self._options[writer_options.CHECKPOINT_LOCATION],
            self._name,
            needs_location=any(sink.needs_location for sink in sinks),
            keeps=keeps,
        )

    def _query_name(self, place: Place, sink: SinkChoice) -> str:
        """The name that was given, or that of the query which the location or the id belongs to."""
        location = None if place.is_own else self._options[writer_options.CHECKPOINT_LOCATION]
        log = place.attached.log
        known: dict[str, StoredQuery] = {}
        if (query_id := self._options[writer_options.QUERY_ID]) is not None:
            known[f"queryId {query_id}"] = query_with_id(log, query_id)
        if location is not None and (there := query_at(log, location)) is not None:
            known[f"checkpointLocation {location!r}"] = there
        wanted = place.query_name(self._name)
        name = wanted or next((stored.name for stored in known.values()), None)
        for what, stored in known.items():
            if stored.name != name:
                raise QueryMismatch(
                    f"{what} belongs to query {stored.name!r}, not to {name!r}: start it under its "
                    "own queryName, or use another location",
                    query=name,
                    owner=stored.name,
                )
        if name is not None:
            return name
        return sink.query_name() if location is None else location_name(location)

    def _sinks(self) -> list[SinkChoice]:
        """Where the results go, complete, before anything is planned, stored or made."""
        if self._writers != (self,) and (own := [*self._set_for_one()]):
            raise InvalidOption(
                f"{', '.join(own)} would be for one of several results: set it on its own writer"
            )
        return [writer._sink(self._name) for writer in self._writers]

    def _results(self, place: Place, sinks: Sequence[SinkChoice]) -> tuple[str, tuple[Result, ...]]:
        """The query's name, and which stream brings the rows of each result to its sink."""
        name = self._query_name(place, sinks[0])
        streams = streams_of(name, sinks, stored_query(place.attached.log, name))
        check_apart(name, sinks)
        parts = zip(self._writers, sinks, streams, strict=True)
        return name, tuple(Result(w._df, w._mode, sink, stream) for w, sink, stream in parts)

    def _sink(self, name: str | None) -> SinkChoice:
        """The sink that was asked for."""
        asked = Asked(
            self._options,
            query=name,
            stream=self._stream,
            function=self._function,
            writer=self._writer,
            table=self._table,
            format=self._format,
            foreign=self._foreign,
            spark=self._df.sparkSession,
            mode=self._mode,
            partition_by=self._partition_by,
            cluster_by=self._cluster_by,
        )
        sink = asked.choice()
        if self._stream is not None and sink.is_outside:
            raise InvalidOption(
                f"a result has one sink, and both toStream({self._stream!r}) and {sink.kind} were "
                "asked for: writeStreams(...) runs two results as one query"
            )
        return sink

    def _planned(self, attached: Attached, name: str, results: Sequence[Result]) -> Planned:
        """What is to run, and what it needs beside the program."""
        unknown: list[StreamNotFound] = []
        parallelism = self._options[writer_options.PARALLELISM]
        stored = stored_query(attached.log, name)
        begun = {} if stored is None else {s.name: s for s in stored.program.streams}

        def substreams(stream: str) -> int:
            """As many as the query began with: its vertices read what the stream gained since."""
            if stream in begun and begun[stream].role == "input":
                return begun[stream].substreams
            try:
                return describe_stream(attached.log, stream).substreams
            except StreamNotFound as error:
                if is_fed(stream):  # Spark will bring it, for as many vertices as there will be
                    return parallelism
                unknown.append(error)  # told below, unless the stream is meant to be elsewhere
                return 1

        writes: list[Write] = []
        sides: list[StaticSide] = []
        spark: SparkExpressions = {}
        fed: dict[str, FedSource] = {}
        python = PythonBundle()
        observed: list[Observation] = []
        for frame, mode, sink, output in results:
            translated = translate(
                frame, output_mode=mode, query=name, substreams=substreams, feeds=True
            )
            fed |= {source.stream: source for source in translated.fed}
            spark |= translated.spark
            python.update(translated.python)
            for scan in translated.scans:
                _check_same_log(scan, attached.path)
            if unknown:
                raise unknown[0]
            count, keys = _substreams_of(attached.log, output)
            target = StreamRef(output, count)
            changes = sink.takes_changes and mode == "update"
            writes.append(Write(translated.relation, target, keys, changes=changes))
            sides += translated.statics
            observed += translated.observed
        _check_observed([each.name for each in observed])
        settings = replace(self._settings(), watermark_policy=translated.watermark_policy)
        query = Query(name, tuple(writes), parallelism, settings)
        program = plan_program(going_on(query, None if stored is None else stored.program))
        self.ends = (
            *(f"source {source.text}" for source in fed.values()),
            *(f"sink {each.sink.text(name)}" for each in results if each.sink.is_by_spark),
        )
        return Planned(program, tuple(sides), spark, python, tuple(observed), tuple(fed.values()))

    def _set_for_all(self) -> Iterator[str]:
        """What is set here that a query has once, however many results."""
        if self._name is not None:
            yield "queryName"
        yield from (f"option {name}" for name in self._options.values if name not in _OF_SINKS)
        if self._timing.is_set:
            yield "trigger"

    def _set_for_one(self) -> Iterator[str]:
        """What is set here that each result has for itself."""
        sinks = (self._function, self._writer, self._format, self._stream, self._table)
        if any(each is not None for each in sinks):
            yield "a sink"
        if self._mode != "append":
            yield "outputMode"
        if self._partition_by or self._cluster_by:
            yield "partitionBy" if self._partition_by else "clusterBy"
        known = (name for name in self._options.values if name in _OF_SINKS)
        yield from (f"option {name}" for name in (*known, *self._foreign))

    def _settings(self) -> Settings:
        given = self._options.arguments()
        return Settings(
            available_now=self._timing.drains,
            trigger_interval_ms=self._timing.interval_ms,
            **given,
        )

    def _compared(
        self, log: Log, name: str, planned: Planned, results: Sequence[Result]
    ) -> StoredQuery:
        """The query as it is to be stored: checked against the stored one, with that one's id."""
        location = self._options[writer_options.CHECKPOINT_LOCATION]
        program, fed = planned.program, planned.fed_texts
        before = stored_query(log, name)
        query_id = str(uuid.uuid4())
        if before is not None:
            if location is not None and before.location not in (None, location):
                raise QueryMismatch(
                    f"query {name!r} belongs to checkpointLocation {before.location!r}, not to "
                    f"{location!r}: choose another name, or use that location",
                    query=name,
                )
            compare(before.program, program).check()
            check_new_results(log, before.program, program)
            if (refusal := refusal_of(results, before, program)) is not None:
                raise ProgramIncompatible(
                    f"the sink of query {name} cannot go on: {refusal}. Start it under a new "
                    "name and with a new sink, or with the stored ones",
                    query=name,
                    sink=before.sink,
                )
            query_id, location = before.id, location or before.location
        texts = {result.stream: result.sink.text(name) for result in results}
        (output, text), *beside = texts.items()
        ever = {} if before is None else before.sinks_ever
        gone = {stream: sink for stream, sink in ever.items() if stream not in texts}
        beside_it = dict(beside)
        return StoredQuery(query_id, name, program, output, location, text, beside_it, gone, fed)


def _check_guarantee(log: LocalLog, program: Program) -> None:
    """Refuse what a log cannot be so fast as to give, and say aloud what is not promised."""
    settings = program.settings
    if settings.guarantee == "unsafe" and log.durability == "synced":
        raise InvalidOption(
            f"with the guarantee unsafe nothing is synced, and the log at {log.folder} syncs for "
            "all its queries: attach a new folder with durability='process', or choose unmarked"
        )
    if not settings.recovers:
        logger.warning(
            "query %s runs WITHOUT GUARANTEE (%s): nothing is recovered, and it cannot be started "
            "again",
            program.query,
            settings.guarantee,
        )


def writeStream(df: DataFrame) -> DataStreamWriter:
    """Run a streaming DataFrame on Penstock; takes the place of `df.writeStream`."""
    check_type(df, DataFrame, "df", "a streaming DataFrame")
    if not df.isStreaming:
        raise CannotAnalyze(
            "this DataFrame is not a streaming one: build it from spark.readStream",
            condition="WRITE_STREAM_NOT_ALLOWED",
            parameters={},
        )
    return DataStreamWriter(df)


def writeStreams(*writers: DataStreamWriter) -> DataStreamWriter:
    """Run several results as one query, which computes what they share once.

    Each writer says its DataFrame, mode and sink, as `writeStream(df).toStream(name)` or
    `writeStream(df).format("parquet").option("path", folder)` do; what is set on the writer that is
    returned, such as queryName, trigger and other options, is for all of them. Each result is as
    exactly once as its sink is; which of them commit together is told by `explain()`.
    """
    if not writers:
        raise InvalidOption("writeStreams needs at least one writer: writeStream(df).toStream(x)")
    for writer in writers:
        check_type(writer, DataStreamWriter, "a writer", "what writeStream(df) returns")
        if own := [*writer._set_for_all()]:
            raise InvalidOption(
                f"{', '.join(own)} of one writer would be for all of them: set it on what "
                "writeStreams returns"
            )
    return DataStreamWriter(writers[0]._df, writers)


def _substreams_of(log: Log, stream: str) -> tuple[int, tuple[str, ...]]:
    """How a stream is cut that may be there already: into how many substreams, by which keys."""
    try:
        facts = describe_stream(log, stream)
    except StreamNotFound:
        return 1, ()
    return facts.substreams, facts.partition_by


def _check_same_log(scan: ScanOrigin, attached: Path) -> None:
    """A query reads the log that it writes to: its positions and markers are in one order."""
    path = {name.lower(): value for name, value in scan.options}.get("path")
    if scan.stream is None or path is None:
        return
    folder = Path(log_folder(path))
    if os.path.realpath(folder) != os.path.realpath(attached):
        raise InvalidOption(
            f"stream {scan.stream!r} is read from the log {folder}, and this session is attached "
            f"to {attached}: attach the session to {folder}, or let Structured Streaming copy the "
            "stream (readStream and writeStream with format 'penstock')",
            option="path",
            path=str(folder),
        )


def _check_observed(names: Sequence[str]) -> None:
    """Raise UnsupportedPlan if two results observe under one name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnsupportedPlan(
            f"observe({repeated[0]!r}) stands in two results, and each row would count twice: "
            "observe under two names",
            node="CollectMetrics",
        )


def _column_names(word: str, given: tuple[Any, ...]) -> tuple[str, ...]:
    """Names of columns, one by one or in one list."""
    names = tuple(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
    for name in names:
        check_type(name, str, f"a column of {word}", "a text")
    return names
