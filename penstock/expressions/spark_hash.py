"""Spark's hashes of values, xxHash64 and its own Murmur3, over whole columns of any type.

A null leaves the hash as it was. What is nested goes in item by item, each hash being the seed of
the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, decimal_words, is_text, texts_of, validity_of, values_of
from penstock.expressions.lists import entries_of, items_of
from penstock.expressions.types import ARITHMETIC_DIGITS_MAX
from penstock.loops import Hashes, HashWords, ReadBytes, Words, inlined, loop

SEED = 42  # of Spark's functions


_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_DECIMAL_BYTES = 16


@dataclass(frozen=True, slots=True)
class SparkHash:
    """One of the hashes: of 32 bits, of 64 bits, and of bytes from here to there, each by seed."""

    name: str
    dtype: np.dtype[Any]
    of_ints: Callable[[Vector, Vector], Vector]
    of_longs: Callable[[Vector, Vector], Vector]
    of_bytes: Callable[[Words, Words, ReadBytes, Any], None]

    def of_rows(self, columns: Sequence[pa.Array], rows: int, seed: int = SEED) -> Vector:
        """The hash of each row's values, one column after the other; as signed numbers."""
        hashes: Vector = np.full(rows, seed, self.dtype)
        for column in columns:
            hashes = self._folded(column, hashes)
        return hashes.view(f"i{self.dtype.itemsize}")

    def _folded(self, column: pa.Array, seeds: Vector) -> Vector:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        valid = validity_of(column)
        if not valid.all():
            hashes = seeds.copy()
            hashes[valid] = self._folded(column.filter(pa.array(valid)), seeds[valid])
            return hashes
        kind = column.type
        if pa.types.is_struct(kind):
            for member in range(kind.num_fields):
                seeds = self._folded(pc.struct_field(column, [member]), seeds)
            return seeds
        if pa.types.is_map(kind):
            keys, values = entries_of(column)
            return self._of_items([keys.values, values.values], keys.lengths, seeds)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            items = items_of(column)
            return self._of_items([items.values], items.lengths, seeds)
        if is_text(kind):
            offsets, data = texts_of(column)
            return self._of_spans(offsets[:-1], offsets[1:], data, seeds)
        if pa.types.is_decimal(kind) and kind.precision > ARITHMETIC_DIGITS_MAX:
            return self._of_spans(*_shortest_bytes(column), seeds)
        return self._of_numbers(values_of(column), seeds)

    def _of_items(self, columns: Sequence[pa.Array], lengths: Words, seeds: Vector) -> Vector:
        """The first items of all rows, then the second ones: each hash is the next one's seed."""
        hashes = seeds.copy()
        begins = np.cumsum(lengths) - lengths
        for place in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > place)
            taken = pa.array(begins[rows] + place)
            for column in columns:
                hashes[rows] = self._folded(column.take(taken), hashes[rows])
        return hashes

    def _of_spans(self, begins: Vector, ends: Vector, data: ReadBytes, seeds: Vector) -> Vector:
        hashes = np.ascontiguousarray(seeds).copy()
        data.flags.writeable = False
        first, last = (np.ascontiguousarray(each.astype(np.int64)) for each in (begins, ends))
        self.of_bytes(first, last, data, hashes)
        return hashes

    def _of_numbers(self, values: Vector, seeds: Vector) -> Vector:
        with np.errstate(over="ignore"):
            if values.dtype.kind == "f":  # one NaN and one zero
                wide = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype)
                values = wide.view(f"i{wide.dtype.itemsize}")
            if values.dtype.itemsize == np.dtype(np.int64).itemsize:
                return self.of_longs(np.ascontiguousarray(values).view(np.uint64), seeds)
            return self.of_ints(values.astype(np.int32).view(np.uint32), seeds)


def _shortest_bytes(column: pa.Array) -> tuple[Words, Words, ReadBytes]:
    """Where each decimal's fewest bytes begin and end that hold it, the highest first."""
    words = np.ascontiguousarray(decimal_words(column)[:, ::-1])
    places = words.astype(">i8").view(np.uint8).reshape(-1, _DECIMAL_BYTES)
    sign = np.where(words[:, :1] < 0, 0xFF, 0).astype(np.uint8)
    is_sign: Mask = (places[:, :-1] == sign) & (places[:, 1:] >> 7 == sign & 1)
    spare = np.logical_and.accumulate(is_sign, axis=1).sum(axis=1)
    ends = (np.arange(len(words)) + 1) * _DECIMAL_BYTES
    return ends - _DECIMAL_BYTES + spare, ends, np.ascontiguousarray(places).reshape(-1)


# --- xxHash64 -------------------------------------------------------------------------------------


def _rotated(words: Vector, bits: int) -> Vector:
    """Turned to the left."""
    kind = words.dtype.type
    turned: Vector = words << kind(bits) | words >> kind(words.dtype.itemsize * 8 - bits)
    return turned


