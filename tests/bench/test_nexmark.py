"""`penstock bench nexmark`: the oracle agrees with Spark's batch result, and finds what differs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bench.arrivals import Arrivals
from penstock.bench.nexmark import ALL, add_arguments, goals, measure
from penstock.bench.nexmark.events import rows_of_table, table_of, world_of, write_files
from penstock.bench.nexmark.latency import WATCHED, Load
from penstock.bench.nexmark.oracle import ANSWERS, difference
from penstock.bench.nexmark.queries import QUERIES
from penstock.connectors.nexmark import NexmarkSettings
from penstock.errors import InvalidArgument
from tests.spark_session import shared_session

EVENTS = NexmarkSettings(seed=3, rate=1_000, events_max=20_000, group=1_000)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_oracle_agrees_with_a_spark_job(name: str, tmp_path: Path) -> None:
    query, world = ALL[name], world_of(EVENTS)
    write_files(tmp_path / "files", EVENTS, query.columns)
    events = shared_session().read.parquet(str(tmp_path / "files"))
    rows = rows_of_table(query.over(events, 1_000).toArrow())
    assert rows
    assert difference(name, world, rows, len(query.key)) is None


@pytest.mark.parametrize("events", [7, 20_000, 150_001])
def test_the_files_have_all_events_in_their_order(tmp_path: Path, events: int) -> None:
    made = replace(EVENTS, events_max=events)
    columns = ("etype", "dateTime", "bid.price")
    write_files(tmp_path / "files", made, columns)
    files = [pq.read_table(file) for file in sorted((tmp_path / "files").iterdir())]
    assert pa.concat_tables(files).equals(table_of(made, "all", columns))
    assert max(map(len, files)) <= min(map(len, files)) + 4


def test_more_events_than_the_oracle_can_hold_are_not_verified() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    wanted = parser.parse_args(["--events", "20000000", "--verify", "--measure", "throughput"])
    with pytest.raises(InvalidArgument, match="at most 5,000,000 are verified"):
        measure(wanted)


def test_every_query_has_an_answer_and_the_eight_are_watched() -> None:
    assert set(ANSWERS) == set(ALL)
    assert set(WATCHED) == set(QUERIES)


def test_what_differs_is_said() -> None:
    world = world_of(EVENTS)
    rows = list(ANSWERS["q8"](world))
    assert difference("q8", world, rows) is None
    assert "1 missing such as" in str(difference("q8", world, rows[1:]))
    assert "1 too many such as" in str(difference("q8", world, [*rows, rows[0]]))


def test_of_updates_the_last_row_of_a_key_counts() -> None:
    world = world_of(EVENTS)
    rows = list(ANSWERS["q4"](world))
    early = [(row[0], 0, 0, 0, 0.0) for row in rows]
    assert difference("q4", world, [*early, *rows], key_width=1) is None
    assert difference("q4", world, [*rows, *early], key_width=1) is not None


def test_of_updates_an_auction_that_was_passed_does_not_count() -> None:
    world = world_of(EVENTS)
    rows = list(ANSWERS["q5_updates"](world))
    start, end, _, number = rows[0]
    passed = (start, end, 1, number - 1)
    assert difference("q5_updates", world, [passed, *rows], key_width=3) is None
    assert difference("q5_updates", world, [passed, *rows[1:]], key_width=3) is not None
    level = (start, end, 1, number)
    assert difference("q5_updates", world, [level, *rows], key_width=3) is not None


def test_the_order_of_events_changes_no_answer() -> None:
    in_order = NexmarkSettings(seed=3, rate=1_000, events_max=20_000)
    for name, answer in ANSWERS.items():
        assert sorted(answer(world_of(in_order))) == sorted(answer(world_of(EVENTS))), name


def test_a_mean_of_a_category_is_caused_by_the_oldest_bid_that_is_new_in_it() -> None:
    settings = NexmarkSettings(seed=3, rate=1_000, events_max=20_000)
    load = Load(settings, 10, 1.0, 19.0)
    category = next(iter(ANSWERS["q4"](world_of(settings))))
    found = Arrivals(("category", "bids"))
    for bids in (1, 3, category[3]):
        found.add(pa.record_batch({"category": [category[0]], "bids": [bids]}), 0)
    caused = WATCHED["q4"].cause(found, load)
    assert np.all(np.diff(caused) >= 0)
    times = np.asarray(table_of(settings, "bids", ("dateTime",))["dateTime"].cast(pa.int64()))
    assert np.isin(caused, times).all()


def test_queries_are_named_by_numbers_or_names() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(["--queries", "1-3,q8_pairs,7"])
    assert given.queries == ["q1", "q2", "q3", "q8_pairs", "q7"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--queries", "9"])


def test_goals_are_judged_by_what_was_measured() -> None:
    figures = {
        "identical": True,
        "events_per_s": 1.0,
        "files_events_per_s": 50.0,
        "spark_events_per_s": 10.0,
        "times_spark": 5.0,
        "p99_ms": 251.0,
    }
    assert dict(goals("q1", figures)) == {
        "identical": True,
        "5_times_structured_streaming": True,
        "p99_ms_within_250": False,
    }
