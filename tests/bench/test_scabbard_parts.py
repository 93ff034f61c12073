"""The parts of `penstock bench scabbard`: what they say follows from their readings."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pytest

from penstock.bench.scabbard import add_arguments as add_scabbard
from penstock.bench.scabbard import checkpointing, flink, phases, reduction, restart, scaling
from penstock.bench.scabbard.engines import SECOND_US, Input
from penstock.bench.scabbard.flushing import send_to_prototype, serve
from penstock.bench.scabbard.persistence import free_port
from penstock.bench.scabbard.queries import QUERIES
from penstock.bench.scabbard.runs import Mark, rows_before, run_measured
from penstock.bench.scabbard.samples import Made
from penstock.bench.scabbard.sending import Rows, Sent, send
from penstock.errors import InvalidArgument
from tests.spark_session import shared_session

# --- less data ------------------------------------------------------------------------------------


def configurations(rates: list[float], per_row: list[float]) -> dict[str, dict[str, float]]:
    pairs = zip(reduction.CONFIGURATIONS, rates, per_row, strict=True)
    return {name: {"rows_per_s": rate, "bytes_per_row": size} for name, rate, size in pairs}


def test_configurations_are_in_order_and_take_fewer_bytes() -> None:
    right = configurations([1e6, 4e6, 2e6, 6e6, 7e6, 9e6], [64, 16, 9, 2, 1, 1])
    wrong = configurations([1e6, 4e6, 2e6, 3e6, 7e6, 9e6], [64, 16, 20, 10, 9, 9])
    reached = dict(reduction.goals({"cm1": right, "sg1": wrong}))
    assert reached == {
        "cm1_configurations_in_order": True,
        "cm1_7_times_fewer_bytes": True,
        "sg1_configurations_in_order": False,
        "sg1_7_times_fewer_bytes": False,
    }


@pytest.mark.spark
@pytest.mark.slow
def test_without_push_up_all_columns_of_all_rows_are_persisted(tmp_path: Path) -> None:
    query = QUERIES["cm2"]
    given = Input.of(query, tmp_path, 3, 1_024, 1_024)
    stored = {
        name: run_measured(shared_session(), query, given, way, tmp_path / name, 0.5).bytes_per_row
        for name in ("no_opt", "push_up")
        if (way := reduction.CONFIGURATIONS[name])
    }
    assert stored["no_opt"] >= query.row_bytes
    assert stored["push_up"] <= 0.1 * query.row_bytes  # of few rows, three columns


# --- checkpoints and slots ------------------------------------------------------------------------


def run_of(rate: float, mb: float | None = None, ms: float | None = None) -> SimpleNamespace:
    return SimpleNamespace(rows_per_s=rate, checkpoint_mb=mb, checkpoint_ms=ms)


def test_the_overhead_of_checkpoints_is_of_the_turns() -> None:
    runs = {"with": [run_of(90, 2.0, 30), run_of(45, 4.0)], "without": [run_of(100), run_of(50)]}
    found = checkpointing.figures(runs)
    assert found["overhead"] == pytest.approx(0.1)
    assert (found["checkpoint_mb"], found["checkpoint_ms"]) == (3.0, 30.0)
    assert list(checkpointing.goals({"cm1": found})) == []


def test_a_second_slot_is_worth_so_much() -> None:
    found = {"ysb": {"times": 1.8, "persisted_times": 1.5}}
    assert dict(scaling.goals(found)) == {
        "ysb_scales_1.7_times": True,
        "ysb_persisted_scales_1.7_times": False,
    }


# --- changing data --------------------------------------------------------------------------------


def codecs(at_s: float, word: str, reason: str = "cheapest") -> tuple[float, phases.Codecs]:
    return at_s, dict.fromkeys(phases.MEASURED, (word, reason))


def test_a_codec_follows_when_it_is_what_stays() -> None:
    broken = phases.BROKEN + " what was assumed"
    seen = [
        codecs(0.5, "pack"), codecs(9.9, "pack"), codecs(10.1, "simple8b", broken),
        codecs(11.5, "simple8b", broken), codecs(12.5, "pack"), codecs(15.0, "pack"),
    ]  # fmt: skip
    read = [(0.0, 0), (10.0, 1_000), (16.0, 7_000)]
    found = phases.told(read, [(8.0, 600), (14.5, 2_000)], seen, 4.0)
    assert found["follow_s"] == 2.5
    assert found["broken_s"] == 10.1
    assert found["rows_per_s_before"] == 100
    assert found["rows_per_s_after"] == 1_000
    assert found["bytes_per_row_before"] == 1.5
    assert found["bytes_per_row_after"] == 1.0
    assert [each["codec"] for each in found["codecs"]["mf01"]] == ["pack", "simple8b", "pack"]
    assert sum(each["rows_per_s"] for each in found["over_time"]) * 0.25 == pytest.approx(7_000)
    ways = {"adaptive": found}
    assert dict(phases.goals({"sm": ways})) == {"sm_codec_follows_within_one_interval": True}
    late = phases.told(read, [], [*seen[:4], codecs(15.5, "pack")], 4.0)
    assert dict(phases.goals({"sm": {"adaptive": late}})) == {
        "sm_codec_follows_within_one_interval": False
    }


def test_the_whole_engine_tells_its_codecs_while_values_change(tmp_path: Path) -> None:
    found = phases._run(tmp_path, phases.WAYS["adaptive"], 0.3, 1)
    assert found["codecs"]["mf01"]
    assert found["follow_s"] is not None
    assert any(each["bytes_per_s"] for each in found["over_time"])


# --- killed ---------------------------------------------------------------------------------------


def made_of(rows: int) -> Made:
    return Made(np.arange(rows) * SECOND_US, {}, rows * SECOND_US)


def mark(at_s: float, rows: int) -> Mark:
    return Mark(round(at_s * 1e6), 1, None, rows * SECOND_US)


def test_what_a_kill_costs_is_told_by_markers_sender_and_driver() -> None:
    made = made_of(100)
    ends = {"a": [mark(100.1, 10), mark(101.1, 20), mark(106.0, 60), mark(107.0, 70)],
            "b": [mark(100.2, 10), mark(101.2, 20), mark(106.2, 60), mark(107.2, 70)]}  # fmt: skip
    trace = SimpleNamespace(marks=ends, ends=lambda: list(ends.values()))
    times = [99.0 + number for number in range(1, 9)]
    sent = Sent([10 * number for number in range(1, 9)], times, times)
    words = {"session": 104.0, "placed": 105.0, "running": 105.5}
    moments = restart._Moments(102.0, 102.5, words)
    found = restart.figures(trace, made, sent, moments, 0, 2.0)  # type: ignore[arg-type]
    assert found["spark_ms"] == 1_500
    assert found["initialisation_ms"] == 1_000
    assert found["recovery_ms"] == pytest.approx(1_200)
    assert found["together_ms"] == pytest.approx(2_200)
    assert found["away_ms"] == pytest.approx(4_200)
    assert found["p50_ms"] == pytest.approx(200, abs=1)
    assert dict(restart.goals({"lrb1": found})) == {"lrb1_back_within_1_s": False}
    steps = found["over_time"]
    assert sum(each["rows_per_s"] for each in steps) * restart.BUCKET_S == pytest.approx(60, abs=10)
    assert all(each["rows_per_s"] == 0 for each in steps if 0 < each["s"] < 4)
    assert restart.first_commits(ends, 106.5) == pytest.approx(107.2)
    assert restart.first_commits(ends, 107.1) is None
    assert rows_before(made, 20 * SECOND_US) == 20


# --- who sends, and who flushes -------------------------------------------------------------------


def sample(folder: Path) -> Rows:
    given = Input.of(QUERIES["sm"], folder, 1, 512, 512)
    return Rows(str(given.path), given.made.period_us, unit_rows=1_000)


def test_units_go_on_where_others_have_ended(tmp_path: Path) -> None:
    rows = sample(tmp_path)
    first, second = rows.units(), Rows(**{**vars(rows), "first": 1_000}).units()
    next(first)
    assert next(first).equals(next(second))


def test_a_rate_is_kept_and_what_is_not_acknowledged_is_waited_for(tmp_path: Path) -> None:
    class Line:
        offset: int | None = None
        taken = 0

        def send(self, rows: pa.RecordBatch, offset: int) -> None:
            self.taken = offset

        def flush(self, timeout_s: float | None = None) -> bool:
            self.offset = self.taken
            return True

    sent = send(Line(), sample(tmp_path), 0.1, 100_000)
    assert sent.rows == [1_000 * number for number in range(1, 10)]
    assert np.allclose(np.diff(sent.due_s), 0.01)
    p50_ms, p95_ms = sent.latencies_ms()
    assert 0 < p50_ms <= p95_ms


def test_the_prototype_stores_all_that_it_acknowledges(tmp_path: Path) -> None:
    port, written = free_port(), []
    server = threading.Thread(
        target=lambda: written.append(serve(0.0, port, str(tmp_path / "kept"))), daemon=True
    )
    server.start()
    sent = send_to_prototype(0.0, port, sample(tmp_path), 0.1)
    server.join(30)
    assert len(sent.acknowledged_s) == len(sent.rows) > 0
    assert all(a >= d for a, d in zip(sent.acknowledged_s, sent.due_s, strict=True))
    assert 0 < written[0] < sent.rows[-1] * 64


# --- Flink ----------------------------------------------------------------------------------------


def test_without_flink_it_says_how_to_get_it() -> None:
    for python in (None, Path(sys.executable), Path("/nowhere/python")):
        with pytest.raises(InvalidArgument, match="--flink-python") as refused:
            flink.check_flink(python)
        if python != Path("/nowhere/python"):
            assert "pip install apache-flink" in str(refused.value)


def test_flink_gets_the_same_rows_and_every_query(tmp_path: Path) -> None:
    assert set(flink.SQL) == set(flink._OUT) == set(QUERIES)
    query = QUERIES["ysb"]
    given = Input.of(query, tmp_path, 1, 100, 250)
    job = flink._job(query, given, tmp_path / "csv")
    assert [each.split()[2] for each in job["tables"]] == ["given", "ads", "results"]
    found = []
    for number in range(flink.FILES):
        options = pv.ReadOptions(column_names=["ts", *query.columns])
        table = pv.read_csv(tmp_path / "csv" / "rows" / f"{number}.csv", read_options=options)
        times = table["ts"].cast(pa.timestamp("us")).to_pylist()
        assert times == sorted(times)
        found += zip(times, table["event_type"].to_pylist(), strict=True)
    numbers = range(250)
    wanted = [
        (given.made.times_us[row % 100] + row // 100 * given.made.period_us) for row in numbers
    ]
    assert sorted(time for time, _ in found) == sorted(
        np.array(wanted).astype("M8[us]").astype("M8[ms]").tolist()
    )
    kinds = np.bincount([kind for _, kind in found])
    assert kinds.tolist() == np.bincount([row % 100 % 3 for row in numbers]).tolist()


# --- the command line -----------------------------------------------------------------------------


def test_parts_and_engines_that_are_not_there_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    add_scabbard(parser)
    args = parser.parse_args(["--measure", "reduction,scaling", "--queries", "CM1,sm"])
    assert args.measure == ["reduction", "scaling"]
    assert args.queries == ["cm1", "sm"]
    for words in (["--measure", "fig12"], ["--against", "storm"], ["--queries", "cm9"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        assert "there is no" in capsys.readouterr().err
