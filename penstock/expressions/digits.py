"""Decimal texts as their significant digits, a column at a time: what is read, rounded and written.

A number is d.ddd * 10**power. Texts have as many digits as they like, doubles the fewest that read
back as the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, true_rows, validity_of

_NUMBER = (
    r"\A(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,9}))?\z"
)
_KEPT_DIGITS = 19  # as many as 64 bits hold without a sign: one more than any scaled value has
_POWERS = 10 ** np.arange(_KEPT_DIGITS + 1, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Digits:
    """The digits of each row without zeros at their ends, none of zero, and the first one's power.

    `is_number` is where the text is one: the rest has no meaning elsewhere.
    """

    digits: pa.Array
    powers: Vector
    is_negative: Mask
    is_number: Mask

    def scaled(self, scale: int, precision: int = 0) -> tuple[Vector, Mask]:
        """Each number at `scale` as an integer, HALF_UP, and where that has more than 18 digits,
        or than the precision.

        How a number is rounded depends on the first digit that is cut off, and on none behind it.
        """
        whole = np.where(pc.equal(self.digits, ""), 0, self.powers + scale + 1)  # of the result
        beyond = whole >= _KEPT_DIGITS
        kept = pc.utf8_rpad(
            pc.utf8_slice_codeunits(self.digits, 0, _KEPT_DIGITS), _KEPT_DIGITS, "0"
        )
        first = kept.cast(pa.uint64()).to_numpy()
        cut = _KEPT_DIGITS - np.clip(whole, 0, _KEPT_DIGITS - 1)
        rounded = first // _POWERS[cut] + (first // _POWERS[cut - 1] % np.uint64(10) >= 5)
        magnitude = np.where(beyond | (whole < 0), 0, rounded.astype(np.int64))
        long = np.flatnonzero(beyond & (whole <= precision))
        if long.size:
            magnitude = magnitude.astype(object)
            for row, text in zip(long, self.digits.take(pa.array(long)).to_pylist(), strict=True):
                cut_off = text[whole[row] : whole[row] + 1] >= "5"
                magnitude[row] = int(text[: whole[row]].ljust(whole[row], "0")) + cut_off
            beyond = whole > precision
        return np.where(self.is_negative, -magnitude, magnitude), beyond


def digits_of_text(text: pa.Array) -> Digits:
    """The digits of texts such as -12, .5, 5. and 1.5E-3."""
    groups = pc.extract_regex(text, pattern=_NUMBER)
    whole, fraction, exponent = (
        pc.struct_field(groups, name).fill_null("") for name in ("whole", "fraction", "exponent")
    )
    everything = pc.binary_join_element_wise(whole, fraction, "")
    without_zeros = pc.utf8_ltrim(everything, "0")
    is_number = validity_of(groups) & true_rows(pc.not_equal(everything, ""))
    power = pc.utf8_ltrim(exponent, "+")
    exponents = pc.if_else(pc.equal(power, ""), "0", power).cast(pa.int64()).to_numpy()
    zeros = _lengths(everything) - _lengths(without_zeros)
    return Digits(
        pc.utf8_rtrim(without_zeros, "0"),
        exponents + _lengths(whole) - 1 - zeros,
        true_rows(pc.equal(pc.struct_field(groups, "sign"), "-")),
        is_number,
    )


def _lengths(text: pa.Array) -> Vector:
    lengths: Vector = pc.binary_length(text).to_numpy().astype(np.int64)
    return lengths


def digits_of_doubles(values: Vector) -> Digits:
    """The fewest digits that read back as the same double; of what is not finite none that mean
    anything."""
    return digits_of_text(pa.array(np.where(np.isfinite(values), values, 0.0)).cast(pa.string()))
