"""Event time: how far it has come on each port of a vertex, and for the vertex.

A port goes by what its producers say, or by the rows that it has seen itself where the query
defines a watermark there. Of watermarks that meet, in a port or in a vertex, the one that is
furthest behind counts, as in Spark, or that which is furthest, as its policy `max` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.runtime.markers import WATERMARK_END, WATERMARK_NONE, PortMark, Said
from penstock.stages.settings import WatermarkPolicy


class Word(NamedTuple):
    """What a delivery tells about a port: of one of its producers, or of its source."""

    port: int
    said: Said
    producer: str | None = None  # None: a source


class PortTime:
    """How far event time has come on one port."""

    def __init__(
        self,
        heard: Watermarks | None,
        delay_us: int | None,
        start: PortMark,
        watermark_us: int,
        ended: bool,
        is_timed: bool = True,
    ) -> None:
        """`heard` is what its producers say, None of a source. `delay_us` belongs to the watermark
        that the port defines itself, None if it does not. Of one that is not timed no watermark
        speaks."""
        self.is_timed = is_timed
        self._heard = heard
        self._delay_us = delay_us
        self._seen_us = start.seen_us
        self._source = Said(ended=ended)
        self._reached_us = watermark_us

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more."""
        return self._source.ended if self._heard is None else self._heard.ended

    @property
    def caught_up(self) -> bool:
        """Whether nobody who writes it has more for now."""
        return self._heard is None or self._heard.caught_up

    @property
    def rests(self) -> bool:
        """Whether all who write it have said that they rest."""
        return self._heard is None or self._heard.rests

    @property
    def times_silence(self) -> bool:
        """Whether a producer may be left behind for being silent."""
        return self._heard is not None and self._heard.times_silence

    @property
    def is_awaited(self) -> bool:
        """Whether somebody has more for now who was not silent for too long."""
        return self._heard is not None and self._heard.is_awaited

    @property
    def watermarks(self) -> int:
        """How many meet in it, of those that this query defines."""
        return 1 if self._heard is None else self._heard.watermarks

    @property
    def is_silent(self) -> bool:
        """Whether all who could still say something were silent for too long."""
        return self._heard is not None and self._heard.is_silent

    def see(self, time_us: int | None) -> None:
        """Rows were processed; the latest of them has this time."""
        if time_us is not None and self._delay_us is not None:
            self._seen_us = max(self._seen_us, time_us - self._delay_us)

    def hear(self, word: Word) -> None:
        if self._heard is None:
            self._source = word.said
        else:
            assert word.producer is not None
            self._heard.hear(word.producer, word.said)

    def listen(self, now_ms: float) -> bool:
        return self._heard is not None and self._heard.listen(now_ms)

    def pass_rest_on(self) -> None:
        if self._heard is not None:
            self._heard.pass_rest_on()

    def advance(self, waits: bool) -> int:
        """Where it is by now. One that goes by its own rows may wait until it has all of them."""
        if self._delay_us is None or self.ended:
            given_us = (
                self._source.watermark_us if self._heard is None else self._heard.watermark_us
            )
            self._reached_us = given_us
        elif not waits:
            self._reached_us = self._seen_us
        return self._reached_us

    def mark(self) -> PortMark:
        return PortMark(self._seen_us, {} if self._heard is None else self._heard.known())


