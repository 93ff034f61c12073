"""Python functions of a query, in the process of the slot: code that came with the task.

What a function is given and what becomes of its results is PySpark's own code, that of the worker
which Spark would have started beside it: `pyspark.worker` prepares the function, and takes and
gives Arrow batches. Only what that leaves to the JVM is done here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from penstock.arrays import python_values
from penstock.errors import FunctionFailed, ProgramIncompatible, StreamError
from penstock.expressions.types import VOID, schema_from_arrow
from penstock.operators.specs import PythonCall

BATCHED = 100  # a row at a time, its values pickled
ROW_BY_ROW = 101  # a row at a time, of Arrow's columns
TABLE, ARROW_TABLE, ARROW_ROWS = 300, 301, 302  # table functions
MAP_PANDAS, MAP_ARROW = 205, 207
STATE_PANDAS = 208  # groups with a state
TRANSFORM_PANDAS, TRANSFORM_ROWS = 211, 213  # groups with an object that has states
INITIAL_PANDAS, INITIAL_ROWS = 212, 214  # the same, with rows to begin with
PROCESSORS = frozenset({TRANSFORM_PANDAS, TRANSFORM_ROWS, INITIAL_PANDAS, INITIAL_ROWS})
STATE = "state"  # the one variable of a function with a state
ARROW_GROUP_MAPS = frozenset({209, 215})
GROUP_MAPS = frozenset({201, 216, *ARROW_GROUP_MAPS})  # groups of one batch
GROUPED = frozenset({STATE_PANDAS, *PROCESSORS, *GROUP_MAPS})
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
ZONE = "spark.sql.session.timeZone"
TRACE_CHARACTERS_MAX = 4_000
HALVED_FAILURES_MAX = 1_000  # of one batch
PYTHON_CONDITION = "PYTHON_EXCEPTION"  # Spark's word for what a function of people raised
_OTHER_LENGTH = frozenset({"RESULT_ROWS_MISMATCH", "PANDAS_UDF_OUTPUT_EXCEEDS_INPUT_ROWS"})
_THREADS = "spark.sql.execution.pythonUDF.arrow.concurrency.level"

Apply = Callable[[int, Iterator[Any]], Iterator[Any]]
Ends = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A function as Spark's closure serializer made it, and how it is called."""

    name: str
    eval_type: int  # Spark's number for what the function takes and gives
    commands: tuple[bytes, ...]  # pickled: of a chain f(g(x)) first g, then f
    arguments: tuple[str | None, ...]  # the names of those that are passed by name
    input_type: str  # Spark's JSON, a struct; so is the next
    result_type: str
    settings: tuple[tuple[str, str], ...]
    analysed: bytes | None = None  # of a table function that looked at its arguments first
    variables: str = "{}"  # of a function that keeps something for each key: JSON, by their names
    initial_type: str | None = None  # of a processor that is given rows first: their struct


PythonCodes = Mapping[str, PythonCode]  # by digest


@dataclass(frozen=True, slots=True)
class Failure:
    """What a function raised."""

    reason: str  # its class and message
    trace: str  # where, in the code of people


class PythonFunctions:
    """The functions of one query, each loaded once, when it is first asked for."""

    def __init__(self, codes: PythonCodes) -> None:
        self._codes = codes
        self._loaded: dict[str, PythonFunction] = {}

    def load(self) -> None:
        """Load all of them, before rows wait for it."""
        for digest in self._codes:
            self._function(digest)

    def of(self, call: PythonCall) -> PythonFunction:
        if call.digest not in self._codes:
            raise ProgramIncompatible(
                f"{call.text:.200} is a Python function whose code is not here: the program that "
                "is to be run was planned by another driver. Start the query from its DataFrame",
                digest=call.digest,
                function=call.text[:200],
            )
        return self._function(call.digest)

    def _function(self, digest: str) -> PythonFunction:
        if digest not in self._loaded:
            code = self._codes[digest]
            try:
                self._loaded[digest] = _class_for(code)(code)
            except BaseException as error:
                if isinstance(error, StreamError):
                    raise
                _cannot_load(code, error)
        return self._loaded[digest]


def _class_for(code: PythonCode) -> type[PythonFunction]:
    if code.eval_type not in GROUPED:
        return PythonFunction
    # It loads pandas, and much of PySpark.
    from penstock.operators.group_functions import GroupFunction  # noqa: PLC0415

    return GroupFunction


