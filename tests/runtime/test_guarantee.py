"""Queries without a guarantee: the same rows while nothing fails, and no second life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from penstock.errors import NotRecovered, ProgramIncompatible
from penstock.kernels.cache import KernelCache
from penstock.log.record import RecordKind
from penstock.plan.explain import explain
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.stages.compare import compare
from penstock.stages.settings import Settings
from penstock.testing.plans import count, query, scan_source, sum_, window
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory, multiset, table, table_source

Ceiling = Literal["unmarked", "unsafe"]
ROWS = table(
    [(n % 7, n, n * SECOND_US // 50) for n in range(2_000)],
    key=pa.int64(), value=pa.int64(), ts=TIMESTAMP,
)  # fmt: skip
SOURCES = {"rows": table_source(ROWS)}


def sums(
    name: str, guarantee: Literal["exactly-once", "unmarked", "unsafe"], **options: bool
) -> Query:
    columns = "key bigint, value bigint, ts timestamp"
    rows = scan_source("rows", columns, partitions=1, **options)
    grouped = rows.with_watermark("ts", 0).group_by("key", window=window("ts", "4 seconds"))
    settings = Settings(guarantee=guarantee, step_rows_max=100, commit_interval_ms=0)
    found = grouped.agg(count().alias("n"), sum_("value").alias("total"))
    return query(name, found.to_stream(f"{name}_sums"), settings=settings)


@pytest.mark.parametrize("guarantee", ["unmarked", "unsafe"])
def test_rows_are_the_same_and_no_state_is_kept(
    tmp_path: Path, kernels: KernelCache, guarantee: Ceiling
) -> None:
    lab = Laboratory(tmp_path, kernels)
    usual, bare = plan_program(sums("usual", "exactly-once")), plan_program(sums("bare", guarantee))
    lab.run(usual, SOURCES)
    lab.run(bare, SOURCES)
    assert multiset(lab.rows("bare_sums")) == multiset(lab.rows("usual_sums"))
    assert len(lab.rows("bare_sums")) > 7
    (kept,), (given_up,) = ([v.change_tag for v in each.vertices] for each in (usual, bare))
    assert any(record.kind is RecordKind.CHANGE for record in lab.records(kept))
    assert all(record.kind is RecordKind.MARKER for record in lab.records(given_up))


@pytest.mark.parametrize("guarantee", ["unmarked", "unsafe"])
def test_what_is_lost_is_not_recovered(
    tmp_path: Path, kernels: KernelCache, guarantee: Ceiling
) -> None:
    lab = Laboratory(tmp_path, kernels)
    program = plan_program(sums("bare", guarantee))
    process = lab.open(program, SOURCES)
    for _ in range(5):
        process.host.step()
    process.abandon()
    with pytest.raises(NotRecovered, match=f"guarantee {guarantee} nothing is kept"):
        lab.open(program, SOURCES)


@pytest.mark.parametrize("guarantee", ["unmarked", "unsafe"])
def test_no_stored_query_gets_or_loses_a_guarantee(guarantee: Ceiling) -> None:
    usual = plan_program(sums("q", "exactly-once"))
    bare = replace(usual, settings=replace(usual.settings, guarantee=guarantee))
    for stored, new, reason in (
        (usual, bare, f"stored with the guarantee exactly-once, and now has {guarantee}"),
        (bare, usual, f"stored with the guarantee {guarantee}, and now has exactly-once"),
        (bare, bare, f"with the guarantee {guarantee} nothing was kept"),
    ):
        with pytest.raises(ProgramIncompatible, match=reason):
            compare(stored, new).check()
    compare(usual, usual).check()


def test_explain_is_loud() -> None:
    for guarantee in ("unmarked", "unsafe"):
        text = explain(plan_program(sums("bare", guarantee)))  # type: ignore[arg-type]
        assert f"WITHOUT GUARANTEE ({guarantee})" in text.splitlines()[1]
        assert "NOT exactly once" in text
        assert "markers: where to resume" not in text
    text = explain(plan_program(sums("usual", "exactly-once")))
    assert "WITHOUT" not in text
    assert "NOT exactly" not in text


def test_what_comes_once_is_persisted_without_markers_and_not_if_unsafe(
    tmp_path: Path, kernels: KernelCache
) -> None:
    lab = Laboratory(tmp_path, kernels)
    lab.run(sums("usual", "exactly-once"), SOURCES)
    for guarantee, is_persisted in (("exactly-once", 1), ("unmarked", 1), ("unsafe", 0)):
        name = guarantee.replace("-", "_")
        program = plan_program(sums(name, guarantee, replayable=False))  # type: ignore[arg-type]
        ingress = [stream for stream in program.streams if ".ingress" in stream.name]
        assert len(ingress) == is_persisted
        assert ("and nothing of it is kept" in explain(program)) is not bool(is_persisted)
        lab.run(program, SOURCES)
        assert multiset(lab.rows(f"{name}_sums")) == multiset(lab.rows("usual_sums"))
