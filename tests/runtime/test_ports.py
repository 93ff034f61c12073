"""Stages with several ports: one order for all, a time for each, the same rows after crashes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.errors import InvalidProgram
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import BIGINT, STRING, TIMESTAMP, Field, Schema, arrow_schema
from penstock.log import open_log
from penstock.log.contract import Log
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    OperatorSpec,
    ProjectSpec,
    StatelessSpec,
    WatermarkSpec,
    WindowSpec,
)
from penstock.runtime.streams import StreamWriter, create_stream
from penstock.stages.program import (
    Port,
    Program,
    Stage,
    StageOutput,
    StreamSpec,
    connector_spec,
    cut_stage,
)
from penstock.stages.settings import Settings
from penstock.testing.clock import ManualClock
from tests.runtime.laboratory import SECOND_US, UNSYNCED, Laboratory

ROWS: Schema = (Field("n", BIGINT), Field("at", TIMESTAMP))
n, at, who = column("n", "bigint"), column("at", "timestamp"), column("who", "string")
TAKEN: Schema = (Field("who", STRING), Field("n", BIGINT), Field("at", TIMESTAMP))
COUNT = AggregateSpec(
    (("who", who),),
    WindowSpec(at, 10 * SECOND_US, 10 * SECOND_US),
    (AggregateCall("count", None, "rows"), AggregateCall("sum", n, "total")),
    is_watermarked=True,
)


def called(name: str) -> ProjectSpec:
    return ProjectSpec((("who", literal(name, "string")), ("n", n), ("at", at)))


def port(stream: str, name: str, *before: StatelessSpec) -> Port:
    return Port(None, (stream,), ROWS, (WatermarkSpec("at", 0), *before, called(name)))


def program(
    *ports: Port, operators: Sequence[OperatorSpec] = (COUNT,), late: str | None = None
) -> Program:
    settings = Settings(late_stream=late)
    schema = COUNT.schema if operators else TAKEN
    stage = Stage("met", ports, tuple(operators), (StageOutput("out", (), schema),))
    streams = [StreamSpec(name, ROWS, 1, "input") for name in stage.streams]
    streams.append(StreamSpec("out", schema, 1, "output"))
    if late is not None:
        streams.append(StreamSpec(late, TAKEN, 1, "output"))
    named = {stream.name: stream for stream in streams}
    vertices = tuple(cut_stage("q", 0, stage, named, settings, 1))
    return Program("q", settings, tuple(streams), (stage,), vertices)


def opened(lab: Laboratory, *streams: str) -> Log:
    log = open_log(lab.folder, create=True, config=UNSYNCED)
    for name in streams:
        create_stream(log, name, arrow_schema(ROWS))
    return log


def rows(*seconds: float) -> pa.RecordBatch:
    """Rows that are numbered by their second."""
    times = [round(second * SECOND_US) for second in seconds]
    return pa.record_batch(
        [pa.array([int(s) for s in seconds], pa.int64()), pa.array(times).cast(TIME)],
        schema=arrow_schema(ROWS),
    )


TIME = arrow_schema(ROWS).field("at").type


def windows(lab: Laboratory) -> list[tuple[str, int, int]]:
    """Who, from which second, and how many rows."""
    return [(r["who"], r["window"][0] // SECOND_US, r["rows"]) for r in lab.rows("out")]


def test_time_is_that_of_the_port_that_is_behind(lab: Laboratory) -> None:
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    with lab.open(program(port("left", "l"), port("right", "r"))) as process:
        right.write(rows(2))
        left.write(rows(1, 35))
        process.run_available()
        assert windows(lab) == []
        right.write(rows(12))
        process.run_available()
        assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1)]
        right.write(None, ended=True)
        process.run_available()
        assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1), ("r", 10, 1)]
        left.write(None, ended=True)
        process.run()
    assert sorted(windows(lab))[1] == ("l", 30, 1)


def test_a_port_that_has_ended_holds_no_other_back(lab: Laboratory) -> None:
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    left.write(rows(1), ended=True)
    right.write(rows(5))
    with lab.open(program(port("left", "l"), port("right", "r"))) as process:
        process.run_available()
        assert windows(lab) == []
        right.write(rows(6), ended=True)
        process.run()
    assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 2)]


def test_a_port_that_was_over_is_so_after_a_restart(lab: Laboratory) -> None:
    """Nobody says it again, and without it no time would ever come to its end."""
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    tested = program(port("left", "l"), port("right", "r"))
    left.write(rows(1), ended=True)
    right.write(rows(5))
    with lab.open(tested) as process:
        process.run_available()
    right.write(rows(25))
    with lab.open(tested) as process:
        process.run_available()
        assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1)]
    right.write(None, ended=True)
    lab.run(tested)
    assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1), ("r", 20, 1)]


def test_a_port_that_was_ahead_is_so_after_a_restart(lab: Laboratory) -> None:
    """By what its producers said, who may have no more for now."""
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    ports = (
        Port(None, ("left",), ROWS, (called("l"),)),
        Port(None, ("right",), ROWS, (called("r"),)),
    )
    right.write(rows(2), watermark_us=35 * SECOND_US)
    left.write(rows(1), watermark_us=SECOND_US)
    with lab.open(program(*ports)) as process:
        process.run_available()
    left.write(rows(12), watermark_us=12 * SECOND_US)
    with lab.open(program(*ports)) as process:
        process.run_available()
    assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1)]


def test_a_producer_may_be_called_like_a_stream_of_another_port(lab: Laboratory) -> None:
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "right"), StreamWriter(log, "right", "two")
    left.write(rows(1))
    right.write(rows(2))
    with lab.open(program(port("left", "l"), port("right", "r"))) as process:
        process.run_available()
    heard = [set(mark.producers) for mark in lab.markers("q.met.0")[-1].ports]
    assert heard == [{"right"}, {"two"}]


def test_a_stream_that_two_ports_read_goes_to_both(lab: Laboratory) -> None:
    log = opened(lab, "left")
    even = FilterSpec(call("eq", call("remainder", n, literal(2, "bigint")), literal(0, "bigint")))
    writer = StreamWriter(log, "left", "one")
    for second in range(20):
        writer.write(rows(second))
    writer.write(None, ended=True)
    lab.run(program(port("left", "all"), port("left", "even", even)))
    assert sorted(windows(lab)) == [
        ("all", 0, 10),
        ("all", 10, 10),
        ("even", 0, 5),
        ("even", 10, 5),
    ]


def test_ports_without_operators_are_one_stream_in_the_order_of_the_log(lab: Laboratory) -> None:
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    for second in range(0, 40, 2):
        left.write(rows(second))
        right.write(rows(second + 1))
    left.write(None, ended=True)
    right.write(None, ended=True)
    lab.run(program(port("left", "l"), port("right", "r"), operators=()))
    assert [row["n"] for row in lab.rows("out")] == list(range(40))
    assert [row["who"] for row in lab.rows("out")] == ["l", "r"] * 20


@pytest.mark.parametrize("seed", range(6))
def test_ports_lose_and_double_nothing_through_crashes(lab: Laboratory, seed: int) -> None:
    rng = random.Random(seed)
    log = opened(lab, "left", "right")
    writers = [StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")]
    wanted: Counter[tuple[str, int]] = Counter()
    for second in range(60):
        side = rng.randrange(2)
        times = [second + part / 10 for part in range(rng.randint(1, 5))]
        writers[side].write(rows(*times))
        wanted["lr"[side], second // 10 * 10] += len(times)
    for writer in writers:
        writer.write(None, ended=True)
    tested = program(port("left", "l"), port("right", "r"), late="late")
    lab.run_with_crashes(tested, {}, rng, crashes=6, steps_max=12)
    found = Counter({(who, start): count for who, start, count in windows(lab)})
    late = Counter((row["who"], row["at"] // SECOND_US // 10 * 10) for row in lab.rows("late"))
    assert len(found) == len(windows(lab))
    assert found + late == wanted


def test_what_does_not_fit_together_is_refused() -> None:
    source = Port(connector_spec("rate"), (), ROWS, (WatermarkSpec("at", 0), called("s")))
    cases: list[tuple[tuple[Port, ...], str]] = [
        ((), "has 0 ports"),
        ((port("left", "l"), source), "their order is not the log's"),
        ((port("left", "l"), Port(None, ("right",), ROWS)), "differ and are taken alike"),
    ]
    for ports, reason in cases:
        with pytest.raises(InvalidProgram, match=reason):
            program(*ports)
    with pytest.raises(InvalidProgram, match="belongs to a port"):
        program(port("left", "l"), operators=(called("again"), COUNT))
    with pytest.raises(InvalidProgram, match="with state stands in a port"):
        Port(None, ("left",), TAKEN, (COUNT,))  # type: ignore[arg-type]


def test_a_port_that_is_silent_for_too_long_is_not_waited_for(lab: Laboratory) -> None:
    log = opened(lab, "left", "right")
    left, right = StreamWriter(log, "left", "one"), StreamWriter(log, "right", "two")
    tested = program(port("left", "l"), port("right", "r"))
    tested = replace(tested, settings=replace(tested.settings, idle_timeout_ms=40))
    clock = ManualClock()
    with lab.open(tested, clock=clock) as process:
        right.write(rows(1))
        left.write(rows(2, 35))
        process.run_available()
        assert windows(lab) == []
        for _ in range(1_000):
            clock.advance(0.1)
            process.host.step()
        assert sorted(windows(lab)) == [("l", 0, 1), ("r", 0, 1)]


def test_columns_that_one_port_leaves_null_are_not_promised() -> None:
    never = tuple(replace(field, nullable=False) for field in ROWS)
    sure, open_ = Port(None, ("left",), never), Port(None, ("right",), ROWS)
    with pytest.raises(InvalidProgram, match="the chain gives"):
        Stage("met", (sure, open_), (), (StageOutput("out", (), never),))
    assert Stage("met", (sure, open_), (), (StageOutput("out", (), ROWS),))
