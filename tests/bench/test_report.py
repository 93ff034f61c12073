"""Reports: what a benchmark's figures look like to people and to programs."""

from __future__ import annotations

import json

import pytest

from penstock.bench.report import Report, median, merge, quantile


def test_the_json_is_one_line_with_values_samples_goals_and_facts() -> None:
    report = Report("a title")
    report.add("latency_ms", 1.23456789, "how long", 10)
    report.reach["fast"] = True
    report.facts["cores"] = 2
    line = report.as_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "latency_ms": 1.2346,
        "samples": {"latency_ms": 10},
        "reach": {"fast": True},
        "cores": 2,
    }


def test_the_table_says_what_each_figure_means_and_which_goals_are_missed() -> None:
    report = Report("a title")
    report.add("appends_per_s", 20_000.0, "two writers", 3)
    report.reach |= {"enough": True, "sooner": False}
    table = report.as_table()
    assert "20,000  two writers (3 samples)" in table
    assert "reached  enough" in table
    assert "MISSED   sooner" in table


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_a_quantile_is_a_sample(share: float, expected: int) -> None:
    assert quantile(range(100, 0, -1), share) == expected


def test_rounds_are_merged_key_by_key() -> None:
    merged = merge([{"a": [1.0], "b": [2.0]}, {"a": [3.0]}])
    assert merged == {"a": [1.0, 3.0], "b": [2.0]}
    assert median(merged["a"]) == 2.0
