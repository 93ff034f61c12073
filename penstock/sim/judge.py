"""How far event time had come at each row, replayed from when the engine took what.

Which rows are late depends on how the input was cut into deliveries and on when the reader looked,
so it cannot be told from the input alone. The simulator notes each delivery that a vertex takes and
each look at its silent producers, with the time, and this module draws the conclusions itself:

- a vertex that defines event time is at the greatest time it has taken, less the delay; with
  `available_now` only once it has taken all there is;
- a reader is where the slowest of those producers is that it has to wait for: who has ended, has no
  more for now, or was silent for the timeout is not one of them; branches below one watermark are
  one producer, and who says there that he rests is as far as the furthest had been said to be;
- a delivery is judged by where the vertex was before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.runtime.instances import run_of
from penstock.sim.data import Row

NONE_US = -(2**63)
END_US = 2**63 - 1


class Took(NamedTuple):
    """A delivery was taken: all up to a position of the log, or up to an offset of a source.

    Of the log it may be what several markers released.
    """

    upto: int


class Looked(NamedTuple):
    """A reader had taken all there was, and listened."""

    at_ms: float


class Drained(NamedTuple):
    """A source was asked and had nothing."""


class Committed(NamedTuple):
    """A vertex was about to write its next marker."""


Deed = Took | Looked | Drained | Committed
Deeds = Mapping[tuple[str, int], Sequence[Deed]]  # by vertex and instance


class Said(NamedTuple):
    """What a producer has said last, as a reader notes it."""

    watermark_us: int = NONE_US
    ended: bool = False
    caught_up_run: int = 0
    rests: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """What matters here of one marker."""

    vertex: str
    instance: int
    position: int
    offset: int
    consumed: int
    watermark_us: int
    seen_us: int
    ended: bool
    caught_up_run: int  # the run in which it had no more for now; 0: it has
    producers: Mapping[str, Said]
    behind_us: int = 0  # how far behind the watermark its rows may be
    rests: bool = False  # it says that it has taken all there was

    @property
    def said_us(self) -> int:
        """What its readers may go by."""
        is_time = NONE_US < self.watermark_us < END_US
        return self.watermark_us - self.behind_us if is_time else self.watermark_us


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
    waits: bool,
) -> dict[int, int]:
    """How far a vertex was that defines event time by its own rows, when it took what: by the end
    of each delivery of a source, and by the marker that released it of a stream.

    `rows_upto` are the rows of each marker of a stream; of a source they are those by offset. One
    that `waits` is no further than before until it has taken all there is.
    """
    found: dict[int, int] = {}
    for before, own in lives(marks):
        current = NONE_US if before is None else before.watermark_us
        seen = NONE_US if before is None else before.seen_us
        first = 0 if before is None else before.offset if by_offset else before.consumed
        limit = own[-1].offset if by_offset else own[-1].consumed
        expected = iter(own)
        has_more = True
        for deed in deeds[own[0].vertex, own[0].instance]:
            if isinstance(deed, Took | Drained):
                has_more = isinstance(deed, Took)
            if isinstance(deed, Took):
                places, rows = _taken(rows_upto, first, deed.upto, by_offset)
                first = deed.upto
                if deed.upto <= limit:
                    found |= dict.fromkeys(places, current)
                times = [row.ts for row in rows if row.ts is not None]
                seen = max([seen, *(time - delay_us for time in times)])
                if not waits:
                    current = max(current, seen)
            elif isinstance(deed, Looked | Drained):
                current = max(current, seen)
            elif isinstance(deed, Committed):
                mark = next(expected, None)
                check_watermark(mark, current)
                if mark is not None and mark.rests and has_more:
                    raise WrongWatermark(
                        f"the marker of {mark.vertex} at {mark.position} says that it rests, and "
                        "it has not found that there is no more"
                    )
                if mark is not None and mark.seen_us != seen:
                    raise WrongWatermark(
                        f"the marker of {mark.vertex} at {mark.position} has seen {mark.seen_us}, "
                        f"it has taken rows up to {seen}"
                    )
    return found


def _taken(
    rows_upto: Mapping[int, Sequence[Row]], first: int, upto: int, by_offset: bool
) -> tuple[Iterable[int], Iterable[Row]]:
    """What a delivery is known by, and its rows."""
    if by_offset:
        return (upto,), (row for at in range(first, upto) for row in rows_upto.get(at, ()))
    places = [at for at in rows_upto if first < at <= upto]
    return places, (row for at in places for row in rows_upto[at])


def heard_time(
    marks: Sequence[Mark],
    deeds: Deeds,
    inputs: Mapping[int, Mark],
    ports: Sequence[Sequence[str]],
    timeout_ms: int | None,
    waits: bool,
    shared: Mapping[str, str],
    timeless: Collection[str],
) -> dict[int, int]:
    """By marker that released rows: how far a reader was that hears its producers, before them.

    It is where the port is that is furthest behind. One that `waits` goes on when none of them has
    more for now. Those who have one watermark are `shared`, by its name; of what the `timeless`
    write no watermark speaks.
    """
    found: dict[int, int] = {}
    for before, own in lives(marks):
        run = run_of(own[0].instance)
        heard = (before, run, timeout_ms, waits, shared, timeless)
        ears = _Ears(ports[0], *heard) if len(ports) == 1 else _Ports(ports, *heard)
        expected = iter(own)
        first = 0 if before is None else before.consumed
        for deed in deeds[own[0].vertex, own[0].instance]:
            if isinstance(deed, Looked):
                ears.look(deed.at_ms)
            elif isinstance(deed, Took):
                if deed.upto > own[-1].consumed:
                    break  # never committed; a power cut may have taken the very input
                taken = sorted(at for at in inputs if first < at <= deed.upto)
                first = deed.upto
                found |= dict.fromkeys(taken, ears.watermark_us)
                ears.hear([inputs[at] for at in taken])
            elif isinstance(deed, Committed):
                check_watermark(next(expected, None), ears.watermark_us)
    return found


def check_watermark(mark: Mark | None, watermark_us: int) -> None:
    """Raise WrongWatermark unless a marker says what it must; the end says it all."""
    if mark is not None and not mark.ended and mark.watermark_us != watermark_us:
        raise WrongWatermark(
            f"the marker of {mark.vertex} at {mark.position} has the watermark "
            f"{mark.watermark_us}, by what was taken it is {watermark_us}"
        )


class _Ears:
    """What one instance of a reader has heard, and for how long it heard nothing.

    It listens when it has taken all there was; from one such moment to the next it was able to
    hear, but a gap of more than a quarter of the timeout was its own: it counts for a quarter.
    """

    def __init__(
        self,
        producers: Iterable[str],
        before: Mark | None,
        run: int,
        timeout_ms: int | None,
        waits: bool,
        shared: Mapping[str, str],
        timeless: Collection[str],
    ) -> None:
        self._shared = shared
        self._timeless = timeless
        self._waits = waits and len({self._owner(name) for name in producers}) > 1
        self._said: dict[str, Said] = dict.fromkeys(producers, Said())
        self._own = frozenset(self._said)
        self._said.update({} if before is None else before.producers)
        self._run = run
        self._timeout_ms = timeout_ms
        self._silent_ms: dict[str, float] = defaultdict(float)
        self._listened_ms: float | None = None
        self._heard: set[str] = set()  # since it last listened
        self.watermark_us = NONE_US if before is None else before.watermark_us
        self._reached_us = self.watermark_us

    def hear(self, marks: Sequence[Mark]) -> None:
        """All that one delivery says: who has more for now is asked only after the last word."""
        for mark in marks:
            before_us = self._said.get(mark.vertex, Said()).watermark_us
            known_us = [before_us, mark.said_us]
            if mark.rests and mark.vertex in self._shared:
                known_us += [
                    said.watermark_us
                    for name, said in self._said.items()
                    if self._owner(name) == self._owner(mark.vertex) and not said.ended
                ]
            said = Said(max(known_us), mark.ended, mark.caught_up_run)
            self._said[mark.vertex] = said
            self._heard.add(mark.vertex)
            self._reach()
        self.advance()

    def look(self, at_ms: float) -> None:
        if self._timeout_ms is None:
            return
        since_ms = at_ms if self._listened_ms is None else self._listened_ms
        listened_ms = min(at_ms - since_ms, self._timeout_ms / 4)
        for name in self._said:
            self._silent_ms[name] += listened_ms
        for name in self._heard:
            self._silent_ms[name] = 0
        self._heard.clear()
        self._listened_ms = at_ms
        self.advance()

    def advance(self) -> None:
        self._reach()
        if not (self._waits and self._reached_us < END_US and self.is_waiting()):
            self.watermark_us = self._reached_us

    def _reach(self) -> None:
        """Who has ended does not count, nor who is timeless beside others; who has no more for now
        counts only if his whole stage has none, and then by the furthest; who is silent counts only
        if all are.
        """
        lasting = [name for name, said in self._said.items() if not said.ended]
        stages: dict[str, list[str]] = {}
        for name in [each for each in lasting if each not in self._timeless] or lasting:
            stages.setdefault(self._owner(name), []).append(name)
        if not stages:
            self._reached_us = END_US
            return
        counted: list[tuple[int, bool]] = []  # how far, and whether silent
        for names in stages.values():
            busy = [name for name in names if not self._has_no_more(name)]
            if busy:
                counted += [(self._said[n].watermark_us, self._is_silent(n)) for n in busy]
            else:
                furthest_us = max(self._said[name].watermark_us for name in names)
                counted.append((furthest_us, all(self._is_silent(name) for name in names)))
        speaking = [us for us, is_silent in counted if not is_silent]
        reached = min(speaking) if speaking else max(us for us, _ in counted)
        self._reached_us = max(self._reached_us, reached)

    def is_waiting(self) -> bool:
        """Whether somebody has more for now, as far as he has said, and is not silent."""
        lasting = [name for name in self._own if not self._said[name].ended]
        return any(not self._has_no_more(n) and not self._is_silent(n) for n in lasting)

    def _owner(self, name: str) -> str:
        return self._shared.get(name) or name.rpartition(".")[0] or name

    def _has_no_more(self, name: str) -> bool:
        return name in self._own and self._said[name].caught_up_run == self._run

    def _is_silent(self, name: str) -> bool:
        if self._timeout_ms is None or name in self._heard:
            return False
        return self._silent_ms[name] >= self._timeout_ms


class _Ports:
    """What one instance has heard on each of its ports, which go on by themselves."""

    def __init__(
        self,
        ports: Sequence[Sequence[str]],
        before: Mark | None,
        run: int,
        timeout_ms: int | None,
        waits: bool,
        shared: Mapping[str, str],
        timeless: Collection[str],
    ) -> None:
        self._waits = waits
        self._ears: list[_Ears] = []
        self._names = ports
        for names in ports:
            known = {} if before is None else before.producers
            own = {name: said for name, said in known.items() if name in names}
            start = None if before is None else replace(before, producers=own)
            self._ears.append(_Ears(names, start, run, timeout_ms, False, shared, timeless))
            self._ears[-1].advance()
        self.watermark_us = NONE_US if before is None else before.watermark_us

    def hear(self, marks: Sequence[Mark]) -> None:
        for names, ears in zip(self._names, self._ears, strict=True):
            ears.hear([mark for mark in marks if mark.vertex in names])
        self._advance()

    def look(self, at_ms: float) -> None:
        for ears in self._ears:
            ears.look(at_ms)
        self._advance()

    def _advance(self) -> None:
        if self._waits and any(ears.is_waiting() for ears in self._ears):
            return
        self.watermark_us = max(self.watermark_us, min(e.watermark_us for e in self._ears))


def epoch_of(marks: Sequence[Mark], index: int) -> int:
    """Which marker of a source's vertex covers the row at an offset."""
    return bisect_right([mark.offset for mark in marks], index)
