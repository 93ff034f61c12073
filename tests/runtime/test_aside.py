"""Rows that leave a chain on the way: those that fail behind an operator, and those late for it.

Each once, from every operator and in any place, through crashes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import RowError
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import arrow_schema
from penstock.kernels.cache import KernelCache
from penstock.operators.specs import (
    AggregateCall,
    AggregateSpec,
    DeduplicateSpec,
    ProjectSpec,
    TableSpec,
    WindowSpec,
    is_weighted,
)
from penstock.plan.joins import join
from penstock.plan.nodes import step
from penstock.plan.optimizer import plan_program
from penstock.runtime.assembly import warm_program
from penstock.stages.settings import Settings
from penstock.testing.columns import apply
from penstock.testing.plans import (
    Draft,
    col,
    count,
    parse_schema,
    query,
    scan_source,
    session,
    sum_,
    window,
)
from tests.operators.chains import linear
from tests.runtime.laboratory import (
    SECOND_US,
    TIMESTAMP,
    Laboratory,
    table,
    table_source,
)
from tests.thoroughness import some

ROWS = "id bigint not null, key bigint not null, ts timestamp not null"
ID, KEY, TS = column("id", "bigint"), column("key", "bigint"), column("ts", "timestamp")


def timed() -> Draft:
    return scan_source("rows", ROWS, partitions=None).with_watermark("ts", 2 * SECOND_US)


def distinct(rows: Draft, *keys: Any, time: Any = None) -> Draft:
    return Draft(step(DeduplicateSpec(keys, time), rows.relation))


def paired(how: str, left: Draft) -> Draft:
    """Rows with those of another source that have their id and come within two seconds."""
    right = scan_source("others", "oid bigint, ots timestamp", partitions=None)
    right = right.with_watermark("ots", 2 * SECOND_US)
    oid, ots = column("oid", "bigint"), column("ots", "timestamp")
    later = call("add", call("unix_micros", TS), literal(2 * SECOND_US, "bigint"))
    soon = call("le", ots, call("timestamp_micros", later))
    within = call("and", call("ge", ots, TS), soon)
    return Draft(join(how, left.relation, right.relation, [(ID, oid, False)], within))


# Each operator, its rows with a column `part` of which zero fails what follows.
MAKERS: dict[str, Callable[[], Draft]] = {
    "windows that close": lambda: (
        timed()
        .group_by("key", window=window("ts", 4 * SECOND_US))
        .agg(count().alias("n"))
        .select("key", "n", (col("n") % 3).alias("part"))
    ),
    "sliding windows": lambda: (
        timed()
        .group_by("key", window=window("ts", 4 * SECOND_US, 2 * SECOND_US))
        .agg(count().alias("n"))
        .select("key", "n", (col("n") % 3).alias("part"))
    ),
    "sessions": lambda: (
        timed()
        .group_by("key", window=session("ts", SECOND_US // 4))
        .agg(count().alias("n"))
        .select("key", "n", (col("n") % 3).alias("part"))
    ),
    "pairs": lambda: paired("inner", timed()).select(
        "key", col("id").alias("n"), (col("id") % 3).alias("part")
    ),
    "rows without a pair": lambda: paired("left", timed()).select(
        "key", col("id").alias("n"), (col("id") % 3).alias("part")
    ),
    "first rows": lambda: distinct(timed(), ID, KEY).select(
        "key", col("id").alias("n"), (col("id") % 3).alias("part")
    ),
    "first rows within a time": lambda: distinct(timed(), ID, TS, time=TS).select(
        "key", col("id").alias("n"), (col("id") % 3).alias("part")
    ),
}


def arrivals(rng: random.Random, rows: int) -> pa.Table:
    made = [
        (number, rng.randrange(3), number * 100_000 + rng.randrange(SECOND_US))
        for number in range(rows)
    ]
    return table(made, id=pa.int64(), key=pa.int64(), ts=TIMESTAMP)


def sources(rng: random.Random, rows: int) -> dict[str, Any]:
    made = arrivals(rng, rows)
    others = [(number, number * 100_000 + SECOND_US) for number in range(0, rows, 2)]
    return {
        "rows": table_source(made),
        "others": table_source(table(others, oid=pa.int64(), ots=TIMESTAMP)),
    }


def settings(**given: Any) -> Settings:
    return Settings(step_rows_max=17, commit_interval_ms=0, checkpoint_interval_commits=3, **given)


@pytest.mark.parametrize("parallelism", some([2, 1], every=2))
@pytest.mark.parametrize("kind", MAKERS)
def test_rows_that_an_operator_made_are_dead_letters_once(
    lab: Laboratory, kind: str, parallelism: int
) -> None:
    rng = random.Random(f"{kind} {parallelism}")
    source = sources(rng, 300)
    made = MAKERS[kind]()
    divided = made.select("key", "n", apply("int_divide", col("n"), col("part")).alias("r"))
    plain = query("all", made.to_stream("all"), parallelism=parallelism, settings=settings())
    lab.run(plain, source)
    tested = query(
        "some",
        divided.to_stream("out"),
        parallelism=parallelism,
        settings=settings(dead_letter_stream="dead"),
    )
    lab.run_with_crashes(tested, source, rng, crashes=4)
    everything = Counter((row["key"], row["n"], row["part"]) for row in lab.rows("all"))
    whole = Counter((key, n) for key, n, part in everything.elements() if part)
    assert Counter((row["key"], row["n"]) for row in lab.rows("out")) == whole
    dead = lab.rows("dead")
    if dead and dead[0].get("id") is not None:  # what was made is called as in its input
        found = Counter((row["key"], row["id"]) for row in dead)
    else:
        found = Counter((row["key"], row["n"]) for row in dead)
    assert found == Counter((key, n) for key, n, part in everything.elements() if not part)
    assert len(dead) > 5
    assert {row["operator"] for row in dead} <= {"aggregate0", "deduplicate0", "join0"}
    assert all("by zero" in row["error"] for row in dead)


def tables() -> Draft:
    """How many rows of the right table fit each row of the left one, or none."""
    lid, k, a = (column(name, "bigint") for name in ("lid", "k", "a"))
    rid, j, b = (column(name, "bigint") for name in ("rid", "j", "b"))
    left = scan_source("left", "lid bigint, k bigint, a bigint, n bigint")
    right = scan_source("right", "rid bigint, j bigint, b bigint, m bigint")
    fits = call("ge", call("int_divide", b, a), literal(1, "bigint"))
    lefts = step(TableSpec((lid,), None), left.relation)
    rights = step(TableSpec((rid,), None), right.relation)
    both = Draft(join("left", lefts, rights, [(k, j, False)], fits))
    return both.group_by("lid", "n").agg(count("m").alias("fit"), mode="update")


def versions(rng: random.Random, keys: int, rows: int, *names: str) -> pa.Table:
    """Rows of few keys that replace each other, each with a number of its own."""
    made = [
        (rng.randrange(keys), rng.randrange(4), rng.randrange(3), number) for number in range(rows)
    ]
    return table(made, **dict.fromkeys(names, pa.int64()))


@pytest.mark.parametrize("parallelism", some([2, 1], every=2))
@pytest.mark.parametrize("seed", some(range(3), every=3))
def test_rows_of_two_tables_that_fail_together_are_dead_letters_once(
    lab: Laboratory, seed: int, parallelism: int
) -> None:
    rng = random.Random(seed)
    left = versions(rng, 12, 200, "lid", "k", "a", "n")
    right = versions(rng, 12, 200, "rid", "j", "b", "m")
    tested = query(
        "both",
        tables().to_stream("out"),
        parallelism=parallelism,
        settings=settings(dead_letter_stream="dead"),
    )
    source = {"left": table_source(left), "right": table_source(right)}
    lab.run_with_crashes(tested, source, rng, crashes=6)
    dead = lab.rows("dead")
    assert all("by zero" in row["error"] for row in dead)
    dead_left = Counter(row["n"] for row in dead if row.get("n") is not None)
    dead_right = Counter(row["m"] for row in dead if row.get("m") is not None)
    assert len(dead) == dead_left.total() + dead_right.total() > 5
    assert set(dead_left.values()) | set(dead_right.values()) == {1}
    assert {row["a"] for row in dead if row.get("n") is not None} <= {0}
    # Who came later of two that fail depends on how the log orders them: both cannot be there.
    lefts = {row["lid"]: row for row in left.to_pylist()}
    rights = {row["rid"]: row for row in right.to_pylist()}
    shown = {(row["lid"], row["n"]): row["fit"] for row in lab.rows("out")}
    for lid, row in lefts.items():
        if row["n"] in dead_left:
            continue
        others = [
            other["b"]
            for other in rights.values()
            if other["j"] == row["k"] and other["m"] not in dead_right
        ]
        assert row["a"] or not others
        assert shown[lid, row["n"]] == sum(b // row["a"] >= 1 for b in others)


def test_rows_of_two_tables_that_fail_together_stop_a_query_without_dead_letters(
    lab: Laboratory,
) -> None:
    rows = {"left": [(1, 1, 0, 0)], "right": [(1, 1, 1, 0)]}
    names = {"left": ("lid", "k", "a", "n"), "right": ("rid", "j", "b", "m")}
    source = {
        side: table_source(table(given, **dict.fromkeys(names[side], pa.int64())))
        for side, given in rows.items()
    }
    tested = query("both", tables().to_stream("out"), settings=settings())
    with pytest.raises(
        RowError, match=r"vertex both\.\S+: row 0 of \S+ position \d+ fails: .*b div a"
    ):
        lab.run(tested, source)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_rows_of_a_commit_that_fail_are_dead_letters(lab: Laboratory, mode: str) -> None:
    rng = random.Random(mode)
    source = {"rows": table_source(arrivals(rng, 80))}
    counts = scan_source("rows", ROWS, partitions=1).group_by("key")
    made = counts.agg(count().alias("n"), mode=mode)
    failing = made.select("key", apply("int_divide", col("key"), col("key") - 1).alias("r"))
    tested = query("goes", failing.to_stream("out"), settings=settings(dead_letter_stream="dead"))
    lab.run_with_crashes(tested, source, rng, crashes=3)
    assert {row["key"] for row in lab.rows("out")} == {0, 2}
    dead = lab.rows("dead")
    assert {row["key"] for row in dead} == {1}
    seen = [row["n"] for row in dead]
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert mode == "complete" or len(set(seen)) == len(seen)  # each that was emitted, once


def test_rows_that_are_late_for_a_later_operator_are_handed_on() -> None:
    """Behind first rows without a time everything is on time: it is the windows' to judge."""
    schema = parse_schema(ROWS)
    counted = AggregateSpec(
        (("key", KEY),),
        WindowSpec(TS, 10, 10),
        (AggregateCall("count", None, "n"),),
        is_watermarked=True,
    )
    chain = linear((DeduplicateSpec((ID,)), counted), schema, None, want_late=True)

    def take(*rows: tuple[int, int, int]) -> None:
        batch = table(list(rows), id=pa.int64(), key=pa.int64(), ts=TIMESTAMP)
        (rows_,) = batch.cast(arrow_schema(schema)).to_batches()
        output = chain.process(rows_)
        assert (output.late_rows, output.late) == (0, None)

    take((1, 7, 5), (2, 7, 15), (2, 7, 3))
    (closed,) = chain.on_watermark(10)
    assert closed.column("n").to_pylist() == [1]
    assert chain.take_aside().late_rows == 0
    take((3, 8, 9), (4, 8, 10), (1, 7, 2))
    aside = chain.take_aside()
    assert aside.late_rows == 1
    (late,) = aside.late
    assert late.column("id").to_pylist() == [3]
    assert chain.take_aside().late == []
    (closed,) = chain.on_watermark(20)
    assert sum(closed.column("n").to_pylist()) == 2


