"""Starting a planned query: its lock, its slots, its sinks and its run."""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.api import writer_options
from penstock.api.launcher import (
    DriverLauncher,
    SparkLauncher,
    has_slots_here,
    prepare_kernels,
)
from penstock.api.observed import Observed
from penstock.api.places import Place
from penstock.api.query import Request, StreamingQuery
from penstock.api.registry import STARTED
from penstock.api.results import Result, explain_results
from penstock.api.session import Attached
from penstock.api.session_sinks import ForeachBatchSink
from penstock.api.sink_runner import SinkRunner, Trigger
from penstock.api.sinks import SparkChoice
from penstock.api.spark_ends import Feeding, SparkSinkRunner
from penstock.api.start_after import start_after
from penstock.api.static_sides import StaticTables
from penstock.api.task_slots import SlotWish, control_host, grant_standbys
from penstock.api.triggers import Timing
from penstock.catalyst.by_spark import SparkExpressions
from penstock.catalyst.evaluator import DriverSpark
from penstock.catalyst.fed_sources import FedSource
from penstock.catalyst.observed import Observation
from penstock.catalyst.python_functions import PythonBundle
from penstock.catalyst.static_sides import StaticSide
from penstock.connectors.contract import Sink
from penstock.connectors.hidden_files import FilesKind
from penstock.errors import LogReadOnly, QueryActive
from penstock.options import Options
from penstock.runtime.backlog import sink_of
from penstock.runtime.job import Job
from penstock.runtime.placement import Patience
from penstock.runtime.queries import RunState, StoredQuery, begin_run, lock_path, note_run
from penstock.runtime.streams import describe_stream, stream_for
from penstock.stages.program import Program

logger = logging.getLogger(__name__)


class Planned(NamedTuple):
    """What is to run, and what goes along with the program."""

    program: Program
    sides: tuple[StaticSide, ...]  # that Spark computes before
    spark: SparkExpressions  # that it computes for each row
    python: PythonBundle  # functions, for slots
    observed: tuple[Observation, ...] = ()  # of its rows, for its progress
    fed: tuple[FedSource, ...] = ()  # what it reads for the query

    @property
    def fed_texts(self) -> dict[str, str]:
        """By stream that Spark brings in: what source it is."""
        return {source.stream: source.text for source in self.fed}


class Start:
    """One start of a query, as its options say."""

    def __init__(
        self,
        place: Place,
        planned: Planned,
        results: Sequence[Result],
        options: Options,
        timing: Timing,
    ) -> None:
        """Raises TooFewSlots where Spark has no room for it."""
        self._place = place
        self._planned = planned
        self._results = results
        self._options = options
        self._timing = timing
        wish = self._slot_wish()
        self._slots = wish.slots
        self._standbys = grant_standbys(place.attached.spark.sparkContext, wish)

    def run(
        self, stored: StoredQuery, request: Request, name: str | None, guard: int
    ) -> StreamingQuery:
        """Open the sinks, store the query and run it; `guard` is the lock, which goes with it.

        In this order: what cannot run leaves the stored query as it is. One number of the run is
        for all of it, the sink and the vertices, so of two runs one has both.
        """
        attached, program = self._place.attached, stored.program
        spark, log = attached.spark, attached.log
        statics = self._static_tables(attached)
        opened = [result.open(spark, stored) for result in self._results]
        for source in self._planned.fed:
            stream_for(log, source.stream, source.schema, program.stream(source.stream).substreams)
        old = self._options[writer_options.START_AFTER]
        start_after(log, program, self._planned.fed, old)
        numbers = begin_run(log, stored)
        statics.write(numbers.run)
        folder = attached.path
        feeding = Feeding(spark, log, folder, stored.name, self._planned.fed, self._timing)
        runners = tuple(
            (result.sink, self._runner(stored, result, sink, numbers.run))
            for result, sink in zip(self._results, opened, strict=True)
            if sink is not None or result.sink.is_by_spark
        )
        asked = self._planned.observed
        observed = Observed(log, program, asked, numbers.run) if asked else None
        run = uuid.uuid4().hex[:12]  # two logs may have queries of one name in one session
        launcher = SparkLauncher(
            spark,
            f"penstock-{stored.name}-{run}",
            f"penstock {stored.name} slot",
            self._planned.python,
        )
        computed = self._planned.spark
        job = Job(
            program,
            log,
            launcher,
            host=control_host(spark),
            slots=self._slots,
            standbys=self._standbys,
            numbers=numbers,
            patience=self._patience(),
            kernels=attached.kernels,
            driver=DriverLauncher(DriverSpark(spark, computed)) if computed else None,
            files=self._files_of_slots(opened),
        )
        try:
            note_run(log, stored.name, numbers.run, RunState.RUNNING)
            feeding.start()
            if not feeding.comes_first:
                job.start()
            prepare_kernels(spark.sparkContext, attached.kernels, program)
            for _, runner in runners:
                runner.start()
            started = StreamingQuery(
                stored=stored,
                name=name,
                request=request,
                place=self._place,
                job=job,
                runners=runners,
                feeding=feeding,
                statics=statics,
                observed=observed,
                explanation=partial(explain_results, log, program, self._results, stored.fed),
                on_stop=lambda: os.close(guard),
            )
        except BaseException:
            feeding.stop()
            for _, runner in runners:
                runner.abandon()
            job.stop()
            raise
        STARTED.add(started)
        return started

    def _files_of_slots(self, opened: Sequence[Sink | None]) -> dict[str, FilesKind]:
        """By stream: files that slots may write themselves, since they are on the sink's machine.

        Not where a trigger makes one batch of what several vertices commit, nor where what a vertex
        commits may be taken back.
        """
        context = self._place.attached.spark.sparkContext
        is_apart = self._timing.interval_ms is None and self._planned.program.settings.recovers
        if not is_apart or not has_slots_here(context):
            return {}
        return {
            result.stream: sink.files
            for result, sink in zip(self._results, opened, strict=True)
            if sink is not None and sink.files is not None and not result.replaces
        }

    def _static_tables(self, attached: Attached) -> StaticTables:
        """Static sides, computed while all task slots are still Spark's."""
        bytes_max = self._options[writer_options.STATIC_BYTES_MAX]
        program, sides = self._planned.program, self._planned.sides
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

    def _slot_wish(self) -> SlotWish:
        """How many slots are to work, and how many to wait to take over."""
        options, program = self._options, self._planned.program
        vertices = sum(not program.is_on_driver(vertex) for vertex in program.vertices)
        return SlotWish(
            slots=min(
                options[writer_options.SLOTS] or options[writer_options.PARALLELISM], vertices
            ),
            standbys=options[writer_options.STANDBY_SLOTS] if vertices else 0,
            must_have_standbys=writer_options.STANDBY_SLOTS in options,
            runs_jobs=bool(self._planned.fed)
            or any(result.sink.runs_jobs for result in self._results),
        )

    def _runner(
        self, stored: StoredQuery, result: Result, sink: Sink | None, run: int
    ) -> SinkRunner | SparkSinkRunner:
        attached = self._place.attached
        log = attached.log
        if sink is None:
            assert isinstance(result.sink, SparkChoice)
            of_query = (stored.name, result.stream, result.sink, run)
            return SparkSinkRunner(attached.spark, log, attached.path, *of_query)
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
            is_portioned=program.is_portioned and isinstance(sink, ForeachBatchSink),
        )


def running_already(folder: Path, name: str, request: Request) -> StreamingQuery | None:
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


def lock_query(folder: Path, name: str) -> int:
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
