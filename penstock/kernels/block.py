"""A block: adjacent stateless steps, and possibly an aggregation, as few passes over a batch.

What Numba can do is fused into one compiled loop; what only Arrow can do (strings, nested values)
is evaluated on the rows that earlier steps left, and handed to the loop as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrays import Mask, Numbers, Vector, validity_of, values_of
from penstock.errors import RowError, StateOverflow
from penstock.expressions.evaluate import evaluate_rows, evaluate_with_failures
from penstock.expressions.frame import row_error
from penstock.expressions.tree import (
    Call,
    Column,
    Expression,
    call,
    columns_of,
    literal,
    may_fail,
)
from penstock.expressions.types import BOOLEAN, INT, Field, Schema, arrow_schema
from penstock.expressions.vectors import arrow_column
from penstock.kernels.accumulators import ACCUMULATORS
from penstock.kernels.cache import KernelCache
from penstock.kernels.coding import coded
from penstock.kernels.columns import combined, is_fixed_width, plain
from penstock.kernels.compile import BlockLoop
from penstock.kernels.hashing import string_words
from penstock.kernels.loop import LoopGrouping, LoopKey, LoopSpec
from penstock.kernels.results import LoopGroups
from penstock.kernels.support import conjuncts, loosened, numba_supported
from penstock.loops import Hashes

PANE_NONE = -(1 << 63)  # no pane is closed


@dataclass(frozen=True, slots=True)
class BlockAggregate:
    """Group by keys and by panes of `time`; accumulate (function, argument) pairs.

    The functions are those of `ACCUMULATORS`. A row whose time is outside `times_us`, both ends
    included, fails.
    """

    keys: tuple[Expression, ...]
    time: Expression | None
    pane_us: int
    start_us: int
    aggregates: tuple[tuple[str, Expression | None], ...]
    times_us: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """What a block does with a batch of these columns.

    The filters apply in order. `event_time` is an expression, and how many filters a row has passed
    when its time counts. Then rows are projected to `outputs`, or aggregated.
    """

    columns: Schema
    filters: tuple[Expression, ...] = ()
    outputs: tuple[tuple[str, Expression], ...] = ()
    event_time: tuple[Expression, int] | None = None
    aggregate: BlockAggregate | None = None

    @property
    def results(self) -> tuple[Expression, ...]:
        """What is computed for a row that passed all filters."""
        if self.aggregate is None:
            return tuple(expression for _, expression in self.outputs)
        found = list(self.aggregate.keys)
        if self.aggregate.time is not None:
            found.insert(0, self.aggregate.time)
        return (*found, *(arg for _, arg in self.aggregate.aggregates if arg is not None))


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step made of a batch: the output rows of an input row, one or more, stand together."""

    batch: pa.RecordBatch
    rows: Numbers | None = None  # the input rows that have some; None: all of them
    max_event_time_us: int | None = None  # of the rows whose time counts
    bad_rows: tuple[int, ...] = ()  # input rows that fail, and are left out
    ends: Numbers | None = None  # where the output rows of each end; None: each has one
    has_origins: bool = True  # else nobody knows of which row an output row was made

    def origin(self, row: int) -> int:
        """The input row that an output row comes from."""
        if self.ends is not None:
            row = int(np.searchsorted(self.ends, row, side="right"))
        return row if self.rows is None else int(self.rows[row])


@dataclass(frozen=True, slots=True)
class Partials:
    """Accumulators per (key, pane), groups in the order of their first row.

    `words` is groups × keys; a string key's word is an index into its entry of `dictionaries`.
    """

    words: Numbers
    null_words: Numbers
    panes: Numbers
    hashes: Hashes
    values: list[Vector]
    validity: list[Mask | None]
    rows: Numbers
    late_rows: int
    late_mask: Mask | None
    max_event_time_us: int | None
    dictionaries: list[pa.Array | None]
    bad_rows: tuple[int, ...] = ()


