"""A chain: the operators of one stage, run batch by batch by a vertex.

Each port has a front, the stateless steps before the first operator with state; behind each such
operator stand more steps, which lead to the next one or out of the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import ExpressionError, RowError
from penstock.expressions.types import Schema, arrow_schema
from penstock.kernels.block import StepRows
from penstock.kernels.cache import KernelCache
from penstock.kernels.columns import plain
from penstock.operators.aggregate import Aggregate
from penstock.operators.contract import Batches, Operator, Prepared, Tools, moved_back
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.front import Front, Fusion, RowStep, note_bad
from penstock.operators.join import Join
from penstock.operators.sessions import Sessions
from penstock.operators.specs import (
    AggregateSpec,
    DeduplicateSpec,
    JoinSpec,
    OperatorSpec,
    SessionSpec,
    StatefulSpec,
    StatelessSpec,
    cut_at_state,
    is_stateful,
    operator_name,
)
from penstock.state.contract import State
from penstock.state.keyed import BYTES_MAX_DEFAULT

OnBadRow = Literal["raise", "reject"]
ERROR_COLUMN = "error"

PortRows = tuple[Schema, Sequence[StatelessSpec]]  # columns, and what stands before the operators
Build = Callable[[str, Any, Sequence[Fusion], Tools], Operator]


def _grouped(name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools) -> Operator:
    build = Sessions if isinstance(spec.window, SessionSpec) else Aggregate
    return build(name, spec, fusions, tools)


# How each operator with state is made, of its name, what stands before each port, and tools.
OPERATORS: Mapping[type[StatefulSpec], Build] = MappingProxyType(
    {AggregateSpec: _grouped, DeduplicateSpec: Deduplicate, JoinSpec: Join}
)


@dataclass(frozen=True, slots=True)
class ChainOutput:
    """What one input batch gave.

    `late` has the late rows as the operator would have taken them, if they were asked for.
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


