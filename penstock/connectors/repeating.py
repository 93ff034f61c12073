"""A sample of rows that comes again and again, with times that go on rising.

Row i has the values of row i mod n of the sample, and its time plus a period for each of the i div
n cycles before. So all columns but the time repeat: they are laid out once for the rows of a part,
and a read takes a slice of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from penstock.connectors.contract import (
    READ_ROWS_MAX,
    DealtSource,
    Offset,
    SourceBatch,
    check_offset,
    check_rows_max,
)
from penstock.errors import InvalidArgument, SourceError

SAMPLE_BYTES_MAX = 256 << 20
SAMPLE_ROWS_MAX = 1 << 22
LAID_OUT_BYTES = 64 << 20  # of a part's columns: reads are cut so that these suffice
TIME_TYPE = pa.timestamp("us", tz="UTC")


class Sample:
    """Rows in order of time, and how long after the first one the next cycle begins."""

    def __init__(self, rows: pa.RecordBatch, time_column: str, period_us: int) -> None:
        if not 1 <= rows.num_rows <= SAMPLE_ROWS_MAX:
            raise InvalidArgument(
                f"a sample has 1 to {SAMPLE_ROWS_MAX:,} rows, this one has {rows.num_rows:,}"
            )
        self.rows = rows
        self.time_column = time_column
        self.times_us = _times_us(rows, time_column)
        spans_us = int(self.times_us[-1] - self.times_us[0])
        if period_us < max(1, spans_us):
            raise InvalidArgument(
                f"the period is {period_us} microseconds, and the sample alone spans {spans_us}: "
                "times would go back"
            )
        self.period_us = period_us

    def time_us(self, number: int) -> int:
        """The time of a row of the endless stream."""
        cycle, row = divmod(number, len(self.times_us))
        return int(self.times_us[row]) + cycle * self.period_us


def _times_us(rows: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    if name not in rows.schema.names:
        known = ", ".join(rows.schema.names)
        raise InvalidArgument(f"the sample has no column {name!r} for the time; it has {known}")
    column = rows.column(name)
    if column.type != TIME_TYPE:
        raise InvalidArgument(f"column {name!r} of the sample is {column.type}, not a timestamp")
    if column.null_count:
        raise InvalidArgument(f"column {name!r} of the sample has nulls: each row needs its time")
    times_us: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    if np.any(times_us[1:] < times_us[:-1]):
        raise InvalidArgument(f"the sample is not in order of {name!r}: sort it by this column")
    return times_us


class RepeatingSource(DealtSource):
    """The rows of a sample by their number, without end or `rows_total` of them; all are there."""

    def __init__(
        self,
        sample: Sample,
        rows_total: int | None = None,
        columns: Sequence[str] | None = None,
        rows_at_once: int = READ_ROWS_MAX,
        coded: Set[str] = frozenset(),
    ) -> None:
        """`rows_at_once` bounds a read; `coded` texts come as codes, which repeat like all else."""
        if rows_total is not None and rows_total < 0:
            raise InvalidArgument(f"rows_total is {rows_total}, below 0", rows_total=rows_total)
        known = sample.rows.schema
        names = list(known.names if columns is None else columns)
        for name in names:
            if name not in known.names:
                possible = ", ".join(known.names)
                raise InvalidArgument(f"there is no column {name!r}; possible are {possible}")
        self.schema = pa.schema([known.field(name) for name in names])
        self._coded = coded
        self._sample = sample
        self._end = rows_total
        row_bytes = max(1, sample.rows.nbytes // sample.rows.num_rows)
        self._rows_at_once = min(rows_at_once, READ_ROWS_MAX, max(1, LAID_OUT_BYTES // row_bytes))

    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        rows_max = min(check_rows_max(rows_max), self._rows_at_once)
        row = check_offset(offset, self._first, self._end, self._stride)
        left = rows_max if self._end is None else max(0, -(-(self._end - row) // self._stride))
        count = min(rows_max, left)
        following = row + count * self._stride
        ended = self._end is not None and following >= self._end
        watermark_us = self._sample.time_us(following)
        batch = self._batch(row, count) if count else None
        return SourceBatch(batch, following, ended, watermark_us, more=not ended)

    def _batch(self, row: int, count: int) -> pa.RecordBatch:
        rounds, begin = divmod((row - self._first) // self._stride, self._round)
        columns = [
            self._times(begin, count, rounds)
            if field.name == self._sample.time_column
            else self._laid_out[field.name].slice(begin, count)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._laid_out_schema)

    def _times(self, begin: int, count: int, rounds: int) -> pa.Array:
        """In memory that Arrow's pool has at hand from batches before: new pages would cost more
        than the numbers in them."""
        buffer = pa.allocate_buffer(count * 8)
        cycles = self._round * self._stride // self._sample.rows.num_rows
        later_us = rounds * cycles * self._sample.period_us
        times_us = self._times_us[begin : begin + count]
        np.add(times_us, later_us, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(TIME_TYPE, count, [None, buffer])

    @property
    def _round(self) -> int:
        """After so many rows of this part the sample begins again."""
        rows = len(self._sample.times_us)
        return rows // math.gcd(rows, self._stride)

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """The first numbers of this part: a round, and what a read may take beyond it."""
        return self._first + np.arange(self._round + self._rows_at_once) * self._stride

    @cached_property
    def _laid_out(self) -> dict[str, pa.Array]:
        places = pa.array(self._numbers % self._sample.rows.num_rows)
        return {
            name: pc.take(self._in_sample(name), places)
            for name in self.schema.names
            if name != self._sample.time_column
        }

    def _in_sample(self, name: str) -> pa.Array:
        column = self._sample.rows.column(name)
        return column.dictionary_encode() if name in self._coded else column

    @cached_property
    def _laid_out_schema(self) -> pa.Schema:
        """As the schema, with codes."""
        fields = [
            field.with_type(self._laid_out[field.name].type) if field.name in self._coded else field
            for field in self.schema
        ]
        return pa.schema(fields)

    @cached_property
    def _times_us(self) -> NDArray[np.int64]:
        cycles, rows = np.divmod(self._numbers, self._sample.rows.num_rows)
        times_us: NDArray[np.int64] = self._sample.times_us[rows] + cycles * self._sample.period_us
        return times_us

    def _copy(self) -> RepeatingSource:
        return RepeatingSource(
            self._sample, self._end, self.schema.names, self._rows_at_once, self._coded
        )


# --- samples in files -----------------------------------------------------------------------------


def sample_digest(path: str) -> str:
    """What tells the bytes of a sample's file from others."""
    return xxh3_64_hexdigest(_bytes_of(path))


