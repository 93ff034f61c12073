"""A vertex: takes committed input, runs its chain, appends output under a marker.

States of an instance, and the only moves between them:

    RUNNING ──> ENDED      the input is over and the last marker is in the log
       │
       ├──────> FENCED     a newer instance owns the vertex: nothing more is appended
       └──────> FAILED     anything else went wrong: the slot recovers the vertex or gives up

A vertex has no clock, thread, file or socket of its own. It is given a log, a clock and a place
to hand checkpoints to, which is why the simulator can run exactly this code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import Fenced, RowError, StateTooLarge, StaticSideLost, Trimmed
from penstock.log.record import Fence, Position, RecordKind
from penstock.operators.chain import Chain, ChainOutput, OnBadRow
from penstock.operators.contract import Batches
from penstock.operators.observe import observed_rows
from penstock.runtime.abreast import Abreast
from penstock.runtime.announcing import Announcing
from penstock.runtime.backlog import Amount, Backlog
from penstock.runtime.changes import STATE_NAME
from penstock.runtime.event_time import EventTime
from penstock.runtime.inputs import Delivery, Input, PortBatch
from penstock.runtime.markers import Marker
from penstock.runtime.outputs import Outputs, Partitioner
from penstock.runtime.resting import Resting
from penstock.runtime.static_sides import StaticSides
from penstock.runtime.stride import Stride
from penstock.runtime.trimming import TRIM_BYTES, TrimJob
from penstock.stages.settings import Settings
from penstock.state.contract import Picture, State

COMMIT_GAP_S = 0.002
REST_S = 0.005  # between two looks at what else than input a vertex waits for
APPEND_REST_S = 0.0005  # between two looks at an append that may be over
APPEND_PATIENCE_S = 5.0  # with an append; then nothing else is done, and the slot counts as stuck
DELIVERIES_PER_STEP_MAX = 16
# Changed rows for each row of the state, up to which a checkpoint is built from the changes in the
# log: to put together more costs more than to copy the state.
CHANGES_PER_ROW_MAX = 2


class VertexState(Enum):
    """What an instance is doing; see the drawing above."""

    RUNNING = "running"
    ENDED = "ended"
    FENCED = "fenced"
    FAILED = "failed"


_MOVES = {
    VertexState.RUNNING: {VertexState.ENDED, VertexState.FENCED, VertexState.FAILED},
    VertexState.ENDED: {VertexState.FENCED},
    VertexState.FENCED: set(),
    VertexState.FAILED: set(),
}


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """A checkpoint of a vertex's state at a marker, to be written away from the hot path.

    It is a complete picture, or made of what is in the log: then only the kinds of the states are
    needed, and nothing was copied.
    """

    fence: Fence  # of the instance whose state it is
    position: Position  # of the marker whose state this is
    snapshots: dict[str, Picture]
    kinds: Mapping[str, State] | None = None  # of the states, if it is made of their changes

    @property
    def vertex(self) -> str:
        return self.fence.vertex


class Checkpointer(Protocol):
    """Makes pictures of state durable and trims what is no longer needed, in the background."""

    def submit(self, job: CheckpointJob | TrimJob) -> bool:
        """Take a job; False if one of its kind and vertex is still under way."""

    def needs_picture(self, vertex: str) -> bool:
        """Whether the next checkpoint cannot be made of changes alone: the vertex has to copy."""


@dataclass(frozen=True, slots=True)
class VertexOutput:
    """Where the rows of one output of the stage go."""

    tags: tuple[str, ...]
    partition: Partitioner
    is_result: bool  # for others, or for a sink
    backlog: Backlog | None  # None: what is written here is waited for by nobody


@dataclass(frozen=True, slots=True)
class VertexParts:
    """What recovery puts together and a vertex works with."""

    name: str
    settings: Settings
    input: Input
    time: EventTime
    chain: Chain
    statics: StaticSides
    outputs: Outputs
    written: tuple[VertexOutput, ...]  # one for each output of the chain
    trigger_us: int | None  # None: commits as soon as it may
    is_portioned: bool  # each delivery is committed for itself
    announcing: Announcing
    abreast: Abreast | None  # None: nobody reads another part of its source
    resting: Resting | None  # None: nobody waits for it, or nobody may go on without it
    change_tag: str
    late_tag: str | None
    dead_letter_tag: str | None
    observed_tag: str
    dead_letter_names: Mapping[tuple[str, pa.DataType], str]  # of columns, where not their own
    checkpointer: Checkpointer
    trim: TrimJob
    trim_commits: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class VertexStatistics:
    """What this instance has done, and where it stands."""

    state: VertexState
    instance: int
    epoch: int
    rows_in: int
    rows_out: int  # to results, where it writes any
    late_rows: int
    rejected_rows: int
    steps: int
    commits: int
    rows_passed: int  # not aggregated before the exchange, as that would save little
    early_appends: int
    checkpoints: int
    watermark_us: int
    is_drained: bool  # asked for more and got nothing, and nothing to commit
    is_through: bool  # so has everybody before it, with availableNow: nothing will come
    newest_event_us: int | None  # the newest event time of rows that a watermark goes by
    state_rows: int
    state_rows_changed: int  # by commits, counted each time
    state_bytes: int


class _Begun(NamedTuple):
    """A commit on its way into the log."""

    marker: Marker
    tags: tuple[str, ...]


class Vertex:
    """One instance of a vertex, between its recovery and its end."""

    def __init__(
        self, parts: VertexParts, start: Marker, position: Position, commits_replayed: int = 0
    ) -> None:
        """`start` is the last committed marker (or an empty one) with this instance's number, and
        `position` where it is.

        The next checkpoint is due the sooner the more commits recovery had to replay: a vertex that
        keeps crashing would otherwise never come to write one.
        """
        self._parts = parts
        self.name = parts.name
        # The end is final: an instance that follows one that has ended finds nothing to do.
        self.state = VertexState.ENDED if start.ended else VertexState.RUNNING
        self._marker = start
        self._marker_position = position
        self._writes_results = any(output.is_result for output in parts.written)
        parts.chain.had_input = start.had_input
        self._late_rows = start.late_rows
        self._rejected_rows = start.rejected_rows
        self._was_empty = self._is_empty()  # the state, with the last marker
        self._is_dirty = False  # something happened since the last marker
        self._begun: _Begun | None = None  # the commit that is on its way into the log
        self._begun_s = 0.0  # when the last append was
        self._due_s = 0.0
        self._committed_s = float("-inf")
        self._withheld_until_s: float | None = None  # progress that readers do not know of yet
        self._caught_up = start.caught_up
        self._is_within_delivery = False
        self._is_idle = True  # the last step found nothing to take
        self._is_held_back = False  # the input was not asked: others have to catch up first
        self._rests = False  # in this step it was, and had nothing, as it is before this vertex
        self._commits_unpictured = commits_replayed  # since the last checkpoint
        self._pictured_s = parts.clock.monotonic_s()
        self._snapshots: dict[str, Picture] | None = None
        self._snapshot_position = Position(0)
        self._is_trim_due = False
        self._trimmed_bytes = 0  # of the input, when a trim was last asked for
        self._left_behind = 0  # by the input, likewise
        self._rows_in = self._rows_out = self._steps = self._commits = 0
        self._stride = Stride(parts.settings.step_rows_max)
        self._rows_made = self._rows_committed = 0  # for any who read them
        self._early_appends = self._checkpoints = self._state_rows_changed = 0
        # By when the checkpoints before last and last were made: how many rows had been changed.
        self._changed_by = (0, 0)
        self._is_checkpoint_asked_for = False
        self._newest_event_us: int | None = None
        # Without state, which a checkpoint has to find as a marker says, and static sides, whose
        # versions change at markers.
        stands = parts.chain.states or parts.statics.versions()
        self.overlaps = not (stands or parts.is_portioned)  # what it does with its appends

    def step(self) -> bool:
        """Do one bounded piece of work; return whether there was any.

        The order is the exactly-once argument. Readers ignore output until a marker covers it.
        The marker says how far the input is part of that output, and is in the same append. So
        work that no marker covers is invisible, and is done again from the same place after a
        crash.
        """
        if self.state is not VertexState.RUNNING:
            return False
        try:
            return (self._settle_append() or self._works_on()) and self._work()
        except Fenced:
            self._move(VertexState.FENCED)
            raise
        except (Trimmed, StaticSideLost):
            self._stop_at_trimmed_input()
            raise
        except StateTooLarge as error:
            self._move(VertexState.FAILED)
            raise state_too_large(self.name, error) from error
        except Exception:
            self._move(VertexState.FAILED)
            raise

    def _works_on(self) -> bool:
        """Whether this vertex takes input while an append of its own is under way.

        What it makes of it is not numbered, sealed or counted before that append is known to be in
        the log. So a bounded part of the next epoch is ready by then, and nothing else changes.
        """
        waiting_bytes = self._parts.outputs.bytes_waiting
        return self.overlaps and waiting_bytes < self._parts.settings.early_append_bytes_max

    def _work(self) -> bool:
        if self._marker.ended or (self._begun is not None and self._begun.marker.ended):
            return False  # what came last is in an append
        self._steps += 1
        self._rests = False
        # Before anything is taken: of a commit that has just come through this is the only moment
        # at which the state is what its marker says, if there is always more input.
        self._begin_checkpoint_if_due(self._marker_position)
        if self._parts.statics.look(self._is_idle) and not self._is_dirty:
            self._begin_commit()  # the rows that come next meet the new versions
            return True
        worked = self._take_and_process()
        self._is_idle = not worked
        if self._settle_append():  # which may have come through meanwhile
            if self._is_commit_due():
                self._begin_commit()  # with all that waits
            else:
                self._append_early_if_large()
        self._copy_some_state()
        return worked

    def _stop_at_trimmed_input(self) -> None:
        """Input that was trimmed before it was read is an error, unless a newer instance read it.

        Then that one has committed it and let it go, and this one is merely fenced.
        """
        try:
            self._parts.outputs.check_fence()
        except Fenced:
            self._move(VertexState.FENCED)
            raise
        self._move(VertexState.FAILED)

    def flush(self) -> None:
        """Commit whatever has been done so far, without waiting for the interval."""
        if self.state is not VertexState.RUNNING:
            return
        try:
            self._settle_append(patience_s=0)
            if self._has_news() and not (self._is_within_delivery or self._marker.ended):
                self._begin_commit(is_forced=True)
                self._settle_append(patience_s=0)
        except Fenced:
            self._move(VertexState.FENCED)
            raise

    def close(self) -> None:
        """Let go of the input and of a running snapshot. What is not committed is forgotten."""
        for snapshot in (self._snapshots or {}).values():
            snapshot.abandon()
        self._snapshots = None
        self._parts.outputs.abandon()
        self._parts.input.close()

    def _has_news(self) -> bool:
        """Whether something has happened that no marker in or on its way into the log tells."""
        return self._is_dirty or self._withheld_until_s is not None

    @property
    def marker(self) -> Marker:
        """The last marker in the log."""
        return self._marker

    def is_drained(self) -> bool:
        """Whether the input was asked and had nothing, and all before that is committed."""
        is_told = not self._has_news() and self._begun is None
        return is_told and not self._is_held_back and self._parts.input.is_drained()

    def is_through(self) -> bool:
        """With availableNow: whether all that was there is done and committed, here and before."""
        if self.state is VertexState.ENDED:
            return True
        is_told = self._parts.settings.available_now and self._marker.caught_up
        return is_told and self.is_drained()

    def checkpoint(self) -> None:
        """Begin a checkpoint with the next step that finds the state as it is committed."""
        self._is_checkpoint_asked_for = True

    @property
    def is_copying(self) -> bool:
        """Whether a picture of the state is being taken for a checkpoint."""
        return self._snapshots is not None

    def commit_due_in_s(self) -> float | None:
        """How long this vertex may wait before it must commit; None if it has nothing to commit."""
        if self._is_within_delivery or not self._has_news():
            return None
        if not self._is_dirty:
            assert self._withheld_until_s is not None
            return max(0.0, self._withheld_until_s - self._parts.clock.monotonic_s())
        due_s = self._due_s
        if self._parts.trigger_us is None:
            due_s = min(due_s, self._committed_s + COMMIT_GAP_S)
        return max(0.0, due_s - self._parts.clock.monotonic_s())

    def work_due_in_s(self) -> float | None:
        """How long this vertex may rest after a step without work; None: until the log grows."""
        if self._parts.outputs.is_under_way:
            due_s = APPEND_REST_S if self._parts.outputs.may_be_over() else None
            if not self._works_on():
                return due_s
        else:
            due_s = self.commit_due_in_s()
        dues = [due_s, self._parts.input.ask_again_in_s()]
        if self._parts.resting is not None:
            dues.append(self._parts.resting.due_in_s())
        if self._is_held_back or self.is_copying:
            dues.append(REST_S)
        due_us = self._parts.chain.due_us()
        if due_us is not None:
            dues.append(max(0.0, (due_us - self._parts.clock.now_us()) / 1e6))
        silence_ms = self._parts.settings.idle_timeout_ms
        if silence_ms is not None and not self._parts.input.is_source:
            dues.append(max(REST_S, silence_ms / 8_000))  # it is heard in several looks
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def statistics(self) -> VertexStatistics:
        return VertexStatistics(
            state=self.state,
            instance=self._marker.instance,
            epoch=self._marker.epoch,
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            late_rows=self._late_rows,
            rejected_rows=self._rejected_rows,
            steps=self._steps,
            commits=self._commits,
            rows_passed=self._parts.chain.statistics().rows_passed,
            early_appends=self._early_appends,
            checkpoints=self._checkpoints,
            watermark_us=self._parts.time.watermark_us,
            is_drained=self.is_drained(),
            is_through=self.is_through(),
            newest_event_us=self._newest_event_us,
            state_rows_changed=self._state_rows_changed,
            state_rows=sum(len(s) for s in self._parts.chain.states.values()),
            state_bytes=sum(s.memory_bytes() for s in self._parts.chain.states.values()),
        )

    def _take_and_process(self) -> bool:
        self._is_held_back = self._is_far_ahead()
        if self._is_held_back:
            self._say_that_it_waits()
            return False  # what was processed before is still committed when it is due
        now_us = self._parts.clock.now_us()
        self._parts.chain.tell_time(now_us)
        rows_max = rows_left = self._rows_to_take()
        rows_in, rows_made = self._rows_in, self._rows_made
        worked = False
        input_ = self._parts.input
        while rows_left > 0 and (delivery := input_.take(rows_left, worked)) is not None:
            self._process(delivery)
            self._mark_dirty()
            # What is small costs its time too, so that a step is bounded however few rows it finds.
            rows_left -= max(1, rows_max // DELIVERIES_PER_STEP_MAX, delivery.rows)
            worked = True
            if input_.has_paused() or self._parts.is_portioned:
                break
        self._stride.note(self._rows_in - rows_in, self._rows_made - rows_made)
        return self._do_what_is_due(now_us) or self._pass_time() or worked

    def _is_far_ahead(self) -> bool:
        """Whether there is much that others have not done: those behind this vertex, or beside."""
        abreast = self._parts.abreast
        # Where rows come as time passes, nobody is ahead of others for long.
        if abreast is not None and not self._parts.input.has_paused() and abreast.is_ahead():
            return True
        backlogs = (output.backlog for output in self._parts.written)
        return any(each.is_full() for each in backlogs if each is not None)

    def _rows_to_take(self) -> int:
        """How many rows a step takes: of a portion all, as time goes on behind it."""
        settings = self._parts.settings
        if self._parts.is_portioned:
            return settings.step_rows_max
        return self._stride.rows()

    def _has_enough(self) -> bool:
        """Whether those behind this vertex should be given with one commit what has been made."""
        rows = self._rows_made - self._rows_committed
        backlogs = (output.backlog for output in self._parts.written)
        return any(each.is_enough(rows) for each in backlogs if each is not None)

    def _do_what_is_due(self, now_us: int) -> bool:
        """What operators have to do by the clock, behind the rows that came by then."""
        due_us = self._parts.chain.due_us()
        if due_us is None or due_us > now_us or self._is_within_delivery:
            return False
        self._emit_rows(self._parts.chain.on_time(self._on_bad_row))
        self._mark_dirty()
        return True

    def _say_that_it_waits(self) -> None:
        """Commit nothing now and then, where readers go on without those who are silent.

        A slow reader holds this vertex back. The fast ones beside it would take that for silence,
        and drop the rows that come afterwards as late.
        """
        silence_ms = self._parts.settings.idle_timeout_ms
        waited_s = self._parts.clock.monotonic_s() - self._committed_s
        if silence_ms is not None and waited_s >= silence_ms / 4_000:
            self._mark_dirty()

    def _process(self, delivery: Delivery) -> None:
        for piece in delivery.batches:
            self._rows_in += piece.batch.num_rows
            self._run(piece)
        if delivery.rejected is not None:
            self._reject(delivery.rejected)
        if delivery.had_input and not self._parts.chain.had_input:
            self._emit_rows(self._parts.chain.begin_input(self._on_bad_row))
        self._caught_up = False
        self._is_within_delivery = not delivery.is_whole
        if delivery.is_whole:
            self._parts.time.hear(delivery.words)
            self._advance_time()

    def _run(self, piece: PortBatch) -> None:
        try:
            watermark_us = self._parts.time.watermark_us
            chain, port = self._parts.chain, piece.port
            self._emit(port, chain.process(piece.batch, watermark_us, self._on_bad_row, port))
        except RowError as error:
            row = error.details.get("row")
            if len(piece.origins) > 1:
                self._run(piece.part_of(row or 0))  # which fails too, and says where it stands
            ((origin, _),) = piece.origins[:1]
            raise RowError(
                f"vertex {self.name}: row {row} of {origin} fails: {error.message}. Fix the query, "
                "or set the option deadLetterStream to go on without such rows",
                **(error.details | {"vertex": self.name, "origin": origin}),
            ) from error

    @property
    def _on_bad_row(self) -> OnBadRow:
        return "raise" if self._parts.dead_letter_tag is None else "reject"

    def _emit(self, port: int, output: ChainOutput) -> None:
        self._emit_rows(output.batches)
        self._late_rows += output.late_rows
        self._parts.time.see(port, output.max_event_time_us)
        if output.max_event_time_us is not None:
            known_us = self._newest_event_us
            newest_us = output.max_event_time_us
            self._newest_event_us = newest_us if known_us is None else max(known_us, newest_us)
        if output.late is not None:
            self._keep_late(output.late)
        if output.rejected is not None:
            self._reject(output.rejected)

    def _emit_rows(self, batches: Batches) -> None:
        """Rows that left the chain, and beside them those that operators made in vain."""
        for batch in batches:
            for number, rows in self._parts.chain.outputs(batch, self._on_bad_row):
                output = self._parts.written[number]
                self._rows_made += rows.num_rows
                if output.is_result or not self._writes_results:
                    self._rows_out += rows.num_rows
                for tag, part in output.partition(rows):
                    self._parts.outputs.add(RecordKind.DATA, tag, part)
        aside = self._parts.chain.take_aside()
        self._late_rows += aside.late_rows
        for late in aside.late:
            self._keep_late(late)
        for rejected in aside.rejected:
            self._reject(rejected)
        for spec, kept in aside.observed:
            self._parts.outputs.add(
                RecordKind.DATA, self._parts.observed_tag, observed_rows(spec, kept)
            )

    def _keep_late(self, late: pa.RecordBatch) -> None:
        if self._parts.late_tag is not None:
            self._parts.outputs.add(RecordKind.DATA, self._parts.late_tag, late)

    def _reject(self, rejected: pa.RecordBatch) -> None:
        self._rejected_rows += rejected.num_rows
        if rejected.num_rows and self._parts.dead_letter_tag is not None:
            others = self._parts.dead_letter_names
            names = [others.get((field.name, field.type), field.name) for field in rejected.schema]
            letters = rejected.rename_columns(names)
            self._parts.outputs.add(RecordKind.DATA, self._parts.dead_letter_tag, letters)

    def _pass_time(self) -> bool:
        """Let event time go on without those who have nothing to say, once all was heard."""
        time = self._parts.time
        if time.ended or not self._parts.input.is_drained():
            return False
        goes_on = time.listen(self._now_ms())
        if not self._caught_up and self._has_caught_up():
            self._caught_up = goes_on = True
        if goes_on:
            self._advance_time()
            self._mark_dirty()
        if self._parts.resting is not None and time.rests:
            self._rests = True
            if self._parts.resting.is_due(time.watermark_us):
                self._mark_dirty()
        return goes_on

    def _has_caught_up(self) -> bool:
        """Whether nobody has to wait for rows of this drained vertex, as there are none for now."""
        parts = self._parts
        if not parts.settings.available_now:
            return parts.input.has_nothing_yet()
        return parts.time.caught_up

    def _advance_time(self) -> None:
        """Let event time come as far as is known, after the rows that were just processed."""
        time = self._parts.time
        if time.advance(waits=self._parts.settings.available_now and not self._caught_up):
            self._emit_rows(
                self._parts.chain.on_watermark(
                    time.watermark_us, time.of_ports_us, self._on_bad_row
                )
            )

    def _append_early_if_large(self) -> None:
        outputs = self._parts.outputs
        if outputs.bytes_waiting >= self._parts.settings.early_append_bytes_max:
            self._begun_s = self._parts.clock.monotonic_s()
            outputs.append_early()
            self._early_appends += 1
            self._settle_append()

    def _mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._due_s = self._parts.clock.monotonic_s() + self._interval_left_us() / 1e6

    def _interval_left_us(self) -> int:
        """How long a commit may wait from now on.

        The intervals of a trigger are those of the wall clock, so that all vertices have the same.
        """
        trigger_us = self._parts.trigger_us
        if trigger_us is None:
            return self._parts.settings.commit_interval_ms * 1000
        return trigger_us - self._parts.clock.now_us() % trigger_us

    def _is_commit_due(self) -> bool:
        """At once when there is nothing more to take, at the latest after the interval.

        "At once" leaves a short gap after the last commit, so that a trickle of rows does not make
        the log sync for each of them. With a trigger nothing but the end comes before its time.
        """
        if self._is_within_delivery:
            return False
        now_s = self._parts.clock.monotonic_s()
        if not self._is_dirty:
            return self._withheld_until_s is not None and now_s >= self._withheld_until_s
        if now_s >= self._due_s or self._parts.time.ended:
            return True
        if self._parts.trigger_us is not None:
            return False
        if self._parts.is_portioned or self._has_enough():
            return True
        return self._parts.input.has_paused() and now_s >= self._committed_s + COMMIT_GAP_S

    def _begin_commit(self, *, is_forced: bool = False) -> None:
        parts = self._parts
        whole = parts.chain.owes_whole_result()
        self._emit_rows(parts.chain.on_commit(self._on_bad_row))
        self._add_changes()
        marker = self._next_marker(whole)
        self._begun_s = parts.clock.monotonic_s()
        told_of = set(parts.outputs.written)
        if whole:
            told_of.update(tag for output in parts.written for tag in output.tags)
        tags = parts.announcing.tags(marker, told_of, self._begun_s, is_forced)
        self._begun = _Begun(marker, tags)
        self._is_dirty = False
        self._rows_committed = self._rows_made
        parts.outputs.begin_commit(tags, marker.encode())
        self._settle_append()

    def _settle_append(self, patience_s: float = APPEND_PATIENCE_S) -> bool:
        """Take note of the append that was begun, if it is over; return whether none is under way.

        One that takes very long is waited for: a thread that stands still is seen from outside.
        """
        parts = self._parts
        is_patient = parts.clock.monotonic_s() < self._begun_s + patience_s
        if parts.outputs.is_under_way and is_patient:
            return False
        position = parts.outputs.settle()
        if position is not None and self._begun is not None:
            begun, self._begun = self._begun, None
            self._end_commit(begun, position)
        return True

    def _end_commit(self, begun: _Begun, position: Position) -> None:
        parts, marker = self._parts, begun.marker
        parts.statics.take_over()
        parts.announcing.note(marker, begun.tags, self._begun_s)
        self._withheld_until_s = parts.announcing.withheld_until_s(marker)
        self._marker = marker
        self._marker_position = position
        self._was_empty = self._is_empty()
        self._committed_s = parts.clock.monotonic_s()
        self._commits += 1
        parts.input.committed(marker.offset)
        if parts.abreast is not None:
            parts.abreast.note(marker.offset, parts.outputs.units_rows.total())
        for output in parts.written:
            if output.backlog is not None:
                # Late rows and dead letters never come to the sink, nor do markers of nothing else.
                output.backlog.add(position, self._written_to(output.tags))
        if marker.ended:
            self._move(VertexState.ENDED)
        self._commits_unpictured += 1
        self._trim_if_due()

    def _written_to(self, tags: tuple[str, ...]) -> Amount:
        outputs = self._parts.outputs
        return Amount(
            sum(outputs.row_bytes[tag] for tag in tags),
            sum(outputs.units_rows[tag] for tag in tags),
        )

    def _add_changes(self) -> None:
        recovers = self._parts.settings.recovers
        for name, state in sorted(self._parts.chain.states.items()):
            if not recovers:
                state.discard_changes()
                continue
            changes = state.take_changes()
            if changes is not None:
                self._state_rows_changed += changes.num_rows
                named = changes.replace_schema_metadata({STATE_NAME: name})
                self._parts.outputs.add(RecordKind.CHANGE, self._parts.change_tag, named)

    def _next_marker(self, whole: bool) -> Marker:
        position: dict[str, Any] = self._parts.input.position()
        time = self._parts.time
        if self._rests and self._parts.resting is not None:
            self._parts.resting.note_said()
            time.pass_rest_on()
        return Marker(
            vertex=self.name,
            instance=self._marker.instance,
            epoch=self._marker.epoch + 1,
            watermark_us=time.watermark_us,
            behind_us=self._parts.chain.behind_us,
            ended=time.ended,
            caught_up=self._caught_up,
            rests=self._rests,
            had_input=self._parts.chain.had_input,
            whole=whole,
            state_from=self._marker_position if self._was_empty else self._marker.state_from,
            ports=time.marks(),
            statics=self._parts.statics.versions(),
            progress=self._parts.chain.progress(),
            late_rows=self._late_rows,
            rejected_rows=self._rejected_rows,
            **position,
        )

    def _begin_checkpoint_if_due(self, position: Position) -> None:
        """Begin a checkpoint, if the state is as the last marker has committed it."""
        if self._is_dirty or self._snapshots is not None or not self._commits_unpictured:
            return
        if not self._parts.settings.recovers:
            return
        if self._parts.chain.states and self._is_checkpoint_due():
            self._begin_checkpoint(position)

    def _is_checkpoint_due(self) -> bool:
        settings = self._parts.settings
        age_s = self._parts.clock.monotonic_s() - self._pictured_s
        return (
            self._commits_unpictured >= settings.checkpoint_interval_commits
            or age_s >= settings.checkpoint_interval_ms / 1000
            or self._is_checkpoint_asked_for
        )

    def _begin_checkpoint(self, position: Position) -> None:
        """Have one made of what is in the log, if that is little; begin to copy if not."""
        states = self._parts.chain.states
        changed = self._state_rows_changed - self._changed_by[0]
        is_much = changed > CHANGES_PER_ROW_MAX * sum(map(len, states.values()))
        if is_much or self._parts.checkpointer.needs_picture(self.name):
            self._begin_picture(position)
        else:
            fence = Fence(self.name, self._marker.instance)
            if self._parts.checkpointer.submit(CheckpointJob(fence, position, {}, states)):
                self._commits_unpictured = 0
                self._note_checkpoint()

    def _begin_picture(self, position: Position) -> None:
        states = self._parts.chain.states
        self._snapshots = {name: state.begin_snapshot() for name, state in states.items()}
        self._snapshot_position = position
        self._commits_unpictured = 0  # those made while it is copied are not in the picture

    def _note_checkpoint(self) -> None:
        self._checkpoints += 1
        self._pictured_s = self._parts.clock.monotonic_s()
        self._changed_by = (self._changed_by[1], self._state_rows_changed)
        self._is_checkpoint_asked_for = False

    def _trim_if_due(self) -> None:
        """Have what this marker made needless trimmed, after many commits or much input, or at once
        where a source leaves something behind.

        Epochs go on over restarts, so that a vertex of many short lives trims too.
        """
        taken, left = self._parts.input.bytes_taken, self._parts.input.left_behind()
        if (
            self._marker.epoch % self._parts.trim_commits == 0
            or self._marker.ended
            or taken - self._trimmed_bytes >= TRIM_BYTES
            or left > self._left_behind
        ):
            self._is_trim_due = True
        if self._is_trim_due and self._parts.checkpointer.submit(self._parts.trim):
            self._is_trim_due = False
            self._trimmed_bytes, self._left_behind = taken, left

    def _copy_some_state(self) -> None:
        """Copy a bounded piece of the picture, and hand it over once it is whole."""
        if self._snapshots is None:
            return
        for snapshot in self._snapshots.values():
            if not snapshot.copy_some():
                return
        fence = Fence(self.name, self._marker.instance)
        job = CheckpointJob(fence, self._snapshot_position, self._snapshots)
        if self._parts.checkpointer.submit(job):
            self._snapshots = None
            self._note_checkpoint()

    def _is_empty(self) -> bool:
        """Whether all that a state was kept for has been emitted: it begins anew from here."""
        states = self._parts.chain.states.values()
        return bool(states) and not any(map(len, states))

    def _now_ms(self) -> float:
        return self._parts.clock.monotonic_s() * 1000

    def _move(self, state: VertexState) -> None:
        assert state in _MOVES[self.state], f"{self.name}: {self.state} cannot become {state}"
        self.state = state


def state_too_large(vertex: str, error: StateTooLarge) -> StateTooLarge:
    """The error of a state with the vertex that has it, and what can be done."""
    query, stage, _ = vertex.split(".")
    return StateTooLarge(
        f"query {query}, stage {stage}: vertex {vertex} would have more state than stateBytesMax "
        f"allows: {error.message}. Start the query again with a larger stateBytesMax, and it goes "
        "on from its last commit. If the state grows without end, group by windows of a column "
        "with a watermark, or by fewer keys. With more parallelism, under another queryName, each "
        "vertex has fewer of the keys",
        **(error.details | {"query": query, "vertex": vertex}),
    )
