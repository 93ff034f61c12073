"""Queries that nobody thought of: each as a stream, with lost processes, against Spark's batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.catalyst.session import active_session
from penstock.catalyst.translate import translate
from penstock.errors import ExpressionError, PlanError, RowError
from tests.catalyst.conftest import stream
from tests.oracle.engine import Manner, run_streams
from tests.oracle.events import EVENT_COLUMNS, event_rows
from tests.oracle.feeding import cut_into_rounds
from tests.oracle.random_queries import STATIC, STREAMS, compose
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.thoroughness import IS_DEEP, of_campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 60  # of each stream: a join of joins has many times as many
STATIC_ROWS = 30
QUICK, DEEP, CAMPAIGN = 12, 80, 5_000
MORE_QUICK, MORE_DEEP, MORE_CAMPAIGN = 5, 20, 500
# Seeds that once failed.
KEPT = (59, 65, 105, 109, 142, 217, 296, 318, 322, 482, 509, 746, 1747, 1804, 1882)
# What a stream refuses though a batch has an answer: each says so, and what to do instead.
REFUSED = (
    "partitions and order by",
    "append mode needs a time window here",
)


def _judge(spark: SparkSession, folder: Path, seed: int, more: bool = False) -> None:
    rng = random.Random(f"random query {seed}")
    beginning = rng.randrange(1 << 30)
    events = {name: event_rows(beginning, ROWS) for name in STREAMS}
    events[STATIC] = event_rows(rng.randrange(1 << 30), STATIC_ROWS)
    standing = {
        name: static_frame(spark, pa.Table.from_batches([rows])) for name, rows in events.items()
    }
    batch = compose(seed, standing, more)
    streams = {name: stream(spark, EVENT_COLUMNS, name) for name in STREAMS}
    query = compose(seed, {**streams, STATIC: standing[STATIC]}, more)
    with _refusals():
        translated = translate(query.frame, output_mode=query.mode, query="q")
    manner = Manner.drawn(rng)
    rounds = {name: cut_into_rounds(events[name], rng) for name in translated.streams}
    try:
        with active_session(spark), _refusals():
            outcome = run_streams(translated, rounds, folder, manner)
    except RowError:  # a row that fails here must be one that Spark refuses too
        with pytest.raises((PySparkException, Py4JError)):
            batch.frame.toArrow()
        return
    theirs = plain(batch.frame.toArrow())
    mode = "update" if query.keys else query.mode
    ours = as_mode(plain(outcome.rows), mode, query.keys, len(theirs))
    if query.may_vanish:
        kept = {row[: query.keys] for row in theirs}
        ours = [row for row in ours if row[: query.keys] in kept]
    difference = differences(ours, theirs)
    assert not difference, f"seed {seed}, {manner}\n{difference}"


@contextmanager
def _refusals() -> Iterator[None]:
    """What is known to be refused is passed over."""
    try:
        yield
    except (PlanError, ExpressionError) as error:
        if not any(reason in str(error) for reason in REFUSED):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.slow) for seed in KEPT)]
)
def test_a_random_query_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    _judge(spark, tmp_path, seed)


@pytest.mark.parametrize("seed", range(MORE_QUICK))
def test_more_aggregates_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    _judge(spark, tmp_path, seed, more=True)


@pytest.mark.slow
@pytest.mark.skipif(not IS_DEEP, reason="many seeds")
@pytest.mark.parametrize("seed", range(MORE_QUICK, MORE_DEEP))
def test_many_more_aggregates(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    _judge(spark, tmp_path, seed, more=True)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", of_campaign(range(MORE_DEEP, MORE_CAMPAIGN)))
def test_hundreds_of_more_aggregates(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    _judge(spark, tmp_path, seed, more=True)


@pytest.mark.slow
@pytest.mark.skipif(not IS_DEEP, reason="many seeds")
@pytest.mark.parametrize("seed", range(QUICK, DEEP))
def test_many_more(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    _judge(spark, tmp_path, seed)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", of_campaign(range(DEEP, CAMPAIGN)))
def test_thousands(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    _judge(spark, tmp_path, seed)
