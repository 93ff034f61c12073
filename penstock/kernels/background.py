"""Kernels that another process compiles, so that rows need not wait for them.

The compiler holds Python's lock nearly all the time, so it runs in a process of its own. What
somebody needs he wishes for in the folder; one process, for all slots that use the folder, makes
wishes come true until none has come for a while, and ends. Until then Arrow and NumPy do the work.
Where they cannot, rows wait; their wish says so, and comes first.

compiler.lock             held by the compiler for as long as it lives, and by nobody else
k_<hash>.wanted           the wish for a module with a kernel
k_<hash>.<loop>.wanted    for one loop of a module of the package
r_<hash>.<what>.wanted    for the functions of a generator, see `connectors.rehearsals`
….trying                  how often a compiler began with it lately and did not come back
….compiled                it has come true
compiler.err              what the last compiler had to complain about
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
import time
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from penstock.clock import SystemClock
from penstock.connectors import line_kernels, line_stand_ins, text_kernels
from penstock.connectors.rehearsals import REHEARSALS, rehearsed_source
from penstock.expressions import json_kernels, json_values
from penstock.kernels import coding, dealing, hashing, loop_stand_ins
from penstock.kernels.cache import KernelCache
from penstock.log.codecs import kernels as codec_kernels
from penstock.log.codecs.stand_ins import STAND_INS as CODEC_STAND_INS
from penstock.loops import Loop, loops_of
from penstock.state import row_index, tables
from penstock.state.stand_ins import STAND_INS

ATTEMPTS_MAX = 3  # then it stays with Arrow and NumPy
LAPSES_S = 3600.0  # until one is not held against a kernel: it may have had nothing to do with it
NICENESS = 5  # behind the vertices, with what only makes them faster by a little
WAIT_S_MAX = 30.0  # for what nothing stands in for; a compiler that was stopped never ends
POLL_S = 0.01
LINGER_S = 10.0  # a compiler that has nothing to do: to start the next one costs a second

Package = Mapping[ModuleType, Mapping[str, Callable[..., Any]]]

# Modules with loops of our own, and what stands in for these. A stand-in that cannot do what it is
# asked for returns NotImplemented: then rows wait for the loop.
PACKAGE: Package = MappingProxyType(
    {
        tables: STAND_INS,
        row_index: {},  # rows of joins wait for it
        hashing: {"_string_words": loop_stand_ins.string_words, "_mix_in": loop_stand_ins.mix_in},
        dealing: {"_deal": loop_stand_ins.deal},
        coding: {"_code_pieces": loop_stand_ins.code_pieces, "_gather": loop_stand_ins.gather},
        line_kernels: line_stand_ins.LINES,
        text_kernels: line_stand_ins.TEXTS,
        json_kernels: {"find_values": json_values.left_to_others},
        codec_kernels: CODEC_STAND_INS,
    }
)
_AWAITED = b"rows wait"  # what a wish says

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from penstock.kernels.background import compile_wishes; compile_wishes(*sys.argv[2:])"
)

logger = logging.getLogger(__name__)


class BackgroundKernels(KernelCache):
    """Kernels that are there once another process has compiled them.

    For one thread; but loops of the package may be called, and then waited for, by others.
    """

    def __init__(
        self,
        folder: Path | str,
        start: Callable[[Path, int], None] | None = None,
        package: Package = PACKAGE,
    ) -> None:
        """`start` begins a compiler, which keeps the open lock that it is given until it ends."""
        super().__init__(folder)
        self._start = start or start_compiler
        self._package = package
        self._attempts: dict[str, int] = {}  # of what is wanted
        self._given_up: set[str] = set()
        self._lend_package()

    def get(self, source: str) -> Callable[..., int] | None:
        name = self.name_of(source)
        if self.is_compiled(name):
            return self.load(source)
        self._want(name, source)
        return None

    def tend(self) -> bool:
        """Start the compiler if something is missing; return whether something has come."""
        come = [unit for unit in list(self._attempts) if self.is_compiled(unit)]
        for unit in come:
            del self._attempts[unit]
        if self._attempts:
            self._compile_missing()
        if come:
            self._lend_package()
        return bool(come)

    def rehearse(self, names: Iterable[str]) -> None:
        """Wait until another process has compiled what nothing stands in for."""
        units = [rehearsal_unit(name) for name in names]
        for unit in units:
            self._want(unit)
        self._wait_for(units)

    def _wait_for(self, units: Iterable[str]) -> None:
        """Wait for what nothing stands in for, while there is hope that it comes."""
        end_s = time.monotonic() + WAIT_S_MAX
        missing = [unit for unit in units if unit in self._attempts]
        for unit in missing:
            with suppress(OSError):
                _wish_path(self.folder, unit).write_bytes(_AWAITED)
        while missing and time.monotonic() < end_s:
            self._compile_missing()
            time.sleep(POLL_S)
            missing = [u for u in missing if u in self._attempts and not self.is_compiled(u)]

    def _want(self, unit: str, source: str | None = None) -> None:
        """Wish for what is not compiled, if there is source for it."""
        if unit in self._attempts or unit in self._given_up or self.is_compiled(unit):
            return
        try:
            if source is not None:
                self._write(self.name_of(source), source)
            _wish_path(self.folder, unit).touch()
        except OSError:  # nobody can compile it for us, and a slot can do without
            logger.warning("kernel %s cannot be wished for", unit, exc_info=True)
            self._given_up.add(unit)
        else:
            self._attempts[unit] = 0

    def _compile_missing(self) -> None:
        """Start a compiler unless one is at work, for what was not tried too often."""
        _unless_at_work(self.folder, self._start_for_missing)

    def _start_for_missing(self, folder: Path, lock: int) -> None:
        missing = [unit for unit in list(self._attempts) if not self.is_compiled(unit)]
        tries = {unit: max(self._attempts[unit], _tries(folder, unit)) for unit in missing}
        self._give_up([unit for unit in missing if tries[unit] >= ATTEMPTS_MAX])
        missing = [unit for unit in missing if unit in self._attempts]
        for unit in missing:
            self._attempts[unit] += 1
            _wish_path(folder, unit).touch()
        if missing:
            self._start(folder, lock)

    def _give_up(self, units: Iterable[str]) -> None:
        for unit in units:
            logger.warning("kernel %s could not be compiled: Arrow and NumPy do its work", unit)
            del self._attempts[unit]
            self._given_up.add(unit)
            with suppress(OSError):
                _wish_path(self.folder, unit).unlink(missing_ok=True)

    def _lend_package(self) -> None:
        """Let the package's loops be done by machine code, or by stand-ins that wish for it."""
        for module, stand_ins in self._package.items():
            for loop in loops_of(module):
                if loop.has_machine_code:  # rows had waited for it in vain: not again
                    loop.use(None)
                elif self.is_compiled(_unit(module, loop)):
                    self._lend(module, loop)
                else:
                    loop.use(self._until_compiled(module, loop, stand_ins.get(loop.name)))

    def _until_compiled(
        self, module: ModuleType, loop: Loop, stand_in: Callable[..., Any] | None
    ) -> Callable[..., Any]:
        """What wishes for a loop when it is first called: most programs need few of them."""
        unit = _unit(module, loop)

        def wait_and_run(*arguments: Any) -> Any:
            self._wait_for([unit])
            self._lend(module, loop) if self.is_compiled(unit) else loop.use(None)
            return loop(*arguments)

        def stand_in_or_wait(*arguments: Any) -> Any:
            result = NotImplemented if stand_in is None else stand_in(*arguments)
            return wait_and_run(*arguments) if result is NotImplemented else result

        def wish_and_run(*arguments: Any) -> Any:
            loop.use(stand_in_or_wait)  # first: machine code that comes must not be replaced
            self._want(unit, _source_of(module))
            if self.is_compiled(unit):  # by another process, a moment ago
                self._lend(module, loop)
            return loop(*arguments)

        return wish_and_run

    def _lend(self, module: ModuleType, loop: Loop) -> None:
        loop.use(getattr(self.module(_source_of(module)), loop.name))


