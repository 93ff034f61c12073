"""Trims: a query that goes on keeps its disk flat, and can be restarted from any point of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.config import KIB, LogConfig
from penstock.errors import Fenced, OutcomeUnknown, Trimmed
from penstock.expressions.types import BIGINT, Field
from penstock.log import LocalLog, open_log, punit, take_over
from penstock.log.record import Entry, Fence, Position, RecordKind
from penstock.log.segments import frame_bytes
from penstock.log.survey import list_tags, summarise
from penstock.plan.optimizer import RULES, plan_program
from penstock.plan.query import Query
from penstock.runtime.outputs import Outputs
from penstock.runtime.retention import Retention, retain, set_retention
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.runtime.trimming import TRIM_COMMITS, trim_job
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.stages.tags import vertex_tag
from penstock.testing.columns import col
from penstock.testing.plans import count, query, scan_source, sum_
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import UNSYNCED, Laboratory, table, table_source
from tests.thoroughness import some

WAIT_S = 30.0
STEP_ROWS = 200
KEYS = 20
# Rows lie in segments and markers in the index, so that both kinds of space are seen to be freed.
SEGMENTS = LogConfig(durability="process", inline_bytes_max=1 * KIB, segment_bytes_max=64 * KIB)

# Two readers of one stream, instead of two outputs of one stage.
APART = [rule for rule in RULES if rule.__name__ != "fuse_branches"]


def sums(step_rows: int = STEP_ROWS, parallelism: int = 2) -> Query:
    """Rows through an exchange into counts; few of them come out."""
    rows = scan_source("rows", "key bigint not null, value bigint not null", partitions=1)
    kept = rows.with_column("value", col("value") + 1)
    totals = kept.group_by("key").agg(sum_("value").alias("s"), count().alias("n"), mode="update")
    settings = Settings(
        step_rows_max=step_rows,
        commit_interval_ms=0,
        checkpoint_interval_commits=10,
        codec="none",
    )
    rare = totals.filter(col("n") % 500 == 0)
    return query("sums", rare.to_stream("out"), parallelism=parallelism, settings=settings)


def copied(stream: str = "out") -> Query:
    """Rows through two stages without state: one reads a source, the other its rows."""
    rows = scan_source("rows", "key bigint not null, value bigint not null", partitions=2)
    settings = Settings(step_rows_max=10, commit_interval_ms=0, codec="none")
    shared = rows.with_column("value", col("value") + 1)
    return query(
        "copied",
        shared.filter(col("key") % 2 == 0).to_stream(stream),
        shared.filter(col("key") % 2 == 1).to_stream(f"{stream}_odd"),
        settings=settings,
    )


def numbered(rows: int) -> pa.Table:
    rng = random.Random(rows)
    made = [(rng.randrange(KEYS), number) for number in range(rows)]
    return table(made, key=pa.int64(), value=pa.int64())


FIRST = plan_program(sums()).vertices[0].name


def inner_records(lab: Laboratory) -> dict[str, int]:
    """How many records each tag has, without the streams that others may read."""
    return {each.tag: each.records for each in list_tags(lab.folder) if "/out" not in each.tag}


def run_to(process: SingleProcess, epochs: int) -> None:
    """Step to an epoch of the first vertex, at a pace at which its background keeps up."""
    while process.host.vertex(FIRST).marker.epoch < epochs:
        for _ in range(10):
            process.host.step()
        process.wait_checkpoints(WAIT_S)


@pytest.mark.slow
def test_what_is_kept_does_not_depend_on_how_long_a_query_has_run(lab: Laboratory) -> None:
    lab.trim_commits = 5
    sources = {"rows": table_source(numbered(STEP_ROWS * 200))}
    process = lab.open(sums(), sources, log_config=SEGMENTS)
    kept, segments, freed = [], [], []
    for epochs in (40, 160):
        run_to(process, epochs)
        found = summarise(lab.folder)
        kept.append(inner_records(lab))
        segments.append(found.bytes["segments"])
        freed.append(found.tail - found.records)
    process.abandon()
    early, late = kept
    assert early.keys() == late.keys()
    for tag, records in late.items():
        assert records <= early[tag] + 10, (tag, early, late)
    # What went through the exchange in between is several times this.
    assert segments[1] <= segments[0] + SEGMENTS.segment_bytes_max
    assert freed[1] > 3 * freed[0]


@pytest.mark.slow
def test_the_disk_stays_flat_under_rows_that_come_once(lab: Laboratory) -> None:
    """What is persisted of them goes when what was made of it is committed; all files counted."""
    lab.trim_commits = 5
    columns = "ad_id int not null, event_type int not null"
    events = scan_source("ysb", columns, partitions=1, replayable=False)
    views = events.filter(col("event_type") == 0).group_by("ad_id")
    totals = views.agg(count().alias("n"), mode="update")
    settings = Settings(
        step_rows_max=3_000, commit_interval_ms=0, checkpoint_interval_commits=10, codec="none"
    )
    tested = query("once", totals.to_stream("out"), settings=settings)
    program = plan_program(tested)
    first = next(v.name for v in program.vertices if program.stage_of(v).source is not None)
    (ingress,) = (each.name for each in program.streams if each.role == "internal")
    process = lab.open(program, log_config=replace(SEGMENTS, wal_bytes_max=1 << 20))
    set_retention(process.log, "out", Retention(bytes_max=100_000))
    stored, persisted = [], []
    for epochs in (80, 320):
        while process.host.vertex(first).marker.epoch < epochs:
            for _ in range(10):
                process.host.step()
            process.wait_checkpoints(WAIT_S)
        retain(process.log, "out", 0)
        stored.append(sum(each.stat().st_size for each in lab.folder.rglob("*") if each.is_file()))
        persisted.append(process.log.trimmed(f"S/{ingress}/0"))
    process.abandon()
    assert stored[1] <= 1.25 * stored[0]
    assert persisted[1] > 3 * persisted[0], "up to where all has been let go of"


def test_rows_that_stay_do_not_hold_the_space_of_those_that_go(lab: Laboratory) -> None:
    """Both are written by one process, in turn; a segment is freed as a whole."""
    lab.trim_commits = 5
    config = replace(SEGMENTS, inline_bytes_max=0)
    sources = {"rows": table_source(numbered(6_000))}
    with lab.open(copied(), sources, log_config=config) as process:
        process.run()
    with open_log(lab.folder, read_only=True) as log:
        tags = [f"S/{name}/{part}" for name in ("out", "out_odd") for part in ("0", "1", "m")]
        needed = sum(frame_bytes(r.body.nbytes) for r in log.read(tags, Position(0), 60_000))
        written = summarise(lab.folder).tail
    assert written > 1_000
    assert summarise(lab.folder).bytes["segments"] <= needed + 2 * config.segment_bytes_max


def test_the_last_rows_of_a_query_that_has_ended_are_trimmed_too(lab: Laboratory) -> None:
    sources = {"rows": table_source(numbered(2_000))}
    lab.run(sums(), sources)
    found = inner_records(lab)
    exchanged = {tag: records for tag, records in found.items() if tag.startswith("S/")}
    assert exchanged == {}
    assert found[f"T/{FIRST}"] == 1


@pytest.mark.parametrize("seed", some(range(3), every=3))
def test_after_trims_a_restart_from_anywhere_is_exactly_once(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    lab.trim_commits = rng.choice((1, 2, 3))
    rows = numbered(400)
    tested = plan_program(copied(), APART)
    lab.run_with_crashes(tested, {"rows": table_source(rows)}, rng, crashes=8, steps_max=12)
    found = Counter(
        (row["key"], row["value"]) for name in ("out", "out_odd") for row in lab.rows(name)
    )
    pairs = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    assert found == Counter((key, value + 1) for key, value in pairs)
    assert any(each.trimmed for each in list_tags(lab.folder))


def shared_stream(program: Program) -> str:
    (name,) = [stream.name for stream in program.streams if stream.role == "internal"]
    return name


def test_a_stream_waits_for_the_slowest_of_its_readers(lab: Laboratory) -> None:
    """Also for one that has not begun."""
    lab.trim_commits = 1
    program = plan_program(copied(), APART)
    stream = shared_stream(program)
    rows = numbered(200)
    sources = {"rows": table_source(rows)}
    slow = [v.name for v in program.vertices if "out_odd" in program.stage_of(v).written]
    others = tuple(v.name for v in program.vertices if v.name not in slow)
    with lab.open(program, sources, vertices=others) as process:
        process.run()
    with open_log(lab.folder, read_only=True) as log:
        held = [tag for tag in program.stream(stream).substream_tags if log.trimmed(tag)]
        assert held == []
    with lab.open(program, sources, vertices=tuple(slow)) as process:
        process.run()
    assert sorted(row["value"] for row in lab.rows("out_odd")) == sorted(
        value + 1
        for key, value in zip(*(c.to_pylist() for c in rows.columns), strict=True)
        if key % 2
    )
    assert not any(tag.startswith(f"S/{stream}/") for tag in inner_records(lab))


def test_streams_that_others_may_read_are_never_trimmed() -> None:
    program = plan_program(copied(), APART)
    inner = f"S/{shared_stream(program)}/"
    for vertex in program.vertices:
        job = trim_job(program, vertex)
        assert all(tag.startswith(inner) for tag, _ in job.inputs)
        assert all(tag in (vertex.vertex_tag, vertex.change_tag) for tag in job.own)
        source = program.stage_of(vertex).source
        assert bool(job.inputs) == (source is None)


class Interrupted(LocalLog):
    """A log whose first append goes through without an answer, and is trimmed by then."""

    meanwhile: Any = None

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        positions = super().append(entries, fence)
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act(positions)
            raise OutcomeUnknown("no answer")
        return positions


def interrupted(folder: Path) -> Interrupted:
    log = open_log(folder, create=True, config=UNSYNCED)
    log.__class__ = Interrupted
    assert isinstance(log, Interrupted)
    return log


def test_an_append_that_was_read_and_trimmed_before_it_was_repeated_went_through(
    tmp_path: Path,
) -> None:
    with interrupted(tmp_path / "log") as log:
        out = Outputs(log, Fence("v", take_over(log, "v")), punit.Codec.NONE)
        out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [1]}))
        out.add(RecordKind.DATA, "S/a/1", pa.record_batch({"x": [2]}))
        log.meanwhile = lambda positions: log.trim("S/a/0", positions[-1])
        position = out.commit(("T/v", "S/a/m"), b"marker")
        assert position == log.tail() == 3
        assert log.last("T/v").position == position  # type: ignore[union-attr]
        assert out.commit(("T/v", "S/a/m"), b"next") == 4


def test_a_zombie_whose_append_was_passed_by_and_trimmed_is_fenced(tmp_path: Path) -> None:
    with interrupted(tmp_path / "log") as log:
        out = Outputs(log, Fence("v", take_over(log, "v")), punit.Codec.NONE)
        out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [1]}))

        def take_the_vertex_over(positions: tuple[Position, ...]) -> None:
            take_over(log, "v")
            log.trim("S/a/0", positions[-1])

        log.meanwhile = take_the_vertex_over
        out.append_early()
        with pytest.raises(Fenced):
            out.settle()


def test_rows_that_somebody_else_trimmed_are_not_taken_for_written(tmp_path: Path) -> None:
    with interrupted(tmp_path / "log") as log:
        out = Outputs(log, Fence("v", take_over(log, "v")), punit.Codec.NONE)
        out.add(RecordKind.DATA, "S/a/0", pa.record_batch({"x": [1]}))
        log.meanwhile = lambda positions: log.trim("S/a/0", positions[-1])
        out.append_early()
        with pytest.raises(Trimmed):
            out.settle()


def test_a_producer_outside_keeps_few_of_its_own_markers(tmp_path: Path) -> None:
    writes = 2 * TRIM_COMMITS + 10
    with open_log(tmp_path / "log", create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", (Field("x", BIGINT, False),))
        schema = pa.schema([pa.field("x", pa.int64(), False)])
        writer = StreamWriter(log, "numbers", "p")
        for number in range(writes):
            writer.write(pa.record_batch([[number]], schema=schema), offset=number)
        assert len(log.read([vertex_tag("p")], Position(0), 10_000)) <= TRIM_COMMITS
        assert StreamWriter(log, "numbers", "p").offset == writes - 1
        rows = StreamReader(log, "numbers").read_all()
        assert rows.column("x").to_pylist() == list(range(writes))
