"""A query goes on under another Penstock, or is refused by name, with nothing touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.kernels.cache import KernelCache
from penstock.runtime import markers
from penstock.sim.scenario import make_scenario
from penstock.sim.shapes import SHAPES
from penstock.sim.violation import Violation
from penstock.sim.world import World
from penstock.state import checkpoints

RUNNING = next(at for at, shape in enumerate(SHAPES) if shape.name == "running_one")


def _half_done(kernels: KernelCache) -> World:
    """A query with a checkpoint whose processes are all gone."""
    scenario = make_scenario(RUNNING).quietly()
    (program,) = scenario.programs
    settings = replace(
        program.settings, checkpoint_interval_commits=1, step_rows_max=5, commit_interval_ms=0
    )
    scenario = replace(
        scenario, programs=(replace(program, settings=settings),), changed=(), refused=None,
        loses_tail=False, retained=(), inline_bytes_max=None,
    )  # fmt: skip
    world = World(scenario, kernels, {})
    world._begin()
    while not world.schedule.sometimes["checkpoint written"]:
        world._act()
    assert not world.cluster.all_ended()
    world.cluster.cut_power()
    return world


def _newer_markers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MARKER_VERSION", markers.MARKER_VERSION + 1)


def _newer_checkpoints(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = checkpoints.VERSION + 1
    monkeypatch.setattr(checkpoints, "VERSION", newer)
    monkeypatch.setattr(checkpoints, "VERSIONS_READ", (newer,))


def _newer_program(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"query/{world.scenario.program.query}"
    stored = world.cluster._log.get(key)
    assert stored is not None
    facts = json.loads(stored.value)
    program = json.loads(facts["program"])
    facts["program"] = json.dumps(program | {"version": program["version"] + 1})
    world.cluster._log.put(key, json.dumps(facts).encode())


@pytest.mark.parametrize("upgrade", [_newer_program, _newer_markers, _newer_checkpoints])
def test_what_another_version_has_stored_is_refused_by_name_and_left_alone(
    upgrade: Callable[[World, pytest.MonkeyPatch], None],
    kernels: KernelCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _half_done(kernels)
    try:
        upgrade(world, monkeypatch)
        key = f"query/{world.scenario.program.query}"
        records, trims, _, _ = _touched(world)
        names, stored = _files(world), world.cluster._log.get(key)
        with pytest.raises(Violation, match="version"):
            _act_on(world)
        assert _touched(world)[:2] == (records, trims)
        assert _files(world) == names
        if upgrade is _newer_program:
            assert world.cluster._log.get(key) == stored
    finally:
        world.close()


def test_a_changed_program_goes_on_from_what_the_first_one_has_stored(
    kernels: KernelCache,
) -> None:
    seeds = range(2, 10_000, len(SHAPES))  # the shape `running`
    scenario = next(found for found in map(make_scenario, seeds) if found.changed)
    world = World(scenario.quietly(), kernels, {})
    try:
        world.run()
        assert scenario.refused is not None
        world.cluster.start_refused(scenario.refused)
    finally:
        world.close()
    assert world.schedule.sometimes["changed query refused"] == 1


def _act_on(world: World) -> None:
    for _ in range(500):
        world._act()


def _touched(world: World) -> tuple[int, int, int, int]:
    done = world.history
    return len(done.records), len(done.trims), len(done.registrations), len(done.sinks)


def _files(world: World) -> list[str]:
    files = world.cluster.disk.checkpoints.files
    vertex = world.cluster.names[0]
    return [
        f"{folder}/{name}"
        for folder in files.names_in((vertex,))
        for name in files.names_in((vertex, folder))
    ]
