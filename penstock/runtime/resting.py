"""Resting: who reads a quiet branch below a watermark says so, and nobody waits for its rows.

A watermark above a union is one for all branches, the greatest time of all rows less the delay, so
a branch without rows must not hold it back. But whose rows have only not been read yet, by a vertex
that is slow or gone, is waited for: they would be late by rows that came no earlier. So the vertex
itself tells: by a marker that stands behind those of the others it says that it has taken all
there was. Readers then take it to be as far as the others were at that place of the log, whatever
is said later; so a replay finds the same. It is said again when the others have gone further.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.log.contract import Log
from penstock.runtime.markers import WATERMARK_NONE, decode_marker

REST_LOOK_S = 0.05  # how often a vertex that rests looks how far the others are


class Resting:
    """When one instance of a vertex has to say that it rests."""

    def __init__(self, log: Log, beside: Sequence[str], clock: Clock, look_s: float) -> None:
        """`beside` are the vertex tags of those who have the watermark, but for its own."""
        self._log = log
        self._beside = beside
        self._clock = clock
        self._look_s = look_s
        self._looked_s = float("-inf")
        self._found_us = WATERMARK_NONE  # how far they are
        self._told_us = WATERMARK_NONE  # how far they were when it was last said
        self._looks_again = False

    def is_due(self, watermark_us: int) -> bool:
        """Whether others have gone further than this vertex, which is here, and has said."""
        now_s = self._clock.monotonic_s()
        self._looks_again = now_s < self._looked_s + self._look_s
        if not self._looks_again:
            self._looked_s = now_s
            self._found_us = max(map(self._said_us, self._beside), default=WATERMARK_NONE)
        return self._found_us > max(watermark_us, self._told_us)

    def note_said(self) -> None:
        """It was said after the last look."""
        self._told_us = max(self._told_us, self._found_us)

    def due_in_s(self) -> float | None:
        """When to look again, if that was asked too early; None: when the log has grown."""
        if not self._looks_again:
            return None
        return max(0.0, self._looked_s + self._look_s - self._clock.monotonic_s())

    def _said_us(self, vertex_tag: str) -> int:
        last = self._log.last(vertex_tag)
        marker = None if last is None else decode_marker(last)
        return WATERMARK_NONE if marker is None or marker.ended else marker.output_watermark_us
