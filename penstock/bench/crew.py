"""A crew: processes started once, that run the same moment's tasks side by side and answer."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeAlias

# New interpreters, not forks: what a worker knows of a log it has opened by itself.
PROCESSES = multiprocessing.get_context("spawn")
START_LEAD_S = 0.05
ANSWER_S_MAX = 300.0
ENGINE_S_MAX = 3600.0  # for the answer of one that runs whole queries

Task: TypeAlias = Callable[..., Any]


class WorkerFailed(RuntimeError):
    """A worker raised, died or did not answer in time; the message holds what it said."""


class Crew:
    """Some worker processes; a task is a module-level function, called with its start time first.

    The start time is on `time.perf_counter`, which all processes of a machine share, and the same
    for all tasks of a call: `wait_until` it, so that they begin together.
    """

    def __init__(self, workers: int, *, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._answer_s_max = answer_s_max
        self._lines: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for _ in range(workers):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)
        self.run([(_ready,)] * workers)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run each (function, *arguments), one per worker, and return their results in order."""
        assert len(tasks) <= len(self._lines)
        start_s = time.perf_counter() + START_LEAD_S
        for line, (task, *arguments) in zip(self._lines, tasks, strict=False):
            line.send((task, start_s, arguments))
        return [self._answer(line) for line in self._lines[: len(tasks)]]

    def _answer(self, line: Connection) -> Any:
        try:
            if not line.poll(self._answer_s_max):
                raise WorkerFailed(f"a worker gave no answer for {self._answer_s_max} s")
            done, answer = line.recv()
        except EOFError:
            raise WorkerFailed("a worker died before it answered") from None
        if not done:
            raise WorkerFailed(answer)
        return answer

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for line in self._lines:
            line.close()  # a worker ends when nobody is left to ask it
        for process in self._processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def wait_until(moment_s: float) -> None:
    """Sleep until a moment on `time.perf_counter`."""
    while (left_s := moment_s - time.perf_counter()) > 0:
        time.sleep(left_s)


def _work(line: Connection) -> None:
    while True:
        try:
            task, start_s, arguments = line.recv()
        except EOFError:
            return
        try:
            answer = (True, task(start_s, *arguments))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        line.send(answer)


def _ready(start_s: float) -> None:
    del start_s
