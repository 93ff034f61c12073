"""The benchmark of latency: from the creation of an event to its committed row at a reader.

The same DataFrame, over the same events at the same rate, runs on Penstock and on Structured
Streaming, one after the other on the same Spark session. On Penstock a process of its own follows
the output stream of the log; on Spark the rows are collected in `foreachBatch`. The latency of
every bid is counted, but for those of the warm-up.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.bench import arguments
from penstock.bench.arrivals import (
    Arrivals,
    Bids,
    Follower,
    Journeys,
    bids_of,
    journeys_of_counts,
    journeys_of_rows,
)
from penstock.bench.floors import sync_us
from penstock.bench.report import Report, median, say
from penstock.bench.sessions import measured_on
from penstock.runtime.sources import start_keys

TITLE = "latency of a query, from event to committed row, beside Structured Streaming"
THREADS = 8
RATE = 10_000
SECONDS = 20.0
WARMUP_S = 10.0
PATIENCE_S = 120.0
WARM_BATCHES = 20
FLOOR_SYNCS = 100
TAIL_S = 1.0  # of events after the measured ones, so that the end of the query is not measured
TIMES_BELOW_MIN = 10
_EUR_PER_1000_USD = 908


@dataclass(frozen=True)
class Measured:
    """A query, what its rows say about the bids in them, and what is hoped for."""

    kind: str  # of events that the generator makes
    read: str  # which columns of them
    rows: Callable[[DataFrame], DataFrame]
    mode: str
    columns: tuple[str, ...]
    journeys: Callable[[Bids, Arrivals], Journeys]
    parallelism: int
    p50_ms_max: int
    p99_ms_max: int
    meaning: str


def _q1(events: DataFrame) -> DataFrame:
    price = F.expr(f"bid.price * {_EUR_PER_1000_USD} div 1000").alias("price")
    bids = events.filter("etype = 2")
    return bids.select("seq", "bid.auction", "bid.bidder", price, "bid.dateTime", "bid.extra")


def _count(bids: DataFrame) -> DataFrame:
    return bids.groupBy("auction").count()


QUERIES: Mapping[str, Measured] = MappingProxyType(
    {
        "q1": Measured(
            "all", "etype,seq,bid", _q1, "append", ("seq",), journeys_of_rows,
            1, 10, 50, "NEXMark q1: bids only, prices from dollars to euros",
        ),
        "count": Measured(
            "bids", "auction", _count, "update", ("auction", "count"), journeys_of_counts,
            2, 20, 100, "running count of bids per auction, over one exchange",
        ),
    }
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--query", choices=tuple(QUERIES), default="q1", help="what runs (default q1)"
    )
    parser.add_argument(
        "--rate", type=arguments.whole, default=RATE, help=f"events/s (default {RATE})"
    )
    arguments.add_comparison(parser, seconds_default=SECONDS, warmup_default=WARMUP_S)
    parser.add_argument(
        "--rounds",
        type=arguments.whole,
        default=1,
        help="both engines by turns; medians (default 1)",
    )


def measure(args: argparse.Namespace) -> Report:
    """Measure on a session of its own."""
    return measured_on("latency", THREADS, compare, args)


def compare(spark: SparkSession, args: argparse.Namespace) -> Report:
    """Run both engines by turns on one session, and report."""
    run = Run(QUERIES[args.query], args.rate, args.warmup, args.seconds)
    own: list[Latencies] = []
    sparks: list[Latencies] = []
    batches: list[dict[str, float]] = []
    syncs_us: list[float] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        folder = Path(name).absolute()
        attached = attach(spark, folder / "log")
        try:
            for number in range(args.rounds):
                syncs_us += sync_us(folder, FLOOR_SYNCS)
                say(f"round {number + 1} of {args.rounds}: Penstock")
                own.append(run.on_penstock(attached, f"latency_{number}"))
                if args.against == "spark":
                    say(f"round {number + 1} of {args.rounds}: Structured Streaming")
                    latencies, batch_ms = run.on_spark(spark, folder / f"spark-{number}")
                    sparks.append(latencies)
                    batches.append(batch_ms)
        finally:
            attached.log.close()
    report = report_of(args.query, own, sparks)
    report.add("floor_sync_ms", median(syncs_us) / 1e3, "bare disk: 4 KiB synced", len(syncs_us))
    report.facts = {
        "query": args.query,
        "rate": args.rate,
        "seconds": args.seconds,
        "warmup_s": args.warmup,
        "rows": sum(each.ms.size for each in own),
        "spark_rows": sum(each.ms.size for each in sparks),
        "spark_batch_ms": batches,
    }
    return report


@dataclass(frozen=True)
class Latencies:
    """Of all measured bids of one run: creation to seen, and creation to taken by the log."""

    ms: NDArray[np.float64]
    written_ms: NDArray[np.float64]


class Run:
    """One query at one rate, for either engine."""

    def __init__(self, query: Measured, rate: int, warmup_s: float, seconds: float) -> None:
        self.query = query
        self.rate = rate
        self.warmup_s = warmup_s
        self.seconds = seconds
        self.events = int(rate * (warmup_s + seconds + TAIL_S))
        self.bids = bids_of(rate, self.events)

    def on_penstock(self, attached: Attached, name: str) -> Latencies:
        follower = Follower()
        try:
            writer = writeStream(self._rows(attached.spark)).outputMode(self.query.mode)
            slots = self.query.parallelism
            writer = writer.queryName(name).options(parallelism=slots, slots=slots)
            query = writer.toStream(name).start()
            follower.begin(attached.path, name, self.query.columns)
            try:
                query.awaitTermination(self._patience_s())
                if query.isActive:
                    raise TimeoutError(f"the query did not end in {self._patience_s():g} s")
            finally:
                query.stop()
            found = follower.end()
        finally:
            follower.close()
        (key,) = start_keys(attached.log, name)
        started = attached.log.get(key)
        assert started is not None
        return self.latencies(found, int(started.value))

    def on_spark(self, spark: SparkSession, folder: Path) -> tuple[Latencies, dict[str, float]]:
        """Collect each micro-batch, and take the time at which its rows are in the driver.

        That is before Spark has written the batch's commit, and nothing is stored: both in favour
        of Spark. A file sink would be the durable counterpart, but knows no update mode.
        """
        self._warm_spark(spark, folder / "warm")
        found = Arrivals(self.query.columns)
        seen = Seen(self.bids.seq.size, counts="count" in self.query.columns)

        def collect(batch: DataFrame, _: int) -> None:
            rows = batch.toArrow()
            found.add(rows, time.time_ns() // 1000)
            seen.note(rows.to_pydict())

        query = self._start_on_spark(spark, collect, folder / "measured")
        try:
            deadline_s = time.monotonic() + self._patience_s()
            while not seen.all_there.wait(0.1):
                if not query.isActive:
                    raise RuntimeError(f"Structured Streaming ended: {query.exception()}")
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"Spark did not end in {self._patience_s():g} s")
            progress = [json.loads(each.json) for each in query.recentProgress]
        finally:
            query.stop()
        start_us = json.loads(_offset_text(progress[-1]))["startedUs"]
        return self.latencies(found, start_us), batch_ms_of(progress)

    def _warm_spark(self, spark: SparkSession, folder: Path) -> None:
        """Run the query for some micro-batches first, or for the time of the warm-up.

        The first ones take seconds (classes, generated code, Python workers): their backlog would
        still be felt when the measured time begins.
        """
        enough = threading.Event()
        began_s: list[float] = []

        def collect(batch: DataFrame, number: int) -> None:
            batch.toArrow()
            began_s.append(time.monotonic())
            if number >= WARM_BATCHES or began_s[-1] - began_s[0] > self.warmup_s:
                enough.set()

        query = self._start_on_spark(spark, collect, folder)
        try:
            enough.wait(PATIENCE_S)
        finally:
            query.stop()

    def _start_on_spark(
        self, spark: SparkSession, collect: Callable[[DataFrame, int], None], folder: Path
    ) -> StreamingQuery:
        writer = self._rows(spark).writeStream.outputMode(self.query.mode).foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(folder))
        return writer.trigger(processingTime="0 seconds").start()

    def latencies(self, found: Arrivals, start_us: int) -> Latencies:
        """Check what was seen, and leave out the warm-up and the end."""
        journeys = self.query.journeys(self.bids, found)
        created_us = self.bids.created_us(start_us, journeys.seq)
        first_us = start_us + int(self.warmup_s * 1e6)
        end_us = first_us + int(self.seconds * 1e6)
        measured = (created_us >= first_us) & (created_us < end_us)
        created_us = created_us[measured]
        return Latencies(
            (journeys.seen_us[measured] - created_us) / 1e3,
            (journeys.written_us[measured] - created_us) / 1e3,
        )

    def _rows(self, spark: SparkSession) -> DataFrame:
        events = spark.readStream.format("nexmark").option("kind", self.query.kind)
        events = events.option("columns", self.query.read).option("numPartitions", 1)
        events = events.option("rate", self.rate).option("events", self.events)
        return self.query.rows(events.load())

    def _patience_s(self) -> float:
        return self.warmup_s + self.seconds + PATIENCE_S


class Seen:
    """How many bids were seen so far, and a signal when it is all of them."""

    def __init__(self, bids: int, *, counts: bool) -> None:
        self.all_there = threading.Event()
        self._bids = bids
        self._counts = counts
        self._rows = 0
        self._last: dict[int, int] = {}

    def note(self, rows: Mapping[str, list[Any]]) -> None:
        if self._counts:
            self._last.update(zip(rows["auction"], rows["count"], strict=True))
            seen = sum(self._last.values())
        else:
            self._rows += len(rows["seq"])
            seen = self._rows
        if seen >= self._bids:
            self.all_there.set()


def _offset_text(progress: Mapping[str, Any]) -> str:
    offset = progress["sources"][0]["endOffset"]
    return offset if isinstance(offset, str) else json.dumps(offset)


def batch_ms_of(progress: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of Spark's micro-batches with rows goes: medians of their parts."""
    parts: dict[str, list[float]] = {}
    for each in progress:
        if each["numInputRows"]:
            for part, ms in each["durationMs"].items():
                parts.setdefault(part, []).append(ms)
    return {part: median(times) for part, times in sorted(parts.items())}


