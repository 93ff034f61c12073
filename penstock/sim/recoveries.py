"""What recoveries have built, and what vertices leave at their end, against what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.runtime.vertex import Vertex, VertexState
from penstock.sim.disk import Disk
from penstock.sim.history import History
from penstock.sim.oracle import Replica, plain_value
from penstock.sim.process import Process
from penstock.sim.schedule import Schedule
from penstock.sim.violation import Violation
from penstock.stages.program import VertexProgram
from penstock.stages.tags import change_tag
from penstock.state.row_store import RowStore

StateRows = dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]  # by state


class Recoveries:
    """Looks at vertices while the world stands still."""

    def __init__(
        self, names: Sequence[str], history: History, schedule: Schedule, disk: Disk
    ) -> None:
        self._names = names
        self._history = history
        self._sometimes = schedule.sometimes
        self._disk = disk
        self.is_looking = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """The log has lost its tail: what was read of it before counts no more."""
        records = self._history.records
        self._replicas = {name: Replica(records, change_tag(name)) for name in self._names}

    def check(self, process: Process, vertex: Vertex) -> None:
        """What a recovery has built must be what committed changes and the last marker say."""
        self.is_looking = True
        try:
            self._check_restored(process, vertex)
        finally:
            self.is_looking = False

    def check_heard(self, process: Process, vertex: VertexProgram, consumed: int) -> None:
        """Whoever counts the silence of its producers has heard all that it could see.

        One that was overtaken may not: its successor has trimmed what it has read.
        """
        if process.instances.get(vertex.name) != self._history.newest_instance(vertex.name):
            return
        tail, tags = process.log.inner.tail(), set(vertex.input_tags)
        for seen in reversed(self._history.records):
            if seen.position <= consumed:
                return
            if seen.position <= tail and seen.kind == "MARKER" and not tags.isdisjoint(seen.tags):
                raise Violation(f"{vertex.name}: counts silence while input waits: {seen.position}")

    def check_at_the_end(self, process: Process) -> None:
        """A vertex that has ended leaves the state that its changes tell of."""
        for name, instance in process.instances.items():
            if instance == self._history.newest_instance(name) and self._history.has_ended(name):
                self._check_states(process, name, "at the end,")

    def _check_restored(self, process: Process, vertex: Vertex) -> None:
        """An instance that was overtaken while it recovered may have anything."""
        name, chain = vertex.name, process.chains[vertex.name]
        if vertex.marker.instance != self._history.newest_instance(name):
            return
        last = self._history.last_marker(name)
        facts = vertex.statistics()
        if last is None or facts.epoch != last["epoch"]:
            if last is None and facts.epoch == 0:
                return
            raise Violation(f"{name}: recovered at epoch {facts.epoch}, committed: {last}")
        if facts.watermark_us != last["watermark_us"]:
            raise Violation(f"{name}: the watermark was not restored")
        if last["ended"] is not (vertex.state is VertexState.ENDED):
            raise Violation(f"{name}: whether it has ended was not restored")
        replica = self._check_states(process, name, "recovered")
        if chain.progress() != vertex.marker.progress:
            raise Violation(f"{name}: the chain's progress was not restored")
        if chain.states:
            self._check_replay_counts(process, vertex)
        if vertex.marker.resume < vertex.marker.consumed:
            self._sometimes["resume before a consumed marker"] += 1
        if chain.states and replica.changes:
            self._note_recovery(process, name)

    def _check_states(self, process: Process, name: str, when: str) -> Replica:
        replica = self._replicas[name]
        replica.catch_up()
        for state, rows in _state_rows(process, name).items():
            expected = replica.rows(state)
            if rows != expected:
                raise Violation(f"{name}: {when} state {state} has {_difference(rows, expected)}")
        return replica

    def _check_replay_counts(self, process: Process, vertex: Vertex) -> None:
        """The more commits a recovery had to replay, the sooner the next checkpoint is due."""
        if process.loaded or self._disk.has_failed:
            return  # which of them it took is its own business
        marks = self._history.markers_of(vertex.name, vertex.marker.state_from)
        if vertex.marker.state_from:
            self._sometimes["recovery from where the state was empty"] += 1
        if vertex._commits_unpictured != marks:
            raise Violation(
                f"{vertex.name}: {marks} commits are in no checkpoint, it counts "
                f"{vertex._commits_unpictured}"
            )

    def _note_recovery(self, process: Process, name: str) -> None:
        checkpoints = {each for each in process.loaded if each.vertex == name}
        damaged = checkpoints & self._disk.damaged
        if len(checkpoints) > len(damaged):
            self._sometimes["recovery from a checkpoint"] += 1
            if damaged:
                self._sometimes["recovery from an older checkpoint"] += 1
        else:
            self._sometimes["recovery from the change log alone"] += 1


def _state_rows(process: Process, name: str) -> StateRows:
    """The rows of a vertex's states, in the form of a `Replica`'s."""
    return {
        state: _rows(each.described() if isinstance(each, RowStore) else each.scan())
        for state, each in process.chains[name].states.items()
    }


def _rows(batch: pa.RecordBatch) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    if "__id" in batch.schema.names:
        return {(line[0],): line for line in map(_values, batch.to_pylist())}
    keys = batch.schema.names.index("__pane")
    found = {}
    for line in batch.to_pylist():
        pane = line.pop("__pane")
        values = _values(line)
        found[pane, *values[:keys]] = values
    return found


def _values(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plain_value(value) for value in line.values())


def _difference(found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    missing = sorted(map(str, (key for key in expected if key not in found)))[:3]
    added = sorted(map(str, (key for key in found if key not in expected)))[:3]
    other = sorted(
        f"{key}: {found[key]} instead of {expected[key]}"
        for key in found
        if key in expected and found[key] != expected[key]
    )[:3]
    return f"missing {missing}, too many {added}, different {other}"
