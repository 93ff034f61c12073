"""What aggregates make of the items that groups have collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Numbers, validity_of
from penstock.expressions.decimals import doubles_from_scaled, numbers_of
from penstock.expressions.types import DataType, array_type, arrow_type
from penstock.expressions.vectors import arrow_column
from penstock.operators.ordering import levels, sorted_places

Options = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """What so many groups have collected, by group: of each item its group, keys and values."""

    owners: Numbers
    groups: int
    keys: list[pa.Array]
    values: list[pa.Array]

    @property
    def ends(self) -> Numbers:
        """Where the items of each group end."""
        counted: Numbers = np.cumsum(np.bincount(self.owners, minlength=self.groups))
        return counted


Gather = Callable[[Items, Options, DataType], pa.Array]


def listed(items: Items, _options: Options, result: DataType) -> pa.Array:
    column = (items.values or items.keys)[0]
    offsets = pa.array(np.append(0, items.ends).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, column, type=arrow_type(result))


def with_nulls(gather: Gather) -> Gather:
    """Of items that are structs of one value, which may be null."""

    def gathered(items: Items, options: Options, result: DataType) -> pa.Array:
        keys, values = (
            [column.field(0) if pa.types.is_struct(column.type) else column for column in columns]
            for columns in (items.keys, items.values)
        )
        return gather(replace(items, keys=keys, values=values), options, result)

    return gathered


def joined(items: Items, options: Options, result: DataType) -> pa.Array:
    """The texts of a group as one, with a text between them.

    They are in the order of their rows, or in one of their own: by themselves, or by what a struct
    has behind the text; the options say of each whether it descends, and where nulls are.
    """
    between, *turns = options
    texts = (items.values or items.keys)[0]
    if turns:
        is_struct = pa.types.is_struct(texts.type)
        texts, *by = texts.flatten() if is_struct else (texts, texts)
        turned = zip(by, turns[::2], turns[1::2], strict=True)
        order = [level for each in turned for level in levels(*each)]
        texts = texts.take(pa.array(sorted_places([items.owners, *order], len(texts))))
    there = validity_of(texts)
    owners = items.owners[there]
    found = replace(items, owners=owners, values=[texts.filter(pa.array(there))])
    lists = listed(found, (), array_type(result))
    some = np.bincount(owners, minlength=items.groups) > 0
    return pc.if_else(pa.array(some), pc.binary_join(lists, between), None)


def multiplied(items: Items, _options: Options, result: DataType) -> pa.Array:
    """The product of the numbers of a group, in the order of their rows."""
    values = items.values[0].to_numpy()
    counts = np.bincount(items.owners, minlength=items.groups)
    found, some = np.zeros(items.groups), counts > 0
    with np.errstate(all="ignore"):
        found[some] = np.multiply.reduceat(values, (items.ends - counts)[some]) if some.any() else 0
    return arrow_column(found, some, result)


def as_set(items: Items, options: Options, result: DataType) -> pa.Array:
    return listed(replace(items, values=[]), options, result)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Of each group its values in order: how many there are, and which has a rank."""

    items: Items
    reached: Numbers  # how many values there are up to each item, those of groups before included
    before: Numbers  # how many groups before have
    counts: Numbers

    @classmethod
    def of(cls, items: Items) -> _Ranks:
        reached = np.cumsum(items.values[0].to_numpy())
        totals = np.append(0, reached)[np.append(0, items.ends)]
        return cls(items, reached, totals[:-1], np.diff(totals))

    def at(self, ranks: Numbers) -> pa.Array:
        """The value of each group at a rank from 0; null where the group has none."""
        places = np.searchsorted(self.reached, self.before + ranks, side="right")
        return self.items.keys[0].take(pa.array(places, mask=self.counts == 0))


