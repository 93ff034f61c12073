"""Starting a query: the look-alike of PySpark's DataStreamWriter."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from penstock.api.datasource_options import Options
from penstock.api.guarantees import FOREACH_BATCH, explain_with_sink
from penstock.api.launcher import SparkLauncher
from penstock.api.query import StreamingQuery
from penstock.api.session import Attached, attached_log, note_started
from penstock.api.sinks import (
    ConsoleDelivery,
    Delivery,
    ForeachBatch,
    ForeachBatchDelivery,
    MemoryDelivery,
    ParquetDelivery,
    SinkRunner,
)
from penstock.api.task_slots import check_task_slots, control_host
from penstock.catalyst.relations import ScanOrigin
from penstock.catalyst.translate import translate
from penstock.errors import (
    InvalidOption,
    LogReadOnly,
    PlanError,
    ProgramIncompatible,
    QueryActive,
    QueryMismatch,
    StreamNotFound,
)
from penstock.expressions.types import arrow_schema
from penstock.log.contract import Log
from penstock.names import NAME_MAX, check_name
from penstock.plan.build import Rows, query
from penstock.plan.durations import parse_duration
from penstock.plan.optimizer import plan_program
from penstock.runtime.job import Job
from penstock.runtime.placement import Patience, task_slots_needed
from penstock.runtime.queries import (
    StoredQuery,
    lock_path,
    query_at,
    query_with_id,
    stored_query,
)
from penstock.runtime.streams import describe_stream, register_streams
from penstock.stages.compare import compare
from penstock.stages.program import Program, sink_stream
from penstock.stages.settings import Settings

FORMATS = ("penstock", "parquet", "console", "memory")
OUTPUT_MODES = ("append", "update", "complete")

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"it is a whole number from {least} on")
        return number

    return read


def _location(text: str) -> str:
    """A name for a query: the same for all ways to write a path of this machine."""
    if text.startswith("file:"):
        return os.path.abspath(unquote(urlparse(text).path))
    return text if _ADDRESS.match(text) else os.path.abspath(text)


def _local_folder(text: str) -> str:
    folder = _location(text)
    if not os.path.isabs(folder):
        raise ValueError("files are written to folders of this machine; elsewhere in foreachBatch")
    return folder


def _truncation(text: str) -> bool | int:
    return int(text) if text.isdecimal() else text.lower() != "false"


# Options of ours: how each one's text becomes a value.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "checkpointlocation": _location,
    "queryid": str,
    "commitinterval": parse_duration,
    "parallelism": _count(1),
    "slots": _count(1),
    "standbyslots": _count(0),
    "starttimeout": parse_duration,
    "steptimeout": parse_duration,
    "latestream": str,
    "deadletterstream": str,
    "idletimeout": parse_duration,
    "checkpointinterval": int,
    "statebytesmax": int,
    "steprowsmax": int,
    "numrows": _count(0),
    "truncate": _truncation,
    "path": _local_folder,
    "stream": str,
}


class StreamWriter:
    """Collects what a query should do; `start()` runs it. Every method returns the writer."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._format = "penstock"
        self._mode = "append"
        self._name: str | None = None
        self._stream: str | None = None
        self._function: ForeachBatch | None = None
        self._options: dict[str, Any] = {}
        self._available_now = False

    def outputMode(self, outputMode: str) -> StreamWriter:
        """append, update or complete."""
        if outputMode.lower() not in OUTPUT_MODES:
            raise InvalidOption(
                f"there is no output mode {outputMode!r}; known: {', '.join(OUTPUT_MODES)}"
            )
        self._mode = outputMode.lower()
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        """The name under which the query is stored, and found again after a restart."""
        self._name = check_name(queryName, "query")
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option; names are not case-sensitive."""
        name = key.lower()
        if name not in _OPTIONS:
            known = "checkpointLocation, queryId, commitInterval, parallelism, slots, "
            known += "standbySlots, startTimeout, stepTimeout, lateStream, deadLetterStream, "
            known += "idleTimeout, checkpointInterval, stateBytesMax, stepRowsMax, numRows, "
            known += "truncate, path, stream"
            raise InvalidOption(f"there is no option {key!r}; known: {known}", option=key)
        try:
            self._options[name] = _OPTIONS[name](str(value))
        except (ValueError, TypeError, PlanError) as error:
            raise InvalidOption(
                f"option {key} cannot be {value!r}: {error}", option=key, value=str(value)[:200]
            ) from error
        return self

    def options(self, **options: Any) -> StreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        **others: Any,
    ) -> StreamWriter:
        """processingTime: the longest time between commits. availableNow: drain and stop."""
        given = [t for t in (processingTime, availableNow, *others.values()) if t]
        if len(given) != 1:
            raise InvalidOption("a trigger has exactly one argument")
        if others:
            raise InvalidOption(
                f"trigger({next(iter(others))}=...) is not supported: use processingTime or "
                "availableNow=True"
            )
        if processingTime is not None:
            self.option("commitInterval", processingTime)
        self._available_now = bool(availableNow)
        return self

    def format(self, source: str) -> StreamWriter:
        """penstock (a stream of the log), parquet, console or memory."""
        if source not in FORMATS:
            raise InvalidOption(
                f"there is no sink {source!r}; known: {', '.join(FORMATS)}, and foreachBatch"
            )
        self._format = source
        return self

    def toStream(self, name: str) -> StreamWriter:
        """Write to a stream of the log; call `start()` next."""
        self._format = "penstock"
        self._stream = check_name(name, "stream")
        return self

    def foreachBatch(self, func: ForeachBatch) -> StreamWriter:
        """Call a function with the rows of each epoch as a DataFrame, and the epoch's number."""
        if not callable(func):
            raise InvalidOption(f"foreachBatch needs a function, not {type(func).__name__}")
        self._function = func
        return self

    def foreach(self, f: Any) -> StreamWriter:
        """Not offered: rows one by one have no guarantee that an epoch could carry."""
        raise InvalidOption(
            "foreach is not supported: use foreachBatch(f), which gets the rows of an epoch as a "
            "DataFrame, or run the query with df.writeStream"
        )

    def partitionBy(self, *cols: str) -> StreamWriter:
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
        self._check_sink()
        name = self._query_name(attached.log)
        program = self._program(attached, name)
        stored = stored_query(attached.log, name)
        if stored is not None:
            print(compare(stored.program, program))
            if (refusal := self._sink_refusal(stored)) is not None:
                print(f"  sink refused: {refusal}")
        print(self._explanation(attached, program))

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
        self._check_sink()
        name = self._query_name(attached.log)
        program = self._program(attached, name)
        guard = _lock_query(attached.path, name)
        try:
            check_task_slots(attached.spark, task_slots_needed(program, *self._slots(program)))
            stored = self._store(attached.log, name, program)
            return self._run(attached, stored, guard)
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

    def _query_name(self, log: Log) -> str:
        """The name that was given, or that of the query which the location or the id belongs to."""
        location = self._options.get("checkpointlocation")
        known: dict[str, StoredQuery] = {}
        if (query_id := self._options.get("queryid")) is not None:
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
        return name or self._new_name(location)

    def _new_name(self, location: str | None) -> str:
        if location is not None:
            words = re.sub(r"[^A-Za-z0-9_]", "_", Path(location).name)[:20]
            return f"{words}_{hashlib.sha256(location.encode()).hexdigest()[:12]}"
        if self._sink_kind() == "penstock":
            return f"to_{self._output_stream('')}"[:NAME_MAX]
        return f"query_{uuid.uuid4().hex[:12]}"

    def _sink_kind(self) -> str:
        return FOREACH_BATCH if self._function is not None else self._format

    def _check_sink(self) -> None:
        """Refuse what a sink cannot do before anything is planned, stored or made."""
        kind = self._sink_kind()
        if kind == "parquet" and "path" not in self._options:
            raise InvalidOption("the parquet sink needs a folder: start('path')")
        if kind == "memory" and self._name is None:
            raise InvalidOption("the memory sink needs a queryName: it names the view")
        if kind == "penstock":
            self._output_stream("")
        elif self._stream is not None:
            raise InvalidOption(
                f"a query has one sink, and both toStream({self._stream!r}) and {kind} were asked "
                f"for: start two queries, or let the second one read stream {self._stream!r}"
            )

    def _output_stream(self, name: str) -> str:
        if self._sink_kind() == "penstock":
            stream = self._stream or self._options.get("stream")
            if stream is None:
                raise InvalidOption("name the output stream: toStream('name')")
            return check_name(stream, "stream")
        return sink_stream(name)

    def _program(self, attached: Attached, name: str) -> Program:
        unknown: list[StreamNotFound] = []

        def substreams(stream: str) -> int:
            try:
                return describe_stream(attached.log, stream).substreams
            except StreamNotFound as error:
                unknown.append(error)  # told below, unless the stream is meant to be elsewhere
                return 1

        translated = translate(self._df, output_mode=self._mode, query=name, substreams=substreams)
        for scan in translated.scans:
            _check_same_log(scan, attached.path)
        if unknown:
            raise unknown[0]
        write = Rows(translated.relation).to_stream(self._output_stream(name))
        parallelism = self._options.get("parallelism", 1)
        return plan_program(query(name, write, parallelism=parallelism, settings=self._settings()))

    def _settings(self) -> Settings:
        given: dict[str, Any] = {}
        for option, setting, scale in (
            ("commitinterval", "commit_interval_ms", 1_000),
            ("idletimeout", "idle_timeout_ms", 1_000),
            ("checkpointinterval", "checkpoint_interval_commits", 1),
            ("statebytesmax", "state_bytes_max", 1),
            ("steprowsmax", "step_rows_max", 1),
        ):
            if option in self._options:
                given[setting] = self._options[option] // scale
        for option, setting in (
            ("latestream", "late_stream"),
            ("deadletterstream", "dead_letter_stream"),
        ):
            if option in self._options:
                given[setting] = self._options[option]
        return replace(Settings(), **given)

    def _store(self, log: Log, name: str, program: Program) -> StoredQuery:
        """Store the query, or check it against the stored one and keep that one's id.

        It is stored last: a query that cannot run leaves the stored one as it is.
        """
        location = self._options.get("checkpointlocation")
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
            if (refusal := self._sink_refusal(before)) is not None:
                raise ProgramIncompatible(
                    f"query {name} cannot go on with another sink: {refusal}. Start it under a new "
                    "name, or with the stored sink",
                    query=name,
                    sink=before.sink,
                )
            query_id, location = before.id, location or before.location
        output, sink = self._output_stream(name), self._sink_text(name)
        stored = StoredQuery(query_id, name, program, output, location, sink)
        register_streams(log, program)
        log.put(f"query/{name}", stored.encode())
        return stored

    def _sink_refusal(self, stored: StoredQuery) -> str | None:
        """Why the sink cannot take the place of the stored one; None if it is the same."""
        sink = self._sink_text(stored.name)
        if stored.sink in (None, sink):
            return None
        return f"it was {stored.sink} and is {sink}, which lacks what the first one was given"

    # Running ----------------------------------------------------------------------------------

    def _run(self, attached: Attached, stored: StoredQuery, guard: int) -> StreamingQuery:
        spark, program = attached.spark, stored.program
        slots, standbys = self._slots(program)
        runner = self._runner(attached, stored)
        run = uuid.uuid4().hex[:12]  # two logs may have queries of one name in one session
        launcher = SparkLauncher(
            spark, f"penstock-{stored.name}-{run}", f"penstock {stored.name} slot"
        )
        job = Job(
            program,
            attached.log,
            launcher,
            host=control_host(spark),
            slots=slots,
            standbys=standbys,
            patience=self._patience(),
            kernels=attached.kernels,
        )
        job.start()
        if runner is not None:
            runner.start()
        started = StreamingQuery(
            query_id=stored.id,
            name=stored.name,
            program=program,
            log=attached.log,
            job=job,
            sink=runner,
            sink_text=self._sink_text(stored.name),
            explanation=self._explanation(attached, program),
            on_stop=lambda: os.close(guard),
            available_now=self._available_now,
        )
        note_started(spark, started)
        return started

    def _patience(self) -> Patience:
        given = Patience()
        if (start_us := self._options.get("starttimeout")) is not None:
            given = replace(given, start_s=start_us / 1e6)
        if (step_us := self._options.get("steptimeout")) is not None:
            given = replace(given, step_s=step_us / 1e6, recovery_s=10 * step_us / 1e6)
        return given

    def _slots(self, program: Program) -> tuple[int, int]:
        """How many slots work, and how many wait to take over."""
        slots = self._options.get("slots", self._options.get("parallelism", 1))
        return min(slots, len(program.vertices)), self._options.get("standbyslots", 1)

    def _delivery(self, attached: Attached, stored: StoredQuery) -> Delivery | None:
        spark, kind = attached.spark, self._sink_kind()
        if self._function is not None:
            return ForeachBatchDelivery(spark, self._function)
        if kind == "parquet":
            vertices = [vertex.name for vertex in stored.program.vertices]
            return ParquetDelivery(self._options["path"], stored.name, stored.id, vertices)
        if kind == "console":
            rows = self._options.get("numrows", 20)
            return ConsoleDelivery(spark, rows, self._options.get("truncate", True))
        if kind == "memory":
            schema = arrow_schema(stored.program.stream(stored.output).schema)
            return MemoryDelivery(spark, stored.name, schema, self._mode == "complete")
        return None

    def _runner(self, attached: Attached, stored: StoredQuery) -> SinkRunner | None:
        delivery = self._delivery(attached, stored)
        if delivery is None:
            return None
        facts = describe_stream(attached.log, stored.output)
        return SinkRunner(
            attached.log,
            stored.name,
            facts.tags,
            facts.schema,
            delivery,
            from_start=isinstance(delivery, MemoryDelivery),
        )

    def _sink_text(self, name: str) -> str:
        kind = self._sink_kind()
        if kind == "penstock":
            return f"stream {self._output_stream(name)}"
        where = {"parquet": self._options.get("path"), "memory": name}.get(kind)
        return kind if where is None else f"{kind} {where}"

    def _explanation(self, attached: Attached, program: Program) -> str:
        sink = self._sink_text(program.query)
        return explain_with_sink(program, attached.log.durability, sink)


def writeStream(df: DataFrame) -> StreamWriter:
    """Run a streaming DataFrame on Penstock; takes the place of `df.writeStream`."""
    if not getattr(df, "isStreaming", False):
        raise InvalidOption("this DataFrame is not a streaming one: build it from spark.readStream")
    return StreamWriter(df)


def _lock_query(folder: Path, name: str) -> int:
    """Hold a file lock while a query runs: two drivers on one machine never run the same one."""
    path = lock_path(folder, name)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


def _check_same_log(scan: ScanOrigin, attached: Path) -> None:
    """A query reads the log that it writes to: its positions and markers are in one order."""
    path = {name.lower(): value for name, value in scan.options}.get("path")
    if scan.stream is None or path is None:
        return
    folder = Path(Options("penstock", {"path": path}).folder("path", None))
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
