"""What stands in for the loops over lines and texts, beside their machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.connectors import line_kernels, line_stand_ins, text_kernels
from penstock.connectors.line_formats import CsvLines, JsonLines, Lines, TextLines
from penstock.connectors.rehearsals import rehearse_lines
from penstock.connectors.text_values import Texts
from penstock.loops import loops_of
from tests.thoroughness import examples

DECLINED = "declined"


def plain(found: Any, fits: int | None) -> Any:
    """Arrays as lists; where the last one says which values count, without the others."""
    if found is NotImplemented:
        return DECLINED
    if not isinstance(found, tuple):
        return np.asarray(found).tolist()
    parts = [np.asarray(part).tolist() for part in found]
    if fits is not None:
        parts[0] = [value if fit else None for value, fit in zip(parts[0], parts[1], strict=True)]
    return parts


def agree(name: str, *arguments: Any, fits: int | None = None) -> bool:
    """Whether a stand-in does its loop's work; if so, it is the same."""
    module, stand_ins = (
        (line_kernels, line_stand_ins.LINES)
        if name in line_stand_ins.LINES
        else (text_kernels, line_stand_ins.TEXTS)
    )
    found = plain(stand_ins[name](*arguments), fits)
    assert found in (DECLINED, plain(getattr(module, name)(*arguments), fits))
    return bool(found != DECLINED)


def block(content: bytes) -> Any:
    return np.frombuffer(content, np.uint8)


def lines_of(content: bytes) -> Lines:
    starts, ends, _ = line_kernels.find_lines(block(content), 1000, True)
    return Lines(block(content), starts, ends)


def texts_of(texts: list[str]) -> Texts:
    return Texts.of(pa.array(texts, pa.string()))


def joined(*pieces: str, longest: int = 8) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), max_size=longest).map("".join)


@settings(max_examples=examples(200))
@given(joined("a", "bc", "\n", "\r", "\r\n"), st.integers(0, 5), st.booleans())
@example("a\r", 5, False)
@example("a\rb\nc\r\n", 5, False)
@example("\r\n", 1, True)
def test_lines_are_found_alike(content: str, lines_max: int, complete: bool) -> None:
    assert agree("find_lines", block(content.encode()), lines_max, complete)


JSON = joined(
    '{"a":1}', '{"b":"x"}', "{", "}", '"', "\\", '\\"', "[", "]", ",", " ", "\t", "é", "x", "\n",
    longest=12,
)  # fmt: skip


@settings(max_examples=examples(400))
@given(JSON)
@example('{"a":"\\\\"}\n{"a":"\\\\\\"}"}\n{"a":"\\"')
@example('{"a":"{"}\n  \n x\n{}}\n{}  \n{} x\n{"a":"\n]{}\n{]')
def test_json_lines_are_judged_alike(content: str) -> None:
    lines = lines_of(content.encode())
    has_some = agree("judge_json", lines.data, lines.starts, lines.ends)
    some = lines.pick(slice(None, None, 2))
    agree("judge_json", some.data, some.starts.copy(), some.ends.copy())
    assert has_some or "\\" in content


def test_what_is_rare_in_json_is_left_to_the_loop() -> None:
    for line in (b"{}" + b" " * 100, b"{" * 2_000, b"\\", b'{"a":"x"} \\'):
        lines = lines_of(line)
        assert not agree("judge_json", lines.data, lines.starts, lines.ends)


@settings(max_examples=examples(200))
@given(joined("1", "23", ",", ";", " ", "x", "\n", "\r\n", '"'), st.integers(1, 4))
def test_csv_lines_are_cut_alike(content: str, width: int) -> None:
    lines = lines_of(content.encode())
    assert agree("blank_lines", lines.data, lines.starts, lines.ends)
    arguments = (lines.data, lines.starts, lines.ends, width, ord(","), ord("\\"))
    assert agree("cut_csv", *arguments) == ('"' not in content)


@settings(max_examples=examples(100))
@given(joined("a", "bc", "\n", "\r", "\r\n"), st.randoms(use_true_random=False))
def test_texts_are_gathered_alike(content: str, random: Any) -> None:
    lines = lines_of(content.encode())
    order = np.array(random.sample(range(len(lines)), len(lines)), np.int64)
    for some in (lines, lines.pick(slice(1, None)), lines.pick(order)):
        assert agree("gather", some.data, some.starts, some.ends)
        assert agree("pack_lines", some.data, some.starts, some.ends)


NUMBERS = st.lists(
    joined("1", "0", "9", "-", "+", ".", "x", " ", "123456789", "e5", "Infinity", longest=4)
)


@settings(max_examples=examples(200))
@given(NUMBERS)
@example(["", "127", "128", "-128", "-129", "+5", "-", "+", "1x"])
@example(["1.", ".5", "-0", "00.10", "12345678901234567"])
def test_numbers_are_read_alike(numbers: list[str]) -> None:
    texts = texts_of(numbers)
    for low, high in ((-128, 127), (-(1 << 63), (1 << 63) - 1)):
        has = agree("integers", texts.data, texts.begins, texts.ends, low, high, fits=1)
        assert has or any(len(number) > 18 for number in numbers)
    written = line_stand_ins.float_texts(texts.data, texts.begins, texts.ends)
    if written is not NotImplemented:
        found, expected = (
            values(text_kernels_values)
            for text_kernels_values in (
                written,
                text_kernels.float_texts(texts.data, texts.begins, texts.ends),
            )
        )
        assert found == expected


