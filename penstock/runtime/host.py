"""A host: steps vertices in one thread, over a real log, until their input ends or for ever.

It is what a slot runs, and what a notebook or a unit test uses with no Spark at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import Fenced, LogBusy, LogIOError, OutcomeUnknown, StreamError
from penstock.log.record import START
from penstock.runtime.assembly import Assembly
from penstock.runtime.vertex import Vertex, VertexState, VertexStatistics

WAIT_S = 0.005  # how often a source that had nothing is asked again
RESTARTS_MAX = 5

logger = logging.getLogger(__name__)


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
        assembly.register_streams()
        for name in names:
            self._vertices[name] = assembly.start(name)

    def step(self) -> bool:
        """Step every vertex once, in order; return whether any had work."""
        worked = False
        for name in tuple(self._vertices):
            worked |= self._step_or_recover(name)
        return worked

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until every vertex has ended or been taken over, or `until` says so."""
        while self._is_alive() and not (until is not None and until()):
            if not self.step():
                self._wait()

    def run_available(self) -> None:
        """Process everything that is there now, commit it and return."""
        while self._is_alive():
            worked = self.step()
            if not worked and all(v.is_drained() for v in self._running()):
                return

    def close(self) -> None:
        """Commit what has been done and let the vertices go."""
        for vertex in self._vertices.values():
            try:
                vertex.flush()
            except Fenced:
                logger.warning("vertex %s was taken over before its last commit", vertex.name)
            vertex.close()
        self._vertices.clear()

    def vertex(self, name: str) -> Vertex:
        return self._vertices[name]

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            vertices={name: vertex.statistics() for name, vertex in self._vertices.items()},
            restarts=sum(self._restarts.values()),
            dropped=tuple(self._dropped),
        )

    def _step_or_recover(self, name: str) -> bool:
        """The recovery table: one arm per error that has a cure. No arm means the host fails."""
        try:
            return self._vertices[name].step()
        except Fenced:
            logger.warning("vertex %s was taken over by a newer instance: dropping it here", name)
            self._vertices.pop(name).close()
            self._dropped.append(name)
        except (OutcomeUnknown, LogIOError, LogBusy) as error:
            self._restart(name, error)
        return True

    def _restart(self, name: str, error: StreamError) -> None:
        """Begin again from the last marker, as a new instance; give up if it keeps failing."""
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > RESTARTS_MAX:
            raise error
        logger.warning("vertex %s failed (%s): recovering it from its last marker", name, error)
        self._vertices[name].close()
        self._vertices[name] = self._assembly.start(name)

    def _running(self) -> list[Vertex]:
        return [v for v in self._vertices.values() if v.state is VertexState.RUNNING]

    def _is_alive(self) -> bool:
        return bool(self._running())

    def _wait(self) -> None:
        due = [s for v in self._running() if (s := v.commit_due_in_s()) is not None]
        log = self._assembly.log
        log.wait(log.tail() or START, min([WAIT_S, *due]))