def _xx_end(hashes: Vector) -> Vector:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    ended: Vector = hashes ^ (hashes >> np.uint64(32))
    return ended


def _xx_ints(values: Vector, seeds: Vector) -> Vector:
    hashes = (seeds + _P5 + np.uint64(4)) ^ (values.astype(np.uint64) * _P1)
    return _xx_end(_rotated(hashes, 23) * _P2 + _P3)


def _xx_longs(values: Vector, seeds: Vector) -> Vector:
    hashes = (seeds + _P5 + np.uint64(8)) ^ (_rotated(values * _P2, 31) * _P1)
    return _xx_end(_rotated(hashes, 27) * _P1 + _P4)


@inlined
def _turn(word: Any, bits: Any) -> Any:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


@inlined
def _little(data: Any, at: Any, count: Any) -> Any:
    """So many bytes as a number, the lowest first."""
    word = np.uint64(0)
    for byte in range(count):
        word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return word


@loop
def _xx_bytes(begins: Words, ends: Words, data: ReadBytes, hashes: HashWords) -> None:
    for row in range(hashes.size):
        at, end, seed = begins[row], ends[row], hashes[row]
        if end - at >= 32:
            one, two = seed + _P1 + _P2, seed + _P2
            three, four = seed, seed - _P1
            while at + 32 <= end:
                one = _turn(one + _little(data, at, 8) * _P2, 31) * _P1
                two = _turn(two + _little(data, at + 8, 8) * _P2, 31) * _P1
                three = _turn(three + _little(data, at + 16, 8) * _P2, 31) * _P1
                four = _turn(four + _little(data, at + 24, 8) * _P2, 31) * _P1
                at += 32
            state = _turn(one, 1) + _turn(two, 7) + _turn(three, 12) + _turn(four, 18)
            state = (state ^ (_turn(one * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_turn(two * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_turn(three * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_turn(four * _P2, 31) * _P1)) * _P1 + _P4
        else:
            state = seed + _P5
        state += np.uint64(end - begins[row])
        while at + 8 <= end:
            state ^= _turn(_little(data, at, 8) * _P2, 31) * _P1
            state = _turn(state, 27) * _P1 + _P4
            at += 8
        if at + 4 <= end:
            state ^= _little(data, at, 4) * _P1
            state = _turn(state, 23) * _P2 + _P3
            at += 4
        while at < end:
            state ^= np.uint64(data[at]) * _P5
            state = _turn(state, 11) * _P1
            at += 1
        state = (state ^ (state >> np.uint64(33))) * _P2
        state = (state ^ (state >> np.uint64(29))) * _P3
        hashes[row] = state ^ (state >> np.uint64(32))


# --- Murmur3, of which Spark mixes the last bytes in one by one -----------------------------------


def _mixed(hashes: Vector, words: Vector) -> Vector:
    hashes = hashes ^ (_rotated(words * _C1, 15) * _C2)
    mixed: Vector = _rotated(hashes, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return mixed


def _murmur_end(hashes: Vector, size: int) -> Vector:
    hashes = hashes ^ np.uint32(size)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    ended: Vector = hashes ^ (hashes >> np.uint32(16))
    return ended


def _murmur_ints(values: Vector, seeds: Vector) -> Vector:
    return _murmur_end(_mixed(seeds, values), 4)


def _murmur_longs(values: Vector, seeds: Vector) -> Vector:
    low, high = values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)
    return _murmur_end(_mixed(_mixed(seeds, low), high), 8)


@inlined
def _mix(state: Any, word: Any) -> Any:
    """Of 32 bits, in words of 64."""
    low = np.uint64(0xFFFFFFFF)
    word = (word * np.uint64(0xCC9E2D51)) & low
    word = (word << np.uint64(15) | word >> np.uint64(17)) & low
    state ^= (word * np.uint64(0x1B873593)) & low
    state = (state << np.uint64(13) | state >> np.uint64(19)) & low
    return (state * np.uint64(5) + np.uint64(0xE6546B64)) & low


@loop
def _murmur_bytes(begins: Words, ends: Words, data: ReadBytes, hashes: Hashes) -> None:
    low = np.uint64(0xFFFFFFFF)
    for row in range(hashes.size):
        at, end = begins[row], ends[row]
        state = np.uint64(hashes[row])
        while at + 4 <= end:
            state = _mix(state, _little(data, at, 4))
            at += 4
        while at < end:
            byte = np.uint64(data[at])
            state = _mix(state, byte if byte < np.uint64(128) else byte | np.uint64(0xFFFFFF00))
            at += 1
        state ^= np.uint64(end - begins[row])
        state = ((state ^ (state >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & low
        state = ((state ^ (state >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & low
        hashes[row] = np.uint32(state ^ (state >> np.uint64(16)))


XXHASH64 = SparkHash("xxhash64", np.dtype(np.uint64), _xx_ints, _xx_longs, _xx_bytes)
MURMUR3 = SparkHash("murmur3", np.dtype(np.uint32), _murmur_ints, _murmur_longs, _murmur_bytes)
