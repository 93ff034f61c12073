"""Broken changes of state, checkpoints and trims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.log import punit
from penstock.log.contract import Log
from penstock.log.record import START, Fence, Position, Record, RecordKind
from penstock.runtime import assembly, checkpointing, recovery, trimming
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.outputs import Outputs
from penstock.runtime.trimming import TrimJob, trim_job
from penstock.runtime.vertex import CheckpointJob, Vertex, VertexParts
from penstock.sim.logs import ProcessLog
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.swaps import swapped
from penstock.stages.program import Program, VertexProgram
from penstock.stages.tags import change_tag
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import Checkpoint, CheckpointStore
from penstock.state.contract import State
from penstock.state.keyed import KeyedState
from penstock.state.replay import Fold
from penstock.testing.memory_checkpoints import MemoryFiles

States = Mapping[str, KeyedState]


# Changes of state --------------------------------------------------------------------------


def _lose_changes() -> AbstractContextManager[None]:
    add_changes = Vertex._add_changes

    def forgetful(self: Any) -> None:
        if self._marker.epoch % 3 == 2:
            for state in self._parts.chain.states.values():
                state.take_changes()
        else:
            add_changes(self)

    return swapped((Vertex, "_add_changes", forgetful))


def _apply_uncommitted_changes() -> AbstractContextManager[None]:
    """Changes go out before their marker, which is allowed, and recovery takes them all."""
    commit = Outputs.begin_commit

    def two_appends(self: Outputs, tags: tuple[str, ...], marker: bytes) -> None:
        self.append_early()
        commit(self, tags, marker)

    def replay_all(log: Log, tag: str, after: Position, upto: Position, states: States) -> int:
        for record in log.read([tag], after, 65_536):
            if record.kind is RecordKind.CHANGE:
                _apply(record, states)
        return 0

    return swapped(
        (Outputs, "begin_commit", two_appends), (recovery, "_replay_changes", replay_all)
    )


def _apply(record: Record, states: States) -> None:
    changes = punit.decode_record(record)
    name = changes.schema.metadata[b"penstock.state"].decode()
    states[name].apply_changes(changes.replace_schema_metadata(None))


def _skip_changes() -> AbstractContextManager[None]:
    return swapped((recovery, "_replay_changes", lambda log, tag, after, upto, states: 0))


def _replay_from_newest() -> AbstractContextManager[None]:
    """The oldest picture is restored, the changes are taken from the newest one on."""

    def load(
        log: Log,
        store: CheckpointStore,
        vertex: str,
        upto: Position,
        states: States,
        since: Position,
    ) -> Any:
        fitting = [each for each in store.list(vertex) if each.position <= upto]
        if not fitting:
            return START, ()
        rows = store.load(fitting[0]).states
        for name, state in states.items():
            state.restore(rows.get(name, []))
        return Position(fitting[-1].position), ()

    return swapped((recovery, "_load_newest", load))


# Checkpoints -------------------------------------------------------------------------------


def _damaged_taken_for_empty() -> AbstractContextManager[None]:
    load_newest = recovery._load_newest

    def load(
        log: Log,
        store: CheckpointStore,
        vertex: str,
        upto: Position,
        states: States,
        since: Position,
    ) -> Any:
        _, problems = store.load_newest(vertex, upto)
        if problems:
            return Position(max(each.position for each in problems)), ()
        return load_newest(log, store, vertex, upto, states, since)

    return swapped((recovery, "_load_newest", load))


def _picture_under_later_marker() -> AbstractContextManager[None]:
    begin, copy_some = Vertex._begin_checkpoint_if_due, Vertex._copy_some_state

    def note(self: Any, position: Position) -> None:
        begin(self, position)
        self._newest_position = position

    def wait(self: Any) -> None:
        if self._snapshots is not None and self._newest_position > self._snapshot_position:
            self._snapshot_position = self._newest_position
            copy_some(self)

    return swapped((Vertex, "_begin_checkpoint_if_due", note), (Vertex, "_copy_some_state", wait))


class _LivePicture:
    """The state as it is when somebody looks, whatever marker it was meant for."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def batches(self) -> Iterator[pa.RecordBatch]:
        table = self._state._table
        yield from self._state._snapshot_batches(table.lines(table.live()))


def _picture_of_the_moment() -> AbstractContextManager[None]:
    copy = Vertex._copy_some_state

    def copy_some(self: Any) -> None:
        states = self._parts.chain.states
        if not all(isinstance(state, KeyedState) for state in states.values()):
            copy(self)
            return
        if self._snapshots is None:
            return
        for snapshot in self._snapshots.values():
            snapshot.abandon()
        pictures: Any = {name: _LivePicture(state) for name, state in states.items()}
        self._snapshots = None
        fence = Fence(self.name, self._marker.instance)
        self._parts.checkpointer.submit(CheckpointJob(fence, self._snapshot_position, pictures))

    return swapped((Vertex, "_copy_some_state", copy_some))


