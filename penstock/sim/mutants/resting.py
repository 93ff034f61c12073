"""Broken words of branches that have nothing, below one watermark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.runtime.event_time import Watermarks
from penstock.runtime.markers import Marker, Said
from penstock.runtime.vertex import Vertex
from penstock.sim.mutants.mutant import Mutant
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import QUIET_SHAPES
from penstock.sim.swaps import swapped


def _rest_with_more_to_come() -> AbstractContextManager[None]:
    next_marker = Vertex._next_marker

    def hasty(self: Any, whole: bool) -> Marker:
        return replace(next_marker(self, whole), rests=self._parts.resting is not None)

    return swapped((Vertex, "_next_marker", hasty))


def _rest_unheard() -> AbstractContextManager[None]:
    hear = Watermarks.hear

    def deaf(self: Watermarks, producer: str, said: Said) -> None:
        hear(self, producer, said._replace(rests=False))

    return swapped((Watermarks, "hear", deaf))


def _rest_for_ever() -> AbstractContextManager[None]:
    """Others are followed however far they go, until the branch has rows again."""
    voice = Watermarks._voice

    def hasty(self: Any, names: Sequence[str]) -> tuple[int, bool]:
        awake = [name for name in names if not self._producers[name].rests]
        return voice(self, awake or names)

    return swapped((Watermarks, "_voice", hasty))


def _has_one_watermark(scenario: Scenario) -> bool:
    return scenario.shape in QUIET_SHAPES and not scenario.settings.available_now


RESTING: tuple[Mutant, ...] = (
    Mutant("rests_with_more_to_come", "a branch says that it has nothing before it has looked", 118,
           _rest_with_more_to_come, _has_one_watermark),
    Mutant("rest_unheard", "a branch that has nothing holds the others back", 118, _rest_unheard,
           _has_one_watermark),
    Mutant("rests_for_ever", "what others say later counts though a branch may have rows by then",
           316, _rest_for_ever, _has_one_watermark),
)  # fmt: skip
