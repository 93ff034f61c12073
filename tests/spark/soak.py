"""A long run under random kills: `make soak MINUTES=n`, or `python -m tests.spark.soak`.

A count of bids per auction runs on a real Spark session while slots are killed and stopped and
the driver is killed and started again, in an order that the seed decides. This process reads what
is committed, judges it in the end, and trims what it has read, as a reader of a stream that nobody
else needs would. So the log must stay as small as it is, whatever the time.

Memory of slots, driver and JVM and the bytes on disk are sampled all the time; the last line is one
JSON object with the series and the verdicts. The exit code is 0 if nothing was lost or doubled and
neither memory nor the log has grown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.errors import StreamError
from penstock.log import LocalLog, open_log, punit
from penstock.log.committed import CommittedReader
from penstock.log.index import PAGE_BYTES, connect
from penstock.log.local import INDEX_FILE, SEGMENTS_FOLDER
from penstock.runtime.streams import describe_stream
from tests.spark.rig import DriverProcess, hurry, kill
from tests.spark.verifier import Counted
from tests.spark.waiting import wait_for

RATE = 4_000
NAME = "soak"
SAMPLE_S = 2.0
GROWTH_MAX = 1.25  # of memory, from the middle third of the run to the last one
# Of what the log holds, between the same two. An event that stays takes more than this, and so do
# the markers of one vertex, at the rate at which they come.
LEAK_BYTES_PER_EVENT_MAX = 4
TRIM_S = 1.0
SAMPLES_MIN = 9
LEAK_SAMPLES_MIN = 30
SHOWN = 40
ACTIONS = (("kill a slot", 12), ("kill two slots", 3), ("stop a slot", 3), ("kill the driver", 2))
CHECKPOINT_COMMITS = 200


class Soak:
    """One run in one folder."""

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self._folder = folder
        self._end_s = time.monotonic() + minutes * 60
        self._events = int(RATE * (minutes * 60 + 60))
        self._random = random.Random(seed)
        self._drivers = 0
        self._driver = self._new_driver()
        self.done: Counter[str] = Counter()
        self._watched: dict[str, list[int]] = {}
        self.samples: list[dict[str, int]] = []
        self._is_over = threading.Event()
        self._reader = Reader(self._folder / "log")

    def run(self) -> dict[str, Any]:
        watcher = threading.Thread(target=self._watch, daemon=True)
        try:
            self._start()
            self._reader.start()
            watcher.start()
            while time.monotonic() < self._end_s:
                self._wait_steady()
                self._act()
            self._wait_steady()
            return self._finish()
        finally:
            self._is_over.set()
            self._reader.stop()
            self._driver.close()

    def _new_driver(self) -> DriverProcess:
        self._drivers += 1
        errors = self._folder / f"stderr-{self._drivers}.txt"
        log, kernels = self._folder / "log", self._folder / "kernels"
        return DriverProcess("local[8]", log, kernels, errors).wait_ready()

    def _start(self) -> None:
        self._driver.start(
            NAME, "counts", self._events, RATE, parallelism=2,
            checkpointInterval=CHECKPOINT_COMMITS,
        )  # fmt: skip

    def _wait_steady(self) -> None:
        self._driver.wait_standby(NAME)
        self._driver.wait_commits(NAME)
        slots = [pid for pid, _ in self._driver.ask("slots", name=NAME)]
        jvm = Path(f"/proc/{self._driver.pid}/task/{self._driver.pid}/children").read_text()
        self._watched = {
            "slots": slots,
            "driver": [self._driver.pid],
            "jvm": [int(pid) for pid in jvm.split()],
        }
        time.sleep(self._random.uniform(0.2, 2.0))

    def _act(self) -> None:
        (action,) = self._random.choices(
            [name for name, _ in ACTIONS], [weight for _, weight in ACTIONS]
        )
        self.done[action] += 1
        print(f"{self._left_s():6.0f} s left: {action}", flush=True)
        if action == "kill the driver":
            self._driver.kill()
            self._driver.close()
            self._driver = self._new_driver()
            self._start()
            return
        pids = self._driver.working_pids(NAME)
        chosen = self._random.sample(pids, min(len(pids), 2 if "two" in action else 1))
        if action == "stop a slot":
            os.kill(chosen[0], signal.SIGSTOP)
            self._driver.wait_recovered(NAME, chosen[0])
            try:
                os.kill(chosen[0], signal.SIGCONT)
            except ProcessLookupError:
                print("         it held a lock of the log and was ended", flush=True)
            return
        kill(*chosen)
        for pid in chosen:
            self._driver.wait_recovered(NAME, pid)

    def _left_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())

    def _finish(self) -> dict[str, Any]:
        """Let the rest of the input come at once, and have everything judged."""
        self._is_over.set()  # what follows is not the run whose memory and disk are looked at
        self._driver.ask("stop", name=NAME)
        hurry(self._folder / "log", NAME)
        with open_log(self._folder / "log") as log:
            refused = {
                key.split("/")[1]: json.loads(found.value)["times"]
                for key in log.keys("refused")
                if (found := log.get(key)) is not None
            }
        self._start()
        wait_for("the end", lambda: self._driver.over(NAME), 300)
        self._reader.stop()
        return {"judged": self._reader.counted.verdict(self._events, RATE), "refused": refused}

    def _watch(self) -> None:
        begun_s = time.monotonic()
        while not self._is_over.wait(SAMPLE_S):
            sample = {
                "s": round(time.monotonic() - begun_s),
                "disk": _bytes_of(self._folder / "log"),
                "log": _bytes_held(self._folder / "log"),
                "rows": self._reader.counted.rows,
            }
            for name, pids in self._watched.items():
                sample[name] = max((_rss_bytes(pid) for pid in pids), default=0)
            self.samples.append(sample)


class Reader:
    """Reads the query's output as it is committed, and trims what it has read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counted = Counted()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Read what is committed by now and end."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with open_log(self._folder) as log:
                tags = describe_stream(log, NAME).tags
                reader = CommittedReader(log, tags)
                while not self._is_over.wait(TRIM_S):
                    self._read(reader)
                    self._trim(log, tags, reader)
                self._read(reader)
        except BaseException as error:
            self._error = error

    def _read(self, reader: CommittedReader) -> None:
        while (release := reader.take()) is not None:
            for record in release.records:
                self.counted.take(punit.decode(record.body).to_pylist())

    @staticmethod
    def _trim(log: LocalLog, tags: tuple[str, ...], reader: CommittedReader) -> None:
        try:
            for tag in tags:
                log.trim(tag, reader.resume)
        except StreamError as error:  # such as a lock that a stopped slot holds
            print(f"         not trimmed now: {error.error_class}", flush=True)


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _bytes_held(folder: Path) -> int:
    """What the records of a log take: pages of the index that are in use, and segments.

    The files themselves say less. A file of SQLite keeps the pages that it no longer needs, and the
    write-ahead log keeps the size that its bound gave it.
    """
    index = connect(folder / INDEX_FILE, None, read_only=True)
    try:
        pages = index.pragma("page_count") - index.pragma("freelist_count")
    finally:
        index.close()
    return int(pages) * PAGE_BYTES + _bytes_of(folder / SEGMENTS_FOLDER)


