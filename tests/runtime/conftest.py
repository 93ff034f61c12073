"""A folder per test, and one cache of compiled kernels for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache
from tests.runtime.laboratory import Laboratory


@pytest.fixture
def lab(tmp_path: Path, kernels: KernelCache) -> Laboratory:
    return Laboratory(tmp_path / "log", kernels)
