"""A running query, as PySpark users know it: the look-alike of `StreamingQuery`."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from penstock.api.observed import Observed
from penstock.api.places import Place
from penstock.api.progress import ProgressLog
from penstock.api.sink_runner import SinkRunner, sink_error
from penstock.api.sinks import SinkChoice
from penstock.api.spark_ends import Feeding, SparkSinkRunner
from penstock.api.spark_errors import check_timeout, query_exception
from penstock.api.static_sides import StaticTables
from penstock.api.streams import LISTENERS, Tell, session_id
from penstock.arguments import check_type
from penstock.clock import SystemClock
from penstock.errors import StreamError
from penstock.runtime.job import Job
from penstock.runtime.queries import RunState, StoredQuery, note_run
from penstock.stages.program import Program

PROGRESS_INTERVAL_S = 1.0
POLL_S = 0.02
WATCH_S = 0.2  # the same for a query that goes on, whose end is told
ENDING_S = 0.005  # the same where only the sinks have something left to do
SINK_STOP_TIMEOUT_S = 30.0  # for rows that are committed; what is under way then has no limit
SINK_GONE_S = 10.0  # the same where Spark is gone, so that what needs it fails or is stuck
STOP_THREAD = "penstock-stop"
STOP_TOLD_S = (2.0, 10.0)  # when a stop that takes long says why: first after, then every

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What a user asked for: two that are the same would run the same."""

    program: Program
    sinks: tuple[SinkChoice, ...]  # of each result
    options: dict[str, Any]
    available_now: bool

    def is_same(self, other: Request) -> bool:
        return (
            self.program == other.program
            and len(self.sinks) == len(other.sinks)
            and all(map(SinkChoice.is_same, self.sinks, other.sinks))
            and (self.options, self.available_now) == (other.options, other.available_now)
        )


