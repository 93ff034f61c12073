"""Every operator with state accounts for its input: its result is made of all rows but those that
were late and those that failed, and each of these is beside the result once, through crashes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from penstock.expressions.tree import Expression, call, column, literal
from penstock.operators.specs import (
    DeduplicateSpec,
    Order,
    OverCall,
    OverSpec,
    TableSpec,
)
from penstock.plan.joins import join
from penstock.plan.nodes import step
from penstock.stages.settings import Settings
from penstock.testing.columns import ColumnExpression, apply, lit
from penstock.testing.plans import Draft, col, count, query, scan_source, session, sum_, window
from tests.runtime.laboratory import SECOND_US, TIMESTAMP, Laboratory, Row, table, table_source
from tests.thoroughness import some

SIZE_US, GAP_US, WITHIN_US = 4 * SECOND_US, SECOND_US // 4, 2 * SECOND_US
ROWS, POISON = 300, 7  # how many, and every which one fails
HOWS = ("inner", "left", "right", "full", "semi", "anti")


@dataclass(frozen=True)
class Poison:
    """Where rows fail whose number POISON divides: as keys, arguments or pairs; or nowhere."""

    place: str = ""

    def key(self, name: str) -> ColumnExpression:
        return self._used("key", name)

    def argument(self, name: str) -> ColumnExpression:
        return self._used("argument", name)

    def _used(self, place: str, name: str) -> ColumnExpression:
        """The column, or nothing where a number divided by its rest is nothing."""
        if self.place != place:
            return col(name)
        checked = apply("int_divide", col(name) - col(name), col(name) % POISON)
        return col(name) + checked


Build = Callable[[Poison], Draft]
Model = Callable[[list[Row], list[Row]], Counter[Any]]  # of both inputs, what the result must be
Shown = Callable[[list[Row]], Counter[Any]]


@dataclass(frozen=True)
class Case:
    """An operator, its result in plain Python, and what the result's rows stand for."""

    build: Build
    model: Model
    shown: Shown
    places: tuple[str, ...] = ("key", "argument")


# --- inputs ---------------------------------------------------------------------------------------


def rows() -> Draft:
    shape = "id bigint not null, key bigint not null, ts timestamp not null"
    return scan_source("rows", shape, partitions=None)


def timed() -> Draft:
    return rows().with_watermark("ts", SECOND_US)


def others() -> Draft:
    shape = "oid bigint not null, okey bigint not null, ots timestamp not null"
    return scan_source("others", shape, partitions=None)


def newest(of: Draft, key: str) -> Draft:
    """Rows as a table: a row replaces the one of its key."""
    return Draft(step(TableSpec((column(key, "bigint", nullable=False),)), of.relation))


def arrivals(rng: random.Random, id: str, key: str, time: str) -> pa.Table:
    made = []
    for number in range(ROWS):
        lag_us = rng.randrange(40 * SECOND_US) if rng.random() < 0.2 else rng.randrange(SECOND_US)
        made.append((number, rng.randrange(3), max(0, number * 100_000 - lag_us)))
    return table(made, **{id: pa.int64(), key: pa.int64(), time: TIMESTAMP})


# --- cases ----------------------------------------------------------------------------------------


def start_of(time_us: int, size_us: int = SIZE_US) -> int:
    return time_us - time_us % size_us


def _totals(found: list[Row]) -> Counter[Any]:
    return Counter((row["window"][0], row["n"], row["s"]) for row in found)


def _windows(lefts: list[Row], _rights: list[Row]) -> Counter[Any]:
    groups: dict[tuple[int, int], list[int]] = {}
    for row in lefts:
        groups.setdefault((start_of(row["ts"]), row["key"]), []).append(row["id"])
    return Counter((start, len(ids), sum(ids)) for (start, _), ids in groups.items())


