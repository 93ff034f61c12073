"""The types of values: Spark's, named and parsed by its simple strings, with their Arrow form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.errors import ExpressionError
from penstock.json_codec import Malformed

DECIMAL_DIGITS_MAX = 38
ARITHMETIC_DIGITS_MAX = 18  # a decimal that is computed with must fit a scaled 64-bit integer
TYPE_TEXT_CHARACTERS_MAX = 65_536
TYPE_DEPTH_MAX = 32

INTEGER_BITS: dict[str, int] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
FRACTIONAL_KINDS = frozenset({"float", "double"})
# The length of each field of an interval, the longest first; a kind names the first and the last.
INTERVAL_FIELDS_US: dict[str, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
}
INTERVAL_KINDS = tuple(
    f"interval {first}" if first == last else f"interval {first} to {last}"
    for at, first in enumerate(INTERVAL_FIELDS_US)
    for last in list(INTERVAL_FIELDS_US)[at:]
)
MONTHS_KINDS = ("interval year", "interval month", "interval year to month")
SIMPLE_KINDS = (
    *INTEGER_BITS,
    "boolean",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "void",
    *INTERVAL_KINDS,
    *MONTHS_KINDS,
)
_COLLATED = "string collate "  # before the name of a collation
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True, slots=True)
class DataType:
    """One type. Only the attributes of its kind are set: the rest keep their defaults.

    `kind` is the word before any bracket: boolean tinyint smallint int bigint float double decimal
    string binary date timestamp timestamp_ntz void array struct map, an interval with its fields,
    or a string with its collation.
    """

    kind: str
    precision: int = 0
    scale: int = 0
    element: DataType | None = None
    fields: tuple[Field, ...] = ()
    key: DataType | None = None
    value: DataType | None = None

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "array":
            return f"array<{self.element}>"
        if self.kind == "map":
            return f"map<{self.key},{self.value}>"
        if self.kind == "struct":
            inner = ",".join(f"{_quoted(field.name)}:{field.type}" for field in self.fields)
            return f"struct<{inner}>"
        return self.kind

    @property
    def is_integer(self) -> bool:
        return self.kind in INTEGER_BITS

    @property
    def is_fractional(self) -> bool:
        return self.kind in FRACTIONAL_KINDS

    @property
    def is_decimal(self) -> bool:
        return self.kind == "decimal"

    @property
    def is_numeric(self) -> bool:
        return self.is_integer or self.is_fractional or self.is_decimal

    @property
    def is_interval(self) -> bool:
        return self.kind in INTERVAL_KINDS

    @property
    def interval_fields(self) -> tuple[str, str]:
        """The first and the last field of an interval."""
        words = self.kind.split()
        return words[1], words[-1]

    @property
    def is_months(self) -> bool:
        """Whether it is an interval of years and months: a count of months."""
        return self.kind in MONTHS_KINDS

    @property
    def is_collated(self) -> bool:
        """Whether it is a string that compares otherwise than its bytes."""
        return self.kind.startswith(_COLLATED)

    @property
    def is_nested(self) -> bool:
        return self.kind in ("array", "struct", "map")

    @property
    def has_map(self) -> bool:
        """Whether it is a map, or has one somewhere below."""
        if self.element is not None:
            return self.element.has_map
        return self.kind == "map" or any(field.type.has_map for field in self.fields)

    def walk(self) -> Iterator[DataType]:
        """The type and all below it."""
        yield self
        inside = (self.element, self.key, self.value, *(field.type for field in self.fields))
        for each in inside:
            if each is not None:
                yield from each.walk()

    @property
    def has_collation(self) -> bool:
        """Whether it is a string with a collation, or has one somewhere below."""
        return any(each.is_collated for each in self.walk())


@dataclass(frozen=True, slots=True)
class Field:
    """One named column of a schema, or one member of a struct (whose members are all nullable)."""

    name: str
    type: DataType
    nullable: bool = True

    def to_json(self) -> list[Any]:
        return [self.name, str(self.type), self.nullable]

    @classmethod
    def from_json(cls, node: Any) -> Field:
        if not isinstance(node, list) or [type(part) for part in node] != [str, str, bool]:
            raise Malformed(f"{node!r:.200} is not a column: [name, type, nullable] was expected")
        return cls(node[0], parse_type(node[1]), node[2])


Schema = tuple[Field, ...]

BOOLEAN = DataType("boolean")
TINYINT = DataType("tinyint")
INT = DataType("int")
BIGINT = DataType("bigint")
DOUBLE = DataType("double")
STRING = DataType("string")
BINARY = DataType("binary")
DATE = DataType("date")
TIMESTAMP = DataType("timestamp")
TIMESTAMP_NTZ = DataType("timestamp_ntz")
INTERVAL = DataType("interval day to second")
VOID = DataType("void")


def decimal_type(precision: int, scale: int) -> DataType:
    """decimal(precision, scale), checked against Spark's own bounds."""
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise ExpressionError(
            f"decimal({precision},{scale}) is not a type: precision goes from 1 to "
            f"{DECIMAL_DIGITS_MAX} and scale from 0 to the precision",
            precision=precision,
            scale=scale,
        )
    return DataType("decimal", precision=precision, scale=scale)