@dataclass
class _Phase:
    """Filters for a compiled loop, then filters for Arrow; an event time among them."""

    loop_filters: list[Expression] = field(default_factory=list)
    event_time: tuple[Expression, int] | None = None
    arrow_filters: list[Expression] = field(default_factory=list)
    arrow_time: Expression | None = None

    @property
    def has_loop(self) -> bool:
        return bool(self.loop_filters) or self.event_time is not None

    def takes(self, condition: Expression) -> bool:
        """Whether a loop filter may join: none that fails may change places with another."""
        if not self.arrow_filters and self.arrow_time is None:
            return True
        movable = self.arrow_time is None and not may_fail(condition)
        return movable and not any(may_fail(other) for other in self.arrow_filters)


def _phases(spec: BlockSpec) -> list[_Phase]:
    """The filters in order, cut where Arrow and the loop must take turns."""
    phases = [_Phase()]
    for index in range(len(spec.filters) + 1):
        if spec.event_time is not None and spec.event_time[1] == index:
            _place_time(phases, spec.event_time[0])
        if index == len(spec.filters):
            break
        for condition in conjuncts(spec.filters[index]):
            if numba_supported(condition):
                _place_filter(phases, condition)
                continue
            # Most rows may leave before Arrow has to look at them: the filter of a stream that
            # several read is (kind = 1 and ...) or (kind = 2 and ...), as a rule.
            sooner = None if may_fail(condition) else loosened(condition)
            if sooner is not None:
                _place_filter(phases, sooner)
            if phases[-1].arrow_time is not None:
                phases.append(_Phase())
            phases[-1].arrow_filters.append(condition)
    return phases


def _place_filter(phases: list[_Phase], condition: Expression) -> None:
    if not phases[-1].takes(condition):
        phases.append(_Phase())
    phases[-1].loop_filters.append(condition)


def _place_time(phases: list[_Phase], time: Expression) -> None:
    if not numba_supported(time):
        phases[-1].arrow_time = time
        return
    if phases[-1].arrow_filters:
        phases.append(_Phase())
    phases[-1].event_time = (time, len(phases[-1].loop_filters))


