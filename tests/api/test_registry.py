"""The queries that a process has started: which of them it remembers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.registry import ENDED_MAX, StartedQueries


@dataclass
class Run:
    stored_name: str
    isActive: bool
    folder: Path = Path("log")


def test_of_runs_that_have_ended_the_newest_are_kept_and_of_those_that_run_all() -> None:
    started = StartedQueries()
    runs: list[Any] = [Run(f"q{i}", i % 2 == 0) for i in range(4 * ENDED_MAX)]
    for run in runs:
        started.add(run)
    kept = started.all()
    assert [run for run in kept if run.isActive] == runs[::2]
    assert [run for run in kept if not run.isActive] == runs[1::2][-ENDED_MAX:]
    assert started.find(Path("log"), "q1") is None
