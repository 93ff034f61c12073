"""Python functions over the rows of a key, beside what they keep for it until they are asked again.

A batch is put in order by key once; the function is called for each key with its rows. Time comes
from outside: the watermark with the input, the clock as `now_us`. Both are in the marker with
what they gave rise to, so nothing that was shown is computed again by another time.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.errors import ExpressionError, FunctionFailed, RowError, StreamError
from penstock.expressions.evaluate import evaluate
from penstock.expressions.tree import Column, Expression, call
from penstock.expressions.types import DataType, arrow_schema, arrow_type
from penstock.kernels.columns import plain
from penstock.kernels.hashing import hash_columns
from penstock.operators.contract import TIME_NONE, Batches, Operator, Prepared, Tools
from penstock.operators.front import Fusion
from penstock.operators.ordering import levels, sorted_places
from penstock.operators.python_functions import PYTHON_CONDITION, Failure, failure_of
from penstock.operators.specs import PythonGroupsSpec, StateVariable
from penstock.operators.static_rows import StaticRows
from penstock.state.contract import KeyRange
from penstock.state.entries import EntryKind, EntryState, Key, column_tuples, tuple_columns

Numbers = NDArray[np.int64]

TIMERS = "timers"
KEY_CHARACTERS_MAX = 200
_PLAIN = re.compile("[A-Za-z0-9_]{1,64}")
FIRST_ROWS_US = 10_000_000  # so long rows are waited for to begin with
AGAIN_US = 100_000  # until a key is asked again that was told of its time and left it as it was


class PythonGroups(Operator):
    """Calls the function of a spec; its states are what the function keeps, by key.

    A key whose call fails is as it was before, and its rows of the batch fail. What calls of a
    batch change counts when the chain lets it be processed; asked again, without rows that fail,
    they begin with what was before.
    """

    def __init__(
        self, name: str, spec: PythonGroupsSpec, fusions: Sequence[Fusion], tools: Tools
    ) -> None:
        self._spec = spec
        self._tools = tools
        self._output = arrow_schema(spec.outputs)
        bytes_max = tools.state_bytes_max
        self._variables = {
            variable.name: entry_state(name, spec, variable, bytes_max)
            for variable in spec.variables
        }
        self._timers: EntryState | None = None
        if has_timers(spec):
            self._timers = timer_state(name, spec, bytes_max)
        timers = [] if self._timers is None else [self._timers]
        self._stores = [*self._variables.values(), *timers]
        self.states = {state.name: state for state in self._stores}
        self._watermark_us: int | None = None
        self._fired_us = -1  # when it was last called for what was due
        self._is_open = False
        self._first: Groups | None = None  # what keys begin with, until they have
        self._has_begun = spec.initial is None
        self._waits_since_us: int | None = None

    # --- rows -------------------------------------------------------------------------------------

    def is_late(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None
    ) -> pa.BooleanArray | None:
        known = [mark for mark in (watermark_us, self._watermark_us) if mark is not None]
        if self._spec.time is None or not known:
            return None
        times = plain(batch.column(str(self._spec.time))).cast(pa.int64())
        return pc.fill_null(pc.less_equal(times, max(known)), False)

    def prepare(
        self, port: int, batch: pa.RecordBatch, watermark_us: int | None, collect_bad: bool
    ) -> Prepared:
        for state in self._stores:
            state.take_back()
        if self._tools.is_rehearsal or not batch.num_rows:
            return Prepared(())
        if watermark_us is not None:
            self._watermark_us = max(watermark_us, self._watermark_us or TIME_NONE)
        groups = Groups(self._spec.key_names, self._spec.call.input_names, batch)
        self._begin()
        self._begin_keys()
        self._calls.give(self._calls.loaded.as_given(groups.rows), groups.starts)
        made: list[tuple[int, list[Any]]] = []
        failures: dict[int, Failure] = {}
        for at, (key, start, end) in enumerate(groups):
            results = self._attempt(at, failures, partial(self._calls.call, key, start, end))
            if failures and not collect_bad:
                break
            made.append((at, results or []))
        table = self._table(made, failures)
        if not failures:
            self._check_times(table)
            return Prepared((table,) if table.num_rows else ())
        bad = self._errors(groups, failures)
        if not collect_bad:
            raise bad[min(bad)]
        return Prepared((), bad=bad)

    def _attempt(self, at: int, failures: dict[int, Failure], run: Callable[[], Any]) -> Any:
        """What a call gives, None if it fails."""
        function = self._calls.loaded
        try:
            return run()
        except BaseException as error:
            function.check_process()
            if isinstance(error, StreamError):
                raise
            function.check_imports(error)
            failures.setdefault(at, failure_of(error))
            return None
        finally:
            function.check_process()

    def _table(
        self, made: Sequence[tuple[int, list[Any]]], failures: dict[int, Failure]
    ) -> pa.RecordBatch:
        """The rows of all results; where they do not fit the declared columns, whose they are."""
        unknown: dict[int, Failure] = {}
        everything = [each for _, results in made for each in results]
        table = self._attempt(0, unknown, lambda: self._calls.table(everything, self._output))
        if not unknown:
            assert table is not None
            return table
        parts = [
            self._attempt(at, failures, partial(self._calls.table, results, self._output))
            for at, results in made
        ]
        if not failures:
            return pa.concat_batches(parts)
        return parts[0] if parts[0] is not None else self._output.empty_table().to_batches()[0]

    def _errors(self, groups: Groups, failures: dict[int, Failure]) -> dict[int, RowError]:
        text = self._spec.call.text
        bad = {}
        for at, failure in failures.items():
            key = groups.shown(at)
            for row in groups.places(at):
                bad[row] = RowError(
                    f"row {row}: {failure.reason} in Python function {text:.500} for key {key}; "
                    "correct the rows of this key or the function, or name a dead-letter stream\n"
                    f"{failure.trace}".rstrip(),
                    row=row,
                    reason=failure.reason,
                    expression=text[:10_000],
                    traceback=failure.trace,
                    condition=PYTHON_CONDITION,
                    key=key,
                )
        return bad

    def process(self, port: int, prepared: Prepared) -> Batches:
        batches: Batches = prepared.rows
        if self._is_open:
            batches = (*batches, *self._fire())
            self._end()
        self._accept()
        return batches

    def _accept(self) -> None:
        """What has changed so far is not taken back any more."""
        for state in self._stores:
            state.begin()
        self._has_begun, self._first = True, None

    # --- what keys begin with ---------------------------------------------------------------------

    def use_static(self, side: str, static: StaticRows, keys: KeyRange | None) -> None:
        initial = self._spec.initial
        if initial is None or initial.side != side or self._has_begun:
            return
        rows = static.batch.select([field.name for field in initial.side_schema])
        kept = [evaluate(key, rows) for key in initial.keys]
        names = [f"__key{at}" for at in range(len(kept))]
        rows = pa.RecordBatch.from_arrays(
            [*kept, *rows.columns], names=[*names, *rows.schema.names]
        )
        if keys is not None and rows.num_rows:
            hashes = hash_columns(kept, rows.num_rows)
            rows = rows.filter(pa.array((hashes >= keys[0]) & (hashes < keys[1])))
        self._first = Groups(names, [*initial.key_names, *initial.shown], rows)

    def _begin_keys(self) -> None:
        """Give each key the rows that it begins with, if it was not given them yet."""
        groups = self._first
        if self._has_begun or groups is None or not groups.rows.num_rows:
            return
        self._calls.begin_with(self._calls.loaded.as_initial(groups.rows), groups.starts)
        for key, start, end in groups:
            what = f"key {_short(key)} and the initial state"
            self._by_time(partial(self._calls.start, key, start, end), what)

    # --- time -------------------------------------------------------------------------------------

    def on_watermark(self, watermark_us: int, of_ports_us: Sequence[int]) -> Batches:
        if self._watermark_us is not None and watermark_us < self._watermark_us:
            return ()
        if self._tools.is_rehearsal:
            return ()
        self._watermark_us = watermark_us
        return self._fire_alone() if self._spec.clock == "event" else ()

    def due_us(self) -> int | None:
        if not self._has_begun:
            # With the first rows, as in Spark, or without any if there are none for these keys.
            if self._waits_since_us is None:
                self._waits_since_us = self.now_us
            return self._waits_since_us + FIRST_ROWS_US
        if self._spec.clock != "processing":
            return None
        first_ms = None if self._due is None else self._due.first_due()
        if first_ms is None:
            return None
        due_us = (first_ms + (not self._spec.is_processor)) * 1_000
        return due_us if due_us > self._fired_us else self._fired_us + AGAIN_US

    def on_time(self) -> Batches:
        is_due = self._spec.clock == "processing" or not self._has_begun
        return self._fire_alone() if is_due else ()

    @property
    def _due(self) -> EntryState | None:
        """What is kept until a moment at which the function is called."""
        if self._spec.is_processor or self._spec.clock == "none":
            return self._timers
        (state,) = self._variables.values()
        return state

    @property
    def _moment_ms(self) -> tuple[int, int]:
        watermark_us = self._watermark_us
        passed = watermark_us is not None and watermark_us > 0
        return self.now_us // 1_000, watermark_us // 1_000 if passed and watermark_us else 0

    def _fire_alone(self) -> Batches:
        first_ms = None if self._due is None else self._due.first_due()
        if self._has_begun and (first_ms is None or first_ms >= self._limit_ms):
            return ()
        self._begin()
        self._begin_keys()
        batches = self._fire()
        self._end()
        self._accept()
        return batches

    @property
    def _limit_ms(self) -> int:
        """What is kept until less than this is due: a timeout after its moment, a timer at it."""
        now_ms, watermark_ms = self._moment_ms
        reached_ms = now_ms if self._spec.clock == "processing" else watermark_ms
        return reached_ms + self._spec.is_processor

    def _fire(self) -> Batches:
        """Call the function for all that time has come for, in the order of time, then of key."""
        batches: Batches = ()
        state = self._due
        self._fired_us = self.now_us
        due = [] if state is None else state.take_due(self._limit_ms)
        if state is not None and due:
            shown = self._shown_keys([key for _, key, _ in due])
            self._calls.give(self._calls.loaded.as_given(shown), np.arange(len(due)))
            results: list[Any] = []
            for row, (until_ms, key, name) in enumerate(due):
                entry = state.get(key, name)
                if entry is None or entry.until != until_ms:
                    continue  # a call before this one has changed it
                results += self._called_by_time(key, row, until_ms)
                state.remember_due(key, name)
            table = self._by_time(lambda: self._calls.table(results, self._output), "its results")
            self._check_times(table)
            batches = (table,) if table.num_rows else ()
        self._forget_expired()
        return batches

    def _check_times(self, table: pa.RecordBatch) -> None:
        """Rows whose time is told to others behind it are not late there, as in Spark."""
        name, watermark_us = self._spec.event_time, self._watermark_us
        if name is None or watermark_us is None or not table.num_rows:
            return
        first_us = pc.min(table.column(name).cast(pa.int64())).as_py()
        if first_us is not None and first_us < watermark_us:
            text = self._spec.call.text
            raise FunctionFailed(
                f"Python function {text:.500} gives a row whose {name} is {first_us} us, and the "
                f"watermark is at {watermark_us} us: operators behind it would take it for late. "
                "Give rows that are not older than getCurrentWatermarkInMs()",
                function=text[:10_000],
                column=name,
            )

    def _called_by_time(self, key: Key, row: int, until_ms: int) -> list[Any]:
        what = f"key {_short(key)}, whose time {until_ms} ms has come"
        found: list[Any] = self._by_time(lambda: self._calls.expire(key, row, until_ms), what)
        return found

    def _by_time(self, run: Callable[[], Any], what: str) -> Any:
        """Nobody sent a row that could be left out: what fails ends the query."""
        failures: dict[int, Failure] = {}
        found = self._attempt(0, failures, run)
        if failures:
            self._fail(failures[0], what)
        return found

    def _fail(self, failure: Failure, what: str) -> NoReturn:
        text = self._spec.call.text
        raise FunctionFailed(
            f"Python function {text:.500} fails for {what}: {failure.reason}\n"
            f"{failure.trace}".rstrip(),
            function=text[:10_000],
            reason=failure.reason,
        )

    def _forget_expired(self) -> None:
        now_ms, _ = self._moment_ms
        for variable in self._spec.variables:
            if variable.ttl_ms is not None:
                state = self._variables[variable.name]
                for _, key, name in state.take_due(now_ms + 1):
                    state.delete(key, name)

    def _shown_keys(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Keys as the function sees them: those that are kept as bytes are what these stand for."""
        shown = shown_keys(self._spec, tuple_columns(keys, _key_schema(self._spec)))
        return pa.RecordBatch.from_arrays(shown, names=[f"_{at}" for at in range(len(shown))])

    # --- the function -----------------------------------------------------------------------------

    @cached_property
    def _calls(self) -> Any:
        from penstock.operators.processors import calls_of  # noqa: PLC0415 (it loads pandas)

        spec = self._spec
        if self._tools.python is None:
            raise ExpressionError(
                f"{spec.call.text:.200} is a Python function, and there is no code here: only "
                "slots of the driver that planned the query have it"
            )
        function = self._tools.python.of(spec.call)
        return calls_of(function, spec, self._variables, self._timers)

    def _begin(self) -> None:
        if self._is_open:
            self._end()
        moment = self._moment_ms
        self._by_time(lambda: self._calls.begin(moment), "init()")
        self._is_open = True

    def _end(self) -> None:
        self._is_open = False
        self._by_time(self._calls.end, "close()")

    # --- markers ----------------------------------------------------------------------------------

    def progress(self) -> list[int | None]:
        waits = [] if self._has_begun else [1]
        return [self._watermark_us, self.now_us, *waits]

    def restore_progress(self, progress: Any) -> None:
        if progress is not None:
            self._watermark_us, self.now_us, *waits = progress
            self._has_begun = not waits or self._spec.initial is None


