"""Sums of doubles from which values can be taken away again: whole numbers of 32 bits a place.

A double is a whole number times a power of two, so it is a few places of a long number in the base
2^32. Places add up as integers, in any order and back again, and only their total is rounded, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from penstock.arrays import Doubles, Numbers

_PLACE_BITS = 32
_LOW = (1 << _PLACE_BITS) - 1
_MANTISSA_BITS = 53
_BELOW_ONE = 36 * _PLACE_BITS  # bits behind the point: the least double has its bits within them
_UNIT = 1 << _BELOW_ONE
# Places that count values which are no number.
NAN, INFINITE, MINUS_INFINITE = -1, -2, -3


def places_of(values: Doubles) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Parts of the values: which of them, at which place, and how much."""
    rows = np.arange(len(values))
    for place, chosen in (
        (NAN, np.isnan(values)),
        (INFINITE, values == np.inf),
        (MINUS_INFINITE, values == -np.inf),
    ):
        if chosen.any():
            yield (
                rows[chosen],
                np.full(chosen.sum(), place, np.int64),
                np.ones(chosen.sum(), np.int64),
            )
    finite = np.isfinite(values) & (values != 0)
    rows = rows[finite]
    fractions, exponents = np.frexp(values[finite])
    whole = np.abs(np.ldexp(fractions, _MANTISSA_BITS)).astype(np.int64)
    signs = np.where(fractions < 0, np.int64(-1), np.int64(1))
    first = exponents.astype(np.int64) - _MANTISSA_BITS + _BELOW_ONE
    places, shifts = first >> 5, first & 31
    low, high = (whole & _LOW) << shifts, (whole >> _PLACE_BITS) << shifts
    parts = (low & _LOW, (low >> _PLACE_BITS) + (high & _LOW), high >> _PLACE_BITS)
    for up, part in enumerate(parts):
        some = part != 0
        yield rows[some], places[some] + up, (signs * part)[some]


def total_of(places: list[int], amounts: list[int]) -> float:
    """The sum that these places stand for, rounded once."""
    counts = dict(zip(places, amounts, strict=True))
    above, below = counts.pop(INFINITE, 0), counts.pop(MINUS_INFINITE, 0)
    if counts.pop(NAN, 0) or (above and below):
        return math.nan
    if above or below:
        return math.inf if above else -math.inf
    total = sum(amount << _PLACE_BITS * place for place, amount in counts.items())
    try:
        return total / _UNIT
    except OverflowError:
        return math.inf if total > 0 else -math.inf
