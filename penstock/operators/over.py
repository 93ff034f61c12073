"""Window functions over rows that event time has passed; until then they wait in a row store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, validity_of
from penstock.expressions.tree import Literal
from penstock.expressions.types import arrow_schema, arrow_type
from penstock.kernels.columns import plain, plain_rows
from penstock.kernels.hashing import column_words, hash_columns
from penstock.operators.contract import Batches, Prepared, Tools, in_pieces
from penstock.operators.frames import Frames
from penstock.operators.front import Fusion
from penstock.operators.ordering import levels, order_levels, sorted_places
from penstock.operators.specs import OverCall, OverSpec
from penstock.operators.timed import TimedOperator
from penstock.state.loops import Hashes
from penstock.state.row_store import NEVER, Keys, RowKind, RowStore

_PRUNE_ROWS_MIN = 1 << 13


class Over(TimedOperator):
    """Keeps rows until event time has passed them, and of some partitions the last ones longer."""

    def __init__(self, name: str, spec: OverSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._spec = spec
        schema = fusions[0].schema
        self._schema = arrow_schema(schema)
        self._output = arrow_schema(spec.output_schema(schema))
        kind = RowKind(self._schema, self._keys, self._hashes)
        self._store = RowStore(name, kind, bytes_max=tools.state_bytes_max)
        self.states = {name: self._store}
        self._functions = Functions(spec)
        self._pruned_rows = 0

    def _keys(self, rows: pa.RecordBatch) -> Keys:
        """Of partitions, whose rows are looked up if they never end: nulls are a value as well."""
        columns = [rows.column(name) for name in self._spec.key_names]
        words: Numbers = np.zeros((rows.num_rows, len(columns) + 1), np.int64)
        for at, column in enumerate(columns):
            words[:, at] = column_words(column)
            if column.null_count:
                words[:, -1] |= np.where(validity_of(column), 0, 1 << at)
        return Keys(words, np.full(rows.num_rows, self._spec.is_running))

    def _hashes(self, rows: pa.RecordBatch) -> Hashes:
        return hash_columns([rows.column(name) for name in self._spec.key_names], rows.num_rows)

    # --- rows -------------------------------------------------------------------------------------

    def is_late(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None
    ) -> pa.BooleanArray | None:
        times = plain(batch.column(self._spec.time.name))
        newest = self._newest(watermark_us)
        if newest is None and not times.null_count:
            return None
        # A row without a time has no place in the order.
        until = pc.add(times.cast(pa.int64()), self._spec.after_us)
        late_upto = -NEVER if newest is None else newest
        return pc.fill_null(pc.less_equal(until, late_upto), True)

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        return Prepared(plain_rows(batch, self._schema))

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: pa.RecordBatch = prepared.rows
        if rows.num_rows:
            times: Numbers = rows.column(self._spec.time.name).cast(pa.int64()).to_numpy()
            self._store.insert(rows, self._keys(rows), times + self._spec.after_us)
        if len(self._store) > 2 * self._pruned_rows + _PRUNE_ROWS_MIN:
            self._prune()
        return ()

    def _prune(self) -> None:
        """Forget rows that are not among the best of their partition: more cannot help them."""
        best = self._spec.best
        if best is not None:
            rows = self._store.expired(NEVER)
            sorted_ = self._functions.sorted(self._store.take(rows))
            call = next(call for call in self._spec.calls if call.name == best[0])
            worse = self._functions.rank(call, sorted_).to_numpy() > best[1]
            if worse.any():
                self._store.delete(np.sort(rows[sorted_.order[worse]]))
        self._pruned_rows = len(self._store)

    # --- output -----------------------------------------------------------------------------------

    def _advance(self, before_us: int | None, watermark_us: int) -> Batches:
        """Emit the rows that event time has passed, with what they are given."""
        upto = min(watermark_us, NEVER - 1)
        passed = self._store.expired(upto)
        if not passed.size:
            return ()
        before = self._before(passed)
        rows = np.concatenate([before, passed])
        sorted_ = self._functions.sorted(self._store.take(rows))
        given = [self._functions.column(call, sorted_) for call in self._spec.calls]
        is_new = sorted_.order >= before.size
        columns = [*sorted_.batch.columns, *given]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._output)
        emitted = batch.filter(pa.array(is_new))
        if self._spec.is_running:
            self._keep_last(sorted_, rows, is_new)
            times = emitted.column(self._spec.time.name).cast(pa.int64()).to_numpy()
            emitted = emitted.take(pa.array(np.argsort(times, kind="stable")))
        self._store.evict(upto)
        return in_pieces(emitted)

    def _before(self, passed: Numbers) -> Numbers:
        """The last rows, passed before, of the partitions of these."""
        if not self._spec.back:
            return np.empty(0, np.int64)
        keys = self._keys(self._store.take(passed))
        words = np.unique(keys.words, axis=0)
        found = [
            rows for _, rows in self._store.matches(Keys(words, np.ones(len(words), np.bool_)))
        ]
        rows = np.concatenate([np.empty(0, np.int64), *found])
        return np.sort(rows[self._store.is_marked(rows)])

    def _keep_last(self, sorted_: Sorted, rows: Numbers, is_new: Mask) -> None:
        """Of each partition as many rows as functions look back, those passed before included."""
        kept = sorted_.ends - sorted_.places <= self._spec.back
        gone = rows[sorted_.order[~kept & ~is_new]]
        again = sorted_.batch.filter(pa.array(kept & is_new))
        if gone.size:
            self._store.delete(np.sort(gone))
        if again.num_rows:
            marked = np.ones(again.num_rows, np.bool_)
            self._store.insert(again, self._keys(again), None, marked)


# --- functions ------------------------------------------------------------------------------------


class Sorted:
    """Rows by partition, then order; and of each where its partition and its peers begin and end.

    `order` says where each row was before.
    """

    def __init__(self, rows: pa.RecordBatch, order: Numbers, partition: Mask, peers: Mask) -> None:
        """`partition` and `peers` say which rows begin one, in the new order."""
        self.batch = rows.take(pa.array(order))
        self.order = order
        self.places = np.arange(order.size)
        self.numbers = np.cumsum(partition) - 1
        self.starts, self.ends = _spans(partition)
        self.peer_starts, self.peer_ends = _spans(peers)
        self.peer_numbers: Numbers = np.cumsum(peers)

    def frame(self, call: OverCall) -> tuple[Numbers, Numbers]:
        """The first place of each row's frame, and the one behind its last."""
        frame = call.frame
        low, high = self.starts, self.ends
        if frame.rows:
            if frame.low is not None:
                low = np.maximum(low, self.places + frame.low)
            if frame.high is not None:
                high = np.minimum(high, self.places + frame.high + 1)
        else:
            low = low if frame.low is None else self.peer_starts
            high = high if frame.high is None else self.peer_ends
        return np.minimum(low, self.ends), np.maximum(high, np.minimum(low, self.ends))


