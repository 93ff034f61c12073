"""The queries of `penstock bench scabbard` while their slots are killed, beside the oracle."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from penstock.api.query import StreamingQuery
from penstock.bench.scabbard.engines import Input, Way, log_for, penstock_writer, rows_of
from penstock.bench.scabbard.oracle import difference
from penstock.bench.scabbard.queries import QUERIES
from penstock.runtime.streams import StreamReader
from tests.spark.waiting import wait_for
from tests.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLE_ROWS = 8_192
CYCLES = 100
DEAR = ("lrb2", "lrb3")  # most of their time is the oracle's
DEEP = ("cm1", "sg3", "ysb")  # the others are of the campaign
KILLS = 2
STEP_ROWS = 256  # so that a run lasts long enough to be killed in its middle


def kill_some(query: StreamingQuery, dice: random.Random) -> int:
    """Kill a slot that works, again and again, each time after some of its commits."""
    for killed in range(KILLS):
        time.sleep(dice.uniform(0.05, 0.6))
        wait_for("a slot that works", lambda: working(query) or not query.isActive)
        if not query.isActive:
            return killed
        os.kill(dice.choice(working(query)), signal.SIGKILL)
        wait_for("the recovery", partial(is_over_it, query, killed + 1))
    return KILLS


def working(query: StreamingQuery) -> list[int]:
    return [pid for pid, _, vertices in query.job.slot_processes().values() if vertices]


def is_over_it(query: StreamingQuery, kills: int) -> bool:
    recovered = [each for each in query.job.recoveries() if each.started_s]
    return not query.isActive or len(recovered) >= kills


@pytest.mark.parametrize("replayable", [True, False], ids=["replayed", "persisted"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in DEEP else pytest.mark.campaign) for name in QUERIES],
)
def test_nothing_is_lost_or_doubled(name: str, replayable: bool, tmp_path: Path) -> None:
    query, shape = QUERIES[name], {}
    if query.window_s > 1_000:  # windows of an hour close in few rows
        shape = {"per_second": 20}
    rows = SAMPLE_ROWS * (CYCLES // 10 if name in DEAR else CYCLES)
    given = Input.of(query, tmp_path, 7, SAMPLE_ROWS, rows, **shape)
    way = Way(replayable=replayable)
    with log_for(shared_session(), tmp_path / "log", way) as attached:
        writer = penstock_writer(attached, query, name, given, way, given.rows)
        running = writer.options(stepRowsMax=STEP_ROWS, commitInterval="20 milliseconds").start()
        try:
            killed = kill_some(running, random.Random(f"{name} {replayable}"))
            assert running.awaitTermination(300)
        finally:
            running.stop()
        found = StreamReader(attached.log, name).read_all()
    assert killed
    assert difference(name, given.expanded(), rows_of(found)) is None
