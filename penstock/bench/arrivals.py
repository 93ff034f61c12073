"""Arrivals: which bids a reader saw when, and how long each had been on its way.

A bid is created when the paced generator makes it due: at the source's start plus its number times
the time between two events. Nothing is sampled: the latency of every bid is counted once.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.arrays import Numbers
from penstock.bench.crew import ANSWER_S_MAX, PROCESSES, WorkerFailed
from penstock.connectors.nexmark import NexmarkSettings, NexmarkSource
from penstock.expressions.types import arrow_schema
from penstock.log import open_log, punit
from penstock.log.committed import CommittedReader
from penstock.runtime.streams import describe_stream

READ_ROWS = 1 << 20
WAIT_S = 0.05


class RowsDiffer(RuntimeError):
    """An engine's rows are not those of the generator: its times mean nothing."""


@dataclass
class Arrivals:
    """Output rows in the order in which a reader saw them, some columns of each, and when."""

    columns: tuple[str, ...]
    _parts: list[tuple[Numbers, ...]] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch | pa.Table, seen_us: int, written_us: int = 0) -> None:
        """Note rows that were seen at once; `written_us` is when the log took them."""
        own = [np.asarray(rows.column(name)).astype(np.int64) for name in self.columns]
        times = [np.full(rows.num_rows, us, np.int64) for us in (seen_us, written_us)]
        self._parts.append((*own, *times))

    def column(self, name: str) -> Numbers:
        return self._column(self.columns.index(name))

    @property
    def seen_us(self) -> Numbers:
        return self._column(len(self.columns))

    @property
    def written_us(self) -> Numbers:
        return self._column(len(self.columns) + 1)

    def _column(self, index: int) -> Numbers:
        parts = [part[index] for part in self._parts]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class Bids:
    """The bids of a run, in the order of their numbers."""

    rate: int
    seq: Numbers
    auction: Numbers

    def created_us(self, start_us: int, seq: Numbers) -> Numbers:
        """When the generator, begun at `start_us`, made these events due."""
        later_us: Numbers = np.ceil(seq * (1e6 / self.rate)).astype(np.int64)
        return later_us + start_us


def bids_of(rate: int, events: int) -> Bids:
    """Generate what both engines are to see."""
    settings = NexmarkSettings(rate=rate, events_max=events)
    source = NexmarkSource(settings, "bids", ("seq", "auction"))
    offset, batches, ended = source.initial_offset(), [], False
    while not ended:
        read = source.read(offset, READ_ROWS)
        offset, ended = read.next_offset, read.ended
        if read.batch is not None:
            batches.append(read.batch)
    rows = pa.Table.from_batches(batches, source.schema)
    return Bids(rate, rows["seq"].to_numpy(), rows["auction"].to_numpy())


@dataclass(frozen=True)
class Journeys:
    """One entry per bid: its number, and when an output row that holds it was written and seen."""

    seq: Numbers
    seen_us: Numbers
    written_us: Numbers


def journeys_of_rows(bids: Bids, found: Arrivals) -> Journeys:
    """Each output row is one bid, which it names by `seq`."""
    seq = found.column("seq")
    order = np.argsort(seq, kind="stable")
    if not np.array_equal(seq[order], bids.seq):
        doubled = seq.size - np.unique(seq).size
        raise RowsDiffer(
            f"{seq.size} rows were seen for {bids.seq.size} bids, {doubled} of them twice"
        )
    return Journeys(bids.seq, found.seen_us[order], found.written_us[order])


def journeys_of_counts(bids: Bids, found: Arrivals) -> Journeys:
    """Each output row is a newer count of an auction: it holds the bids since the count before.

    The n-th bid of an auction is taken for the n-th that was counted. Where two producers deliver
    side by side, bids of the same few milliseconds may be counted in another order, which changes
    no sum of times.
    """
    auction, count = found.column("auction"), found.column("count")
    order = np.argsort(auction, kind="stable")
    auction, count = auction[order], count[order]
    is_first = np.ones(auction.size, np.bool_)
    is_first[1:] = auction[1:] != auction[:-1]
    new = np.diff(count, prepend=0)
    new[is_first] = count[is_first]
    by_auction = np.lexsort((bids.seq, bids.auction))
    if (new < 0).any() or not np.array_equal(np.repeat(auction, new), bids.auction[by_auction]):
        raise RowsDiffer(
            f"the counts that were seen last add up to {int(new.sum())} bids of "
            f"{np.unique(auction).size} auctions; the generator made {bids.seq.size} of "
            f"{np.unique(bids.auction).size}"
        )
    seen_us, written_us = found.seen_us[order], found.written_us[order]
    return Journeys(bids.seq[by_auction], np.repeat(seen_us, new), np.repeat(written_us, new))


class Follower:
    """A process of its own that reads a stream as its rows are committed, as any reader would."""

    def __init__(self) -> None:
        self._line, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_follow, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, folder: Path, stream: str, columns: tuple[str, ...]) -> None:
        """Follow a stream of a log from its beginning."""
        self._line.send((folder, stream, columns))

    def end(self) -> Arrivals:
        """Read what is committed by now, and return all that was seen."""
        self._line.send(None)
        if not self._line.poll(ANSWER_S_MAX):
            raise WorkerFailed(f"the reader gave no answer for {ANSWER_S_MAX} s")
        try:
            found: Arrivals = self._line.recv()
        except EOFError:
            raise WorkerFailed("the reader died: its error is on stderr") from None
        return found

    def close(self) -> None:
        self._line.close()  # the process ends when nobody is left to ask it
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _follow(line: Connection) -> None:
    with suppress(EOFError):
        while True:
            line.send(_read_until_told(line, *line.recv()))


def _read_until_told(
    line: Connection, folder: Path, stream: str, columns: tuple[str, ...]
) -> Arrivals:
    found = Arrivals(columns)
    with open_log(folder, read_only=True) as log:
        facts = describe_stream(log, stream)
        schema = arrow_schema(facts.schema)
        reader = CommittedReader(log, facts.tags)
        while True:
            is_last = line.poll()
            tail = log.tail()  # both asked first: what comes later rings, or is not asked for
            while (release := reader.take()) is not None:
                batches = [
                    punit.conform(punit.decode_record(each), schema) for each in release.records
                ]
                seen_us = time.time_ns() // 1000
                for batch in batches:
                    found.add(batch, seen_us, release.marker.time_us)
            if is_last:
                line.recv()
                return found
            log.wait(tail, WAIT_S)