def _wish_path(folder: Path, unit: str) -> Path:
    return folder / f"{unit}.wanted"


def _trying_path(folder: Path, unit: str) -> Path:
    return folder / f"{unit}.trying"


def _tries(folder: Path, unit: str) -> int:
    """How often a compiler has begun with it lately and not come back, by the size of a file."""
    try:
        trying = _trying_path(folder, unit).stat()
    except FileNotFoundError:
        return 0
    age_s = SystemClock().now_us() / 1e6 - trying.st_mtime
    return trying.st_size if abs(age_s) < LAPSES_S else 0


@cache
def _source_of(module: ModuleType) -> str:
    return inspect.getsource(module)


@cache
def _name_of(module: ModuleType) -> str:
    return KernelCache.name_of(_source_of(module))


def _unit(module: ModuleType, loop: Loop) -> str:
    return f"{_name_of(module)}.{loop.name}"


@cache
def rehearsal_unit(name: str) -> str:
    """What a rehearsal is called in a folder of kernels."""
    return f"r_{KernelCache.content_hash(rehearsed_source())}.{name}"


def _unless_at_work(folder: Path, start: Callable[[Path, int], None]) -> None:
    """Call `start` with the lock of the compiler, unless one has it and will see all wishes."""
    try:
        lock = os.open(folder / "compiler.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            start(folder, lock)
        finally:
            os.close(lock)
    except BlockingIOError:
        pass
    except OSError:  # no process, or no folder any more: a slot can do without both
        logger.warning("kernels cannot be compiled in the background", exc_info=True)


def is_compiling(folder: Path) -> bool:
    """Whether a compiler is at work."""
    is_free: list[bool] = []
    _unless_at_work(folder, lambda folder, lock: is_free.append(True))
    return not is_free


def start_compiler(folder: Path, lock: int) -> None:
    """Make wishes come true in another process, which outlives a query that is over sooner."""
    # It has no file in common with this process: whoever reads our errors to their end would wait
    # for the compiler's. What interrupts us is not meant for it either.
    with open(folder / "compiler.err", "wb", opener=_private) as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            pass_fds=(lock,),  # the lock is let go of when the process ends, however it does
        )
    # Whoever waits for it leaves no trace of it; this thread does not keep the process alive.
    threading.Thread(target=process.wait, name="penstock-compiler", daemon=True).start()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def expect_wishes(folder: Path | str) -> None:
    """Start a compiler before there are wishes, where nobody has compiled anything yet."""
    kernels = KernelCache(folder)
    units = [_unit(module, loop) for module in PACKAGE for loop in loops_of(module)]
    if not any(kernels.is_compiled(unit) for unit in units):
        _unless_at_work(kernels.folder, start_compiler)


