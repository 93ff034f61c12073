"""Whether a test's queries run compiled: most are quick without, and about something else."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache
from penstock.testing.uncompiled import Uncompiled

COMPILED = pytest.param(True, id="compiled", marks=pytest.mark.slow)


@pytest.fixture(scope="session", name="kernels", params=[pytest.param(False, id="arrow"), COMPILED])
def without_and_with(request: pytest.FixtureRequest, kernels: KernelCache) -> KernelCache:
    """Tests run without kernels, and once more with them in the deep part."""
    return kernels if request.param else Uncompiled(kernels.folder)


@pytest.fixture(scope="session", name="kernels")
def without(kernels: KernelCache) -> KernelCache:
    """Of a few hundred rows a loop saves less than loading it costs, compiling apart."""
    return Uncompiled(kernels.folder)
