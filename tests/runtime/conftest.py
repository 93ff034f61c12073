"""A folder per test; queries run without compiled code, and with it in the deep part."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache
from tests.compiled_code import without_and_with
from tests.runtime.laboratory import Laboratory

__all__ = ["lab", "without_and_with"]


@pytest.fixture
def lab(tmp_path: Path, kernels: KernelCache) -> Laboratory:
    return Laboratory(tmp_path / "log", kernels)
