"""NEXMark q1 to q8 on Spark while slots are killed: every answer is the oracle's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

import penstock
from penstock.api.query import StreamingQuery
from penstock.api.session import Attached
from penstock.bench.nexmark.events import rows_of_table, world_of
from penstock.bench.nexmark.oracle import difference
from penstock.bench.nexmark.queries import QUERIES, VARIANTS
from penstock.connectors.nexmark import NexmarkSettings
from penstock.runtime.streams import StreamReader
from tests.spark.waiting import wait_for
from tests.spark_session import activated, own_session
from tests.thoroughness import few

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ALL = {**QUERIES, **VARIANTS}
RATE, EVENTS, KILLS = 10_000, 50_000, 2
DELAY_MS = 500


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    """A session of this file's own on the shared context, which has four task slots."""
    with own_session() as session:
        yield penstock.attach(session, tmp_path_factory.mktemp("nexmark") / "log")


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(1, id="in_order", marks=pytest.mark.campaign),
        pytest.param(1_000, id="out_of_order"),
    ],
)
@pytest.mark.parametrize("name", few([*ALL], every=3))
def test_killed_slots_change_no_answer(attached: Attached, name: str, group: int) -> None:
    query, made = ALL[name], NexmarkSettings(rate=RATE, events_max=EVENTS, group=group)
    reader = (
        activated(attached.spark).readStream.format("nexmark").options(kind="all", numPartitions=2)
    )
    reader = reader.options(rate=RATE, events=EVENTS, group=group)
    events = reader.option("columns", ",".join(query.columns)).load()
    stream = f"{name}_{group}"
    writer = penstock.writeStream(query.over(events, DELAY_MS)).outputMode(query.output)
    writer = writer.queryName(stream).options(parallelism=2, slots=2, standbySlots=1)
    running = writer.toStream(stream).start()
    try:
        for kill in range(KILLS):
            wait_for("slots at work", partial(_are_working, running, kill))
            os.kill(_working(running)[-1], signal.SIGKILL)
        wait_for("the last recovery", partial(_has_recovered, running, KILLS))
        assert running.awaitTermination(120)
    finally:
        running.stop()
    rows = rows_of_table(StreamReader(attached.log, stream).read_all())
    assert difference(name, world_of(made), rows, len(query.key)) is None


def _working(running: StreamingQuery) -> list[int]:
    found = running.job.slot_processes().values()
    return sorted(pid for pid, _, vertices in found if vertices)


def _are_working(running: StreamingQuery, kills: int) -> bool:
    return bool(_working(running)) and _has_recovered(running, kills)


def _has_recovered(running: StreamingQuery, kills: int) -> bool:
    return len({r.pid for r in running.job.recoveries() if r.started_s}) >= kills
