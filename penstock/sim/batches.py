"""Spark jobs that write to a stream: tasks stage rows, a driver commits them, and any of them dies.

A job writes the next piece of a feed. It is a batch job, or a micro-batch of a streaming query, of
which two drivers may live at once. Tasks are processes of their own: an attempt that is held up
comes late, after another one of its partition, or after all is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import SimpleNamespace

import pyarrow as pa

from penstock.api import datasource_append, datasource_sink
from penstock.api.datasource_append import StagedRows, StreamTarget, commit_markers
from penstock.api.datasource_sink import sink_name
from penstock.errors import Fenced, OutcomeUnknown, Trimmed
from penstock.log.committed import CommittedReader
from penstock.runtime import staging
from penstock.runtime.staging import DROPPING_INSTANCE, OpenWrite, open_writes
from penstock.runtime.streams import describe_stream
from penstock.sim.actor import Actor, Point
from penstock.sim.faults import BY_LOG, Faults
from penstock.sim.history import History
from penstock.sim.logs import ProcessLog
from penstock.sim.scenario import BatchKind
from penstock.sim.schedule import Schedule
from penstock.sim.swaps import swapped
from penstock.sim.violation import Violation

PIECE_ROWS = 8  # of one job
PARTITIONS = 2
ATTEMPTS_MAX = 4  # of one partition, as in Spark
SINK = sink_name("batches")
EXPLAINED = (Fenced, Trimmed, *BY_LOG)


class Batches:
    """The jobs that write a feed, piece after piece, and whoever starts them again."""

    def __init__(
        self,
        kind: BatchKind,
        stream: str,
        rows: pa.RecordBatch,
        schedule: Schedule,
        faults: Faults,
        history: History,
        point: Point,
        open_log: Callable[[Actor], ProcessLog],
    ) -> None:
        self.kind = kind
        self.stream = stream
        self.schedule = schedule
        self.point = point
        self.open_log = open_log
        self._pieces = [
            rows.slice(first, PIECE_ROWS) for first in range(0, rows.num_rows, PIECE_ROWS)
        ]
        self._faults = faults
        self._history = history
        self._ids: dict[int, set[str]] = {}  # of the writes that were to commit a piece
        self._done = 0  # pieces that need no job any more
        self._jobs: list[SparkJob] = []
        self._started = 0

    @property
    def is_done(self) -> bool:
        return self._done == len(self._pieces)

    def actors(self) -> list[SparkJob | Task]:
        """Whoever could act; a job is started where there is none, or once more."""
        self._forget_dead()
        is_hasty = self.kind == "micro-batches" and self.schedule.rng.random() < 0.05
        living = [job for job in self._jobs if not job.is_over]
        if not self.is_done and (not living or (is_hasty and len(living) < 2)):
            self._started += 1
            piece = self._pieces[self._done]
            self._jobs.append(SparkJob(self, f"job{self._started}", self._done, piece))
        tasks = [task for job in self._jobs for task in job.tasks]
        return [*self._jobs, *tasks]

    def kill_one(self) -> None:
        for job in self._jobs[-1:]:
            self.schedule.note("kill", job)
            job.die()

    def begin_anew(self) -> None:
        """The log has lost its tail: go on with the first piece that is not there any more."""
        self._kill_all()
        self._done = 0
        while self._is_visible(self._done):
            self._done += 1

    def note_commit(self, job: SparkJob, write: OpenWrite) -> None:
        self._ids.setdefault(job.piece, set()).add(write.id)

    def is_gone(self, owner: str) -> bool:
        """Whether a driver is taken for dead; some times in error."""
        is_wrong = self._faults.is_on and self.schedule.rng.random() < 0.2
        return is_wrong or all(job.name != owner or job.is_over for job in self._jobs)

    def swaps(self) -> AbstractContextManager[None]:
        """What jobs ask the machine for comes from the seed; each row is an append of its own."""
        names = SimpleNamespace(
            uuid4=lambda: uuid.UUID(int=self.schedule.rng.getrandbits(128), version=4)
        )
        return swapped(
            (staging, "uuid", names),
            (staging, "is_gone", self.is_gone),
            (staging, "SystemClock", lambda: self.schedule.clock),
            (staging, "READ_RECORDS", 3),
            (datasource_append, "uuid", names),
            (datasource_append, "APPEND_ENTRIES", 1),
        )

    def look_at_end(self, job: SparkJob) -> None:
        """Whoever was told that all is well finds it so; who was told otherwise finds nothing."""
        is_there = self._is_visible(job.piece)
        is_told_wrong = job.is_committed is not None and is_there is not job.is_committed
        if is_told_wrong and (job.is_committed or self.kind == "batch"):
            raise Violation(f"{job}: committed {job.is_committed}, visible {is_there}")
        goes_by = is_there if self.kind == "batch" else job.is_committed  # as Spark's checkpoint
        if goes_by and job.piece == self._done:
            self._done += 1

    def check_cleared(self, actor: Actor) -> None:
        """Whoever comes next clears up after the dead, and then no reader waits for their rows."""
        self._kill_all()
        staging.clear_dead_writes(actor.log, self.stream)
        if left := open_writes(actor.log, self.stream):
            raise Violation(f"{self.stream}: writes of the dead are still listed: {left}")
        reader = CommittedReader(actor.log, describe_stream(actor.log, self.stream).tags)
        while reader.take() is not None:
            pass
        if waiting := [name for name in reader._pending if ".write." in name]:
            raise Violation(f"{self.stream}: rows of {waiting} wait for ever")

    def _kill_all(self) -> None:
        for job in self._jobs:
            for actor in (job, *job.tasks):
                actor.die()

    def _is_visible(self, piece: int) -> bool:
        """Whether markers have committed a piece; of a batch job all of them or none."""
        prefixes = tuple(f"{name}.write." for name in self._ids.get(piece, ()))
        return bool(prefixes) and any(
            seen.kind == "MARKER"
            and seen.instance != DROPPING_INSTANCE
            and seen.producer.startswith(prefixes)
            for seen in self._history.records
        )

    def _forget_dead(self) -> None:
        """Let go of what is over, once nothing of it is on the stack."""
        for job in tuple(self._jobs):
            for task in tuple(job.tasks):
                if (task.is_dead or task.is_over) and not task.is_busy:
                    job.tasks.remove(task)
                    task.log.close()
            if job.is_dead and not job.is_judged:
                job.is_judged = True
                self.look_at_end(job)
            if job.is_over and not (job.is_busy or job.tasks):
                self._jobs.remove(job)
                job.log.close()


class SparkJob(Actor):
    """The driver of one job."""

    def __init__(self, batches: Batches, name: str, piece: int, rows: pa.RecordBatch) -> None:
        super().__init__(name, batches.point)
        self.log = batches.open_log(self)
        self.piece = piece
        self.tasks: list[Task] = []
        self.staged: dict[int, StagedRows] = {}  # by partition: the first attempt counts
        self.write: OpenWrite | None = None  # of a batch job; those of micro-batches tasks begin
        self.is_committed: bool | None = None  # as it was told; None: it was not
        self.is_judged = False
        self._batches = batches
        self._rows = rows
        self._attempts = [0] * PARTITIONS
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        return self.is_dead or self._has_ended

    def can_act(self, now_s: float) -> bool:
        return super().can_act(now_s) and not self._has_ended

    def turn(self) -> None:
        """Begin, or have another task try, or commit."""
        batches = self._batches
        if batches.kind == "batch" and self.write is None:
            with suppress(*EXPLAINED):
                clock = batches.schedule.clock
                self.write = staging.begin_write(self.log, batches.stream, self.name, clock)
            return
        missing = [at for at in range(PARTITIONS) if at not in self.staged]
        if missing:
            self._try(batches.schedule.rng.choice(missing))
            return
        self._commit(list(self.staged.values()))
        self._has_ended = self.is_judged = True
        batches.look_at_end(self)

    def _try(self, partition: int) -> None:
        """Start an attempt, some times beside one that is only slow."""
        is_tried = any(each.partition == partition and not each.is_over for each in self.tasks)
        if is_tried and self._batches.schedule.rng.random() > 0.2:
            return
        rows = self._rows.slice(partition * PIECE_ROWS // PARTITIONS, PIECE_ROWS // PARTITIONS)
        attempt = self._attempts[partition]
        if attempt >= ATTEMPTS_MAX and not is_tried:
            self._give_up()
            return
        self._attempts[partition] += 1
        self.tasks.append(Task(self._batches, self, partition, attempt, rows))

    def _give_up(self) -> None:
        """The job has failed, and what it has written is never to be seen."""
        self.is_committed = False
        self._clear_up()
        self._has_ended = self.is_judged = True
        self._batches.look_at_end(self)

    def _clear_up(self) -> None:
        """What Spark calls `abort` for; the driver knows only of tasks that told it."""
        writes = {each.write.id: each.write for each in self.staged.values()}
        if self.write is not None:
            writes[self.write.id] = self.write
        with suppress(*EXPLAINED):
            for write in writes.values():
                staging.clear_write(self.log, write)

    def _commit(self, staged: list[StagedRows]) -> None:
        batches, stream = self._batches, self._batches.stream
        for each in staged:
            batches.note_commit(self, each.write)
        try:
            if self.write is not None:
                staging.commit_write(self.log, self.write, commit_markers(stream, staged))
            else:
                datasource_sink.commit_batch(self.log, stream, self.piece, staged)
            self.is_committed = True
        except EXPLAINED as error:
            if not isinstance(error, OutcomeUnknown):
                self.is_committed = False
            batches.schedule.sometimes["staged write given up"] += isinstance(error, Fenced)
            self._clear_up()


class Task(Actor):
    """One attempt to stage the rows of a partition."""

    def __init__(
        self, batches: Batches, job: SparkJob, partition: int, attempt: int, rows: pa.RecordBatch
    ) -> None:
        super().__init__(f"{job.name}.task{partition}.{attempt}", batches.point)
        self.log = batches.open_log(self)
        self.partition = partition
        self.is_over = False
        self._batches = batches
        self._job = job
        self._attempt = attempt
        self._rows = rows

    def can_act(self, now_s: float) -> bool:
        return super().can_act(now_s) and not self.is_over

    def turn(self) -> None:
        """Stage all rows, unless something goes wrong; the driver is told if it is still there."""
        job, batches = self._job, self._batches
        rows = [self._rows.slice(at, 1) for at in range(self._rows.num_rows)]
        try:
            write = job.write or self._begin_together()
            facts = describe_stream(self.log, batches.stream)
            target = StreamTarget("", facts)
            staged = datasource_append.stage_rows(
                self.log, target, rows, write, self.partition, self._attempt
            )
            if not job.is_over:
                job.staged.setdefault(self.partition, staged)
            batches.schedule.sometimes["rows staged too late"] += job.is_over
        except EXPLAINED:
            batches.schedule.sometimes["attempt to stage rows failed"] += 1
        finally:
            self.is_over = True

    def _begin_together(self) -> OpenWrite:
        clock, name = self._batches.schedule.clock, self._job.name
        return staging.begin_write(self.log, self._batches.stream, name, clock, job=name, sink=SINK)
