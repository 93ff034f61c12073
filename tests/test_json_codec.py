"""JSON out and in: one text per layout, records by their fields, and errors that say where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NewType

import pytest

from penstock.expressions.types import BIGINT, Field, Schema
from penstock.json_codec import (
    Malformed,
    canonical_json,
    compact_json,
    indented_json,
    list_of,
    parse,
    parse_strictly,
    read_as,
    record_of,
    spaced_json,
)

Place = NewType("Place", int)


class Pair(NamedTuple):
    number: int
    flag: bool = False


@dataclass(frozen=True)
class Inner:
    name: str
    columns: Schema = ()


@dataclass(frozen=True)
class Outer:
    place: Place
    edge: tuple[int, int]
    kind: Literal["a", "b"]
    inner: Inner | None = None
    pairs: dict[str, Pair] = field(default_factory=dict)
    whatever: Any = None


WHOLE = Outer(
    Place(3), (1, 2), "a", Inner("x", (Field("c", BIGINT),)), {"p": Pair(7, True)}, [1, {"y": None}]
)


def test_layouts() -> None:
    value = {"b": [1, 2.5], "a": None}
    assert canonical_json(value) == '{"a":null,"b":[1,2.5]}'
    assert compact_json(value) == b'{"b":[1,2.5],"a":null}'
    assert spaced_json(value) == b'{"b": [1, 2.5], "a": null}'
    assert indented_json({"a": 1}) == b'{\n "a": 1\n}\n'


@pytest.mark.parametrize("write", [canonical_json, compact_json, spaced_json, indented_json])
def test_a_record_comes_back(write: Any) -> None:
    assert read_as(Outer, parse(write(WHOLE)), "record") == WHOLE


@pytest.mark.parametrize("write", [canonical_json, compact_json, spaced_json, indented_json])
def test_what_json_cannot_hold_is_not_written(write: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(float("nan"))
    with pytest.raises(TypeError):
        write({"x": object()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"place": "3"}, "record.place is '3'; a whole number was expected"),
        ({"place": True}, "record.place is True; a whole number was expected"),
        ({"edge": [1]}, r"record.edge is \[1\]; a list of 2 was expected"),
        ({"edge": [1, None]}, "record.edge is None; a whole number was expected"),
        ({"kind": 1}, "record.kind is 1; a text was expected"),
        ({"inner": []}, r"record.inner is \[\]; an object was expected"),
        ({"inner": {"nome": "x"}}, r"record.inner has unknown fields \['nome'\] and lacks"),
        ({"inner": {"name": "x", "columns": [["c"]]}}, "record.inner.columns .* is not a column"),
        ({"pairs": {"p": [7, 1]}}, "record.pairs is 1; true or false was expected"),
        ({"more": 1}, r"record has unknown fields \['more'\] and lacks \[\]"),
    ],
)  # fmt: skip
def test_an_error_says_what_was_expected_where(change: dict[str, Any], message: str) -> None:
    node = parse(canonical_json(WHOLE)) | change
    with pytest.raises(Malformed, match=message):
        read_as(Outer, node, "record")


def test_only_a_complete_record_needs_what_has_a_default() -> None:
    assert read_as(Inner, {"name": "x"}, "inner") == Inner("x")
    with pytest.raises(Malformed, match="lacks"):
        record_of(Inner, complete=True)({"name": "x"})


def test_a_field_may_have_a_reader_of_its_own() -> None:
    read = list_of(record_of(Inner, name=lambda node: f"{node}!"))
    assert read([{"name": 1}, {"name": 2}]) == (Inner("1!"), Inner("2!"))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, memoryview(b"nul")])
def test_a_text_that_is_no_json_is_malformed(text: Any) -> None:
    with pytest.raises(Malformed):
        parse(text)


def test_a_strict_reader_refuses_what_a_lenient_one_reads() -> None:
    for text in ('{"a":1,"a":2}', "NaN", "1e999", "9" * 30, "[" * 600 + "]" * 600):
        parse(text)
        with pytest.raises(Malformed):
            parse_strictly(text, 10_000)
    with pytest.raises(Malformed, match="at most 3"):
        parse_strictly("1234", 3)
