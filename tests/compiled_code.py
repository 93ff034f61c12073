"""Whether a test's queries run compiled: most are quick without, and about something else."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache
from penstock.testing.uncompiled import Uncompiled
from tests.thoroughness import IS_DEEP

COMPILED = pytest.param(True, id="compiled", marks=pytest.mark.slow)


@pytest.fixture(scope="session", name="kernels", params=[pytest.param(False, id="arrow"), COMPILED])
def without_and_with(request: pytest.FixtureRequest, kernels: KernelCache) -> KernelCache:
    """Tests run without kernels, and once more with them in the deep part."""
    return kernels if request.param else Uncompiled(kernels.folder)


@pytest.fixture(scope="session", name="kernels")
def only_where_it_pays(kernels: KernelCache) -> KernelCache:
    """Kernels are worth their compiling where the deep part runs them a thousand times."""
    return kernels if IS_DEEP else Uncompiled(kernels.folder)
