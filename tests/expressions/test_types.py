"""Types: text to type and back, Arrow to type and back, and the texts that are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ExpressionError
from penstock.expressions.types import (
    SIMPLE_KINDS,
    DataType,
    Field,
    array_type,
    arrow_schema,
    decimal_type,
    from_arrow,
    map_type,
    parse_type,
    schema_from_arrow,
    struct_type,
)

ATOMS = st.one_of(
    st.sampled_from([DataType(kind) for kind in SIMPLE_KINDS]),
    st.integers(1, 38).flatmap(
        lambda precision: st.integers(0, precision).map(
            lambda scale: decimal_type(precision, scale)
        )
    ),
)
TYPES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        inner.map(array_type),
        st.builds(map_type, ATOMS, inner),
        st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3).map(
            lambda members: struct_type([Field(name, kind) for name, kind in members.items()])
        ),
    ),
    max_leaves=8,
)


@given(TYPES)
def test_a_type_survives_its_text_and_its_arrow_form(data_type: DataType) -> None:
    assert parse_type(str(data_type)) == data_type
    columns = (Field("c", data_type, False),)
    assert schema_from_arrow(arrow_schema(columns)) == columns


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("BIGINT", "bigint"),
        ("long", "bigint"),
        ("integer", "int"),
        (" decimal ( 10 , 2 ) ", "decimal(10,2)"),
        ("decimal(7)", "decimal(7,0)"),
        ("decimal", "decimal(10,0)"),
        ("array<struct<a:int,`b c`:map<string,double>>>",) * 2,
        ("struct<>", "struct<>"),
        ("VOID", "void"),
        ("INTERVAL YEAR TO MONTH", "interval year to month"),
        ("STRING COLLATE unicode_CI", "string collate UNICODE_CI"),
        ("struct<a:array<string collate UTF8_LCASE>,b:interval year>",) * 2,
    ],
)
def test_texts_that_are_types(text: str, shown: str) -> None:
    assert str(parse_type(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "", "integr", "array", "array<", "array<int", "array<int>>", "map<int>", "struct<a>",
        "struct<a:int,>", "decimal(0,0)", "decimal(39,0)", "decimal(5,6)", "decimal(x)", "int int",
        "decimal(-1,0)", "int;", "array<" * 60 + "int" + ">" * 60, "interval", "x" * 70_000,
        "string collate", "string UTF8_LCASE", "string collate A B", "interval year to day",
    ],
)  # fmt: skip
def test_texts_that_are_not_types(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_type(text)


@pytest.mark.parametrize(
    "arrow",
    [pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.large_string(), pa.uint8(), pa.null()],
)
def test_arrow_types_without_a_counterpart(arrow: pa.DataType) -> None:
    with pytest.raises(ExpressionError, match="no counterpart"):
        from_arrow(arrow)


def test_a_schema_keeps_names_types_and_nullability() -> None:
    schema = (Field("a", DataType("int"), nullable=False), Field("b", parse_type("array<string>")))
    assert schema_from_arrow(arrow_schema(schema)) == schema


def test_timestamps_of_any_zone_are_instants() -> None:
    assert from_arrow(pa.timestamp("us", "Asia/Kolkata")) == DataType("timestamp")
