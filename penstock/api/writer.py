"""Starting a query: the look-alike of PySpark's DataStreamWriter."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.api import writer_options
from penstock.api.datasource_options import log_folder
from penstock.api.launcher import DriverLauncher, SparkLauncher, prepare_kernels
from penstock.api.query import Request, StreamingQuery
from penstock.api.registry import STARTED
from penstock.api.session import Attached, attached_log
from penstock.api.sink_runner import SinkRunner, Trigger
from penstock.api.sinks import (
    CHOICES,
    FORMATS,
    Asked,
    ForeachBatch,
    ForeachBatchChoice,
    SinkChoice,
    explain_with_sinks,
)
from penstock.api.static_sides import StaticTables
from penstock.api.task_slots import SlotWish, control_host, grant_standbys
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
    PlanError,
    ProgramIncompatible,
    QueryActive,
    QueryMismatch,
    StreamNotFound,
)
from penstock.expressions.durations import parse_duration
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


def _trigger_ms(text: str) -> int | None:
    """The interval of a trigger; Spark's "0 seconds" means none."""
    try:
        length_us = parse_duration(text)
        if length_us % 1_000:
            raise ValueError("it is a whole number of milliseconds")
    except (ValueError, PlanError) as error:
        raise InvalidOption(
            f"trigger(processingTime={text!r}) is not possible: {error}", value=str(text)[:200]
        ) from error
    return length_us // 1_000 or None


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
        self._format = "penstock"
        self._mode = "append"
        self._name: str | None = None
        self._stream: str | None = None
        self._function: ForeachBatch | None = None
        self._options = Options("a query", writer_options.WRITER_OPTIONS)
        self._trigger_ms: int | None = None
        self._available_now = False
        self._spark: SparkExpressions = {}  # what Spark computes, of the plan that was made last
        self._python = PythonBundle()  # functions, likewise

    def outputMode(self, outputMode: str) -> DataStreamWriter:
        """append, update or complete."""
        check_type(outputMode, str, "outputMode", "a text")
        if outputMode.lower() not in MODES:
            raise InvalidOption(
                f"there is no output mode {outputMode!r}; known: {', '.join(MODES)}"
            )
        self._mode = outputMode.lower()
        return self

    def queryName(self, queryName: str) -> DataStreamWriter:
        """The name under which the query is stored, and found again after a restart."""
        self._name = check_name(queryName, "query")
        return self

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """Set an option; names are not case-sensitive."""
        check_type(key, str, "the name of an option", "a text")
        check_type(
            value, (str, int, float, bool, os.PathLike), f"option {key}", "a text or a number"
        )
        self._options.add(key, str(value))
        return self

    def options(self, **options: Any) -> DataStreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        **others: Any,
    ) -> DataStreamWriter:
        """processingTime: one commit, and one batch, per interval. availableNow: drain and stop."""
        if processingTime is not None:
            check_type(processingTime, str, "processingTime", "a text such as '5 seconds'")
        if availableNow is not None:
            check_type(availableNow, bool, "availableNow", "True")
        given = [t for t in (processingTime, availableNow, *others.values()) if t]
        if len(given) != 1:
            raise InvalidOption("a trigger has exactly one argument")
        if others:
            raise InvalidOption(
                f"trigger({next(iter(others))}=...) is not supported: use processingTime or "
                "availableNow=True"
            )
        self._trigger_ms = None if processingTime is None else _trigger_ms(processingTime)
        self._available_now = bool(availableNow)
        return self

    def format(self, source: str) -> DataStreamWriter:
        """penstock (a stream of the log), parquet, sqlite, console or memory."""
        if source not in tuple(FORMATS):
            raise InvalidOption(
                f"there is no sink {source!r}; known: {', '.join(FORMATS)}, and foreachBatch"
            )
        self._format = source
        return self

    def toStream(self, name: str) -> DataStreamWriter:
        """Write to a stream of the log; call `start()` next."""
        self._format = "penstock"
        self._stream = check_name(name, "stream")
        return self

    def foreachBatch(self, func: ForeachBatch) -> DataStreamWriter:
        """Call a function with the rows of each epoch as a DataFrame, and the epoch's number."""
        if not callable(func):
            raise InvalidOption(f"foreachBatch needs a function, not {type(func).__name__}")
        self._function = func
        return self

    def foreach(self, f: Any) -> DataStreamWriter:
        """Not offered: rows one by one have no guarantee that an epoch could carry."""
        raise InvalidOption(
            "foreach is not supported: use foreachBatch(f), which gets the rows of an epoch as a "
            "DataFrame, or run the query with df.writeStream"
        )

    def partitionBy(self, *cols: str) -> DataStreamWriter:
        """Not offered: an epoch is one file."""
        raise InvalidOption(
            "partitionBy is not supported: an epoch is one file of the parquet sink. Write the "
            "partitions yourself in foreachBatch, or run the query with df.writeStream"
        )

    def toTable(self, tableName: str, **others: Any) -> StreamingQuery:
        """Not offered: the log's streams take the place of tables."""
        raise InvalidOption(
            "toTable is not supported: use toStream(name), which spark.read.format('penstock') "
            "reads, or append to the table in foreachBatch"
        )

    def explain(self) -> None:
        """Print what would run, and what a stored query of this name would keep."""
        attached = attached_log(self._df.sparkSession)
        name, results = self._results(attached.log)
        program, _ = self._planned(attached, name, results)
        stored = stored_query(attached.log, name)
        if stored is not None:
            print(compare(stored.program, program))
            if (refusal := _refusal(results, stored)) is not None:
                print(f"  sink refused: {refusal}")
        print(_explanation(attached, program, results))

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
        attached = attached_log(self._df.sparkSession)
        name, results = self._results(attached.log)
        program, sides = self._planned(attached, name, results)
        sinks = tuple(result.sink for result in results)
        request = Request(program, sinks, dict(self._options.values), self._available_now)
        if (running := _running_already(attached.path, name, request)) is not None:
            return running
        guard = _lock_query(attached.path, name)
        try:
            wish = self._slot_wish(program, sinks)
            standbys = grant_standbys(attached.spark.sparkContext, wish)
            stored = self._compared(attached.log, name, program, results)
            statics = self._static_tables(attached, program, sides)
            slots = (wish.slots, standbys)
            return self._run(attached, stored, request, results, slots, guard, statics)
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

    def _query_name(self, log: Log, sink: SinkChoice) -> str:
        """The name that was given, or that of the query which the location or the id belongs to."""
        location = self._options[writer_options.CHECKPOINT_LOCATION]
        known: dict[str, StoredQuery] = {}
        if (query_id := self._options[writer_options.QUERY_ID]) is not None:
            known[f"queryId {query_id}"] = query_with_id(log, query_id)
        if location is not None:
            _refuse_spark_checkpoint(location)
            if (there := query_at(log, location)) is not None:
                known[f"checkpointLocation {location!r}"] = there
        name = self._name or next((stored.name for stored in known.values()), None)
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
        if location is None:
            return sink.query_name()
        words = re.sub(r"[^A-Za-z0-9_]", "_", Path(location).name)[:20]
        return f"{words}_{hashlib.sha256(location.encode()).hexdigest()[:12]}"

    def _results(self, log: Log) -> tuple[str, tuple[Result, ...]]:
        """The query's name, and what it writes where, before anything is planned or made."""
        if self._writers != (self,) and (own := [*self._set_for_one()]):
            raise InvalidOption(
                f"{', '.join(own)} would be for one of several results: set it on its own writer"
            )
        sinks = [writer._sink(self._name) for writer in self._writers]
        name = self._query_name(log, sinks[0])
        streams = _streams_of(name, sinks, stored_query(log, name))
        _check_apart(name, sinks)
        return name, tuple(map(Result, self._writers, sinks, streams))

    def _sink(self, name: str | None) -> SinkChoice:
        """The sink that was asked for, complete, before anything is planned, stored or made."""
        chosen = FORMATS[self._format] if self._function is None else ForeachBatchChoice
        sink = chosen.of(Asked(self._options, name, self._stream, self._function, self._mode))
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
        if self._available_now or self._trigger_ms is not None:
            yield "trigger"

    def _set_for_one(self) -> Iterator[str]:
        """What is set here that each result has for itself."""
        if self._function is not None or self._format != "penstock" or self._stream is not None:
            yield "a sink"
        if self._mode != "append":
            yield "outputMode"
        yield from (f"option {name}" for name in self._options.values if name in _OF_SINKS)

    def _settings(self) -> Settings:
        given = self._options.arguments()
        return Settings(
            available_now=self._available_now, trigger_interval_ms=self._trigger_ms, **given
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
        attached: Attached,
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
        spark, log, program = attached.spark, attached.log, stored.program
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
                query_id=stored.id,
                name=stored.name,
                request=request,
                log=log,
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
        STARTED.add(attached.path, started)
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
        if self._trigger_ms is not None:
            writers = [v for v in program.vertices if set(v.marker_tags) & set(facts.tags)]
            trigger = Trigger(self._trigger_ms * 1_000, len(writers))
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
        raise InvalidOption("this DataFrame is not a streaming one: build it from spark.readStream")
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


def _refuse_spark_checkpoint(location: str) -> None:
    """A folder in which Structured Streaming keeps a query's progress means nothing here."""
    folder = Path(location)
    if (folder / "metadata").is_file() and (folder / "offsets").is_dir():
        raise QueryMismatch(
            f"checkpointLocation {location!r} holds the checkpoint of a Structured Streaming "
            "query, which cannot be continued here: give this query one of its own; it starts "
            "from the beginning of its input",
            location=location,
        )
