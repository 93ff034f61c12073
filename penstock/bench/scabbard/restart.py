"""All processes killed under load (Fig. 10): the driver, Spark's Java process and every slot.

A program sends the rows of LRB1 at half the rate that the query takes, and goes on while it is
gone: each unit is due at its time. The query is started again at once. From outside its log tells
when its windows are committed; a row's latency is from when it was due to then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from penstock.bench.crew import Crew
from penstock.bench.footprint import family
from penstock.bench.report import rounded, say
from penstock.bench.scabbard.engines import Input
from penstock.bench.scabbard.persistence import free_port
from penstock.bench.scabbard.queries import QUERIES
from penstock.bench.scabbard.runs import Mark, Trace, rows_before
from penstock.bench.scabbard.sending import Rows, Sent, send_to_query
from penstock.bench.scabbard.setting import Setting
from penstock.log import open_log
from penstock.runtime.queries import needed_query

QUERY = "lrb1"
SCHEMA = (
    "ts timestamp, vehicle int, speed float, highway int, lane int, direction int, position int"
)
DRIVER = "penstock.bench.scabbard.restart_driver"
WARM_ROWS = 1 << 18
FULL_S = 3.0  # about how long it is asked how much the query takes
SHARE = 0.5  # of which it gets
UNIT_ROWS = 1 << 14
WORDS_S_MAX = 300.0
DONE_S_MAX = 120.0
BACK_S_MAX = 180.0
SEND_S_MAX = 300.0
BUCKET_S = 0.1
BACK_TIMES = 2.0  # the latency is back when it is at most so many times what it was
TOGETHER_MS_MAX = 1_000
POLL_S = 0.02


class Driver:
    """The killed program, and what it has said."""

    def __init__(self, order: Mapping[str, Any], said: Path) -> None:
        self._said = said
        self._out: IO[bytes] = said.open("wb")
        self.begun_s = time.time()
        self._process = subprocess.Popen(
            [sys.executable, "-m", DRIVER, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=self._out,
        )

    def words(self) -> dict[str, float]:
        """When it was how far, since 1970."""
        lines = self._said.read_text(encoding="utf-8").splitlines()
        return {word: at_s for line in lines for word, at_s in json.loads(line).items()}

    def wait_for(self, word: str, meanwhile: Trace | None = None) -> None:
        """Wait until it has said so."""
        end_s = time.monotonic() + WORDS_S_MAX
        while word not in self.words():
            if self._process.poll() is not None:
                raise RuntimeError(f"the driver ended with {self._process.returncode}")
            if time.monotonic() > end_s:
                raise TimeoutError(f"the driver is not {word} after {WORDS_S_MAX:g} s")
            if meanwhile is not None:
                meanwhile.look()
            time.sleep(POLL_S)

    def kill(self) -> tuple[float, int]:
        """Kill it with all that it has started; when, and how many processes those were."""
        processes = family(self._process.pid)
        killed_s = time.time()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._close()
        return killed_s, len(processes)

    def end(self) -> None:
        """Let it stop its query, and wait; kill it if it does not."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
                return
        self._close()

    def _close(self) -> None:
        self._out.close()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def measure(setting: Setting) -> dict[str, Any]:
    """Throughput and latency before, while and after the processes are gone."""
    query, folder = QUERIES[QUERY], setting.scratch("restart")
    given = setting.given(query, folder)
    order = {
        "query": QUERY,
        "log": str(folder / "log"),
        "port": free_port(),
        "token": str(folder / "token"),
        "schema": SCHEMA,
    }
    rows = Rows(str(given.path), given.made.period_us, unit_rows=UNIT_ROWS)
    with Crew(1, answer_s_max=SEND_S_MAX) as crew, ThreadPoolExecutor(1) as pool:
        run = _Run(order, folder, crew, pool, rows, setting.args.seconds)
        return {QUERY: run.figures(given)}


