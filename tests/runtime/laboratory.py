"""What the tests of the runtime run programs with: tables as sources, crashes, plain rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.connectors.contract import Source
from penstock.kernels.cache import KernelCache
from penstock.log import open_log
from penstock.log.record import Record
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.sources import SourceBuilder, SourceRequest
from penstock.runtime.streams import StreamReader
from penstock.runtime.trimming import TRIM_COMMITS
from penstock.stages.program import Program
from penstock.stages.tags import vertex_tag
from penstock.testing.single_process import SingleProcess
from tests.connectors.arrow_source import ArrowSource

UNSYNCED = LogConfig(durability="process")
SECOND_US = 1_000_000

Row = dict[str, Any]


def table_source(table: pa.Table) -> SourceBuilder:
    """A connector that reads this table, or of it the columns that the program uses."""

    def build(request: SourceRequest) -> Source:
        used = table.select(request.schema.names).cast(request.schema)
        return ArrowSource(used).split(request.parts)[request.part]

    return build


def table(rows: Sequence[Sequence[Any]], **columns: pa.DataType) -> pa.Table:
    """A table of one chunk from rows as tuples."""
    arrays = [
        pa.array([row[index] for row in rows], kind) for index, kind in enumerate(columns.values())
    ]
    return pa.table(dict(zip(columns, arrays, strict=True)))


TIMESTAMP = pa.timestamp("us", tz="UTC")


class Laboratory:
    """One log folder, and processes over it that come and go."""

    def __init__(self, folder: Path, kernels: KernelCache) -> None:
        self.folder = folder
        self.kernels = kernels
        self.trim_commits = TRIM_COMMITS
        self.crashes = 0
        self.fenced = 0

    def open(
        self,
        query: Query | Program,
        sources: Mapping[str, SourceBuilder] | None = None,
        *,
        vertices: tuple[str, ...] | None = None,
        clock: Clock | None = None,
        log_config: LogConfig = UNSYNCED,
    ) -> SingleProcess:
        program = query if isinstance(query, Program) else plan_program(query)
        return SingleProcess(
            program,
            self.folder,
            vertices=vertices,
            sources=sources,
            kernels=self.kernels,
            clock=clock,
            log_config=log_config,
            trim_commits=self.trim_commits,
        )

    def run(
        self, query: Query | Program, sources: Mapping[str, SourceBuilder] | None = None
    ) -> None:
        """Run to the end of the input."""
        with self.open(query, sources) as process:
            process.run()

    def run_with_crashes(
        self,
        query: Query | Program,
        sources: Mapping[str, SourceBuilder],
        rng: random.Random,
        crashes: int = 5,
        steps_max: int = 10,
    ) -> None:
        """Run to the end, with processes dropped at random steps. Some come back as zombies."""
        zombies: list[SingleProcess] = []
        for _ in range(crashes):
            process = self.open(query, sources)
            steps = itertools.count()
            stop_at = rng.randrange(steps_max)
            process.run(until=lambda steps=steps, stop_at=stop_at: next(steps) >= stop_at)
            for zombie in zombies:
                self._haunt(zombie)
            zombies.clear()
            if rng.random() < 0.3:
                zombies.append(process)
            else:
                process.abandon()
            self.crashes += 1
        self.run(query, sources)
        for zombie in zombies:
            self._haunt(zombie)

    def _haunt(self, zombie: SingleProcess) -> None:
        """Let a process go on whose vertices have new owners: it must notice and drop them."""
        for _ in range(3):
            zombie.host.step()
        self.fenced += len(zombie.statistics().dropped)
        zombie.abandon()

    def rows(self, stream: str) -> list[Row]:
        """The committed rows of a stream, times in microseconds."""
        with open_log(self.folder, read_only=True) as log:
            return plain(StreamReader(log, stream).read_all())

    def records(self, tag: str) -> list[Record]:
        with open_log(self.folder, read_only=True) as log:
            return log.read([tag], 0, 60_000)  # type: ignore[arg-type]

    def markers(self, vertex: str) -> list[Marker]:
        return [decode_marker(record) for record in self.records(vertex_tag(vertex))]


def plain(rows: pa.Table) -> list[Row]:
    """Rows as Python values: a time is its microseconds, a window a pair of them."""
    columns = {name: _plain_column(rows.column(name)) for name in rows.schema.names}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_struct(column.type):
        fields = [_plain_column(part) for part in column.flatten()]
        return list(zip(*fields, strict=True))
    return column.to_pylist()


def multiset(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, to compare two sets with repetitions."""
    return sorted((tuple(row.values()) for row in rows), key=repr)
