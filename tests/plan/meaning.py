"""What a query means, found twice: node by node as it is written, and by running its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.expressions.types import Schema, arrow_schema
from penstock.operators.chain import Chain
from penstock.operators.specs import AggregateSpec
from penstock.plan.nodes import (
    Relation,
    Scan,
    SourceRef,
    Step,
    UnionAll,
    spec_of,
    stream_names,
    walk,
)
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.assembly import Assembly
from penstock.runtime.markers import WATERMARK_END
from penstock.runtime.sources import SourceBuilder
from penstock.runtime.streams import StreamReader
from penstock.stages.program import Program, StreamSpec
from penstock.state.checkpoints import CheckpointStore
from penstock.testing.clock import ManualClock
from penstock.testing.memory_log import MemoryLog
from penstock.testing.plans import query as query_of
from penstock.testing.plans import scan_source
from penstock.testing.spark import StandInSpark
from penstock.testing.standalone import StandaloneHost
from tests.operators.chains import linear
from tests.runtime.laboratory import table_source

ROWS = 600
TEXTS = ("x y", "x", "", "b a b")
FEW = {"auction": 4}  # other numbers have more values
# What stands for expressions of Spark's, by their names in the cases.
SPARK = StandInSpark(
    {
        "reversed": lambda text: None if text is None else text[::-1],
        "doubled": lambda number: None if number is None else 2 * number,
    }
)
Row = tuple[Any, ...]


def sample(schema: Schema) -> pa.Table:
    """Rows that repeat keys and have nulls where they may."""
    columns = [_column(str(field.type), field.nullable, field.name) for field in schema]
    return pa.table(columns, arrow_schema(schema))


def _column(kind: str, nullable: bool, name: str) -> pa.Array:
    if kind == "string":
        values: list[Any] = [TEXTS[row % len(TEXTS)] for row in range(ROWS)]
    elif kind == "timestamp":
        return pa.array([row * 16_000 for row in range(ROWS)], pa.timestamp("us", "UTC"))
    else:
        values = [(row * 7 + len(name)) % FEW.get(name, 89) for row in range(ROWS)]
    return pa.array([None if nullable and row % 9 == 4 else v for row, v in enumerate(values)])


def tables_of(query: Query) -> dict[str, pa.Table]:
    """Rows for every source and stream that a query reads and does not write itself."""
    written = {write.stream for write in query.writes}
    schemas: dict[str, dict[str, Any]] = {}
    for scan in query.scans():
        for name in _names(scan):
            if name not in written:
                schemas.setdefault(name, {}).update({f.name: f for f in scan.schema})
    return {name: sample(tuple(fields.values())) for name, fields in schemas.items()}


def _names(scan: Scan) -> tuple[str, ...]:
    relation = scan.relation
    return (relation.spec.connector,) if isinstance(relation, SourceRef) else stream_names(scan)


# --- node by node ---------------------------------------------------------------------------------


def direct_results(query: Query, tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """Each result by the operators alone: no rule, no stage, no log, all rows in one batch."""
    known = dict(tables)
    for write in query.writes:
        rows = _evaluate(write.child, known)
        before = known.get(write.stream)
        known[write.stream] = rows if before is None else pa.concat_tables([before, rows])
    return {stream: plain(known[stream]) for stream in _results(query)}


def _results(query: Query) -> list[str]:
    return [write.stream for write in query.writes]


def _evaluate(node: Relation, tables: dict[str, pa.Table]) -> pa.Table:
    schema = arrow_schema(node.schema)
    if isinstance(node, Scan):
        parts = [tables[name].select(schema.names).cast(schema) for name in _names(node)]
        return pa.concat_tables(parts)
    if isinstance(node, UnionAll):
        return pa.concat_tables([_evaluate(part, tables).cast(schema) for part in node.inputs])
    assert isinstance(node, Step), "queries are evaluated as users write them"
    chain = _alone(node)
    batches: list[pa.RecordBatch] = []
    for port, below in enumerate(node.inputs):
        for batch in _evaluate(below, tables).combine_chunks().to_batches():
            batches += chain.process(batch, port=port).batches
    batches += chain.on_watermark(WATERMARK_END)
    batches += chain.on_commit()
    return pa.Table.from_batches(batches, schema)


def _alone(node: Step) -> Chain:
    if len(node.inputs) == 1:
        return linear((node.spec,), node.child.schema, None, spark=SPARK)
    return Chain([(below.schema, ()) for below in node.inputs], (node.spec,), None)


# --- as a program ---------------------------------------------------------------------------------


class _NoCheckpoints:
    """Takes no jobs: programs here live for one run."""

    def submit(self, job: object) -> bool:
        return True


def program_results(
    query: Query, program: Program, tables: dict[str, pa.Table], folder: Path
) -> dict[str, list[Row]]:
    """Each result of a program that is run to the end of its input, in one process."""
    log = MemoryLog()
    for stream in program.streams:
        if stream.role == "input" and stream.name in tables:
            _run(_feeder(stream), log, {"table": table_source(tables[stream.name])}, folder)
    _run(program, log, {name: table_source(table) for name, table in tables.items()}, folder)
    return {stream: plain(StreamReader(log, stream).read_all()) for stream in _results(query)}


def _feeder(stream: StreamSpec) -> Program:
    """A query of its own that fills a stream, in as many substreams as the stream has."""
    rows = scan_source("table", stream.schema, partitions=stream.substreams)
    name = f"feed_{stream.name}"
    return plan_program(query_of(name, rows.to_stream(stream.name), parallelism=stream.substreams))


def _run(
    program: Program, log: MemoryLog, sources: Mapping[str, SourceBuilder], folder: Path
) -> None:
    parts = (log, ManualClock(), CheckpointStore(folder), _NoCheckpoints(), None, sources)
    host = StandaloneHost(Assembly(program, *parts, spark=SPARK))  # type: ignore[arg-type]
    try:
        host.run_available()
    finally:
        host.close()


# --- comparison -----------------------------------------------------------------------------------


def plain(table: pa.Table) -> list[Row]:
    return [tuple(row.items()) for row in table.to_pylist()]


def settled(query: Query, stream: str, rows: Iterable[Row]) -> list[str]:
    """What counts of a result: every row, or of a group that comes again the last one."""
    written = [write.child for write in query.writes if write.stream == stream]
    specs = [spec_of(node) for child in written for node in walk(child)]
    again = [s for s in specs if isinstance(s, AggregateSpec) and s.mode != "append"]
    if not again:
        return sorted(map(repr, rows))
    groups = again[0]
    names = {name for name, _ in groups.keys} | (
        {groups.window.output} if groups.window is not None else set()
    )
    last = {repr([item for item in row if item[0] in names]): repr(row) for row in rows}
    return sorted(last.values())
