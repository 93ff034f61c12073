"""Numbers, dates and times as text, the way Spark writes them."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.times import civil
from penstock.expressions.vectors import Mask, Vector
from penstock.expressions.zones import DAY_US, SECOND_US

_PLAIN_MIN, _PLAIN_MAX = -3, 7  # Java writes 1.0E7 and 1.0E-4, but 1000000.0 and 0.001
_FOUR_DIGIT_YEARS = 10_000


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def _digits(values: Vector, width: int) -> pa.Array:
    """Non-negative integers as text, filled with zeros on the left."""
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width, "0")


def _with_nulls(text: pa.Array, valid: Mask) -> pa.Array:
    return text if valid.all() else pc.if_else(pa.array(valid), text, pa.scalar(None, pa.string()))


def text_of_decimals(values: Vector, valid: Mask, scale: int) -> pa.Array:
    """Plain digits with exactly `scale` of them after the point."""
    magnitude = np.abs(np.where(valid, values, 0))
    sign = pc.if_else(pa.array(values < 0), "-", "")
    unit = np.int64(10**scale)
    whole = pa.array(magnitude // unit).cast(pa.string())
    if scale == 0:
        return _with_nulls(_joined(sign, whole), valid)
    return _with_nulls(_joined(sign, whole, ".", _digits(magnitude % unit, scale)), valid)


def text_of_doubles(values: Vector, valid: Mask) -> pa.Array:
    """Java's text of a double, row by row: the shortest digits that read back as the same value."""
    pairs = zip(values.tolist(), valid.tolist(), strict=True)
    return pa.array(
        [text_of_double(value) if there else None for value, there in pairs], pa.string()
    )


def text_of_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    digits, exponent = _shortest(abs(value))
    if _PLAIN_MIN <= exponent < _PLAIN_MAX:
        if exponent >= 0:
            digits = digits.ljust(exponent + 2, "0")
            return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float) -> tuple[str, int]:
    """(digits, exponent) with value = d.ddd * 10**exponent."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) == 1:
        # Java writes two digits at least: where one would do, the two that are nearest
        nearest = format(value, ".1e")
        if float(nearest) == value:
            return (nearest[0] + nearest[2]).rstrip("0"), int(nearest.partition("e")[2])
    return digits, power


def text_of_dates(days: Vector, valid: Mask) -> pa.Array:
    return _with_nulls(_date_text(np.where(valid, days, 0).astype(np.int64)), valid)


def _date_text(days: Vector) -> pa.Array:
    year, month, day = civil(days)
    years = _digits(np.abs(year), 4)
    if (year < 0).any() or (year >= _FOUR_DIGIT_YEARS).any():
        sign = np.where(year < 0, "-", np.where(year >= _FOUR_DIGIT_YEARS, "+", ""))
        years = _joined(pa.array(sign.tolist(), pa.string()), years)
    return _joined(years, "-", _digits(month, 2), "-", _digits(day, 2))


def text_of_micros(micros: Vector, valid: Mask) -> pa.Array:
    """yyyy-MM-dd HH:mm:ss, then as many digits of the fraction as it has."""
    micros = np.where(valid, micros, 0)
    of_day = micros % DAY_US
    seconds = of_day // SECOND_US
    fraction = _digits(of_day % SECOND_US, 6)
    tail = pc.utf8_rtrim(_joined(pa.repeat(".", len(micros)), fraction), "0")
    tail = pc.if_else(pc.equal(tail, "."), "", tail)
    text = _joined(
        _date_text(micros // DAY_US),
        " ",
        _digits(seconds // 3600, 2),
        ":",
        _digits(seconds // 60 % 60, 2),
        ":",
        _digits(seconds % 60, 2),
        tail,
    )
    return _with_nulls(text, valid)