def values(written: tuple[Any, Any, Any]) -> list[str | None]:
    data, offsets, fits = written
    raw = data.tobytes()
    bounds = zip(offsets[:-1], offsets[1:], fits, strict=True)
    return [raw[begin:end].decode() if fit else None for begin, end, fit in bounds]


def test_plain_decimals_need_no_loop() -> None:
    texts = texts_of(["1", "-2.5", "", "0.125", "12345678901234567890"])
    assert line_stand_ins.float_texts(texts.data, texts.begins, texts.ends) is not NotImplemented
    for odd in ("1e5", "+1", "-", "1.2.3", " 1", "1d", "NaN", "1-"):
        texts = texts_of(["1", odd])
        assert line_stand_ins.float_texts(texts.data, texts.begins, texts.ends) is NotImplemented


def test_words_of_truth_are_read_alike() -> None:
    words = ["true", "TRUE", "tRuE", "false", "False", "", "t", "truE ", "yes", "falsy", "\x14rue"]
    texts = texts_of(words)
    assert agree("booleans", texts.data, texts.begins, texts.ends)


DATES = joined("2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "0000-01-01", longest=1)
TIMES = joined("T10:00:00", " 23:59:59", " 24:00:00", "T10:60:00", " 10:00", "x", " ", longest=1)
FRACTIONS = joined(".", ".5", ".123456", ".123456789", ".1234567890", longest=1)
ZONES = joined("Z", "+01:00", "-18:00", "+18:01", "+10:60", "UTC", "+1", " ", longest=1)
STAMPS = st.tuples(DATES, TIMES, FRACTIONS, ZONES).map("".join)
PARTS = st.tuples(*(st.integers(0, 99) for _ in range(5))).map(
    lambda parts: "20{:02}-{:02}-{:02} {:02}:{:02}:00".format(*parts)
)


@settings(max_examples=examples(300))
@given(st.lists(st.one_of(STAMPS, PARTS), max_size=3))
@example(["2024-02-29T10:00:00.5Z", "", "1969-12-31 23:59:59.999999-00:30"])
@example(["2024-02-29T10:00:00 ", "2024-02-29T10:00:00Z ", "2024-02-29T10:00:00\t"])
@example(["2024-13-01 00:00:00", "2024-00-01 00:00:00", "2024-01-32 00:00:00"])
def test_times_are_read_alike(stamps: list[str]) -> None:
    texts = texts_of(stamps)
    agree("dates", texts.data, texts.begins, texts.ends, fits=1)
    for zoned in (True, False):
        agree("timestamps", texts.data, texts.begins, texts.ends, zoned, fits=1)


@pytest.mark.parametrize(
    "stamp",
    ["2024-02-29T10:00:00Z", "2024-02-29 10:00:00.123456", "2024-02-29", "2023-02-29T10:00:00Z"],
)
def test_times_as_programs_write_them_need_no_loop(stamp: str) -> None:
    texts = texts_of([stamp, "", "1969-07-20T20:17:40+01:00"])
    for zoned in (True, False):
        assert agree("timestamps", texts.data, texts.begins, texts.ends, zoned, fits=1)
    assert agree("dates", texts.data, texts.begins, texts.ends, fits=1)


SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])
FORMS: dict[str, tuple[Callable[[pa.Schema], Any], pa.Schema, bytes]] = {
    "text": (TextLines, pa.schema([("value", pa.string())]), b"one\n\ntwo words\r\n\xff\n"),
    "jsonl": (
        JsonLines,
        SCHEMA,
        b'{"n": 1, "s": "a\\"b", "t": "2024-05-06T07:08:09.123Z"}\n{}\n\n[]\n{"n": 2} {}\n',
    ),
    "csv": (CsvLines, SCHEMA, b"1,a,2024-05-06 07:08:09\n,b,\n\n1,2\nx,,\n"),
}


@pytest.fixture
def stand_ins() -> Any:
    """Every loop that has a stand-in is done by it, or fails."""

    def only(stand_in: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            found = stand_in(*arguments)
            assert found is not NotImplemented
            return found

        return run

    def use() -> None:
        for module, known in ((line_kernels, line_stand_ins.LINES),
                              (text_kernels, line_stand_ins.TEXTS)):  # fmt: skip
            for loop in loops_of(module):
                if loop.name in known:
                    loop.use(only(known[loop.name]))

    yield use
    for module in (line_kernels, text_kernels):
        for loop in loops_of(module):
            loop.use(None)


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_rejects_are_the_same_before_and_after(form: str, stand_ins: Any) -> None:
    make, schema, content = FORMS[form]

    def found() -> Any:
        batch, misfits = make(schema).rows(lines_of(content), False)
        return batch.to_pylist(), misfits

    after = found()
    stand_ins()
    rehearse_lines(form, schema)
    assert found() == after


def test_parquet_has_no_lines_to_rehearse(stand_ins: Any) -> None:
    rehearse_lines("parquet", SCHEMA)
