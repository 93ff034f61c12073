"""Inputs: committed rows of streams, or rows of a source, one delivery at a time.

A delivery is a piece of input after which a vertex may write a marker. For streams it is what one
input marker released, however much that is, and what the next ones did, if that is there by then:
what a batch costs however few rows it has is paid once. For a source it is one read.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.arrays import no_rows
from penstock.connectors.contract import AGAIN_S, Source
from penstock.errors import PUnitError, StreamInputError, Trimmed
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release, Tags
from penstock.log.contract import Log
from penstock.log.record import START, Record
from penstock.runtime.event_time import Word
from penstock.runtime.instances import run_of
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Marker, Said, decode_marker
from penstock.runtime.read_ahead import ReadAhead
from penstock.stages.tags import OF_STREAMS, parse_tag

RELEASES_PER_DELIVERY_MAX = 64
TOGETHER_ROWS_MAX = 1 << 14  # batches of so many rows are worth their cost, and not a copy


class PortBatch(NamedTuple):
    """Rows of one port."""

    port: int
    batch: pa.RecordBatch
    origins: tuple[tuple[str, int], ...]  # for people: stream and position, or offset; and rows

    def part_of(self, row: int) -> PortBatch:
        """The rows that came together with this one."""
        first = 0
        for origin in self.origins:
            if row < first + origin[1]:
                break
            first += origin[1]
        return PortBatch(self.port, self.batch.slice(first, origin[1]), (origin,))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A piece of input, and what it tells about time."""

    batches: tuple[PortBatch, ...]
    words: tuple[Word, ...] = ()  # of producers or the source, after these rows
    is_whole: bool = True  # with this piece; what it says about time comes with the last one
    rejected: pa.RecordBatch | None = None  # input that the source could not turn into rows
    had_input: bool = True  # here or before; the end alone is none

    @property
    def rows(self) -> int:
        return sum(piece.batch.num_rows for piece in self.batches)


@dataclass(frozen=True, slots=True)
class PortColumns:
    """What a port wants of its streams: these columns, of which texts may come as codes."""

    streams: frozenset[str]
    schema: pa.Schema
    coded: Set[str] = frozenset()


