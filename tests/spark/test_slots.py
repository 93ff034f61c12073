"""Slots of a real Spark session die, stop and come back; the output stays exactly once."""

from __future__ import annotations

import json
import os
import signal

import pytest

from penstock.log import open_log
from penstock.log.blockers import blockers
from tests.spark.rig import DriverProcess, kill, verify
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RATE = 10_000


@pytest.mark.slow  # test_in_session.py has a short one
def test_slots_are_killed_beside_other_jobs(driver: DriverProcess) -> None:
    events = 10 * RATE
    driver.start("killed", "windows", events, RATE, parallelism=2)
    driver.wait_standby("killed")
    (first, *_) = driver.working_pids("killed")
    kill(first)
    assert driver.wait_recovered("killed", first)["reason"] == "connection closed"
    assert driver.ask("job_beside") == 499_500
    driver.wait_commits("killed")
    both = driver.working_pids("killed")
    kill(*both)
    for pid in both:
        driver.wait_recovered("killed", pid)
    driver.wait_end("killed")
    verify(driver.log, "killed", "windows", events, RATE)


@pytest.mark.slow
def test_a_stopped_slot_is_replaced_and_its_marker_refused(driver: DriverProcess) -> None:
    events = 9 * RATE
    driver.start("stopped", "counts", events, RATE, parallelism=2)
    driver.wait_standby("stopped")
    with open_log(driver.log) as log:
        for _ in range(4):
            pid = driver.working_pids("stopped")[0]
            os.kill(pid, signal.SIGSTOP)
            had_lock = pid in blockers(driver.log)
            assert driver.wait_recovered("stopped", pid)["reason"] == "silent"
            if had_lock:
                continue  # it was ended: nobody could have appended
            driver.wait_commits("stopped")
            os.kill(pid, signal.SIGCONT)
            driver.wait_standby("stopped")
            if log.keys("refused") or driver.over("stopped"):
                break
        refused = [json.loads(log.get(key).value) for key in log.keys("refused")]
    driver.wait_end("stopped")
    verify(driver.log, "stopped", "counts", events, RATE)
    assert all(facts["newest_instance"] > 1 for facts in refused)


@pytest.mark.slow
def test_stop_commits_and_start_goes_on(driver: DriverProcess) -> None:
    events = 4 * RATE
    first = driver.start("again", "windows", events, RATE, standbySlots=0)
    wait_for("commits", lambda: max(driver.ask("epochs", name="again").values()) > 5)
    driver.ask("stop", name="again")
    assert driver.ask("is_over", name="again") == {"over": True, "error": None}
    second = driver.start("again", "windows", events, RATE, standbySlots=0)
    assert second["id"] == first["id"]
    assert second["runId"] != first["runId"]
    driver.wait_end("again")
    verify(driver.log, "again", "windows", events, RATE)
