"""Runs seeds, with every check, and broken engines until a seed catches them."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain, count, islice

from penstock.kernels.cache import KernelCache
from penstock.sim.checks import (
    check_cuts,
    check_fences,
    check_markers,
    check_nothing_left,
    check_output,
    check_sink,
    check_staged,
    check_trims,
)
from penstock.sim.disk import small_chains
from penstock.sim.graph_checks import check_stored
from penstock.sim.mutants import Mutant, Patch
from penstock.sim.oracle import rows_of
from penstock.sim.outcome import Outcome
from penstock.sim.readers import Observer, check_lives
from penstock.sim.scenario import make_scenario
from penstock.sim.shapes import DEAD, LATE
from penstock.sim.violation import Violation
from penstock.sim.world import World
from penstock.testing.uncompiled import Uncompiled

# Situations that a long enough run must have been in, or it proves less than it seems to.
SOMETIMES = (
    "zombie append refused",
    "late recovery refused",
    "unknown outcome that was applied",
    "unknown outcome that was not applied",
    "recovery from a checkpoint",
    "recovery from an older checkpoint",
    "recovery from the change log alone",
    "recovery from where the state was empty",
    "vertex returned",
    "run failed",
    "run ended by a newer one",
    "crash during recovery",
    "crash while writing a checkpoint",
    "power cut while writing a checkpoint",
    "two crashes at once",
    "ended vertex lost",
    "checkpoint written",
    "checkpoint made of changes",
    "checkpoint written by a zombie",
    "zombie's checkpoint trims nothing",
    "checkpoint not written",
    "input trimmed",
    "input trimmed by a zombie",
    "crash while trimming",
    "trim that failed",
    "view behind the log",
    "log grew right after a read",
    "resume before a consumed marker",
    "early append orphaned and passed by",
    "idle producer left behind",
    "quiet branch passed",
    "late row",
    "late row in the side stream",
    "dead letter",
    "producer repeats a write",
    "crash while feeding a sink",
    "sink taken over by a newer run",
    "checkpoint rots during a recovery",
    "stream cut",
    "cut held back by a query",
    "reader told that rows are gone",
    "query goes on with a change",
    "changed query refused",
    "appends of several vertices at once",
    "attempt to stage rows failed",
    "rows staged too late",
    "staged write given up",
)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What came of one seed."""

    seed: int
    shape: str
    violation: str | None
    steps: int
    trace_hash: str
    faults: Counter[str]
    sometimes: Counter[str]
    details: str = ""  # where a violation was raised
    lines: tuple[str, ...] = ()


@dataclass(slots=True)
class Campaign:
    """What came of many seeds."""

    seeds: int = 0
    steps: int = 0
    violations: list[SeedResult] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    sometimes: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.steps += result.steps
        self.faults.update(result.faults)
        self.sometimes.update(result.sometimes)
        self.shapes[result.shape] += 1
        if result.violation is not None:
            self.violations.append(result)

    @property
    def never(self) -> list[str]:
        """The situations that should have been met and were not."""
        return [name for name in SOMETIMES if not self.sometimes[name]]


def run_seeds(
    seeds: Iterable[int],
    kernels: KernelCache,
    progress: Callable[[SeedResult], None] | None = None,
) -> Campaign:
    """Run many seeds."""
    campaign = Campaign()
    for seed in seeds:
        result = run_seed(seed, kernels)
        campaign.add(result)
        if progress is not None:
            progress(result)
    return campaign


def run_seed(
    seed: int, kernels: KernelCache, patch: Patch = nullcontext, trace: bool = False
) -> SeedResult:
    """Run one seed; `patch` breaks the engine for the run with failures."""
    scenario = make_scenario(seed)
    # What runs once is not worth compiling.
    world = World(scenario, Uncompiled(kernels.folder) if scenario.shape.is_random else kernels)
    if trace:
        world.schedule.lines = []
    violation, details = None, ""
    try:
        with small_chains(), patch():
            world.run()
            check(world)
    except Violation as found:
        violation = str(found)
    except Exception as error:  # whatever the engine lets out is a finding
        violation = f"{type(error).__name__}: {error}"
        details = traceback.format_exc()
    finally:
        world.close()
    return SeedResult(
        seed=seed,
        shape=scenario.shape.name,
        violation=violation,
        steps=world.cluster.steps,
        trace_hash=world.trace_hash(),
        faults=world.schedule.faults,
        sometimes=world.schedule.sometimes,
        details=details,
        lines=tuple(world.schedule.lines or ()),
    )


