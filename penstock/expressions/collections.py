"""Functions of arrays and maps: what they hold, in which order, put together and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import Mask, Vector, true_rows, validity_of, values_of
from penstock.expressions.arithmetic import both_valid
from penstock.expressions.comparison import compared
from penstock.expressions.frame import Frame
from penstock.expressions.lists import (
    Items,
    codes_of,
    entries_of,
    items_of,
    map_array,
    ranks_of,
    side_by_side,
)
from penstock.expressions.nodes import Call
from penstock.expressions.stored_values import as_stored
from penstock.expressions.types import BIGINT, BOOLEAN, DataType
from penstock.expressions.vectors import arrow_column

ITEMS_MAX = 1_000_000  # of one array that is made by a number


# --- searched -------------------------------------------------------------------------------------


def _equal(items: Items, value: pa.Array, data_type: DataType) -> Mask:
    """Where an item equals the value of its row."""
    return true_rows(compared("eq", items.values, value.take(pa.array(items.rows)), data_type))


def array_contains(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Null instead of false where a null item could be the one."""
    items = items_of(args[0])
    found = items.any_of(_equal(items, args[1], node.args[1].type))
    unknown = items.any_of(~validity_of(items.values)) & ~found
    return arrow_column(found, both_valid(args) & ~unknown, BOOLEAN)


