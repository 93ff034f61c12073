"""Recovery: fences, checkpoints whole and damaged, bounded replay, and no stall for a large one."""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ChangeLogBroken, Fenced
from penstock.log import open_log
from penstock.log.contract import Log
from penstock.log.record import Position
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime import recovery
from penstock.runtime.checkpointing import write_checkpoint
from penstock.runtime.instances import COUNTER_BITS
from penstock.runtime.recovery import restore_states
from penstock.runtime.slot import CHECKPOINTS_FOLDER
from penstock.runtime.trimming import TrimJob
from penstock.runtime.vertex import CheckpointJob, VertexState
from penstock.stages.settings import Settings
from penstock.stages.tags import change_tag, marker_tag, vertex_tag
from penstock.state.checkpoints import MANIFEST, CheckpointId, CheckpointStore
from penstock.state.keyed import KeyedState
from penstock.state.snapshot import COPY_ROWS_MAX
from penstock.testing.columns import col
from penstock.testing.plans import count, query, scan_source, sum_, window
from penstock.testing.single_process import SingleProcess
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory, table, table_source

WAIT_S = 30.0


def sums(step_rows: int = 10, interval: int = 3) -> Query:
    rows = scan_source("rows", "key bigint not null, value bigint not null", partitions=1)
    totals = rows.group_by("key").agg(sum_("value").alias("s"), count().alias("n"), mode="update")
    settings = Settings(
        step_rows_max=step_rows, commit_interval_ms=0, checkpoint_interval_commits=interval
    )
    return query("sums", totals.to_stream("out"), settings=settings)


VERTEX = plan_program(sums()).vertices[0].name


def numbered(rows: int, keys: int) -> pa.Table:
    rng = random.Random(rows)
    made = [(rng.randrange(keys), rng.randrange(1000)) for _ in range(rows)]
    return table(made, key=pa.int64(), value=pa.int64())


def expected(rows: pa.Table) -> dict[int, tuple[int, int]]:
    total: Counter[int] = Counter()
    n: Counter[int] = Counter()
    for key, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        total[key] += value
        n[key] += 1
    return {key: (total[key], n[key]) for key in n}


def found(lab: Laboratory) -> dict[int, tuple[int, int]]:
    return {row["key"]: (row["s"], row["n"]) for row in lab.rows("out")}


def step(process: SingleProcess, steps: int) -> None:
    for _ in range(steps):
        process.host.step()
        process.wait_checkpoints(WAIT_S)


def store(lab: Laboratory) -> CheckpointStore:
    return CheckpointStore(lab.folder / CHECKPOINTS_FOLDER)


def tips(lab: Laboratory) -> list[CheckpointId]:
    """The checkpoints that no other one stands on, oldest first."""
    files = store(lab)
    listed = files.list(VERTEX)
    inner = {link.since for each in listed for link in files.chain(each)}
    return [each for each in listed if each not in inner]


