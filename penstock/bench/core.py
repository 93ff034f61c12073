"""The core's benchmark: whole queries in one process, beside a loop written by hand.

Query and loop take turns in short slices over the same buffers, each commits every 20 ms to a log
on the same disk, and what is reported is the median of the slices: whatever else the machine does
falls on all of them alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.bench import arguments
from penstock.bench.replay import BUFFER_ROWS, BUFFERS, Ads, KeySource, ReplaySource
from penstock.bench.report import Report, machine_facts, median
from penstock.kernels.cache import KernelCache
from penstock.log import open_log
from penstock.log.record import Entry, RecordKind
from penstock.plan.optimizer import plan_program
from penstock.plan.query import Query
from penstock.stages.settings import Settings
from penstock.testing.columns import Named, apply, col
from penstock.testing.plans import Draft, count, query, scan_source, sum_, window
from penstock.testing.single_process import SingleProcess

TITLE = "queries in one process, beside a hand-written loop"
ADS = 1000
CAMPAIGNS = 100
TUMBLE_US = 10_000_000
COMMIT_INTERVAL_MS = 20
TURNS_MIN = 3
SLICE_S = 0.5
COMMITS = 40  # samples of the cost of one commit

LOOP_SHARE_MIN = 0.5
SLIDING_SHARE_MIN = 0.25

COLUMNS = "ad int not null, event int not null, price bigint not null, ts timestamp not null"
_LOOP_WINDOWS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=arguments.seconds,
        default=15.0,
        metavar="S",
        help="time spent measuring rows per second, compiling aside (default 15)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to commit to (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Run loop and queries by turns in a temporary folder and report."""
    machine = machine_facts()
    rates: dict[str, list[float]] = {"loop": [], "ysb": [], "sliding": []}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name:
        folder = Path(name)
        kernels = KernelCache(folder / "kernels")
        ads = Ads(seed=1, ads=ADS)
        with ExitStack() as stack:
            runs = {
                "loop": stack.enter_context(_loop(ads, folder / "loop")),
                "ysb": stack.enter_context(_running(ysb(), ads, folder / "ysb", kernels)),
                "sliding": stack.enter_context(_running(sliding(), ads, folder / "hop", kernels)),
            }
            turns = max(TURNS_MIN, round(args.seconds / SLICE_S / len(runs)))
            slice_s = args.seconds / turns / len(runs)
            for run in runs.values():
                run(slice_s / 2)  # compiled, loaded and in full swing before anything counts
            for _ in range(turns):
                for kind, run in runs.items():
                    rates[kind].append(run(slice_s))
        commits = {keys: _commit_us(keys, folder, kernels) for keys in (1, 10_000)}
    report = _report(rates, commits)
    report.facts = machine
    return report


# --- the queries ----------------------------------------------------------------------------------


def ysb() -> Query:
    """Views only, ad to campaign by a table, count per campaign in windows of 10 s."""
    rows = (
        _ads()
        .filter(col("event") == 0)
        .select(_campaign(), "ts")
        .with_watermark("ts", 0)
        .group_by("campaign", window=window("ts", TUMBLE_US))
        .agg(count().alias("views"))
    )
    return query("ysb", rows.to_stream("campaign_views"), settings=_settings())


def sliding() -> Query:
    """What each campaign cost in the last 60 s, every second: every row, in 60 windows."""
    rows = (
        _ads()
        .select(_campaign(), "price", "ts")
        .with_watermark("ts", 0)
        .group_by("campaign", window=window("ts", "60 seconds", "1 second"))
        .agg(sum_("price").alias("cost"))
    )
    return query("sliding", rows.to_stream("campaign_cost"), settings=_settings())


