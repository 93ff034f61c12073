"""`penstock bench scabbard`: its oracle agrees with a batch job of Spark, and sees what differs."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.bench.scabbard.compared import goals_of_query as goals
from penstock.bench.scabbard.engines import Input, rows_of
from penstock.bench.scabbard.oracle import ANSWERS, difference, told_apart
from penstock.bench.scabbard.queries import QUERIES, WindowQuery
from penstock.bench.scabbard.runs import rows_before
from penstock.bench.scabbard.samples import STREAMS
from tests.spark_session import shared_session
from tests.thoroughness import few

SAMPLE_ROWS = 2_048


def given(query: WindowQuery, folder: Path, cycles: int) -> Input:
    if query.window_s > 1_000:  # Spark makes a row of every window that a row is in
        return Input.of(
            query, folder, 3, SAMPLE_ROWS // 16, SAMPLE_ROWS // 16 * cycles, per_second=2
        )
    return Input.of(query, folder, 3, SAMPLE_ROWS, SAMPLE_ROWS * cycles)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", few(sorted(QUERIES, key="ysb".__ne__), every=4))
def test_the_oracle_agrees_with_a_spark_job(name: str, tmp_path: Path) -> None:
    query = QUERIES[name]
    made = given(query, tmp_path, 3)
    made.write_files(tmp_path / "files", ["ts", *query.columns])
    spark = shared_session()
    rows = spark.read.parquet(str(tmp_path / "files"))
    found = rows_of(query.over(rows, made.ads(spark)).toArrow())
    assert found
    assert difference(name, made.expanded(), found) is None


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_has_an_answer_over_rows_as_wide_as_it_says(name: str, tmp_path: Path) -> None:
    query = QUERIES[name]
    made = given(query, tmp_path, 1)
    sample = pq.read_table(made.path)
    assert {"ts", *query.columns} <= set(sample.column_names)
    assert sample.nbytes / sample.num_rows <= query.row_bytes + 16  # offsets of numbers of 128 bits
    answer = ANSWERS[name](made.expanded())
    assert answer
    assert all(len(key) >= 1 for key in answer)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_sample_is_the_same_each_time_and_in_order(stream: str) -> None:
    made, again = (STREAMS[stream](np.random.default_rng(5), 1_000) for _ in range(2))
    assert made.batch().equals(again.batch())
    assert np.all(np.diff(made.times_us) >= 0)
    assert made.period_us > made.times_us[-1] - made.times_us[0]


def test_what_differs_is_said() -> None:
    answer = {(1, 7): (Fraction(1, 3),), (2, 7): (5,)}
    right = [(1, 7, 1 / 3), (2, 7, 5)]
    assert told_apart(answer, right) is None
    assert "1 of 2 rows are missing" in str(told_apart(answer, right[:1]))
    assert "1 rows too many, such as (3, 7)" in str(told_apart(answer, [*right, (3, 7, 1)]))
    assert "there twice, such as (2, 7)" in str(told_apart(answer, [*right, right[1]]))
    assert "(1, 7): (0.3334,)" in str(told_apart(answer, [(1, 7, 0.3334), right[1]]))


def test_goals_are_of_what_was_measured() -> None:
    assert list(goals("cm1", {"rows_per_s": 1.0})) == []
    assert list(goals("cm1", {"identical": False})) == [("identical", False)]
    reached = dict(goals("cm1", {"identical": True, "times_spark": 10.0}))
    assert reached == {"identical": True, "10_times_structured_streaming": True}
    measured = {"persisted_rows_per_s": 2e8, "loop_rows_per_s": 5e8, "persisted_of_unsafe": 0.7}
    assert dict(goals("ysb", measured)) == {
        "150_million_persisted": True,
        "persisted_at_least_half_the_loop": False,
        "persisted_of_unsafe_at_least_0.7": True,
    }


@pytest.mark.parametrize("stream", ["ads", "cluster"])
def test_a_time_tells_how_many_rows_came_before(stream: str) -> None:
    made = STREAMS[stream](np.random.default_rng(5), 1_000)
    every = np.concatenate([made.times_us + cycle * made.period_us for cycle in range(3)])
    for time_us in (every[0], every[1], every[999], every[1_500] + 1, every[2_000], every[2_998]):
        assert rows_before(made, int(time_us)) == int(np.sum(every < time_us))


@pytest.mark.spark
@pytest.mark.slow
def test_it_measures_every_way_of_a_query() -> None:
    """In a process of its own: it makes and stops a session."""
    command = [sys.executable, "-m", "penstock", "bench", "scabbard", "--json", "--verify"]
    command += ["--queries", "cm2,ysb", "--seconds", "0.6"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("cm2", "ysb"):
        figures = found["queries"][name]
        assert figures["identical"] is True
        for key in (
            "rows_per_s", "persisted_rows_per_s", "unsafe_rows_per_s", "spark_rows_per_s",
            "loop_rows_per_s", "bytes_persisted",
        ):  # fmt: skip
            assert figures[key] > 0, key
        assert 0 < figures["p50_ms"] <= figures["p95_ms"]
        assert figures["bytes_persisted"] < figures["bytes_in"]
