"""`penstock bench folder`: it runs, ends with JSON, and its goals follow from its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.bench.folder import FILE_ROWS, judge, write_files
from penstock.bench.footprint import memory
from penstock.bench.report import Report
from penstock.cli.main import main

MISSED = {
    "drain_s": 5.0,
    "spark_drain_s": 5.0,
    "idle_percent_few": 2.0,
    "idle_percent_many": 2.0,
    "renamed_ms_max_few": 1.0,
    "written_ms_max_few": 100.1,
    "renamed_ms_max_many": 100.1,
    "written_ms_max_many": 1.0,
}
LESS = 0.9


@pytest.mark.parametrize(("share", "reached"), [(1.0, False), (LESS, True)])
def test_a_goal_is_reached_below_its_bound(share: float, reached: bool) -> None:
    report = Report("folder")
    for key, value in MISSED.items():
        report.add(key, value if key == "spark_drain_s" else value * share, "", 1)
    judge(report)
    assert report.reach == {
        "drains_faster_than_structured_streaming": reached,
        "idle_under_2_percent_few": reached,
        "seen_within_100_ms_few": reached,
        "idle_under_2_percent_many": reached,
        "seen_within_100_ms_many": reached,
    }


def test_rows_are_numbered_over_all_files(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", 3)
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    assert [json.loads(line)["id"] for line in lines] == list(range(3 * FILE_ROWS))


def test_what_processes_share_is_divided() -> None:
    found = memory(os.getpid())
    assert 0 < found.divided_mb <= found.resident_mb


@pytest.mark.campaign
def test_a_small_folder_is_drained_and_rested_beside_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--files", "30", "--arrivals", "1", "--seconds", "0.5", "--dir", str(tmp_path)]
    assert main(["bench", "folder", "--against", "none", *small]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    keys = ["drain_s", "drain_cpu_s", "cold_drain_s", "slot_mb", "slot_divided_mb", "driver_mb"]
    keys += ["renamed_ms_few", "written_ms_few", "renamed_ms_many", "written_ms_many"]
    assert all(figures[key] > 0 for key in keys)
    assert set(figures["reach"]) == {
        f"{goal}_{size}"
        for goal in ("idle_under_2_percent", "seen_within_100_ms")
        for size in ("few", "many")
    }
    assert list(tmp_path.iterdir()) == []
