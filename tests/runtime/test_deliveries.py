"""What markers released: a step takes a part of it, a commit stands only after all of one's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from penstock.expressions.types import schema_from_arrow
from penstock.log import open_log
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.inputs import TOGETHER_ROWS_MAX, PortColumns, StreamInput
from penstock.runtime.markers import Marker
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.runtime.vertex import VertexState
from penstock.stages.settings import Settings
from penstock.state.snapshot import COPY_ROWS_MAX
from penstock.testing.clock import ManualClock
from penstock.testing.plans import count, query, scan_source, scan_stream
from penstock.testing.single_process import SingleProcess
from tests.connectors.arrow_source import ArrowSource
from tests.runtime.laboratory import UNSYNCED, Laboratory

NUMBERS = pa.schema([pa.field("v", pa.int64(), nullable=False)])


def counts(step_rows: int) -> Query:
    rows = scan_stream("numbers", "v bigint not null").group_by("v")
    settings = Settings(step_rows_max=step_rows, commit_interval_ms=0)
    return query(
        "counts", rows.agg(count().alias("n"), mode="update").to_stream("out"), settings=settings
    )


def publish(lab: Laboratory, *writes: list[int]) -> None:
    """Each write is one marker, however many records it takes."""
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", schema_from_arrow(NUMBERS))
        writer = StreamWriter(log, "numbers", "test")
        for values in writes:
            writer.write(pa.record_batch([pa.array(values, pa.int64())], NUMBERS))
        writer.write(None, ended=True)


def found(lab: Laboratory) -> dict[int, int]:
    return {row["v"]: row["n"] for row in lab.rows("out")}


def test_a_step_takes_no_more_rows_of_a_large_delivery_than_it_may(lab: Laboratory) -> None:
    values = [n % 7 for n in range(95)]
    publish(lab, values, [7] * 3)
    process = lab.open(counts(10), clock=ManualClock())
    (vertex,) = process.statistics().vertices
    seen, commits = 0, []
    while process.host.vertex(vertex).state is VertexState.RUNNING:
        process.host.step()
        facts = process.host.vertex(vertex).statistics()
        assert facts.rows_in - seen <= 10
        seen = facts.rows_in
        commits.append((seen, facts.commits))
    process.close()
    assert seen == 98
    assert all(n == 0 for rows, n in commits if rows < 95)  # no marker within the delivery
    assert found(lab) == Counter([*values, 7, 7, 7])


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_who_is_lost_within_a_delivery_has_done_none_of_it(lab: Laboratory, steps: int) -> None:
    values = [n % 7 for n in range(95)]
    publish(lab, values)
    process = lab.open(counts(10))
    for _ in range(steps):
        process.host.step()
    process.close()  # it commits what it may, and within the delivery that is nothing
    assert found(lab) == {}
    lab.run(counts(10))
    assert found(lab) == Counter(values)
    assert all(row["n"] == values.count(row["v"]) for row in lab.rows("out"))


def test_what_waits_by_then_is_taken_as_few_batches(lab: Laboratory) -> None:
    writes = [[n, n + 1, n + 2] for n in range(40)]
    publish(lab, *writes)
    process = lab.open(counts(100), clock=ManualClock())
    (vertex,) = process.statistics().vertices
    taken = process.host.vertex(vertex)._parts.input.take(100)
    assert taken is not None
    assert (taken.is_whole, taken.rows) == (False, 100)
    (piece,) = taken.batches
    assert piece.batch.column(0).to_pylist() == [v for values in writes for v in values][:100]
    assert len(piece.origins) == 34
    part = piece.part_of(50)
    assert part.batch.column(0).to_pylist() == writes[16]
    assert part.origins == (piece.origins[16],)
    process.abandon()
    lab.run(counts(100))
    assert found(lab) == Counter(v for values in writes for v in values)


@pytest.mark.parametrize("in_order", [True, False])
def test_rows_of_ports_come_in_the_logs_order_where_that_decides(
    lab: Laboratory, in_order: bool
) -> None:
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        names = ("one", "other")
        for name in names:
            create_stream(log, name, schema_from_arrow(NUMBERS))
        writers = [StreamWriter(log, name, f"of_{name}") for name in names]
        for value, port in enumerate((0, 0, 1, 0, 1, 1)):
            writers[port].write(pa.record_batch([pa.array([value], pa.int64())], NUMBERS))
        tags = [tag for name in names for tag in (f"S/{name}/0", f"S/{name}/m")]
        ports = [PortColumns(frozenset({name}), NUMBERS) for name in names]
        start = Marker("q.reader.0", 1, epoch=0)
        delivery = StreamInput(log, tuple(tags), ports, start, in_order).take(100)
    assert delivery is not None
    assert delivery.is_whole
    found = [(piece.port, piece.batch.column(0).to_pylist()) for piece in delivery.batches]
    by_port = [(0, [0, 1, 3]), (1, [2, 4, 5])]
    assert found == ([(0, [0, 1]), (1, [2]), (0, [3]), (1, [4, 5])] if in_order else by_port)
    assert [word.port for word in delivery.words] == [0, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("as_one", [True, False])
def test_a_delivery_is_one_batch_where_each_costs_a_call_for_every_key(
    lab: Laboratory, as_one: bool
) -> None:
    rows = TOGETHER_ROWS_MAX // 2 + 1
    with open_log(lab.folder, create=True, config=UNSYNCED) as log:
        create_stream(log, "numbers", schema_from_arrow(NUMBERS))
        writer = StreamWriter(log, "numbers", "someone")
        for value in range(3):
            writer.write(pa.record_batch([pa.array(np.full(rows, value))], NUMBERS))
        ports = [PortColumns(frozenset({"numbers"}), NUMBERS)]
        tags = ("S/numbers/0", "S/numbers/m")
        read = StreamInput(log, tags, ports, Marker("q.reader.0", 1, epoch=0), as_one=as_one)
        delivery = read.take(3 * rows)
    assert delivery is not None
    assert [piece.batch.num_rows for piece in delivery.batches] == (
        [3 * rows] if as_one else [rows] * 3
    )


def test_a_checkpoint_is_due_by_time_also_when_nothing_comes(lab: Laboratory) -> None:
    clock = ManualClock()
    totals = (
        scan_source("rows", "v bigint not null", 1)
        .group_by("v")
        .agg(count().alias("n"), mode="update")
    )
    settings = Settings(commit_interval_ms=0, checkpoint_interval_ms=10_000)
    tested = plan_program(query("totals", totals.to_stream("out"), settings=settings))
    (vertex,) = (each.name for each in tested.vertices)
    source = ArrowSource([], NUMBERS, growing=True)

    def checkpoints(process: SingleProcess, after_s: float) -> int:
        clock.advance(after_s)
        for _ in range(2):  # one that commits, and the next one, which begins a picture of that
            process.host.step()
        process.wait_checkpoints(60)
        return process.host.vertex(vertex).statistics().checkpoints

    process = lab.open(tested, {"rows": lambda _: source}, clock=clock)
    assert checkpoints(process, 20.0) == 0  # there is nothing to show yet
    source.append(pa.record_batch([pa.array([1, 2, 3])], NUMBERS))
    assert checkpoints(process, 0.0) == 1
    source.append(pa.record_batch([pa.array([4])], NUMBERS))
    assert [checkpoints(process, 4.0) for _ in range(4)] == [1, 1, 2, 2]
    assert checkpoints(process, 100.0) == 2  # nothing has changed since
    source.append(pa.record_batch([pa.array([5])], NUMBERS))
    process.host.step()
    process.abandon()
    process = lab.open(tested, {"rows": lambda _: source}, clock=clock)
    assert [checkpoints(process, 4.0) for _ in range(3)] == [0, 0, 1]  # of what was replayed
    process.abandon()


def test_commits_made_while_the_state_is_copied_count_for_the_next_checkpoint(
    lab: Laboratory,
) -> None:
    clock = ManualClock()
    totals = (
        scan_source("rows", "v bigint not null", 1)
        .group_by("v")
        .agg(count().alias("n"), mode="update")
    )
    settings = Settings(commit_interval_ms=0, checkpoint_interval_ms=10_000)
    tested = plan_program(query("totals", totals.to_stream("out"), settings=settings))
    keys = COPY_ROWS_MAX + 1  # copied in two pieces
    source = ArrowSource([], NUMBERS, growing=True)
    process = lab.open(tested, {"rows": lambda _: source}, clock=clock)
    vertex = process.host.vertex(tested.vertices[0].name)
    source.append(pa.record_batch([pa.array(range(keys))], NUMBERS))
    while vertex.statistics().rows_in < keys:
        process.host.step()
    clock.advance(10.0)
    process.host.step()
    assert vertex.is_copying
    source.append(pa.record_batch([pa.array([1])], NUMBERS))
    while vertex.is_copying:
        process.host.step()
    process.wait_checkpoints(60)
    process.host.step()  # asks, and gets nothing
    assert vertex.is_drained()
    for _ in range(4):  # nothing comes any more
        clock.advance(10.0)
        process.host.step()
        process.wait_checkpoints(60)
    assert vertex.statistics().checkpoints == 2
    process.abandon()