def array_type(element: DataType) -> DataType:
    return DataType("array", element=element)


def map_type(key: DataType, value: DataType) -> DataType:
    return DataType("map", key=key, value=value)


def struct_type(fields: Sequence[Field]) -> DataType:
    """A struct of these members; nullability inside a type is not tracked, as in simple strings."""
    return DataType("struct", fields=tuple(Field(field.name, field.type) for field in fields))


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_]+", name):
        return name
    return "`" + name.replace("`", "``") + "`"


# --- text -> type ---------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(?:([A-Za-z0-9_]+)|`((?:[^`]|``)+)`|([<>(),:]))")


class _TypeText:
    """A cursor over the tokens of one type text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise self.error(f"unexpected character {stripped[position]!r}")
            word, quoted, mark = match.groups()
            if mark is not None:
                self.tokens.append(("mark", mark))
            elif quoted is not None:
                self.tokens.append(("quoted", quoted.replace("``", "`")))
            else:
                self.tokens.append(("word", word))
            position = match.end()

    def error(self, reason: str) -> ExpressionError:
        return ExpressionError(
            f"{self.text[:200]!r} is not a type: {reason}; write it like Spark's simple strings, "
            "for example bigint, decimal(10,2), array<string>, struct<a:int,b:double>",
            type=self.text[:200],
        )

    def take(self, *kinds: str) -> str:
        if self.at >= len(self.tokens):
            raise self.error("it ends too early")
        kind, text = self.tokens[self.at]
        if kind not in kinds:
            raise self.error(f"unexpected {text!r}")
        self.at += 1
        return text

    def expect(self, mark: str) -> None:
        if self.take("mark") != mark:
            raise self.error(f"{mark!r} expected")

    def next_is(self, mark: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] == ("mark", mark)

    def rest_of_words(self) -> list[str]:
        begin = self.at
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "word":
            self.at += 1
        return [text for _, text in self.tokens[begin : self.at]]

    def number(self) -> int:
        text = self.take("word")
        if not re.fullmatch(r"[0-9]{1,3}", text):
            raise self.error(f"{text!r} is not a number of digits")
        return int(text)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> DataType:
    """The type that a simple string names; an ExpressionError for any other text."""
    if not isinstance(text, str) or len(text) > TYPE_TEXT_CHARACTERS_MAX:
        raise ExpressionError(
            f"a type is a text of at most {TYPE_TEXT_CHARACTERS_MAX} characters",
            type=str(text)[:200],
        )
    cursor = _TypeText(text)
    parsed = _parse(cursor, depth=0)
    if cursor.at != len(cursor.tokens):
        raise cursor.error(f"unexpected {cursor.tokens[cursor.at][1]!r}")
    return parsed


def _parse(cursor: _TypeText, depth: int) -> DataType:
    if depth > TYPE_DEPTH_MAX:
        raise cursor.error(f"nested deeper than {TYPE_DEPTH_MAX}")
    word = cursor.take("word").lower()
    if word == "interval":
        word = " ".join([word, *cursor.rest_of_words()]).lower()
    if word == "string" and (collation := cursor.rest_of_words()):
        return _parse_collated(cursor, collation)
    kind = _ALIASES.get(word, word)
    if kind in SIMPLE_KINDS:
        return DataType(kind)
    if kind == "decimal":
        return _parse_decimal(cursor)
    if kind == "array":
        cursor.expect("<")
        element = _parse(cursor, depth + 1)
        cursor.expect(">")
        return array_type(element)
    if kind == "map":
        cursor.expect("<")
        key = _parse(cursor, depth + 1)
        cursor.expect(",")
        value = _parse(cursor, depth + 1)
        cursor.expect(">")
        return map_type(key, value)
    if kind == "struct":
        return _parse_struct(cursor, depth)
    raise cursor.error(f"there is no type {word!r}")


def _parse_decimal(cursor: _TypeText) -> DataType:
    if not cursor.next_is("("):
        return decimal_type(10, 0)
    cursor.expect("(")
    precision, scale = cursor.number(), 0
    if cursor.next_is(","):
        cursor.expect(",")
        scale = cursor.number()
    cursor.expect(")")
    return decimal_type(precision, scale)


def _parse_collated(cursor: _TypeText, words: list[str]) -> DataType:
    if len(words) != 2 or words[0].lower() != "collate":
        raise cursor.error(f"there is no type {' '.join(['string', *words])!r}")
    return DataType(_COLLATED + words[1].upper())


def _parse_struct(cursor: _TypeText, depth: int) -> DataType:
    cursor.expect("<")
    fields: list[Field] = []
    while not cursor.next_is(">"):
        if fields:
            cursor.expect(",")
        name = cursor.take("word", "quoted")
        cursor.expect(":")
        fields.append(Field(name, _parse(cursor, depth + 1)))
    cursor.expect(">")
    return struct_type(fields)


# --- type <-> Arrow -------------------------------------------------------------------------------

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(INTERVAL_KINDS, pa.duration("us")),
}
# Columns of these Arrow would tell nothing of, or cannot exchange with Spark.
_CARRIED: dict[str, pa.DataType] = {
    "void": pa.bool_(),
    **dict.fromkeys(MONTHS_KINDS, pa.int32()),
}
_KIND_OF_ARROW: dict[pa.DataType, str] = {
    **{arrow: kind for kind, arrow in _ARROW.items()},
    _ARROW[INTERVAL.kind]: INTERVAL.kind,  # Arrow knows no fields
}


@lru_cache(maxsize=4096)
def arrow_type(data_type: DataType) -> pa.DataType:
    """The one Arrow type that holds values of this type."""
    if data_type.kind == "decimal":
        return pa.decimal128(data_type.precision, data_type.scale)
    if data_type.kind == "array":
        assert data_type.element is not None
        return pa.list_(arrow_type(data_type.element))
    if data_type.kind == "map":
        assert data_type.key is not None
        assert data_type.value is not None
        return pa.map_(arrow_type(data_type.key), arrow_type(data_type.value))
    if data_type.kind == "struct":
        return pa.struct([_arrow_field(field) for field in data_type.fields])
    if data_type.is_collated:
        return pa.string()
    return _ARROW.get(data_type.kind) or _CARRIED[data_type.kind]


def from_arrow(arrow: pa.DataType) -> DataType:
    """The type that this Arrow type holds; an ExpressionError where Spark has no such type."""
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        return TIMESTAMP if arrow.tz is not None else TIMESTAMP_NTZ
    if arrow in _KIND_OF_ARROW:
        return DataType(_KIND_OF_ARROW[arrow])
    if pa.types.is_decimal128(arrow):
        return decimal_type(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return array_type(from_arrow(arrow.value_type))
    if pa.types.is_map(arrow):
        return map_type(from_arrow(arrow.key_type), from_arrow(arrow.item_type))
    if pa.types.is_struct(arrow):
        members = [arrow.field(index) for index in range(arrow.num_fields)]
        return struct_type([Field(member.name, _type_of(member)) for member in members])
    raise ExpressionError(
        f"Arrow type {arrow} has no counterpart here: convert the column first, for example "
        "timestamps to microseconds and large_string to string",
        arrow_type=str(arrow),
    )


_TYPE_KEY = b"penstock.type"  # of a column whose type Arrow tells in part, or not at all


@lru_cache(maxsize=4096)
def _arrow_field(field: Field) -> pa.Field:
    arrow = arrow_type(field.type)
    said = None if from_arrow(arrow) == field.type else {_TYPE_KEY: str(field.type).encode()}
    return pa.field(field.name, arrow, nullable=field.nullable, metadata=said)


def _type_of(field: pa.Field) -> DataType:
    said = (field.metadata or {}).get(_TYPE_KEY)
    return from_arrow(field.type) if said is None else parse_type(said.decode())


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of these fields, in order."""
    return pa.schema([_arrow_field(field) for field in schema])


def schema_from_arrow(schema: pa.Schema) -> Schema:
    """The fields of an Arrow schema, in order."""
    return tuple(Field(f.name, _type_of(f), f.nullable) for f in schema)
