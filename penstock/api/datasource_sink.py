"""The exactly-once sink of Structured Streaming.

Spark runs micro-batch n, whose tasks stage their rows, then calls commit(messages, n), then notes n
in the query's checkpoint. After a crash before that note it runs batch n again, over the same
input. Two drivers of the same query may do so at the same time. The rows must be visible once.

The sink of a query is a producer named after the query's id, which lives in its checkpoint. A
commit is one append: the markers of the tasks' rows, and the sink's own marker under the name
(sink, 1, sequence n). The log takes all of an append or nothing, takes a name once, and within a
producer only rising sequences. Hence:

1. Batch n becomes visible at most once. A second append for n holds task markers that are new and
   a sink marker whose name is taken: `SequenceConflict`, nothing is appended. Nor can an append for
   n follow one for n + 1. This holds for any number of drivers, without locks: the log decides.
2. Batch n becomes visible. Whoever meets the conflict finds batch n or a later one committed by
   somebody: its work is done and it goes on. An append whose outcome is unknown is repeated as it
   is, and then names the very same entries: the log answers with their first positions.
3. Nothing committed is lost to the way readers drop leftovers. Each try of a batch is a write of
   its own (`runtime/staging.py`), with producers that nobody else uses, and all that it appends is
   fenced. Who clears up after it fences it first: then this commit is refused, and either somebody
   has committed n, or the query stops and n is run again.
4. A driver or a task that dies after staging leaves records that no marker names. Whoever commits n
   clears up after the writes of the query that were listed before, which are of n or earlier. If
   nobody does, then who writes to the stream, starts a query that reads it, or trims it, once the
   process that the query ran in has ended.

What a batch contains is decided by the query's offset log, which both drivers share. A checkpoint
that was copied, or whose offsets were deleted by hand, makes two queries with one id; batches that
the sink has seen are then skipped, and a warning says so.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.api import datasource_options as known
from penstock.api.datasource_append import (
    StagedRows,
    commit_markers,
    target_of,
)
from penstock.errors import Fenced, MarkerDamaged, SequenceConflict, SinkError, Trimmed
from penstock.log.contract import Log, append_surely
from penstock.log.local import open_log
from penstock.log.record import Entry, RecordKind
from penstock.names import own_name
from penstock.options import Options
from penstock.runtime.markers import Marker, decode_marker
from penstock.runtime.processes import ancestor
from penstock.runtime.staging import (
    begin_write,
    clear_write,
    close_write,
    open_writes,
)
from penstock.runtime.trimming import TRIM_COMMITS, let_markers_go
from penstock.stages.tags import vertex_tag

QUERY_ID = "sql.streaming.queryId"  # Spark sets it on every task of a streaming query
SINK_INSTANCE = 1  # of all drivers: they share one order of sequences

logger = logging.getLogger(__name__)


class StreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches to a stream. Spark makes one anew for each batch and each commit."""

    def __init__(self, path: str, stream: str, options: Options, schema: StructType) -> None:
        self._target = target_of(path, stream, schema, options)
        self._job = uuid.uuid4().hex  # known to all tasks of a batch, and to nobody else

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext  # noqa: PLC0415 (only in a task)

        task = TaskContext.get()
        assert task is not None, "rows are written by Spark tasks"
        sink = sink_name(task.getLocalProperty(QUERY_ID))
        stream = self._target.facts.name
        with open_log(self._target.path) as log:
            write = begin_write(log, stream, ancestor("java"), job=self._job, sink=sink)
        return self._target.stage(iterator, write, task.partitionId(), task.attemptNumber())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = [each for each in messages if isinstance(each, StagedRows)]
        if staged:
            with open_log(self._target.path) as log:
                commit_batch(log, self._target.facts.name, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Tell readers that nothing of this try will ever be committed, so they need not wait."""
        with open_log(self._target.path) as log:
            _clear_up(log, [each for each in messages if isinstance(each, StagedRows)])


class FeedingWriter(StreamMicroBatchWriter):
    """The same for a query of Spark's that belongs to one of ours, and whose checkpoint is there.

    What a batch consists of is on the disk before its rows count: a power cut that took Spark's
    notes, which it does not sync, would let the batch be cut anew and passed over as known.
    """

    def __init__(self, path: str, stream: str, options: Options, schema: StructType) -> None:
        super().__init__(path, stream, options, schema)
        self._checkpoint = Path(options.needed(known.CHECKPOINT_LOCATION, "a folder"))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with open_log(self._target.path, read_only=True) as log:
            is_synced = log.durability == "synced"
        if is_synced:
            _sync_notes(self._checkpoint, batchId)
        super().commit(messages, batchId)


def _sync_notes(checkpoint: Path, batch_id: int) -> None:
    """Sync what a checkpoint says of a batch: the offsets, and what sources noted of themselves."""
    paths = [checkpoint / "metadata", checkpoint / "offsets" / str(batch_id)]
    for source in checkpoint.glob("sources/*"):
        noted = [path for path in source.iterdir() if not path.name.startswith(".")]
        paths += sorted(noted, key=lambda path: path.stat().st_mtime_ns)[-2:]
    log_folder = checkpoint.parents[2]  # below which everything may be new
    folders = {folder for path in paths for folder in path.parents}
    for path in (*paths, log_folder, *(each for each in folders if log_folder in each.parents)):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sink_name(query_id: str | None) -> str:
    """The producer that stands for a query's sink."""
    plain = (query_id or "").replace("-", "")
    if not plain:
        raise SinkError(
            "this task has no id of a streaming query, without which its rows cannot be written "
            f"once: Spark did not set {QUERY_ID}. Write with df.write, or inside foreachBatch"
        )
    return own_name(plain, "sink")


def commit_batch(log: Log, stream: str, batch_id: int, staged: Sequence[StagedRows]) -> bool:
    """Make a micro-batch visible unless it is already; return whether this call did."""
    write = staged[0].write
    sink = write.sink
    assert all(each.write.sink == sink for each in staged), "rows of two queries in one batch"
    newest = newest_batch(log, sink)
    if newest is not None and batch_id <= newest:
        return _skip(log, staged, batch_id, newest)
    if not any(each.needs_marker for each in staged):
        _clear_up(log, staged)
        return False
    others = [each for each in open_writes(log, stream) if each.sink == sink and each != write]
    rows = sum(each.rows for each in staged)
    entries = [*commit_markers(stream, staged), _sink_marker(sink, batch_id, rows)]
    try:
        if any(each.write != write for each in staged):
            raise Fenced(
                f"batch {batch_id} of {sink} was given up while its tasks ran: it was taken for "
                "dead. Nothing of it is visible: start the query again",
                batch=batch_id,
            )
        positions = append_surely(log, entries, write.fence)
    except (SequenceConflict, Trimmed, Fenced):
        newest = newest_batch(log, sink)
        if newest is None or newest < batch_id:
            raise  # not a race: nobody has committed this batch
        return _skip(log, staged, batch_id, newest)
    close_write(log, write, positions[-1])
    for other in others:
        close_write(log, other)
    if batch_id % TRIM_COMMITS == 0:
        let_markers_go(log, vertex_tag(sink), positions[-1])
    return True


def newest_batch(log: Log, sink: str) -> int | None:
    """The last micro-batch that a sink has committed."""
    record = log.last(vertex_tag(sink))
    if record is None:
        return None
    offset: Any = decode_marker(record).offset
    if not isinstance(offset, dict) or type(offset.get("batchId")) is not int:
        raise MarkerDamaged(
            f"the marker of {sink} at position {record.position} names no batchId: run "
            "`penstock fsck`",
            position=record.position,
        )
    batch_id: int = offset["batchId"]
    return batch_id


def _sink_marker(sink: str, batch_id: int, rows: int) -> Entry:
    marker = Marker(
        vertex=sink,
        instance=SINK_INSTANCE,
        epoch=batch_id + 1,
        offset={"batchId": batch_id, "rows": rows},
    )
    tags = (vertex_tag(sink),)
    return Entry(RecordKind.MARKER, tags, sink, SINK_INSTANCE, batch_id, marker.encode())


def _clear_up(log: Log, staged: Sequence[StagedRows]) -> None:
    for write in {each.write for each in staged}:
        clear_write(log, write)


def _skip(log: Log, staged: Sequence[StagedRows], batch_id: int, newest: int) -> bool:
    _clear_up(log, staged)
    logger.warning(
        "batch %d of %s is in the log already (the newest is %s): its rows are not written again",
        batch_id,
        staged[0].write.sink,
        newest,
    )
    return False
