"""The steps of a chain that keep nothing between batches: fused blocks and explode."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import RowError
from penstock.expressions.evaluate import evaluate_rows
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import Block, BlockSpec
from penstock.kernels.cache import KernelCache
from penstock.operators.specs import GenerateSpec

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step made of a batch: `rows` says which input row each output row comes from."""

    batch: pa.RecordBatch
    rows: Rows | None
    max_event_time_us: int | None = None
    bad_rows: tuple[int, ...] = ()


class FusedStep:
    """Adjacent filters and projections as one block."""

    def __init__(self, spec: BlockSpec, cache: KernelCache | None) -> None:
        self._block = Block(spec, cache)

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        done = self._block.project(batch, collect_bad)
        return StepRows(done.batch, done.rows, done.max_event_time_us, done.bad_rows)

    def row_error(self, batch: pa.RecordBatch, row: int) -> RowError:
        return self._block.row_error(batch, row)

    def explain(self) -> list[tuple[str, str]]:
        return self._block.explain_block()


class Explode:
    """One row per element of an array, with those columns that are read behind it."""

    def __init__(self, spec: GenerateSpec, input_schema: Schema, read: Set[str]) -> None:
        self._spec = spec
        self._repeated = [field.name for field in input_schema if field.name in read]
        kept = tuple(field for field in input_schema if field.name in read)
        self._schema = arrow_schema(spec.added_to(kept))

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        (lists,), bad, error = evaluate_rows([self._spec.expression], batch)
        bad_rows: tuple[int, ...] = ()
        kept = np.arange(batch.num_rows)
        if error is not None:
            if not collect_bad:
                raise error
            bad_rows = tuple(np.flatnonzero(bad).tolist())
            kept = np.flatnonzero(~bad)
            lists = lists.take(pa.array(kept))
        parents, elements, positions = exploded(lists, self._spec.outer)
        rows = kept[parents]
        columns = list(batch.select(self._repeated).take(pa.array(rows)).columns)
        if self._spec.position is not None:
            columns.append(positions)
        columns.append(elements)
        return StepRows(
            pa.RecordBatch.from_arrays(columns, schema=self._schema), rows, None, bad_rows
        )

    def row_error(self, batch: pa.RecordBatch, row: int) -> RowError:
        _, _, error = evaluate_rows([self._spec.expression], batch.slice(row, 1))
        assert error is not None
        return RowError(error.message, **{**error.details, "row": row})

    def explain(self) -> list[tuple[str, str]]:
        return [(f"explode({self._spec.expression})", "arrow")]


def exploded(lists: pa.ListArray, outer: bool) -> tuple[Rows, pa.Array, pa.Array]:
    """For each output row its list's number, its element, and its place in the list."""
    lengths = np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)
    repeats = np.maximum(lengths, 1) if outer else lengths
    parents = np.repeat(np.arange(len(lists)), repeats)
    ends = np.cumsum(repeats)
    places = np.arange(len(parents)) - np.repeat(ends - repeats, repeats)
    flat = lists.flatten()  # leaves out null lists, whatever lies under them
    if not outer:
        return parents, flat, pa.array(places.astype(np.int32))
    empty = np.repeat(lengths == 0, repeats)
    starts = np.repeat(np.cumsum(lengths) - lengths, repeats)
    elements = flat.take(pa.array(np.where(empty, 0, starts + places), mask=empty))
    return parents, elements, pa.array(places.astype(np.int32), mask=empty)
