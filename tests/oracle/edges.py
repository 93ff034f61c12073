"""Random rows made of the values at which engines differ, for expressions."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from penstock.expressions.types import (
    INTEGER_BITS,
    INTERVAL_FIELDS_US,
    DataType,
    Schema,
    arrow_schema,
)
from penstock.testing.plans import parse_schema
from tests.catalyst.expression_cases import COLUMNS
from tests.expressions.spark_cases import DATE_TEXTS, NUMBER_TEXTS, TEXTS, instants

# Beside the columns of the single cases a second one of each type, and the number of the row.
EDGE_COLUMNS = (
    f"row int, {COLUMNS}, i2 int, s2 smallint, t2 tinyint, f2 float, x2 double, d2 decimal(8,2), "
    "v string, bytes2 binary, day2 date, ts2 timestamp, ntz2 timestamp_ntz"
)
EDGE_SCHEMA: Schema = parse_schema(EDGE_COLUMNS)

# Two columns of each type that is not nested.
PAIRS: dict[str, tuple[str, str]] = {
    "tinyint": ("t", "t2"),
    "smallint": ("s", "s2"),
    "int": ("i", "i2"),
    "bigint": ("a", "b"),
    "float": ("f", "f2"),
    "double": ("x", "x2"),
    "decimal(8,2)": ("d", "d2"),
    "boolean": ("p", "q"),
    "string": ("u", "v"),
    "binary": ("bytes", "bytes2"),
    "date": ("day", "day2"),
    "timestamp": ("ts", "ts2"),
    "timestamp_ntz": ("ntz", "ntz2"),
    "interval day to second": ("gap", "gap2"),
}

_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -7.25, math.inf, -math.inf, math.nan, 1e16, 0.125, -2.5,
    127.9, 2147483648.0, 1e300, 5e-324, 1.005, 9.3e18,
)  # fmt: skip
_DAYS = (0, -1, 1, 59, 18322, 18569, -25567, -719162, 2932896, 29000)
_NULLS = 0.12
_EVERY_DIGIT = Context(prec=38)
_KEYS = ("a", "b", "", "日", "ab")
JSON_TEXTS = (
    '{"a": 1, "b": "x"}', '{"a": [1, 2.5, {"c": null}], "b": {"c": "\\u00e9\\n"}}', "", "{", "[]",
    '[{"a": 1}, {"a": 2}]', "null", '{"a": 1.0E3, "a": 2}', " {\"b\" : true } ", '{"a": 1} x',
    '{"b": "日本"}', '"text"', "17", '{"a": {"b": {"c": [true, false]}}}', "{'a': 1}",
    '{"a": 12345678901234567890}', '{"a": null}', '{"A": 5}', '{"a": "7", "b": -0, "d": -0.0}',
    '{"d": NaN, "a": 3}', '{"x": Inf, "a": 1}', '{"b": "\\ud800", "d": 1e400}', '{"b": 1.50}',
    '{"t": "2024-03-10 02:30:00", "c": 1.005, "a": 1.0}', '{"t": 17, "c": "1,234.5", "d": "NaN"}',
    '{"t": "2024-03-10T02:30:00.5+05:30", "c": 12345678901, "l": [1, 2, null]}', '{"a": 01}',
    '{"l": [1, "x", 2], "b": "kept"}', '{"l": [1, tru], "b": "kept"}', '{"l": [7.], "a": 7}',
    '{"s": {"n": 1, "w": ["x"], "n": 2}, "t": "x"}', '{"s": {"n": "x", "w": {"y": 1.0}}, "a": 4}',
    '{"m": {"p": "2024-02-29", "q": null, "p": "5"}}', '{"m": {"p": "x"}, "a": 9}', '{"a": 1,}',
    '{"b": "one\nline"}', '{"b":"one",\n"a":2}', '{"b":"tail", "a":1', '{"a": +1}',
    '{"b": "\\x,"a":1}',
)  # fmt: skip


def edge_rows(seed: int, count: int) -> pa.RecordBatch:
    """Rows of EDGE_COLUMNS; the first one has a value in every column, the second none."""
    rng = random.Random(seed)
    schema = arrow_schema(EDGE_SCHEMA)
    columns = [pa.array(range(count), pa.int32())]
    for field, arrow in zip(EDGE_SCHEMA[1:], list(schema)[1:], strict=True):
        # The others have the values that they had before there were intervals.
        drawn = random.Random(f"{seed} {field.name}") if field.type.is_interval else rng
        values = [_value(drawn, field.name, field.type) for _ in range(count)]
        nulls = {number for number in range(count) if drawn.random() < _NULLS} - {0} | {1}
        given = [None if number in nulls else value for number, value in enumerate(values)]
        columns.append(pa.array(given, arrow.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(rng: random.Random, name: str, kind: DataType) -> Any:
    if name == "num":
        return rng.choice(NUMBER_TEXTS)
    if name == "at":
        return rng.choice(DATE_TEXTS)
    if name == "js":
        return rng.choice(JSON_TEXTS)
    if kind.is_integer:
        return _integer(rng, INTEGER_BITS[kind.kind])
    if kind.is_fractional:
        return rng.choice(_FLOATS) if rng.random() < 0.6 else round(rng.uniform(-99, 99), 3)
    if kind.is_decimal:
        top = 10**kind.precision - 1
        edges = (0, 1, -1, 5, -5, 50, 150, -250, 12345, top, -top, top // 3)
        unscaled = rng.choice(edges) if rng.random() < 0.6 else rng.randint(-top, top)
        return Decimal(unscaled).scaleb(-kind.scale, _EVERY_DIGIT)
    if kind.kind == "boolean":
        return rng.random() < 0.5
    if kind.kind == "string":
        return rng.choice(TEXTS)
    if kind.kind == "binary":
        return (rng.choice(TEXTS) or "").encode()
    if kind.kind == "date":
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.choice(_DAYS))
    if kind.kind in ("timestamp", "timestamp_ntz"):
        return rng.choice(instants())
    if kind.is_interval:
        return _length_us(rng, kind)
    if kind.kind == "array":
        assert kind.element is not None
        return [
            None if rng.random() < _NULLS else _value(rng, "", kind.element)
            for _ in range(rng.randrange(5))
        ]
    if kind.kind == "map":
        assert kind.value is not None
        keys = rng.sample(_KEYS, rng.randrange(4))
        return [
            (key, None if rng.random() < _NULLS else _value(rng, "", kind.value)) for key in keys
        ]
    return {
        member.name: None if rng.random() < _NULLS else _value(rng, "", member.type)
        for member in kind.fields
    }


def _length_us(rng: random.Random, kind: DataType) -> int:
    """Of whole units of the last field, where that is not a second."""
    drawn = _integer(rng, 64) if rng.random() < 0.3 else round(10 ** rng.uniform(0, 15))
    _, last = kind.interval_fields
    unit = 1 if last == "second" else INTERVAL_FIELDS_US[last]
    return (abs(drawn) // unit * unit) * (-1 if drawn < 0 or rng.random() < 0.5 else 1)


def _integer(rng: random.Random, bits: int) -> int:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    drawn = rng.random()
    if drawn < 0.3:
        return rng.choice((low, low + 1, high - 1, high, 1 << (bits // 2), -(1 << (bits // 2))))
    return rng.randint(-9, 9) if drawn < 0.8 else rng.randint(low, high)