class StreamingQuery(SparkQuery):
    """A query that Penstock runs. Every name means what it means in PySpark."""

    def __init__(
        self,
        *,
        stored: StoredQuery,
        name: str | None,
        request: Request,
        place: Place,
        job: Job,
        runners: tuple[tuple[SinkChoice, SinkRunner | SparkSinkRunner], ...],
        feeding: Feeding,
        statics: StaticTables,
        observed: Observed | None,
        explanation: Callable[[], str],
        on_stop: Callable[[], None],
    ) -> None:
        """`name` is what its user calls it; `on_stop` is called when it is over."""
        self._id = stored.id
        self._run_id = str(uuid.uuid4())
        self._name = name
        self.stored_name = stored.name
        self.request = request
        self._program = request.program
        self._place = place
        self._log = place.attached.log
        self._job = job
        self._runners = runners  # of sinks outside the log
        self._feeding = feeding  # of sources that Spark reads
        self._statics = statics
        self._sink_text = ", ".join(sink.text(stored.name) for sink in request.sinks)
        self._explanation = explanation
        self._on_stop = on_stop
        self._clock = SystemClock()
        self.session_id = session_id(place.attached.spark)
        facts = {"id": self._id, "runId": self._run_id, "name": name}
        self._observed = observed
        self._progress = ProgressLog(
            facts, self._program, self._sink_text, self._log, self._clock, observed, stored.fed
        )
        self._error: StreamError | None = None
        self._stop_lock = threading.Lock()
        self._is_stopped = False
        self._waits_for = ""  # while it stops
        self._look_s = POLL_S if request.available_now else WATCH_S
        self._is_ending = False  # with availableNow: only sinks have something left to do
        self._finished = threading.Event()  # stopped, and everything committed is delivered
        self._told = threading.Event()  # its listeners know so too
        self._tell(lambda listener: listener.onQueryStarted(self._progress.started_event()))
        self._watcher = threading.Thread(
            target=self._watch,
            args=(request.available_now,),
            name=f"penstock-{stored.name}",
            daemon=True,
        )
        self._watcher.start()

    @property
    def id(self) -> str:
        """Stable over restarts."""
        return self._id

    @property
    def runId(self) -> str:
        """New with each start."""
        return self._run_id

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """What it was called; None if it was given no name."""
        return self._name

    @property
    def title(self) -> str:
        """Its name, or the one that it is stored under."""
        return self._name or self.stored_name

    @property
    def folder(self) -> Path:
        """Where its log is."""
        return self._place.attached.path

    @property
    def isActive(self) -> bool:
        return not self._finished.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for that is not over."""
        return self._is_stopped and self.isActive

    @property
    def runs_jobs(self) -> bool:
        """Whether an end takes task slots, beside those that the query holds."""
        return bool(self._feeding) or any(sink.runs_jobs for sink in self.request.sinks)

    @property
    def status(self) -> dict[str, Any]:
        running = self._job.vertex_status()
        is_busy = self.isActive and any(not v.get("is_drained", True) for v in running.values())
        if not self.isActive:
            error = self.exception()
            message = "Stopped"
            if error is not None:
                message = f"Terminated with exception: {error.message}"
        elif not running:
            message = "Initializing"
        else:
            message = "Processing new data" if is_busy else "Waiting for data to arrive"
        # As in Spark, not while it waits: programs look there for the end of what was available.
        delivers = not all(runner.is_drained() for _, runner in self._runners)
        return {
            "message": message,
            "isDataAvailable": is_busy,
            "isTriggerActive": self.isActive and (is_busy or not running or delivers),
        }

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        entries = self._progress.entries
        return entries[-1] if entries else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        return self._progress.entries

    @property
    def job(self) -> Job:
        """What runs the query: slots, processes, recoveries."""
        return self._job

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, raise the query's error if any; with a timeout, say whether over.

        Ctrl-C stops the query after a last commit.
        """
        if timeout is not None:
            check_timeout(timeout)
            timeout = min(timeout, threading.TIMEOUT_MAX)
        with _plain_interrupts():
            try:
                over = self._finished.wait(timeout)
            except KeyboardInterrupt:
                self.stop()
                raise
        if over and (error := self.exception()) is not None:
            raise error
        return over if timeout is not None else None

    def processAllAvailable(self) -> None:
        """Wait until everything that is there now has been processed, committed and delivered."""
        self._feeding.process_all()
        while not self._is_quiet() and not self._job.is_over:
            time.sleep(POLL_S)
        has_failed = self._has_sink_failed() or self._feeding.failure() is not None
        if self._job.is_over or has_failed:
            self._finished.wait()
        else:
            self._note_progress()
        if (error := self.exception()) is not None:
            raise error

    def refresh(self) -> Mapping[str, int]:
        """Have Spark compute the static sides that the stream is joined with once more.

        Returns when every vertex goes by the new rows, with the number of each side's version. A
        vertex takes a version with a commit: rows before it meet the old one, also should they be
        processed again, and rows behind it the new one.
        """
        written = self._statics.refresh(lambda: self.isActive)
        if (error := self.exception()) is not None:
            raise error
        return written

    def exception(self) -> StreamError | None:  # type: ignore[override]
        """Why the query ended; None while it runs, and after an end without an error."""
        return self._error

    def explain(self, extended: bool = False) -> None:
        """Print stages, vertices, what is persisted and what is guaranteed."""
        check_type(extended, bool, "extended", "True or False")
        print(self._explanation())
        if extended:
            print(json.dumps(json.loads(self._program.to_json()), indent=1))

    def stop(self) -> None:
        """Commit what has been processed, deliver it and end. Stopping twice is harmless.

        A foreachBatch function that is under way is waited for, however long it takes: until it has
        returned, nobody else may run the query. Only without a Spark session it may be stuck for
        ever, and is not.
        """
        self._begin_end()
        if any(runner.is_current_thread() for _, runner in self._runners):
            return  # a function ends its own query: its epoch counts once it has returned
        if threading.current_thread().name == STOP_THREAD:
            return  # a listener that hears of the end
        first_s, then_s = STOP_TOLD_S
        if not self._finished.wait(first_s):
            self._say_what_is_waited_for()
            while not self._finished.wait(then_s):
                self._say_what_is_waited_for()
        self._told.wait(then_s)

    def stop_within(self, timeout_s: float) -> bool:
        """Stop, and wait for the end at most so long; return whether it has come."""
        self._begin_end()
        if any(runner.is_current_thread() for _, runner in self._runners):
            return False
        return self._finished.wait(timeout_s)

    def __repr__(self) -> str:
        state = "active" if self.isActive else "ended"
        return f"<penstock.StreamingQuery {self.title!r} {state} id={self._id}>"

    def _watch(self, available_now: bool) -> None:
        """Note progress every second, and end the query when its work is done."""
        if self._feeding.comes_first:
            while not self._feeding.is_over() and not self._is_stopped:
                time.sleep(POLL_S)
            with self._stop_lock:
                if not self._is_stopped and self._feeding.failure() is None:
                    self._job.start()
        while not self._is_done(available_now) and not self._is_stopped:
            if self._progress.age_s() >= PROGRESS_INTERVAL_S:
                self._note_progress()
                self._feeding.tidy_if_due()
        self._begin_end()

    def _is_done(self, available_now: bool) -> bool:
        """Wait a moment; whether the input has ended and been delivered, or something failed."""
        if available_now and not self._is_ending:
            over = self._job.wait_through(self._look_s)
        else:
            over = self._job.wait_over(self._look_s)
        if self._has_sink_failed() or self._feeding.failure() is not None:
            return True
        if over:
            if self._job.error is None and not self._is_delivered():
                time.sleep(ENDING_S)  # the job is not waited for any more
                return False
            return True
        if not (available_now and (self._is_ending or self._job.is_through())):
            return False
        if not self._is_ending:
            self._is_ending, self._look_s = True, ENDING_S
            self._job.begin_stop()  # its slots end while the sinks get the last rows
        return self._is_delivered()

    def _has_sink_failed(self) -> bool:
        return any(runner.failure is not None for _, runner in self._runners)

    def _is_delivered(self) -> bool:
        """Whether sinks have all that is committed; what waits for more to come need not wait."""
        for _, runner in self._runners:
            runner.hurry()
        return all(runner.is_drained() for _, runner in self._runners)

    def _note_progress(self) -> None:
        try:
            lags = [runner.lag() for _, runner in self._runners]
            lag = max(lags, key=lambda lag: lag.seconds, default=None)
            event = self._progress.note(self._job, lag)
        except StreamError:  # whatever is wrong with the log, the vertices will meet it too
            logger.warning("the progress of query %s cannot be told", self.title, exc_info=True)
            return
        if isinstance(event, QueryProgressEvent):
            self._tell(lambda listener: listener.onQueryProgress(event))
            self._note_told()
        elif event is not None:
            self._tell(lambda listener: listener.onQueryIdle(event))

    def _note_told(self) -> None:
        if self._observed is not None:
            try:
                self._observed.told()
            except StreamError as error:
                logger.warning(
                    "what query %s has observed may be told again: %s", self.title, error.message
                )

    def _tell(self, tell: Tell) -> None:
        LISTENERS.tell(self.session_id, tell)

    def _begin_end(self) -> None:
        with self._stop_lock:
            first, self._is_stopped = not self._is_stopped, True
        if first:
            threading.Thread(target=self._end, name=STOP_THREAD, daemon=True).start()

    def _end(self) -> None:
        try:
            gone = self._job.session_error()  # asked first: what fails next fails because of it
            unfed = self._feeding.failure()
            self._waits_for = "Structured Streaming to stop reading its sources"
            self._feeding.stop()
            self._waits_for = "its slots to commit and end"
            self._job.stop()
            for _, runner in self._runners:
                runner.stop()
            stuck = None
            for sink, runner in self._runners:
                self._waits_for = f"the sink {sink.text(self.stored_name)}"
                stuck = self._wait_delivered(sink, runner) or stuck
            if unfed is not None:
                unfed = gone or unfed
            if (error := self._job.error or self._sink_error(gone) or unfed or stuck) is not None:
                self._error = query_exception(error, id=self._id, runId=self._run_id)
            self._note_progress()
            self._note_end()
            self._keep_explanation()
        finally:
            self._on_stop()
            self._place.release()
            self._finished.set()
            ended = self._progress.terminated_event(self._error)
            self._tell(lambda listener: listener.onQueryTerminated(ended))
            self._told.set()

    def _wait_delivered(
        self, sink: SinkChoice, runner: SinkRunner | SparkSinkRunner
    ) -> StreamError | None:
        """Wait until a sink has ended; the error of one that never will, since Spark is gone.

        A job that comes while a session stops is one that Spark never begins nor refuses, and who
        waits for it waits for ever. So a function is left alone with it, and its batch, which is
        not noted as done, is the first of the next start.
        """
        gone = self._job.session_error()
        while not runner.wait_ended(SINK_GONE_S if gone else SINK_STOP_TIMEOUT_S):
            runner.abandon()  # what is not under way by now is for the next start
            if gone is not None and sink.runs_jobs:
                logger.warning(
                    "query %s ends, and %s is left in %s, from which it does not come back",
                    self.title, sink.blamed(self.stored_name), runner.under_way(),
                )  # fmt: skip
                return gone
            gone = self._job.session_error()
        return None

    def _keep_explanation(self) -> None:
        """What `explain` says, while there is a log to ask: one of its own is closed next."""
        try:
            text = self._explanation()
        except StreamError as error:
            text = error.message
        self._explanation = lambda: text

    def _note_end(self) -> None:
        """Store how the run ended: one that has not is known to have died."""
        state = RunState.STOPPED if self._error is None else RunState.FAILED
        try:
            note_run(self._log, self.stored_name, self._job.run_number, state)
        except StreamError:
            logger.warning("the end of query %s cannot be noted", self.title, exc_info=True)

    def _say_what_is_waited_for(self) -> None:
        found = (runner.under_way() for _, runner in self._runners)
        doing = "".join(f" ({under_way})" for under_way in found if under_way is not None)
        logger.warning("stop() of query %s waits for %s%s", self.title, self._waits_for, doing)

    def _sink_error(self, gone: StreamError | None) -> StreamError | None:
        for sink, runner in self._runners:
            if runner.failure is not None:
                return gone or sink_error(self.stored_name, sink, runner.failure)
        return None

    def _is_quiet(self) -> bool:
        """Whether no vertex has anything left: all say so twice, and nothing moved in between.

        Once is not enough: a vertex may be drained a moment before its producer commits more.
        """
        first = self._picture()
        if first is None:
            return False
        deadline_s = self._clock.monotonic_s() + 5
        while self._clock.monotonic_s() < deadline_s and not self._job.is_over:
            time.sleep(POLL_S)
            second = self._picture()
            if second is None or [e for _, _, e in second] != [e for _, _, e in first]:
                return False
            if all(
                later > earlier
                for (_, earlier, _), (_, later, _) in zip(first, second, strict=True)
            ):
                return self._is_delivered()
        return False

    def _picture(self) -> list[tuple[str, int, int]] | None:
        """Each vertex with its number of reports and epoch; None if one has work or is missing."""
        known = self._job.vertex_status()
        picture = []
        for vertex in self._program.vertices:
            facts = known.get(vertex.name)
            if not facts:
                return None
            if facts["state"] != "ended" and not facts["is_drained"]:
                return None
            reports = facts["reports"] if facts["state"] != "ended" else self._clock.now_us()
            picture.append((vertex.name, reports, facts["epoch"]))
        return picture


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C only raise KeyboardInterrupt here.

    PySpark's handler cancels every job first, the slots too, before they could commit.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not getattr(handler, "__module__", "").startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
