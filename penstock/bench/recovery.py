"""The benchmark of recovery: a slot of a running query is killed, again and again.

A count of bids per auction runs on a Spark session of its own: two slots and a standby. Each kill
(SIGKILL of the slot's process) comes when all vertices commit and a standby is ready. Its time ends
with the first marker that each vertex of the dead slot has in the log afterwards, by the log's own
clock. In the end the committed counts are compared with the generator's rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from penstock.api.query import StreamingQuery
from penstock.api.session import Attached, attach
from penstock.api.writer import writeStream
from penstock.bench.report import Report, machine_facts, median
from penstock.bench.sessions import local_session
from penstock.connectors.nexmark import NexmarkSettings, NexmarkSource
from penstock.log.contract import Log
from penstock.log.record import Position
from penstock.runtime.job import Job
from penstock.runtime.sources import start_keys
from penstock.runtime.streams import StreamReader
from penstock.stages.tags import vertex_tag

TITLE = "recovery of a running query whose slots are killed"
QUERY = "recovery"
THREADS = 8
RATE = 10_000
SECONDS_PER_KILL = 20  # of input that is there at least; a new standby takes some of it
STEADY_COMMITS = 20
PATIENCE_S = 120.0
READ_ROWS = 1 << 20

MEDIAN_MS_MAX = 500
WORST_MS_MAX = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=10, help="how many slots die (default 10)")
    parser.add_argument(
        "--rate", type=int, default=RATE, help=f"events per second (default {RATE})"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to use (default .)"
    )


def measure(args: argparse.Namespace) -> Report:
    """Run the query, kill its slots, let it end, and report."""
    machine = machine_facts()
    events = args.rate * SECONDS_PER_KILL * (args.kills + 2)
    with (
        local_session("recovery", THREADS) as spark,
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
    ):
        attached = attach(spark, Path(name) / "log")
        kills = _kill_slots(attached, args.kills, args.rate, events)
        lost, doubled = _judge(attached, args.rate, events)
        attached.log.close()
    report = report_of(kills, lost, doubled)
    report.facts = {
        **machine,
        "kills": len(kills),
        "rate": args.rate,
        "events": events,
        "each_ms": [[round(ms, 1) for ms in astuple(kill)] for kill in kills],
    }
    return report


@dataclass(frozen=True, slots=True)
class Kill:
    """How long after the kill each step was done, for all vertices of the slot."""

    detect_ms: float  # the job knows
    assign_ms: float  # another slot has been told
    start_ms: float  # its vertices are fenced, restored and ready to step
    total_ms: float  # each of them has a marker in the log


def _start(attached: Attached, rate: int, events: int) -> StreamingQuery:
    bids = (
        attached.spark.readStream.format("nexmark")
        .option("kind", "bids")
        .option("rate", rate)
        .option("events", events)
        .load()
    )
    writer = writeStream(bids.groupBy("auction").count()).outputMode("update").queryName(QUERY)
    return writer.options(parallelism=2, slots=2, standbySlots=1).toStream(QUERY).start()


def _kill_slots(attached: Attached, kills: int, rate: int, events: int) -> list[Kill]:
    query = _start(attached, rate, events)
    try:
        done = []
        for number in range(kills):
            _wait_steady(query)
            done.append(_kill_one(attached.log, query.job, number))
        return done
    finally:
        query.stop()


def _wait_steady(query: StreamingQuery) -> None:
    """Wait until every vertex has a slot and commits, and a standby is ready."""
    deadline_s = time.monotonic() + PATIENCE_S
    job = query.job
    if not job.wait_running(PATIENCE_S):
        raise TimeoutError(f"the query did not start in {PATIENCE_S:g} s")
    before = {name: facts.get("epoch", 0) for name, facts in job.vertex_status().items()}
    while True:
        now = {name: facts.get("epoch", 0) for name, facts in job.vertex_status().items()}
        if job.is_over:
            raise RuntimeError(f"the query ended too early: {query.exception()}")
        if job.standbys_ready() and all(
            epoch >= before.get(name, 0) + STEADY_COMMITS for name, epoch in now.items()
        ):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no steady state in {PATIENCE_S:g} s: {now}")
        time.sleep(0.05)


def _kill_one(log: Log, job: Job, number: int) -> Kill:
    """Kill one of the slots that host vertices; wait until all of these have committed again."""
    working = sorted(slot for slot, facts in job.slot_processes().items() if facts[2])
    pid, _, vertices = job.slot_processes()[working[number % len(working)]]
    tail = log.tail()
    markers = {name: log.last(vertex_tag(name)) for name in vertices}
    instances = {name: last.instance if last else 0 for name, last in markers.items()}
    killed_us, killed_s = time.time_ns() // 1000, time.monotonic()
    os.kill(pid, signal.SIGKILL)
    deadline_s = killed_s + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = [each for each in job.recoveries() if each.pid == pid and each.started_s]
        if found:
            first_us = [_first_commit_us(log, name, tail, instances[name]) for name in vertices]
            if all(first_us):
                recovery = found[0]
                assert recovery.assigned_s is not None
                assert recovery.started_s is not None
                return Kill(
                    (recovery.detected_s - killed_s) * 1e3,
                    (recovery.assigned_s - killed_s) * 1e3,
                    (recovery.started_s - killed_s) * 1e3,
                    (max(us for us in first_us if us) - killed_us) / 1e3,
                )
        time.sleep(0.01)
    raise TimeoutError(f"vertices {', '.join(vertices)} did not come back in {PATIENCE_S:g} s")


def _first_commit_us(log: Log, vertex: str, after: Position, instance: int) -> int | None:
    """When the log took the first marker of a newer instance of a vertex; None if it has none."""
    records = log.read([vertex_tag(vertex)], after, 10_000)
    return next((each.time_us for each in records if each.instance > instance), None)


def _judge(attached: Attached, rate: int, events: int) -> tuple[int, int]:
    """Let the query end, with all input there at once; return the bids lost and doubled."""
    for key in start_keys(attached.log, QUERY):
        attached.log.put(key, b"0")  # everything has been due since 1970
    query = _start(attached, rate, events)
    query.awaitTermination(PATIENCE_S)
    if query.isActive:
        raise TimeoutError(f"the query did not end in {PATIENCE_S:g} s")
    counted: dict[int, int] = {}
    fallen = 0
    rows = StreamReader(attached.log, QUERY).read_all()
    pairs = zip(rows["auction"].to_pylist(), rows["count"].to_pylist(), strict=True)
    for auction, count in pairs:
        fallen += count < counted.get(auction, 0)
        counted[auction] = count
    lost = doubled = 0
    expected = _expected(rate, events)
    for auction in expected.keys() | counted.keys():
        difference = counted.get(auction, 0) - expected.get(auction, 0)
        lost += max(0, -difference)
        doubled += max(0, difference)
    return lost, doubled + fallen


def _expected(rate: int, events: int) -> dict[int, int]:
    source = NexmarkSource(NexmarkSettings(rate=rate, events_max=events), "bids", ("auction",))
    offset, auctions = source.initial_offset(), []
    while True:
        read = source.read(offset, READ_ROWS)
        if read.batch is not None:
            auctions.append(read.batch.column(0).to_numpy())
        offset = read.next_offset
        if read.ended:
            break
    keys, counts = np.unique(np.concatenate(auctions), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def report_of(kills: list[Kill], lost: int, doubled: int) -> Report:
    report = Report(f"{TITLE}: {len(kills)} kills")
    totals = [kill.total_ms for kill in kills]
    count = len(kills)
    report.add("detect_ms", median([k.detect_ms for k in kills]), "kill to the job knows it", count)
    report.add("assign_ms", median([k.assign_ms for k in kills]), "... to a standby told", count)
    report.add("start_ms", median([k.start_ms for k in kills]), "... to vertices restored", count)
    report.add("median_ms", median(totals), "kill to the next marker in the log, median", count)
    report.add("max_ms", max(totals), "the same, longest", count)
    report.add("lost", lost, "bids that the committed counts lack", 1)
    report.add("duplicated", doubled, "bids that they have too often", 1)
    report.reach = {
        "median_within_500_ms": report.value("median_ms") <= MEDIAN_MS_MAX,
        "longest_within_2_s": report.value("max_ms") <= WORST_MS_MAX,
        "nothing_lost": lost == 0,
        "nothing_duplicated": doubled == 0,
    }
    return report
