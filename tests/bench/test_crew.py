"""Crews: workers that start together, and whose failures are not lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock.bench.crew import Crew, WorkerFailed, wait_until


def start_and_process(start_s: float, word: str) -> tuple[float, float, int, str]:
    early_s = start_s - time.perf_counter()
    wait_until(start_s)
    return early_s, time.perf_counter() - start_s, os.getpid(), word


def fail(start_s: float) -> None:
    raise ValueError(f"no such thing as {start_s}")


def die(start_s: float) -> None:
    del start_s
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_are_processes_that_begin_together() -> None:
    with Crew(2) as crew:
        for _ in range(2):  # the same processes, again
            answers = crew.run([(start_and_process, "a"), (start_and_process, "b")])
            assert [word for *_, word in answers] == ["a", "b"]
            pids = {pid for _, _, pid, _ in answers}
            assert len(pids | {os.getpid()}) == 3
            assert all(late_s >= 0 for _, late_s, _, _ in answers), "one began too early"


def test_a_worker_that_raises_or_dies_is_an_error() -> None:
    with Crew(2) as crew:
        with pytest.raises(WorkerFailed, match="ValueError: no such thing"):
            crew.run([(fail,)])
        with pytest.raises(WorkerFailed, match="died"):
            crew.run([(die,)])
