"""Spark as the evaluator of its own expressions, over rows: a projection that it generates itself.

Rows go to the driver's JVM and come back as files of Arrow's stream format, because Py4J would
carry their bytes as text. Nothing is planned and no job runs, so a call costs some milliseconds.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from penstock.arrays import Mask, validity_of
from penstock.catalyst.by_spark import SparkExpression, SparkExpressions
from penstock.catalyst.jvm import JvmNode, java_classes, scala_object, scala_sequence
from penstock.catalyst.spark_types import handed_over_json
from penstock.errors import JobFailed, ProgramIncompatible
from penstock.expressions.types import arrow_type
from penstock.operators.specs import SparkColumn

OUTPUT_ROWS_MAX = 1 << 16  # of one Arrow batch: its bytes are one array of the JVM
OUTPUT_BYTES_MAX = 256 << 20
REASON_CHARACTERS_MAX = 1_000
_ZONE = "UTC"  # that Arrow's timestamps are labelled with; it changes no value
_FAILED = (PySparkException, Py4JJavaError)  # in the JVM, which goes on


@dataclass(frozen=True)
class _Projection:
    """What computes some columns: all rows at once, or each row on its own."""

    names: tuple[str, ...]  # of the inputs, one for each attribute
    input_type: Any
    plain: Any  # Arrow's rows as Spark's own: not all expressions look before they take a null
    whole: Any
    whole_type: Any
    careful: Any
    careful_type: Any


class DriverSpark:
    """Evaluates the expressions of one query in the driver's JVM. For one thread at a time.

    Settings are those of the session at the time of planning: it is cloned.
    """

    def __init__(self, session: Any, expressions: SparkExpressions) -> None:
        self._session = session._jsparkSession.cloneSession()
        self._expressions = dict(expressions)
        self._projections: dict[tuple[str, ...], _Projection] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-spark-")
        self._thread: int | None = None  # whose active session ours is

    def compute(
        self, columns: Sequence[SparkColumn], rows: pa.RecordBatch
    ) -> tuple[list[pa.Array], Mask]:
        """The columns, and which rows fail: these are null."""
        projection = self._projection(columns)
        bad: Mask = np.zeros(rows.num_rows, np.bool_)
        types = [arrow_type(each.result.type) for each in columns]
        if not rows.num_rows:
            return [pa.array([], kind) for kind in types], bad
        try:
            found = self._run(projection, projection.whole, projection.whole_type, rows)
        except _FAILED:
            # A row fails, and the error does not say which: each is tried, and what fails is null.
            tried = self._run(projection, projection.careful, projection.careful_type, rows)
            bad |= ~np.logical_and.reduce([validity_of(column) for column in tried])
            found = [
                column.field(0) if not column.null_count else _member(column) for column in tried
            ]
        return [_as_type(array, kind) for array, kind in zip(found, types, strict=True)], bad

    def failure(self, columns: Sequence[SparkColumn], row: pa.RecordBatch) -> tuple[str, str]:
        """Why a row fails, and in which of the columns."""
        for column in columns:
            projection = self._projection([column])
            try:
                self._run(projection, projection.whole, projection.whole_type, row)
            except _FAILED as error:
                return _reason(error), column.text
        raise AssertionError("a row fails that Spark has computed")

    def close(self) -> None:
        self._folder.cleanup()

    # --- in the JVM -------------------------------------------------------------------------------

    def _run(
        self, projection: _Projection, function: Any, result_type: Any, rows: pa.RecordBatch
    ) -> list[pa.Array]:
        given, taken = Path(self._folder.name, "rows"), Path(self._folder.name, "columns")
        _write(given, rows, projection.names)
        try:
            self._project(given, taken, projection, function, result_type)
        except _FAILED:
            raise
        except (Py4JError, OSError) as error:
            raise JobFailed(
                f"Spark cannot be asked any more ({type(error).__name__}: {error}): its session "
                "was stopped, or its Java process is gone. Start the query again in a new session; "
                "it goes on from the log",
                reason=type(error).__name__,
            ) from error
        found = pa.Table.from_batches(_read(taken)).combine_chunks()
        return [column.chunk(0) for column in found.columns]

    def _project(
        self, given: Path, taken: Path, projection: _Projection, function: Any, result_type: Any
    ) -> None:
        """Read rows from a file, compute, and write the columns to another one."""
        classes = java_classes()
        arrow = scala_object(classes.org.apache.spark.sql.execution.arrow, "ArrowConverters")
        self._be_active(classes)
        source = classes.java.io.FileInputStream(str(given))
        target = classes.java.io.DataOutputStream(
            classes.java.io.BufferedOutputStream(classes.java.io.FileOutputStream(str(taken)))
        )
        try:
            batches = arrow.getBatchesFromStream(
                classes.java.nio.channels.Channels.newChannel(source)
            )
            rows = arrow.fromBatchIterator(batches, projection.input_type, _ZONE, True, False, None)
            encoded = arrow.toBatchWithSchemaIterator(
                rows.map(projection.plain).map(function),
                result_type,
                OUTPUT_ROWS_MAX,
                OUTPUT_BYTES_MAX,
                _ZONE,
                True,
                False,
            )
            try:
                classes.org.apache.spark.api.python.PythonRDD.writeIteratorToStream(encoded, target)
            finally:
                with suppress(*_FAILED):
                    encoded.close()
                    rows.size()  # an iterator frees its memory when it has come to its end
        finally:
            target.close()
            source.close()

    def _be_active(self, classes: Any) -> None:
        """Some expressions ask for settings while they run: those of the thread's session."""
        if self._thread != threading.get_ident():
            classes.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._session)
            self._thread = threading.get_ident()

    def _projection(self, columns: Sequence[SparkColumn]) -> _Projection:
        digests = tuple(each.digest for each in columns)
        if digests not in self._projections:
            self._be_active(java_classes())
            self._projections[digests] = self._compiled(columns)
        return self._projections[digests]

    def _compiled(self, columns: Sequence[SparkColumn]) -> _Projection:
        catalyst = java_classes().org.apache.spark.sql.catalyst.expressions
        expressions = [self._known(each) for each in columns]
        attributes: dict[int, tuple[str, Any]] = {}
        for column, known in zip(columns, expressions, strict=True):
            for name, handle in zip(column.input_names, known.attributes, strict=True):
                attributes[JvmNode(handle).expr_id] = (name, handle)
        inputs = [handle for _, handle in attributes.values()]
        nodes = [known.node.handle for known in expressions]
        tried = [_tried(catalyst, node) for node in nodes]
        bound = scala_sequence(inputs)
        projections = scala_object(catalyst, "UnsafeProjection")
        input_type = _struct(inputs)
        return _Projection(
            names=tuple(name for name, _ in attributes.values()),
            input_type=input_type,
            plain=projections.create(input_type),
            whole=projections.create(scala_sequence(nodes), bound),
            whole_type=_struct(nodes),
            careful=projections.create(scala_sequence(tried), bound),
            careful_type=_struct(tried),
        )

    def _known(self, column: SparkColumn) -> SparkExpression:
        if column.digest not in self._expressions:
            raise ProgramIncompatible(
                f"{column.text:.200} is computed by Spark, and this driver has not planned it: "
                "start the query from its DataFrame",
                digest=column.digest,
            )
        return self._expressions[column.digest]


