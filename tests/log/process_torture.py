"""The torturer: starts writers, readers and a trimmer, kills and stops them, then calls the judge.

python -m tests.log.process_torture --minutes 5 [--seed N] [--keep DIR]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from penstock.config import Durability, LogConfig
from penstock.log import open_log
from penstock.log.blockers import blockers
from tests.log import process_roles as roles

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0  # a bound on waiting for a process, not a measurement
# Each process is forked from a server that has imported the log and never opened one.
PROCESSES = multiprocessing.get_context("forkserver")


@dataclass
class Outcome:
    """What was done to the processes, and what the judge said."""

    seed: int
    done: Counter[str] = field(default_factory=Counter)
    verdict: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class Torture:
    """One log and the processes on it."""

    def __init__(self, folder: Path, level: Durability, seed: int) -> None:
        PROCESSES.set_forkserver_preload(["penstock.log"])
        self.log_folder = folder / "log"
        self.side = folder / "side"
        self.side.mkdir()
        self.outcome = Outcome(seed)
        self._seed = seed
        self._chance = random.Random(seed)
        self._count = 0
        self._writers: dict[str, tuple[str, BaseProcess]] = {}  # vertex → name, process
        self._readers: dict[str, BaseProcess] = {}
        config = LogConfig(durability=level)
        open_log(self.log_folder, create=True, config=config).close()

    def run(self, seconds: float) -> Outcome:
        """Torture for some time, let everybody finish, and judge."""
        try:
            for vertex in roles.VERTICES:
                self._start_writer(vertex, None)
            for name in ("a", "b", "trim"):
                self._start_reader(name)
            self._go_on(time.monotonic() + seconds)
            self._finish()
        finally:
            self._kill_all()
        self.outcome.errors += [path.read_text() for path in sorted(self.side.glob("error-*"))]
        if not self.outcome.errors:
            self.outcome.verdict = judge(self.log_folder, self.side)
        return self.outcome

    def _go_on(self, end_s: float) -> None:
        torments: list[Callable[[], None]] = [
            *[self._kill_writer] * 6,
            self._kill_reader,
            self._make_zombie,
            self._freeze,
        ]
        # Each once in a fixed order first, so that even a short run has them all.
        first = [self._make_zombie, self._kill_writer, self._kill_reader, self._freeze]
        while first or time.monotonic() < end_s:
            self._wait_for_acks(self._chance.randint(1, 3))
            time.sleep(self._chance.random() * 0.15)
            (first.pop(0) if first else self._chance.choice(torments))()
            self._look_for_deaths()

    def _start_writer(self, vertex: str, before: str | None) -> None:
        self._count += 1
        name = f"{vertex}-{self._count:05d}"
        process = self._start(roles.write, name, self.log_folder, vertex, before, self._seed)
        self._writers[vertex] = (name, process)

    def _start_reader(self, name: str) -> None:
        if name == "trim":
            self._readers[name] = self._start(roles.trim, name, self.log_folder)
        else:
            read_only = name == "b"
            self._readers[name] = self._start(roles.read, name, self.log_folder, read_only)

    def _start(self, role: Callable[..., None], name: str, *arguments: object) -> BaseProcess:
        process = PROCESSES.Process(
            target=roles.run_role, args=(role, self.side, name, *arguments), daemon=True
        )
        process.start()
        return process

    def _kill_writer(self) -> None:
        vertex = self._chance.choice(roles.VERTICES)
        name, process = self._writers[vertex]
        kill(process)
        self.outcome.done["writers killed"] += 1
        self._start_writer(vertex, name)

    def _kill_reader(self) -> None:
        name = self._chance.choice(sorted(self._readers))
        kill(self._readers[name])
        self.outcome.done["readers killed"] += 1
        self._start_reader(name)

    def _make_zombie(self) -> None:
        """Stop a writer, let another take over, and wake the first: it must notice."""
        vertex = self._chance.choice(roles.VERTICES)
        name, process = self._writers[vertex]
        self._stop_without_locks(name, process)
        self._start_writer(vertex, name)
        self._wait_for_acks(1, vertex)
        os.kill(pid_of(process), signal.SIGCONT)
        process.join(PATIENCE_S)
        if process.exitcode != roles.EXIT_FENCED:
            self.outcome.errors.append(f"zombie {name} ended with {process.exitcode}")
        self.outcome.done["zombies fenced"] += 1

    def _stop_without_locks(self, name: str, process: BaseProcess) -> None:
        """A writer stops between two appends, but its fold may hold the lock that all need."""
        pause = self.side / f"pause-{name}"
        while True:
            pause.touch()
            wait_for(lambda: not pause.exists() and is_stopped(process), f"{name} to stop")
            if pid_of(process) not in blockers(self.log_folder):
                return
            os.kill(pid_of(process), signal.SIGCONT)
            wait_for(lambda: not is_stopped(process), f"{name} to go on")

    def _freeze(self) -> None:
        """Stop a writer wherever it is, for less than the others' patience."""
        _, process = self._writers[self._chance.choice(roles.VERTICES)]
        os.kill(pid_of(process), signal.SIGSTOP)
        time.sleep(self._chance.random() * 0.3)
        os.kill(pid_of(process), signal.SIGCONT)
        self.outcome.done["writers frozen"] += 1

    def _wait_for_acks(self, more: int, only: str | None = None) -> None:
        """Let a writer do something first: a process killed at its start shows little."""
        vertex = only or self._chance.choice(roles.VERTICES)
        name, process = self._writers[vertex]
        path = self.side / f"writer-{name}"
        wait_for(lambda: acks(path) >= more or not process.is_alive(), f"{name} to append")

    def _look_for_deaths(self) -> None:
        for name, process in [*self._writers.values(), *self._readers.items()]:
            if process.exitcode is not None:
                raise AssertionError(f"{name} ended with {process.exitcode}: {self._why(name)}")

    def _why(self, name: str) -> str:
        path = self.side / f"error-{name}"
        return path.read_text() if path.exists() else "no error was left"

    def _finish(self) -> None:
        # Some die at the very end, with nobody to retry for them.
        _, process = self._writers[roles.VERTICES[0]]
        kill(process)
        self.outcome.done["writers killed"] += 1
        del self._writers[roles.VERTICES[0]]
        (self.side / roles.STOP_WRITING).touch()
        self._join([process for _, process in self._writers.values()])
        self._recover()
        (self.side / roles.STOP_READING).touch()
        self._join(list(self._readers.values()))

    def _recover(self) -> None:
        """Open the log once, as the next writer would: it shows what the killed one committed."""
        open_log(self.log_folder).close()

    def _join(self, processes: list[BaseProcess]) -> None:
        for process in processes:
            process.join(PATIENCE_S)
            if process.exitcode != 0:
                self.outcome.errors.append(f"a process ended with {process.exitcode}")

    def _kill_all(self) -> None:
        for process in [p for _, p in self._writers.values()] + list(self._readers.values()):
            if process.is_alive():
                kill(process)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join(PATIENCE_S)
    assert process.exitcode is not None


def pid_of(process: BaseProcess) -> int:
    assert process.pid is not None
    return process.pid


def is_stopped(process: BaseProcess) -> bool:
    stat = Path(f"/proc/{pid_of(process)}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def acks(path: Path) -> int:
    return sum(line.startswith("ack ") for line in roles.SideFile.lines(path))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.002)


def judge(log_folder: Path, side: Path) -> dict[str, Any]:
    """Run the checker in a process of its own and return its verdict."""
    command = [sys.executable, "-m", "tests.log.process_checker", str(log_folder), str(side)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill processes of a log, and check the log.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", type=Path, help="make the logs in this folder and keep them")
    args = parser.parse_args()
    end_s = time.monotonic() + args.minutes * 60
    seed = args.seed
    while time.monotonic() < end_s:
        for level in ("synced", "process"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) if args.keep is None else args.keep / f"{level}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                outcome = Torture(folder, level, seed).run(20.0)  # type: ignore[arg-type]
            print(level, f"seed {seed}", dict(outcome.done), outcome.verdict, flush=True)
            if outcome.errors or outcome.verdict["findings"]:
                print("\n".join(outcome.errors))
                return 1
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
