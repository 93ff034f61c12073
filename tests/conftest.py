"""What every test shares: how asserts are reported, how Hypothesis searches, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from penstock.kernels.cache import KernelCache
from tests.thoroughness import examples

# A Java process of a test lives for seconds: it is not worth the best machine code, nor a collector
# with threads of its own. Whatever starts Spark inherits this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Folders of tests that start Spark, and the worker that has them; all others share another one.
SPARK_GROUPS = {"spark": "killed", "oracle": "oracle", "catalyst": "oracle"}

# Modules of shared tests, such as the log's contract, explain their failed asserts too.
for folder in Path(__file__).parent.iterdir():
    if folder.is_dir() and folder.name.isidentifier() and folder.name != "__pycache__":
        pytest.register_assert_rewrite(f"tests.{folder.name}")

# Time limits are pytest-timeout's: how long one example takes says nothing on a busy machine.
settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile("penstock")


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> KernelCache:
    """In pytest's own cache: a kernel is named by its content, so all processes of this run and
    of the next ones may use it."""
    cache = request.config.cache
    assert cache is not None
    return KernelCache(cache.mkdir("kernels"))


# Before the plugin that turns the groups into names, which is called without any order.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what starts Spark, and keep together what shares a session.

    A session takes many seconds to start. Those who wait for killed processes leave the processors
    to the others, and the short tests fill the end.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") is not None:
            folder = item.nodeid.split("/")[1]
            item.add_marker(pytest.mark.xdist_group(SPARK_GROUPS.get(folder, "session")))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
