"""Batch reading: the committed rows of a stream as of a position or a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.api import datasource_options as known
from penstock.api.datasource_ranges import (
    LogRange,
    lowest_needed,
    plan_ranges,
    position_at,
    rows_trimmed_upto,
    trimmed_upto,
)
from penstock.api.datasource_rows import RangePartition, row_reading
from penstock.errors import Trimmed
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.log.record import START
from penstock.options import NUM_PARTITIONS, TIME_ZONE, Options, since_1970_us
from penstock.runtime.streams import StreamFacts, describe_stream


class StreamBatchReader(DataSourceReader):
    """Plans ranges of the log on the driver and reads them in tasks.

    It takes no filters from Spark, which has one reader for all scans of a DataFrame: those of one
    scan would hold in the others.
    """

    def __init__(self, path: str, stream: str, options: Options, schema: StructType) -> None:
        with_metadata = options[known.INCLUDE_METADATA]
        with open_log(path, read_only=True) as log:
            facts = describe_stream(log, stream)
            kept_from = trimmed_upto(log, facts)
            upto = _as_of(log, facts, options)
            after = _after(log, facts, options)
            low = lowest_needed(log, facts, after, upto)
        self._reading = row_reading(path, facts, schema, with_metadata)
        self._ranges = plan_ranges(low, after, upto, options[NUM_PARTITIONS], kept_from)

    def partitions(self) -> Sequence[InputPartition]:
        empty = LogRange(START, START, START, START, START)  # Spark reads at least one partition
        return [RangePartition(part) for part in self._ranges or [empty]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self._reading.read(partition.part)


def _as_of(log: Log, facts: StreamFacts, options: Options) -> int:
    """Up to where to read: everything now, everything at a position, or at a moment."""
    tail = int(log.tail())
    wanted = options[known.AS_OF]
    if wanted is None:
        return tail
    if isinstance(wanted, datetime):
        return min(position_at(log, facts, since_1970_us(wanted, options[TIME_ZONE])), tail)
    if wanted > tail:
        raise options.refusal(known.AS_OF, f"is {wanted}, and the log ends at {tail}")
    return wanted


def _after(log: Log, facts: StreamFacts, options: Options) -> int:
    after = options[known.AFTER]
    if after is None:
        return START
    kept_from = rows_trimmed_upto(log, facts)
    if after < kept_from:
        raise Trimmed(
            f"stream {facts.name!r} is kept from position {kept_from} on, and option 'after' asks "
            f"for everything after {after}: leave it out to read what is kept",
            stream=facts.name,
            after=after,
            kept_from=kept_from,
        )
    return after


def describe_for(path: str, stream: str) -> StreamFacts:
    """The columns of a stream, for planning."""
    with open_log(path, read_only=True) as log:
        return describe_stream(log, stream)
