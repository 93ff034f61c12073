"""Sums and averages of decimals against Python's integers and decimals, near every limit."""

from __future__ import annotations

import random
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateOverflow
from penstock.expressions.tree import column
from penstock.expressions.types import arrow_type, parse_type
from penstock.operators.specs import AggregateCall

EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


def finished(function: str, kind: str, values: list[int]) -> pa.Array:
    """The aggregate of unscaled values, as rows of one group after the other."""
    call = AggregateCall(function, column("d", kind), "x")
    data_type = parse_type(kind)
    words = [(value & ((1 << 128) - 1)).to_bytes(16, "little") for value in values]
    buffers = [None, pa.py_buffer(b"".join(words))]
    array = pa.Array.from_buffers(arrow_type(data_type), len(values), buffers)
    columns = []
    for accumulator in call.accumulators:
        worth = accumulator.row.rows([array], accumulator.type).to_numpy()
        columns.append(pa.array([int(np.sum(worth))]))
    return call.finish(call.accumulators, columns)


@pytest.mark.parametrize(
    "kind", ["decimal(8,2)", "decimal(18,6)", "decimal(19,0)", "decimal(38,9)"]
)
@pytest.mark.parametrize("seed", range(20))
def test_sums_and_averages(kind: str, seed: int) -> None:
    rng, data_type = random.Random(f"{kind} {seed}"), parse_type(kind)
    top = 10 ** rng.randrange(1, data_type.precision) - 1
    values = [rng.randint(-top, top) for _ in range(rng.randrange(1, 30))]
    total = finished("sum", kind, values)
    assert total[0].as_py() == Decimal(sum(values)).scaleb(-data_type.scale, EXACT)
    mean = finished("try_avg", kind, values)
    exact = EXACT.divide(Decimal(sum(values)).scaleb(-data_type.scale, EXACT), len(values))
    unit = Decimal(1).scaleb(-(data_type.scale + 4))
    expected = exact.quantize(unit, context=EXACT)
    fits = abs(expected) < Decimal(10) ** (mean.type.precision - mean.type.scale)
    assert mean[0].as_py() == (expected if fits else None)


@pytest.mark.parametrize("kind", ["decimal(8,0)", "decimal(30,0)", "decimal(38,0)"])
def test_what_has_no_room_fails_or_is_null(kind: str) -> None:
    top = 10 ** parse_type(kind).precision - 1
    assert finished("sum", kind, [top, top, -top])[0].as_py() == top
    if kind != "decimal(38,0)":  # ten digits more are enough for these
        return
    with pytest.raises(StateOverflow, match="try_sum"):
        finished("sum", kind, [top] * 10)
    assert finished("try_sum", kind, [-top] * 10)[0].as_py() is None
    assert finished("try_avg", kind, [top] * 10)[0].as_py() is None