def growth(series: list[int]) -> float | None:
    """The last third's median over the middle third's; None if there is too little to say."""
    series = [each for each in series if each]
    if len(series) < SAMPLES_MIN:
        return None
    third = len(series) // 3
    return statistics.median(series[2 * third :]) / statistics.median(series[third : 2 * third])


def leaked(samples: list[dict[str, int]]) -> float | None:
    """By how many bytes an event the log grew from the middle third to the last one.

    What it holds rises and falls with each checkpoint, so the lowest points are compared. Only
    samples count between which rows came: while a driver starts nothing can leak. None if there
    are too few, because up to the second checkpoint of each vertex a log grows as it should.
    """
    pairs = itertools.pairwise(samples)
    series = [after["log"] for before, after in pairs if after["rows"] > before["rows"]]
    if len(series) < LEAK_SAMPLES_MIN:
        return None
    third = len(series) // 3
    grown = min(series[2 * third :]) - min(series[third : 2 * third])
    return round(grown / (third * SAMPLE_S * RATE), 2)


def _all_within(figures: Iterable[float | None], most: float) -> bool | None:
    """Whether all figures are within a bound; None if a run was too short to have one of them."""
    known = list(figures)
    return None if None in known else all(each <= most for each in known if each is not None)


def report(soak: Soak, seed: int, outcome: dict[str, Any]) -> dict[str, Any]:
    memory = {
        name: growth([sample.get(name, 0) for sample in soak.samples])
        for name in ("slots", "driver", "jvm")
    }
    disk = [sample["disk"] for sample in soak.samples]
    span_s = max(1, soak.samples[-1]["s"] - soak.samples[0]["s"]) if soak.samples else 1
    leak = leaked(soak.samples)
    step = max(1, len(soak.samples) // SHOWN)
    return {
        "seed": seed,
        "actions": dict(soak.done),
        "exactly_once": not (outcome["judged"]["lost"] or outcome["judged"]["extra"]),
        **outcome,
        "memory_growth": memory,
        "memory_flat": _all_within(memory.values(), GROWTH_MAX),
        "disk_growth": growth(disk),
        "disk_bytes_per_s": round((disk[-1] - disk[0]) / span_s) if disk else 0,
        "log_leak_bytes_per_event": leak,
        "disk_flat": _all_within([leak], LEAK_BYTES_PER_EVENT_MAX),
        "series": soak.samples[::step],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a query under random kills.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", type=Path, help="make the log in this folder and keep it")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {args.seed}, {args.minutes:g} minutes", flush=True)
    soak = Soak(folder, args.minutes, args.seed)
    outcome = soak.run()
    if args.keep is None:  # a run that failed leaves its log behind
        shutil.rmtree(folder)
    facts = report(soak, args.seed, outcome)
    for what in ("memory_flat", "disk_flat"):
        if facts[what] is None:
            print(f"{what} is not judged: the run was too short; give it 4 minutes", flush=True)
    print(json.dumps(facts))
    wrong = [facts[what] is False for what in ("exactly_once", "memory_flat", "disk_flat")]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
