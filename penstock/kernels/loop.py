"""One fused loop as source text: filters, then projections or partial aggregation, row by row.

The loop evaluates everything that may fail before it changes anything, and stops at the row where
it cannot go on: a row that fails, a sum that overflows, a group table that is full. It leaves its
counters in `meta` and returns that row, so that the caller can act and call again from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from penstock.expressions.emitter import INT64_MIN, Emitter, Value
from penstock.expressions.nodes import is_branchless
from penstock.expressions.tree import Column, Expression, columns_of
from penstock.expressions.types import DataType
from penstock.expressions.writers import table_shape
from penstock.kernels.accumulators import ACCUMULATORS, LoopTotal
from penstock.kernels.columns import dtype_of
from penstock.kernels.hashing import GOLDEN, MIX_1, MIX_2, NULL_WORD, SEED

# Places in `meta`.
GROUPS, LATEST, LATE, KEPT, STATUS, META_SIZE = range(6)
# Values of STATUS.
RUNNING, ROW_FAILED, SUM_OVERFLOWED, TABLE_FULL = range(4)
NO_TIME_US = INT64_MIN

BLOCK_ROWS = 1024  # rows filtered at a time: their numbers stay in the first-level cache
_CANONICAL_NAN = 0x7FF8000000000000
PANE_MULTIPLIER = 0xC2B2AE3D27D4EB4F


@dataclass(frozen=True, slots=True)
class LoopKey:
    """One key. A coded one is a batch's dictionary index; its hash words come as an array."""

    expression: Expression
    coded: bool = False


@dataclass(frozen=True, slots=True)
class LoopGrouping:
    """What to group by and what to accumulate: (name of an accumulator's function, argument).

    A row whose time is outside `times_us` fails.
    """

    keys: tuple[LoopKey, ...]
    time: Expression | None
    pane_us: int
    start_us: int
    accumulators: tuple[tuple[str, Expression | None], ...]
    times_us: tuple[int, int] | None = None  # whole panes, the last microsecond included


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """What one loop computes. `event_time`: an expression, and after how many filters it counts."""

    filters: tuple[Expression, ...]
    outputs: tuple[Expression, ...] = ()
    event_time: tuple[Expression, int] | None = None
    grouping: LoopGrouping | None = None

    @property
    def expressions(self) -> tuple[Expression, ...]:
        found = [*self.filters, *self.outputs]
        if self.event_time is not None:
            found.append(self.event_time[0])
        if self.grouping is not None:
            found += [key.expression for key in self.grouping.keys]
            if self.grouping.time is not None:
                found.append(self.grouping.time)
            found += [arg for _, arg in self.grouping.accumulators if arg is not None]
        return tuple(found)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The distinct columns that the loop reads."""
        names: dict[str, Column] = {}
        for expression in self.expressions:
            for column in columns_of(expression):
                names.setdefault(column.name, column)
        return tuple(names.values())


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of the function: its name, Numba type and what the caller must put there."""

    name: str
    numba_type: str
    role: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class LoopSource:
    """The text of a kernel's module and how to call it."""

    text: str
    parameters: tuple[Parameter, ...]
    tables: tuple[Expression, ...]
    output_nullable: tuple[bool, ...]
    accumulator_nullable: tuple[bool, ...]


def _array(dtype: str, read_only: bool) -> str:
    return f'nt.Array(nt.{dtype}, 1, "C", readonly={read_only})'


def _numba_dtype(data_type: DataType) -> str:
    name = dtype_of(data_type).name
    return "boolean" if name == "bool" else name


