"""A job over slots that are plain processes: killed, stopped, stopped with a lock in hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import TooFewSlots
from penstock.log import open_log
from penstock.log.blockers import blockers
from penstock.log.local import LocalLog
from penstock.plan.optimizer import plan_program
from penstock.runtime.job import Job
from penstock.runtime.placement import Patience
from penstock.runtime.streams import register_streams
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import count, query, scan_source
from tests.spark.process_slots import ROOT, ProcessLauncher
from tests.spark.waiting import wait_for

RATE = 20_000
STOPS_MAX = 3_000


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One log for all tests of this file: its kernels are compiled once."""
    folder = tmp_path_factory.mktemp("job") / "log"
    open_log(folder, create=True).close()
    return folder


def counting(name: str, events: int) -> Program:
    """A running count of bids per auction, over one exchange."""
    rows = scan_source(
        "nexmark", "auction bigint", partitions=None, kind="bids", rate=RATE, paced=True,
        events_max=events,
    )  # fmt: skip
    counted = rows.group_by("auction").agg(count().alias("count"), mode="update")
    settings = Settings(commit_interval_ms=20)
    return plan_program(query(name, counted.to_stream(name), parallelism=2, settings=settings))


@contextmanager
def running(
    log_folder: Path,
    name: str,
    events: int,
    launcher: ProcessLauncher | None = None,
    silence_s: float = 3.0,
) -> Iterator[tuple[Job, LocalLog]]:
    """The count on two slots and a standby; on a busy machine slots are silent for a while."""
    program = counting(name, events)
    with open_log(log_folder) as log:
        register_streams(log, program)
        job = Job(
            program, log, launcher or ProcessLauncher(), host="127.0.0.1", slots=2, standbys=1,
            patience=Patience(silence_s=silence_s, step_s=2 * silence_s),
        )  # fmt: skip
        job.start()
        try:
            assert job.wait_running(60)
            wait_for("a standby, or all is done", lambda: job.standbys_ready() or job.is_over)
            yield job, log
        finally:
            job.stop()


def working_pids(job: Job) -> list[int]:
    return [pid for pid, _, vertices in job.slot_processes().values() if vertices]


def commits(job: Job) -> dict[str, int]:
    return {name: facts.get("epoch", 0) for name, facts in job.vertex_status().items()}


def wait_progress(job: Job) -> None:
    """Wait until every vertex has committed something new."""
    before = commits(job)
    wait_for(
        "a commit of each vertex",
        lambda: job.is_over or all(epoch > before[n] for n, epoch in commits(job).items()),
    )


