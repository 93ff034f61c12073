"""Spark's types, as its JSON names them, in ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock.errors import ExpressionError
from penstock.expressions.types import (
    INTERVAL_KINDS,
    MONTHS_KINDS,
    DataType,
    Field,
    array_type,
    decimal_type,
    map_type,
    parse_type,
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
    "void": "void",
    **{kind: kind for kind in (*INTERVAL_KINDS, *MONTHS_KINDS)},
}
_NONE: Mapping[str, str] = {}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def spark_type(handle: Any) -> DataType:
    """The type of a JVM DataType; an ExpressionError for one that is not known here."""
    return parse_json_type(str(handle.json()))


@lru_cache(maxsize=4096)
def parse_json_type(text: str) -> DataType:
    """The type of Spark's JSON text."""
    return _from_json(parse(text))


def _from_json(node: Any, collations: Mapping[str, str] = _NONE, place: str = "") -> DataType:
    """`collations` are those of a struct's member, by place: they are not in the type's name."""
    if isinstance(node, str):
        return _simple(f"string collate {collations[place]}" if place in collations else node)
    kind = node["type"]
    if kind == "array":
        return array_type(_from_json(node["elementType"], collations, f"{place}.element"))
    if kind == "map":
        sides = (
            _from_json(node[f"{side}Type"], collations, f"{place}.{side}")
            for side in ("key", "value")
        )
        return map_type(*sides)
    if kind == "struct":
        return struct_type([_member(member) for member in node["fields"]])
    raise _unknown(str(kind))


def _member(member: Any) -> Field:
    name = member["name"]
    found = member.get("metadata", {}).get("__COLLATIONS", _NONE)
    collations = {place: each.partition(".")[2] for place, each in found.items()}
    return Field(name, _from_json(member["type"], collations, name))


def _simple(name: str) -> DataType:
    if name.startswith("string collate "):
        return parse_type(name)
    if name in _SIMPLE:
        return DataType(_SIMPLE[name])
    digits = _DECIMAL.fullmatch(name)
    if digits is not None:
        return decimal_type(int(digits[1]), int(digits[2]))
    raise _unknown(name)


# What Spark's Arrow does not hand over: what has the same form in its rows.
_HANDED_OVER: Mapping[str, str] = {"void": "boolean", **dict.fromkeys(MONTHS_KINDS, "integer")}


def handed_over_json(text: str) -> str:
    """Spark's JSON of a type with other types in the place of those that Arrow does not know."""
    return json.dumps(_handed_over(json.loads(text)))


def _handed_over(node: Any) -> Any:
    if isinstance(node, str):
        return _HANDED_OVER.get(node, node)
    changed = {key: _handed_over(node[key]) for key in _INSIDE if key in node}
    members = [{**each, "type": _handed_over(each["type"])} for each in node.get("fields", ())]
    return {**node, **changed, **({"fields": members} if "fields" in node else {})}


_INSIDE = ("elementType", "keyType", "valueType")
_WAYS_OUT: Mapping[str, str] = {
    "interval": "months, days and microseconds in one have no order: use make_dt_interval()",
}


def _unknown(name: str) -> ExpressionError:
    way_out = f"; {_WAYS_OUT[name]}" if name in _WAYS_OUT else ""
    return ExpressionError(f"the type {name} is not known here{way_out}", type=name)