@dataclass
class _LoopWriter:
    spec: LoopSpec
    nulls: bool
    parameters: list[Parameter] = field(default_factory=list)
    output_nullable: list[bool] = field(default_factory=list)
    accumulator_nullable: list[bool] = field(default_factory=list)

    def write(self) -> LoopSource:
        columns = self.spec.columns
        names = {column.name: f"c{index}" for index, column in enumerate(columns)}
        self.emit = Emitter(names, self.nulls, fail=lambda emit: self._exit(ROW_FAILED, emit))
        self._add("start", "nt.int64", "start")
        self._add("stop", "nt.int64", "stop")
        for index, column in enumerate(columns):
            self._add(f"c{index}", _array(_numba_dtype(column.type), True), "column", index)
            if self.nulls:
                self._add(f"c{index}_valid", _array("boolean", True), "validity", index)
        self._prologue()
        self._rows()
        self._save(RUNNING)
        self.emit.line("return stop")
        self._table_parameters()
        self._add("meta", _array("int64", False), "meta")
        tables = tuple(call for _, call in self.emit.tables.values())
        return LoopSource(
            self._module(),
            tuple(self.parameters),
            tables,
            tuple(self.output_nullable),
            tuple(self.accumulator_nullable),
        )

    # --- the frame of the function ----------------------------------------------------------------

    def _add(self, name: str, numba_type: str, role: str, index: int = 0) -> None:
        self.parameters.append(Parameter(name, numba_type, role, index))

    def _table_parameters(self) -> None:
        for index, (name, call) in enumerate(self.emit.tables.values()):
            shape = table_shape(call)
            kind = _array(_numba_dtype(call.type), True)
            self._add(f"{name}_values", kind, "table_values", index)
            if shape.dense:
                self._add(f"{name}_first", "nt.int64", "table_first", index)
            else:
                self._add(f"{name}_keys", _array("int64", True), "table_keys", index)
            if shape.holes:
                self._add(f"{name}_valid", _array("boolean", True), "table_valid", index)

    def _module(self) -> str:
        names = ", ".join(parameter.name for parameter in self.parameters)
        types = ",\n        ".join(parameter.numba_type for parameter in self.parameters)
        described = "\n".join(f"#   {text}" for text in self._description())
        body = "\n".join(self.emit.lines)
        return (
            f"# A fused loop over the rows of one batch.\n{described}\n"
            "import numpy as np\n"
            "from numba import njit\n"
            "from numba import types as nt\n\n\n"
            f"@njit(\n    nt.int64(\n        {types},\n    ),\n"
            '    cache=True, nogil=True, error_model="numpy",\n)\n'
            f"def kernel({names}):\n{body}\n"
        )

    def _description(self) -> list[str]:
        spec, lines = self.spec, []
        lines += [f"filter {expression}" for expression in spec.filters]
        if spec.event_time is not None:
            expression, after = spec.event_time
            lines.append(f"event time {expression} after {after} filters")
        lines += [f"output {expression}" for expression in spec.outputs]
        if spec.grouping is not None:
            grouping = spec.grouping
            lines += [f"key {key.expression}" for key in grouping.keys]
            if grouping.time is not None:
                lines.append(
                    f"pane of {grouping.time}: {grouping.pane_us} us from {grouping.start_us} us"
                )
            lines += [f"{name}({arg or '*'})" for name, arg in grouping.accumulators]
        lines.append("columns with nulls" if self.nulls else "columns without nulls")
        # One line each and no line breaks: names of columns are data, not source.
        return [line.encode("unicode_escape").decode("ascii")[:200] for line in lines]

    def _prologue(self) -> None:
        line = self.emit.line
        line("start = max(start, 0)")
        if self.spec.event_time is not None:
            line(f"latest = meta[{LATEST}]")
        if self.spec.grouping is None:
            line(f"kept = meta[{KEPT}]")
            return
        line(f"groups = np.int64(meta[{GROUPS}])")
        line("group = np.int64(-1)")
        for index in range(len(self.spec.grouping.keys)):
            line(f"last{index} = np.int64(0)")
        if self._key_nulls:
            line("last_nulls = np.int64(-1)")
        if self.spec.grouping.time is not None:
            line(f"late = meta[{LATE}]")
            line(f"last_pane = np.int64({INT64_MIN})")
            line("pane = np.int64(0)")
            line("pane_start = np.int64(0)")
            line("pane_length = np.uint64(0)")  # nothing lies in an empty pane: the first row looks

    @property
    def _key_nulls(self) -> bool:
        """Whether keys may be null: always possible once columns have nulls or a lookup misses."""
        grouping = self.spec.grouping
        assert grouping is not None
        return bool(grouping.keys) and (
            self.nulls or any(_may_be_null(key.expression) for key in grouping.keys)
        )

    def _save(self, status: int, emit: Emitter | None = None) -> None:
        line = (emit or self.emit).line
        if self.spec.event_time is not None:
            line(f"meta[{LATEST}] = latest")
        if self.spec.grouping is None:
            line(f"meta[{KEPT}] = kept")
        else:
            line(f"meta[{GROUPS}] = groups")
            if self.spec.grouping.time is not None:
                line(f"meta[{LATE}] = late")
        line(f"meta[{STATUS}] = {status}")

    def _exit(self, status: int, emit: Emitter | None = None) -> None:
        self._save(status, emit)
        (emit or self.emit).line("return row")

    # --- rows -------------------------------------------------------------------------------------

    def _rows(self) -> None:
        ahead = self._filters_ahead()
        if ahead == 0:
            with self.emit.block("for row in range(start, stop):"):
                self._event_time(0)
                self._row(0)
            return
        self._add("selected", _array("uint32", False), "selected")
        self.emit.line("block = start")
        with self.emit.block("while block < stop:"):
            self.emit.line(f"block_stop = min(block + {BLOCK_ROWS}, stop)")
            self.emit.line("count = 0")
            # The numbers of the rows that pass, gathered without a branch to mispredict.
            with self.emit.block("for row in range(block, block_stop):"):
                self._event_time(0)
                tests = [self.emit.condition(self.spec.filters[index]) for index in range(ahead)]
                self.emit.line("selected[count] = row")
                self.emit.line(f"count += {' & '.join(tests)}")
            with self.emit.block("for index in range(count):"):
                self.emit.line("row = np.int64(selected[index])")
                self._row(ahead)
            self.emit.line("block = block_stop")

    def _filters_ahead(self) -> int:
        """How many of the first filters are cheap and safe enough to do for a block at once."""
        if self.spec.event_time is not None:
            expression, after = self.spec.event_time
            if after == 0 and not is_branchless(expression):
                return 0
        count = 0
        for expression in self.spec.filters:
            if not is_branchless(expression):
                break
            if self.spec.event_time is not None and 0 < self.spec.event_time[1] <= count:
                break
            count += 1
        return count

    def _row(self, filters_done: int) -> None:
        for index in range(filters_done, len(self.spec.filters)):
            if index:
                self._event_time(index)
            test = self.emit.condition(self.spec.filters[index])
            self.emit.line(f"if not {test}:")
            self.emit.line("    continue")
        if self.spec.filters:
            self._event_time(len(self.spec.filters))
        if self.spec.grouping is None:
            self._outputs()
        else:
            self._group(self.spec.grouping)

    def _event_time(self, filters_done: int) -> None:
        if self.spec.event_time is None or self.spec.event_time[1] != filters_done:
            return
        time = self.emit.value(self.spec.event_time[0])
        if time.null == "False":
            self.emit.line(f"latest = max(latest, {time.code})")
        elif time.null != "True":
            with self.emit.block(f"if not {time.null}:"):
                self.emit.line(f"latest = max(latest, {time.code})")

    def _outputs(self) -> None:
        values = [self.emit.value(expression) for expression in self.spec.outputs]
        self._add("kept_rows", _array("int64", False), "kept_rows")
        self.emit.line("kept_rows[kept] = row")
        for index, (expression, value) in enumerate(zip(self.spec.outputs, values, strict=True)):
            self._add(f"o{index}", _array(_numba_dtype(expression.type), False), "output", index)
            self.emit.line(f"o{index}[kept] = {value.code}")
            self.output_nullable.append(value.null != "False")
            if value.null != "False":
                self._add(f"o{index}_valid", _array("boolean", False), "output_valid", index)
                self.emit.line(f"o{index}_valid[kept] = not {value.null}")
        self.emit.line("kept += 1")

    # --- grouping ---------------------------------------------------------------------------------

    def _group(self, grouping: LoopGrouping) -> None:
        if grouping.time is not None:
            self._pane(grouping, grouping.time)
        keys = [self._key(key) for key in grouping.keys]
        nulls = self._null_bits(keys)
        arguments = [
            None if argument is None else self.emit.value(argument)
            for _, argument in grouping.accumulators
        ]
        for index, argument in enumerate(arguments):
            self._accumulator_parameters(index, *grouping.accumulators[index], argument)
        self._find_group(grouping, keys, nulls)
        self.emit.line("group_rows[group] += 1")
        for index, argument in enumerate(arguments):
            function, expression = grouping.accumulators[index]
            self._accumulate(index, function, expression, argument)

    def _pane(self, grouping: LoopGrouping, time: Expression) -> None:
        self._add("closed_pane", "nt.int64", "closed_pane")
        self._add("late_rows", _array("int64", False), "late_rows")
        line = self.emit.line
        value = self.emit.value(time)
        if value.null == "True":
            line("continue")
            value = Value("np.int64(0)")
        elif value.null != "False":
            line(f"if {value.null}:")  # a row without a time is in no window
            line("    continue")
        into_pane = f"np.uint64({value.code}) - np.uint64(pane_start)"
        with self.emit.block(f"if {into_pane} >= pane_length:"):
            if grouping.times_us is not None:
                first_us, last_us = grouping.times_us
                self.emit.fail_if(f"{value.code} < {first_us} or {value.code} > {last_us}")
            start = f" - {grouping.start_us}" if grouping.start_us else ""
            line(f"next_pane = ({value.code}{start}) // {grouping.pane_us}")
            with self.emit.block("if next_pane <= closed_pane:"):
                with self.emit.block("if late < late_rows.size:"):
                    line("late_rows[late] = row")
                line("late += 1")
                line("continue")
            line("pane = next_pane")
            line(f"pane_start = pane * {grouping.pane_us} + {grouping.start_us}")
            line(f"pane_length = np.uint64({grouping.pane_us})")

    def _key(self, key: LoopKey) -> Value:
        value = self.emit.value(key.expression)
        if key.expression.type.is_fractional:
            wide = self.emit.let(f"np.float64({value.code}) + 0.0")
            word = self.emit.let(f"np.float64({wide}).view(np.int64)")
            with self.emit.block(f"if {wide} != {wide}:"):
                self.emit.line(f"{word} = np.int64({_CANONICAL_NAN})")
        else:
            word = self.emit.let(f"np.int64({value.code})")
        if value.null not in ("False", "True"):
            with self.emit.block(f"if {value.null}:"):
                self.emit.line(f"{word} = np.int64(0)")
        return Value(word, value.null)

    def _null_bits(self, keys: list[Value]) -> str | None:
        if not self._key_nulls:
            assert all(key.null == "False" for key in keys)
            return None
        bits = []
        for index, key in enumerate(keys):
            if key.null == "True":
                bits.append(str(1 << index))
            elif key.null != "False":
                bits.append(f"(np.int64({key.null}) << {index})")
        return self.emit.let("np.int64(" + (" | ".join(bits) or "0") + ")", "nulls")

    def _find_group(self, grouping: LoopGrouping, keys: list[Value], nulls: str | None) -> None:
        words = [key.code for key in keys]
        same = [("last" + str(index), word) for index, word in enumerate(words)]
        if nulls is not None:
            same.append(("last_nulls", nulls))
        if grouping.time is not None:
            same.append(("last_pane", "pane"))
        test = " or ".join(f"{last} != {now}" for last, now in same)
        test = f"alone or group < 0 or {test}" if test else "alone or group < 0"
        with self.emit.block(f"if {test}:"):
            self._probe(grouping, keys, nulls)
            for last, now in same:
                self.emit.line(f"{last} = {now}")

    def _probe(self, grouping: LoopGrouping, keys: list[Value], nulls: str | None) -> None:
        line = self.emit.line
        self._group_parameters(grouping)
        line("mixed = np.uint64(0)")
        if grouping.time is not None:
            line(f"mixed = np.uint64(pane) * np.uint64({PANE_MULTIPLIER})")
        for index, key in enumerate(keys):
            if index:
                line("mixed ^= mixed >> np.uint64(32)")
            line(f"mixed = (mixed ^ np.uint64({key.code})) * np.uint64({GOLDEN})")
        if not keys:
            line(f"mixed *= np.uint64({GOLDEN})")
        equal = [f"group_word{index}[group] == {key.code}" for index, key in enumerate(keys)]
        if nulls is not None:
            equal.append(f"group_nulls[group] == {nulls}")
        if grouping.time is not None:
            equal.append("group_pane[group] == pane")
        line("slot = np.int64(mixed >> shift)")
        with self.emit.block("while True:"):
            line("group = np.int64(table[slot])")
            with self.emit.block("if alone or group < 0:"):
                self._new_group(grouping, keys, nulls)
                line("break")
            line(f"if {' and '.join(equal) or 'True'}:")
            line("    break")
            line("slot = (slot + 1) & (table.size - 1)")

    def _group_parameters(self, grouping: LoopGrouping) -> None:
        for index, key in enumerate(grouping.keys):
            if key.coded:
                self._add(f"key{index}_words", _array("uint64", True), "key_words", index)
            self._add(f"group_word{index}", _array("int64", False), "group_word", index)
        if self._key_nulls:
            self._add("group_nulls", _array("int64", False), "group_nulls")
        if grouping.time is not None:
            self._add("group_pane", _array("int64", False), "group_pane")
        self._add("group_hash", _array("uint32", False), "group_hash")
        self._add("group_slot", _array("int32", False), "group_slot")
        self._add("group_rows", _array("int64", False), "group_rows")
        self._add("alone", "nt.boolean", "alone")  # every row is a group of its own
        self._add("table", _array("int32", False), "table")
        self._add("shift", "nt.uint64", "shift")

    def _new_group(self, grouping: LoopGrouping, keys: list[Value], nulls: str | None) -> None:
        line = self.emit.line
        with self.emit.block("if groups == group_rows.size:"):
            self._exit(TABLE_FULL)
        line("group = groups")
        line("groups += 1")
        line("table[slot] = group")
        line("group_slot[group] = slot")
        line("group_rows[group] = 0")
        for index, key in enumerate(keys):
            line(f"group_word{index}[group] = {key.code}")
        if nulls is not None:
            line(f"group_nulls[group] = {nulls}")
        if grouping.time is not None:
            line("group_pane[group] = pane")
        self._hash(grouping, keys)
        for index, (function, argument) in enumerate(grouping.accumulators):
            row = ACCUMULATORS[function]
            if row.write is not None:
                line(f"a{index}[group] = {row.first_code(argument)}")
            if self.accumulator_nullable[index]:
                line(f"a{index}_valid[group] = False")

    def _hash(self, grouping: LoopGrouping, keys: list[Value]) -> None:
        line = self.emit.line
        line(f"state = np.uint64({SEED})")
        for index, key in enumerate(keys):
            word = f"np.uint64({key.code})"
            if grouping.keys[index].coded:
                word = f"key{index}_words[{key.code}]"
            line(f"word = np.uint64({NULL_WORD})")
            if key.null == "False":
                line(f"word = {word}")
            elif key.null != "True":
                line(f"if not {key.null}:")
                line(f"    word = {word}")
            line(f"state = (state ^ word) + np.uint64({GOLDEN})")
            line(f"state = (state ^ (state >> np.uint64(30))) * np.uint64({MIX_1})")
            line(f"state = (state ^ (state >> np.uint64(27))) * np.uint64({MIX_2})")
            line("state ^= state >> np.uint64(31)")
        line("group_hash[group] = np.uint32(state >> np.uint64(32))")

    def _accumulator_parameters(
        self, index: int, function: str, expression: Expression | None, argument: Value | None
    ) -> None:
        row = ACCUMULATORS[function]
        nullable = argument is not None and argument.null != "False" and row.nullable
        self.accumulator_nullable.append(nullable)
        if row.write is not None:
            self._add(f"a{index}", _array(row.dtype(expression), False), "accumulator", index)
        if nullable:
            self._add(f"a{index}_valid", _array("boolean", False), "accumulator_valid", index)

    def _accumulate(
        self, index: int, function: str, expression: Expression | None, argument: Value | None
    ) -> None:
        if argument is None or expression is None or argument.null == "True":
            return  # `rows` is the group's own number of rows; a null adds nothing
        write = ACCUMULATORS[function].write
        assert write is not None
        overflow = partial(self._exit, SUM_OVERFLOWED)
        total = LoopTotal(self.emit, f"a{index}[group]", expression.type, overflow)
        if argument.null == "False":
            write(total, argument.code)
            return
        with self.emit.block(f"if not {argument.null}:"):
            write(total, argument.code)
            if self.accumulator_nullable[index]:
                self.emit.line(f"a{index}_valid[group] = True")


def _may_be_null(expression: Expression) -> bool:
    """Whether the value can be null even if no column has nulls: then source tracks it."""
    return not isinstance(expression, Column)


def write_loop(spec: LoopSpec, nulls: bool) -> LoopSource:
    """The source of the loop, for columns with or without nulls."""
    return _LoopWriter(spec, nulls).write()
