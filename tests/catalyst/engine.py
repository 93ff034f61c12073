"""Runs a translated query over given rows, and Spark over the same ones, for comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.catalyst.translate import Translated
from penstock.expressions.types import schema_from_arrow
from penstock.log.memory import MemoryLog
from penstock.plan.nodes import StreamRef
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query, Write
from penstock.runtime.assembly import Assembly
from penstock.runtime.checkpointing import BackgroundCheckpointer
from penstock.runtime.host import Host
from penstock.runtime.streams import StreamReader, StreamWriter, create_stream
from penstock.stages.settings import Settings
from penstock.state.checkpoints import CheckpointStore
from penstock.testing.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "bids"


def run(
    translated: Translated,
    batches: Sequence[pa.RecordBatch],
    folder: Path,
    parallelism: int = 1,
) -> pa.Table:
    """The committed output of a query over a stream of these batches, once the stream has ended."""
    log, clock = MemoryLog(), ManualClock()
    create_stream(log, STREAM, schema_from_arrow(batches[0].schema))
    writer = StreamWriter(log, STREAM, "publisher")
    for batch in batches:
        writer.write(batch)
    writer.write(None, ended=True)
    write = Write(translated.relation, StreamRef("out"))
    settings = Settings(commit_interval_ms=0)
    program = plan_program(Query(translated.query, (write,), parallelism, settings))
    checkpoints = CheckpointStore(folder)
    checkpointer = BackgroundCheckpointer(checkpoints, log)
    # Without a cache of kernels everything is evaluated by Arrow: nothing has to be compiled.
    assembly = Assembly(program, log, clock, checkpoints, checkpointer, None)  # type: ignore[arg-type]
    host = Host(assembly)
    try:
        host.run()
    finally:
        host.close()
        checkpointer.close()
    return StreamReader(log, "out").read_all()


def static_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows as a DataFrame that does not stream. Times travel as integers, read in UTC."""
    arrays, selected = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        is_time = pa.types.is_timestamp(field.type)
        arrays.append(column.cast(pa.int64()) if is_time else column)
        name = f"`{field.name}`"
        instant = f"timestamp_micros({name})" if is_time else name
        if is_time and field.type.tz is None:
            instant = f"cast({instant} as timestamp_ntz)"
        selected.append(f"{instant} AS {name}")
    table = pa.table(arrays, names=rows.schema.names)
    zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        return session.createDataFrame(table).selectExpr(*selected)
    finally:
        session.conf.set("spark.sql.session.timeZone", str(zone))


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as values that compare exactly: times as numbers, doubles by their bits."""
    columns = [_plain_column(column.combine_chunks()) for column in table.columns]
    return list(zip(*columns, strict=True))


def _plain_column(column: pa.Array) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _plain_column(chunk)]
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_struct(column.type):
        members = [_plain_column(column.field(index)) for index in range(column.type.num_fields)]
        valid = column.is_valid().to_pylist()
        rows = zip(*members, strict=True)
        return [row if here else None for row, here in zip(rows, valid, strict=True)]
    return [_plain_value(value) for value in column.to_pylist()]


def _plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    return tuple(_plain_value(item) for item in value) if isinstance(value, list) else value


def as_multiset(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows in an order of their own."""
    return sorted(json.dumps(row, default=str) for row in rows)
