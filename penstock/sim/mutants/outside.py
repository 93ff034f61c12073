"""Broken writers from outside, and broken feeding of sinks."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from penstock.api import datasource_ranges
from penstock.api.sink_runner import SinkRunner
from penstock.errors import StreamError
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.log.record import Position
from penstock.runtime import recovery, retention, streams
from penstock.runtime.backlog import SinkProgress, StoredProgress
from penstock.runtime.outputs import Outputs
from penstock.runtime.retention import Cut
from penstock.runtime.streams import StreamReader, StreamWriter
from penstock.sim import readers, retaining
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped


def _writer_goes_on() -> AbstractContextManager[None]:
    """What an earlier version did: what a failed write had queued went out with the next one."""
    settle = Outputs.settle

    def keeping(self: Any) -> Position | None:
        pending = self._pending
        try:
            return settle(self)
        except StreamError:
            if pending is not None:
                self._entries = list(pending.append.entries)
            raise

    return swapped((StreamWriter, "_begin_again", lambda self: None), (Outputs, "settle", keeping))


def _writer_offset_lost() -> AbstractContextManager[None]:
    next_marker = StreamWriter._next_marker

    def without(self: Any, offset: Any, *rest: Any) -> Any:
        return next_marker(self, None, *rest)

    return swapped((StreamWriter, "_next_marker", without))


def _writer_epoch_stays() -> AbstractContextManager[None]:
    next_marker = StreamWriter._next_marker

    def again(self: Any, *rest: Any) -> Any:
        return replace(next_marker(self, *rest), epoch=max(1, self._marker.epoch))

    return swapped((StreamWriter, "_next_marker", again))


def _writer_not_restored() -> AbstractContextManager[None]:
    fence = recovery.fence

    def lax(*args: Any, **named: Any) -> Any:
        marker, position = fence(*args, **named)
        return replace(marker, epoch=0, offset=None), position

    return swapped((streams, "fence", lax))


def _writer_repeats() -> AbstractContextManager[None]:
    """What an earlier version did: a write that had gone through after all was repeated."""

    def begin_again(self: Any) -> None:
        last = self._marker
        self._begin(last.instance + 1, again=True)

    return swapped((StreamWriter, "_begin_again", begin_again))


# Sinks -------------------------------------------------------------------------------------


def _sink_not_fenced() -> AbstractContextManager[None]:
    """What an earlier version did: whoever fed a sink wrote its progress, be it another's."""

    def move(self: StoredProgress, log: Log, facts: SinkProgress) -> StoredProgress:
        version = log.put(self.key, json.dumps(asdict(facts)).encode())
        return StoredProgress(self.key, version, facts)

    return swapped((StoredProgress, "move", move))


def _sink_done_before_delivery() -> AbstractContextManager[None]:
    hand_over = SinkRunner._hand_over

    def hasty(self: Any) -> None:
        self._done = self._ahead[0][0].epoch
        facts = replace(self._progress.facts, done=self._done)
        self._progress = self._progress.move(self._log, facts)
        hand_over(self)

    return swapped((SinkRunner, "_hand_over", hasty))


def _sink_trims_what_it_read() -> AbstractContextManager[None]:
    trim = SinkRunner._trim_if_due

    def greedy(self: Any, resume: Position) -> None:
        trim(self, self._reader.consumed)

    return swapped((SinkRunner, "_trim_if_due", greedy))


def _sink_plans_nothing() -> AbstractContextManager[None]:
    """What an earlier version did: where a batch ends was noted with its delivery, not before."""

    def hand_over(self: Any) -> None:
        cut, staging = self._ahead[0]
        self._sink.publish(int(cut.epoch), staging.result())
        self._ahead.popleft()
        self._note_done(cut)

    return swapped((SinkRunner, "_hand_over", hand_over))


def _sink_resumes_at_done() -> AbstractContextManager[None]:
    read_progress = SinkRunner._read_progress

    def forgetful(self: Any) -> None:
        read_progress(self)
        after = self._done or None
        self._reader = CommittedReader(self._log, self._tags, after, self._done)

    return swapped((SinkRunner, "_read_progress", forgetful))


# Retention ---------------------------------------------------------------------------------


