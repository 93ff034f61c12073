"""Broken changes of rows between operators with state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.loops import Words
from penstock.operators.changing_aggregate import ChangingAggregate
from penstock.operators.shown import Changes, Shown
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped


def _nothing_goes() -> AbstractContextManager[None]:
    take = Shown.take

    def only_come(self: Shown, pane_upto: int | None = None) -> Changes:
        changes = take(self, pane_upto)
        return replace(changes, gone=changes.gone.slice(0, 0))

    return swapped((Shown, "take", only_come))


def _last_change_only() -> AbstractContextManager[None]:
    def overwrite(self: Any, keys: Sequence[pa.Array], panes: Words) -> None:
        values, found = self._state.get(keys, panes)
        self._before.put(keys, panes, [*values[: self._values], pa.array(found)])

    return swapped((Shown, "note", overwrite))


def _numbers_begin_again() -> AbstractContextManager[None]:
    restore = ChangingAggregate.restore_progress

    def forgetful(self: Any, progress: Any) -> None:
        restore(self, progress)
        self._next_number = 0

    return swapped((ChangingAggregate, "restore_progress", forgetful))


def _regroups(scenario: Scenario) -> bool:
    return scenario.shape.name.startswith("regrouped")


CHANGES: tuple[Mutant, ...] = (
    Mutant("nothing_goes", "a row that changes comes anew, and the one before stays", 35,
           _nothing_goes, _regroups),
    Mutant("last_change_only", "what goes is what a row was in between, not what came", 35,
           _last_change_only, _regroups),
    Mutant("numbers_begin_again", "after a restart new groups get the numbers of others", 138,
           _numbers_begin_again, _regroups),
)  # fmt: skip
