"""A chain: the operators of one stage, run batch by batch by a vertex.

Each port has a front, the stateless steps before the first operator with state; behind each such
operator stand more steps, which lead to the next one or out of the chain. What comes out goes to
all outputs of the stage, by the steps that each has of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays import no_rows
from penstock.errors import ExpressionError, RowError
from penstock.expressions.types import Schema, arrow_schema, from_arrow
from penstock.kernels.block import StepRows
from penstock.kernels.cache import KernelCache
from penstock.kernels.columns import plain
from penstock.operators.aggregate import Aggregate
from penstock.operators.changing_aggregate import ChangingAggregate
from penstock.operators.changing_sessions import ChangingSessions
from penstock.operators.contract import (
    Batches,
    Operator,
    Prepared,
    SparkEvaluator,
    Tools,
    moved_back,
)
from penstock.operators.deduplicate import Deduplicate
from penstock.operators.front import Front, Fusion, RowStep, note_bad
from penstock.operators.join import Join
from penstock.operators.over import Over
from penstock.operators.python_functions import PythonFunctions
from penstock.operators.python_groups import PythonGroups
from penstock.operators.sessions import Sessions
from penstock.operators.sort import Limit, Sort
from penstock.operators.specs import (
    WEIGHT_COLUMN,
    AggregateSpec,
    DeduplicateSpec,
    JoinSpec,
    LimitSpec,
    ObserveSpec,
    OperatorSpec,
    OverSpec,
    PartialAggregateSpec,
    PythonGroupsSpec,
    SessionSpec,
    SortSpec,
    StatefulSpec,
    StatelessSpec,
    TableSpec,
    cut_at_state,
    is_stateful,
    operator_name,
)
from penstock.operators.static_join import StaticJoin
from penstock.operators.static_rows import StaticRows
from penstock.operators.table import Table
from penstock.operators.table_join import TableJoin
from penstock.state.contract import KeyRange, State
from penstock.state.keyed import BYTES_MAX_DEFAULT

OnBadRow = Literal["raise", "reject"]
# Of a rejected row: why it failed, which operator of the chain had made it, if one had, and, where
# a query has several results, those that it is missing in.
TOLD_OF_ROWS = OPERATOR_COLUMN, ERROR_COLUMN = "operator", "error"
RESULT_COLUMN = "result"
_INPUT = -1  # where no operator stands before

PortRows = tuple[Schema, Sequence[StatelessSpec]]  # columns, and what stands before the operators
Build = Callable[[str, Any, Sequence[Fusion], Tools], Operator]


def _grouped(name: str, spec: AggregateSpec, fusions: Sequence[Fusion], tools: Tools) -> Operator:
    in_sessions = isinstance(spec.window, SessionSpec)
    if spec.by_rows:
        changing = ChangingSessions if in_sessions else ChangingAggregate
        return changing(name, spec, fusions, tools)
    return (Sessions if in_sessions else Aggregate)(name, spec, fusions, tools)


def _joined(name: str, spec: JoinSpec, fusions: Sequence[Fusion], tools: Tools) -> Operator:
    return (TableJoin if any(spec.tables) else Join)(name, spec, fusions, tools)


# How each operator with state is made, of its name, what stands before each port, and tools.
OPERATORS: Mapping[type[StatefulSpec], Build] = MappingProxyType(
    {
        AggregateSpec: _grouped,
        DeduplicateSpec: Deduplicate,
        JoinSpec: _joined,
        LimitSpec: Limit,
        OverSpec: Over,
        PythonGroupsSpec: PythonGroups,
        SortSpec: Sort,
        TableSpec: Table,
    }
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


@dataclass(slots=True)
class Aside:
    """Rows that operators made and that went no further: they were late for the next, or failed.

    Each batch has the columns of what came out of its operator, those of `rejected` two more.
    Beside them, what is kept of rows that were observed on their way.
    """

    late_rows: int = 0
    late: list[pa.RecordBatch] = field(default_factory=list)  # if they were asked for
    rejected: list[pa.RecordBatch] = field(default_factory=list)
    observed: list[tuple[ObserveSpec, pa.RecordBatch]] = field(default_factory=list)


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
    come further, and `on_commit`, and has `outputs` deal what they give, and after each of them
    calls `take_aside`; then it takes the changes of all `states` and writes `progress()` into the
    marker. To come back it restores the states and
    calls `restore_progress`.
    """

    def __init__(
        self,
        ports: Sequence[PortRows],
        operators: Sequence[OperatorSpec],
        cache: KernelCache | None,
        *,
        ways: Sequence[Sequence[StatelessSpec]] = ((),),
        results: Sequence[Sequence[str]] = (),
        state_bytes_max: int = BYTES_MAX_DEFAULT,
        want_late: bool = False,
        spark: SparkEvaluator | None = None,
        python: PythonFunctions | None = None,
        is_rehearsal: bool = False,
        coded: Set[str] = frozenset(),
    ) -> None:
        """`ways` are the steps to each output, `results` what each is for, if rejected rows are to
        say so. `spark` computes what only Spark knows, `python` has the functions of the query.
        `coded` are columns of a chain without operators that may come out coded, as they came in.
        """
        tools = Tools(cache, state_bytes_max, want_late, spark, python, is_rehearsal)
        self._want_late = want_late
        self._results = results
        self._told = (*TOLD_OF_ROWS, RESULT_COLUMN) if results else TOLD_OF_ROWS
        self._ports = [Front(front, schema, tools, operators) for schema, front in ports]
        self.had_input = True  # there was some, here or in stages before; else the runtime says so
        # Where what came out of an operator, or in, is what an aggregate without keys goes by.
        self._single: dict[int, Schema] = {}
        if _makes_one_group((*ports[0][1], *operators[:1])):
            self._single[_INPUT] = ports[0][0]
        self._operators: list[Operator] = []
        self._names: list[str] = []  # of each operator
        self._behind: list[Front] = []  # of each operator
        self._build(operators, tools, coded)
        self.output_schema = (self._behind or self._ports)[-1].schema
        self._ways = [Front(steps, self.output_schema, tools) for steps in ways]
        for way in self._ways:
            way.close()
        # A partial aggregate on the way has its one group of a batch without rows too.
        self._hands_on_empty = not self._operators and any(way.steps for way in self._ways)
        self._ways_make_one_group = any(map(_makes_one_group, ways))
        self._aside = Aside()
        self._counts = {"in": 0, "out": 0, "late": 0, "rejected": 0}

    # --- building ---------------------------------------------------------------------------------

    def _build(self, specs: Sequence[OperatorSpec], tools: Tools, coded: Set[str]) -> None:
        fronts = self._ports
        rest = tuple(specs)
        is_final = True  # each row, or that it goes
        while rest:
            spec, *after = rest
            assert is_stateful(spec), "what stands before the first operator is a port's"
            if not is_final:
                raise ExpressionError(
                    "an aggregate whose rows change feeds another operator by their changes"
                )
            is_final = spec.mode == "append" or spec.changes
            steps, rest = cut_at_state(after)
            self._operators.append(self._operator(spec, fronts, tools))
            schemas = [front.schema for front in fronts[: spec.ports]]
            schema = spec.output_schema(*schemas)
            if _makes_one_group((*steps, *rest[:1])):
                self._single[len(self._behind)] = schema
            fronts = [Front(steps, schema, tools, rest)]
            if fronts[0].delay_us is not None:
                raise ExpressionError(
                    "a watermark is defined before the first state, not behind it"
                )
            self._behind += fronts
        for front in fronts:
            front.close(frozenset() if specs else coded)

    def _operator(self, spec: StatefulSpec, fronts: Sequence[Front], tools: Tools) -> Operator:
        if not spec.fuses or len(fronts) > spec.ports:  # then it takes the rows of all alike
            for front in fronts:
                front.close()
        name = operator_name(spec, len(self._operators))
        self._names.append(name)
        return OPERATORS[type(spec)](name, spec, [front.fusion for front in fronts], tools)

    def explain(self) -> list[tuple[str, str]]:
        """Each expression and what computes it: `numba`, `arrow`, `python` or `spark`."""
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
        for way in self._ways:
            yield from way.steps

    def use_static(self, side: str, static: StaticRows, keys: KeyRange | None = None) -> None:
        """From here on, rows are joined with this version of a static side.

        Processors that begin with its rows take those with keys of this range.
        """
        for step in self._steps():
            if isinstance(step, StaticJoin) and step.side == side:
                step.use(static)
        for operator in self._operators:
            operator.use_static(side, static, keys)

    @property
    def states(self) -> dict[str, State]:
        """All states of all operators."""
        return {name: state for each in self._operators for name, state in each.states.items()}

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
        passed = sum(front.rows_passed for front in (*self._ports, *self._behind, *self._ways))
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
        front, collect_bad = self._ports[port], on_bad_row == "reject"
        made, prepared, bad = self._prepare(0, port, front, batch, watermark_us, collect_bad)
        if bad:
            batch, rejected = self._without(batch, bad, None)
            made, prepared, _ = self._prepare(0, port, front, batch, watermark_us, False)
        self._aside.observed += front.observed()
        times = [*(each.max_event_time_us for each in made), prepared.max_event_time_us]
        batches = self._enter(0, port, prepared, collect_bad)
        self._counts["late"] += prepared.late_rows
        return ChainOutput(
            self._counted(batches),
            prepared.late_rows,
            prepared.late,
            max((time for time in times if time is not None), default=None),
            rejected,
        )

    def begin_input(self, on_bad_row: OnBadRow = "raise") -> Batches:
        """There was input, of which no row may come as far as to an aggregate without keys."""
        self.had_input = True
        emitted: list[pa.RecordBatch] = []
        for at, schema in self._single.items():
            nothing = no_rows(arrow_schema(schema))
            if at == _INPUT:
                emitted += self.process(nothing, None, on_bad_row).batches
            else:
                emitted += self._counted(self._follow(at, nothing, on_bad_row == "reject"))
        if self._ways_make_one_group:
            emitted.append(no_rows(arrow_schema(self.output_schema)))
        return tuple(emitted)

    def take_aside(self) -> Aside:
        """What operators made since the last call and was late for the next, or failed; and what
        was observed."""
        taken, self._aside = self._aside, Aside()
        return taken

    def on_watermark(
        self,
        watermark_us: int,
        of_ports_us: Sequence[int] | None = None,
        on_bad_row: OnBadRow = "raise",
    ) -> Batches:
        """Emit what event time finishes: that of all ports together, and of each."""
        given = (watermark_us,) * len(self._ports) if of_ports_us is None else of_ports_us
        emitted: list[pa.RecordBatch] = []
        for index, operator in enumerate(self._operators):
            # By the end alone an aggregate without keys would have its row.
            is_told = self.had_input or index - 1 not in self._single
            # Later operators take these rows before the watermark reaches them.
            for rows in operator.on_watermark(watermark_us, given) if is_told else ():
                emitted += self._follow(index, rows, on_bad_row == "reject")
            watermark_us = moved_back(watermark_us, operator.behind_us)
            given = (watermark_us,)
        return self._counted(emitted)

    def tell_time(self, now_us: int) -> None:
        """What the clock shows, for what is processed from here on."""
        for operator in self._operators:
            operator.now_us = max(now_us, operator.now_us)  # it never goes back

    def due_us(self) -> int | None:
        """When `on_time` is to be called; None: not by the clock."""
        dues = [operator.due_us() for operator in self._operators]
        return min((due for due in dues if due is not None), default=None)

    def on_time(self, on_bad_row: OnBadRow = "raise") -> Batches:
        """Emit what is due by the time that was told last."""
        emitted: list[pa.RecordBatch] = []
        for index, operator in enumerate(self._operators):
            for rows in operator.on_time():
                emitted += self._follow(index, rows, on_bad_row == "reject")
        return self._counted(emitted)

    def owes_whole_result(self) -> bool:
        """Whether `on_commit` is to emit all that complete mode has; a filter may leave nothing."""
        return any(operator.owes_whole_result() for operator in self._operators)

    def on_commit(self, on_bad_row: OnBadRow = "raise") -> Batches:
        """Emit what update and complete mode owe at a commit; call it before taking changes."""
        emitted: list[pa.RecordBatch] = []
        for index, operator in enumerate(self._operators):
            for rows in operator.on_commit():
                emitted += self._follow(index, rows, on_bad_row == "reject")
        return self._counted(emitted)

    def outputs(
        self, batch: pa.RecordBatch, on_bad_row: OnBadRow = "raise"
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """What each output gets of rows that came out, by its number.

        A row that fails on the way to one of them is rejected for that one; the others get it.
        """
        for number, way in enumerate(self._ways):
            made, bad = way.run(batch, on_bad_row == "reject")
            if bad:
                maker = self._names[-1] if self._names else None
                rest, rejected = self._without(batch, bad, maker, self._results[number:][:1])
                self._aside.rejected.append(rejected)
                made, _ = way.run(rest, False)
            self._aside.observed += way.observed()
            if made[-1].batch.num_rows:
                yield number, made[-1].batch

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

    def _follow(self, index: int, batch: pa.RecordBatch, collect_bad: bool) -> Batches:
        """Rows that an operator emitted, through the rest of the chain."""
        front = self._behind[index]
        _, prepared, bad = self._prepare(index + 1, 0, front, batch, None, collect_bad)
        if bad:
            batch, rejected = self._without(batch, bad, self._names[index])
            self._aside.rejected.append(rejected)
            _, prepared, _ = self._prepare(index + 1, 0, front, batch, None, False)
        self._aside.observed += front.observed()
        self._counts["late"] += prepared.late_rows
        self._aside.late_rows += prepared.late_rows
        if prepared.late is not None:
            self._aside.late.append(prepared.late)
        return self._enter(index + 1, 0, prepared, collect_bad)

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
        operator, rows = self._operators[index], made[-1].batch
        late = operator.is_late(port, rows, watermark_us)
        late_rows = 0 if late is None else late.true_count
        if not late_rows:
            prepared = operator.prepare(port, rows, watermark_us, collect_bad)
            note_bad(bad, made, prepared.bad)
            return made, prepared, bad
        timely = pc.invert(late)
        prepared = operator.prepare(port, rows.filter(timely), watermark_us, collect_bad)
        places = np.flatnonzero(timely)
        note_bad(bad, made, {int(places[row]): error for row, error in prepared.bad.items()})
        kept = rows.filter(late) if self._want_late else None
        return made, replace(prepared, late_rows=late_rows, late=kept), bad

    def _enter(self, index: int, port: int, prepared: Prepared, collect_bad: bool) -> Batches:
        """Let an operator take what was prepared for it, or hand it out."""
        if index == len(self._operators):
            return (prepared.rows,) if prepared.rows.num_rows or self._hands_on_empty else ()
        emitted: list[pa.RecordBatch] = []
        for rows in self._operators[index].process(port, prepared):
            emitted += self._follow(index, rows, collect_bad)
        return tuple(emitted)

    def _without(
        self,
        batch: pa.RecordBatch,
        bad: Mapping[int, RowError],
        operator: str | None,
        ways: Sequence[Sequence[str]] | None = None,
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The batch without its bad rows, and these with who made them, their errors, and for which
        results these `ways` are; None: all ways.

        A row that goes fails as it did when it came, and was rejected then.
        """
        rows = sorted(bad)
        mask = np.ones(batch.num_rows, np.bool_)
        mask[rows] = False
        if WEIGHT_COLUMN in batch.schema.names:
            weights = batch.column(WEIGHT_COLUMN).take(pa.array(rows, pa.int64())).to_pylist()
            rows = [row for row, weight in zip(rows, weights, strict=True) if weight > 0]
        self._counts["rejected"] += len(rows)
        failed = batch.take(pa.array(rows, pa.int64()))
        columns = {
            told_apart(name, column.type) if name in self._told else name: column
            for name, column in zip(failed.schema.names, map(plain, failed.columns), strict=True)
        }
        columns.pop(WEIGHT_COLUMN, None)
        if operator is not None:
            columns[OPERATOR_COLUMN] = pa.array([operator] * len(rows), pa.string())
        if self._results:
            missing = {name for way in (self._results if ways is None else ways) for name in way}
            columns[RESULT_COLUMN] = pa.array([", ".join(sorted(missing))] * len(rows), pa.string())
        columns[ERROR_COLUMN] = pa.array([bad[row].message for row in rows], pa.string())
        rejected = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        return batch.filter(pa.array(mask)), rejected


def told_apart(name: str, type: pa.DataType) -> str:
    """What a column of a rejected row is called where another one has its name."""
    return f"{name}#{from_arrow(type)}"


def _makes_one_group(specs: Sequence[OperatorSpec]) -> bool:
    """Whether one of them is an aggregate without keys and window, which has a row of no rows."""
    return any(
        isinstance(spec, AggregateSpec | PartialAggregateSpec) and spec.has_one_group
        for spec in specs
    )
