"""The benchmark of NEXMark: q1 to q8 in plain PySpark, judged by an oracle, beside Structured
Streaming.

Three readings of each query: events per second from the generator in the slots, whose rows are
compared with the oracle's; events per second over Parquet, which Structured Streaming reads too;
and the latency of rows at a rate, from producers of their own.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.api.session import Attached, attach
from penstock.bench import arguments
from penstock.bench.nexmark.engines import on_files, on_generator, on_spark
from penstock.bench.nexmark.events import rows_of_table, world_of, write_files
from penstock.bench.nexmark.floor import floor_seconds
from penstock.bench.nexmark.latency import WATCHED, Load, latencies_ms
from penstock.bench.nexmark.oracle import World, difference
from penstock.bench.nexmark.queries import QUERIES, VARIANTS, NexmarkQuery
from penstock.bench.report import QueriesReport, machine_facts, median, rounded, say
from penstock.bench.sessions import local_session
from penstock.connectors.nexmark import NexmarkSettings
from penstock.errors import InvalidArgument

TITLE = "NEXMark q1 to q8, judged by an oracle, beside Structured Streaming"
ALL = {**QUERIES, **VARIANTS}
EVENTS = 2_000_000  # so many that the start weighs little
EVENTS_MAX = 100_000_000
VERIFIED_EVENTS_MAX = 5_000_000  # the oracle has all of them in Python's values: 1 GB for a million
EVENT_RATE = 10_000  # of event time, where events come as fast as they can
RATE = 100_000
BATCHES_MS = (10, 100)
WARM_EVENTS = 50_000
THREADS = 6
TIMES_SPARK_MIN = 5
P99_MS_MAX = 250
MEASURES = ("throughput", "latency")
SPARK_SETTINGS = {"spark.driver.memory": "4g"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries",
        type=_queries,
        default=list(QUERIES),
        help=f"numbers such as 1-8 or 3,5, or names; also {', '.join(VARIANTS)} (default 1-8)",
    )
    parser.add_argument(
        "--events",
        type=_events,
        default=EVENTS,
        metavar="N",
        help=f"as fast as possible (default {EVENTS:,})",
    )
    parser.add_argument(
        "--out-of-order",
        type=arguments.whole,
        default=1,
        metavar="N",
        help="so many events at a time come in a shuffled order (default 1: in order)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--verify", action="store_true", help="compare with the oracle")
    parser.add_argument(
        "--measure",
        choices=(*MEASURES, "all"),
        default="all",
        help="how many events, how late their rows, or both (default all)",
    )
    parser.add_argument(
        "--rate",
        type=arguments.whole,
        default=RATE,
        help=f"events/s while latency is measured (default {RATE:,})",
    )
    arguments.add_comparison(parser, seconds_default=20.0, warmup_default=5.0)
    parser.add_argument(
        "--repeats", type=arguments.whole, default=1, help="turns, medians are told (default 1)"
    )


def _queries(text: str) -> list[str]:
    names: list[str] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            names += [f"q{number}" for number in range(int(first), int(last or first) + 1)]
        else:
            names.append(word)
    for name in names:
        if name not in ALL:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {', '.join(ALL)}")
    return names


def _events(text: str) -> int:
    value = int(text)
    if not 50 <= value <= EVENTS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 50 to {EVENTS_MAX:,}")
    return value


def measure(args: argparse.Namespace) -> QueriesReport:
    """Run every query every way that was asked for, and report."""
    report = QueriesReport(TITLE, facts=machine_facts())
    made = NexmarkSettings(
        seed=args.seed, rate=EVENT_RATE, events_max=args.events, group=args.out_of_order
    )
    world = None
    if args.verify and args.measure != "latency":
        if args.events > VERIFIED_EVENTS_MAX:
            raise InvalidArgument(
                f"--verify with {args.events:,} events would take about 1 GB of memory for each "
                f"million: at most {VERIFIED_EVENTS_MAX:,} are verified; leave one of the two out",
                events=args.events,
            )
        say(f"the answers over {args.events:,} events")
        world = world_of(made)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
        local_session("nexmark", THREADS, SPARK_SETTINGS) as spark,
    ):
        folder = Path(name).absolute()
        attached = attach(spark, folder / "log")
        try:
            for query in (ALL[each] for each in args.queries):
                run = _Run(query, attached, folder, args)
                report.queries[query.name] = run.figures(made, world)
        finally:
            attached.log.close()
    report.facts |= {"events": args.events, "rate": args.rate, "seed": args.seed}
    report.judge(goals)
    return report


class _Run:
    """The readings of one query."""

    def __init__(
        self, query: NexmarkQuery, attached: Attached, folder: Path, args: argparse.Namespace
    ) -> None:
        self._query = query
        self._attached = attached
        self._folder = folder / query.name
        self._folder.mkdir()
        self._args = args

    def figures(self, made: NexmarkSettings, world: World | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._args.measure != "latency":
            found |= self._throughput(made, world)
            if self._args.against == "spark" and self._query.on_spark:
                found |= self._beside_spark(made)
        if self._args.measure != "throughput" and self._query.name in WATCHED:
            found |= self._latency()
        return found

    def _throughput(self, made: NexmarkSettings, world: World | None) -> dict[str, Any]:
        name = self._query.name
        few = NexmarkSettings(seed=made.seed, rate=made.rate, events_max=WARM_EVENTS)
        self._tell("first start")
        on_generator(self._attached, self._query, f"{name}_warm", few)
        rates: list[float] = []
        differences: list[str] = []
        for turn in range(self._args.repeats):
            self._tell(f"{made.events_max:,} events from the generator")
            done = on_generator(self._attached, self._query, f"{name}_{turn}", made)
            rates.append(self._rate(done.seconds))
            if world is not None and done.rows is not None:
                rows = rows_of_table(done.rows)
                differs = difference(name, world, rows, len(self._query.key))
                differences += [] if differs is None else [differs]
        found: dict[str, Any] = {
            "identical": None if world is None else not differences,
            "events_per_s": rounded(median(rates)),
        }
        if differences:
            say(f"    {differences[0]}")
            found["differences"] = differences
        return found

    def _beside_spark(self, made: NexmarkSettings) -> dict[str, float]:
        files = self._folder / "files"
        self._tell("writing files")
        write_files(files, made, self._query.columns)
        own, theirs, floors = [], [], []
        turns = self._args.repeats + 1  # the first is not counted, for either
        for turn in range(turns):
            scratch = [self._folder / f"{name}-{turn}" for name in ("own", "spark", "floor")]
            self._tell(f"turn {turn + 1} of {turns} over files, Penstock")
            query = f"{self._query.name}_files_{turn}"
            done = on_files(self._attached, self._query, query, files, scratch[0])
            own.append(self._rate(done.seconds))
            self._tell(f"{own[-1]:,.0f} events/s; Structured Streaming")
            other = on_spark(self._attached.spark, self._query, files, scratch[1])
            theirs.append(self._rate(other.seconds))
            self._tell(f"{theirs[-1]:,.0f} events/s; pyarrow")
            floors.append(self._rate(floor_seconds(files, scratch[0] / "o", scratch[2])))
            self._tell(f"{floors[-1]:,.0f} events/s")
            for each in scratch:
                shutil.rmtree(each)
        shutil.rmtree(files)
        return {
            "files_events_per_s": rounded(median(own[1:])),
            "spark_events_per_s": rounded(median(theirs[1:])),
            "read_write_floor_events_per_s": rounded(median(floors[1:])),
            "times_spark": rounded(median(own[1:]) / median(theirs[1:])),
            "floor_times_spark": rounded(median(floors[1:]) / median(theirs[1:])),
        }

    def _latency(self) -> dict[str, float]:
        found: dict[str, float] = {}
        total_s = self._args.warmup + self._args.seconds
        for batch_ms in BATCHES_MS:
            self._tell(f"{self._args.rate:,} events/s in batches of {batch_ms} ms")
            made = NexmarkSettings(
                seed=self._args.seed,
                rate=self._args.rate,
                events_max=int(self._args.rate * total_s),
            )
            load = Load(made, batch_ms, self._args.warmup, self._args.seconds)
            name = f"{self._query.name}_at_{batch_ms}"
            ms = latencies_ms(self._attached, self._query, name, load)
            more = "" if batch_ms == BATCHES_MS[0] else f"_batched_{batch_ms}"
            for key, share in (("p50_ms", 0.5), ("p99_ms", 0.99)) if ms.size else ():
                found[f"{key}{more}"] = rounded(float(np.quantile(ms, share)))
            found[f"rows{more}"] = ms.size
        return found

    def _rate(self, seconds: float) -> float:
        return float(self._args.events) / seconds

    def _tell(self, what: str) -> None:
        say(f"{self._query.name}: {what}")


def goals(name: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each goal whose figures are there, and whether it is reached."""
    del name
    if figures.get("identical") is not None:
        yield "identical", figures["identical"]
    if "spark_events_per_s" in figures:
        is_reached = figures["times_spark"] >= TIMES_SPARK_MIN
        yield f"{TIMES_SPARK_MIN}_times_structured_streaming", is_reached
    for key in ("p99_ms", f"p99_ms_batched_{BATCHES_MS[1]}"):
        if key in figures:
            yield f"{key}_within_{P99_MS_MAX}", figures[key] <= P99_MS_MAX
