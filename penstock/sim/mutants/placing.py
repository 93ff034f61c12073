"""Broken instance numbers, placements and hosts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.errors import JobFailed, StreamError
from penstock.log.contract import Log, instance_key, take_over
from penstock.log.record import START, Position
from penstock.runtime import assembly, recovery
from penstock.runtime.control import Message
from penstock.runtime.host import Host
from penstock.runtime.instances import COUNTER_BITS, InstanceNumbers
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.placement import Placement, SlotFacts
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.swaps import swapped


def _number_taken() -> AbstractContextManager[None]:
    """What an earlier version did: whoever came last took the next number for itself."""

    def fence(log: Log, vertex: str, vertex_tag: str, instance: int) -> tuple[Marker, Position]:
        taken = take_over(log, vertex)
        record = log.last(vertex_tag)
        if record is None:
            return Marker(vertex=vertex, instance=taken, epoch=0), START
        return replace(decode_marker(record), instance=taken), record.position

    return swapped((assembly, "fence", fence))


def _older_number_registers() -> AbstractContextManager[None]:
    def register(log: Log, vertex: str, instance: int, **_: Any) -> None:
        log.put(instance_key(vertex), b"%d" % instance)

    return swapped((recovery, "register", register))


def _run_number_reused() -> AbstractContextManager[None]:
    take = InstanceNumbers._take_run

    def same_run(self: Any) -> None:
        take(self)
        self._run = 1

    return swapped((InstanceNumbers, "_take_run", same_run))


def _numbers_of_one_run_alike() -> AbstractContextManager[None]:
    return swapped((InstanceNumbers, "next", lambda self: self._run << COUNTER_BITS | 1))


def _lost_slot_forgotten() -> AbstractContextManager[None]:
    def lose(self: Any, connection: int, reason: str, now_s: float) -> None:
        self.slots.pop(connection, None)
        if self.is_stopping and not self.slots:
            self._finish()

    return swapped((Placement, "_lose", lose))


def _returned_forgotten() -> AbstractContextManager[None]:
    note_end = Placement._note_end

    def forget(self: Any, slot: SlotFacts, message: Message, now_s: float) -> None:
        if message["type"] == "returned":
            slot.vertices.pop(message["vertex"], None)
        else:
            note_end(self, slot, message, now_s)

    return swapped((Placement, "_note_end", forget))


def _ends_with_the_first() -> AbstractContextManager[None]:
    note_status = Placement._note_status

    def hasty(self: Any, vertices: dict[str, dict[str, Any]], now_s: float) -> None:
        note_status(self, vertices, now_s)
        if self.ended:
            self._stop(now_s)

    return swapped((Placement, "_note_status", hasty))


def _passing_error_ends_the_query() -> AbstractContextManager[None]:
    note_end = Placement._note_end

    def strict(self: Any, slot: SlotFacts, message: Message, now_s: float) -> None:
        if message["type"] == "returned":
            self._fail(JobFailed("it came back", reason="returned"), now_s)
        else:
            note_end(self, slot, message, now_s)

    return swapped((Placement, "_note_end", strict))


def _failed_vertex_stays() -> AbstractContextManager[None]:
    """A vertex that met an error is stepped on as if nothing had happened."""

    def carry_on(self: Any, name: str, action: Any) -> Any:
        try:
            return action(self._vertices[name])
        except StreamError:
            return False

    return swapped((Host, "_do_or_end", carry_on))


PLACING: tuple[Mutant, ...] = (
    Mutant("number_taken", "a recovery takes the next number instead of the one handed out", 0,
           _number_taken),
    Mutant("older_number_registers", "a recovery registers whatever is registered already", 6,
           _older_number_registers),
    Mutant("run_number_reused", "a new run hands out the numbers of the first one", 6,
           _run_number_reused),
    Mutant("numbers_of_one_run_alike", "a run hands out one number only", 0,
           _numbers_of_one_run_alike),
    Mutant("lost_slot_forgotten", "the vertices of a lost slot are not placed again", 2,
           _lost_slot_forgotten),
    Mutant("returned_forgotten", "a vertex that came back is not placed again", 18,
           _returned_forgotten),
    Mutant("ends_with_the_first", "a run is over when one vertex has ended", 2,
           _ends_with_the_first),
    Mutant("passing_error_ends_the_query", "a busy log ends the query", 6,
           _passing_error_ends_the_query),
    Mutant("failed_vertex_stays", "a vertex that met an error is stepped on", 11,
           _failed_vertex_stays),
)  # fmt: skip
