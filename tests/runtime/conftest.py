"""A folder per test, and one cache of compiled kernels for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache
from tests.runtime.laboratory import Laboratory


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> KernelCache:
    """In pytest's own cache: a kernel is named by its content, so the next run may use it too."""
    return KernelCache(request.config.cache.mkdir("kernels"))


@pytest.fixture
def lab(tmp_path: Path, kernels: KernelCache) -> Laboratory:
    return Laboratory(tmp_path / "log", kernels)
