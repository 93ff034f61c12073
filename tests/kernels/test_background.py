"""Rows flow while kernels are compiled elsewhere; when they come, only the speed changes."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.connectors.rehearsals import REHEARSALS, rehearsals_for
from penstock.kernels import background, dealing, hashing
from penstock.kernels.background import (
    ATTEMPTS_MAX,
    PACKAGE,
    BackgroundKernels,
    compile_package,
    compile_wishes,
    expect_wishes,
    rehearsal_unit,
    start_compiler,
    wanted,
    wish_for_others,
)
from penstock.kernels.block import Block
from penstock.kernels.cache import KernelCache
from penstock.loops import loops_of
from tests.kernels import small_loops
from tests.kernels.test_cache import BATCH, SPEC

NUMBERS = np.array([1, 2, 39])


def stand_in(numbers: Any) -> str:
    return "a stand-in"


SMALL = {small_loops: {"add_up": stand_in}}
ALONE: dict[Any, Any] = {small_loops: {}}  # nothing stands in for its loop


@pytest.fixture(autouse=True)
def own_machine_code() -> Iterator[None]:
    """Each test begins as a new process does."""
    loops = [loop for module in (*PACKAGE, *SMALL) for loop in loops_of(module)]
    for loop in loops:
        vars(loop).pop("machine_code", None)
    yield
    for loop in loops:
        loop.use(None)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles is this process, which stays as nice as it is."""
    monkeypatch.setattr("os.nice", lambda niceness: niceness)


class Compilers:
    """Compilers that are started, and do nothing but hold the lock until the test ends them."""

    def __init__(self) -> None:
        self.locks: list[int] = []

    def start(self, folder: Path, lock: int) -> None:
        self.locks.append(os.dup(lock))

    def die(self) -> None:
        os.close(self.locks[-1])


def partials(block: Block) -> list[Any]:
    found = block.aggregate(BATCH)
    return [found.words.tolist(), found.values[0].tolist(), found.hashes.tolist()]


def asked(block: Block) -> Block:
    block.ask_for_kernels()
    return block


