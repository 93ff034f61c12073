"""Aggregates over frames of sorted rows, in a time that does not grow with how long frames are.

What can be taken away again is the difference of two running sums; of what may be counted twice a
frame is two spans of a length of which there are few. Sums of doubles round with every row, so they
are added in the order of the rows: once through a partition for frames that begin with it, and else
frame by frame, as Spark does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, Vector, fixed_column, validity_of, values_of
from penstock.errors import StateOverflow
from penstock.expressions.evaluate import evaluate
from penstock.kernels.columns import combined, plain
from penstock.operators.ordering import levels
from penstock.operators.specs import Accumulator, AggregateCall, accumulators_of

Fold = Callable[[Vector, Vector], Vector]

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
        kept = [self._kept(each, _worth(each, rows)) for each in accumulators]
        return call.finish(accumulators, kept)

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
        lengths = self.high[rows] - self.low[rows]
        owners = np.repeat(np.arange(rows.size), lengths)
        begins = np.cumsum(lengths) - lengths
        members = np.arange(owners.size) - begins[owners] + self.low[rows][owners]
        return np.bincount(owners, values[members], minlength=rows.size)


def _worth(accumulator: Accumulator, rows: pa.RecordBatch) -> pa.Array:
    """What each row is worth by itself."""
    if not accumulator.arguments:
        return pa.array(np.ones(rows.num_rows, np.int64))
    arguments = [plain(combined(evaluate(each, rows))) for each in accumulator.arguments]
    return accumulator.row.rows(arguments, accumulator.type)


def _cuts(lengths: Numbers) -> Iterator[slice]:
    """Rows in turn, so many that their frames together are not too long."""
    ends = np.cumsum(lengths)
    first, done = 0, 0
    while first < lengths.size:
        end = max(first + 1, int(np.searchsorted(ends, done + _MEMBERS_MAX, side="right")))
        yield slice(first, end)
        first, done = end, int(ends[end - 1])
