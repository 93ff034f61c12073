"""One folder of compiled kernels for the whole run: each distinct kernel is compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernels.cache import KernelCache


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    folder: Path = tmp_path_factory.mktemp("kernels")
    return KernelCache(folder)
