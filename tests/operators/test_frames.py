"""Aggregates over frames, beside a fold over each frame; and how much work they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateOverflow
from penstock.expressions.tree import Column
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.operators import frames
from penstock.operators.frames import Frames
from penstock.operators.over import Sorted
from penstock.operators.specs import Frame, Order, OverCall

ROWS: Schema = (
    Field("whole", parse_type("bigint")),
    Field("small", parse_type("int")),
    Field("price", parse_type("decimal(8,2)")),
    Field("ratio", parse_type("double")),
    Field("text", parse_type("string")),
    Field("flag", parse_type("boolean")),
    Field("day", parse_type("date")),
)
COLUMNS = {field.name: Column(field.name, field.type, True) for field in ROWS}
FRAMES = (
    Frame(True, None, 0),
    Frame(True, None, -2),
    Frame(True, 0, None),
    Frame(True, -3, 2),
    Frame(True, -90, 1),
    Frame(True, 2, 5),
    Frame(True, None, None),
    Frame(False, None, 0),
    Frame(False, 0, 0),
    Frame(False, 0, None),
)
Values = list[Any]


def added(values: Values) -> Any:
    return reduce(lambda total, value: total + value, values, type(values[0])(0))


def ordered(value: Any) -> tuple[bool, Any]:
    """NaN is greater than every number."""
    nan = isinstance(value, float) and math.isnan(value)
    return nan, 0 if nan else value


def least(values: Values) -> Any:
    return min(values, key=ordered)


def greatest(values: Values) -> Any:
    return max(values, key=ordered)


FOLDS: dict[str, tuple[tuple[str, ...], Callable[[Values], Any]]] = {
    "sum": (("whole", "small", "price", "ratio"), added),
    "avg": (("small", "ratio"), lambda values: added(list(map(float, values))) / len(values)),
    "min": (tuple(COLUMNS), least),
    "max": (tuple(COLUMNS), greatest),
    "bit_and": (("whole", "small"), lambda values: reduce(lambda a, b: a & b, values)),
    "bit_or": (("whole", "small"), lambda values: reduce(lambda a, b: a | b, values)),
    "bit_xor": (("whole", "small"), lambda values: reduce(lambda a, b: a ^ b, values)),
}


def random_batch(rng: random.Random, count: int) -> pa.RecordBatch:
    doubles = (0.1, -0.0, 0.0, 1e300, -1e-3, 3.7, math.nan, math.inf)
    columns = [
        [rng.randrange(-(10**9), 10**9) for _ in range(count)],
        [rng.randrange(-9, 9) for _ in range(count)],
        [rng.randrange(-9999, 9999) for _ in range(count)],
        [rng.choice(doubles[: rng.choice([6, 6, 8])]) * rng.random() for _ in range(count)],
        [rng.choice(["", "a", "ab", "é", "z"]) for _ in range(count)],
        [rng.random() < 0.5 for _ in range(count)],
        [rng.randrange(20_000) for _ in range(count)],
    ]
    made = []
    for values, field in zip(columns, arrow_schema(ROWS), strict=True):
        holes = [None if rng.random() < 0.2 else value for value in values]
        kind = pa.int32() if field.name == "day" else None
        array = pa.array(holes, kind)
        if field.name == "price":
            array = pa.array(holes, pa.int64()).cast(pa.decimal128(19, 0)).cast(field.type)
        made.append(array.cast(field.type))
    return pa.RecordBatch.from_arrays(made, schema=arrow_schema(ROWS))


def random_sorted(rng: random.Random, count: int) -> Sorted:
    partition = np.array([at == 0 or rng.random() < 0.02 for at in range(count)])
    peers = partition | np.array([rng.random() < 0.6 for _ in range(count)])
    return Sorted(random_batch(rng, count), np.arange(count), partition, peers)


def over(rows: Sorted, call: OverCall) -> pa.Array:
    return Frames(*rows.frame(call), rows.starts).column(call.aggregate, rows.batch)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == wanted)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("function", FOLDS)
def test_each_frame_folds_its_rows_in_their_order(function: str, seed: int) -> None:
    rng = random.Random(seed)
    rows = random_sorted(rng, 260)
    names, fold = FOLDS[function]
    for name in names:
        given = rows.batch.column(name).to_pylist()
        for frame in FRAMES:
            call = OverCall(function, "x", COLUMNS[name], frame)
            found = over(rows, call).to_pylist()
            for at, (low, high) in enumerate(zip(*rows.frame(call), strict=True)):
                values = [value for value in given[low:high] if value is not None]
                wanted = fold(values) if values else None
                assert same(found[at], wanted), (name, frame, at)


def test_rows_and_values_are_counted() -> None:
    rows = random_sorted(random.Random(1), 200)
    given = rows.batch.column("text").to_pylist()
    for frame in FRAMES:
        low, high = rows.frame(OverCall("count", "x", None, frame))
        assert over(rows, OverCall("count", "x", None, frame)).to_pylist() == (high - low).tolist()
        values = over(rows, OverCall("count", "x", COLUMNS["text"], frame)).to_pylist()
        spans = zip(low, high, strict=True)
        assert values == [sum(v is not None for v in given[one:end]) for one, end in spans]


def test_no_rows_have_no_frames() -> None:
    rows = Sorted(
        random_batch(random.Random(0), 0), np.arange(0), np.ones(0, bool), np.ones(0, bool)
    )
    for function, (names, _) in FOLDS.items():
        for name in names:
            assert len(over(rows, OverCall(function, "x", COLUMNS[name], FRAMES[0]))) == 0


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("seed", range(20))
def test_a_sum_that_leaves_64_bits_on_the_way_is_an_error(frame: Frame, seed: int) -> None:
    """As in ANSI mode, though it would come back; a frame beside it may be fine."""
    rng = random.Random(seed)
    most = (1 << 63) - 1
    parts = (most, -most, most // 2, -most // 2, 1, -1, 0)
    given = [rng.choice(parts) // rng.choice([1, 1, 3]) for _ in range(rng.randrange(1, 6))]
    batch = random_batch(rng, len(given)).set_column(0, "whole", pa.array(given))
    begins = np.array([at == 0 for at in range(len(given))])
    rows = Sorted(batch, np.arange(len(given)), begins, np.ones(len(given), bool))
    call = OverCall("sum", "x", COLUMNS["whole"], frame)
    wanted: list[int | None] = []
    leaves = False
    for low, high in zip(*rows.frame(call), strict=True):
        total = 0
        for value in given[low:high]:
            total += value
            leaves |= not -most - 1 <= total <= most
        wanted.append(total if high > low else None)
    if leaves:
        with pytest.raises(StateOverflow, match=r"sum\(whole\) leaves 64 bits over the frame"):
            over(rows, call)
    else:
        assert over(rows, call).to_pylist() == wanted


@pytest.mark.parametrize("count", [1_000, 16_000])
def test_the_work_of_running_frames_does_not_grow_with_their_length(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    worked = 0

    def counted(fold: Callable[..., Any]) -> Callable[..., Any]:
        def folds(one: Any, *others: Any, **how: Any) -> Any:
            nonlocal worked
            worked += np.size(one)
            return fold(one, *others, **how)

        return folds

    for name in ("minimum", "maximum", "cumsum", "bincount"):
        monkeypatch.setattr(frames.np, name, counted(getattr(np, name)))
    batch = random_batch(random.Random(3), count)
    halves = np.arange(count) % (count // 2) == 0
    rows = Sorted(batch, np.arange(count), halves, np.ones(count, bool))
    wide = (Frame(True, None, 0), Frame(True, 0, None), Frame(True, -count // 3, count // 3))
    of = {"sum": "whole", "avg": "whole", "count": "text", "min": "ratio", "max": "text"}
    for frame in wide:
        for function, name in of.items():
            over(rows, OverCall(function, "x", COLUMNS[name], frame))
    over(rows, OverCall("sum", "x", COLUMNS["ratio"], wide[0]))
    assert count < worked < 20 * 2 * count * math.log2(count)


def stddev(values: Values) -> float:
    """Of whole numbers, so near to what any order of rows gives."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


