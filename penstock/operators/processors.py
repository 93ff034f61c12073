"""Processors of a query: objects with values, lists, maps and timers for each key.

What a processor is given is PySpark's own, `StatefulProcessorHandle` and the states that it hands
out; only that they ask the states of an operator in the same process, not Spark's JVM.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming import stateful_processor as processors
from pyspark.sql.streaming import stateful_processor_api_client as api_client

from penstock.arrays import python_values
from penstock.operators.group_functions import (
    GroupCalls,
    GroupFrames,
    GroupFunction,
    MapCalls,
    Numbers,
    StateCalls,
    VariableForm,
    make_of,
    stacked,
)
from penstock.operators.python_functions import (
    GROUP_MAPS,
    INITIAL_PANDAS,
    INITIAL_ROWS,
    STATE_PANDAS,
    TRANSFORM_PANDAS,
    TRANSFORM_ROWS,
    PythonFunction,
    as_schema,
)
from penstock.operators.specs import PythonGroupsSpec
from penstock.state.entries import VALUE, EntryState, Key

StateT = TypeVar("StateT", bound=processors.ValueState | processors.ListState | processors.MapState)


class ProcessorCalls(GroupCalls):
    """Calls a processor: a copy of the query's object, initialised, for each batch, as Spark does.

    So nothing that it notes in itself outlives a batch: what it is to know is in its states.
    """

    def begin(self, moment: tuple[int, int]) -> None:
        super().begin(moment)
        self._handle = Handle(self)
        processor = copy.deepcopy(self.loaded.function)
        processor.init(self._handle)
        self._handle.is_ready = True
        self._processor = processor
        stamps = (-1, -1) if self.clock == "none" else moment
        self._times = processors.TimerValues(*stamps)

    def end(self) -> None:
        super().end()
        processor, self._processor = self._processor, None
        if processor is not None:
            processor.close()

    _processor: Any = None

    def call(self, key: Key, start: int, end: int) -> list[Any]:
        self._handle.key = key
        given = self._processor.handleInputRows(
            self.key(start), self._rows(start, end), self._times
        )
        return self._checked(given)

    @abstractmethod
    def begin_with(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        """Rows by group with which keys begin, as `give` has them; their columns are others."""

    def start(self, key: Key, start: int, end: int) -> None:
        """Give a group what it begins with; what it answers is nothing to Spark either."""
        self._handle.key = key
        for each in self._rows(start, end):
            self._processor.handleInitialState(self.key(start), each, self._times)

    def expire(self, key: Key, row: int, until: int) -> list[Any]:
        assert self.timers is not None
        self._handle.key = key
        info = processors.ExpiredTimerInfo(until)
        given = self._processor.handleExpiredTimer(
            key=self.key(row), timerValues=self._times, expiredTimerInfo=info
        )
        results = self._checked(given)
        self.timers.delete(key, (until,))
        return results

    @abstractmethod
    def key(self, row: int) -> tuple[Any, ...]:
        """The keys of a row as the processor sees them."""

    @abstractmethod
    def _rows(self, start: int, end: int) -> Iterator[Any]: ...

    @abstractmethod
    def _checked(self, given: Any) -> list[Any]: ...


class PandasProcessorCalls(ProcessorCalls):
    """Calls a processor that takes and gives frames."""

    def give(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        self._frames = self._given_frames(_widened(rows), firsts)

    def begin_with(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        columns = range(self.keys, rows.num_columns)
        self._frames = GroupFrames(_widened(rows), firsts, columns, self.loaded.pandas)

    def key(self, row: int) -> tuple[Any, ...]:
        return tuple(map(_python_value, self._frames.key(row)))

    def _rows(self, start: int, end: int) -> Iterator[pd.DataFrame]:
        size = min(self.loaded.rows_max, self._frames.rows_within(self.loaded.bytes_max))
        return self._frames.parts(start, end, size)

    def _checked(self, given: Any) -> list[Any]:
        results = list(given)
        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a "
                    "pandas.DataFrame when the specified return type is StructType."
                )
        return results

    def _stacked(self, frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
        """PySpark converts each alone: together only those that are of one make."""
        stacks: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
        for frame in frames:
            stacks.setdefault(make_of(frame), []).append(frame)
        return [stacked(stack) for stack in stacks.values()]


def _widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Spark's frames are made of rows, whose numbers are Python's: all as wide as can be."""
    wide = [c.cast(_widest(c.type)) if _widest(c.type) != c.type else c for c in rows.columns]
    return pa.RecordBatch.from_arrays(wide, names=rows.schema.names)


