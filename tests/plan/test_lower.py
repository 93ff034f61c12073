"""Plans become programs: inputs, chains, streams, key ranges and tags."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from penstock.errors import PlanError, UnsupportedPlan
from penstock.operators.specs import AggregateSpec, FilterSpec, PartialAggregateSpec, WatermarkSpec
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Write
from penstock.stages.key_ranges import KEY_SPACE
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.plans import Draft, col, count, query, scan_source, scan_stream, window

BIDS = scan_stream("bids", "auction bigint, price bigint not null, ts timestamp")


def hot(rows: Draft = BIDS) -> Draft:
    grouped = rows.with_watermark("ts", "1 second").group_by("auction", window=window("ts", 10, 2))
    return grouped.agg(count().alias("n"))


def test_one_vertex_runs_everything_in_one_stage() -> None:
    program = plan_program(query("q", hot(BIDS.filter(col("price") > 3)).to_stream("out")))
    (stage,) = program.stages
    assert [type(spec) for spec in stage.specs] == [FilterSpec, WatermarkSpec, AggregateSpec]
    (vertex,) = program.vertices
    assert vertex.name == f"q.{stage.name}.0"
    assert re.fullmatch("windows_by_auction_[0-9a-f]{8}", stage.name)
    assert vertex.key_range == (0, KEY_SPACE)
    assert vertex.input_tags == ("S/bids/0", "S/bids/m")
    assert vertex.output_tags == (("S/out/0",),)
    assert vertex.marker_tags == (f"T/{vertex.name}", f"C/{vertex.name}", "S/out/m")
    assert [(s.name, s.role, s.substreams) for s in program.streams] == [
        ("bids", "input", 1), ("out", "output", 1),
    ]  # fmt: skip


def test_keys_are_dealt_out_to_vertices() -> None:
    program = plan_program(query("q", hot().to_stream("out"), parallelism=3))
    first, second = program.stages
    assert isinstance(first.specs[-1], PartialAggregateSpec)
    assert first.outputs[0].partition_by == ("auction",)
    (merge,) = second.stateful
    assert merge.merge_partials
    ranges = [vertex.key_range for vertex in program.stage_vertices(1)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == KEY_SPACE
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    writer = program.stage_vertices(0)[0]
    inner = first.outputs[0].stream
    assert re.fullmatch("q.by_auction_[0-9a-f]{8}", inner)
    assert writer.written_tags == tuple(f"S/{inner}/{index}" for index in range(3))
    for index, vertex in enumerate(program.stage_vertices(1)):
        assert vertex.input_tags == (f"S/{inner}/{index}", f"S/{inner}/m")
        assert vertex.written_tags == (f"S/out/{index}",)


def test_substreams_are_dealt_out_in_turn() -> None:
    rows = scan_stream("wide", "x bigint", substreams=5)
    program = plan_program(query("q", rows.to_stream("out"), parallelism=2))
    assert [vertex.input_tags for vertex in program.vertices] == [
        ("S/wide/0", "S/wide/2", "S/wide/4", "S/wide/m"),
        ("S/wide/1", "S/wide/3", "S/wide/m"),
    ]


def test_fewer_substreams_than_vertices_in_one_of_two_streams() -> None:
    rows = scan_stream("wide", "x bigint", 2).union(scan_stream("thin", "x bigint"))
    program = plan_program(query("q", rows.to_stream("out"), parallelism=2))
    assert [vertex.input_tags for vertex in program.vertices] == [
        ("S/wide/0", "S/wide/m", "S/thin/0", "S/thin/m"),
        ("S/wide/1", "S/wide/m", "S/thin/m"),
    ]


def test_a_source_is_read_in_parts_and_only_its_used_columns() -> None:
    rows = scan_source("nexmark", "auction bigint, price bigint, extra string", None, seed=7)
    program = plan_program(query("q", rows.select("price").to_stream("out"), parallelism=2))
    (stage,) = program.stages
    assert stage.source is not None
    assert stage.source.options == {"seed": 7}
    assert [f.name for f in stage.ports[0].schema] == ["price"]
    assert [(v.index, v.input_tags, v.written_tags) for v in program.vertices] == [
        (0, (), ("S/out/0",)),
        (1, (), ("S/out/1",)),
    ]


def test_late_rows_have_a_stream_with_the_columns_the_aggregate_reads() -> None:
    settings = Settings(late_stream="late", dead_letter_stream="bad")
    grouped = BIDS.with_watermark("ts", 1).group_by(
        (col("auction") % 10).alias("digit"), window=window("ts", 10)
    )
    program = plan_program(
        query("q", grouped.agg(count()).to_stream("out"), parallelism=2, settings=settings)
    )
    assert [f.name for f in program.stream("late").schema] == ["auction", "price", "ts"]
    (port,) = program.stages[1].ports
    assert [f.name for f in port.schema] == ["auction", "price", "ts", "__key0"]
    reader, owner = program.stage_vertices(0)[0], program.stage_vertices(1)[0]
    assert reader.marker_tags[2:] == (f"S/{port.streams[0]}/m", "S/bad/m")
    assert owner.marker_tags[2:] == ("S/out/m", "S/bad/m", "S/late/m")


def test_late_rows_of_two_operators_share_a_stream() -> None:
    settings = Settings(late_stream="late")
    with pytest.raises(PlanError, match="no row can be late"):
        plan_program(query("q", BIDS.to_stream("out"), settings=settings))

    def other(kind: str) -> Write:
        read = scan_stream("x", f"a int, price {kind}, ts timestamp").with_watermark("ts", 1)
        counts = read.group_by("a", window=window("ts", 5)).agg(count("price").alias("n"))
        return counts.to_stream("b")

    program = plan_program(query("q", hot().to_stream("a"), other("bigint"), settings=settings))
    nullable = {f.name: f.nullable for f in program.stream("late").schema}
    assert nullable["a"]
    assert {"price", "ts", "auction"} <= set(nullable)
    with pytest.raises(UnsupportedPlan, match="column price as bigint and as int"):
        plan_program(query("q", hot().to_stream("a"), other("int"), settings=settings))


def test_one_stream_cannot_be_read_in_two_ways() -> None:
    other = scan_stream("bids", "auction int").to_stream("b")
    with pytest.raises(PlanError, match="stream bids is used in two ways"):
        plan_program(query("q", BIDS.select("auction").to_stream("a"), other))
    wide = scan_stream("bids", "auction bigint", 4).to_stream("b")
    with pytest.raises(PlanError, match="stream bids is used in two ways"):
        plan_program(query("q", BIDS.select("auction").to_stream("a"), wide))


def test_readers_of_one_stream_are_told_all_its_columns() -> None:
    program = plan_program(
        query("q", BIDS.select("auction").to_stream("a"), BIDS.select("price").to_stream("b"))
    )
    assert [f.name for f in program.stream("bids").schema] == ["auction", "price"]


def test_planning_is_deterministic() -> None:
    def plan() -> Program:
        return plan_program(query("q", hot().to_stream("a"), hot().to_stream("b"), parallelism=3))

    assert plan().to_json() == plan().to_json()
    assert plan().content_hash == plan().content_hash


def test_a_folder_that_is_cleaned_up_is_read_once() -> None:
    def read(schema: str, clean: str, path: str = "/in") -> Draft:
        return scan_source("folder", schema, None, format="jsonl", path=path, clean=clean)

    def plan(*rows: Draft) -> Program:
        return plan_program(query("q", *(r.to_stream(f"out_{n}") for n, r in enumerate(rows))))

    once = read("id bigint, k bigint", "delete")
    assert len(plan(once.select("id"), once.filter(col("k") > 3)).stages) == 1
    plan(once, read("id bigint", "delete", "/other"), read("id bigint", "off", "/third"))
    for other in (read("id bigint", "delete"), read("id bigint", "off")):
        with pytest.raises(UnsupportedPlan, match=r"/in is read by 2 stages .* cleanSource"):
            plan(once, other)
