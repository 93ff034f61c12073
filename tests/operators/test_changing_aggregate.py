"""Groups of rows that come and go, beside plain Python, commit by commit and through restarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, StateOverflow
from penstock.expressions.tree import call, column, literal
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.kernels.cache import KernelCache
from penstock.operators.chain import Chain
from penstock.operators.exact_sums import places_of, total_of
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    WEIGHT_FIELD,
    AggregateCall,
    AggregateSpec,
    FilterSpec,
    OperatorSpec,
    ProjectSpec,
    WindowSpec,
    column_of,
)
from tests.operators.chains import linear
from tests.operators.lives import Life, Row
from tests.thoroughness import some

ROWS: Schema = tuple(
    Field(name, parse_type(kind))
    for name, kind in (
        ("k", "string"), ("whole", "bigint"), ("real", "double"), ("short", "decimal(5,2)"),
        ("day", "date"),
    )
)  # fmt: skip
WEIGHTED = (*ROWS, WEIGHT_FIELD)
_columns = {field.name: column_of(field) for field in ROWS}
CALLS = (
    AggregateCall("count", None, "rows"),
    AggregateCall("count", _columns["whole"], "count_whole"),
    AggregateCall("sum", _columns["whole"], "sum_whole"),
    AggregateCall("avg", _columns["whole"], "avg_whole"),
    AggregateCall("sum", _columns["real"], "sum_real"),
    AggregateCall("avg", _columns["real"], "avg_real"),
    AggregateCall("sum", _columns["short"], "sum_short"),
    AggregateCall("min", _columns["whole"], "min_whole"),
    AggregateCall("max", _columns["real"], "max_real"),
    AggregateCall("max", _columns["day"], "max_day"),
)


def batch_of(rows: Iterable[tuple[Row, int]]) -> pa.RecordBatch:
    found = [{**row, WEIGHT_COLUMN: weight} for row, weight in rows]
    return pa.RecordBatch.from_pylist(found, schema=arrow_schema(WEIGHTED))


def model(rows: list[Row]) -> Row:
    """What the calls give of these rows."""

    def values(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    def last(found: list[float]) -> float:
        return math.nan if any(map(math.isnan, found)) else max(found)

    whole, real, short, day = (values(name) for name in ("whole", "real", "short", "day"))
    return {
        "rows": len(rows),
        "count_whole": len(whole),
        "sum_whole": sum(whole) if whole else None,
        "avg_whole": float(sum(whole)) / len(whole) if whole else None,
        "sum_real": math.fsum(real) if real else None,
        "avg_real": math.fsum(real) / len(real) if real else None,
        "sum_short": sum(short) if short else None,
        "min_whole": min(whole, default=None),
        "max_real": last(real) if real else None,
        "max_day": max(day, default=None),
    }


def random_row(random: Random) -> Row:
    def maybe(value: Any) -> Any:
        return value if random.random() > 0.1 else None

    reals = [0.1, 1e16, -1e16, 3.5, 1e-300, 5e-324, -0.0, random.uniform(-1e9, 1e9)]
    return {
        "k": maybe(random.choice("abc")),
        "whole": maybe(random.choice([random.randint(-9, 9), 2**62, -(2**63), 2**63 - 1])),
        "real": maybe(random.choice(reals)),
        "short": maybe(Decimal(random.randint(-99999, 99999)).scaleb(-2)),
        "day": maybe(date(2024, 1, random.randint(1, 28))),
    }


def spec(
    mode: str, changes: bool = False, calls: tuple[AggregateCall, ...] = CALLS
) -> AggregateSpec:
    keys = (("k", _columns["k"]),)
    return AggregateSpec(keys, None, calls, mode, weighted=True, changes=changes)


def shown(row: Row) -> tuple[Any, ...]:
    """As it compares: which zero is the greatest of several depends on their order."""
    most = row["max_real"]
    plain = {**row, "max_real": None if most is None else most + 0.0}
    return tuple((name, repr(value)) for name, value in sorted(plain.items()))


def wholes_fit(rows: list[Row]) -> bool:
    total = sum(row["whole"] or 0 for row in rows)
    return -(1 << 63) <= total < 1 << 63


@pytest.mark.parametrize("seed", some(range(6), every=3))
@pytest.mark.parametrize("mode", ["update", "complete", "changes"])
def test_a_group_is_what_its_rows_are(kernels: KernelCache, mode: str, seed: int) -> None:
    random = Random(seed)
    aggregate = spec("update" if mode == "changes" else mode, changes=mode == "changes")
    life = Life(lambda: linear((aggregate,), WEIGHTED, kernels), random)
    there: list[Row] = []
    before: dict[Any, Row] = {}
    for _ in range(25):
        for _ in range(random.randint(0, 3)):
            batch: list[tuple[Row, int]] = []
            for _ in range(random.randint(0, 6)):
                if there and random.random() < 0.5:
                    batch.append((there.pop(random.randrange(len(there))), -1))
                else:
                    row = random_row(random)
                    if wholes_fit([*(r for r in there if r["k"] == row["k"]), row]):
                        batch.append((row, 1))
                        there.append(row)
            life.chain.process(batch_of(batch))
        while not all(wholes_fit([r for r in there if r["k"] == k]) for k in ("a", "b", "c", None)):
            life.chain.process(batch_of([(there.pop(), -1)]))
        keys = {row["k"] for row in there}
        now = {k: {"k": k, **model([row for row in there if row["k"] == k])} for k in keys}
        emitted = life.commit()
        gone = [row for k, row in before.items() if k not in now or shown(row) != shown(now[k])]
        come = [row for k, row in now.items() if k not in before or shown(row) != shown(before[k])]
        if mode == "update":
            assert sorted(map(shown, emitted)) == sorted(map(shown, come))
        elif mode == "complete":
            if emitted or not now:
                assert sorted(map(shown, emitted)) == sorted(map(shown, now.values()))
            else:
                assert not gone
                assert not come
        else:
            weighed = [{**row, WEIGHT_COLUMN: -1} for row in gone]
            weighed += [{**row, WEIGHT_COLUMN: 1} for row in come]
            assert sorted(map(shown, emitted)) == sorted(map(shown, weighed))
        before = now
    life.chain.process(batch_of([(row, -1) for row in there]))
    life.commit()
    assert [len(state) for state in life.chain.states.values()] == [0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_groups(kernels: KernelCache, seed: int) -> None:
    """How many keys have how many rows, and the greatest sum: of counts that change."""
    random = Random(seed)
    rows = (Field("k", parse_type("string")), Field("v", parse_type("bigint")))
    k = column("k", "string")
    v, n, total = (column(name, "bigint") for name in ("v", "n", "total"))
    specs: tuple[OperatorSpec, ...] = (
        AggregateSpec(
            (("k", k),), None,
            (AggregateCall("count", None, "n"), AggregateCall("sum", v, "total")),
            "update", changes=True,
        ),
        FilterSpec(call("lt", n, literal(6, "bigint"))),
        ProjectSpec(
            (("half", call("int_divide", n, literal(2, "bigint"))), ("total", total),
             (WEIGHT_COLUMN, column_of(WEIGHT_FIELD)))
        ),
        AggregateSpec(
            (("half", column("half", "bigint")),), None,
            (AggregateCall("count", None, "keys"), AggregateCall("max", total, "most")),
            "complete", weighted=True,
        ),
    )  # fmt: skip
    life = Life(lambda: linear(specs, rows, kernels), random)
    seen: dict[str, list[int]] = {}
    last: dict[int, tuple[int, int]] = {}
    for _ in range(30):
        batch = [
            (random.choice("abcdefgh"), random.randint(-5, 5)) for _ in range(random.randint(1, 3))
        ]
        life.chain.process(
            pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in batch], arrow_schema(rows))
        )
        for key, value in batch:
            seen.setdefault(key, []).append(value)
        expected: dict[int, tuple[int, int]] = {}
        for values in seen.values():
            if len(values) < 6:
                keys, most = expected.get(len(values) // 2, (0, -99))
                expected[len(values) // 2] = (keys + 1, max(most, sum(values)))
        emitted = {row["half"]: (row["keys"], row["most"]) for row in life.commit()}
        last = emitted or last
        assert last == expected


def test_overlapping_windows_whose_rows_change(kernels: KernelCache) -> None:
    """Of windows that overlap changes are emitted as of others, and none once they are over."""
    rows = (Field("time", parse_type("timestamp")), Field("v", parse_type("bigint")))
    time, v = column("time", "timestamp"), column("v", "bigint")
    aggregate = AggregateSpec(
        (), WindowSpec(time, 20, 10), (AggregateCall("sum", v, "total"),), "update",
        is_watermarked=True, changes=True,
    )  # fmt: skip
    chain = linear((aggregate,), rows, kernels)

    def take(*found: tuple[int | None, int]) -> int:
        times = pa.array([at for at, _ in found], pa.int64()).cast(pa.timestamp("us", "UTC"))
        values = pa.array([value for _, value in found], pa.int64())
        batch = pa.RecordBatch.from_arrays([times, values], schema=arrow_schema(rows))
        return chain.process(batch).late_rows

    def told(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int, int]]:
        return [
            (row["window"]["start"].microsecond, row["total"], row[WEIGHT_COLUMN])
            for batch in batches
            for row in batch.to_pylist()
        ]

    assert take((25, 1), (31, 2), (None, 9)) == 0
    assert told(chain.on_commit()) == [(10, 1, 1), (20, 3, 1), (30, 2, 1)]
    take((25, 5))
    assert told(chain.on_watermark(30, [30])) == [(10, 1, -1), (10, 6, 1)]
    assert told(chain.on_commit()) == [(20, 3, -1), (20, 8, 1)]
    assert take((15, 7), (29, 1)) == 1
    assert told(chain.on_commit()) == [(20, 8, -1), (20, 9, 1)]
    assert told(chain.on_watermark(50, [50])) == []
    assert [len(state) for state in chain.states.values()] == [0]


def test_without_keys_there_is_a_row_though_all_have_gone(kernels: KernelCache) -> None:
    calls = (AggregateCall("count", None, "rows"), AggregateCall("sum", _columns["real"], "total"))
    chain = linear((AggregateSpec((), None, calls, "update", weighted=True),), WEIGHTED, kernels)
    row = {"real": 0.1}
    chain.process(batch_of([]))
    assert commit(chain) == [{"rows": 0, "total": None}]
    chain.process(batch_of([(row, 1), (row, 1)]))
    assert commit(chain) == [{"rows": 2, "total": 0.2}]
    chain.process(batch_of([(row, -1), (row, -1)]))
    assert commit(chain) == [{"rows": 0, "total": None}]
    chain.process(batch_of([(row, 1), (row, -1)]))
    assert commit(chain) == []


def commit(chain: Chain) -> list[Row]:
    rows = [row for batch in chain.on_commit() for row in batch.to_pylist()]
    for state in chain.states.values():
        state.take_changes()
    return rows


def test_a_zero_keeps_its_sign(kernels: KernelCache) -> None:
    calls = (AggregateCall("max", _columns["real"], "most"),)
    chain = linear((spec("update", calls=calls),), WEIGHTED, kernels)
    chain.process(batch_of([({"real": -0.0}, 1), ({"real": 0.0}, 1)]))
    commit(chain)
    chain.process(batch_of([({"real": 0.0}, -1)]))
    chain.on_commit()
    chain.process(batch_of([({"real": 5.0}, 1)]))
    commit(chain)
    chain.process(batch_of([({"real": 5.0}, -1)]))
    assert [str(row["most"]) for row in commit(chain)] == ["-0.0"]


def test_a_sum_may_leave_64_bits_in_between_but_not_at_a_commit(kernels: KernelCache) -> None:
    calls = (AggregateCall("sum", _columns["whole"], "total"),)
    chain = linear((spec("update", calls=calls),), WEIGHTED, kernels)
    large, other = {"whole": 2**63 - 1}, {"whole": 5}
    chain.process(batch_of([(large, 1), (other, 1)]))
    chain.process(batch_of([(other, -1)]))
    assert commit(chain) == [{"k": None, "total": 2**63 - 1}]
    chain.process(batch_of([(other, 1)]))
    with pytest.raises(StateOverflow, match="total in state 'aggregate0' leaves 64 bits"):
        chain.on_commit()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: AggregateSpec((), None, CALLS[:1], "append", weighted=True), "come and go"),
        (
            lambda: AggregateSpec(
                (), None, CALLS[:1], "update", merge_partials=True, weighted=True
            ),
            "not as partials",
        ),
        (
            lambda: linear((AggregateSpec((), None, CALLS[:1], "update"),), WEIGHTED, None),
            "weights",
        ),
        (
            lambda: linear(
                (AggregateSpec((), None, CALLS[:1], "update"),
                 AggregateSpec((), None, CALLS[:1], "update")), ROWS, None,
            ),
            "by their changes",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ExpressionError, match=match):
        make()


@pytest.mark.parametrize("seed", range(5))
def test_exact_sums_round_once_and_come_back(seed: int) -> None:
    random = Random(seed)
    some = [5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, 0.1, -0.0, 1e300, -1e300, 3.0]
    values = [random.choice([*some, random.gauss(0, 10.0 ** random.randint(-300, 300))])
              for _ in range(50)]  # fmt: skip
    values = [value for value in values if abs(value) < 1e306]
    amounts: dict[int, int] = {}
    for rows, places, parts in places_of(np.array(values)):
        assert len(rows) == len(places) == len(parts)
        for place, part in zip(places.tolist(), parts.tolist(), strict=True):
            amounts[place] = amounts.get(place, 0) + part
    assert total_of(list(amounts), list(amounts.values())) == math.fsum(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], "inf"),
        ([-math.inf, math.inf], "nan"),
        ([math.nan, 1.0], "nan"),
        ([-math.inf], "-inf"),
        ([1.7e308, 1.7e308], "inf"),
        ([-1.7e308, -1.7e308], "-inf"),
        ([-0.0], "0.0"),
        ([], "0.0"),
    ],
)
def test_sums_that_are_no_number(values: list[float], expected: str) -> None:
    amounts: dict[int, int] = {}
    for _, places, parts in places_of(np.array(values, np.float64)):
        for place, part in zip(places.tolist(), parts.tolist(), strict=True):
            amounts[place] = amounts.get(place, 0) + part
    assert repr(total_of(list(amounts), list(amounts.values()))) == expected


def test_a_row_that_fails_is_rejected_when_it_comes_and_not_again_when_it_goes(
    kernels: KernelCache,
) -> None:
    share = call("int_divide", literal(1, "bigint"), _columns["whole"])
    chain = linear((spec("update", calls=(AggregateCall("sum", share, "s"),)),), WEIGHTED, kernels)
    bad, good = {"k": "a", "whole": 0}, {"k": "b", "whole": 1}
    first = chain.process(batch_of([(bad, 1), (good, 1)]), on_bad_row="reject").rejected
    second = chain.process(batch_of([(bad, -1), (good, -1)]), on_bad_row="reject").rejected
    assert first is not None
    assert second is not None
    assert (first.column("k").to_pylist(), second.num_rows) == (["a"], 0)
    assert WEIGHT_COLUMN not in first.schema.names
