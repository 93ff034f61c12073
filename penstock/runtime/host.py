"""A host: steps vertices in one thread, over a real log, until their input ends or for ever.

It is what a slot runs, and what a notebook or a unit test uses with no Spark at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import Fenced, LogBusy, LogIOError, OutcomeUnknown, StreamError
from penstock.log.record import START
from penstock.runtime.assembly import Assembly
from penstock.runtime.vertex import Vertex, VertexState, VertexStatistics

WAIT_S = 0.005  # how often a source that had nothing is asked again
RESTARTS_MAX = 5

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """What the host's vertices have done, by name."""

    vertices: dict[str, VertexStatistics]
    restarts: int
    dropped: tuple[str, ...]  # taken over by another process


class Host:
    """Vertices of one program that live in this thread."""

    def __init__(self, assembly: Assembly, vertices: Iterable[str] | None = None) -> None:
        self._assembly = assembly
        names = [v.name for v in assembly.program.vertices] if vertices is None else list(vertices)
        self._vertices: dict[str, Vertex] = {}
        self._restarts: dict[str, int] = {}
        self._dropped: list[str] = []
        self._failures: list[tuple[str, StreamError]] = []
        self._tail = START  # of the log, when the last step began
        if names:
            assembly.register_streams()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Recover a vertex here and step it from now on."""
        self._vertices[name] = self._assembly.start(name)

    def remove(self, name: str) -> None:
        """Commit what a vertex has done and let it go."""
        self._let_go(self._vertices.pop(name))

    def is_empty(self) -> bool:
        return not self._vertices

    def step(self) -> bool:
        """Step every vertex once, in order; return whether any had work."""
        worked = False
        self._tail = self._assembly.log.tail()
        for name in tuple(self._vertices):
            worked |= self._do_or_recover(name, Vertex.step)
        return worked

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until every vertex has ended or been taken over, or `until` says so."""
        while self._is_alive() and not (until is not None and until()):
            if not self.step():
                self.wait()
            self._raise_failure()

    def run_available(self) -> None:
        """Process everything that is there now, commit it and return."""
        while self._is_alive():
            worked = self.step()
            self._raise_failure()
            if worked:
                continue
            waiting = [v.name for v in self._running() if not v.is_drained()]
            if not waiting:
                return
            for name in waiting:  # not when its next commit is due by the clock, but now
                self._do_or_recover(name, Vertex.flush)

    def close(self) -> None:
        """Commit what has been done and let the vertices go."""
        for name in tuple(self._vertices):
            self.remove(name)

    def abandon(self) -> None:
        """Let the vertices go without committing; what they have not committed is forgotten."""
        while self._vertices:
            self._vertices.popitem()[1].close()

    def _let_go(self, vertex: Vertex) -> None:
        try:
            vertex.flush()
        except Fenced:
            logger.warning("vertex %s was taken over before its last commit", vertex.name)
            self._dropped.append(vertex.name)
        finally:
            vertex.close()

    def vertex(self, name: str) -> Vertex:
        return self._vertices[name]

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            vertices={name: vertex.statistics() for name, vertex in self._vertices.items()},
            restarts=sum(self._restarts.values()),
            dropped=tuple(self._dropped),
        )

    def take_failures(self) -> list[tuple[str, StreamError]]:
        """Vertices that failed for good since the last call, and why; they are no longer here."""
        failures, self._failures = self._failures, []
        return failures

    def take_dropped(self) -> list[str]:
        """Vertices that another process took over since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def wait(self) -> None:
        """Sleep until the log grows, a commit is due or a source may have more.

        What the log has gained since the last step began may be input that the step did not see:
        then there is no sleep.
        """
        due = [s for v in self._running() if (s := v.commit_due_in_s()) is not None]
        self._assembly.log.wait(self._tail, min([WAIT_S, *due]))

    def _do_or_recover(self, name: str, action: Callable[[Vertex], T]) -> T | bool:
        """The recovery table: one arm per kind of error. What has no arm is a bug."""
        try:
            return action(self._vertices[name])
        except Fenced:
            logger.warning("vertex %s was taken over by a newer instance: dropping it here", name)
            self._vertices.pop(name).close()
            self._dropped.append(name)
        except (OutcomeUnknown, LogIOError, LogBusy) as error:
            self._restart(name, error)
        except StreamError as error:
            self._give_up(name, error)
        return True

    def _restart(self, name: str, error: StreamError) -> None:
        """Begin again from the last marker, as a new instance; give up if it keeps failing."""
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > RESTARTS_MAX:
            self._give_up(name, error)
            return
        logger.warning("vertex %s failed (%s): recovering it from its last marker", name, error)
        self._vertices[name].close()
        self._vertices[name] = self._assembly.start(name)

    def _running(self) -> list[Vertex]:
        return [v for v in self._vertices.values() if v.state is VertexState.RUNNING]

    def _is_alive(self) -> bool:
        return bool(self._running())

    def _give_up(self, name: str, error: StreamError) -> None:
        self._vertices.pop(name).close()
        self._failures.append((name, error))

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0][1]