def _trim_too_much() -> AbstractContextManager[None]:
    write = checkpointing.write_checkpoint

    def greedy(job: CheckpointJob, store: CheckpointStore, log: Log) -> bool:
        is_growing = write(job, store, log)
        log.trim(change_tag(job.vertex), log.tail())
        return is_growing

    return swapped((checkpointing, "write_checkpoint", greedy))


def _trim_last_marker() -> AbstractContextManager[None]:
    """What an earlier version did: the marker of the oldest picture lost its tag as well."""
    write = checkpointing.write_checkpoint

    def greedy(job: CheckpointJob, store: CheckpointStore, log: Log) -> bool:
        is_growing = write(job, store, log)
        for oldest in store.list(job.vertex)[-checkpointing.CHECKPOINTS_KEPT :][:1]:
            log.trim(f"T/{job.vertex}", Position(oldest.position))
        return is_growing

    return swapped((checkpointing, "write_checkpoint", greedy))


def _part_of_a_chain_left_out() -> AbstractContextManager[None]:
    def restore(self: Checkpoint, name: str, state: State) -> None:
        state.restore(self.states.get(name, []))
        for part in self.changes[1:]:
            for batch in part.get(name, []):
                state.apply_changes(batch)

    return swapped((Checkpoint, "restore", restore))


def _removals_left_out() -> AbstractContextManager[None]:
    add = Fold.add

    def forgetful(self: Any, changes: pa.RecordBatch) -> None:
        add(self, changes)
        self._removals.clear()

    return swapped((Fold, "add", forgetful))


def _trim_past_the_older() -> AbstractContextManager[None]:
    """The changes go that the older chain would be continued with, and read after damage."""
    write = checkpointing.write_checkpoint

    def greedy(job: CheckpointJob, store: CheckpointStore, log: Log) -> bool:
        is_growing = write(job, store, log)
        log.trim(change_tag(job.vertex), job.position, job.fence)
        return is_growing

    return swapped((checkpointing, "write_checkpoint", greedy))


def _built_on_the_newer() -> AbstractContextManager[None]:
    """All checkpoints stand on one picture: one damaged file is the end of them all."""

    def together(vertex: str, store: CheckpointStore, log: Log, listed: Any) -> Any:
        chains = [store.chain(each) for each in reversed(listed.ids)]
        return chains[:2] if len(chains) < 2 else [chains[1], chains[0]]

    return swapped((checkpointing, "_independent", together))


def _never_sync() -> AbstractContextManager[None]:
    def forget(self: MemoryFiles, path: FilePath) -> None:
        return None

    return swapped((MemoryFiles, "sync_folder", forget))


# Trims -------------------------------------------------------------------------------------


def _trim_to_consumed() -> AbstractContextManager[None]:
    def low_water(log: Log, readers: Sequence[str]) -> Position:
        last = [log.last(tag) for tag in readers]
        return min(START if each is None else decode_marker(each).consumed for each in last)

    return swapped((trimming, "low_water", low_water))


def _trim_before_commit() -> AbstractContextManager[None]:
    """The input goes by what the vertex remembers, before the marker that says so is in the log."""
    commit = Vertex._begin_commit

    def hasty(self: Any, **named: Any) -> None:
        resume = self._parts.input.position()["resume"]
        for tag, readers in self._parts.trim.inputs:
            if len(readers) == 1:
                self._parts.outputs._log.trim(tag, resume)
        commit(self, **named)

    return swapped((Vertex, "_begin_commit", hasty))


def _trim_for_one_reader() -> AbstractContextManager[None]:
    def own_reading(program: Program, vertex: VertexProgram) -> TrimJob:
        job = trim_job(program, vertex)
        return replace(job, inputs=tuple((tag, (job.vertex_tag,)) for tag, _ in job.inputs))

    return swapped((assembly, "trim_job", own_reading))


def _trim_newest_marker() -> AbstractContextManager[None]:
    def greedy(job: TrimJob, log: Log) -> None:
        for tag in job.own:
            log.trim(tag, log.tail())

    return swapped((checkpointing, "let_go", greedy))


def _one_checkpoint() -> AbstractContextManager[None]:
    return swapped((checkpointing, "CHECKPOINTS_KEPT", 1))


def _trim_before_write() -> AbstractContextManager[None]:
    write = checkpointing.write_checkpoint

    def hasty(job: CheckpointJob, store: CheckpointStore, log: Log) -> bool:
        if store.list(job.vertex):
            log.trim(change_tag(job.vertex), job.position, job.fence)
        return write(job, store, log)

    return swapped((checkpointing, "write_checkpoint", hasty))


def _unfinished_stay() -> AbstractContextManager[None]:
    return swapped((CheckpointStore, "delete_unfinished", lambda self, vertex, below: 0))


def _replay_not_counted() -> AbstractContextManager[None]:
    start = Vertex.__init__

    def forget(
        self: Vertex, parts: VertexParts, marker: Marker, position: Position, replayed: int = 0
    ) -> None:
        start(self, parts, marker, position)

    return swapped((Vertex, "__init__", forget))


