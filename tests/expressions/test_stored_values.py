"""Values as a state holds them: bytes in Spark's order, and the same values again."""

from __future__ import annotations

import math
import random
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from penstock.expressions.stored_values import as_stored, of_stored
from penstock.expressions.types import DataType, arrow_type, parse_type
from tests.expressions.test_key_values import TYPES, drawn

WIDE = parse_type("decimal(38,0)")


def compared(one: Any, other: Any, kind: DataType) -> int:
    """By Spark's order: nulls first, NaN last, shorter arrays before longer ones."""
    if one is None or other is None:
        return (one is not None) - (other is not None)
    if kind.element is not None:
        for left, right in zip(one, other, strict=False):
            if found := compared(left, right, kind.element):
                return found
        return (len(one) > len(other)) - (len(one) < len(other))
    for field in kind.fields:
        if found := compared(one[field.name], other[field.name], field.type):
            return found
    if kind.fields:
        return 0
    if kind.kind == "string":
        one, other = one.encode(), other.encode()
    if kind.is_fractional and (math.isnan(one) or math.isnan(other)):
        return math.isnan(one) - math.isnan(other)
    return int(one > other) - int(one < other)


@pytest.mark.parametrize("text", TYPES)
def test_bytes_have_the_order_of_values(text: str) -> None:
    rng, kind = random.Random(text), parse_type(text)
    values = [drawn(rng, kind) for _ in range(300)]
    array = pa.array([None, *values], arrow_type(kind)).slice(1)
    stored = as_stored(array, kind, one_zero=True)
    assert repr(of_stored(as_stored(array, kind), kind).to_pylist()) == repr(array.to_pylist())
    found = stored.to_pylist()
    order = sorted(range(300), key=lambda at: (found[at] is not None, found[at] or b""))
    expected = sorted(range(300), key=cmp_to_key(lambda a, b: compared(values[a], values[b], kind)))
    for ours, theirs in zip(order, expected, strict=True):
        assert compared(values[ours], values[theirs], kind) == 0
    for one, other in pairwise(order):
        same = compared(values[one], values[other], kind) == 0
        assert same == (found[one] == found[other])


def test_wide_decimals() -> None:
    rng = random.Random(1)
    top = 10**38 - 1
    numbers = [0, 1, -1, top, -top, 1 << 64, -(1 << 64), (1 << 63) - 1, -(1 << 63)]
    numbers += [rng.randint(-top, top) for _ in range(100)]
    array = pa.array([None, *map(str, numbers)]).cast(arrow_type(WIDE))
    stored = as_stored(array, WIDE)
    assert of_stored(stored, WIDE).equals(array)
    present = sorted(zip(stored.to_pylist()[1:], array.to_pylist()[1:], strict=True))
    assert [value for _, value in present] == sorted(array.to_pylist()[1:])


def test_maps_come_back() -> None:
    kind = parse_type("map<string,array<int>>")
    values = [[("a", [1, None]), ("b", None)], None, [], [("c", [])]]
    array = pa.array(values, arrow_type(kind))
    assert of_stored(as_stored(array, kind), kind).equals(array)
