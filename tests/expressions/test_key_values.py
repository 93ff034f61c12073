"""Nested values as bytes: equal for what Spark groups together only, and back again."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ExpressionError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import call, column
from penstock.expressions.types import DataType, arrow_type, parse_type

TYPES = (
    "struct<a:int,b:string>",
    "array<string>",
    "array<double>",
    "array<array<struct<x:double,y:array<float>>>>",
    "array<struct<x:boolean,t:tinyint,u:bigint>>",
    "struct<a:array<struct<b:binary,c:decimal(38,10)>>,d:decimal(5,2),e:smallint>",
)
MAPS = ("map<int,double>", "array<struct<m:map<string,map<boolean,float>>>>")
CHOICES: dict[str, tuple[Any, ...]] = {
    "string": ("", "a", "é" * 9, "b\0"),
    "binary": (b"", b"\0\1", b"x" * 40),
    "double": (0.0, -0.0, math.nan, math.inf, 1.5),
    "float": (0.0, -0.0, math.nan, -math.inf, 0.25),
    "boolean": (True, False),
    "decimal": (Decimal(0), Decimal("-1.5"), Decimal("999.99")),
}


def drawn(rng: random.Random, kind: DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if kind.element is not None:
        return [drawn(rng, kind.element) for _ in range(rng.randrange(4))]
    if kind.key is not None and kind.value is not None:
        keys = rng.sample(CHOICES.get(kind.key.kind, range(-3, 3)), rng.randrange(3))
        return [(key, drawn(rng, kind.value)) for key in sorted(keys)]
    if kind.fields:
        return {field.name: drawn(rng, field.type) for field in kind.fields}
    return rng.choice(CHOICES.get(kind.kind, range(-3, 3)))


def grouped(value: Any) -> Any:
    """As Spark tells keys apart."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return [grouped(item) for item in value]
    return {k: grouped(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("text", [*TYPES, *MAPS])
def test_bytes_stand_for_one_value(text: str) -> None:
    rng, kind = random.Random(text), parse_type(text)
    values = [drawn(rng, kind) for _ in range(300)]
    array = pa.array([None, *values], arrow_type(kind)).slice(1)
    rows = pa.record_batch([array], names=["v"])
    as_bytes = call("key_bytes", column("v", kind), maps=True)
    found = evaluate(as_bytes, rows).to_pylist()
    expected = [grouped(value) for value in rows.column(0).to_pylist()]
    assert [key is None for key in found] == [value is None for value in expected]
    pairs = {(repr(value), key) for value, key in zip(expected, found, strict=True)}
    assert len(pairs) == len({value for value, _ in pairs}) == len({key for _, key in pairs})
    again = evaluate(call("of_key_bytes", as_bytes, type=text), rows)
    again.validate(full=True)
    assert again.type == arrow_type(kind)
    assert repr([grouped(value) for value in again.to_pylist()]) == repr(expected)
    assert "-0.0" not in repr(again.to_pylist())


def test_bytes_never_change() -> None:
    kind = parse_type("struct<a:array<double>,b:string,c:int>")
    rows = pa.array([{"a": [-0.0, None], "b": "xy", "c": None}], arrow_type(kind))
    batch = pa.record_batch([rows], names=["v"])
    (key,) = evaluate(call("key_bytes", column("v", kind)), batch).to_pylist()
    array = b"\1" + b"\2\0\0\0" + b"\1" + bytes(8) + b"\0" + bytes(8)
    assert key == b"\1" + array + b"\1" + b"\2\0\0\0xy" + b"\0" + bytes(4)


@pytest.mark.parametrize("text", ["map<int,int>", "array<map<int,int>>", "struct<m:map<int,int>>"])
def test_maps_have_none(text: str) -> None:
    with pytest.raises(ExpressionError, match="no map"):
        call("key_bytes", column("v", parse_type(text)))


def test_maps_in_the_order_of_their_keys() -> None:
    kind = parse_type("map<double,array<string>>")
    unsorted = [(math.nan, ["n"]), (1.0, None), (-0.5, []), (math.inf, ["i", None])]
    values = [[(2.0, ["a"])], unsorted, None, [], unsorted[::-1]]
    rows = pa.record_batch([pa.array([unsorted, *values], arrow_type(kind)).slice(1)], names=["v"])
    in_order = call("map_sort", column("v", kind))
    found = evaluate(in_order, rows)
    found.validate(full=True)
    whole = [unsorted[2], unsorted[1], unsorted[3], unsorted[0]]
    assert repr(found.to_pylist()) == repr([values[0], whole, None, [], whole])
    keys = evaluate(call("key_bytes", in_order, maps=True), rows).to_pylist()
    assert keys[1] == keys[4]
    assert len(set(keys)) == 4
    structs = parse_type("map<struct<a:int,b:string>,int>")
    ordered = [({"a": None, "b": "z"}, 1), ({"a": -1, "b": None}, None), ({"a": -1, "b": ""}, 3)]
    rows = pa.record_batch([pa.array([ordered[::-1], ordered], arrow_type(structs))], names=["v"])
    assert evaluate(call("map_sort", column("v", structs)), rows).to_pylist() == [ordered] * 2


def test_no_bytes_stand_for_no_value() -> None:
    """As in rows that are made up, to load what a program needs."""
    rows = pa.record_batch({"k": pa.array([b"", None], pa.binary())})
    found = evaluate(call("of_key_bytes", column("k", "binary"), type="struct<a:int>"), rows)
    assert found.to_pylist() == [None, None]
