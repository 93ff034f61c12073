"""`penstock bench report`: the page has what the JSON says, all goals, and legible plots."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.bench import page
from penstock.bench.page.sections import CONFIGURATIONS, SECTIONS
from penstock.bench.plots import Axis, Bar, Series, bars, lines, points, short
from penstock.errors import InvalidArgument

OVER_TIME = [{"s": 0.5 * step, "rows_per_s": 1e6, "bytes_per_s": 4e6} for step in range(8)]
PHASE = {
    "interval_s": 4.0, "change_s": 10.0, "over_time": OVER_TIME, "follow_s": 0.4, "broken_s": None,
    "rows_per_s_before": 1e6, "rows_per_s_after": 2e6, "bytes_per_row_before": 1.0,
    "bytes_per_row_after": 2.0,
    "codecs": {"mf01": [{"s": 0.1, "codec": "runs", "broken": False, "reason": "runs of 14"}]},
}  # fmt: skip
CODEC = {"ratio": 4.0, "encode_mb_s": 900.0, "decode_mb_s": 1_800.0}
KEPT = {"rows_per_s": 2e6, "mb_per_s": 128.0, "p50_ms": 12.0, "p95_ms": 40.0, "bytes_per_row": 3.0}
FIGURES: dict[str, dict[str, Any]] = {
    "queries": {"ysb": {"rows_per_s": 1.5e7, "spark_rows_per_s": 4e5, "p50_ms": 30.0}},
    "reduction": {
        "cm1": {name: {"rows_per_s": 1e6, "bytes_per_row": 16.0} for name in CONFIGURATIONS}
    },
    "codecs": {
        "ints_runs": {
            "codecs": {"none": CODEC, "runs": CODEC},
            "chosen": {"400": {"codec": "runs", "best": "runs", "cost_ratio": 1.0}},
        }
    },
    "persistence": {"cm1": {"needed": KEPT, "whole": KEPT, "prototype": KEPT}},
    "checkpoints": {
        "cm1": {"rows_per_s": 9.0, "without_rows_per_s": 10.0, "overhead": -0.1, "checkpoint_mb": 1}
    },
    "restart": {
        "lrb1": {
            "together_ms": 900.0, "moments_s": {"driver": 0.1, "session": 3.0, "committed": 4.0},
            "over_time": [{"s": step - 2.0, "rows_per_s": 5e5} for step in range(8)]
            + [{"s": 6.0, "rows_per_s": 5e5, "latency_ms": 120.0}],
        }
    },
    "phases": {"sm": {"adaptive": PHASE, "once": PHASE, "none": {**PHASE, "codecs": {}}}},
    "scaling": {
        "ysb": {"rows_per_s_1": 1e6, "rows_per_s_2": 1.8e6, "times": 1.8, "persisted_times": 1.2}
    },
}  # fmt: skip


def line(name: str) -> str:
    key = SECTIONS[name].key
    goal = {f"{name}_goal_that_is_reached": True, f"{name}_goal_that_is_not": False}
    return json.dumps({key: FIGURES[name], "reach": goal, "cores": 2, "load_before": 0.5})


def made(folder: Path, *files: Path) -> tuple[dict[str, Any], str]:
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    words = ["--to", str(folder / "out"), "--dir", str(folder), "--from", *map(str, files)]
    report = page.measure(parser.parse_args(words))
    return json.loads(report.as_json()), (folder / "out" / page.PAGE).read_text(encoding="utf-8")


def test_the_page_has_every_section_every_goal_and_plots(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a table\n" + "\n".join(line(name) for name in SECTIONS), encoding="utf-8")
    report, text = made(tmp_path, file)
    assert len(report["reach"]) == 2 * len(SECTIONS)
    assert f"{len(SECTIONS)} of {2 * len(SECTIONS)} are reached" in text
    for name, section in SECTIONS.items():
        assert f'<h2 id="{name}">{section.title}' in text
        assert f"{name} goal that is not" in text
        assert "penstock bench " + " ".join(section.command) in text
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(pictures) >= len(SECTIONS)
    for each in pictures:
        ElementTree.fromstring(each)
    for words in ("load before 0.5", "15 M", "runs of 14", "all killed", "cores"):
        assert words in text


def test_what_failed_is_said_and_what_is_no_report_refused(tmp_path: Path) -> None:
    report = page.PageReport(tmp_path, [page.Taken("phases", "penstock bench", None, "it ended")])
    assert json.loads(report.as_json())["failed"] == {"phases": "it ended"}
    assert "Not measured: it ended" in page.page(
        [page.Taken("phases", "penstock bench", None, "it ended")], {}, "now"
    )
    other = tmp_path / "other"
    for text in ("nothing", '{"p50_ms": 1}', "{broken"):
        other.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidArgument):
            page.read_given(other)
    with pytest.raises(InvalidArgument, match="cannot read"):
        page.read_given(tmp_path / "missing")


def test_each_section_is_a_command_that_can_be_given_alone() -> None:
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    args = parser.parse_args(["--queries", "cm1", "--seconds", "1", "--flink-python", "f/python"])
    commands = {name: " ".join(page.command_of(name, args)) for name in SECTIONS}
    assert "--against spark,loop,flink --flink-python f/python" in commands["queries"]
    assert "--queries cm1" in commands["reduction"]
    assert "--queries" not in commands["phases"]
    assert commands["codecs"] == "codecs --json"
    with pytest.raises(SystemExit):
        parser.parse_args(["--measure", "figure"])


def test_higher_figures_are_higher_in_the_plot() -> None:
    of_group = [Bar("a", "#111111", "first"), Bar("b", "#222222", "second"), Bar("c", "#3", "none")]
    svg = ElementTree.fromstring(bars("words", {"x": {"a": 10.0, "b": 1_000.0}}, of_group))
    heights = {
        each.attrib["fill"]: float(each.attrib["height"])
        for each in svg
        if each.tag.endswith("rect") and float(each.attrib["height"]) != 11
    }
    assert heights["#111111"] < heights["#222222"]
    words = {each.text for each in svg if each.tag.endswith("text")}
    assert {"words", "first", "second", "x", "10", "1 k"} <= words
    assert "none" not in words
    line = lines(
        "t", [Series("s", "#111111", [(-1.0, 0.0), (2.0, 5.0)])], Axis("x"), Axis("y"),
        marks=[(0.0, "here")],
    )  # fmt: skip
    (drawn,) = (e for e in ElementTree.fromstring(line) if e.tag.endswith("polyline"))
    (x0, y0), (x1, y1) = (map(float, each.split(",")) for each in drawn.attrib["points"].split())
    assert x0 < x1
    assert y0 > y1
    assert "here" in line
    dots = points("t", [Series("s", "#1", [(1.0, 1.0)])], Axis("x", True), Axis("y", True))
    assert "<circle" in dots


def test_figures_are_told_in_few_digits() -> None:
    told = [short(each) for each in (0.2512, 0.0, 12, 950, 1_250, 15e6, 2.5e9, -3.0)]
    assert told == ["0.251", "0", "12", "950", "1.2 k", "15 M", "2.5 G", "-3"]
