"""`penstock bench log`: it runs, its last line is JSON, and its goals follow from its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from penstock.bench import BENCHMARKS
from penstock.bench.log import reach_of
from penstock.bench.report import Report
from penstock.cli.main import main

KEYS = {
    "read_p50_ms",
    "read_p99_ms",
    "appends_per_s",
    "append_cpu_us",
    "appends_per_s_synced",
    "mb_per_s_synced",
    "floor_insert_us",
    "floor_sync_us",
    "floor_disk_mb_per_s",
    "floor_stream_mb_per_s",
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_a_short_run_measures_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("log", "--seconds", "1", "--lengths", "1e2,5e3", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    figures = json.loads(last)
    expected = KEYS | {"append_us_at_1e2", "append_us_at_5e3"}
    assert expected <= figures.keys()
    assert all(figures[key] > 0 for key in expected)
    assert all(figures["samples"][key] > 0 for key in expected)
    assert figures["read_p50_ms"] <= figures["read_p99_ms"]
    assert len(figures["reach"]) == 5
    assert any("floor_disk_mb_per_s" in line for line in table)
    assert "round 3 of 3" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("log", "--seconds", "0"),
        ("log", "--seconds", "x"),
        ("log", "--lengths", "0,5"),
        ("log", "--lengths", "many"),
        ("nothing",),
        (),
    ],
)
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", *words])
    assert exit.value.code == 2


def figures(**changed: float) -> Report:
    report = Report("made up")
    good = {
        "read_p50_ms": 1.2,
        "read_p99_ms": 3.9,
        "appends_per_s": 20_000.0,
        "mb_per_s_synced": 100.0,
        "floor_disk_mb_per_s": 200.0,
        "floor_sync_us": 250.0,
        "append_us_at_1e3": 50.0,
        "append_us_at_1e6": 60.0,
    }
    for key, value in (good | changed).items():
        report.add(key, value, "", 1)
    return report


def test_figures_on_the_mark_reach_every_goal() -> None:
    assert all(reach_of(figures(), ["1e3", "1e6"]).values())


@pytest.mark.parametrize(
    ("key", "value", "goal"),
    [
        ("read_p50_ms", 1.3, "read_p50_within_1_ms_of_a_sync"),
        ("read_p99_ms", 4.0, "read_p99_under_4_ms"),
        ("appends_per_s", 19_999.0, "appends_per_s_at_least_20000"),
        ("mb_per_s_synced", 99.0, "mb_per_s_synced_at_least_half_the_disk"),
        ("append_us_at_1e6", 80.0, "append_cost_flat_in_log_length"),
    ],
)
def test_each_goal_is_missed_by_its_own_figure_alone(key: str, value: float, goal: str) -> None:
    reach = reach_of(figures(**{key: value}), ["1e3", "1e6"])
    assert [name for name, reached in reach.items() if not reached] == [goal]


def test_every_benchmark_in_the_table_has_what_the_command_needs() -> None:
    for path in BENCHMARKS.values():
        module = import_module(path)
        assert isinstance(module.TITLE, str)
        assert callable(module.add_arguments)
        assert callable(module.measure)