class _Rows:
    """The rows of a batch on their way through the phases."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.count = batch.num_rows
        self.rows: Numbers | None = None
        self.bad: list[int] = []
        self.latest_us: int | None = None

    def origin(self, row: int) -> int:
        return row if self.rows is None else int(self.rows[row])

    def take(self, kept: Numbers, names: Sequence[str] | None = None) -> None:
        """Go on with these rows, and where names are given with these columns of them."""
        if len(kept) == self.count:
            return
        if names is not None:
            self.batch = self.batch.select(names)
        if self.batch.num_columns:
            self.batch = self.batch.take(pa.array(kept))
        self.count = len(kept)
        self.rows = kept if self.rows is None else self.rows[kept]

    def see(self, latest_us: int | None) -> None:
        if latest_us is not None:
            self.latest_us = latest_us if self.latest_us is None else max(latest_us, self.latest_us)

    def failed(self, rows: Sequence[int]) -> None:
        self.bad.extend(self.origin(row) for row in rows)


class Block:
    """Runs one BlockSpec. Without a cache everything is done by Arrow and NumPy."""

    def __init__(
        self, spec: BlockSpec, cache: KernelCache | None, coded: Set[str] = frozenset()
    ) -> None:
        """`coded` are outputs that may come out as codes, where they came in so."""
        self._keep_codes = coded
        self._told = spec  # with fields of structs as people know them
        self.spec, self._fields = _with_fields_apart(spec)
        phases = _phases(self.spec)
        self._extra: list[tuple[str, Expression]] = []  # columns that Arrow computes for the loop
        self._coded: dict[int, Expression] = {}  # string keys, by place
        grouping = None if self.spec.aggregate is None else self._grouping(self.spec.aggregate)
        self._outputs = self._loop_outputs() if grouping is None else ()
        last = phases.pop()
        if last.arrow_filters or last.arrow_time is not None or self._needs_arrow():
            phases.append(last)
            last = _Phase()
        self._phases = [(phase, self._phase_loop(phase, cache)) for phase in phases]
        if grouping is None and not last.loop_filters:
            # Columns that are passed on as they are need no loop.
            self._outputs = tuple(e for e in self._outputs if not isinstance(e, Column))
        self._passed = tuple(
            dict.fromkeys(
                e.name
                for _, e in self.spec.outputs
                if isinstance(e, Column) and e not in self._outputs
            )
        )
        outputs = self._outputs if grouping is None else ()
        self._final = LoopSpec(tuple(last.loop_filters), outputs, last.event_time, grouping)
        idle = grouping is None and not (outputs or last.loop_filters or last.event_time)
        self._loop = None if idle else BlockLoop(self._final, cache)

    def _phase_loop(self, phase: _Phase, cache: KernelCache | None) -> BlockLoop | None:
        if not phase.has_loop:
            return None
        return BlockLoop(LoopSpec(tuple(phase.loop_filters), (), phase.event_time), cache)

    def _loop_outputs(self) -> tuple[Expression, ...]:
        return tuple(dict.fromkeys(e for _, e in self.spec.outputs if numba_supported(e)))

    def _needs_arrow(self) -> bool:
        """Whether Arrow computes something for the rows that passed: the loop must keep them."""
        if self.spec.aggregate is not None:
            return bool(self._extra or self._coded)
        return not all(
            isinstance(expression, Column) or numba_supported(expression)
            for _, expression in self.spec.outputs
        )

    def _grouping(self, aggregate: BlockAggregate) -> LoopGrouping:
        keys = []
        for index, key in enumerate(aggregate.keys):
            if is_fixed_width(key.type):
                keys.append(LoopKey(self._for_loop(key)))
            else:
                self._coded[index] = key
                keys.append(LoopKey(Column(f"__key{index}", INT, True), coded=True))
        time = None if aggregate.time is None else self._for_loop(aggregate.time)
        accumulators = tuple(
            (function, None if argument is None else self._for_loop(_counted(argument)))
            for function, argument in aggregate.aggregates
        )
        return LoopGrouping(
            tuple(keys),
            time,
            aggregate.pane_us,
            aggregate.start_us,
            accumulators,
            aggregate.times_us,
        )

    def _for_loop(self, expression: Expression) -> Expression:
        """The expression itself, or the column that Arrow will have computed from it."""
        if numba_supported(expression):
            return expression
        for name, known in self._extra:
            if known == expression:
                return Column(name, expression.type, expression.nullable)
        name = f"__arrow{len(self._extra)}"
        self._extra.append((name, expression))
        return Column(name, expression.type, expression.nullable)

    def ask_for_kernels(self) -> None:
        """Load the kernels of all loops, or have them compiled, before a batch needs them."""
        for loop in self._loops():
            loop.ask_for_kernel()

    @property
    def is_compiled(self) -> bool:
        """Whether all loops of the block run compiled."""
        return all(loop.is_compiled for loop in self._loops())

    def _loops(self) -> list[BlockLoop]:
        loops = [*(loop for _, loop in self._phases), self._loop]
        return [loop for loop in loops if loop is not None]

    # --- explaining -------------------------------------------------------------------------------

    def explain(self) -> list[tuple[str, str]]:
        """Each expression and what computes it: `numba` or `arrow`."""
        told, done = (_expressions(spec) for spec in (self._told, self.spec))
        found = dict(zip(told, done, strict=True))
        return [(str(e), "numba" if numba_supported(by) else "arrow") for e, by in found.items()]

    def row_errors(self, batch: pa.RecordBatch, rows: Sequence[int]) -> list[RowError]:
        """Why rows fail, found by evaluating the block on these alone."""
        causes = self._causes(batch.take(pa.array(rows, pa.int64())))
        return [
            self._unexplained(row) if cause is None else row_error(row, *cause)
            for row, cause in zip(rows, causes, strict=True)
        ]

    def _unexplained(self, row: int) -> RowError:
        texts = "; ".join(text for text, _ in self.explain())
        return RowError(
            f"row {row}: a compiled expression failed where evaluating it alone does not: "
            f"{texts:.500}",
            row=row,
            expression=texts[:10_000],
        )

    def _causes(self, batch: pa.RecordBatch) -> list[tuple[str, str] | None]:
        """Of each row why and where it fails first, as one row after the other would."""
        causes: list[tuple[str, str] | None] = [None] * batch.num_rows
        rows = np.arange(batch.num_rows)
        for expression, role in self._in_order():
            (values,), failures = evaluate_with_failures([expression], batch)
            for row in np.flatnonzero(failures.bad).tolist():
                causes[rows[row]] = failures.cause(row)
            kept = ~failures.bad
            if role == "filter":
                kept &= values_of(values) & validity_of(values)
            elif role == "window":
                outside = kept & self._outside(values)
                for row in np.flatnonzero(outside).tolist():
                    time_us = values_of(values)[row]
                    reason = f"a window of the time {time_us} us would lie beyond 64 bits"
                    causes[rows[row]] = (reason, str(expression))
                kept &= ~outside
            batch, rows = batch.filter(pa.array(kept)), rows[kept]
        return causes

    def _in_order(self) -> Iterator[tuple[Expression, Literal["filter", "window", "value"]]]:
        """What is evaluated, one after the other, and what for."""
        spec = self._told
        for index in range(len(spec.filters) + 1):
            if spec.event_time is not None and spec.event_time[1] == index:
                yield spec.event_time[0], "value"
            if index < len(spec.filters):
                yield spec.filters[index], "filter"
        is_windowed = spec.aggregate is not None and spec.aggregate.time is not None
        for index, expression in enumerate(spec.results):
            yield expression, "window" if is_windowed and index == 0 else "value"

    def _outside(self, times: pa.Array) -> Mask:
        """Which times have no window."""
        aggregate = self.spec.aggregate
        if aggregate is None or aggregate.times_us is None:
            return np.zeros(len(times), np.bool_)
        times_us = values_of(times)
        inside = (times_us >= aggregate.times_us[0]) & (times_us <= aggregate.times_us[1])
        outside: Mask = ~inside & validity_of(times)
        return outside

    # --- running ----------------------------------------------------------------------------------

    def run(self, batch: pa.RecordBatch, collect_bad: bool = False) -> StepRows:
        """Filter and project. A row that fails raises, or is left out and named in `bad_rows`."""
        rows = self._through_phases(batch, collect_bad)
        computed: dict[Expression, pa.Array] = {}
        self._evaluate_outputs(rows, computed, batch, collect_bad)
        if self._loop is not None:
            result = self._loop.project(rows.batch, stop_at_failure=not collect_bad)
            self._note_failed(rows, batch, result.failed, collect_bad)
            rows.see(result.latest_us)
            if result.failed:  # what Arrow has computed for them goes too
                kept = pa.array(result.kept_rows)
                computed = {expression: array.take(kept) for expression, array in computed.items()}
            rows.take(result.kept_rows, self._passed)
            for expression, (values, valid) in zip(self._outputs, result.outputs, strict=True):
                computed[expression] = arrow_column(values, valid, expression.type)
        columns = [
            computed[e] if e in computed else self._passed_on(rows.batch, name, e)
            for name, e in self.spec.outputs
        ]
        fields = [Field(name, e.type, e.nullable) for name, e in self.spec.outputs]
        projected = _batch(columns, tuple(fields), rows.count)
        return StepRows(projected, rows.rows, rows.latest_us, tuple(sorted(rows.bad)))

    def _passed_on(self, batch: pa.RecordBatch, name: str, column: Expression) -> pa.Array:
        assert isinstance(column, Column)
        values = batch.column(column.name)
        return combined(values if name in self._keep_codes else plain(values))

    def aggregate(
        self,
        batch: pa.RecordBatch,
        closed_pane: int = PANE_NONE,
        want_late: bool = False,
        collect_bad: bool = False,
        alone: bool = False,
    ) -> Partials:
        """Filter and group. Rows of closed panes are late: counted, and marked if wanted.

        With `alone` every row becomes a group of its own, without a search for its like.
        """
        assert self._loop is not None
        assert self.spec.aggregate is not None
        rows = self._through_phases(batch, collect_bad)
        dictionaries, key_words = self._add_columns(rows, batch, collect_bad, alone)
        groups = self._loop.group(
            rows.batch, key_words, closed_pane, want_late, not collect_bad, alone
        )
        self._note_failed(rows, batch, groups.failed, collect_bad)
        if groups.overflow_row is not None:
            raise _overflow(self.spec.aggregate, rows.origin(groups.overflow_row))
        rows.see(groups.latest_us)
        return self._partials(rows, groups, dictionaries, batch.num_rows)

    def _partials(
        self,
        rows: _Rows,
        groups: LoopGroups,
        dictionaries: list[pa.Array | None],
        input_rows: int,
    ) -> Partials:
        late_mask: Mask | None = None
        if groups.late_rows is not None:
            late_mask = np.zeros(input_rows, np.bool_)
            late = groups.late_rows if rows.rows is None else rows.rows[groups.late_rows]
            late_mask[late] = True
        return Partials(
            words=groups.words,
            null_words=groups.null_words,
            panes=groups.panes,
            hashes=groups.hashes,
            values=groups.values,
            validity=groups.validity,
            rows=groups.rows,
            late_rows=groups.late_count,
            late_mask=late_mask,
            max_event_time_us=rows.latest_us,
            dictionaries=dictionaries,
            bad_rows=tuple(sorted(rows.bad)),
        )

    def _through_phases(self, batch: pa.RecordBatch, collect_bad: bool) -> _Rows:
        rows = _Rows(self._with_fields(batch))
        for phase, loop in self._phases:
            if loop is not None:
                result = loop.project(rows.batch, stop_at_failure=not collect_bad)
                self._note_failed(rows, batch, result.failed, collect_bad)
                rows.see(result.latest_us)
                rows.take(result.kept_rows)
            for condition in phase.arrow_filters:
                array = self._evaluated(rows, [condition], batch, collect_bad)[0]
                passed = values_of(array) & validity_of(array)
                rows.take(np.flatnonzero(passed))
            if phase.arrow_time is not None:
                array = self._evaluated(rows, [phase.arrow_time], batch, collect_bad)[0]
                rows.see(pc.max(array.cast(pa.int64())).as_py())
        return rows

    def _with_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are read, with fields of structs as columns of their own."""
        if not self._fields:
            return batch
        fields, _ = evaluate_with_failures(list(self._fields), batch)
        read = {column.name for e in _expressions(self.spec) for column in columns_of(e)}
        whole = [name for name in batch.schema.names if name in read]
        columns = [*map(batch.column, whole), *fields]
        return pa.RecordBatch.from_arrays(columns, [*whole, *self._fields.values()])

    def _evaluated(
        self,
        rows: _Rows,
        expressions: Sequence[Expression],
        batch: pa.RecordBatch,
        collect_bad: bool,
    ) -> list[pa.Array]:
        """Values on the rows still in; rows that fail leave."""
        arrays, bad, _ = evaluate_rows(expressions, rows.batch)
        if not bad.any():
            return arrays
        self._note_failed(rows, batch, np.flatnonzero(bad).tolist(), collect_bad)
        good = np.flatnonzero(~bad)
        rows.take(good)
        return [array.take(pa.array(good)) for array in arrays]

    def _note_failed(
        self, rows: _Rows, batch: pa.RecordBatch, failed: Sequence[int], collect_bad: bool
    ) -> None:
        if failed and not collect_bad:
            raise self.row_errors(batch, [rows.origin(failed[0])])[0]
        rows.failed(failed)

    def _evaluate_outputs(
        self,
        rows: _Rows,
        computed: dict[Expression, pa.Array],
        batch: pa.RecordBatch,
        collect_bad: bool,
    ) -> None:
        wanted = [
            e
            for e in dict.fromkeys(e for _, e in self.spec.outputs)
            if not isinstance(e, Column) and e not in self._outputs
        ]
        if wanted:
            arrays = self._evaluated(rows, wanted, batch, collect_bad)
            computed.update(zip(wanted, arrays, strict=True))

    def _add_columns(
        self, rows: _Rows, batch: pa.RecordBatch, collect_bad: bool, alone: bool
    ) -> tuple[list[pa.Array | None], dict[int, NDArray[np.uint64]]]:
        """The columns that Arrow computes, and string keys as codes of this batch's dictionary."""
        assert self.spec.aggregate is not None
        dictionaries: list[pa.Array | None] = [None] * len(self.spec.aggregate.keys)
        key_words: dict[int, NDArray[np.uint64]] = {}
        if not self._extra and not self._coded:
            return dictionaries, key_words
        keys = [key for key in self._coded.values() if not _comes_coded(key, rows.batch)]
        wanted = [*(e for _, e in self._extra), *keys]
        evaluated = dict(
            zip(wanted, self._evaluated(rows, wanted, batch, collect_bad), strict=True)
        )
        names = [name for name, _ in self._extra]
        columns = [combined(evaluated[e]) for _, e in self._extra]
        for index, key in self._coded.items():
            array = evaluated[key] if key in evaluated else rows.batch.column(key.name)  # type: ignore[union-attr]
            dictionary, codes = _coded(combined(array), alone)
            dictionaries[index] = dictionary
            words = string_words(dictionary).view(np.uint64)
            words.flags.writeable = False
            key_words[index] = words
            names.append(f"__key{index}")
            columns.append(codes)
        needed = {column.name for column in self._final.columns}
        for name in rows.batch.schema.names:
            if name in needed and name not in names:
                names.append(name)
                columns.append(rows.batch.column(name))
        if names:
            rows.batch = pa.RecordBatch.from_arrays(columns, names=names)
        return dictionaries, key_words