def test_rows_behind_an_operator_stop_the_chain_where_nobody_wants_them() -> None:
    schema = parse_schema(ROWS)
    broken = ProjectSpec((("r", call("int_divide", literal(1, "bigint"), KEY)),))
    chain = linear((DeduplicateSpec((ID,)), broken), schema, None)
    (batch,) = table([(1, 0, 5)], id=pa.int64(), key=pa.int64(), ts=TIMESTAMP).to_batches()
    with pytest.raises(RowError, match="by zero"):
        chain.process(batch)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_late_rows_of_operators_with_other_columns_share_a_stream(
    lab: Laboratory, parallelism: int
) -> None:
    """What came in is in a window, in a later one, or among the late rows: once."""
    rng = random.Random(parallelism)
    rows = []
    for number in range(400):
        lag_us = rng.randrange(40 * SECOND_US) if rng.random() < 0.2 else 0
        rows.append((number, rng.randrange(3), max(0, number * 100_000 - lag_us)))
    windows = timed().group_by("key", window=window("ts", 4 * SECOND_US)).agg(count().alias("n"))
    firsts = distinct(timed().select("id", "ts"), ID, TS, time=TS)
    tested = query(
        "both",
        windows.to_stream("counts"),
        firsts.to_stream("firsts"),
        parallelism=parallelism,
        settings=settings(late_stream="late"),
    )
    late = plan_program(tested).stream("late")
    assert {(f.name, f.nullable) for f in late.schema} == {
        ("id", False), ("key", True), ("ts", False),
    }  # fmt: skip
    source = {"rows": table_source(table(rows, id=pa.int64(), key=pa.int64(), ts=TIMESTAMP))}
    lab.run_with_crashes(tested, source, rng, crashes=4)
    found = lab.rows("late")
    of_windows = [row["id"] for row in found if row["key"] is not None]
    of_firsts = [row["id"] for row in found if row["key"] is None]
    assert parallelism > 1 or (of_windows and of_firsts)  # else time goes by what others said
    assert len(set(of_windows)) == len(of_windows)
    assert len(of_windows) + sum(row["n"] for row in lab.rows("counts")) == len(rows)
    assert sorted(of_firsts + [row["id"] for row in lab.rows("firsts")]) == list(range(len(rows)))


