"""The queries that are simulated: each small, together every road through the protocol."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from penstock.expressions.tree import Expression
from penstock.operators.specs import DeduplicateSpec
from penstock.plan.joins import join
from penstock.plan.nodes import Relation, Scan, column_refs, rewrite, step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Write
from penstock.sim.data import COLUMNS, SECOND_US
from penstock.sim.graphs import Graph
from penstock.stages.program import Program, sink_stream
from penstock.stages.settings import Settings
from penstock.testing.columns import ColumnExpression, apply, col
from penstock.testing.plans import (
    Draft,
    count,
    max_,
    min_,
    query,
    scan_source,
    scan_stream,
    sum_,
    window,
)

Answer = Literal["rows", "running", "windows", "distinct", "joined", "graph", "journal", "static"]
Variant = Literal["first", "changed", "refused"]

CONNECTOR = "simulated"
OUT, LATE, DEAD = "out", "late", "dead"
PUBLISHED, BETWEEN = "published", "between"  # streams that a query reads
STATIC_SIDE = "static_a"
DELAY_US = 3 * SECOND_US
AGGREGATES = (
    count().alias("n"),
    count("v").alias("c"),
    sum_("v").alias("s"),
    min_("v").alias("lo"),
    max_("rid").alias("top"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A query, and what must be known about it to answer it in plain Python."""

    name: str
    build: Callable[[], Draft]
    answer: Answer
    keys: tuple[str, ...] = ()
    feeds: int = 1
    parts: int = 1
    parallelism: int = 1
    window_us: tuple[int, int] | None = None  # size, slide
    late_stream: bool = False
    dead_letters: bool = False
    producers: int = 0  # programs outside, each with a feed, that publish what the query reads
    first: Callable[[], Draft] | None = None  # a query of its own that feeds the other one
    then: Answer | None = None  # a second aggregate over the first one's output
    then_window_us: tuple[int, int] | None = None
    near_us: tuple[int, int] | None = None  # how far before and after a row others are that match
    graph: Callable[[], Graph] | None = None  # what answers it in plain Python
    changes: bool = False  # rows come and go, with weights
    jitter_us_max: int = DELAY_US  # how far rows are behind at the most, but for stragglers
    is_random: bool = False
    upserts: bool = False  # its sink is a table of SQLite
    has_late_rows: bool = False  # without windows of a size
    beside: bool = False  # there are more results than the answer, of the same rows
    once: bool = False  # a program sends its rows, which come once
    trickles: bool = False  # rows come few at a time, so that some vertices have none meanwhile

    @property
    def may_idle(self) -> bool:
        several = self.feeds * self.parts > 1
        return self.window_us is not None and several and not (self.producers or self.first)


def _feed(number: int, parts: int = 1) -> Draft:
    return scan_source(CONNECTOR, COLUMNS, parts, feed=number)


def _timed(number: int, parts: int = 1) -> Draft:
    return _feed(number, parts).with_watermark("ts", DELAY_US)


def _windows(rows: Draft, key: str, size_us: int, slide_us: int | None = None) -> Draft:
    return rows.group_by(key, window=window("ts", size_us, slide_us)).agg(*AGGREGATES)


def _filter_map() -> Draft:
    return _feed(0, 2).filter(col("v") > 0).select("rid", "k", (col("v") * 2 + col("g")).alias("w"))


def _union_rows() -> Draft:
    both = _feed(0).union(_feed(1))
    return both.filter(col("v") > 0).select("rid", "k", (col("v") * 2 + col("g")).alias("w"))


def _running() -> Draft:
    return _feed(0).union(_feed(1)).group_by("k").agg(*AGGREGATES, mode="update")


def _running_parts() -> Draft:
    return _feed(0, 2).group_by("g").agg(*AGGREGATES, mode="update")


def _running_one() -> Draft:
    return _feed(0).group_by("k", "g").agg(*AGGREGATES, mode="update")


def _complete() -> Draft:
    return _feed(0).group_by("g").agg(*AGGREGATES, mode="complete")


def _words() -> Draft:
    return _feed(0).explode("words", "word").group_by("word").agg(*AGGREGATES, mode="update")


def _tumbling() -> Draft:
    return _windows(_timed(0, 2), "k", 6 * SECOND_US)


def _tumbling_one() -> Draft:
    return _windows(_timed(0), "g", 6 * SECOND_US)


def _hopping() -> Draft:
    return _windows(_timed(0).union(_timed(1)), "g", 6 * SECOND_US, 2 * SECOND_US)


def _hopping_one() -> Draft:
    return _windows(_timed(0), "k", 6 * SECOND_US, 2 * SECOND_US)


def _late_side() -> Draft:
    return _windows(_timed(0).union(_timed(1)), "k", 4 * SECOND_US)


