"""Broken writes of Spark jobs: rows that are staged, committed, and cleared up after."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any

from penstock.api import datasource_append, datasource_sink
from penstock.errors import Fenced
from penstock.log.contract import Log, append_surely, register
from penstock.log.record import Entry, Fence, Position
from penstock.runtime import staging
from penstock.runtime.staging import OpenWrite
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped


def _unfenced(log: Log, entries: Any, fence: Fence | None = None) -> Any:
    return append_surely(log, entries)


def _staged_unfenced() -> AbstractContextManager[None]:
    return swapped((datasource_append, "append_surely", _unfenced))


def _staged_commit_unfenced() -> AbstractContextManager[None]:
    return swapped(
        (staging, "_append_all", lambda log, write, markers: append_surely(log, markers)[-1]),
        (datasource_sink, "append_surely", _unfenced),
    )


def _cleared_without_fence() -> AbstractContextManager[None]:
    def lenient(log: Log, vertex: str, instance: int, *, again: bool = False) -> None:
        if again:
            register(log, vertex, instance, again=True)

    return swapped((staging, "register", lenient))


def _staged_rows_stay() -> AbstractContextManager[None]:
    return swapped((staging, "_uncovered", lambda log, write, after: []))


def _struck_and_not_cleared() -> AbstractContextManager[None]:
    """What an earlier version did with a write of several tasks that somebody had fenced."""
    clear = staging.clear_write
    fenced: set[Fence] = set()

    def noting(log: Log, vertex: str, instance: int, *, again: bool = False) -> None:
        try:
            register(log, vertex, instance, again=again)
        except Fenced:
            if again:
                fenced.add(Fence(vertex, instance))
            raise

    def clear_up(log: Log, write: OpenWrite, committed_at: Position | None = None) -> None:
        if write.fence in fenced:
            fenced.remove(write.fence)
            staging._strike(log, write)
        else:
            clear(log, write, committed_at)

    return swapped((staging, "register", noting), (staging, "clear_write", clear_up))


def _batch_in_pieces() -> AbstractContextManager[None]:
    """The markers of a job go out one by one."""

    def one_by_one(log: Log, entries: Any, fence: Fence | None = None) -> list[Position]:
        return [append_surely(log, [entry], fence)[0] for entry in entries]

    def last_of(log: Log, write: OpenWrite, markers: Any) -> Position:
        return one_by_one(log, markers, write.fence)[-1]

    return swapped(
        (staging, "_append_all", last_of), (datasource_sink, "append_surely", one_by_one)
    )


def _batch_without_its_name() -> AbstractContextManager[None]:
    """Nothing in a commit says which batch it is."""
    marker, numbers = datasource_sink._sink_marker, count()

    def nameless(sink: str, batch_id: int, rows: int) -> Entry:
        return replace(marker(sink, batch_id, rows), sequence=next(numbers))

    return swapped(
        (datasource_sink, "_sink_marker", nameless),
        (datasource_sink, "newest_batch", lambda log, sink: None),
    )


def _has_jobs(scenario: Scenario) -> bool:
    return scenario.batches is not None


def _has_micro_batches(scenario: Scenario) -> bool:
    return scenario.batches == "micro-batches"


BATCHES: tuple[Mutant, ...] = (
    Mutant("staged_unfenced", "rows are staged though somebody has cleared up after them", 19,
           _staged_unfenced, _has_jobs),
    Mutant("staged_commit_unfenced", "a write is committed though it was given up", 144,
           _staged_commit_unfenced, _has_jobs),
    Mutant("cleared_without_fence", "whoever clears up after a write does not fence it", 119,
           _cleared_without_fence, _has_jobs),
    Mutant("staged_rows_stay", "whoever clears up after a write drops none of its rows", 19,
           _staged_rows_stay, _has_jobs),
    Mutant("struck_and_not_cleared", "a fenced write of several tasks is only struck", 2420,
           _struck_and_not_cleared, _has_micro_batches),
    Mutant("batch_in_pieces", "the markers of a job go out one by one", 345,
           _batch_in_pieces, _has_jobs),
    Mutant("batch_without_its_name", "nothing in a commit says which micro-batch it is", 345,
           _batch_without_its_name, _has_micro_batches),
)  # fmt: skip
