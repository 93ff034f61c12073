"""The same seed is the same run, to the byte, in any process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.kernels.cache import KernelCache
from penstock.sim.runner import run_seed
from tests.thoroughness import some

SEEDS = (tuple(range(6)), tuple(range(6, 18)))  # together each shape once
SEEDS_ELSEWHERE = tuple(range(0, 18, 6))
PROGRAM = """
import logging, sys
logging.disable(logging.CRITICAL)
from penstock.sim.runner import run_seed
from penstock.testing.uncompiled import Uncompiled
kernels = Uncompiled(sys.argv[1])
for seed in map(int, sys.argv[2:]):
    print(seed, run_seed(seed, kernels).trace_hash)
"""


def _hashes_here(seeds: tuple[int, ...], kernels: KernelCache) -> list[str]:
    return [f"{seed} {run_seed(seed, kernels).trace_hash}" for seed in seeds]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", some(SEEDS, every=2))
def test_same_seed_same_trace(seeds: tuple[int, ...], kernels: KernelCache) -> None:
    assert _hashes_here(seeds, kernels) == _hashes_here(seeds, kernels)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_same_trace_in_another_process(hash_seed: str, kernels: KernelCache) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(kernels.folder), *map(str, SEEDS_ELSEWHERE)],
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert ran.stdout.splitlines() == _hashes_here(SEEDS_ELSEWHERE, kernels)


def test_other_seeds_are_other_runs(kernels: KernelCache) -> None:
    hashes = {run_seed(seed, kernels).trace_hash for seed in (0, 18, 36)}
    assert len(hashes) == 3
