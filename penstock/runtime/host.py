"""A host: steps vertices in one thread, over a real log. It is what a slot runs.

It does as it is told: a vertex comes with the instance number that was handed out for it, and one
that cannot go on is let go, with the reason. Whoever hands out numbers decides what becomes of it.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import (
    ChangeLogBroken,
    Fenced,
    LogBusy,
    LogIOError,
    OutcomeUnknown,
    StreamError,
)
from penstock.log.record import START
from penstock.runtime.assembly import Assembly
from penstock.runtime.vertex import Vertex, VertexState, VertexStatistics

DROPPED_MAX = 1_000  # the newest are told
WAIT_S = 0.2  # the longest sleep, if nobody wakes it: time that passes is looked at so often

# A vertex that meets one of these is recovered from its last marker, under a new number.
PASSING = (OutcomeUnknown, LogIOError, LogBusy)
# In a recovery this one too: a newer instance may trim what an older one still reads.
PASSING_IN_RECOVERY = (*PASSING, ChangeLogBroken)

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """What the host's vertices have done, by name."""

    vertices: dict[str, VertexStatistics]
    restarts: int
    dropped: tuple[str, ...]  # taken over by another process


@dataclass(frozen=True, slots=True)
class VertexEnd:
    """A vertex that is no longer here, and why."""

    vertex: str
    instance: int
    error: StreamError
    can_go_on: bool  # under a new number, from its last marker

    @property
    def is_fenced(self) -> bool:
        return isinstance(self.error, Fenced)


class Activity:
    """What the thread of a host does now, and how often that has changed; any thread may look."""

    def __init__(self) -> None:
        self.now: tuple[int, str, str] = (0, "start", "")  # replaced as a whole

    def turn_to(self, what: str, vertex: str = "") -> None:
        self.now = (self.now[0] + 1, what, vertex)


class Host:
    """Vertices of one program that live in this thread."""

    def __init__(self, assembly: Assembly) -> None:
        self.activity = Activity()
        self.departures = 0  # of vertices that were here
        self._assembly = assembly
        self._vertices: dict[str, Vertex] = {}
        self._dropped: deque[str] = deque(maxlen=DROPPED_MAX)
        self._ends: list[VertexEnd] = []
        self._tail = START  # of the log, when the last step began

    def add(self, name: str, instance: int) -> bool:
        """Recover a vertex here and step it from now on; return whether it is here now."""
        assert name not in self._vertices, "its state is here, and nobody would close it"
        self.activity.turn_to("recover", name)
        try:
            self._vertices[name] = self._assembly.start(name, instance)
        except StreamError as error:
            self._note_end(name, instance, error, isinstance(error, PASSING_IN_RECOVERY))
            return False
        self._tell_appends()
        return True

    def is_empty(self) -> bool:
        return not self._vertices

    def is_through(self) -> bool:
        """Whether nothing will come any more for any vertex here."""
        return all(vertex.is_through() for vertex in self._vertices.values())

    def step(self) -> bool:
        """Step every vertex once, in order; return whether any had work."""
        worked = False
        self._tail = self._assembly.log.tail()
        for name in tuple(self._vertices):
            self.activity.turn_to("step", name)
            worked |= self._do_or_end(name, Vertex.step)
        self.activity.turn_to("wait")
        return worked

    def close(self) -> None:
        """Commit what has been done and let the vertices go; `take_ends` tells what failed."""
        for name in tuple(self._vertices):
            self.activity.turn_to("close", name)
            self._do_or_end(name, Vertex.flush)
            if name in self._vertices:
                self._let_go(name)

    def abandon(self) -> None:
        """Let the vertices go without committing; what they have not committed is forgotten."""
        for name in reversed(tuple(self._vertices)):
            self._let_go(name)

    def vertex(self, name: str) -> Vertex:
        return self._vertices[name]

    def statistics(self) -> HostStatistics:
        return HostStatistics(
            vertices={name: vertex.statistics() for name, vertex in self._vertices.items()},
            restarts=0,
            dropped=tuple(self._dropped),
        )

    def take_ends(self) -> list[VertexEnd]:
        """Vertices that could not go on since the last call; they are no longer here."""
        ends, self._ends = self._ends, []
        return ends

    def wait(self) -> None:
        """Sleep until the log grows, a commit is due or a source may have more.

        What the log has gained since the last step began may be input that the step did not see:
        then there is no sleep.
        """
        due = [s for v in self._running() if (s := v.work_due_in_s()) is not None]
        self._assembly.log.wait(self._tail, min([WAIT_S, *due]))

    def _do_or_end(self, name: str, action: Callable[[Vertex], T]) -> T | bool:
        """Let a vertex do something; one that meets an error is let go. Any other is a bug."""
        try:
            return action(self._vertices[name])
        except StreamError as error:
            instance = self._vertices[name].marker.instance
            self._let_go(name)
            self._note_end(name, instance, error, isinstance(error, PASSING))
        return True

    def _let_go(self, name: str) -> None:
        vertex = self._vertices.pop(name)
        self.departures += 1
        self._tell_appends()
        vertex.close()

    def _tell_appends(self) -> None:
        if self._assembly.appends is not None:
            overlaps = any(vertex.overlaps for vertex in self._vertices.values())
            self._assembly.appends.serve(len(self._vertices), overlaps=overlaps)

    def _note_end(self, name: str, instance: int, error: StreamError, can_go_on: bool) -> None:
        _forget_what_was_at_hand(error)
        end = VertexEnd(name, instance, error, can_go_on)
        if end.is_fenced:
            logger.warning("vertex %s was taken over by a newer instance: dropping it here", name)
            self._dropped.append(name)
        self._ends.append(end)

    def _running(self) -> list[Vertex]:
        return [v for v in self._vertices.values() if v.state is VertexState.RUNNING]


def _forget_what_was_at_hand(error: BaseException | None) -> None:
    """Keep of an error where it came from, and not what was at hand there: a vertex and its state.

    Whoever raises an error that he has a name for has made a cycle, which only the garbage
    collector would find.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
