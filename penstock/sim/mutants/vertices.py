"""Broken fences, readers, sources, appends, markers and event time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.errors import OutcomeUnknown
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log, instance_key, register
from penstock.log.record import START, Append, Position, Record
from penstock.operators.chain import Chain, ChainOutput
from penstock.runtime import assembly
from penstock.runtime.appending import PendingAppend
from penstock.runtime.event_time import Watermarks
from penstock.runtime.inputs import Delivery, SourceInput, StreamInput
from penstock.runtime.markers import WATERMARK_NONE, Marker, decode_marker
from penstock.runtime.outputs import Outputs
from penstock.runtime.vertex import Vertex, VertexParts, VertexState
from penstock.sim.logs import ProcessLog
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.swaps import swapped

# The fence ---------------------------------------------------------------------------------


def _skip_fence() -> AbstractContextManager[None]:
    append = ProcessLog.append
    return swapped((ProcessLog, "append", lambda self, entries, fence: append(self, entries)))


def _reuse_instance() -> AbstractContextManager[None]:
    def take_nothing(
        log: Log, vertex: str, vertex_tag: str, instance: int
    ) -> tuple[Marker, Position]:
        current = log.get(instance_key(vertex))
        if current is None:
            register(log, vertex, instance)
        return _last_marker(log, vertex, vertex_tag, int(current.value) if current else instance)

    return swapped((assembly, "fence", take_nothing))


def _last_marker(log: Log, vertex: str, vertex_tag: str, instance: int) -> tuple[Marker, Position]:
    record = log.last(vertex_tag)
    if record is None:
        return Marker(vertex=vertex, instance=instance, epoch=0), START
    return replace(decode_marker(record), instance=instance), record.position


def _marker_before_fence() -> AbstractContextManager[None]:
    def fence(log: Log, vertex: str, vertex_tag: str, instance: int) -> tuple[Marker, Position]:
        last = _last_marker(log, vertex, vertex_tag, instance)
        register(log, vertex, instance)
        return last

    return swapped((assembly, "fence", fence))


# Reading what is committed -----------------------------------------------------------------


def _release_uncommitted() -> AbstractContextManager[None]:
    def release(self: Any, marker: Record) -> None:
        found = sorted((r for rs in self._pending.values() for r in rs), key=lambda r: r.position)
        self._pending.clear()
        if marker.position > self._consumed:
            self._ready.append(Release(marker, tuple(found)))

    return swapped((CommittedReader, "_release", release))


def _ignore_instances() -> AbstractContextManager[None]:
    def release(self: Any, marker: Record) -> None:
        pending = self._pending.pop(marker.producer, [])
        if marker.position > self._consumed:
            self._ready.append(Release(marker, tuple(pending)))

    return swapped((CommittedReader, "_release", release))


def _forget_early_appends() -> AbstractContextManager[None]:
    def release(self: Any, marker: Record) -> None:
        pending = self._pending.pop(marker.producer, [])
        together: list[Record] = []
        for record in reversed(pending):
            if record.position != marker.position - len(together) - 1:
                break
            together.insert(0, record)
        if marker.position > self._consumed:
            own = tuple(r for r in together if r.instance == marker.instance)
            self._ready.append(Release(marker, own))

    return swapped((CommittedReader, "_release", release))


def _resume_at_consumed() -> AbstractContextManager[None]:
    return swapped((CommittedReader, "resume", property(lambda self: self._consumed)))


def _deliver_again() -> AbstractContextManager[None]:
    def release(self: Any, marker: Record) -> None:
        pending = self._pending.pop(marker.producer, [])
        own = tuple(record for record in pending if record.instance == marker.instance)
        self._ready.append(Release(marker, own))

    return swapped((CommittedReader, "_release", release))


def _consumed_not_in_marker() -> AbstractContextManager[None]:
    position = StreamInput.position
    return swapped((StreamInput, "position", lambda self: position(self) | {"consumed": START}))


# Sources -----------------------------------------------------------------------------------


def _offset_ahead() -> AbstractContextManager[None]:
    def position(self: Any) -> dict[str, Any]:
        ahead = self._offset if self._ended else self._offset + 1
        return {"consumed": START, "resume": START, "offset": ahead}

    return swapped((SourceInput, "position", position))


def _offset_not_in_marker() -> AbstractContextManager[None]:
    position = SourceInput.position
    return swapped((SourceInput, "position", lambda self: position(self) | {"offset": None}))


# Appending ---------------------------------------------------------------------------------


def _appending(on_unknown: Callable[[Any], tuple[Position, ...] | None]) -> Any:
    def begin(self: Any) -> None:
        self.settle()
        while True:
            try:
                positions: tuple[Position, ...] = self._log.append(self._entries, self._fence)
                break
            except OutcomeUnknown:
                given_up = on_unknown(self)
                if given_up is not None:
                    positions = given_up
                    break
        self._pending = PendingAppend(Append(self._entries, self._fence))
        self._pending.outcome = positions
        self._entries = []
        self.bytes_waiting = 0

    return begin


def _retry_under_new_sequences() -> AbstractContextManager[None]:
    def renumber(self: Any) -> None:
        self._entries = [
            replace(entry, sequence=self._sequence + at) for at, entry in enumerate(self._entries)
        ]
        self._sequence += len(self._entries)

    return swapped((Outputs, "_begin", _appending(renumber)))


def _take_unknown_for_done() -> AbstractContextManager[None]:
    return swapped((Outputs, "_begin", _appending(lambda self: (self._log.tail(),))))


def _marker_before_its_rows() -> AbstractContextManager[None]:
    commit = Outputs.begin_commit

    def marker_first(self: Any, tags: tuple[str, ...], marker: bytes) -> None:
        rows, self._rows = self._rows, {}
        commit(self, tags, marker)
        self._rows = rows
        self.append_early()

    return swapped((Outputs, "begin_commit", marker_first))


def _marker_without_stream_tag() -> AbstractContextManager[None]:
    commit = Outputs.begin_commit

    def untagged(self: Outputs, tags: tuple[str, ...], marker: bytes) -> None:
        commit(self, tuple(tag for tag in tags if not tag.endswith("/m")), marker)

    return swapped((Outputs, "begin_commit", untagged))


# Markers -----------------------------------------------------------------------------------


def _epoch_stays() -> AbstractContextManager[None]:
    next_marker = Vertex._next_marker
    return swapped(
        (
            Vertex,
            "_next_marker",
            lambda self, whole: replace(next_marker(self, whole), epoch=self._marker.epoch),
        )
    )


def _watermark_not_restored() -> AbstractContextManager[None]:
    time = assembly.Assembly._time

    def forgetful(self: assembly.Assembly, stage: Any, marker: Marker, chain: Chain) -> Any:
        return time(self, stage, replace(marker, watermark_us=WATERMARK_NONE), chain)

    return swapped((assembly.Assembly, "_time", forgetful))


def _end_not_restored() -> AbstractContextManager[None]:
    """What an earlier version did: a vertex that had ended came back and waited for more."""
    start = Vertex.__init__

    def restless(self: Vertex, parts: VertexParts, marker: Marker, *rest: Any) -> None:
        start(self, parts, marker, *rest)
        self.state = VertexState.RUNNING

    return swapped((Vertex, "__init__", restless))


def _producers_not_restored() -> AbstractContextManager[None]:
    start = Watermarks.__init__

    def forgetful(self: Watermarks, expected: Any, known: Any, *rest: Any) -> None:
        start(self, expected, {}, *rest)

    return swapped((Watermarks, "__init__", forgetful))


def _progress_not_restored() -> AbstractContextManager[None]:
    return swapped((Chain, "restore_progress", lambda self, progress: None))


# Event time --------------------------------------------------------------------------------


def _watermark_ahead() -> AbstractContextManager[None]:
    process = Vertex._process

    def hear_first(self: Any, delivery: Delivery) -> None:
        self._parts.time.hear(delivery.words)
        self._advance_time()
        process(self, delivery)

    return swapped((Vertex, "_process", hear_first))


def _greatest_watermark() -> AbstractContextManager[None]:
    def advance(self: Any) -> None:
        furthest = max(said.watermark_us for said in self._producers.values())
        self._watermark_us = max(self._watermark_us, furthest)

    return swapped((Watermarks, "_advance", advance))


# Rows that go elsewhere --------------------------------------------------------------------


def _late_not_counted() -> AbstractContextManager[None]:
    emit = Vertex._emit

    def silent(self: Vertex, port: int, output: ChainOutput) -> None:
        emit(self, port, replace(output, late_rows=0))

    return swapped((Vertex, "_emit", silent))


def _late_not_streamed() -> AbstractContextManager[None]:
    emit = Vertex._emit

    def dropping(self: Vertex, port: int, output: ChainOutput) -> None:
        emit(self, port, replace(output, late=None))

    return swapped((Vertex, "_emit", dropping))


def _dead_letter_twice() -> AbstractContextManager[None]:
    reject = Vertex._reject

    def twice(self: Vertex, rejected: pa.RecordBatch) -> None:
        reject(self, rejected)
        reject(self, rejected.slice(0, 1))

    return swapped((Vertex, "_reject", twice))


VERTICES: tuple[Mutant, ...] = (
    Mutant("skip_fence", "an append does not look at the fence", 2, _skip_fence),
    Mutant("reuse_instance", "recovery goes on under the old instance number", 1, _reuse_instance),
    Mutant("marker_before_fence", "recovery reads the last marker, then fences", 2,
           _marker_before_fence),
    Mutant("release_uncommitted", "a marker releases the pending rows of every producer", 1,
           _release_uncommitted),
    Mutant("ignore_instances", "a marker commits what a dead instance left behind", 6,
           _ignore_instances),
    Mutant("forget_early_appends", "a marker commits its own append only", 0,
           _forget_early_appends),
    Mutant("resume_at_consumed", "a reader resumes at the last consumed marker", 19,
           _resume_at_consumed),
    Mutant("deliver_again", "markers that were consumed deliver again after a restart", 2,
           _deliver_again),
    Mutant("consumed_not_in_marker", "the marker forgets the last input marker", 7,
           _consumed_not_in_marker),
    Mutant("offset_ahead", "the offset in the marker is ahead of the processed rows", 2,
           _offset_ahead),
    Mutant("offset_not_in_marker", "the marker forgets the offset of the source", 2,
           _offset_not_in_marker),
    Mutant("retry_under_new_sequences", "an unknown append is repeated under new sequences", 22,
           _retry_under_new_sequences),
    Mutant("take_unknown_for_done", "an unknown append counts as done", 1,
           _take_unknown_for_done),
    Mutant("marker_before_its_rows", "the marker goes out before the rows that it commits", 2,
           _marker_before_its_rows),
    Mutant("marker_without_stream_tag", "markers do not reach the readers of the stream", 0,
           _marker_without_stream_tag),
    Mutant("epoch_stays", "the epoch does not advance", 0, _epoch_stays),
    Mutant("watermark_not_restored", "a restart forgets the watermark", 0,
           _watermark_not_restored),
    Mutant("end_not_restored", "a restart forgets that the vertex has ended", 0,
           _end_not_restored),
    Mutant("producers_not_restored", "a restart forgets what its producers have said", 7,
           _producers_not_restored),
    Mutant("progress_not_restored", "a restart forgets the chain's progress", 2,
           _progress_not_restored),
    Mutant("watermark_ahead", "the watermark rises before the rows it speaks of", 7,
           _watermark_ahead),
    Mutant("greatest_watermark", "the furthest producer decides, not the slowest", 2,
           _greatest_watermark),
    Mutant("late_not_counted", "late rows are dropped without a count", 14, _late_not_counted),
    Mutant("late_not_streamed", "late rows do not reach their side stream", 17,
           _late_not_streamed),
    Mutant("dead_letter_twice", "a failing row is dead-lettered twice", 16, _dead_letter_twice),
)  # fmt: skip
