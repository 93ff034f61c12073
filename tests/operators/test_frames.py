"""Aggregates over frames, beside a fold over each frame; and how much work they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ExpressionError, StateOverflow
from penstock.expressions.tree import Column
from penstock.expressions.types import Field, Schema, arrow_schema, parse_type
from penstock.operators import frames
from penstock.operators.frames import Frames
from penstock.operators.over import Sorted
from penstock.operators.specs import Frame, OverCall

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


@pytest.mark.parametrize("function", ["stddev_pop", "collect_list", "mode", "kurtosis"])
def test_what_is_not_kept_row_by_row_is_refused(function: str) -> None:
    with pytest.raises(ExpressionError, match=f"{function} does not run over partitions"):
        OverCall(function, "x", COLUMNS["ratio"])