class _OthersKernels(BackgroundKernels):
    """Wishes for kernels on behalf of other processes, and loads none."""

    def get(self, source: str) -> None:
        self._want(self.name_of(source), source)


def wish_for_others(folder: Path | str, ask: Callable[[KernelCache], object]) -> None:
    """Wish for the kernels that `ask` asks for, before the processes that need them are there."""
    kernels = _OthersKernels(folder, package={})
    ask(kernels)
    kernels.tend()


class _Wish(NamedTuple):
    """What somebody wants; the smallest comes true first."""

    tries: int  # what has ended a compiler comes behind all others
    can_wait: bool  # no row waits for it
    is_loop: bool  # of the package; all rows go through kernels of programs, five times as fast
    since_ns: int
    unit: str

    @property
    def is_urgent(self) -> bool:
        """Whether it takes its share of the processors."""
        return not (self.can_wait and self.is_loop)


def compile_wishes(folder: str, linger_s: float = LINGER_S) -> None:
    """What the compiler does: all that is wanted, until nothing more has been for a while."""
    kernels, seen = KernelCache(folder), set[str]()
    for module in PACKAGE:
        kernels.module(_source_of(module))  # so that its text is there
    # Of a thread, as on Linux: a process that was nice once could not be otherwise any more.
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICENESS,)) as nicely:
        while (wish := _next_wish(kernels, seen, linger_s)) is not None:
            seen.add(wish.unit)
            if wish.is_urgent:
                has_failed = not _fulfil(kernels, wish)
            else:
                has_failed = not nicely.submit(_fulfil, kernels, wish).result()
            if has_failed:
                linger_s = 0.0  # another process may have more luck, and somebody may wait for it


