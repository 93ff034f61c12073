"""A folder per test, and one cache of compiled kernels for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache
from tests.runtime.laboratory import Laboratory


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    return KernelCache(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def lab(tmp_path: Path, kernels: KernelCache) -> Laboratory:
    return Laboratory(tmp_path / "log", kernels)
