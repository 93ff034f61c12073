"""`penstock bench throughput`: both engines count the same windows, or there is no figure."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.throughput import (
    CAMPAIGNS,
    WINDOW_ROWS,
    CountsDiffer,
    Sustained,
    Turn,
    add_arguments,
    campaign_ids,
    check_table,
    compare,
    expected_views,
    report_of,
)
from penstock.cli.main import main
from penstock.connectors.ysb import START_US
from tests.spark_session import shared_session
from tests.thoroughness import few

IDS = campaign_ids(seed=1)
Row = tuple[int, int, int]


def result(windows: int) -> list[Row]:
    """Window, campaign and count of a right result."""
    return [
        (window, campaign, count)
        for window in range(windows)
        for campaign, count in expected_views(window, IDS).items()
    ]


def table(rows: list[Row]) -> pa.Table:
    starts = pa.array([START_US + row[0] * 10_000_000 for row in rows], pa.timestamp("us", "UTC"))
    columns = {
        "campaign": pa.array([row[1] for row in rows], pa.int32()),
        "window": pa.StructArray.from_arrays([starts, starts], ["start", "end"]),
        "count": pa.array([row[2] for row in rows], pa.int64()),
    }
    return pa.table(columns)


def test_each_ad_has_a_campaign_and_each_window_all_of_them() -> None:
    assert len(IDS) == 1_000
    assert np.unique(IDS).size == CAMPAIGNS
    views = expected_views(7, IDS)
    assert views.keys() == set(IDS.tolist())
    rows = range(7 * WINDOW_ROWS, 8 * WINDOW_ROWS)
    assert sum(views.values()) == sum(row % 3 == 0 for row in rows)


def test_a_right_result_is_right_in_any_order_and_may_end_unevenly() -> None:
    rows = result(5)
    assert check_table(table(rows[::-1]), IDS, windows_min=5) == 5
    assert check_table(table(rows[:-30]), IDS, windows_min=4) == 4


@pytest.mark.parametrize("harm", ["lost", "doubled", "wrong", "strange", "too few"])
def test_a_wrong_result_is_no_measurement(harm: str) -> None:
    rows = result(5)
    window, campaign, count = rows[150]
    if harm == "lost":
        del rows[150]
    elif harm == "doubled":
        rows.append(rows[150])
    elif harm == "wrong":
        rows[150] = (window, campaign, count + 1)
    elif harm == "strange":
        rows.append((window, 5_000_000, 1))
    else:
        rows = rows[: 4 * CAMPAIGNS]
    with pytest.raises(CountsDiffer):
        check_table(table(rows), IDS, windows_min=5)


def test_files_are_taken_at_their_best_and_the_first_turn_warms_up() -> None:
    own = Sustained(100e6, 10**9, 5, (90e6, 110e6, 100e6), cpu_us_per_row=0.01)
    stream = [Turn(9e6, 0.1), Turn(4e6, 0.3), Turn(5e6, 0.2)]
    turns = {"stream": stream, "batch": [Turn(1e6, 1.0), Turn(7e6, 1.0)]}
    report = report_of(own, turns)
    assert report.value("spark_rows_per_s") == 5e6
    assert report.value("spark_batch_rows_per_s") == 7e6
    assert report.value("rows_per_s_median") == 100e6
    assert report.value("times_spark") == 20.0
    assert report.value("cpu_times_below") == 20.0
    assert report.reach == {"at_least_20_times_spark": True}
    assert report_of(own, {}).reach == {}
    files = report_of(None, {**turns, "penstock": [Turn(50e6, 0.1), Turn(24e6, 0.2)]})
    assert files.value("rows_per_s") == 24e6
    assert files.value("cpu_times_below") == 1.0
    assert files.reach == {"at_least_5_times_spark": False}


@pytest.mark.slow  # it fills two processors for half a minute
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", few(["parquet", "generator"], every=2))
def test_both_engines_run_and_count_the_same_windows(source: str, tmp_path: Path) -> None:
    words = ["--seconds", "3", "--warmup", "1", "--files", "1", "--turns", "1"]
    words += ["--source", source]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    spark = shared_session().newSession()
    report = compare(spark, parser.parse_args([*words, "--dir", str(tmp_path)]))
    keys = {"rows_per_s", "spark_rows_per_s", "spark_batch_rows_per_s", "times_spark"}
    keys |= {"cpu_us_per_row", "spark_cpu_us_per_row", "cpu_times_below"}
    assert keys <= report.figures.keys()
    assert all(figure.value > 0 for figure in report.figures.values())
    assert source == "parquet" or report.facts["windows_checked"] >= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--query", "q1"), ("--seconds", "0"), ("--source", "x")])
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "throughput", *words])
    assert exit.value.code == 2
