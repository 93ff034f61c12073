"""Functions of a query over the rows of a key, with what they keep for it, as PySpark has them.

Objects, arguments and results are PySpark's own, here `GroupState` for a function with a state.
Only what these ask Spark's JVM for is asked of the states of an operator, in the same process.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql import types as spark
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from penstock.operators.java_values import reader_of
from penstock.operators.python_functions import (
    ARROW_GROUP_MAPS,
    GROUP_MAPS,
    STATE,
    STATE_PANDAS,
    ZONE,
    PythonCode,
    PythonFunction,
    as_schema,
    members,
    together,
)
from penstock.operators.specs import PythonGroupsSpec
from penstock.state.entries import VALUE, EntryState, Key

Numbers = np.ndarray[Any, np.dtype[np.int64]]

BYTES_ANY = 2**31 - 1  # what Spark has for no limit

TIMEOUTS: Mapping[str, str] = {
    "none": GroupStateTimeout.NoTimeout,
    "processing": GroupStateTimeout.ProcessingTimeTimeout,
    "event": GroupStateTimeout.EventTimeTimeout,
}


class Moment(NamedTuple):
    """The time that a call goes by, in milliseconds; -1: there is none."""

    now_ms: int
    watermark_ms: int


class VariableForm(NamedTuple):
    """What a function keeps under a name: as it is declared, in Spark's types."""

    kind: str
    value: TupleForm
    key: TupleForm | None
    ttl_ms: int | None


# --- values ---------------------------------------------------------------------------------------


