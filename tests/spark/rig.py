"""What the tests hold in their hands: driver processes, and judges of what these committed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.log import open_log
from penstock.runtime.sources import start_keys
from tests.spark.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]
ANSWER_S_MAX = 110.0


class Refused(Exception):
    """A command ended in one of Penstock's errors."""

    def __init__(self, error: str, message: str, details: dict[str, str]) -> None:
        super().__init__(f"[{error}] {message}")
        self.error, self.message, self.details = error, message, details


class DriverProcess:
    """A driver in a process of its own, and its log."""

    def __init__(self, master: str, log: Path, kernels: Path, errors: Path) -> None:
        self.log = log
        kernels.mkdir(parents=True, exist_ok=True)
        self._errors = errors.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", master, str(log), str(kernels)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> DriverProcess:
        assert self._line() == "ready"
        return self

    def ask(self, command: str, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        if "error" in answer:
            raise Refused(answer["error"], answer["message"], answer["details"])
        return answer["value"]

    def kill(self) -> None:
        """End the driver as a power cut of its machine would: it can do nothing about it."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it if it still runs; the JVM and the slots end with it."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    # What tests do again and again ------------------------------------------------------------

    def start(self, name: str, kind: str, events: int, rate: float, **more: Any) -> dict[str, Any]:
        """Start a query and wait until all its vertices run."""
        facts: dict[str, Any] = self.ask(
            "start", name=name, kind=kind, events=events, rate=rate, **more
        )
        assert self.ask("wait_running", name=name)
        return facts

    def working_pids(self, name: str) -> list[int]:
        return [pid for pid, vertices in self.ask("slots", name=name) if vertices]

    def wait_standby(self, name: str) -> None:
        wait_for("a standby", lambda: self.ask("standbys", name=name) or self.over(name))

    def wait_recovered(self, name: str, pid: int) -> dict[str, Any]:
        """Wait until the vertices of a lost process run elsewhere; return the recovery."""

        def recovered() -> dict[str, Any] | None:
            known = [each for each in self.ask("recoveries", name=name) if each["pid"] == pid]
            return known[0] if known and known[0]["started"] else None

        return wait_for("the recovery", recovered)

    def wait_commits(self, name: str) -> None:
        """Wait until every vertex has committed something new, or the query is over."""
        before = self.ask("epochs", name=name)
        wait_for(
            "commits",
            lambda: (
                self.over(name)
                or all(e > before.get(v, 0) for v, e in self.ask("epochs", name=name).items())
            ),
        )

    def over(self, name: str) -> bool:
        return bool(self.ask("is_over", name=name)["over"])

    def wait_end(self, name: str) -> None:
        """Wait until a query has ended by itself, without an error."""
        wait_for("the end of the query", lambda: self.over(name), PATIENCE_S)
        assert self.ask("is_over", name=name)["error"] is None

    def _line(self) -> str:
        """The next answer; what Spark and sinks print is passed over."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + ANSWER_S_MAX
        while True:
            while (end := self._pending.find(b"\n")) >= 0:
                line, self._pending = self._pending[:end], self._pending[end + 1 :]
                if line.startswith(b"@"):
                    return line[1:].decode()
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, "the driver gave no answer"
            if select.select([self._process.stdout], [], [], left_s)[0]:
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                assert piece, f"the driver has ended with {self._process.wait()}"
                self._pending += piece


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def hurry(folder: Path, *queries: str) -> None:
    """Let the rest of paced queries' input be there at once, from their next start on."""
    with open_log(folder) as log:
        for name in queries:
            for key in start_keys(log, name):
                log.put(key, b"0")


def verify(place: Path, stream: str, kind: str, events: int, rate: float) -> dict[str, Any]:
    """Have the committed rows judged by another process; return what it says."""
    judged = subprocess.run(
        [sys.executable, "-m", "tests.spark.verifier", str(place), stream, kind, str(events),
         str(rate)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout + judged.stderr
    verdict: dict[str, Any] = json.loads(judged.stdout)
    assert verdict["rows"] > 0
    return verdict