def verify(log_folder: Path, stream: str, events: int) -> None:
    judged = subprocess.run(
        [sys.executable, "-m", "tests.spark.verifier", str(log_folder), stream, "counts",
         str(events), str(RATE)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert json.loads(judged.stdout)["rows"] > 0


@pytest.mark.slow  # test_slots.py does it with Spark's tasks
def test_slots_are_killed_one_by_one_and_two_at_once(log_folder: Path) -> None:
    events = 9 * RATE
    with running(log_folder, "killed", events, silence_s=20.0) as (job, _):
        os.kill(working_pids(job)[0], signal.SIGKILL)
        wait_for("the recovery", lambda: job.recoveries() and job.recoveries()[-1].started_s)
        wait_progress(job)
        for pid in working_pids(job)[:2]:
            os.kill(pid, signal.SIGKILL)
        wait_for("every vertex placed", lambda: len(working_pids(job)) > 0)
        assert job.wait_over(90)
        assert job.error is None
        assert {recovery.reason for recovery in job.recoveries()} == {"connection closed"}
    verify(log_folder, "killed", events)


@pytest.mark.slow  # test_slots.py does it with Spark's tasks
def test_a_stopped_slot_is_replaced_and_its_marker_refused(log_folder: Path) -> None:
    events = 9 * RATE
    with running(log_folder, "stopped", events) as (job, log):
        for _ in range(5):
            known = len(job.recoveries())
            pid = working_pids(job)[0]
            _stop_without_lock(pid, log_folder)
            wait_for("the loss", lambda known=known: len(job.recoveries()) > known)
            recovery = job.recoveries()[-1]
            assert (recovery.pid, recovery.reason) == (pid, "silent")
            assert pid not in blockers(log_folder)
            os.kill(pid, 0)  # it was not ended
            wait_for("the start elsewhere", lambda: job.recoveries()[-1].started_s)
            wait_progress(job)
            os.kill(pid, signal.SIGCONT)
            wait_for("the end of the stopped process", lambda pid=pid: not _is_running(pid))
            if log.keys("refused"):  # else it had nothing to commit when it woke up
                break
        facts = [json.loads(log.get(key).value) for key in log.keys("refused")]
        assert facts
        assert facts[0]["pid"] == pid
        assert job.wait_over(90)
        assert job.error is None
    verify(log_folder, "stopped", events)


@pytest.mark.slow  # tests/runtime/test_job.py does it with a slot that only says so
def test_a_slot_whose_step_hangs_is_ended_and_its_vertices_go_on(
    log_folder: Path, tmp_path: Path
) -> None:
    events = 9 * RATE
    flag = tmp_path / "hangs"
    launcher = ProcessLauncher("tests.spark.troubled_slot_process", "step", str(flag))
    with running(log_folder, "hanging", events, launcher) as (job, _):
        wait_for("the loss", lambda: [r for r in job.recoveries() if r.reason == "stuck"])
        pid = int(flag.read_text())
        assert pid in {recovery.pid for recovery in job.recoveries()}
        wait_for("the end of the process that hangs", lambda: not _is_running(pid))
        assert job.wait_over(90)
        assert job.error is None
    verify(log_folder, "hanging", events)


@pytest.mark.slow
def test_a_slot_that_crashes_with_rows_in_its_hands_commits_none_of_them(
    log_folder: Path, tmp_path: Path
) -> None:
    events = 9 * RATE
    flag = tmp_path / "crashes"
    launcher = ProcessLauncher("tests.spark.troubled_slot_process", "crash", str(flag))
    with running(log_folder, "crashing", events, launcher, silence_s=20.0) as (job, _):
        wait_for("the crash", flag.exists)
        assert job.wait_over(90)
        assert job.error is None
        assert int(flag.read_text()) in {recovery.pid for recovery in job.recoveries()}
    verify(log_folder, "crashing", events)


@pytest.mark.slow  # tests/runtime/test_slot.py does it in one thread
def test_a_slot_stopped_in_its_recovery_wakes_and_its_successor_goes_on(
    log_folder: Path, tmp_path: Path
) -> None:
    events = 9 * RATE
    flag = tmp_path / "stopped"
    launcher = ProcessLauncher("tests.spark.troubled_slot_process", "recovery", str(flag))
    with running(log_folder, "woken", events, launcher) as (job, _):
        wait_progress(job)
        pid = int(flag.read_text())
        assert pid in {recovery.pid for recovery in job.recoveries()}
        os.kill(pid, signal.SIGCONT)
        wait_for("the end of the process that was stopped", lambda: not _is_running(pid))
        assert job.wait_over(90)
        assert job.error is None
    verify(log_folder, "woken", events)


@pytest.mark.slow
def test_a_slot_stopped_with_a_lock_of_the_log_is_ended(log_folder: Path) -> None:
    events = 7 * RATE
    with running(log_folder, "locked", events) as (job, _):
        pid = _stop_with_lock(working_pids(job), log_folder)
        wait_for("the loss", job.recoveries)
        assert job.recoveries()[-1].pid == pid
        wait_for("the start elsewhere", lambda: job.recoveries()[-1].started_s)
        wait_for("the end of the stopped process", lambda: not _is_running(pid))
        assert pid not in blockers(log_folder)
        assert job.wait_over(90)
        assert job.error is None
    verify(log_folder, "locked", events)


@pytest.mark.slow
def test_a_job_that_slept_does_not_take_its_slots_for_lost(log_folder: Path) -> None:
    """The driver's own pause says nothing about its slots."""
    script = (
        "import sys, time, pathlib, tests.spark.test_job as t\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "with t.running(log, 'slept', 10 * t.RATE, silence_s=6) as (job, _):\n"
        "    print('running', flush=True)\n"
        "    assert job.wait_over(60)\n"
        "    print(len(job.recoveries()), job.error, flush=True)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(log_folder)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "running\n"
        driver.send_signal(signal.SIGSTOP)
        time.sleep(8.0)  # longer than a slot may be silent
        driver.send_signal(signal.SIGCONT)
        assert driver.stdout.readline() == "0 None\n"
        assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.communicate()


def test_slots_that_end_at_once_end_the_query(log_folder: Path) -> None:
    """Starting them for ever would only hide what is wrong."""
    launcher = ProcessLauncher("this")  # prints a poem and ends
    with open_log(log_folder) as log:
        job = Job(counting("ending", RATE), log, launcher, host="127.0.0.1", slots=2, standbys=0)
        job.start()
        assert job.wait_over(60)
    assert isinstance(job.error, TooFewSlots)
    assert "slots of query ending keep ending (21 times in 60 s)" in job.error.message


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _stop_without_lock(pid: int, log_folder: Path) -> None:
    for _ in range(STOPS_MAX):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.001)
        if pid not in blockers(log_folder):
            return
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("the process always holds a lock")


def _stop_with_lock(pids: list[int], log_folder: Path) -> int:
    """Stop one of the processes at a moment at which it holds a lock that every append needs."""
    for turn in range(STOPS_MAX):
        pid = pids[turn % len(pids)]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.0005)
        if pid in blockers(log_folder):
            return pid
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.0007 * (turn % 7))
    raise AssertionError("no process was met with a lock in its hands")
