"""A source over record batches in memory, for tests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.contract import (
    Offset,
    Source,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.errors import InvalidArgument, SchemaMismatch


class ArrowSource(Source):
    """Rows of a table or of record batches; the offset is the number of the next row.

    With `growing=True` it goes on until `finish`: what `append` adds later is read later.
    """

    def __init__(
        self,
        data: pa.Table | Sequence[pa.RecordBatch],
        schema: pa.Schema | None = None,
        growing: bool = False,
    ) -> None:
        batches = data.to_batches() if isinstance(data, pa.Table) else list(data)
        if schema is None:
            if not isinstance(data, pa.Table) and not batches:
                raise InvalidArgument("no batch to take a schema from: pass schema=")
            schema = data.schema if isinstance(data, pa.Table) else batches[0].schema
        self.schema = schema
        self._growing = growing
        self._batches: list[pa.RecordBatch] = []
        self._ends: list[int] = []  # number of the row after each batch
        self._first, self._end = 0, 0
        for batch in batches:
            self._add(batch)

    @property
    def partitions(self) -> int | None:
        return 1 if self._growing else None

    def _part(self, part: int, parts: int) -> Source:
        """One of contiguous ranges whose sizes differ by at most one."""
        rows = self._end - self._first
        begin, end = (self._first + rows * number // parts for number in (part, part + 1))
        return self._range(begin, end)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows at the end of a growing source."""
        if not self._growing:
            raise InvalidArgument("the source does not grow: it was finished or made without it")
        self._add(batch)

    def finish(self) -> None:
        """Say that nothing comes any more: a reader at the end is told so."""
        self._growing = False

    def initial_offset(self) -> Offset:
        return self._first

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = check_rows_max(rows_max)
        row = check_offset(offset, self._first, self._end)
        if row >= self._end:
            return SourceBatch(None, row, ended=not self._growing, idle=self._growing)
        number = bisect_right(self._ends, row)
        end = min(self._ends[number], self._end, row + rows_max)
        batch = self._batches[number]
        begin = self._ends[number] - batch.num_rows
        ended = end == self._end and not self._growing
        return SourceBatch(batch.slice(row - begin, end - row), end, ended, more=end < self._end)

    def _add(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self.schema):
            raise SchemaMismatch(
                f"a batch has the columns {batch.schema.names} of {batch.schema.types}, the source "
                f"{self.schema.names} of {self.schema.types}",
            )
        if batch.num_rows:
            self._batches.append(batch)
            self._end += batch.num_rows
            self._ends.append(self._end)

    def _range(self, first: int, end: int) -> ArrowSource:
        part = ArrowSource(self._batches, self.schema)
        part._first, part._end = first, end
        return part
