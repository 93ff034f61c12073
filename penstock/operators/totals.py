"""Exact sums put together from their parts, and averages of decimals: numbers of up to 160 bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, decimal_column
from penstock.expressions.decimals import half_up_quotient
from penstock.expressions.types import DataType, arrow_type
from penstock.expressions.vectors import arrow_column

_LOW = 0xFFFFFFFF
_WORD = (1 << 64) - 1
_SCALE_MOST = 39  # at which Spark cuts a quotient before it rounds it to its type


class Total:
    """Sums in places of 32 bits, the lowest first; the highest has a sign and 64 bits."""

    def __init__(self, places: Sequence[Numbers]) -> None:
        self._places = [place.copy() for place in places]
        for at in range(len(places) - 1):
            self._places[at + 1] += self._places[at] >> 32
            self._places[at] &= _LOW

    def _words(self) -> tuple[Numbers, Numbers, Mask]:
        """The lower and the upper 64 bits, and where there are more."""
        first, *rest = self._places
        if not rest:
            return first, first >> 63, np.zeros(len(first), np.bool_)
        if len(rest) == 1:
            return (rest[0] << 32) + first, rest[0] >> 32, np.zeros(len(first), np.bool_)
        second, third, top = rest
        beyond = (top >> 31) != (top >> 63)
        return (second << 32) + first, (top << 32) + third, beyond

    def column(self, valid: Mask, result: DataType, fails: bool) -> pa.Array:
        """As a column; what has no room there is null, or OverflowError."""
        low, high, beyond = self._words()
        if not result.is_decimal:
            valid = _with_room(valid, beyond | (high != low >> 63), fails)
            return arrow_column(low, valid, result)
        valid = _with_room(valid, beyond | _is_beyond(low, high, result.precision), fails)
        return decimal_column(arrow_type(result), low, high, valid)

    def averages(
        self, counts: Numbers, argument: DataType, result: DataType, fails: bool
    ) -> pa.Array:
        """Each sum by its count, ties away from zero, as Spark rounds it."""
        low, high, beyond = self._words()
        valid = counts > 0
        digits = min(argument.precision + SUM_DIGITS, _SCALE_MOST - 1)
        valid = _with_room(valid, beyond | _is_beyond(low, high, digits), fails)
        counts = np.where(counts > 0, counts, 1)
        unit = 10 ** (result.scale - argument.scale)
        small = (high == low >> 63) & (np.abs(low) < ((1 << 62) - 1) // (2 * unit))
        found = half_up_quotient(np.where(small, low, 0) * unit, counts)
        large = np.flatnonzero(~small & valid)
        if large.size:
            whole = self._whole()[large] * 10 ** (_SCALE_MOST - argument.scale)
            long = half_up_quotient(whole, counts[large].astype(object))
            cut = np.full(1, 10 ** (_SCALE_MOST - result.scale), object)
            found = found.astype(object)
            found[large] = half_up_quotient(long, cut)
        top = 10**result.precision
        if found.dtype == np.object_ or top <= 1 << 62:
            valid = _with_room(valid, np.asarray(np.abs(found) >= top, np.bool_), fails)
        return arrow_column(np.where(valid, found, 0), valid, result)

    def _whole(self) -> NDArray[np.object_]:
        """As integers of any size."""
        places = enumerate(self._places)
        whole: NDArray[np.object_] = np.sum(
            [place.astype(object) << 32 * at for at, place in places], axis=0
        )
        return whole


SUM_DIGITS = 10  # a sum of decimals has so many more digits before the point


def as_doubles(high: Numbers, low: Numbers) -> NDArray[np.float64]:
    """high * 2^32 + low, rounded once where it fits 64 bits."""
    high, low = high + (low >> 32), low & _LOW
    fits = (high >= -(1 << 31)) & (high < 1 << 31)
    exact = (np.where(fits, high, 0) << 32) + low
    return np.where(fits, exact.astype(np.float64), high * 4294967296.0 + low)


def _is_beyond(low: Numbers, high: Numbers, digits: int) -> Mask:
    """Which numbers of 128 bits have more digits."""
    above, below = 10**digits, -(10**digits)
    unsigned = low.view(np.uint64)
    great = (high > above >> 64) | ((high == above >> 64) & (unsigned >= np.uint64(above & _WORD)))
    little = (high < below >> 64) | ((high == below >> 64) & (unsigned <= np.uint64(below & _WORD)))
    beyond: Mask = great | little
    return beyond


def _with_room(valid: Mask, beyond: Mask, fails: bool) -> Mask:
    beyond = beyond & valid
    if fails and beyond.any():
        raise OverflowError
    return valid & ~beyond