def _widest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _python_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _maker_of(names: Sequence[str]) -> Callable[[tuple[Any, ...]], spark.Row]:
    """Rows of a class of their own know their names without being told one by one."""
    facts = {"__fields__": spark.Row(*names), "__module__": spark.__name__}
    return partial(tuple.__new__, type("Row", (spark.Row,), facts))


class RowProcessorCalls(ProcessorCalls):
    """Calls a processor that takes and gives rows."""

    def __init__(self, function: GroupFunction, *others: Any) -> None:
        super().__init__(function, *others)
        result = function.result_type
        self._kind = to_arrow_type(result, timezone="UTC", prefers_large_types=False)
        self._result_names = [field.name for field in self._kind]
        self._is_flat = len(set(self._result_names)) == len(self._result_names) and not any(
            pa.types.is_nested(field.type) for field in self._kind
        )
        self._own_row = self._row = _maker_of([self.names[at] for at in self.columns])

    def begin_with(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        values = [python_values(column) for column in rows.columns]
        self._keys, self._given = values[: self.keys], values[self.keys :]
        self._row = _maker_of(rows.schema.names[self.keys :])

    def give(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        self._row = self._own_row
        values = [python_values(column) for column in rows.columns]
        self._keys = values[: self.keys]
        self._given = [] if rows.num_columns == self.keys else [values[at] for at in self.columns]

    def key(self, row: int) -> tuple[Any, ...]:
        return tuple([values[row] for values in self._keys])

    def _rows(self, start: int, end: int) -> Iterator[spark.Row]:
        columns = [values[start:end] for values in self._given]
        return map(self._row, zip(*columns, strict=True))

    def _checked(self, given: Any) -> list[Any]:
        return [self._result(row) for row in given]

    def _result(self, row: Any) -> tuple[Any, ...]:
        """The values of a row under the declared names."""
        names = self._result_names
        is_plain = self._is_flat and type(row) is spark.Row and len(row) == len(names)
        if is_plain and row.__dict__.get("__fields__") == names:
            return row  # type: ignore[no-any-return] # a tuple
        found = row.asDict(True)
        return tuple(map(found.get, names))

    def table(self, results: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        parts = zip(*results, strict=True) if results else [()] * len(self._kind)
        columns = [
            pa.array(values, field.type) for values, field in zip(parts, self._kind, strict=True)
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(self._kind)))
        return as_schema(made, schema)


CALLS: Mapping[int, type[GroupCalls]] = {
    **dict.fromkeys(GROUP_MAPS, MapCalls),
    STATE_PANDAS: StateCalls,
    **dict.fromkeys((TRANSFORM_PANDAS, INITIAL_PANDAS), PandasProcessorCalls),
    **dict.fromkeys((TRANSFORM_ROWS, INITIAL_ROWS), RowProcessorCalls),
}


def calls_of(
    function: PythonFunction,
    spec: PythonGroupsSpec,
    states: Mapping[str, EntryState],
    timers: EntryState | None,
) -> GroupCalls:
    """What calls a function over these states, as its kind asks for."""
    assert isinstance(function, GroupFunction)
    return CALLS[function.eval_type](function, spec, states, timers)


class Handle(processors.StatefulProcessorHandle):
    """What a processor has of its states and timers, for the key that it is called for."""

    def __init__(self, calls: GroupCalls) -> None:
        self._calls = calls
        self._given: dict[str, Any] = {}
        self.key: Key = ()
        self.is_ready = False  # init() is over

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> processors.ValueState:
        return self._give(stateName, Value(self._variable(stateName, "value")))

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> processors.ListState:
        return self._give(stateName, List(self._variable(stateName, "list")))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> processors.MapState:
        return self._give(stateName, Map(self._variable(stateName, "map")))

    def _give(self, name: str, state: StateT) -> StateT:
        self._given[name] = state
        return state

    def _variable(self, name: str, kind: str) -> Variable:
        form = self._calls.loaded.forms.get(name)
        if form is None or form.kind != kind:
            raise PySparkRuntimeError(
                f"init() asked for the {kind} state {name!r}, which it did not when the query was "
                "planned: the states of a processor do not depend on where it runs"
            )
        return Variable(form, self._calls.states[name], self)

    @property
    def now_ms(self) -> int:
        return self._calls.moment.now_ms

    def registerTimer(self, expiryTimestampMs: int) -> None:
        until = int(expiryTimestampMs)
        self._timers("register").put(self.key, (until,), None, until)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers("delete").delete(self.key, (int(expiryTimestampMs),))

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(until for (until,), _ in self._timers("list").of(self.key)))

    def deleteIfExists(self, stateName: str) -> None:
        if self.is_ready:
            raise PySparkRuntimeError(
                f"Error deleting state variable: a processor gives up {stateName!r} in init(), for "
                "all keys; clear() removes what one key has"
            )
        state = self._calls.states.get(stateName)
        if state is not None:
            state.clear_all()
            self._given[stateName]._variable = Gone(stateName, self._calls.loaded.forms[stateName])

    def _timers(self, what: str) -> EntryState:
        if self._calls.timers is None:
            raise PySparkRuntimeError(
                f"Error {what} timer: a processor has timers with timeMode ProcessingTime or "
                "EventTime, and this one has None"
            )
        return self._calls.timers


class Variable:
    """A state of a processor: its entries for the key of the moment, but for what is over."""

    def __init__(self, form: VariableForm, state: EntryState, handle: Handle) -> None:
        self._form = form
        self._state = state
        self._handle = handle

    def get(self, name: Key = VALUE) -> tuple[Any, ...] | None:
        entry = self._state.get(self._handle.key, name)
        if entry is None or self._is_over(entry.until):
            return None
        assert entry.value is not None
        return self._form.value.shown(entry.value)

    def items(self) -> list[tuple[Key, tuple[Any, ...]]]:
        return [
            (name, self._form.value.shown(entry.value or ()))
            for name, entry in self._state.of(self._handle.key)
            if not self._is_over(entry.until)
        ]

    def put(self, value: Sequence[Any], name: Key = VALUE) -> None:
        ttl_ms = self._form.ttl_ms
        until = None if ttl_ms is None else self._handle.now_ms + ttl_ms
        self._state.put(self._handle.key, name, self._form.value.kept(_normal(value)), until)

    def append(self, values: Iterable[Sequence[Any]]) -> None:
        found = list(values)
        if not found:
            raise PySparkRuntimeError(
                "Error updating value state: a list state takes values, and there are none; use "
                "clear() to remove them"
            )
        first = self._state.next_number(self._handle.key)
        for number, value in enumerate(found, first):
            self.put(value, (number,))

    def name(self, key: Sequence[Any]) -> Key:
        assert self._form.key is not None
        return self._form.key.kept(_normal(key))

    def shown_name(self, name: Key) -> tuple[Any, ...]:
        assert self._form.key is not None
        return self._form.key.shown(name)

    def delete(self, name: Key) -> None:
        self._state.delete(self._handle.key, name)

    def clear(self) -> None:
        self._state.clear(self._handle.key)

    def _is_over(self, until: int | None) -> bool:
        return until is not None and until <= self._handle.now_ms


class Gone:
    """A state that the processor has given up."""

    def __init__(self, name: str, form: VariableForm) -> None:
        self._text = (
            f"Error checking {form.kind} state exists, or reading or changing it: state {name!r} "
            "was given up by deleteIfExists() in init()"
        )

    def __getattr__(self, name: str) -> Any:
        raise PySparkRuntimeError(self._text)


def _normal(value: Sequence[Any]) -> tuple[Any, ...]:
    """Values of numpy and pandas as Python's own, as PySpark makes them."""
    if api_client.has_numpy is None:
        api_client._load_numpy()
    return tuple(map(api_client._normalize_state_value, value))


class Value(processors.ValueState):
    """A value for each key."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        return self._variable.get()

    def update(self, newValue: tuple[Any, ...]) -> None:
        self._variable.put(newValue)

    def clear(self) -> None:
        self._variable.clear()


class List(processors.ListState):
    """A list for each key."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return bool(self._variable.items())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self._variable.items()])

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        values = list(newState)
        if values:
            self._variable.clear()
        self._variable.append(values)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._variable.append([newState])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._variable.append(newState)

    def clear(self) -> None:
        self._variable.clear()


class Map(processors.MapState):
    """A map for each key."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def exists(self) -> bool:
        return bool(self._variable.items())

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._variable.get(self._variable.name(key))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self.getValue(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._variable.put(value, self._variable.name(key))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        shown = self._variable.shown_name
        return iter([(shown(name), value) for name, value in self._variable.items()])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._variable.delete(self._variable.name(key))

    def clear(self) -> None:
        self._variable.clear()
