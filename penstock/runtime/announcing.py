"""Announcing: under which streams' tags a marker is found, and when it need not be.

A marker always carries the tags of its vertex, and those of a stream between two stages: both are
trimmed. Streams that people named are kept, so a marker is put there only if it has something for
their readers:

- rows of its epoch, or a whole result without any: what readers know is then no more;
- the first word of an instance: it makes readers drop what a dead one appended without a marker;
- for readers of the result, who go by its time: the end, having caught up, the first input, and
  otherwise a sign of life once a second. A reader that waits for the watermark hears of it that
  much later, where no row comes before.

Without that, a query that gives few rows would leave a marker there with each of its commits, for
ever. Late rows and dead letters have no time of their own: their streams get no signs of life.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.runtime.markers import Marker

SIGN_OF_LIFE_S = 1.0
_FACTS = ("ended", "caught_up", "had_input")


class Announcing:
    """Chooses the tags of each marker of one instance."""

    def __init__(
        self, always: tuple[str, ...], named: Mapping[str, Collection[str]], timed: Collection[str]
    ) -> None:
        """`named`: marker tags, and the tags of the rows they are for. `timed` are those of them
        whose readers go by the watermark.
        """
        self._always = always
        self._named = {tag: frozenset(rows) for tag, rows in named.items()}
        self._timed = frozenset(timed)
        self._told: dict[str, tuple[Marker, float]] = {}  # what readers of a result know, and when
        self._is_first = True

    def tags(
        self, marker: Marker, written: Collection[str], now_s: float, is_forced: bool
    ) -> tuple[str, ...]:
        """The tags of a marker that commits rows, or the lack of them, under the tags `written`."""
        chosen = [
            tag
            for tag, rows in self._named.items()
            if self._is_first
            or not rows.isdisjoint(written)
            or (tag in self._timed and self._is_news(tag, marker, now_s, is_forced))
        ]
        return (*self._always, *chosen)

    def note(self, marker: Marker, tags: Collection[str], now_s: float) -> None:
        """The marker is in the log."""
        self._is_first = False
        self._told |= dict.fromkeys(self._timed.intersection(tags), (marker, now_s))

    def withheld_until_s(self, marker: Marker) -> float | None:
        """When readers are to be told what they do not know yet; None if they know it."""
        waiting = (
            told_s
            for told, told_s in self._told.values()
            if marker.watermark_us > told.watermark_us
        )
        first_s = min(waiting, default=None)
        return None if first_s is None else first_s + SIGN_OF_LIFE_S

    def _is_news(self, tag: str, marker: Marker, now_s: float, is_forced: bool) -> bool:
        told, told_s = self._told[tag]  # the first marker has told
        if any(getattr(marker, fact) != getattr(told, fact) for fact in _FACTS):
            return True
        return now_s >= told_s + SIGN_OF_LIFE_S or (
            is_forced and marker.watermark_us > told.watermark_us
        )
