"""One driver per test process, shared by the tests that leave it alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.kernels.cache import KernelCache
from tests.spark.rig import DriverProcess
from tests.spark_session import activated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.session import Attached


@pytest.fixture
def spark(attached: Attached) -> SparkSession:
    """The session that a file has attached to a log of its own, active."""
    return activated(attached.spark)


@pytest.fixture(scope="session")
def driver(
    tmp_path_factory: pytest.TempPathFactory, kernels: KernelCache
) -> Iterator[DriverProcess]:
    """A session with eight task slots; its log is its own."""
    folder = tmp_path_factory.mktemp("driver")
    process = DriverProcess("local[8]", folder / "log", kernels.folder, folder / "stderr.txt")
    try:
        yield process.wait_ready()
    finally:
        process.close()


@pytest.fixture
def new_driver(tmp_path: Path, kernels: KernelCache) -> Iterator[Callable[[str], DriverProcess]]:
    """Make more drivers over one log of the test's own."""
    made: list[DriverProcess] = []

    def make(master: str) -> DriverProcess:
        errors = tmp_path / f"stderr-{len(made)}.txt"
        made.append(DriverProcess(master, tmp_path / "log", kernels.folder, errors))
        return made[-1]

    yield make
    for process in made:
        process.close()
