"""A thousand seeds: no promise broken, and every rare situation met."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache
from penstock.sim.runner import run_seeds

SHARDS = 4
SHARD_SEEDS = 250


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_seed_breaks_a_promise(shard: int, kernels: KernelCache) -> None:
    first = shard * SHARD_SEEDS
    campaign = run_seeds(range(first, first + SHARD_SEEDS), kernels)
    assert campaign.seeds == SHARD_SEEDS
    assert campaign.violations == [], "\n".join(
        f"penstock sim --seed {found.seed} --trace: {found.violation}\n{found.details}"
        for found in campaign.violations
    )
    # Each quarter must have met what the whole is asked for.
    assert campaign.never == []
    assert len(campaign.faults) >= 20
    assert len(campaign.shapes) == 18