class TupleForm:
    """Tuples as functions have them, and as states keep them.

    They are kept as Spark's JVM would read them, so that what a function is given does not depend
    on whether its state was restored in between.
    """

    def __init__(self, schema: spark.StructType) -> None:
        self._schema = schema
        self._readers = [reader_of(field.dataType) for field in schema.fields]
        self._showers = [_shower(field.dataType) for field in schema.fields]
        self._is_plain = not any(self._showers)

    def kept(self, value: Sequence[Any]) -> tuple[Any, ...]:
        internal = self._schema.toInternal(tuple(value))
        if len(value) != len(self._readers):
            raise ValueError(
                "Input row doesn't have expected number of values required by the schema. "
                f"{len(self._readers)} fields are required while {len(value)} values are provided"
            )
        return tuple(read(each) for read, each in zip(self._readers, internal, strict=True))

    def shown(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._is_plain:
            return value
        pairs = zip(self._showers, value, strict=True)
        return tuple(each if show is None else show(each) for show, each in pairs)


def _shower(kind: spark.DataType) -> Callable[[Any], Any] | None:
    """What makes a kept value one of Python's; None: it is one."""
    if isinstance(kind, spark.ArrayType):
        item = _shower(kind.elementType) or _same
        return lambda value: None if value is None else [item(each) for each in value]
    if isinstance(kind, spark.MapType):
        key, item = _shower(kind.keyType) or _same, _shower(kind.valueType) or _same
        return lambda value: None if value is None else {key(k): item(v) for k, v in value}
    if isinstance(kind, spark.StructType):
        fields = [(field.name, _shower(field.dataType) or _same) for field in kind.fields]
        row = spark.Row(*kind.names)
        return lambda value: (
            None if value is None else row(*(show(value[name]) for name, show in fields))
        )
    if kind.needConversion():
        return lambda value: None if value is None else kind.fromInternal(value)
    return None


def _same(value: Any) -> Any:
    return value


# --- rows -----------------------------------------------------------------------------------------


class GroupFrames:
    """Rows by group as pandas has them: converted at once, where that gives what parts would give.

    A column of whole numbers or truths with nulls has another type in pandas: groups without any
    have it too if all rows are converted together. `columns` are those of the frames; before them
    are the keys, which are the same from a row of `firsts` up to the next.
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        firsts: Numbers,
        columns: Sequence[int],
        convert: Callable[[pa.RecordBatch], list[Any]],
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._convert = convert
        keys = range(columns[0] if columns else rows.num_columns)
        self._keys: dict[int, tuple[Any, ...]] | None = None
        self._frame: pd.DataFrame | None = None
        changes = (pa.types.is_integer, pa.types.is_boolean)
        if not any(c.null_count and any(is_(c.type) for is_ in changes) for c in rows.columns):
            series = convert(rows)
            shown = [series[at]._values.take(firsts) for at in keys]
            self._keys = dict(zip(firsts.tolist(), zip(*shown, strict=True), strict=True))
            if rows.num_columns > len(keys):
                self._frame = pd.concat([series[at] for at in columns], axis=1)

    def rows_within(self, bytes_max: int) -> int:
        """How many rows of the mean size have so many bytes, one at least."""
        if bytes_max >= BYTES_ANY:
            return BYTES_ANY
        size = max(1, int(self._rows.nbytes))
        return max(1, -(-bytes_max * int(self._rows.num_rows) // size))

    def key(self, row: int) -> tuple[Any, ...]:
        """The keys of the rows from one of the first ones on."""
        if self._keys is not None:
            return self._keys[row]
        keys = range(self._columns[0] if self._columns else self._rows.num_columns)
        first = self._convert(self._rows.slice(row, 1).select(keys))
        return tuple(series.array[0] for series in first)

    def parts(self, start: int, end: int, rows_max: int) -> Iterator[pd.DataFrame]:
        """The rows of a group."""
        if end - start <= rows_max:
            return iter((self._part(start, end),))
        pieces = range(start, end, rows_max)
        return (self._part(at, min(at + rows_max, end)) for at in pieces)

    def _part(self, start: int, end: int) -> pd.DataFrame:
        """Some rows. They are not copied, and nobody else has the same memory."""
        if self._frame is None:
            part = self._convert(self._rows.slice(start, end - start).select(list(self._columns)))
            return pd.concat(part, axis=1)
        part = self._frame._mgr.get_slice(slice(start, end), axis=1)
        part.axes[1] = _numbered(end - start)
        return pd.DataFrame._from_mgr(part, part.axes)


@lru_cache(maxsize=4096)
def _numbered(rows: int) -> pd.RangeIndex:
    return pd.RangeIndex(rows)


def make_of(frame: pd.DataFrame) -> tuple[Any, ...]:
    """The names of columns, and how values are laid out: the same for frames of one make."""
    blocks = frame._mgr.blocks
    names = tuple(frame.columns.tolist())
    if len(blocks) == 1:
        return names, blocks[0].dtype
    return names, *((block.dtype, *block.mgr_locs) for block in blocks)


def stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of frames of one make; for many small ones faster than `pd.concat`."""
    if len(frames) == 1:
        return frames[0]
    managers = [frame._mgr for frame in frames]
    blocks = []
    for at, block in enumerate(managers[0].blocks):
        if not isinstance(block.values, np.ndarray):
            return pd.concat(frames, ignore_index=True)
        parts = [manager.blocks[at].values for manager in managers]
        blocks.append(block.make_block_same_class(np.concatenate(parts, axis=1)))
    axes = [managers[0].axes[0], pd.RangeIndex(sum(map(len, frames)))]
    made = type(managers[0])(tuple(blocks), axes, verify_integrity=False)
    return pd.DataFrame._from_mgr(made, made.axes)


# --- functions ------------------------------------------------------------------------------------


class GroupFunction(PythonFunction):
    """A function over groups, loaded; `GroupCalls` calls it for one operator."""

    def _load(self, code: PythonCode, given: Any) -> None:
        worker: Any = import_module("pyspark.worker")
        messages: Any = import_module("pyspark.worker_message")
        self.eval_type = code.eval_type
        self.function: Any
        self.names = list(given.names)
        assert isinstance(self.result_type, spark.StructType)
        self.columns = len(self.result_type.fields)
        self.rows_max = self._rows_max
        self.settings = worker.RunnerConf(dict(code.settings))
        self.bytes_max = self.settings.arrow_max_bytes_per_batch
        self._initial = pa.schema([])
        if code.initial_type is not None:
            first = spark.StructType.fromJson(json.loads(code.initial_type))
            self._initial = to_arrow_schema(first, timezone=dict(code.settings).get(ZONE))
        variables = json.loads(code.variables)
        self.forms = {name: _form(facts) for name, facts in variables.items()}
        self.schemas = {
            name: spark.StructType.fromJson(facts["value"]) for name, facts in variables.items()
        }
        if code.eval_type in GROUP_MAPS:
            self.function = partial(_group_map, worker, messages, code, self.settings)
        elif code.eval_type == STATE_PANDAS:
            info = messages.UDFInfo(list(code.commands), [], {}, 0)
            self.function = worker.read_single_udf(
                worker.pickleSer, info, code.eval_type, self.settings, 0
            )[0]
        else:
            command, _ = worker.read_command(worker.pickleSer, code.commands[0])
            self.function = command.__self__._stateful_processor

    def as_given(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The first columns may be all that there are: those of keys."""
        return _cast(rows, list(self._given)[: rows.num_columns])

    def as_initial(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Keys, and behind them what keys begin with."""
        keys = rows.num_columns - len(self._initial)
        return _cast(rows, [*list(self._given)[:keys], *self._initial])

    def pandas(self, rows: pa.RecordBatch) -> list[Any]:
        return ArrowBatchTransformer.to_pandas(
            rows,
            timezone=self.settings.timezone,
            prefer_int_ext_dtype=self.settings.prefer_int_ext_dtype,
        )

    def arrow(self, frame: pd.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
        result = spark.StructType([spark.StructField("_0", self.result_type)])
        made = PandasToArrowConversion.convert(
            [frame],
            result,
            timezone=self.settings.timezone,
            safecheck=self.settings.safecheck,
            arrow_cast=True,
            assign_cols_by_name=self.settings.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self.settings.int_to_decimal_coercion_enabled,
        )
        return as_schema(members(made), schema)


def _cast(rows: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    columns = [c.cast(f.type) for c, f in zip(rows.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _group_map(worker: Any, messages: Any, code: PythonCode, settings: Any, keys: int) -> Any:
    """The worker's function over groups, of columns of which the first so many are keys."""
    places = range(len(code.arguments))
    offsets = [len(places) + 1, keys, *places]
    info = messages.UDFInfo(list(code.commands), offsets, {}, 0)
    evaluation = worker.EvalConf({"input_type": code.input_type})
    return worker.read_udfs(worker.pickleSer, [info], code.eval_type, settings, evaluation)[0]


def _form(facts: Mapping[str, Any]) -> VariableForm:
    key = facts.get("key")
    return VariableForm(
        facts["kind"],
        TupleForm(spark.StructType.fromJson(facts["value"])),
        None if key is None else TupleForm(spark.StructType.fromJson(key)),
        facts.get("ttl_ms"),
    )


class GroupCalls(ABC):
    """Calls a function for one operator, key by key, over that operator's states.

    What a call gives is a list of results, of which `table` makes rows.
    """

    def __init__(
        self,
        function: GroupFunction,
        spec: PythonGroupsSpec,
        states: Mapping[str, EntryState],
        timers: EntryState | None,
    ) -> None:
        self.loaded = function
        self.states = states
        self.timers = timers
        self.clock = spec.clock
        self.watermarked = spec.watermarked
        self.names = function.names
        self.keys = keys = len(spec.keys)
        # Spark gives a function no column twice.
        given = spec.call.input_names
        self.columns = [at for at in range(keys) if given[at] not in given[keys:]]
        self.columns += range(keys, len(self.names))
        self.moment = Moment(-1, -1)

    def begin(self, moment: tuple[int, int]) -> None:
        """Calls follow, until `end`: at this moment of the clock and of event time, in ms."""
        self.moment = Moment(*moment)

    def end(self) -> None:
        """There are no more."""
        self.moment = Moment(-1, -1)

    @abstractmethod
    def give(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        """Rows by group, and where each begins, of which calls are to speak."""

    @abstractmethod
    def call(self, key: Key, start: int, end: int) -> list[Any]:
        """Give a group its rows, from one to before another of those given."""

    @abstractmethod
    def expire(self, key: Key, row: int, until: int) -> list[Any]:
        """Tell a key that time has come; its own values are a row of those given."""

    def table(self, results: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        """What calls gave, as rows."""
        frames = [frame for frame in results if len(frame)]
        if not frames:
            return together([], schema)
        return together([self.loaded.arrow(each, schema) for each in self._stacked(frames)], schema)

    def _stacked(self, frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
        """Results that are converted together; as PySpark does it."""
        of_one_make = len(set(map(make_of, frames))) == 1
        return [stacked(frames) if of_one_make else pd.concat(frames, ignore_index=True)]

    def _given_frames(self, rows: pa.RecordBatch, firsts: Numbers) -> GroupFrames:
        return GroupFrames(rows, firsts, range(self.keys, len(self.names)), self.loaded.pandas)


class MapCalls(GroupCalls):
    """Calls a function that makes rows of the rows of a key, and keeps nothing."""

    def give(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        self._rows = rows

    def begin(self, moment: tuple[int, int]) -> None:
        super().begin(moment)
        self._apply = self.loaded.function(self.keys)

    def call(self, key: Key, start: int, end: int) -> list[Any]:
        group = self._rows.slice(start, end - start)
        if self.loaded.eval_type in ARROW_GROUP_MAPS:  # these take whole rows
            group = pa.RecordBatch.from_arrays([group.to_struct_array()], ["_0"])
        return [members(each) for each in self._apply(0, iter([iter([group])]))]

    def expire(self, key: Key, row: int, until: int) -> list[Any]:
        return []  # it has asked for no time

    def table(self, results: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return together([as_schema(each, schema) for each in results], schema)


class StateCalls(GroupCalls):
    """Calls a function with a GroupState, once for the rows of a key, and when it has timed out."""

    def give(self, rows: pa.RecordBatch, firsts: Numbers) -> None:
        self._frames = self._given_frames(rows, firsts)

    def call(self, key: Key, start: int, end: int) -> list[Any]:
        frames = self._frames.parts(start, end, self.loaded.rows_max)
        return self._run(key, start, frames, has_timed_out=False)

    def expire(self, key: Key, row: int, until: int) -> list[Any]:
        nothing = pd.DataFrame(columns=self.names[self.keys :])
        return self._run(key, row, iter([nothing]), has_timed_out=True)

    def _run(
        self, key: Key, row: int, frames: Iterator[pd.DataFrame], has_timed_out: bool
    ) -> list[Any]:
        store, form = self.states[STATE], self.loaded.forms[STATE].value
        entry = store.get(key)
        kept = None if entry is None or entry.value is None else form.shown(entry.value)
        state = GroupState(
            optionalValue=kept,  # type: ignore[arg-type] # a tuple will do
            batchProcessingTimeMs=self.moment.now_ms,
            eventTimeWatermarkMs=self.moment.watermark_ms,
            timeoutConf=TIMEOUTS[self.clock],
            hasTimedOut=has_timed_out,
            watermarkPresent=self.watermarked,
            defined=kept is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self.loaded.schemas[STATE],
        )
        given = self.loaded.function(self._frames.key(row), frames, state)
        results = _checked_frames(given, self.loaded.columns)
        until = state._timeout_timestamp
        has_timeout = until != GroupState.NO_TIMESTAMP
        if state._removed and not has_timeout:
            store.delete(key)
        elif state._updated or state._removed or has_timeout:
            value = form.kept(state._value) if state.exists else None
            store.put(key, VALUE, value, int(until) if has_timeout else None)
        return results


def _checked_frames(given: Any, columns: int) -> list[Any]:
    """The frames that a function gives; of anything else, PySpark's own errors."""
    if isinstance(given, pd.DataFrame) or not isinstance(given, Iterable):
        expected = "iterable of pandas.DataFrame" if isinstance(given, pd.DataFrame) else "iterable"
        raise PySparkTypeError(
            errorClass="UDF_RETURN_TYPE",
            messageParameters={"expected": expected, "actual": type(given).__name__},
        )
    results = []
    for frame in given:
        if not isinstance(frame, pd.DataFrame):
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={
                    "expected": "iterator of pandas.DataFrame",
                    "actual": f"iterator of {type(frame).__name__}",
                },
            )
        if len(frame.columns) != columns and not (len(frame.columns) == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(columns), "actual": str(len(frame.columns))},
            )
        results.append(frame)
    return results