class Functions:
    """Computes what window functions give to sorted rows, column by column."""

    def __init__(self, spec: OverSpec) -> None:
        self._spec = spec

    def sorted(self, rows: pa.RecordBatch) -> Sorted:
        """Rows of equal order stay in the order in which they are given."""
        spec = self._spec
        keys = [level for c in spec.partition for level in levels(rows.column(c.name))]
        both = [*keys, *order_levels(rows, spec.order)]
        count = rows.num_rows
        order = sorted_places(both, count)
        partition = _changes([level[order] for level in keys], count)
        peers = _changes([level[order] for level in both], count)
        return Sorted(rows, order, partition, peers)

    def column(self, call: OverCall, rows: Sorted) -> pa.Array:
        if call.is_rank:
            return self.rank(call, rows)
        if call.is_aggregate:
            return Frames(*rows.frame(call), rows.starts).column(call.aggregate, rows.batch)
        return self._value(call, rows)

    def rank(self, call: OverCall, rows: Sorted) -> pa.Array:
        numbers = rows.places - rows.starts
        sizes = rows.ends - rows.starts
        ranks = rows.peer_starts - rows.starts
        found: NDArray[Any]
        if call.function == "row_number":
            found = numbers + 1
        elif call.function == "rank":
            found = ranks + 1
        elif call.function == "dense_rank":
            found = rows.peer_numbers - rows.peer_numbers[rows.starts] + 1
        elif call.function == "percent_rank":
            found = ranks / np.maximum(sizes - 1, 1)
        elif call.function == "cume_dist":
            found = (rows.peer_ends - rows.starts) / sizes
        else:
            found = _part(numbers, sizes, call.number)
        return pa.array(found, arrow_type(call.field.type))

    def _value(self, call: OverCall, rows: Sorted) -> pa.Array:
        assert call.argument is not None
        column = plain(rows.batch.column(str(call.argument)))
        at: Numbers
        if call.function in ("lag", "lead"):
            away = call.number if call.function == "lead" else -call.number
            at = rows.places + away
            there = (at >= rows.starts) & (at < rows.ends)
        else:
            low, high = rows.frame(call)
            if call.ignores_nulls:
                low, high = _between_values(column, low, high)
            at = high - 1 if call.function == "last" else low + call.number - 1
            there = (at >= low) & (at < high)
        taken = column.take(pa.array(np.where(there, at, 0), mask=~there))
        if call.default is None:
            return taken
        return pc.if_else(pa.array(there), taken, _scalar(call.default))


# --- small steps ----------------------------------------------------------------------------------


def _changes(levels: Sequence[Numbers], count: int) -> Mask:
    """Which rows differ from the one before."""
    begins = np.zeros(count, np.bool_)
    begins[:1] = True
    for level in levels:
        begins[1:] |= level[1:] != level[:-1]
    return begins


def _spans(begins: Mask) -> tuple[Numbers, Numbers]:
    """Where the run of each row begins and ends."""
    edges = np.flatnonzero(begins)
    numbers = np.cumsum(begins) - 1
    return edges[numbers], np.append(edges[1:], begins.size)[numbers]


def _part(numbers: Numbers, sizes: Numbers, parts: int) -> Numbers:
    """ntile: the first parts have one row more where the rows do not fit."""
    base, longer = sizes // parts, sizes % parts
    in_longer = longer * (base + 1)
    of_longer = numbers // (base + 1)
    of_others = longer + (numbers - in_longer) // np.maximum(base, 1)
    return np.where(numbers < in_longer, of_longer, of_others) + 1


def _between_values(column: pa.Array, low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """Frames that begin and end with a value; of one without any nothing is left."""
    there = validity_of(column) if column.null_count else np.ones(len(column), np.bool_)
    values = np.flatnonzero(there)
    first = np.searchsorted(values, low)
    last = np.searchsorted(values, high) - 1
    some = first <= last
    padded = np.append(values, len(column))
    return (
        np.where(some, padded[first], low),
        np.where(some, padded[np.maximum(last, 0)] + 1, low),
    )


def _scalar(default: Literal) -> pa.Scalar:
    kind = arrow_type(default.type)
    if pa.types.is_timestamp(kind):
        return pa.scalar(default.value, pa.int64()).cast(kind)
    return pa.scalar(default.value, kind)
