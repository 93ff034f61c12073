"""Broken writers from outside, and broken feeding of sinks."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from penstock.api.sink_runner import SinkRunner
from penstock.log.contract import Log
from penstock.log.record import Position
from penstock.runtime import recovery, streams
from penstock.runtime.backlog import SinkProgress, StoredProgress
from penstock.runtime.streams import StreamWriter
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.swaps import swapped


def _writer_goes_on() -> AbstractContextManager[None]:
    """What an earlier version did: what a failed write had queued went out with the next one."""
    return swapped((StreamWriter, "_begin_again", lambda self: None))


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


OUTSIDE: tuple[Mutant, ...] = (
    Mutant("writer_goes_on", "a write goes on where a failed one stopped", 19, _writer_goes_on),
    Mutant("writer_offset_lost", "the marker of a write forgets its offset", 19,
           _writer_offset_lost),
    Mutant("writer_epoch_stays", "the epochs of a producer do not advance", 19,
           _writer_epoch_stays),
    Mutant("writer_not_restored", "a producer that opens again begins from nothing", 19,
           _writer_not_restored),
    Mutant("sink_not_fenced", "an old run moves the progress of a sink", 44, _sink_not_fenced),
    Mutant("sink_done_before_delivery", "a batch is noted as done before it is handed over", 0,
           _sink_done_before_delivery),
    Mutant("sink_trims_what_it_read", "a sink's stream is trimmed up to the last marker read", 100,
           _sink_trims_what_it_read),
)  # fmt: skip
