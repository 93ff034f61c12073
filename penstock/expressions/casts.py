"""ANSI casts between types: a value that does not fit fails its row, or is null for try_cast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, validity_of
from penstock.expressions.arithmetic import out_of_range, truncated_quotient
from penstock.expressions.decimals import (
    doubles_from_scaled,
    fitted,
    numbers_of,
    power_of_ten,
    scaled_from_doubles,
    with_room,
)
from penstock.expressions.frame import Frame
from penstock.expressions.mathematics import saturated
from penstock.expressions.nodes import Call
from penstock.expressions.printing import (
    text_of_dates,
    text_of_decimals,
    text_of_doubles,
    text_of_intervals,
    text_of_times,
)
from penstock.expressions.reading import (
    booleans_of_text,
    dates_of_text,
    decimals_of_text,
    floats_of_text,
    integers_of_text,
    micros_of_text,
)
from penstock.expressions.times import joined_micros, local_days, wall_times
from penstock.expressions.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER_BITS,
    INTERVAL_KINDS,
    STRING,
    TIMESTAMP_NTZ,
    DataType,
)
from penstock.expressions.vectors import arrow_column, broken_texts
from penstock.expressions.zones import DAY_US, SECOND_US, load_zone


@dataclass(frozen=True, slots=True)
class Casting:
    """One cast of one array: where from, where to, in which zone."""

    array: pa.Array
    source: DataType
    target: DataType
    zone: str | None

    @property
    def values(self) -> Vector:
        return numbers_of(self.array)

    @property
    def valid(self) -> Mask:
        return validity_of(self.array)

    def result(self, values: Vector, bad: Mask | None = None) -> tuple[pa.Array, Mask]:
        """Fixed-width results, null where the source is null or the value is bad."""
        bad = np.zeros(len(self.array), np.bool_) if bad is None else bad & self.valid
        return arrow_column(values, self.valid & ~bad, self.target), bad


Outcome = tuple[pa.Array, Mask]  # the values, and which rows have none although they should


def cast(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    source, target = node.args[0].type, node.type
    if source == target:
        return args[0]
    casting = Casting(args[0], source, target, node.option("time_zone"))
    result, bad = _route(casting)(casting)
    if node.function == "cast":
        frame.fail(bad, f"cannot cast this {source} value to {target}", node)
    return result


def text_of(array: pa.Array, data_type: DataType) -> pa.Array:
    """What a cast to string makes of values that it takes all of, and that need no zone."""
    casting = Casting(array, data_type, STRING, None)
    return _route(casting)(casting)[0]


def _route(casting: Casting) -> Callable[[Casting], Outcome]:
    source, target = casting.source.kind, casting.target.kind
    if source == "string":
        return _FROM_TEXT.get(target, _integers_from_text)
    if target == "string":
        return _TO_TEXT.get(source, _text_by_arrow)
    if source in _TIME_KINDS or target in _TIME_KINDS:
        return _times
    return _numbers


_TIME_KINDS = frozenset({"date", "timestamp", "timestamp_ntz"})


# --- numbers and booleans -------------------------------------------------------------------------


def _numbers(casting: Casting) -> Outcome:
    source, target = casting.source, casting.target
    if target == BOOLEAN:
        return casting.result(casting.values != 0)
    if target.is_decimal:
        return _to_decimal(casting)
    if target.is_fractional:
        return _to_fractional(casting)
    if source.is_decimal:
        whole = truncated_quotient(*with_room(10**source.scale, casting.values, _unit(source)))
        limits = np.iinfo(np.int64)
        beyond = (whole < limits.min) | (whole > limits.max)
        wide = np.where(beyond, 0, whole).astype(np.int64)
        return casting.result(wide, beyond | out_of_range(wide, target))
    if source.is_fractional:
        return _truncated(casting)
    return _narrowed(casting, casting.values.astype(np.int64))


def _unit(decimal: DataType) -> Vector:
    """One, as a scaled integer."""
    return np.full(1, power_of_ten(decimal.scale))


def _narrowed(casting: Casting, wide: Vector) -> Outcome:
    return casting.result(wide, out_of_range(wide, casting.target))


def _truncated(casting: Casting) -> Outcome:
    """A float towards zero; only what lies beyond the bounds after that fails, and NaN."""
    return casting.result(*_exact(casting.values.astype(np.float64), casting.target))


def _exact(values: Vector, target: DataType) -> tuple[Vector, Mask]:
    bound = float(1 << (INTEGER_BITS[target.kind] - 1))
    # 2**63 as a double is the bound of bigint itself, and passes: Java's comparison is in doubles
    upper = bound if target == BIGINT else bound - 1
    fits = (np.floor(values) <= upper) & (np.ceil(values) >= -bound)
    return saturated(np.where(fits, values, 0.0)), ~fits


def _to_fractional(casting: Casting) -> Outcome:
    if casting.source.is_decimal:
        doubles = doubles_from_scaled(casting.values, casting.valid, casting.source.scale)
        if casting.target == DOUBLE:
            return casting.result(doubles)
        return casting.result(_singles(casting, doubles))
    dtype = np.float64 if casting.target == DOUBLE else np.float32
    return casting.result(casting.values.astype(dtype))


_HALFWAY_BITS = np.int64(1 << 28)
_DROPPED_BITS = np.int64((1 << 29) - 1)


def _singles(casting: Casting, doubles: Vector) -> Vector:
    """Decimals rounded once: where a double is halfway between two floats, the text decides."""
    singles = doubles.astype(np.float32)
    halfway = (doubles.view(np.int64) & _DROPPED_BITS) == _HALFWAY_BITS
    rows = np.flatnonzero(halfway & casting.valid)
    if rows.size:
        everywhere = np.ones(rows.size, np.bool_)
        text = text_of_decimals(casting.values[rows], everywhere, casting.source.scale)
        singles[rows] = text.cast(pa.float32()).to_numpy()
    return singles


def _to_decimal(casting: Casting) -> Outcome:
    source, target = casting.source, casting.target
    if source.is_fractional:
        # NaN and the infinities give null, also where other values would fail
        finite = casting.valid & np.isfinite(casting.values)
        scaled, bad = scaled_from_doubles(casting.values, finite, target)
        bad = bad | (np.abs(scaled) >= power_of_ten(target.precision)) & finite
        scaled = np.where(bad, 0, scaled)
        return arrow_column(scaled, finite & ~bad, target), bad
    values = casting.values if source.is_decimal else casting.values.astype(np.int64)
    scaled, bad = fitted(values, source.scale, target)
    return casting.result(np.where(bad, 0, scaled), bad)


# --- dates and times ------------------------------------------------------------------------------


def _times(casting: Casting) -> Outcome:
    source, target = casting.source.kind, casting.target.kind
    if target == "date":
        return casting.result(local_days(casting.array, casting.source, casting.zone))
    if source == "date":
        return casting.result(*_midnights(casting))
    if source == "timestamp_ntz":
        assert casting.zone is not None
        seconds, fraction_us = np.divmod(casting.values, SECOND_US)
        offsets = load_zone(casting.zone).wall_offsets(seconds)
        return casting.result(*joined_micros(seconds - offsets // SECOND_US, fraction_us))
    if target == "timestamp_ntz":
        days, of_day = wall_times(casting.array, casting.zone)
        seconds = days * (DAY_US // SECOND_US) + of_day // SECOND_US
        return casting.result(*joined_micros(seconds, of_day % SECOND_US))
    if source == "timestamp":
        if target == "double":
            return casting.result(casting.values / float(SECOND_US))
        return _narrowed(casting, casting.values // SECOND_US)
    return _timestamp_from_number(casting)


def _midnights(casting: Casting) -> tuple[Vector, Mask]:
    days = casting.values.astype(np.int64)
    seconds = days * (DAY_US // SECOND_US)
    if casting.target == TIMESTAMP_NTZ:
        return joined_micros(seconds, np.zeros_like(seconds))
    assert casting.zone is not None
    offsets = load_zone(casting.zone).day_start_offsets(days)
    return joined_micros(seconds - offsets // SECOND_US, np.zeros_like(seconds))


def _timestamp_from_number(casting: Casting) -> Outcome:
    """Seconds since 1970; integers beyond the range give the nearest timestamp, doubles fail."""
    values = casting.values
    if casting.source.is_fractional:
        return casting.result(*_exact(values * float(SECOND_US), BIGINT))
    limits = np.iinfo(np.int64)
    wide = values.astype(np.int64)
    high, low = limits.max // SECOND_US, -(-limits.min // SECOND_US)
    micros = np.clip(wide, low, high) * SECOND_US
    micros = np.where(wide > high, limits.max, np.where(wide < low, limits.min, micros))
    return casting.result(micros)


# --- text -----------------------------------------------------------------------------------------


def _integers_from_text(casting: Casting) -> Outcome:
    wide, bad = integers_of_text(casting.array)
    return casting.result(wide, bad | out_of_range(wide, casting.target))


def _decimals_from_text(casting: Casting) -> Outcome:
    return casting.result(*decimals_of_text(casting.array, casting.target))


def _floats_from_text(casting: Casting) -> Outcome:
    return casting.result(*floats_of_text(casting.array, casting.target))


def _booleans_from_text(casting: Casting) -> Outcome:
    return casting.result(*booleans_of_text(casting.array))


def _dates_from_text(casting: Casting) -> Outcome:
    return casting.result(*dates_of_text(casting.array))


def _timestamps_from_text(casting: Casting) -> Outcome:
    return casting.result(*micros_of_text(casting.array, casting.zone))


def _bytes_of_text(casting: Casting) -> Outcome:
    return casting.array.view(pa.binary()), np.zeros(len(casting.array), np.bool_)


_FROM_TEXT: dict[str, Callable[[Casting], Outcome]] = {
    "decimal": _decimals_from_text,
    "float": _floats_from_text,
    "double": _floats_from_text,
    "boolean": _booleans_from_text,
    "date": _dates_from_text,
    "timestamp": _timestamps_from_text,
    "timestamp_ntz": _timestamps_from_text,
    "binary": _bytes_of_text,
}


def _text(casting: Casting, text: pa.Array) -> Outcome:
    return text, np.zeros(len(casting.array), np.bool_)


def _text_by_arrow(casting: Casting) -> Outcome:
    return _text(casting, casting.array.cast(pa.string()))


def _text_of_bytes(casting: Casting) -> Outcome:
    try:
        return _text_by_arrow(casting)
    except pa.ArrowInvalid:
        broken = broken_texts(casting.array.fill_null(b"")) & casting.valid
        kept = pa.array(~broken)
        return pc.if_else(kept, casting.array, None).cast(pa.string()), broken


def _text_of_times(casting: Casting) -> Outcome:
    return _text(casting, text_of_times(*wall_times(casting.array, casting.zone), casting.valid))


def _text_of_decimals(casting: Casting) -> Outcome:
    return _text(casting, text_of_decimals(casting.values, casting.valid, casting.source.scale))


_TO_TEXT: dict[str, Callable[[Casting], Outcome]] = {
    "binary": _text_of_bytes,
    "decimal": _text_of_decimals,
    "double": lambda c: _text(c, text_of_doubles(c.values, c.valid)),
    "date": lambda c: _text(c, text_of_dates(c.values, c.valid)),
    "timestamp": _text_of_times,
    "timestamp_ntz": _text_of_times,
    **dict.fromkeys(
        INTERVAL_KINDS, lambda c: _text(c, text_of_intervals(c.values, c.valid, c.source))
    ),
}
