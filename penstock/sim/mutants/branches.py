"""Broken outputs of a stage that has several."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.log.record import Entry, RecordKind
from penstock.operators.chain import Chain
from penstock.runtime.announcing import Announcing
from penstock.runtime.outputs import Outputs
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import BESIDE
from penstock.sim.swaps import swapped
from penstock.stages.tags import marker_tag


def _marker_lacks_the_second_output() -> AbstractContextManager[None]:
    tags = Announcing.tags

    def without(self: Announcing, *given: Any) -> tuple[str, ...]:
        return tuple(tag for tag in tags(self, *given) if tag != marker_tag(BESIDE))

    return swapped((Announcing, "tags", without))


def _is_of_the_second(entry: Entry) -> bool:
    return entry.kind is RecordKind.DATA and entry.tags[0].startswith(f"S/{BESIDE}/")


def _second_output_unfenced() -> AbstractContextManager[None]:
    begin = Outputs._begin

    def split(self: Any) -> None:
        sequences = [entry.sequence for entry in self._entries]
        ordered = sorted(self._entries, key=lambda entry: not _is_of_the_second(entry))
        self._entries = [
            replace(entry, sequence=number)
            for entry, number in zip(ordered, sequences, strict=True)
        ]
        beside = [entry for entry in self._entries if _is_of_the_second(entry)]
        if beside:
            self.settle()
            self._log.append(beside, None)
            self._entries = self._entries[len(beside) :]
        if self._entries:
            begin(self)

    return swapped((Outputs, "_begin", split))


def _second_output_after_the_marker() -> AbstractContextManager[None]:
    commit = Outputs.begin_commit

    def later(self: Any, tags: tuple[str, ...], marker: bytes) -> None:
        held = {key: rows for key, rows in self._rows.items() if key[1].startswith(f"S/{BESIDE}/")}
        for key in held:
            del self._rows[key]
        commit(self, tags, marker)
        self._rows.update(held)

    return swapped((Outputs, "begin_commit", later))


def _announced_by_the_first_alone() -> AbstractContextManager[None]:
    """A marker is found in both streams only if the first of them got rows."""
    tags = Announcing.tags

    def less(self: Any, marker: Any, written: Any, now_s: float, is_forced: bool) -> Any:
        first = next(iter(self._named), None)
        rows = self._named.get(first, frozenset())
        known = written if not rows.isdisjoint(written) else set()
        return tags(self, marker, known, now_s, is_forced)

    return swapped((Announcing, "tags", less))


def _rows_for_the_last_output_only() -> AbstractContextManager[None]:
    outputs = Chain.outputs

    def last(self: Any, *given: Any) -> Any:
        found = list(outputs(self, *given))
        return iter(found if len(found) < 3 else found[1:])

    return swapped((Chain, "outputs", last))


def _has_several_results(scenario: Scenario) -> bool:
    return scenario.shape.beside


BRANCHES: tuple[Mutant, ...] = (
    Mutant("marker_lacks_an_output", "a marker does not reach the readers of the second output", 18,
           _marker_lacks_the_second_output, _has_several_results),
    Mutant("output_unfenced", "the second output is appended apart, without the fence", 83,
           _second_output_unfenced, _has_several_results),
    Mutant("output_after_its_marker", "the second output goes out after the marker", 18,
           _second_output_after_the_marker, _has_several_results),
    Mutant("announced_by_one_output", "a marker is told of only if the first output got rows", 225,
           _announced_by_the_first_alone, _has_several_results),
    Mutant("output_left_out", "a batch that all outputs want misses one", 18,
           _rows_for_the_last_output_only, _has_several_results),
)  # fmt: skip