def _with_fields_apart(spec: BlockSpec) -> tuple[BlockSpec, dict[Expression, str]]:
    """The block with fields of structs read as columns, and what these are called.

    So a loop takes them, and who drops rows need not copy all fields of those that stay.
    """
    names: dict[Expression, str] = {}

    def apart(expression: Expression) -> Expression:
        if _is_field(expression):
            name = names.setdefault(expression, f"__field{len(names)}")
            return Column(name, expression.type, expression.nullable)
        if not isinstance(expression, Call):
            return expression
        args = tuple(map(apart, expression.args))
        return expression if args == expression.args else replace(expression, args=args)

    def group(aggregate: BlockAggregate) -> BlockAggregate:
        return replace(
            aggregate,
            keys=tuple(map(apart, aggregate.keys)),
            time=aggregate.time and apart(aggregate.time),
            aggregates=tuple((name, arg and apart(arg)) for name, arg in aggregate.aggregates),
        )

    done = replace(
        spec,
        filters=tuple(map(apart, spec.filters)),
        outputs=tuple((name, apart(expression)) for name, expression in spec.outputs),
        event_time=spec.event_time and (apart(spec.event_time[0]), spec.event_time[1]),
        aggregate=spec.aggregate and group(spec.aggregate),
    )
    return done, names