def array_position(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Where a value first stands, from 1 on; 0 if nowhere."""
    items = items_of(args[0])
    equal = np.flatnonzero(_equal(items, args[1], node.args[1].type))[::-1]
    found = np.zeros(len(items.lengths), np.int64)
    found[items.rows[equal]] = items.places[equal] + 1
    return arrow_column(found, both_valid(args), BIGINT)


def array_remove(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    items = items_of(args[0])
    kept = items.kept(~_equal(items, args[1], node.args[1].type))
    valid = both_valid(args)
    return Items(*_of_rows(kept, valid), valid).array(node.type)


def _of_rows(items: Items, valid: Mask) -> tuple[pa.Array, Vector]:
    """The items of some rows, and their lengths."""
    return items.values.filter(pa.array(valid[items.rows])), np.where(valid, items.lengths, 0)


def array_extreme(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The greatest or the smallest item that is not null."""
    items = items_of(args[0])
    known = np.flatnonzero(validity_of(items.values))
    ranks = ranks_of(items.values)[known]
    order = np.lexsort((ranks if node.function == "array_min" else -ranks, items.rows[known]))
    rows, first = np.unique(items.rows[known][order], return_index=True)
    at = np.full(len(items.lengths), -1, np.int64)
    at[rows] = known[order][first]
    return items.values.take(pa.array(at, mask=at < 0))


def arrays_overlap(_node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Whether both have a value; unknown where a null could be it."""
    left, right = _coded_pair(args)
    (items, codes), (others, other_codes) = left, right
    common = (codes >= 0) & np.isin(_keys(items, codes), _keys(others, other_codes))
    found = items.any_of(common)
    nulls = items.any_of(codes < 0) | others.any_of(other_codes < 0)
    unknown = nulls & (items.lengths > 0) & (others.lengths > 0) & ~found
    return arrow_column(found, both_valid(args) & ~unknown, BOOLEAN)


# --- sets of items --------------------------------------------------------------------------------


def _coded_pair(args: list[pa.Array]) -> tuple[tuple[Items, Vector], tuple[Items, Vector]]:
    left, right = items_of(args[0]), items_of(args[1])
    codes = codes_of(pa.concat_arrays([left.values, right.values]))
    return (left, codes[: len(left.values)]), (right, codes[len(left.values) :])


def _keys(items: Items, codes: Vector) -> Vector:
    """A number per row and value; codes of one batch are fewer than 2**31."""
    keys: Vector = (items.rows << 32) + codes + 1
    return keys


def _first_flags(keys: Vector) -> Mask:
    """Where a key is met for the first time."""
    flags = np.zeros(len(keys), np.bool_)
    flags[np.unique(keys, return_index=True)[1]] = True
    return flags


def array_distinct(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return _distinct(items_of(args[0])).array(node.type)


def _distinct(items: Items) -> Items:
    return items.kept(_first_flags(_keys(items, codes_of(items.values))))


def array_union(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    parts = [items_of(arg) for arg in args]
    return _distinct(side_by_side(parts, both_valid(args))).array(node.type)


def array_difference(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Distinct items that the other array has too, or that it does not have."""
    (items, codes), (others, other_codes) = _coded_pair(args)
    keys = _keys(items, codes)
    shared = np.isin(keys, _keys(others, other_codes))
    wanted = shared if node.function == "array_intersect" else ~shared
    valid = both_valid(args)
    kept = items.kept(_first_flags(keys) & wanted & valid[items.rows])
    return Items(kept.values, kept.lengths, valid).array(node.type)


# --- order ----------------------------------------------------------------------------------------


def sort_array(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Upwards or downwards; nulls at the small end, or always last."""
    items = items_of(args[0])
    ranks = ranks_of(items.values)
    upwards = bool(node.option("upwards"))
    nulls_last = bool(node.option("nulls_last")) or not upwards
    known = validity_of(items.values)
    place = np.where(known, ranks if upwards else -ranks, 0)
    is_late = ~known if nulls_last else known
    return items.taken(np.lexsort((place, is_late, items.rows))).array(node.type)


def array_reverse(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    items = items_of(args[0])
    return items.taken(np.lexsort((-items.places, items.rows))).array(node.type)


# --- put together and taken apart -----------------------------------------------------------------


def array_concat(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    return side_by_side([items_of(arg) for arg in args], both_valid(args)).array(node.type)


def array_add(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """One more item, at the end or at the beginning."""
    ones = np.ones(len(args[0]), np.int64)
    new = Items(args[1], ones, np.ones(len(ones), np.bool_))
    parts = [items_of(args[0]), new]
    if node.function == "array_prepend":
        parts.reverse()
    return side_by_side(parts, validity_of(args[0])).array(node.type)


def flatten(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Arrays of arrays as one; null where one of them is."""
    outer = items_of(args[0])
    inner = items_of(outer.values)
    valid = outer.valid & ~outer.any_of(~inner.valid)
    ends = np.append(0, inner.ends)
    begins, until = ends[outer.begins], ends[outer.ends]
    whole = Items(inner.values, until - begins, outer.valid)
    return Items(*_of_rows(whole, valid), valid).array(node.type)


def slice_array(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """From a position, counted from 1 or from the end, so many items."""
    items = items_of(args[0])
    start, length = (values_of(arg).astype(np.int64) for arg in args[1:])
    valid = both_valid(args)
    frame.fail((start == 0) & valid, "positions of an array begin with 1", node)
    frame.fail((length < 0) & (start != 0) & valid, "a negative length", node)
    first = np.where(start < 0, items.lengths + start, start - 1)
    outside = (first < 0) | (length < 0)
    begin, end = first[items.rows], (first + np.minimum(length, len(items.values) + 1))[items.rows]
    wanted = (items.places >= begin) & (items.places < end) & ~outside[items.rows]
    kept = items.kept(wanted & valid[items.rows])
    return Items(kept.values, kept.lengths, valid).array(node.type)


def array_repeat(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    valid = validity_of(args[1])
    counts = np.where(valid, np.maximum(values_of(args[1]).astype(np.int64), 0), 0)
    too_long = counts > ITEMS_MAX
    frame.fail(too_long, f"an array of more than {ITEMS_MAX} items", node)
    counts = np.where(too_long, 0, counts)
    at = np.repeat(np.arange(len(counts)), counts)
    return Items(args[0].take(pa.array(at)), counts, valid).array(node.type)


def array_join(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """Texts with a constant separator in between; nulls are left out, or replaced."""
    items = items_of(args[0])
    replacement = node.option("null_replacement")
    if replacement is not None:
        items = Items(items.values.fill_null(replacement), items.lengths, items.valid)
    elif items.values.null_count:
        items = items.kept(validity_of(items.values))
    joined = pc.binary_join(items.array(node.args[0].type), node.option("separator"))
    return joined


def arrays_zip(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The first items of all arrays as a struct, then the second ones; the shorter end in nulls."""
    valid = both_valid(args)
    whole, columns = zipped(args, valid)
    names = list(node.option("names"))
    return replace(whole, values=pa.StructArray.from_arrays(columns, names)).array(node.type)


def zipped(args: Sequence[pa.Array], valid: Mask) -> tuple[Items, list[pa.Array]]:
    """Rows as long as the longest array of each, and of each array the items in their places."""
    parts = [items_of(arg) for arg in args]
    lengths = np.where(valid, np.maximum.reduce([part.lengths for part in parts]), 0)
    whole = Items(pa.nulls(int(lengths.sum())), lengths, valid)
    rows, places = whole.rows, whole.places
    columns = [
        part.values.take(pa.array(part.begins[rows] + places, mask=places >= part.lengths[rows]))
        for part in parts
    ]
    return whole, columns


def sequence(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """From a number to another, both included if a step meets it; by ones if no step is given."""
    start, stop = (values_of(arg).astype(np.int64) for arg in args[:2])
    valid = both_valid(args)
    up = start <= stop
    step = values_of(args[2]).astype(np.int64) if len(args) > 2 else np.where(up, 1, -1)
    never = np.where(up, step < 0, step > 0) & (start != stop) | (step == 0) & (start != stop)
    frame.fail(never & valid, "a step that leads away from the end of the sequence", node)
    # Far apart they leave 64 bits: as numbers without a sign their distance has room.
    apart = np.where(up, stop.view(np.uint64) - start.view(np.uint64), 0)
    apart = np.where(up, apart, start.view(np.uint64) - stop.view(np.uint64))
    width = np.where(step == 0, 1, np.abs(step)).view(np.uint64)
    lengths = np.where(start == stop, 0, apart // width)
    too_long = (lengths >= ITEMS_MAX) & ~never
    frame.fail(too_long & valid, f"an array of more than {ITEMS_MAX} items", node)
    bad = ~valid | never | too_long
    counts = np.where(bad, 0, lengths.astype(np.int64) + 1)
    items = Items(pa.nulls(int(counts.sum())), counts, valid)
    assert node.type.element is not None
    values = start[items.rows] + step[items.rows] * items.places
    column = arrow_column(values, np.ones(len(values), np.bool_), node.type.element)
    return replace(items, values=column).array(node.type)


def struct_fields(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """A field of each struct in an array."""
    items = items_of(args[0])
    at = items.values.type.get_field_index(node.option("name"))
    fields = pc.struct_field(items.values, [at])
    return Items(fields, items.lengths, items.valid).array(node.type)


def element_at(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """By a position from 1 on or from the end; outside is an error, or null where asked for."""
    items = items_of(args[0])
    position = values_of(args[1]).astype(np.int64)
    valid = both_valid(args)
    frame.fail((position == 0) & valid, "positions of an array begin with 1", node)
    place = np.where(position < 0, items.lengths + position, position - 1)
    outside = (place < 0) | (place >= items.lengths)
    if not node.option("null_outside"):
        frame.fail(outside & valid, "a position outside the array", node)
    at = np.where(outside, 0, items.begins + place)
    return items.values.take(pa.array(at, mask=outside | ~valid))


# --- maps -----------------------------------------------------------------------------------------


def map_value(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The value of a key, null if the map has none."""
    keys, values = entries_of(args[0])
    equal = np.flatnonzero(_equal(keys, args[1], node.args[1].type))[::-1]
    at = np.full(len(keys.lengths), -1, np.int64)
    at[keys.rows[equal]] = equal
    return values.values.take(pa.array(at, mask=at < 0))


def map_part(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    keys, values = entries_of(args[0])
    return (keys if node.function == "map_keys" else values).array(node.type)


def map_entries(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    keys, values = entries_of(args[0])
    pairs = pa.StructArray.from_arrays([keys.values, values.values], names=["key", "value"])
    return Items(pairs, keys.lengths, keys.valid).array(node.type)


def map_sort(node: Call, args: list[pa.Array], _frame: Frame) -> pa.Array:
    """The entries in the order of their keys: then maps that are equal are written alike."""
    keys, values = entries_of(args[0])
    assert node.type.key is not None
    ranks = ranks_of(as_stored(keys.values, node.type.key))  # nested keys by bytes that compare
    order = np.lexsort((ranks, keys.rows))
    return map_array(keys.taken(order), values.taken(order).values, node.type)


def make_map(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """From keys and values in turns."""
    rows, pairs = frame.num_rows, len(args) // 2
    order = pa.array(np.arange(rows * pairs).reshape(pairs, rows).T.reshape(-1))
    keys, values = (pa.concat_arrays(part).take(order) for part in (args[0::2], args[1::2]))
    lengths = np.full(rows, pairs, np.int64)
    return checked_map(node, Items(keys, lengths, np.ones(rows, np.bool_)), values, frame)


def map_from_arrays(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    keys, values = (items_of(arg) for arg in args)
    valid = both_valid(args)
    uneven = (keys.lengths != values.lengths) & valid
    frame.fail(uneven, "as many keys as values were expected", node)
    valid = valid & ~uneven
    kept = Items(*_of_rows(keys, valid), valid)
    return checked_map(node, kept, _of_rows(values, valid)[0], frame)


def map_from_entries(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    """Null where an entry is."""
    entries = items_of(args[0])
    missing = ~validity_of(entries.values)
    valid = entries.valid & ~entries.any_of(missing)
    kept = Items(*_of_rows(entries, valid), valid)
    keys, values = kept.values.flatten()
    return checked_map(node, Items(keys, kept.lengths, valid), values, frame)


def map_concat(node: Call, args: list[pa.Array], frame: Frame) -> pa.Array:
    valid = both_valid(args)
    parts = [entries_of(arg) for arg in args]
    keys = side_by_side([part[0] for part in parts], valid)
    values = side_by_side([part[1] for part in parts], valid)
    return checked_map(node, keys, values.values, frame)


def checked_map(node: Call, keys: Items, values: pa.Array, frame: Frame) -> pa.Array:
    """A map whose keys are there and differ."""
    missing = ~validity_of(keys.values)
    frame.fail(keys.any_of(missing), "a key of a map is null", node)
    again = ~_first_flags(_keys(keys, codes_of(keys.values))) & ~missing
    frame.fail(keys.any_of(again), "a key is in the map twice", node)
    bad = keys.any_of(missing | again)
    if bad.any():  # rows that failed: their values mean nothing, but a map must be well formed
        values = values.filter(pa.array(~bad[keys.rows]))
        keys = Items(*_of_rows(keys, ~bad), keys.valid)
    return map_array(keys, values, node.type)
