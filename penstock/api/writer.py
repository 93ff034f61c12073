"""Starting a query: the look-alike of PySpark's DataStreamWriter."""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkWriter

from penstock.api import writer_options
from penstock.api.datasource_options import log_folder
from penstock.api.launcher import DriverLauncher, SparkLauncher, prepare_kernels
from penstock.api.places import Place, find_place, location_name
from penstock.api.promises import explain_with_sinks
from penstock.api.query import Request, StreamingQuery
from penstock.api.registry import STARTED
from penstock.api.session import Attached
from penstock.api.session_sinks import ForeachBatch
from penstock.api.sink_runner import SinkRunner, Trigger
from penstock.api.sinks import CHOICES, Asked, SinkChoice
from penstock.api.spark_errors import (
    CannotAnalyze,
    IllegalOption,
    WrongAttribute,
    check_text,
    refuse,
)
from penstock.api.static_sides import StaticTables
from penstock.api.streams import check_name_is_free
from penstock.api.task_slots import SlotWish, control_host, grant_standbys
from penstock.api.triggers import Timing, timing_of
from penstock.arguments import check_type
from penstock.catalyst.by_spark import SparkExpressions
from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.python_functions import PythonBundle
from penstock.catalyst.relations import ScanOrigin
from penstock.catalyst.static_sides import StaticSide
from penstock.catalyst.translate import translate
from penstock.connectors.contract import Sink
from penstock.errors import (
    InvalidOption,
    LogReadOnly,
    ProgramIncompatible,
    QueryActive,
    QueryMismatch,
    StreamNotFound,
)
from penstock.log.contract import Log
from penstock.names import check_name
from penstock.operators.specs import MODES
from penstock.options import Options
from penstock.plan.nodes import StreamRef
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write, going_on
from penstock.runtime.backlog import sink_of
from penstock.runtime.job import Job
from penstock.runtime.placement import Patience
from penstock.runtime.queries import (
    RunState,
    StoredQuery,
    begin_run,
    lock_path,
    note_run,
    query_at,
    query_with_id,
    stored_query,
)
from penstock.runtime.streams import check_new_results, describe_stream
from penstock.stages.compare import compare
from penstock.stages.program import Program, sink_stream_of
from penstock.stages.settings import Settings

logger = logging.getLogger(__name__)

_OF_SINKS = frozenset(option.name for choice in CHOICES for option in choice.options)


class Result(NamedTuple):
    """One of the results of a query: where its rows go, by way of which stream."""

    writer: DataStreamWriter
    sink: SinkChoice
    stream: str

    @property
    def replaces(self) -> bool:
        """Whether each batch takes the place of the one before."""
        return self.writer._mode == "complete"

    def open(self, spark: SparkSession, stored: StoredQuery) -> Sink | None:
        """Prepare the sink; None if the stream is all that is wanted."""
        return self.sink.open(spark, replace(stored, output=self.stream), replaces=self.replaces)


