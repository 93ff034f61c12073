"""Inputs: committed rows of streams, or rows of a source, one delivery at a time.

A delivery is the smallest piece of input after which a vertex may write a marker. For streams it is
what one input marker released; for a source, one read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.contract import Source
from penstock.errors import PUnitError, StreamInputError, Trimmed
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release
from penstock.log.contract import Log
from penstock.log.record import START, Record
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Marker, decode_marker
from penstock.stages.tags import parse_tag


@dataclass(frozen=True, slots=True)
class Delivery:
    """A piece of input, and what it tells about time."""

    batches: tuple[pa.RecordBatch, ...]
    origins: tuple[
        str, ...
    ]  # where each batch came from, for people: stream and position, or offset
    producer: str | None = None  # whose marker it was; None for a source
    watermark_us: int | None = None  # of the producer or source, after these rows
    ended: bool = False  # the producer or source has no more
    rejected: pa.RecordBatch | None = None  # input that the source could not turn into rows

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class Input(ABC):
    """Where a vertex takes its rows from. Its position is what a marker says about it."""

    bytes_taken = 0  # of the log's records; none for a source

    @abstractmethod
    def take(self, rows_max: int) -> Delivery | None:
        """Return the next delivery, or None if there is nothing now."""

    @abstractmethod
    def is_drained(self) -> bool:
        """Whether everything that is there now has been taken."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """The fields of a marker that let a later instance go on after the last delivery."""

    def close(self) -> None:  # noqa: B027 - most inputs hold nothing
        """Release what the input holds."""


class StreamInput(Input):
    """Committed rows of some substreams.

    Of each unit only the columns of `schema` are looked at.
    """

    def __init__(self, log: Log, tags: Collection[str], schema: pa.Schema, marker: Marker) -> None:
        # The first instance begins with what is kept; whoever follows was promised the rest.
        after = marker.resume if marker.epoch else None
        self._reader = CommittedReader(log, tags, after, marker.consumed)
        self._schema = schema

    def take(self, rows_max: int) -> Delivery | None:
        try:
            release = self._reader.take()
        except Trimmed as gone:
            raise rows_gone(
                gone, "Start the query under another name: it begins with what is kept"
            ) from gone
        return None if release is None else self._delivery(release)

    def is_drained(self) -> bool:
        return self._reader.is_drained()

    def position(self) -> dict[str, Any]:
        return {"consumed": self._reader.consumed, "resume": self._reader.resume}

    def _delivery(self, release: Release) -> Delivery:
        marker = decode_marker(release.marker)
        self.bytes_taken += sum(record.body.nbytes for record in release.records)
        return Delivery(
            batches=tuple(self._rows(record) for record in release.records),
            origins=tuple(f"{r.tags[0]} position {r.position}" for r in release.records),
            producer=release.marker.producer,
            watermark_us=marker.watermark_us,
            ended=marker.ended,
        )

    def _rows(self, record: Record) -> pa.RecordBatch:
        try:
            return punit.conform(punit.decode(record.body), self._schema)
        except PUnitError as error:
            raise StreamInputError(
                f"the rows at position {record.position} ({record.tags[0]}, written by "
                f"{record.producer}) do not fit this query: {error.message}",
                position=record.position,
                tag=record.tags[0],
                cause=error.error_class,
            ) from error


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

    def __init__(self, source: Source, offset: Any, columns: list[str]) -> None:
        self._source = source
        self._columns = None if list(source.schema.names) == columns else columns
        self._offset = source.initial_offset() if offset is None else offset
        self._idle = False
        self._ended = False

    def take(self, rows_max: int) -> Delivery | None:
        if self._ended:
            return None
        first = self._offset
        read = self._source.read(first, rows_max)
        # Fewer rows than asked for: for now the source has no more.
        self._idle = read.idle or read.rows < rows_max
        if read.idle and not read.ended:
            return None
        self._offset = read.next_offset
        self._ended = read.ended
        batch = read.batch
        if batch is not None and self._columns is not None:
            batch = batch.select(self._columns)
        return Delivery(
            batches=() if batch is None else (batch,),
            origins=() if read.batch is None else (f"source offset {first}",),
            watermark_us=WATERMARK_END if read.ended else read.watermark_us,
            ended=read.ended,
            rejected=read.rejected,
        )

    def is_drained(self) -> bool:
        return self._idle or self._ended

    def position(self) -> dict[str, Any]:
        return {"consumed": START, "resume": START, "offset": self._offset}

    def close(self) -> None:
        self._source.close()


class Watermarks:
    """The input's watermark: the least of its producers', none of whom it may overtake.

    A producer that is silent for `idle_timeout_ms` no longer holds the others back. The result
    never falls, so a producer that comes back late finds its rows judged by where the others are.
    """

    def __init__(
        self,
        expected: Collection[str],
        known: dict[str, tuple[int, bool]],
        watermark_us: int,
        idle_timeout_ms: int | None,
    ) -> None:
        self._producers = dict.fromkeys(sorted(expected), (WATERMARK_NONE, False))
        self._producers.update(known)
        self._expected = frozenset(expected)
        self._watermark_us = watermark_us
        self._idle_timeout_ms = idle_timeout_ms
        self._heard_ms: dict[str, float] = {}

    @property
    def watermark_us(self) -> int:
        return self._watermark_us

    @property
    def ended(self) -> bool:
        """Whether every producer has said that it has no more."""
        return bool(self._producers) and all(ended for _, ended in self._producers.values())

    def known(self) -> dict[str, tuple[int, bool]]:
        return dict(self._producers)

    def hear(self, producer: str, watermark_us: int, ended: bool, now_ms: float) -> None:
        before, _ = self._producers.get(producer, (WATERMARK_NONE, False))
        self._producers[producer] = (max(before, watermark_us), ended)
        self._heard_ms[producer] = now_ms
        self._advance(now_ms)

    def pass_idle(self, now_ms: float) -> bool:
        """Leave silent producers behind; return whether that moved the watermark."""
        if self._idle_timeout_ms is None:
            return False
        before = self._watermark_us
        self._advance(now_ms)
        return self._watermark_us > before

    def _advance(self, now_ms: float) -> None:
        active = [
            watermark_us
            for name, (watermark_us, ended) in self._producers.items()
            if not ended and not self._is_idle(name, now_ms)
        ]
        if not active:
            # All ended, or all silent: the furthest of them is what is known.
            finished = self.ended
            active = (
                [WATERMARK_END] if finished else [w for w, e in self._producers.values() if not e]
            )
            active = active if finished else [max(active, default=WATERMARK_NONE)]
        self._watermark_us = max(self._watermark_us, min(active))

    def _is_idle(self, producer: str, now_ms: float) -> bool:
        if self._idle_timeout_ms is None:
            return False
        heard_ms = self._heard_ms.setdefault(producer, now_ms)
        return now_ms - heard_ms >= self._idle_timeout_ms
