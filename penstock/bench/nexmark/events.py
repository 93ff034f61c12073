"""The events of a run: as columns for the oracle, and as files that both engines read."""

from __future__ import annotations

import itertools
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
    """The merged events as Parquet, in the order of their numbers, and never all in memory."""
    folder.mkdir(parents=True)
    source = NexmarkSource(settings, "all", columns)
    assert settings.events_max is not None
    size = -(-settings.events_max // FILES)
    batches = _batches(source)
    rest: pa.Table = source.schema.empty_table()
    for number in range(FILES):
        left = size
        with pq.ParquetWriter(folder / f"part-{number}.parquet", source.schema) as file:
            while left and (rest := rest if len(rest) else _next(batches, source.schema)):
                group, rest = rest.slice(0, left), rest.slice(left)
                file.write_table(group, READ_ROWS)
                left -= len(group)


def _batches(source: NexmarkSource) -> Iterator[pa.RecordBatch]:
    offset, ended = source.initial_offset(), False
    while not ended:
        read = source.read(offset, READ_ROWS)
        offset, ended = read.next_offset, read.ended
        if read.batch is not None:
            yield read.batch


def _next(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The rows of the next batch; none if there is no more."""
    return pa.Table.from_batches([*itertools.islice(batches, 1)], schema)


def _columns(table: pa.Table) -> dict[str, list[object]]:
    return {name: _plain(table[name]).to_pylist() for name in table.column_names}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column