def _tried(catalyst: Any, node: Any) -> Any:
    """Null where the expression fails, and a struct of its value where it does not."""
    name = scala_object(catalyst, "Literal").apply("value")
    return catalyst.TryEval(catalyst.CreateNamedStruct(scala_sequence([name, node])))


def _struct(nodes: Sequence[Any]) -> Any:
    """The type of rows with these as columns, as Arrow can have them."""
    types = java_classes().org.apache.spark.sql.types
    struct_type = types.StructType()
    for number, node in enumerate(nodes):
        data_type = node.dataType()
        if (text := handed_over_json(str(data_type.json()))) != str(data_type.json()):
            data_type = types.DataType.fromJson(text)
        struct_type = struct_type.add(f"c{number}", data_type, bool(node.nullable()))
    return struct_type


# --- files and arrays -----------------------------------------------------------------------------


def _write(path: Path, rows: pa.RecordBatch, names: Sequence[str]) -> None:
    """The columns under names of their own: one may be given twice. Without any, only the rows."""
    columns = [rows.column(name) for name in names]
    schema = pa.schema([pa.field(f"c{at}", column.type) for at, column in enumerate(columns)])
    batch = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_arrays(columns, fields=list(schema))
        if columns
        else pa.array([{}] * rows.num_rows, pa.struct([]))
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    """Streams one after the other, each after its length."""
    with pa.OSFile(str(path)) as file:  # into memory: the next rows use the file again
        content = file.read_buffer()
    at = 0
    while at < content.size:
        (length,) = struct.unpack(">i", content[at : at + 4])
        at += 4
        yield from pa.ipc.open_stream(content[at : at + length])
        at += length


def _member(column: pa.StructArray) -> pa.Array:
    """The values inside structs some of which are null."""
    return column.flatten()[0]


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type.equals(kind) else array.cast(kind)


def _reason(error: Exception) -> str:
    """Spark's own words, or those of what Java raised, without the way there."""
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.toString())
    else:
        text = str(getattr(error, "desc", None) or error)
    return text.strip().split("\n", 1)[0][:REASON_CHARACTERS_MAX].rstrip(". ")
