"""How far event time had come at each row, replayed from when the engine took what.

Which rows are late depends on how the input was cut into deliveries and on when the reader looked,
so it cannot be told from the input alone. The simulator notes each delivery that a vertex takes and
each look at its silent producers, with the time, and this module draws the conclusions itself:

- a vertex that defines event time is at the greatest time it has taken, less the delay;
- a reader is where the slowest of its producers is, of those that have neither ended nor been
  silent for the timeout; where all are silent, at the furthest of them;
- a delivery is judged by where the vertex was before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.sim.data import Row

NONE_US = -(2**63)
END_US = 2**63 - 1


class Took(NamedTuple):
    """A delivery was taken: all up to a position of the log, or up to an offset of a source."""

    upto: int
    at_ms: float


class Looked(NamedTuple):
    """A reader looked at the silence of its producers."""

    at_ms: float


class Committed(NamedTuple):
    """A vertex was about to write its next marker."""


Deed = Took | Looked | Committed
Deeds = Mapping[tuple[str, int], Sequence[Deed]]  # by vertex and instance


@dataclass(frozen=True, slots=True)
class Mark:
    """What matters here of one marker."""

    vertex: str
    instance: int
    position: int
    offset: int
    consumed: int
    watermark_us: int
    ended: bool
    producers: Mapping[str, tuple[int, bool]]


class WrongWatermark(Exception):
    """A marker has another watermark than the deeds before it give."""


def lives(marks: Sequence[Mark]) -> Iterator[tuple[Mark | None, list[Mark]]]:
    """The instances of a vertex that committed anything: what each began with, and its markers."""
    before: Mark | None = None
    own: list[Mark] = []
    for mark in marks:
        if own and own[-1].instance != mark.instance:
            yield before, own
            before, own = own[-1], []
        own.append(mark)
    if own:
        yield before, own


def own_time(
    marks: Sequence[Mark],
    deeds: Deeds,
    rows_upto: Mapping[int, Sequence[Row]],
    delay_us: int,
    by_offset: bool,
) -> dict[int, int]:
    """By delivery (its end): how far a vertex was that defines event time by its own rows.

    `rows_upto` are the rows of each delivery of a stream; of a source they are those by offset.
    """
    found: dict[int, int] = {}
    for before, own in lives(marks):
        current = NONE_US if before is None else before.watermark_us
        first = 0 if before is None else before.offset
        limit = own[-1].offset if by_offset else own[-1].consumed
        expected = iter(own)
        for deed in deeds[own[0].vertex, own[0].instance]:
            if isinstance(deed, Took):
                rows = _rows(rows_upto, first, deed.upto, by_offset)
                first = deed.upto
                if deed.upto <= limit:
                    found[deed.upto] = current
                times = [row.ts for row in rows if row.ts is not None]
                current = max([current, *(time - delay_us for time in times)])
            elif isinstance(deed, Committed):
                _check(next(expected, None), current)
    return found


def _rows(
    rows_upto: Mapping[int, Sequence[Row]], first: int, upto: int, by_offset: bool
) -> Iterable[Row]:
    if not by_offset:
        return rows_upto.get(upto, ())
    return (row for at in range(first, upto) for row in rows_upto.get(at, ()))


def heard_time(
    marks: Sequence[Mark],
    deeds: Deeds,
    inputs: Mapping[int, Mark],
    producers: Iterable[str],
    timeout_ms: int | None,
) -> dict[int, int]:
    """By delivery (the position of its marker): how far a reader was that hears its producers."""
    found: dict[int, int] = {}
    for before, own in lives(marks):
        ears = _Ears(producers, before, timeout_ms)
        expected = iter(own)
        for deed in deeds[own[0].vertex, own[0].instance]:
            if isinstance(deed, Looked):
                ears.look(deed.at_ms)
            elif isinstance(deed, Took):
                if deed.upto <= own[-1].consumed:
                    found[deed.upto] = ears.watermark_us
                ears.hear(inputs[deed.upto], deed.at_ms)
            else:
                _check(next(expected, None), ears.watermark_us)
    return found


def _check(mark: Mark | None, watermark_us: int) -> None:
    if mark is not None and not mark.ended and mark.watermark_us != watermark_us:
        raise WrongWatermark(
            f"the marker of {mark.vertex} at {mark.position} has the watermark "
            f"{mark.watermark_us}, by what was taken it is {watermark_us}"
        )


class _Ears:
    """What one instance of a reader has heard, and when."""

    def __init__(
        self, producers: Iterable[str], before: Mark | None, timeout_ms: int | None
    ) -> None:
        self._said: dict[str, tuple[int, bool]] = dict.fromkeys(producers, (NONE_US, False))
        self._said.update({} if before is None else before.producers)
        self._silent_since: dict[str, float] = {}
        self._timeout_ms = timeout_ms
        self.watermark_us = NONE_US if before is None else before.watermark_us

    def hear(self, mark: Mark, at_ms: float) -> None:
        before, _ = self._said.get(mark.vertex, (NONE_US, False))
        self._said[mark.vertex] = (max(before, mark.watermark_us), mark.ended)
        self._silent_since[mark.vertex] = at_ms
        self._advance(at_ms)

    def look(self, at_ms: float) -> None:
        if self._timeout_ms is not None:
            self._advance(at_ms)

    def _advance(self, at_ms: float) -> None:
        open_ones = {name: us for name, (us, ended) in self._said.items() if not ended}
        speaking = [us for name, us in open_ones.items() if not self._is_silent(name, at_ms)]
        if speaking:
            reached = min(speaking)
        elif open_ones:
            reached = max(open_ones.values())
        else:
            reached = END_US
        self.watermark_us = max(self.watermark_us, reached)

    def _is_silent(self, name: str, at_ms: float) -> bool:
        since_ms = self._silent_since.setdefault(name, at_ms)
        return self._timeout_ms is not None and at_ms - since_ms >= self._timeout_ms


def epoch_of(marks: Sequence[Mark], index: int) -> int:
    """Which marker of a source's vertex covers the row at an offset."""
    return bisect_right([mark.offset for mark in marks], index)
