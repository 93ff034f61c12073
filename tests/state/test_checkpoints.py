"""Both checkpoint stores under the contract; links and modes on disk; faults and power cuts."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from penstock.errors import CheckpointDamaged, CheckpointError
from penstock.log.punit import Codec
from penstock.state.checkpoint_files import FilePath, LocalFiles
from penstock.state.checkpoints import CheckpointId, CheckpointStore
from penstock.testing.memory_checkpoints import MemoryCheckpoints
from tests.state.checkpoint_contract import NUMBERS, CheckpointContract


class TestFolder(CheckpointContract):
    @pytest.fixture(params=list(Codec), ids=lambda codec: codec.name)
    def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> CheckpointStore:
        return CheckpointStore(tmp_path / "checkpoints", codec=request.param)


class TestMemory(CheckpointContract):
    @pytest.fixture
    def store(self) -> CheckpointStore:
        return MemoryCheckpoints()


@pytest.mark.parametrize("mask", [0o077, 0o027])
def test_modes_are_those_that_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        store = CheckpointStore(tmp_path / "checkpoints")
        store.write("v", 1, {"s": [NUMBERS]})
    finally:
        os.umask(before)
    below = [tmp_path / "checkpoints", *(tmp_path / "checkpoints").rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in below}
    assert modes == {0o777 & ~mask, 0o666 & ~mask}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    other = CheckpointStore(outside)
    kept = other.write("v", 1, {"s": [NUMBERS]})
    store = CheckpointStore(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "v").symlink_to(outside / "v")
    assert store.list("v") == []
    with pytest.raises(CheckpointDamaged):
        store.delete(kept)
    with pytest.raises(CheckpointError):
        store.write("v", 2, {"s": [NUMBERS]})
    assert other.load(kept).states == {"s": [NUMBERS]}

    mine = store.write("w", 1, {"s": [NUMBERS]})
    units = tmp_path.joinpath("checkpoints", *mine.path, "s.units")
    units.unlink()
    units.symlink_to(outside.joinpath(*kept.path, "s.units"))
    with pytest.raises(CheckpointDamaged):
        store.load(mine)
    store.delete(mine)
    assert other.load(kept).states == {"s": [NUMBERS]}


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    import os  # noqa: PLC0415 (only to make a pipe)

    store = CheckpointStore(tmp_path)
    written = store.write("v", 1, {"s": [NUMBERS]})
    units = tmp_path.joinpath(*written.path, "s.units")
    units.unlink()
    os.mkfifo(units)
    with pytest.raises(CheckpointDamaged, match="regular"):
        store.load(written)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="making folder"):
        CheckpointStore(tmp_path / "file")


class FullDisk(LocalFiles):
    """A disk that fills up in the middle of a file."""

    def write_file(self, path: FilePath, parts: object) -> None:
        super().write_file(path, [b"half"])
        raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    good = CheckpointStore(tmp_path)
    old = good.write("v", 1, {"s": [NUMBERS]})
    full = CheckpointStore(tmp_path, files=FullDisk(tmp_path))
    with pytest.raises(CheckpointError, match="No space") as raised:
        full.write("v", 2, {"s": [NUMBERS]})
    assert raised.value.details["errno"] == 28
    assert good.list("v") == [old]
    assert list((tmp_path / "v").iterdir()) == [tmp_path / "v" / old.path[-1]]


class Died(BaseException):
    """The process ended at this step."""


class Countdown:
    """Fails the k-th step, counted from 0, with what `error` says."""

    def __init__(self, step: int, error: type[BaseException]) -> None:
        self.left = step
        self.error = error

    def __call__(self, step: str, path: FilePath) -> None:
        self.left -= 1
        if self.left == -1:
            raise self.error("at " + step)


def write_steps() -> int:
    counting = Countdown(-1, Died)
    MemoryCheckpoints(counting).write("v", 2, {"s": [NUMBERS], "t": [NUMBERS, NUMBERS]})
    return -1 - counting.left


WRITE_STEPS = write_steps()


def test_there_are_steps_to_fail() -> None:
    assert WRITE_STEPS >= 15


@pytest.mark.parametrize("step", range(WRITE_STEPS))
def test_a_write_that_fails_at_any_step_changes_nothing(step: int) -> None:
    store = MemoryCheckpoints()
    old = store.write("v", 1, {"s": [NUMBERS]})
    names = store.files.list_folder(("v",))
    store.files.before_step = Countdown(step, OSError)
    try:
        new = store.write("v", 2, {"s": [NUMBERS], "t": [NUMBERS, NUMBERS]})
    except CheckpointError:
        store.files.before_step = None
        whole = [each for each in store.list("v") if each != old]
        for each in whole:  # only the very last sync failed: it may be there, and is whole then
            assert store.load(each).states["s"] == [NUMBERS]
        if not whole:
            assert store.files.list_folder(("v",)) == names
    else:
        store.files.before_step = None
        assert store.load(new).states["s"] == [NUMBERS]
    assert store.load(old).states == {"s": [NUMBERS]}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step", range(WRITE_STEPS))
def test_a_power_cut_at_any_step_leaves_it_whole_or_absent(step: int, seed: int) -> None:
    """Seed 0 loses everything unsynced; the others keep, tear or lose each piece at random."""
    chance = random.Random(seed)
    store = MemoryCheckpoints()
    old = store.write("v", 1, {"s": [NUMBERS]})
    store.files.before_step = Countdown(step, Died)
    try:
        store.write("v", 2, {"s": [NUMBERS], "t": [NUMBERS, NUMBERS]})
        survived = True
    except Died:
        survived = False
    store.files.before_step = None
    store.files.power_cut(chance.randrange if seed else lambda choices: 0)
    assert store.load(old).states == {"s": [NUMBERS]}
    newer = [each for each in store.list("v") if each != old]
    for each in newer:
        assert store.load(each).states == {"s": [NUMBERS], "t": [NUMBERS, NUMBERS]}
    assert newer or not survived
    store.write("v", 3, {"s": [NUMBERS]})
    assert store.newest("v", 3) == CheckpointId("v", 3)
    store.delete_unfinished("v", 3)
    assert len(store.files.list_folder(("v",))) == len(store.list("v"))


def test_a_cut_loses_what_was_not_synced() -> None:
    """The simulation of power cuts itself: unsynced names and bytes do go."""
    files = MemoryCheckpoints().files
    files.make_folder(("a",))
    files.sync_folder(())
    files.write_file(("a", "kept"), [b"1"])
    files.sync_folder(("a",))
    files.write_file(("a", "lost"), [b"2"])
    files.before_step = Countdown(2, Died)
    with pytest.raises(Died):
        files.write_file(("a", "torn"), [b"12345678"])
    files.before_step = None
    files.power_cut(lambda choices: 1)
    assert files.list_folder(("a",)) == ["kept", "lost", "torn"]
    assert files.read_file(("a", "torn"), 99).to_pybytes() == b"1234"
    files.write_file(("a", "new"), [b"3"])
    files.power_cut()
    assert files.list_folder(("a",)) == ["kept", "lost", "torn"]


def test_damage_and_loss_on_demand() -> None:
    store = MemoryCheckpoints()
    old, new = (store.write("v", at, {"s": [NUMBERS]}) for at in (1, 2))
    store.damage(new, 300, "s.units")
    loaded, problems = store.load_newest("v", 9)
    assert loaded is not None
    assert loaded.id == old
    assert len(problems) == 1
    store.lose(new)
    assert store.newest("v", 9) == old
    store.damage(old)
    assert store.load_newest("v", 9)[0] is None
