"""More broken readers, producers' ends, silences and restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from penstock.errors import StreamError
from penstock.log import committed, index, validate
from penstock.log.committed import CommittedReader, Release
from penstock.log.record import Append, Fence, Position, Record, RecordKind
from penstock.runtime import assembly
from penstock.runtime.appending import AppendQueue, Appends, PendingAppend
from penstock.runtime.event_time import PortTime, Silence, Watermarks
from penstock.runtime.markers import WATERMARK_NONE, Marker
from penstock.runtime.outputs import Outputs
from penstock.runtime.vertex import Vertex, VertexParts
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped
from penstock.testing import memory_log


def _take_in(self: Any, records: list[Record]) -> None:
    for record in records:
        self._cursor = record.position
        if record.kind is RecordKind.MARKER:
            self._release(record)
        else:
            self._pending.setdefault(record.producer, []).append(record)


def _full_page_is_the_end() -> AbstractContextManager[None]:
    def advance(self: Any) -> bool:
        tail = self._log.tail()
        if self._cursor >= tail:
            return False
        records = self._read_page() if self._begun_at is not None else self._read_first_page()
        _take_in(self, records)
        self._cursor = max(self._cursor, tail)
        return True

    return swapped((CommittedReader, "_advance", advance))


def _tail_after_read() -> AbstractContextManager[None]:
    def advance(self: Any) -> bool:
        if self._cursor >= self._log.tail():
            return False
        records = self._read_page() if self._begun_at is not None else self._read_first_page()
        _take_in(self, records)
        if len(records) < committed.READ_RECORDS:
            self._cursor = max(self._cursor, self._log.tail())
        return True

    return swapped((CommittedReader, "_advance", advance))


def _resume_forgets_ready() -> AbstractContextManager[None]:
    def resume(self: Any) -> Position:
        waiting = [records[0].position for records in self._pending.values() if records]
        return Position(min(waiting, default=self._cursor + 1) - 1)

    return swapped((CommittedReader, "resume", property(resume)))


def _consumed_markers_clear_nothing() -> AbstractContextManager[None]:
    def release(self: Any, marker: Record) -> None:
        if marker.position <= self._consumed:
            return
        pending = self._pending.pop(marker.producer, [])
        own = tuple(record for record in pending if record.instance == marker.instance)
        self._ready.append(Release(marker, own))

    return swapped((CommittedReader, "_release", release))


# Ends and silences -------------------------------------------------------------------------


def _ended_with_the_first() -> AbstractContextManager[None]:
    def ended(self: Any) -> bool:
        return any(said.ended for said in self._producers.values())

    return swapped((Watermarks, "ended", property(ended)))


def _expected_forgotten() -> AbstractContextManager[None]:
    return swapped((Watermarks, "_expect", lambda self: None))


def _others_not_expected() -> AbstractContextManager[None]:
    """What an earlier version did: a stream of another query ended before all had spoken."""
    start = Watermarks.__init__

    def alone(self: Watermarks, expected: Any, known: Any, *rest: Any) -> None:
        start(self, expected, known, *rest[:3])

    return swapped((Watermarks, "__init__", alone))


def _idle_at_once() -> AbstractContextManager[None]:
    return swapped((Silence, "is_over", lambda self, producer: True))


def _held_up_counts_as_silence() -> AbstractContextManager[None]:
    return swapped((Silence, "_LOOKS", 1e-9))


def _idle_before_input() -> AbstractContextManager[None]:
    """What an earlier version did: silence was judged before the input that waits."""
    take = Vertex._take_and_process

    def hasty(self: Any) -> bool:
        if self._parts.time.listen(self._now_ms()):
            self._advance_time()
            self._mark_dirty()
        return take(self)

    return swapped((Vertex, "_take_and_process", hasty))


def _idle_for_ever() -> AbstractContextManager[None]:
    """Whoever was silent once stays left behind, whatever it says."""
    is_over = Silence.is_over
    silenced: WeakKeyDictionary[Silence, set[str]] = WeakKeyDictionary()

    def grim(self: Silence, producer: str) -> bool:
        if is_over(self, producer):
            silenced.setdefault(self, set()).add(producer)
        return producer in silenced.get(self, ())

    return swapped((Silence, "is_over", grim))


def _available_now_at_once() -> AbstractContextManager[None]:
    """Event time rises before all that is available was read."""
    advance = PortTime.advance
    return swapped((PortTime, "advance", lambda self, waits: advance(self, False)))


def _seen_not_restored() -> AbstractContextManager[None]:
    start = PortTime.__init__

    def forgetful(
        self: Any, heard: Any, delay: Any, mark: Any, watermark_us: int, *more: Any
    ) -> None:
        start(self, heard, delay, mark._replace(seen_us=watermark_us), watermark_us, *more)

    return swapped((PortTime, "__init__", forgetful))


def _source_watermark_lost() -> AbstractContextManager[None]:
    hear = PortTime.hear

    def deaf(self: Any, word: Any) -> None:
        mute = word.said._replace(watermark_us=WATERMARK_NONE)
        hear(self, word._replace(said=mute) if word.producer is None else word)

    return swapped((PortTime, "hear", deaf))


def _last_voice_only() -> AbstractContextManager[None]:
    """Whoever spoke last decides how far time is."""
    hear = Watermarks.hear

    def listen_to_one(self: Any, producer: str, said: Any) -> None:
        hear(self, producer, said)
        self._watermark_us = max(self._watermark_us, said.watermark_us)

    return swapped((Watermarks, "hear", listen_to_one))


# Steps and restarts ------------------------------------------------------------------------


def _beginning(change: Callable[[Any], None]) -> AbstractContextManager[None]:
    start = Vertex.__init__

    def begin(self: Vertex, parts: VertexParts, marker: Marker, *rest: Any) -> None:
        start(self, parts, marker, *rest)
        change(self)

    return swapped((Vertex, "__init__", begin))


def _late_count_forgotten() -> AbstractContextManager[None]:
    return _beginning(lambda vertex: setattr(vertex, "_late_rows", 0))


def _rejected_count_forgotten() -> AbstractContextManager[None]:
    return _beginning(lambda vertex: setattr(vertex, "_rejected_rows", 0))


def _commit_within_a_delivery() -> AbstractContextManager[None]:
    due = Vertex._is_commit_due

    def hasty(self: Any) -> bool:
        self._is_within_delivery = False
        return due(self)

    return swapped((Vertex, "_is_commit_due", hasty))


def _update_rows_after_changes() -> AbstractContextManager[None]:
    """What a commit gives out is made after the changes of its state were taken."""
    commit, add_changes = Vertex._begin_commit, Vertex._add_changes

    def changes_first(self: Any, **named: Any) -> None:
        add_changes(self)
        commit(self, **named)

    return swapped(
        (Vertex, "_begin_commit", changes_first), (Vertex, "_add_changes", lambda self: None)
    )


# Appends -----------------------------------------------------------------------------------


def _early_append_unfenced() -> AbstractContextManager[None]:
    def early(self: Any) -> None:
        self._seal_rows()
        if self._entries:
            self.settle()
            self._log.append(self._entries, None)
            self._entries = []
            self.bytes_waiting = 0

    return swapped((Outputs, "append_early", early))


def _outcomes_mixed_up() -> AbstractContextManager[None]:
    carry_out = Appends.carry_out

    def mixing(self: Appends, group: Sequence[PendingAppend]) -> None:
        carry_out(self, group)
        outcomes = [pending.outcome for pending in group]
        for pending, outcome in zip(group, (*outcomes[1:], *outcomes[:1]), strict=True):
            pending.outcome = outcome

    return swapped((Appends, "carry_out", mixing))


def _failed_group_counts_as_done() -> AbstractContextManager[None]:
    carry_out = Appends.carry_out

    def hopeful(self: Any, group: Sequence[PendingAppend]) -> None:
        if len(group) == 1:
            carry_out(self, group)
            return
        try:
            self._log.append_each([pending.append for pending in group])
            carry_out(self, group)  # for their positions
        except StreamError:
            for pending in group:
                pending.outcome = (self._log.tail(),)

    return swapped((Appends, "carry_out", hopeful))


def _on_before_the_append() -> AbstractContextManager[None]:
    begin = AppendQueue.begin

    def told_at_once(self: Any, append: Append) -> PendingAppend:
        begin(self, append)
        told = PendingAppend(append)
        told.outcome = (Position(self._log.tail() + len(append.entries)),)
        return told

    return swapped((AppendQueue, "begin", told_at_once))


def _fence_off_by_one() -> AbstractContextManager[None]:
    check = validate.check_fence

    def lenient(fence: Fence, registered: bytes | None) -> None:
        if registered is None or int(registered) - 1 > fence.instance:
            check(fence, registered)

    return swapped((memory_log, "check_fence", lenient), (index, "check_fence", lenient))


def _wrong_substream() -> AbstractContextManager[None]:
    def dealer(tags: Any, by: Any) -> Any:
        def deal(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
            return [(tags[batch.num_rows % len(tags)], batch)]

        return deal

    return swapped((assembly, "partitioner", dealer))


def _appends_beside(scenario: Scenario) -> bool:
    return scenario.appends_beside


MORE_VERTICES: tuple[Mutant, ...] = (
    Mutant("full_page_is_the_end", "a full page counts as the last one", 0, _full_page_is_the_end),
    Mutant("tail_after_read", "the tail is read after the page: what came between is lost", 0,
           _tail_after_read),
    Mutant("resume_forgets_ready", "resume forgets what was read and not taken", 96,
           _resume_forgets_ready),
    Mutant("consumed_markers_clear_nothing", "consumed markers leave their rows pending", 19,
           _consumed_markers_clear_nothing),
    Mutant("ended_with_the_first", "the input has ended when one producer has", 2,
           _ended_with_the_first),
    Mutant("expected_forgotten", "only producers that were heard count", 2, _expected_forgotten),
    Mutant("others_not_expected", "producers of another query are not waited for", 118,
           _others_not_expected),
    Mutant("idle_at_once", "a producer is left behind at once, whatever the timeout", 9,
           _idle_at_once),
    Mutant("held_up_counts_as_silence", "a reader takes its own pause for its producers'", 9,
           _held_up_counts_as_silence),
    Mutant("idle_before_input", "silence is judged before the input that waits", 9,
           _idle_before_input),
    Mutant("idle_for_ever", "a producer that was silent once is never waited for again", 409,
           _idle_for_ever, lambda scenario: scenario.settings.idle_timeout_ms is not None),
    Mutant("available_now_at_once", "event time rises before all that is there was read", 33,
           _available_now_at_once),
    Mutant("seen_not_restored", "a restart forgets the times that it has seen", 136,
           _seen_not_restored, lambda scenario: scenario.settings.available_now),
    Mutant("source_watermark_lost", "what a source says about time is not heard", 0,
           _source_watermark_lost),
    Mutant("last_voice_only", "whoever spoke last decides how far time is", 2, _last_voice_only),
    Mutant("late_count_forgotten", "late rows are counted anew after a restart", 14,
           _late_count_forgotten),
    Mutant("rejected_count_forgotten", "rejected rows are counted anew after a restart", 17,
           _rejected_count_forgotten),
    Mutant("commit_within_a_delivery", "a marker in the middle of a delivery", 13,
           _commit_within_a_delivery),
    Mutant("update_rows_after_changes", "a commit's rows are made after its changes", 2,
           _update_rows_after_changes),
    Mutant("early_append_unfenced", "an early append does not look at the fence", 19,
           _early_append_unfenced),
    Mutant("outcomes_mixed_up", "of appends made together, one gets the outcome of another", 314,
           _outcomes_mixed_up, _appends_beside),
    Mutant("failed_group_counts_as_done", "appends made together count as done, come what may", 316,
           _failed_group_counts_as_done, _appends_beside),
    Mutant("on_before_the_append", "a vertex goes on before its append is in the log", 53,
           _on_before_the_append, _appends_beside),
    Mutant("fence_off_by_one", "the last instance but one may append too", 42, _fence_off_by_one),
    Mutant("wrong_substream", "rows of one key go to several vertices", 2, _wrong_substream),
)  # fmt: skip