def read_sample(
    path: str, time_column: str, period_us: int | None = None, digest: str | None = None
) -> Sample:
    """The sample of a Parquet file; without a period the next cycle begins a second after the last
    row. With a digest, only if the file still has it."""
    content = _bytes_of(path)
    if digest is not None and xxh3_64_hexdigest(content) != digest:
        raise SourceError(
            f"{path} is not the sample that the query was planned with: put that one back, or "
            "give the query a new name",
            path=path,
        )
    try:
        table = pq.read_table(pa.BufferReader(content))
        fields = [
            field.with_type(TIME_TYPE) if pa.types.is_timestamp(field.type) else field
            for field in table.schema
        ]
        table = table.cast(pa.schema(fields)).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(f"{path} is not a sample: {error}", path=path) from error
    if not table.num_rows:
        raise InvalidArgument(f"{path} has no rows: a sample has at least one", path=path)
    (rows,) = table.to_batches()
    if period_us is None:
        times_us = _times_us(rows, time_column)
        period_us = int(times_us[-1] - times_us[0]) + 1_000_000
    return Sample(rows, time_column, period_us)


def _bytes_of(path: str) -> bytes:
    try:
        size = Path(path).stat().st_size
        if size > SAMPLE_BYTES_MAX:
            raise InvalidArgument(
                f"{path} has {size:,} bytes, a sample at most {SAMPLE_BYTES_MAX:,}: "
                "read larger files as a folder",
                path=path,
            )
        return Path(path).read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read the sample: {error}", path=path) from error