def _late_side_one() -> Draft:
    return _windows(_timed(0), "k", 4 * SECOND_US)


def _cascade() -> Draft:
    """Windows per key, then how many of them there are and what they add up to."""
    first = _windows(_timed(0, 2), "k", 4 * SECOND_US)
    return first.group_by("k").agg(
        count().alias("n"), count("n").alias("c"), sum_("n").alias("s"), max_("top").alias("top"),
        mode="update",
    )  # fmt: skip


def _cascade_windows() -> Draft:
    """Small windows per key, then larger windows over their ends."""
    first = _windows(_timed(0).union(_timed(1)), "g", 4 * SECOND_US)
    begun = first.select(col("window")["end"].alias("at"), "g", "n", "top")
    return begun.group_by("g", window=window("at", 12 * SECOND_US)).agg(
        count().alias("n"), count("n").alias("c"), sum_("n").alias("s"), max_("top").alias("top")
    )


def _divided(number: int, parts: int = 1) -> Draft:
    quotient = apply("int_divide", col("v"), col("d")).alias("v")
    return _feed(number, parts).select("rid", "k", quotient, "ts")


def _dead_running() -> Draft:
    return _divided(0, 2).group_by("k").agg(*AGGREGATES, mode="update")


def _dead_rows() -> Draft:
    return _divided(0).union(_divided(1)).select("rid", "k", col("v").alias("w"))


def _dead_windows() -> Draft:
    return _windows(_divided(0).with_watermark("ts", DELAY_US), "k", 4 * SECOND_US)


def _other_time() -> Draft:
    """Windows of a time that the watermark does not speak of: no row is ever late for them."""
    rows = _timed(0).union(_timed(1))
    return rows.group_by("k", window=window("u", 6 * SECOND_US)).agg(*AGGREGATES, mode="update")


def _published() -> Draft:
    return scan_stream(PUBLISHED, COLUMNS)


def _published_rows() -> Draft:
    rows = _published().filter(col("v") > 0)
    return rows.select("rid", "k", (col("v") * 2 + col("g")).alias("w"))


def _published_running() -> Draft:
    return _published().group_by("k").agg(*AGGREGATES, mode="update")


def _published_windows() -> Draft:
    return _windows(_published().with_watermark("ts", DELAY_US), "g", 6 * SECOND_US)


def _handed_on() -> Draft:
    return _feed(0, 2).filter(col("rid") >= 0)


def _handed_on_union() -> Draft:
    return _feed(0).union(_feed(1)).filter(col("rid") >= 0)


def _chained_running() -> Draft:
    rows = scan_stream(BETWEEN, COLUMNS, substreams=2)
    return rows.group_by("k", "g").agg(*AGGREGATES, mode="update")


def _chained_windows() -> Draft:
    rows = scan_stream(BETWEEN, COLUMNS).with_watermark("ts", DELAY_US)
    return _windows(rows, "k", 4 * SECOND_US)


def _distinct() -> Draft:
    rows = _feed(0, 2).select("k", "g")
    return Draft(step(DeduplicateSpec(_columns(rows)), rows.relation))


def _distinct_union() -> Draft:
    rows = _feed(0).union(_feed(1)).select("k")
    return Draft(step(DeduplicateSpec(_columns(rows)), rows.relation))


def _regrouped() -> Draft:
    """Groups of groups that change: what comes and goes adds up to what the rows add up to."""
    inner = _feed(0).union(_feed(1)).group_by("k", "g").agg(*AGGREGATES, mode="update")
    return _again(inner)


def _regrouped_parts() -> Draft:
    inner = _feed(0, 2).group_by("k", "g").agg(*AGGREGATES, mode="update")
    return _again(inner)


def _again(inner: Draft) -> Draft:
    return inner.group_by("k").agg(
        sum_("n").alias("n"), sum_("c").alias("c"), sum_("s").alias("s"), min_("lo").alias("lo"),
        max_("top").alias("top"), mode="update",
    )  # fmt: skip


NEAR_US = (4 * SECOND_US, 2 * SECOND_US)


def _right(rows: Draft, *columns: str) -> Draft:
    return rows.select(*(col(name).alias(f"r_{name}") for name in columns))


def _joined(how: str, left: Draft, right: Draft, near: ColumnExpression | None = None) -> Draft:
    keys = [
        (col(field.name).resolve(left.schema, "join"), col(f"r_{field.name}"), False)
        for field in left.schema
        if field.name in ("k", "g")
    ]
    equal = [(one, other.resolve(right.schema, "join"), safe) for one, other, safe in keys]
    both = (*left.schema, *right.schema)
    condition = None if near is None else near.resolve(both, "join")
    return Draft(join(how, left.relation, right.relation, equal, condition))


