"""Plans are checked when they are built: what is refused, and what the message says."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from penstock.errors import InvalidName, PlanError, UnknownColumn, UnsupportedPlan
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import BIGINT, Field, parse_type
from penstock.operators.specs import AggregateSpec, DeduplicateSpec, FilterSpec
from penstock.plan.event_time import carries_time
from penstock.plan.nodes import StreamRef, UnionAll, scan, spec_of, step
from penstock.plan.query import Query, Write
from penstock.stages.program import sink_stream
from penstock.stages.settings import Settings
from penstock.testing.columns import ColumnExpression, apply
from penstock.testing.plans import (
    Draft,
    col,
    count,
    query,
    scan_source,
    scan_stream,
    sum_,
    window,
)

BIDS = scan_stream(
    "bids",
    "auction bigint, price bigint, name string, amount decimal(10,2), ts timestamp, "
    "tags array<int>",
)


def timed(rows: Draft = BIDS) -> Draft:
    return rows.with_watermark("ts", "1 second")


def test_unknown_column_names_column_node_and_what_there_is() -> None:
    with pytest.raises(
        UnknownColumn, match="filter: there is no column 'prise'; there are auction,"
    ) as error:
        BIDS.filter(col("prise") > 3)
    assert error.value.details["column"] == "prise"
    assert error.value.details["available"][:2] == ["auction", "price"]
    with pytest.raises(UnknownColumn, match="select: there is no column 'x'"):
        BIDS.select("x")
    with pytest.raises(UnknownColumn, match="watermark time"):
        BIDS.with_watermark("time", "1 second")
    with pytest.raises(UnknownColumn, match="group_by"):
        BIDS.group_by("seller")
    with pytest.raises(UnknownColumn, match="filter: there is no column 'gone'"):
        step(FilterSpec(column("gone", "boolean")), BIDS.relation)


def test_a_column_of_another_type_is_refused() -> None:
    condition = call("gt", column("price", "int"), literal(3, "int"))
    with pytest.raises(PlanError, match="filter: column 'price' is bigint, not int"):
        step(FilterSpec(condition), BIDS.relation)


def test_columns_take_the_nullability_of_the_input() -> None:
    rows = scan_stream("s", "flag boolean not null")
    node = step(FilterSpec(column("flag", "boolean", nullable=True)), rows.relation)
    assert node.spec == FilterSpec(column("flag", "boolean", nullable=False))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BIDS.filter(col("price") + 1), "filter: a filter needs a boolean"),
        (lambda: BIDS.filter(col("price") > "x"), "filter: "),
        (lambda: BIDS.union(BIDS.select("price")), "union: the inputs differ"),
        (lambda: BIDS.with_watermark("price", 1), "watermark needs a timestamp, column 'price'"),
        (lambda: BIDS.with_watermark("ts", -1), "delay is -1 us"),
        (lambda: BIDS.with_watermark("ts", "1 month"), "not a length of time"),
        (lambda: BIDS.with_watermark("ts", "999999999 weeks"), "it is at least 0 and at most"),
        (lambda: BIDS.group_by(window=window("ts", "999999999 weeks")), "times of 64 bits"),
        (lambda: BIDS.group_by(window=window("ts", "1 week", "1 us")), "at most 10,000 windows"),
        (lambda: BIDS.explode("price", "p"), "explode needs an array"),
        (lambda: BIDS.explode("tags", "price"), "distinct names, repeated: price"),
        (lambda: BIDS.select("price", "price"), "distinct names, repeated: price"),
        (BIDS.select, "at least one column"),
        (lambda: BIDS.select(col("price") + 1), "name the column with .alias"),
        (lambda: BIDS.group_by("tags").agg(count(), mode="update"), "grouping by 'tags'"),
        (lambda: BIDS.group_by("name").agg(sum_("name"), mode="update"), "sum needs a number"),
        (lambda: BIDS.group_by().agg(count(), mode="sometimes"), "there is no mode 'sometimes'"),
        (lambda: BIDS.group_by(window=window("price", 10)), None),
        (lambda: BIDS.group_by(window=window("ts", 0)), "0 < slide <= size"),
        (lambda: BIDS.group_by(window=window("ts", 10, 20)), "0 < slide <= size"),
        (lambda: BIDS.group_by(window=window("ts", 10, -1)), "0 < slide <= size"),
        (lambda: BIDS.group_by(window=window("ts", 10, 5, 5)), "start offset"),
        (lambda: scan_stream("s", "a bigint, a int"), "distinct names"),
        (lambda: scan_stream("s", "a"), "is not a column"),
        (lambda: UnionAll(()), "at least one input"),
    ],
)
def test_refused(build: object, message: str | None) -> None:
    assert callable(build)
    if message is None:  # a window is checked against its rows when it is used
        with pytest.raises(PlanError, match="a window needs a timestamp"):
            build().agg(count(), mode="update")
        return
    with pytest.raises(PlanError, match=message):
        build()


def test_append_needs_a_window_and_a_watermark() -> None:
    with pytest.raises(UnsupportedPlan, match="append mode needs a time window"):
        timed().group_by("auction").agg(count())
    with pytest.raises(
        UnsupportedPlan, match="append mode needs a watermark on the window's time ts"
    ):
        BIDS.group_by("auction", window=window("ts", 10)).agg(count())
    assert (
        timed().group_by("auction", window=window("ts", 10)).agg(count()).schema[0].name == "window"
    )
    for mode in ("update", "complete"):
        assert BIDS.group_by("auction").agg(count(), mode=mode).schema[-1] == Field(
            "count", BIGINT, False
        )


def test_the_watermark_follows_its_column() -> None:
    renamed = timed().select(col("ts").alias("at"), "price")
    assert renamed.relation.event_time == ("at",)
    assert renamed.group_by(window=window("at", 10)).agg(count()).relation.event_time == ("window",)
    dropped = timed().select("price", col("ts").cast("string", "UTC").alias("at"))
    assert dropped.relation.event_time == ()


@pytest.mark.parametrize(
    ("time", "is_bound"),
    [
        (lambda w: w["end"], True),
        (lambda w: _moved(w["end"], -1), True),  # window_time()
        (lambda w: apply("struct", _moved(w["end"], -9), w["end"], names=["start", "end"]), True),
        (lambda w: w["start"], False),
        (lambda w: _moved(w["end"], -2), False),
        (lambda w: apply("struct", w["start"], w["start"], names=["start", "end"]), False),
        (lambda w: apply("struct", w["end"], w["end"], names=["end", "other"]), False),
        (lambda w: apply("date_trunc", w["end"], unit="minute", time_zone="UTC"), False),
    ],
    ids=range(8),
)
def test_a_closed_window_carries_time_up_to_its_last_instant(
    time: Callable[[ColumnExpression], ColumnExpression], is_bound: bool
) -> None:
    expression = time(col("w")).resolve(parse_window_schema(), "test")
    assert carries_time(expression, ("w",)) == is_bound
    assert not carries_time(expression, ("v",))


def _moved(time: ColumnExpression, by_us: int) -> ColumnExpression:
    return apply("timestamp_micros", apply("unix_micros", time) + by_us)


@pytest.mark.parametrize(
    "time",
    [
        lambda: apply("date_trunc", col("ts"), unit="minute", time_zone="UTC"),
        lambda: _moved(col("ts"), -3_600_000_000),
        lambda: _moved(col("ts"), 0),
        lambda: apply("timestamp_seconds", col("price")),
    ],
    ids=["truncated", "moved back", "moved nowhere", "another column"],
)
def test_a_watermark_says_nothing_about_what_is_computed(
    time: Callable[[], ColumnExpression],
) -> None:
    """Such a time may lie behind the watermark: no window of it ends, and no row of it is late."""
    rows = timed().with_column("at", time()).group_by(window=window("at", 10))
    with pytest.raises(UnsupportedPlan, match="append mode needs a watermark on the window's time"):
        rows.agg(count())
    spec = spec_of(rows.agg(count(), mode="update").relation)
    assert isinstance(spec, AggregateSpec)
    assert not spec.forgets


def test_one_watermark_on_the_way_to_a_window() -> None:
    for again in (timed(), timed().union(BIDS), timed().select("ts", "price")):
        with pytest.raises(UnsupportedPlan, match="have a watermark on ts already"):
            again.with_watermark("ts", 5)


def parse_window_schema() -> tuple[Field, ...]:
    return (Field("w", parse_type("struct<start:timestamp,end:timestamp>")),)


def test_a_union_is_timed_as_its_first_input_is() -> None:
    assert timed().union(timed()).relation.event_time == ("ts",)
    assert timed().union(BIDS).relation.event_time == ("ts",)
    assert BIDS.union(timed()).relation.event_time == ()
    nullable = scan_stream("a", "x int not null").union(scan_stream("b", "x int"))
    assert nullable.schema == (Field("x", parse_type("int"), True),)


def test_what_keeps_rows_takes_none_that_come_and_go() -> None:
    changing = BIDS.group_by("auction").agg(count().alias("n"), mode="update").relation
    with pytest.raises(UnsupportedPlan, match="distinct n stands on aggregate n in update mode"):
        step(DeduplicateSpec((column("n", "bigint"),)), changing)


def test_queries_refuse_what_cannot_be_told_apart() -> None:
    with pytest.raises(PlanError, match="two writes to stream 'a' differ"):
        query("q", BIDS.to_stream("a"), BIDS.select("price").to_stream("a"))
    with pytest.raises(PlanError, match="writes nothing"):
        query("q")
    with pytest.raises(PlanError, match="parallelism is 0"):
        query("q", BIDS.to_stream("a"), parallelism=0)
    with pytest.raises(InvalidName):
        query("q/1", BIDS.to_stream("a"))
    with pytest.raises(InvalidName):
        BIDS.to_stream("a b")
    with pytest.raises(InvalidName):
        query("q" * 65, BIDS.to_stream("a"))
    with pytest.raises(PlanError, match="which is also its one for late"):
        query("q", BIDS.to_stream("a"), settings=Settings(late_stream="a"))
    with pytest.raises(PlanError, match="q reads stream 'bids', which is also its one for late"):
        query("q", BIDS.to_stream("a"), settings=Settings(dead_letter_stream="bids"))


def test_streams_that_queries_make_for_themselves_are_out_of_reach() -> None:
    """All but the one that feeds the query's own sink."""
    query("q", BIDS.to_stream(sink_stream("q")))
    for taken in ("q.exchange.0", "q.shared.0", "other.out", "q.s0.0"):
        with pytest.raises(InvalidName, match="names with dots"):
            query("q", BIDS.to_stream(taken))
    for read in ("q.out", "other.out", "other.exchange.0"):
        with pytest.raises(InvalidName, match="names with dots"):
            query("q", scan_stream(read, "x int").to_stream("a"))
    for side in ("late_stream", "dead_letter_stream"):
        with pytest.raises(InvalidName, match="names with dots"):
            Settings(**{side: "other.out"})


