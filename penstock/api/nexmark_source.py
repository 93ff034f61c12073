"""The Spark data source "nexmark": the generator's events as a table or as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.api.datasource_schema import (
    check_readable,
    into_spark,
    schema_of_spark,
    spark_arrow_schema,
    spark_schema,
)
from penstock.clock import SystemClock
from penstock.connectors import generator_options as known
from penstock.connectors.nexmark import EVENT_ID_MAX, Kind, NexmarkSettings, NexmarkSource
from penstock.errors import InvalidOffset
from penstock.expressions.types import schema_from_arrow
from penstock.options import MAX_ROWS_PER_TRIGGER, NUM_PARTITIONS, Option, Options, format_refusal

FORMAT = "nexmark"
RANGE_EVENTS = 100_000  # worth a task of its own
RANGES_MAX = 64
READ_ROWS = 8_192


class NexmarkDataSource(DataSource):
    """NEXMark events: a function of `seed` and the event's number, so every read gives the same.

    Options: `events` (how many; a batch needs it), `kind` (bids, auctions, persons or all), `rate`
    (events per second of event time, and of the wall clock in a stream), `seed`, `columns` (comma
    separated; also `seq`, the event's number), `startingTime` (the first event's time), `group` (so
    many events at a time arrive in a shuffled order; 1, the default, is in order). A stream is
    paced by the wall clock; with `unpaced` all of its `events` are there at once.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(schema_from_arrow(_events(self._options(known.NEXMARK_STREAM)).arrow()))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(known.NEXMARK_BATCH)
        if options[known.EVENTS] is None:
            raise options.refusal(
                known.EVENTS,
                'is missing: add .option("events", 1000), or use readStream, which does not end',
            )
        return NexmarkReader(_events(options).asked(schema), options[NUM_PARTITIONS])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options(known.NEXMARK_STREAM)
        unpaced, partitions = options[known.UNPACED], options[NUM_PARTITIONS]
        if unpaced and options[known.EVENTS] is None:
            raise options.refusal(known.UNPACED, "is true, which needs option 'events': how many")
        events = _events(options).asked(schema)
        return NexmarkStreamReader(events, partitions, unpaced, options[MAX_ROWS_PER_TRIGGER])

    def _options(self, declared: tuple[Option[Any], ...]) -> Options:
        return Options("this read", declared, self.options, format_refusal(FORMAT))


def _events(options: Options) -> Events:
    settings = NexmarkSettings(**known.nexmark_settings(options))
    return Events(settings, cast(Kind, options[known.KIND]), options[known.COLUMNS])


@dataclass(frozen=True)
class Events:
    """Which events, and which of their columns; it travels to the tasks."""

    settings: NexmarkSettings
    kind: Kind
    columns: tuple[str, ...] | None
    schema: StructType | None = None

    def arrow(self) -> pa.Schema:
        return self._source(self.settings).schema

    def asked(self, schema: StructType) -> Events:
        """With the columns that Spark wants, which may be some of those that there are."""
        check_readable(FORMAT, schema_of_spark(schema), schema_from_arrow(self.arrow()))
        return Events(self.settings, self.kind, self.columns, schema)

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of the events [first, end)."""
        assert self.schema is not None
        target = spark_arrow_schema(self.schema)
        source = self._source(replace(self.settings, events_max=end))
        offset: Any = first
        while offset < end:
            read = source.read(offset, READ_ROWS)
            if read.batch is not None:
                yield into_spark(read.batch, target)
            offset = read.next_offset

    def _source(self, settings: NexmarkSettings) -> NexmarkSource:
        return NexmarkSource(settings, self.kind, self.columns)


class EventRange(InputPartition):
    """The events [first, end)."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end


def event_ranges(first: int, end: int, ranges: int | None) -> list[EventRange]:
    """Cut [first, end) into pieces for tasks."""
    span = end - first
    if span <= 0:
        return []
    count = ranges or min(RANGES_MAX, -(-span // RANGE_EVENTS))
    edges = [first + span * index // count for index in range(count + 1)]
    return [EventRange(low, high) for low, high in pairwise(edges) if low < high]


class NexmarkReader(DataSourceReader):
    """A bounded number of events as a table."""

    def __init__(self, events: Events, partitions: int | None) -> None:
        self._events = events
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        end = self._events.settings.events_max
        assert end is not None
        return event_ranges(0, end, self._partitions) or [EventRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._events.read(partition.first, partition.end)


class NexmarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Events as time goes by; the offset is the next event's number and when event 0 was due.

    The second part makes a restarted query catch up: what was due meanwhile is there.
    """

    def __init__(
        self, events: Events, partitions: int | None, unpaced: bool, rows_max: int | None
    ) -> None:
        self._events = events
        self._partitions = partitions
        self._unpaced = unpaced
        self._rows_max = rows_max
        self._target: int | None = None
        self._is_available_now = False

    def initialOffset(self) -> dict[str, Any]:
        return {"event": 0, "startedUs": SystemClock().now_us()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        event, started_us = _checked(start)
        end = self._due(started_us)
        if self._is_available_now:
            # Fixed when first asked, because only then it is known when event 0 was due.
            self._target = end if self._target is None else self._target
            end = self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, event + limit.max_rows)
        return {"event": max(event, end), "startedUs": started_us}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return event_ranges(_checked(start)[0], _checked(end)[0], self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        return self._events.read(partition.first, partition.end)

    def _due(self, started_us: int) -> int:
        """How many events there are by now."""
        settings = self._events.settings
        last = EVENT_ID_MAX if settings.events_max is None else settings.events_max
        if self._unpaced:
            return last
        elapsed_us = max(0, SystemClock().now_us() - started_us)
        return min(last, int(elapsed_us / settings.delay_us) + 1)


def _checked(offset: dict[str, Any]) -> tuple[int, int]:
    event, started_us = offset.get("event"), offset.get("startedUs")
    if type(event) is not int or type(started_us) is not int or event < 0:
        raise InvalidOffset(
            f"{offset!r:.200} is not an offset of format {FORMAT!r}: the checkpoint belongs to "
            "another source; use a new checkpointLocation",
            offset=repr(offset)[:200],
        )
    return event, started_us
