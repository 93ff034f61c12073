"""What every source and sink promises. `tests/connectors/contract.py` holds the tests for it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidArgument, InvalidOffset

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

    A replayable source is a function of the offset: the rows between two offsets are the same on
    every read, in every process, and however `rows_max` cuts them into batches. A source that
    cannot promise this says so, and its rows go into the log before anything else sees them.
    """

    schema: pa.Schema
    replayable: bool = True
    reads_ahead: bool = False  # reading takes its time outside Python's lock: worth a thread

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

        Every batch has exactly `schema`, but for texts that the source was told may come coded.
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


class Sink(ABC):
    """A system outside the log that takes rows exactly once.

    Order of calls, per writer: `last_epoch` when it starts, then `write` with epochs that only
    rise. The rows of an epoch become visible all together or not at all, and an epoch at or below
    the last one is not written again: a writer that restarts may repeat what it is not sure of.
    """

    @abstractmethod
    def write(self, writer: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> bool:
        """Store an epoch's rows; return whether they were new. Durable when it returns."""

    @abstractmethod
    def last_epoch(self, writer: str) -> int | None:
        """Return the newest epoch with rows of this writer that is in the sink, or None."""

    def close(self) -> None:  # noqa: B027 (a sink may hold nothing)
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


def epoch_refused(epoch: int) -> InvalidArgument:
    """Return the error for an epoch that no vertex has."""
    return InvalidArgument(f"epoch {epoch} is not possible: epochs start at 0", epoch=epoch)