def _campaign() -> Named:
    campaigns = tuple((ad, ad * CAMPAIGNS // ADS) for ad in range(ADS))
    return apply("lookup", col("ad"), table=campaigns, value_type="int").alias("campaign")


def _ads() -> Draft:
    return scan_source("replay", COLUMNS, partitions=1)


def _settings() -> Settings:
    return Settings(commit_interval_ms=COMMIT_INTERVAL_MS, step_rows_max=BUFFER_ROWS)


Run = Callable[[float], float]  # seconds to run → rows per second


@contextmanager
def _running(query: Query, ads: Ads, folder: Path, kernels: KernelCache) -> Iterator[Run]:
    program = plan_program(query)
    (vertex,) = [vertex.name for vertex in program.vertices]
    sources = {"replay": lambda request: ReplaySource(ads, request.schema)}
    with SingleProcess(program, folder, sources=sources, kernels=kernels) as process:

        def run(seconds: float) -> float:
            before = process.statistics().vertices[vertex].rows_in
            start_s = time.perf_counter()
            while time.perf_counter() < start_s + seconds:
                process.host.step()
            process.host.vertex(vertex).flush()
            elapsed_s = time.perf_counter() - start_s
            return (process.statistics().vertices[vertex].rows_in - before) / elapsed_s

        yield run


# --- the loop -------------------------------------------------------------------------------------


@contextmanager
def _loop(ads: Ads, folder: Path) -> Iterator[Run]:
    """The same counts as `ysb`, by a loop that knows the query, its keys and their number."""
    campaign = np.arange(ADS) * CAMPAIGNS // ADS
    counts = np.zeros((_LOOP_WINDOWS, CAMPAIGNS), np.int64)
    with open_log(folder, create=True) as log:
        sequence = rows = 0

        def commit() -> None:
            nonlocal sequence
            sequence += 1
            body = counts.tobytes()
            log.append([Entry(RecordKind.DATA, ("loop",), "loop", 1, sequence, body)])

        def run(seconds: float) -> float:
            nonlocal rows
            first = rows
            start_s = committed_s = time.perf_counter()
            while time.perf_counter() < start_s + seconds:
                cycle, index = divmod(rows // BUFFER_ROWS, BUFFERS)
                later_us = cycle * ads.cycle_us
                _count(
                    ads.ad[index], ads.event[index], ads.time_us[index], later_us, campaign, counts
                )
                rows += BUFFER_ROWS
                if time.perf_counter() >= committed_s + COMMIT_INTERVAL_MS / 1000:
                    commit()
                    committed_s = time.perf_counter()
            commit()
            return (rows - first) / (time.perf_counter() - start_s)

        yield run


@numba.njit(cache=False)
def _count(
    ad: NDArray[np.int32],
    event: NDArray[np.int32],
    time_us: NDArray[np.int64],
    later_us: int,
    campaign: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    for row in range(ad.size):
        if event[row] == 0:
            at = (time_us[row] + later_us) // TUMBLE_US % _LOOP_WINDOWS
            counts[at, campaign[ad[row]]] += 1


# --- one commit -----------------------------------------------------------------------------------


def _commit_us(keys: int, folder: Path, kernels: KernelCache) -> list[float]:
    """The time of commits that hold nothing but so many changed keys and a marker."""
    settings = Settings(commit_interval_ms=3_600_000, step_rows_max=keys)
    rows = scan_source("keys", "key bigint not null, ts timestamp not null", partitions=1)
    grouped = rows.with_watermark("ts", 0).group_by("key", window=window("ts", "1 hour"))
    counts = grouped.agg(count().alias("rows"))
    program = plan_program(query(f"commit_{keys}", counts.to_stream("never"), settings=settings))
    (vertex,) = [vertex.name for vertex in program.vertices]
    sources = {"keys": lambda request: KeySource(keys, request.schema)}
    times = []
    path = folder / f"commit_{keys}"
    with SingleProcess(program, path, sources=sources, kernels=kernels) as process:
        for _ in range(COMMITS + 5):
            process.host.step()
            start_ns = time.perf_counter_ns()
            process.host.vertex(vertex).flush()
            times.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times[5:]


# --- the report -----------------------------------------------------------------------------------


def _report(rates: dict[str, list[float]], commits: dict[int, list[float]]) -> Report:
    report = Report(TITLE)
    meanings = {
        "ysb": "filter, lookup, count per campaign and 10 s; commits every 20 ms, synced",
        "sliding": "sum per campaign over 60 s every 1 s; commits every 20 ms, synced",
        "loop": "the YSB query as a hand-written compiled loop with the same commits",
    }
    for kind, meaning in meanings.items():
        report.add(f"{kind}_rows_per_s", median(rates[kind]), meaning, len(rates[kind]))
    turns = len(rates["loop"])
    of_loop = _share(rates["ysb"], rates["loop"])
    of_ysb = _share(rates["sliding"], rates["ysb"])
    report.add("ysb_of_loop", of_loop, "the query's share of the loop, in the same turn", turns)
    report.add("sliding_of_ysb", of_ysb, "60 windows per row beside one, in the same turn", turns)
    for keys, times in commits.items():
        name = "1 changed key" if keys == 1 else f"{keys:,} changed keys"
        key = f"commit_us_{keys}_key" + ("" if keys == 1 else "s")
        report.add(key, median(times), f"one synced commit with {name}", len(times))
    report.reach = {
        "ysb_at_least_half_the_loop": of_loop >= LOOP_SHARE_MIN,
        "sliding_at_least_a_quarter_of_ysb": of_ysb >= SLIDING_SHARE_MIN,
    }
    return report


def _share(part: list[float], whole: list[float]) -> float:
    """The median of the ratios within a turn: neighbours in time had the same machine."""
    return median([a / b for a, b in zip(part, whole, strict=True)])
