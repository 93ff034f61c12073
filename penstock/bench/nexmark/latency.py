"""Latency of the queries at a rate: producers of their own batch events into the log.

An event is created when it is due; it waits for its producer's next batch, is appended, read by the
query, and its row is seen by a process that follows the query's output. What a row's latency begins
with is the event that caused it: for a row that waits for the end of a window, the first event that
takes the watermark there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.api.session import Attached
from penstock.api.writer import writeStream
from penstock.arrays import Numbers
from penstock.bench.arrivals import Arrivals, Follower, RowsDiffer
from penstock.bench.crew import Crew, wait_until
from penstock.bench.nexmark.engines import SLOTS, START_TIMEOUT
from penstock.bench.nexmark.events import table_of
from penstock.bench.nexmark.queries import WINDOW_S, NexmarkQuery
from penstock.clock import SystemClock
from penstock.connectors.nexmark import NexmarkSettings, NexmarkSource
from penstock.log import open_log
from penstock.runtime.streams import StreamWriter, create_stream

PRODUCERS = 2
LEAD_S = 1.0  # from the order to produce to the first event
ROWS_MAX = 1 << 20
PATIENCE_S = 120.0
APART_MS_MAX = 1_000  # a producer behind another, beyond what batches make
APART_MS_MAX_OF_UPDATES = 60_000  # where no row waits for the watermark
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Load:
    """Events at a rate, sent in batches, for so long; what comes in the warm-up is not counted."""

    settings: NexmarkSettings
    batch_ms: int
    warmup_s: float
    seconds: float

    @property
    def total_s(self) -> float:
        return self.warmup_s + self.seconds

    @property
    def delay_ms(self) -> int:
        """Of the watermark: so far may a producer be behind another before a row of it is late.

        No latency has it in it: what a row begins with is the event that takes the watermark there.
        """
        return 2 * self.batch_ms + APART_MS_MAX


# --- what caused a row ----------------------------------------------------------------------------

Cause = Callable[[Arrivals, Load], Numbers]  # its event's time


def _event(found: Arrivals, load: Load) -> Numbers:
    """A row is an event."""
    del load
    return found.column("dateTime")


def _end_of_window(found: Arrivals, load: Load) -> Numbers:
    """A row comes when the watermark has reached the end of its window."""
    return found.column("end") + load.delay_ms * 1_000


def _end_of_auction(found: Arrivals, load: Load) -> Numbers:
    """A row comes when the watermark has passed the end of its auction."""
    return found.column("expires") + load.delay_ms * 1_000 + 1_000


def _seller_or_sale(found: Arrivals, load: Load) -> Numbers:
    """A row comes with an auction or with its seller, whichever is later."""
    joined = _joined(load)
    sales = table_of(load.settings, "auctions", ("id", "seller", "dateTime"))
    number, seller, time_us = (_integers(sales, name) for name in sales.column_names)
    at = np.searchsorted(number, found.column("auction"))
    sellers = (joined[each] for each in seller[at].tolist())
    return np.maximum(time_us[at], np.fromiter(sellers, np.int64, at.size))


def _seller_or_first_sale(found: Arrivals, load: Load) -> Numbers:
    """A row comes with a person or with their first auction in the window."""
    joined, size = _joined(load), WINDOW_S * SECOND_US
    sales = table_of(load.settings, "auctions", ("seller", "dateTime"))
    first: dict[tuple[int, int], int] = {}
    columns = (_integers(sales, name).tolist() for name in sales.column_names)
    for seller, time_us in zip(*columns, strict=True):
        first.setdefault((seller, time_us // size), time_us)
    people = found.column("id").tolist()
    causes = (max(joined[each], first[each, joined[each] // size]) for each in people)
    return np.fromiter(causes, np.int64, len(people))


def _oldest_bid(found: Arrivals, load: Load) -> Numbers:
    """A row is a newer mean of a category: it holds the valid bids since the one before it.

    The n-th bid of a category is taken for the n-th that was counted. Where producers deliver side
    by side, bids of the same few milliseconds may be counted in another order.
    """
    category, bids = found.column("category"), found.column("bids")
    valid = _valid_bids(load)
    caused = np.zeros(category.size, np.int64)
    for each in np.unique(category):
        rows = np.flatnonzero(category == each)
        if bids[rows[-1]] != valid[int(each)].size:
            raise RowsDiffer(
                f"category {each} has {bids[rows[-1]]} valid bids, the generator made "
                f"{valid[int(each)].size}: a producer was so far behind that rows came late"
            )
        before = np.concatenate(([0], bids[rows][:-1]))
        caused[rows] = valid[int(each)][before]
    return caused


def _valid_bids(load: Load) -> dict[int, Numbers]:
    """The times of the bids that count, by category."""
    names = ("id", "category", "dateTime", "expires")
    sales = table_of(load.settings, "auctions", names)
    number, category, opened, expires = (_integers(sales, name) for name in names)
    offers = table_of(load.settings, "bids", ("auction", "dateTime"))
    auction, time_us = (_integers(offers, name) for name in offers.column_names)
    at = np.minimum(np.searchsorted(number, auction), number.size - 1)
    counts = (number[at] == auction) & (opened[at] <= time_us) & (time_us <= expires[at])
    of_bids = category[at]
    return {int(each): time_us[counts & (of_bids == each)] for each in np.unique(category)}


def _joined(load: Load) -> dict[int, int]:
    people = table_of(load.settings, "persons", ("id", "dateTime"))
    columns = (_integers(people, name).tolist() for name in people.column_names)
    return dict(zip(*columns, strict=True))


def _integers(rows: pa.Table, name: str) -> Numbers:
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return np.asarray(column.cast(pa.int64()))


@dataclass(frozen=True)
class Watched:
    """Which columns of a query's rows say what caused them."""

    columns: tuple[str, ...]
    cause: Cause