class _Run:
    """Two lives of the driver."""

    def __init__(
        self,
        order: Mapping[str, Any],
        folder: Path,
        crew: Crew,
        pool: ThreadPoolExecutor,
        rows: Rows,
        seconds: float,
    ) -> None:
        self._order, self._folder = order, folder
        self._crew, self._pool = crew, pool
        self._rows, self._seconds = rows, seconds
        self._end_file = folder / "enough"

    def figures(self, given: Input) -> dict[str, Any]:
        first = Driver(self._order, self._folder / "first")
        second: Driver | None = None
        try:
            first.wait_for("running")
            with open_log(self._order["log"]) as log:
                trace = Trace(log, needed_query(log, QUERY).program, QUERY)
                full_rows_per_s, first_row = self._full(trace, given)
                first.wait_for("compiled")
                rate = SHARE * full_rows_per_s
                say(f"restart: it takes {full_rows_per_s:,.0f} rows/s; half of that from now on")
                rows = replace(self._rows, first=first_row)
                sending = self._send("paced", rows, SEND_S_MAX, rate)
                self._wait_done(trace, given, first_row + UNIT_ROWS)  # it is going
                trace.follow(self._seconds)
                killed_s, processes = first.kill()
                say(f"restart: {processes} processes killed")
                second = Driver(self._order, self._folder / "second")
                second.wait_for("running", trace)
                self._wait_back(trace, killed_s)
                trace.follow(self._seconds)
                self._end_file.touch()
                sent = sending.result()
                trace.follow(1.0)
            moments = _Moments(killed_s, second.begun_s, second.words())
            told = figures(trace, given.made, sent, moments, rows.first, self._seconds)
            told |= {"full_rows_per_s": rounded(full_rows_per_s), "processes_killed": processes}
            return told
        finally:
            self._end_file.touch()
            for driver in (first, second):
                if driver is not None:
                    driver.end()

    def _full(self, trace: Trace, given: Input) -> tuple[float, int]:
        """How many rows a second have their windows committed, where as many come as are taken,
        and how many were sent in all. What is acknowledged may wait long for its windows, so the
        first ones, which do not count, tell how many are enough."""
        first_row, count, rows_per_s = 0, WARM_ROWS, 0.0
        for name in ("warm", "full"):
            begun_s = time.time()
            sent = self._send(name, replace(self._rows, first=first_row, total=count), SEND_S_MAX)
            while not sent.done():
                trace.follow(POLL_S)
            first_row += sent.result().rows[-1]
            self._wait_done(trace, given, first_row - given.made.times_us.size)
            rows_per_s = sent.result().rows[-1] / (time.time() - begun_s)
            count = max(WARM_ROWS, round(rows_per_s * FULL_S))
        return rows_per_s, first_row

    def _wait_done(self, trace: Trace, given: Input, rows: int) -> None:
        """Wait for the windows of all but the newest rows, which more rows must close."""
        end_s = time.monotonic() + DONE_S_MAX
        while not (done := _done(trace.ends(), given.made)) or done[-1][1] < rows:
            if time.monotonic() > end_s:
                raise TimeoutError(f"the windows of {rows:,} rows are not done")
            trace.follow(POLL_S)

    def _send(
        self, name: str, rows: Rows, seconds: float, rate: float | None = None
    ) -> Future[Sent]:
        arguments = (name, self._order["port"], self._order["token"], rows, seconds)
        task = (send_to_query, *arguments, rate, str(self._end_file))

        def run() -> Sent:
            sent: Sent
            (sent,) = self._crew.run([task])
            return sent

        return self._pool.submit(run)

    def _wait_back(self, trace: Trace, killed_s: float) -> None:
        end_s = time.monotonic() + BACK_S_MAX
        while first_commits(trace.marks, killed_s) is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"not every vertex has committed again after {BACK_S_MAX:g} s")
            trace.follow(POLL_S)


@dataclass(frozen=True)
class _Moments:
    """Since 1970: when all was killed, the new driver's process began, and it was how far."""

    killed_s: float
    begun_s: float
    words: Mapping[str, float]


def first_commits(marks: Mapping[str, Sequence[Mark]], killed_s: float) -> float | None:
    """When the last vertex has its first marker after a moment; None if one has none."""
    first = []
    for of_vertex in marks.values():
        after = [mark.time_us / 1e6 for mark in of_vertex if mark.time_us / 1e6 > killed_s]
        if not after:
            return None
        first.append(after[0])
    return max(first)


