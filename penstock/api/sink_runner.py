"""Feeding a sink outside the log: a thread on the driver that carries committed rows to it.

What one marker committed is released at once, and the runner puts releases together to batches:
all that is there, or what a trigger's interval or a file's size makes of it. A batch ends with a
marker, whose position is its epoch, or where rows begin that a start with other columns has made.
Before the batch is handed over, that end is stored in the log under the number of this run; only
afterwards is the batch noted as done. So

- a batch that was begun is delivered again exactly as it was, by whoever comes next;
- a run that was followed by another can neither begin a batch nor note one: its number is old.

What is costly, decoding rows and writing files, comes before that and is seen by nobody: batches
are staged some ahead of the one that is handed over, each by a thread of its own, and go out in
order. What is staged when a run ends is thrown away; the next one may cut its batches elsewhere.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
import traceback
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PythonException

from penstock.api.session_sinks import ForeachBatchSink
from penstock.api.sinks import SinkChoice
from penstock.clock import Clock, SystemClock
from penstock.connectors.contract import BatchRows, Sink, Staged
from penstock.connectors.hidden_files import NamedFile, named_file
from penstock.errors import (
    JobFailed,
    QueryActive,
    SinkError,
    StreamError,
    Trimmed,
)
from penstock.expressions.types import Schema, arrow_schema
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.power_cut import power_cuts
from penstock.log.record import START, Body, Position
from penstock.runtime.backlog import SinkProgress, StoredProgress, take_over_sink
from penstock.runtime.host import PASSING
from penstock.runtime.left_files import LeftFiles
from penstock.runtime.markers import decode_marker
from penstock.runtime.recently import Recently
from penstock.runtime.trimming import TRIM_BYTES, TRIM_COMMITS
from penstock.stages.tags import TagKind, parse_tag

WAIT_S = 0.2
LEFT_FILES_S = 1.0  # how often it is looked for files that slots of earlier runs have left
WAKE_S = 0.02
STAGING_S = 0.05  # how often it is looked for more to stage while a batch is being staged
MORE_S = 0.05  # how often it is looked for more while a batch waits for it
STRAGGLERS_S = 1.0  # how long after a trigger's interval the commits of all vertices are waited for
BEHIND_MAX = 1_000  # epochs: beyond this it is only told that there are so many
TRACEBACK_CHARACTERS_MAX = 8_000
BEGUN_AGAIN_MAX = 5  # within the time below: what comes so often does not pass
LATELY_S = 60.0
PAUSE_S = 0.1  # before the second time; each further time twice as long

# What Spark calls the failure of a user's function.
_CONDITIONS = {
    "foreachBatch": "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "foreach": "FOREACH_USER_FUNCTION_ERROR",
}
_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: .*$", re.MULTILINE)  # as the last line of a traceback

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trigger:
    """One batch in each interval of the wall clock, once all who write have committed."""

    interval_us: int
    writers: int

    def is_due(self, now_us: int, cut_us: int, spoken: set[str]) -> bool:
        """Whether to cut a batch; `spoken` are those whose commits of this interval are there."""
        if now_us // self.interval_us == cut_us // self.interval_us:
            return False
        patience_us = min(STRAGGLERS_S * 1e6, self.interval_us / 4)
        return len(spoken) >= self.writers or now_us % self.interval_us >= patience_us


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """What a sink or a user's function raised, and for which rows."""

    error: BaseException
    epoch: int | None = None  # None: not while a batch was handed over
    rows: int = 0
    number: int = 0  # of the batch
    columns: tuple[str, ...] = ()  # of its rows, if an earlier start had other ones


@dataclass(frozen=True, slots=True)
class SinkLag:
    """What is committed and not delivered yet."""

    epochs: int  # of all vertices; at most BEHIND_MAX are counted
    seconds: float  # since the oldest of them was committed
    rows_under_way: int  # of the batch that is being handed over


