"""The state of a query as rows, against the rows that the query was fed with."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from penstock.api.datasource import PenstockDataSource
from penstock.api.datasource_schema import spark_schema
from penstock.api.datasource_state import find_state, read_state, states_of
from penstock.errors import StreamNotFound
from penstock.kernels.cache import KernelCache
from penstock.log.local import open_log
from penstock.plan.optimizer import plan_program
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import count, max_, query, scan_source, sum_, window
from penstock.testing.single_process import SingleProcess
from tests.api.datasource_logs import PROCESS
from tests.operators.chains import linear
from tests.runtime.laboratory import table_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 200
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def input_rows() -> list[dict[str, Any]]:
    return [
        {
            "who": None if n % 11 == 0 else f"u{n % 5}",
            "amount": n,
            "ts": BEGIN + timedelta(seconds=n),
        }
        for n in range(ROWS)
    ]


def totals() -> Program:
    rows = scan_source("table", "who string, amount bigint, ts timestamp")
    grouped = rows.group_by("who").agg(
        count().alias("n"), sum_("amount").alias("total"), mode="update"
    )
    settings = Settings(step_rows_max=16, commit_interval_ms=0, checkpoint_interval_commits=2)
    return plan_program(query("totals", grouped.to_stream("out"), settings=settings))


def sliding() -> Program:
    rows = scan_source("table", "who string, amount bigint, ts timestamp")
    timed = rows.with_watermark("ts", "30 seconds")
    grouped = timed.group_by("who", window=window("ts", "20 seconds", "10 seconds")).agg(
        count().alias("n"), max_("amount").alias("top")
    )
    settings = Settings(step_rows_max=16, commit_interval_ms=0, checkpoint_interval_commits=3)
    return plan_program(query("sliding", grouped.to_stream("windows"), settings=settings))


def run(folder: Path, program: Program, kernels: KernelCache, steps: int) -> None:
    """Run a query for some steps, leave it as a killed process would, and store its program."""
    schema = pa.schema(
        {"who": pa.string(), "amount": pa.int64(), "ts": pa.timestamp("us", tz="UTC")}
    )
    table = pa.Table.from_pylist(input_rows(), schema)
    process = SingleProcess(
        program,
        folder,
        sources={"table": table_source(table)},
        kernels=kernels,
        log_config=PROCESS,
    )
    done = iter(range(steps))
    process.run(until=lambda: next(done, None) is None)
    process.log.put(f"query/{program.query}", json.dumps({"program": program.to_json()}).encode())
    process.abandon()


def consumed(folder: Path, program: Program) -> list[dict[str, Any]]:
    """The input rows that are part of the committed state."""
    from penstock.runtime.markers import decode_marker  # noqa: PLC0415

    [vertex] = program.vertices
    with open_log(folder, read_only=True) as log:
        record = log.last(vertex.vertex_tag)
        assert record is not None
        offset = decode_marker(record).offset
    assert 0 < offset < ROWS, "the test wants a query in the middle of its input"
    return input_rows()[:offset]


def state_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    with open_log(folder, read_only=True) as log:
        state = find_state(log, name)
        found: list[dict[str, Any]] = []
        for vertex in state.vertices:
            found += read_state(log, folder, state, vertex).to_pylist()
    return found


def expected_totals(rows: list[dict[str, Any]]) -> dict[Any, tuple[int, int]]:
    counts = Counter(row["who"] for row in rows)
    return {
        who: (counts[who], sum(row["amount"] for row in rows if row["who"] == who))
        for who in counts
    }


def test_groups_without_a_window(tmp_path: Path, kernels: KernelCache) -> None:
    program = totals()
    run(tmp_path / "log", program, kernels, steps=7)
    rows = state_rows(tmp_path / "log", "totals")
    assert {r["who"]: (r["n"], r["total"]) for r in rows} == expected_totals(
        consumed(tmp_path / "log", program)
    )
    assert {row["_vertex"] for row in rows} == {program.vertices[0].name}
    assert state_rows(tmp_path / "log", program.vertices[0].name) == rows


def test_panes_of_overlapping_windows(tmp_path: Path, kernels: KernelCache) -> None:
    program = sliding()
    run(tmp_path / "log", program, kernels, steps=9)
    used = consumed(tmp_path / "log", program)
    watermark = max(row["ts"] for row in used) - timedelta(seconds=30)
    groups: dict[tuple[Any, datetime], list[int]] = defaultdict(list)
    for row in used:
        start = BEGIN + (row["ts"] - BEGIN) // timedelta(seconds=10) * timedelta(seconds=10)
        last_window_end = start + timedelta(seconds=20)
        if last_window_end > watermark:  # older panes were let go with their last window
            groups[row["who"], start].append(row["amount"])
    rows = state_rows(tmp_path / "log", "sliding")
    assert {(r["who"], r["_pane"]["start"]): (r["n"], r["top"]) for r in rows} == {
        key: (len(amounts), max(amounts)) for key, amounts in groups.items()
    }
    assert all(row["_pane"]["end"] - row["_pane"]["start"] == timedelta(seconds=10) for row in rows)


def test_chains_name_their_state_as_it_is_read() -> None:
    stage = totals().stages[0]
    chain = linear(stage.specs, stage.ports[0].schema, None)
    (state,) = states_of(totals())
    assert list(chain.states) == [state.operator]


def test_what_has_no_state_is_said(tmp_path: Path, kernels: KernelCache) -> None:
    run(tmp_path / "log", totals(), kernels, steps=3)
    vertex = totals().vertices[0].name
    with open_log(tmp_path / "log", read_only=True) as log:
        with pytest.raises(StreamNotFound, match=f"vertices with state: {vertex}"):
            find_state(log, "total")
        both = json.dumps({"program": sliding().to_json()}).encode()
    with open_log(tmp_path / "log") as log:
        log.put("query/sliding", both)  # stored, and never run: its state is empty
    assert state_rows(tmp_path / "log", "sliding") == []


@pytest.mark.spark
def test_state_as_a_dataframe(spark: SparkSession, tmp_path: Path, kernels: KernelCache) -> None:
    program = totals()
    folder = tmp_path / "log"
    run(folder, program, kernels, steps=7)
    frame = spark.read.format("penstock").option("state", "totals").load(str(folder))
    source = PenstockDataSource(CaseInsensitiveDict({"path": str(folder), "state": "totals"}))
    assert frame.schema == source.schema()
    with open_log(folder, read_only=True) as log:
        assert frame.schema == spark_schema(find_state(log, "totals").schema)
    assert frame.columns == ["who", "n", "total", "_vertex"]
    rows = frame.where("n > 0").collect()
    assert {r.who: (r.n, r.total) for r in rows} == expected_totals(consumed(folder, program))
