"""Broken rules for rows that come once."""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.connectors.producer_intake import Intake
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.swaps import swapped


def _accept_what_came_before() -> AbstractContextManager[None]:
    return swapped((Intake, "accepts", lambda self, producer, offset: True))


def _comes_once(scenario: Scenario) -> bool:
    return scenario.shape.once


ONCE: tuple[Mutant, ...] = (
    Mutant("accept_what_came_before", "a unit is taken whose offset is not above the last one", 528,
           _accept_what_came_before, _comes_once),
)  # fmt: skip
