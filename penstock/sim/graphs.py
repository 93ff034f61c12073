"""Graphs of operators, each twice: as the engine is asked for it, and as plain Python answers it.

All rows have the columns `rid`, `k`, `g`, `v`, and, while a time is left, `ts`. So operators can
be put on each other in any order that the engine takes. None of the rows is late here: how the
input is cut into deliveries, and when event time goes on, says nothing about the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.operators.specs import (
    DeduplicateSpec,
    Frame,
    Order,
    OverCall,
    OverSpec,
    SortSpec,
    SortStep,
    TableSpec,
)
from penstock.plan.joins import join
from penstock.plan.nodes import changing, column_refs, step
from penstock.sim.data import SECOND_US, Row
from penstock.sim.oracle import window_starts
from penstock.testing.columns import ColumnExpression, apply, col
from penstock.testing.plans import (
    AggregateColumn,
    Draft,
    SomeColumn,
    aggregate,
    count,
    max_,
    session,
    sum_,
    window,
)

Line = dict[str, Any]
Feeds = Sequence[Sequence[Row]]
Mode = Literal["append", "update", "complete", "changes"]

PLAIN = ("rid", "k", "g", "v")
TIMED = (*PLAIN, "ts")
NEAR_US = (4 * SECOND_US, 2 * SECOND_US)  # how far before and after a row others are that match
AGGREGATES = (
    count().alias("n"),
    sum_("v").alias("s"),
    max_("rid").alias("top"),
)


@dataclass(frozen=True)
class Graph:
    """Rows that a query computes. `answer` gives them of the feeds, in plain Python.

    `mode` says how the result is to be read: rows that only come; the last one of each of `keys`;
    the last whole result, in its order if it `is_sorted`; or rows that come and go.
    """

    draft: Draft
    answer: Callable[[Feeds], list[Line]]
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    vanishes: bool = False  # rows that were shown may be gone at the end
    is_sorted: bool = False
    in_order: bool = False  # of one feed
    unordered: tuple[str, ...] = ()  # columns of lists in no order

    @property
    def is_timed(self) -> bool:
        """Whether event time speaks of `ts`."""
        return "ts" in self.draft.relation.event_time

    @property
    def is_changing(self) -> bool:
        return changing(self.draft.relation) is not None

    def then(self, draft: Draft, change: Callable[[list[Line]], Iterable[Line]]) -> Graph:
        """Another operator: `change` makes its rows of those before it."""
        before = self.answer
        answer = lambda feeds: list(change(before(feeds)))  # noqa: E731
        return replace(self, draft=draft, answer=answer, in_order=False)


# --- rows -----------------------------------------------------------------------------------------


def feed(draft: Draft, number: int, delay_us: int | None) -> Graph:
    """The rows of a feed, with the time that a watermark of this delay speaks of."""
    names = PLAIN if delay_us is None else TIMED
    timed = draft if delay_us is None else draft.with_watermark("ts", delay_us)

    def rows(feeds: Feeds) -> list[Line]:
        return [{name: getattr(row, name) for name in names} for row in feeds[number]]

    return Graph(timed.select(*names), rows, in_order=True)


def union(one: Graph, other: Graph) -> Graph:
    return replace(
        one,
        draft=one.draft.union(other.draft),
        answer=lambda feeds: one.answer(feeds) + other.answer(feeds),
        in_order=False,
    )


def positive(rows: Graph) -> Graph:
    """Those whose `v` is above 0."""
    found = rows.then(
        rows.draft.filter(col("v") > 0),
        lambda lines: (line for line in lines if line["v"] is not None and line["v"] > 0),
    )
    vanishes = rows.vanishes or rows.is_changing
    return replace(found, vanishes=vanishes, in_order=rows.in_order)


def mapped(rows: Graph) -> Graph:
    """`v` doubled, with `g` added to it."""
    draft = rows.draft.with_column("v", col("v") * 2 + col("g"))

    def change(lines: list[Line]) -> Iterator[Line]:
        for line in lines:
            known = line["v"] is not None and line["g"] is not None
            yield {**line, "v": line["v"] * 2 + line["g"] if known else None}

    return replace(rows.then(draft, change), in_order=rows.in_order)


def punctual(rows: Graph) -> Graph:
    """Those that have a time."""
    return rows.then(
        rows.draft.filter(col("ts").is_not_null()),
        lambda lines: (line for line in lines if line["ts"] is not None),
    )


# --- groups ---------------------------------------------------------------------------------------


def _grouped(lines: Iterable[Line], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Line]]:
    groups: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in lines:
        groups[tuple(line[key] for key in keys)].append(line)
    return groups


def _shown(keys: Sequence[str], time: SomeColumn | None = None) -> list[SomeColumn]:
    """What groups are to those behind them."""
    name = "k" if "k" in keys else col("g").cast("string").alias("k")
    middle = "g" if "g" in keys else col("n").alias("g")
    shown: list[SomeColumn] = [col("top").alias("rid"), name, middle, col("s").alias("v")]
    return shown if time is None else [*shown, time]


def _summary(key: tuple[Any, ...], keys: Sequence[str], lines: Iterable[Line]) -> Line:
    own = list(lines)
    by = dict(zip(keys, key, strict=True))
    text = None if by.get("g") is None else str(by["g"])
    numbers = [line["v"] for line in own if line["v"] is not None]
    return {
        "rid": max((line["rid"] for line in own if line["rid"] is not None), default=None),
        "k": by.get("k", text),
        "g": by.get("g", len(own)),
        "v": sum(numbers) if numbers else None,
    }


def groups(rows: Graph, keys: tuple[str, ...], mode: Mode) -> Graph:
    """Groups by these keys, as they are in the end."""
    made = rows.draft.group_by(*keys).agg(
        *AGGREGATES, mode="complete" if mode == "complete" else "update"
    )

    def change(lines: list[Line]) -> Iterator[Line]:
        return (_summary(key, keys, own) for key, own in _grouped(lines, keys).items())

    found = rows.then(made.select(*_shown(keys)), change)
    vanishes = rows.vanishes or (rows.is_changing and "g" in keys)
    return replace(found, mode=mode, keys=keys, vanishes=vanishes)


def windows(rows: Graph, keys: tuple[str, ...], size_us: int, slide_us: int) -> Graph:
    """Windows that are over; their end is the time of what they give."""
    made = rows.draft.group_by(*keys, window=window("ts", size_us, slide_us)).agg(*AGGREGATES)

    def change(lines: list[Line]) -> Iterator[Line]:
        found: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
        for line in lines:
            for start in () if line["ts"] is None else window_starts(line["ts"], size_us, slide_us):
                found[(start, *(line[key] for key in keys))].append(line)
        for (start, *key), own in found.items():
            yield {**_summary(tuple(key), keys, own), "ts": start + size_us}

    return rows.then(made.select(*_shown(keys, col("window")["end"].alias("ts"))), change)


def sessions(rows: Graph, keys: tuple[str, ...], gap_us: int | None) -> Graph:
    """Sessions that are over; without a gap each row has its own, of a second or more."""
    gap = gap_us if gap_us is not None else _own_gap()
    made = rows.draft.group_by(*keys, window=session("ts", gap)).agg(*AGGREGATES)

    def change(lines: list[Line]) -> Iterator[Line]:
        timed = [line for line in lines if line["ts"] is not None]
        for key, own in _grouped(timed, keys).items():
            for end, members in merged(own, gap_us):
                yield {**_summary(key, keys, members), "ts": end}

    return rows.then(made.select(*_shown(keys, col("session_window")["end"].alias("ts"))), change)


def merged(lines: Iterable[Line], gap_us: int | None) -> list[tuple[int, list[Line]]]:
    """The sessions of rows of one key: their ends and rows."""
    found: list[tuple[int, list[Line]]] = []
    for line in sorted(lines, key=lambda line: int(line["ts"])):
        end = line["ts"] + (gap_us if gap_us is not None else _gap_of(line))
        if found and line["ts"] <= found[-1][0]:
            found[-1] = (max(found[-1][0], end), [*found[-1][1], line])
        else:
            found.append((end, [line]))
    return found


def _own_gap() -> ColumnExpression:
    """Per row: 1, 2 or 3 seconds, by its number."""
    return (apply("pmod", col("rid"), 3) + 1) * SECOND_US


def _gap_of(line: Line) -> int:
    return (int(line["rid"]) % 3 + 1) * SECOND_US


def collected(rows: Graph) -> Graph:
    """Per key all values of `v`, and those of `g` that there are."""
    calls: tuple[AggregateColumn, ...] = (
        aggregate("collect_list", "v").alias("items"),
        aggregate("collect_set", "g").alias("kinds"),
    )
    made = rows.draft.group_by("k").agg(*calls, mode="update")

    def change(lines: list[Line]) -> Iterator[Line]:
        for (k,), own in _grouped(lines, ["k"]).items():
            items = sorted(line["v"] for line in own if line["v"] is not None)
            kinds = sorted({line["g"] for line in own if line["g"] is not None})
            yield {"k": k, "items": tuple(items), "kinds": tuple(kinds)}

    found = rows.then(made, change)
    return replace(found, mode="update", keys=("k",), unordered=("items", "kinds"))


# --- joins ----------------------------------------------------------------------------------------


def joined(how: str, left: Graph, right: Graph, near: bool) -> Graph:
    """Rows of the same `k`; with `near` those whose times are not far apart."""
    others = right.draft.select(*(col(f.name).alias(f"r_{f.name}") for f in right.draft.schema))
    both = (*left.draft.schema, *others.schema)
    condition = _near().resolve(both, "join") if near else None
    key = (col("k").resolve(both, "join"), col("r_k").resolve(both, "join"), False)
    draft = Draft(join(how, left.draft.relation, others.relation, [key], condition))
    names = [field.name for field in left.draft.schema]
    if how not in ("semi", "anti"):
        given = apply("coalesce", col("r_v"), col("r_rid")).alias("v")
        draft = draft.select(*(given if name == "v" else name for name in names))

    def answer(feeds: Feeds) -> list[Line]:
        lefts, rights = left.answer(feeds), right.answer(feeds)
        return list(_pairs(how, lefts, rights, near, names))

    vanishes = left.is_changing or right.is_changing
    return Graph(draft, answer, vanishes=vanishes)


def _pairs(
    how: str, lefts: list[Line], rights: list[Line], near: bool, names: list[str]
) -> Iterator[Line]:
    met: set[int] = set()
    for line in lefts:
        own = [at for at, other in enumerate(rights) if _match(line, other, near)]
        met.update(own)
        if how in ("semi", "anti"):
            if bool(own) == (how == "semi"):
                yield line
            continue
        for at in own:
            v = rights[at]["v"]
            yield {**line, "v": rights[at]["rid"] if v is None else v}
        if not own and how in ("left", "full"):
            yield {**line, "v": None}
    for at, other in enumerate(rights):
        if at not in met and how in ("right", "full"):
            yield {**dict.fromkeys(names), "v": other["rid"] if other["v"] is None else other["v"]}


def _match(line: Line, other: Line, near: bool) -> bool:
    if line["k"] is None or line["k"] != other["k"]:
        return False
    if not near:
        return True
    if line["ts"] is None or other["ts"] is None:
        return False
    before_us, after_us = NEAR_US
    return bool(line["ts"] - before_us <= other["ts"] <= line["ts"] + after_us)


def _near() -> ColumnExpression:
    before_us, after_us = NEAR_US
    moved = [
        apply("timestamp_micros", apply("unix_micros", col("ts")) + by_us)
        for by_us in (-before_us, after_us)
    ]
    return apply("and", col("r_ts") >= moved[0], col("r_ts") <= moved[1])


# --- rows that are kept ---------------------------------------------------------------------------


def distinct(rows: Graph) -> Graph:
    """One row of each key and, while there is a time, moment: nothing else is left of them."""
    names = ("k", "ts") if rows.is_timed else ("k", "g")
    some = rows.draft.select(*names)
    columns = dict(column_refs(some.schema))
    spec = DeduplicateSpec(tuple(columns.values()), columns.get("ts"))
    if "ts" not in names:
        draft = Draft(step(spec, some.relation)).select(
            col("g").alias("rid"), "k", "g", col("g").alias("v")
        )
    else:
        micros = apply("unix_micros", col("ts"))
        draft = Draft(step(spec, some.relation)).select(
            micros.alias("rid"), "k", micros.alias("g"), micros.alias("v"), "ts"
        )

    def change(lines: list[Line]) -> Iterator[Line]:
        for k, number in dict.fromkeys((line["k"], line[names[1]]) for line in lines):
            made = {"rid": number, "k": k, "g": number, "v": number}
            yield made | ({"ts": number} if "ts" in names else {})

    return rows.then(draft, change)


def table(rows: Graph, has_deletes: bool) -> Graph:
    """The newest row of each `k`, by the order of one feed; some rows take theirs away."""
    columns = dict(column_refs(rows.draft.schema))
    removed = (col("g") == 7).resolve(rows.draft.schema, "table") if has_deletes else None
    draft = Draft(step(TableSpec((columns["k"],), removed), rows.draft.relation))

    def change(lines: list[Line]) -> Iterator[Line]:
        newest: dict[Any, Line] = {}
        for line in lines:
            newest.pop(line["k"], None)
            if not (has_deletes and line["g"] == 7):
                newest[line["k"]] = line
        return iter(newest.values())

    return replace(rows.then(draft, change), mode="update", keys=("k",), vanishes=has_deletes)


# --- order ----------------------------------------------------------------------------------------


def last_ones(rows: Graph) -> Graph:
    """Of each key in the order of time: the `v` before, and the sum of three."""
    rows = punctual(rows)
    columns = dict(column_refs(rows.draft.schema))
    order = tuple(Order(columns[name]) for name in ("ts", "rid", "g", "v"))  # type: ignore[arg-type]
    calls = (
        OverCall("lag", "before", columns["v"]),
        OverCall("sum", "three", columns["v"], Frame(True, -2, 0)),
    )
    spec = OverSpec((columns["k"],), order, calls, columns["ts"], is_running=True)  # type: ignore[arg-type]
    draft = Draft(step(spec, rows.draft.relation)).select(
        "rid", "k", col("three").alias("g"), col("before").alias("v")
    )

    def change(lines: list[Line]) -> Iterator[Line]:
        for own in _grouped(lines, ["k"]).values():
            own.sort(key=lambda line: [_rank(line[name]) for name in ("ts", "rid", "g", "v")])
            for at, line in enumerate(own):
                values = [each["v"] for each in own[max(0, at - 2) : at + 1]]
                numbers = [value for value in values if value is not None]
                before = own[at - 1]["v"] if at else None
                yield {"rid": line["rid"], "k": line["k"], "v": before,
                       "g": sum(numbers) if numbers else None}  # fmt: skip

    return rows.then(draft, change)


def _rank(value: Any) -> tuple[bool, Any]:
    """Nulls come first."""
    return (value is not None, value)


def best(rows: Graph, rows_max: int) -> Graph:
    """Of all rows of one moment those with the greatest `v`; the time is the end of a window."""
    rows = punctual(rows)
    columns = dict(column_refs(rows.draft.schema))
    names = ("v", "rid", "g", "k")
    order = tuple(
        Order(columns[name], descending=name == "v", nulls_first=name != "v")  # type: ignore[arg-type]
        for name in names
    )
    calls = (OverCall("row_number", "place"),)
    spec = OverSpec((columns["ts"],), order, calls, columns["ts"], best=("place", rows_max))  # type: ignore[arg-type]
    draft = Draft(step(spec, rows.draft.relation)).filter(col("place") <= rows_max).select(*TIMED)

    def change(lines: list[Line]) -> Iterator[Line]:
        for own in _grouped(lines, ["ts"]).values():
            own.sort(key=lambda line: [_rank(line[name]) for name in names[1:]])
            own.sort(key=lambda line: _rank(line["v"]), reverse=True)
            yield from own[:rows_max]

    return rows.then(draft, change)


def ordered(rows: Graph, rows_max: int | None) -> Graph:
    """The whole result by `v`, then key; or the first rows of it, without the very first."""
    columns = dict(column_refs(rows.draft.schema))
    names = ("v", "k", "g", "rid")
    order = tuple(Order(columns[name]) for name in names)  # type: ignore[arg-type]
    steps = (SortStep(order, 0 if rows_max is None else 1, rows_max),)
    draft = Draft(step(SortSpec(steps), rows.draft.relation))

    def change(lines: list[Line]) -> list[Line]:
        found = sorted(lines, key=lambda line: [_rank(line[name]) for name in names])
        return found if rows_max is None else found[1 : 1 + rows_max]

    return replace(rows.then(draft, change), mode="complete", is_sorted=True, vanishes=True)


__all__ = [
    "Feeds", "Graph", "Line", "best", "collected", "distinct", "feed", "groups", "joined",
    "last_ones", "mapped", "merged", "ordered", "positive", "punctual", "sessions",
    "table", "union", "windows",
]  # fmt: skip