def _cut_through_an_epoch() -> AbstractContextManager[None]:
    plan = retention.plan_cut

    def crude(log: Log, stream: str, **wanted: Any) -> Cut:
        planned = plan(log, stream, **wanted)
        limit = Position(planned.upto + 1)
        return planned if planned.held_back_by else replace(planned, upto=limit, rows_upto=limit)

    return swapped((retaining, "plan_cut", crude))


def _cut_for_nobody() -> AbstractContextManager[None]:
    """A cut does not ask which queries read the stream."""
    return swapped((retention, "_least_read", lambda log, stream: (None, None)))


def _cut_unnoticed() -> AbstractContextManager[None]:
    """What an earlier version did: a reader that was overtaken by a cut went on behind it."""
    read = CommittedReader._read_page

    def lenient(self: Any) -> Any:
        self._begun_at = max(self._begun_at, *(self._log.trimmed(tag) for tag in self._tags()))
        return read(self)

    return swapped((CommittedReader, "_read_page", lenient))


def _half_cut_epochs_read() -> AbstractContextManager[None]:
    """What an earlier version did: a new reader took what a cut that had not come far had left."""
    read_first = CommittedReader._read_first_page

    def all_that_is_left(self: Any) -> Any:
        page = read_first(self)
        if self._cursor == self._begun_at and self._begun_at:
            self._cursor = Position(0)
            return self._read_page()
        return page

    return swapped((CommittedReader, "_read_first_page", all_that_is_left))


def _range_without_later_markers() -> AbstractContextManager[None]:
    """A task that reads a range does not look behind it for the markers of its rows."""
    read = datasource_ranges.committed

    def short(log: Log, facts: Any, part: Any) -> Any:
        return read(log, facts, replace(part, upto=part.high))

    return swapped((readers, "committed", short))


def _position_for_resume() -> AbstractContextManager[None]:
    """A stream reader says that it can be followed from its last marker on."""
    return swapped((StreamReader, "resume", property(lambda self: self.position)))


def _is_read_as(scenario: Scenario, *kinds: str) -> bool:
    return scenario.observed is not None and scenario.observed[1] in kinds


OUTSIDE: tuple[Mutant, ...] = (
    Mutant("writer_goes_on", "a write goes on where a failed one stopped", 119, _writer_goes_on),
    Mutant("writer_offset_lost", "the marker of a write forgets its offset", 19,
           _writer_offset_lost),
    Mutant("writer_epoch_stays", "the epochs of a producer do not advance", 19,
           _writer_epoch_stays),
    Mutant("writer_not_restored", "a producer that opens again begins from nothing", 19,
           _writer_not_restored),
    Mutant("writer_repeats", "a write that went through after all is repeated", 3744,
           _writer_repeats, lambda s: s.shape.producers > 0 and s.troubles.effect_gap < 10),
    Mutant("sink_plans_nothing", "where a batch ends is not noted before it is handed over", 131,
           _sink_plans_nothing),
    Mutant("sink_resumes_at_done", "a sink goes on reading at the last batch", 9,
           _sink_resumes_at_done),
    Mutant("cut_through_an_epoch", "a cut ends within an epoch", 4, _cut_through_an_epoch),
    Mutant("cut_for_nobody", "a cut takes what a query has not read", 20, _cut_for_nobody),
    Mutant("cut_unnoticed", "a reader skips what was cut before it was read", 78, _cut_unnoticed),
    Mutant("half_cut_epochs_read", "a new reader reads what half a cut has left", 545,
           _half_cut_epochs_read,
           lambda s: bool(s.retained) and _is_read_as(s, "committed", "stream")),
    Mutant("range_without_later_markers", "a range looks for no marker behind its end", 17,
           _range_without_later_markers),
    Mutant("position_for_resume", "a stream reader is followed from its position on", 275,
           _position_for_resume, lambda s: _is_read_as(s, "stream")),
    Mutant("sink_not_fenced", "an old run moves the progress of a sink", 76, _sink_not_fenced),
    Mutant("sink_done_before_delivery", "a batch is noted as done before it is handed over", 21,
           _sink_done_before_delivery),
    Mutant("sink_trims_what_it_read", "a sink's stream is trimmed up to the last marker read", 41,
           _sink_trims_what_it_read),
)  # fmt: skip