WATCHED: Mapping[str, Watched] = MappingProxyType(
    {
        "q1": Watched(("dateTime",), _event),
        "q2": Watched(("dateTime",), _event),
        "q3": Watched(("auction",), _seller_or_sale),
        "q4": Watched(("category", "bids"), _oldest_bid),
        "q5": Watched(("end",), _end_of_window),
        "q6": Watched(("expires",), _end_of_auction),
        "q7": Watched(("end",), _end_of_window),
        "q8": Watched(("id",), _seller_or_first_sale),
    }
)


# --- a run ----------------------------------------------------------------------------------------


def latencies_ms(
    attached: Attached, query: NexmarkQuery, name: str, load: Load
) -> NDArray[np.float64]:
    """Of every row of the measured time: from its cause to a reader."""
    watched, stream = WATCHED[query.name], f"{name}_events"
    schema = NexmarkSource(load.settings, "all", query.columns).schema
    create_stream(attached.log, stream, schema, substreams=PRODUCERS)
    events = attached.spark.readStream.format("penstock").option("stream", stream).load()
    delay_ms = load.delay_ms if query.output == "append" else APART_MS_MAX_OF_UPDATES
    writer = writeStream(query.over(events, delay_ms)).outputMode(query.output)
    writer = writer.queryName(name).options(parallelism=SLOTS, slots=SLOTS, standbySlots=0)
    running = writer.option("startTimeout", START_TIMEOUT).toStream(name).start()
    follower = Follower()
    try:
        follower.begin(attached.path, name, watched.columns)
        with Crew(PRODUCERS, answer_s_max=load.total_s + PATIENCE_S) as crew:
            start_us = time.time_ns() // 1_000 + int(LEAD_S * SECOND_US)
            task = (attached.path, stream, load, query.columns, start_us)
            crew.run([(produce, *task, part) for part in range(PRODUCERS)])
        running.awaitTermination(PATIENCE_S)
        if running.isActive:
            raise TimeoutError(f"{query.name} has not caught up in {PATIENCE_S:g} s")
        found = follower.end()
    finally:
        running.stop()
        follower.close()
    caused_us = watched.cause(found, load) - load.settings.base_ms * 1_000
    first_us = int(load.warmup_s * SECOND_US)
    measured = (caused_us >= first_us) & (caused_us < int(load.total_s * SECOND_US))
    return (found.seen_us[measured] - caused_us[measured] - start_us) / 1e3


def produce(
    start_s: float,
    folder: Path,
    stream: str,
    load: Load,
    columns: tuple[str, ...],
    start_us: int,
    part: int,
) -> None:
    """Send a share of the events, those that are due at the end of each interval."""
    del start_s
    clock, tick_s = SystemClock(), load.batch_ms / 1e3
    source = NexmarkSource(load.settings, "all", columns, clock, start_us).split(PRODUCERS)[part]
    offset, ended = source.initial_offset(), False
    next_s = time.perf_counter() + (start_us - clock.now_us()) / 1e6
    with open_log(folder) as log:
        writer = StreamWriter(log, stream, f"producer_{part}")
        while not ended:
            next_s += tick_s
            wait_until(next_s)
            read = source.read(offset, ROWS_MAX)
            offset, ended = read.next_offset, read.ended
            if read.batch is not None or ended:
                writer.write(read.batch, offset=offset, ended=ended)