CATCH_SEEDS = 200  # within so many, of those in which it can show, a mutant must be caught

# What a patch that no longer fits the engine raises; it says nothing about the checks.
_MISFITS = ("TypeError", "AttributeError", "NameError")


@dataclass(frozen=True, slots=True)
class Catch:
    """A mutant's name, and the seed and text by which it was caught, if it was."""

    mutant: str
    seed: int | None
    violation: str | None
    misfit: str | None = None


def catch(mutant: Mutant, kernels: KernelCache, seeds_max: int = CATCH_SEEDS) -> Catch:
    """Run a mutant until a seed catches it that the whole engine passes."""
    worthwhile = (seed for seed in count() if mutant.shows_in(make_scenario(seed)))
    for seed in chain((mutant.seed,), islice(worthwhile, seeds_max)):
        result = run_seed(seed, kernels, mutant.patch)
        if result.violation is None:
            continue
        if result.violation.startswith(_MISFITS):
            return Catch(mutant.name, None, None, result.violation)
        if run_seed(seed, kernels).violation is None:
            return Catch(mutant.name, seed, result.violation)
    return Catch(mutant.name, None, None)


def check(world: World) -> None:
    """Everything that must hold after a run."""
    history = world.history.records
    programs = world.scenario.programs
    vertices = [vertex.name for program in programs for vertex in program.vertices]
    check_fences(history, world.history.registrations)
    check_staged(world.history)
    check_markers(history, vertices)
    world.cluster.check_handed_out()
    if world.trims_are_whole:
        check_nothing_left(world.history, programs, world.healed_at)
    check_trims(history, world.history.trims, programs, world.history.sinks)
    outcome = Outcome(world.scenario, history, world.cluster.deeds)
    check_output(outcome)
    for stream in world.scenario.retained:
        check_cuts(world.history.trims, stream, outcome.releases(stream)[0])
    if world.observer is not None:
        _check_observer(world, world.observer, outcome)
    if world.cluster.outside is not None:
        check_sink(world.history.sinks, world.cluster.outside.delivered, outcome)
        if world.cluster.outside.folder is not None:
            check_stored(outcome, world.cluster.outside.stored_rows())
    _count_situations(world, outcome)


def _check_observer(world: World, observer: Observer, outcome: Outcome) -> None:
    assert world.scenario.observed is not None
    stream, _ = world.scenario.observed
    releases = [
        (each.marker.position, [row for record in each.records for row in rows_of(record)])
        for each in outcome.releases(stream)[0]
    ]
    check_lives(stream, observer.lives, releases, is_kept=not world.scenario.retained)
    if any(life.was_cut for life in observer.lives):
        world.schedule.sometimes["reader told that rows are gone"] += 1


def _count_situations(world: World, outcome: Outcome) -> None:
    """What a run has been through that only its history tells."""
    sometimes = world.schedule.sometimes
    if repeated := world.history.trimmed_retries:
        sometimes["append repeated after it was trimmed"] += repeated
    programs = world.scenario.programs
    streams = {name for program in programs for stage in program.stages for name in stage.written}
    orphans = sum(outcome.reading(stream)[1] for stream in sorted(filter(None, streams)))
    if orphans:
        sometimes["early append orphaned and passed by"] += orphans
    if rests := outcome.rests:
        sometimes["quiet branch passed"] += rests
    facts = outcome.last_facts.values()
    if late := sum(each["late_rows"] for each in facts):
        sometimes["late row"] += late
    if world.scenario.shape.late_stream and (rows := outcome.reading(LATE)[0]):
        sometimes["late row in the side stream"] += len(rows)
    if world.scenario.shape.dead_letters and (rows := outcome.reading(DEAD)[0]):
        sometimes["dead letter"] += len(rows)
    if world.scenario.settings.idle_timeout_ms is not None:
        sometimes["idle producer left behind"] += outcome.idle_passes
