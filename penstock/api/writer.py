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

from pyspark.sql import DataFrame

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
from penstock.catalyst.translate import translate
from penstock.errors import InvalidOption, QueryActive, QueryMismatch, TooFewSlots
from penstock.expressions.types import arrow_schema
from penstock.kernels.support import numba_supported
from penstock.log.contract import Log
from penstock.names import check_name
from penstock.plan.build import Rows, query
from penstock.plan.durations import parse_duration
from penstock.plan.explain import explain
from penstock.plan.optimizer import plan_program
from penstock.runtime.job import Job, task_slots_needed
from penstock.runtime.queries import StoredQuery, lock_path, stored_query
from penstock.runtime.streams import describe_stream, register_streams
from penstock.stages.compare import compare
from penstock.stages.program import QUERY_NAME_MAX, Program
from penstock.stages.settings import Settings

FORMATS = ("penstock", "parquet", "console", "memory")
OUTPUT_MODES = ("append", "update", "complete")
START_TIMEOUT_S = 120.0

# Options of ours: how each one's text becomes a value.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "checkpointlocation": str,
    "commitinterval": parse_duration,
    "parallelism": int,
    "slots": int,
    "standbyslots": int,
    "latestream": str,
    "deadletterstream": str,
    "idletimeout": parse_duration,
    "checkpointinterval": int,
    "statebytesmax": int,
    "numrows": int,
    "truncate": lambda text: text.lower() != "false",
    "path": str,
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
            known = "checkpointLocation, commitInterval, parallelism, slots, standbySlots, "
            known += "lateStream, deadLetterStream, idleTimeout, checkpointInterval, "
            known += "stateBytesMax, numRows, truncate, path, stream"
            raise InvalidOption(f"there is no option {key!r}; known: {known}", option=key)
        try:
            self._options[name] = _OPTIONS[name](str(value))
        except (ValueError, TypeError) as error:
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
        self._function = func
        return self

    def explain(self) -> None:
        """Print what would run, and what a stored query of this name would keep."""
        attached = attached_log(self._df.sparkSession)
        name = self._query_name()
        program = self._program(attached, name)
        stored = stored_query(attached.log, name)
        if stored is not None:
            print(compare(stored.program, program))
        print(self._explanation(attached, program, self._delivery(attached, name, None)))

    def start(self, path: str | None = None) -> StreamingQuery:
        """Check, plan, store and run the query."""
        if path is not None:
            self._options["path"] = path
        attached = attached_log(self._df.sparkSession)
        name = self._query_name()
        program = self._program(attached, name)
        guard = _lock_query(attached.path, name)
        try:
            stored = self._store(attached.log, name, program)
            return self._run(attached, stored, guard)
        except BaseException:
            os.close(guard)
            raise

    # Planning ---------------------------------------------------------------------------------

    def _query_name(self) -> str:
        if self._name is not None:
            return self._name
        location = self._options.get("checkpointlocation")
        if location is not None:
            words = re.sub(r"[^A-Za-z0-9_]", "_", Path(location).name)[:20]
            digest = hashlib.sha256(os.path.abspath(location).encode()).hexdigest()[:12]
            return f"{words}_{digest}"
        if self._stream is not None or "stream" in self._options:
            return f"to_{self._output_stream('')}"[:QUERY_NAME_MAX]
        return f"query_{uuid.uuid4().hex[:12]}"

    def _output_stream(self, name: str) -> str:
        if self._function is None and self._format == "penstock":
            stream = self._stream or self._options.get("stream")
            if stream is None:
                raise InvalidOption("name the output stream: toStream('name')")
            return check_name(stream, "stream")
        return f"{name}_out"

    def _program(self, attached: Attached, name: str) -> Program:
        translated = translate(
            self._df,
            output_mode=self._mode,
            query=name,
            substreams=lambda stream: describe_stream(attached.log, stream).substreams,
        )
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
        """Store the query, or check it against the stored one and keep that one's id."""
        location = self._options.get("checkpointlocation")
        before = stored_query(log, name)
        if before is not None:
            if location is not None and before.location not in (None, location):
                raise QueryMismatch(
                    f"query {name!r} belongs to checkpointLocation {before.location!r}, not to "
                    f"{location!r}: choose another name, or use that location",
                    query=name,
                )
            compare(before.program, program).check()
        query_id = before.id if before is not None else str(uuid.uuid4())
        stored = StoredQuery(query_id, name, program, self._output_stream(name), location)
        log.put(f"query/{name}", stored.encode())
        return stored

    # Running ----------------------------------------------------------------------------------

    def _run(self, attached: Attached, stored: StoredQuery, guard: int) -> StreamingQuery:
        spark, program = attached.spark, stored.program
        wanted = min(
            self._options.get("slots", self._options.get("parallelism", 1)),
            len(program.vertices),
        )
        standbys = self._options.get("standbyslots", 1)
        _check_task_slots(spark, task_slots_needed(program, wanted, standbys))
        register_streams(attached.log, program)
        launcher = SparkLauncher(spark, f"penstock-{stored.name}", f"penstock {stored.name} slot")
        job = Job(
            program,
            str(attached.path),
            launcher,
            host=_control_host(spark),
            slots=wanted,
            standbys=standbys,
        )
        delivery = self._delivery(attached, stored.name, program)
        runner = self._runner(attached, stored, delivery)
        explanation = self._explanation(attached, program, delivery)
        job.start()
        if runner is not None:
            runner.start()
        started = StreamingQuery(
            query_id=stored.id,
            name=stored.name,
            program=program,
            job=job,
            sink=runner,
            sink_text=self._sink_text(stored),
            explanation=explanation,
            on_stop=lambda: os.close(guard),
            available_now=self._available_now,
        )
        note_started(spark, started)
        return started

    def _delivery(self, attached: Attached, name: str, program: Program | None) -> Delivery | None:
        spark = attached.spark
        if self._function is not None:
            return ForeachBatchDelivery(spark, self._function)
        if self._format == "parquet":
            if "path" not in self._options:
                raise InvalidOption("the parquet sink needs a folder: start('path')")
            return ParquetDelivery(self._options["path"], name)
        if self._format == "console":
            rows = self._options.get("numrows", 20)
            return ConsoleDelivery(spark, rows, self._options.get("truncate", True))
        if self._format == "memory" and program is not None:
            if self._name is None:
                raise InvalidOption("the memory sink needs a queryName: it names the view")
            schema = arrow_schema(program.stream(self._output_stream(name)).schema)
            return MemoryDelivery(spark, name, schema, self._mode == "complete")
        return None

    def _runner(
        self, attached: Attached, stored: StoredQuery, delivery: Delivery | None
    ) -> SinkRunner | None:
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

    def _sink_text(self, stored: StoredQuery) -> str:
        if self._function is not None:
            return "foreachBatch"
        if self._format == "penstock":
            return f"stream {stored.output}"
        return f"{self._format} {self._options.get('path', stored.name)}"

    def _explanation(self, attached: Attached, program: Program, delivery: Delivery | None) -> str:
        text = explain(
            program,
            lambda expression, _schema: "numba" if numba_supported(expression) else "arrow",
            attached.log.durability,
        )
        if delivery is not None:
            text += f"\nSink {self._format}: {delivery.guarantee}\n"
        return text


def writeStream(df: DataFrame) -> StreamWriter:
    """Run a streaming DataFrame on Penstock; takes the place of `df.writeStream`."""
    if not getattr(df, "isStreaming", False):
        raise InvalidOption("this DataFrame is not a streaming one: build it from spark.readStream")
    return StreamWriter(df)


def _lock_query(folder: Path, name: str) -> int:
    """Hold a file lock while a query runs: two drivers on one machine never run the same one."""
    path = lock_path(folder, name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


def _control_host(spark: Any) -> str:
    """Where slots find the job: loopback, unless they run on other machines."""
    if spark.sparkContext.master.startswith("local"):
        return "127.0.0.1"
    return str(spark.conf.get("spark.driver.host", "127.0.0.1"))


def _check_task_slots(spark: Any, needed: int) -> None:
    master = spark.sparkContext.master
    available = spark.sparkContext.defaultParallelism
    if master.startswith("local") and available < needed:
        raise TooFewSlots(
            f"this query takes {needed} task slots for as long as it runs, {master} has "
            f"{available}: use local[{needed + 2}] or more (threads, not cores), or set "
            "standbySlots to 0",
            needed=needed,
            available=available,
        )
