"""Steps take the fewer rows, the more come of each."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.repeating import RepeatingSource, read_sample
from penstock.runtime import stride as of_steps
from penstock.runtime.sources import SourceRequest
from penstock.runtime.stride import MADE_MAX, ROWS_MIN, Stride
from penstock.stages.settings import Settings
from penstock.testing.plans import count, query, scan_source, window
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory

ROWS_MAX = 1 << 18
WINDOWS = 10
STEP_ROWS = 1 << 14
ROWS = 8 * STEP_ROWS


def test_a_step_makes_no_more_than_it_should() -> None:
    stride = Stride(ROWS_MAX)
    assert stride.rows() == ROWS_MAX
    stride.note(1_000, MADE_MAX // ROWS_MAX * 1_000)
    assert stride.rows() == ROWS_MAX
    for _ in range(20):
        stride.note(1_000, 300_000)
    assert 0.9 < stride.rows() * 300 / MADE_MAX <= 1
    for _ in range(20):
        stride.note(1_000, 1_000_000_000)
    assert stride.rows() == ROWS_MIN
    for _ in range(60):
        stride.note(1_000, 0)
    assert stride.rows() == ROWS_MAX


def test_who_wants_short_steps_gets_them() -> None:
    stride = Stride(5)
    stride.note(5, 500_000_000)
    assert stride.rows() == 5


def test_rows_that_become_many_are_taken_in_few(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row a second, each of another key, each in ten windows."""
    monkeypatch.setattr(of_steps, "MADE_MAX", STEP_ROWS)
    path, seconds = tmp_path / "sample.parquet", 1_000
    times = pa.array(range(0, seconds * SECOND_US, SECOND_US)).cast(TIMESTAMP)
    pq.write_table(pa.table({"ts": times, "k": pa.array(range(seconds), pa.int64())}), path)

    def build(_: SourceRequest) -> RepeatingSource:
        return RepeatingSource(read_sample(str(path), "ts", seconds * SECOND_US), ROWS)

    rows = scan_source("rows", "ts timestamp not null, k bigint not null", None)
    size = f"{WINDOWS} seconds"
    counts = rows.with_watermark("ts", "0 seconds").group_by(
        "k", window=window("ts", size, "1 second")
    )
    stream = counts.agg(count().alias("n")).to_stream("out")
    asked = query("sliding", stream, settings=Settings(step_rows_max=STEP_ROWS))
    made = [0]
    with lab.open(asked, {"rows": build}) as process:

        def note() -> bool:
            vertices = process.host.statistics().vertices.values()
            made.append(max(made[-1], sum(vertex.rows_out for vertex in vertices)))
            return False

        process.run(until=note)
        assert process.read("out").num_rows == ROWS * WINDOWS
    each = [later - sooner for sooner, later in itertools.pairwise(made)]
    assert max(each) > STEP_ROWS * WINDOWS // 2  # nobody knew before the first one
    assert max(each[each.index(max(each)) + 2 :]) <= 2 * STEP_ROWS


@pytest.mark.parametrize("more", [{"files_max": 1}, {}], ids=["portions", "all there is"])
def test_a_file_is_taken_whole_whatever_becomes_of_it(
    lab: Laboratory, tmp_path: Path, more: dict[str, int]
) -> None:
    """Event time goes on behind it: none of its rows is late by others of the same file."""
    (tmp_path / "in").mkdir()
    rows, files = 70_000, 2
    for number in range(files):
        seconds = range((number + 1) * rows, number * rows, -1)  # the latest comes first
        times = pa.array([each * SECOND_US for each in seconds], pa.int64()).cast(TIMESTAMP)
        columns = {"ts": times, "k": pa.array(seconds, pa.int64())}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
    options = {"path": str(tmp_path / "in"), "format": "parquet", "settle_ms": 0, **more}
    scan = scan_source("folder", "ts timestamp, k bigint", None, bounded=True, **options)
    hours = scan.with_watermark("ts", "0 seconds").group_by("k", window=window("ts", "1 hour"))
    asked = query("portions", hours.agg(count().alias("n")).to_stream("out"), parallelism=2)
    with lab.open(asked) as process:
        process.run()
        late = sum(vertex.late_rows for vertex in process.host.statistics().vertices.values())
        assert (late, sum(row["n"] for row in process.read("out").to_pylist())) == (0, rows * files)
