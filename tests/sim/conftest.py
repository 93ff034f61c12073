"""The kernels of the simulated queries, compiled once and kept for the next run."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> KernelCache:
    """In pytest's cache folder: named by content, so an old kernel is never taken for a new one."""
    cache = request.config.cache
    assert cache is not None
    return KernelCache(cache.mkdir("simulator-kernels"))
