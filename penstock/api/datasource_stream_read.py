"""Streaming reading by Structured Streaming: a micro-batch is exactly the releases between offsets.

An offset says two things: `position`, the last marker whose rows were read, and `resume`, where the
log must be read on so that nothing is missed that stands before that marker and is committed after
it. Both come from following the stream on the driver; the rows themselves are read by the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.api import datasource_options as known
from penstock.api.datasource_ranges import plan_ranges, rows_trimmed_upto, trimmed_upto
from penstock.api.datasource_rows import RangePartition, row_reading
from penstock.errors import InvalidOffset, Trimmed
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.local import open_log
from penstock.log.record import Position
from penstock.options import MAX_ROWS_PER_TRIGGER, NUM_PARTITIONS, Options
from penstock.runtime.streams import StreamFacts, describe_stream
from penstock.runtime.substreams import stream_tags
from penstock.stages.tags import marker_tag

StreamOffset = dict[str, Any]


class StreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream for Structured Streaming."""

    def __init__(self, path: str, stream: str, options: Options, schema: StructType) -> None:
        self._path = path
        self._partitions = options[NUM_PARTITIONS]
        self._rows_max = options[MAX_ROWS_PER_TRIGGER]
        self._start = options[known.STARTING_POSITION]
        with open_log(path, read_only=True) as log:
            self._facts = describe_stream(log, stream)
        self._reading = row_reading(path, self._facts, schema, options[known.INCLUDE_METADATA])
        self._target: int | None = None  # with availableNow: nothing beyond this is read
        self._follower: Follower | None = None  # never travels: only the driver's copy has one

    def initialOffset(self) -> StreamOffset:
        with open_log(self._path, read_only=True) as log:
            kept_from = trimmed_upto(log, self._facts)
            position = kept_from
            if self._start == "latest":
                position = max(kept_from, _last_marker(log, self._facts))
            elif self._start != "earliest":
                _check_kept(log, self._facts, int(self._start))
                position = int(self._start)
        return {"position": position, "resume": min(kept_from, position)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        with open_log(self._path, read_only=True) as log:
            self._target = _last_marker(log, self._facts)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        position, resume = _checked(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._follower is not None and self._follower.start == position:
            with suppress(Trimmed):  # perhaps only of markers without rows: a new one can tell
                return self._follower.advance(rows_max, self._target) or start
        self._follow(position, resume)
        assert self._follower is not None
        return self._follower.advance(rows_max, self._target) or start

    def _follow(self, position: int, resume: int) -> None:
        self.stop()
        log = open_log(self._path, read_only=True)
        try:
            kept_from = trimmed_upto(log, self._facts)
            _check_kept(log, self._facts, position)
        except BaseException:
            log.close()
            raise
        self._follower = Follower(log, self._facts, position, max(resume, kept_from))

    def reportLatestOffset(self) -> StreamOffset | None:
        with open_log(self._path, read_only=True) as log:
            last = _last_marker(log, self._facts)
        return {"position": last} if last else None

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        after, low = _checked(start)
        upto, _ = _checked(end)
        with open_log(self._path, read_only=True) as log:
            kept_from = trimmed_upto(log, self._facts)
            _check_kept(log, self._facts, after)
        parts = plan_ranges(low, after, upto, self._partitions, kept_from)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self._reading.read(partition.part)

    def commit(self, end: StreamOffset) -> None:
        """Nothing is kept for a reader, so nothing is let go."""

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


class Follower:
    """Walks over a stream's releases and says how far a micro-batch goes."""

    def __init__(self, log: Log, facts: StreamFacts, position: int, resume: int) -> None:
        self._log = log
        tags = partial(stream_tags, log, facts.name)
        self._reader = CommittedReader(log, tags, Position(resume), Position(position))
        self._held: Release | None = None  # looked at, and left for the next micro-batch
        self.start = position  # the offset that the next micro-batch begins at

    def advance(self, rows_max: int | None, target: int | None) -> StreamOffset | None:
        """The end of the next micro-batch; None if there are no rows for one.

        A release is never cut: one that is larger than `rows_max` is a micro-batch of its own.
        """
        rows = 0
        position = self.start
        while (release := self._peek()) is not None:
            more = sum(punit.inspect(record.body).rows for record in release.records)
            too_late = target is not None and release.marker.position > target
            if too_late or (rows and rows_max is not None and rows + more > rows_max):
                break
            self._held = None
            rows += more
            position = release.marker.position
        if not rows:
            return None  # markers without rows move the reader, not the offset
        self.start = position
        return {"position": int(position), "resume": min(self._resume(), int(position))}

    def close(self) -> None:
        self._log.close()

    def _peek(self) -> Release | None:
        if self._held is None:
            self._held = self._reader.take()
        return self._held

    def _resume(self) -> int:
        resume = int(self._reader.resume)
        if self._held is not None:
            first = self._held.records[0] if self._held.records else self._held.marker
            resume = min(resume, first.position - 1)
        return resume


def _last_marker(log: Log, facts: StreamFacts) -> int:
    last = log.last(marker_tag(facts.name))
    return 0 if last is None else int(last.position)


def _checked(offset: Mapping[str, Any]) -> tuple[int, int]:
    position, resume = offset.get("position"), offset.get("resume")
    if type(position) is not int or type(resume) is not int or not 0 <= resume <= position:
        raise InvalidOffset(
            f"{dict(offset)!r:.200} is not an offset of a stream of this format: the checkpoint "
            "belongs to another source; use a new checkpointLocation",
            offset=repr(offset)[:200],
        )
    return position, resume


def _check_kept(log: Log, facts: StreamFacts, after: int) -> None:
    """Raise Trimmed if rows behind a position are gone.

    Rows are trimmed before their markers. So whoever asks this after `trimmed_upto` knows of all
    that was trimmed up to there.
    """
    gone = rows_trimmed_upto(log, facts)
    if after < gone:
        raise Trimmed(
            f"stream {facts.name!r} is kept from position {gone} on, and this query has read "
            f"up to {after}: the rows between are gone. Start it with a new checkpointLocation",
            stream=facts.name,
            position=after,
            kept_from=gone,
        )