def report_of(name: str, own: list[Latencies], sparks: list[Latencies]) -> Report:
    """The figures; of several rounds the median, each over all of its rows."""
    query = QUERIES[name]
    report = Report(f"{TITLE}: {query.meaning}")
    rows = sum(each.ms.size for each in own)

    def add(key: str, rounds: list[NDArray[np.float64]], share: float, meaning: str) -> float:
        value = median([float(np.quantile(ms, share)) for ms in rounds])
        report.add(key, value, meaning, sum(ms.size for ms in rounds))
        return report.value(key)

    whole = [each.ms for each in own]
    p50 = add("p50_ms", whole, 0.5, "event creation to committed row at a reader")
    p99 = add("p99_ms", whole, 0.99, "the same, 99 of 100 rows")
    add("p999_ms", whole, 0.999, "the same, 999 of 1,000 rows")
    report.add("max_ms", max(float(ms.max()) for ms in whole), "the same, longest", rows)
    add("written_p50_ms", [each.written_ms for each in own], 0.5, "event creation to the append")
    report.reach = {
        f"p50_within_{query.p50_ms_max}_ms": p50 <= query.p50_ms_max,
        f"p99_within_{query.p99_ms_max}_ms": p99 <= query.p99_ms_max,
    }
    if sparks:
        theirs = [each.ms for each in sparks]
        for key, share, ours in (("p50", 0.5, p50), ("p99", 0.99, p99)):
            spark = add(f"spark_{key}_ms", theirs, share, "the same on Structured Streaming")
            times = spark / ours
            report.add(f"{key}_times_below", times, "how many times below Spark's", len(own))
            report.reach[f"{key}_{TIMES_BELOW_MIN}_times_below_spark"] = times >= TIMES_BELOW_MIN
    return report
