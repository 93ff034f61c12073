"""Outputs: rows and state changes on their way into the log, numbered for their producer.

Everything between two markers goes out with the marker in one append. What is larger goes out
early and stays invisible until its marker, so an append and a unit are never larger than the log
allows, however much a step gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle

import numpy as np
import pyarrow as pa

from penstock.errors import RecordTooLarge, Trimmed
from penstock.kernels.columns import plain_batch, with_own_texts
from penstock.kernels.dealing import deal
from penstock.kernels.hashing import hash_columns
from penstock.log import punit
from penstock.log.codecs.choosing import Adaptive
from penstock.log.contract import APPEND_ENTRIES_MAX, Log
from penstock.log.record import Append, Body, Entry, Fence, Position, RecordKind
from penstock.log.validate import check_newest
from penstock.runtime.appending import Appends, PendingAppend
from penstock.runtime.file_output import FileOutput
from penstock.stages.tags import parse_tag

UNIT_BYTES_MAX = 8 << 20  # before compression
VALUES_BYTES_MAX = 64 << 20  # with values in place of codes: a reader may want them
ROW_BYTES_MAX = (64 << 20) - (64 << 10)  # a log takes 64 MiB in one record, with the unit's frame
APPEND_BYTES_MAX = 64 << 20  # a log takes 256 MiB in one append

TURN_ROWS = 16_384  # at least go to one substream before it is the next one's turn

Partitioner = Callable[[pa.RecordBatch], Sequence[tuple[str, pa.RecordBatch]]]


def partitioner(tags: Sequence[str], partition_by: Sequence[str], first: int = 0) -> Partitioner:
    """How rows find their substream: by the hash of their key columns, or in turn, a piece each,
    beginning with the tag at `first`."""
    if len(tags) == 1:
        return lambda batch: ((tags[0], batch),)
    if not partition_by:
        turns = cycle((*tags[first:], *tags[:first]))

        def in_turn(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
            size = max(TURN_ROWS, -(-batch.num_rows // len(tags)))
            starts = range(0, batch.num_rows, size)
            return [(next(turns), batch.slice(start, size)) for start in starts]

        return in_turn

    def by_key(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        hashes = hash_columns([batch.column(name) for name in partition_by], batch.num_rows)
        order, ends = deal(hashes, len(tags))
        sizes = np.diff(ends, prepend=0)
        if sizes.max() < batch.num_rows:
            batch = batch.take(pa.array(order))  # once, and then in slices: not once for each tag
        return [
            (tag, batch.slice(end - size, size))
            for tag, end, size in zip(tags, ends.tolist(), sizes.tolist(), strict=True)
            if size
        ]

    return by_key


class Outputs:
    """What one instance has produced since its last append.

    An append is begun, and settled once its outcome is known; there is one at a time. When a call
    has raised, nobody knows what is queued and what is in the log: the instance is over. Its
    successor begins after the last marker, which the log knows.
    """

    def __init__(
        self,
        log: Log,
        fence: Fence,
        codec: punit.Codec,
        lasts: Callable[[str], bool] = lambda tag: False,
        appends: Appends | None = None,
        adaptive: Adaptive | None = None,
        files: Mapping[str, FileOutput] | None = None,
    ) -> None:
        """`lasts` says of a tag whether its records are not trimmed by this query.

        Only these are compressed by a codec that was named: what is read once and trimmed costs
        more time than it saves. `adaptive` weighs that for the rows of any stream, if it is the
        codec. Without `appends`, an append is over when it was begun. `files` are for the rows
        under some tags, if there are many of them.
        """
        self._log = log
        self._fence = fence
        self._codec = codec
        self._adaptive = adaptive or Adaptive(log.disk)
        self._lasts = lasts
        self._appends = appends or Appends(log)
        self._files = files or {}
        self._pending: PendingAppend | None = None
        self._sequence = 0
        self._rows: dict[tuple[RecordKind, str, pa.Schema], list[pa.RecordBatch]] = {}
        self._entries: list[Entry] = []
        self.bytes_waiting = 0
        self.written: set[str] = set()  # the tags of all rows since the last marker
        self.row_bytes: Counter[str] = Counter()  # by tag: of all rows so far, as they are stored
        self.units_rows: Counter[str] = Counter()  # by tag: how many of them are in units

    def add(self, kind: RecordKind, tag: str, batch: pa.RecordBatch) -> None:
        """Queue a batch under one tag; it shares p-units with what else goes there.

        Between stages texts keep their codes; who reads a stream for long finds values.
        RecordTooLarge if one of its rows can never be appended; then nothing is queued.
        """
        batch = plain_batch(batch) if self._lasts(tag) else with_own_texts(batch)
        check_rows(batch)
        if kind is RecordKind.DATA and tag in self._files:
            self._files[tag].add(batch)
        else:
            self._rows.setdefault((kind, tag, batch.schema), []).append(batch)
        self.bytes_waiting += batch.nbytes
        if kind is RecordKind.DATA:
            self.written.add(tag)

    def append_early(self) -> None:
        """Begin to append what is queued; no reader will see it before the next marker."""
        self.bytes_waiting -= sum(files.write_early() for files in self._files.values())
        self._seal_rows()
        if self._entries:
            self._begin()

    def begin_commit(self, tags: tuple[str, ...], marker: bytes) -> None:
        """Begin to append what is queued together with its marker."""
        self._end_files()
        self._seal_rows()
        self._queue(RecordKind.MARKER, tags, marker)
        self._begin()
        self.written.clear()

    def commit(self, tags: tuple[str, ...], marker: bytes) -> Position:
        """Append what is queued together with its marker; return the marker's position."""
        self.begin_commit(tags, marker)
        position = self.settle()
        assert position is not None
        return position

    @property
    def is_under_way(self) -> bool:
        """Whether an append was begun whose outcome is not known yet."""
        return self._pending is not None and self._pending.outcome is None

    def settle(self) -> Position | None:
        """Wait for the append that was begun; return its last position, or raise why it has none.

        None if none was begun since the last call.
        """
        if (pending := self._pending) is None:
            return None
        self._appends.finish(pending)
        self._pending = None
        assert pending.outcome is not None
        try:
            if isinstance(pending.outcome, Exception):
                raise pending.outcome
            return pending.outcome[-1]
        except Trimmed as gone:
            return self._position_of_trimmed(pending.append.entries, gone)
        finally:
            pending.outcome = None  # an error knows frames that know this: together they would stay

    def may_be_over(self) -> bool:
        """Whether the log has grown since the append under way was begun, be it by others."""
        return self._pending is not None and self._log.tail() > self._pending.tail

    def check_fence(self) -> None:
        """Raise `Fenced` if a newer instance owns the vertex by now."""
        check_newest(self._log, self._fence)

    def abandon(self) -> None:
        """Leave nothing of files that were begun: they would have been named by the next append."""
        for files in self._files.values():
            files.abandon()

    def _end_files(self) -> None:
        """Queue a record for each file, and rows that are too few for one as any others."""
        for tag, files in self._files.items():
            if (named := files.end()) is not None:
                self._queue(RecordKind.DATA, (tag,), *named.encode())
                self.row_bytes[tag] += named.bytes
            for batch in files.take_rows():
                self._rows.setdefault((RecordKind.DATA, tag, batch.schema), []).append(batch)

    def _seal_rows(self) -> None:
        """Turn queued rows into p-units: many small records would cost far more than few."""
        waiting, self._rows = self._rows, {}
        size_bytes = 0
        for (kind, tag, _), batches in waiting.items():
            codec = self._codec_of(kind, tag)
            for piece in chain.from_iterable(map(pieces, _together(batches))):
                body, digest = punit.encode_unit(
                    piece,
                    codec,
                    keep_codes=True,
                    adaptive=self._adaptive,
                    stream=parse_tag(tag).name,
                )
                # A marker must find room in the last append.
                is_full = len(self._entries) >= APPEND_ENTRIES_MAX - 1
                if self._entries and (is_full or size_bytes + body.size > APPEND_BYTES_MAX):
                    self._begin()
                    size_bytes = 0
                size_bytes += body.size
                self._queue(kind, (tag,), body, digest)
                if kind is RecordKind.DATA:
                    self.row_bytes[tag] += memoryview(body).nbytes
                    self.units_rows[tag] += piece.num_rows

    def _codec_of(self, kind: RecordKind, tag: str) -> punit.Codec:
        is_wanted = self._lasts(tag) or (
            self._codec is punit.Codec.ADAPTIVE and kind is RecordKind.DATA
        )
        return self._codec if is_wanted else punit.Codec.NONE

    def _queue(
        self, kind: RecordKind, tags: tuple[str, ...], body: Body, digest: int | None = None
    ) -> None:
        fence = self._fence
        lasts = any(map(self._lasts, tags))
        self._entries.append(
            Entry(kind, tags, fence.vertex, fence.instance, self._sequence, body, lasts, digest)
        )
        self._sequence += 1

    def _begin(self) -> None:
        self.settle()
        self._pending = self._appends.begin(Append(self._entries, self._fence))
        self._entries = []
        self.bytes_waiting = 0

    def _position_of_trimmed(self, entries: Sequence[Entry], gone: Trimmed) -> Position:
        """Where an append ends that went through, and was read and trimmed before it was repeated.

        Its marker is still there, since a vertex's last one is never trimmed. If it is not, nobody
        waits for this append: a newer instance has passed it by.
        """
        self.check_fence()
        marker = entries[-1]
        found = self._log.last(marker.tags[0])
        name = (marker.producer, marker.instance, marker.sequence)
        if found is None or (found.producer, found.instance, found.sequence) != name:
            raise gone
        return found.position


def _together(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about a unit; of what is larger a copy would only cost."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.nbytes
        if waiting and size_bytes > UNIT_BYTES_MAX:
            yield _joined(waiting)
            waiting, size_bytes = [], batch.nbytes
        waiting.append(batch)
    yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, halved until each piece is a unit of its own or a single row.

    Changes may be cut too: they apply one by one. Of coded texts each piece has its own.
    """
    is_unit = batch.nbytes <= UNIT_BYTES_MAX and punit.values_bytes(batch) <= VALUES_BYTES_MAX
    if is_unit or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from pieces(with_own_texts(part))


def check_rows(batch: pa.RecordBatch) -> None:
    """Raise RecordTooLarge if a row alone is more than a record may hold."""
    if batch.nbytes <= ROW_BYTES_MAX:
        return
    size_bytes = max(piece.nbytes for piece in pieces(batch))
    if size_bytes > ROW_BYTES_MAX:
        raise RecordTooLarge(
            f"a row of {size_bytes:,} bytes is over the bound of {ROW_BYTES_MAX:,} before "
            "compression; nothing was appended: keep such values outside, and their names in rows",
            bytes=size_bytes,
            bytes_max=ROW_BYTES_MAX,
        )
