"""What a broken engine is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.sim.scenario import Scenario

Patch = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken engine: a patch over the real code for the time of a run."""

    name: str
    breaks: str
    seed: int  # that caught it last, and is tried first
    patch: Patch
    shows_in: Callable[[Scenario], bool] = lambda scenario: True  # others are not worth a run