def _next_wish(kernels: KernelCache, seen: Set[str], wait_s: float) -> _Wish | None:
    """What to compile next, once there is something; None: nothing has come for so long."""
    end_s = time.monotonic() + wait_s
    while True:
        wishes = [_read_wish(kernels.folder, unit) for unit in wanted(kernels) if unit not in seen]
        if found := [wish for wish in wishes if wish is not None]:
            return min(found)
        if time.monotonic() >= end_s:
            return None
        time.sleep(POLL_S)


def _read_wish(folder: Path, unit: str) -> _Wish | None:
    try:
        wish = _wish_path(folder, unit).stat()
    except FileNotFoundError:  # somebody has given it up
        return None
    return _Wish(_tries(folder, unit), not wish.st_size, "." in unit, wish.st_mtime_ns, unit)


def _fulfil(kernels: KernelCache, wish: _Wish) -> bool:
    """Compile what is wanted, if it has not ended too many compilers; return False if it fails."""
    path, trying = _wish_path(kernels.folder, wish.unit), _trying_path(kernels.folder, wish.unit)
    if wish.tries >= ATTEMPTS_MAX:
        logger.warning("kernel %s ended the compiler %d times: not again", wish.unit, wish.tries)
        path.unlink(missing_ok=True)
        return True
    try:
        trying.write_bytes(b"." * (wish.tries + 1))
        if compile_unit(kernels, wish.unit):
            path.unlink(missing_ok=True)
        trying.unlink(missing_ok=True)
    except Exception:  # whatever Numba or the disk raises, the others can be compiled
        logger.warning("kernel %s could not be compiled", wish.unit, exc_info=True)
        with suppress(OSError):
            trying.unlink(missing_ok=True)
        return False
    return True


def compile_unit(kernels: KernelCache, unit: str) -> bool:
    """Compile what a wish is for; return whether it was of this machine and version."""
    module, _, part = unit.partition(".")
    if part in REHEARSALS:
        if unit != rehearsal_unit(part):
            return False
        REHEARSALS[part]()
    else:
        source = (kernels.folder / f"{module}.py").read_text(encoding="utf-8")
        if module != kernels.name_of(source):
            return False
        compiled = kernels.module(source)
        if part:
            _ = getattr(compiled, part).machine_code
    kernels.mark_compiled(unit)
    return True


def compile_package(kernels: KernelCache, package: Package = PACKAGE) -> int:
    """Compile here all that a program may need of the package; return how much was missing."""
    units = [rehearsal_unit(name) for name in (REHEARSALS if package is PACKAGE else ())]
    for module in package:
        kernels.module(_source_of(module))
        units += [_unit(module, loop) for loop in loops_of(module)]
    missing = [unit for unit in units if not kernels.is_compiled(unit)]
    return sum(compile_unit(kernels, unit) for unit in missing)


def wanted(kernels: KernelCache) -> list[str]:
    """Wishes that have not come true."""
    wishes = [path.name.removesuffix(".wanted") for path in kernels.folder.glob("*.wanted")]
    return [unit for unit in wishes if not kernels.is_compiled(unit)]
