"""A changed query against the stored one: what is kept, rebuilt or refused, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import ProgramIncompatible
from penstock.expressions.tree import Column
from penstock.expressions.types import BIGINT, INT, STRING, TINYINT, Field
from penstock.operators.specs import PythonCall, PythonGroupsSpec, StateVariable
from penstock.plan.nodes import step
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Write, going_on
from penstock.stages.compare import Comparison, compare
from penstock.stages.program import Program
from penstock.stages.settings import Settings
from penstock.testing.columns import ColumnExpression, apply
from penstock.testing.plans import Draft, avg, col, count, max_, query, scan_source, sum_, window
from tests.stages.programs import bids, hot, rich


def plan(rows: Draft, name: str = "q", stream: str = "out", parallelism: int = 2) -> Program:
    return plan_program(query(name, rows.to_stream(stream), parallelism=parallelism))


def verdicts(comparison: Comparison) -> list[str]:
    """Each stage by its word, without the digest."""
    return [f"{stage.stage[:-9]} {stage.verdict}" for stage in comparison.stages]


STORED = plan(hot(bids()))


def grouped(mode: str) -> Draft:
    timed = bids().with_watermark("ts", "1 second")
    calls = (count().alias("n"), max_("price").alias("top"))
    return timed.group_by("auction", window=window("ts", "10 seconds", "2 seconds")).agg(
        *calls, mode=mode
    )


def test_the_same_query_is_kept() -> None:
    found = compare(STORED, plan(hot(bids())))
    assert verdicts(found) == ["partial_windows_by_auction kept", "windows_by_auction kept"]
    first, second = (stage.name for stage in STORED.stages)
    assert str(found) == f"query q: unchanged\n  {first}  kept\n  {second:<{len(first)}}  kept"
    found.check()
    assert {stage.verdict for stage in compare(rich(), rich()).stages} == {"kept"}


def test_other_filters_and_delays_are_rebuilt() -> None:
    found = compare(STORED, plan(hot(bids().filter(col("price") > 3))))
    assert verdicts(found) == ["partial_windows_by_auction rebuilt", "windows_by_auction kept"]
    assert found.stages[0].reasons == (
        "the chain was watermark → partial_aggregate and is filter → watermark → partial_aggregate",
    )
    slower = plan(
        bids()
        .with_watermark("ts", "5 seconds")
        .group_by("auction", window=window("ts", "10 seconds", "2 seconds"))
        .agg(count().alias("n"), max_("price").alias("top"))
    )
    found = compare(STORED, slower)
    assert found.stages[0].reasons == ("other expressions in watermark",)
    found.check()


def test_a_filter_after_the_state_is_rebuilt() -> None:
    found = compare(STORED, plan(hot(bids()).filter(col("n") > 3)))
    assert verdicts(found) == ["partial_windows_by_auction kept", "windows_by_auction rebuilt"]
    assert found.is_compatible


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda: plan(hot(bids(), "20 seconds")), "the window of the state was 10 seconds every"),
        (lambda: plan(hot(bids()), parallelism=3), "it ran as 2 vertices and would run as 3"),
        (lambda: plan(hot(bids()), stream="other"), "it wrote out and now writes other"),
        (lambda: plan(grouped("complete")), "the mode was append and is complete"),
        (lambda: plan(grouped("update")), "the mode was append and is update: its output would"),
        (
            lambda: plan(hot(bids().with_column("auction", col("auction") % 7))),
            None,  # the key is computed before the exchange: its name and type are the same
        ),
        (
            lambda: plan(
                bids()
                .with_watermark("ts", "1 second")
                .group_by("name", window=window("ts", "10 seconds", "2 seconds"))
                .agg(count().alias("n"))
            ),
            "the keys of the state were (auction = auction bigint) and are (name = name string)",
        ),
        (
            lambda: plan(
                bids()
                .with_watermark("ts", "1 second")
                .group_by("auction", window=window("ts", "10 seconds", "2 seconds"))
                .agg(count().alias("n"), avg("price").alias("top"))
            ),
            "the values of the state were (rows(*), max(price)) and are (rows(*), sum_high(price)",
        ),
        (
            lambda: plan(hot(scan_source("gen", "auction bigint, price bigint, ts timestamp"))),
            "it read a source and now reads streams, or the reverse",
        ),
        (lambda: plan(hot(bids()), name="p"), "the stored program is that of query q"),
    ],
)
def test_what_the_state_cannot_follow_is_refused(
    changed: Callable[[], Program], reason: str | None
) -> None:
    found = compare(STORED, changed())
    if reason is None:
        assert found.is_compatible
        return
    assert not found.is_compatible
    reasons = [
        text for stage in found.stages for text in stage.reasons if stage.verdict == "refused"
    ]
    assert any(text.startswith(reason) for text in reasons), reasons
    with pytest.raises(ProgramIncompatible, match="Start it under a new name"):
        found.check()
    assert "cannot go on from what is stored" in str(found)


def test_a_watermark_that_comes_or_goes_is_refused() -> None:
    """Over the same window: its rows were late by one of the two programs and not by the other."""
    other = bids().with_column("ts", col("ts")).group_by("auction", window=window("ts", 10))
    kept = plan(other.agg(count().alias("n"), mode="update"), parallelism=1)
    timed = bids().with_watermark("ts", "1 second").group_by("auction", window=window("ts", 10))
    ended = plan(timed.agg(count().alias("n"), mode="update"), parallelism=1)
    for before, after in ((kept, ended), (ended, kept)):
        assert "a watermark ended its windows" in str(compare(before, after))


def test_stages_come_and_go() -> None:
    one = query("q", bids().to_stream("a"))
    two = query("q", bids().to_stream("a"), bids().filter(col("price") > 3).to_stream("b"))
    stored = plan_program(one)
    later = plan_program(going_on(two, stored))
    found = compare(stored, later)
    assert verdicts(found) == ["from_bids kept", "from_bids added"]
    assert "goes on with changes" in str(found)
    assert verdicts(compare(later, plan_program(going_on(one, later)))) == [
        "from_bids kept",
        "from_bids removed",
    ]


def test_a_new_reader_of_an_inner_stream_would_miss_what_is_trimmed() -> None:
    own = STORED.stages[1].name
    (output,) = STORED.stages[1].outputs
    more = replace(STORED.stages[1], name="more", outputs=(replace(output, stream="b"),))
    vertices = tuple(
        replace(
            vertex,
            name=vertex.name.replace(own, "more"),
            stage=2,
            output_tags=(tuple(tag.replace("/out/", "/b/") for tag in vertex.written_tags),),
            marker_tags=tuple(
                tag.replace(own, "more").replace("/out/", "/b/") for tag in vertex.marker_tags
            ),
        )
        for vertex in STORED.stage_vertices(1)
    )
    changed = replace(
        STORED,
        streams=(*STORED.streams, replace(STORED.stream("out"), name="b")),
        stages=(*STORED.stages, more),
        vertices=(*STORED.vertices, *vertices),
    )
    found = compare(STORED, changed)
    assert [stage.verdict for stage in found.stages] == ["kept", "kept", "refused"]
    assert f"{more.streams[0]} that have been trimmed" in found.stages[2].reasons[0]


def test_outputs_by_their_stream_and_sources_by_what_their_offsets_mean() -> None:
    def to(stream: str, source: str = "gen", **options: object) -> Program:
        rows = scan_source(source, "x bigint", **options)
        return plan_program(query("q", rows.to_stream(stream)))

    assert verdicts(compare(to("a"), to("a", rate=5))) == ["read_gen rebuilt"]
    for changed, reason in (
        (to("b"), "it wrote a and now writes b"),
        (to("a", source="other"), "the source was gen and is other"),
    ):
        found = compare(to("a"), changed)
        assert [stage.verdict for stage in found.stages] == ["refused", "removed"]
        assert found.stages[0].reasons[0].startswith(reason)


def test_what_goes_to_a_sink_may_have_other_columns_than_before() -> None:
    def to(stream: str, *columns: str) -> Program:
        rows = scan_source("gen", "x bigint, y string").select(*columns)
        return plan_program(query("q", rows.to_stream(stream)))

    found = compare(to("q.out", "x"), to("q.out", "x", "y"))
    assert verdicts(found) == ["read_gen rebuilt"]
    assert "the output has other columns, or changed in what may be null" in str(found)
    for stored, new in ((("x",), ("x", "y")), (("x", "y"), ("x",))):
        assert not compare(to("a", *stored), to("a", *new)).is_compatible


def test_settings_alone_change_no_stage() -> None:
    changed = replace(STORED, settings=replace(STORED.settings, commit_interval_ms=5))
    assert {stage.verdict for stage in compare(STORED, changed).stages} == {"kept"}
    assert changed.content_hash != STORED.content_hash


def test_a_source_of_other_rows_is_refused() -> None:
    """Its offsets would be those of other rows: files of the same names would count as read."""

    def files(path: str, pattern: str) -> Program:
        return plan(scan_source("folder", "n bigint", format="csv", path=path, pattern=pattern))

    stored = files("/data/in", "*.csv")
    assert verdicts(compare(stored, files("/data/in", "*.txt"))) == ["read_folder rebuilt"]
    with pytest.raises(ProgramIncompatible, match="path of the source was '/data/in' and is '/new"):
        compare(stored, files("/new", "*.csv")).check()


def test_a_branch_more_keeps_what_was_there_under_its_name() -> None:
    """Wherever it comes in the plan, and whatever is shared with it."""
    alone = hot(bids()).to_stream("out")
    counted = bids().group_by("name").agg(count().alias("n"), mode="update").to_stream("names")
    before = plan_program(query("q", alone, parallelism=2))
    for writes in ((alone, counted), (counted, alone)):
        more = going_on(query("q", *writes, parallelism=2), before)
        found = compare(before, plan_program(more))
        kept = [stage.stage for stage in found.stages if stage.verdict == "kept"]
        assert kept == [stage.name for stage in before.stages]
        assert found.is_compatible
    assert found.stages[0].verdict == "added"


def test_two_stages_that_do_the_same_to_the_same_rows_have_two_names() -> None:
    cheap, dear = (bids().filter(col("price") < 3), bids().filter(col("price") > 9))
    program = plan(cheap.union(dear).group_by("name").agg(count().alias("n"), mode="update"))
    names = [stage.name for stage in program.stages]
    assert len(set(names)) == len(names) == 3
    assert names[1] == f"{names[0]}_2"


def test_whose_state_is_whose_is_never_guessed() -> None:
    """Two branches that differ in a filter alone: swapped, or the first one gone."""
    cheap, dear = (col("price") < 3), (col("price") > 9)

    def both(*conditions: ColumnExpression) -> Program:
        writes = [
            bids().filter(each).group_by("name").agg(count().alias("n"), mode="update")
            for each in conditions
        ]
        rows = writes[0] if len(writes) == 1 else writes[0].union(writes[1])
        return plan(rows, parallelism=1)

    stored = both(cheap, dear)
    assert compare(stored, both(cheap, dear)).is_compatible
    for changed in (both(dear, cheap), both(dear), both(col("price") < 4, dear)):
        assert not compare(stored, changed).is_compatible, str(compare(stored, changed))
    assert compare(both(cheap), both(cheap)).is_compatible
    assert "cannot be told" in str(compare(stored, both(dear, cheap)))


def dear() -> Write:
    return bids().filter(col("price") > 9).to_stream("dear")


def names() -> Write:
    return bids().group_by("name").agg(count().alias("n"), mode="update").to_stream("names")


def tops() -> Write:
    top = bids().group_by("name").agg(max_("price").alias("top"), mode="update")
    return top.filter(col("top") > 3).to_stream("tops")


def test_a_result_that_goes_leaves_the_others_their_state() -> None:
    """Whichever it is, and whether a stage has one output or several in the end."""
    writes = (dear(), names(), tops())
    for parallelism in (1, 3):
        stored = plan_program(query("q", *writes, parallelism=parallelism))
        if parallelism > 1:
            assert [len(stage.outputs) for stage in stored.stages] == [3, 1, 1]
        for left in ((0, 1), (1, 2), (2, 0), (0,), (1,), (2,)):
            fewer = query("q", *(writes[number] for number in left), parallelism=parallelism)
            program = plan_program(going_on(fewer, stored))
            found = compare(stored, program)
            assert found.is_compatible, str(found)
            assert {stage.name for stage in program.stages} <= {s.name for s in stored.stages}
            states = {v.name for v in program.vertices if program.stage_of(v).stateful}
            assert len(states) == parallelism * sum(number > 0 for number in left)


def timed(rows: Draft) -> Draft:
    return rows.with_watermark("ts", "1 second")


# Three sorts of rows for each: some have a watermark of their own rows, or columns of their own.
ROWS_OF_RESULTS: dict[str, Callable[[Draft], tuple[Draft, ...]]] = {
    "filtered": lambda rows: (timed(rows), timed(rows), timed(rows.filter(col("price") > 9))),
    "selected below": lambda rows: tuple(
        timed(rows.select("name", "ts", *more)) for more in ((), ("price",), ("auction",))
    ),
    "selected above": lambda rows: tuple(
        timed(rows).select("name", "ts", *more) for more in ((), ("price",), ("auction",))
    ),
}


@pytest.mark.parametrize("late", [None, "late_rows"])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("kind", ["stream", "source"])
@pytest.mark.parametrize("rows", ROWS_OF_RESULTS)
def test_whose_rows_are_whose_is_told_by_the_results_that_are_left(
    rows: str, kind: str, parallelism: int, late: str | None
) -> None:
    """Under watermarks, as partials or as rows, which late ones need."""
    columns, settings = bids().schema, Settings(late_stream=late)
    source = bids() if kind == "stream" else scan_source("folder", columns, 2, path="/in")
    size = window("ts", "10 seconds", "10 seconds")
    one, two, three = ROWS_OF_RESULTS[rows](source)
    writes = (
        one.group_by("name", window=size).agg(count().alias("n")).to_stream("one"),
        two.group_by("name", window=size).agg(max_("ts").alias("last")).to_stream("two"),
        three.group_by("name", window=size).agg(count().alias("n")).to_stream("three"),
    )
    stored = plan_program(query("q", *writes, parallelism=parallelism, settings=settings))
    for left in ((0, 1), (1, 2), (2, 0), (0,), (1,), (2,)):
        chosen = (writes[number] for number in left)
        fewer = query("q", *chosen, parallelism=parallelism, settings=settings)
        program = plan_program(going_on(fewer, stored))
        found = compare(stored, program)
        assert found.is_compatible, str(found)
        assert {"added"}.isdisjoint(stage.verdict for stage in found.stages), str(found)
        for number in left:  # each reads what it read, into the state that it had
            assert readers(program, writes[number]) == readers(stored, writes[number])


def readers(program: Program, write: Write) -> list[tuple[str, tuple[str, ...]]]:
    """The stages that lead to a result, and what each reads."""
    found, wanted = [], {write.stream}
    for stage in reversed(program.stages):
        if not wanted.isdisjoint(stage.written):
            found.append((stage.name, stage.streams))
            wanted.update(stage.streams)
    return found


def test_results_of_later_starts_share_stages_among_themselves_only() -> None:
    stored = plan_program(query("q", dear(), parallelism=2))
    both = plan_program(going_on(query("q", dear(), names(), tops(), parallelism=2), stored))
    assert both.cohorts == 2
    reading = [stage for stage in both.stages if stage.streams == ("bids",)]
    assert [(stage.cohort, len(stage.outputs)) for stage in reading] == [(0, 1), (1, 2)]
    assert reading[0].name == stored.stages[0].name
    one = plan_program(going_on(query("q", dear(), parallelism=2), both))
    assert one.cohorts == 2
    again = plan_program(going_on(query("q", dear(), tops(), parallelism=2), one))
    assert {stage.cohort for stage in again.stages} == {0, 2}  # no number is given twice
    assert not {s.name for s in again.stages} & {s.name for s in both.stages if s.cohort == 1}


def test_an_output_never_begins_in_the_middle() -> None:
    stored = plan_program(query("q", dear(), names(), parallelism=2))
    found = compare(stored, plan_program(query("q", dear(), names(), tops(), parallelism=2)))
    assert not found.is_compatible


def test_whose_rows_are_whose_is_not_guessed_among_outputs() -> None:
    """Two exchanges that differ in a filter alone and lead to the same stream."""

    def both(*conditions: ColumnExpression) -> Program:
        counted = [
            bids().filter(each).group_by("name").agg(count().alias("n"), mode="update")
            for each in conditions
        ]
        return plan_program(
            query("q", counted[0].union(counted[1]).to_stream("out"), parallelism=2)
        )

    cheap, high = (col("price") < 3), (col("price") > 9)
    stored = both(cheap, high)
    assert compare(stored, both(cheap, high)).is_compatible
    found = compare(stored, both(high, cheap))
    assert not found.is_compatible
    assert "cannot be told" in str(found)


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ((0, 1, 1), "kept"),
        ((5, 1, 1), "rebuilt"),  # rows that only come
        ((0, 2, 1), "refused"),
        ((0, 1, 2), "refused"),
    ],
)
def test_what_rows_that_come_and_go_pass_does_not_change(
    asked: tuple[int, int, int], verdict: str
) -> None:
    """A row that came by one filter or sum, and goes by another, would stay, or go twice."""

    def regrouped(least: int, groups: int, times: int) -> Program:
        rows = scan_source("rows", "k bigint, g bigint, v bigint", partitions=None)
        inner = (
            rows.filter(col("v") >= least)
            .group_by("k", "g")
            .agg(sum_("v").alias("s"), mode="update")
        )
        kept = inner.filter(col("g") >= groups).select("k", (col("s") * times).alias("t"))
        outer = kept.group_by("k").agg(sum_("t").alias("t"), mode="update")
        return plan_program(query("changing", outer.to_stream("out")))

    found = compare(regrouped(0, 1, 1), regrouped(*asked))
    given = {each.verdict for each in found.stages}
    assert verdict in given
    assert ("refused" in given) == (verdict == "refused")
    if verdict == "refused":
        assert "rows that come and go pass" in str(found)


def kept_by_function(*variables: StateVariable, clock: str = "none") -> Program:
    rows = bids()
    key = Column("auction", BIGINT, True)
    spec = PythonGroupsSpec(
        (key,), PythonCall((key, key), "f(auction)", "f"), (Field("n", BIGINT),), variables, clock,
        is_processor=True,
    )  # fmt: skip
    return plan(replace(rows, relation=step(spec, rows.relation)), parallelism=1)


def test_a_function_that_keeps_something_else_is_refused_by_name() -> None:
    total = StateVariable("total", "value", (Field("n", BIGINT),))
    stored = kept_by_function(total)
    compare(stored, kept_by_function(total)).check()
    with pytest.raises(ProgramIncompatible, match="state 'total' .* value of .n bigint. and is a va"
                       r"lue of \(n string\)"):  # fmt: skip
        compare(stored, kept_by_function(replace(total, value=(Field("n", STRING),)))).check()
    seen = StateVariable("seen", "map", (Field("n", BIGINT),), (Field("p", STRING),), 5_000)
    with pytest.raises(ProgramIncompatible, match=r"state 'seen' of the function was not there and "
                       r"is a map of \(p string\) to \(n bigint\) for 5 seconds"):  # fmt: skip
        compare(stored, kept_by_function(total, seen)).check()
    with pytest.raises(ProgramIncompatible, match="went by the clock 'none' and goes by 'process"):
        compare(stored, kept_by_function(total, clock="processing")).check()


@pytest.mark.parametrize(
    ("columns", "goes_on"),
    [
        ((Field("n", BIGINT), Field("last", STRING)), True),
        ((Field("last", STRING), Field("n", BIGINT)), True),
        ((Field("n", BIGINT), Field("last", STRING, False)), False),
        ((Field("n", BIGINT, False),), False),
        ((Field("n", TINYINT),), False),
        ((Field("m", BIGINT),), False),
        ((), False),
    ],
)
def test_what_a_function_keeps_may_get_and_lose_columns(columns: Any, goes_on: bool) -> None:
    for kind, key in (("value", ()), ("list", ()), ("map", (Field("p", STRING),))):
        total = StateVariable("total", kind, (Field("n", INT),), key)
        wide = replace(total, value=(Field("n", BIGINT),))
        found = compare(kept_by_function(wide), kept_by_function(replace(total, value=columns)))
        assert found.is_compatible == goes_on
        assert ("state 'total' of the function goes on as a" in str(found)) == goes_on
        more = replace(wide, value=(*wide.value, Field("last", STRING)))
        assert compare(kept_by_function(more), kept_by_function(wide)).is_compatible
        assert compare(kept_by_function(total), kept_by_function(wide)).is_compatible
        assert not compare(kept_by_function(wide), kept_by_function(total)).is_compatible


def test_rows_that_come_once_pass_each_step_once() -> None:
    """They wait behind what stood before them: what stands on both sides may not change at once."""

    def divided(least: int, plus: int) -> Program:
        rows = scan_source("socket", "n bigint, k bigint", partitions=1, host="h", port=1)
        kept = rows.filter(col("n") > least)  # may not fail, and is so in front
        quotient = apply("int_divide", col("n"), col("k")) + plus
        shares = kept.select("k", quotient.alias("q")).group_by("k")
        return plan(shares.agg(sum_("q").alias("s"), mode="update"))

    stored = divided(0, 0)
    assert any(stream.name.startswith("q.ingress_") for stream in stored.streams)
    compare(stored, divided(0, 0)).check()
    compare(stored, divided(1, 0)).check()
    compare(stored, divided(0, 1)).check()
    with pytest.raises(ProgramIncompatible, match="steps on both sides of them have changed"):
        compare(stored, divided(1, 1)).check()
