"""Values of partition columns: what the text of a folder's name means as a value of a type."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.folder_partitions import NULL_TEXT, PartitionColumns
from penstock.connectors.folder_paths import unescaped
from penstock.errors import RowError, SourceError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import cast, column
from penstock.expressions.types import INTEGER_BITS, DataType, Schema, arrow_schema, arrow_type

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_DECIMAL = re.compile(rf"[+-]?{_NUMBER}")
_DOUBLE = re.compile(rf"([+-]?(?:NaN|Infinity|{_NUMBER}))[fFdD]?")
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_DECIMAL_DIGITS_MAX = 38
_EXACT = decimal.Context(prec=200)
_JAVA_SPACE = "".join(map(chr, range(33)))


def partition_columns(
    columns: Schema, wanted: Collection[str], time_zone: str | None
) -> PartitionColumns:
    """The columns that folders stand for, of which some are wanted; times without a zone are of
    the session's."""
    used = [(at, field) for at, field in enumerate(columns) if field.name in wanted]

    def read(texts: Sequence[str]) -> list[pa.Scalar]:
        return [_value(texts[at], field.name, field.type, time_zone) for at, field in used]

    schema = arrow_schema(tuple(field for _, field in used))
    return PartitionColumns(tuple(field.name for field in columns), schema, read)


def _value(text: str, name: str, kind: DataType, time_zone: str | None) -> pa.Scalar:
    if text == NULL_TEXT:
        return pa.scalar(None, arrow_type(kind))
    try:
        if kind.kind in READERS:
            return pa.scalar(READERS[kind.kind](text, kind), arrow_type(kind))
        return _time(text, kind, time_zone)
    except (ValueError, OverflowError, RowError) as error:
        raise SourceError(
            f"a folder {name}={text} has no value of type {kind}, which column {name} has: rename "
            f"it, or give the column another type, such as string, in the schema",
            column=name,
            text=text,
        ) from error


def _time(text: str, kind: DataType, time_zone: str | None) -> pa.Scalar:
    """A date or time as Spark casts it; a time may also be written as a date."""
    if kind.kind == "date":
        return _cast(text, kind, time_zone)
    try:
        return _cast(unescaped(text), kind, time_zone)
    except RowError:
        day = cast(column("text", "string"), "date")
        return _only(cast(day, kind, time_zone), text)


def _cast(text: str, kind: DataType, time_zone: str | None) -> pa.Scalar:
    return _only(cast(column("text", "string"), kind, time_zone), text)


def _only(expression: Any, text: str) -> pa.Scalar:
    return evaluate(expression, pa.RecordBatch.from_arrays([pa.array([text])], ["text"]))[0]


def _integer(text: str, kind: DataType) -> int:
    """As Java reads them: those of one and two bytes are cut off ones of four."""
    bits = INTEGER_BITS[kind.kind]
    value = int(text) if _INTEGER.fullmatch(text) else None
    bound = 1 << (max(bits, 32) - 1)
    if value is None or not -bound <= value < bound:
        raise ValueError(text)
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _fraction(text: str, kind: DataType) -> float:
    text = text.strip(_JAVA_SPACE)
    if found := _DOUBLE.fullmatch(text):
        value = float(found[1])
    elif found := _HEXADECIMAL.fullmatch(text):
        value = float.fromhex(found[1])
    else:
        raise ValueError(text)
    with np.errstate(over="ignore"):
        return float(np.float32(value)) if kind.kind == "float" else value


def _decimal(text: str, kind: DataType) -> decimal.Decimal | None:
    """Rounded to the type's scale; one that is too large is null, as in Spark."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    exact = decimal.Decimal(text)
    if max(len(exact.as_tuple().digits), exact.adjusted() + 1) > _DECIMAL_DIGITS_MAX:
        raise ValueError(text)
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    rounded = exact.quantize(unit, decimal.ROUND_HALF_UP, context=_EXACT)
    return rounded if rounded.adjusted() + 1 + kind.scale <= kind.precision else None


def _boolean(text: str, _: DataType) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


READERS: Mapping[str, Callable[[str, DataType], Any]] = {
    **dict.fromkeys(INTEGER_BITS, _integer),
    "float": _fraction,
    "double": _fraction,
    "decimal": _decimal,
    "boolean": _boolean,
    "string": lambda text, _: unescaped(text),
    "binary": lambda text, _: text.encode(errors="surrogateescape"),
}
PARTITION_KINDS = frozenset({*READERS, "date", "timestamp", "timestamp_ntz"})
