"""The log's benchmark: latency between two processes, appends and bytes per second, and floors.

Every figure is taken several times in rounds, floors and log by turns, so that whatever else the
machine does falls on all of them alike; what is reported is a median or quantile over all rounds.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.bench import arguments, floors
from penstock.bench.crew import Crew, wait_until
from penstock.bench.report import Report, machine_facts, median, merge, quantile
from penstock.config import Durability, LogConfig
from penstock.log import open_log
from penstock.log.contract import APPEND_ENTRIES_MAX, Log
from penstock.log.record import START, Entry, RecordKind

TITLE = "the shared log, beside the bare disk and bare SQLite"
WRITERS = 2
ROUNDS = 3
SMALL_BYTES = 100
UNIT_BYTES = 16 << 10
LARGE_BYTES = 128 << 10
APPENDS_PER_S = 100  # of the latency measurement
WARM_UP = 0.15  # this share of each measurement's start is thrown away
READ_S_MAX = 60.0
FILL_ENTRIES = 64

READ_EXTRA_MS_MAX = 1.0
READ_P99_MS_MAX = 4.0
APPENDS_PER_S_MIN = 20_000
DISK_SHARE_MIN = 0.5
LENGTH_FACTOR_MAX = 1.25  # a B-tree of a million rows is one or two levels deeper, no more

_SENT = struct.Struct("<Q")  # the moment before append(), at the start of a body
Samples = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=arguments.seconds,
        default=30.0,
        metavar="S",
        help="time spent measuring, set-up and building the long log aside (default 30)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="the disk to measure: a folder on it (default .)"
    )
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default="1e3,1e6",
        metavar="N,M",
        help="log lengths at which the cost of an append is compared (default 1e3,1e6)",
    )


def measure(args: argparse.Namespace) -> Report:
    """Run all rounds in a temporary folder and report."""
    machine = machine_facts()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=args.dir) as name,
        Crew(WRITERS) as crew,
        ExitStack() as logs,
    ):
        folder = Path(name)
        bench = _Bench(folder, crew, args.seconds / ROUNDS, logs)
        for label, records in args.lengths.items():
            _say(f"building a log of {records:,} records")
            bench.build(label, records)
        rounds = []
        for number in range(ROUNDS):
            _say(f"round {number + 1} of {ROUNDS}")
            rounds.append(bench.round(number))
    report = _report(merge(rounds), list(args.lengths))
    report.facts = machine | {"rounds": ROUNDS}
    return report


@dataclass(frozen=True, slots=True)
class _Shares:
    """How a round's time is divided; the floors get less because they vary less."""

    latency: float = 0.3
    appends: float = 0.12
    appends_synced: float = 0.12
    bytes_synced: float = 0.12
    disk: float = 0.1
    stream: float = 0.06
    single: float = 0.18  # syncs, inserts and the two log lengths, one append at a time