def test_a_query_cannot_feed_itself() -> None:
    with pytest.raises(UnsupportedPlan, match="stream 'bids' is computed from itself"):
        query("q", BIDS.filter(col("price") > 1).to_stream("bids"))
    there = scan_stream("b", "x int").to_stream("a")
    back = scan_stream("a", "x int").to_stream("b")
    with pytest.raises(UnsupportedPlan, match="computed from itself"):
        query("q", there, back)


def test_a_query_reads_its_own_streams_as_it_writes_them() -> None:
    made = BIDS.select("auction", "price").to_stream("a")
    with pytest.raises(UnknownColumn, match="scan of stream a: there is no column 'name'"):
        query("q", made, scan_stream("a", "name string").to_stream("b"))
    with pytest.raises(PlanError, match="reads price as int, but this query writes it as bigint"):
        query("q", made, scan_stream("a", "price int").to_stream("b"))
    assert len(query("q", made, scan_stream("a", "price bigint").to_stream("b")).writes) == 2


def test_equal_plans_are_equal_and_hash_alike() -> None:
    def build() -> Query:
        rows = timed(scan_source("nexmark", "auction bigint, ts timestamp", seed=1, rate=2))
        return query(
            "q", rows.group_by("auction", window=window("ts", 10)).agg(count()).to_stream("a")
        )

    assert build() == build()
    assert hash(build().writes[0]) == hash(build().writes[0])
    assert pickle.loads(pickle.dumps(build())) == build()


def test_nested_nullability_is_not_part_of_a_plan() -> None:
    inner = parse_type("struct<a:int>")
    strict = type(inner)("struct", fields=(Field("a", parse_type("int"), False),))
    assert scan((StreamRef("s"),), (Field("x", strict),)).schema[0].type == inner


def test_partition_columns_must_exist() -> None:
    with pytest.raises(UnknownColumn, match="write to stream a: there is no column 'seller'"):
        Write(BIDS.relation, StreamRef("a"), ("seller",))
