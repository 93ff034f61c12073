"""The 32-bit hash of a key: the same from a compiled kernel, from NumPy and from plain Python.

It decides which vertex owns a key, so it never changes: tests freeze its values. A key is a list of
64-bit words, one per column: integers and times sign-extended, decimals scaled, floats widened to
double with one NaN and one zero, strings by the hash of their UTF-8 bytes, null as a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Vector, texts_of, validity_of, values_of
from penstock.expressions.types import from_arrow
from penstock.kernels.columns import combined
from penstock.loops import Hashes, HashWords, ReadBytes, ReadOffsets, Words, inlined, loop

SEED = 0x70656E73746F636B
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
NULL_WORD = 0x6E756C6C6E756C6C
_MASK = (1 << 64) - 1


# --- plain Python: the definition -----------------------------------------------------------------


def mix(state: int, word: int) -> int:
    """One step: `word` (any integer, its low 64 bits count) into a 64-bit state."""
    x = ((state ^ (word & _MASK)) + GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * MIX_2) & _MASK
    return x ^ (x >> 31)


def bytes_word(data: bytes) -> int:
    """The word of a string: its length, then its bytes by eights, the last padded with zeros."""
    state = mix(SEED, len(data))
    for at in range(0, len(data), 8):
        state = mix(state, int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little"))
    return state


def key_hash(words: Sequence[int | None]) -> int:
    """The hash of one key given as words; None is null."""
    state = SEED
    for word in words:
        state = mix(state, NULL_WORD if word is None else word)
    return state >> 32


# --- over arrays ----------------------------------------------------------------------------------


def mixed(state: NDArray[np.uint64], words: Vector) -> NDArray[np.uint64]:
    """`mix` for whole arrays."""
    x = (state ^ words.view(np.uint64)) + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))


def float_words(values: Vector) -> Words:
    """The words of doubles or floats: one NaN, and -0.0 equal to 0.0, as Spark groups them."""
    wide = values.astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    wide[np.isnan(wide)] = np.nan
    return wide.view(np.int64)


def fixed_words(values: Vector) -> Words:
    """The words of a fixed-width column's values."""
    if values.dtype.kind == "f":
        return float_words(values)
    return np.ascontiguousarray(values.astype(np.int64))


@inlined
def _mix64(state: Any, word: Any) -> Any:
    x = (state ^ word) + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))


@loop
def _mix_in(state: HashWords, words: HashWords) -> None:
    for row in range(state.size):
        state[row] = _mix64(state[row], words[row])


@inlined
def _eight_bytes(data: Any, at: Any) -> Any:
    """Eight bytes as a word. With an unsigned index the compiler makes one load of them."""
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(data[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return word


@loop
def _string_words(offsets: ReadOffsets, data: ReadBytes, out: HashWords) -> None:
    eight = np.uint64(8)
    for row in range(out.size):
        at, last = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        state = _mix64(np.uint64(SEED), last - at)
        while at + eight <= last:
            state = _mix64(state, _eight_bytes(data, at))
            at += eight
        rest = last - at
        if rest:
            if at + eight <= np.uint64(data.size):
                beyond = eight * (eight - rest)
                word = _eight_bytes(data, at) << beyond >> beyond
            else:
                word = np.uint64(0)
                for byte in range(rest):
                    word |= np.uint64(data[at + np.uint64(byte)]) << (eight * np.uint64(byte))
            state = _mix64(state, word)
        out[row] = state


def string_words(array: pa.Array) -> Words:
    """The words of a string or binary column; undefined where null."""
    words = np.zeros(len(array), np.uint64)
    offsets, data = texts_of(array)
    if data.size:
        _string_words(offsets, data, words)
    else:
        words[:] = bytes_word(b"")
    return words.view(np.int64)


def _coded_words(array: pa.DictionaryArray) -> Words:
    """The words of coded texts: each text is looked at once."""
    if not len(array.dictionary):
        return np.zeros(len(array), np.int64)
    words: Words = column_words(array.dictionary)[array.indices.fill_null(0)]
    return words


def column_words(array: pa.Array) -> Words:
    """The words of any key column, null as its constant."""
    if pa.types.is_dictionary(array.type):
        words = _coded_words(array)
    elif from_arrow(array.type).kind in ("string", "binary"):
        words = string_words(array)
    else:
        words = fixed_words(values_of(array))
    if array.null_count:
        words = np.where(validity_of(array), words, np.int64(NULL_WORD))
    return words


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Hashes:
    """The 32-bit hash of each row's key; with no columns all rows have the same."""
    return hash_words([column_words(combined(column)) for column in columns], rows)


def hash_words(keys: Sequence[Words], rows: int) -> Hashes:
    """The same of keys whose words are known."""
    state = np.full(rows, np.uint64(SEED), np.uint64)
    for words in keys:
        _mix_in(state, words.view(np.uint64))
    return (state >> np.uint64(32)).astype(np.uint32)
