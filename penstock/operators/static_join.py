"""The join with a static side: each row of a batch meets the rows that have its keys.

Candidates come from an index by hash, or are all rows where the join has no keys. They are looked
at a bounded number of pairs at a time, so memory is bounded by the rows that come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.arrays import Mask, Numbers, true_rows, values_of
from penstock.errors import RowError, StaticSideTooLarge
from penstock.expressions.evaluate import evaluate_with_failures
from penstock.expressions.frame import row_error
from penstock.expressions.tree import Column, Expression, columns_of
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import StepRows
from penstock.kernels.coding import coded
from penstock.kernels.columns import plain
from penstock.operators.contract import SparkEvaluator
from penstock.operators.spark_step import no_session
from penstock.operators.specs import StaticJoinSpec, inputs_of
from penstock.operators.static_rows import StaticIndex, StaticKeys, StaticRows

PAIRS_MAX = 1 << 20  # that are looked at together
ROWS_OUT_MAX = 1 << 25  # of one batch

Cause = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """What a batch found: pairs of rows where columns are added, else only who has found one."""

    rows: Numbers
    statics: Numbers
    has_one: Mask
    causes: dict[int, Cause]  # of rows that fail


@dataclass(frozen=True, slots=True)
class _Found:
    """Texts, and the static row of each."""

    index: StaticIndex
    texts: pa.Array
    rows: Numbers


class StaticJoin:
    """Adds the columns of the static side that are read behind it, or keeps rows by it."""

    def __init__(
        self,
        spec: StaticJoinSpec,
        input_schema: Schema,
        read: Set[str],
        spark: SparkEvaluator | None = None,
    ) -> None:
        self.side = spec.side
        self._spec = spec
        kept = tuple(field for field in input_schema if field.name in read)
        kept = kept or (() if spec.adds_columns and spec.columns else input_schema[:1])
        self._kept = [field.name for field in kept]
        self.made = spec.added_to(kept)  # the columns that come out
        self._schema = arrow_schema(self.made)
        self._static = StaticRows.none_of(spec.side_schema)
        self._spark = spark
        self._last_found: _Found | None = None

    def use(self, static: StaticRows) -> None:
        """Go on with this version of the static side."""
        self._static = static

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        if (found := self._found_by_code(batch)) is not None:
            return self._of_codes(batch, *found)
        pairs = self._pairs(batch)
        bad_rows = tuple(sorted(pairs.causes))
        if bad_rows and not collect_bad:
            raise row_error(bad_rows[0], *pairs.causes[bad_rows[0]])
        good: Mask = np.ones(batch.num_rows, np.bool_)
        good[list(bad_rows)] = False
        kept = np.flatnonzero(good) if bad_rows else None
        if self._spec.adds_columns:
            rows, statics = self._with_unmatched(pairs, good)
            made = self._joined(batch, rows, statics)
            counts = np.bincount(rows, minlength=batch.num_rows)
            return StepRows(made, kept, None, bad_rows, np.cumsum(counts[good]))
        if self._spec.exists is not None:
            rows = np.arange(batch.num_rows) if kept is None else kept
            made = self._selected(batch, rows, [pa.array(pairs.has_one[rows])])
            return StepRows(made, kept, None, bad_rows)
        wanted = pairs.has_one if self._spec.how == "semi" else ~pairs.has_one
        rows = np.flatnonzero(wanted & good)
        return StepRows(self._selected(batch, rows, []), rows, None, bad_rows)

    # --- rows that find one at most, by a text ----------------------------------------------------

    def _found_by_code(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers] | None:
        """The static row of each distinct text, -1 if none, and which text each row has.

        None where rows may find several, or are not found by a text alone.
        """
        if (name := text_looked_up(self._spec)) is None:
            return None
        index = self._static.index([(_name(self._spec.keys[0].right), False)])
        if not index.has_one_each:
            return None
        texts = batch.column(name)
        if pa.types.is_dictionary(texts.type) and len(texts.dictionary) > len(texts):
            texts = plain(texts)
        texts = coded(texts)
        found, codes = self._found(index, texts.dictionary), texts.indices
        if codes.null_count:  # a null finds none: so does the text behind the last
            found, codes = np.append(found, -1), codes.fill_null(found.size)
        return found, values_of(codes)

    def _found(self, index: StaticIndex, texts: pa.Array) -> Numbers:
        """The rows of these texts: batches have the same ones again and again."""
        last = self._last_found
        if last is None or last.index is not index or not last.texts.equals(texts):
            self._last_found = last = _Found(index, texts, index.find(texts))
        return last.rows

    def _of_codes(self, batch: pa.RecordBatch, found: Numbers, codes: Numbers) -> StepRows:
        how, has_one = self._spec.how, found >= 0
        rows: Numbers | None = None
        if how not in ("left", "existence"):
            wanted = ~has_one if how == "anti" else has_one
            if not wanted.all():
                rows = np.flatnonzero(wanted[codes])
        if self._spec.exists is not None:
            return StepRows(self._selected(batch, None, [pa.array(has_one[codes])]))
        added = []
        if self._spec.adds_columns:
            of_codes = pa.array(found, mask=None if has_one.all() else ~has_one)
            places = pa.array(codes if rows is None else codes[rows])
            for _, column in self._spec.columns:
                of_texts = self._static.batch.column(_name(column)).take(of_codes)
                added.append(of_texts.take(places))
        return StepRows(self._selected(batch, rows, added), rows)

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        causes = self._pairs(batch.take(pa.array(rows, pa.int64()))).causes
        return [row_error(row, *causes[place]) for place, row in enumerate(rows)]

    def explain(self) -> list[tuple[str, str]]:
        shown = [str(expression) for expression in self._spec.expressions()]
        by_spark = [(each.text, "spark") for each in self._spec.decided]
        return [*((text, "arrow") for text in shown), *by_spark]

    def ask_for_kernels(self) -> None:
        """It has none."""

    # --- which rows meet --------------------------------------------------------------------------

    def _pairs(self, batch: pa.RecordBatch) -> _Pairs:
        spec, count = self._spec, batch.num_rows
        columns, failures = evaluate_with_failures([key.left for key in spec.keys], batch)
        causes = {int(row): failures.cause(int(row)) for row in np.flatnonzero(failures.bad)}
        has_one: Mask = np.zeros(count, np.bool_)
        rows_found: list[Numbers] = []
        statics_found: list[Numbers] = []
        rows_out = 0
        for met in self._met(columns, failures.bad):
            rows, statics = self._that_hold(batch, *met, causes)
            rows, statics = self._decided(batch, rows, statics, causes)
            has_one[rows] = True
            if spec.adds_columns:
                rows_found.append(rows)
                statics_found.append(statics)
                rows_out += rows.size
                if rows_out > ROWS_OUT_MAX:
                    raise self._too_many(count)
        if len(rows_found) == 1:
            return _Pairs(rows_found[0], statics_found[0], has_one, causes)
        none = np.zeros(0, np.int64)
        return _Pairs(
            np.concatenate([none, *rows_found]),
            np.concatenate([none, *statics_found]),
            has_one,
            causes,
        )

    def _met(self, columns: Sequence[pa.Array], bad: Mask) -> Iterator[tuple[Numbers, Numbers]]:
        """Pairs of rows with equal keys, in the order of the rows and then of the static side."""
        index: StaticIndex | None = None
        keys: StaticKeys | None = None
        if self._spec.keys:
            names = [(_name(key.right), key.null_safe) for key in self._spec.keys]
            index = self._static.index(names)
            keys = index.keys(columns, bad.size)
            begins, counts = index.candidates(keys)
        else:
            begins = np.zeros(bad.size, np.int64)
            counts = np.full(bad.size, self._static.batch.num_rows, np.int64)
        counts = np.where(bad, 0, counts)
        for first, last in _cuts(counts):
            some = counts[first:last]
            ends = np.cumsum(some)
            rows = np.repeat(np.arange(first, last), some)
            places = np.arange(rows.size) + np.repeat(begins[first:last] - (ends - some), some)
            if index is None or keys is None:
                yield rows, places
            else:
                yield index.matches(keys, rows, places)

    def _that_hold(
        self, batch: pa.RecordBatch, rows: Numbers, statics: Numbers, causes: dict[int, Cause]
    ) -> tuple[Numbers, Numbers]:
        """Of pairs those that meet the condition; rows of which one fails are noted."""
        condition = self._spec.condition
        if condition is None or not rows.size:
            return rows, statics
        pairs = self._columns([condition], batch, rows, statics)
        (held,), failures = evaluate_with_failures([condition], pairs)
        for pair in np.flatnonzero(failures.bad):
            causes.setdefault(int(rows[pair]), failures.cause(int(pair)))
        kept = true_rows(held) & ~failures.bad
        return rows[kept], statics[kept]

    def _decided(
        self, batch: pa.RecordBatch, rows: Numbers, statics: Numbers, causes: dict[int, Cause]
    ) -> tuple[Numbers, Numbers]:
        """Of these pairs those for which Spark decides."""
        decided = self._spec.decided
        if not decided or not rows.size:
            return rows, statics
        pairs, spark = self._columns(inputs_of(decided), batch, rows, statics), self._spark
        if spark is None:
            raise no_session(decided)
        flags, bad = spark.compute(decided, pairs)
        for pair in np.flatnonzero(bad):
            causes.setdefault(int(rows[pair]), spark.failure(decided, pairs.slice(pair, 1)))
        kept = ~bad
        for flag in flags:
            kept &= true_rows(flag)
        return rows[kept], statics[kept]

    def _columns(
        self,
        expressions: Sequence[Expression],
        batch: pa.RecordBatch,
        rows: Numbers,
        statics: Numbers,
    ) -> pa.RecordBatch:
        """Of pairs the columns that these read; without any, what says how many pairs there are."""
        read = list(dict.fromkeys(c.name for each in expressions for c in columns_of(each)))
        if not read:
            return pa.RecordBatch.from_arrays([pa.nulls(rows.size)], ["row"])
        added = {name: _name(column) for name, column in self._spec.columns}
        columns = [
            self._static.batch.column(added[name]).take(pa.array(statics))
            if name in added
            else plain(batch.column(name)).take(pa.array(rows))
            for name in read
        ]
        return pa.RecordBatch.from_arrays(columns, names=read)

    # --- what comes out ---------------------------------------------------------------------------

    def _with_unmatched(self, pairs: _Pairs, good: Mask) -> tuple[Numbers, Numbers]:
        """All pairs of rows that do not fail; of an outer join also rows without one, with -1."""
        rows, statics = pairs.rows, pairs.statics
        if pairs.causes:
            fine = good[rows]
            rows, statics = rows[fine], statics[fine]
        if self._spec.how == "inner":
            return rows, statics
        alone = np.flatnonzero(good & ~pairs.has_one)
        if not alone.size:
            return rows, statics
        rows = np.concatenate([rows, alone])
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate([statics, np.full(alone.size, -1)])[order]

    def _joined(self, batch: pa.RecordBatch, rows: Numbers, statics: Numbers) -> pa.RecordBatch:
        is_alone = statics < 0
        taken = pa.array(statics, mask=is_alone if is_alone.any() else None)
        static = self._static.batch
        added = [static.column(_name(column)).take(taken) for _, column in self._spec.columns]
        return self._selected(batch, rows, added)

    def _selected(
        self, batch: pa.RecordBatch, rows: Numbers | None, added: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """These rows with columns more; None: all rows."""
        if rows is not None and np.array_equal(rows, np.arange(batch.num_rows)):
            rows = None
        columns = [plain(batch.column(name)) for name in self._kept]
        if rows is not None:
            chosen = pa.array(rows)
            columns = [column.take(chosen) for column in columns]
        return pa.RecordBatch.from_arrays([*columns, *added], schema=self._schema)

    def _too_many(self, rows: int) -> StaticSideTooLarge:
        return StaticSideTooLarge(
            f"static side {self.side}: {rows:,} rows of the stream would give more than "
            f"{ROWS_OUT_MAX:,} rows of the join with {self._static.batch.num_rows:,} static ones: "
            "join on more keys, group the static side by them first, or start the query with a "
            "smaller stepRowsMax",
            side=self.side,
            rows=rows,
            rows_max=ROWS_OUT_MAX,
        )


def _cuts(counts: Numbers) -> Iterator[tuple[int, int]]:
    """Ranges of rows, each with at most so many pairs, or of a single row."""
    ends = np.cumsum(counts)
    first = 0
    while first < counts.size:
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + PAIRS_MAX, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def text_looked_up(spec: StaticJoinSpec) -> str | None:
    """The column of texts by which alone rows find theirs: as such it may come coded."""
    if len(spec.keys) != 1 or spec.condition is not None or spec.decided:
        return None
    key = spec.keys[0]
    if key.null_safe or not isinstance(key.left, Column):
        return None
    return key.left.name if key.left.type.kind in ("string", "binary") else None


def _name(column: object) -> str:
    assert isinstance(column, Column)
    return column.name
