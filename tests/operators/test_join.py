"""Joins against nested loops over all rows: pairs, rows alone, late rows, and after restarts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, RowError, StateTooLarge
from penstock.expressions.tree import Expression, call, column, literal
from penstock.expressions.types import BIGINT, Field, Schema, arrow_schema, parse_type
from penstock.json_codec import canonical_json, parse
from penstock.operators.chain import Chain
from penstock.operators.contract import TIME_END
from penstock.operators.specs import (
    HOWS,
    JoinKey,
    JoinMatch,
    JoinSide,
    JoinSpec,
    TimeLimit,
    spec_from_json,
)
from tests.thoroughness import some


def schema(side: str) -> Schema:
    kinds = (("k", "string"), ("n", "bigint"), ("at", "timestamp"), ("tags", "array<int>"))
    return tuple(Field(f"{side}{name}", parse_type(kind)) for name, kind in kinds)


LEFT, RIGHT = schema("l"), schema("r")
LK, LN, LAT, _ = (column(field.name, field.type) for field in LEFT)
RK, RN, RAT, _ = (column(field.name, field.type) for field in RIGHT)
BEFORE_US, AFTER_US = 20, 5

Row = tuple[str | None, int | None, int | None, list[int] | None]


def moved(time: Expression, by_us: int) -> Expression:
    micros = call("add", call("unix_micros", time), literal(by_us, BIGINT))
    return call("timestamp_micros", micros)


NEAR = call(
    "and",
    call("ge", RAT, moved(LAT, -BEFORE_US)),
    call("le", RAT, moved(LAT, AFTER_US)),
)


def spec(how: str, *, null_safe: bool = False, more: Expression | None = None) -> JoinSpec:
    """Rows of one key whose times are near each other."""
    condition = NEAR if more is None else call("and", NEAR, more)
    return JoinSpec(
        how,
        JoinMatch((JoinKey(LK, RK, null_safe),), condition),
        JoinSide(LAT, limits=(TimeLimit(LAT, AFTER_US),)),
        JoinSide(RAT, limits=(TimeLimit(RAT, BEFORE_US),)),
        ("lat", "rat"),
        BEFORE_US,
    )


def chain(of: JoinSpec, **options: Any) -> Chain:
    return Chain([(LEFT, ()), (RIGHT, ())], (of,), None, **options)


def batch(rows: list[Row], port: int) -> pa.RecordBatch:
    kinds = arrow_schema((LEFT, RIGHT)[port])
    columns = [
        pa.array([row[at] for row in rows], pa.int64() if at == 2 else kinds.types[at]).cast(
            kinds.types[at]
        )
        for at in range(4)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=kinds)


def plain(batches: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in batches:
        for row in each.to_pylist():
            found[repr([_value(value) for value in row.values()])] += 1
    return found


def _value(value: Any) -> Any:
    return value if not hasattr(value, "timestamp") else round(value.timestamp() * 1e6)


class NestedLoops:
    """All rows that were not late, compared one by one at the end."""

    def __init__(self, of: JoinSpec) -> None:
        self.spec = of
        self.rows: tuple[list[Row], list[Row]] = ([], [])
        self.late = 0

    def take(self, port: int, rows: list[Row], watermark_us: int | None) -> None:
        for row in rows:
            if watermark_us is not None and row[2] is not None and row[2] <= watermark_us:
                self.late += 1
            else:
                self.rows[port].append(row)

    def _match(self, left: Row, right: Row) -> bool:
        if left[2] is None or right[2] is None:
            return False
        (key,) = self.spec.match.keys
        same = left[0] == right[0] and (key.null_safe or left[0] is not None)
        return same and left[2] - BEFORE_US <= right[2] <= left[2] + AFTER_US

    def result(self) -> Counter[str]:
        lefts, rights = self.rows
        how, none = self.spec.how, (None,) * 4
        pairs = [(l, r) for l in lefts for r in rights if self._match(l, r)]  # noqa: E741
        met = ({id(pair[0]) for pair in pairs}, {id(pair[1]) for pair in pairs})
        shown: list[tuple[Any, ...]] = []
        if how in ("inner", "left", "right", "full"):
            shown += [(*left, *right) for left, right in pairs]
        if how in ("left", "full"):
            shown += [(*left, *none) for left in lefts if id(left) not in met[0]]
        if how in ("right", "full"):
            shown += [(*none, *right) for right in rights if id(right) not in met[1]]
        if how in ("semi", "anti"):
            shown += [left for left in lefts if (id(left) in met[0]) == (how == "semi")]
        return Counter(repr(list(row)) for row in shown)


def drawn(rng: random.Random, now_us: int) -> list[Row]:
    return [
        (
            rng.choice(["a", "b", "", None]),
            rng.choice([None, 1, 2]),
            None if rng.random() < 0.05 else now_us + rng.randrange(-15, 15),
            rng.choice([None, [], [1, 2]]),
        )
        for _ in range(rng.randrange(12))
    ]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("null_safe", [False, True])
@pytest.mark.parametrize("seed", some(range(6), every=3))
def test_against_nested_loops(how: str, null_safe: bool, seed: int) -> None:
    """Rows come in any order; every now and then the join begins anew from what it had said."""
    rng = random.Random(f"{how} {null_safe} {seed}")
    of = spec(how, null_safe=null_safe)
    running, model = chain(of), NestedLoops(of)
    found: Counter[str] = Counter()
    late, now_us, watermark_us = 0, 1_000, None
    kept = {name: [state.begin_snapshot()] for name, state in running.states.items()}
    changes: list[dict[str, Any]] = []
    for _ in range(40):
        port = rng.randrange(2)
        rows = drawn(rng, now_us)
        output = running.process(batch(rows, port), watermark_us, port=port)
        model.take(port, rows, watermark_us)
        late += output.late_rows
        found += plain(output.batches)
        now_us += rng.randrange(12)
        if rng.random() < 0.5:
            watermark_us = max(now_us - rng.randrange(20, 40), watermark_us or 0)
            found += plain(running.on_watermark(watermark_us))
        if rng.random() < 0.3:
            changes.append({name: state.take_changes() for name, state in running.states.items()})
            if rng.random() < 0.3:
                kept = {name: [state.begin_snapshot()] for name, state in running.states.items()}
                changes = []
            if rng.random() < 0.5:
                progress = parse(canonical_json(running.progress()))
                running = chain(of)
                for name, state in running.states.items():
                    state.restore(list(kept[name][0].batches()))
                    for change in changes:
                        if change[name] is not None:
                            state.apply_changes(change[name])
                running.restore_progress(progress)
    found += plain(running.on_watermark(TIME_END))
    assert late == model.late
    assert found == model.result()
    assert all(len(state) == 0 for state in running.states.values())


def test_rows_leave_when_nothing_to_come_can_match_them() -> None:
    running = chain(spec("full"))
    running.process(batch([("a", 1, 100, None)], 0), port=0)
    running.process(batch([("b", 1, 100, None)], 1), port=1)
    assert not running.on_watermark(100 + AFTER_US - 1)
    assert plain(running.on_watermark(100 + AFTER_US)) == Counter(
        [repr(["a", 1, 100, None, None, None, None, None])]
    )
    assert not running.on_watermark(100 + BEFORE_US - 1)
    assert plain(running.on_watermark(100 + BEFORE_US)) == Counter(
        [repr([None, None, None, None, "b", 1, 100, None])]
    )
    assert not running.on_watermark(TIME_END)


def test_without_limits_rows_stay_for_ever() -> None:
    running = chain(JoinSpec("inner", JoinMatch((JoinKey(LN, RN),))))
    running.process(batch([("a", 1, 5, None)], 0), port=0)
    running.on_watermark(1_000_000)
    output = running.process(batch([("b", 1, 5, None)], 1), port=1)
    assert plain(output.batches) == Counter([repr(["a", 1, 5, None, "b", 1, 5, None])])
    running.on_watermark(TIME_END)
    assert [len(state) for state in running.states.values()] == [1, 1]


def test_a_row_that_comes_too_late_to_match_is_not_kept() -> None:
    """Its time is ahead of the watermark, but nothing that comes can belong to it."""
    of = JoinSpec(
        "left",
        JoinMatch((JoinKey(LK, RK),), call("le", RAT, moved(LAT, -50))),
        JoinSide(LAT, limits=(TimeLimit(LAT, -50),)),
        JoinSide(RAT),
    )
    running = chain(of)
    running.process(batch([("a", 1, 60, None)], 1), port=1)
    running.on_watermark(100)
    output = running.process(batch([("a", 2, 120, None), ("b", 3, 120, None)], 0), port=0)
    assert plain(output.batches) == Counter(
        [
            repr(["a", 2, 120, None, "a", 1, 60, None]),
            repr(["b", 3, 120, None, None, None, None, None]),
        ]
    )
    assert len(running.states["join0_left"]) == 0


def test_a_window_s_last_instant_is_late_only_when_it_is_passed() -> None:
    of = JoinSpec(
        "inner", JoinMatch((JoinKey(LK, RK),)), JoinSide(LAT, is_instant=True), JoinSide()
    )
    running = chain(of)
    running.on_watermark(99)
    assert running.process(batch([("a", 1, 99, None)], 0), port=0).late_rows == 0
    assert running.process(batch([("a", 1, 98, None)], 0), port=0).late_rows == 1


def test_a_condition_that_fails_names_the_row() -> None:
    divided = call("gt", call("int_divide", LN, RN), literal(0, BIGINT))
    running = chain(JoinSpec("inner", JoinMatch((JoinKey(LK, RK),), divided)))
    running.process(batch([("a", 0, 1, None), ("b", 1, 1, None)], 1), port=1)
    rows = batch([("b", 3, 1, None), ("a", 3, 1, None)], 0)
    with pytest.raises(RowError) as raised:
        running.process(rows, port=0)
    assert raised.value.details["row"] == 1
    assert len(running.states["join0_left"]) == 0
    output = running.process(rows, on_bad_row="reject", port=0)
    assert output.rejected is not None
    assert output.rejected.column("ln").to_pylist() == [3]
    assert output.rejected.column("lk").to_pylist() == ["a"]
    assert plain(output.batches) == Counter([repr(["b", 3, 1, None, "b", 1, 1, None])])


def test_state_has_a_bound() -> None:
    running = chain(spec("inner"), state_bytes_max=200_000)
    rows: list[Row] = [(f"{row}" * 100, 1, 10, None) for row in range(2_000)]
    with pytest.raises(StateTooLarge):
        running.process(batch(rows, 0), port=0)
    assert len(running.states["join0_left"]) == 0


@pytest.mark.parametrize("how", ["left", "right", "full", "anti"])
def test_rows_that_match_nothing_need_an_end(how: str) -> None:
    with pytest.raises(ExpressionError, match=r"when a row of its .* side"):
        JoinSpec(how, JoinMatch((JoinKey(LK, RK),)))


def test_sides_have_columns_of_their_own() -> None:
    with pytest.raises(ExpressionError, match="repeated: lat, lk"):
        JoinSpec("inner", JoinMatch((JoinKey(LK, LK),))).output_schema(LEFT, LEFT)


@pytest.mark.parametrize("how", HOWS)
def test_a_spec_travels_as_json(how: str) -> None:
    of = spec(how, null_safe=True)
    assert spec_from_json(parse(canonical_json(of.to_json()))) == of


def test_pieces_of_many_pairs_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.row_store.PAIRS_MAX", 7)
    monkeypatch.setattr("penstock.operators.join.ROWS_AT_ONCE_MAX", 5)
    running = chain(spec("full"))
    rows: list[Row] = [("a", number, 100, None) for number in range(9)]
    running.process(batch(rows, 0), port=0)
    output = running.process(batch(rows[:5], 1), port=1)
    assert sum(each.num_rows for each in output.batches) == 45
    assert max(each.num_rows for each in output.batches) <= 5
    assert not running.on_watermark(TIME_END)
