"""What processes take of the machine: processor time and memory, as Linux counts them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SAMPLE_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
_GONE = (FileNotFoundError, ProcessLookupError)


def cpu_s(processes: Iterable[int]) -> float:
    """Processor time that some processes have used so far."""
    return sum(_each_cpu_s(processes).values())


class FamilyCpu:
    """Processor time of a process and its family from now on.

    Counted by process: one that ends takes with it what it used before, too, which no parent is
    told of if it does not ask.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = _each_cpu_s(family(pid))

    def used_s(self, of: Callable[[int], bool] = lambda _: True) -> float:
        """What was used meanwhile by those that are still there, and that `of` is true of."""
        now = _each_cpu_s(filter(of, family(self._pid)))
        return sum(used_s - self._before.get(pid, 0.0) for pid, used_s in now.items())


def _each_cpu_s(processes: Iterable[int]) -> dict[int, float]:
    used = {}
    for pid in processes:
        with suppress(*_GONE):
            used[pid] = sum(int(word) for word in _stat(pid)[11:13]) / _TICKS_PER_S
    return used


def family(pid: int) -> list[int]:
    """A process, its children, theirs and so on."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(*_GONE):
                children.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found


def command(pid: int) -> str:
    """What a process runs, as the kernel calls it; nothing if it is gone."""
    with suppress(*_GONE):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""


def _stat(pid: int) -> list[str]:
    """The words of /proc/PID/stat behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()


class MemoryPeak:
    """Looks ten times a second how much memory a process and its family have for themselves."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-peak", daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.mb = max(self.mb, sum(_own_mb(pid) for pid in family(self._pid)))


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process has resident, and the same with what is shared divided among its sharers."""

    resident_mb: float
    divided_mb: float


def memory(pid: int) -> Memory:
    """What a process of this user has in memory now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return Memory(kib["Rss"] * 1024 / 1e6, kib["Pss"] * 1024 / 1e6)


def _own_mb(pid: int) -> float:
    """Resident memory without pages of files, which the machine could drop."""
    with suppress(*_GONE):
        words = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return (int(words[1]) - int(words[2])) * _PAGE_MB
    return 0.0
