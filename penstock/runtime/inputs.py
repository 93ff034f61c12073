"""Inputs: committed rows of streams, or rows of a source, one delivery at a time.

A delivery is the smallest piece of input after which a vertex may write a marker. For streams it is
what one input marker released, however much that is; for a source, one read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.contract import AGAIN_S, Source
from penstock.errors import PUnitError, StreamInputError, Trimmed
from penstock.log import punit
from penstock.log.committed import CommittedReader, Release, Tags
from penstock.log.contract import Log
from penstock.log.record import START, Record
from penstock.runtime.instances import run_of
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Marker, Said, decode_marker
from penstock.runtime.read_ahead import ReadAhead
from penstock.stages.tags import parse_tag


@dataclass(frozen=True, slots=True)
class Delivery:
    """A piece of input, and what it tells about time."""

    batches: tuple[pa.RecordBatch, ...]
    origins: tuple[
        str, ...
    ]  # where each batch came from, for people: stream and position, or offset
    producer: str | None = None  # whose marker it was; None: a source, or it tells nothing
    watermark_us: int | None = None  # of the producer or source, after these rows
    ended: bool = False  # the producer or source has no more
    caught_up_run: int = 0  # of the producer, see `Said`
    is_whole: bool = True  # with this piece; what it says about time comes with the last one
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

    def close(self) -> None:  # noqa: B027 - most inputs hold nothing
        """Release what the input holds."""


class StreamInput(Input):
    """Committed rows of some substreams.

    Of each unit only the columns of `schema` are looked at. What one marker released may be much
    more than a step takes: then it comes in pieces, and is one delivery with its last one.
    """

    def __init__(
        self,
        log: Log,
        tags: Tags | Callable[[], Tags],
        schema: pa.Schema,
        marker: Marker,
        coded: Collection[str] = (),
    ) -> None:
        """`coded`: columns of texts that may come as codes of a dictionary."""
        # The first instance begins with what is kept; whoever follows was promised the rest.
        after = marker.resume if marker.epoch else None
        self._reader = CommittedReader(log, tags, after, marker.consumed)
        self._schema = schema
        self._coded = coded
        self._release: Release | None = None  # being delivered
        self._records: deque[Record] = deque()  # of it, not looked at yet
        self._rest: pa.RecordBatch | None = None  # of the record that was last looked at
        self._origin = ""

    def take(self, rows_max: int) -> Delivery | None:
        if self._release is None:
            self._release = self._next_release()
            if self._release is None:
                return None
            self._records.extend(self._release.records)
        batches: list[pa.RecordBatch] = []
        origins = []
        while rows_max > 0 and (batch := self._some_rows(rows_max)) is not None:
            batches.append(batch)
            origins.append(self._origin)
            rows_max -= max(1, batch.num_rows)
        if self._records or self._rest is not None:
            return Delivery(tuple(batches), tuple(origins), is_whole=False)
        marker, self._release = self._release.marker, None
        facts = decode_marker(marker)
        run = run_of(facts.instance) if facts.caught_up else 0
        return Delivery(
            tuple(batches),
            tuple(origins),
            producer=None if facts.timeless else marker.producer,
            watermark_us=facts.watermark_us,
            ended=facts.ended,
            caught_up_run=run,
        )

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

    def _some_rows(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of the release, of one record at a time; None if all were given out."""
        if self._rest is None:
            if not self._records:
                return None
            record = self._records.popleft()
            self.bytes_taken += record.body.nbytes
            self._rest = self._rows(record)
            self._origin = f"{record.tags[0]} position {record.position}"
        rows = self._rest.slice(0, rows_max)
        rest = self._rest.slice(rows.num_rows)
        self._rest = rest if rest.num_rows else None
        return rows

    def _rows(self, record: Record) -> pa.RecordBatch:
        try:
            return punit.conform(punit.decode_record(record, self._coded), self._schema)
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
        self._source = ReadAhead(source)
        self._reads_ahead = source.reads_ahead
        self._rows_max = 0  # the most that was asked for
        self._columns = None if list(source.schema.names) == columns else columns
        self._no_rows = pa.RecordBatch.from_pylist([], schema=source.schema)
        self._offset = source.initial_offset() if offset is None else offset
        self._has_paused = False
        self._is_drained = False
        self._has_nothing_yet = False
        self._ended = False
        self._again_s = AGAIN_S

    def take(self, rows_max: int) -> Delivery | None:
        if self._ended:
            return None
        first = self._offset
        read = self._source.read(first, rows_max)
        if read is None:
            return None  # it comes with the next step, which may take more
        self._rows_max = max(self._rows_max, rows_max)
        if read.more and self._reads_ahead:
            self._source.begin(read.next_offset, self._rows_max)
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
        return Delivery(
            batches=() if batch is None else (batch,),
            origins=() if batch is None else (f"source offset {first}",),
            watermark_us=WATERMARK_END if read.ended else read.watermark_us,
            ended=read.ended,
            rejected=read.rejected,
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

    def close(self) -> None:
        self._source.close()


class Watermarks:
    """The input's watermark: the least of its producers', none of whom it may overtake.

    Two kinds of producers do not hold the others back. One that has caught up has said itself that
    it has no more for now: of the vertices of a stage, which share one input, those that still have
    something count, and when none has, the furthest, as if one vertex had read it all. One
    that was silent for `idle_timeout_ms` is left behind, whatever it may still have.

    The result never falls, so a producer that comes back finds its rows judged by where the others
    are.
    """

    def __init__(
        self,
        expected: Collection[str],
        known: Mapping[str, Said],
        watermark_us: int,
        idle_timeout_ms: int | None,
        run: int = 0,
        others: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """Those who will speak are `expected` in this query and run, and `others` elsewhere."""
        self._own = frozenset(expected)
        self._others = others
        self._producers = dict(known)
        self._expect()
        self._watermark_us = watermark_us
        self._run = run
        self._silence = None if idle_timeout_ms is None else Silence(idle_timeout_ms)

    @property
    def watermark_us(self) -> int:
        return self._watermark_us

    @property
    def ended(self) -> bool:
        """Whether every producer has said that it has no more."""
        return bool(self._producers) and all(said.ended for said in self._producers.values())

    @property
    def caught_up(self) -> bool:
        """Whether no vertex of this query that writes the input has more for now."""
        return all(self._producers[name].ended or self._has_caught_up(name) for name in self._own)

    def known(self) -> dict[str, Said]:
        return dict(self._producers)

    def hear(self, producer: str, said: Said) -> None:
        before = self._producers.get(producer, Said())
        watermark_us = max(before.watermark_us, said.watermark_us)
        self._producers[producer] = said._replace(watermark_us=watermark_us)
        if self._silence is not None:
            self._silence.end(producer)
        if self.ended:
            self._expect()  # the program that writes the stream may be another by now
        self._advance()

    def listen(self, now_ms: float) -> bool:
        """Everything visible has been heard; return whether somebody's silence moves time on."""
        if self._silence is None:
            return False
        self._silence.go_on(self._producers, now_ms)
        before = self._watermark_us
        self._advance()
        return self._watermark_us > before

    def _expect(self) -> None:
        for producer in sorted(self._own.union(self._others())):
            self._producers.setdefault(producer, Said())

    def _advance(self) -> None:
        """Go as far as those allow who are to be waited for; all silent, as far as is known."""
        if self.ended:
            self._watermark_us = WATERMARK_END
            return
        voices = self._voices()
        awake = [watermark_us for watermark_us, is_silent in voices if not is_silent]
        furthest = max((watermark_us for watermark_us, _ in voices), default=WATERMARK_NONE)
        self._watermark_us = max(self._watermark_us, min(awake, default=furthest))

    def _voices(self) -> list[tuple[int, bool]]:
        """Whom the watermark goes by: how far each is, and whether it is silent."""
        voices = []
        stages: dict[str, list[str]] = {}
        for name, said in self._producers.items():
            if not said.ended:
                stages.setdefault(_stage_of(name), []).append(name)
        for names in stages.values():
            busy = [name for name in names if not self._has_caught_up(name)]
            if busy:
                voices += [(self._producers[n].watermark_us, self._is_silent(n)) for n in busy]
            else:
                furthest_us = max(self._producers[name].watermark_us for name in names)
                voices.append((furthest_us, all(map(self._is_silent, names))))
        return voices

    def _has_caught_up(self, producer: str) -> bool:
        """What was said in another run means nothing: there may be more by now."""
        caught_up_run = self._producers[producer].caught_up_run
        return producer in self._own and 0 < caught_up_run == self._run

    def _is_silent(self, producer: str) -> bool:
        return self._silence is not None and self._silence.is_over(producer)


class Silence:
    """For how long a reader has heard nothing of each producer, by the time it was able to hear.

    It is able to when it has taken all there was. From one such moment to the next it has listened,
    unless it was held up in between: so no gap counts for more than a part of the timeout.
    """

    _LOOKS = 4  # without a word, at the least, before a producer counts as silent

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._listened_ms: float | None = None
        self._silent_ms: dict[str, float] = {}
        self._heard: set[str] = set()  # since it last listened

    def end(self, producer: str) -> None:
        self._heard.add(producer)

    def go_on(self, producers: Iterable[str], now_ms: float) -> None:
        since_ms = now_ms if self._listened_ms is None else self._listened_ms
        listened_ms = min(now_ms - since_ms, self._timeout_ms / self._LOOKS)
        for producer in producers:
            before_ms = self._silent_ms.get(producer, 0.0)
            silent_ms = 0.0 if producer in self._heard else before_ms + listened_ms
            self._silent_ms[producer] = silent_ms
        self._listened_ms = now_ms
        self._heard.clear()

    def is_over(self, producer: str) -> bool:
        """Whether a producer was silent for the whole timeout, and still is."""
        return (
            producer not in self._heard and self._silent_ms.get(producer, 0.0) >= self._timeout_ms
        )


def _stage_of(producer: str) -> str:
    """Vertices of one stage are parts of one producer; any other is one by itself."""
    return producer.rpartition(".")[0] or producer
