"""Executors in JVMs of their own (`local-cluster`): one of them is lost, its slots come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.rig import DriverProcess, kill, verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RATE = 5_000
EVENTS = 10 * RATE


@pytest.mark.slow
def test_an_executor_is_lost(new_driver: Callable[[str], DriverProcess]) -> None:
    """Killing the JVM takes all of its Python processes with it, as losing a machine does."""
    driver = new_driver("local-cluster[2,2,1024]").wait_ready()
    driver.start("lost", "counts", EVENTS, RATE, parallelism=2)
    driver.wait_standby("lost")
    slot = driver.working_pids("lost")[0]
    executor = _executor_of(slot)
    taken = [pid for pid in driver.working_pids("lost") if _executor_of(pid) == executor]
    kill(executor)
    for pid in taken:
        driver.wait_recovered("lost", pid)
    driver.wait_end("lost")
    verify(driver.log, "lost", "counts", EVENTS, RATE)


def _executor_of(pid: int) -> int:
    """The JVM above a Python process of Spark: its daemon's parent."""
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert pid > 1, "no JVM above the slot"
    return pid
