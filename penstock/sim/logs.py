"""The log of a simulated run: in memory, or the embedded one in a folder, as each process sees it.

Both are the real code. A process reaches its log through `ProcessLog`, which passes a point before
each call, lets calls fail as the world decides, and notes for the checks what came of them.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.clock import Clock
from penstock.config import KIB, LogConfig
from penstock.errors import LogError, OutcomeUnknown, Trimmed
from penstock.log import local
from penstock.log.contract import Log, LogStatistics, Outcome
from penstock.log.local import LocalLog, open_log
from penstock.log.record import Append, Entry, Fence, Position, Record, Versioned
from penstock.sim.history import History
from penstock.sim.swaps import swapped
from penstock.testing.memory_log import Effect, Fault, MemoryLog, MemoryStore, SimulatedCrash

T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")


class Backend(ABC):
    """One log that the processes of a run share."""

    @abstractmethod
    def open(self, clock: Clock, lagging: bool) -> Log:
        """A handle for a new process."""

    def unseen(self, handle: Log) -> Log:
        """The handle by which an effect takes place whose caller does not get to see it."""
        return handle

    def reveal(self, handle: Log, upto: Position | None) -> None:  # noqa: B027
        """Let a lagging handle see more; all logs but the one in memory show everything."""

    def keep(self) -> None:  # noqa: B027
        """All that is in the log now has reached the disk."""

    def lose_tail(self) -> bool:
        """A power cut takes what came after the last `keep`; return whether this log can do so."""
        return False

    def close(self) -> None:  # noqa: B027
        """Let go of what the log takes up."""


class MemoryBackend(Backend):
    """The log in memory; handles may lag behind it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._kept = self.store.copy()

    def open(self, clock: Clock, lagging: bool) -> Log:
        return MemoryLog(self.store, clock=clock, lagging=lagging)

    def unseen(self, handle: Log) -> Log:
        assert isinstance(handle, MemoryLog)
        return MemoryLog(self.store, clock=handle.clock)

    def reveal(self, handle: Log, upto: Position | None) -> None:
        assert isinstance(handle, MemoryLog)
        handle.reveal(upto)

    def keep(self) -> None:
        self._kept = self.store.copy()

    def lose_tail(self) -> bool:
        self.store = self._kept.copy()
        return True


class EmbeddedBackend(Backend):
    """The embedded log in a folder, with segments and inline bodies so small that all are used.

    A power cut brings the folder back to what it was at the last `keep`, on a machine that was
    started anew. Positions were reserved for far more than a run appends, before the first one.
    """

    def __init__(self, inline_bytes_max: int) -> None:
        parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self._scratch = tempfile.TemporaryDirectory(prefix="penstock-sim-", dir=parent)
        self._config = LogConfig(
            durability="process", inline_bytes_max=inline_bytes_max, segment_bytes_max=4 * KIB
        )
        self._boots = 1
        self._folder = Path(self._scratch.name) / "log1"
        self._kept = Path(self._scratch.name) / "kept"
        self._keeper = self._open(None)  # the log stays open, whoever dies
        self.keep()

    def open(self, clock: Clock, lagging: bool) -> Log:
        return self._open(clock)

    def keep(self) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)
        # The memory that connections share is none of the disk's.
        shutil.copytree(self._folder, self._kept, ignore=shutil.ignore_patterns("*-shm"))

    def lose_tail(self) -> bool:
        self._keeper.close()
        self._boots += 1
        self._folder = self._folder.with_name(f"log{self._boots}")
        shutil.copytree(self._kept, self._folder)
        self._keeper = self._open(None)
        self.keep()
        return True

    def close(self) -> None:
        self._keeper.close()
        self._scratch.cleanup()

    def _open(self, clock: Clock | None) -> LocalLog:
        with swapped((local, "boot_id", lambda: self._boots.to_bytes(16, "big"))):
            return open_log(self._folder, create=True, config=self._config, clock=clock)


class Owner(Protocol):
    """Whose log it is: somebody who may be held up or die at a point."""

    name: str
    holds_lock: bool

    def at(self, where: str) -> None: ...

    def die(self) -> None: ...


class Failing(Protocol):
    """Decides what fails."""

    def of_effect(self, effect: Effect) -> Fault | LogError | None: ...

    def of_read(self, call: str) -> LogError | None: ...