class DataStreamWriter:
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
        self._timing = Timing()
        self._spark: SparkExpressions = {}  # what Spark computes, of the plan that was made last
        self._python = PythonBundle()  # functions, likewise

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
        self._options.add(key, str(value).lower() if isinstance(value, bool) else str(value))
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
            program, _ = self._planned(place.attached, name, results)
            stored = stored_query(place.attached.log, name)
            if stored is not None:
                print(compare(stored.program, program))
                if (refusal := _refusal(results, stored)) is not None:
                    print(f"  sink refused: {refusal}")
            print(_explanation(place.attached, program, results))
        finally:
            place.release()

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Check, plan, store and run the query. The arguments are PySpark's."""
        self._take_arguments(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            self.option("path", path)
        return self._start()

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Run the query, and add its rows to a table of the catalog, made if it is missing."""
        self._table = check_text(tableName, "tableName")
        self._take_arguments(format, outputMode, partitionBy, queryName, options)
        return self._start()

    def _start(self) -> StreamingQuery:
        sinks = self._sinks()
        place = self._place(sinks)
        try:
            name, results = self._results(place, sinks)
            program, sides = self._planned(place.attached, name, results)
            given = dict(self._options.values)
            request = Request(program, tuple(sinks), given, self._timing.drains)
            running = _running_already(place.attached.path, name, request)
            if running is None:
                return self._start_anew(place, name, request, results, sides)
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
        sides: tuple[StaticSide, ...],
    ) -> StreamingQuery:
        attached, program = place.attached, request.program
        check_name_is_free(attached.spark, self._name, attached.path)
        guard = _lock_query(attached.path, name)
        try:
            wish = self._slot_wish(program, request.sinks)
            standbys = grant_standbys(attached.spark.sparkContext, wish)
            stored = self._compared(attached.log, name, program, results)
            statics = self._static_tables(attached, program, sides)
            slots = (wish.slots, standbys)
            return self._run(place, stored, request, results, slots, guard, statics)
        except BaseException:
            os.close(guard)
            raise

    def _take_arguments(
        self,
        source: str | None,
        mode: str | None,
        partition_by: Any,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        self.options(**options)
        if mode is not None:
            self.outputMode(mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if source is not None:
            self.format(source)
        if name is not None:
            self.queryName(name)

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
        streams = _streams_of(name, sinks, stored_query(place.attached.log, name))
        _check_apart(name, sinks)
        return name, tuple(map(Result, self._writers, sinks, streams))

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

    def _planned(
        self, attached: Attached, name: str, results: Sequence[Result]
    ) -> tuple[Program, tuple[StaticSide, ...]]:
        """What is to run, and what Spark has to compute for it."""
        unknown: list[StreamNotFound] = []

        stored = stored_query(attached.log, name)
        begun = {} if stored is None else {s.name: s for s in stored.program.streams}

        def substreams(stream: str) -> int:
            """As many as the query began with: its vertices read what the stream gained since."""
            if stream in begun and begun[stream].role == "input":
                return begun[stream].substreams
            try:
                return describe_stream(attached.log, stream).substreams
            except StreamNotFound as error:
                unknown.append(error)  # told below, unless the stream is meant to be elsewhere
                return 1

        writes: list[Write] = []
        sides: list[StaticSide] = []
        spark: SparkExpressions = {}
        python = PythonBundle()
        for writer, sink, output in results:
            translated = translate(
                writer._df, output_mode=writer._mode, query=name, substreams=substreams
            )
            spark |= translated.spark
            python.update(translated.python)
            for scan in translated.scans:
                _check_same_log(scan, attached.path)
            if unknown:
                raise unknown[0]
            count, keys = _substreams_of(attached.log, output)
            target = StreamRef(output, count)
            changes = sink.takes_changes and writer._mode == "update"
            writes.append(Write(translated.relation, target, keys, changes=changes))
            sides += translated.statics
        self._spark, self._python = spark, python
        parallelism = self._options[writer_options.PARALLELISM]
        settings = replace(self._settings(), watermark_policy=translated.watermark_policy)
        query = Query(name, tuple(writes), parallelism, settings)
        program = plan_program(going_on(query, None if stored is None else stored.program))
        return program, tuple(sides)

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
        yield from (f"option {name}" for name in self._options.values if name in _OF_SINKS)

    def _settings(self) -> Settings:
        given = self._options.arguments()
        return Settings(
            available_now=self._timing.drains,
            trigger_interval_ms=self._timing.interval_ms,
            **given,
        )

    def _compared(
        self, log: Log, name: str, program: Program, results: Sequence[Result]
    ) -> StoredQuery:
        """The query as it is to be stored: checked against the stored one, with that one's id."""
        location = self._options[writer_options.CHECKPOINT_LOCATION]
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
            if (refusal := _refusal(results, before)) is not None:
                raise ProgramIncompatible(
                    f"query {name} cannot go on with another sink: {refusal}. Start it under a new "
                    "name, or with the stored sink",
                    query=name,
                    sink=before.sink,
                )
            query_id, location = before.id, location or before.location
        texts = {result.stream: result.sink.text(name) for result in results}
        (output, text), *beside = texts.items()
        return StoredQuery(query_id, name, program, output, location, text, dict(beside))

    # Running ----------------------------------------------------------------------------------

    def _run(
        self,
        place: Place,
        stored: StoredQuery,
        request: Request,
        results: Sequence[Result],
        slots: tuple[int, int],
        guard: int,
        statics: StaticTables,
    ) -> StreamingQuery:
        """Open the sinks, store the query and run it.

        In this order: what cannot run leaves the stored query as it is. One number of the run is
        for all of it, the sink and the vertices, so of two runs one has both.
        """
        attached, program = place.attached, stored.program
        spark, log = attached.spark, attached.log
        opened = [result.open(spark, stored) for result in results]
        numbers = begin_run(log, stored)
        statics.write(numbers.run)
        runners = tuple(
            (result.sink, self._runner(log, stored, result, sink, numbers.run))
            for result, sink in zip(results, opened, strict=True)
            if sink is not None
        )
        run = uuid.uuid4().hex[:12]  # two logs may have queries of one name in one session
        launcher = SparkLauncher(
            spark, f"penstock-{stored.name}-{run}", f"penstock {stored.name} slot", self._python
        )
        job = Job(
            program,
            log,
            launcher,
            host=control_host(spark),
            slots=slots[0],
            standbys=slots[1],
            numbers=numbers,
            patience=self._patience(),
            kernels=attached.kernels,
            driver=DriverLauncher(DriverSpark(spark, self._spark)) if self._spark else None,
        )
        try:
            note_run(log, stored.name, numbers.run, RunState.RUNNING)
            job.start()
            prepare_kernels(spark.sparkContext, attached.kernels, program)
            for _, runner in runners:
                runner.start()
            started = StreamingQuery(
                stored=stored,
                name=self._name,
                request=request,
                place=place,
                job=job,
                runners=runners,
                statics=statics,
                explanation=partial(_explanation, attached, program, results),
                on_stop=lambda: os.close(guard),
            )
        except BaseException:
            for _, runner in runners:
                runner.abandon()
            job.stop()
            raise
        STARTED.add(started)
        return started

    def _static_tables(
        self, attached: Attached, program: Program, sides: tuple[StaticSide, ...]
    ) -> StaticTables:
        """Static sides, computed while all task slots are still Spark's."""
        bytes_max = self._options[writer_options.STATIC_BYTES_MAX]
        tables = StaticTables(attached.spark, attached.log, program, sides, bytes_max)
        tables.compute(again=self._options[writer_options.REFRESH_STATIC])
        return tables

    def _patience(self) -> Patience:
        given = Patience()
        if (start_s := self._options[writer_options.START_TIMEOUT]) is not None:
            given = replace(given, start_s=start_s)
        if (step_s := self._options[writer_options.STEP_TIMEOUT]) is not None:
            given = replace(given, step_s=step_s, recovery_s=10 * step_s)
        return given

    def _slot_wish(self, program: Program, sinks: Sequence[SinkChoice]) -> SlotWish:
        """How many slots are to work, and how many to wait to take over."""
        options = self._options
        vertices = sum(not program.is_on_driver(vertex) for vertex in program.vertices)
        return SlotWish(
            slots=min(
                options[writer_options.SLOTS] or options[writer_options.PARALLELISM], vertices
            ),
            standbys=options[writer_options.STANDBY_SLOTS] if vertices else 0,
            must_have_standbys=writer_options.STANDBY_SLOTS in options,
            runs_jobs=any(sink.runs_jobs for sink in sinks),
        )

    def _runner(
        self, log: Log, stored: StoredQuery, result: Result, sink: Sink, run: int
    ) -> SinkRunner:
        program, facts = stored.program, describe_stream(log, result.stream)
        trigger = None
        if (interval_ms := self._timing.interval_ms) is not None:
            writers = [v for v in program.vertices if set(v.marker_tags) & set(facts.tags)]
            trigger = Trigger(interval_ms * 1_000, len(writers))
        return SinkRunner(
            log,
            stored.name,
            facts.tags,
            facts.schema,
            sink,
            run=run,
            name=sink_of(result.stream),
            trigger=trigger,
            replaces=result.replaces,
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


def _streams_of(
    query: str, sinks: Sequence[SinkChoice], stored: StoredQuery | None
) -> Iterator[str]:
    """The stream of each result: of a sink that is known the one that has fed it so far."""
    known = {} if stored is None else {text: stream for stream, text in stored.sinks.items()}
    taken = set(known.values())
    for sink in sinks:
        text, stream = sink.text(query), sink.stream(query)
        if sink.is_outside and text in known:
            stream = known[text]
        elif sink.is_outside and len(sinks) > 1 and stream in taken:
            stream = sink_stream_of(query, text)
        taken.add(stream)
        yield stream


def _check_apart(query: str, sinks: Sequence[SinkChoice]) -> None:
    """Raise InvalidOption if two results would be mixed up in one place."""
    places = [sink.place(query) for sink in sinks]
    repeated = {place for place in places if places.count(place) > 1}
    if repeated:
        raise InvalidOption(
            f"two writers have the same sink: {', '.join(sorted(repeated))}. Give each its own, or "
            "write the union of the DataFrames"
        )


def _refusal(results: Sequence[Result], stored: StoredQuery) -> str | None:
    """Why a stored query with one sink cannot go on with another one; None: it can."""
    return results[0].sink.refusal(stored) if len(results) == 1 else None


def _explanation(attached: Attached, program: Program, results: Sequence[Result]) -> str:
    texts = (result.sink.text(program.query) for result in results)
    return explain_with_sinks(program, attached.log, texts)


def _running_already(folder: Path, name: str, request: Request) -> StreamingQuery | None:
    """The run of this process that does just what is asked for; None if the query does not run.

    A notebook cell that is run again gets its query back, unless it asks for another one now.
    """
    running = STARTED.find(folder, name)
    if running is None or not running.isActive:
        return None
    if running.is_stopping:
        running.stop()  # returns when its name is free again, and says what it waits for
        return None
    if not running.request.is_same(request):
        raise QueryActive(
            f"query {name!r} is running in this process, and what is to be started now is another "
            f"one: call penstock.query({name!r}).stop() first, or start this one under another "
            "queryName",
            query=name,
            holder=str(os.getpid()),
        )
    logger.warning(
        "query %s is running already, unchanged: this is its handle, nothing was started anew", name
    )
    return running


def _lock_query(folder: Path, name: str) -> int:
    """Hold a file lock while a query runs: two drivers on one machine never run the same one."""
    path = lock_path(folder, name)
    try:
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LogReadOnly(
            f"query {name!r} cannot be locked in {path.parent} ({error}): make the log's folder "
            "writable for this user",
            path=str(path),
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise QueryActive(
            f"query {name!r} is already running in process {holder}: stop it there, or start this "
            "one under another queryName",
            query=name,
            holder=holder,
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


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


def _column_names(word: str, given: tuple[Any, ...]) -> tuple[str, ...]:
    """Names of columns, one by one or in one list."""
    names = tuple(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
    for name in names:
        check_type(name, str, f"a column of {word}", "a text")
    return names
