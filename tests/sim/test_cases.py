"""What the simulator has found, kept as cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.kernels.cache import KernelCache
from penstock.sim.faults import AtPoint
from penstock.sim.runner import check
from penstock.sim.scenario import Scenario, make_scenario
from penstock.sim.shapes import SHAPES
from penstock.sim.world import World
from penstock.state.checkpoint_files import FilePath
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from penstock.testing.memory_log import SimulatedCrash

RUNNING = 2  # the seed of the first scenario of that shape


def test_a_checkpoint_survives_power_loss_after_an_earlier_writer_died() -> None:
    """The earlier writer makes the vertex's folder and dies before the name of it is synced."""
    store = MemoryCheckpoints()

    def die(step: str, path: FilePath) -> None:
        if step == "sync_folder" and path == ():
            raise SimulatedCrash("before the sync")

    store.files.before_step = die
    with pytest.raises(SimulatedCrash):
        store.write("v", 5, {})
    store.files.before_step = None
    written = store.write("v", 7, {})
    store.files.power_cut()
    assert store.list("v") == [written]


Fates = dict[tuple[str, str, int], AtPoint]


def _run(seed: int, kernels: KernelCache, fates: Fates) -> World:
    return _finish(make_scenario(seed), kernels, fates)


def _finish(scenario: Scenario, kernels: KernelCache, fates: Fates) -> World:
    world = World(scenario.quietly(), kernels, fates)
    try:
        world.run()
        check(world)
    finally:
        world.close()
    return world


@pytest.mark.parametrize("registration", [1, 2, 3])
def test_a_recovery_that_is_held_up_does_not_push_its_successor_out(
    registration: int, kernels: KernelCache
) -> None:
    """A slot is frozen just before it registers, replaced, and wakes up when its successor runs."""
    fates = {("slot", "compare_and_set", registration): AtPoint.TAKE_OVER}
    world = _run(RUNNING, kernels, fates)
    assert world.schedule.faults["taken over in an action"] == 1
    assert world.schedule.sometimes["late recovery refused"] >= 1
    assert world.schedule.sometimes["run failed"] == 0


@pytest.mark.parametrize("where", ["start", "compare_and_set", "registered", "restored"])
def test_a_driver_that_dies_while_its_slot_recovers_is_succeeded(
    where: str, kernels: KernelCache
) -> None:
    fates = {
        ("slot", where, 1): AtPoint.HOLD,
        ("driver", "command", 5): AtPoint.CRASH,
    }
    world = _run(RUNNING, kernels, fates)
    assert world.schedule.faults["crash at a point"] == 1
    assert world.schedule.sometimes["run failed"] == 0


def test_a_trim_between_the_index_and_the_body_takes_nothing_that_is_read(
    kernels: KernelCache,
) -> None:
    """A reader of the embedded log is held up there for as long as others read, commit and trim."""
    seed = next(
        seed
        for seed in range(RUNNING, 10_000, len(SHAPES))
        if make_scenario(seed).inline_bytes_max == 0
    )
    fates = {("slot", "body", times): AtPoint.LONG_HOLD for times in (5, 20, 60, 120)}
    world = _run(seed, kernels, fates)
    assert world.schedule.faults["held up in an action"] >= 2


def test_rows_of_a_side_stream_do_not_wait_for_the_sink(kernels: KernelCache) -> None:
    """A vertex waits while its sink has much to get; rows that are late never get there."""
    number = next(at for at, shape in enumerate(SHAPES) if shape.name == "late_side_one")
    seeds = range(number, 10_000, len(SHAPES))
    found = next(
        scenario
        for scenario in map(make_scenario, seeds)
        if scenario.sink_keeps_record is not None and scenario.has_stragglers
    )
    (program,) = found.programs
    program = replace(program, settings=replace(program.settings, undelivered_bytes_max=100))
    _finish(replace(found, programs=(program,)), kernels, {})
