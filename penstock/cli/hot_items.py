"""`penstock demo`: NEXMark hot items on Spark, with kill -9, checked against Spark's own batch.

Three programs take part, each a process of its own. The driver (`hot_items_driver`) is what a user
would write: a Spark session and a plain PySpark query. This one watches the log, draws, and kills:
a slot, another slot, and the whole driver. The judge runs the same query as a Spark batch over the
same rows and compares every row.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import DemoFailed, LogError
from penstock.log import open_log, punit
from penstock.log.committed import CommittedReader
from penstock.log.contract import Log
from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, Marker, decode_marker
from penstock.runtime.sources import start_keys
from penstock.runtime.streams import describe_stream

QUERY = "hot"
DELAY_US = 1_000_000
FRAME_S = 0.25
START_S_MAX = 240.0
LATENCIES_KEPT = 2_000
LINE_S = 5.0  # between two lines where nothing can be redrawn
DRIVER = "penstock.cli.hot_items_driver"


def add_parser(subparsers: Any) -> None:
    """Add `penstock demo` to the command line."""
    parser = subparsers.add_parser(
        "demo", help="hot items on Spark, killed three times, checked against Spark's batch result"
    )
    parser.add_argument("--seconds", type=int, default=30, help="how long the input lasts (30)")
    parser.add_argument("--rate", type=int, default=10_000, help="events per second (10000)")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="make the log in DIR and keep it")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo in a temporary folder, or in one that stays."""
    folder = args.keep or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        return HotItems(folder / "log", args.rate, args.seconds).run()
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class View:
    """What the screen shows."""

    started_s: float
    phase: str = "starting Spark"
    events: list[str] = field(default_factory=list)
    slots: dict[str, Any] = field(default_factory=dict)
    rows_in: int = 0
    rows_rate: float = 0.0
    rows_out: int = 0
    recoveries: int = 0
    watermark_us: int = WATERMARK_NONE
    killed_us: int | None = None  # since when nobody has followed whom was killed
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def note(self, text: str) -> None:
        self.events.append(self.timed(text))

    def timed(self, text: str) -> str:
        return f"{time.monotonic() - self.started_s:6.1f} s  {text}"

    def lines(self) -> list[str]:
        recent = sorted(self.latencies_ms)
        latency = "latency  -"
        if recent:
            p99 = recent[min(len(recent) - 1, int(len(recent) * 0.99))]
            latency = f"latency  p50 {statistics.median(recent):.1f} ms   p99 {p99:.1f} ms"
        mark = "-"
        if self.watermark_us not in (WATERMARK_NONE, WATERMARK_END):
            mark = datetime.fromtimestamp(self.watermark_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
        slots = ", ".join(
            f"{number} (pid {facts['pid']}{'' if facts['vertices'] else ', standby'})"
            for number, facts in sorted(self.slots.items(), key=lambda item: int(item[0]))
        )
        return [
            f"hot items   {self.phase}",
            f"  input    {self.rows_in:>10,} bids read    {self.rows_rate:>9,.0f} /s",
            f"  output   {self.rows_out:>10,} rows committed",
            f"  {latency}   (event created to its row committed, also while all were dead)",
            f"  watermark {mark}    recoveries {self.recoveries}",
            f"  slots    {slots or '-'}",
        ]

    def line(self) -> str:
        """The same in one line."""
        return (
            f"{self.phase}: {self.rows_in:,} bids read, {self.rows_out:,} rows committed, "
            f"{self.recoveries} recoveries"
        )


class Screen:
    """Redraws a few lines in place on a terminal; elsewhere prints one line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._height = 0
        self._events_shown = 0
        self._printed_s = 0.0
        self._line = ""

    def draw(self, view: View, *, last: bool = False) -> None:
        if self._is_terminal:
            self._erase()
            self._print_events(view)
            lines = view.lines()
            width = shutil.get_terminal_size().columns
            print("\n".join(line[: width - 1] for line in lines), flush=True)
            self._height = 0 if last else len(lines)
            return
        self._print_events(view)
        if last:
            print("\n".join(view.lines()), flush=True)
        elif time.monotonic() - self._printed_s >= LINE_S and view.line() != self._line:
            self._printed_s, self._line = time.monotonic(), view.line()
            print(view.timed(self._line), flush=True)

    def _print_events(self, view: View) -> None:
        for event in view.events[self._events_shown :]:
            print(event, flush=True)
        self._events_shown = len(view.events)

    def _erase(self) -> None:
        if self._height:
            print(f"\x1b[{self._height}F\x1b[J", end="")


class Driver:
    """The driver process: starts it, hears what it says, kills it."""

    def __init__(self, log: Path, options: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", DRIVER, "run", str(log), *options],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self._messages.put(json.loads(line))

    def messages(self) -> list[dict[str, Any]]:
        found = []
        while not self._messages.empty():
            found.append(self._messages.get())
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-3_000:]


class Watcher:
    """Follows the query's output in the log itself, past driver and slots."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._log: Log | None = None
        self._reader: CommittedReader | None = None
        self._axis_us: int | None = None  # wall time minus event time of an event
        self._instances: dict[str, int] = {}  # the newest that each vertex was seen with

    def look(self, folder: Path) -> None:
        if self._log is None and not self._open(folder):
            return
        assert self._log is not None
        if self._axis_us is None and not self._find_axis():
            return
        if self._reader is None:
            self._reader = CommittedReader(self._log, describe_stream(self._log, QUERY).tags)
        while (release := self._reader.take()) is not None:
            self._view.rows_out += sum(punit.inspect(each.body).rows for each in release.records)
            marker = decode_marker(release.marker)
            self._see_instance(marker, release.marker.time_us)
            if marker.watermark_us in (WATERMARK_NONE, WATERMARK_END):
                continue
            self._view.watermark_us = max(self._view.watermark_us, marker.watermark_us)
            created_us = marker.watermark_us + DELAY_US + (self._axis_us or 0)
            late_ms = (release.marker.time_us - created_us) / 1e3
            self._view.latencies_ms.append(max(0.0, late_ms))

    def _see_instance(self, marker: Marker, time_us: int) -> None:
        """Note how long it took until one that was killed was followed by the next instance."""
        before = self._instances.get(marker.vertex, marker.instance)
        self._instances[marker.vertex] = marker.instance
        if marker.instance > before and self._view.killed_us is not None:
            dead_s = (time_us - self._view.killed_us) / 1e6
            self._view.note(f"{marker.vertex} commits again, {dead_s:.1f} s after the kill")
            self._view.killed_us = None

    def _open(self, folder: Path) -> bool:
        try:
            self._log = open_log(folder, read_only=True)
        except LogError:
            return False  # the driver has not made it yet
        return True

    def _find_axis(self) -> bool:
        assert self._log is not None
        starts = [self._log.get(key) for key in start_keys(self._log, QUERY)]
        base = self._log.get("demo/base_us")
        if not starts or (start := starts[0]) is None or base is None:
            return False
        self._axis_us = int(start.value) - int(base.value)
        return True


class HotItems:
    """The demo: a script of what happens when, and the loop that carries it out."""

    def __init__(self, log: Path, rate: int, seconds: int) -> None:
        self._folder = log
        self._options = ["--rate", str(rate), "--events", str(rate * seconds)]
        self._view = View(time.monotonic())
        self._screen = Screen()
        self._watcher = Watcher(self._view)
        self._before = {"rows_in": 0, "recoveries": 0}  # what drivers that are dead had counted
        # Seconds of input after which something dies.
        self._script = [
            (seconds * 0.25, self._kill_slot),
            (seconds * 0.45, self._kill_slot),
            (seconds * 0.65, self._kill_driver),
        ]

    def run(self) -> int:
        self._view.note("starting Spark and the query")
        self._driver = Driver(self._folder, self._options)
        try:
            self._follow()
        finally:
            if self._driver.process.poll() is None:
                self._driver.kill()
        self._view.phase = "done"
        self._watcher.look(self._folder)  # what was committed after the last look, too
        self._screen.draw(self._view, last=True)
        return self._judge()

    def _follow(self) -> None:
        running_since_s: float | None = None
        while True:
            for message in self._driver.messages():
                self._hear(message)
                if message["type"] == "ended":
                    self._view.note("the input has ended, and so has the query")
                    return
                if running_since_s is None and self._view.rows_in:
                    running_since_s = time.monotonic()
            if self._driver.process.poll() is not None:
                raise DemoFailed(f"the driver ended by itself:\n{self._driver.errors()}")
            if running_since_s is None:
                if time.monotonic() - self._view.started_s > START_S_MAX:
                    raise DemoFailed(f"the query did not start:\n{self._driver.errors()}")
            elif self._script and time.monotonic() - running_since_s > self._script[0][0]:
                self._script.pop(0)[1]()
            self._watcher.look(self._folder)
            self._screen.draw(self._view)
            time.sleep(FRAME_S)

    def _hear(self, message: dict[str, Any]) -> None:
        view = self._view
        if message["type"] == "status":
            view.phase = "running"
            view.slots = message["slots"]
            view.rows_in = self._before["rows_in"] + message["rows_in"]
            view.rows_rate = message["rows_rate"]
            view.recoveries = self._before["recoveries"] + message["recoveries"]

    def _kill_slot(self) -> None:
        busy = [facts for facts in self._view.slots.values() if facts["vertices"]]
        if not busy:
            raise DemoFailed("there is no slot to kill")
        self._view.killed_us = time.time_ns() // 1_000
        os.kill(busy[0]["pid"], signal.SIGKILL)
        self._view.note(
            f"kill -9 {busy[0]['pid']}: the slot that ran {', '.join(busy[0]['vertices'])}"
        )

    def _kill_driver(self) -> None:
        self._view.note(f"kill -9 {self._driver.process.pid}: the driver, and Spark with it")
        self._view.killed_us = time.time_ns() // 1_000
        self._driver.kill()
        self._note_driver_dead()
        self._screen.draw(self._view)
        self._driver = Driver(self._folder, self._options)

    def _note_driver_dead(self) -> None:
        self._before = {"rows_in": self._view.rows_in, "recoveries": self._view.recoveries}
        self._view.phase = "driver dead, starting another"
        self._view.slots, self._view.rows_rate = {}, 0.0

    def _judge(self) -> int:
        print("comparing with Spark's own batch result over the same rows ...", flush=True)
        judged = subprocess.run(
            [sys.executable, "-m", DRIVER, "judge", str(self._folder), *self._options],
            capture_output=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            timeout=300,
            check=False,
        )
        verdict = [line for line in judged.stdout.decode().splitlines() if line.startswith("{")]
        if not verdict:
            raise DemoFailed(f"the comparison failed:\n{judged.stderr.decode()[-3000:]}")
        facts = json.loads(verdict[-1])
        if facts["missing"] or facts["extra"]:
            print(f"DIFFERENT: {facts['missing']} rows missing, {facts['extra']} rows too many")
            for row in facts["sample"]:
                print(f"  {row}")
            return 1
        print(f"exactly-once verified: {facts['rows']} rows identical")
        return 0