def _is_field(expression: Expression) -> bool:
    """Whether it is a field of a column, or of a field of one."""
    if not isinstance(expression, Call) or expression.function != "get_field":
        return False
    return isinstance(expression.args[0], Column) or _is_field(expression.args[0])


def _expressions(spec: BlockSpec) -> list[Expression]:
    """All that a block computes, filters in parts."""
    filters = [part for condition in spec.filters for part in conjuncts(condition)]
    times = [] if spec.event_time is None else [spec.event_time[0]]
    return [*filters, *times, *spec.results]


def _coded(column: pa.Array, alone: bool) -> tuple[pa.Array, pa.Array]:
    """A column as values and codes; each row has a code of its own where none is looked for."""
    if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
        column = plain(column)  # most of its values are of rows that filters have dropped
    if alone and not pa.types.is_dictionary(column.type):
        return column, pa.array(np.arange(len(column), dtype=np.int32), mask=~validity_of(column))
    encoded = coded(column)
    return encoded.dictionary, encoded.indices


def _comes_coded(key: Expression, batch: pa.RecordBatch) -> bool:
    return isinstance(key, Column) and pa.types.is_dictionary(batch.schema.field(key.name).type)


def _batch(columns: list[pa.Array], schema: Schema, rows: int) -> pa.RecordBatch:
    """A batch that keeps its number of rows even if it has no columns."""
    shape = arrow_schema(schema)
    if columns:
        for place, column in enumerate(columns):
            if pa.types.is_dictionary(column.type):
                shape = shape.set(place, shape.field(place).with_type(column.type))
        return pa.RecordBatch.from_arrays(columns, schema=shape)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _counted(argument: Expression) -> Expression:
    """What a loop accumulates: of a value that is no number it only counts whether it is there."""
    if is_fixed_width(argument.type):
        return argument
    is_there = call("is_not_null", argument)
    return call("if", is_there, literal(True, BOOLEAN), literal(None, BOOLEAN))


def _overflow(aggregate: BlockAggregate, row: int) -> StateOverflow:
    sums = ", ".join(
        f"{name}({arg})" for name, arg in aggregate.aggregates if ACCUMULATORS[name].may_overflow
    )
    return StateOverflow(
        f"row {row}: {sums} leaves 64 bits within one batch; nothing was changed. Cast the "
        "argument to a wider type or to double",
        row=row,
        expression=sums,
    )
