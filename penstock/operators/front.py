"""What is done with rows before an operator takes them, or behind one: stateless steps, fused.

Adjacent filters and projections become one block. The last block in front of an operator that can
compute what it needs by itself is left to that operator, so that one loop does both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

import pyarrow as pa

from penstock.errors import ExpressionError, FunctionFailed, RowError
from penstock.expressions.tree import Column, Expression, columns_of, inline, may_fail
from penstock.expressions.types import Field, Schema
from penstock.kernels.block import Block, BlockAggregate, BlockSpec, StepRows
from penstock.kernels.support import conjuncts
from penstock.operators.contract import Tools
from penstock.operators.explode import Explode
from penstock.operators.observe import Observe
from penstock.operators.partial import PartialGroups
from penstock.operators.python_step import PythonColumns, PythonRows
from penstock.operators.spark_step import SparkStep
from penstock.operators.specs import (
    AggregateSpec,
    FilterSpec,
    GenerateSpec,
    ObserveSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    PythonRowsSpec,
    PythonSpec,
    SparkSpec,
    StatelessSpec,
    StaticJoinSpec,
    WatermarkSpec,
    accumulators_of,
    column_of,
    columns_read,
    is_stateful,
)
from penstock.operators.static_join import StaticJoin, text_looked_up


class RowStep(Protocol):
    """Makes rows of rows, and keeps nothing between batches that a result depends on."""

    def run(self, batch: pa.RecordBatch, collect_bad: bool) -> StepRows:
        """Compute a batch. A row that fails raises, or is left out and named."""

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        """Why rows of a batch fail."""

    def explain(self) -> list[tuple[str, str]]:
        """Each expression and what computes it: `numba`, `arrow`, `python` or `spark`."""

    def ask_for_kernels(self) -> None:
        """Load what is compiled, or have it compiled, before a batch needs it."""


class Fusion:
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

    @property
    def output_schema(self) -> Schema:
        return tuple(Field(name, e.type, e.nullable) for name, e in self.columns.items())

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
        grouping = spec.partial if isinstance(spec, AggregateSpec) else spec
        window = grouping.window
        accumulators = tuple(
            (a.function, None if a.argument is None else self.inlined(a.argument))
            for a in accumulators_of(spec.aggregates)
        )
        aggregate = BlockAggregate(
            keys=tuple(self.inlined(key) for _, key in grouping.grouped_by),
            time=None if window is None else self.inlined(window.time),
            pane_us=0 if window is None else window.pane_us,
            start_us=0 if window is None else window.start_us,
            aggregates=accumulators,
            times_us=None if window is None else window.times_us,
        )
        filters = tuple(self.filters)
        return BlockSpec(self.schema, filters, (), self.event_time, aggregate)


class Front:
    """Stateless steps in a row, and what is left to fuse behind them."""

    def __init__(
        self,
        specs: Sequence[StatelessSpec],
        schema: Schema,
        tools: Tools,
        behind: Sequence[OperatorSpec] = (),
    ) -> None:
        """`behind` are the operators that follow: what they do not read need not be made."""
        self.delay_us: int | None = None  # of the watermark that these steps define
        self._steps: list[RowStep] = []
        self._tools = tools
        self.schema = schema  # of what comes out
        self.fusion = Fusion(schema)
        for at, spec in enumerate(specs):
            self.schema = spec.output_schema(self.schema)
            if isinstance(spec, FilterSpec | ProjectSpec | WatermarkSpec):
                if isinstance(spec, WatermarkSpec):
                    self._note_delay(spec)
                self.fusion.add(spec)
                continue
            if isinstance(spec, PartialAggregateSpec):
                if specs[at + 1 :]:
                    raise ExpressionError("nothing can follow a partial aggregate in its chain")
                block = Block(self.fusion.aggregation(spec), tools.cache)
                self._steps.append(PartialGroups(spec, block))
                self.fusion = Fusion(self.schema)
                continue
            there = self.fusion.output_schema
            text = text_looked_up(spec) if isinstance(spec, StaticJoinSpec) else None
            self.close(set() if text is None else {text})
            step = self._step(spec, there, (*specs[at + 1 :], *behind))
            self._steps.append(step)
            self.fusion = Fusion(step.made)

    def _step(
        self,
        spec: GenerateSpec | ObserveSpec | SparkSpec | PythonSpec | PythonRowsSpec | StaticJoinSpec,
        there: Schema,
        after: Sequence[OperatorSpec],
    ) -> Explode | Observe | SparkStep | PythonColumns | PythonRows | StaticJoin:
        """What takes rows of these columns; those that nobody reads after it may not come out."""
        tools = self._tools
        if isinstance(spec, SparkSpec):
            return SparkStep(spec, there, tools.spark)
        if isinstance(spec, PythonSpec):
            return PythonColumns(spec, there, tools)
        if isinstance(spec, ObserveSpec):
            in_loop = spec.partial.in_loop
            loop = Fusion(there).aggregation(spec.partial) if in_loop else None
            return Observe(spec, there, None if loop is None else Block(loop, tools.cache))
        read = columns_read(after, self.schema, tools.want_late)
        if isinstance(spec, GenerateSpec):
            return Explode(spec, there, read, spec.output in _keys(after, self.schema))
        if isinstance(spec, PythonRowsSpec):
            return PythonRows(spec, there, read, tools)
        return StaticJoin(spec, there, read, tools.spark)

    def close(self, coded: Set[str] = frozenset()) -> None:
        """Nothing behind will fuse with the last filters and projections.

        What stands behind takes `coded` columns as they come, with codes or without.
        """
        if not self.fusion.is_identity:
            self._steps.append(Block(self.fusion.projection(), self._tools.cache, coded))
            self.fusion = Fusion(self.schema)

    def run(
        self, batch: pa.RecordBatch, collect_bad: bool
    ) -> tuple[list[StepRows], dict[int, RowError]]:
        """What each step made of a batch, and the rows of it that fail."""
        made = [StepRows(batch)]
        bad: dict[int, RowError] = {}
        for step in self._steps:
            result = step.run(made[-1].batch, collect_bad)
            note_bad(bad, made, failures(step, made[-1].batch, result.bad_rows))
            made.append(result)
        return made, bad

    @property
    def steps(self) -> tuple[RowStep, ...]:
        return tuple(self._steps)

    def observed(self) -> list[tuple[ObserveSpec, pa.RecordBatch]]:
        """What was kept of the batch that was run last; None of it is there a second time."""
        return [
            (step.spec, kept)
            for step in self._steps
            if isinstance(step, Observe) and (kept := step.take()) is not None
        ]

    @property
    def rows_passed(self) -> int:
        """How many rows were not aggregated before an exchange, as there is little to gain."""
        return sum(
            step.reduction.rows_passed for step in self._steps if isinstance(step, PartialGroups)
        )

    def _note_delay(self, spec: WatermarkSpec) -> None:
        if self.delay_us is not None:
            raise ExpressionError("a chain has one watermark; this one has two: drop one of them")
        self.delay_us = spec.delay_us


def failures(step: RowStep, batch: pa.RecordBatch, rows: Sequence[int]) -> dict[int, RowError]:
    """Why these rows of a batch fail."""
    if not rows:
        return {}  # to ask for no row costs something too
    return dict(zip(rows, step.row_errors(batch, rows), strict=True))


def note_bad(
    bad: dict[int, RowError], made: Sequence[StepRows], errors: Mapping[int, RowError]
) -> None:
    """Keep the first error of each row that came in, of errors by rows behind these steps."""
    for row, error in errors.items():
        origin = row
        for result in reversed(made):
            if not result.has_origins:
                raise _untraceable(error)
            origin = result.origin(origin)
        bad.setdefault(origin, error)


def _untraceable(error: RowError) -> FunctionFailed:
    return FunctionFailed(
        "a row that mapInArrow or mapInPandas has made fails behind it, and nobody knows of which "
        f"input it was made, so it cannot go to the dead-letter stream: {error.message}",
        **error.details,
    )


# --- texts as codes -------------------------------------------------------------------------------


def _keys(specs: Sequence[OperatorSpec], schema: Schema) -> frozenset[str]:
    """Which of these columns are keys, as they are, of the aggregate that these operators end in.

    As such they may come coded.
    """
    fusion = Fusion(schema)
    for spec in specs:
        if isinstance(spec, FilterSpec | ProjectSpec | WatermarkSpec):
            fusion.add(spec)
            continue
        if isinstance(spec, AggregateSpec | PartialAggregateSpec) and spec.fuses:
            keys = [fusion.inlined(key) for _, key in spec.keys]
            return frozenset(key.name for key in keys if isinstance(key, Column))
        break
    return frozenset()


def coded_columns(
    specs: Sequence[OperatorSpec], schema: Schema, wanted: Set[str] = frozenset()
) -> frozenset[str]:
    """Which texts that these operators read may as well come coded.

    Those that are keys as they are, or that are looked at by themselves, which is done once for
    each distinct one, or that who takes the rows behind these operators wants so; and that nothing
    reads together with other columns.
    """
    fusion = Fusion(schema)
    uses: list[Expression] = []
    mixed: set[str] = set()
    worthwhile = set(_keys(specs, schema))
    for spec in specs:
        if isinstance(spec, FilterSpec | ProjectSpec | WatermarkSpec):
            fusion.add(spec)
            continue
        if isinstance(spec, AggregateSpec | PartialAggregateSpec) and spec.fuses:
            uses += fusion.aggregation(spec).results
        elif isinstance(spec, AggregateSpec) and spec.merge_partials:
            worthwhile.update(name for name, _ in spec.keys)
        elif is_stateful(spec):
            uses += fusion.columns.values()
        elif isinstance(spec, StaticJoinSpec) and (text := text_looked_up(spec)) is not None:
            looked_up = fusion.columns[text]
            uses.append(looked_up)
            if isinstance(looked_up, Column):
                worthwhile.add(looked_up.name)
        else:
            read = map(fusion.inlined, spec.expressions())
            mixed.update(column.name for each in read for column in columns_of(each))
        break
    else:
        uses += fusion.columns.values()
        passed = (each for name, each in fusion.columns.items() if name in wanted)
        worthwhile.update(each.name for each in passed if isinstance(each, Column))
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