def _cannot_load(code: PythonCode, error: BaseException) -> NoReturn:
    if isinstance(error, ImportError):
        _missing_module(code.name, error)
    raise FunctionFailed(
        f"Python function {code.name} cannot be loaded: {failure_of(error).reason}; what it was "
        f"made with must be on every executor\n{failure_of(error).trace}".rstrip(),
        function=code.name,
    ) from error


def _is_of_length(error: BaseException) -> bool:
    """Whether PySpark says that a function gave more or less values than it got rows."""
    condition = getattr(error, "getCondition", None)
    return condition is not None and condition() in _OTHER_LENGTH


def _missing_module(function: str, error: ImportError) -> NoReturn:
    raise FunctionFailed(
        f"Python function {function} needs module {error.name or error}, which Python {sys.prefix} "
        f"on this executor does not have ({error}): install it there, or send it along with "
        "spark.sparkContext.addPyFile() before the query is started",
        function=function,
        module=str(error.name),
    ) from error


class PythonFunction:
    """One function, ready to be called with batches of its columns."""

    def __init__(self, code: PythonCode) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - it is slow to load
        from pyspark.sql.types import StructType, _parse_datatype_json_string  # noqa: PLC0415

        self.name = code.name
        self._code = code
        settings = dict(code.settings)
        given = _parse_datatype_json_string(code.input_type)
        assert isinstance(given, StructType)
        self._given = to_arrow_schema(given, timezone=settings.get(ZONE))
        self.result_type = _parse_datatype_json_string(code.result_type)
        rows_max = int(settings.get(ROWS_PER_BATCH, 10_000))
        self._rows_max = rows_max if rows_max > 0 else sys.maxsize
        self._pid = os.getpid()
        self._load(code, given)

    def _load(self, code: PythonCode, given: Any) -> None:
        self._noted = _Noted(len(code.commands) if _notes_rows(code) else 0)
        known = _Unpickled(import_module("pyspark.worker").pickleSer)
        self._prepare = _preparation(code, given, self._noted, known)
        self._apply = self._prepare()
        self._plain = _plain_function(code, given, known)
        by_values = code.eval_type in (BATCHED, TABLE)
        self._to_rows = _to_rows(given, dict(code.settings)) if by_values else None

    # --- columns: a value for each row ------------------------------------------------------------

    def column(
        self, rows: pa.RecordBatch, kind: pa.DataType, first_only: bool
    ) -> tuple[pa.Array, dict[int, Failure]]:
        """What the function gives of each row, null where it fails; and the rows that fail.

        A function of a row at a time goes on behind one that fails. A vectorised one does not say
        which row it failed for: the batch is tried in halves, down to single rows, of which a
        bounded number may fail. `first_only`: nobody needs the rest if one fails.
        """
        given = self.as_given(rows)
        failures: dict[int, Failure] = {}
        if self._to_rows is not None:
            made = [self._values(given, failures, first_only)]
        else:
            parts = self._in_halves(given, self._vector, failures, first_only)
            made = [part for _, part in parts]
        pieces = [_as_type(part, kind) for part in made]
        if first_only and failures:
            return pa.nulls(rows.num_rows, kind), failures
        return pa.concat_arrays(pieces) if pieces else pa.array([], kind), failures

    def _values(
        self, given: pa.RecordBatch, failures: dict[int, Failure], first_only: bool
    ) -> pa.Array:
        from penstock.operators.java_values import column_of_values, reader_of  # noqa: PLC0415

        values: list[Any] = []
        assert self._to_rows is not None
        pending = self._to_rows(given)  # a row that fails is taken: the next call goes on behind it
        while len(values) < given.num_rows:
            try:
                with self.guarded():
                    self._call_each(pending, values)  # what came before an error is in it
            except BaseException as error:
                self.check_imports(error)
                failures[len(values)] = failure_of(error)
                values.append(None)
                if first_only:
                    return column_of_values(values[:0], self.result_type)
        try:
            return column_of_values(values, self.result_type)
        except (TypeError, ValueError, ArithmeticError, pa.ArrowException):
            read = reader_of(self.result_type)
        for row, value in enumerate(values):
            try:
                column_of_values([value], self.result_type)
                read(value)
            except (TypeError, ValueError, ArithmeticError, pa.ArrowException) as error:
                failures.setdefault(row, failure_of(error))
                values[row] = None
        return column_of_values(values, self.result_type)

    def _call_each(self, rows: Iterator[tuple[Any, ...]], values: list[Any]) -> None:
        """Add what the function gives of each row, up to the first that fails.

        The worker would call it inside two wrappers for each row, which cost more than most
        functions. The one that matters turns a StopIteration into an error: that is left to it.
        """
        function = self._plain
        if function is None:
            values.extend(self._apply(0, rows))
            return
        append = values.append
        try:
            for row in rows:
                append(function(*row))
        except StopIteration as error:
            _raise_as_worker(error)

    def _vector(self, rows: pa.RecordBatch) -> pa.Array:
        made = list(self._apply(0, self._pieces(rows)))
        column = pa.concat_arrays([batch.column(0) for batch in made])
        if len(column) != rows.num_rows:
            raise ValueError(f"{rows.num_rows} rows gave {len(column)} values")
        return column

    # --- rows: some for each row, or a batch for a batch ------------------------------------------

    def table(
        self, rows: pa.RecordBatch, schema: pa.Schema, first_only: bool
    ) -> tuple[pa.RecordBatch, Ends, dict[int, Failure]]:
        """The rows that a table function gives of each row, and where those of each end."""
        given = self.as_given(rows)
        failures: dict[int, Failure] = {}
        counts: Ends = np.zeros(rows.num_rows, np.int64)
        made: list[pa.RecordBatch] = []
        for start, (batch, found) in self._in_halves(given, self._tables, failures, first_only):
            made.append(as_schema(batch, schema))
            counts[start : start + found.size] = found
        return together(made, schema), np.cumsum(counts), failures

    def _tables(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Ends]:
        apply = self._prepare()  # an object of its own for each batch, which may count on that
        if self._to_rows is not None:
            tables = [self._table_of(each) for each in apply(0, self._to_rows(rows))]
        else:
            tables = [members(each) for each in apply(0, self._pieces(rows))]
        counts: Ends = np.zeros(rows.num_rows, np.int64)
        for number, table in enumerate(tables):  # what it gives at its end is the last row's
            counts[min(number, rows.num_rows - 1)] += table.num_rows
        return together(tables, tables[0].schema), counts

    def _table_of(self, values: Sequence[Any]) -> pa.RecordBatch:
        from penstock.operators.java_values import column_of_values  # noqa: PLC0415

        return pa.RecordBatch.from_struct_array(column_of_values(values, self.result_type))

    def batches(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """What the function makes of a batch as a whole; FunctionFailed if it fails."""
        given = self.as_given(rows)
        if self._code.eval_type in (MAP_ARROW, MAP_PANDAS):  # these take whole rows
            structs = [
                pa.RecordBatch.from_arrays([piece.to_struct_array()], ["_0"])
                for piece in self._pieces(given)
            ]
            pieces = iter(structs)
        else:
            pieces = self._pieces(given)
        apply = self._prepare() if self._code.eval_type == ARROW_ROWS else self._apply
        try:
            with self.guarded():
                made = [members(each) for each in apply(0, pieces)]
            return together([as_schema(each, schema) for each in made], schema)
        except BaseException as error:
            self.check_imports(error)
            found = failure_of(error)
            raise FunctionFailed(
                f"Python function {self.name} fails for a batch of {rows.num_rows:,} rows: "
                f"{found.reason}\n{found.trace}".rstrip(),
                function=self.name,
                reason=found.reason,
            ) from error

    # --- calling ----------------------------------------------------------------------------------

    def _in_halves(
        self,
        rows: pa.RecordBatch,
        run: Callable[[pa.RecordBatch], Any],
        failures: dict[int, Failure],
        first_only: bool,
    ) -> list[tuple[int, Any]]:
        """What a vectorised function gives, part by part with where each begins.

        Rows that fail alone are among the failures, and give what a null column would: nothing.
        """
        found: list[tuple[int, Any]] = []
        other_length: BaseException | None = None
        waiting = [(0, rows.num_rows)]
        while waiting:
            start, count = waiting.pop()
            if not count:
                continue
            self._noted.begin(first_only)
            try:
                with self.guarded():
                    found.append((start, run(rows.slice(start, count))))
            except BaseException as error:
                self.check_imports(error)
                if count > 1:
                    if _is_of_length(error):
                        other_length = other_length or error
                    half = count // 2
                    waiting += [(start + half, count - half), (start, half)]
                    continue
                failures[start] = failure_of(error)
                if first_only:
                    return found
                self._check_bound(len(failures), rows.num_rows, error)
                if run == self._vector:
                    found.append((start, pa.nulls(1)))
                continue
            for row, raised in self._noted.raised.items():
                self.check_imports(raised)
                failures[start + row] = failure_of(raised)
            if first_only and failures:
                return found
        if other_length is not None and not failures:
            # No row is to blame: it is no function of rows, and what it gives of parts is chance.
            reason = failure_of(other_length)
            raise FunctionFailed(
                f"Python function {self.name} does not give a value for each of {rows.num_rows:,} "
                f"rows: {reason.reason}; it must give as many as it gets\n{reason.trace}".rstrip(),
                function=self.name,
                reason=reason.reason,
            ) from other_length
        return found

    def _check_bound(self, failed: int, count: int, error: BaseException) -> None:
        """Each costs some calls more: where many fail, it is not the rows."""
        if failed > HALVED_FAILURES_MAX:
            found = failure_of(error)
            raise FunctionFailed(
                f"Python function {self.name} fails for more than {HALVED_FAILURES_MAX:,} of "
                f"{count:,} rows, which are found by calling it again and again: {found.reason}. "
                "Correct it, or make it a udf, which takes rows one by one and may fail for any "
                f"number\n{found.trace}".rstrip(),
                function=self.name,
                reason=found.reason,
            ) from error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Call the function within this."""
        try:
            yield
        finally:
            self.check_process()

    def check_process(self) -> None:
        """A function that forks comes back twice: the copy must not go on as the slot."""
        if os.getpid() != self._pid:
            os._exit(1)

    def check_imports(self, error: BaseException) -> None:
        """A module that is missing is no fault of a row."""
        if isinstance(error, ModuleNotFoundError):
            _missing_module(self.name, error)

    def as_given(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns with the types and names that Spark gives them."""
        if not self._given.names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
        columns = [
            _as_type(column, field.type)
            for column, field in zip(rows.columns, self._given, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._given)

    def _pieces(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As large as the session says that batches for Python are."""
        for start in range(0, rows.num_rows, self._rows_max):
            yield rows.slice(start, self._rows_max)


def failure_of(error: BaseException) -> Failure:
    """An error in words, with those of its lines that are no machinery."""
    text = _text_of(error)
    if isinstance(error, SystemExit):
        text = f"the function called sys.exit({error.code!r})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in frame.filename for folder in _MACHINERY)
    ]
    trace = "".join(traceback.format_list(frames))
    return Failure(f"{type(error).__name__}: {text}"[:1_000], trace[-TRACE_CHARACTERS_MAX:])


def _text_of(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except BaseException as another:  # its class is one of people too
        return f"(its text cannot be made: {type(another).__name__})"


_MACHINERY = (f"{os.sep}pyspark{os.sep}", str(Path(__file__).parents[1]))


# --- PySpark's worker -----------------------------------------------------------------------------


def _preparation(
    code: PythonCode, given: Any, noted: _Noted, known: _Unpickled
) -> Callable[[], Apply]:
    """What makes the worker's function; of a table function a new one each time."""
    worker: Any = import_module("pyspark.worker")  # it loads pandas
    messages: Any = import_module("pyspark.worker_message")
    offsets = enumerate(code.arguments)
    by_place = [at for at, name in offsets if name is None]
    by_name = {name: at for at, name in enumerate(code.arguments) if name is not None}
    runner = worker.RunnerConf(dict(code.settings))
    eval_conf: dict[str, str] = {"input_type": code.input_type}
    if code.eval_type == ARROW_ROWS:
        eval_conf["table_arg_offsets"] = ",".join(
            str(at) for at, field in enumerate(given) if field.dataType.typeName() == "struct"
        )
    evaluation = worker.EvalConf(eval_conf)
    if code.eval_type in (TABLE, ARROW_TABLE, ARROW_ROWS):
        (handler,) = code.commands
        info = messages.UDTFInfo(
            by_place, by_name, [], code.analysed, handler, code.result_type, code.name
        )
        return lambda: worker.read_udtf(known, info, code.eval_type, runner, evaluation)[0]
    info = messages.UDFInfo(list(code.commands), by_place, by_name, 0)
    if code.eval_type == BATCHED:
        places, function = worker.read_single_udf(known, info, code.eval_type, runner, 0)
        if list(places) == list(range(len(given.fields))):  # a row is what it is called with
            return lambda: lambda _, rows: starmap(function, rows)
    noted.serializer = worker.pickleSer
    apply = worker.read_udfs(noted, [info], code.eval_type, runner, evaluation)[0]
    return lambda: apply


def _plain_function(code: PythonCode, given: Any, known: _Unpickled) -> Callable[..., Any] | None:
    """A pickled function itself, if nothing is to be done before or after it for a row."""
    is_direct = len(code.commands) == 1 and len(code.arguments) == len(given.fields) > 0
    if code.eval_type != BATCHED or not is_direct:
        return None
    worker: Any = import_module("pyspark.worker")
    profiler = worker.RunnerConf(dict(code.settings)).udf_profiler
    function, result = worker.read_command(known, code.commands[0])
    is_plain = profiler is None and not any(code.arguments) and not result.needConversion()
    return function if is_plain else None


def _raise_as_worker(error: StopIteration) -> NoReturn:
    def again(*_: Any) -> NoReturn:
        raise error

    import_module("pyspark.util").fail_on_stopiteration(again)()
    raise AssertionError("PySpark makes another error of it")


def _notes_rows(code: PythonCode) -> bool:
    """Whether rows are given to the function one after the other, inside PySpark's own loop."""
    threads = dict(code.settings).get(_THREADS, "-1")
    return code.eval_type == ROW_BY_ROW and int(threads) <= 0


class _Noted:
    """Reads functions of a row at a time so that one that raises is noted and the next row follows.

    PySpark's loop over the rows of a batch would end with the first. `functions` is how many make a
    chain; none: they are read as they are.
    """

    def __init__(self, functions: int) -> None:
        self.serializer: Any = None
        self.raised: dict[int, BaseException] = {}  # by row, since the last begin
        self._functions = functions
        self._read = 0
        self._row = -1
        self._first_only = False

    def begin(self, first_only: bool) -> None:
        self.raised, self._row, self._first_only = {}, -1, first_only

    def loads(self, pickled: bytes) -> Any:
        command = self.serializer.loads(pickled)
        if not self._functions or not isinstance(command, tuple):
            return command
        function, *rest = command
        self._read += 1
        is_first, is_last = self._read == 1, self._read == self._functions
        return (self._noting(function, is_first, None if is_last else _FAILED), *rest)

    def _noting(self, function: Callable[..., Any], is_first: bool, instead: Any) -> Any:
        def noting(*args: Any, **named: Any) -> Any:
            if is_first:
                self._row += 1
            if (args and args[0] is _FAILED) or (self._first_only and self.raised):
                return instead
            try:
                return function(*args, **named)
            except BaseException as error:
                self.raised[self._row] = error
                return instead

        return noting


_FAILED = object()  # what the function before gave instead of a value


class _Unpickled:
    """A serializer that reads what it has read before only once."""

    def __init__(self, serializer: Any) -> None:
        self._serializer = serializer
        self._known: dict[bytes, Any] = {}

    def loads(self, pickled: bytes) -> Any:
        if pickled not in self._known:
            self._known[pickled] = self._serializer.loads(pickled)
        return self._known[pickled]


def _to_rows(
    given: Any, settings: Mapping[str, str]
) -> Callable[[pa.RecordBatch], Iterator[tuple[Any, ...]]]:
    """Arrow columns as rows of Python's values, as they are for functions of a row at a time."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion  # noqa: PLC0415

    as_bytes = settings.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
    converters = [
        ArrowTableToRowsConversion._create_converter(
            field.dataType, none_on_identity=True, binary_as_bytes=as_bytes
        )
        for field in given
    ]

    def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        if not converters:
            return iter([()] * batch.num_rows)
        columns = []
        for column, convert in zip(batch.columns, converters, strict=True):
            is_nested = pa.types.is_nested(column.type)
            listed = ArrowTableToRowsConversion._to_pylist if is_nested else python_values
            values = listed(column)
            columns.append(values if convert is None else [convert(value) for value in values])
        return zip(*columns, strict=True)

    return rows_of


# --- what comes back ------------------------------------------------------------------------------


def members(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows inside the one column of structs that the worker hands out."""
    return pa.RecordBatch.from_struct_array(batch.column(0))


def _as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    return column if column.type.equals(kind) else column.cast(kind)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows under the declared columns, whose types they must have, in this order."""
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    if batch.num_columns == 0 and batch.num_rows == 0:
        return _none_of(schema)
    if batch.num_columns != len(schema):
        raise ValueError(
            f"{len(schema)} columns are declared ({', '.join(schema.names)}), and "
            f"{batch.num_columns} were returned ({', '.join(batch.schema.names)})"
        )
    for field, declared, column in zip(
        schema, schema_from_arrow(schema), batch.columns, strict=True
    ):
        if declared.type == VOID and pa.types.is_null(column.type):
            continue
        found, wanted = map(from_arrow_type, (column.type, field.type))
        if found.simpleString() != wanted.simpleString():
            raise TypeError(
                f"column {field.name} is declared as {wanted.simpleString()}, and "
                f"{found.simpleString()} was returned"
            )
        if column.null_count and not field.nullable:
            raise ValueError(f"column {field.name} is declared as not null, and has nulls")
    columns = map(_as_type, batch.columns, schema.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)


def _none_of(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def together(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches as one."""
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else _none_of(schema)