def unit_files(lab: Laboratory) -> list[Path]:
    """The files of the checkpoints, oldest first."""
    folder = lab.folder / CHECKPOINTS_FOLDER / VERTEX
    return sorted(path for path in folder.glob("*/*") if path.name != MANIFEST)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_damaged_checkpoint_costs_a_longer_replay_and_is_reported(
    lab: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    rows = numbered(200, 30)
    sources = {"rows": table_source(rows)}
    process = lab.open(sums(), sources)
    step(process, 11)
    process.abandon()
    assert len(tips(lab)) == 2
    flip(unit_files(lab)[-1])
    with caplog.at_level(logging.WARNING, "penstock.runtime.recovery"):
        lab.run(sums(), sources)
    (warning,) = [record for record in caplog.records if "falling back" in record.getMessage()]
    assert VERTEX in warning.getMessage()
    assert found(lab) == expected(rows)


def test_what_was_emitted_needs_no_checkpoint_any_more(
    lab: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that others outrun: their windows are closed, and a state begins with the next ones."""
    rows = table(
        [(int(at % 25 < 8), at * SECOND_US) for at in range(150)],
        kind=pa.int64(), ts=TIMESTAMP,
    )  # fmt: skip
    events = scan_source("rows", "kind bigint not null, ts timestamp not null", partitions=1)
    kept = events.with_watermark("ts", "0 seconds").filter(col("kind") == 1)
    counted = kept.group_by(window=window("ts", "5 seconds")).agg(count().alias("n"))
    settings = Settings(step_rows_max=5, commit_interval_ms=0, checkpoint_interval_commits=3)
    tested = query("rare", counted.to_stream("out"), settings=settings)
    sources = {"rows": table_source(rows)}
    process = lab.open(tested, sources)
    (vertex,) = process.statistics().vertices
    settled = 0
    with caplog.at_level(logging.WARNING, "penstock.runtime.recovery"):
        for _ in range(25):
            step(process, 1)
            listed = store(lab).list(vertex)
            if listed and process.host.vertex(vertex).marker.state_from > listed[-1].position:
                settled += 1
                process.abandon()
                for path in (lab.folder / CHECKPOINTS_FOLDER / vertex).glob(f"*/{MANIFEST}"):
                    flip(path)
                process = lab.open(tested, sources)
    assert settled > 2
    assert not caplog.records, "no damaged file was looked at"
    process.abandon()
    lab.run(tested, sources)
    wanted = Counter(at // 5 for at in range(150) if at % 25 < 8)
    found = {row["window"][0] // SECOND_US // 5: row["n"] for row in lab.rows("out")}
    assert found == dict(wanted)


class Slow:
    """Takes the place of a checkpointer, and keeps the pictures it is given."""

    def __init__(self) -> None:
        self.jobs: list[CheckpointJob] = []

    def submit(self, job: CheckpointJob | TrimJob) -> bool:
        if isinstance(job, CheckpointJob):
            self.jobs.append(job)
        return True

    def needs_picture(self, vertex: str) -> bool:
        return False


def test_a_zombies_checkpoint_takes_nothing_from_a_recovery_under_way(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint is damaged, so the recovery needs the changes since the older one."""
    rows = numbered(300, 30)
    sources = {"rows": table_source(rows)}
    zombie = lab.open(sums(), sources)
    step(zombie, 8)
    vertex = zombie.host.vertex(VERTEX)
    slow = Slow()
    vertex._parts = replace(vertex._parts, checkpointer=slow)
    while not slow.jobs:
        zombie.host.step()
    older, newer = tips(lab)
    flip(unit_files(lab)[-1])
    refused = []

    def replay(*args: Any) -> int:
        with pytest.raises(Fenced):
            write_checkpoint(slow.jobs[0], store(lab), zombie.log)
        refused.append(slow.jobs[0].position)
        return replay_changes(*args)

    replay_changes = recovery._replay_changes
    monkeypatch.setattr(recovery, "_replay_changes", replay)
    process = lab.open(sums(), sources)
    monkeypatch.undo()
    assert refused
    assert process.log.trimmed(change_tag(VERTEX)) == older.position
    # The damaged one counts no longer; the zombie's picture is a true one, and may serve.
    assert [c.position for c in store(lab).list(VERTEX)] == [older.position, refused[0]]
    zombie.abandon()
    process.run()
    process.close()
    assert found(lab) == expected(rows)
    assert newer not in store(lab).list(VERTEX)


def test_what_reads_a_state_without_owning_it_begins_again_if_the_changes_go(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner writes checkpoints and trims while somebody looks at its state."""
    rows = numbered(300, 30)
    owner = lab.open(sums(), {"rows": table_source(rows)})
    step(owner, 8)
    state = owner.host.vertex(VERTEX)._parts.chain.states["aggregate0"]
    upto = owner.log.last(vertex_tag(VERTEX)).position
    looked = KeyedState("aggregate0", state.schema)
    as_of_marker = state.scan().to_pylist()
    tries = []

    def replay(log: Log, tag: str, *rest: Any) -> int:
        if not tries:
            log.trim(tag, upto)  # as if two checkpoints at this marker had come by
        tries.append(rest[0])
        return replay_changes(log, tag, *rest)

    replay_changes = recovery._replay_changes
    monkeypatch.setattr(recovery, "_replay_changes", replay)
    with pytest.raises(ChangeLogBroken):
        restore(lab, owner, upto, looked)
    assert len(tries) == 2  # it looked once more, and there was no younger checkpoint
    owner.host.vertex(VERTEX)._begin_picture(upto)
    step(owner, 1)
    restore(lab, owner, upto, looked)
    assert looked.scan().to_pylist() == as_of_marker
    owner.abandon()


def test_who_was_overtaken_in_its_recovery_is_fenced_not_broken(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbered(300, 30)
    sources = {"rows": table_source(rows)}
    first = lab.open(sums(), sources)
    step(first, 8)
    first.abandon()

    def overtaken(*args: Any) -> int:
        monkeypatch.undo()
        with lab.open(sums(), sources) as newer:
            newer.run()
            newer.wait_checkpoints(WAIT_S)
        return replay_changes(*args)

    replay_changes = recovery._replay_changes
    monkeypatch.setattr(recovery, "_replay_changes", overtaken)
    process = lab.open(sums(), sources)
    process.host.step()  # where the trim came too late to be met, the first commit is refused
    assert process.statistics().dropped == (VERTEX,)
    process.close()
    assert found(lab) == expected(rows)


def test_a_checkpoint_of_a_lost_timeline_is_passed_over(
    lab: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut takes the end of the log and leaves a checkpoint; positions are used again."""
    rows = numbered(600, 30)
    sources = {"rows": table_source(rows)}
    process = lab.open(sums(step_rows=50, interval=5), sources)
    step(process, 2)
    (lab.folder / "keep").mkdir()
    for name in ("index.db", "index.db-wal", "bell"):
        shutil.copy(lab.folder / name, lab.folder / "keep" / name)
    step(process, 4)
    (lost,) = store(lab).list(VERTEX)
    process.abandon()
    (lab.folder / "index.db-shm").unlink(missing_ok=True)
    for name in ("index.db", "index.db-wal", "bell"):
        shutil.move(lab.folder / "keep" / name, lab.folder / name)

    process = lab.open(sums(step_rows=7, interval=1000), sources)
    while process.log.tail() < lost.position + 3:
        process.host.step()
    process.abandon()
    assert store(lab).list(VERTEX) == [lost]
    with caplog.at_level(logging.WARNING, "penstock.runtime.recovery"):
        process = lab.open(sums(), sources)
    assert any("not in this log" in record.getMessage() for record in caplog.records)
    assert store(lab).list(VERTEX) == []  # it does not count as one of the two that are kept
    process.run()
    process.close()
    assert found(lab) == expected(rows)


def test_a_checkpoint_from_beyond_the_end_of_the_log_does_not_count(lab: Laboratory) -> None:
    rows = numbered(300, 30)
    process = lab.open(sums(), {"rows": table_source(rows)})
    step(process, 5)
    beyond = store(lab).write(VERTEX, 1 << 40, {"aggregate0": []}, {"marker": "of another log"})
    step(process, 4)
    whole = store(lab).list(VERTEX)
    assert beyond not in whole
    assert len(tips(lab)) == 2
    assert process.log.trimmed(change_tag(VERTEX)) == tips(lab)[0].position
    process.abandon()


def test_the_first_checkpoint_alone_takes_no_change_away(lab: Laboratory) -> None:
    rows = numbered(300, 30)
    sources = {"rows": table_source(rows)}
    process = lab.open(sums(), sources)
    step(process, 4)
    process.abandon()
    assert len(store(lab).list(VERTEX)) == 1
    flip(unit_files(lab)[0])
    lab.run(sums(), sources)
    assert found(lab) == expected(rows)


def restore(lab: Laboratory, owner: SingleProcess, upto: Position, looked: KeyedState) -> None:
    restore_states(owner.log, store(lab), VERTEX, change_tag(VERTEX), upto, {"aggregate0": looked})


def test_with_every_checkpoint_damaged_and_the_changes_trimmed_the_vertex_stops(
    lab: Laboratory,
) -> None:
    rows = numbered(200, 30)
    sources = {"rows": table_source(rows)}
    process = lab.open(sums(), sources)
    step(process, 11)
    process.abandon()
    committed = lab.rows("out")
    intact = [(path, path.read_bytes()) for path in unit_files(lab)]
    for path, _ in intact:
        flip(path)
    with pytest.raises(ChangeLogBroken, match=VERTEX) as caught:
        lab.open(sums(), sources)
    assert caught.value.details["kept_from"] > 0
    assert lab.rows("out") == committed
    for path, content in intact:  # the advice of the message: restore the folder
        path.write_bytes(content)
    lab.run(sums(), sources)
    assert found(lab) == expected(rows)


def test_without_any_checkpoint_yet_the_change_log_alone_restores_the_state(
    lab: Laboratory,
) -> None:
    rows = numbered(200, 30)
    sources = {"rows": table_source(rows)}
    process = lab.open(sums(interval=1000), sources)
    step(process, 12)
    process.abandon()
    assert store(lab).list(VERTEX) == []
    lab.run(sums(interval=1000), sources)
    assert found(lab) == expected(rows)


def commits_after_newest_checkpoint(lab: Laboratory) -> int:
    newest = store(lab).list(VERTEX)
    position = newest[-1].position if newest else 0
    return sum(record.position > position for record in lab.records(vertex_tag(VERTEX)))


@pytest.mark.parametrize("steps_per_life", [2, 4, 7, 40])
def test_recovery_replays_at_most_one_checkpoint_interval(
    lab: Laboratory, steps_per_life: int
) -> None:
    """Also if no life is long enough to come to a checkpoint by itself."""
    interval = 5
    rows = numbered(400, 30)
    sources = {"rows": table_source(rows)}
    for _ in range(40 // steps_per_life):
        process = lab.open(sums(interval=interval), sources)
        step(process, steps_per_life)
        process.abandon()
        assert commits_after_newest_checkpoint(lab) <= interval
        # Two checkpoints are kept, so that a damaged one costs no more than another interval.
        assert len(tips(lab)) <= 2
        assert len(lab.records(change_tag(VERTEX))) <= 2 * (2 * interval)
    lab.run(sums(interval=interval), sources)
    assert found(lab) == expected(rows)


def test_a_large_state_is_copied_in_bounded_pieces_while_the_vertex_goes_on(
    lab: Laboratory,
) -> None:
    keys = 200_000
    rows = table([(i % keys, 1) for i in range(keys + 50_000)], key=pa.int64(), value=pa.int64())
    sources = {"rows": table_source(rows)}
    tested = sums(step_rows=5_000, interval=40)
    process = lab.open(tested, sources)
    vertex = process.host.vertex(VERTEX)
    while not vertex.is_copying:  # the 40th commit is the one with the last new key
        process.host.step()
    before = vertex.statistics()
    assert before.rows_in == keys + 5_000  # of the step that begins it, before it takes more
    steps = 0
    while vertex.is_copying:
        process.host.step()
        steps += 1
    after = vertex.statistics()
    # The first piece was copied in the step that began it, each further one in a step of its own.
    assert steps + 1 == -(-keys // COPY_ROWS_MAX)
    assert after.rows_in - before.rows_in == 5_000 * steps
    assert after.commits - before.commits == steps
    assert process.wait_checkpoints(WAIT_S).written == 1
    process.abandon()
    # The picture is that of the marker it is named after, not of what came while it was taken.
    (checkpoint,) = store(lab).list(VERTEX)
    states = store(lab).load(checkpoint).states
    counts = [n for batch in states["aggregate0"] for n in batch.column("a1").to_pylist()]
    assert counts == [1] * keys
    lab.run(tested, sources)
    assert found(lab) == expected(rows)


def test_the_older_of_two_hosts_is_fenced_and_the_output_is_exactly_once(lab: Laboratory) -> None:
    rows = numbered(300, 20)
    sources = {"rows": table_source(rows)}
    older = lab.open(sums(), sources)
    step(older, 4)
    newer = lab.open(sums(), sources)
    step(newer, 2)
    assert older.host.step()
    assert older.statistics().dropped == (VERTEX,)
    assert older.host.is_empty()
    older.run()  # nothing is left to do, and it says so by returning
    newest = lab.open(sums(), sources)
    with pytest.raises(Fenced):
        newer.host.vertex(VERTEX).step()
    assert newer.host.vertex(VERTEX).state is VertexState.FENCED
    newest.run()
    newest.close()
    newer.close()  # a fenced vertex has nothing to commit
    older.close()
    assert found(lab) == expected(rows)
    counts = Counter(row["key"] for row in lab.rows("out"))
    for key in counts:  # no update twice, none after a later one
        seen = [row["n"] for row in lab.rows("out") if row["key"] == key]
        assert seen == sorted(set(seen))
    runs = {record.instance >> COUNTER_BITS for record in lab.records(marker_tag("out"))}
    assert runs == {1, 2, 3}


def test_closing_commits_what_was_done_and_a_second_run_has_nothing_to_do(lab: Laboratory) -> None:
    rows = numbered(100, 5)
    sources = {"rows": table_source(rows)}
    lazy = sums()
    settings = Settings(step_rows_max=10, commit_interval_ms=3_600_000)
    lazy = Query(lazy.name, lazy.writes, lazy.parallelism, settings)
    with lab.open(lazy, sources) as process:
        process.host.step()
        process.host.step()
        assert lab.rows("out") == []
    assert sum(n for _, n in found(lab).values()) == 20
    lab.run(lazy, sources)
    assert found(lab) == expected(rows)
    written = len(lab.rows("out"))
    with lab.open(lazy, sources) as process:
        process.run()
        assert process.statistics().vertices[VERTEX].state is VertexState.ENDED
    assert len(lab.rows("out")) == written


def test_the_log_holds_no_trace_of_a_vertex_that_could_not_start(lab: Laboratory) -> None:
    with open_log(lab.folder, create=True) as log:
        before = log.tail()
    with pytest.raises(KeyError):
        lab.open(sums(), {"rows": lambda _: {}["no such table"]})
    with open_log(lab.folder) as log:
        assert log.tail() == before
