"""A chain: the operators of one stage, fused into steps, run batch by batch by a vertex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import ExpressionError, RowError
from penstock.expressions.evaluate import may_fail
from penstock.expressions.tree import Column, Expression, columns_of
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import AggregateSpec as BlockAggregate
from penstock.kernels.block import Block, BlockSpec, Partials, inline
from penstock.kernels.cache import KernelCache
from penstock.kernels.columns import plain
from penstock.kernels.support import conjuncts
from penstock.operators.aggregate import Aggregator
from penstock.operators.groups import StateProvider, partials_batch, with_the_one_group
from penstock.operators.reduction import Reduction
from penstock.operators.specs import (
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    WatermarkSpec,
    accumulators_of,
    column_of,
    columns_read,
)
from penstock.operators.stateless import Explode, FusedStep, StepRows
from penstock.state.columns import StateSchema
from penstock.state.keyed import KeyedState

Batches = tuple[pa.RecordBatch, ...]
OnBadRow = Literal["raise", "reject"]
ERROR_COLUMN = "error"


@dataclass(frozen=True, slots=True)
class ChainOutput:
    """What one input batch gave.

    `late` has the late rows as the aggregate would have taken them, if they were asked for.
    `rejected` has the input rows that failed, with the reason in the column `error`.
    """

    batches: Batches = ()
    late_rows: int = 0
    late: pa.RecordBatch | None = None
    max_event_time_us: int | None = None
    rejected: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class ChainStatistics:
    """Counted since the chain was made."""

    rows_in: int
    rows_out: int
    rows_late: int
    rows_rejected: int
    rows_passed: int  # not aggregated before an exchange, as there is little to gain


class _Fusion:
    """Filters, projections and a watermark on their way to become one block."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.columns: dict[str, Expression] = {field.name: column_of(field) for field in schema}
        self.filters: list[Expression] = []
        self.event_time: tuple[Expression, int] | None = None

    def add(self, spec: FilterSpec | ProjectSpec | WatermarkSpec) -> None:
        if isinstance(spec, FilterSpec):
            self.filters.append(self.inlined(spec.condition))
        elif isinstance(spec, ProjectSpec):
            self.columns = {name: self.inlined(e) for name, e in spec.columns}
        else:
            self.event_time = (self.columns[spec.column], len(self.filters))

    def inlined(self, expression: Expression) -> Expression:
        return inline(expression, self.columns)

    @property
    def is_identity(self) -> bool:
        same = {field.name: column_of(field) for field in self.schema}
        in_order = list(self.columns.items()) == list(same.items())
        return in_order and not self.filters and self.event_time is None

    def projection(self) -> BlockSpec:
        outputs = tuple(self.columns.items())
        return BlockSpec(self.schema, tuple(self.filters), outputs, self.event_time)

    def aggregation(self, spec: AggregateSpec | PartialAggregateSpec) -> BlockSpec:
        window = spec.window
        accumulators = tuple(
            (a.function, None if a.argument is None else self.inlined(a.argument))
            for a in accumulators_of(spec.aggregates)
        )
        aggregate = BlockAggregate(
            keys=tuple(self.inlined(key) for _, key in spec.keys),
            time=None if window is None else self.inlined(window.time),
            pane_us=0 if window is None else window.pane_us,
            start_us=0 if window is None else window.start_us,
            aggregates=accumulators,
            times_us=None if window is None else window.times_us,
        )
        filters = tuple(self.filters)
        return BlockSpec(self.schema, filters, (), self.event_time, aggregate)


class _GroupStep:
    """The last step before state: a block that groups, and what late rows look like."""

    def __init__(
        self, fusion: _Fusion, spec: AggregateSpec | PartialAggregateSpec, cache: KernelCache | None
    ) -> None:
        self.block = Block(fusion.aggregation(spec), cache)
        self.late_block = Block(BlockSpec(fusion.schema, (), tuple(fusion.columns.items())), None)


