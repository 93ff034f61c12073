"""What every test shares: how asserts are reported, how Hypothesis searches, and in which order."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from penstock.kernels.cache import KernelCache
from tests.thoroughness import IS_CAMPAIGN, IS_DEEP, examples

# A Java process of a test lives for seconds: it is not worth the best machine code, nor a collector
# with threads of its own, and finds Spark's classes where an earlier one left them
# (tools/spark_classes.py), if they are still those. Whatever starts Spark inherits this.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CLASSES = Path(sys.prefix, "spark-classes.jsa")
if CLASSES.exists() and CLASSES.stat().st_size:
    JAVA_OPTIONS += f" -Xlog:disable -XX:SharedArchiveFile={CLASSES}.base:{CLASSES}"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)

# A shell lets what it starts in the background ignore interrupts, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders of tests that start Spark, and who shares a session; files elsewhere share another one.
# Three sessions for four processes: who has no share, or has it done, takes of the rest.
SPARK_GROUPS = {"oracle": "oracle", "catalyst": "oracle", "spark": "spark"}
# In the deep part each process has a session before long, and takes so many tests of a file at a
# time. Only what waits for processes that it started and killed stays with one, so that the others
# have the cores meanwhile.
SHARE = 30
WAITING, SHARING = "spark", "own_session"
# Folders whose tests of one file need the same compiled code: one process makes it, not four.
COMPILING = {"bench", "connectors", "kernels", "operators", "state"}

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


class SharedTogether(LoadScopeScheduling):
    """Deals tests out to the workers, one by one unless they share what takes long to make.

    That is a Spark session, or compiled code.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # how many tests it has says nothing of its time
        super().__init__(config, log)
        self._scopes: dict[str, str] = {}  # by test
        self._tests = Counter[str]()  # by file

    def _split_scope(self, nodeid: str) -> str:
        if nodeid not in self._scopes:
            file = nodeid.split("::", maxsplit=1)[0]
            self._scopes[nodeid] = self._scope(nodeid, file)
            self._tests[file] += 1
        return self._scopes[nodeid]

    def _scope(self, nodeid: str, file: str) -> str:
        group = _group(file)
        if group is None:
            return file if file.split("/")[1] in COMPILING else nodeid
        if not (IS_DEEP or IS_CAMPAIGN) or (group == WAITING and SHARING not in _text(file)):
            return group
        return f"{file} {self._tests[file] // SHARE}"


@cache
def _group(file: str) -> str | None:
    folder = file.split("/")[1]
    if folder in SPARK_GROUPS:
        return SPARK_GROUPS[folder]
    return "session" if "pytest.mark.spark" in _text(file) else None


@cache
def _text(file: str) -> str:
    return (Path(__file__).parents[1] / file).read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SharedTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits, then what starts Spark or compiles: short tests fill the end."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.split("::")[0]
        group = _group(file)
        if group is not None:
            return 0 if group == WAITING else 1
        return 2 if file.split("/")[1] in COMPILING else 3

    items.sort(key=place)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed with its last reference: a slot freezes what the collector sees."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
