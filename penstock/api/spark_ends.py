"""Structured Streaming at the ends of a query: what brings its source in, and feeds its sink.

A source that is not read here is read by a query of Spark's, the feeder, which writes to a stream
of our query's own through the exactly-once sink. A sink that is not known here is fed by another
one, which reads our query's output stream. Both belong to our query: they start and stop with it,
their checkpoints are in its log's folder, under `ends/<query>/`, they run in a session of their
own, so that nobody sees them beside it, and when one fails, the query does.

A checkpoint that is missing at a later start would let a source begin anew, and its rows come
twice: so the log keeps the id that Spark gave each of these queries, under `end/<stream>`, and the
checkpoint that is found must be of that id.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparkWriter

from penstock.api.datasource import ENDS_FORMAT, EndsDataSource
from penstock.api.sink_runner import BEHIND_MAX, SinkFailure, SinkLag, brief
from penstock.api.sinks import SparkChoice
from penstock.api.triggers import Timing
from penstock.catalyst.fed_sources import FedSource
from penstock.catalyst.jvm import java_classes, scala_object
from penstock.catalyst.session import active_session
from penstock.clock import SystemClock
from penstock.errors import JobFailed, QueryActive, QueryMismatch, StreamError
from penstock.log.contract import Log
from penstock.log.record import START, Position
from penstock.runtime.backlog import SinkProgress, sink_of, take_over_sink
from penstock.runtime.recently import Recently
from penstock.runtime.retention import cut, plan_cut
from penstock.runtime.streams import describe_stream
from penstock.stages.tags import marker_tag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

ENDS_FOLDER = "ends"
POLL_S = 0.05
TIDY_S = 10.0  # how often what was taken is trimmed
# What ends a query of Spark's and passes: a Python process has ten seconds to begin.
PASSING = ("Python worker failed to connect back",)
BEGUN_AGAIN_MAX = 20  # within the time below: what comes so often does not pass
LATELY_S = 300.0

logger = logging.getLogger(__name__)


def ends_folder(log_folder: Path, query: str) -> Path:
    """Where the checkpoints of a query's ends are."""
    return log_folder / ENDS_FOLDER / query


