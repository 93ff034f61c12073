"""What the simulator has found, kept as cases: the seeds, and each bug on its own."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache
from penstock.log.memory import SimulatedCrash
from penstock.sim.runner import run_seed
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MemoryCheckpoints


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (8, "a checkpoint trimmed the marker where recovery begins"),
        (34, "a vertex that had ended came back and never ended again"),
        (122, "a checkpoint in a folder whose own name was never synced"),
        (431, "a late row that also fails stopped the vertex despite a dead-letter stream"),
    ],
)
def test_found_and_not_again(seed: int, found: str, kernels: KernelCache) -> None:
    result = run_seed(seed, kernels)
    assert result.violation is None, f"{found}?\n{result.violation}\n{result.details}"


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
