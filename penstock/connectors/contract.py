"""What every source and sink promises. `tests/connectors/contract.py` holds the tests for it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from penstock.connectors.hidden_files import FileOfSlot, FilesKind, NamedFile
from penstock.errors import InvalidArgument, InvalidOffset
from penstock.log import punit
from penstock.log.record import Body

# An int, a str, a list or a dict of these: what JSON carries there and back unchanged, so that an
# offset can stand in a marker.
Offset = Any

READ_ROWS_MAX = 1 << 20
AGAIN_S = 0.005  # how often a source that had nothing is asked again, unless it says otherwise

# Input that could not be turned into a row, kept as it was found.
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),  # from 1; 0 names the file as a whole
        pa.field("text", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The answer to one read: rows, and where to go on.

    `batch` is None when the range read holds no row. Where the offset has moved all the same there
    was input, such as a file without rows.
    Fewer rows than asked for say nothing about what follows: `more` does.
    `watermark_us` is a lower bound of the event time of everything at or after `next_offset`, if
    the source knows one.
    """

    batch: pa.RecordBatch | None
    next_offset: Offset
    ended: bool = False  # nothing will ever come at or after next_offset
    watermark_us: int | None = None
    rejected: pa.RecordBatch | None = None  # of REJECTED_SCHEMA
    more: bool = False  # the next read will find something: it is not worth committing before
    idle: bool = False  # nothing is there now and the offset stayed; ask again later
    nothing_yet: bool = False  # idle, and so it has been from the start: there may never be more
    pending: bool = False  # idle, but something is there that may be read soon: this is no end
    again_s: float = AGAIN_S  # idle: when asking again is worth it

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return self.batch.num_rows if self.batch is not None else 0


class Source(ABC):
    """Input that is read by offset.

    Order of calls: `split` at most once, by the planner; then, in the process that owns the part,
    `initial_offset` (or an offset that an earlier life committed), any number of `read`, `close`.
    The caller keeps the offset: a source remembers nothing that an answer depends on, so a read may
    go back to any offset that was handed out before.

    It is a function of the offset: the rows between two offsets are the same on every read, in
    every process, and however `rows_max` cuts them into batches.
    """

    schema: pa.Schema
    # False: rows that were read come no more, whatever their offset. A query persists them before
    # it keeps anything of them; it goes on from the offset of its last marker all the same.
    replayable: bool = True
    reads_ahead: bool = False  # reading takes its time outside Python's lock: worth a thread
    cleans: bool = False  # it wants to let go of what nobody will read again
    # The numbers that are the offsets of all parts mean the same: who is far ahead may wait.
    is_one_sequence: bool = False

    @property
    def partitions(self) -> int | None:
        """Into how many parts `split` can cut at most; None if there is no limit."""
        return 1

    def split(self, parts: int) -> list[Source]:
        """Return the sources that together deliver every row once, for vertices side by side.

        The cut depends on `parts` alone: the same call gives the same parts after a restart. This
        source is not read any more afterwards.
        """
        self._check_parts(parts)
        return [self._part(part, parts) for part in range(parts)]

    def _part(self, part: int, parts: int) -> Source:
        """Return one of the sources that `split` gives."""
        return self  # the only one, unless `partitions` says otherwise

    @abstractmethod
    def initial_offset(self) -> Offset:
        """Return where a reader without history begins."""

    @abstractmethod
    def read(self, offset: Offset, rows_max: int) -> SourceBatch:
        """Return at most `rows_max` rows from `offset` on, without waiting for more to arrive.

        There may be more where they have one offset and come once: they cannot be cut.
        Every batch has exactly `schema`, but for texts that the source was told may come coded.
        """

    def committed(self, offset: Offset) -> None:  # noqa: B027 (most have nobody to tell)
        """A durable marker has this offset: what stands before it is asked for no more."""

    def left_behind(self, offset: Offset) -> int:
        """How much stands before an offset that `clean` lets go of; it only rises."""
        return 0

    def clean(self, offsets: Sequence[Offset]) -> None:  # noqa: B027 (most leave their input alone)
        """Let go of what nobody will read again: each part has committed its offset, None: none.

        May be called by another thread than the one that reads.
        """

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Release files and memory. Closing twice is harmless."""

    def _check_parts(self, parts: int) -> None:
        limit = self.partitions
        if parts < 1 or (limit is not None and parts > limit):
            raise InvalidArgument(
                f"{type(self).__name__} cannot be split into {parts} parts: "
                + ("at least 1" if limit is None else f"1 to {limit} are possible"),
                parts=parts,
                partitions_max=limit,
            )


class DealtSource(Source):
    """A source of numbered pieces, dealt out in turn: part g has the numbers i with i mod N = g."""

    is_one_sequence = True
    _first, _stride = 0, 1  # of this part's numbers

    @property
    def partitions(self) -> int | None:
        return None

    def initial_offset(self) -> Offset:
        return self._first

    def _part(self, part: int, parts: int) -> DealtSource:
        source = self._copy()
        source._first = self._first + part * self._stride
        source._stride = self._stride * parts
        return source

    @abstractmethod
    def _copy(self) -> DealtSource:
        """Return another source of the same pieces, all of them."""


BATCH_BYTES_MAX = 256 << 20  # as the log has them: what a driver may take into its memory
Staged: TypeAlias = Any  # what is ready to be published, with `num_rows`: a table or a file


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch as the log has them; they are decoded when somebody asks for them."""

    bodies: tuple[Body, ...]
    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for body in self.bodies:
            yield punit.conform(punit.decode(body, is_sound=True), self.schema)

    def table(self) -> pa.Table:
        if not self.bodies:
            return self.schema.empty_table()  # with a chunk, which PySpark needs for a DataFrame
        return pa.Table.from_batches(self, self.schema)