class Chain:
    """Runs the operators of one stage.

    Between two markers the runtime calls `process` for each batch, `on_watermark` if event time has
    come further, and `on_commit`; then it takes the changes of all `states` and writes `progress()`
    into the marker. To come back it restores the states and calls `restore_progress`.
    """

    def __init__(
        self,
        ports: Sequence[PortRows],
        operators: Sequence[OperatorSpec],
        cache: KernelCache | None,
        *,
        state_bytes_max: int = BYTES_MAX_DEFAULT,
        want_late: bool = False,
    ) -> None:
        tools = Tools(cache, state_bytes_max, want_late)
        self._ports = [Front(front, schema, tools, operators) for schema, front in ports]
        self._operators: list[Operator] = []
        self._behind: list[Front] = []  # of each operator
        self._build(operators, tools)
        self.output_schema = (self._behind or self._ports)[-1].schema
        self._rejected_schemas = [
            arrow_schema(schema).append(pa.field(ERROR_COLUMN, pa.string(), nullable=False))
            for schema, _ in ports
        ]
        self._counts = {"in": 0, "out": 0, "late": 0, "rejected": 0}

    # --- building ---------------------------------------------------------------------------------

    def _build(self, specs: Sequence[OperatorSpec], tools: Tools) -> None:
        fronts = self._ports
        rest = tuple(specs)
        mode = "append"
        while rest:
            spec, *after = rest
            assert is_stateful(spec), "what stands before the first operator is a port's"
            if mode != "append":
                raise ExpressionError(
                    f"an aggregate in {mode} mode cannot feed another: it emits a "
                    "group more than once; use append mode with a window",
                    mode=mode,
                )
            mode = spec.mode
            steps, rest = cut_at_state(after)
            self._operators.append(self._operator(spec, fronts, tools))
            schemas = [front.schema for front in fronts[: spec.ports]]
            fronts = [Front(steps, spec.output_schema(*schemas), tools, rest)]
            if fronts[0].delay_us is not None:
                raise ExpressionError(
                    "a watermark is defined before the first state, not behind it"
                )
            self._behind += fronts
        for front in fronts:
            front.close()

    def _operator(self, spec: StatefulSpec, fronts: Sequence[Front], tools: Tools) -> Operator:
        if not spec.fuses or len(fronts) > spec.ports:  # then it takes the rows of all alike
            for front in fronts:
                front.close()
        name = operator_name(spec, len(self._operators))
        return OPERATORS[type(spec)](name, spec, [front.fusion for front in fronts], tools)

    def explain(self) -> list[tuple[str, str]]:
        """Each expression and what computes it: `numba` or `arrow`."""
        return [found for step in self._steps() for found in step.explain()]

    def ask_for_kernels(self) -> None:
        """Load the kernels of all blocks, or have them compiled, before a batch needs them."""
        for step in self._steps():
            step.ask_for_kernels()

    def _steps(self) -> Iterator[RowStep]:
        for front in self._ports:
            yield from front.steps
        for operator, front in zip(self._operators, self._behind, strict=True):
            yield from operator.blocks()
            yield from front.steps

    @property
    def states(self) -> dict[str, State]:
        """All states of all operators."""
        return {name: state for each in self._operators for name, state in each.states.items()}

    @property
    def late_schema(self) -> Schema | None:
        """Of the rows that are handed on when they are late."""
        schemas = (operator.late_schema for operator in self._operators)
        return next((schema for schema in schemas if schema is not None), None)

    @property
    def delays_us(self) -> tuple[int | None, ...]:
        """By port: of the watermark that it defines itself, None if it goes by its producers'."""
        return tuple(front.delay_us for front in self._ports)

    @property
    def behind_us(self) -> int:
        """How far behind event time the rows may be that come out."""
        return sum(operator.behind_us for operator in self._operators)

    def statistics(self) -> ChainStatistics:
        counts = self._counts
        passed = sum(front.rows_passed for front in (*self._ports, *self._behind))
        return ChainStatistics(
            counts["in"], counts["out"], counts["late"], counts["rejected"], passed
        )

    # --- running ----------------------------------------------------------------------------------

    def process(
        self,
        batch: pa.RecordBatch,
        watermark_us: int | None = None,
        on_bad_row: OnBadRow = "raise",
        port: int = 0,
    ) -> ChainOutput:
        """Run one batch of a port. A row that fails raises, or is rejected while the others go on.

        A batch without rows is input too: an aggregate without keys and window has its row then.

        Nothing reaches a state before the whole batch was computed: if this raises, the chain is
        as it was. Rows are late by the newer of `watermark_us` and the last `on_watermark`.
        """
        self._counts["in"] += batch.num_rows
        rejected: pa.RecordBatch | None = None
        front = self._ports[port]
        made, prepared, bad = self._prepare(
            0, port, front, batch, watermark_us, on_bad_row == "reject"
        )
        if bad:
            batch, rejected = self._without(batch, bad, port)
            made, prepared, _ = self._prepare(0, port, front, batch, watermark_us, False)
        times = [*(each.max_event_time_us for each in made), prepared.max_event_time_us]
        batches = self._enter(0, port, prepared)
        self._counts["late"] += prepared.late_rows
        return ChainOutput(
            self._counted(batches),
            prepared.late_rows,
            prepared.late,
            max((time for time in times if time is not None), default=None),
            rejected,
        )

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int] | None = None) -> Batches:
        """Emit what event time finishes: that of all ports together, and of each."""
        given = (watermark_us,) * len(self._ports) if of_ports_us is None else of_ports_us
        emitted: list[pa.RecordBatch] = []
        for index, operator in enumerate(self._operators):
            # Later operators take these rows before the watermark reaches them.
            for rows in operator.on_watermark(watermark_us, given):
                emitted += self._follow(index, rows)
            watermark_us = moved_back(watermark_us, operator.behind_us)
            given = (watermark_us,)
        return self._counted(emitted)

    def owes_whole_result(self) -> bool:
        """Whether `on_commit` is to emit all that complete mode has; a filter may leave nothing."""
        return any(operator.owes_whole_result() for operator in self._operators)

    def on_commit(self) -> Batches:
        """Emit what update and complete mode owe at a commit; call it before taking changes."""
        emitted: list[pa.RecordBatch] = []
        for index, operator in enumerate(self._operators):
            for rows in operator.on_commit():
                emitted += self._follow(index, rows)
        return self._counted(emitted)

    def progress(self) -> tuple[Any, ...]:
        """What a marker must hold beside the states, as plain JSON: of each operator."""
        return tuple(operator.progress() for operator in self._operators)

    def restore_progress(self, progress: Sequence[Any]) -> None:
        """Go on from a marker; the states have been restored to it."""
        for operator, its in zip(self._operators, progress, strict=True):
            operator.restore_progress(its)

    def _counted(self, batches: Sequence[pa.RecordBatch]) -> Batches:
        self._counts["out"] += sum(batch.num_rows for batch in batches)
        return tuple(batches)

    def _follow(self, index: int, batch: pa.RecordBatch) -> Batches:
        """Rows that an operator emitted, through the rest of the chain."""
        _, prepared, _ = self._prepare(index + 1, 0, self._behind[index], batch, None, False)
        self._counts["late"] += prepared.late_rows
        return self._enter(index + 1, 0, prepared)

    def _prepare(
        self,
        index: int,
        port: int,
        front: Front,
        batch: pa.RecordBatch,
        watermark_us: int | None,
        collect_bad: bool,
    ) -> tuple[list[StepRows], Prepared, dict[int, RowError]]:
        """Compute a batch up to the state of an operator; and the rows of it that fail."""
        made, bad = front.run(batch, collect_bad)
        if index == len(self._operators):
            return made, Prepared(made[-1].batch), bad
        operator = self._operators[index]
        prepared = operator.prepare(port, made[-1].batch, watermark_us, collect_bad)
        note_bad(bad, made, prepared.bad)
        return made, prepared, bad

    def _enter(self, index: int, port: int, prepared: Prepared) -> Batches:
        """Let an operator take what was prepared for it, or hand it out."""
        if index == len(self._operators):
            return (prepared.rows,) if prepared.rows.num_rows else ()
        emitted: list[pa.RecordBatch] = []
        for rows in self._operators[index].process(port, prepared):
            emitted += self._follow(index, rows)
        return tuple(emitted)

    def _without(
        self, batch: pa.RecordBatch, bad: Mapping[int, RowError], port: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The batch without its bad rows, and these with their errors."""
        rows = sorted(bad)
        self._counts["rejected"] += len(rows)
        mask = np.ones(batch.num_rows, np.bool_)
        mask[rows] = False
        errors = pa.array([bad[row].message for row in rows], pa.string())
        failed = batch.take(pa.array(rows, pa.int64()))
        columns = [*map(plain, failed.columns), errors]
        rejected = pa.RecordBatch.from_arrays(columns, schema=self._rejected_schemas[port])
        return batch.filter(pa.array(mask)), rejected
