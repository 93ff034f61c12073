"""Numbers, dates and times as text, the way Spark writes them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, fixed_column
from penstock.expressions.digits import digits_of_doubles
from penstock.expressions.times import civil
from penstock.expressions.types import INTERVAL_FIELDS_US, DataType
from penstock.expressions.zones import SECOND_US

_PLAIN_MIN, _PLAIN_MAX = -3, 7  # Java writes 1.0E7 and 1.0E-4, but 1000000.0 and 0.001
_FOUR_DIGIT_YEARS = 10_000
_SCALE_OF_WORDS = 18  # a power of ten that 64 bits hold
_TINY = 1e-322  # up to it doubles lie so far apart that one digit may tell them


def joined_text(*parts: pa.Array | str) -> pa.Array:
    """Texts side by side; null where one of them is."""
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def digits_text(values: Vector, width: int) -> pa.Array:
    """Non-negative integers as text, filled with zeros on the left."""
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width, "0")


def with_nulls(text: pa.Array, valid: Mask) -> pa.Array:
    """Texts where they are valid, null elsewhere."""
    return text if valid.all() else pc.if_else(pa.array(valid), text, pa.scalar(None, pa.string()))


def text_of_decimals(values: Vector, valid: Mask, scale: int) -> pa.Array:
    """Plain digits with exactly `scale` of them after the point."""
    if values.dtype == np.object_:
        return _text_of_wide_decimals(values, valid, scale)
    magnitude = np.abs(np.where(valid, values, 0))
    sign = pc.if_else(pa.array(values < 0), "-", "")
    if scale > _SCALE_OF_WORDS:
        return _text_of_wide_decimals(values.astype(object), valid, scale)
    unit = np.int64(10**scale)
    whole = pa.array(magnitude // unit).cast(pa.string())
    if scale == 0:
        return with_nulls(joined_text(sign, whole), valid)
    return with_nulls(joined_text(sign, whole, ".", digits_text(magnitude % unit, scale)), valid)


def _text_of_wide_decimals(values: Vector, valid: Mask, scale: int) -> pa.Array:
    sizes = fixed_column(pa.decimal128(38, 0), np.abs(values))
    digits = pc.utf8_lpad(sizes.cast(pa.string()), scale + 1, "0")
    sign = pc.if_else(pa.array((values < 0).astype(np.bool_)), "-", "")
    if scale == 0:
        return with_nulls(joined_text(sign, digits), valid)
    whole = pc.utf8_slice_codeunits(digits, 0, -scale)
    fraction = pc.utf8_slice_codeunits(digits, -scale)
    return with_nulls(joined_text(sign, whole, ".", fraction), valid)


def text_of_doubles(values: Vector, valid: Mask) -> pa.Array:
    """Java's text of a double: the fewest digits that read back as the same value."""
    number = digits_of_doubles(np.abs(values))
    digits, powers = number.digits, number.powers
    first, rest = pc.utf8_slice_codeunits(digits, 0, 1), pc.utf8_slice_codeunits(digits, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    text = joined_text(first, ".", rest, "E", pa.array(powers).cast(pa.string()))
    is_plain = (values == 0) | (powers >= _PLAIN_MIN) & (powers < _PLAIN_MAX)
    # Within these bounds Arrow writes no exponent either, but whole numbers without a point.
    plain = pa.array(np.where(is_plain, np.abs(values), 0.0)).cast(pa.string())
    is_whole = pc.invert(pc.match_substring(plain, "."))
    plain = pc.if_else(is_whole, joined_text(plain, ".0"), plain)
    text = pc.if_else(pa.array(is_plain), plain, text)
    for tiny in np.unique(values[(values != 0) & (np.abs(values) <= _TINY)]):  # a score at most
        # Java writes two digits at least: where one would do, the two that are nearest.
        nearest, _, power = f"{abs(tiny):.1e}".partition("e")
        text = pc.if_else(pa.array(np.abs(values) == abs(tiny)), f"{nearest}E{int(power)}", text)
    text = pc.if_else(pa.array(np.isinf(values)), "Infinity", text)
    text = joined_text(pc.if_else(pa.array(np.signbit(values)), "-", ""), text)
    return with_nulls(pc.if_else(pa.array(np.isnan(values)), "NaN", text), valid)


def text_of_dates(days: Vector, valid: Mask) -> pa.Array:
    return with_nulls(_date_text(np.where(valid, days, 0).astype(np.int64)), valid)


def year_text(year: Vector) -> pa.Array:
    """Four digits, more of them after a plus sign."""
    years = digits_text(np.abs(year), 4)
    if (year < 0).any() or (year >= _FOUR_DIGIT_YEARS).any():
        sign = np.where(year < 0, "-", np.where(year >= _FOUR_DIGIT_YEARS, "+", ""))
        years = joined_text(pa.array(sign.tolist(), pa.string()), years)
    return years


def _date_text(days: Vector) -> pa.Array:
    year, month, day = civil(days)
    return joined_text(year_text(year), "-", digits_text(month, 2), "-", digits_text(day, 2))


def text_of_times(days: Vector, of_day: Vector, valid: Mask) -> pa.Array:
    """yyyy-MM-dd HH:mm:ss, then as many digits of the fraction as it has."""
    days, of_day = (np.where(valid, part, 0) for part in (days, of_day))
    seconds = of_day // SECOND_US
    text = joined_text(
        _date_text(days),
        " ",
        digits_text(seconds // 3600, 2),
        ":",
        digits_text(seconds // 60 % 60, 2),
        ":",
        digits_text(seconds % 60, 2),
        _fraction_text(of_day % SECOND_US),
    )
    return with_nulls(text, valid)


def _fraction_text(micros: Vector) -> pa.Array:
    """A point and as many digits as there are; nothing of a whole second."""
    tail = pc.utf8_rtrim(joined_text(pa.repeat(".", len(micros)), digits_text(micros, 6)), "0")
    return pc.if_else(pc.equal(tail, "."), "", tail)


def text_of_intervals(micros: Vector, valid: Mask, data_type: DataType) -> pa.Array:
    """INTERVAL '1 02:03:04.5' DAY TO SECOND: the fields that its type names, days unpadded."""
    first, last = data_type.interval_fields
    names = list(INTERVAL_FIELDS_US)
    rest = np.abs(np.where(valid, micros, 0)).view(np.uint64)  # the least number has no opposite
    parts: list[pa.Array | str] = [pc.if_else(pa.array(micros < 0), "INTERVAL '-", "INTERVAL '")]
    for name in names[names.index(first) : names.index(last) + 1]:
        count, rest = np.divmod(rest, np.uint64(INTERVAL_FIELDS_US[name]))
        if name != first:
            parts.append(" " if name == "hour" else ":")
        parts.append(digits_text(count, 1 if name == "day" else 2))
    if last == "second":
        parts.append(_fraction_text(rest))
    kind = data_type.kind.removeprefix("interval ").upper()
    return with_nulls(joined_text(*parts, f"' {kind}"), valid)
