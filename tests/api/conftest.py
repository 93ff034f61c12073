"""Fixtures of the data sources' tests: one Spark session, and a log with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.datasource_logs import Scenario, eventful
from tests.spark_session import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs a Spark session, and so a Java")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs Spark also waits for its start, long on a busy machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def own_session() -> SparkSession:
    """A session beside the shared one: a source registered there could not be registered again in
    sessions made from it.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from penstock.api.datasource import PenstockDataSource  # noqa: PLC0415
    from penstock.api.nexmark_source import NexmarkDataSource  # noqa: PLC0415

    session = shared_session().newSession()
    for source in (PenstockDataSource, NexmarkDataSource):
        try:
            session.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise  # else some other test registered it in the shared session
    return session


@pytest.fixture
def spark(own_session: SparkSession) -> Iterator[SparkSession]:
    """That session, active: Spark's writers look for a format in the active session only."""
    jvm = own_session._jvm
    assert jvm is not None
    jvm.SparkSession.setActiveSession(own_session._jsparkSession)
    yield own_session
    jvm.SparkSession.setActiveSession(shared_session()._jsparkSession)


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """A log that is only read: several producers, early appends, a dead instance's leftovers."""
    return eventful(Path(tmp_path_factory.mktemp("eventful")) / "log")