OF_GROUPS: dict[str, tuple[str, tuple[Any, ...], Callable[[Values], Any]]] = {
    "stddev_pop": ("ratio", (), stddev),
    "collect_list": ("text", (), lambda values: values),
    "collect_set": ("small", (), lambda values: sorted(set(values))),
    "mode": ("text", (), lambda values: min(values, key=lambda v: (-values.count(v), v))),
    "percentile_disc": (
        "small", (False, False, 0.4),
        lambda values: float(sorted(values)[max(math.ceil(0.4 * len(values)), 1) - 1]),
    ),
    "listagg": ("text", ("|",), "|".join),
    "sum": ("wide", (), added),
}  # fmt: skip
WIDE_FRAMES = (*FRAMES, Frame(True, -100, 100))


@pytest.mark.parametrize("function", OF_GROUPS)
@pytest.mark.parametrize("few", [0, 1000], ids=["spans", "members"])
def test_what_groups_keep_runs_over_frames(
    function: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by spans of rows and row by row; empty lists are not null."""
    monkeypatch.setattr(frames, "_FEW", few)
    monkeypatch.setattr(frames, "_MEMBERS_MAX", 500)
    name, options, fold = OF_GROUPS[function]
    rows = random_sorted(random.Random(5), 200)
    rng = random.Random(6)
    doubles = [rng.choice([None, float(rng.randrange(100))]) for _ in range(200)]
    wide = [None if each is None else Decimal(int(each)) * 10**25 for each in doubles]
    rows.batch = rows.batch.set_column(3, "ratio", pa.array(doubles, pa.float64()))
    rows.batch = rows.batch.append_column("wide", pa.array(wide, pa.decimal128(28, 0)))
    column = Column(name, parse_type("decimal(28,0)") if name == "wide" else COLUMNS[name].type)
    given = rows.batch.column(name).to_pylist()
    for frame in WIDE_FRAMES:
        call = OverCall(function, "x", column, frame, options=options)
        found = over(rows, call).to_pylist()
        for at, (low, high) in enumerate(zip(*rows.frame(call), strict=True)):
            values = [value for value in given[low:high] if value is not None]
            nothing = [] if function.startswith("collect") else None
            wanted = fold(values) if values else nothing
            if function == "stddev_pop" and wanted is not None:
                wanted = pytest.approx(wanted, abs=1e-9)
            assert found[at] == wanted, (frame, at)


@pytest.mark.parametrize("name", ["min_by", "max_by"])
def test_the_value_of_an_extreme_runs_over_frames(name: str) -> None:
    rows = random_sorted(random.Random(7), 150)
    keys = list(range(150))
    random.Random(8).shuffle(keys)
    rows.batch = rows.batch.set_column(1, "small", pa.array(keys, pa.int32()))
    texts = rows.batch.column("text").to_pylist()
    for frame in WIDE_FRAMES:
        call = OverCall(name, "x", COLUMNS["text"], frame, second=COLUMNS["small"])
        found = over(rows, call).to_pylist()
        for at, (low, high) in enumerate(zip(*rows.frame(call), strict=True)):
            places = range(low, high)
            best = (min if name == "min_by" else max)(places, key=keys.__getitem__, default=None)
            assert found[at] == (None if best is None else texts[best])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-3, 0), (-5, -1), (2, 9), (None, 4), (-2, None)])
def test_frames_go_by_how_far_values_are_away(
    low: int | None, high: int | None, descending: bool, nulls_first: bool
) -> None:
    rng = random.Random(9)
    partitions = sorted(rng.randrange(4) for _ in range(120))
    values = [rng.choice([None, rng.randrange(30)]) for _ in range(120)]

    def place(at: int) -> tuple[int, int, int]:
        value = values[at]
        if value is None:
            return partitions[at], -1 if nulls_first else 1, 0
        return partitions[at], 0, -value if descending else value

    order = sorted(range(120), key=place)
    batch = random_batch(rng, 120).set_column(1, "small", pa.array(values, pa.int32()))
    begins = np.array([at == 0 or partitions[at] != partitions[at - 1] for at in range(120)])
    peers = np.array([at == 0 or place(order[at]) != place(order[at - 1]) for at in range(120)])
    by = Order(COLUMNS["small"], descending, nulls_first)
    rows = Sorted(batch, np.array(order), begins, peers, by)
    lows, highs = rows.frame(OverCall("count", "x", None, Frame(False, low, high)))
    for at in range(120):
        part, rank, value = place(order[at])
        inside = []
        for other in range(120):
            its, its_rank, its_value = place(order[other])
            behind = low is None or (its_rank, its_value) >= (rank, value + low * (rank == 0))
            before = high is None or (its_rank, its_value) <= (rank, value + high * (rank == 0))
            if its == part and behind and before:
                inside.append(other)
        assert list(range(lows[at], highs[at])) == inside


def test_a_frame_that_leaves_the_type_of_its_values_is_an_error() -> None:
    batch = random_batch(random.Random(1), 1).set_column(
        1, "small", pa.array([2**31 - 1], pa.int32())
    )
    one = np.ones(1, bool)
    rows = Sorted(batch, np.arange(1), one, one, Order(COLUMNS["small"]))
    with pytest.raises(StateOverflow, match="reaches 5 from a value of small"):
        rows.frame(OverCall("count", "x", None, Frame(False, None, 5)))