class _Batch:
    """Releases on their way to the sink.

    Where a batch is the whole result, each vertex's newest rows stay here after they were handed
    over: the next batch has them again, unless the vertex has a newer result, with rows or without.
    """

    def __init__(self, reader: CommittedReader, *, replaces: bool) -> None:
        self._replaces = replaces
        self._reader = reader
        self._epoch, self._resume = reader.consumed, reader.resume  # of what was added last
        self.columns: pa.Schema | None = None  # of its rows, if it has any
        self._releases: list[Release] = []
        self._whole: dict[str, Release] = {}  # by vertex: its newest result
        self.has_news = False  # there is something to hand over, be it that nothing is left
        self.bytes = 0
        self.file: NamedFile | None = None  # that has its rows, all of them
        self._writers: set[str] = set()  # of its rows
        self.is_all = False  # that one of them has, for now
        self.epochs = 0
        self.begun_s = 0.0
        self.spoken_us: dict[str, int] = {}  # by vertex: when it last committed

    def add(self, release: Release, now_s: float) -> None:
        """Add what the reader has handed out last."""
        self.epochs += 1
        self._epoch, self._resume = self._reader.consumed, self._reader.resume
        self.columns = columns_of(release) or self.columns
        self.spoken_us[release.marker.producer] = release.marker.time_us
        facts, is_empty = decode_marker(release.marker), not release.records
        if not is_empty:
            self._writers.add(release.marker.producer)
        self.is_all |= facts.caught_up and release.marker.producer in self._writers
        if is_empty and not (self._replaces and facts.whole):
            return
        if not self.has_news:
            self.has_news, self.begun_s = True, now_s
        self.bytes += sum(record.body.nbytes for record in release.records)
        self.file = file_of(release)
        if not self._replaces:
            self._releases.append(release)
        elif is_empty:
            self._whole.pop(release.marker.producer, None)
        else:
            self._whole[release.marker.producer] = release

    def cut(self) -> _Cut:
        """End the batch here, and begin the next one."""
        kept = [Position(each.records[0].position - 1) for each in self._whole.values()]
        releases = self._whole.values() if self._replaces else self._releases
        cut = _Cut(
            epoch=self._epoch,
            resume=min([self._resume, *kept]),
            epochs=self.epochs,
            bytes=self.bytes,
            bodies=tuple(record.body for release in releases for record in release.records),
            columns=self.columns,
            file=self.file,
        )
        self.note_delivered()
        self._releases.clear()
        self.epochs = 0
        return cut

    def note_delivered(self) -> None:
        """What was added so far is no reason for a batch, and takes no room in it."""
        self.has_news = self.is_all = False
        self.bytes = 0
        self.columns = self.file = None
        self._writers.clear()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A batch whose end is chosen; it is decided once that is stored."""

    epoch: Position
    resume: Position  # where the next runner must begin to read, once it is delivered
    epochs: int
    bytes: int
    bodies: tuple[Body, ...]
    columns: pa.Schema | None  # of their rows, as whoever wrote them had it
    file: NamedFile | None = None  # that has the rows, instead of the bodies


def columns_of(release: Release) -> pa.Schema | None:
    """The columns of the rows that one commit has shown, which are the same in all its records.

    None if there are no rows, or a file has them.
    """
    if not release.records or file_of(release) is not None:
        return None
    return punit.inspect(release.records[0].body).schema


def file_of(release: Release) -> NamedFile | None:
    """The file with the rows of one commit, if its vertex has written them itself."""
    named = [named_file(record.body) for record in release.records]
    if any(named) and len(named) > 1:
        raise SinkError(
            f"the marker at position {release.marker.position} commits a file and more: a vertex "
            "writes one file for a commit, with all its rows. Look for damage with `penstock fsck`"
        )
    return named[0] if named else None


class SinkRunner:
    """Follows a query's output stream and delivers batches of it, one after the other."""

    def __init__(
        self,
        log: Log,
        query: str,
        tags: tuple[str, ...],
        schema: Schema,
        sink: Sink,
        *,
        run: int,
        name: str | None = None,
        trigger: Trigger | None = None,
        replaces: bool = False,
        is_portioned: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """`run` is the number of the run that feeds the sink: QueryActive if a newer one does.

        Its progress is kept under `name`, if that is not the query's. With `is_portioned` each
        commit is a batch of its own.
        """
        self._log = log
        self._query = query
        self._sink_name = query if name is None else name
        self._run_number = run
        self._schema = arrow_schema(schema)
        self._sink = sink
        self._tags = tags
        self._trigger = trigger
        self._is_portioned = is_portioned
        self._replaces = replaces
        self._clock = clock or SystemClock()
        self._untrimmed_epochs = TRIM_COMMITS  # the first trim is for what earlier runs left
        self._untrimmed_bytes = 0
        self._cut_us = 0  # when the last batch was cut
        self._ahead: deque[tuple[_Cut, Future[Staged]]] = deque()  # cut and not delivered yet
        self._done = START  # the last marker whose rows are known to be delivered
        self._batches = 0  # that are known to be delivered
        self._tail = START  # of the log, when the last turn began
        self._stages_aside = False  # by threads of their own
        self._read_progress()
        self._must_read_progress = False  # again, after an error that passes
        self._again_lately = Recently(LATELY_S)
        self._left_files = LeftFiles(log, sink, tags, run)
        self._look_for_left_s = 0.0
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._is_abandoned = False
        self._is_busy = True  # until the thread has looked for the first time
        self._under_way: tuple[int, int, float] | None = None  # epoch, rows, since when
        self._failure: SinkFailure | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-sink-{query}", daemon=True
        )

    def start(self) -> None:
        self._stages_aside = self._sink.ahead > 1
        self._thread.start()

    def stop(self) -> None:
        """Deliver what is committed by now, then end; returns at once."""
        self._stopping.set()

    def abandon(self) -> None:
        """End with the batch that is under way; the rest is for the next run. Returns at once."""
        self._is_abandoned = True
        self._stopping.set()

    def wait_ended(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended, and nothing is handed over any more; whether so."""
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._thread.is_alive() and (left_s := end_s - time.monotonic()) > 0:
            if self._stopping.is_set():
                self._log.wake()  # again and again: a wait that is only just beginning misses it
            self._thread.join(min(left_s, WAKE_S))
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Deliver what there is without waiting for more to come; returns at once."""
        self._hurried.set()

    def is_current_thread(self) -> bool:
        """Whether the caller is the sink's own thread, such as a function given to foreachBatch."""
        return threading.current_thread() is self._thread

    @property
    def failure(self) -> SinkFailure | None:
        return self._failure

    def is_drained(self) -> bool:
        """Whether everything committed by now is delivered."""
        if not self._thread.is_alive():
            return True
        # In this order: what the reader has handed out may still be on its way to the sink.
        return self._reader.is_drained() and not self._is_busy

    def under_way(self) -> str | None:
        """Which batch is being handed over, and since when; None if none is."""
        if (batch := self._under_way) is None:
            return None
        epoch, rows, since_s = batch
        return f"epoch {epoch} with {rows} rows, for {self._clock.monotonic_s() - since_s:.1f} s"

    def lag(self) -> SinkLag:
        """How far the sink is behind the log."""
        rows = 0 if (batch := self._under_way) is None else batch[1]
        marks = [tag for tag in self._tags if parse_tag(tag).kind is TagKind.STREAM_MARKERS]
        behind = self._log.read(marks, self._reached, BEHIND_MAX)
        age_s = (self._clock.now_us() - behind[0].time_us) / 1e6 if behind else 0.0
        return SinkLag(len(behind), max(0.0, age_s), rows)

    # The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._feed():
                pass
        except QueryActive as error:
            logger.warning("%s", error.message)
            self._failure = SinkFailure(error)
        except BaseException as error:
            logger.error("the sink of query %s failed: %s", self._query, brief(error))
            self._failure = self._failure or SinkFailure(error)
        finally:
            self._drop_ahead()
            self._sink.close()

    def _feed(self) -> bool:
        """Deliver until the end; return whether it was reached, else it is to be tried again."""
        try:
            self.begin()
            while (again := self.turn()) is not None:
                if not again and self._ahead:
                    wait([self._ahead[0][1]], STAGING_S)
                elif not again and self._batch.has_news:
                    self._hurried.wait(MORE_S)
                elif not again:
                    # From before the turn on: what came since may be what the turn did not see.
                    self._log.wait(self._tail, WAIT_S)
        except PASSING as error:
            self._stopping.wait(self.pause_after_s(error))
            return False
        return True

    def pause_after_s(self, error: StreamError) -> float:
        """How long to wait before `begin` is called again, after an error of the log that passes.

        The error is raised if it was the sink's own, or comes too often.
        """
        times = self._again_lately.count(self._query, self._clock.monotonic_s())
        if self._failure is not None or times > BEGUN_AGAIN_MAX:
            raise error
        logger.warning("the sink of query %s begins again: %s", self._query, brief(error))
        self._is_busy = self._must_read_progress = True
        return 0.0 if times == 1 else PAUSE_S * 2 ** (times - 2)

    def begin(self) -> None:
        """Deliver first what an earlier run had begun, or this one before such an error."""
        if self._must_read_progress:
            self._read_progress()
            self._must_read_progress = False
        self._repeat_planned()

    def _read_progress(self) -> None:
        """Begin where the log says that the sink is, as its owner."""
        self._drop_ahead()
        self._progress: StoredProgress | None = None
        if self._sink.is_kept:
            self._progress = take_over_sink(self._log, self._sink_name, self._run_number)
        facts = SinkProgress() if self._progress is None else self._progress.facts
        self._done = max(self._done, facts.done, Position(self._sink.last_epoch() or START))
        self._batches = max(self._batches, facts.batches)
        self._planned = facts.planned
        # What was delivered is passed over, unless it is a part of the next result.
        passed = facts.resume if self._replaces else self._done
        self._reader = CommittedReader(self._log, self._tags, facts.resume or None, passed)
        self._batch = _Batch(self._reader, replaces=self._replaces)
        self._held: Release | None = None  # taken, and not of the batch: it has other columns
        self._reached = self._done  # nothing up to here waits to be delivered

    def turn(self) -> bool | None:
        """Look once for rows, and hand a batch over if one is due.

        Returns whether to look again at once, and None when the runner has come to its end.
        """
        if self._is_abandoned:
            return None
        stopping = self._stopping.is_set()  # asked first: what comes after is delivered too
        self._tail = self._log.tail()
        self._is_busy = True
        found = self._collect()
        has_room = len(self._ahead) < self._sink.ahead
        if has_room and self._batch.has_news and (stopping or self._is_due()):
            self._stage()
            if len(self._ahead) < self._sink.ahead:
                return True
        if self._ahead:
            is_staged = self._ahead[0][1].done()
            if is_staged:
                self._hand_over()
            return is_staged
        if not self._batch.has_news:
            self._pass_empty()
            self._is_busy = False
            self._hurried.clear()
            self._clear_left_files(is_last=stopping)
        return None if stopping and not found else False

    def _collect(self, upto: Position | None = None) -> bool:
        """Take what is released, as much as one batch may hold; return whether there was any."""
        found = False
        while upto is not None or not self._is_full():
            if self._is_abandoned or (upto is not None and self._reader.consumed >= upto):
                break
            if (release := self._held or self._take()) is None:
                break
            if self._is_of_another(release):
                self._held = release
                break
            self._held, found = None, True
            self._batch.add(release, self._clock.monotonic_s())
            if release.marker.position <= self._done:
                self._batch.note_delivered()  # it only completes the next result
        return found

    def _is_of_another(self, release: Release) -> bool:
        """Whether its rows have other columns than those of the batch, or are in another file."""
        if self._batch.has_news and (self._batch.file or file_of(release)):
            return True
        known, columns = self._batch.columns, columns_of(release)
        return not (known is None or columns is None or self._replaces or _same(known, columns))

    def _take(self) -> Release | None:
        try:
            return self._reader.take()
        except Trimmed:
            # A run that took the sink over has delivered what this one still had to read.
            if self._progress is not None:
                self._progress.check_owned(self._log)
            raise

    def _repeat_planned(self) -> None:
        """Deliver the batch that an earlier run had begun, unless the sink knows that it has it."""
        if self._planned is None or self._planned <= self._done:
            return
        if any(cut.after < self._planned <= cut.upto for cut in power_cuts(self._log)):
            logger.warning(
                "a power cut took the end of the batch (up to position %d) that the sink of query "
                "%s was being given: whether the sink has it cannot be known. Its rows come again, "
                "in batches of other numbers",
                self._planned,
                self._query,
            )
            return
        self._collect(self._planned)
        if self._is_abandoned:
            return
        if self._reader.consumed != self._planned:
            raise SinkError(
                f"the sink of query {self._query} was being given the rows up to the marker at "
                f"position {self._planned}, and the log has no such marker any more, so that batch "
                "cannot be repeated as it was: `penstock fsck` says what the log lacks. Start the "
                "query under another queryName and with another place for its rows: it delivers "
                "everything anew",
                query=self._query,
                planned=int(self._planned),
            )
        self._stage()
        self._hand_over()

    def _is_full(self) -> bool:
        """Whether more would be for the next batch, which is staged beside this one."""
        if self._batch.file or (self._is_portioned and self._batch.has_news):
            return True
        is_all = self._batch.is_all and self._trigger is None
        sink = self._sink
        return self._batch.bytes >= (sink.bytes_enough if is_all else sink.bytes_max)

    def _is_due(self) -> bool:
        if self._hurried.is_set() or self._held is not None or self._is_full():
            return True
        if self._trigger is None:
            waited_s = self._clock.monotonic_s() - self._batch.begun_s
            return waited_s >= self._sink.patience_s
        now_us = self._clock.now_us()
        begun_us = now_us - now_us % self._trigger.interval_us
        spoken = {name for name, at_us in self._batch.spoken_us.items() if at_us >= begun_us}
        return self._trigger.is_due(now_us, self._cut_us, spoken)

    def _stage(self) -> None:
        """Cut a batch here, and have it staged."""
        cut = self._batch.cut()
        self._cut_us = self._clock.now_us()
        staging: Future[Staged] = Future()
        self._ahead.append((cut, staging))
        rows = BatchRows(cut.bodies, self._earlier_columns(cut) or self._schema)

        def stage() -> None:
            try:
                if cut.file is None:
                    staging.set_result(self._sink.stage(int(cut.epoch), rows))
                else:
                    staging.set_result(self._sink.stage_file(int(cut.epoch), cut.file))
            except BaseException as error:
                staging.set_exception(error)

        if self._stages_aside:
            threading.Thread(target=stage, name=self._thread.name, daemon=True).start()
        else:
            stage()

    def _earlier_columns(self, cut: _Cut) -> pa.Schema | None:
        """The columns of a batch whose rows were made by an earlier start that had other ones."""
        columns = cut.columns
        is_now = columns is None or self._replaces or _same(columns, self._schema)
        return None if is_now else columns

    def _hand_over(self) -> None:
        """Deliver the oldest of the batches that were cut.

        The order is the proof: nothing of it is visible before its end is stored, and nobody
        stores another end before all of it is.
        """
        cut, staging = self._ahead[0]
        if self._progress is not None and self._progress.facts.planned != cut.epoch:
            # What was delivered before, and could not be noted, is noted with it.
            known = self._progress.facts
            planned = replace(known, planned=cut.epoch, done=self._done, batches=self._batches)
            self._progress = self._progress.move(self._log, planned)
        rows = 0
        try:
            staged = staging.result()
            rows = staged.num_rows
            self._under_way = (int(cut.epoch), rows, self._clock.monotonic_s())
            self._sink.number = self._batches
            self._sink.publish(int(cut.epoch), staged)
        except BaseException as error:
            earlier = self._earlier_columns(cut)
            names = () if earlier is None else tuple(earlier.names)
            self._failure = SinkFailure(error, int(cut.epoch), rows, self._batches, names)
            raise
        finally:
            self._under_way = None
        self._ahead.popleft()
        self._batches += 1
        self._note_done(cut)

    def _drop_ahead(self) -> None:
        """Throw away what is staged, and wait for what is still being staged to do so."""
        while self._ahead:
            _, staging = self._ahead.popleft()
            if staging.exception() is None:
                self._sink.discard(staging.result())

    def _pass_empty(self) -> None:
        """Note epochs without rows, once there are many: what holds them can be trimmed."""
        self._reached = max(self._reached, self._reader.consumed)
        if self._untrimmed_epochs + self._batch.epochs >= TRIM_COMMITS:
            self._note_done(self._batch.cut())

    def _clear_left_files(self, *, is_last: bool) -> None:
        """Now and then, while nothing waits, and at the end: who wrote them is fenced by and by."""
        now_s = self._clock.monotonic_s()
        if is_last or now_s >= self._look_for_left_s:
            self._look_for_left_s = now_s + LEFT_FILES_S
            resume = START if self._progress is None else self._progress.facts.resume
            self._left_files.clear(resume)

    def _note_done(self, cut: _Cut) -> None:
        self._done = self._reached = max(self._reached, cut.epoch)
        self._untrimmed_epochs += cut.epochs
        self._untrimmed_bytes += cut.bytes
        if self._progress is None:
            return
        resume = max(self._progress.facts.resume, cut.resume)
        facts = SinkProgress(
            self._progress.facts.owner, self._done, resume, planned=None, batches=self._batches
        )
        if facts != self._progress.facts:
            self._progress = self._progress.move(self._log, facts)
        self._trim_if_due(resume)

    def _trim_if_due(self, resume: Position) -> None:
        """Let go of what the sink has, after many epochs or much data.

        The stream was made for this sink. What is trimmed lies before the progress that is in the
        log by then, so whoever runs the sink next begins behind it.
        """
        if self._untrimmed_epochs < TRIM_COMMITS and self._untrimmed_bytes < TRIM_BYTES:
            return
        self._untrimmed_epochs = self._untrimmed_bytes = 0
        try:
            for tag in self._tags:
                self._log.trim(tag, resume)
        except StreamError as error:
            logger.warning("what query %s has delivered cannot be trimmed: %s", self._query, error)


def _same(one: pa.Schema, other: pa.Schema) -> bool:
    return bool(one.names == other.names and one.types == other.types)


def sink_error(query: str, sink: SinkChoice, failure: SinkFailure) -> StreamError:
    """The query's error for a sink or a user's function that raised, with its traceback."""
    error = failure.error
    if isinstance(error, QueryActive):
        return error
    where = ""
    if failure.epoch is not None:
        where = (
            f" in epoch {failure.epoch} (batch {failure.number}, {failure.rows} rows, the last of "
            f"them committed by the marker at position {failure.epoch})"
        )
        if failure.columns:
            where += (
                ", whose rows were made by an earlier start, and have the columns that it had "
                f"({', '.join(failure.columns)})"
            )
    shown = "".join(_user_traceback(error))[-TRACEBACK_CHARACTERS_MAX:]
    return JobFailed(
        f"{sink.blamed(query)} of query {query} failed{where}: {brief(error)}. The query has "
        "stopped, its rows are in the log, and its next start begins with this epoch: mend the "
        f"cause and start it again\n{shown}",
        query=query,
        reason=type(error).__name__,
        epoch=failure.epoch,
        batch=failure.number,
        rows=failure.rows,
        condition=_CONDITIONS.get(sink.kind),
        traceback=shown,
    )


def brief(error: BaseException) -> str:
    """An error in one line: those of the JVM bring their whole stack along."""
    if isinstance(error, PythonException) or _TRACEBACK in str(
        error
    ):  # what a Python process of Spark's raised is in there
        raised = _RAISED.findall(str(error).partition("SQLSTATE")[0])
        return str(raised[-1])[:500] if raised else type(error).__name__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:500]}"


def _user_traceback(error: BaseException) -> list[str]:
    """The traceback from the first frame that is not this package's."""
    frames = error.__traceback__
    while frames is not None and _is_own(frames.tb_frame.f_globals.get("__name__", "")):
        frames = frames.tb_next
    return traceback.format_exception(type(error), error, frames)


def _is_own(module: str) -> bool:
    return module in (__name__, ForeachBatchSink.__module__)