def figures(
    trace: Trace, made: Any, sent: Sent, moments: _Moments, first_row: int, seconds: float
) -> dict[str, Any]:
    """What the markers, the sender and the driver say together; times from the kill."""
    killed_s, words = moments.killed_s, moments.words
    recovered_s = first_commits(trace.marks, killed_s)
    assert recovered_s is not None
    done = _done(trace.ends(), made)
    late = _late(done, sent, first_row)
    before = [late_ms for at_s, late_ms in late if killed_s - seconds <= at_s < killed_s]
    initialisation_ms = (words["placed"] - words["session"]) * 1e3
    recovery_ms = (recovered_s - words["placed"]) * 1e3
    told: dict[str, Any] = {
        "rows_per_s": rounded(sent.rows[-1] / (sent.due_s[-1] - sent.due_s[0])),
        "spark_ms": rounded((words["session"] - moments.begun_s) * 1e3),
        "initialisation_ms": rounded(initialisation_ms),
        "recovery_ms": rounded(recovery_ms),
        "together_ms": rounded(initialisation_ms + recovery_ms),
        "away_ms": rounded((recovered_s - killed_s) * 1e3),
        "moments_s": {
            "driver": rounded(moments.begun_s - killed_s),
            **{word: rounded(at_s - killed_s) for word, at_s in words.items()},
            "committed": rounded(recovered_s - killed_s),
        },
    }
    if before:
        told |= _beside_usual(before, late, recovered_s)
    told["over_time"] = _over_time(done, late, killed_s, killed_s - seconds)
    return told


def _beside_usual(
    before: Sequence[float], late: Sequence[tuple[float, float]], recovered_s: float
) -> dict[str, float]:
    """The latency before the kill, and how long after the recovery it is as low again."""
    p50_ms, p95_ms = np.percentile(before, [50, 95]).tolist()
    told = {"p50_ms": rounded(p50_ms), "p95_ms": rounded(p95_ms)}
    low = (at_s for at_s, ms in late if at_s >= recovered_s and ms <= BACK_TIMES * p95_ms)
    if (back_s := next(low, None)) is not None:
        told["latency_back_s"] = rounded(back_s - recovered_s)
    return told


def _done(ends: Sequence[Sequence[Mark]], made: Any) -> list[tuple[float, int]]:
    """At each marker of a vertex that writes the result: the rows that all of them have done."""
    marks = sorted((mark.time_us, at) for at, of in enumerate(ends) for mark in of)
    times = {(mark.time_us, at): mark.watermark_us for at, of in enumerate(ends) for mark in of}
    upto = [0] * len(ends)
    done = []
    for time_us, at in marks:
        upto[at] = max(upto[at], rows_before(made, max(0, times[time_us, at])))
        done.append((time_us / 1e6, min(upto)))
    return done


def _late(
    done: Sequence[tuple[float, int]], sent: Sent, first_row: int
) -> list[tuple[float, float]]:
    """At each of these times: how long ago the newest row that is done was due, in ms."""
    upto = np.array(sent.rows) + first_row
    late = []
    for at_s, rows in done:
        unit = int(np.searchsorted(upto, rows, side="right")) - 1
        if unit >= 0:
            late.append((at_s, (at_s - sent.due_s[unit]) * 1e3))
    return late


def _over_time(
    done: Sequence[tuple[float, int]],
    late: Sequence[tuple[float, float]],
    killed_s: float,
    begin_s: float,
) -> list[dict[str, float]]:
    """Rows a second and the greatest latency in steps of time."""
    times, rows = (np.array(each) for each in zip(*done, strict=True))
    edges = np.arange(begin_s, times[-1], BUCKET_S)
    # A row counts when it is done: between two commits nothing is.
    upto = [int(rows[max(0, at - 1)]) for at in np.searchsorted(times, edges, side="right")]
    told = []
    for (start_s, end_s), (before, after) in zip(pairwise(edges), pairwise(upto), strict=True):
        within = [late_ms for at_s, late_ms in late if start_s <= at_s < end_s]
        rate = (after - before) / BUCKET_S
        each = {"s": rounded(start_s - killed_s), "rows_per_s": rounded(rate)}
        if within:
            each["latency_ms"] = rounded(max(within))
        told.append(each)
    return told


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield whether it is back in time, the start of Spark aside."""
    for query, told in found.items():
        yield f"{query}_back_within_1_s", told["together_ms"] <= TOGETHER_MS_MAX