def discrete_percentiles(items: Items, options: Options, result: DataType) -> pa.Array:
    """The first value that so large a part of all is not behind."""
    is_list, is_reversed, *fractions = options
    ranks = _Ranks.of(items)
    columns = []
    for fraction in fractions:
        rank = np.maximum(np.ceil(ranks.counts * fraction), 1).astype(np.int64) - 1
        rank = ranks.counts - 1 - rank if is_reversed else rank
        columns.append(_doubles(ranks.at(np.maximum(rank, 0))))
    return _doubles_or_lists(columns, ranks, is_list, result)


def _doubles_or_lists(
    columns: Sequence[NDArray[np.float64]], ranks: _Ranks, is_list: bool, result: DataType
) -> pa.Array:
    if not is_list:
        return arrow_column(columns[0], ranks.counts > 0, result)
    values = pa.array(np.stack(columns, axis=1).reshape(-1))
    return _lists_of(values, ranks.counts > 0, len(columns), result)


def percentiles(items: Items, options: Options, result: DataType) -> pa.Array:
    """Between two values as far as the fraction lies between their ranks, as Spark does it."""
    is_list, is_reversed, *fractions = options
    ranks = _Ranks.of(items)
    columns = []
    for fraction in fractions:
        position = np.maximum(ranks.counts - 1, 0) * fraction
        low, high = np.floor(position), np.ceil(position)
        places = [rank.astype(np.int64) for rank in (low, high)]
        if is_reversed:
            places = [np.maximum(ranks.counts - 1 - place, 0) for place in places]
        one, other = (_doubles(ranks.at(place)) for place in places)
        with np.errstate(invalid="ignore"):
            between = one + (position - low) * (other - one)
        columns.append(np.where((low == high) | (one == other), one, between))
    return _doubles_or_lists(columns, ranks, is_list, result)


def _doubles(values: pa.Array) -> NDArray[np.float64]:
    """As Spark reads numbers as doubles; of null any."""
    if pa.types.is_decimal(values.type):
        found: NDArray[np.float64] = doubles_from_scaled(
            numbers_of(values), validity_of(values), values.type.scale
        )
        return found
    wide: NDArray[np.float64] = values.cast(pa.float64(), safe=False).fill_null(0).to_numpy()
    return wide


def approximate_percentiles(items: Items, options: Options, result: DataType) -> pa.Array:
    """The exact ranks, which lie within Spark's error; with few rows Spark has none."""
    is_list, accuracy, *fractions = options
    ranks = _Ranks.of(items)
    columns = []
    for fraction in fractions:
        rank = np.ceil(fraction * ranks.counts).astype(np.int64) - 1
        if fraction <= 1 / accuracy:
            rank = np.zeros_like(rank)
        elif fraction >= 1 - 1 / accuracy:
            rank = ranks.counts - 1
        columns.append(ranks.at(np.maximum(rank, 0)))
    if not is_list:
        return columns[0]
    taken = np.arange(items.groups * len(columns)).reshape(len(columns), -1).T.reshape(-1)
    values = pa.concat_arrays(columns).take(pa.array(taken))
    return _lists_of(values, ranks.counts > 0, len(columns), result)


def _lists_of(values: pa.Array, valid: NDArray[np.bool_], size: int, result: DataType) -> pa.Array:
    """Lists of one size, null where they are not valid."""
    sizes = np.where(valid, size, 0)
    kept = values.filter(pa.array(np.repeat(valid, size)))
    offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
    mask = pa.array(~valid)
    return pa.ListArray.from_arrays(offsets, kept, type=arrow_type(result), mask=mask)


def most_often(items: Items, options: Options, result: DataType) -> pa.Array:
    """The value that a group has most often; of several the least, or the greatest if asked for."""
    counts = items.values[0].to_numpy()
    tie = np.arange(counts.size) * (1 if options == ("greatest",) else -1)
    order = np.lexsort((tie, counts, items.owners))
    sizes = np.bincount(items.owners, minlength=items.groups)
    places = order[np.maximum(items.ends - 1, 0)] if counts.size else items.ends
    return items.keys[0].take(pa.array(places, mask=sizes == 0))
