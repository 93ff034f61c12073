"""A standalone host: one without a job, that hands out instance numbers to itself.

Notebooks, unit tests and benchmarks run programs with it, with no Spark at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.errors import StreamError
from penstock.runtime.assembly import Assembly
from penstock.runtime.host import Host, HostStatistics
from penstock.runtime.instances import InstanceNumbers
from penstock.runtime.recently import Recently
from penstock.runtime.vertex import Vertex

RESTARTS_MAX = 5  # of a vertex within the time below: what fails so often will not go away
RESTARTS_S = 60.0

logger = logging.getLogger(__name__)


class StandaloneHost(Host):
    """Runs vertices until their input ends, or for ever, and recovers those that fail."""

    def __init__(self, assembly: Assembly, vertices: Iterable[str] | None = None) -> None:
        super().__init__(assembly)
        every = [vertex.name for vertex in assembly.program.vertices]
        self._clock = assembly.clock
        self._lately = Recently(RESTARTS_S)
        self._restarts = 0
        self._failure: StreamError | None = None
        assembly.register_streams()
        self._numbers = InstanceNumbers(assembly.log, assembly.program.query, every)
        for name in every if vertices is None else vertices:
            self.begin(name)
        self._raise_failure()

    def begin(self, name: str) -> None:
        """Recover a vertex under the next number and step it from now on."""
        self.add(name, self._numbers.next())
        self._recover_ended()

    def step(self) -> bool:
        """Step every vertex once; one that met a passing error begins again."""
        worked = super().step()
        self._recover_ended()
        return worked

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until every vertex has ended or been taken over, or `until` says so."""
        while self._running() and not (until is not None and until()):
            if not self.step():
                self.wait()
            self._raise_failure()

    def run_available(self) -> None:
        """Process everything that is there now, commit it and return."""
        while self._running():
            worked = self.step()
            self._raise_failure()
            if worked:
                continue
            waiting = [v.name for v in self._running() if not v.is_drained()]
            if not waiting:
                return
            for name in waiting:  # not when its next commit is due by the clock, but now
                self._do_or_end(name, Vertex.flush)
            self._recover_ended()
            self.wait()  # not at all after a commit; for a sink that is behind, or half a file

    def close(self) -> None:
        """Commit what has been done and let the vertices go; raises what kept one from it."""
        super().close()
        for end in self.take_ends():
            if not end.is_fenced:
                raise end.error

    def statistics(self) -> HostStatistics:
        return replace(super().statistics(), restarts=self._restarts)

    def _recover_ended(self) -> None:
        """Begin again from the last marker, as a new instance; give up what keeps failing."""
        while ends := self.take_ends():
            for end in ends:
                if end.is_fenced:
                    continue
                times = self._lately.count(end.vertex, self._clock.monotonic_s())
                if not end.can_go_on or times > RESTARTS_MAX:
                    self._failure = self._failure or end.error
                    continue
                logger.warning(
                    "vertex %s failed (%s): recovering it from its last marker",
                    end.vertex,
                    end.error,
                )
                self._restarts += 1
                self.add(end.vertex, self._numbers.next())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