class Input(ABC):
    """Where a vertex takes its rows from. Its position is what a marker says about it."""

    bytes_taken = 0  # of the log's records; none for a source
    is_source = False
    cleans = False  # what was taken is let go of once it is committed
    is_one_sequence = False  # other vertices read it too, by offsets that mean the same

    @abstractmethod
    def take(self, rows_max: int, is_rest: bool = False) -> Delivery | None:
        """Return the next delivery, or None if there is nothing now.

        `is_rest`: so many are left of a step that has had some.
        """

    @abstractmethod
    def has_paused(self) -> bool:
        """Whether it is not worth waiting for more: reason to commit, and none to end."""

    @abstractmethod
    def is_drained(self) -> bool:
        """Whether it was asked and had nothing; a small answer is no such word."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """The fields of a marker that let a later instance go on after the last delivery."""

    def has_nothing_yet(self) -> bool:
        """Whether there has never been anything, and may never be: time does not wait for it."""
        return False

    def ask_again_in_s(self) -> float | None:
        """How long it is no use to ask an input that had nothing; None: until the log grows."""
        return None

    def committed(self, offset: Any) -> None:  # noqa: B027 - most have nobody to tell
        """A durable marker has this offset."""

    def left_behind(self) -> int:
        """How much there is to let go of; it only rises."""
        return 0

    def clean(self, offsets: Sequence[Any]) -> None:  # noqa: B027 - most are trimmed elsewhere
        """Let go of it: these offsets are what all who read the source have committed."""

    def close(self) -> None:  # noqa: B027 - most inputs hold nothing
        """Release what the input holds."""


class StreamInput(Input):
    """Committed rows of some substreams, through one reader for all ports.

    So the log's order is the order of processing, across ports too, and a replay has the same. Of
    each unit only the columns that a port wants are looked at; a stream that two ports read goes to
    both. What one marker released may be much more than a step takes: then it comes in pieces, and
    is one delivery with its last one. Where the order across ports decides nothing, the rows of a
    delivery come port by port. `as_one`: a batch costs much, however large; there are to be few.
    """

    def __init__(
        self,
        log: Log,
        tags: Tags | Callable[[], Tags],
        ports: Sequence[PortColumns],
        marker: Marker,
        in_order: bool = True,
        as_one: bool = False,
        releases_max: int = RELEASES_PER_DELIVERY_MAX,
    ) -> None:
        # The first instance begins with what is kept; whoever follows was promised the rest.
        after = marker.resume if marker.epoch else None
        self._reader = CommittedReader(log, tags, after, marker.consumed)
        self._ports = ports
        self._release: Release | None = None  # being delivered
        self._records: deque[tuple[int, Record]] = deque()  # of it, by port, not looked at yet
        self._rest: PortBatch | None = None  # of the record that was last looked at
        self._said: list[Word] = []  # of markers whose rows were given out
        self._had_input = marker.had_input  # so do they say
        self._in_order = in_order
        self._together_rows_max = sys.maxsize if as_one else TOGETHER_ROWS_MAX
        self._releases_max = releases_max

    def take(self, rows_max: int, is_rest: bool = False) -> Delivery | None:
        pieces: list[PortBatch] = []
        releases = 0
        while rows_max > 0 and releases < self._releases_max and self._begin_release():
            assert self._release is not None
            releases += 1
            while rows_max > 0 and (piece := self._some_rows(rows_max)) is not None:
                pieces.append(piece)
                rows_max -= max(1, piece.batch.num_rows)
            if self._records or self._rest is not None:
                return Delivery(self._together(pieces), is_whole=False)
            marker, self._release = self._release.marker, None
            facts = decode_marker(marker)
            self._had_input |= facts.had_input
            self._said += self._words(marker, facts)
        if not releases:
            return None
        words, self._said = tuple(self._said), []
        had_input = self._had_input or bool(pieces)
        return Delivery(self._together(pieces), words, had_input=had_input)

    def _begin_release(self) -> bool:
        """Go on with the release that is being delivered, or with the next one, if there is one."""
        if self._release is None:
            self._release = self._next_release()
            for record in () if self._release is None else self._release.records:
                self.bytes_taken += record.body.nbytes
                self._records.extend((port, record) for port in self._ports_of(record))
        return self._release is not None

    def _together(self, pieces: list[PortBatch]) -> tuple[PortBatch, ...]:
        """Small batches of a port that follow each other, as one."""
        if not self._in_order:
            pieces.sort(key=lambda piece: piece.port)
        done: list[PortBatch] = []
        waiting: list[PortBatch] = []
        rows = 0
        for piece in pieces:
            rows += piece.batch.num_rows
            if waiting and (rows > self._together_rows_max or not _fit(waiting[-1], piece)):
                done.append(_joined(waiting))
                waiting, rows = [], piece.batch.num_rows
            waiting.append(piece)
        return (*done, _joined(waiting)) if waiting else ()

    def _ports_of(self, record: Record) -> list[int]:
        """Who reads the streams that a record is in."""
        if len(self._ports) == 1:
            return [0]
        tags = map(parse_tag, record.tags)
        streams = {tag.name for tag in tags if tag.kind in OF_STREAMS}
        return [at for at, port in enumerate(self._ports) if port.streams & streams]

    def _words(self, marker: Record, facts: Marker) -> tuple[Word, ...]:
        """What a marker says, to each port of which it speaks."""
        if facts.timeless:
            return ()
        run = run_of(facts.instance) if facts.caught_up else 0
        said = Said(facts.output_watermark_us, facts.ended, run, facts.rests)
        return tuple(Word(port, said, marker.producer) for port in self._ports_of(marker))

    def has_paused(self) -> bool:
        return self.is_drained()

    def is_drained(self) -> bool:
        return self._release is None and self._reader.is_drained()

    def position(self) -> dict[str, Any]:
        assert self._release is None, "no marker stands within a delivery"
        return {"consumed": self._reader.consumed, "resume": self._reader.resume}

    def _next_release(self) -> Release | None:
        try:
            return self._reader.take()
        except Trimmed as gone:
            raise rows_gone(
                gone, "Start the query under another name: it begins with what is kept"
            ) from gone

    def _some_rows(self, rows_max: int) -> PortBatch | None:
        """The next rows of the release, of one record at a time; None if all were given out."""
        if self._rest is None:
            if not self._records:
                return None
            port, record = self._records.popleft()
            origin = f"{record.tags[0]} position {record.position}"
            batch = self._rows(record, self._ports[port])
            self._rest = PortBatch(port, batch, ((origin, batch.num_rows),))
        if self._rest.batch.num_rows <= rows_max:
            piece, self._rest = self._rest, None
            return piece
        ((origin, _),) = self._rest.origins
        port, batch, _ = self._rest
        rest = batch.slice(rows_max)
        self._rest = PortBatch(port, rest, ((origin, rest.num_rows),))
        return PortBatch(port, batch.slice(0, rows_max), ((origin, rows_max),))

    def _rows(self, record: Record, port: PortColumns) -> pa.RecordBatch:
        try:
            found = punit.decode_record(record, port.coded, port.schema.names)
            return punit.conform(found, port.schema)
        except PUnitError as error:
            raise StreamInputError(
                f"the rows at position {record.position} ({record.tags[0]}, written by "
                f"{record.producer}) do not fit this query: {error.message}",
                position=record.position,
                tag=record.tags[0],
                cause=error.error_class,
            ) from error


def _fit(one: PortBatch, other: PortBatch) -> bool:
    return one.port == other.port and one.batch.schema == other.batch.schema


def _joined(pieces: Sequence[PortBatch]) -> PortBatch:
    if len(pieces) == 1:
        return pieces[0]
    batch = pa.concat_batches([piece.batch for piece in pieces])
    return PortBatch(pieces[0].port, batch, tuple(of for piece in pieces for of in piece.origins))


def rows_gone(gone: Trimmed, advice: str) -> Trimmed:
    """The error of a reader that was overtaken by a trim, for people."""
    stream = parse_tag(gone.details["tag"]).name
    after, upto = gone.details["after"], gone.details["upto"]
    return Trimmed(
        f"{upto - after} positions of stream {stream}, {after + 1} to {upto}, were trimmed before "
        f"they were read here: their rows are gone. {advice}, or restore the log from a copy",
        **(gone.details | {"stream": stream}),
    )


class SourceInput(Input):
    """Rows of a source, read by offset; the offset in the marker makes a replay start there."""

    is_source = True

    def __init__(self, source: Source, offset: Any, columns: list[str]) -> None:
        self.cleans = source.cleans
        self.is_one_sequence = source.is_one_sequence
        self._unread = source  # as it is, without what is read ahead
        self._source = ReadAhead(source)
        self._reads_ahead = source.reads_ahead
        self._step_rows = 0  # that the last step asked for
        self._columns = None if list(source.schema.names) == columns else columns
        self._no_rows = no_rows(source.schema)
        self._offset = source.initial_offset() if offset is None else offset
        self._has_paused = False
        self._is_drained = False
        self._has_nothing_yet = False
        self._ended = False
        self._again_s = AGAIN_S

    def take(self, rows_max: int, is_rest: bool = False) -> Delivery | None:
        if self._ended:
            return None
        first = self._offset
        read = self._source.read(first, rows_max, may_be_more=not is_rest)
        if read is None:
            return None  # it comes with the next step
        if not is_rest:
            self._step_rows = rows_max
        if read.more and self._reads_ahead:
            self._source.begin(read.next_offset, self._step_rows)
        self._has_paused = not read.more and not read.pending
        self._is_drained = (read.idle and not read.pending) or read.ended
        self._has_nothing_yet = read.nothing_yet
        self._again_s = read.again_s
        if read.idle and not read.ended:
            return None
        self._offset = read.next_offset
        self._ended = read.ended
        batch = read.batch
        if batch is None and self._offset != first:
            batch = self._no_rows  # a file without rows is input all the same
        if batch is not None and self._columns is not None:
            batch = batch.select(self._columns)
        known_us = WATERMARK_NONE if read.watermark_us is None else read.watermark_us
        said = Said(WATERMARK_END if read.ended else known_us, read.ended)
        return Delivery(
            batches=() if batch is None else (_read_at(first, batch),),
            words=(Word(0, said),),
            rejected=read.rejected,
            had_input=batch is not None,
        )

    def has_paused(self) -> bool:
        return self._has_paused or self._ended

    def is_drained(self) -> bool:
        return self._is_drained

    def has_nothing_yet(self) -> bool:
        return self._has_nothing_yet

    def ask_again_in_s(self) -> float | None:
        return None if self._ended else self._again_s

    def position(self) -> dict[str, Any]:
        return {"consumed": START, "resume": START, "offset": self._offset}

    def committed(self, offset: Any) -> None:
        self._unread.committed(offset)

    def left_behind(self) -> int:
        return self._unread.left_behind(self._offset)

    def clean(self, offsets: Sequence[Any]) -> None:
        self._unread.clean(offsets)

    def close(self) -> None:
        self._source.close()


def _read_at(offset: Any, batch: pa.RecordBatch) -> PortBatch:
    return PortBatch(0, batch, ((f"source offset {offset}", batch.num_rows),))
