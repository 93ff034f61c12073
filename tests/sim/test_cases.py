"""What the simulator has found, kept as cases."""

from __future__ import annotations

import pytest

from penstock.log.memory import SimulatedCrash
from penstock.state.checkpoint_files import FilePath
from penstock.state.checkpoints import MemoryCheckpoints


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
