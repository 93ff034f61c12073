"""Window functions in plain Python: the last rows of a key, and the best rows of a window."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError
from penstock.expressions.tree import Column, cast, column, literal
from penstock.expressions.types import (
    BIGINT,
    DOUBLE,
    STRING,
    TIMESTAMP,
    Field,
    Schema,
    array_type,
    arrow_schema,
)
from penstock.json_codec import canonical_json, parse
from penstock.operators import over
from penstock.operators.chain import Chain
from penstock.operators.specs import (
    Frame,
    Order,
    OverCall,
    OverSpec,
    WatermarkSpec,
    spec_from_json,
)
from tests.operators.chains import linear

SECOND = 1_000_000
ROWS: Schema = (
    Field("k", STRING), Field("at", TIMESTAMP), Field("until", TIMESTAMP), Field("v", BIGINT),
    Field("id", BIGINT, False),
)  # fmt: skip
K, AT, UNTIL, V, ID = (Column(field.name, field.type, field.nullable) for field in ROWS)
Row = dict[str, Any]

BACK = 3
LAST = OverSpec(
    (K,),
    (Order(AT), Order(ID)),
    (
        OverCall("sum", "s", V, Frame(True, -BACK, 0)),
        OverCall("count", "n", None, Frame(True, -1, -1)),
        OverCall("lag", "before", V, number=2),
    ),
    AT,
    after_us=1,
    is_running=True,
)
BEST = OverSpec(
    (UNTIL, K),
    (Order(V, descending=True, nulls_first=False),),
    (OverCall("rank", "place"),),
    UNTIL,
    best=("place", 2),
)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    schema = arrow_schema(ROWS)
    columns = []
    for field in schema:
        kind = pa.int64() if pa.types.is_timestamp(field.type) else field.type
        columns.append(pa.array([row[field.name] for row in rows], kind).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def random_rows(rng: random.Random, now: int, first: int) -> list[Row]:
    rows = []
    for number in range(rng.randrange(30)):
        at = now - rng.randrange(40) * SECOND // 2
        until = (at // (10 * SECOND) + 1) * 10 * SECOND
        value = rng.choice([None, rng.randrange(6)])
        key = rng.choice(["a", "b", None])
        rows.append({"k": key, "at": at, "until": until, "v": value, "id": first + number})
    return rows


def shown(batches: tuple[pa.RecordBatch, ...], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[n] for n in names) for batch in batches for row in batch.to_pylist()]


def restored(chain: Chain, spec: OverSpec) -> Chain:
    again = linear((WatermarkSpec("at", 0), spec), ROWS, None)
    for name, state in chain.states.items():
        state.take_changes()
        picture = state.begin_snapshot()
        while not picture.copy_some():
            pass
        again.states[name].restore(list(picture.batches()))
    again.restore_progress(chain.progress())
    return again


@pytest.mark.parametrize("seed", range(5))
def test_the_last_rows_of_a_key_come_with_each(seed: int) -> None:
    rng = random.Random(seed)
    chain = linear((WatermarkSpec("at", 0), LAST), ROWS, None)
    waiting: list[Row] = []
    done: dict[Any, list[Row]] = {}
    now, mark, late, first = 10_000 * SECOND, 0, 0, 0
    for _ in range(25):
        rows = random_rows(rng, now, first)
        first += len(rows)
        late += sum(row["at"] < mark for row in rows)
        waiting += [row for row in rows if row["at"] >= mark]
        chain.process(batch_of(rows))
        now += rng.randrange(8) * SECOND
        mark = max(mark, now - rng.choice([0, 10]) * SECOND)
        wanted = []
        for row in sorted(waiting, key=lambda row: (row["at"], row["id"])):
            if row["at"] < mark:
                before = done.setdefault(row["k"], [])
                before.append(row)
                values = [r["v"] for r in before[-BACK - 1 :] if r["v"] is not None]
                lagged = before[-3]["v"] if len(before) > 2 else None
                total = sum(values) if values else None
                wanted.append((row["id"], total, min(len(before) - 1, 1), lagged))
        waiting = [row for row in waiting if row["at"] >= mark]
        emitted = chain.on_watermark(mark)
        assert sorted(shown(emitted, "id", "s", "n", "before")) == sorted(wanted)
        times = [at for (at,) in shown(emitted, "at")]
        assert times == sorted(times)
        if rng.random() < 0.3:
            chain = restored(chain, LAST)
    assert chain.statistics().rows_late or late
    (state,) = chain.states.values()
    assert len(state) <= len(waiting) + BACK * len(done)


def test_only_the_best_rows_of_a_window_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over, "_PRUNE_ROWS_MIN", 10)
    rng = random.Random(1)
    chain = linear((WatermarkSpec("at", 0), BEST), ROWS, None)
    rows: list[Row] = []
    for first in range(0, 3_000, 100):
        some = random_rows(rng, 10_000 * SECOND, first)
        rows += some
        chain.process(batch_of(some))
    (state,) = chain.states.values()
    assert len(state) < len(rows) // 2
    found = shown(chain.on_watermark(20_000 * SECOND), "id", "place")
    wanted = []
    for row in rows:
        same = [r for r in rows if (r["until"], r["k"]) == (row["until"], row["k"])]
        place = 1 + sum(_value(r) > _value(row) for r in same)
        if place <= 2:
            wanted.append((row["id"], place))
    assert sorted(pair for pair in found if pair[1] <= 2) == sorted(wanted)
    assert not len(state)


def _value(row: Row) -> int:
    return -1 if row["v"] is None else int(row["v"])


def test_rows_behind_the_watermark_and_without_a_time_are_late() -> None:
    chain = linear((WatermarkSpec("at", 0), LAST), ROWS, None)
    chain.on_watermark(100 * SECOND)
    row = {"k": "a", "at": 100 * SECOND - 1, "until": 0, "v": 1, "id": 1}
    others = [{**row, "at": None, "id": 2}, {**row, "at": 100 * SECOND, "id": 3}]
    assert chain.process(batch_of([row, *others])).late_rows == 2
    assert shown(chain.on_watermark(101 * SECOND), "id") == [(3,)]


@pytest.mark.parametrize(
    ("call", "order", "reason"),
    [
        (OverCall("rank", "r"), (Order(AT),), "partitions that never end"),
        (OverCall("sum", "s", V), (Order(AT),), "partitions that never end"),
        (OverCall("lag", "l", V), (Order(V),), "ordered by event time"),
        (OverCall("lag", "l", V), (Order(AT, descending=True),), "ordered by event time"),
    ],
)
def test_what_never_ends_is_refused(call: OverCall, order: Any, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        OverSpec((K,), order, (call,), AT, is_running=True)


def test_values_are_of_columns() -> None:
    with pytest.raises(ExpressionError, match="takes a column"):
        OverCall("lag", "l")
    with pytest.raises(ExpressionError, match="passes over nulls"):
        OverCall("lead", "l", column("v", BIGINT), number=0, ignores_nulls=True)


def test_frames_by_value_have_one_order_of_values_that_have_a_distance() -> None:
    call = OverCall("count", "n", None, Frame(False, -2, 0))
    for order in ((), (Order(K),), (Order(V), Order(ID))):
        with pytest.raises(ExpressionError, match="how far values are away"):
            OverSpec((UNTIL,), order, (call,), UNTIL)


def test_what_an_aggregate_is_told_is_in_the_program() -> None:
    calls = (
        OverCall("corr", "c", cast(V, DOUBLE), Frame(False, -5, 5), second=cast(ID, DOUBLE)),
        OverCall("percentile", "p", V, options=(True, False, 0.25, 0.5)),
        OverCall("listagg", "l", K, Frame(True, None, 0), ignores_nulls=True, options=(", ",)),
        OverCall("lead", "on", V, default=literal(-7, BIGINT), ignores_nulls=True),
    )
    spec = OverSpec((UNTIL,), (Order(ID),), calls, UNTIL)
    again = spec_from_json(parse(canonical_json(spec)))
    assert again == spec
    assert [field.type for field in again.output_schema(ROWS)[len(ROWS) :]] == [
        DOUBLE, array_type(DOUBLE), STRING, BIGINT,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_other_rows_whose_value_is_not_null(seed: int) -> None:
    rng = random.Random(seed)
    calls = (
        OverCall("lag", "back", V, number=2, ignores_nulls=True),
        OverCall("lead", "on", V, default=literal(-7, BIGINT), ignores_nulls=True),
        OverCall("nth", "third", V, number=3, ignores_nulls=True),
    )
    spec = OverSpec((UNTIL,), (Order(ID),), calls, UNTIL)
    chain = linear((WatermarkSpec("at", 0), spec), ROWS, None)
    rows = [row for first in range(0, 300, 50) for row in random_rows(rng, 10_000 * SECOND, first)]
    chain.process(batch_of(rows))
    wanted = []
    for row in rows:
        part = [r for r in rows if r["until"] == row["until"] and r["v"] is not None]
        before = [r["v"] for r in part if r["id"] < row["id"]]
        behind = [r["v"] for r in part if r["id"] > row["id"]]
        third = part[2]["v"] if len(part) > 2 else None
        back = before[-2] if len(before) > 1 else None
        wanted.append((row["id"], back, behind[0] if behind else -7, third))
    found = shown(chain.on_watermark(20_000 * SECOND), "id", "back", "on", "third")
    assert sorted(found) == sorted(wanted)
