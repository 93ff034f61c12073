"""Coded strings are those of Arrow's own dictionaries and splits, compiled or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.kernels import coding
from penstock.kernels.background import PACKAGE
from penstock.kernels.coding import coded, coded_pieces
from penstock.loops import loops_of


@pytest.fixture(params=["compiled", "stand-in"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to do it."""
    for loop in loops_of(coding):
        loop.use(PACKAGE[coding][loop.name] if request.param == "stand-in" else None)
    yield
    for loop in loops_of(coding):
        loop.use(None)


def texts_of(count: int, distinct: int, seed: int = 1) -> pa.Array:
    """Texts of up to 40 bytes, some alike but for the last byte, some null."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, distinct, count)
    known = [
        "x" * (number % 41) + str(number) if number % 3 else f"{number} é {number % 7}  "
        for number in range(distinct)
    ]
    values = np.array(known, object)[numbers]
    return pa.array(values, pa.string(), mask=random.random(count) < 0.1)


CASES = {
    "none": pa.array([], pa.string()),
    "only nulls": pa.array([None, None], pa.string()),
    "only empty": pa.array(["", "", None]),
    "ends": pa.array(["", " ", "a ", " a", "  ", "a", None, "a b", "ü  ü"]),
    "lengths": pa.array(["y" * size + end for size in range(34) for end in ("", "a", "b", " c")]),
    "few": texts_of(2000, 30),
    "many": texts_of(20_000, 9000),
    "a slice": texts_of(3000, 500).slice(77, 2000),
    "bytes": pa.array([b"\0", b"\0\0", b"", b"\0" * 9, b"\xff\0", b"\0"], pa.binary()),
}


@pytest.mark.parametrize("name", CASES)
def test_codes_are_those_of_a_dictionary(name: str) -> None:
    texts = CASES[name]
    found = coded(texts)
    found.validate(full=True)
    assert found.equals(texts.dictionary_encode())
    assert coded(found) is found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("separator", [" ", "x", "\0"])
def test_pieces_are_those_of_a_split(name: str, separator: str) -> None:
    texts = CASES[name]
    pieces = coded_pieces(texts, ord(separator))
    pieces.validate(full=True)
    wanted = pc.split_pattern(texts, pattern=separator)
    assert pieces.flatten().equals(wanted.flatten().dictionary_encode())
    assert pieces.value_lengths().equals(wanted.value_lengths())


def test_what_lies_under_a_null_is_not_coded() -> None:
    buffers = pa.array(["a b", "hidden words", "c"]).buffers()
    texts = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *buffers[1:]])
    assert texts.to_pylist() == ["a b", None, "c"]
    assert coded(texts).dictionary.to_pylist() == ["a b", "c"]
    pieces = coded_pieces(texts, ord(" "))
    assert pieces.to_pylist() == [["a", "b"], None, ["c"]]
    assert pieces.flatten().dictionary.to_pylist() == ["a", "b", "c"]