def _pairs() -> Draft:
    left = _feed(0, 2).select("rid", "k", "g")
    return _joined("inner", left, _right(_feed(1, 2), "rid", "k", "g"))


def _near() -> ColumnExpression:
    before_us, after_us = NEAR_US
    moved = [
        apply("timestamp_micros", apply("unix_micros", col("ts")) + by_us)
        for by_us in (-before_us, after_us)
    ]
    return apply("and", col("r_ts") >= moved[0], col("r_ts") <= moved[1])


def _within() -> Draft:
    left = _timed(0).select("rid", "k", "ts")
    return _joined("left", left, _right(_timed(1), "rid", "k", "ts"), _near())


def _columns(rows: Draft) -> tuple[Expression, ...]:
    return tuple(expression for _, expression in column_refs(rows.schema))


_S = SECOND_US

SHAPES: tuple[Shape, ...] = (
    Shape("filter_map", _filter_map, "rows", parts=2, parallelism=2),
    Shape("union_rows", _union_rows, "rows", feeds=2),
    Shape("running", _running, "running", ("k",), feeds=2, parallelism=2),
    Shape("running_parts", _running_parts, "running", ("g",), parts=2, parallelism=3),
    Shape("running_one", _running_one, "running", ("k", "g")),
    Shape("complete", _complete, "running", ("g",)),
    Shape("words", _words, "running", ("word",), parallelism=2),
    Shape("tumbling", _tumbling, "windows", ("k",), parts=2, parallelism=2, window_us=(6*_S, 6*_S)),
    Shape("tumbling_one", _tumbling_one, "windows", ("g",), window_us=(6*_S, 6*_S)),
    Shape("hopping", _hopping, "windows", ("g",), feeds=2, parallelism=2, window_us=(6*_S, 2*_S)),
    Shape("hopping_one", _hopping_one, "windows", ("k",), window_us=(6*_S, 2*_S)),
    Shape("late_side", _late_side, "windows", ("k",), feeds=2, parallelism=2,
          window_us=(4*_S, 4*_S), late_stream=True),
    Shape("late_side_one", _late_side_one, "windows", ("k",), window_us=(4*_S, 4*_S),
          late_stream=True),
    Shape("cascade", _cascade, "windows", ("k",), parts=2, parallelism=2, window_us=(4*_S, 4*_S),
          then="running"),
    Shape("cascade_windows", _cascade_windows, "windows", ("g",), feeds=2, parallelism=1,
          window_us=(4*_S, 4*_S), then="windows", then_window_us=(12*_S, 12*_S)),
    Shape("dead_rows", _dead_rows, "rows", feeds=2, dead_letters=True),
    Shape("dead_running", _dead_running, "running", ("k",), parts=2, parallelism=2,
          dead_letters=True),
    Shape("dead_windows", _dead_windows, "windows", ("k",), window_us=(4*_S, 4*_S),
          late_stream=True, dead_letters=True),
    Shape("other_time", _other_time, "running", ("window", "k"), feeds=2, parallelism=2),
    Shape("published_rows", _published_rows, "rows", feeds=2, producers=2),
    Shape("published_running", _published_running, "running", ("k",), feeds=3, producers=3,
          parallelism=2),
    Shape("published_windows", _published_windows, "windows", ("g",), feeds=2, producers=2,
          window_us=(6*_S, 6*_S)),
    Shape("published_exchange", _published_windows, "windows", ("g",), feeds=2, producers=2,
          parallelism=2, window_us=(6*_S, 6*_S)),
    Shape("chained_running", _chained_running, "running", ("k", "g"), parts=2, parallelism=1,
          first=_handed_on),
    Shape("chained_windows", _chained_windows, "windows", ("k",), feeds=2,
          window_us=(4*_S, 4*_S), first=_handed_on_union),
)  # fmt: skip

# Of a few seeds, drawn apart, so that the others are the runs that they were.
LATER_SHAPES: tuple[Shape, ...] = (
    Shape("distinct", _distinct, "distinct", ("k", "g"), parts=2, parallelism=2),
    Shape("distinct_union", _distinct_union, "distinct", ("k",), feeds=2),
    Shape("regrouped", _regrouped, "running", ("k",), feeds=2, parallelism=2),
    Shape("regrouped_parts", _regrouped_parts, "running", ("k",), parts=2, parallelism=3),
)


JOINED_SHAPES: tuple[Shape, ...] = (
    Shape("pairs", _pairs, "joined", ("k", "g"), feeds=2, parts=2, parallelism=2),
    Shape("within", _within, "joined", ("k",), feeds=2, parallelism=2, near_us=NEAR_US),
    Shape("within_one", _within, "joined", ("k",), feeds=2, near_us=NEAR_US),
)


