"""Names that people give, names that the engine makes, and that neither can be the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import InvalidName
from penstock.expressions.types import BIGINT, Field
from penstock.log.contract import instance_key
from penstock.names import check_any_name, check_name, check_own_name, check_path, own_name
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream, describe_stream
from penstock.stages.program import Program, sink_stream, vertex_name
from penstock.testing.memory_log import MemoryLog

SCHEMA = (Field("x", BIGINT, False),)
GIVEN = ["a", "A_9", "0", "_", "x" * 64]
MADE = ["q.out", "q.s0.0", "q.exchange.12", "0123abcd.write.7", f"{'x' * 64}.s0.4095"]
NEITHER = ["", "a b", "a/b", "a-b", ".", "..", ".a", "a.", "a..b", "a.b.c.d", "x" * 65, "é", "a\n"]


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_name_is_never_a_made_one(name: str) -> None:
    assert check_name(name) == check_any_name(name) == name
    with pytest.raises(InvalidName):
        check_own_name(name)


@pytest.mark.parametrize("name", MADE)
def test_a_made_name_is_never_a_given_one(name: str) -> None:
    assert check_own_name(name) == check_any_name(name) == name
    assert check_path(f"S/{name}/0") == f"S/{name}/0"
    with pytest.raises(InvalidName, match="names with dots are those that Penstock makes itself"):
        check_name(name)


@pytest.mark.parametrize("name", NEITHER)
@pytest.mark.parametrize("check", [check_name, check_own_name, check_any_name, check_path])
def test_anything_else_is_neither(name: str, check: Callable[[str], str]) -> None:
    if check is check_path and name == "a/b":
        return
    with pytest.raises(InvalidName, match=r"use .*1 to 64 of the characters A-Z a-z 0-9 _"):
        check(name)


def test_what_the_engine_makes_is_told_apart_by_owner_kind_and_number() -> None:
    names = [
        own_name(owner, kind, number)
        for owner in ("q", "q_s0", "s0", "q_exchange")
        for kind in ("s0", "s1", "exchange", "write")
        for number in (None, 0, 1, 10)
    ]
    assert len(set(names)) == len(names)
    assert vertex_name("q", "s0", 1) == "q.s0.1"
    assert instance_key(vertex_name("q", "s0", 1)) == "instance/q.s0.1"


def test_nobody_creates_or_writes_a_stream_of_the_engine() -> None:
    log = MemoryLog()
    create_stream(log, "b_out", SCHEMA)  # was one of the engine's once: now it is anybody's
    with pytest.raises(InvalidName, match="names with dots"):
        create_stream(log, sink_stream("b"), SCHEMA)
    assert log.keys("stream") == ["stream/b_out"]
    log.put(f"stream/{sink_stream('b')}", log.get("stream/b_out").value)  # type: ignore[union-attr]
    with pytest.raises(InvalidName, match="names with dots"):
        StreamWriter(log, sink_stream("b"), "mine")
    assert log.keys("instance") == []
    assert describe_stream(log, "b.out").name == "b.out"
    assert StreamReader(log, "b.out").read_all().num_rows == 0  # looking is allowed


@pytest.mark.parametrize("producer", [vertex_name("c", "s0", 0), own_name("0123", "write", 0)])
def test_a_producer_cannot_take_the_place_of_a_vertex_or_of_a_write(producer: str) -> None:
    log = MemoryLog()
    create_stream(log, "rows", SCHEMA)
    with pytest.raises(InvalidName, match="names with dots"):
        StreamWriter(log, "rows", producer)
    assert log.keys("instance") == []


def test_no_stage_is_named_like_another_kind_of_producer(small_program: Program) -> None:
    text = small_program.to_json()
    (stage,) = (each.name for each in small_program.stages)
    for kind in ("write", "sink"):
        with pytest.raises(Exception, match=f"no stage may be called {kind}"):
            Program.from_json(text.replace(f'"name":"{stage}"', f'"name":"{kind}"'))


@pytest.fixture
def small_program() -> Program:
    from penstock.plan.optimizer import plan_program  # noqa: PLC0415
    from penstock.testing.plans import query, scan_stream  # noqa: PLC0415

    return plan_program(query("q", scan_stream("a", "x bigint").to_stream("b")))