@pytest.mark.parametrize("kind", ["sessions", "join"])
def test_what_came_in_is_in_the_result_or_late_once(lab: Laboratory, kind: str) -> None:
    rng = random.Random(kind)
    rows = []
    for number in range(400):
        lag_us = rng.randrange(60 * SECOND_US) if rng.random() < 0.2 else 0
        rows.append((number, rng.randrange(3), max(0, number * 100_000 - lag_us)))
    given = sources(rng, 400)
    given["rows"] = table_source(table(rows, id=pa.int64(), key=pa.int64(), ts=TIMESTAMP))
    if kind == "join":
        made = paired("left", timed())
    else:
        made = timed().group_by("key", window=session("ts", SECOND_US)).agg(count().alias("n"))
    tested = query("all", made.to_stream("out"), settings=settings(late_stream="late"))
    lab.run_with_crashes(tested, given, rng, crashes=4)
    late = [row["id"] for row in lab.rows("late") if row["id"] is not None]
    assert late
    assert len(set(late)) == len(late)
    if kind == "join":
        found = [row["id"] for row in lab.rows("out")]
        assert sorted(found + late) == list(range(400))  # each has one pair at most
    else:
        assert len(late) + sum(row["n"] for row in lab.rows("out")) == 400


@pytest.mark.parametrize("mode", ["append", "update"])
def test_what_fails_behind_an_operator_does_not_stop_who_only_warms_up(
    mode: str, kernels: KernelCache
) -> None:
    """One row of zeros goes through a chain that nobody sees."""
    grouped = timed().group_by("key", window=window("ts", 4 * SECOND_US))
    made = grouped.agg(sum_("id").alias("n"), mode=mode)
    failing = made.select("key", apply("int_divide", col("key"), col("n")).alias("r"))
    program = plan_program(query("warm", failing.to_stream("out"), settings=settings()))
    warm_program(program, kernels)


def test_who_only_warms_up_takes_no_row_from_a_table(kernels: KernelCache) -> None:
    """Groups that change on both sides of a join: the row of zeros comes, it does not go."""
    left = timed().group_by("key").agg(sum_("id").alias("n"), mode="update")
    others = scan_source("others", "oid bigint not null", partitions=None)
    right = others.group_by("oid").agg(count().alias("m"), mode="update")
    equal = [(KEY, column("oid", "bigint"), False)]
    both = Draft(join("inner", left.relation, right.relation, equal))
    program = plan_program(query("warm", both.to_stream("out"), settings=settings()))
    assert any(is_weighted(port.schema) for stage in program.stages for port in stage.ports)
    warm_program(program, kernels)