class ProcessLog(Log):
    """The log as one process sees it, up to the moment of its death."""

    def __init__(
        self,
        owner: Owner,
        backend: Backend,
        clock: Clock,
        failing: Failing,
        history: History,
        lagging: bool,
    ) -> None:
        self._owner = owner
        self._backend = backend
        self._failing = failing
        self._history = history
        self.inner = backend.open(clock, lagging)
        self.effects = 0  # that were tried
        if isinstance(self.inner, LocalLog):
            self._watch_bodies(self.inner)

    # Effects ----------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], fence: Fence | None = None) -> tuple[Position, ...]:
        def apply(log: Log) -> tuple[Position, ...]:
            try:
                positions = log.append(entries, fence)
            except Trimmed:
                self._history.trimmed_retries += 1
                raise
            self._history.note_append(entries, positions)
            return positions

        self._owner.at("append")
        positions = self._effect(Effect.APPEND, apply)
        self._owner.at("appended")
        return positions

    def append_each(self, appends: Sequence[Append]) -> list[Outcome]:
        def apply(log: Log) -> list[Outcome]:
            outcomes = log.append_each(appends)
            for append, outcome in zip(appends, outcomes, strict=True):
                if isinstance(outcome, tuple):
                    self._history.note_append(append.entries, outcome)
            return outcomes

        self._owner.at("append")
        outcomes = self._effect(Effect.APPEND, apply)
        self._owner.at("appended")
        return outcomes

    def put(self, key: str, value: bytes) -> int:
        def apply(log: Log) -> int:
            version = log.put(key, value)
            self._history.note_set(key, value)
            return version

        self._owner.at("put")
        return self._effect(Effect.PUT, apply)

    def compare_and_set(self, key: str, version: int, value: bytes) -> bool:
        def apply(log: Log) -> bool:
            done = log.compare_and_set(key, version, value)
            if done:
                self._history.note_set(key, value)
            return done

        self._owner.at("compare_and_set")
        done = self._effect(Effect.COMPARE_AND_SET, apply)
        self._owner.at("registered")
        return done

    def trim(self, tag: str, upto: Position, fence: Fence | None = None) -> None:
        def apply(log: Log) -> None:
            log.trim(tag, upto, fence)
            self._history.note_trim(tag, upto, self._owner.name)

        self._owner.at("trim")
        self._effect(Effect.TRIM, apply)

    def sync(self) -> None:
        self._owner.at("sync")
        self.inner.sync()
        self._backend.keep()
        self._history.keep()
        self._owner.at("synced")

    def forget(self, producers: Collection[str]) -> None:
        self._owner.at("forget")
        self._effect(Effect.FORGET, lambda log: log.forget(producers))

    def _effect(self, effect: Effect, apply: Callable[[Log], T]) -> T:
        self.effects += 1
        fault = self._failing.of_effect(effect)
        if fault is None:
            return apply(self.inner)
        if isinstance(fault, LogError):
            raise fault
        if fault in (Fault.CRASH_AFTER, Fault.UNKNOWN_APPLIED):
            with suppress(LogError):  # refused, perhaps, but the caller never learns that
                apply(self._backend.unseen(self.inner))
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            self._owner.die()
            raise SimulatedCrash(f"{fault.value} {effect.value}")
        raise OutcomeUnknown(
            f"the {effect.value} may or may not have happened: repeat it", effect=effect.value
        )

    # Reads ------------------------------------------------------------------------------------

    def read(
        self,
        tags: Collection[str],
        after: Position,
        limit: int,
        *,
        untrimmed_after: Position | None = None,
    ) -> list[Record]:
        records = self._read(
            "read", lambda: self.inner.read(tags, after, limit, untrimmed_after=untrimmed_after)
        )
        self._owner.at("read done")
        return records

    def last(self, tag: str) -> Record | None:
        return self._read("last", lambda: self.inner.last(tag))

    def trimmed(self, tag: str) -> Position:
        return self._read("trimmed", lambda: self.inner.trimmed(tag))

    def get(self, key: str) -> Versioned | None:
        return self._read("get", lambda: self.inner.get(key))

    def keys(self, prefix: str = "") -> list[str]:
        return self._read("keys", lambda: self.inner.keys(prefix))

    def tail(self) -> Position:
        self._owner.at("tail")  # no log can fail here, so none is made to
        return self.inner.tail()

    def _read(self, call: str, ask: Callable[[], T]) -> T:
        self._owner.at(call)
        error = self._failing.of_read(call)
        if error is not None:
            raise error
        return ask()

    def _watch_bodies(self, log: LocalLog) -> None:
        """Pass a point between the look at the index and the look at each body.

        The handle is locked meanwhile, so other threads of its process wait; other processes go on.
        """
        body = log._reader.body

        def watched(*args: Any, **named: Any) -> memoryview:
            before, self._owner.holds_lock = self._owner.holds_lock, True
            try:
                self._owner.at("body")
            finally:
                self._owner.holds_lock = before
            return body(*args, **named)

        setattr(log._reader, "body", watched)  # noqa: B010 (one handle's, not the class's)

    # The rest ---------------------------------------------------------------------------------

    def wait(self, after: Position, timeout_s: float) -> Position:
        return self.inner.tail()  # time passes only when the world lets it

    def statistics(self) -> LogStatistics:
        return self.inner.statistics()

    def close(self) -> None:
        """Let go of the handle as a process does that has died: nothing is written any more."""
        self.inner.close()

    def reveal(self, upto: Position | None = None) -> None:
        self._backend.reveal(self.inner, upto)
