"""`penstock bench files`: the same files for every engine, and a comparison that can fail."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bench.files import goals
from penstock.bench.files.chart import BARS, chart
from penstock.bench.files.data import FILES, START_US, WORDS, WORDS_PER_LINE, write_rows
from penstock.bench.files.engines import read_files
from penstock.bench.files.queries import DELAY_S, QUERIES
from penstock.bench.files.results import difference, read_result
from penstock.bench.footprint import FamilyCpu, MemoryPeak, cpu_s, family
from penstock.bench.report import QueriesReport
from penstock.cli.main import main

ROWS = 4_001
SECOND_US = 1_000_000


def digest(folder: Path) -> str:
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", QUERIES)
def test_files_are_a_function_of_query_and_rows(name: str, tmp_path: Path) -> None:
    made = write_rows(tmp_path / "one", name, ROWS)
    assert write_rows(tmp_path / "two", name, ROWS) == made
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert len(list((tmp_path / "one").glob("part-*"))) == FILES
    read_files(0.0, name, sorted((tmp_path / "one").glob("part-*")))


def test_other_rows_replace_those_of_the_folder_and_the_same_are_left(tmp_path: Path) -> None:
    write_rows(tmp_path, "ysb", ROWS)
    before = (tmp_path / "part-0000.parquet").stat().st_ino
    write_rows(tmp_path, "ysb", ROWS)
    assert (tmp_path / "part-0000.parquet").stat().st_ino == before
    write_rows(tmp_path, "ysb", 2 * ROWS)
    assert pq.read_table(tmp_path / "part-0000.parquet").num_rows == 2 * ROWS // FILES


def test_no_row_is_older_than_the_watermark_waits(tmp_path: Path) -> None:
    made = write_rows(tmp_path, "sliding", ROWS)
    newest = 0
    for path in sorted(tmp_path.glob("part-*")):
        for time_us in pq.read_table(path)["event_time"].cast(pa.int64()).to_pylist():
            assert time_us > newest - DELAY_S * SECOND_US
            newest = max(newest, time_us)
    assert made.last_us == newest


def test_lines_are_lines_with_eight_of_the_words(tmp_path: Path) -> None:
    write_rows(tmp_path, "words", ROWS)
    lines = [
        line for path in tmp_path.glob("part-*") for line in path.read_text("ascii").split("\n")
    ]
    full = [line.split(" ") for line in lines if line]
    assert len(full) == ROWS
    assert {len(words) for words in full} == {WORDS_PER_LINE}
    assert len({word for words in full for word in words}) < WORDS


def window(second: int) -> dict[str, Any]:
    return {"start": START_US + second * SECOND_US, "end": START_US + (second + 10) * SECOND_US}


BOUND = pa.timestamp("us", "UTC")
RESULT = pa.schema(
    [
        ("campaign_id", pa.int32()),
        ("window", pa.struct([("start", BOUND), ("end", BOUND)])),
        ("count", pa.int64()),
    ]
)


def counts(*rows: tuple[int, int, int], folder: Path) -> pa.Table:
    """Campaign, window and count, as an engine wrote them."""
    content = [{"campaign_id": c, "window": window(w), "count": n} for c, w, n in rows]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(content, RESULT), folder / "rows.parquet")
    return read_result(folder)


LAST_US = START_US + (20 + DELAY_S) * SECOND_US  # the second window has just closed
RIGHT = ((1, 0, 7), (2, 0, 8), (1, 10, 9))
OPEN = (1, 20, 1)


def test_the_same_rows_in_another_order_are_the_same_and_open_windows_do_not_count(
    tmp_path: Path,
) -> None:
    found = counts(*RIGHT[::-1], folder=tmp_path / "found")
    expected = counts(*RIGHT, OPEN, folder=tmp_path / "right")
    assert difference(QUERIES["ysb"], found, expected, LAST_US) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (RIGHT[1:], "2 rows where there should be 3"),
        ((*RIGHT, RIGHT[0]), "4 rows where there should be 3"),
        ((*RIGHT, OPEN), "4 rows where there should be 3"),
        (((1, 0, 6), *RIGHT[1:]), "where there should be"),
        (((3, 0, 7), *RIGHT[1:]), "where there should be"),
    ],
)
def test_rows_that_lack_or_are_doubled_early_or_wrong_are_a_difference(
    rows: tuple[tuple[int, int, int], ...], message: str, tmp_path: Path
) -> None:
    found = counts(*rows, folder=tmp_path / "found")
    expected = counts(*RIGHT, OPEN, folder=tmp_path / "right")
    assert message in (difference(QUERIES["ysb"], found, expected, LAST_US) or "")


def test_the_last_update_of_a_word_counts() -> None:
    right = pa.table({"count": [3, 1], "word": ["a", "b"]})
    rising = pa.table({"count": [1, 1, 3], "word": ["a", "b", "a"]})
    falling = pa.table({"count": [3, 1, 1], "word": ["a", "b", "a"]})
    assert difference(QUERIES["words"], rising, right, 0) is None
    assert difference(QUERIES["words"], falling, right, 0) is not None


FIGURES = {
    "rows": 1000,
    "rows_per_s": 500.0,
    "cold_rows_per_s": 100.0,
    "spark_rows_per_s": 100.0,
    "batch_rows_per_s": 500.0,
    "read_rows_per_s": 1000.0,
    "first_row_ms": 900.0,
    "spark_first_row_ms": 900.0,
    "tumbling_rows_per_s": 1500.0,
    "identical": True,
    "peak_mb": 900.0,
}


def test_goals_are_reached_just_at_their_bounds() -> None:
    assert all(reached for _, reached in goals("ysb", FIGURES))
    worse = {**FIGURES, "rows_per_s": 499.0, "first_row_ms": 901.0, "identical": False}
    reached = dict(goals("ysb", worse))
    assert len(reached) == 6
    assert not any(reached.values())
    alone = {"rows_per_s": 1.0, "identical": None}
    assert dict(goals("ysb", alone)) == {}


def test_the_report_is_one_line_of_json_with_figures_by_query() -> None:
    report = QueriesReport("files", facts={"cores": 2}, queries={"ysb": FIGURES, "json": FIGURES})
    report.judge(goals)
    found = json.loads(report.as_json())
    assert "\n" not in report.as_json()
    assert found["queries"]["json"] == FIGURES
    assert found["cores"] == 2
    assert found["reach"]["ysb_identical"]
    table = report.as_table()
    assert "MISSED" not in table
    assert "identical" in table


def test_the_chart_has_a_bar_for_each_engine_of_each_query_the_higher_the_faster() -> None:
    svg = ElementTree.fromstring(chart({"ysb": FIGURES, "json": {"rows_per_s": 40_000.0}}))
    bars = [each for each in svg if each.tag.endswith("rect")][1 + len(BARS) :]
    cold, own, spark, batch, read, _ = (float(bar.attrib["height"]) for bar in bars)
    assert cold == spark < own == batch < read
    words = {each.text for each in svg if each.tag.endswith("text")}
    assert {"ysb", "json", "Structured Streaming", "40 k", "500", "100 k"} <= words


def test_memory_and_processor_time_of_this_process_are_seen() -> None:
    assert os.getpid() in family(os.getpid())
    before_s = cpu_s([os.getpid()])
    with MemoryPeak(os.getpid()) as peak:
        deadline_s = time.monotonic() + 30
        while not (peak.mb and cpu_s([os.getpid()]) > before_s) and time.monotonic() < deadline_s:
            sum(range(10_000))
    assert peak.mb > 1
    assert cpu_s([os.getpid()]) > before_s


def test_a_child_that_ends_takes_no_processor_time_away() -> None:
    burn = "sum(range(5_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        cpu = FamilyCpu(os.getpid())
        assert cpu_s([child.pid]) > 0
        child.communicate(b"\n")
    assert cpu.used_s() >= 0


@pytest.mark.parametrize(
    "words", [("--query", "q1"), ("--against", "flink"), ("--rows", "10"), ("--rows", "x")]
)
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "files", *words])
    assert exit.value.code == 2


@pytest.mark.campaign  # four sessions of Spark, one after the other
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_all_engines_run_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--query", "words", "--rows", "200000", "--repeats", "1", "--warm", "--json"]
    assert main(["bench", "files", *words, "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])["queries"]
    assert list(found) == ["words"]
    keys = {"rows_per_s", "spark_rows_per_s", "batch_rows_per_s", "read_rows_per_s", "peak_mb"}
    assert found["words"]["identical"] is True
    assert all(found["words"][key] > 0 for key in keys)
    assert list(tmp_path.iterdir()) == []
