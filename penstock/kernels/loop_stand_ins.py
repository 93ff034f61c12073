"""The loops written with Arrow and NumPy: what runs where no kernel is, with equal results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, Vector, text_column, validity_of, values_of
from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.tree import Expression
from penstock.kernels.accumulators import ACCUMULATORS
from penstock.kernels.coding import COLUMNS, NO_SEPARATOR, SIZE, START
from penstock.kernels.columns import dtype_of
from penstock.kernels.hashing import NULL_WORD, SEED, fixed_words, mixed
from penstock.kernels.loop import NO_TIME_US, LoopGrouping, LoopSpec
from penstock.kernels.results import LoopGroups, LoopRows
from penstock.state.stand_ins import eights


@dataclass
class _Survivors:
    """The rows of a batch that are still in, those that failed, and the greatest time seen."""

    batch: pa.RecordBatch
    rows: Numbers
    failed: list[int]
    latest_us: int = NO_TIME_US

    def values(self, expressions: list[Expression]) -> list[pa.Array]:
        """Evaluate on the rows still in; rows that fail leave."""
        arrays, bad, _ = evaluate_rows(expressions, self.batch)
        if not bad.any():
            return list(arrays)
        self.failed.extend(int(row) for row in self.rows[bad])
        good = ~bad
        self.keep(good)
        return [array.filter(pa.array(good)) for array in arrays]

    def keep(self, mask: Mask) -> None:
        if not mask.all():
            self.batch = self.batch.filter(pa.array(mask))
            self.rows = self.rows[mask]

    def see_time(self, expression: Expression) -> None:
        array = self.values([expression])[0]
        times = values_of(array)[validity_of(array)]
        if times.size:
            self.latest_us = max(self.latest_us, int(times.max()))


def _survivors(spec: LoopSpec, batch: pa.RecordBatch) -> _Survivors:
    survivors = _Survivors(batch, np.arange(batch.num_rows, dtype=np.int64), [])
    for index, condition in enumerate(spec.filters):
        if spec.event_time is not None and spec.event_time[1] == index:
            survivors.see_time(spec.event_time[0])
        array = survivors.values([condition])[0]
        survivors.keep(values_of(array) & validity_of(array))
    if spec.event_time is not None and spec.event_time[1] == len(spec.filters):
        survivors.see_time(spec.event_time[0])
    return survivors


def _time_or_none(latest_us: int) -> int | None:
    return None if latest_us == NO_TIME_US else latest_us


def project_rows(spec: LoopSpec, batch: pa.RecordBatch) -> LoopRows:
    """Filters and projections."""
    survivors = _survivors(spec, batch)
    arrays = survivors.values(list(spec.outputs))
    outputs: list[tuple[Vector, Mask | None]] = []
    for array, expression in zip(arrays, spec.outputs, strict=True):
        values = values_of(array).astype(dtype_of(expression.type))
        outputs.append((values, validity_of(array) if array.null_count else None))
    latest = _time_or_none(survivors.latest_us)
    return LoopRows(survivors.rows, outputs, latest, sorted(survivors.failed))


def group_rows(
    spec: LoopSpec,
    batch: pa.RecordBatch,
    key_words: dict[int, NDArray[np.uint64]],
    closed_pane: int,
    want_late: bool,
    alone: bool = False,
) -> LoopGroups:
    """Filters and partial aggregation."""
    grouping = spec.grouping
    assert grouping is not None
    survivors = _survivors(spec, batch)
    panes, late = _panes(grouping, survivors, closed_pane)
    arguments = [argument for _, argument in grouping.accumulators if argument is not None]
    everything = [key.expression for key in grouping.keys] + arguments
    before = survivors.rows
    arrays = survivors.values(everything)
    if len(before) != len(survivors.rows):
        panes = panes[np.isin(before, survivors.rows)]
    words, nulls, state = _key_columns(grouping, arrays, survivors, key_words)
    groups = firsts = np.arange(len(panes))
    if not alone:
        groups, firsts = _group_numbers([panes, nulls, *words.T])
    count = len(firsts)
    values, validity, place = _accumulated(grouping, arrays[len(grouping.keys) :], groups, count)
    overflow = None if place is None else int(survivors.rows[place])
    # A loop that went from row to row would not have come to what lies behind the overflow.
    failed = sorted(row for row in survivors.failed if overflow is None or row < overflow)
    return LoopGroups(
        words=words[firsts],
        null_words=nulls[firsts],
        panes=panes[firsts],
        hashes=(state[firsts] >> np.uint64(32)).astype(np.uint32),
        rows=np.bincount(groups, minlength=count).astype(np.int64),
        values=values,
        validity=validity,
        late_count=len(late),
        late_rows=late if want_late else None,
        latest_us=_time_or_none(survivors.latest_us),
        failed=failed,
        overflow_row=overflow,
    )


def _panes(
    grouping: LoopGrouping, survivors: _Survivors, closed_pane: int
) -> tuple[Numbers, Numbers]:
    """The pane of each row; rows without a time leave, and late ones, which are returned."""
    if grouping.time is None:
        return np.zeros(len(survivors.rows), np.int64), np.empty(0, np.int64)
    array = survivors.values([grouping.time])[0]
    timed = validity_of(array)
    times = values_of(array)[timed]
    survivors.keep(timed)
    if grouping.times_us is not None:
        inside = (times >= grouping.times_us[0]) & (times <= grouping.times_us[1])
        survivors.failed.extend(int(row) for row in survivors.rows[~inside])
        times = times[inside]
        survivors.keep(inside)
    panes = (times - grouping.start_us) // grouping.pane_us
    open_ = panes > closed_pane
    late = survivors.rows[~open_]
    survivors.keep(open_)
    return panes[open_], late


def _key_columns(
    grouping: LoopGrouping,
    arrays: list[pa.Array],
    survivors: _Survivors,
    key_words: dict[int, NDArray[np.uint64]],
) -> tuple[Numbers, Numbers, NDArray[np.uint64]]:
    """Words, null bits and hash state of each row."""
    count = len(survivors.rows)
    words = np.zeros((count, len(grouping.keys)), np.int64)
    nulls = np.zeros(count, np.int64)
    state = np.full(count, np.uint64(SEED), np.uint64)
    for index, key in enumerate(grouping.keys):
        valid = validity_of(arrays[index])
        column = fixed_words(values_of(arrays[index]))
        words[:, index] = np.where(valid, column, 0)
        nulls |= np.where(valid, 0, np.int64(1) << index)
        hashed = words[:, index].copy()
        if key.coded and key_words[index].size:
            hashed = key_words[index][hashed].view(np.int64)
        state = mixed(state, np.where(valid, hashed, np.int64(NULL_WORD)))
    return words, nulls, state


def _group_numbers(columns: list[Numbers]) -> tuple[Numbers, Numbers]:
    """The group of each row, numbered by first appearance, and each group's first row."""
    count = len(columns[0])
    codes = np.zeros(count, np.int64)
    for column in columns:
        _, places = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * (places.max(initial=0) + 1) + places, return_inverse=True)
    _, firsts, groups = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    renumbered = np.empty_like(order)
    renumbered[order] = np.arange(len(order))
    return renumbered[groups].astype(np.int64), firsts[order]


