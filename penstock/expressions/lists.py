"""Arrays and maps as their flattened items: what is computed for all items of all rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, validity_of, values_of
from penstock.expressions.types import DataType, arrow_type


@dataclass(frozen=True, slots=True)
class Items:
    """The items of every row one behind the other; a null row has none."""

    values: pa.Array
    lengths: Vector
    valid: Mask

    @property
    def ends(self) -> Vector:
        ends: Vector = np.cumsum(self.lengths)
        return ends

    @property
    def begins(self) -> Vector:
        return self.ends - self.lengths

    @property
    def rows(self) -> Vector:
        """The row of each item."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> Vector:
        """Where each item stands in its row, from 0 on."""
        places: Vector = np.arange(len(self.values)) - np.repeat(self.begins, self.lengths)
        return places

    def any_of(self, flags: Mask) -> Mask:
        """Whether a flag is set for some item of each row."""
        found = np.zeros(len(self.lengths), np.bool_)
        found[self.rows[flags]] = True
        return found

    def kept(self, flags: Mask) -> Items:
        """Only the items with a flag."""
        lengths = np.bincount(self.rows[flags], minlength=len(self.lengths))
        return Items(self.values.filter(pa.array(flags)), lengths, self.valid)

    def taken(self, order: Vector) -> Items:
        """The same items in another order within their rows."""
        return Items(self.values.take(pa.array(order)), self.lengths, self.valid)

    def array(self, data_type: DataType) -> pa.Array:
        """As a column of arrays."""
        offsets = pa.array(np.append(0, self.ends).astype(np.int32))
        mask = None if self.valid.all() else pa.array(~self.valid)
        return pa.ListArray.from_arrays(offsets, self.values, type=arrow_type(data_type), mask=mask)


def items_of(lists: pa.Array) -> Items:
    """The items of a column of arrays."""
    return _flattened(lists, lists.values)


def entries_of(maps: pa.Array) -> tuple[Items, Items]:
    """The keys and the values of a column of maps."""
    return _flattened(maps, maps.keys), _flattened(maps, maps.items)


def _flattened(lists: pa.Array, values: pa.Array) -> Items:
    if len(lists) == 0:
        return Items(values.slice(0, 0), np.zeros(0, np.int64), np.ones(0, np.bool_))
    offsets = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    valid = validity_of(lists)
    lengths = np.diff(offsets)
    if lengths[~valid].any():
        lengths = np.where(valid, lengths, 0)
        ends = np.cumsum(lengths)
        at = np.repeat(offsets[:-1] - (ends - lengths), lengths) + np.arange(ends[-1])
        return Items(values.take(pa.array(at)), lengths, valid)
    return Items(values.slice(offsets[0], offsets[-1] - offsets[0]), lengths, valid)


def side_by_side(parts: list[Items], valid: Mask) -> Items:
    """The items of several arrays of each row, those of the first one first."""
    lengths = np.where(valid, np.sum([part.lengths for part in parts], axis=0), 0)
    rows = np.concatenate([part.rows for part in parts])
    kept = np.flatnonzero(valid[rows])
    order = kept[np.argsort(rows[kept], kind="stable")]
    values = pa.concat_arrays([part.values for part in parts]).take(pa.array(order))
    return Items(values, lengths, valid)


def map_array(keys: Items, values: pa.Array, data_type: DataType) -> pa.Array:
    """As a column of maps."""
    offsets = pa.array(np.append(0, keys.ends).astype(np.int32))
    mask = None if keys.valid.all() else pa.array(~keys.valid)
    return pa.MapArray.from_arrays(
        offsets, keys.values, values, type=arrow_type(data_type), mask=mask
    )


def codes_of(values: pa.Array) -> Vector:
    """A number per value, the same for equal ones; -1 of null."""
    if pa.types.is_floating(values.type):
        values = _one_zero(values)
    encoded = values.dictionary_encode(null_encoding="mask")
    codes: Vector = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def ranks_of(values: pa.Array) -> Vector:
    """The place of each value in Spark's order, the same for equal ones; NaN is greatest."""
    if pa.types.is_boolean(values.type):
        return values_of(values).astype(np.int64)
    if pa.types.is_floating(values.type):
        values = _one_zero(values)
        is_nan = np.isnan(values_of(values)) & validity_of(values)
        ranks = _ranked(pc.if_else(pa.array(is_nan), pa.scalar(None, values.type), values))
        return np.where(is_nan, len(values) + 1, ranks)
    return _ranked(values)


def _ranked(values: pa.Array) -> Vector:
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    found: Vector = ranks.to_numpy().astype(np.int64)
    return found


def _one_zero(values: pa.Array) -> pa.Array:
    """Floats without a negative zero, all NaN alike."""
    numbers = values_of(values)
    plain = np.where(np.isnan(numbers), np.nan, numbers + 0.0).astype(numbers.dtype)
    return pa.array(plain, mask=~validity_of(values))
