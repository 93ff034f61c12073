"""Rows from Spark tasks on their way into a stream: tasks stage them, the driver commits them.

A task appends its rows under a producer of its own and commits nothing. Its message to the driver
names the producer, the instance and the next sequence. The driver then appends the markers of all
successful tasks in one append, so either all rows of a job become visible, or none. A job whose
driver dies before that is cleared up after by whoever comes next (`runtime/staging.py`).

Each attempt of a task is an instance of the partition's producer with a number drawn at random, so
attempts cannot know of each other and need not. The marker of the attempt that Spark chose
commits its records and makes readers drop those of every other attempt, as it does for any dead
instance.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.api import datasource_options as known
from penstock.api.datasource_schema import check_writable, into_stream, schema_of_spark
from penstock.errors import RecordTooLarge, StreamConflict
from penstock.log import punit
from penstock.log.contract import APPEND_ENTRIES_MAX, Log, append_surely
from penstock.log.local import open_log
from penstock.log.record import Entry, RecordKind
from penstock.options import Options
from penstock.runtime.markers import Marker
from penstock.runtime.outputs import check_rows, partitioner, pieces
from penstock.runtime.processes import ancestor
from penstock.runtime.staging import (
    OpenWrite,
    begin_write,
    clear_write,
    commit_write,
)
from penstock.runtime.streams import (
    StreamFacts,
    claim_for_rows,
    described_or_new,
    raise_substreams,
)
from penstock.stages.tags import marker_tag

APPEND_BYTES = 8 << 20
APPEND_ENTRIES = 256


class StagedRows(WriterCommitMessage):
    """What a task tells the driver: its rows are in the log, and which marker would commit them."""

    def __init__(
        self,
        producer: str,
        instance: int,
        sequence: int,
        rows: int,
        attempt: int,
        write: OpenWrite,
    ) -> None:
        self.producer = producer
        self.instance = instance
        self.sequence = sequence
        self.rows = rows
        self.attempt = attempt
        self.write = write

    @property
    def needs_marker(self) -> bool:
        """Whether there is something to commit, or an earlier attempt's leftovers to drop."""
        return self.rows > 0 or self.attempt > 0


@dataclass(frozen=True)
class StreamTarget:
    """The stream that is written, as it travels to the tasks."""

    path: str
    facts: StreamFacts
    codec: punit.Codec = field(default=punit.Codec.NONE)

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        write: OpenWrite,
        partition: int,
        attempt: int,
    ) -> StagedRows:
        """Append rows that no reader will see before the driver's marker."""
        with open_log(self.path) as log:
            return stage_rows(log, self, batches, write, partition, attempt)


def writable_stream(
    path: str,
    stream: str,
    schema: StructType,
    codec: str,
    substreams: int | None = None,
    keys: tuple[str, ...] = (),
) -> StreamTarget:
    """The stream with rows of this schema; it is described if there is none of its name.

    It has at least so many `substreams` from now on. Only a new one can be cut by other `keys`.
    """
    columns = schema_of_spark(schema)
    with open_log(path) as log:
        facts = described_or_new(log, stream, columns, substreams or 1, keys)
        check_writable(stream, columns, facts.schema)
        if keys and keys != facts.partition_by:
            raise StreamConflict(
                f"rows of stream {stream!r} find their substream by "
                f"{', '.join(facts.partition_by) or 'turns'}, and not by {', '.join(keys)}: leave "
                "the option out, or write to a new stream",
                stream=stream,
            )
        facts = claim_for_rows(log, stream, "this write")
        if substreams is not None and substreams > facts.substreams:
            facts = raise_substreams(log, stream, substreams)
    return StreamTarget(path, facts, punit.CODECS[codec])


def target_of(path: str, stream: str, schema: StructType, options: Options) -> StreamTarget:
    """The stream that a job writes, as its options say."""
    codec, substreams = options[known.COMPRESSION], options[known.SUBSTREAMS]
    keys = tuple(name for name in options[known.SUBSTREAMS_BY] if name)
    return writable_stream(path, stream, schema, codec, substreams, keys)


def stage_rows(
    log: Log,
    target: StreamTarget,
    batches: Iterable[pa.RecordBatch],
    write: OpenWrite,
    partition: int,
    attempt: int,
) -> StagedRows:
    """Append rows as uncommitted records of a new instance of the partition's producer."""
    producer = write.producer(partition)
    instance = 1 + (uuid.uuid4().int >> 66)  # 62 random bits: never 0, always a bigint
    facts = target.facts
    deal = partitioner(facts.substream_tags, facts.partition_by, partition % facts.substreams)
    waiting: list[Entry] = []
    waiting_bytes = sequence = rows = 0
    for batch in batches:
        fitting = into_stream(batch, facts.schema)
        check_rows(fitting)
        dealt = deal(fitting) if fitting.num_rows else ()
        for tag, piece in ((tag, piece) for tag, part in dealt for piece in pieces(part)):
            body, digest = punit.encode_unit(piece, target.codec)
            waiting.append(
                Entry(RecordKind.DATA, (tag,), producer, instance, sequence, body, digest=digest)
            )
            waiting_bytes += body.size
            sequence += 1
            rows += piece.num_rows
            if waiting_bytes >= APPEND_BYTES or len(waiting) >= APPEND_ENTRIES:
                append_surely(log, waiting, write.fence)
                waiting, waiting_bytes = [], 0
    if waiting:
        append_surely(log, waiting, write.fence)
    return StagedRows(producer, instance, sequence, rows, attempt, write)


def commit_markers(stream: str, staged: Iterable[StagedRows]) -> list[Entry]:
    """The markers that make staged rows visible; they belong into one append."""
    entries = [
        _marker(stream, each.producer, each.instance, each.sequence)
        for each in staged
        if each.needs_marker
    ]
    if len(entries) >= APPEND_ENTRIES_MAX:
        raise RecordTooLarge(
            f"{len(entries)} partitions are written at once, and one append commits fewer than "
            f"{APPEND_ENTRIES_MAX}: call .coalesce(n) before writing. Nothing was committed",
            partitions=len(entries),
            partitions_max=APPEND_ENTRIES_MAX - 1,
        )
    return entries


def _marker(stream: str, producer: str, instance: int, sequence: int) -> Entry:
    body = Marker(vertex=producer, instance=instance, epoch=1, timeless=True).encode()
    return Entry(RecordKind.MARKER, (marker_tag(stream),), producer, instance, sequence, body)


class StreamAppender(DataSourceArrowWriter):
    """A batch job that appends to a stream: all of its rows become visible at once, or none.

    The write begins when the job is planned. Running the job again is another write.
    """

    def __init__(self, path: str, stream: str, options: Options, schema: StructType) -> None:
        self._target = target_of(path, stream, schema, options)
        with open_log(path) as log:
            # Spark plans in a process of its own, which ends long before the job does.
            self._write = begin_write(log, stream, owner=ancestor("java"))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext  # noqa: PLC0415 (only in a task)

        task = TaskContext.get()
        assert task is not None, "rows are written by Spark tasks"
        return self._target.stage(iterator, self._write, task.partitionId(), task.attemptNumber())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [each for each in messages if isinstance(each, StagedRows)]
        markers = commit_markers(self._target.facts.name, staged)
        with open_log(self._target.path) as log:
            commit_write(log, self._write, markers)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell readers that nothing of this write will ever be committed, so they need not wait."""
        with open_log(self._target.path) as log:
            clear_write(log, self._write)
