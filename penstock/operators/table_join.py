"""Joins with tables: a stream meets their rows of that moment, and two of them follow each other.

The rows of a table come and go. Those of a stream are not kept: each meets what the table holds
when it comes, and changes of the table say nothing of rows that came before. Of two tables the
result is a table, too: when a row comes or goes, so do its pairs, and rows that match nothing any
more, or something at last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrays import values_of
from penstock.errors import RowError
from penstock.expressions.types import arrow_schema
from penstock.kernels.block import Block
from penstock.kernels.columns import combined, plain
from penstock.operators.contract import Batches, Operator, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.join import Pairs
from penstock.operators.shown import weighed
from penstock.operators.specs import LEFT, RIGHT, WEIGHT_COLUMN, JoinSpec, without_weight
from penstock.operators.table import taken_back
from penstock.state.row_store import Keys, RowKind, RowStore

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Weighted = tuple[pa.RecordBatch, int]

_NO_ROWS: Numbers = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Met:
    """Rows of a stream, and the pairs that they make with rows of the table."""

    rows: pa.RecordBatch
    ats: Numbers
    others: Numbers


class TableJoin(Operator):
    """Keeps the rows that each table has."""

    def __init__(self, name: str, spec: JoinSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._spec = spec
        schemas = [without_weight(fusion.schema) for fusion in fusions]
        self._schemas = [arrow_schema(schema) for schema in schemas]
        self._output = arrow_schema(without_weight(spec.output_schema(*schemas)))
        self._pairs = Pairs(spec.match, schemas, tools.cache)
        self._stores = [
            RowStore(
                f"{name}_{side}",
                RowKind(self._schemas[number], *self._pairs.readers(number)),
                bytes_max=tools.state_bytes_max,
            )
            for number, side in ((LEFT, "left"), (RIGHT, "right"))
        ]
        both = zip(self._stores, spec.tables, strict=True)
        self.states = {store.name: store for store, is_table in both if is_table}

    # --- rows -------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        names = self._schemas[port].names
        columns = [plain(combined(batch.column(name))) for name in names]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schemas[port])
        if self._spec.tables[port]:
            weights = values_of(plain(combined(batch.column(WEIGHT_COLUMN))))
            return Prepared((rows, weights))
        bad: dict[int, RowError] = {}
        return Prepared(_Met(rows, *self._found(port, rows, collect_bad, bad)), bad=bad)

    def process(self, port: int, prepared: Prepared) -> Batches:
        if isinstance(prepared.rows, _Met):
            return tuple(self._meeting(port, prepared.rows))
        rows, weights = prepared.rows
        emitted: list[Weighted] = []
        edges = [0, *(np.flatnonzero(np.diff(weights)) + 1).tolist(), rows.num_rows]
        for begin, end in pairwise(edges) if rows.num_rows else ():
            run, weight = rows.slice(begin, end - begin), int(weights[begin])
            if all(self._spec.tables):
                emitted += self._following(port, run, weight)
            self._apply(port, run, weight)
        found = [(batch, weight) for batch, weight in emitted if batch.num_rows]
        if self._spec.changes:
            return tuple(weighed(batch, weight) for batch, weight in found)
        return tuple(batch for batch, weight in found if weight > 0)

    def _meeting(self, port: int, met: _Met) -> Iterator[pa.RecordBatch]:
        """What rows of a stream give with what the table holds."""
        matched = np.zeros(met.rows.num_rows, np.bool_)
        matched[met.ats] = True
        if not self._spec.shows_right:
            chosen = met.rows.filter(pa.array(matched if self._spec.how == "semi" else ~matched))
            if chosen.num_rows:
                yield self._made(chosen.columns)
            return
        if met.ats.size:
            yield self._paired(port, met.rows, met.ats, met.others)
        if self._spec.waits_for(port) and not matched.all():
            yield self._alone(port, met.rows.filter(pa.array(~matched)))

    def _following(self, port: int, rows: pa.RecordBatch, weight: int) -> Iterator[Weighted]:
        """What comes and goes with rows of one of two tables."""
        other = 1 - port
        ats, others = self._found(port, rows, False, {})
        matched = np.zeros(rows.num_rows, np.bool_)
        matched[ats] = True
        turned = self._turned(port, others, weight)
        if self._spec.shows_right:
            yield self._paired(port, rows, ats, others), weight
            if self._spec.waits_for(port):
                yield self._alone(port, rows.filter(pa.array(~matched))), weight
            if self._spec.waits_for(other):
                yield self._alone(other, turned), -weight
            return
        is_semi = self._spec.how == "semi"
        if port == LEFT:
            chosen = rows.filter(pa.array(matched if is_semi else ~matched))
            yield self._made(chosen.columns), weight
        else:
            yield self._made(turned.columns), weight if is_semi else -weight

    def _turned(self, port: int, others: Numbers, weight: int) -> pa.RecordBatch:
        """Of the rows that others match those that matched nothing before, or match nothing now."""
        other = 1 - port
        met, counts = np.unique(others, return_counts=True)
        rows = self._stores[other].take(met)
        matches = np.zeros(met.size, np.int64)
        for ats, _ in self._pairs.find(
            other, rows, self._pairs.keys(other, rows), self._stores[port], False, {}
        ):
            matches += np.bincount(ats, minlength=met.size)
        turned = matches == (0 if weight > 0 else counts)
        return rows.filter(pa.array(turned))

    def _found(
        self, port: int, rows: pa.RecordBatch, collect_bad: bool, bad: dict[int, RowError]
    ) -> tuple[Numbers, Numbers]:
        keys, store = self._pairs.keys(port, rows), self._stores[1 - port]
        found = list(self._pairs.find(port, rows, keys, store, collect_bad, bad))
        ats = np.concatenate([_NO_ROWS, *(ats for ats, _ in found)])
        return ats, np.concatenate([_NO_ROWS, *(others for _, others in found)])

    # --- tables -----------------------------------------------------------------------------------

    def _apply(self, port: int, rows: pa.RecordBatch, weight: int) -> None:
        """Rows of a table come, or go; those that can match nothing are not kept."""
        store, keys = self._stores[port], self._pairs.keys(port, rows)
        if not keys.linked.all():
            rows = rows.filter(pa.array(keys.linked))
            keys = Keys(keys.words[keys.linked], keys.linked[keys.linked])
        if not rows.num_rows:
            return
        if weight > 0:
            store.insert(rows, keys)
            return
        store.delete(taken_back(store, rows, keys))

    # --- output -----------------------------------------------------------------------------------

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        return ()

    def progress(self) -> None:
        return None

    def restore_progress(self, progress: Any) -> None:
        pass

    def blocks(self) -> Sequence[Block]:
        return self._pairs.blocks

    def _paired(
        self, port: int, rows: pa.RecordBatch, ats: Numbers, others: Numbers
    ) -> pa.RecordBatch:
        own, theirs = rows.take(pa.array(ats)), self._stores[1 - port].take(others)
        left, right = (own, theirs) if port == LEFT else (theirs, own)
        return self._made([*left.columns, *right.columns])

    def _alone(self, port: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one side that match nothing."""
        nulls = [pa.nulls(rows.num_rows, field.type) for field in self._schemas[1 - port]]
        both = [*rows.columns, *nulls] if port == LEFT else [*nulls, *rows.columns]
        return self._made(both)

    def _made(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), schema=self._output)
