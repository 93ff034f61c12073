"""Files that are read and hold no row: input, of which an aggregate without keys has its one row.

The answers are Spark's, which runs a micro-batch for them; `tests/oracle/test_sources.py` asks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.expressions.tree import column
from penstock.operators.specs import DeduplicateSpec
from penstock.plan.joins import join
from penstock.plan.nodes import step
from penstock.plan.query import Query
from penstock.stages.settings import Settings
from penstock.testing.columns import col
from penstock.testing.plans import Draft, count, query, scan_source, sum_
from tests.runtime.laboratory import Laboratory
from tests.thoroughness import some

NOTHING = (0, None)


def put(path: Path, numbers: Sequence[int], **how: Any) -> None:
    """Write a file of numbers in the format that its name ends in, and rename it into place."""
    hidden = path.with_name(f".{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), hidden, **how)
    elif path.suffix == ".csv":
        hidden.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
    else:
        hidden.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    hidden.rename(path)


def scan(folder: Path, format: str) -> Draft:
    folder.mkdir()
    options = {"header": True} if format == "csv" else {}
    return scan_source("folder", "n bigint", None, path=str(folder), format=format, **options)


def totals(rows: Draft, mode: str = "complete", parallelism: int = 1, **settings: Any) -> Query:
    counted = rows.group_by().agg(count().alias("c"), sum_("n").alias("s"), mode=mode)
    return query(
        "totals",
        counted.to_stream("out"),
        parallelism=parallelism,
        settings=Settings(commit_interval_ms=0, **settings),
    )


def run(lab: Laboratory, tested: Query) -> list[tuple[int, int | None]]:
    """All rows of the result, after one more life of the query."""
    with lab.open(tested) as process:
        process.run_available()
    return [(row["c"], row["s"]) for row in lab.rows("out")]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("mode", ["complete", "update"])
@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_a_file_without_rows_is_input(
    lab: Laboratory, tmp_path: Path, format: str, mode: str, parallelism: int
) -> None:
    folder = tmp_path / "in"
    tested = totals(scan(folder, format), mode, parallelism)
    assert run(lab, tested) == []  # no file was read
    put(folder / f"a.{format}", [])
    assert run(lab, tested) == [NOTHING]
    assert run(lab, tested) == [NOTHING]  # and none since then
    put(folder / f"b.{format}", [1, 2])
    assert run(lab, tested) == [NOTHING, (2, 3)]
    put(folder / f"c.{format}", [])
    assert run(lab, tested) == [NOTHING, (2, 3), (2, 3)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_it_counts_once_whenever_the_process_is_lost(
    lab: Laboratory, tmp_path: Path, parallelism: int
) -> None:
    folder = tmp_path / "in"
    tested = totals(scan(folder, "jsonl"), parallelism=parallelism)
    put(folder / "a.jsonl", [])
    for steps in range(6):
        process = lab.open(tested)
        for _ in range(steps):
            process.host.step()
        process.abandon()
    assert run(lab, tested) == [NOTHING]


def test_row_groups_that_are_passed_over_are_input(lab: Laboratory, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    tested = totals(scan(folder, "parquet").filter(col("n") > 500))
    put(folder / "a.parquet", range(100), row_group_size=10)
    with lab.open(tested) as process:
        process.run_available()
        assert sum(v.rows_in for v in process.statistics().vertices.values()) == 0
    assert run(lab, tested) == [NOTHING]


def test_lines_that_are_all_set_aside_are_input(lab: Laboratory, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    tested = totals(scan(folder, "jsonl"), dead_letter_stream="bad")
    (folder / "a.jsonl").write_text("{\n")
    assert run(lab, tested) == [NOTHING]
    assert len(lab.rows("bad")) == 1


def _files(folder: Path, bounded: bool) -> Draft:
    folder.mkdir()
    options = {"path": str(folder), "format": "jsonl", "bounded": bounded}
    return scan_source("folder", "n bigint", None, **options)


def _paired(rows: Draft) -> Draft:
    n, m = column("n", "bigint"), column("m", "bigint")
    other = rows.select(col("n").alias("m"))
    return Draft(join("inner", rows.relation, other.relation, [(n, m, False)], None))


# What stands before the count: rows through an exchange, or groups of them.
BEFORE: dict[str, Callable[[Draft], Draft]] = {
    "rows": lambda rows: rows,
    "rows that a filter drops": lambda rows: rows.filter(col("n") > 500),
    "distinct rows": lambda rows: Draft(
        step(DeduplicateSpec((column("n", "bigint"),), None), rows.relation)
    ),
    "groups that change": lambda rows: rows.group_by("n").agg(count().alias("c"), mode="update"),
    "pairs": _paired,
}


def counted(rows: Draft, mode: str, parallelism: int) -> Query:
    counts = rows.group_by().agg(count().alias("c"), mode=mode)
    settings = Settings(commit_interval_ms=0, available_now=True)
    return query("counted", counts.to_stream("out"), parallelism=parallelism, settings=settings)


@pytest.mark.parametrize("parallelism", some([1, 2], every=2))
@pytest.mark.parametrize("mode", ["complete", "update"])
@pytest.mark.parametrize("before", BEFORE)
def test_the_end_of_a_source_without_files_is_no_input(
    lab: Laboratory, tmp_path: Path, before: str, mode: str, parallelism: int
) -> None:
    empty = counted(BEFORE[before](_files(tmp_path / "none", True)), mode, parallelism)
    lab.run(empty)
    assert lab.rows("out") == []


@pytest.mark.parametrize("parallelism", some([1, 2], every=2))
@pytest.mark.parametrize("mode", ["complete", "update"])
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("bounded", [True, False])
def test_a_count_of_a_file_without_rows(
    lab: Laboratory, tmp_path: Path, bounded: bool, before: str, mode: str, parallelism: int
) -> None:
    folder = tmp_path / "in"
    tested = counted(BEFORE[before](_files(folder, bounded)), mode, parallelism)
    put(folder / "a.jsonl", [])
    for steps in range(0, 12, 3):
        process = lab.open(tested)
        for _ in range(steps):
            process.host.step()
        process.abandon()
    with lab.open(tested) as process:
        process.run_available()
    rows = [row["c"] for row in lab.rows("out")]
    assert set(rows) == {0}
    assert mode == "complete" or len(rows) == 1