def _accumulated(
    grouping: LoopGrouping, arrays: list[pa.Array], groups: Numbers, count: int
) -> tuple[list[Vector], list[Mask | None], int | None]:
    values: list[Vector] = []
    validity: list[Mask | None] = []
    overflow: int | None = None
    remaining = iter(arrays)
    for function, argument in grouping.accumulators:
        if argument is None:
            values.append(np.bincount(groups, minlength=count).astype(np.int64))
            validity.append(None)
            continue
        array = next(remaining)
        valid = validity_of(array)
        numbers, owners = values_of(array)[valid], groups[valid]
        row = ACCUMULATORS[function]
        assert row.fold is not None, "no loop keeps it"
        totals: Vector = np.full(count, row.first(argument), row.dtype(argument))
        with np.errstate(
            all="ignore"
        ):  # infinities and NaN are values; overflow is looked for below
            row.fold(totals, owners, numbers.astype(totals.dtype))
        values.append(totals)
        if row.may_overflow and totals.dtype.kind == "i":
            place = _first_overflow(numbers.astype(np.int64), owners)
            if place is not None:
                at = int(np.flatnonzero(valid)[place])
                overflow = at if overflow is None else min(overflow, at)
        has_value = np.zeros(count, np.bool_)
        has_value[owners] = True
        validity.append(has_value if row.nullable and not has_value.all() else None)
    return values, validity, overflow


