"""Whole results, sorted and cut; and the first rows of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expressions.types import arrow_schema
from penstock.kernels.columns import plain_rows
from penstock.kernels.hashing import hash_columns
from penstock.loops import Hashes
from penstock.operators.contract import Batches, Operator, Prepared, Tools, in_pieces
from penstock.operators.front import Fusion
from penstock.operators.ordering import order_levels, sorted_places
from penstock.operators.shown import runs_of, weights_of
from penstock.operators.specs import (
    LimitSpec,
    SortSpec,
    is_key_type,
    without_weight,
)
from penstock.operators.table import taken_back
from penstock.state.row_store import Keys, RowKind, RowStore


class Sort(Operator):
    """Keeps all rows of a result whose rows come and go."""

    def __init__(self, name: str, spec: SortSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._spec = spec
        schema = without_weight(fusions[0].schema)
        self._schema = arrow_schema(schema)
        self._hashed = [f.name for f in schema if is_key_type(f.type)]
        kind = RowKind(self._schema, self._keys, self._hashes)
        self._store = RowStore(name, kind, bytes_max=tools.state_bytes_max)
        self.states = {name: self._store}

    def _keys(self, rows: pa.RecordBatch) -> Keys:
        """By which a row that goes is found; whether it is the same is looked at then."""
        words = self._hashes(rows).astype(np.int64).reshape(-1, 1)
        return Keys(words, np.ones(rows.num_rows, np.bool_))

    def _hashes(self, rows: pa.RecordBatch) -> Hashes:
        return hash_columns([rows.column(name) for name in self._hashed], rows.num_rows)

    # --- rows -------------------------------------------------------------------------------------

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        return Prepared((plain_rows(batch, self._schema), weights_of(batch)))

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows, weights = prepared.rows
        for begin, end, weight in runs_of(weights):
            run = rows.slice(begin, end - begin)
            if weight > 0:
                self._store.insert(run, self._keys(run))
            else:
                self._store.delete(taken_back(self._store, run, self._keys(run)))
        return ()

    # --- output -----------------------------------------------------------------------------------

    def owes_whole_result(self) -> bool:
        return self._store.has_changes

    def on_commit(self) -> Batches:
        if not self.owes_whole_result():
            return ()
        rows = self._store.scan()
        for step in self._spec.steps:
            places = sorted_places(order_levels(rows, step.order), rows.num_rows)
            end = None if step.limit is None else step.offset + step.limit
            rows = rows.take(pa.array(places[step.offset : end]))
        return in_pieces(rows)


class Limit(Operator):
    """Counts the rows that it has let through; the marker holds how many there were."""

    def __init__(self, name: str, spec: LimitSpec, fusions: Sequence[Fusion], tools: Tools) -> None:
        self._left = self._rows = spec.rows
        self.states = {}

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        return Prepared(batch)

    def process(self, port: int, prepared: Prepared) -> Batches:
        rows: pa.RecordBatch = prepared.rows.slice(0, self._left)
        self._left -= rows.num_rows
        return (rows,) if rows.num_rows else ()

    def progress(self) -> int:
        return self._rows - self._left

    def restore_progress(self, progress: Any) -> None:
        self._left = self._rows - (0 if progress is None else progress)
