"""The session that plans streams of the log, as the tests of the front end have it."""

from __future__ import annotations

import pytest

from penstock.kernels.cache import KernelCache
from tests.catalyst.conftest import defaults, sessions, spark
from tests.oracle.planned import Planned

__all__ = ["defaults", "kernels", "planned", "sessions", "spark"]


@pytest.fixture(scope="session")
def planned() -> Planned:
    return Planned()


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> KernelCache:
    """In pytest's own cache: a kernel is named by its content, so the next run may use it too."""
    return KernelCache(request.config.cache.mkdir("kernels"))