class Groups:
    """The rows of a batch by key, in the order of keys; those of a key in their own."""

    def __init__(
        self, key_names: Sequence[str], input_names: Sequence[str], batch: pa.RecordBatch
    ) -> None:
        count = batch.num_rows
        keys = [plain(batch.column(name)) for name in key_names]
        by = [level for key in keys for level in levels(key)]
        self._order = sorted_places(by, count)
        begins = np.zeros(count, np.bool_)
        begins[:1] = True
        for level in by:
            begins[1:] |= level[self._order][1:] != level[self._order][:-1]
        self.starts = np.flatnonzero(begins)
        self._ends = np.append(self.starts[1:], count)
        order = pa.array(self._order)
        columns = [plain(batch.column(name)).take(order) for name in input_names]
        names = [f"_{at}" for at in range(len(columns))]
        self.rows = pa.RecordBatch.from_arrays(columns, names=names)
        firsts = pa.array(self._order[self.starts])
        self._keys = [
            tuple(map(_normal, key))
            for key in column_tuples([key.take(firsts) for key in keys], self.starts.size)
        ]

    def __iter__(self) -> Any:
        return zip(self._keys, self.starts.tolist(), self._ends.tolist(), strict=True)

    def places(self, at: int) -> list[int]:
        """Where the rows of a group were in the batch."""
        found: list[int] = self._order[self.starts[at] : self._ends[at]].tolist()
        return found

    def shown(self, at: int) -> str:
        return _short(self._keys[at])


