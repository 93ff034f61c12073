"""Runs that read what there is and stop, and whom event time waits for in them and elsewhere."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.plan.optimizer import plan_program
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import Draft, count, query, scan_source, scan_stream, window
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import SECOND_US, Laboratory, table, table_source

DELAY_US, WINDOW_US = 5 * SECOND_US, 10 * SECOND_US


def put(folder: Path, name: str, seconds: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"ts": f"2024-01-01T00:{s // 60:02d}:{s % 60:02d}Z"}) for s in seconds]
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(folder / name)


def scan(folder: Path) -> Draft:
    rows = scan_source("folder", "ts timestamp", None, path=str(folder), format="jsonl")
    return rows.with_watermark("ts", DELAY_US)


def windows(rows: Draft, parallelism: int, *, available_now: bool = True) -> Program:
    grouped = rows.group_by(window=window("ts", WINDOW_US)).agg(count().alias("n"))
    settings = Settings(
        available_now=available_now, commit_interval_ms=0, checkpoint_interval_commits=3
    )
    made = query("finite", grouped.to_stream("out"), parallelism=parallelism, settings=settings)
    return plan_program(made)


def run(lab: Laboratory, program: Program) -> None:
    with lab.open(program) as process:
        process.run_available()


def found(lab: Laboratory) -> dict[int, int]:
    """Rows by the start of their window, in seconds of the hour."""
    rows = lab.rows("out")
    assert len({row["window"] for row in rows}) == len(rows)
    return {row["window"][0] // SECOND_US % 3600: row["n"] for row in rows}


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_windows_of_finite_runs_are_those_that_spark_gives(
    lab: Laboratory, tmp_path: Path, parallelism: int
) -> None:
    """The same files in the same runs through Structured Streaming gave these windows.

    No row is late by another of its own run. A window is closed at the end of the run in which the
    watermark passes it; others stay open for the next one.
    """
    program = windows(scan(tmp_path / "in"), parallelism)
    put(tmp_path / "in", "a", [1, 2, 11, 12, 40])
    put(tmp_path / "in", "b", [3, 13, 22])  # older than what the first file's end would allow
    run(lab, program)
    assert found(lab) == {0: 3, 10: 3, 20: 1}
    put(tmp_path / "in", "c", [4, 31, 36, 50])  # the first is late since the last run
    run(lab, program)
    assert found(lab) == {0: 3, 10: 3, 20: 1, 30: 2}
    run(lab, program)
    assert found(lab) == {0: 3, 10: 3, 20: 1, 30: 2}
    put(tmp_path / "in", "d", [100])
    run(lab, program)
    assert found(lab) == {0: 3, 10: 3, 20: 1, 30: 2, 40: 1, 50: 1}


@pytest.mark.parametrize("files", [0, 1, 3, 9])
def test_the_number_of_vertices_changes_nothing(
    lab: Laboratory, tmp_path: Path, files: int
) -> None:
    """Also with processes that are lost in the middle of a run."""
    rng = random.Random(files)
    seconds = [[rng.randrange(300) for _ in range(30)] for _ in range(files)]
    (tmp_path / "in").mkdir()
    for number, content in enumerate(seconds):
        put(tmp_path / "in", f"{number}", content)
    everything = [second for content in seconds for second in content]
    closed_s = (max(everything, default=0) - DELAY_US // SECOND_US) // 10 * 10
    expected = Counter(second // 10 * 10 for second in everything if second < closed_s)
    for parallelism in (1, 2, 4):
        each = Laboratory(tmp_path / f"log{parallelism}", lab.kernels)
        program = windows(scan(tmp_path / "in"), parallelism)
        for steps in (1, 2, 5):
            process = each.open(program)
            for _ in range(steps):
                process.host.step()
            process.abandon()
        run(each, program)
        assert found(each) == expected, parallelism


def test_a_part_that_never_had_anything_holds_nobody_back(lab: Laboratory, tmp_path: Path) -> None:
    """Without an end as well: with four vertices and one file, three of them have none."""
    program = windows(scan(tmp_path / "in"), 4, available_now=False)
    put(tmp_path / "in", "a", [1, 2, 11, 40])
    run(lab, program)
    assert found(lab) == {0: 2, 10: 1}
    put(tmp_path / "in", "b", [36, 37])  # of another vertex: from now on it counts
    run(lab, program)
    put(tmp_path / "in", "c", [90])
    run(lab, program)
    assert found(lab) == {0: 2, 10: 1}
    run(lab, program)


def test_the_slower_of_two_sources_decides_also_in_a_finite_run(
    lab: Laboratory, tmp_path: Path
) -> None:
    """Structured Streaming goes by the least of several watermarks, too."""
    put(tmp_path / "left", "a", [1, 40])
    put(tmp_path / "right", "a", [2, 20])
    run(lab, windows(scan(tmp_path / "left").union(scan(tmp_path / "right")), 2))
    assert found(lab) == {0: 2}


def test_a_part_that_is_still_to_be_read_in_this_run_is_waited_for(
    lab: Laboratory, tmp_path: Path
) -> None:
    """What a vertex said in the run before says nothing about this one."""
    program = windows(scan(tmp_path / "in"), 2)
    put(tmp_path / "in", "a", [1])
    put(tmp_path / "in", "b", [2])
    run(lab, program)
    put(tmp_path / "in", "c", [100])
    put(tmp_path / "in", "d", [5])
    first, _, *rest = [vertex.name for vertex in program.vertices]
    with lab.open(program, vertices=(first, *rest)) as process:
        process.run_available()
        assert found(lab) == {}
    with lab.open(program) as process:
        process.run_available()
    assert found(lab) == {0: 3}


# Streams of another query --------------------------------------------------------------------


def writing(parallelism: int) -> Program:
    rows = scan_source("rows", "v bigint not null", partitions=None)
    return plan_program(query("a", rows.to_stream("mid"), parallelism=parallelism))


def counting() -> Program:
    rows = scan_stream("mid", "v bigint not null", substreams=2).group_by()
    return plan_program(query("b", rows.agg(count().alias("n"), mode="update").to_stream("out")))


def test_a_stream_has_not_ended_before_every_vertex_that_writes_it_has(lab: Laboratory) -> None:
    """One vertex of the writing query ends before the other has said a word."""
    sources = {"rows": table_source(table([(n,) for n in range(100)], v=pa.int64()))}
    first, second = (vertex.name for vertex in writing(2).vertices)
    early = lab.open(writing(2), sources, vertices=(first,))
    reader = lab.open(counting())
    early.run()
    early.close()
    reader.run_available()
    assert not has_ended(reader)
    late = lab.open(writing(2), sources, vertices=(second,))
    late.run()
    late.close()
    reader.run_available()
    assert has_ended(reader)
    reader.close()
    assert lab.rows("out")[-1]["n"] == 100


def has_ended(process: SingleProcess) -> bool:
    return all(each.state.value == "ended" for each in process.statistics().vertices.values())
