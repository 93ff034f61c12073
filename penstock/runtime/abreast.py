"""Parts of one sequence of rows: who is far ahead waits for the others.

The parts of a generator go through the same times, each in a vertex of its own. What is grouped by
time is finished by the one that is furthest behind; what the others have read beyond it fills the
state, and would fill it for ever, because nobody who is as fast catches up. How far ahead a part
is, is told by its own clock: how long ago it was where the last one has got to, and by the rows
that it has written since. So the bounds fit streams of a thousand rows per second of event time and
of ten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.contract import Log
from penstock.runtime.markers import decode_marker

AHEAD_S_MAX = 0.5
AHEAD_ROWS_MAX = 1 << 22  # written: each may be a row of the state of who reads them
LOOK_S = 0.05  # how often it looks where the others are
PLACES_MAX = 64  # that are remembered
_APART_S = 2 * AHEAD_S_MAX / PLACES_MAX  # so that they span the bounds
_APART_ROWS = 2 * AHEAD_ROWS_MAX // PLACES_MAX


class _Place(NamedTuple):
    """Where this part was once."""

    at_s: float
    offset: int
    rows: int  # that it had written by then


class Abreast:
    """Whether the instance that reads one part of a source is too far ahead of the other parts."""

    def __init__(self, log: Log, beside: Sequence[str], clock: Clock) -> None:
        """`beside` are the vertex tags of those who read the other parts."""
        self._log = log
        self._beside = beside
        self._clock = clock
        self._been: deque[_Place] = deque()
        self._rows = 0  # written by now
        self._looked_s = float("-inf")
        self._is_ahead = False

    def note(self, offset: int, rows: int) -> None:
        """This part is here now, and has written so many rows in its life."""
        self._rows = rows
        here = _Place(self._clock.monotonic_s(), offset, rows)
        if self._been and _is_close(self._been[-1], here):
            return
        if len(self._been) == PLACES_MAX:
            self._been.popleft()
        self._been.append(here)

    def is_ahead(self) -> bool:
        """Whether this part should wait."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            last = self._last_offset()
            # It passed that place before it went where it first was beyond it.
            beyond = next((place for place in self._been if place.offset > last), None)
            self._is_ahead = beyond is not None and (
                now_s - beyond.at_s > AHEAD_S_MAX or self._rows - beyond.rows > AHEAD_ROWS_MAX
            )
        return self._is_ahead

    def _last_offset(self) -> float:
        """Where the part is that is furthest behind, of those that have more to read."""
        markers = [self._log.last(vertex_tag) for vertex_tag in self._beside]
        found = (None if each is None else decode_marker(each) for each in markers)
        return min(
            (
                float("-inf") if marker is None or marker.offset is None else marker.offset
                for marker in found
                if marker is None or not (marker.ended or marker.caught_up)
            ),
            default=float("inf"),
        )


def _is_close(last: _Place, here: _Place) -> bool:
    return here.at_s - last.at_s < _APART_S and here.rows - last.rows < _APART_ROWS
