"""Appends of vertices beside the thread that steps them, so that one's sync holds up no other.

A vertex hands over one append and begins no other until it knows what came of it: so its appends
keep their order, none goes out behind one that failed, and nothing counts before it is durable. One
with state takes no further step until then. Appends of several vertices that wait at the same time
go to the log together and share a sync. Each has its own fence and its own outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from penstock.log.contract import Log, append_surely
from penstock.log.record import START, Append, Position


class PendingAppend:
    """An append that was handed over, and what came of it."""

    __slots__ = ("append", "outcome", "tail")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.tail = START  # of the log, or before it, when this was handed over
        self.outcome: tuple[Position, ...] | Exception | None = None  # None: not known yet


class Appends:
    """Carries out what it is given at once, in the thread of whoever gives it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def serve(self, vertices: int, *, overlaps: bool = False) -> None:
        """Hear how many vertices append from now on; and if one of them works on meanwhile."""

    def begin(self, append: Append) -> PendingAppend:
        """Take an append; its outcome is known later, or already."""
        pending = PendingAppend(append)
        self.carry_out((pending,))
        return pending

    def finish(self, pending: PendingAppend) -> None:
        """Return when the outcome of an append is known."""

    def carry_out(self, group: Sequence[PendingAppend]) -> None:
        """Append all of them, each with an outcome of its own.

        What the log raises about all together may be the fault of one. So each is then appended by
        itself, which changes nothing for those that are in the log already.
        """
        if len(group) > 1:
            with suppress(Exception):
                outcomes = self._log.append_each([pending.append for pending in group])
                for pending, outcome in zip(group, outcomes, strict=True):
                    pending.outcome = outcome
                return
        for pending in group:
            try:
                pending.outcome = append_surely(self._log, *pending.append)
            except Exception as error:  # raised again by whoever waits for it
                pending.outcome = error


class AppendQueue(Appends):
    """What waits to be appended: all but the thread that does it, which is one.

    Whoever calls from several threads brings a lock; `carry_out` runs without it.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._waiting: list[PendingAppend] = []

    def begin(self, append: Append) -> PendingAppend:
        pending = PendingAppend(append)
        self._waiting.append(pending)
        return pending

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def take(self) -> list[PendingAppend]:
        """All that waits, to be carried out together."""
        taken, self._waiting = self._waiting, []
        return taken


class BackgroundAppends(Appends):
    """One thread that appends for all vertices of a host.

    Not for one that is alone there and does nothing else meanwhile: it holds up no other.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._queue = AppendQueue(log)
        self._has_one_user = False
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-append", daemon=True)
        self._thread.start()

    def serve(self, vertices: int, *, overlaps: bool = False) -> None:
        self._has_one_user = vertices == 1 and not overlaps

    def begin(self, append: Append) -> PendingAppend:
        if self._has_one_user:
            return super().begin(append)
        tail = self._log.tail()
        with self._changed:
            pending = self._queue.begin(append)
            pending.tail = tail
            self._changed.notify_all()
        return pending

    def finish(self, pending: PendingAppend) -> None:
        with self._changed:
            self._changed.wait_for(lambda: pending.outcome is not None)

    def close(self) -> None:
        """Carry out what waits, and stop."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next():
            self.carry_out(group)
            with self._changed:
                self._changed.notify_all()
            del group  # while this waits for the next: it may have 64 MiB of bodies

    def _next(self) -> list[PendingAppend]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue.has_waiting or self._is_closed)
            return self._queue.take()
