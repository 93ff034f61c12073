"""Deliberately broken engines: each breaks one rule of the protocol, and each must be caught.

A simulator that finds nothing proves nothing unless it finds these. Which seed caught a mutant last
is noted and tried first; it may be another one after any change of the engine.
"""

from __future__ import annotations

from penstock.sim.mutants.batches import BATCHES
from penstock.sim.mutants.branches import BRANCHES
from penstock.sim.mutants.changes import CHANGES
from penstock.sim.mutants.joins import JOINS
from penstock.sim.mutants.more_vertices import MORE_VERTICES
from penstock.sim.mutants.mutant import Mutant, Patch
from penstock.sim.mutants.once import ONCE
from penstock.sim.mutants.outside import OUTSIDE
from penstock.sim.mutants.placing import PLACING
from penstock.sim.mutants.relations import RELATIONS
from penstock.sim.mutants.resting import RESTING
from penstock.sim.mutants.states import STATES
from penstock.sim.mutants.vertices import VERTICES

MUTANTS: tuple[Mutant, ...] = (
    *VERTICES, *MORE_VERTICES, *STATES, *PLACING, *OUTSIDE, *BATCHES, *CHANGES, *JOINS,
    *RELATIONS,
    *BRANCHES, *RESTING, *ONCE,
)  # fmt: skip

__all__ = ["MUTANTS", "Mutant", "Patch"]
