"""Parts of one sequence of rows stay side by side, however much sooner one of them begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.repeating import RepeatingSource, read_sample
from penstock.plan.optimizer import plan_program
from penstock.runtime.abreast import AHEAD_ROWS_MAX, AHEAD_S_MAX, LOOK_S, Abreast
from penstock.runtime.sources import SourceRequest
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.stages.tags import vertex_tag
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import count, query, scan_source, window
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory

PERIOD_US = 20 * SECOND_US
STEP_S = 0.1
STEP_ROWS = 50


def counts(folder: Path, rows: int | None) -> tuple[Program, dict[str, Any]]:
    """Rows a second apart, in two parts, counted in windows of ten seconds."""
    path = folder / "sample.parquet"
    times = pa.array([second * SECOND_US for second in range(20)]).cast(TIMESTAMP)
    pq.write_table(pa.table({"ts": times}), path)

    def build(request: SourceRequest) -> RepeatingSource:
        sample = read_sample(str(path), "ts", PERIOD_US)
        (*parts,) = RepeatingSource(sample, rows).split(request.parts)
        return parts[request.part]

    read = scan_source("endless", "ts timestamp not null", None).with_watermark("ts", "0 seconds")
    windows = read.group_by(window=window("ts", "10 seconds")).agg(count().alias("n"))
    settings = Settings(step_rows_max=STEP_ROWS)
    settled = query("counts", windows.to_stream("out"), parallelism=2, settings=settings)
    return plan_program(settled), {"endless": build}


def steps(process: SingleProcess, clock: ManualClock, times: int) -> None:
    for _ in range(times):
        process.host.step()
        clock.advance(STEP_S)


def rows_read(process: SingleProcess, name: str) -> int:
    return process.host.statistics().vertices[name].rows_in


def test_a_part_waits_for_the_other_and_goes_on_with_it(lab: Laboratory, tmp_path: Path) -> None:
    program, sources = counts(tmp_path, None)
    readers = [v.name for v in program.vertices if program.stage_of(v).source is not None]
    assert len(readers) == 2
    clock = ManualClock()
    first = lab.open(program, sources, vertices=(readers[0],), clock=clock)
    steps(first, clock, 40)
    alone = rows_read(first, readers[0])
    ahead_steps = round(AHEAD_S_MAX / STEP_S)
    assert STEP_ROWS * ahead_steps <= alone <= STEP_ROWS * (ahead_steps + 5)
    first.abandon()

    again = lab.open(program, sources, vertices=(readers[0],), clock=clock)
    second = lab.open(program, sources, vertices=(readers[1],), clock=clock)
    most = 0
    for _ in range(60):
        for each in (second, again):
            steps(each, clock, 1)
        most = max(most, rows_read(again, readers[0]) + alone - rows_read(second, readers[1]))
    assert rows_read(again, readers[0]) > 20 * STEP_ROWS
    assert most <= alone + STEP_ROWS * (ahead_steps + 5)
    again.abandon()
    second.abandon()


def test_nobody_waits_for_a_part_that_has_ended(lab: Laboratory, tmp_path: Path) -> None:
    """All parts come to their ends, one after the other, and nothing is counted twice."""
    rows = 40 * STEP_ROWS
    program, sources = counts(tmp_path, rows)
    readers = [v.name for v in program.vertices if program.stage_of(v).source is not None]
    clock = ManualClock()
    for name in readers[::-1]:  # the first one is behind the second, until that has ended
        process = lab.open(program, sources, vertices=(name,), clock=clock)
        steps(process, clock, 100)
        process.abandon()
    with lab.open(program, sources, clock=clock) as process:
        process.run_available()
    found = lab.rows("out")
    assert sum(row["n"] for row in found) == rows
    assert {row["n"] for row in found} == {10}


def test_many_rows_are_far_ahead_however_soon_they_were_read() -> None:
    """Each may be one of the state of who reads them."""
    clock = ManualClock()
    abreast = Abreast(MemoryLog(), [vertex_tag("beside")], clock)  # which has not begun
    piece = AHEAD_ROWS_MAX // 8
    for number in range(10):
        abreast.note(number, number * piece)
        clock.advance(LOOK_S)
        assert abreast.is_ahead() == (number * piece > AHEAD_ROWS_MAX)
    assert clock.monotonic_s() <= AHEAD_S_MAX