class SparkEnd:
    """A query of Spark's that belongs to one of ours; `stream` is what they share."""

    def __init__(self, session: SparkSession, log: Log, folder: Path, stream: str) -> None:
        self._session = session
        self._log = log
        self._stream = stream
        self._checkpoint = folder / stream.partition(".")[2]
        self._query: SparkQuery | None = None
        self._writer: SparkWriter | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._again_lately = Recently(LATELY_S)

    def begin(self, frame: DataFrame, say: Callable[[SparkWriter], SparkWriter]) -> None:
        """Start it, where it was stopped if it ever ran."""
        known = self._known_id()
        writer = say(SparkWriter(frame))  # not frame.writeStream, which may be taken over
        self._writer = writer.option("checkpointLocation", str(self._checkpoint))
        with active_session(self._session):
            self._query = self._writer.start()
        if known is None:
            self._log.put(f"end/{self._stream}", self._query.id.encode("ascii"))

    @property
    def query(self) -> SparkQuery:
        assert self._query is not None, "an end is asked once it has begun"
        return self._query

    def is_active(self) -> bool:
        """Whether it runs; what has ended by an error that passes is begun again first."""
        try:
            if self._query is None or self._query.isActive:
                return self._query is not None
            return self._begin_again()
        except (Py4JError, OSError):  # the session is gone, and its JVM may be too
            return False

    def _begin_again(self) -> bool:
        assert self._writer is not None
        with self._lock, active_session(self._session):
            if self.query.isActive:  # another thread was here first
                return True
            error = self.error()
            if self._is_stopped or error is None or not _passes(error):
                return False
            if self._again_lately.count(self._stream, time.monotonic()) > BEGUN_AGAIN_MAX:
                return False
            logger.warning("Spark's part for %s begins again: %s", self._stream, brief(error))
            self._query = self._writer.start()
        return True

    def process_all(self) -> bool:
        """Wait until it has done all that is there; whether so, else it has ended."""
        while self.is_active():
            query = self.query
            try:
                query.processAllAvailable()
                if query.isActive:
                    return True
            except (Py4JError, OSError, PySparkException):
                continue  # it has ended, and may begin again
        return False

    def error(self) -> BaseException | None:
        """Why it ended by itself, if it has."""
        try:
            return None if self._query is None else self._query.exception()
        except (Py4JError, OSError) as gone:
            return gone

    def stop(self) -> None:
        """End it; what its batch that is under way has done is not seen."""
        with self._lock:
            self._is_stopped = True
        try:
            if self._query is not None:
                self._query.stop()
        except (Py4JError, OSError, PySparkException):
            logger.warning("the part of Spark's for %s did not stop well", self._stream)

    def _known_id(self) -> str | None:
        """The id that it has had so far; QueryMismatch if its checkpoint is not of that id."""
        found = self._log.get(f"end/{self._stream}")
        if found is None:
            return None
        known = bytes(found.value).decode("ascii", "replace")
        try:
            text = (self._checkpoint / "metadata").read_text(encoding="utf-8")
            there = str(json.loads(text)["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            there = f"cannot be read ({error})"
        if there != known:
            raise QueryMismatch(
                f"{self._checkpoint} is not the checkpoint with which Structured Streaming has "
                f"served stream {self._stream} so far: that has the id {known}, this {there}. With "
                "another one rows would come twice: put the folder back, or start the query under "
                "a new name",
                stream=self._stream,
                path=str(self._checkpoint),
            )
        return known


def _passes(error: BaseException) -> bool:
    return any(text in str(error) for text in PASSING)


def ends_session(spark: SparkSession) -> SparkSession:
    """A session with the settings and formats of another one, whose queries nobody sees there."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    with active_session(session):
        session.dataSource.register(EndsDataSource)
    return session


class Feeding:
    """All sources of a query that Spark reads for it."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        log_folder: Path,
        query: str,
        fed: Sequence[FedSource],
        timing: Timing,
    ) -> None:
        self._spark = spark
        self._log = log
        self._log_folder = log_folder
        self._query = query
        self._fed = fed
        self._timing = timing
        self._ends: list[tuple[FedSource, SparkEnd]] = []
        self._stopped = False
        self._tidied_s = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._fed)

    @property
    def comes_first(self) -> bool:
        """Whether everything is brought in before our part begins, which then sees it all."""
        return bool(self._fed) and self._timing.drains

    def start(self) -> None:
        if not self._fed:
            return
        session = ends_session(self._spark)
        folder = ends_folder(self._log_folder, self._query)
        datasets = scala_object(java_classes().org.apache.spark.sql.classic, "Dataset")
        for source in self._fed:
            end = SparkEnd(session, self._log, folder, source.stream)
            with active_session(session):
                rows = datasets.ofRows(session._jsparkSession, source.leaf)
            end.begin(DataFrame(rows, session), partial(self._say, source.stream))
            self._ends.append((source, end))

    def stop(self) -> None:
        self._stopped = True
        for _, end in self._ends:
            end.stop()
        self.tidy()

    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return not any(end.is_active() for _, end in self._ends)

    def failure(self) -> StreamError | None:
        """The error of a source that cannot be read on; None as long as all can."""
        if self._stopped:
            return None
        for source, end in self._ends:
            if end.is_active():
                continue
            error = end.error()
            if error is None and self._timing.drains:
                continue
            why = "it was stopped" if error is None else brief(error)
            return JobFailed(
                f"the source {source.text} of query {self._query}, which Structured Streaming "
                f"reads for it, failed: {why}. What it has brought is in the log: mend the cause "
                "and start the query again, it goes on from there",
                query=self._query,
                reason=type(error).__name__,
                source=source.text,
                traceback="" if error is None else str(error),
            )
        return None

    def process_all(self) -> None:
        """Wait until all that is there has been brought in; what fails ends the query anyway."""
        for _, end in self._ends:
            end.process_all()

    def tidy_if_due(self) -> None:
        if self._ends and time.monotonic() - self._tidied_s >= TIDY_S:
            self.tidy()

    def tidy(self) -> None:
        """Let go of what the query has read: nobody else reads these streams."""
        self._tidied_s = time.monotonic()
        for source, _ in self._ends:
            try:
                cut(self._log, plan_cut(self._log, source.stream))
            except StreamError as error:
                logger.warning("stream %s cannot be trimmed: %s", source.stream, error)

    def _say(self, stream: str, writer: SparkWriter) -> SparkWriter:
        writer.format(ENDS_FORMAT).option("path", str(self._log_folder)).option("stream", stream)
        if self._timing.drains:
            writer.trigger(availableNow=True)
        elif self._timing.interval_ms is not None:
            writer.trigger(processingTime=f"{self._timing.interval_ms} milliseconds")
        return writer


