"""Distinct rows through whole programs: exchanges, crashes, a count behind them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.expressions.tree import column
from penstock.operators.specs import DeduplicateSpec
from penstock.plan.nodes import step
from penstock.stages.settings import Settings
from penstock.testing.plans import Draft, count, query, scan_source
from tests.runtime.laboratory import TIMESTAMP, Laboratory, multiset, table, table_source

K, N = column("k", "string"), column("n", "bigint")
AT = column("at", "timestamp")


def distinct(rows: Draft, *keys: object, time: object = None) -> Draft:
    return Draft(step(DeduplicateSpec(keys, time), rows.relation))  # type: ignore[arg-type]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_each_key_comes_once_through_crashes(lab: Laboratory, parallelism: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = [(rng.choice(["", "a", None, f"k{rng.randrange(40)}"]), rng.randrange(4)) for _ in
            range(600)]  # fmt: skip
    read = scan_source("rows", "k string, n bigint", partitions=None)
    settings = Settings(step_rows_max=20, commit_interval_ms=0, checkpoint_interval_commits=3)
    tested = query(
        "once",
        distinct(read, K, N).to_stream("out"),
        distinct(read, K, N).group_by("n").agg(count().alias("keys"), mode="update").to_stream("n"),
        parallelism=parallelism,
        settings=settings,
    )
    sources = {"rows": table_source(table(rows, k=pa.string(), n=pa.int64()))}
    lab.run_with_crashes(tested, sources, rng, crashes=6, steps_max=20)
    assert multiset(lab.rows("out")) == sorted(set(rows), key=repr)
    last = {row["n"]: row["keys"] for row in lab.rows("n")}
    assert last == {n: len({k for k, m in rows if m == n}) for n in range(4)}


def test_late_rows_are_kept_once_and_the_others_come_once(lab: Laboratory) -> None:
    rng = random.Random(7)
    rows = [(f"k{rng.randrange(30)}", (i + rng.randrange(-9, 1)) * 1_000_000) for i in range(400)]
    read = scan_source("rows", "k string, at timestamp", partitions=1)
    timed = distinct(read.with_watermark("at", "3 seconds"), K, AT, time=AT)
    settings = Settings(late_stream="late", step_rows_max=10, commit_interval_ms=0)
    tested = query("timed", timed.to_stream("out"), settings=settings)
    source = table_source(table(rows, k=pa.string(), at=TIMESTAMP))
    lab.run_with_crashes(tested, {"rows": source}, rng, crashes=5)
    found, late = multiset(lab.rows("out")), multiset(lab.rows("late"))
    assert late
    assert len(set(found)) == len(found)
    assert set(found) | set(late) == set(rows)
    assert not set(found) - set(rows)