class _Bench:
    """The logs and workers of one run."""

    def __init__(self, folder: Path, crew: Crew, round_s: float, logs: ExitStack) -> None:
        self._folder = folder
        self._crew = crew
        self._round_s = round_s
        self._shares = _Shares()
        self._lengths: dict[str, Path] = {}
        self._logs: dict[Durability, Path] = {}
        for level in ("synced", "process"):
            self._logs[level] = folder / level
            config = LogConfig(durability=level)
            # Held open and used once, as by a query that runs: when the last handle closes, the
            # write-ahead log goes, and a file that grows is slower to sync than one that is there.
            log = logs.enter_context(open_log(folder / level, create=True, config=config))
            _fill_wal(log, config)

    def build(self, label: str, records: int) -> None:
        """Make a log of some length quickly: as many records per append as are allowed."""
        path = self._lengths[label] = self._folder / f"length_{label}"
        body = os.urandom(SMALL_BYTES)
        config = LogConfig(durability="process")
        with open_log(path, create=True, config=config) as log:
            for first in range(0, records, APPEND_ENTRIES_MAX):
                last = min(first + APPEND_ENTRIES_MAX, records)
                log.append([_entry("builder", i, "orders", body) for i in range(first, last)])
            assert log.tail() == records

    def round(self, number: int) -> Samples:
        """Measure everything once."""
        shares, round_s = self._shares, self._round_s
        large = {"piece_bytes": LARGE_BYTES, "seconds": shares.disk * round_s}
        disk = self._crew.run(
            [
                (floors.pieces_mb_per_s, self._folder / f"floor.{i}", *large.values())
                for i in range(WRITERS)
            ]
        )
        small = self._appends("process", SMALL_BYTES, shares.appends * round_s, number)
        small_synced = self._appends("synced", SMALL_BYTES, shares.appends_synced * round_s, number)
        bytes_synced = self._appends("synced", LARGE_BYTES, shares.bytes_synced * round_s, number)
        stream = floors.stream_mb_per_s(self._folder / "floor.stream", shares.stream * round_s)
        return {
            "floor_disk_mb_per_s": [sum(disk)],
            "floor_stream_mb_per_s": [stream],
            "appends_per_s": [small.per_s],
            "append_cpu_us": [small.cpu_us],
            "appends_per_s_synced": [small_synced.per_s],
            "mb_per_s_synced": [bytes_synced.per_s * LARGE_BYTES / 1e6],
            "latency_ms": self._latency(shares.latency * round_s, number),
            **self._single(shares.single * round_s, number),
        }

    def _latency(self, seconds: float, number: int) -> list[float]:
        appends = max(20, int(seconds * APPENDS_PER_S))
        path, tag = self._logs["synced"], f"latency/{number}"
        latencies: list[float]
        sent, latencies = self._crew.run(
            [(_append_steadily, path, tag, appends), (_read_all, path, tag, appends)]
        )
        assert sent == len(latencies) == appends
        with open_log(path) as log:
            log.trim(tag, log.tail())
        return latencies[int(WARM_UP * appends) :]

    def _appends(self, level: Durability, size_bytes: int, seconds: float, number: int) -> _Rate:
        path = self._logs[level]
        producers = [f"w{worker}_{size_bytes}_{number}" for worker in range(WRITERS)]
        rates = self._crew.run(
            [(_append_flat_out, path, name, size_bytes, seconds) for name in producers]
        )
        with open_log(path) as log:
            for name in producers:
                log.trim(f"rows/{name}", log.tail())
        return _Rate(sum(rate.per_s for rate in rates), median([rate.cpu_us for rate in rates]))

    def _single(self, seconds: float, number: int) -> Samples:
        """One append, insert or sync at a time, the kinds by turns in slices too short to drift."""
        samples: Samples = {"floor_insert_us": [], "floor_sync_us": []}
        logs = {label: open_log(path) for label, path in self._lengths.items()}
        for label in logs:
            samples[f"append_us_at_{label}"] = []
        body = os.urandom(SMALL_BYTES)
        end_s = time.perf_counter() + seconds
        turn = 0
        try:
            while time.perf_counter() < end_s or turn < 2:
                for label, log in logs.items():
                    times = _time_appends(log, f"single_{number}_{turn}", body, 100)
                    samples[f"append_us_at_{label}"] += times[20:]
                samples["floor_insert_us"] += floors.insert_us(self._folder, 100)[20:]
                samples["floor_sync_us"] += floors.sync_us(self._folder, 20)[4:]
                turn += 1
        finally:
            for log in logs.values():
                log.close()
        return samples


@dataclass(frozen=True, slots=True)
class _Rate:
    """What one writer did: appends per second, and its own processor time per append."""

    per_s: float
    cpu_us: float


