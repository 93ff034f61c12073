"""Whole queries: streaming here in random batches, with lost processes, against Spark's batch."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.kernels.cache import KernelCache
from tests.oracle.engine import Manner, Outcome, run_rows
from tests.oracle.events import EVENT_SCHEMA, event_rows
from tests.oracle.feeding import Round, cut_into_rounds, plain_rows
from tests.oracle.planned import Planned
from tests.oracle.queries import MARK, Judged, queries
from tests.oracle.verdict import as_mode, differences, plain, static_frame
from tests.thoroughness import of_campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NAMES = sorted(queries())
EVENT_NAMES = frozenset(field.name for field in EVENT_SCHEMA)


def _judge(
    spark: SparkSession,
    planned: Planned,
    folder: Path,
    name: str,
    seed: int,
    kernels: KernelCache | None = None,
) -> Outcome:
    judged = queries()[name]
    rng = random.Random(f"{name} {seed}")
    manner = _manner(rng, judged, kernels)
    rows = event_rows(rng.randrange(1 << 30))
    rounds = cut_into_rounds(rows, rng)
    translated = planned.query(spark, name)
    outcome = run_rows(translated, rounds, folder, manner)
    marks = None if judged.lateness is None else judged.lateness.marks_us(rounds)
    table = pa.Table.from_batches([rows])
    if marks is not None:
        table = table.append_column(MARK, pa.array(marks, pa.int64()))
    answer = judged.define(static_frame(spark, table)).toArrow()
    assert answer.column_names == outcome.rows.column_names
    theirs = plain(answer)
    assert theirs, "a case must have a result"
    ours = as_mode(plain(outcome.rows), judged.mode, judged.keys, len(theirs))
    difference = differences(ours, theirs)
    assert not difference, f"seed {seed}, {manner}\n{difference}"
    if marks is not None and judged.reads_late:
        _compare_late(judged, rounds, marks, outcome)
    return outcome


def _manner(rng: random.Random, judged: Judged, kernels: KernelCache | None) -> Manner:
    drawn = Manner.drawn(rng)
    can_keep = judged.lateness is not None and judged.reads_late and judged.keeps_late
    keeps = can_keep and rng.random() < 0.4
    return replace(drawn, keep_late=keeps, kernels=kernels)


def _compare_late(
    judged: Judged, rounds: list[Round], marks: list[int | None], outcome: Outcome
) -> None:
    assert judged.lateness is not None
    late = judged.lateness.late_rows(rounds, marks)
    assert outcome.late_rows == len(late)
    if outcome.late is None:
        return
    kept = [plain_rows(batch) for batch in outcome.late.to_batches()]
    # Spark may have added columns for what it computes before the groups.
    names = [name for name in outcome.late.column_names if name in EVENT_NAMES]
    expected = Counter(_shown(row, names) for row in late)
    assert Counter(_shown(row, names) for batch in kept for row in batch) == expected


def _shown(row: dict[str, Any], names: list[str]) -> str:
    return repr([row[name] for name in names])


# Many are alike: one in twelve always, three more in the deep part, the rest in a campaign.
SHARED_OUT = [
    pytest.param(
        name, marks=() if at % 12 == 0 else pytest.mark.campaign if at % 3 else pytest.mark.slow
    )
    for at, name in enumerate(NAMES)
]


@pytest.mark.parametrize("name", SHARED_OUT)
def test_a_query_gives_what_spark_gives(
    spark: SparkSession, planned: Planned, tmp_path: Path, name: str
) -> None:
    _judge(spark, planned, tmp_path, name, 1)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", of_campaign(range(2, 12)))
@pytest.mark.parametrize("name", NAMES)
def test_more_rows_in_other_batches(
    spark: SparkSession, planned: Planned, tmp_path: Path, name: str, seed: int
) -> None:
    _judge(spark, planned, tmp_path, name, seed)


# Each has a handful of kernels to compile, which other tests compare with Arrow.
COMPILED = [
    pytest.param(name, marks=pytest.mark.campaign if at % 18 else pytest.mark.slow)
    for at, name in enumerate(NAMES)
]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_loops_give_what_spark_gives(
    spark: SparkSession, planned: Planned, tmp_path: Path, name: str, kernels: KernelCache
) -> None:
    _judge(spark, planned, tmp_path, name, 1, kernels)
