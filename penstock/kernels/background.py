"""Kernels that another process compiles, so that rows need not wait for them.

The compiler holds Python's lock nearly all the time, so it runs in a process of its own, started
where something is missing, and ends when that is done. What it has compiled it marks in the folder,
where every slot of the machine finds it. Until then Arrow and NumPy do the work.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

from penstock.kernels import coding, dealing, hashing, reference
from penstock.kernels.cache import KernelCache
from penstock.state import tables
from penstock.state.loops import loops_of
from penstock.state.stand_ins import STAND_INS

ATTEMPTS_MAX = 2  # then a kernel is compiled where it is needed, which tells why it could not be
NICENESS = 5  # behind the vertices; the more there is to do, the more its work is worth

Package = Mapping[ModuleType, Mapping[str, Callable[..., Any]]]

# Modules with loops of our own, and what stands in for these.
PACKAGE: Package = MappingProxyType(
    {
        tables: STAND_INS,
        hashing: {"_string_words": reference.string_words, "_mix_in": reference.mix_in},
        dealing: {"_deal": reference.deal},
        coding: {"_code_pieces": reference.code_pieces, "_gather": reference.gather},
    }
)

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from penstock.kernels.background import compile_kernels; compile_kernels(*sys.argv[2:])"
)

logger = logging.getLogger(__name__)


class Compiler(Protocol):
    """A process that compiles."""

    def poll(self) -> int | None: ...


class BackgroundKernels(KernelCache):
    """Kernels that are there once another process has compiled them. For one thread."""

    def __init__(
        self,
        folder: Path | str,
        start: Callable[[Path, Sequence[str]], Compiler] | None = None,
        package: Package = PACKAGE,
    ) -> None:
        super().__init__(folder)
        self._start = start or start_compiler
        self._package = package
        self._compiler: Compiler | None = None
        self._attempts: dict[str, int] = {}  # of what is wanted, by name
        self._given_up: set[str] = set()
        self._sources = {module: inspect.getsource(module) for module in package}
        self._lend_package()

    def get(self, source: str) -> Callable[..., int] | None:
        return self.load(source) if self._may_load(source) else None

    def tend(self) -> bool:
        """Start the compiler if something is missing; return whether something has come."""
        come = [name for name in self._attempts if self.is_compiled(name)]
        is_idle = self._compiler is None or self._compiler.poll() is not None
        if is_idle:
            spent = [name for name, count in self._attempts.items() if count >= ATTEMPTS_MAX]
            self._given_up.update(spent)
            come += spent
        for name in come:
            self._attempts.pop(name, None)
        if is_idle:
            self._begin()
        if come:
            self._lend_package()
        return bool(come)

    def _begin(self) -> None:
        try:
            missing = [name for name in self._attempts if self._is_free(name)]
            missing.sort(key=lambda name: (self.folder / f"{name}.py").stat().st_size)
            if missing:
                logger.info("%d kernels are compiled in the background", len(missing))
                self._compiler = self._start(self.folder, missing)
        except OSError:  # no process, or no folder any more: a slot can do without both
            logger.warning("kernels cannot be compiled in the background", exc_info=True)
            missing = list(self._attempts)
        for name in missing:
            self._attempts[name] += 1

    def _is_free(self, name: str) -> bool:
        """Whether no compiler, of another slot, is at a kernel."""
        with claimed(self.folder, name) as is_free:
            return is_free

    def _may_load(self, source: str) -> bool:
        name = self.name_of(source)
        if self.is_compiled(name) or name in self._given_up:
            return True
        if name not in self._attempts:
            self._write(name, source)
            self._attempts[name] = 0
        return False

    def _lend_package(self) -> None:
        """Let the package's loops be done by machine code from this folder, or by stand-ins."""
        for module, stand_ins in self._package.items():
            source = self._sources[module]
            compiled = vars(self.module(source)) if self._may_load(source) else None
            for loop in loops_of(module):
                loop.use((stand_ins if compiled is None else compiled).get(loop.name))


@contextmanager
def claimed(folder: Path, name: str) -> Iterator[bool]:
    """Whether nobody else compiles a kernel; nobody else will while this lasts.

    A process that dies lets go of what it has claimed.
    """
    with (folder / f"{name}.py").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def start_compiler(folder: Path, names: Sequence[str]) -> Compiler:
    """Compile kernels in another process, which outlives a query that is over sooner."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(folder), *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    # Whoever waits for it leaves no trace of it; this thread does not keep the process alive.
    threading.Thread(target=process.wait, name="penstock-compiler", daemon=True).start()
    return process


def compile_kernels(folder: str, *names: str) -> None:
    """What the compiler does: all that is not done yet and that nobody else is at."""
    os.nice(NICENESS)
    cache = KernelCache(folder)
    for name in names:
        with claimed(cache.folder, name) as is_mine:
            if is_mine and not cache.is_compiled(name):
                source = (cache.folder / f"{name}.py").read_text(encoding="utf-8")
                try:
                    cache.compile_all(source)
                except Exception:  # whatever Numba or the disk raises, the others can be compiled
                    logger.warning("kernel %s could not be compiled", name, exc_info=True)