@dataclass
class _Segment:
    """Stateless steps, and the aggregate that ends them if there is one."""

    steps: list[FusedStep | Explode]
    group: _GroupStep | None = None
    partial: PartialAggregateSpec | None = None
    aggregator: Aggregator | None = None
    reduction: Reduction = field(default_factory=Reduction)  # by the partial aggregate

    @property
    def grouping(self) -> AggregateSpec | PartialAggregateSpec | None:
        return self.partial if self.aggregator is None else self.aggregator.spec


@dataclass
class _Pass:
    """One run of a batch through a segment, up to but not into its state."""

    batch: pa.RecordBatch
    partials: Partials | None = None
    late: pa.RecordBatch | None = None
    max_event_time_us: int | None = None
    bad: dict[int, RowError] | None = None  # by row of the segment's input

    def see(self, time_us: int | None) -> None:
        if time_us is not None:
            known = self.max_event_time_us
            self.max_event_time_us = time_us if known is None else max(known, time_us)


def new_state(name: str, schema: StateSchema) -> KeyedState:
    """A state with the default bound on its memory."""
    return KeyedState(name, schema)


class Chain:
    """Runs the operators of one stage over batches of one schema.

    Between two markers the runtime calls `process` for each batch, `on_watermark` if the watermark
    rose, and `on_commit`; then it takes the changes of all `states` and writes `progress()` into
    the marker. To come back it restores the states and calls `restore_progress`.
    """

    def __init__(
        self,
        specs: Sequence[OperatorSpec],
        input_schema: Schema,
        cache: KernelCache | None,
        provide_state: StateProvider = new_state,
        want_late: bool = False,
    ) -> None:
        self.input_schema = input_schema
        self.want_late = want_late
        self.watermark_delay_us: int | None = None
        self.states: dict[str, KeyedState] = {}
        self.late_schema: Schema | None = None
        self._segments: list[_Segment] = []
        self._counts = {"in": 0, "out": 0, "late": 0, "rejected": 0}
        self.output_schema = self._build(specs, input_schema, cache, provide_state)
        self._rejected_schema = arrow_schema(input_schema).append(
            pa.field(ERROR_COLUMN, pa.string(), nullable=False)
        )

    # --- building ---------------------------------------------------------------------------------

    def _build(
        self,
        specs: Sequence[OperatorSpec],
        schema: Schema,
        cache: KernelCache | None,
        provide: StateProvider,
    ) -> Schema:
        steps: list[FusedStep | Explode] = []
        fusion = _Fusion(schema)
        for at, spec in enumerate(specs):
            before, schema = schema, spec.output_schema(schema)
            if isinstance(spec, FilterSpec | ProjectSpec | WatermarkSpec):
                if isinstance(spec, WatermarkSpec):
                    self._note_delay(spec)
                fusion.add(spec)
                continue
            if isinstance(spec, GenerateSpec):
                self._close(fusion, steps, cache)
                read = columns_read(specs[at + 1 :], before, self.want_late)
                is_key = spec.output in key_columns(specs[at + 1 :], schema)
                steps.append(Explode(spec, before, read, is_key))
            else:
                self._check_order(spec)
                self._segments.append(self._ended(spec, fusion, steps, before, cache, provide))
                steps = []
            fusion = _Fusion(schema)
        self._close(fusion, steps, cache)
        self._segments.append(_Segment(steps))
        return schema

    def _note_delay(self, spec: WatermarkSpec) -> None:
        if self.watermark_delay_us is not None:
            raise ExpressionError("a chain has one watermark; this one has two: drop one of them")
        self.watermark_delay_us = spec.delay_us

    def _check_order(self, spec: AggregateSpec | PartialAggregateSpec) -> None:
        for segment in self._segments:
            earlier = segment.aggregator
            if earlier is not None and earlier.spec.mode != "append":
                raise ExpressionError(
                    f"an aggregate in {earlier.spec.mode} mode cannot feed another: it emits a "
                    "group more than once; use append mode with a window",
                    mode=earlier.spec.mode,
                )
            if segment.partial is not None:
                raise ExpressionError("nothing can follow a partial aggregate in its chain")

    def _close(
        self, fusion: _Fusion, steps: list[FusedStep | Explode], cache: KernelCache | None
    ) -> None:
        if not fusion.is_identity:
            steps.append(FusedStep(fusion.projection(), cache))

    def _ended(
        self,
        spec: AggregateSpec | PartialAggregateSpec,
        fusion: _Fusion,
        steps: list[FusedStep | Explode],
        before: Schema,
        cache: KernelCache | None,
        provide: StateProvider,
    ) -> _Segment:
        if isinstance(spec, PartialAggregateSpec):
            return _Segment(steps, _GroupStep(fusion, spec, cache), partial=spec)
        aggregator = Aggregator(f"aggregate{len(self.states)}", spec, provide)
        self.states[aggregator.name] = aggregator.state
        if spec.merge_partials:
            self._close(fusion, steps, cache)
            return _Segment(steps, aggregator=aggregator)
        if self.late_schema is None:
            self.late_schema = before
        return _Segment(steps, _GroupStep(fusion, spec, cache), aggregator=aggregator)

    def explain(self) -> list[tuple[str, str]]:
        """Each expression and what computes it: `numba` or `arrow`."""
        found: list[tuple[str, str]] = []
        for segment in self._segments:
            for step in segment.steps:
                found += step.explain()
            if segment.group is not None:
                found += segment.group.block.explain_block()
        return found

    def ask_for_kernels(self) -> None:
        """Load the kernels of all blocks, or have them compiled, before a batch needs them."""
        for segment in self._segments:
            for step in segment.steps:
                if isinstance(step, FusedStep):
                    step.ask_for_kernels()
            if segment.group is not None:
                segment.group.block.ask_for_kernels()

    def statistics(self) -> ChainStatistics:
        counts = self._counts
        passed = sum(segment.reduction.rows_passed for segment in self._segments)
        return ChainStatistics(
            counts["in"], counts["out"], counts["late"], counts["rejected"], passed
        )

    # --- running ----------------------------------------------------------------------------------

    def process(
        self,
        batch: pa.RecordBatch,
        watermark_us: int | None = None,
        on_bad_row: OnBadRow = "raise",
    ) -> ChainOutput:
        """Run one input batch. A row that fails raises, or is rejected while the others go on.

        A batch without rows is input too: an aggregate without keys and window has its row then.

        Nothing reaches the state before the whole batch was computed: if this raises, the chain is
        as it was. Rows are late by the newer of `watermark_us` and the last `on_watermark`.
        """
        self._counts["in"] += batch.num_rows
        rejected: pa.RecordBatch | None = None
        done = self._run(self._segments[0], batch, watermark_us, on_bad_row == "reject")
        if done.bad:
            batch, rejected = self._without(batch, done.bad)
            done = self._run(self._segments[0], batch, watermark_us, collect_bad=False)
        batches, late = self._enter(0, done, watermark_us)
        self._count(batches, late)
        return ChainOutput(batches, late, done.late, done.max_event_time_us, rejected)

    def on_watermark(self, watermark_us: int) -> Batches:
        """Emit what a higher watermark finishes: rows of closed windows, in order."""
        emitted: list[pa.RecordBatch] = []
        for index, segment in enumerate(self._segments):
            if segment.aggregator is None:
                continue
            # Later aggregates take these rows before the watermark reaches them.
            for rows in segment.aggregator.on_watermark(watermark_us):
                batches, late = self._follow(index + 1, rows)
                emitted += batches
                self._count(batches, late)
        return tuple(emitted)

    def owes_whole_result(self) -> bool:
        """Whether `on_commit` is to emit all that complete mode has; a filter may leave nothing."""
        return any(a.spec.mode == "complete" and a.state.has_changes for a in self._aggregators())

    def on_commit(self) -> Batches:
        """Emit what update and complete mode owe at a commit; call it before taking changes."""
        emitted: list[pa.RecordBatch] = []
        for index, segment in enumerate(self._segments):
            if segment.aggregator is not None:
                for rows in segment.aggregator.on_commit():
                    batches, late = self._follow(index + 1, rows)
                    emitted += batches
                    self._count(batches, late)
        return tuple(emitted)

    def progress(self) -> dict[str, Any]:
        """What a marker must hold beside the states, as plain JSON."""
        marks = {a.name: a.watermark_us for a in self._aggregators()}
        return {"watermarks_us": marks}

    def restore_progress(self, progress: Mapping[str, Any]) -> None:
        """Go on from a marker; the states have been restored to it."""
        marks = progress.get("watermarks_us", {})
        for aggregator in self._aggregators():
            aggregator.restore(marks.get(aggregator.name))

    def _aggregators(self) -> list[Aggregator]:
        return [s.aggregator for s in self._segments if s.aggregator is not None]

    def _count(self, batches: Batches, late: int) -> None:
        self._counts["out"] += sum(batch.num_rows for batch in batches)
        self._counts["late"] += late

    def _follow(self, index: int, batch: pa.RecordBatch) -> tuple[Batches, int]:
        """Rows that an aggregate emitted, through the rest of the chain."""
        done = self._run(self._segments[index], batch, None, collect_bad=False)
        return self._enter(index, done, None)

    def _enter(self, index: int, done: _Pass, watermark_us: int | None) -> tuple[Batches, int]:
        """Put what was computed into the segment's state, or hand it on."""
        segment = self._segments[index]
        if done.partials is not None and segment.grouping is not None:
            done.partials = with_the_one_group(done.partials, segment.grouping)
        if segment.partial is not None:
            assert done.partials is not None
            rows = partials_batch(done.partials, segment.partial)
            segment.reduction.note(int(done.partials.rows.sum()), rows.num_rows)
            return self._follow(index + 1, rows) if rows.num_rows else ((), 0)
        if segment.aggregator is None:
            return ((done.batch,) if done.batch.num_rows else ()), 0
        if done.partials is None:
            return (), segment.aggregator.merge_batch(done.batch, watermark_us)
        segment.aggregator.merge(done.partials)
        return (), done.partials.late_rows

    def _run(
        self, segment: _Segment, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> _Pass:
        """Compute a segment up to its state; rows of its input that fail are collected."""
        done = _Pass(batch)
        results: list[StepRows] = []
        bad: dict[int, RowError] = {}
        for step in segment.steps:
            result = step.run(done.batch, collect_bad)
            if result.bad_rows:
                errors = step.row_errors(done.batch, result.bad_rows)
                _note(bad, results, result.bad_rows, errors)
            results.append(result)
            done.batch = result.batch
            done.see(result.max_event_time_us)
        if segment.group is not None:
            self._group(segment, done, watermark_us, collect_bad, results, bad)
        done.bad = bad
        return done

    def _group(
        self,
        segment: _Segment,
        done: _Pass,
        watermark_us: int | None,
        collect_bad: bool,
        results: Sequence[StepRows],
        bad: dict[int, RowError],
    ) -> None:
        assert segment.group is not None
        block, aggregator = segment.group.block, segment.aggregator
        want_late = self.want_late and aggregator is not None
        if aggregator is None:
            alone = segment.reduction.is_poor
            partials = block.aggregate(done.batch, collect_bad=collect_bad, alone=alone)
        else:
            closed = aggregator.closed_pane(watermark_us)
            partials = block.aggregate(done.batch, closed, want_late, collect_bad)
        if partials.bad_rows:
            errors = block.row_errors(done.batch, partials.bad_rows)
            _note(bad, results, partials.bad_rows, errors)
        done.partials = partials
        done.see(partials.max_event_time_us)
        if partials.late_mask is not None and partials.late_rows:
            places = np.flatnonzero(partials.late_mask)
            late, late_block = done.batch.take(pa.array(places)), segment.group.late_block
            projected = late_block.project(late, collect_bad)
            if projected.bad_rows:  # late, and failing on their way to the late stream
                errors = late_block.row_errors(late, projected.bad_rows)
                _note(bad, results, places[list(projected.bad_rows)].tolist(), errors)
            if not bad:
                done.late = projected.batch

    def _without(
        self, batch: pa.RecordBatch, bad: Mapping[int, RowError]
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The batch without its bad rows, and these with their errors."""
        rows = sorted(bad)
        self._counts["rejected"] += len(rows)
        mask = np.ones(batch.num_rows, np.bool_)
        mask[rows] = False
        errors = pa.array([bad[row].message for row in rows], pa.string())
        failed = batch.take(pa.array(rows, pa.int64()))
        columns = [*map(plain, failed.columns), errors]
        rejected = pa.RecordBatch.from_arrays(columns, schema=self._rejected_schema)
        return batch.filter(pa.array(mask)), rejected


def _note(
    bad: dict[int, RowError],
    results: Sequence[StepRows],
    rows: Sequence[int],
    errors: Sequence[RowError],
) -> None:
    """Keep the first error of each row of the input."""
    for row, error in zip(rows, errors, strict=True):
        bad.setdefault(_origin(results, row), error)


def _origin(results: Sequence[StepRows], row: int) -> int:
    """The row of a segment's input that a row behind these steps comes from."""
    for result in reversed(results):
        row = result.origin(row)
    return row


def key_columns(specs: Sequence[OperatorSpec], schema: Schema) -> frozenset[str]:
    """Which of these columns are keys, as they are, of the aggregate that these operators end in.

    As such they may come coded.
    """
    fusion = _Fusion(schema)
    for spec in specs:
        if isinstance(spec, GenerateSpec):
            break
        if isinstance(spec, AggregateSpec | PartialAggregateSpec):
            if isinstance(spec, AggregateSpec) and spec.merge_partials:
                break
            keys = [fusion.inlined(key) for _, key in spec.keys]
            return frozenset(key.name for key in keys if isinstance(key, Column))
        fusion.add(spec)
    return frozenset()


def coded_columns(specs: Sequence[OperatorSpec], schema: Schema) -> frozenset[str]:
    """Which texts of a chain's input may as well come coded.

    Those that are keys as they are, or that are looked at by themselves, which is done once for
    each distinct one; and that nothing reads together with other columns.
    """
    fusion = _Fusion(schema)
    uses: list[Expression] = []
    mixed: set[str] = set()
    worthwhile = set(key_columns(specs, schema))
    for spec in specs:
        if isinstance(spec, GenerateSpec):
            mixed.update(column.name for column in columns_of(fusion.inlined(spec.expression)))
            break
        if isinstance(spec, AggregateSpec) and spec.merge_partials:
            worthwhile.update(name for name, _ in spec.keys)
            break
        if isinstance(spec, AggregateSpec | PartialAggregateSpec):
            uses += fusion.aggregation(spec).results
            break
        fusion.add(spec)
    else:
        uses += fusion.columns.values()
    if fusion.event_time is not None:
        uses.append(fusion.event_time[0])
    for use in (*uses, *(part for each in fusion.filters for part in conjuncts(each))):
        names = {column.name for column in columns_of(use)}
        if len(names) > 1 or may_fail(use):
            mixed |= names
        elif not isinstance(use, Column):
            worthwhile |= names
    texts = {field.name for field in schema if field.type.kind in ("string", "binary")}
    return frozenset(texts & worthwhile - mixed)


__all__ = ["ERROR_COLUMN", "Batches", "Chain", "ChainOutput", "ChainStatistics"]