class EventTime:
    """How far event time has come for a vertex: as far as the port that is furthest behind.

    One that is silent for too long is not waited for, nor is a producer within a port. Ports of
    which no watermark speaks do not count beside others, but as long as one of them lasts time does
    not end: its rows may still meet what is kept.
    """

    def __init__(
        self, ports: Sequence[PortTime], watermark_us: int, policy: WatermarkPolicy = "min"
    ) -> None:
        self._ports = tuple(ports)
        self._policy = policy
        self._meet = sum(port.watermarks for port in ports) > 1
        self._times_silence = any(port.times_silence for port in ports)
        self.watermark_us = watermark_us
        self.of_ports_us: tuple[int, ...] = (watermark_us,) * len(ports)

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more, on any port."""
        return all(port.ended for port in self._ports)

    @property
    def caught_up(self) -> bool:
        return all(port.caught_up for port in self._ports)

    @property
    def rests(self) -> bool:
        """Whether all who write its ports have taken all there was, since that was passed on."""
        return all(port.rests for port in self._ports)

    def pass_rest_on(self) -> None:
        """This vertex says it too: for the next time it has to be said anew."""
        for port in self._ports:
            port.pass_rest_on()

    def see(self, port: int, time_us: int | None) -> None:
        self._ports[port].see(time_us)

    def hear(self, words: Iterable[Word]) -> None:
        for word in words:
            self._ports[word.port].hear(word)

    def listen(self, now_ms: float) -> bool:
        """Everything visible has been heard; return whether somebody's silence moves time on."""
        if not self._times_silence:
            return False  # asked after every delivery
        before = self._awaited()
        heard = [port.listen(now_ms) for port in self._ports]  # each one has its own silence
        return any(heard) or self._awaited() != before

    def _awaited(self) -> list[tuple[bool, bool]]:
        """Whom time waits for: who is silent, and who holds it back as long as he is not."""
        return [(port.is_silent, self._meet and port.is_awaited) for port in self._ports]

    def advance(self, waits: bool) -> bool:
        """Go as far as all ports are; return whether that is further. It never falls.

        Where watermarks meet, one that waits for all rows waits for those of each: none is late by
        what another one has said.
        """
        if waits and self._meet and any(port.is_awaited for port in self._ports):
            return False
        self.of_ports_us = tuple(port.advance(waits) for port in self._ports)
        ports = list(zip(self._ports, self.of_ports_us, strict=True))
        timed = [(port, us) for port, us in ports if port.is_timed] or ports
        reached_us = _met([(us, port.is_silent) for port, us in timed], self._policy)
        if reached_us == WATERMARK_END and not self.ended:
            return False
        if reached_us <= self.watermark_us:
            return False
        self.watermark_us = reached_us
        return True

    def marks(self) -> tuple[PortMark, ...]:
        return tuple(port.mark() for port in self._ports)


class Voices(NamedTuple):
    """Who speaks of a port's event time, beside those who each speak for themselves."""

    timeless: frozenset[str] = frozenset()  # who say nothing of it
    shared: Mapping[str, str] = MappingProxyType({})  # who have one watermark, and what it is
    policy: WatermarkPolicy = "min"


