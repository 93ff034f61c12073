"""Window functions over rows that event time has passed; until then they wait in a row store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, validity_of, values_of
from penstock.errors import StateOverflow
from penstock.expressions.tree import Literal as Constant
from penstock.expressions.types import arrow_schema, arrow_type
from penstock.kernels.columns import plain, plain_rows
from penstock.kernels.hashing import column_words, hash_columns
from penstock.loops import Hashes
from penstock.operators.contract import Batches, Prepared, Tools, in_pieces
from penstock.operators.frames import Frames
from penstock.operators.front import Fusion
from penstock.operators.ordering import levels, order_levels, sorted_places
from penstock.operators.specs import Order, OverCall, OverSpec
from penstock.operators.timed import TimedOperator
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

    def __init__(
        self,
        rows: pa.RecordBatch,
        order: Numbers,
        partition: Mask,
        peers: Mask,
        by: Order | None = None,
    ) -> None:
        """`partition` and `peers` say which rows begin one, in the new order.

        `by` is what their values are away by from each other.
        """
        self.batch = rows.take(pa.array(order))
        self.order = order
        self.by = by
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
            low = low if frame.low is None else self._away(frame.low, self.peer_starts, "left")
            high = high if frame.high is None else self._away(frame.high, self.peer_ends, "right")
        return np.minimum(low, self.ends), np.maximum(high, np.minimum(low, self.ends))

    def _away(self, distance: int, peers: Numbers, side: Literal["left", "right"]) -> Numbers:
        """Where values begin or end that are so far away; nulls have their peers alone."""
        if not distance:
            return peers
        assert self.by is not None
        column = plain(self.batch.column(self.by.column.name))
        there, values = validity_of(column), values_of(column)
        away = -distance if self.by.descending else distance
        room = np.iinfo(values.dtype)
        fits = values <= room.max - away if away > 0 else values >= room.min - away
        if not fits[there].all():
            raise StateOverflow(
                f"a frame reaches {away:,} from a value of {self.by.column}, which leaves its type "
                f"{self.by.column.type}. Cast the column to a wider type",
                column=self.by.column.name,
            )
        own = values[there].astype(np.int64)
        known, codes = np.unique(np.append(own, own + away), return_inverse=True)
        if self.by.descending:
            codes = known.size - 1 - codes
        width = known.size + 2
        ranks = np.full(values.size, -1 if self.by.nulls_first else known.size)
        ranks[there] = codes[: own.size]
        asked = self.numbers[there] * width + codes[own.size :]
        found: Numbers = peers.copy()
        found[there] = np.searchsorted(self.numbers * width + ranks, asked, side)
        return found


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
        return Sorted(rows, order, partition, peers, *spec.order[:1])

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
        some = np.flatnonzero(validity_of(column)) if call.ignores_nulls else rows.places
        at: Numbers
        if call.function in ("lag", "lead"):
            away = call.number if call.function == "lead" else -call.number
            low, high = (np.searchsorted(some, edge) for edge in (rows.starts, rows.ends))
            # A row that is passed over is between two: those behind it begin with the next.
            at = np.searchsorted(some, rows.places + (away > 0)) + away - (away > 0)
        else:
            low, high = (np.searchsorted(some, edge) for edge in rows.frame(call))
            at = high - 1 if call.function == "last" else low + call.number - 1
        there = (at >= low) & (at < high)
        at = some[np.where(there, at, 0)] if some.size else at
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


def _scalar(default: Constant) -> pa.Scalar:
    kind = arrow_type(default.type)
    if pa.types.is_timestamp(kind):
        return pa.scalar(default.value, pa.int64()).cast(kind)
    return pa.scalar(default.value, kind)
