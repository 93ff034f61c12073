"""Spark's types, as its JSON names them, in ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions.types import (
    INTERVAL_KINDS,
    DataType,
    Field,
    array_type,
    decimal_type,
    map_type,
    struct_type,
)
from penstock.json_codec import parse

_SIMPLE: Mapping[str, str] = {
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    **{kind: kind for kind in INTERVAL_KINDS},
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def spark_type(handle: Any) -> DataType:
    """The type of a JVM DataType; an ExpressionError for one that is not known here."""
    return parse_json_type(str(handle.json()))


@lru_cache(maxsize=4096)
def parse_json_type(text: str) -> DataType:
    """The type of Spark's JSON text."""
    return _from_json(parse(text))


def _from_json(node: Any) -> DataType:
    if isinstance(node, str):
        return _simple(node)
    kind = node["type"]
    if kind == "array":
        return array_type(_from_json(node["elementType"]))
    if kind == "map":
        return map_type(_from_json(node["keyType"]), _from_json(node["valueType"]))
    if kind == "struct":
        return struct_type([_member(member) for member in node["fields"]])
    raise _unknown(str(kind))


def _member(member: Any) -> Field:
    # Collations of strings inside a struct stand in its metadata, not in the type's name.
    if "__COLLATIONS" in member.get("metadata", {}):
        raise _unknown(f"{member['name']}: string with a collation")
    return Field(member["name"], _from_json(member["type"]))


def _simple(name: str) -> DataType:
    if name in _SIMPLE:
        return DataType(_SIMPLE[name])
    digits = _DECIMAL.fullmatch(name)
    if digits is not None:
        return decimal_type(int(digits[1]), int(digits[2]))
    raise _unknown(name)


_MONTHS = (
    "Spark does not hand over intervals of years and months: keep their number of months, "
    "CAST(... AS int), and add it by add_months()"
)
_WAYS_OUT: Mapping[str, str] = {
    "interval": "months, days and microseconds in one have no order: use make_dt_interval()",
    "interval year": _MONTHS,
    "interval month": _MONTHS,
    "interval year to month": _MONTHS,
}


def _unknown(name: str) -> ExpressionError:
    way_out = f"; {_WAYS_OUT[name]}" if name in _WAYS_OUT else ""
    return ExpressionError(f"the type {name} is not known here{way_out}", type=name)
