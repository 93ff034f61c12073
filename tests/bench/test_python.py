"""`penstock bench python`: a small run of each query counts every row once, and reports."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from penstock.bench.python import QUERIES, add_arguments, goals, measure

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.campaign
def test_a_small_run_has_the_figures_of_all_queries(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    asked = ["--rows", "2000", "--rate", "500", "--seconds", "2", "--warmup", "1"]
    args = parser.parse_args([*asked, "--against", "none", "--dir", str(tmp_path)])
    report = measure(args)
    assert set(report.queries) == set(QUERIES)
    for figures in report.queries.values():
        assert set(figures) == {
            *("rows_per_s", "start_s", "cpu_s", "start_cpu_s", "p50_ms", "p99_ms")
        }
        assert all(value > 0 for key, value in figures.items() if key != "start_cpu_s")


def test_goals_speak_of_what_was_compared() -> None:
    figures = {"rows_per_s": 30.0, "spark_rows_per_s": 10.0, "p50_ms": 1.0, "spark_p50_ms": 9.0}
    assert dict(goals("udf", figures)) == {"3_times_spark": True, "p50_10_times_below_spark": False}
    assert dict(goals("transformWithState", figures))["10_times_spark"] is False
    assert dict(goals("udf", {"rows_per_s": 1.0})) == {}


def test_unknown_queries_are_named() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    with pytest.raises(argparse.ArgumentError, match="nothing: known are"):
        parser.parse_args(["--queries", "udf,nothing"])