def shown_keys(spec: PythonGroupsSpec, columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Columns of keys as they are kept, as functions see them."""
    kept = pa.RecordBatch.from_arrays(list(columns), names=list(spec.key_names))
    return [
        evaluate(_shown_key(key, given.type), kept)
        for key, given in zip(spec.keys, spec.call.inputs, strict=False)
        if isinstance(key, Column)
    ]


def _shown_key(key: Column, data_type: DataType) -> Expression:
    """What a key stands for: of a nested value, or a wide one, its bytes are kept."""
    if key.type == data_type:
        return key
    return call("of_key_bytes", key, type=str(data_type))


def _normal(value: Any) -> Any:
    """Values that are one key as one value."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    return value


def _short(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else key)[:KEY_CHARACTERS_MAX]


# --- states ---------------------------------------------------------------------------------------


def has_timers(spec: PythonGroupsSpec) -> bool:
    return spec.is_processor and spec.clock != "none"


def entry_state(
    operator: str, spec: PythonGroupsSpec, variable: StateVariable, bytes_max: int
) -> EntryState:
    """The state under a name, empty. It is called after that name, whatever stands beside it."""
    name = variable.name
    if not _PLAIN.fullmatch(name):
        name = hashlib.sha256(name.encode()).hexdigest()[:16]
    return EntryState(f"{operator}_{name}", entry_kind(spec, variable), bytes_max=bytes_max)


def timer_state(operator: str, spec: PythonGroupsSpec, bytes_max: int) -> EntryState:
    return EntryState(f"{operator}{TIMERS}", timer_kind(spec), bytes_max=bytes_max)


def entry_kind(spec: PythonGroupsSpec, variable: StateVariable) -> EntryKind:
    """The columns of what is kept under a name."""
    name = pa.schema([("at", pa.int64())]) if variable.kind == "list" else pa.schema([])
    if variable.kind == "map":
        name = arrow_schema(variable.key)
    return EntryKind(_key_schema(spec), name, arrow_schema(variable.value), hash_columns)


def timer_kind(spec: PythonGroupsSpec) -> EntryKind:
    name = pa.schema([("at_ms", pa.int64())])
    return EntryKind(_key_schema(spec), name, pa.schema([]), hash_columns)


def _key_schema(spec: PythonGroupsSpec) -> pa.Schema:
    named = zip(spec.key_names, spec.keys, strict=True)
    return pa.schema([pa.field(name, arrow_type(key.type)) for name, key in named])
