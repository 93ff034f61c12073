"""What Spark's JVM makes of values that a pickled Python function gives, as Arrow columns.

A value of another class than the declared type's is null there, whole numbers are cut to their
bits, and anything is a text: results here are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from penstock.expressions.printing import text_of_doubles

Read = Callable[[Any], Any]

_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_LONG = range(-(2**63), 2**63)
# Of these classes all values are what they seem, so a column of them needs no second look.
_PLAIN: dict[type[spark.DataType], type] = {
    **dict.fromkeys(_BITS, int),
    spark.DoubleType: float,
    spark.BooleanType: bool,
    spark.StringType: str,
    spark.DateType: int,
    spark.TimestampType: int,
    spark.TimestampNTZType: int,
}
_DIGITS = Context(prec=200, rounding=ROUND_HALF_UP)


def column_of_values(values: Sequence[Any], kind: spark.DataType) -> pa.Array:
    """A column of what a function gave, each value as PySpark's `toInternal` leaves it."""
    arrow = to_arrow_type(kind, timezone="UTC")
    plain = _PLAIN.get(type(kind))
    if plain is not None and set(map(type, values)) <= {plain, type(None)}:
        try:
            return pa.array(values, arrow)
        except (OverflowError, pa.ArrowInvalid):
            pass  # a number that does not fit: its bits do
    read = reader_of(kind)
    return pa.array([read(value) for value in values], arrow)


def reader_of(kind: spark.DataType) -> Read:
    """What reads one value as a type: None where it is null."""
    reader = _READERS.get(type(kind), _never)(kind)
    return lambda value: None if value is None else reader(value)


def _only(*classes: type) -> Callable[[spark.DataType], Read]:
    return lambda _: lambda value: value if type(value) in classes else None


def _never(kind: spark.DataType) -> Read:
    return lambda value: None


def _whole(kind: spark.DataType) -> Read:
    bits = _BITS[type(kind)]
    half, mask = 1 << (bits - 1), (1 << bits) - 1

    def read(value: Any) -> int | None:
        if type(value) is not int or value not in _LONG:
            return None
        return ((value + half) & mask) - half

    return read


def _float(kind: spark.DataType) -> Read:
    return lambda value: float(np.float32(value)) if type(value) is float else None


def _decimal(kind: spark.DataType) -> Read:
    assert isinstance(kind, spark.DecimalType)
    unit, precision = Decimal(1).scaleb(-kind.scale), kind.precision

    def read(value: Any) -> Decimal | None:
        if type(value) is not Decimal:
            return None
        if not value.is_finite():
            raise ValueError(f"{value} is no decimal({precision},{kind.scale})")
        found = value.quantize(unit, context=_DIGITS)
        if len(found.as_tuple().digits) > precision:
            raise ValueError(f"{value} has more digits than decimal({precision},{kind.scale})")
        return found

    return read


def _text(kind: spark.DataType) -> Read:
    return java_text


def java_text(value: Any) -> str:
    """A value as Java writes it."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (int, Decimal):
        return str(value)
    if type(value) is float:
        one = np.array([value])
        return str(text_of_doubles(one, np.ones(1, np.bool_))[0])
    if value is None:
        return "null"
    if type(value) is list:
        return f"[{', '.join(map(java_text, value))}]"
    raise TypeError(
        f"a {type(value).__name__} was returned where a string is declared: return a str, or "
        "declare the type that the function gives"
    )


def _bytes(kind: spark.DataType) -> Read:
    def read(value: Any) -> bytes | None:
        if type(value) is str:
            return value.encode()
        return bytes(value) if type(value) in (bytes, bytearray) else None

    return read


def _array(kind: spark.DataType) -> Read:
    assert isinstance(kind, spark.ArrayType)
    element = reader_of(kind.elementType)

    def read(value: Any) -> list[Any] | None:
        if type(value) in (bytes, bytearray):  # an array to Java, of bytes with a sign
            value = np.frombuffer(value, np.int8).tolist()
        return [element(each) for each in value] if type(value) in (list, tuple) else None

    return read


def _map(kind: spark.DataType) -> Read:
    assert isinstance(kind, spark.MapType)
    key, item = reader_of(kind.keyType), reader_of(kind.valueType)

    def read(value: Any) -> list[tuple[Any, Any]] | None:
        if type(value) is not dict:
            return None
        return [(key(name), item(each)) for name, each in value.items()]

    return read


def _struct(kind: spark.DataType) -> Read:
    assert isinstance(kind, spark.StructType)
    names = [field.name for field in kind.fields]
    members = [reader_of(field.dataType) for field in kind.fields]

    def read(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, tuple):
            return None
        if len(value) != len(names):
            raise ValueError(
                "Input row doesn't have expected number of values required by the schema. "
                f"{len(names)} fields are required while {len(value)} values are provided"
            )
        read_members = zip(names, members, value, strict=True)
        return {name: member(each) for name, member, each in read_members}

    return read


_READERS: dict[type[spark.DataType], Callable[[spark.DataType], Read]] = {
    **dict.fromkeys(_BITS, _whole),
    spark.BooleanType: _only(bool),
    spark.FloatType: _float,
    spark.DoubleType: _only(float),
    spark.DecimalType: _decimal,
    spark.StringType: _text,
    spark.BinaryType: _bytes,
    spark.DateType: _only(int),
    spark.TimestampType: _only(int),
    spark.TimestampNTZType: _only(int),
    spark.ArrayType: _array,
    spark.MapType: _map,
    spark.StructType: _struct,
}