def _no_trim_at_the_end() -> AbstractContextManager[None]:
    return swapped((Vertex, "_trim_if_due", lambda self: None))


def _low_water_ignores_newcomers() -> AbstractContextManager[None]:
    def low_water(log: Log, readers: Sequence[str]) -> Position:
        last = [log.last(tag) for tag in readers]
        return min((decode_marker(each).resume for each in last if each), default=START)

    return swapped((trimming, "low_water", low_water))


def _changes_trimmed_unfenced() -> AbstractContextManager[None]:
    trim = ProcessLog.trim
    return swapped((ProcessLog, "trim", lambda self, tag, upto, fence=None: trim(self, tag, upto)))


def _no_checkpoint_while_input_waits() -> AbstractContextManager[None]:
    begin = Vertex._begin_checkpoint_if_due

    def idle_only(self: Any, *args: Any) -> None:
        if self._parts.input.is_drained():
            begin(self, *args)

    return swapped((Vertex, "_begin_checkpoint_if_due", idle_only))


def _checkpoint_after_more_input() -> AbstractContextManager[None]:
    """What an earlier version did: where appends are made beside, there always was more input."""
    begin, copy = Vertex._begin_checkpoint_if_due, Vertex._copy_some_state

    def begin_and_copy(self: Any) -> None:
        begin(self, self._marker_position)
        copy(self)

    return swapped(
        (Vertex, "_begin_checkpoint_if_due", lambda self, position: None),
        (Vertex, "_copy_some_state", begin_and_copy),
    )


STATES: tuple[Mutant, ...] = (
    Mutant("lose_changes", "every third marker goes out without its changes", 2, _lose_changes),
    Mutant("apply_uncommitted_changes", "recovery applies changes past the last marker", 2,
           _apply_uncommitted_changes),
    Mutant("skip_changes", "recovery restores the picture and skips the changes", 2,
           _skip_changes),
    Mutant("replay_from_newest", "recovery takes an old picture and the newest changes", 14,
           _replay_from_newest),
    Mutant("damaged_taken_for_empty", "a damaged checkpoint counts as an empty state", 31,
           _damaged_taken_for_empty),
    Mutant("picture_under_later_marker", "a picture is named by a later marker", 2,
           _picture_under_later_marker),
    Mutant("picture_of_the_moment", "a picture shows the state when it is written", 118,
           _picture_of_the_moment),
    Mutant("trim_too_much", "a checkpoint trims changes that it does not hold", 2,
           _trim_too_much),
    Mutant("trim_last_marker", "a checkpoint trims the marker that it belongs to", 12,
           _trim_last_marker),
    Mutant("trim_to_consumed", "inputs are trimmed up to the last consumed marker", 35,
           _trim_to_consumed),
    Mutant("trim_before_commit", "an input is trimmed by a marker that is not in the log yet", 2,
           _trim_before_commit),
    Mutant("trim_for_one_reader", "the markers of a stream are trimmed by one of its readers", 2,
           _trim_for_one_reader),
    Mutant("trim_newest_marker", "a vertex trims the marker that it would begin with", 0,
           _trim_newest_marker),
    Mutant("part_of_a_chain_left_out", "recovery leaves out the first changes of a chain", 142,
           _part_of_a_chain_left_out),
    Mutant("removals_left_out", "a checkpoint made of changes has no removals", 709,
           _removals_left_out),
    Mutant("trim_past_the_older", "changes since the older of two checkpoints are trimmed", 14,
           _trim_past_the_older),
    Mutant("built_on_the_newer", "two checkpoints are kept that have a file in common", 128,
           _built_on_the_newer),
    Mutant("never_sync", "a checkpoint is published without a sync", 95, _never_sync),
    Mutant("one_checkpoint", "one checkpoint is kept, not two", 14, _one_checkpoint),
    Mutant("trim_before_write", "changes are trimmed before their picture is written", 21,
           _trim_before_write),
    Mutant("unfinished_stay", "what crashed writers of checkpoints left is never removed", 31,
           _unfinished_stay),
    Mutant("replay_not_counted", "a checkpoint is as far off after a long replay as after none", 2,
           _replay_not_counted),
    Mutant("no_trim_at_the_end", "a query that has ended leaves its streams behind", 9,
           _no_trim_at_the_end),
    Mutant("changes_trimmed_unfenced", "a zombie's checkpoint trims the changes", 118,
           _changes_trimmed_unfenced),
    Mutant("no_checkpoint_while_input_waits", "no checkpoint is begun while there is input", 31,
           _no_checkpoint_while_input_waits),
    Mutant("checkpoint_after_more_input", "a step takes more before it begins a checkpoint", 71,
           _checkpoint_after_more_input, lambda scenario: scenario.appends_beside),
    Mutant("low_water_ignores_newcomers", "a reader without a marker does not count for trims", 3,
           _low_water_ignores_newcomers),
)  # fmt: skip