class Watermarks:
    """The input's watermark: the least of its producers', none of whom it may overtake.

    Two kinds of producers do not hold the others back. One that has caught up has said itself that
    it has no more for now: of the vertices of a stage, which share one input, those that still have
    something count, and when none has, the furthest, as if one vertex had read it all; so it is
    with stages that share one watermark, above a union of what they read. Of these, one that says
    that it rests is as far as the furthest was by then: whatever comes there comes later. One that
    was silent for `idle_timeout_ms` is left behind, whatever it may still have. Those who speak of
    no time do not count beside others.

    The result never falls, so a producer that comes back finds its rows judged by where the others
    are.
    """

    def __init__(
        self,
        expected: Collection[str],
        known: Mapping[str, Said],
        watermark_us: int,
        idle_timeout_ms: int | None,
        run: int = 0,
        others: Callable[[], Collection[str]] = lambda: (),
        voices: Voices = Voices(),  # noqa: B008 (it is immutable)
    ) -> None:
        """Those who will speak are `expected` in this query and run, and `others` elsewhere."""
        self._by = voices
        self._own = frozenset(expected)
        self.watermarks = len({self._owner(name) for name in self._own})
        self._others = others
        self._producers = dict(known)
        self._expect()
        self._watermark_us = watermark_us
        self._run = run
        self._silence = None if idle_timeout_ms is None else Silence(idle_timeout_ms)
        # A vertex goes by its slowest port: another one may have been further, or over, and those
        # who write it may never speak again.
        self._advance()

    @property
    def watermark_us(self) -> int:
        return self._watermark_us

    @property
    def times_silence(self) -> bool:
        return self._silence is not None

    @property
    def ended(self) -> bool:
        """Whether every producer has said that it has no more."""
        return bool(self._producers) and all(said.ended for said in self._producers.values())

    @property
    def caught_up(self) -> bool:
        """Whether no vertex of this query that writes the input has more for now."""
        return all(self._producers[name].ended or self._has_caught_up(name) for name in self._own)

    @property
    def rests(self) -> bool:
        """Whether all vertices of this query that write the input have said that they rest."""
        return all(self._producers[name].ended or self._producers[name].rests for name in self._own)

    @property
    def is_awaited(self) -> bool:
        """Whether a vertex of this query that writes the input has more for now, or may have."""
        return any(
            not (self._producers[name].ended or self._has_caught_up(name) or self._is_silent(name))
            for name in self._own
        )

    @property
    def is_silent(self) -> bool:
        """Whether nobody is left who is waited for, though not all have ended."""
        if self._silence is None:
            return False  # nobody is ever left behind
        voices = [is_silent for _, is_silent in self._voices()]
        return bool(voices) and all(voices)

    def known(self) -> dict[str, Said]:
        return dict(self._producers)

    def hear(self, producer: str, said: Said) -> None:
        before = self._producers.get(producer, Said())
        watermark_us = max(before.watermark_us, said.watermark_us)
        if said.rests and producer in self._by.shared:
            watermark_us = max(watermark_us, self._furthest_us(self._by.shared[producer]))
        self._producers[producer] = said._replace(watermark_us=watermark_us)
        if self._silence is not None:
            self._silence.end(producer)
        if self.ended:
            self._expect()  # the program that writes the stream may be another by now
        self._advance()

    def pass_rest_on(self) -> None:
        for name in self._own:
            self._producers[name] = self._producers[name]._replace(rests=False)

    def listen(self, now_ms: float) -> bool:
        """Everything visible has been heard; return whether somebody's silence moves time on."""
        if self._silence is None:
            return False
        self._silence.go_on(self._producers, now_ms)
        before = self._watermark_us
        self._advance()
        return self._watermark_us > before

    def _expect(self) -> None:
        for producer in sorted(self._own.union(self._others())):
            self._producers.setdefault(producer, Said())

    def _advance(self) -> None:
        """Go as far as those allow who are to be waited for; all silent, as far as is known."""
        if self.ended:
            self._watermark_us = WATERMARK_END
            return
        self._watermark_us = max(self._watermark_us, _met(self._voices(), self._by.policy))

    def _voices(self) -> list[tuple[int, bool]]:
        """The watermarks that meet: how far each is, and whether all are silent who have it."""
        lasting = [name for name, said in self._producers.items() if not said.ended]
        timed = [name for name in lasting if name not in self._by.timeless]
        owners: dict[str, list[str]] = {}
        for name in timed or lasting:
            owners.setdefault(self._owner(name), []).append(name)
        return [self._voice(names) for names in owners.values()]

    def _furthest_us(self, owner: str) -> int:
        names = (name for name, its in self._by.shared.items() if its == owner)
        said = (self._producers[name] for name in names)
        return max((each.watermark_us for each in said if not each.ended), default=WATERMARK_NONE)

    def _owner(self, producer: str) -> str:
        """Vertices of one stage are parts of one producer; any other is one by itself."""
        return self._by.shared.get(producer) or producer.rpartition(".")[0] or producer

    def _voice(self, names: Sequence[str]) -> tuple[int, bool]:
        busy = [name for name in names if not self._has_caught_up(name)]
        said = [(self._producers[n].watermark_us, self._is_silent(n)) for n in busy or names]
        is_silent = all(silent for _, silent in said)
        return (_met(said, "min") if busy else max(us for us, _ in said)), is_silent

    def _has_caught_up(self, producer: str) -> bool:
        """What was said in another run means nothing: there may be more by now."""
        caught_up_run = self._producers[producer].caught_up_run
        return producer in self._own and 0 < caught_up_run == self._run

    def _is_silent(self, producer: str) -> bool:
        return self._silence is not None and self._silence.is_over(producer)


class Silence:
    """For how long a reader has heard nothing of each producer, by the time it was able to hear.

    It is able to when it has taken all there was. From one such moment to the next it has listened,
    unless it was held up in between: so no gap counts for more than a part of the timeout.
    """

    _LOOKS = 4  # without a word, at the least, before a producer counts as silent

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._listened_ms: float | None = None
        self._silent_ms: dict[str, float] = {}
        self._heard: set[str] = set()  # since it last listened

    def end(self, producer: str) -> None:
        self._heard.add(producer)

    def go_on(self, producers: Iterable[str], now_ms: float) -> None:
        since_ms = now_ms if self._listened_ms is None else self._listened_ms
        listened_ms = min(now_ms - since_ms, self._timeout_ms / self._LOOKS)
        for producer in producers:
            before_ms = self._silent_ms.get(producer, 0.0)
            silent_ms = 0.0 if producer in self._heard else before_ms + listened_ms
            self._silent_ms[producer] = silent_ms
        self._listened_ms = now_ms
        self._heard.clear()

    def is_over(self, producer: str) -> bool:
        """Whether a producer was silent for the whole timeout, and still is."""
        return (
            producer not in self._heard and self._silent_ms.get(producer, 0.0) >= self._timeout_ms
        )


def _met(voices: Sequence[tuple[int, bool]], policy: WatermarkPolicy) -> int:
    """Where watermarks are that meet; of each how far it is, and whether it is silent."""
    if policy == "max":
        lasting = [us for us, _ in voices if us != WATERMARK_END]  # an end makes nobody else late
        return max(lasting or [us for us, _ in voices], default=WATERMARK_NONE)
    awake = [us for us, is_silent in voices if not is_silent]
    return min(awake, default=max((us for us, _ in voices), default=WATERMARK_NONE))
