"""The events of a run: as columns for the oracle, and as files that both engines read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.nexmark.oracle import Row, World
from penstock.connectors.nexmark import KINDS, Kind, NexmarkSettings, NexmarkSource

READ_ROWS = 1 << 17
FILES = 4  # two for each slot


def world_of(settings: NexmarkSettings) -> World:
    """All events of a run."""
    persons, auctions, bids = (_columns(table_of(settings, kind)) for kind in KINDS)
    return World(persons, auctions, bids)


def table_of(
    settings: NexmarkSettings, kind: Kind, columns: tuple[str, ...] | None = None
) -> pa.Table:
    """The events of one kind, or all merged, in the order in which they come."""
    source = NexmarkSource(settings, kind, columns)
    return pa.Table.from_batches(list(_batches(source)), source.schema)


def rows_of_table(table: pa.Table) -> list[Row]:
    """An answer as the oracle shows it: times as microseconds."""
    columns = _columns(table)
    return list(zip(*(columns[name] for name in table.column_names), strict=True))


def write_files(folder: Path, settings: NexmarkSettings, columns: tuple[str, ...]) -> None:
    """The merged events as Parquet, in the order of their numbers."""
    folder.mkdir(parents=True)
    rows = table_of(settings, "all", columns)
    size = -(-len(rows) // FILES)
    for number in range(FILES):
        part = rows.slice(number * size, size)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=READ_ROWS)


def _batches(source: NexmarkSource) -> Iterator[pa.RecordBatch]:
    offset, ended = source.initial_offset(), False
    while not ended:
        read = source.read(offset, READ_ROWS)
        offset, ended = read.next_offset, read.ended
        if read.batch is not None:
            yield read.batch


def _columns(table: pa.Table) -> dict[str, list[object]]:
    return {name: _plain(table[name]).to_pylist() for name in table.column_names}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column
