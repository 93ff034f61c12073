"""`penstock bench latency`: every bid is counted once, and a wrong result is no measurement."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.arrivals import (
    Arrivals,
    Bids,
    RowsDiffer,
    bids_of,
    journeys_of_counts,
    journeys_of_rows,
)
from penstock.bench.latency import (
    QUERIES,
    Latencies,
    Run,
    add_arguments,
    batch_ms_of,
    compare,
    report_of,
)
from penstock.bench.report import Report
from penstock.cli.main import main
from penstock.connectors.nexmark import NexmarkSettings, NexmarkSource
from penstock.testing.clock import ManualClock
from tests.spark_session import shared_session

KEYS = {"p50_ms", "p99_ms", "p999_ms", "max_ms", "written_p50_ms", "floor_sync_ms"}
SPARK_KEYS = {"spark_p50_ms", "spark_p99_ms", "p50_times_below", "p99_times_below"}


def bids(auctions: list[int]) -> Bids:
    """Bids with the numbers 10, 11, …"""
    return Bids(1_000, np.arange(10, 10 + len(auctions)), np.array(auctions))


def arrivals(*parts: tuple[dict[str, list[int]], int, int]) -> Arrivals:
    found = Arrivals(tuple(parts[0][0]))
    for columns, seen_us, written_us in parts:
        found.add(pa.record_batch(columns), seen_us, written_us)
    return found


def test_rows_are_put_in_the_order_of_their_bids() -> None:
    found = arrivals(({"seq": [12, 10]}, 500, 400), ({"seq": [11]}, 900, 800))
    journeys = journeys_of_rows(bids([1, 1, 1]), found)
    assert journeys.seq.tolist() == [10, 11, 12]
    assert journeys.seen_us.tolist() == [500, 900, 500]
    assert journeys.written_us.tolist() == [400, 800, 400]


@pytest.mark.parametrize("seq", [[10, 11], [10, 11, 12, 12], [10, 11, 13]])
def test_rows_that_are_lost_doubled_or_strange_are_no_measurement(seq: list[int]) -> None:
    with pytest.raises(RowsDiffer):
        journeys_of_rows(bids([1, 1, 1]), arrivals(({"seq": seq}, 1, 1)))


def test_a_count_stands_for_the_bids_since_the_count_before() -> None:
    found = arrivals(
        ({"auction": [7, 5], "count": [1, 2]}, 100, 90),
        ({"auction": [7], "count": [3]}, 200, 190),
        ({"auction": [7], "count": [3]}, 300, 290),  # the same again: nothing new
    )
    journeys = journeys_of_counts(bids([7, 5, 5, 7, 7]), found)
    seen = dict(zip(journeys.seq.tolist(), journeys.seen_us.tolist(), strict=True))
    assert seen == {10: 100, 11: 100, 12: 100, 13: 200, 14: 200}


@pytest.mark.parametrize(
    "counts", [[2, 4], [2, 2], [3, 2]], ids=["one too many", "one too few", "falls"]
)
def test_counts_that_are_wrong_are_no_measurement(counts: list[int]) -> None:
    found = arrivals(({"auction": [7, 7], "count": counts}, 1, 1))
    with pytest.raises(RowsDiffer):
        journeys_of_counts(bids([7, 7, 7]), found)


def test_a_bid_is_created_when_the_generator_makes_it_due() -> None:
    clock = ManualClock()
    start_us = clock.now_us()
    events = bids_of(800, 60)
    settings = NexmarkSettings(rate=800, events_max=60)
    source = NexmarkSource(settings, "bids", ("seq",), clock, start_us)
    for seq, created_us in zip(
        events.seq.tolist(), events.created_us(start_us, events.seq).tolist(), strict=True
    ):
        clock.advance((created_us - 1 - clock.now_us()) / 1e6)
        before = source.read(0, 1000).batch
        clock.advance(1e-6)
        due = source.read(0, 1000).batch
        assert seq not in ([] if before is None else before.column("seq").to_pylist())
        assert due.column("seq").to_pylist()[-1] == seq


def test_warm_up_and_end_are_left_out() -> None:
    run = Run(QUERIES["q1"], 1_000, warmup_s=1.0, seconds=2.0)
    start_us = 5_000_000
    created_us = run.bids.created_us(start_us, run.bids.seq)
    found = Arrivals(("seq",))
    for seq, us in zip(run.bids.seq.tolist(), created_us.tolist(), strict=True):
        measured = 1_000 <= seq < 3_000
        found.add(pa.record_batch({"seq": [seq]}), us + (7_000 if measured else 99_000), us + 3_000)
    latencies = run.latencies(found, start_us)
    assert set(latencies.ms.tolist()) == {7.0}
    assert set(latencies.written_ms.tolist()) == {3.0}
    assert latencies.ms.size == 2_000 * 46 // 50


def test_quantiles_are_over_rows_and_medians_over_rounds() -> None:
    rounds = [Latencies(np.full(100, ms), np.full(100, ms / 2)) for ms in (4.0, 6.0, 100.0)]
    sparks = [Latencies(np.linspace(50, 70, 100), np.zeros(100))]
    report = report_of("q1", rounds, sparks)
    assert (report.value("p50_ms"), report.value("p99_ms")) == (6.0, 6.0)
    assert (report.value("max_ms"), report.value("written_p50_ms")) == (100.0, 3.0)
    assert report.value("spark_p50_ms") == 60.0
    assert report.value("p50_times_below") == 10.0
    assert all(report.reach.values())
    slow = report_of("count", [Latencies(np.full(9, 101.0), np.full(9, 1.0))], sparks)
    assert not any(slow.reach.values())


def test_the_parts_of_micro_batches_without_rows_do_not_count() -> None:
    progress = [
        {"numInputRows": 5, "durationMs": {"addBatch": 100}},
        {"numInputRows": 0, "durationMs": {"addBatch": 1}},
        {"numInputRows": 9, "durationMs": {"addBatch": 300}},
    ]
    assert batch_ms_of(progress) == {"addBatch": 200.0}


def measured(tmp_path: Path, *words: str) -> Report:
    """A short run on the shared session, of which nothing is left behind."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    timing = ("--rate", "1000", "--seconds", "2", "--warmup", "1", "--dir", str(tmp_path))
    report = compare(shared_session().newSession(), parser.parse_args([*words, *timing]))
    assert list(tmp_path.iterdir()) == []
    assert all(figure.value > 0 for figure in report.figures.values())
    assert report.value("p50_ms") <= report.value("p99_ms") <= report.value("max_ms")
    assert report.value("written_p50_ms") < report.value("p50_ms")
    assert report.facts["rows"] == 2_000 * 46 // 50
    return report


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_short_run_measures_every_bid(tmp_path: Path) -> None:
    report = measured(tmp_path, "--query", "q1", "--against", "none")
    assert report.figures.keys() == KEYS
    assert report.reach.keys() == {"p50_within_10_ms", "p99_within_50_ms"}


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_both_engines_give_the_right_rows(tmp_path: Path) -> None:
    report = measured(tmp_path, "--query", "count", "--against", "spark")
    assert report.figures.keys() == KEYS | SPARK_KEYS
    assert report.facts["spark_rows"] == report.facts["rows"]
    assert len(report.reach) == 4


@pytest.mark.parametrize(
    "words", [("--query", "q9"), ("--rate", "0"), ("--seconds", "0"), ("--against", "flink")]
)
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "latency", *words])
    assert exit.value.code == 2
