"""Rows flow while kernels are compiled elsewhere; when they come, only the speed changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.kernels import dealing, hashing
from penstock.kernels.background import (
    ATTEMPTS_MAX,
    PACKAGE,
    BackgroundKernels,
    claimed,
    compile_kernels,
    start_compiler,
)
from penstock.kernels.block import Block
from penstock.state.loops import loops_of
from tests.kernels import small_loops
from tests.kernels.test_cache import BATCH, SPEC

NUMBERS = np.array([1, 2, 39])


def stand_in(numbers: Any) -> str:
    return "a stand-in"


SMALL = {small_loops: {"add_up": stand_in}}


@pytest.fixture(autouse=True)
def own_machine_code() -> Iterator[None]:
    yield
    for module in (*PACKAGE, *SMALL):
        for loop in loops_of(module):
            loop.use(None)


class Compilers:
    """Starts compilers, which run or end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.code: int | None = None

    def start(self, folder: Path, names: Sequence[str]) -> Compilers:
        self.asked.append(list(names))
        return self

    def poll(self) -> int | None:
        return self.code


def partials(block: Block) -> list[Any]:
    found = block.aggregate(BATCH)
    return [found.words.tolist(), found.values[0].tolist(), found.hashes.tolist()]


def test_a_compiler_that_never_ends_holds_nothing_up(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    expected = partials(Block(SPEC, None))
    for _ in range(3):
        assert partials(block) == expected
        assert not kernels.tend()
    assert not block.is_compiled
    assert small_loops.add_up(NUMBERS) == "a stand-in"
    assert [len(names) for names in compilers.asked] == [2], "one process, for both modules"


def test_what_has_been_compiled_takes_over_between_two_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    before = partials(block)
    kernels.tend()
    monkeypatch.setattr("os.nice", lambda niceness: niceness)  # this process stays as it is
    compile_kernels(str(tmp_path), *compilers.asked[0])
    assert kernels.tend()
    assert block.is_compiled
    assert partials(block) == before
    assert small_loops.add_up(NUMBERS) == 42
    assert not kernels.tend()

    again = BackgroundKernels(tmp_path, compilers.start, SMALL)
    assert Block(SPEC, again).is_compiled
    assert small_loops.add_up(NUMBERS) == 42
    assert not again.tend()
    assert len(compilers.asked) == 1, "nothing was missing: no process"


def test_a_variant_that_is_asked_for_later_is_compiled_later(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, {})
    block = Block(SPEC, kernels)
    block.aggregate(BATCH)
    kernels.tend()
    nulls = BATCH.set_column(1, "v", pa.array([None, 1, 2, 3], pa.int64()))
    assert block.aggregate(nulls).values[0].tolist() == [2, 1]
    kernels.tend()
    assert len(compilers.asked) == 1, "the first compiler is at work"
    compilers.code = 0
    kernels.tend()
    assert [len(names) for names in compilers.asked] == [1, 2]


def test_nobody_compiles_what_another_is_at(tmp_path: Path) -> None:
    compilers = Compilers()
    kernels = BackgroundKernels(tmp_path, compilers.start, {})
    Block(SPEC, kernels).aggregate(BATCH)
    (path,) = tmp_path.glob("k_*.py")
    with claimed(tmp_path, path.stem) as is_mine:
        assert is_mine
        kernels.tend()
        assert compilers.asked == []
    kernels.tend()  # whoever was at it is gone, and has not done it
    assert compilers.asked == [[path.stem]]


def test_what_cannot_be_compiled_elsewhere_is_compiled_where_it_is_needed(tmp_path: Path) -> None:
    compilers = Compilers()
    compilers.code = -9
    kernels = BackgroundKernels(tmp_path, compilers.start, SMALL)
    block = Block(SPEC, kernels)
    for _ in range(ATTEMPTS_MAX):
        assert not block.is_compiled
        assert not kernels.tend()
    assert len(compilers.asked) == ATTEMPTS_MAX
    assert kernels.tend()
    assert block.is_compiled
    assert small_loops.add_up(NUMBERS) == 42


def test_a_process_of_its_own_compiles(tmp_path: Path) -> None:
    started: list[Any] = []

    def start(folder: Path, names: Sequence[str]) -> Any:
        started.append(start_compiler(folder, names))
        return started[-1]

    kernels = BackgroundKernels(tmp_path, start, SMALL)
    block = Block(SPEC, kernels)
    before = partials(block)
    while not (block.is_compiled and small_loops.add_up(NUMBERS) == 42):
        kernels.tend()
        sleep(0.02)
    assert partials(block) == before
    assert started[0].wait() == 0
    assert len(started) == 1


def test_every_loop_of_the_package_can_be_compiled_elsewhere(tmp_path: Path) -> None:
    """The text of each module makes a module by itself, with the same loops."""
    for module, stand_ins in PACKAGE.items():
        known = BackgroundKernels(tmp_path, Compilers().start, {module: stand_ins})
        copied = known.module(Path(str(module.__file__)).read_text())
        names = [loop.name for loop in loops_of(module)]
        assert [loop.name for loop in loops_of(copied)] == names
        assert set(stand_ins) <= set(names)


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