def _fill_wal(log: Log, config: LogConfig) -> None:
    """Append until the write-ahead log has had its full size, so that its file is there."""
    body = os.urandom(config.inline_bytes_max)
    for sequence in range(config.wal_bytes_max // len(body) // FILL_ENTRIES + 1):
        first = sequence * FILL_ENTRIES
        log.append([_entry("filler", first + i, "filler", body) for i in range(FILL_ENTRIES)])
    log.trim("filler", log.tail())


def _append_flat_out(
    start_s: float, path: Path, producer: str, size_bytes: int, seconds: float
) -> _Rate:
    """Append one record after the other for some time."""
    body = os.urandom(size_bytes)
    tag = f"rows/{producer}"
    with open_log(path) as log:
        wait_until(start_s)
        sequence = _append_until(log, producer, tag, body, start_s + WARM_UP * seconds, 0)
        cpu_s, counted_from, first_s = time.process_time(), sequence, time.perf_counter()
        sequence = _append_until(log, producer, tag, body, start_s + seconds, sequence)
        elapsed_s = time.perf_counter() - first_s
        appends = sequence - counted_from
        cpu_us = (time.process_time() - cpu_s) / max(1, appends) * 1e6
    return _Rate(appends / elapsed_s, cpu_us)


def _append_until(
    log: Log, producer: str, tag: str, body: bytes, end_s: float, sequence: int
) -> int:
    while time.perf_counter() < end_s:
        log.append([_entry(producer, sequence, tag, body)])
        sequence += 1
    return sequence


def _append_steadily(start_s: float, path: Path, tag: str, appends: int) -> int:
    """Append at a fixed rate, each body with the moment at which its append began."""
    rest = os.urandom(UNIT_BYTES - _SENT.size)
    producer = tag.replace("/", "_")
    with open_log(path) as log:
        for i in range(appends):
            wait_until(start_s + i / APPENDS_PER_S)
            body = _SENT.pack(time.perf_counter_ns()) + rest
            log.append([_entry(producer, i, tag, body)])
    return appends


def _read_all(start_s: float, path: Path, tag: str, appends: int) -> list[float]:
    """Read a tag as it grows; return for each record the time since its append began."""
    latencies: list[float] = []
    after = START
    with open_log(path) as log:
        tail = log.tail()
        while len(latencies) < appends and time.perf_counter() < start_s + READ_S_MAX:
            tail = log.wait(tail, 1.0)
            for record in log.read((tag,), after, 256):
                now_ns = time.perf_counter_ns()
                latencies.append((now_ns - _SENT.unpack(record.body[: _SENT.size])[0]) / 1e6)
                after = record.position
    return latencies


def _time_appends(log: Log, producer: str, body: bytes, appends: int) -> list[float]:
    times = []
    for sequence in range(appends):
        entries = [_entry(producer, sequence, "orders", body)]
        start_ns = time.perf_counter_ns()
        log.append(entries)
        times.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times


def _entry(producer: str, sequence: int, tag: str, body: bytes) -> Entry:
    return Entry(RecordKind.DATA, (tag,), producer, 1, sequence, body)


def _report(samples: Samples, lengths: list[str]) -> Report:
    report = Report(TITLE)
    latency = samples["latency_ms"]
    for key, share in (("read_p50_ms", 0.5), ("read_p99_ms", 0.99)):
        meaning = "append to read in another process, 16 KiB, synced, 100 appends/s"
        report.add(key, quantile(latency, share), meaning, len(latency))
    for key, meaning in _MEANINGS.items():
        report.add(key, median(samples[key]), meaning, len(samples[key]))
    for label in lengths:
        key = f"append_us_at_{label}"
        meaning = f"one append of 100 B to a log of {label} records, process level"
        report.add(key, median(samples[key]), meaning, len(samples[key]))
    report.reach = reach_of(report, lengths)
    return report


_MEANINGS = {
    "appends_per_s": "2 writers, 100 B, process level",
    "append_cpu_us": "processor time of one of these appends",
    "appends_per_s_synced": "2 writers, 100 B, synced",
    "mb_per_s_synced": "2 writers, 128 KiB bodies, synced",
    "floor_insert_us": "bare SQLite: insert of one 100 B row in WAL mode, unsynced",
    "floor_sync_us": "bare disk: append of 4 KiB + fdatasync",
    "floor_disk_mb_per_s": "bare disk: 2 processes append 128 KiB pieces, fdatasync after each",
    "floor_stream_mb_per_s": "bare disk: 1 process writes 1 MiB pieces, fdatasync every 8 MiB",
}


def reach_of(report: Report, lengths: list[str]) -> dict[str, bool]:
    """Say which goals the figures reach."""
    value = report.value
    read_p50_ms_max = READ_EXTRA_MS_MAX + value("floor_sync_us") / 1e3
    reach = {
        "read_p50_within_1_ms_of_a_sync": value("read_p50_ms") <= read_p50_ms_max,
        "read_p99_under_4_ms": value("read_p99_ms") < READ_P99_MS_MAX,
        "appends_per_s_at_least_20000": value("appends_per_s") >= APPENDS_PER_S_MIN,
        "mb_per_s_synced_at_least_half_the_disk": (
            value("mb_per_s_synced") >= DISK_SHARE_MIN * value("floor_disk_mb_per_s")
        ),
    }
    if len(lengths) > 1:
        short, *_, long = (value(f"append_us_at_{label}") for label in lengths)
        reach["append_cost_flat_in_log_length"] = long <= LENGTH_FACTOR_MAX * short
    return reach


def _lengths(text: str) -> dict[str, int]:
    """Parse '1e3,1e6'; argparse turns the ValueError of anything else into its message."""
    lengths = {label: int(float(label)) for label in text.split(",")}
    if not all(1 <= records <= 10**8 for records in lengths.values()):
        raise argparse.ArgumentTypeError(f"{text}: a length is 1 to 1e8 records")
    return lengths


def _say(text: str) -> None:
    print(f"penstock bench: {text}", file=sys.stderr, flush=True)