class Sink(ABC):
    """A system outside the log that takes the batches of one query, each under its epoch.

    Order of calls: `last_epoch` when the feeding begins; `stage`, for some batches ahead; for each
    of them `publish`, in the order of the epochs, which only rise, or `discard`; `close`.

    What `stage` does is seen by nobody, so it may be done beforehand and be thrown away. Once an
    epoch is published for the first time its rows never change, whoever publishes them and however
    often: a sink that knows which epochs it has, and does not take them again, is exactly once.
    """

    bytes_max: ClassVar[int] = BATCH_BYTES_MAX  # a batch is not made much larger
    patience_s: ClassVar[float] = 0.0  # how long rows wait for more, where there is no trigger
    bytes_enough: ClassVar[int] = BATCH_BYTES_MAX  # nor larger if who wrote it has no more for now
    is_kept: ClassVar[bool] = True  # False: it begins anew with each run, and gets everything again
    ahead: int = 1  # how many batches are staged before the first of them is published
    files: FilesKind | None = None  # how slots may write its files themselves; None: they do not
    # Of the batch that is published, from 0 and without gaps; one that comes again has it again.
    number: int = 0

    def stage(self, epoch: int, rows: BatchRows) -> Staged:
        """Do what can be done before the epoch is decided; may be called by several threads."""
        return rows.table()

    @abstractmethod
    def publish(self, epoch: int, staged: Staged) -> None:
        """Make what was staged for an epoch visible, all of it or nothing; durable when it returns.

        Raises if it may not have arrived. In complete mode the rows are the whole result.
        """

    def stage_file(self, epoch: int, file: NamedFile) -> Staged:
        """As `stage`, of rows that a slot has written into a file; only where `files` is said."""
        raise NotImplementedError

    def discard(self, staged: Staged) -> None:  # noqa: B027 (most stage nothing outside)
        """Forget what was staged and will not be published."""

    def last_epoch(self) -> int | None:
        """The newest epoch with rows that the sink itself knows to have; None if it has no record.

        An epoch at or below it is not taken again.
        """
        return None

    def files_of_slots(self) -> Sequence[FileOfSlot]:
        """The files of slots that are there, published or not, and under their first names."""
        return ()

    def clear_file(self, name: str) -> None:  # noqa: B027 (only who has files of slots is asked)
        """Remove such a file, which nobody will publish."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Release what the sink holds. Closing twice is harmless."""


def check_rows_max(rows_max: int) -> int:
    """Return how many rows a read may build: what was asked for, within the bound of one batch."""
    if rows_max < 1:
        raise InvalidArgument(f"rows_max is {rows_max}, at least 1 is needed", rows_max=rows_max)
    return min(rows_max, READ_ROWS_MAX)


def check_offset(offset: Offset, start: int, end: int | None, stride: int = 1) -> int:
    """Return an integer offset if a source of every `stride`-th number from `start` made it."""
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < start:
        raise offset_refused(offset, f"a number from {start} on was expected")
    if (offset - start) % stride or (end is not None and offset >= end + stride):
        raise offset_refused(offset, f"{start} + a multiple of {stride} was expected, end {end}")
    return offset


def offset_refused(offset: Offset, why: str) -> InvalidOffset:
    """Return the error for an offset that a source never handed out."""
    shown = json.dumps(offset, default=repr)[:200]
    return InvalidOffset(
        f"offset {shown} is not one of this source: {why}; "
        "it was committed by another source or under other settings",
        offset=shown,
    )


def check_epoch(epoch: int) -> None:
    """Raise InvalidArgument for an epoch that no batch has."""
    if epoch < 0:
        raise InvalidArgument(f"epoch {epoch} is not possible: epochs start at 0", epoch=epoch)
