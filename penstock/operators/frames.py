"""Aggregates over frames of sorted rows, in a time that does not grow with how long frames are.

What can be taken away again is the difference of two running sums; of what may be counted twice a
frame is two spans of a length of which there are few. Sums of doubles round with every row, so they
are added in the order of the rows: once through a partition for frames that begin with it, and else
frame by frame, as Spark does it. All else is merged as groups are, equal frames as one: lines of
accumulators by those of spans, of which few make a frame, and items row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, Vector, fixed_column, validity_of, values_of
from penstock.errors import StateOverflow
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import Expression
from penstock.expressions.types import arrow_type
from penstock.kernels.columns import combined, plain
from penstock.operators.items import merged_items, merged_lines, stored_items
from penstock.operators.ordering import levels
from penstock.operators.specs import PLACE, Accumulator, AggregateCall, accumulators_of

Fold = Callable[[Vector, Vector], Vector]

# What is not merged as in a group, but found for all frames together.
_RUNNING = frozenset(
    {"rows", "count", "sum", "sum_high", "sum_low", "min", "max", "bit_and", "bit_or", "bit_xor"}
)
_FEW = 4  # times as many members as rows are merged one by one sooner than by spans
_SHORT = 32  # rows of a frame that are added one by one sooner than its partition
_MEMBERS_MAX = 1 << 20  # of frames that are computed together, unless one row has more
_SAFE_MAX = float(1 << 62)  # sums below it are far from the end of 64 bits
_LOW = 0xFFFFFFFF
# What may take in a value twice; and what changes none.
_FOLDS: Mapping[str, tuple[Fold, int]] = MappingProxyType(
    {"bit_and": (np.bitwise_and, -1), "bit_or": (np.bitwise_or, 0)}
)


@dataclass(frozen=True, slots=True)
class Frames:
    """Of each row the first place of its frame, the one behind its last, and where its partition
    begins."""

    low: Numbers
    high: Numbers
    starts: Numbers

    def column(self, call: AggregateCall, rows: pa.RecordBatch) -> pa.Array:
        """The aggregate of each row's frame."""
        accumulators = accumulators_of((call,))
        if call.collection is None and {each.function for each in accumulators} <= _RUNNING:
            kept = [self._kept(each, _worth(each, rows)) for each in accumulators]
            return call.finish(accumulators, kept)
        places = self.low * (rows.num_rows + 1) + self.high
        frames, numbers = np.unique(places, return_inverse=True)
        groups = _Groups(*np.divmod(frames, rows.num_rows + 1))
        found = groups.gathered if call.collection is not None else groups.merged
        return found(call, rows).take(pa.array(numbers))

    def _kept(self, accumulator: Accumulator, worth: pa.Array) -> pa.Array:
        function, there = accumulator.function, validity_of(worth)
        some = self._sums(there.astype(np.int64)) > 0
        if function in ("min", "max"):
            places = self._extremes(worth, there, function == "max")
            return worth.take(pa.array(places, mask=~some))
        fold, nothing = _FOLDS.get(function, (None, 0))
        values = values_of(worth) if there.all() else np.where(there, values_of(worth), nothing)
        if fold is not None:
            found = self._folded(values, fold)
        elif function == "bit_xor":
            running = np.append(0, np.bitwise_xor.accumulate(values))
            found = running[self.high] ^ running[self.low]
        elif pa.types.is_floating(worth.type):
            found = self._added(values)
        else:
            found = self._sums(values)
            if accumulator.row.may_overflow:
                self._check(values, accumulator)
        return fixed_column(worth.type, found, some if accumulator.nullable else None)

    # --- whole numbers ----------------------------------------------------------------------------

    def _sums(self, values: Numbers) -> Numbers:
        running = np.append(0, np.cumsum(values))  # beyond 64 bits and back
        found: Numbers = running[self.high] - running[self.low]
        return found

    def _check(self, values: Numbers, accumulator: Accumulator) -> None:
        """Raise StateOverflow if a frame leaves 64 bits on the way from its first row to its last.

        So it is where the least and the greatest of its running sums are; these have two words.
        """
        if np.abs(values.astype(np.float64)).sum() < _SAFE_MAX:
            return
        upper, lower = (np.append(0, np.cumsum(part)) for part in (values >> 32, values & _LOW))
        upper, lower = upper + (lower >> 32), lower & _LOW
        order = np.lexsort((lower, upper))
        ranks = np.empty_like(order)
        ranks[order] = np.arange(order.size)
        behind = Frames(self.low + 1, self.high + 1, self.starts)
        for fold in (np.minimum, np.maximum):
            furthest = order[behind._folded(ranks, fold)]
            away = upper[furthest] - upper[self.low]
            away += (lower[furthest] - lower[self.low]) >> 32
            failing = (self.high > self.low) & ((away < -(1 << 31)) | (away >= 1 << 31))
            if failing.any():
                row = int(np.flatnonzero(failing)[0])
                raise StateOverflow(
                    f"{accumulator} leaves 64 bits over the frame of a row, which has "
                    f"{self.high[row] - self.low[row]:,} rows. Cast the argument to a wider type "
                    "or to double",
                    expression=str(accumulator),
                )

    # --- what may be counted twice ----------------------------------------------------------------

    def _folded(self, values: Vector, fold: Fold) -> Vector:
        """Of each frame with rows what they fold to: two spans cover it, the longest that fit."""
        lengths = self.high - self.low
        halvings = np.frexp(lengths.astype(np.float64))[1] - 1  # -1: no rows
        found = np.zeros(lengths.size, values.dtype)
        spans, length = values, 1
        for halving in range(int(halvings.max(initial=-1)) + 1):
            if halving:
                spans = fold(spans[:-length], spans[length:])
                length *= 2
            its = np.flatnonzero(halvings == halving)
            found[its] = fold(spans[self.low[its]], spans[self.high[its] - length])
        return found

    def _extremes(self, worth: pa.Array, there: Mask, greatest: bool) -> Numbers:
        """The place of the least or the greatest value of each frame, of equal ones the first."""
        places = np.arange(len(worth))
        order = np.lexsort((-places if greatest else places, levels(worth)[-1]))
        ranks = np.empty_like(order)
        ranks[order] = places
        ranks[~there] = -1 if greatest else len(worth)
        best = self._folded(ranks, np.maximum if greatest else np.minimum)
        return order[np.clip(best, 0, max(0, len(worth) - 1))] if order.size else order

    # --- doubles ----------------------------------------------------------------------------------

    def _added(self, values: Vector) -> Vector:
        found = np.zeros(self.low.size)
        running = (self.low == self.starts) & (self.high - self.low > _SHORT)
        with np.errstate(all="ignore"):
            for first in np.unique(self.starts[running]).tolist():
                end = np.searchsorted(self.starts, first, side="right")
                its = first + np.flatnonzero(running[first:end])
                total = np.cumsum(np.append(0.0, values[first : self.high[its].max()]))
                found[its] = total[self.high[its] - first]
            rest = np.flatnonzero(~running)
            for some in _cuts((self.high - self.low)[rest]):
                found[rest[some]] = self._one_by_one(values, rest[some])
        return found

    def _one_by_one(self, values: Vector, rows: Numbers) -> Vector:
        owners, members = _members(self.low[rows], self.high[rows])
        return np.bincount(owners, values[members], minlength=rows.size)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Frames, each once, as groups of the rows from a first place to the one before another."""

    low: Numbers
    high: Numbers

    def merged(self, call: AggregateCall, rows: pa.RecordBatch) -> pa.Array:
        """An aggregate of lines of accumulators."""
        accumulators = accumulators_of((call,))
        lines = [_worth(each, rows) for each in accumulators]
        spans, starts, count = lines, [0], rows.num_rows
        for _ in range(self._doublings(count)):
            starts.append(starts[-1] + count)
            count //= 2
            pairs = np.repeat(np.arange(count), 2)
            halves = [column.slice(0, 2 * count) for column in spans]
            spans = merged_lines(accumulators, pairs, count, halves)
            lines = [pa.concat_arrays(both) for both in zip(lines, spans, strict=True)]
        owners, pieces = self._pieces(starts)
        worth = [column.take(pa.array(pieces)) for column in lines]
        return call.finish(accumulators, merged_lines(accumulators, owners, self.low.size, worth))

    def _doublings(self, rows: int) -> int:
        """How often spans are doubled: the longest are not longer than the longest frame."""
        lengths = self.high - self.low
        return int(lengths.max()).bit_length() - 1 if lengths.sum() > _FEW * rows else 0

    def _pieces(self, starts: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Spans that make up each frame, in its order, and the frame of each.

        Those of a length begin at its multiples; their numbers begin with its start.
        """
        low, high = self.low, self.high
        owners, pieces, turns = [], [], []
        for turn, start in enumerate(starts[:-1]):
            for is_first in (True, False):
                odd = (low < high) & ((low if is_first else high) & 1 == 1)
                high = high if is_first else high - odd
                owners.append(np.flatnonzero(odd))
                pieces.append(start + (low if is_first else high)[odd])
                turns.append(np.full(owners[-1].size, turn if is_first else 2 * len(starts) - turn))
                low = low + odd if is_first else low
            low, high = low >> 1, high >> 1
        rest, members = _members(low, high)
        owner = np.concatenate([*owners, rest])
        turn_of = np.concatenate([*turns, np.full(rest.size, len(starts))])
        order = np.lexsort((turn_of, owner))
        return owner[order], np.concatenate([*pieces, starts[-1] + members])[order]

    def gathered(self, call: AggregateCall, rows: pa.RecordBatch) -> pa.Array:
        """An aggregate of items: those of the rows of each frame."""
        collection, gather = call.collection, call.row.gather
        assert collection is not None
        assert gather is not None
        columns = [_argument(each, rows) for each in collection.arguments]
        there = np.logical_and.reduce([validity_of(column) for column in columns])
        kept = [column.filter(pa.array(there)) for column in columns]
        items = stored_items(collection, kept)
        before = np.append(0, np.cumsum(there))
        low, high = before[self.low], before[self.high]
        found = [pa.array([], arrow_type(call.type))]
        for some in _cuts(high - low):
            owners, members = _members(low[some], high[some])
            taken = [column.take(pa.array(members)) for column in items]
            groups = merged_items(collection, owners, len(low[some]), taken)
            found.append(gather(groups, call.options, call.type))
        return pa.concat_arrays(found)


def _members(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """The places of each span, in order, and the span of each."""
    lengths = high - low
    owners = np.repeat(np.arange(low.size), lengths)
    begins = np.cumsum(lengths) - lengths
    return owners, np.arange(owners.size) - begins[owners] + low[owners]


def _worth(accumulator: Accumulator, rows: pa.RecordBatch) -> pa.Array:
    """What each row is worth by itself."""
    if not accumulator.arguments:
        return pa.array(np.ones(rows.num_rows, np.int64))
    arguments = [_argument(each, rows) for each in accumulator.arguments]
    return accumulator.row.rows(arguments, accumulator.type)


def _argument(expression: Expression, rows: pa.RecordBatch) -> pa.Array:
    if expression == PLACE:
        return pa.array(np.arange(rows.num_rows))
    return plain(combined(evaluate(expression, rows)))


def _cuts(lengths: Numbers) -> Iterator[slice]:
    """Rows in turn, so many that their frames together are not too long."""
    ends = np.cumsum(lengths)
    first, done = 0, 0
    while first < lengths.size:
        end = max(first + 1, int(np.searchsorted(ends, done + _MEMBERS_MAX, side="right")))
        yield slice(first, end)
        first, done = end, int(ends[end - 1])
