"""Lines of JSON, CSV and text: what is a row, what is not, and that no line is lost or doubled."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.folder import FolderOptions, FolderSource, Format
from penstock.errors import InvalidArgument
from penstock.testing.memory_log import MemoryLog
from tests.thoroughness import examples

PAIR = pa.schema([("a", pa.int64()), ("b", pa.string())])


def parse(
    folder: Path, content: bytes, format: Format, schema: pa.Schema | None, **options: Any
) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """Read one file through a source: its rows, and (line, text, reason) of what was rejected."""
    (folder / "input").write_bytes(content)
    chosen = FolderOptions(mode="deadletter", bounded=True, **options)
    source = FolderSource(folder, format, MemoryLog(), schema, chosen)
    rows: list[dict[str, Any]] = []
    rejected: list[tuple[int, str, str]] = []
    offset, ended = source.initial_offset(), False
    while not ended:
        answer = source.read(offset, 3)
        rows += answer.batch.to_pylist() if answer.batch is not None else []
        if answer.rejected is not None:
            found = answer.rejected.to_pylist()
            rejected += [(entry["line"], entry["text"], entry["reason"]) for entry in found]
        offset, ended = answer.next_offset, answer.ended
    source.close()
    return rows, rejected


def test_json_fields_missing_and_further(tmp_path: Path) -> None:
    content = b'{"a":1,"b":"x"}\n{"b":"y","c":[1,{"d":2}]}\r\n\n  \n{}\n {"a" : null} \n{"a":4}'
    rows, rejected = parse(tmp_path, content, "jsonl", PAIR)
    assert rows == [
        {"a": 1, "b": "x"},
        {"a": None, "b": "y"},
        {"a": None, "b": None},
        {"a": None, "b": None},
        {"a": 4, "b": None},
    ]
    assert rejected == []


@pytest.mark.parametrize(
    "line",
    [
        b"null",  # the parser underneath would die of it
        b"[1]",
        b"1",
        b'"text"',
        b"{",
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1} null',
        b'{"a":1}{"a":2}',
        b'{"a":1} {"a":2}',
        b'{"a":"1"}',
        b'{"a":1.5}',
        b'{"a":1e3}',
        b'{"a":true}',
        b'{"a":99999999999999999999}',
        b'{"b":5}',
        b'{"a":1,"a":2}',
        b'{"b":"\xff"}',
        b'{"b":"\xed\xa0\x80"}',
        b'{"b":"\\ud83d"}',
        b'{"b":"tab\there"}',
        b'{"b":"}',
        b'{"b":"\\"}',
        b"{a:1}",
        b"{'a':1}",
        b'{"a":1,}',
        b"{]}",
        b'{"a":[1}',
        b"\x00",
        b"a,b",
    ],
)
def test_a_line_that_is_no_row_is_set_aside_alone(tmp_path: Path, line: bytes) -> None:
    content = b'{"a":1}\n' + line + b'\n{"a":2}\n' + line + b'\n{"a":3}\n'
    rows, rejected = parse(tmp_path, content, "jsonl", PAIR)
    assert [row["a"] for row in rows] == [1, 2, 3]
    assert [number for number, _, _ in rejected] == [2, 4]
    assert {text for _, text, _ in rejected} == {line.decode("utf-8", "backslashreplace")}
    assert all(reason for _, _, reason in rejected)


def test_an_object_over_two_lines_and_two_on_one_do_not_make_up_for_each_other(
    tmp_path: Path,
) -> None:
    content = b'{"a":1}{"a":2}\n{"a":\n3}\n'
    rows, rejected = parse(tmp_path, content, "jsonl", PAIR)
    assert rows == []
    assert [number for number, _, _ in rejected] == [1, 2, 3]


def test_json_types(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("cost", pa.decimal128(10, 2)),
            ("flag", pa.bool_()),
            ("real", pa.float64()),
            ("small", pa.int8()),
            ("inner", pa.struct([("day", pa.date32()), ("names", pa.list_(pa.string()))])),
        ]
    )
    line = {
        "day": "2020-02-29",
        "at": "2020-01-01T00:00:00.5Z",
        "local": "2020-01-01 00:00:00",
        "cost": 1.25,
        "flag": True,
        "real": 3,
        "small": -128,
        "inner": {"day": "1970-01-02", "names": ["x", None], "other": 1},
    }
    bad = [{"day": "2020-02-30"}, {"day": 5}, {"small": 128}, {"cost": 1.255}, {"at": 5}]
    content = "\n".join(json.dumps(one) for one in [line, *bad, line]).encode()
    rows, rejected = parse(tmp_path, content, "jsonl", schema)
    expected = {
        "day": date(2020, 2, 29),
        "at": datetime(2020, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC),
        "local": datetime(2020, 1, 1),
        "cost": Decimal("1.25"),
        "flag": True,
        "real": 3.0,
        "small": -128,
        "inner": {"day": date(1970, 1, 2), "names": ["x", None]},
    }
    assert rows == [expected, expected]
    assert [number for number, _, _ in rejected] == [2, 3, 4, 5, 6]


def test_a_null_where_none_may_be_is_set_aside(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    rows, rejected = parse(tmp_path, b'{"a":1}\n{"b":"x"}\n{"a":null}\n', "jsonl", schema)
    assert rows == [{"a": 1, "b": None}]
    assert [number for number, _, _ in rejected] == [2, 3]
    assert "column a" in rejected[0][2]


def test_json_cannot_fill_every_schema(tmp_path: Path) -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(InvalidArgument, match="map"):
        FolderSource(tmp_path, "jsonl", MemoryLog(), schema)


_PIECES = st.sampled_from(
    [
        '{"a":1}',
        '{"b":"x"}',
        '{"a":1,"b":"y"}',
        "{",
        "}",
        '"',
        "\\",
        "null",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        "1",
        " ",
        "\t",
        "é",
        '{"c":{"a":[]}}',
        "\r",
        "1.0",
        "-",
    ]
)


@settings(max_examples=examples(150))
@given(st.lists(st.lists(_PIECES, max_size=5).map("".join), max_size=12))
def test_every_json_line_is_a_row_or_rejected_or_blank(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    content = "\n".join(lines)
    rows, rejected = parse(tmp_path_factory.mktemp("json"), content.encode(), "jsonl", PAIR)
    lines = re.split(r"\r\n|\r|\n", content)
    bad_lines = {number - 1 for number, _, _ in rejected}
    good = [
        line for number, line in enumerate(lines) if number not in bad_lines and line.strip(" \t\r")
    ]
    assert [_expected(line) for line in good] == rows
    for number in bad_lines:
        assert _expected(lines[number]) is None


def _expected(line: str) -> dict[str, Any] | None:
    """The row that plain Python finds in a line, or None."""
    try:
        found = json.loads(line, object_pairs_hook=_without_repeats)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    row = {"a": found.get("a"), "b": found.get("b")}
    fits_a = row["a"] is None or type(row["a"]) is int
    fits_b = row["b"] is None or type(row["b"]) is str
    return row if fits_a and fits_b else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def test_csv_values(tmp_path: Path) -> None:
    content = b'1,x\n\n2,"y, \\"z\\""\r\n3,\n,""\n4,5" pipe\n5, spaced \n \t\n7,last'
    rows, rejected = parse(tmp_path, content, "csv", PAIR)
    assert [(row["a"], row["b"]) for row in rows] == [
        (1, "x"),
        (2, 'y, "z"'),
        (3, None),
        (None, None),
        (4, '5" pipe'),
        (5, " spaced "),
        (7, "last"),
    ]
    assert rejected == []


@pytest.mark.parametrize(
    "line",
    [
        b"1",
        b"1,x,y",
        b"x,y",
        b'1,"open',
        b'1,"x""y"',
        b"1.5,x",
        b"1,\xff",
        b"9" * 20 + b",x",
        b" 1,x",
    ],
)
def test_a_csv_line_that_is_no_row_is_set_aside_alone(tmp_path: Path, line: bytes) -> None:
    content = b"1,x\n" + line + b"\n2,y\n" + line + b"\n3,z"
    rows, rejected = parse(tmp_path, content, "csv", PAIR)
    assert [row["a"] for row in rows] == [1, 2, 3]
    assert [(number, text) for number, text, _ in rejected] == [
        (2, line.decode("utf-8", "backslashreplace")),
        (4, line.decode("utf-8", "backslashreplace")),
    ]


_PLAIN_PAIR = re.compile('[12]{0,18},[^",]*')  # a number and a text, without anything to think of
_CSV_PIECES = st.sampled_from(["1", "2", ",", '"', '""', '"x"', "y", " ", "\r", "é", ',"', '",'])


@settings(max_examples=examples(150))
@given(st.lists(st.lists(_CSV_PIECES, max_size=7).map("".join), max_size=12))
def test_every_csv_line_is_a_row_or_rejected_or_empty(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    content = "\n".join(lines)
    rows, rejected = parse(folder, content.encode(), "csv", PAIR)
    bad_lines = {number - 1 for number, _, _ in rejected}
    lines = re.split(r"\r\n|\r|\n", content)
    good = [line for number, line in enumerate(lines) if number not in bad_lines and line.strip()]
    assert len(rows) == len(good)
    assert not any(_PLAIN_PAIR.fullmatch(lines[number]) for number in bad_lines)
    for line, row in zip(good, rows, strict=True):
        assert row["a"] is None or str(row["a"]) in line
        assert row["b"] is None or "\n" not in row["b"]
        # Every line alone is what it is among others.
        assert parse(folder, line.encode() + b"\n", "csv", PAIR) == ([row], [])


def test_csv_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us"))])
    content = (
        b"2020-01-01T00:00:00Z,2020-01-01T00:00:00\n2020-01-01 02:00:00.25+02:00,\n"
        b"2020-01-01 00:00:00,\n2020-01-01,\n,2020-01-01\nyesterday,\n,2020-01-01T00:00:00Z\n"
    )
    rows, rejected = parse(tmp_path, content, "csv", schema)
    midnight = datetime(2020, 1, 1, tzinfo=UTC)
    quarter = datetime(2020, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
    assert [row["at"] for row in rows] == [midnight, quarter, midnight, midnight, None]
    assert rows[4]["local"] == datetime(2020, 1, 1)
    assert [number for number, _, _ in rejected] == [6, 7]


def test_csv_columns_are_those_of_their_places_whatever_the_header_says(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf\n \nb,"x,y"\n1,x\nbad,z\n3,w\n'
    rows, rejected = parse(tmp_path, content, "csv", PAIR, header=True)
    assert rows == [{"a": 1, "b": "x"}, {"a": 3, "b": "w"}]
    assert [number for number, _, _ in rejected] == [5]
    (tmp_path / "input").unlink()
    for empty in (b"a,b\n", b"a,b", b"", b"\n\n"):
        assert parse(tmp_path, empty, "csv", PAIR, header=True) == ([], [])


def test_a_header_that_is_checked_rejects_the_files_lines(tmp_path: Path) -> None:
    options = {"header": True, "check_header": True}
    for header, said in ((b"a,c", "'c'"), (b"b,a", "'b'"), (b"a", "fewer"), (b'"a', "not closed")):
        rows, rejected = parse(tmp_path, header + b"\n1,2\n3,4\n", "csv", PAIR, **options)
        assert rows == []
        assert [(number, text) for number, text, _ in rejected] == [(2, "1,2"), (3, "3,4")]
        assert said in rejected[0][2]
    rows, rejected = parse(tmp_path, b'"A",B\n1,2\n', "csv", PAIR, **options)
    assert (rows, rejected) == ([{"a": 1, "b": "2"}], [])


def test_a_header_of_many_delimiters_costs_no_more_than_its_length(tmp_path: Path) -> None:
    content = b'"' + b"," * 3_000_000 + b'",b\n1,2\n'
    rows, _ = parse(tmp_path, content, "csv", PAIR, header=True, check_header=True)
    assert rows == []
    assert parse(tmp_path, content, "csv", PAIR, header=True)[0] == [{"a": 1, "b": "2"}]


def test_a_json_line_is_not_nested_without_end(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":1,"x":' + b"[" * depth + b"]" * depth + b"}\n"

    content = nested(998) + nested(1_000) + nested(3_000_000) + b'{"a":2}\n'
    rows, rejected = parse(tmp_path, content, "jsonl", PAIR)
    assert [row["a"] for row in rows] == [1, 2]
    assert [(number, "deeper" in reason) for number, _, reason in rejected] == [
        (2, True),
        (3, True),
    ]


def test_csv_with_another_delimiter(tmp_path: Path) -> None:
    rows, _ = parse(tmp_path, b"1;a,b\n", "csv", PAIR, delimiter=";")
    assert rows == [{"a": 1, "b": "a,b"}]
    for delimiter in ("", '"', ";;", "\n", "é"):
        options = FolderOptions(delimiter=delimiter)
        with pytest.raises(InvalidArgument, match="delimiter"):
            FolderSource(tmp_path, "csv", MemoryLog(), PAIR, options)
    schema = pa.schema([("l", pa.list_(pa.int64()))])
    with pytest.raises(InvalidArgument, match="types of l"):
        FolderSource(tmp_path, "csv", MemoryLog(), schema)


def test_text_lines_are_kept_as_they_are(tmp_path: Path) -> None:
    content = "\ufeff first\n\n\ttab é\r\na\rb\nlast ".encode() + b"\n\xff\xfe\nend"
    rows, rejected = parse(tmp_path, content, "text", None)
    assert [row["value"] for row in rows] == [" first", "", "\ttab é", "a", "b", "last ", "end"]
    assert rejected == [(7, "\\xff\\xfe", rejected[0][2])]
    assert "UTF-8" in rejected[0][2]
    with pytest.raises(InvalidArgument, match="one string column"):
        FolderSource(tmp_path, "text", MemoryLog(), PAIR)


def test_lines_longer_than_a_block_are_read_and_longer_than_the_bound_set_aside(
    tmp_path: Path,
) -> None:
    long, too_long = b"x" * 200_000, b"y" * 400_000
    content = b"\n".join([b"a", long, too_long, b"b", too_long, long, too_long])
    sizes = {"block_bytes": 1 << 16, "line_bytes_max": 300_000}
    rows, rejected = parse(tmp_path, content, "text", None, **sizes)
    assert [len(row["value"]) for row in rows] == [1, 200_000, 1, 200_000]
    assert [number for number, _, _ in rejected] == [3, 5, 7]
    assert all(text == "y" * 4096 and "300000" in reason for _, text, reason in rejected)
