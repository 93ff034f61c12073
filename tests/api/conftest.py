"""Fixtures of the data sources' tests: one Spark session, and a log with everything in it."""

from __future__ import annotations

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
def spark() -> SparkSession:
    from penstock.api.datasource import PenstockDataSource  # noqa: PLC0415
    from penstock.api.nexmark_source import NexmarkDataSource  # noqa: PLC0415

    session = shared_session()
    session.dataSource.register(PenstockDataSource)
    session.dataSource.register(NexmarkDataSource)
    return session


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """A log that is only read: several producers, early appends, a dead instance's leftovers."""
    return eventful(Path(tmp_path_factory.mktemp("eventful")) / "log")