BESIDE, TALLY = "beside", "tally"  # results beside the answer


def _results_beside(rows: Draft) -> tuple[Write, ...]:
    """Some rows as they come, and the rows of each key behind an exchange."""
    some = rows.filter(col("g") > 0).select("rid", "g").to_stream(BESIDE)
    tally = rows.group_by("k").agg(count().alias("n"), mode="update").to_stream(TALLY)
    return some, tally


def _filter_map_one() -> Draft:
    return _feed(0).filter(col("v") > 0).select("rid", "k", (col("v") * 2 + col("g")).alias("w"))


BRANCHED_SHAPES: tuple[Shape, ...] = (
    Shape("branched", _filter_map, "rows", parts=2, parallelism=2, beside=True),
    Shape("branched_one", _filter_map_one, "rows", beside=True),
)


def _one_watermark() -> Draft:
    """Windows of two feeds that have one watermark, above their union."""
    rows = _feed(0).union(_feed(1)).with_watermark("ts", DELAY_US)
    return _windows(rows, "k", 4 * SECOND_US)


def _one_watermark_parts() -> Draft:
    rows = _feed(0, 2).union(_feed(1, 2)).with_watermark("ts", DELAY_US)
    return _windows(rows, "g", 6 * SECOND_US, 2 * SECOND_US)


QUIET_SHAPES: tuple[Shape, ...] = (
    Shape("one_watermark", _one_watermark, "windows", ("k",), feeds=2, parallelism=2,
          window_us=(4*_S, 4*_S), late_stream=True, trickles=True),
    Shape("one_watermark_parts", _one_watermark_parts, "windows", ("g",), feeds=2, parts=2,
          parallelism=2, window_us=(6*_S, 2*_S), trickles=True),
)  # fmt: skip


def _sent() -> Draft:
    return scan_source(CONNECTOR, COLUMNS, 1, feed=0, replayable=False)


def _sent_rows() -> Draft:
    rows = _sent().filter(col("v") > 0)
    return rows.select("rid", "k", (col("v") * 2 + col("g")).alias("w"))


def _sent_running() -> Draft:
    return _sent().group_by("k").agg(*AGGREGATES, mode="update")


ONCE_SHAPES: tuple[Shape, ...] = (
    Shape("sent_rows", _sent_rows, "rows", once=True),
    Shape("sent_running", _sent_running, "running", ("k",), parallelism=2, once=True),
)


def shape_of(seed: int) -> Shape:
    """The query of a seed."""
    once = random.Random(f"once 4 {seed}")
    if once.random() < 0.02:
        return once.choice(ONCE_SHAPES)
    quiet = random.Random(f"quiet {seed}")
    if quiet.random() < 0.02:
        return quiet.choice(QUIET_SHAPES)
    branched = random.Random(f"branched {seed}")
    if branched.random() < 0.03:
        return branched.choice(BRANCHED_SHAPES)
    joined = random.Random(f"joined {seed}")
    if joined.random() < 0.04:
        return joined.choice(JOINED_SHAPES)
    rng = random.Random(f"shape {seed}")
    return rng.choice(LATER_SHAPES) if rng.random() < 0.06 else SHAPES[seed % len(SHAPES)]


@cache
def programs_of(
    shape: Shape, has_sink: bool = False, variant: Variant = "first"
) -> tuple[Program, ...]:
    """The planned programs of a shape, the answering one last; their settings are set per seed.

    With a sink the answer goes to the stream that a query keeps for its sink, else to one of ours.
    A `changed` program answers the same and can go on from what the first one stored; what a
    `refused` one would write does not fit what is there.
    """
    settings = Settings(
        late_stream=LATE if shape.late_stream else None,
        dead_letter_stream=DEAD if shape.dead_letters else None,
    )
    rows = _as(variant, shape.build()).to_stream(sink_stream(shape.name) if has_sink else OUT)
    write = replace(rows, changes=shape.changes)
    beside = _results_beside(_feed(0, shape.parts)) if shape.beside else ()
    asked = query(shape.name, write, *beside, parallelism=shape.parallelism, settings=settings)
    answer = plan_program(asked)
    if shape.first is None:
        return (answer,)
    feeding = _as(variant, shape.first()).to_stream(BETWEEN)
    return (plan_program(query(f"{shape.name}_first", feeding, parallelism=shape.parts)), answer)


def _as(variant: Variant, rows: Draft) -> Draft:
    if variant == "refused":
        return rows.select(rows.schema[0].name)
    if variant == "changed":
        return Draft(rewrite(rows.relation, _all_rows))
    return rows


def _all_rows(node: Relation) -> Relation:
    """Filter what is scanned by a condition that every row meets."""
    return Draft(node).filter(col("rid") >= 0).relation if isinstance(node, Scan) else node
