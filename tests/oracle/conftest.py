"""The session that plans streams of the log, as the tests of the front end have it."""

from __future__ import annotations

import pytest

from tests.catalyst.conftest import defaults, sessions, spark
from tests.oracle.planned import Planned

__all__ = ["defaults", "planned", "sessions", "spark"]


@pytest.fixture(scope="session")
def planned() -> Planned:
    return Planned()