def _windowed(of: Draft, poison: Poison, mode: str = "append") -> Draft:
    checked = of.select("id", "key", "ts", (poison.key("id") * 0 + col("key")).alias("k"))
    grouped = checked.group_by("k", window=window("ts", SIZE_US))
    return grouped.agg(count().alias("n"), sum_(poison.argument("id")).alias("s"), mode=mode)


def _sliding(poison: Poison) -> Draft:
    grouped = timed().group_by(
        poison.key("id").alias("id"), window=window("ts", SIZE_US, SIZE_US // 2)
    )
    return grouped.agg(sum_(poison.argument("id")).alias("s"))


def _pairs(how: str, poison: Poison) -> Draft:
    """Rows with those of the other source that have their number and come within a time."""
    right = others().with_watermark("ots", SECOND_US).relation
    left = timed().select("id", "key", "ts", poison.key("id").alias("by")).relation
    ts, ots = column("ts", "timestamp"), column("ots", "timestamp")
    last = call("add", call("unix_micros", ts), literal(WITHIN_US, "bigint"))
    first = call("subtract", call("unix_micros", ts), literal(WITHIN_US, "bigint"))
    condition = call(
        "and",
        call("ge", ots, call("timestamp_micros", first)),
        call("le", ots, call("timestamp_micros", last)),
    )
    if poison.place == "condition":
        condition = call("and", condition, _fails_in_pairs())
    equal = [(column("by", "bigint"), column("oid", "bigint"), False)]
    return Draft(join(how, left, right, equal, condition))


def _fails_in_pairs() -> Expression:
    both = call("add", column("id", "bigint"), column("oid", "bigint"))
    rest = call("pmod", both, literal(2 * POISON, "bigint"))
    return call("ge", call("int_divide", literal(1, "bigint"), rest), literal(0, "bigint"))


def _joined(how: str) -> Model:
    def model(lefts: list[Row], rights: list[Row]) -> Counter[Any]:
        by = {row["oid"]: row for row in rights}
        found: Counter[Any] = Counter()
        for row in lefts:
            other = by.get(row["id"])
            if other is not None and abs(other["ots"] - row["ts"]) > WITHIN_US:
                other = None
            if other is not None and how != "anti":
                found[row["id"], None if how == "semi" else row["id"]] += 1
            elif other is None and how in ("left", "full", "anti"):
                found[row["id"], None] += 1
            if other is not None:
                by.pop(row["id"])
        if how in ("right", "full"):
            found.update((None, oid) for oid in by)
        return found

    return model


def _numbers(found: list[Row]) -> Counter[Any]:
    return Counter((row["id"], row.get("oid")) for row in found)


def _first_rows(poison: Poison, within_us: int | None = None, by_time: bool = True) -> Draft:
    of = timed().select("id", "key", "ts", poison.key("id").alias("by"))
    ts, by = column("ts", "timestamp"), column("by", "bigint")
    spec = DeduplicateSpec((by, ts) if by_time else (by,), ts, within_us)
    return Draft(step(spec, of.relation))


def _best(poison: Poison) -> Draft:
    """The place of each row among those of its key and window, by its number."""
    at = apply("unix_micros", col("ts"))
    ends = apply("timestamp_micros", at - apply("pmod", at, lit(SIZE_US)) + SIZE_US)
    of = timed().select("id", "key", "ts", poison.key("id").alias("by"), ends.alias("until"))
    names = ("key", "until")
    parts = tuple(column(n, "bigint" if n == "key" else "timestamp", nullable=False) for n in names)
    order = (Order(column("by", "bigint", nullable=False)),)
    spec = OverSpec(parts, order, (OverCall("rank", "place"),), parts[1])
    return Draft(step(spec, of.relation))


def _places(lefts: list[Row], _rights: list[Row]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in lefts:
        peers = [o for o in lefts if _of_window(o) == _of_window(row)]
        found[row["id"], 1 + sum(o["id"] < row["id"] for o in peers)] += 1
    return found


def _of_window(row: Row) -> tuple[int, int]:
    return row["key"], start_of(row["ts"])


def _grouped_again(poison: Poison) -> Draft:
    inner = _windowed(timed(), poison)
    end = apply("unix_micros", apply("get_field", col("window"), name="end"))
    last = apply("timestamp_micros", end - 1)
    outer = inner.group_by(window=window(last, 2 * SIZE_US, output="window2"))
    return outer.agg(sum_("n").alias("n"), sum_("s").alias("s"))


def _windows_of_windows(lefts: list[Row], _rights: list[Row]) -> Counter[Any]:
    groups: dict[int, list[int]] = {}
    for row in lefts:
        groups.setdefault(start_of(row["ts"], 2 * SIZE_US), []).append(row["id"])
    return Counter((start, len(ids), sum(ids)) for start, ids in groups.items())


def _with_table(how: str, poison: Poison) -> Draft:
    """Each row of the stream goes on once, whatever the table has; then windows count it."""
    stream = timed().select("id", "key", "ts", poison.key("id").alias("by")).relation
    people = newest(others(), "oid").relation
    if how == "right":
        equal = [(column("oid", "bigint"), column("by", "bigint"), False)]
        both = Draft(join("right", people, stream, equal))
    else:
        equal = [(column("by", "bigint"), column("oid", "bigint"), False)]
        both = Draft(join("left", stream, people, equal))
    counted = both.select("id", "key", "ts").group_by("key", window=window("ts", SIZE_US))
    return counted.agg(count().alias("n"), sum_(poison.argument("id")).alias("s"))


CASES: dict[str, Case] = {
    "windows": Case(lambda p: _windowed(timed(), p), _windows, _totals),
    "sliding windows": Case(
        _sliding,
        lambda lefts, _: Counter({row["id"]: 1 for row in lefts}),
        lambda found: Counter({row["id"] for row in found}),
    ),
    "sessions": Case(
        lambda p: (
            timed()
            .group_by(poison_key(p), window=session("ts", GAP_US))
            .agg(count().alias("n"), sum_(p.argument("id")).alias("s"))
        ),
        lambda lefts, _: Counter({(len(lefts), sum(row["id"] for row in lefts)): 1}),
        lambda found: Counter({(sum(r["n"] for r in found), sum(r["s"] for r in found)): 1}),
    ),
    "first rows": Case(
        _first_rows,
        lambda lefts, _: Counter((row["id"], None) for row in lefts),
        _numbers,
        ("key",),
    ),
    "first rows within a time": Case(
        lambda p: _first_rows(p, SECOND_US, by_time=False),
        lambda lefts, _: Counter((row["id"], None) for row in lefts),
        _numbers,
        ("key",),
    ),
    **{
        f"{how} join": Case(
            lambda p, how=how: _pairs(how, p), _joined(how), _numbers, ("key", "condition")
        )
        for how in HOWS
    },
    "ranks": Case(
        _best, _places, lambda found: Counter((row["id"], row["place"]) for row in found), ("key",)
    ),
    "windows of windows": Case(
        _grouped_again,
        _windows_of_windows,
        lambda found: Counter((row["window2"][0], row["n"], row["s"]) for row in found),
    ),
    "windows behind a table, left": Case(lambda p: _with_table("left", p), _windows, _totals),
    "windows behind a table, right": Case(lambda p: _with_table("right", p), _windows, _totals),
    "windows in update mode": Case(
        lambda p: _windowed(timed(), p, "update"),
        _windows,
        lambda found: _totals(list({(r["window"], r["k"]): r for r in found}.values())),
    ),
    "groups of changing windows": Case(
        lambda p: (
            _windowed(timed(), p, "update")
            .group_by("k")
            .agg(sum_("n").alias("n"), sum_("s").alias("s"), mode="update")
        ),
        lambda lefts, _: Counter(
            (key, len(ids), sum(ids))
            for key in range(3)
            if (ids := [row["id"] for row in lefts if row["key"] == key])
        ),
        lambda found: Counter(
            (r["k"], r["n"], r["s"]) for r in {row["k"]: row for row in found}.values()
        ),
    ),
}


def poison_key(poison: Poison) -> Any:
    return (poison.key("id") * 0 + col("key")).alias("k")


# --- runs -----------------------------------------------------------------------------------------


def settings(**given: Any) -> Settings:
    return Settings(step_rows_max=17, commit_interval_ms=0, checkpoint_interval_commits=3, **given)


def run(
    lab: Laboratory, case: Case, poison: Poison, parallelism: int, rng: random.Random, **side: str
) -> tuple[list[Row], list[Row]]:
    """Run through crashes; return both inputs as rows."""
    given = {
        "rows": arrivals(rng, "id", "key", "ts"),
        "others": arrivals(rng, "oid", "okey", "ots"),
    }
    tested = query(
        "q", case.build(poison).to_stream("out"), parallelism=parallelism, settings=settings(**side)
    )
    sources = {name: table_source(each) for name, each in given.items()}
    lab.run_with_crashes(tested, sources, rng, crashes=4)
    inputs = []
    for each in given.values():
        times = each.column(2).cast(pa.int64())
        inputs.append(each.set_column(2, each.schema.names[2], times).to_pylist())
    return inputs[0], inputs[1]


def beside(lab: Laboratory, stream: str) -> tuple[list[int], list[int]]:
    """The numbers of both inputs' rows in a side stream."""
    found = lab.rows(stream)
    return (
        [row["id"] for row in found if row.get("id") is not None],
        [row["oid"] for row in found if row.get("oid") is not None and row.get("id") is None],
    )


def left_out(given: list[Row], number: str, *gone: list[int]) -> list[Row]:
    every = {each for some in gone for each in some}
    return [row for row in given if row[number] not in every]


# Each place by one vertex or by two, in turns; one in three in `make test`.
PLACES = [
    pytest.param(name, place, 1 + at % 2, marks=pytest.mark.slow if at % 3 else ())
    for at, (name, place) in enumerate((n, p) for n, case in CASES.items() for p in case.places)
]


@pytest.mark.parametrize("parallelism", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some([*CASES], every=2))
def test_what_came_in_is_in_the_result_or_late_once(
    lab: Laboratory, name: str, parallelism: int
) -> None:
    case, rng = CASES[name], random.Random(f"{name} {parallelism}")
    lefts, rights = run(lab, case, Poison(), parallelism, rng, late_stream="late")
    late, late_others = beside(lab, "late")
    assert len(set(late)) == len(late)
    assert len(set(late_others)) == len(late_others)
    assert late or parallelism > 1  # else time goes by what others have said
    lefts, rights = left_out(lefts, "id", late), left_out(rights, "oid", late_others)
    assert case.shown(lab.rows("out")) == case.model(lefts, rights)


@pytest.mark.parametrize(("name", "place", "parallelism"), PLACES)
def test_what_came_in_is_in_the_result_or_failed_once(
    lab: Laboratory, name: str, place: str, parallelism: int
) -> None:
    case, rng = CASES[name], random.Random(f"{name} {place} {parallelism}")
    sides = {"late_stream": "late", "dead_letter_stream": "dead"}
    lefts, rights = run(lab, case, Poison(place), parallelism, rng, **sides)
    late, late_others = beside(lab, "late")
    dead, dead_others = beside(lab, "dead")
    for one, other in ((late, dead), (late_others, dead_others)):
        assert len({*one, *other}) == len(one) + len(other)
    assert dead or dead_others
    assert all(number % POISON == 0 for number in (*dead, *dead_others))
    assert all("by zero" in row["error"] for row in lab.rows("dead"))
    if place != "condition":
        assert {*dead, *late} >= {number for number in range(ROWS) if number % POISON == 0}
    lefts, rights = (
        left_out(lefts, "id", late, dead),
        left_out(rights, "oid", late_others, dead_others),
    )
    assert case.shown(lab.rows("out")) == case.model(lefts, rights)