def test_a_compiler_that_never_ends_holds_nothing_up(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    expected = partials(Block(SPEC, None))
    for _ in range(3):
        assert partials(block) == expected
        assert small_loops.add_up(NUMBERS) == "a stand-in"
        assert not kernels.tend()
    assert not block.is_compiled
    assert len(wanted(kernels)) == 2
    assert len(compilers.locks) == 1, "one process, for both"


def test_what_has_been_compiled_takes_over_between_two_batches(tmp_path: Path, here: None) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    before = partials(block)
    small_loops.add_up(NUMBERS)
    kernels.tend()
    compile_wishes(str(tmp_path), linger_s=0)
    assert wanted(kernels) == []
    assert kernels.tend()
    assert partials(block) == before
    assert block.is_compiled
    assert small_loops.add_up(NUMBERS) == 42
    assert not kernels.tend()

    again = BackgroundKernels(tmp_path, compilers.start, SMALL)
    assert asked(Block(SPEC, again)).is_compiled
    assert small_loops.add_up(NUMBERS) == 42
    assert not again.tend()
    assert len(compilers.locks) == 1, "nothing was missing: no process"


def test_who_only_asks_whether_a_block_is_compiled_wishes_for_nothing(tmp_path: Path) -> None:
    kernels = BackgroundKernels(tmp_path, Compilers().start, {})
    block = Block(SPEC, kernels)
    assert not block.is_compiled
    kernels.tend()
    assert wanted(kernels) == []
    block.ask_for_kernels()
    kernels.tend()
    assert len(wanted(kernels)) == 1


def test_what_nobody_calls_is_not_compiled(tmp_path: Path) -> None:
    kernels = BackgroundKernels(tmp_path, Compilers().start, SMALL)
    assert not kernels.tend()
    assert wanted(kernels) == []


def test_a_wish_of_later_is_seen_by_the_compiler_that_is_at_work(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, {})
    block = Block(SPEC, kernels)
    block.aggregate(BATCH)
    kernels.tend()
    nulls = BATCH.set_column(1, "v", pa.array([None, 1, 2, 3], pa.int64()))
    assert block.aggregate(nulls).values[0].tolist() == [2, 1]
    kernels.tend()
    assert len(compilers.locks) == 1
    assert len(wanted(kernels)) == 2


def test_slots_of_two_queries_share_one_compiler(tmp_path: Path, here: None) -> None:
    compilers = Compilers()
    one, other = (BackgroundKernels(tmp_path, compilers.start, {}) for _ in range(2))
    blocks = [Block(SPEC, kernels) for kernels in (one, other)]
    for block in blocks:
        block.aggregate(BATCH)
    one.tend()
    other.tend()
    assert len(compilers.locks) == 1
    compile_wishes(str(tmp_path), linger_s=0)
    assert one.tend()
    assert other.tend()
    assert all(asked(block).is_compiled for block in blocks)


def test_the_compiler_of_a_slot_that_died_is_followed_by_another(tmp_path: Path) -> None:
    compilers = Compilers()
    one, other = (BackgroundKernels(tmp_path, compilers.start, {}) for _ in range(2))
    Block(SPEC, one).aggregate(BATCH)
    Block(SPEC, other).aggregate(BATCH)
    one.tend()
    compilers.die()
    other.tend()
    assert len(compilers.locks) == 2


def test_what_cannot_be_compiled_stays_with_arrow(tmp_path: Path) -> None:
    """A kernel that ends the compiler, as one that takes all memory, would end the slot too."""
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    for _ in range(ATTEMPTS_MAX):
        assert partials(block) == partials(Block(SPEC, None))
        assert small_loops.add_up(NUMBERS) == "a stand-in"
        kernels.tend()
        compilers.die()
    for _ in range(2):
        assert not kernels.tend()
        assert partials(block) == partials(Block(SPEC, None))
        assert small_loops.add_up(NUMBERS) == "a stand-in"
    assert len(compilers.locks) == ATTEMPTS_MAX
    assert wanted(kernels) == [], "no later compiler tries again"


def test_rows_wait_for_what_a_stand_in_declines(tmp_path: Path, here: None) -> None:
    asked: list[bytes] = []

    def start(folder: Path, lock: int) -> None:
        (wish,) = folder.glob("*.wanted")
        asked.append(wish.read_bytes())
        compile_wishes(str(folder), linger_s=0)

    def small_only(numbers: Any) -> Any:
        return NotImplemented if numbers.size > 3 else "a stand-in"

    BackgroundKernels(tmp_path, start, {small_loops: {"add_up": small_only}})
    assert small_loops.add_up(NUMBERS) == "a stand-in"
    assert asked == []
    assert small_loops.add_up(np.arange(4)) == 6
    assert len(asked) == 1
    assert asked[0], "the wish says that rows wait"
    assert small_loops.add_up(NUMBERS) == 42


def test_what_rows_wait_for_is_compiled_first(
    tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, compiled = KernelCache(tmp_path), list[str]()

    def compile_unit(_: KernelCache, unit: str) -> bool:
        compiled.append(unit)
        kernels.mark_compiled(unit)
        return True

    monkeypatch.setattr(background, "compile_unit", compile_unit)
    monkeypatch.setattr("os.nice", lambda _: compiled.append("is nice from here on"))
    wishes = {"k_1.one": b"", "k_2": b"", "k_1.two": b"rows wait", "k_1.three": b""}
    for number, (unit, said) in enumerate(wishes.items()):
        (tmp_path / f"{unit}.wanted").write_bytes(said)
        os.utime(tmp_path / f"{unit}.wanted", (number, number))
    compile_wishes(str(tmp_path), linger_s=0)
    assert compiled == ["k_1.two", "k_2", "is nice from here on", "k_1.one", "k_1.three"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all of a process is nice, or none")
def test_only_loops_that_nobody_waits_for_are_compiled_nicely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wished for after them takes its share all the same."""
    kernels, niceness = KernelCache(tmp_path), dict[str, int]()

    def compile_unit(_: KernelCache, unit: str) -> bool:
        niceness[unit] = os.getpriority(os.PRIO_PROCESS, 0) - before
        kernels.mark_compiled(unit)
        if unit == "k_1.one":
            (tmp_path / "k_2.wanted").touch()
            (tmp_path / "k_1.two.wanted").write_bytes(b"rows wait")
            (tmp_path / "k_1.three.wanted").touch()
        return True

    before = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(background, "compile_unit", compile_unit)
    (tmp_path / "k_1.one.wanted").touch()
    compile_wishes(str(tmp_path), linger_s=0)
    nice = background.NICENESS
    assert niceness == {"k_1.one": nice, "k_1.two": 0, "k_2": 0, "k_1.three": nice}


def test_what_another_process_compiled_meanwhile_is_used_at_once(tmp_path: Path) -> None:
    kernels = BackgroundKernels(tmp_path, Compilers().start, SMALL)
    compile_package(KernelCache(tmp_path), SMALL)
    assert small_loops.add_up(NUMBERS) == 42
    assert wanted(kernels) == []


def test_a_driver_wishes_for_its_slots_and_loads_nothing(tmp_path: Path, here: None) -> None:
    blocks: list[Block] = []

    def ask(kernels: KernelCache) -> None:
        blocks.append(asked(Block(SPEC, kernels)))
        assert not blocks[-1].is_compiled

    (tmp_path / "compiler.lock").touch()
    with (tmp_path / "compiler.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody is at work, and will see the wish
        wish_for_others(tmp_path, ask)
    assert len(wanted(KernelCache(tmp_path))) == 1
    compile_wishes(str(tmp_path), linger_s=0)
    assert asked(Block(SPEC, BackgroundKernels(tmp_path, Compilers().start, {}))).is_compiled
    wish_for_others(tmp_path, ask)
    assert wanted(KernelCache(tmp_path)) == []


def test_a_compiler_is_started_early_only_where_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = Compilers()
    monkeypatch.setattr(background, "start_compiler", compilers.start)
    expect_wishes(tmp_path)
    expect_wishes(tmp_path)
    assert len(compilers.locks) == 1, "one is enough"
    compilers.die()
    (loop, *_) = loops_of(dealing)
    KernelCache(tmp_path).mark_compiled(f"{background._name_of(dealing)}.{loop.name}")
    expect_wishes(tmp_path)
    assert len(compilers.locks) == 1


def test_where_nothing_stands_in_a_dying_compiler_is_not_waited_for(tmp_path: Path) -> None:
    started: list[int] = []
    kernels = BackgroundKernels(tmp_path, lambda folder, lock: started.append(lock), ALONE)
    assert small_loops.add_up(NUMBERS) == 42, "compiled here in the end"
    assert len(started) == ATTEMPTS_MAX
    kernels.rehearse(["nexmark_bids"])
    assert len(started) == 2 * ATTEMPTS_MAX


def test_where_nothing_stands_in_a_stopped_compiler_is_waited_for_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WAIT_S_MAX", 0.05)
    BackgroundKernels(tmp_path, Compilers().start, ALONE)
    assert small_loops.add_up(NUMBERS) == 42


def test_what_was_compiled_here_in_the_end_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else comes, and in the next query of this process too."""
    monkeypatch.setattr(background, "WAIT_S_MAX", 0.05)
    kernels = BackgroundKernels(tmp_path, Compilers().start, ALONE)
    assert small_loops.add_up(NUMBERS) == 42
    kernels.rehearse(["nexmark_bids"])
    kernels.mark_compiled(rehearsal_unit("nexmark_bids"))
    monkeypatch.setattr(background, "WAIT_S_MAX", 600.0)  # beyond the test's own time limit
    assert kernels.tend(), "something else has come"
    assert small_loops.add_up(NUMBERS) == 42
    BackgroundKernels(tmp_path, Compilers().start, ALONE)
    assert small_loops.add_up(NUMBERS) == 42


def test_a_folder_that_nobody_can_write_to_leaves_the_work_to_arrow(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path / "kernels", compilers.start, SMALL)
    kernels.folder.rmdir()
    kernels.folder.write_text("not a folder")  # even root cannot write there
    block = Block(SPEC, kernels)
    assert partials(block) == partials(Block(SPEC, None))
    assert small_loops.add_up(NUMBERS) == "a stand-in"
    assert not kernels.tend()
    assert compilers.locks == []


def test_a_folder_that_disappears_leaves_the_work_to_arrow(tmp_path: Path) -> None:
    kernels = BackgroundKernels(tmp_path / "kernels", Compilers().start, SMALL)
    block = Block(SPEC, kernels)
    block.aggregate(BATCH)
    for path in (*kernels.folder.iterdir(), kernels.folder):
        path.rmdir() if path.is_dir() else path.unlink()
    assert not kernels.tend()
    assert partials(block) == partials(Block(SPEC, None))


def test_what_ends_compilers_comes_last_and_then_no_more(
    tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes none of the others with it, in whatever process and query it was wished for."""
    kernels, compiled = KernelCache(tmp_path), list[str]()

    def compile_unit(_: KernelCache, unit: str) -> bool:
        compiled.append(unit)
        if unit == "k_0":
            raise SystemExit  # as what takes all memory: nothing in the compiler can catch it
        kernels.mark_compiled(unit)
        return True

    monkeypatch.setattr(background, "compile_unit", compile_unit)
    for unit, said in (("k_0", b"rows wait"), ("k_1", b""), ("k_2", b"")):
        (tmp_path / f"{unit}.wanted").write_bytes(said)
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(SystemExit):
            compile_wishes(str(tmp_path), linger_s=0)
    assert (compiled[0], sorted(compiled[1:3]), compiled[3:]) == (
        "k_0",
        ["k_1", "k_2"],
        ["k_0"] * 2,
    )
    for _ in range(2):
        compile_wishes(str(tmp_path), linger_s=0)
        assert wanted(kernels) == []
        (tmp_path / "k_0.wanted").touch()
    assert len(compiled) == 5


def test_what_has_ended_compilers_is_not_wished_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by a slot that comes later, nor by one that has wished for it before."""
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    small_loops.add_up(NUMBERS)
    (unit,) = wanted(kernels)
    (tmp_path / f"{unit}.trying").write_bytes(b"." * ATTEMPTS_MAX)
    assert not kernels.tend()
    later = BackgroundKernels(tmp_path, compilers.start, SMALL)
    assert small_loops.add_up(NUMBERS) == "a stand-in"
    assert not later.tend()
    assert wanted(kernels) == []
    assert compilers.locks == []
    assert caplog.text.count("Arrow and NumPy do its work") == 2


def test_what_ended_compilers_long_ago_may_not_have_been_to_blame(
    tmp_path: Path, here: None
) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    trying = tmp_path / f"{background._name_of(small_loops)}.add_up.trying"
    trying.write_bytes(b"." * ATTEMPTS_MAX)
    os.utime(trying, (0, 0))
    assert small_loops.add_up(NUMBERS) == "a stand-in"
    kernels.tend()
    assert len(compilers.locks) == 1
    compile_wishes(str(tmp_path), linger_s=0)
    assert kernels.tend()
    assert small_loops.add_up(NUMBERS) == 42
    assert not trying.exists()


def test_wishes_of_another_version_are_left_to_it(tmp_path: Path, here: None) -> None:
    for unit in ("k_0123", "r_0123.nexmark_all"):
        (tmp_path / f"{unit}.wanted").touch()
    (tmp_path / "k_0123.py").write_text("raise AssertionError")
    compile_wishes(str(tmp_path), linger_s=0)
    assert sorted(wanted(KernelCache(tmp_path))) == ["k_0123", "r_0123.nexmark_all"]


def test_a_process_of_its_own_compiles_and_one_that_is_killed_is_replaced(tmp_path: Path) -> None:
    started: list[int] = []

    def start(folder: Path, lock: int) -> None:
        start_compiler(folder, lock)
        started.extend(compilers_of(folder))
        assert os.getsid(started[-1]) != os.getsid(0), "what interrupts us is not for it"
        if len(started) == 1:
            os.kill(started[0], signal.SIGKILL)

    kernels = BackgroundKernels(tmp_path, start, SMALL)
    block = Block(SPEC, kernels)
    before = partials(block)
    while not (block.is_compiled and small_loops.add_up(NUMBERS) == 42):
        assert partials(block) == before
        kernels.tend()
        sleep(0.02)
    assert partials(block) == before
    assert len(started) >= 2
    assert (tmp_path / "compiler.err").stat().st_mode & 0o777 == 0o600


def compilers_of(folder: Path) -> list[int]:
    """The processes that compile for a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"compile_wishes" in line and os.fsencode(folder) in line:
            found.append(int(path.parent.name))
    return found


def test_every_loop_of_the_package_can_be_compiled_elsewhere(tmp_path: Path) -> None:
    """The text of each module makes a module by itself, with the same loops."""
    for module, stand_ins in PACKAGE.items():
        known = BackgroundKernels(tmp_path, Compilers().start, {module: stand_ins})
        copied = known.module(Path(str(module.__file__)).read_text())
        names = [loop.name for loop in loops_of(module)]
        assert [loop.name for loop in loops_of(copied)] == names
        assert set(stand_ins) <= set(names)


def test_all_that_is_missing_of_the_package_is_compiled_on_purpose(tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path)
    assert [compile_package(kernels, SMALL) for _ in range(2)] == [1, 0]
    BackgroundKernels(tmp_path, Compilers().start, SMALL)
    assert small_loops.add_up(NUMBERS) == 42


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_machine_code_that_was_cut_short_is_made_anew(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = KernelCache(tmp_path)
    compile_package(kernels, SMALL)
    (path,) = (tmp_path / "__pycache__").glob(f"*.add_up-*{suffix}")
    path.write_bytes(path.read_bytes()[:10])
    (source,) = tmp_path.glob("k_*.py")
    monkeypatch.delitem(sys.modules, source.stem)  # as in another process
    BackgroundKernels(tmp_path, Compilers().start, SMALL)
    assert small_loops.add_up(NUMBERS) == 42
    assert path.stat().st_size > 10


def test_what_a_generator_needs_can_be_rehearsed() -> None:
    assert list(rehearsals_for("folder", {"format": "jsonl"})) == []
    for kind in ("bids", "all"):
        assert set(rehearsals_for("nexmark", {"kind": kind})) <= set(REHEARSALS)
    assert len({rehearsal_unit(name) for name in REHEARSALS}) == len(REHEARSALS)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_small_loops_and_what_stands_in_for_them_agree(rows: int) -> None:
    """Key hashes decide who owns a row: they are the same before and after kernels come."""
    words = pa.array([f"{'ü' * (row % 7)}{row}" for row in range(rows)], pa.string())
    numbers = pa.array(np.arange(rows) * 7919)

    def found() -> list[Any]:
        hashes = hashing.hash_columns([words, numbers], rows)
        return [hashes.tolist(), *(part.tolist() for part in dealing.deal(hashes, 3))]

    compiled = found()
    for module in (hashing, dealing):
        for loop in loops_of(module):
            loop.use(PACKAGE[module][loop.name])
    assert found() == compiled