class SparkSinkRunner:
    """Has Spark feed a sink from a query's output stream; stands where a SinkRunner would."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        log_folder: Path,
        query: str,
        stream: str,
        sink: SparkChoice,
        run: int,
    ) -> None:
        """`run` is the number of the run that feeds the sink: QueryActive if a newer one does."""
        self._spark = spark
        self._log = log
        self._log_folder = log_folder
        self._name = query
        self._stream = stream
        self._sink = sink
        self._clock = SystemClock()
        self._progress = take_over_sink(log, sink_of(stream), run)
        self._drained = START  # the newest marker when it had everything
        self._end: SparkEnd | None = None
        self._failure: SinkFailure | None = None
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._is_abandoned = False
        self._tidied_s = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-sink-{query}", daemon=True
        )

    def start(self) -> None:
        session = ends_session(self._spark)
        folder = ends_folder(self._log_folder, self._name)
        end = SparkEnd(session, self._log, folder, self._stream)
        with active_session(session):
            rows = session.readStream.format(ENDS_FORMAT).option("path", str(self._log_folder))
            frame = rows.option("stream", self._stream).load()
        end.begin(frame, self._sink.say)
        self._end = end
        self._thread.start()

    def stop(self) -> None:
        """Deliver what is committed by now, then end; returns at once."""
        self._stopping.set()
        self._hurried.set()

    def abandon(self) -> None:
        """End at once; Spark runs its batch again at the next start, if it was under way."""
        self._is_abandoned = True
        self.stop()
        if self._end is not None:
            self._end.stop()

    def wait_ended(self, timeout_s: float | None) -> bool:
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        self._hurried.set()

    def is_current_thread(self) -> bool:
        return False

    @property
    def failure(self) -> SinkFailure | None:
        return self._failure

    def is_drained(self) -> bool:
        """Whether everything committed by now is delivered."""
        return not self._thread.is_alive() or self._drained >= self._newest()

    def under_way(self) -> str | None:
        return None

    def lag(self) -> SinkLag:
        """How far the sink is behind the log."""
        reached = max(self._drained, self._progress.facts.done)
        behind = self._log.read([marker_tag(self._stream)], reached, BEHIND_MAX)
        age_s = (self._clock.now_us() - behind[0].time_us) / 1e6 if behind else 0.0
        return SinkLag(len(behind), max(0.0, age_s), 0)

    # The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._end is not None
        try:
            while not self._turn(self._end):
                self._hurried.wait(POLL_S)
        except QueryActive as error:
            self._failure = SinkFailure(error)
        except (PySparkException, Py4JError, OSError, StreamError) as error:
            self._failure = SinkFailure(self._end.error() or error)
        finally:
            self._end.stop()

    def _turn(self, end: SparkEnd) -> bool:
        """Note how far Spark is; whether this is the end."""
        if self._is_abandoned:
            return True
        stopping = self._stopping.is_set()  # asked first: what comes after is delivered too
        if not end.is_active():
            error = end.error() or JobFailed(
                f"the query of Spark's that feeds {self._sink.text(self._name)} was stopped",
                query=self._name,
            )
            self._failure = SinkFailure(error)
            return True
        if self._hurried.is_set():
            newest = self._newest()
            self._hurried.clear()
            if newest > self._drained and end.process_all():
                self._drained = newest
        self._note(end)
        return stopping

    def _newest(self) -> Position:
        last = self._log.last(marker_tag(self._stream))
        return START if last is None else last.position

    def _note(self, end: SparkEnd) -> None:
        """Store what Spark has committed: vertices look there, and it may be trimmed."""
        told = end.query.lastProgress
        offset = None if told is None else told.sources[0].endOffset
        if not offset or offset == "null":
            return
        reached: dict[str, Any] = json.loads(offset)
        known = self._progress.facts
        done, resume = Position(reached["position"]), Position(reached["resume"])
        if done <= known.done:
            return
        facts = SinkProgress(known.owner, done, max(known.resume, resume), None, known.batches + 1)
        self._progress = self._progress.move(self._log, facts)
        if time.monotonic() - self._tidied_s >= TIDY_S:
            self._tidied_s = time.monotonic()
            for tag in describe_stream(self._log, self._stream).tags:
                self._log.trim(tag, facts.resume)