def _first_overflow(numbers: Numbers, owners: Numbers) -> int | None:
    """The first row at which a running sum of its group leaves 64 bits.

    Running sums are kept exactly as upper and lower halves: the upper half, with what the lower
    carries into it, must fit 32 bits.
    """
    if not numbers.size:
        return None
    order = np.argsort(owners, kind="stable")
    sorted_owners = owners[order]
    high = np.cumsum(numbers[order] >> 32)
    low = np.cumsum(numbers[order] & 0xFFFFFFFF)
    starts = np.flatnonzero(np.r_[True, sorted_owners[1:] != sorted_owners[:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    high -= np.repeat(np.r_[0, high[starts[1:] - 1]], lengths)
    low -= np.repeat(np.r_[0, low[starts[1:] - 1]], lengths)
    upper = high + (low >> 32)
    bad = (upper < -(1 << 31)) | (upper >= 1 << 31)
    return int(order[bad].min()) if bad.any() else None


def string_words(
    offsets: NDArray[np.int32], data: NDArray[np.uint8], out: NDArray[np.uint64]
) -> None:
    """The words of strings, all at once, eight bytes after eight."""
    sizes = np.diff(offsets).astype(np.int64)
    out[:] = mixed(np.full(sizes.size, SEED, np.uint64), sizes)
    for has, word in eights(offsets[:-1].astype(np.int64), sizes, data):
        out[has] = mixed(out[has], word)


def mix_in(state: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    """One more word into each state of a hash."""
    state[:] = mixed(state, words)


def code_pieces(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: Mask,
    separator: int,
    codes: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> Numbers:
    """Codes of texts or of their pieces, and where the distinct ones are first seen."""
    rows = np.flatnonzero(valid)
    first, last = offsets[:-1][rows], offsets[1:][rows]
    texts = text_column(pa.binary(), offsets, data).take(pa.array(rows))
    places, sizes, starts = rows, (last - first).astype(np.int64), first.astype(np.int64)
    counts = np.ones(valid.size, np.int64)
    if separator != NO_SEPARATOR:
        lists = pc.split_pattern(texts, pattern=bytes([separator]))
        counts = np.zeros(valid.size, np.int64)
        counts[rows] = lists.value_lengths().to_numpy()
        texts = lists.flatten()
        places = np.arange(len(texts))
        sizes = pc.binary_length(texts).to_numpy().astype(np.int64)
        steps = np.cumsum(sizes + 1) - (sizes + 1)
        begins = np.cumsum(counts[rows]) - counts[rows]
        starts = steps + np.repeat(starts - steps[begins], counts[rows])
    ends[:] = np.cumsum(counts)
    encoded = texts.dictionary_encode().indices.to_numpy()
    codes[places] = encoded
    seen = np.zeros(encoded.max(initial=-1) + 1, np.int64)
    seen[encoded[::-1]] = np.arange(encoded.size)[::-1]  # the first one is written last
    entries = np.zeros((1 + seen.size, COLUMNS), np.int64)
    entries[1:, START], entries[:, SIZE] = starts[seen], np.r_[seen.size, sizes[seen]]
    return entries


def gather(data: NDArray[np.uint8], entries: Numbers, out: NDArray[np.uint8]) -> None:
    """The distinct pieces, one behind the other."""
    starts, sizes = entries[:, START], entries[:, SIZE]
    ends = np.cumsum(sizes)
    out[:] = data[np.arange(out.size) + np.repeat(starts - (ends - sizes), sizes)]


def deal(hashes: NDArray[np.uint32], parts: int, ends: Numbers, order: Numbers) -> None:
    """The rows ordered by the part of the key space that owns them."""
    owners = ((hashes.astype(np.uint64) + np.uint64(1)) * np.uint64(parts) - np.uint64(1)) >> 32
    order[:] = np.argsort(owners, kind="stable")
    ends[:] = np.cumsum(np.bincount(owners.astype(np.int64), minlength=parts))
