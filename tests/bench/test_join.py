"""`penstock bench join`: a small run fills both sides, restores them and reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.bench.join import SIZES, add_arguments, measure


def test_a_small_run_says_what_a_row_costs_and_how_both_sides_came_back(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--rows", str(SIZES[0]), "--dir", str(tmp_path)])
    report = measure(args)
    assert report.value(f"row_us_{SIZES[0]}") > 0
    assert report.value("restore_ms") > 0
    assert set(report.reach) == {"cost_is_flat", "restore_within_2_s"}
