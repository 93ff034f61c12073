"""Fixtures of the data sources' tests: one Spark session, and a log with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.datasource_logs import Scenario, eventful
from tests.compiled_code import without
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["own_sessions", "scenario", "spark", "without"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs a Spark session, and so a Java")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs Spark also waits for its start, long on a busy machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def own_sessions() -> dict[int, SparkSession]:
    return {}


@pytest.fixture
def spark(own_sessions: dict[int, SparkSession]) -> Iterator[SparkSession]:
    """A session beside the shared one, active: writers look for a format in the active session."""
    shared = shared_session()
    if id(shared) not in own_sessions:  # the first test, or somebody stopped the last one
        own_sessions[id(shared)] = _with_sources(shared.newSession())
    session = own_sessions[id(shared)]
    jvm = session._jvm
    assert jvm is not None
    jvm.SparkSession.setActiveSession(session._jsparkSession)
    yield session
    jvm.SparkSession.setActiveSession(shared._jsparkSession)


def _with_sources(session: SparkSession) -> SparkSession:
    from penstock.api.datasource import PenstockDataSource  # noqa: PLC0415
    from penstock.api.nexmark_source import NexmarkDataSource  # noqa: PLC0415
    from penstock.catalyst.session import active_session  # noqa: PLC0415

    with active_session(session):  # else Spark finds those of another test's session
        for source in (PenstockDataSource, NexmarkDataSource):
            session.dataSource.register(source)
    return session


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """A log that is only read: several producers, early appends, a dead instance's leftovers."""
    return eventful(Path(tmp_path_factory.mktemp("eventful")) / "log")
